/*
 * launcher.h — runs the command on the sidecar's word and tells it what became of it. See docs/internals/processes.md.
 *
 * One process at a time. The launcher never starts it again by itself. The connection to the sidecar may come and go: the
 * process runs on, and the next HELLO tells the sidecar what happened meanwhile (an EXITED follows it when a process has
 * ended, whether or not one was sent before).
 */
#ifndef LAUNCH_LAUNCHER_H
#define LAUNCH_LAUNCHER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct launcher_options {
    const char *socket;      /* of the sidecar */
    bool no_sidecar;         /* start at once, leave when the process ends */
    int64_t grace_ms;        /* after SIGTERM; 0: whoever sent it decides when to kill */
    char *const *command;    /* NULL-terminated */
};

/* Returns the launcher's exit code in *ret_code when it is time to leave. */
MUST_CHECK int launcher_run(const struct launcher_options *options, int *ret_code, struct error *e);

#endif
