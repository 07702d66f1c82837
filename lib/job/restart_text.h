/*
 * restart_text.h — a restart decision in words for a person: who, what, and what to do. Pure; used by restart.c alone.
 */
#ifndef JOB_RESTART_TEXT_H
#define JOB_RESTART_TEXT_H

#include "job/restart.h"

/* Fills d->message from the rest of d. rule is the one that matched, or NULL. */
void restart_explain(const struct training_job *job, const struct failure_event *event, const struct failure_rule *rule,
                     struct restart_decision *d);

#endif
