/*
 * restart.h — what a failure means and what follows from it. Pure; used by the reconciler for pods that failed and by the
 * coordinator's sidecar for processes that it may restart in place, so that both always come to the same answer.
 *
 * Classes and exit codes: research of exit-code habits is in docs/failures.md. Rules first, then ExitCode, first match wins.
 */
#ifndef JOB_RESTART_H
#define JOB_RESTART_H

#include "job/job.h"

struct failure_event {
    enum job_role role; int32_t index;
    bool has_exit; int32_t exit_code; int32_t signal; /* of the main container */
    const char *container;                            /* NULL = the main container */
    const char *reason;                               /* "Error", "OOMKilled", "Evicted", "NodeLost", "SidecarLost", ... or "" */
    const char *message;                              /* may be NULL */
    const char *const *condition_types; const char *const *condition_statuses; size_t condition_count; /* of the pod */
    bool made_progress;                               /* a step was committed since the last failure */
};

struct restart_counters { /* a copy of job_status's, so that the coordinator can carry them */
    int32_t restarts, restarts_counted, disruptions, streak;
    int64_t window_start_ms; int32_t window_restarts;
};

enum restart_verdict { VERDICT_FAIL_JOB, VERDICT_RESTART_GROUP, VERDICT_RESTART_ALONE, VERDICT_IGNORE };

struct restart_decision {
    enum restart_verdict verdict;
    enum failure_class class;
    bool counted;                     /* against backoffLimit */
    int64_t delay_ms;                 /* before the restart; 0 for the first of a streak */
    struct restart_counters counters; /* after this failure */
    char reason[64];                  /* CamelCase: "BackoffLimitExceeded", "PermanentExitCode", "WorkerFailed", ... */
    char message[256];                /* for a person: who, what, and what to do */
};

void restart_decide(const struct training_job *job, const struct restart_counters *before, const struct failure_event *event,
                    int64_t now_ms, struct restart_decision *ret_decision);
enum failure_class restart_classify(const struct failure_event *event);
bool restart_is_user_code(int32_t exit_code); /* 1..127 permanent, 128..255 retryable */

/* The part of the spec that restart_decide reads, as JSON for the sidecars' environment and back (a training_job with only
 * those fields and no templates). Owned by the caller. */
char *restart_policy_encode(const struct training_job *job);
MUST_CHECK int restart_policy_decode(const char *text, struct training_job **ret_job, struct error *e);

#endif
