/*
 * What went wrong with pods, and what follows: one failure is decided about in a pass, the earliest; the decision is
 * recorded, and the next pass carries it out.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "job/counters.h"
#include "job/reconcile_parts.h"

/* After a ring was formed, until its programs listen if they ever do: imports and models come before that. */
enum { LISTENS_WITHIN_MS = 20000 };

struct candidate {
    enum job_role role; int32_t index;
    const struct pod_view *pod; /* NULL: it vanished */
    const char *reason;
    const char *message;
    int64_t time_ms;
    bool waiting;               /* it has not failed, it cannot start */
};

bool pod_is_recorded(const struct job_status *status, const struct pod_view *pod)
{
    for (size_t i = 0; i < status->failure_count; i++) {
        const struct failure *f = &status->failures[i];
        if (f->attempt == pod->attempt && f->pod_uid[0] != '\0' && strcmp(f->pod_uid, pod->uid) == 0)
            return true;
    }
    return false;
}

static struct failure_event event_of(const struct pass *p, const struct candidate *c)
{
    const struct job_status *s = p->before;
    const struct coordinator_view *coordinator = &p->seen->coordinator;
    int64_t committed_ms = s->checkpoint.set ? s->checkpoint.time_ms : 0;
    struct failure_event e = { .role = c->role, .index = c->index, .reason = c->reason, .message = c->message };

    if (coordinator->known && coordinator->latest.checkpoint.set &&
        coordinator->latest.checkpoint.time_ms > committed_ms)
        committed_ms = coordinator->latest.checkpoint.time_ms;
    e.made_progress = s->failure_count == 0 || committed_ms > s->failures[s->failure_count - 1].time_ms;
    if (c->pod != NULL && c->pod->has_exit && !c->waiting && !c->pod->deleting) {
        e.has_exit = true;
        e.exit_code = c->pod->exit_code;
        e.signal = c->pod->signal;
        if (c->pod->started_ms > 0 && c->pod->finished_ms > c->pod->started_ms)
            e.ran_ms = c->pod->finished_ms - c->pod->started_ms;
    }
    return e;
}

/* ---- who failed -------------------------------------------------------------------------------------------------- */

static const char *or_reason(const char *reason, const char *absent)
{
    return reason[0] != '\0' ? reason : absent;
}

/* True when the user wrote a rule for a pod that waits with this reason: then its end need not be waited for. */
static bool rule_names_waiting(const struct pass *p, const struct candidate *c)
{
    struct failure_event e = event_of(p, c);

    return c->reason[0] != '\0' && restart_rule_matches(p->job, &e);
}

static const struct failure *told_of_hang(const struct pass *p, const struct slot *s)
{
    const struct coordinator_view *c = &p->seen->coordinator;
    bool told = c->known && c->attempt == p->before->attempt && c->handed != NULL && c->handed->class == FAILURE_HANG;

    return told && c->handed->role == s->role && c->handed->index == s->index ? c->handed : NULL;
}

static bool candidate_of(const struct pass *p, const struct slot *s, struct candidate *ret)
{
    const struct pod_view *pod = s->pod;
    bool were_all_there = condition_is(p->before, CONDITION_PODS_READY);
    struct candidate c = { .role = s->role, .index = s->index, .pod = pod, .message = "", .time_ms = p->now_ms };

    if (pod == NULL) {
        c.reason = "PodDeleted";
        *ret = c;
        return were_all_there && !slot_is_done(s);
    }
    c.message = pod->message;
    if (s->was_done || pod_is_recorded(p->before, pod) || (pod->phase == POD_SUCCEEDED && !pod->deleting))
        return false;
    if (pod->deleting) { /* somebody else asked for it: what its process says on the way out means nothing */
        c.reason = pod->node_lost ? "NodeLost" : "PodDeleted";
        struct failure_event e = { .role = c.role, .reason = pod->reason };
        if (pod->reason[0] != '\0' && restart_classify(&e) == FAILURE_INFRASTRUCTURE)
            c.reason = pod->reason;
        *ret = c; /* one that never goes by itself is not waited for, however early it was lost */
        return (were_all_there || pod->node_lost) && pod->phase != POD_SUCCEEDED;
    }
    const struct failure *hung = told_of_hang(p, s);
    if (pod->phase == POD_FAILED && hung != NULL) { /* its exit code is that of a process that was told to leave */
        c.reason = "Hang";
        c.message = hung->message;
        c.time_ms = pod->finished_ms > 0 ? pod->finished_ms : p->now_ms;
        *ret = c;
        return true;
    }
    if (pod->phase == POD_FAILED) {
        c.reason = or_reason(pod->reason, pod->has_exit ? "Error" : "PodLost");
        c.time_ms = pod->finished_ms > 0 ? pod->finished_ms : p->now_ms;
        *ret = c;
        return true;
    }
    if (pod->node_lost) {
        c.reason = "NodeLost";
        *ret = c;
        return true;
    }
    c.reason = pod->reason;
    c.waiting = true;
    *ret = c;
    return pod->phase == POD_PENDING && rule_names_waiting(p, &c);
}

/* The coordinator has counted the loss of this member already, as the end of the newest round: it is the same event, and
 * so is what else was lost with it (two replicas on one node): that one is decided about first. */
static bool was_counted_by_coordinator(const struct pass *p, const struct candidate *c, enum failure_class class)
{
    const struct job_status *s = p->status; /* with the rounds of this pass folded in */
    const struct failure *f = s->failure_count > 0 ? &s->failures[s->failure_count - 1] : NULL;

    /* A launcher that is gone is a pod that ends: with which code shows only here. */
    bool same = f != NULL && f->class == FAILURE_INFRASTRUCTURE && (class == FAILURE_INFRASTRUCTURE || strcmp(f->reason, "LauncherLost") == 0);

    return same && f->attempt == s->attempt && f->round == s->round && s->round > 0 && f->role == c->role &&
           f->index == c->index && f->pod_uid[0] == '\0';
}

struct ranked { struct candidate c; bool evidence, counted; int32_t order; };

static int by_rank(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;

    if (x->evidence != y->evidence)
        return x->evidence ? -1 : 1;
    if (x->counted != y->counted)
        return x->counted ? -1 : 1;
    if (x->c.time_ms != y->c.time_ms)
        return x->c.time_ms < y->c.time_ms ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

static struct ranked rank_candidate(const struct pass *p, const struct candidate *c, int32_t order)
{
    struct failure_event e = event_of(p, c);
    enum failure_class class = restart_classify(&e);

    /* Evidence that says why outranks the time at which something was seen to end. */
    return (struct ranked){ .c = *c, .evidence = class == FAILURE_OOM || class == FAILURE_HARDWARE,
                            .counted = was_counted_by_coordinator(p, c, class), .order = order };
}

static struct ranked *find_candidates(const struct pass *p, size_t *ret_count)
{
    struct ranked *list = NULL;
    size_t count = 0, cap = 0;

    for (int32_t i = 0; i < p->census.slot_count; i++) {
        struct candidate c;
        if (!candidate_of(p, &p->census.slots[i], &c))
            continue;
        if (count == cap) {
            cap = cap > 0 ? 2 * cap : 8;
            list = xrealloc(list, cap, sizeof *list);
        }
        list[count++] = rank_candidate(p, &c, i);
    }
    if (count > 1)
        qsort(list, count, sizeof *list, by_rank);
    *ret_count = count;
    return list;
}

/* ---- what is recorded -------------------------------------------------------------------------------------------- */

/* Steps that were done and are in no committed checkpoint. */
static struct optional_int lost_steps(const struct pass *p)
{
    const struct coordinator_view *coordinator = &p->seen->coordinator;
    const struct job_status *latest = &coordinator->latest;

    if (!coordinator->known || coordinator->attempt != p->before->attempt || !latest->progress.set)
        return (struct optional_int){ .set = false };
    int64_t kept = latest->checkpoint.set ? latest->checkpoint.step : 0;
    return (struct optional_int){ .set = true, .value = latest->progress.step > kept ? latest->progress.step - kept : 0 };
}

static void record(struct pass *p, const struct candidate *c, const struct failure_event *e,
                   const struct restart_decision *d, bool replaced)
{
    const struct coordinator_view *coordinator = &p->seen->coordinator;
    struct failure f = {
        .attempt = p->before->attempt, .role = c->role, .index = c->index, .class = d->class, .time_ms = c->time_ms
    };

    f.round = coordinator->known && coordinator->attempt == p->before->attempt ? coordinator->round : p->before->round;
    f.has_exit = e->has_exit;
    f.exit_code = e->exit_code;
    f.signal = e->signal;
    job_pod_name(p->job, c->role, c->index, f.pod);
    text_set(f.reason, sizeof f.reason, c->reason);
    text_set(f.message, sizeof f.message, c->message[0] != '\0' ? c->message : d->message);
    const char *container = job_main_container(p->job, c->role);
    text_set(f.container, sizeof f.container, container != NULL ? container : "");
    if (c->pod != NULL) {
        text_set(f.node, sizeof f.node, c->pod->node);
        text_set(f.pod_uid, sizeof f.pod_uid, replaced ? c->pod->uid : "");
    }
    f.lost_steps = lost_steps(p);
    if (d->class == FAILURE_HANG && coordinator->handed != NULL)
        text_set(f.evidence, sizeof f.evidence, coordinator->handed->evidence);
    failure_set_rank(p->job, &f);
    p->status->roles[c->role].oom_kills += d->class == FAILURE_OOM;
    failure_add(p->status, &f);
    if (c->pod != NULL && (d->class == FAILURE_HARDWARE || d->node_suspect || strcmp(c->reason, "NodeLost") == 0))
        avoid_node(p->job, p->status, c->pod->node, c->reason, p->seen->node_count, p->now_ms);
}

void raise_attempt(struct pass *p)
{
    p->status->attempt++;
    p->status->round = 0;
    p->status->next_restart_ms = 0;
    p->counts_are_old = true;
    for (enum job_role r = 0; r < ROLE_COUNT; r++)
        p->status->roles[r].replicas = p->job->spec.roles[r].present ? p->job->spec.roles[r].replicas : 0;
}

static void begin_restart(struct pass *p, const char *reason, const char *message, int64_t delay_ms)
{
    struct job_status *s = p->status;
    int64_t at_ms = delay_ms > 0 ? p->now_ms + delay_ms : 0;

    s->phase = PHASE_RESTARTING;
    if (at_ms > s->next_restart_ms)
        s->next_restart_ms = at_ms;
    condition_set(p->job, s, CONDITION_RUNNING, false, p->now_ms, reason, "the job restarts");
    condition_set(p->job, s, CONDITION_RESTARTING, true, p->now_ms, reason, "%s", message);
    condition_clear(p->job, s, CONDITION_PODS_READY, p->now_ms, reason, "pods are made anew");
    p->plan->record_first = true;
}

/* ---- what follows ------------------------------------------------------------------------------------------------ */

/* The ring of an elastic job is there without it: its coordinator has the others' programs wait for the new pod. */
static bool others_stay(const struct pass *p, const struct candidate *c)
{
    const struct coordinator_view *seen = &p->seen->coordinator;

    return p->job->spec.elastic && p->job->spec.failure.strategy == STRATEGY_IN_PLACE && job_restarts_as_group(p->job) &&
           job_rank(p->job, c->role, c->index) > 0 && seen->known && seen->attempt == p->status->attempt && seen->workers_wanted > 0;
}

/* Only this pod is made anew, at the same attempt: the others wait in the coordinator's next round. What may still run
 * on a lost node would answer under the same fence, so that a pod which is to be deleted by force takes the attempt
 * with it. */
static bool may_replace_alone(const struct pass *p, const struct candidate *c, const struct restart_decision *d)
{
    bool zombie = c->pod != NULL && c->pod->node_lost && p->job->spec.failure.force_delete_after_s.set;

    if (zombie)
        return false;
    bool in_group = job_restarts_as_group(p->job) && job_rank(p->job, c->role, c->index) >= 0;
    return d->verdict == VERDICT_RESTART_ALONE ||
           (in_group && p->job->spec.failure.strategy == STRATEGY_RECREATE_FAILED) || others_stay(p, c);
}

static void restart_without_charge(struct pass *p, const struct candidate *c)
{
    struct failure *f = &p->status->failures[p->status->failure_count - 1];
    bool group = job_restarts_as_group(p->job) && job_rank(p->job, c->role, c->index) >= 0;
    struct restart_decision d = { .verdict = group ? VERDICT_RESTART_GROUP : VERDICT_RESTART_ALONE };
    struct failure_event e = event_of(p, c);
    char message[256];

    restart_describe(&e, message);
    if (may_replace_alone(p, c, &d) && c->pod != NULL)
        text_set(f->pod_uid, sizeof f->pod_uid, c->pod->uid);
    else if (!may_replace_alone(p, c, &d))
        raise_attempt(p);
    begin_restart(p, c->reason, message, 0);
    plan_event(p->plan, true, "TrainingJobRestarting", "%s; its pod is made anew, the loss is counted already",
               message);
}

static void restart(struct pass *p, const struct candidate *c, const struct failure_event *e,
                    const struct restart_decision *d)
{
    bool alone = may_replace_alone(p, c, d);

    restart_counters_take(p->status, &d->counters);
    record(p, c, e, d, alone);
    if (!alone)
        raise_attempt(p);
    begin_restart(p, d->reason, d->message, d->delay_ms);
    plan_event(p->plan, true, "TrainingJobRestarting", "%s", d->message);
}

/* A failure that the job goes on after is shown once; nothing is spent, so that nothing hangs on the record. */
static void show_ignored(struct pass *p, const struct candidate *c, const struct failure_event *e,
                         const struct restart_decision *d)
{
    struct job_status *s = p->status;
    int64_t newest_ms = 0;

    for (size_t i = 0; i < s->failure_count; i++) {
        const struct failure *f = &s->failures[i];
        if (f->attempt == s->attempt && f->role == c->role && f->index == c->index && f->exit_code == e->exit_code)
            return;
        newest_ms = f->time_ms > newest_ms ? f->time_ms : newest_ms;
    }
    if (s->failure_count == JOB_FAILURES_KEPT && c->time_ms <= newest_ms)
        return; /* the list has room for the newest only */
    record(p, c, e, d, false);
    plan_event(p->plan, true, "ExitedWithCode", "%s", d->message);
}

/* Can the job still end well when this replica stays failed? */
static bool is_needed(const struct pass *p, const struct candidate *c)
{
    int32_t rank = job_rank(p->job, c->role, c->index);

    return p->job->spec.success_policy == SUCCESS_ALL_WORKERS ? rank >= 0 : rank == 0;
}

static bool decide(struct pass *p, const struct candidate *c)
{
    struct failure_event e = event_of(p, c);
    struct restart_counters before;
    struct restart_decision d;
    char message[512];

    restart_counters_of(p->status, &before);
    if (was_counted_by_coordinator(p, c, restart_classify(&e))) {
        restart_without_charge(p, c);
        return true;
    }
    restart_decide(p->job, &before, &e, p->now_ms, &d);
    switch (d.verdict) {
    case VERDICT_FAIL_JOB:
        record(p, c, &e, &d, false);
        fail_job(p, d.reason, d.message);
        return true;
    case VERDICT_RESTART_GROUP:
    case VERDICT_RESTART_ALONE:
        restart(p, c, &e, &d);
        return true;
    case VERDICT_IGNORE:
        if (c->waiting)
            return false;
        show_ignored(p, c, &e, &d);
        if (!is_needed(p, c))
            return false;
        (void)snprintf(message, sizeof message, "%s, and the end of the job hangs on that replica", d.message);
        fail_job(p, "DecidingReplicaFailed", message);
        return true;
    }
    return false;
}

bool handle_failures(struct pass *p)
{
    size_t count = 0;
    auto_free struct ranked *list = find_candidates(p, &count);

    if (count > 0 && coordinator_is_due(p))
        return true;
    for (size_t i = 0; i < count; i++) {
        if (decide(p, &list[i].c))
            return true;
    }
    return false;
}

/* ---- another number of replicas ---------------------------------------------------------------------------------- */

static bool only_workers_differ(const struct pass *p)
{
    for (enum job_role r = 0; r < ROLE_COUNT; r++) {
        if (r != ROLE_WORKER && p->before->roles[r].replicas != p->census.roles[r].replicas)
            return false;
    }
    return true;
}

/* Does the ring grow or shrink at its end while its processes stay, when their programs go into another round by themselves? */
static bool is_resizable(const struct pass *p)
{
    const struct coordinator_view *c = &p->seen->coordinator;

    return p->job->spec.elastic && c->known && c->attempt == p->status->attempt && c->workers_wanted > 0 &&
           p->census.roles[ROLE_WORKER].replicas > 0 && only_workers_differ(p);
}

/* Programs that have just begun may be about to listen. */
static bool may_listen_soon(struct pass *p)
{
    int64_t formed_ms = p->seen->coordinator.latest.ring.formed_ms, until_ms = formed_ms + LISTENS_WITHIN_MS;

    if (!is_resizable(p) || p->seen->coordinator.listens || p->now_ms < formed_ms || p->now_ms >= until_ms)
        return false;
    plan_requeue(p->plan, until_ms);
    return true;
}

int32_t resize_is_wanted(const struct training_job *job, const struct job_status *status, const struct coordinator_view *coordinator)
{
    int32_t wanted = status->roles[ROLE_WORKER].replicas;
    bool tells = coordinator->known && coordinator->attempt == status->attempt && coordinator->workers_wanted > 0;

    return job->spec.elastic && tells && wanted > 0 && !phase_is_final(status->phase) && coordinator->workers_wanted != wanted ? wanted : 0;
}

/* The size of the world is in every pod: another number of replicas is another attempt, free of charge, where the ring cannot change. With
 * enableDynamicWorker nobody knows the size, and only the difference is created or deleted. */
bool handle_scale(struct pass *p)
{
    char message[160];
    bool differs = false;
    int32_t was = 0;

    for (enum job_role r = 0; r < ROLE_COUNT; r++) {
        differs |= p->before->roles[r].replicas != p->census.roles[r].replicas;
        was += p->before->roles[r].replicas;
    }
    if (!differs)
        return false;
    (void)snprintf(message, sizeof message, "the job is scaled from %d to %d replicas", (int)was,
                   (int)job_replicas(p->job));
    bool stays = is_resizable(p) && p->seen->coordinator.listens;
    if (!stays && may_listen_soon(p))
        return true;
    if (stays || (p->job->spec.enable_dynamic_worker && only_workers_differ(p))) {
        p->status->roles[ROLE_WORKER].replicas = p->census.roles[ROLE_WORKER].replicas;
        condition_clear(p->job, p->status, CONDITION_PODS_READY, p->now_ms, "Scaled", "%s", message);
        p->plan->record_first = true;
    } else if (wait_for_checkpoint(p, WISH_SCALE)) {
        return true;
    } else {
        raise_attempt(p);
        begin_restart(p, "Scaled", message, 0);
    }
    plan_event(p->plan, false, "TrainingJobScaled", "%s", message);
    return true;
}

/* ---- pods that do not start -------------------------------------------------------------------------------------- */

/* All pods are given back when not all of them found a node in time: two jobs that each hold half of what they need
 * would wait for each other for ever. */
static void release_gang(struct pass *p, const struct slot *s)
{
    const char *why = s->pod != NULL ? s->pod->message : p->seen->create_error;
    struct candidate c = { .role = s->role, .index = s->index, .pod = s->pod, .reason = "ScheduleTimeout",
                           .message = why, .time_ms = p->now_ms, .waiting = true };
    struct failure_event e = event_of(p, &c);
    struct restart_counters before;
    struct restart_decision d;

    restart_counters_of(p->status, &before);
    before.streak += before.streak == 0; /* never at once: two jobs that are in each other's way would meet again */
    e.made_progress = false;
    restart_decide(p->job, &before, &e, p->now_ms, &d);
    record(p, &c, &e, &d, false);
    if (d.verdict == VERDICT_FAIL_JOB) {
        fail_job(p, d.reason, d.message);
        return;
    }
    restart_counters_take(p->status, &d.counters);
    raise_attempt(p);
    begin_restart(p, "ScheduleTimeout", d.message, d.delay_ms);
    plan_event(p->plan, true, "ScheduleTimeout", "%s; all pods are given back", d.message);
}

/* The replica that keeps the gang waiting: one without a pod before one whose pod has no node. */
static const struct slot *find_unplaced(const struct pass *p)
{
    const struct slot *found = NULL;

    for (int32_t i = 0; i < p->census.slot_count; i++) {
        const struct slot *s = &p->census.slots[i];
        if (s->pod == NULL && !s->was_done)
            return s;
        if (found == NULL && s->pod != NULL && s->pod->phase == POD_PENDING && !s->pod->scheduled && !s->pod->deleting)
            found = s;
    }
    return found;
}

static bool handle_schedule_timeout(struct pass *p, int64_t created_ms)
{
    const struct optional_int *timeout = &p->job->spec.scheduling.schedule_timeout_s;
    const struct slot *s = timeout->set ? find_unplaced(p) : NULL;

    if (s == NULL)
        return false;
    int64_t at_ms = created_ms + timeout->value * 1000;
    if (p->now_ms >= at_ms) {
        release_gang(p, s);
        return true;
    }
    plan_requeue(p->plan, at_ms);
    return false;
}

static bool handle_start_timeout(struct pass *p)
{
    const struct optional_int *timeout = &p->job->spec.scheduling.start_timeout_s;

    for (int32_t i = 0; timeout->set && i < p->census.slot_count; i++) {
        const struct slot *s = &p->census.slots[i];
        if (s->pod == NULL || s->pod->phase != POD_PENDING || !s->pod->scheduled || s->pod->deleting)
            continue;
        int64_t at_ms = s->pod->created_ms + timeout->value * 1000;
        if (p->now_ms < at_ms) {
            plan_requeue(p->plan, at_ms);
            continue;
        }
        struct failure_event known = { .role = s->role, .reason = s->pod->reason };
        bool says_why = s->pod->reason[0] != '\0' && restart_classify(&known) == FAILURE_USER;
        struct candidate c = { .role = s->role,
                               .index = s->index,
                               .pod = s->pod,
                               .reason = says_why ? s->pod->reason : "StartTimeout",
                               .message = s->pod->message,
                               .time_ms = p->now_ms,
                               .waiting = true };
        if (decide(p, &c))
            return true;
    }
    return false;
}

/* The clock starts with the newest pod when all are there. While some cannot be created it is the oldest that counts: what half a
 * gang holds, another one may wait for. */
bool handle_timeouts(struct pass *p)
{
    int64_t newest_ms = 0, oldest_ms = 0;
    bool all_there = true;

    if (condition_is(p->before, CONDITION_PODS_READY))
        return false;
    for (int32_t i = 0; i < p->census.slot_count; i++) {
        const struct slot *s = &p->census.slots[i];
        all_there &= s->pod != NULL || s->was_done;
        if (s->pod == NULL)
            continue;
        newest_ms = s->pod->created_ms > newest_ms ? s->pod->created_ms : newest_ms;
        oldest_ms = oldest_ms == 0 || s->pod->created_ms < oldest_ms ? s->pod->created_ms : oldest_ms;
    }
    if (!all_there)
        return oldest_ms > 0 && p->seen->create_error[0] != '\0' && handle_schedule_timeout(p, oldest_ms);
    return handle_schedule_timeout(p, newest_ms) || handle_start_timeout(p);
}
