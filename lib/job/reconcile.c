/*
 * The order of a pass. Ends come first (a job that has reached its end is never restarted), then the user's wish to
 * suspend, then failures, then what is missing. Each decision is a pass of its own: recorded, nothing touched.
 */
#include "job/reconcile.h"

#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "job/pod.h"
#include "job/reconcile_parts.h"

/* Between two writes of nothing but progress. */
enum { PROGRESS_INTERVAL_MS = 15000, OLD_STATUS_RETRY_MS = 1000 };

/* What the user's template and Ringmaster both set. */
static void tell_of_overridden_variables(struct pass *p)
{
    for (enum job_role r = 0; r < ROLE_COUNT; r++) {
        auto_buf struct buf kept = BUF_INIT(300), dropped = BUF_INIT(300);
        if (p->census.roles[r].replicas == 0)
            continue;
        environment_conflicts(p->job, r, &kept, &dropped);
        if (kept.len > 0)
            plan_event(p->plan, false, "EnvironmentOverridden", "%s: the template's own value is kept for %s", role_key(r), buf_text(&kept));
        if (dropped.len > 0)
            plan_event(p->plan, true, "EnvironmentReserved", "%s: the template's value is not used for %s: Ringmaster says there who a replica is",
                       role_key(r), buf_text(&dropped));
    }
}

static void begin(struct pass *p)
{
    struct job_status *s = p->status;
    auto_buf struct buf who = BUF_INIT(400);

    for (enum job_role r = 0; r < ROLE_COUNT; r++) {
        if (p->census.roles[r].replicas > 0)
            buf_addf(&who, "%s%d %s", who.len > 0 ? ", " : "", (int)p->census.roles[r].replicas, role_name(r));
    }
    condition_set(p->job, s, CONDITION_CREATED, true, p->now_ms, "TrainingJobCreated", "the job is accepted: %s",
                  buf_text(&who));
    plan_event(p->plan, false, "TrainingJobCreated", "the job is accepted: %s", buf_text(&who));
    tell_of_overridden_variables(p);
    p->plan->record_first = true;
    /* Pods without a status: it was lost. What they are part of is over. */
    for (size_t i = 0; i < p->seen->pod_count; i++)
        s->attempt = p->seen->pods[i].attempt > s->attempt ? p->seen->pods[i].attempt : s->attempt;
    if (suspend_or_resume(p))
        return; /* the first attempt begins when it is resumed */
    raise_attempt(p);
    settle_gang(p);
    s->phase = PHASE_PENDING;
    s->start_ms = p->now_ms;
}

static void pass_run(struct pass *p)
{
    if (phase_is_final(p->before->phase)) {
        fold_coordinator(p);
        answer_checkpoint_wishes(p);
        tidy_up(p);
        return;
    }
    if (!p->before->conditions[CONDITION_CREATED].present) {
        begin(p);
        return;
    }
    fold_coordinator(p);
    answer_checkpoint_wishes(p);
    if (end_if_succeeded(p) || end_at_deadline(p) || suspend_or_resume(p) || end_if_it_cannot_run(p) || handle_scale(p))
        return;
    if (replace_failed_pods(p))
        describe_state(p);
    else if (!handle_failures(p) && !handle_timeouts(p)) {
        create_pods(p);
        describe_state(p);
    }
}

/* Progress alone is written now and then; it rides along with every other change at once. */
static void hold_back_progress(struct pass *p)
{
    const struct job_status *before = p->before;
    struct job_status *s = p->status;
    struct job_status held;
    int64_t last_ms = before->progress.set     ? before->progress.update_ms
                      : before->checkpoint.set ? before->checkpoint.time_ms
                                               : 0;
    bool recent = p->now_ms < last_ms + PROGRESS_INTERVAL_MS;

    bool new_ring = s->ring.set && (!before->ring.set || s->ring.formed_ms != before->ring.formed_ms ||
                                    s->ring.self_test_ok != before->ring.self_test_ok);
    if (new_ring || phase_is_final(before->phase))
        return;
    /* Without steps to go by, the ring's figures are written when they have doubled. */
    bool steps = s->progress.set || s->checkpoint.step != before->checkpoint.step;
    if (!recent && (steps || s->ring.operations >= 2 * before->ring.operations))
        return;
    memcpy(&held, s, sizeof held);
    memcpy(&held.progress, &before->progress, sizeof held.progress);
    memcpy(&held.checkpoint, &before->checkpoint, sizeof held.checkpoint);
    memcpy(&held.ring, &before->ring, sizeof held.ring);
    if (memcmp(&held, before, sizeof held) != 0 || memcmp(s, before, sizeof held) == 0)
        return;
    memcpy(s, &held, sizeof held);
    if (recent)
        plan_requeue(p->plan, last_ms + PROGRESS_INTERVAL_MS);
}

static bool is_ours(const struct training_job *job)
{
    const char *by = job->spec.managed_by;

    return by == NULL || by[0] == '\0' || strcmp(by, JOB_MANAGED_BY) == 0;
}

void reconcile(const struct training_job *job, const struct job_status *status, const struct observed *seen,
               int64_t now_ms, struct plan *ret_plan)
{
    struct pass p = {
        .job = job, .before = status, .seen = seen, .now_ms = now_ms, .plan = ret_plan, .status = &ret_plan->status
    };

    memset(ret_plan, 0, sizeof *ret_plan);
    memcpy(&ret_plan->status, status, sizeof *status);
    if (!is_ours(job) || job->deleting)
        return;
    census_take(&p);
    if (p.census.from_the_future && status->conditions[CONDITION_CREATED].present) {
        plan_requeue(ret_plan,
                     now_ms + OLD_STATUS_RETRY_MS); /* somebody has gone further than what we read: read again */
    } else {
        pass_run(&p);
        count_replicas(&p);
        p.status->observed_generation = job->generation;
        hold_back_progress(&p);
        ret_plan->status_changed = memcmp(&ret_plan->status, status, sizeof *status) != 0;
    }
    census_release(&p.census);
}
