/*
 * pod_schedule.h — where a pod may run: gang scheduler, topology, nodes to avoid. Pure; used by pod.c alone.
 */
#ifndef JOB_POD_SCHEDULE_H
#define JOB_POD_SCHEDULE_H

#include "job/pod.h"

void pod_schedule(const struct training_job *job, enum job_role role, const struct pod_context *context,
                  cJSON *metadata, cJSON *spec);

#endif
