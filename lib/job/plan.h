/*
 * plan.h — how the reconciler's parts write a plan and a status. Pure; used by lib/job/reconcile*.c alone.
 *
 * A status is compared as bytes to see whether it changed, so that every text is written by text_set, which clears what
 * is behind it and does nothing when the text is the same.
 */
#ifndef JOB_PLAN_H
#define JOB_PLAN_H

#include "base/error.h"
#include "job/reconcile.h"

void plan_action(struct plan *p, enum action_kind kind, const char *reason);
void plan_pod_action(struct plan *p, enum action_kind kind, enum job_role role, int32_t index, int32_t attempt,
                     const char *uid, const char *reason);
void plan_event(struct plan *p, bool warning, const char *reason /* static */, const char *fmt, ...) FORMAT(4, 5);
void plan_requeue(struct plan *p, int64_t at_ms); /* the earliest wins */

/* Cuts at a whole UTF-8 character. */
void text_set(char *ret_text, size_t size, const char *text);

/* transition_ms moves when is_true does, or at the first time. */
void condition_set(const struct training_job *job, struct job_status *status, enum condition_type type, bool is_true,
                   int64_t now_ms, const char *reason, const char *fmt, ...) FORMAT(7, 8);
/* The same for a condition that is only ever shown once it was true. */
void condition_clear(const struct training_job *job, struct job_status *status, enum condition_type type,
                     int64_t now_ms, const char *reason, const char *fmt, ...) FORMAT(6, 7);
bool condition_is(const struct job_status *status, enum condition_type type);

void failure_set_rank(const struct training_job *job, struct failure *f); /* from its role and index */
void failure_add(struct job_status *status, const struct failure *f); /* the oldest goes when the list is full */
/* A node that later pods stay away from; node_count bounds the list by maxPercent where it is known. */
void avoid_node(const struct training_job *job, struct job_status *status, const char *node, const char *reason,
                int32_t node_count, int64_t now_ms);

#endif
