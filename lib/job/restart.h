/*
 * restart.h — what a failure means and what follows from it. Pure; used by the reconciler for pods that failed and by the
 * coordinator's sidecar for processes that it may restart in place, so that both always come to the same answer.
 *
 * Order, first match wins:
 *   1. failurePolicy.rules, top down. ...AndIgnoreMaxRestarts is free of backoffLimit and of maxRestarts.
 *   2. Infrastructure (eviction, preemption, a lost node, pod or sidecar): restart under every restart policy, free of
 *      backoffLimit; maxRestarts and maxDisruptions still bound it.
 *   3. A container that cannot start (image, configuration), a command that cannot be run: the job fails with the system's words.
 *   4. Broken hardware (the codes that stand for it, or the driver's words in the log): a new pod on another node; with ExitCode
 *      a code of the program that stands for hardware, but has no such words with it, goes by its number.
 *   5. Out of memory: oomPolicy, unless restartPolicy is Never.
 *   6. Ends that come again however often one tries (restart_class.h): after so many repeats of the same end of the same replica,
 *      without progress in between, a new pod on another node is tried, and then the job fails.
 *   7. restartPolicy of the role. ExitCode: 1..127 is permanent, 128..255 is retryable. An exit 0 is no failure.
 *   8. Budgets: backoffLimit counts what the user is charged with; where restartWindowSeconds is set, only what lies not further
 *      back than that (the window slides).
 * A restart of a rank in a job that trains as one group is always a restart of the group; what is outside the ring (ps,
 * evaluator) and the replicas of a job with ps are restarted alone. With enableDynamicWorker a worker that would fail the
 * job is left failed instead, unless the end of the job hangs on it.
 *
 * Back-off: the first restart of a streak is immediate, then base, 2 base, 4 base, ... up to backoffMaxSeconds, each with a
 * jitter of at most a tenth that is derived from job UID and restart count. Progress (a committed step) ends a streak.
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
    int64_t ran_ms;                                   /* how long the process had run; 0 = unknown */
    struct optional_int steps_done;                   /* by the round that ended, beyond where it began */
};

struct restart_counters { /* a copy of job_status's, so that the coordinator can carry them */
    int32_t restarts, restarts_counted, disruptions, streak;
    int32_t crashes;                  /* ends of the program in a row that came right after a start: fewer than RESTART_STEPS_ALIVE steps */
    int32_t repeats, last_end;        /* the same end of the same replica in a row without progress; which one that is, 0 = none */
    struct restart_window window;
};
#define RESTART_STEPS_ALIVE 10
#define RESTART_LONG_RUN_MS 600000    /* who ran so long did not end of what ended it the last time (the kubelet's back-off forgets so, too) */

enum restart_verdict { VERDICT_FAIL_JOB, VERDICT_RESTART_GROUP, VERDICT_RESTART_ALONE, VERDICT_IGNORE };

struct restart_decision {
    enum restart_verdict verdict;
    enum failure_class class;
    bool counted;                     /* against backoffLimit */
    bool needs_new_pod;               /* a restart in place would not do: the pod has to fail and be made anew (restartStrategy, more memory) */
    bool node_suspect;                /* ... and not on this node */
    bool hopeless;                    /* FAIL_JOB: this end comes again however often one tries */
    int64_t delay_ms;                 /* before the restart; 0 for the first of a streak */
    struct restart_counters counters; /* after this failure */
    char reason[64];                  /* CamelCase: "BackoffLimitExceeded", "PermanentExitCode", "WorkerFailed", ... */
    char message[256];                /* for a person: who, what, and what to do */
};

void restart_decide(const struct training_job *job, const struct restart_counters *before, const struct failure_event *event,
                    int64_t now_ms, struct restart_decision *ret_decision);
enum failure_class restart_classify(const struct failure_event *event);
bool restart_is_user_code(int32_t exit_code); /* 1..127 permanent, 128..255 retryable */
bool restart_rule_matches(const struct training_job *job, const struct failure_event *event); /* does any rule name this failure? */
/* False: a regular expression that would take all memory or time there is; it may not be compiled. */
bool restart_pattern_is_bearable(const char *pattern);
/* "worker-1 exited with code 127 (command not found)", "worker-1 could not start (code 126): exec /app/train: permission denied",
 * "ps-0 was lost: NodeLost". Pure description. */
void restart_describe(const struct failure_event *event, char ret_text[160]);

/* The part of the spec that restart_decide reads, as JSON for the sidecars' environment and back (a training_job with only
 * those fields; its templates hold nothing but the containers' names). Owned by the caller. */
char *restart_policy_encode(const struct training_job *job);
MUST_CHECK int restart_policy_decode(const char *text, struct training_job **ret_job, struct error *e);

#endif
