/*
 * pod.h — the exact pod of one replica as a Kubernetes object. Pure.
 *
 * The operator sends it to the API server; `ringmaster render` prints it; the local runner takes command, args, env and
 * working directory of its containers and runs them as processes. It holds: the user's template; labels and attempt;
 * hostname and subdomain; the native sidecar "ringmaster" (init container with restartPolicy Always) with its options as
 * RINGMASTER_* variables; the launcher in front of the user's command; the environment of every framework asked for
 * (environment.h); volumes /ringmaster (emptyDir: launcher, libraries, socket), /ringmaster/shm (emptyDir, memory) and the
 * key Secret, mounted in the sidecar alone. Variables that the user set win.
 */
#ifndef JOB_POD_H
#define JOB_POD_H

#include "job/address.h"

#define POD_SIDECAR_CONTAINER "ringmaster"
#define POD_DIR "/ringmaster"              /* mount point of the shared emptyDir in a cluster */

struct pod_context {
    const struct address_plan *addresses;
    int32_t attempt;
    const struct job_status *status;       /* counters for the coordinator's budget, avoidNodes */
    const char *sidecar_image;             /* default of the installation */
};

cJSON *pod_build(const struct training_job *job, enum job_role role, int32_t index, const struct pod_context *context); /* owned */
cJSON *service_build(const struct training_job *job);                                   /* headless Service; owned */
char *pod_hash(const cJSON *pod);                                                      /* template hash, hex; owned */

/* environment.h's list for one replica, in a stable order: array of {name, value}. Owned. */
cJSON *environment_build(const struct training_job *job, enum job_role role, int32_t index, const struct pod_context *context);

/* Kubernetes' $(NAME) expansion over an env array of {name,value}; "$$(X)" escapes; unknown names stay. Owned. */
char *environment_expand(const char *text, const cJSON *env);

#endif
