/*
 * runner_scale.h — another number of workers for a job of this machine.
 */
#ifndef CLI_RUNNER_SCALE_H
#define CLI_RUNNER_SCALE_H

#include "job/job.h"

#define JOBDIR_SCALE "scale" /* file of the job directory: the number of workers that is wanted */

struct runner;

/* Whether the job may have so many workers: the bounds of spec.elasticPolicy, and those of one machine. ERROR_INVALID says which. */
MUST_CHECK int scale_check(const struct training_job *job, int64_t workers, struct error *e);
void runner_scale(struct runner *r, int64_t now_ms); /* at every tick */

#endif
