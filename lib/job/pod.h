/*
 * pod.h — the exact pod of one replica as a Kubernetes object. Pure.
 *
 * The operator sends it to the API server; `ringmaster render` prints it; the local runner takes command, args, env and
 * working directory of its containers and runs them as processes. It holds: the user's template; labels and attempt;
 * hostname and subdomain; the native sidecar "ringmaster" (init container with restartPolicy Always) with its options as
 * RINGMASTER_* variables; the launcher in front of the user's command; the environment of every framework asked for
 * (environment.h); volumes /ringmaster (emptyDir: launcher, libraries, socket), /ringmaster/shm (emptyDir, memory) and the
 * key Secret, mounted in the sidecar alone. Variables that the user set win, but for those that say who the replica is
 * (environment_is_reserved).
 */
#ifndef JOB_POD_H
#define JOB_POD_H

#include "base/buf.h"
#include "job/address.h"

#define POD_SIDECAR_CONTAINER "ringmaster"
#define POD_DIR "/ringmaster"              /* mount point of the shared emptyDir in a cluster */
#define POD_SHM_DIR POD_DIR "/shm"         /* emptyDir in memory: checkpoint slots; sidecar alone */
#define POD_LAUNCHER POD_DIR "/bin/ringmaster-launch"
#define POD_LIBRARY_DIR POD_DIR "/lib"     /* libringmaster.so, libringmaster_tf.so */
#define POD_PYTHON_DIR POD_DIR "/python"
#define POD_SHIM "shim"                    /* in it: packages of Horovod's name, in PYTHONPATH with frameworks: [Horovod] */
#define POD_KEY_DIR "/etc/ringmaster/key"  /* Secret: "key", and with a wss channel "ca.crt" */
#define POD_SECRET_KEY "key"
#define POD_SECRET_AUTHORITY "ca.crt"      /* who may have issued the operator's certificate; PEM */
#define POD_HOSTFILE_DIR "/etc/mpi"        /* frameworks: [MPI]: mount point of "hostfile" in the main container */
#define POD_HOSTFILE POD_LABEL "hostfile"  /* annotation that it is made from */
#define POD_GATE "ringmaster.dev/gang"     /* scheduling gate */
#define POD_LABEL "ringmaster.dev/"        /* + job-name, job-uid, replica-type, replica-index, attempt */
#define POD_MAIN_CONTAINER POD_LABEL "main-container" /* annotation: whose end is the replica's */
#define POD_DEFAULT_CONTAINER "kubectl.kubernetes.io/default-container" /* what kubectl logs and exec take */

struct pod_context {
    const struct address_plan *addresses;
    int32_t attempt;
    const struct job_status *status;       /* counters for the coordinator's budget, avoidNodes */
    const char *sidecar_image;             /* default of the installation */
    enum gang_kind gang;                   /* what scheduling.gang "Auto" comes to here; GANG_AUTO = no gang scheduler */
    const char *control;                   /* RINGMASTER_CONTROL; NULL = none */
    bool no_native_sidecars;               /* kubelets before 1.29: sidecar.mode "Auto" is Container */
    /* Where things lie for the processes; NULL = the cluster's POD_* paths above, for checkpoint_dir the spec's path. */
    const char *dir, *shm_dir, *library_dir, *python_dir, *key_file, *checkpoint_dir;
};

cJSON *pod_build(const struct training_job *job, enum job_role role, int32_t index, const struct pod_context *context); /* owned */
cJSON *service_build(const struct training_job *job);                                   /* headless Service; owned */
cJSON *service_build_replica(const struct training_job *job, enum job_role role, int32_t index); /* network.servicePerPod; owned */
void pod_secret_name(const struct training_job *job, char ret_name[128]);              /* of the ring key */
bool pod_has_sidecar(const struct training_job *job);                                  /* sidecar.mode is not None */
/* Whether the sidecar is one of the pod's containers, and so has to end by itself when the main container has. */
bool pod_sidecar_is_container(const struct training_job *job, const struct pod_context *context);
/* A container without a command cannot be run by the launcher: the image's entrypoint is not known here. False then. Such a
 * pod is built without launcher and says so in the annotation ringmaster.dev/launcher; reconcile fails such a job. */
bool pod_command_is_known(const struct training_job *job, enum job_role role);
char *pod_hash(const cJSON *pod);                                                      /* template hash, hex; owned */

/* What Ringmaster puts into the environment of one replica's training process, in a stable order: array of {name, value}
 * without what the user set in the main container. Owned. PYTHONPATH is there at all times, in front of the user's value. */
cJSON *environment_build(const struct training_job *job, enum job_role role, int32_t index, const struct pod_context *context);

/* Names by which Ringmaster tells a replica who it is: what a template says there is not used. */
bool environment_is_reserved(const char *name);
/* Names that both the role's main container and Ringmaster set, comma-separated: those where the user's value is kept, and those
 * where it is not used. */
void environment_conflicts(const struct training_job *job, enum job_role role, struct buf *kept, struct buf *dropped);

/* What pod_build gives the sidecar, in a stable order: array of {name, value}. Owned. */
cJSON *environment_sidecar(const struct training_job *job, enum job_role role, int32_t index, const struct pod_context *context);

/* Kubernetes' $(NAME) expansion over an env array of {name,value}; "$$(X)" escapes; unknown names stay. Owned. */
char *environment_expand(const char *text, const cJSON *env);

#endif
