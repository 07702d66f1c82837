/*
 * Suspend and resume. A suspended job has no pods and no running clock; a resumed one starts as a new attempt, with the
 * restarts that it was charged before.
 */
#include "job/reconcile_parts.h"

static void suspend(struct pass *p)
{
    struct job_status *s = p->status;

    s->phase = PHASE_SUSPENDED;
    s->suspended_ms = p->now_ms;
    s->start_ms = 0;
    s->next_restart_ms = 0;
    condition_set(p->job, s, CONDITION_SUSPENDED, true, p->now_ms, "TrainingJobSuspended", "spec.suspend is true");
    condition_set(p->job, s, CONDITION_RUNNING, false, p->now_ms, "TrainingJobSuspended", "the job is suspended");
    condition_clear(p->job, s, CONDITION_RESTARTING, p->now_ms, "TrainingJobSuspended", "the job is suspended");
    condition_clear(p->job, s, CONDITION_PODS_READY, p->now_ms, "TrainingJobSuspended", "the job is suspended");
    condition_clear(p->job, s, CONDITION_GANG_SCHEDULED, p->now_ms, "TrainingJobSuspended", "the job is suspended");
    condition_clear(p->job, s, CONDITION_DEGRADED, p->now_ms, "TrainingJobSuspended", "the job is suspended");
    plan_event(p->plan, false, "TrainingJobSuspended", "spec.suspend is true: the pods are deleted, the job is kept");
    p->plan->record_first = true;
}

static void resume(struct pass *p)
{
    struct job_status *s = p->status;

    raise_attempt(p);
    settle_gang(p);
    s->phase = PHASE_PENDING;
    s->suspended_ms = 0;
    s->start_ms = p->now_ms;
    condition_set(p->job, s, CONDITION_SUSPENDED, false, p->now_ms, "TrainingJobResumed", "spec.suspend is false");
    plan_event(p->plan, false, "TrainingJobResumed", "spec.suspend is false: attempt %d begins", (int)s->attempt);
    p->plan->record_first = true;
}

bool suspend_or_resume(struct pass *p)
{
    if (p->before->phase != PHASE_SUSPENDED) {
        if (!p->job->spec.suspend)
            return false;
        if (wait_for_checkpoint(p, WISH_SUSPEND))
            return true;
        suspend(p);
        return true;
    }
    if (!p->job->spec.suspend) {
        resume(p);
        return true;
    }
    (void)delete_pods(p, PODS_ALL, "the job is suspended");
    release_group(p);
    return true;
}
