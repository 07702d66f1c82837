/*
 * spec.h — spec of a manifest that has been checked and defaulted → struct job_spec. Internal to lib/job. Pure.
 */
#ifndef JOB_SPEC_H
#define JOB_SPEC_H

#include "job/job.h"

const cJSON *spec_roles(const cJSON *spec); /* replicaSpecs, or its alias tfReplicaSpecs; borrowed, NULL when there is neither */
void spec_read(const cJSON *tree, struct job_spec *spec /* zeroed; owns what it is given */);

#endif
