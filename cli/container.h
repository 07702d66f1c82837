/*
 * container.h — a container of a pod as a process of this machine: its command, environment and directory. Pure but for the
 * look at the directory.
 */
#ifndef CLI_CONTAINER_H
#define CLI_CONTAINER_H

#include "base/json.h"
#include "cli/process.h"

struct container_process {
    char **argv;                          /* NULL-terminated */
    struct process_environment environment;
    char *directory;                      /* NULL: where the runner is */
};
void container_release(struct container_process *c);

/* What fieldRef and the like can be resolved to here. */
struct container_facts { const char *pod, *namespace, *uid, *address; };

/* `pod` from pod_build, the container by name among containers and initContainers. `launcher` replaces the path of the
 * launcher in front of the command; NULL: the container is the sidecar, `argv0` is its program. ERROR_INVALID names the
 * field that cannot be done without a cluster. */
MUST_CHECK int container_read(const cJSON *pod, const char *name, const char *launcher, const char *argv0,
                              const struct container_facts *facts, struct container_process *ret, struct error *e);

/* What of the pod's template has no meaning on one machine, one line each ("volumes: not mounted; ..."). */
struct buf;
void container_notes(const cJSON *template, const char *main_container, struct buf *out);

#endif
