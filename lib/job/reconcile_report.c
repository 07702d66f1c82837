/*
 * What the coordinator says, taken into the status, and the status in words: phase and conditions of a job that goes
 * on.
 */
#include <stdio.h>
#include <string.h>

#include "job/pod.h"
#include "job/reconcile_parts.h"

/* How long pods may run before a coordinator that says nothing is taken for one that cannot reach us. */
enum { SILENT_COORDINATOR_MS = 60000 };

/* How long a decision waits for a coordinator that is there and was not heard: after a change of the leader it connects again
 * within seconds, and when its pod is over the pod has its last word. */
enum { HEARD_WITHIN_MS = 10000 };

/* ---- rounds ------------------------------------------------------------------------------------------------------ */

static int32_t larger(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

/* A loss that this side saw first, by the pod, is in the list already. */
static bool is_listed(const struct job_status *s, const struct round_view *r)
{
    for (size_t i = 0; i < s->failure_count; i++) {
        const struct failure *f = &s->failures[i];
        bool ends_pod = strcmp(r->cause.reason, "LauncherLost") == 0; /* with a code that only the pod shows */
        if (r->cause.class == FAILURE_INFRASTRUCTURE && (f->class == FAILURE_INFRASTRUCTURE || ends_pod) &&
            f->attempt == r->attempt && f->round == r->round && f->role == r->cause.role && f->index == r->cause.index)
            return true;
    }
    return false;
}

static const struct pod_view *pod_of(const struct pass *p, enum job_role role, int32_t index)
{
    for (int32_t i = 0; i < p->census.slot_count; i++) {
        if (p->census.slots[i].role == role && p->census.slots[i].index == index)
            return p->census.slots[i].pod;
    }
    return NULL;
}

static void fold_round(struct pass *p, const struct round_view *r)
{
    struct job_status *s = p->status;
    struct failure f = r->cause;
    const struct pod_view *pod = pod_of(p, f.role, f.index);
    struct failure_event e = { .role = f.role,
                               .index = f.index,
                               .has_exit = f.has_exit,
                               .exit_code = f.exit_code,
                               .signal = f.signal,
                               .reason = f.reason,
                               .message = f.message };
    char what[160];

    s->round = r->round;
    s->restarts = larger(s->restarts, r->counters.restarts);
    s->restarts_counted = larger(s->restarts_counted, r->counters.restarts_counted);
    s->disruptions = larger(s->disruptions, r->counters.disruptions);
    s->streak = r->counters.streak;
    s->crashes = r->counters.crashes;
    s->repeats = r->counters.repeats;
    s->last_end = r->counters.last_end;
    memcpy(&s->window, &r->counters.window, sizeof s->window);
    if (is_listed(s, r))
        return;
    f.attempt = r->attempt;
    f.round = r->round;
    failure_set_rank(p->job, &f);
    if (f.pod[0] == '\0')
        job_pod_name(p->job, f.role, f.index, f.pod);
    if (f.node[0] == '\0' && pod != NULL)
        text_set(f.node, sizeof f.node, pod->node);
    f.pod_uid[0] = '\0';
    failure_add(s, &f);
    s->roles[f.role].oom_kills += f.class == FAILURE_OOM;
    if (f.class == FAILURE_HARDWARE)
        avoid_node(p->job, s, f.node, f.reason, p->seen->node_count, p->now_ms);
    restart_describe(&e, what);
    plan_event(p->plan, true, "TrainingJobRestarting", "%s; round %d ended, all ranks start again in place", what,
               (int)r->round);
}

/* ---- progress, checkpoint, ring ---------------------------------------------------------------------------------- */

/* A stored status has whole seconds: the same second is the same time. */
static void take_time(int64_t *to_ms, int64_t from_ms)
{
    if (*to_ms / 1000 != from_ms / 1000)
        *to_ms = from_ms;
}

static void take_progress(struct job_status *to, const struct job_status *from)
{
    if (!from->progress.set)
        return;
    to->progress.set = true;
    to->progress.step = from->progress.step;
    to->progress.total_steps = from->progress.total_steps;
    to->progress.eta_s = from->progress.eta_s;
    take_time(&to->progress.update_ms, from->progress.update_ms);
    to->progress.percent = from->progress.percent;
    to->progress.steps_per_second = from->progress.steps_per_second;
    to->progress.loss = from->progress.loss;
    to->progress.has_loss = from->progress.has_loss;
}

static void take_checkpoint(struct job_status *to, const struct job_status *from)
{
    if (!from->checkpoint.set)
        return;
    to->checkpoint.set = true;
    to->checkpoint.step = from->checkpoint.step;
    take_time(&to->checkpoint.time_ms, from->checkpoint.time_ms);
    to->checkpoint.attempt = from->checkpoint.attempt;
    to->checkpoint.verified = from->checkpoint.verified;
    text_set(to->checkpoint.uri, sizeof to->checkpoint.uri, from->checkpoint.uri);
}

static void take_ring(struct job_status *to, const struct job_status *from)
{
    if (!from->ring.set)
        return;
    to->ring.set = true;
    to->ring.size = from->ring.size;
    to->ring.self_test_ok = from->ring.self_test_ok;
    to->ring.bytes_reduced = from->ring.bytes_reduced;
    to->ring.operations = from->ring.operations;
    to->ring.busbw_gbps = from->ring.busbw_gbps;
    take_time(&to->ring.formed_ms, from->ring.formed_ms);
    to->ring.straggler_rank = from->ring.straggler_rank;
    to->ring.step_ms = from->ring.step_ms;
    to->ring.slowest_step_ms = from->ring.slowest_step_ms;
    text_set(to->ring.members, sizeof to->ring.members, from->ring.members);
}

void fold_coordinator(struct pass *p)
{
    const struct coordinator_view *c = &p->seen->coordinator;

    if (!c->known || c->attempt != p->status->attempt)
        return; /* what an attempt that is over says, changes nothing */
    /* Processes that we stop ourselves look like failures to the coordinator. */
    bool stopping = phase_is_final(p->before->phase) || p->before->phase == PHASE_SUSPENDED || p->job->spec.suspend ||
                    condition_is(p->before, CONDITION_FAILURE_TARGET);
    for (size_t i = 0; i < c->round_count && !stopping; i++) {
        if (c->rounds[i].attempt == p->status->attempt && c->rounds[i].round > p->status->round)
            fold_round(p, &c->rounds[i]);
    }
    take_progress(p->status, &c->latest);
    take_checkpoint(p->status, &c->latest);
    take_ring(p->status, &c->latest);
}

/* ---- not heard yet ----------------------------------------------------------------------------------------------- */

static const struct pod_view *coordinators_pod(const struct pass *p)
{
    for (int32_t i = 0; i < p->census.slot_count; i++) {
        const struct slot *s = &p->census.slots[i];
        if (job_rank(p->job, s->role, s->index) == 0)
            return s->pod;
    }
    return NULL;
}

static bool is_waited_for(struct pass *p, int64_t from_ms)
{
    const struct pod_view *pod = coordinators_pod(p);
    int64_t until_ms = from_ms + HEARD_WITHIN_MS;

    if (pod == NULL || !pod->speaks || p->now_ms >= until_ms)
        return false;
    plan_requeue(p->plan, until_ms);
    return true;
}

bool end_is_untold(struct pass *p)
{
    const struct coordinator_view *c = &p->seen->coordinator;
    const struct pod_view *pod = coordinators_pod(p);

    if (c->known && c->attempt == p->status->attempt && c->over)
        return false;
    return pod != NULL && is_waited_for(p, pod->finished_ms);
}

bool coordinator_is_due(struct pass *p)
{
    const struct coordinator_view *c = &p->seen->coordinator;

    if (p->seen->listens_from_ms == 0 || (c->known && c->attempt == p->status->attempt))
        return false;
    return is_waited_for(p, p->seen->listens_from_ms);
}

/* ---- what is wrong right now ------------------------------------------------------------------------------------- */

static bool is_ordinary_wait(const char *reason)
{
    static const char *const ordinary[] = {
        "", "Pending", "Unschedulable", "SchedulingGated", "ContainerCreating", "PodInitializing"
    };

    for (size_t i = 0; i < sizeof ordinary / sizeof ordinary[0]; i++) {
        if (strcmp(reason, ordinary[i]) == 0)
            return true;
    }
    return false;
}

static void say_degraded(struct pass *p, const char *reason, const char *message)
{
    const struct condition *before = &p->before->conditions[CONDITION_DEGRADED];

    if (!before->present || !before->is_true || strcmp(before->reason, reason) != 0)
        plan_event(p->plan, true, strcmp(reason, "FailedCreatePod") == 0 ? "FailedCreatePod" : "TrainingJobDegraded",
                   "%s", message);
    condition_set(p->job, p->status, CONDITION_DEGRADED, true, p->now_ms, reason, "%s", message);
}

static void describe_lost_pod(struct pass *p, const struct pod_view *pod)
{
    char name[80], message[512];
    bool forced = p->job->spec.failure.force_delete_after_s.set;

    job_member_name(pod->role, pod->index, name);
    (void)snprintf(message, sizeof message, "%s is stuck on node %.120s, which does not answer%s", name, pod->node,
                   forced ? "; it is deleted by force after failurePolicy.nodeLost.forceDeleteAfterSeconds"
                          : ": delete the node or set spec.failurePolicy.nodeLost.forceDeleteAfterSeconds");
    say_degraded(p, "NodeLost", message);
}

static void describe_training(struct pass *p)
{
    const struct coordinator_view *c = &p->seen->coordinator;
    bool known = c->known && c->attempt == p->status->attempt;
    char message[512];

    if (known && c->stalled[0] != '\0') {
        (void)snprintf(message, sizeof message, "a collective is stalled: %s", c->stalled);
        say_degraded(p, "CollectiveStalled", message);
    } else if (known && c->suspected != NULL && c->suspected[0] != '\0') {
        (void)snprintf(message, sizeof message, "%s; with spec.health.progressTimeoutSeconds it would be started again", c->suspected);
        say_degraded(p, "NoProgress", message);
    } else if (known && c->skipped) {
        (void)snprintf(message, sizeof message, "the job died again and again right after it was restored from step %lld; it goes on from step "
                       "%lld, and step %lld is kept", (long long)c->skipped_step, (long long)c->resume_step, (long long)c->skipped_step);
        say_degraded(p, "CheckpointSkipped", message);
    } else {
        condition_clear(p->job, p->status, CONDITION_DEGRADED, p->now_ms, "Recovered", "nothing is in the way");
    }
}

static void describe_trouble(struct pass *p)
{
    char message[512], name[80];

    if (gang_is_missing(p)) {
        (void)snprintf(message, sizeof message,
                       "the cluster has no PodGroups of %s: install it, or set spec.runPolicy.schedulingPolicy.gang to another value",
                       gang_name(p->status->gang.kind));
        say_degraded(p, "GangSchedulerMissing", message);
        return;
    }
    if (p->seen->create_error[0] != '\0') {
        (void)snprintf(message, sizeof message, "could not be created: %.400s", p->seen->create_error);
        say_degraded(p, "FailedCreatePod", message);
        return;
    }
    for (size_t i = 0; i < p->seen->pod_count; i++) {
        const struct pod_view *pod = &p->seen->pods[i];
        if (pod->node_lost && pod->deleting) {
            describe_lost_pod(p, pod);
            return;
        }
        if (pod->phase != POD_PENDING || is_ordinary_wait(pod->reason) || pod_is_leftover(p, pod))
            continue;
        job_member_name(pod->role, pod->index, name);
        (void)snprintf(message, sizeof message, "%s cannot start: %s%s%.300s", name, pod->reason,
                       pod->message[0] != '\0' ? ": " : "", pod->message);
        say_degraded(p, pod->reason, message);
        return;
    }
    describe_training(p);
}

/* ---- conditions -------------------------------------------------------------------------------------------------- */

struct tally { int32_t there, scheduled, ready; int64_t newest_start_ms; const struct slot *unscheduled; };

static struct tally tally_of(const struct pass *p)
{
    struct tally t = { .there = 0 };

    for (int32_t i = 0; i < p->census.slot_count; i++) {
        const struct slot *s = &p->census.slots[i];
        bool live = s->pod != NULL && !s->pod->deleting;
        bool left_failed = live && s->pod->phase == POD_FAILED && !pod_is_recorded(p->status, s->pod);
        bool over = slot_is_done(s) || left_failed;
        bool scheduled = over || (live && (s->pod->scheduled || s->pod->phase == POD_RUNNING));
        t.there += over || s->pod != NULL;
        t.scheduled += scheduled;
        t.ready += over || (live && s->pod->phase == POD_RUNNING && s->pod->ready);
        if (!scheduled && s->pod != NULL && t.unscheduled == NULL)
            t.unscheduled = s;
        if (s->pod != NULL && s->pod->started_ms > t.newest_start_ms)
            t.newest_start_ms = s->pod->started_ms;
    }
    return t;
}

/* What the gang scheduler says of a group whose pods do not all have a node. True: that is all there is to say. */
static bool describe_group(struct pass *p, const struct tally *t)
{
    const struct gang_view *g = &p->seen->gang;
    struct job_status *s = p->status;

    if (!g->looked || !s->gang.set || !gang_has_group(s->gang.kind) || s->gang.kind != p->before->gang.kind)
        return false;
    if (g->has_group)
        text_set(s->gang.phase, sizeof s->gang.phase, g->phase);
    if (t->scheduled == p->census.slot_count || condition_is(p->before, CONDITION_PODS_READY) || (t->there > 0 && g->message[0] == '\0'))
        return false;
    condition_set(p->job, s, CONDITION_GANG_SCHEDULED, false, p->now_ms, t->there > 0 ? "PodsPending" : "GroupPending",
                  "%d of %d pods have a node; %s's PodGroup %s %s%s%s", (int)t->scheduled, (int)p->census.slot_count, gang_name(s->gang.kind),
                  s->gang.group, g->phase[0] != '\0' ? g->phase : g->has_group ? "waits for the scheduler" : "is not there yet",
                  g->message[0] != '\0' ? ": " : "", g->message);
    return true;
}

static void describe_gang(struct pass *p, const struct tally *t)
{
    int32_t all = p->census.slot_count;
    char name[80] = "";

    if (describe_group(p, t) || t->there == 0 || condition_is(p->before, CONDITION_PODS_READY))
        return;
    if (t->scheduled == all) {
        condition_set(p->job, p->status, CONDITION_GANG_SCHEDULED, true, p->now_ms, "AllScheduled",
                      "all %d pods have a node", (int)all);
        return;
    }
    if (t->unscheduled != NULL)
        job_member_name(t->unscheduled->role, t->unscheduled->index, name);
    const char *why = t->unscheduled != NULL ? t->unscheduled->pod->message : "";
    const struct condition *said = &p->before->conditions[CONDITION_GANG_SCHEDULED];
    bool stuck = t->unscheduled != NULL && strcmp(t->unscheduled->pod->reason, "Unschedulable") == 0;
    if (stuck && (!said->present || said->is_true || strcmp(said->reason, "Unschedulable") != 0))
        plan_event(p->plan, true, "Unschedulable", "%s has no node: %.400s", name, why);
    condition_set(p->job, p->status, CONDITION_GANG_SCHEDULED, false, p->now_ms, stuck ? "Unschedulable" : "PodsPending",
                  "%d of %d pods have a node%s%s%s%.300s", (int)t->scheduled, (int)all,
                  name[0] != '\0' ? "; waiting: " : "", name, why[0] != '\0' ? ": " : "", why);
}

static void describe_ring(struct pass *p)
{
    const struct job_status *s = p->status;

    if (!s->ring.set || s->ring.formed_ms == 0)
        return;
    if (s->ring.self_test_ok)
        condition_set(p->job, p->status, CONDITION_COOPERATING, true, p->now_ms, "RingSelfTestPassed",
                      "%d ranks formed a ring and reduced a known sum to the right value on each", (int)s->ring.size);
    else
        condition_set(p->job, p->status, CONDITION_COOPERATING, false, p->now_ms, "RingSelfTestFailed",
                      "the ring of %d ranks did not reduce a known sum to the right value", (int)s->ring.size);
}

static void become_running(struct pass *p)
{
    struct job_status *s = p->status;

    if (p->before->phase != PHASE_RUNNING)
        plan_event(p->plan, false, "TrainingJobRunning", "%d replicas run in attempt %d", (int)p->census.slot_count,
                   (int)s->attempt);
    s->phase = PHASE_RUNNING;
    condition_clear(p->job, s, CONDITION_RESTARTING, p->now_ms, "TrainingJobRunning", "all replicas run again");
    condition_set(p->job, s, CONDITION_RUNNING, true, p->now_ms, "TrainingJobRunning", "all %d replicas run",
                  (int)p->census.slot_count);
}

/* The failure that the round before this one ended by; NULL: it did not end by one. */
static const struct failure *why_it_ended(const struct pass *p)
{
    const struct coordinator_view *c = &p->seen->coordinator;
    const struct job_status *s = p->status;
    const struct failure *f = s->failure_count > 0 ? &s->failures[s->failure_count - 1] : NULL;
    bool another_size = c->known && c->attempt == s->attempt && f != NULL && (f->attempt != s->attempt || f->round + 1 < c->round);

    return another_size ? NULL : f;
}

/* The round has ended; the pods stay and the processes in them go on or are started again. */
static void become_restarting(struct pass *p)
{
    struct job_status *s = p->status;
    const struct failure *f = why_it_ended(p);
    char who[80] = "";

    if (f != NULL)
        job_member_name(f->role, f->index, who);
    s->phase = PHASE_RESTARTING;
    condition_set(p->job, s, CONDITION_RUNNING, false, p->now_ms, "RestartInPlace", "the ring is being formed again");
    condition_set(p->job, s, CONDITION_RESTARTING, true, p->now_ms, "RestartInPlace",
                  "the ring is being formed again%s%s%s%s", f != NULL ? " after " : "", who, f != NULL ? ": " : "",
                  f != NULL ? f->reason : "");
}

/* Do the training processes run? The coordinator knows. A job without sidecars, or whose coordinator has been silent
 * for long, is judged by its pods. */
static bool processes_run(struct pass *p, const struct tally *t)
{
    const struct coordinator_view *c = &p->seen->coordinator;

    if (c->known && c->attempt == p->status->attempt)
        return c->group_formed;
    if (p->before->phase == PHASE_RUNNING || !pod_has_sidecar(p->job))
        return true;
    int64_t at_ms = t->newest_start_ms + SILENT_COORDINATOR_MS;
    if (p->now_ms >= at_ms)
        return true;
    plan_requeue(p->plan, at_ms);
    return false;
}

void describe_state(struct pass *p)
{
    struct job_status *s = p->status;
    struct tally t = tally_of(p);
    bool all_ready = t.ready == p->census.slot_count;

    describe_trouble(p);
    describe_gang(p, &t);
    describe_ring(p);
    if (all_ready)
        condition_set(p->job, s, CONDITION_PODS_READY, true, p->now_ms, "AllReady", "all %d pods are ready",
                      (int)p->census.slot_count);
    if (p->before->phase == PHASE_RUNNING) {
        if (!processes_run(p, &t))
            become_restarting(p);
        else
            become_running(p);
    } else if (all_ready && processes_run(p, &t)) {
        become_running(p);
    } else if (p->before->phase != PHASE_RESTARTING) {
        s->phase = t.there > 0 ? PHASE_STARTING : PHASE_PENDING;
    }
}
