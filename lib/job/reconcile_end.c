/*
 * How a job ends: success, the deadline, a failure, and what is left to do after that. The end is recorded first; a
 * final phase never changes again and no pod is ever created after it.
 */
#include <stdio.h>
#include <string.h>

#include "job/pod.h"
#include "job/reconcile_parts.h"

enum { DRAIN_EXTRA_S = 30, GRACE_DEFAULT_S = 30, GRACE_MOST_S = 86400, RELEASED_FOR_MS = 5000 };

static void close_job(struct pass *p, enum job_phase phase, const char *reason)
{
    struct job_status *s = p->status;

    s->phase = phase;
    s->completion_ms = p->now_ms;
    s->next_restart_ms = 0;
    condition_set(p->job, s, CONDITION_RUNNING, false, p->now_ms, reason, "the job is over");
    condition_clear(p->job, s, CONDITION_RESTARTING, p->now_ms, reason, "the job is over");
    condition_clear(p->job, s, CONDITION_DEGRADED, p->now_ms, reason, "the job is over");
    condition_clear(p->job, s, CONDITION_PODS_READY, p->now_ms, reason, "the job is over");
    p->plan->record_first = true;
}

void fail_job(struct pass *p, const char *reason, const char *message)
{
    close_job(p, PHASE_FAILED, reason);
    condition_set(p->job, p->status, CONDITION_FAILED, true, p->now_ms, reason, "%s", message);
    plan_event(p->plan, true, "TrainingJobFailed", "%s: %s", reason, message);
}

static void succeed(struct pass *p, const char *who)
{
    int64_t seconds = p->status->start_ms > 0 ? (p->now_ms - p->status->start_ms) / 1000 : 0;

    close_job(p, PHASE_SUCCEEDED, "TrainingJobSucceeded");
    condition_clear(p->job, p->status, CONDITION_FAILURE_TARGET, p->now_ms, "TrainingJobSucceeded",
                    "the job ended well");
    condition_set(p->job, p->status, CONDITION_SUCCEEDED, true, p->now_ms, "TrainingJobSucceeded",
                  "%s finished after %lld s and %d restarts", who, (long long)seconds, (int)p->status->restarts);
    plan_event(p->plan, false, "TrainingJobSucceeded", "%s finished after %lld s and %d restarts", who,
               (long long)seconds, (int)p->status->restarts);
}

/* The replicas whose success is the job's: chief (master), else worker 0; with AllWorkers every rank. A job without
 * ranks is done when all of it is. */
static bool decides(const struct pass *p, const struct slot *s)
{
    int32_t rank = job_rank(p->job, s->role, s->index);

    if (job_world_size(p->job) == 0)
        return true;
    return p->job->spec.success_policy == SUCCESS_ALL_WORKERS ? rank >= 0 : rank == 0;
}

bool end_if_succeeded(struct pass *p)
{
    const struct census *c = &p->census;
    int32_t deciding = 0;
    char who[80] = "";

    if (p->before->attempt == 0 || p->before->phase == PHASE_SUSPENDED ||
        condition_is(p->before, CONDITION_FAILURE_TARGET))
        return false;
    for (int32_t i = 0; i < c->slot_count; i++) {
        if (!decides(p, &c->slots[i]))
            continue;
        if (!slot_is_done(&c->slots[i]))
            return false;
        if (deciding++ == 0)
            job_member_name(c->slots[i].role, c->slots[i].index, who);
    }
    if (deciding == 0)
        return false;
    if (end_is_untold(p))
        return true;
    if (deciding > 1)
        (void)snprintf(who, sizeof who, "all %d replicas that decide", (int)deciding);
    succeed(p, who);
    return true;
}

/* ---- deadline ---------------------------------------------------------------------------------------------------- */

static int64_t longest_grace_ms(const struct training_job *job)
{
    int64_t most = GRACE_DEFAULT_S;

    for (enum job_role r = 0; r < ROLE_COUNT; r++) {
        int64_t grace = json_int(job->spec.roles[r].template, "spec.terminationGracePeriodSeconds", GRACE_DEFAULT_S);
        most = grace > most ? grace : most;
    }
    return (most < GRACE_MOST_S ? most : GRACE_MOST_S) * 1000;
}

/* Deletes are asked for, then the pods' end is awaited, then the job is called failed: nobody reads "Failed" while
 * processors are still paid for. A pod that does not end within its grace period does not hold that up for ever. */
static void drain(struct pass *p)
{
    const struct condition *target = &p->status->conditions[CONDITION_FAILURE_TARGET];
    int64_t latest_ms = target->transition_ms + longest_grace_ms(p->job) + DRAIN_EXTRA_S * 1000;
    size_t left = 0;

    for (size_t i = 0; i < p->seen->pod_count; i++)
        left += pod_is_live(&p->seen->pods[i]);
    if (left == 0 || p->now_ms >= latest_ms) {
        fail_job(p, target->reason, target->message);
        return;
    }
    (void)delete_pods(p, PODS_LIVE, "the job is over its deadline");
    plan_requeue(p->plan, latest_ms);
}

bool end_at_deadline(struct pass *p)
{
    const struct optional_int *deadline = &p->job->spec.active_deadline_s;

    if (condition_is(p->before, CONDITION_FAILURE_TARGET)) {
        drain(p);
        return true;
    }
    if (!deadline->set || p->before->start_ms == 0 || p->before->phase == PHASE_SUSPENDED || p->job->spec.suspend)
        return false;
    int64_t at_ms = p->before->start_ms + deadline->value * 1000;
    if (p->now_ms < at_ms) {
        plan_requeue(p->plan, at_ms);
        return false;
    }
    condition_set(p->job, p->status, CONDITION_FAILURE_TARGET, true, p->now_ms, "DeadlineExceeded",
                  "the job was active for %lld s, spec.runPolicy.activeDeadlineSeconds is %lld",
                  (long long)((p->now_ms - p->before->start_ms) / 1000), (long long)deadline->value);
    plan_event(p->plan, true, "DeadlineExceeded",
               "the job is over spec.runPolicy.activeDeadlineSeconds (%lld): stopping its pods",
               (long long)deadline->value);
    p->plan->record_first = true;
    return true;
}

/* ---- specs that cannot run --------------------------------------------------------------------------------------- */

bool end_if_it_cannot_run(struct pass *p)
{
    char message[512];

    if (p->seen->pod_refused[0] != '\0' && p->seen->pod_count == 0) {
        condition_set(p->job, p->status, CONDITION_INVALID, true, p->now_ms, "PodRefused", "%s", p->seen->pod_refused);
        fail_job(p, "InvalidPod", p->seen->pod_refused);
        return true;
    }
    if (!pod_has_sidecar(p->job))
        return false;
    for (enum job_role r = 0; r < ROLE_COUNT; r++) {
        if (!p->job->spec.roles[r].present || p->job->spec.roles[r].replicas == 0 || pod_command_is_known(p->job, r))
            continue;
        (void)snprintf(message, sizeof message,
                       "container \"%.60s\" of spec.replicaSpecs.%s.template has no command: the launcher runs the "
                       "command and cannot know the "
                       "image's entrypoint; write it as command, or set spec.sidecar.mode to None",
                       job_main_container(p->job, r), role_key(r));
        fail_job(p, "CommandMissing", message);
        return true;
    }
    return false;
}

/* ---- after the end ----------------------------------------------------------------------------------------------- */

/* When the rank that decides has ended well the coordinator has released all of the ring: those whose pods still run end by
 * themselves a moment later, and a pod that ended keeps its log. */
static bool ranks_are_leaving(struct pass *p)
{
    int64_t until_ms = p->before->completion_ms + RELEASED_FOR_MS;
    bool leaving = false;

    if (p->before->phase != PHASE_SUCCEEDED || !pod_has_sidecar(p->job) || !job_restarts_as_group(p->job) || p->now_ms >= until_ms)
        return false;
    for (int32_t i = 0; i < p->census.slot_count; i++) {
        const struct slot *s = &p->census.slots[i];
        leaving |= s->pod != NULL && pod_is_live(s->pod) && !s->pod->deleting && job_rank(p->job, s->role, s->index) >= 0;
    }
    if (leaving)
        plan_requeue(p->plan, until_ms);
    return leaving;
}

void tidy_up(struct pass *p)
{
    const struct optional_int *ttl = &p->job->spec.ttl_after_finished_s;

    if (ttl->set) {
        int64_t at_ms = p->before->completion_ms + ttl->value * 1000;
        if (p->now_ms >= at_ms) {
            plan_action(p->plan, ACTION_DELETE_JOB, "spec.runPolicy.ttlSecondsAfterFinished has passed");
            return;
        }
        plan_requeue(p->plan, at_ms);
    }
    release_group(p);
    if (p->job->spec.clean_pod_policy == CLEAN_ALL)
        (void)delete_pods(p, PODS_ALL, "the job is over and cleanPodPolicy is All");
    else if (p->job->spec.clean_pod_policy == CLEAN_RUNNING && !ranks_are_leaving(p))
        (void)delete_pods(p, PODS_LIVE | PODS_LEFTOVER, "the job is over and cleanPodPolicy is Running");
    else
        (void)delete_pods(p, PODS_LEFTOVER, "it belongs to an attempt that is over");
}
