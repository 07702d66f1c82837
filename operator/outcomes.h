/*
 * outcomes.h — what has become of the jobs, by namespace, for Prometheus. Pure.
 *
 * Each change of a job's status is shown to it once, after the write, so that the counters are exact. They count what this
 * process has written since it began; a sum over the replicas of the operator counts what all of them have.
 */
#ifndef OPERATOR_OUTCOMES_H
#define OPERATOR_OUTCOMES_H

#include "base/buf.h"
#include "job/job.h"

#define OUTCOMES_NAMESPACES_MAX 1000 /* what is in any other is counted under namespace="" */
#define OUTCOMES_REASONS_MAX 64      /* of failed jobs in one namespace; any other counts as "Other" */

struct outcomes;
struct outcomes *outcomes_new(void);
void outcomes_free(struct outcomes *o); /* NULL is fine */

/* The status of a job was stored: as it was before, as it is now. */
void outcomes_note(struct outcomes *o, const char *ns, int64_t created_ms, const struct job_status *before, const struct job_status *now);
/* A manifest that cannot be run was found and said so. */
void outcomes_note_invalid(struct outcomes *o, const char *ns);

void outcomes_format(const struct outcomes *o, struct buf *out);

#endif
