/*
 * descend.h — every process below this one, found and killed.
 *
 * A process group is not enough: a trainer's data workers may start sessions of their own, and a double fork leaves the
 * tree. Both programs that use this are child subreapers (or PID 1), so whatever loses its parent becomes a child of
 * theirs: when waitpid says that there is no child left, nothing is left at all.
 */
#ifndef LAUNCH_DESCEND_H
#define LAUNCH_DESCEND_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Sends the signal to all descendants that /proc shows now. A process that forks at this moment may escape: call again
 * until descend_reap says that none is left. Returns how many were signalled. */
size_t descend_kill(int signal_number);

/* All descendants that /proc shows now. *ret_pids is owned by the caller. */
size_t descend_list(pid_t **ret_pids);

/* Called for every child that ended, orphans that were adopted included. */
typedef void descend_reaped_fn(void *ctx, pid_t pid, int wait_status);

/* Reaps all that have ended, without blocking; fn may be NULL. Returns false when no child is left. */
bool descend_reap(descend_reaped_fn *fn, void *ctx);

/* Kills and reaps until nothing is left. Blocks; a process in uninterruptible sleep makes it wait, for at most limit_ms. */
void descend_end(int limit_ms);

/* Pure part, for the test: marks the pids that have `root` above them. `parents[i]` is the parent of `pids[i]`. */
void descend_mark(pid_t root, const pid_t *pids, const pid_t *parents, bool *ret_below, size_t count);

/* Reads pid and parent out of the text of /proc/PID/stat; the name in it may hold anything, brackets and blanks too. */
bool descend_parse_stat(const char *text, pid_t *ret_pid, pid_t *ret_parent);

#endif
