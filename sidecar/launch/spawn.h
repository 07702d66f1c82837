/*
 * spawn.h — the training process: started in a session of its own, with clean signals, and bound to the launcher's life.
 */
#ifndef LAUNCH_SPAWN_H
#define LAUNCH_SPAWN_H

#include <stddef.h>
#include <sys/types.h>

#include "base/error.h"

#define SPAWN_NOT_FOUND 127
#define SPAWN_NOT_EXECUTABLE 126

/* The environment of the next process: this one's, changed by overrides "K=V\0K=V\0" (len bytes; what has no '=' is
 * skipped). NULL-terminated; free with spawn_environment_free. */
char **spawn_environment(const char *overrides, size_t len);
void spawn_environment_free(char **environment);

/* Runs argv[0], looked up in the environment's PATH when it holds no slash. stdin is inherited, stdout and stderr are out_fd and err_fd
 * or, where these are -1, inherited, all signals have their default disposition and none is blocked, and the process is killed when its parent ends.
 * On failure *ret_code is 126 or 127 as a shell would say, and e reads "exec /app/train.py: permission denied". */
MUST_CHECK int spawn(char *const argv[], char *const environment[], int out_fd, int err_fd, pid_t *ret_pid, int *ret_code,
                     struct error *e);

/* 0..255 as a shell says it: 128+n for signal n. */
int spawn_code(int wait_status);

#endif
