/*
 * process.h — starts a program as a child that cannot outlive this process.
 *
 * The child gets a session of its own (the terminal's Ctrl-C reaches the runner alone), no descriptor but the three, default
 * signals, and SIGKILL from the kernel when the thread that started it ends. Which process a pid is, is told by its start
 * time, so that a pid that was given to another process is never signalled.
 */
#ifndef CLI_PROCESS_H
#define CLI_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

struct process_spec {
    char *const *argv;          /* argv[0] is a path */
    char *const *environment;
    const char *directory;      /* NULL: as it is */
    int output_fd;              /* stdout and stderr */
};

MUST_CHECK int process_start(const struct process_spec *spec, pid_t *ret_pid, struct error *e);

/* Start time in clock ticks since boot, field 22 of /proc/PID/stat; 0 when there is no such process. */
uint64_t process_ticks(pid_t pid);
/* Signals pid only when it is still the process that started at `ticks`. False when it is gone. */
bool process_kill(pid_t pid, uint64_t ticks, int signal_number);

/* How a process ended, as the shell says it: code, or 128 + signal. */
int32_t process_exit_code(int wait_status);

/* "K=V" texts, NULL-terminated; a later K replaces an earlier one. */
struct process_environment { char **items; size_t count; };
void process_environment_inherit(struct process_environment *env); /* this process's, without what a job must not inherit */
void process_environment_set(struct process_environment *env, const char *name, const char *value);
const char *process_environment_get(const struct process_environment *env, const char *name); /* borrowed; NULL */
void process_environment_release(struct process_environment *env);

#endif
