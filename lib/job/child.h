/*
 * child.h — the objects beside the pods that a job owns: what they have in common, its NetworkPolicy, its volume claims. Pure.
 *
 * Volume claims: spec.volumeClaimPolicies has templates; each replica whose containers mount a volume with the name of a template
 * gets a claim of its own, <template>-<pod>, as a StatefulSet's does, and the volume with it. A claim that goes with the job
 * (whenDeleted Delete) is owned by it; one that is retained has no owner, is found again under its name by a job of the same name,
 * and is never changed by us.
 */
#ifndef JOB_CHILD_H
#define JOB_CHILD_H

#include "job/job.h"

/* metadata: name, namespace, labels job-name and job-uid, the job as controlling owner. Owned. */
cJSON *child_metadata(const struct training_job *job, const char *name);
cJSON *child_owners(const struct training_job *job); /* ownerReferences with the job alone; owned */

/* Pods of this job alone reach its ring port; every other port stays as it is. Owned. */
cJSON *network_policy_build(const struct training_job *job);
void network_policy_name(const struct training_job *job, char ret_name[128]);

/* ---- volume claims ---- */

#define VOLUME_CLAIMS_MAX 128                        /* templates of all policies: the CRD's bounds */
#define VOLUME_NAME_MAX 64                           /* of a template: a DNS label and its NUL */
size_t volume_claim_count(const struct training_job *job);                                  /* templates */
bool volume_claim_is_wanted(const struct training_job *job, enum job_role role, size_t claim); /* a container mounts it */
void volume_claim_name(const struct training_job *job, enum job_role role, int32_t index, size_t claim, char ret_name[192]);
cJSON *volume_claim_build(const struct training_job *job, enum job_role role, int32_t index, size_t claim); /* owned */
/* Puts the replica's volumes into a pod's spec, in place of volumes that have the names of templates. */
void volume_claims_mount(const struct training_job *job, enum job_role role, int32_t index, cJSON *pod_spec);

bool volume_claims_shrink(const struct training_job *job); /* some are to go when the job is scaled down */
/* An object of the list of a job's claims (label job-name): made for a replica that is no more, and to be deleted then. */
bool volume_claim_is_surplus(const struct training_job *job, const cJSON *claim);

#endif
