/*
 * outcome.h — what has become of a TrainingJob, and whether what somebody waits for has come or can come no more. Pure.
 */
#ifndef CLI_OUTCOME_H
#define CLI_OUTCOME_H

#include "base/json.h"

enum outcome { OUTCOME_NONE /* it goes on */, OUTCOME_SUCCEEDED, OUTCOME_FAILED };
enum outcome outcome_of(const cJSON *job);
/* "Failed: BackoffLimitExceeded: ...": the phase and, where there is one, the reason. Cut at size. Borrowed back. */
const char *outcome_text(const cJSON *job, char *ret, size_t size);

/* What may be waited for: "succeeded", "failed", "finished", "running", "suspended", "deleted", or "condition=NAME". */
enum wait_verdict { WAIT_ON, WAIT_REACHED, WAIT_NEVER /* the job ended, and not so */ };
/* False when `text` is none of these. */
bool wait_goal_known(const char *text);
/* job NULL: it is not there. The goal may also be WAIT_CHECKPOINT and the value of the annotation that asked for one. */
#define WAIT_CHECKPOINT "checkpoint="
enum wait_verdict wait_verdict_of(const char *goal, const cJSON *job);

#endif
