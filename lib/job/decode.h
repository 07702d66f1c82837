/*
 * decode.h — manifest tree → struct training_job, and status ↔ JSON. Pure.
 */
#ifndef JOB_DECODE_H
#define JOB_DECODE_H

#include "job/job.h"
#include "job/schema.h"

/* Schema check, defaults, aliases (tfReplicaSpecs, runPolicy.suspend/managedBy), cross-field rules (the CRD's CEL), decode.
 * `manifest` is not changed. Absent: uid is "", namespace "default", other texts without a default in the CRD NULL. On success
 * *ret_job is owned by the caller. On failure e says how many problems there are and `problems` has them all. doc gives their
 * places and may be NULL. */
MUST_CHECK int job_decode(const cJSON *manifest, const struct yaml_doc *doc, struct problems *problems, struct training_job **ret_job, struct error *e);

/* What a cluster can do without and a run on one machine cannot: each role's main container names its command. */
MUST_CHECK int job_check_local(const struct training_job *job, struct error *e);

cJSON *status_encode(const struct training_job *job, const struct job_status *status); /* the CRD's status; owned */
MUST_CHECK int status_decode(const cJSON *status, struct job_status *ret_status, struct error *e); /* absent = fresh status */
void status_init(struct job_status *status);

/* Every path that job_decode and status_decode read: for the test that holds decoder and CRD together. "[]" stands for an item
 * of a list, "*" for a key of a map: "spec.failurePolicy.rules[].action", "spec.replicaSpecs.*.template". Trees that are
 * taken whole have one path. */
const char *const *decode_known_paths(size_t *ret_count);

#endif
