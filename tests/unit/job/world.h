/*
 * world.h — a model of a cluster for the reconciler: what a shell, an API server and kubelets would make of its plans.
 * Time stands still unless a test moves it.
 */
#ifndef TEST_WORLD_H
#define TEST_WORLD_H

#include <criterion/criterion.h>

#include "job/decode.h"
#include "job/reconcile.h"
#include "tests/unit/job/job_fixture.h"

enum { WORLD_PODS = 64, WORLD_START_MS = 1700000000 };

struct world {
    struct training_job *job;
    struct job_status *status;          /* as stored */
    struct pod_view pods[WORLD_PODS]; size_t pod_count;
    struct coordinator_view coordinator;
    struct round_view rounds[32];
    int64_t listens_from_ms;
    bool has_service, has_secret, job_deleted;
    bool lacks_network_policy, lacks_claims, lacks_trim, lacks_check;
    const char *refuses;                /* what the API server says of a pod that it is shown; NULL: it takes it */
    bool refused, native_works;
    char create_error[64];
    struct gang_view gang;
    bool slow_deletes;                  /* pods stay "deleting" until world_reap */
    int64_t now_ms;
    int uids;
    int created, deleted, warnings;     /* so far */
    char last_event[64];
};

static inline struct world *world_new(struct training_job *job)
{
    struct world *w = xcalloc(1, sizeof *w);

    w->job = job;
    w->status = xcalloc(1, sizeof *w->status);
    w->status->ring.straggler_rank = -1;
    w->now_ms = (int64_t)WORLD_START_MS * 1000;
    w->coordinator.rounds = w->rounds;
    w->coordinator.latest.ring.straggler_rank = -1;
    return w;
}

static inline void world_free(struct world *w)
{
    training_job_free(w->job);
    free(w->status);
    free(w);
}

static inline struct pod_view *world_pod(struct world *w, enum job_role role, int32_t index)
{
    for (size_t i = 0; i < w->pod_count; i++) {
        if (w->pods[i].role == role && w->pods[i].index == index)
            return &w->pods[i];
    }
    return NULL;
}

static inline void world_remove(struct world *w, struct pod_view *pod)
{
    *pod = w->pods[--w->pod_count];
    memset(&w->pods[w->pod_count], 0, sizeof *pod);
}

static inline void world_observe(struct world *w, struct observed *seen)
{
    struct observed all = { .pods = w->pods, .pod_count = w->pod_count, .coordinator = w->coordinator,
                               .has_service = w->has_service, .has_secret = w->has_secret, .gang = w->gang, .listens_from_ms = w->listens_from_ms,
                               .lacks = { w->lacks_network_policy, w->lacks_claims, w->lacks_trim, w->lacks_check } };

    *seen = all;
    (void)snprintf(seen->pod_refused, sizeof seen->pod_refused, "%s", w->refused ? w->refuses : "");
    (void)snprintf(seen->create_error, sizeof seen->create_error, "%s", w->create_error);
}

static inline void world_create(struct world *w, const struct action *a)
{
    cr_assert(w->pod_count < WORLD_PODS);
    cr_assert(world_pod(w, a->role, a->index) == NULL, "a second pod named %s-%d", role_name(a->role), a->index);
    struct pod_view *pod = &w->pods[w->pod_count++];
    memset(pod, 0, sizeof *pod);
    pod->role = a->role;
    pod->index = a->index;
    pod->attempt = a->attempt;
    pod->phase = POD_PENDING;
    pod->created_ms = w->now_ms;
    pod->gated = w->gang.looked && w->status->gang.set && w->status->gang.kind == GANG_SCHEDULING_GATES;
    (void)snprintf(pod->uid, sizeof pod->uid, "p%d", ++w->uids);
    (void)snprintf(pod->node, sizeof pod->node, "node-%d", a->index);
    w->created++;
}

static inline void world_delete(struct world *w, const struct action *a)
{
    struct pod_view *pod = world_pod(w, a->role, a->index);

    if (pod == NULL || strcmp(pod->uid, a->uid) != 0)
        return; /* gone meanwhile: 404, or 409 by its precondition */
    w->deleted++;
    if ((w->slow_deletes || pod->node_lost) && a->kind == ACTION_DELETE_POD)
        pod->deleting = true;
    else
        world_remove(w, pod);
}

static inline void world_check(struct world *w)
{
    w->lacks_check = false;
    w->refused = w->refuses != NULL;
    w->gang.native_checked = true;
    w->gang.native_works = w->native_works;
}

static inline void world_act(struct world *w, const struct action *a)
{
    switch (a->kind) {
    case ACTION_CREATE_SECRET: w->has_secret = true; break;
    case ACTION_CREATE_SERVICE: w->has_service = true; break;
    case ACTION_CREATE_POD: world_create(w, a); break;
    case ACTION_DELETE_POD:
    case ACTION_FORCE_DELETE_POD: world_delete(w, a); break;
    case ACTION_DELETE_JOB: w->job_deleted = true; break;
    case ACTION_CREATE_NETWORK_POLICY: w->lacks_network_policy = false; break;
    case ACTION_CREATE_CLAIMS: w->lacks_claims = false; break;
    case ACTION_TRIM_CLAIMS: w->lacks_trim = false; break;
    case ACTION_CHECK_PODS: world_check(w); break;
    case ACTION_CREATE_GROUP:
        w->gang.has_group = true;
        w->gang.created_ms = w->now_ms;
        w->gang.min_member = gang_min_member(w->job);
        break;
    case ACTION_UPDATE_GROUP: w->gang.min_member = gang_min_member(w->job); break;
    case ACTION_DELETE_GROUP: w->gang.has_group = false; w->gang.phase[0] = '\0'; break;
    case ACTION_UNGATE_POD: world_pod(w, a->role, a->index)->gated = false; break;
    case ACTION_DELETE_PODS: cr_assert_fail("made by the operator alone");
    }
}

/* One turn of the shell. False when there was nothing to do. */
static inline bool world_step(struct world *w)
{
    struct plan *p = xcalloc(1, sizeof *p);
    struct observed seen;

    world_observe(w, &seen);
    reconcile(w->job, w->status, &seen, w->now_ms, p);
    cr_assert(!p->record_first || (p->action_count == 0 && p->status_changed), "a decision is recorded before anything is touched");
    bool busy = p->action_count > 0 || p->status_changed;
    memcpy(w->status, &p->status, sizeof p->status);
    for (size_t i = 0; i < p->event_count; i++) {
        w->warnings += p->events[i].warning;
        (void)snprintf(w->last_event, sizeof w->last_event, "%s", p->events[i].reason);
    }
    for (size_t i = 0; i < p->action_count && !w->refused; i++)
        world_act(w, &p->actions[i]);
    plan_release(p);
    free(p);
    return busy;
}

static inline int world_settle(struct world *w)
{
    int turns = 0;

    while (world_step(w))
        cr_assert(++turns < 200, "the plan is never empty: phase %s", phase_name(w->status->phase));
    return turns;
}

/* The plan for now, as text; nothing is carried out. Owned. */
static inline char *world_plan(struct world *w)
{
    struct plan *p = xcalloc(1, sizeof *p);
    struct observed seen;

    world_observe(w, &seen);
    reconcile(w->job, w->status, &seen, w->now_ms, p);
    char *text = plan_format(p);
    plan_release(p);
    free(p);
    return text;
}

/* Every pod that can gets a node and runs; the coordinator reports the group formed. */
static inline void world_run(struct world *w)
{
    for (size_t i = 0; i < w->pod_count; i++) {
        struct pod_view *pod = &w->pods[i];
        if (pod->phase != POD_PENDING || pod->deleting || pod->gated)
            continue;
        pod->phase = POD_RUNNING;
        pod->scheduled = pod->ready = true;
        pod->started_ms = w->now_ms;
    }
    w->coordinator.known = true;
    if (w->coordinator.attempt != w->status->attempt) {
        w->coordinator.round = 1;
        w->coordinator.round_count = 0;
    }
    w->coordinator.attempt = w->status->attempt;
    w->coordinator.group_formed = true;
}

static inline void world_exit(struct world *w, enum job_role role, int32_t index, int32_t code)
{
    struct pod_view *pod = world_pod(w, role, index);

    cr_assert(pod != NULL);
    pod->phase = code == 0 ? POD_SUCCEEDED : POD_FAILED;
    pod->has_exit = true;
    pod->exit_code = code;
    pod->ready = false;
    pod->finished_ms = w->now_ms;
    (void)snprintf(pod->reason, sizeof pod->reason, "%s", code == 0 ? "Completed" : "Error");
}

/* The kubelets finish what is being deleted. */
static inline void world_reap(struct world *w)
{
    for (size_t i = w->pod_count; i-- > 0;) {
        if (w->pods[i].deleting && !w->pods[i].node_lost)
            world_remove(w, &w->pods[i]);
    }
}

/* Up and running. */
static inline struct world *world_running(struct training_job *job)
{
    struct world *w = world_new(job);

    (void)world_settle(w);
    world_run(w);
    (void)world_settle(w);
    cr_assert(w->status->phase == PHASE_RUNNING, "%s", phase_name(w->status->phase));
    return w;
}

#endif
