/*
 * guard.h — a second process that outlives a launcher which is killed.
 *
 * In a container the launcher is PID 1 and the kernel ends everything with it. Elsewhere (ringmaster run; a pod that shares
 * its PID namespace) a launcher that dies by SIGKILL would leave the trainer's helpers behind. So the process that was
 * started stays as a guard above the launcher proper: it passes signals on and its exit code out, and kills whatever is
 * left when the launcher dies; the launcher does the same when the guard dies. Only killing both at once leaves orphans.
 */
#ifndef LAUNCH_GUARD_H
#define LAUNCH_GUARD_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

/* What the kernel sends when the parent of a process that asked for it has ended. */
#define GUARD_PARENT_GONE (SIGRTMIN + 4)

/* The signals that are passed on to the training process. SIGTERM is one; the launcher reports it, too. */
extern const int GUARD_FORWARDED[];
extern const size_t GUARD_FORWARDED_COUNT;

/* Makes this process the reaper of its descendants and has GUARD_PARENT_GONE sent when its parent ends. Returns false when
 * the parent is gone already. */
bool guard_bind_to_parent(int parent_pid);

/* Returns in a new child, which is to be the launcher. Does not return in the calling process. */
void guard_split(void);

#endif
