/*
 * submit_manifest.h — the manifest that `ringmaster submit` sends: np.h's, completed with what a pod on a cluster needs. Pure.
 */
#ifndef CLI_SUBMIT_MANIFEST_H
#define CLI_SUBMIT_MANIFEST_H

#include "base/json.h"
#include "base/opt.h"

struct submit_pod {
    const char *image;
    int64_t gpus;                  /* of each process */
    const char *gpu_resource;      /* "nvidia.com/gpu" */
    const char *cpu, *memory;      /* quantities of each process, requested; memory is the limit, too. NULL = not given */
    struct opt_list env, labels, node_selector; /* NAME=VALUE */
    const char *working_dir, *service_account, *pull_secret, *queue, *priority_class;
    const char *checkpoint;        /* directory in the container or s3://..., NULL = the default */
    const char *checkpoint_claim;  /* PersistentVolumeClaim mounted at `checkpoint` */
    int64_t checkpoint_every;      /* steps; 0 = the default */
};

/* Puts it into the manifest's one Worker. ERROR_INVALID names the option that is wrong. */
MUST_CHECK int submit_complete(const struct submit_pod *p, cJSON *manifest, struct error *e);
/* The same with "-" and five letters and digits behind it: two jobs of one script are two jobs. `seed` is random. */
void submit_name(const char *base, uint64_t seed, char ret_name[60]);
/* Removes what belongs to an object that exists: status, uid, managedFields, ... */
void submit_strip(cJSON *manifest);

#endif
