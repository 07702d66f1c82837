/*
 * reconcile_parts.h — the parts of one reconcile pass. Pure; used by lib/job/reconcile*.c alone.
 *
 * reconcile.c has the order of things. Each part looks at the pass, writes into pass->plan and returns true when the
 * pass ends with it: a decision was recorded, and what follows from it is for the next pass.
 */
#ifndef JOB_RECONCILE_PARTS_H
#define JOB_RECONCILE_PARTS_H

#include "job/plan.h"

struct slot {
    enum job_role role; int32_t index;
    const struct pod_view *pod; /* of this attempt; NULL = none */
    bool was_done;              /* it ended well before; its pod may have been collected */
};

struct census {
    struct slot *slots; int32_t slot_count; /* every replica that the spec asks for, by ordinal */
    size_t leftover_count; /* pods that have no place: of an older attempt, or over the replica count */
    bool from_the_future;  /* a pod of an attempt that our status does not know yet: the status is old */
    struct role_status roles[ROLE_COUNT];
};

struct pass {
    const struct training_job *job;
    const struct job_status *before;
    const struct observed *seen;
    int64_t now_ms;
    struct plan *plan;
    struct job_status *status;  /* &plan->status */
    struct census census;
    bool counts_are_old;        /* the census is of an attempt that this pass has ended */
};

/* reconcile_census.c */
void census_take(struct pass *p);
void census_release(struct census *c);
bool slot_is_done(const struct slot *s);                                /* its work is over, well */
bool pod_is_leftover(const struct pass *p, const struct pod_view *pod);
bool pod_is_live(const struct pod_view *pod);                           /* something of it may run */
void count_replicas(struct pass *p);                                    /* into status.replicaStatuses */

/* reconcile_end.c */
bool end_if_succeeded(struct pass *p);
bool end_at_deadline(struct pass *p);
bool end_if_it_cannot_run(struct pass *p);
void fail_job(struct pass *p, const char *reason, const char *message);
void tidy_up(struct pass *p);                                           /* of a job that is over: cleanPodPolicy, TTL */

/* reconcile_suspend.c */
bool suspend_or_resume(struct pass *p);

/* reconcile_checkpoint.c */
void answer_checkpoint_wishes(struct pass *p);
/* Pods are about to be taken away on purpose: true as long as a checkpoint is waited for, within the pods' grace period. */
bool wait_for_checkpoint(struct pass *p, enum checkpoint_wish reason);

/* reconcile_failure.c */
bool handle_failures(struct pass *p);
bool handle_scale(struct pass *p);
bool handle_timeouts(struct pass *p);
void raise_attempt(struct pass *p); /* write-ahead: every pod there is becomes stale */

/* reconcile_prepare.c */
void settle_gang(struct pass *p);           /* which scheduler, anew, where that is known already: rides along with a beginning */
bool prepare_pods(struct pass *p);          /* true: pods may be created, behind what this asks for */
bool gang_is_missing(const struct pass *p); /* the scheduler that places this job is not in the cluster */
void release_group(struct pass *p);
void lift_gates(struct pass *p);

/* reconcile_pods.c */
enum { PODS_LEFTOVER = 1, PODS_LIVE = 2, PODS_ALL = 4 }; /* bits */
/* Asks for the deletion of those that are not on their way yet, by force where a lost node holds them too long. Returns
 * how many are still there. */
size_t delete_pods(struct pass *p, unsigned which, const char *reason);
bool replace_failed_pods(struct pass *p);
void create_pods(struct pass *p);

/* reconcile_report.c */
void fold_coordinator(struct pass *p);
/* What the coordinator has counted may not have been heard yet, and soon will be: the decision waits. */
bool end_is_untold(struct pass *p);                                     /* before success */
bool coordinator_is_due(struct pass *p);                                /* before what follows from a failure */
void describe_state(struct pass *p);                                    /* phase and conditions of a job that goes on */
bool pod_is_recorded(const struct job_status *status, const struct pod_view *pod); /* its failure was decided about */

#endif
