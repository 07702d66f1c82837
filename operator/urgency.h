/*
 * urgency.h — what has to be done about a change at once, and what is only to be shown and may come together with the next one.
 * Pure.
 *
 * A group of N pods on its way up changes some 3N times before it runs. A look for each, with a status write that costs the API
 * server as much as three pods, is what keeps the pods of other jobs waiting.
 */
#ifndef OPERATOR_URGENCY_H
#define OPERATOR_URGENCY_H

#include "operator/entry.h"

/* A pod on its way up, that nothing is wrong with. Either may be NULL: it was not there, it is not there any more. */
bool pod_may_wait(const struct pod_entry *was, const struct pod_entry *is);

/* True when the status says no more than how far pods have come on their way up: nothing was decided, and nothing is lost when it
 * is written later. */
bool status_may_wait(const struct job_status *before, const struct plan *plan);

#endif
