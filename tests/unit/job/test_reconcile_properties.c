/*
 * Random sequences of what happens to a job on a cluster, against a model of that cluster: pods start, exit, are evicted and
 * deleted, nodes are lost and come back, processes are restarted in place, the user suspends, resumes and scales, time passes,
 * the operator sees old pods and is killed between any two of its writes. After each step the promises of reconcile.h are
 * checked; at the end nothing more happens to the job, and it has to come to rest.
 *
 * A failure names its seed: RINGMASTER_SEED=n runs that sequence alone, RINGMASTER_SEQUENCES=n runs as many.
 */
#include <criterion/criterion.h>

#include "job/restart.h"
#include "tests/unit/job/world.h"
#include "tests/unit/quietly.h"

enum { SEQUENCES = 400, STEPS = 120, SNAPSHOTS = 6, ZOMBIES = 64, REST_TURNS = 600 };

struct zombie { enum job_role role; int32_t index, attempt; };

struct sim {
    uint64_t seed, random;
    struct world *w;
    /* What the operator sees: a copy of the pods that may be old, but never goes back. */
    struct pod_view views[SNAPSHOTS][WORLD_PODS]; size_t view_counts[SNAPSHOTS]; int newest, seen;
    struct zombie zombies[ZOMBIES]; size_t zombie_count; /* forced away, may still run on their nodes */
    int incidents;                   /* whatever could be charged to somebody */
    struct restart_counters coordinator;
    int32_t coordinator_attempt;
    int64_t requeue_ms;
    bool saw_ready;                  /* all pods of this attempt were there at once */
};

static uint64_t next(struct sim *s)
{
    s->random ^= s->random << 13;
    s->random ^= s->random >> 7;
    s->random ^= s->random << 17;
    return s->random;
}

static int pick(struct sim *s, int n)
{
    return (int)(next(s) % (uint64_t)n);
}

#define CHECK(s, what, ...) QUIETLY(what, "seed %llu at %s attempt %d: " __VA_ARGS__)
#define WHERE(s) (unsigned long long)(s)->seed, phase_name((s)->w->status->phase), (int)(s)->w->status->attempt

/* ---- a job ------------------------------------------------------------------------------------------------------- */

static struct training_job *random_job(struct sim *s)
{
    static const int32_t shapes[][ROLE_COUNT] = { { 1, 0, 2, 0, 0 }, { 0, 0, 3, 0, 0 }, { 1, 0, 2, 1, 0 }, { 0, 1, 1, 0, 1 }, { 0, 0, 1, 0, 0 }, { 0, 0, 4, 2, 1 } };
    static const enum restart_policy policies[] = { RESTART_ALWAYS, RESTART_ON_FAILURE, RESTART_NEVER, RESTART_EXIT_CODE, RESTART_EXIT_CODE };
    const int32_t *n = shapes[pick(s, COUNT(shapes))];
    struct training_job *job = fixture_job(n[0], n[1], n[2], n[3], n[4]);
    struct job_spec *spec = &job->spec;

    for (enum job_role r = 0; r < ROLE_COUNT; r++)
        spec->roles[r].restart_policy = policies[pick(s, COUNT(policies))];
    static const int32_t limits[] = { -1, -1, 0, 2, 6, 20 };
    spec->backoff_limit = limits[pick(s, COUNT(limits))];
    spec->failure.strategy = (enum restart_strategy)pick(s, 3);
    spec->success_policy = (enum success_policy)pick(s, 2);
    spec->clean_pod_policy = (enum clean_pod_policy)pick(s, 3);
    spec->enable_dynamic_worker = pick(s, 5) == 0;
    spec->sidecar.mode = pick(s, 4) == 0 ? 3 : 0;
    if (pick(s, 4) == 0)
        spec->failure.max_restarts = (struct optional_int){ .set = true, .value = pick(s, 10) };
    if (pick(s, 4) == 0)
        spec->failure.max_disruptions = (struct optional_int){ .set = true, .value = pick(s, 5) };
    if (pick(s, 2))
        spec->failure.force_delete_after_s = (struct optional_int){ .set = true, .value = pick(s, 200) };
    if (pick(s, 3) == 0)
        spec->active_deadline_s = (struct optional_int){ .set = true, .value = 1 + pick(s, 3000) };
    if (pick(s, 3) == 0)
        spec->ttl_after_finished_s = (struct optional_int){ .set = true, .value = pick(s, 500) };
    if (pick(s, 3) == 0)
        spec->scheduling.schedule_timeout_s = (struct optional_int){ .set = true, .value = 60 + pick(s, 600) };
    if (pick(s, 3) == 0)
        spec->scheduling.start_timeout_s = (struct optional_int){ .set = true, .value = 60 + pick(s, 600) };
    spec->suspend = pick(s, 10) == 0;
    return job;
}

/* ---- the API server ---------------------------------------------------------------------------------------------- */

static void snapshot(struct sim *s)
{
    int at = s->newest + 1;

    if (at == SNAPSHOTS) { /* what is older than the window has been seen by now */
        memmove(s->views[0], s->views[1], sizeof s->views[0] * (SNAPSHOTS - 1));
        memmove(&s->view_counts[0], &s->view_counts[1], sizeof s->view_counts[0] * (SNAPSHOTS - 1));
        at = SNAPSHOTS - 1;
        s->seen = s->seen > 0 ? s->seen - 1 : 0;
    }
    memcpy(s->views[at], s->w->pods, sizeof s->w->pods);
    s->view_counts[at] = s->w->pod_count;
    s->newest = at;
}

static bool is_final(const struct sim *s)
{
    return phase_is_final(s->w->status->phase);
}

static void create_pod(struct sim *s, const struct action *a)
{
    CHECK(s, !is_final(s), "a pod is created for a job that is over", WHERE(s));
    CHECK(s, a->attempt == s->w->status->attempt, "a pod of attempt %d is created before it is recorded", WHERE(s), a->attempt);
    CHECK(s, !s->w->job->spec.suspend || s->w->status->phase != PHASE_SUSPENDED, "a pod is created for a suspended job", WHERE(s));
    CHECK(s, s->w->now_ms >= s->w->status->next_restart_ms, "a pod is created within the back-off", WHERE(s));
    if (world_pod(s->w, a->role, a->index) != NULL)
        return; /* 409: the name is taken, the next look will show by whom */
    for (size_t i = 0; i < s->zombie_count; i++)
        CHECK(s, s->zombies[i].role != a->role || s->zombies[i].index != a->index || s->zombies[i].attempt < a->attempt,
              "%s-%d may run twice under one fence", WHERE(s), role_name(a->role), a->index);
    for (size_t i = 0; i < s->w->pod_count && job_restarts_as_group(s->w->job); i++)
        CHECK(s, s->w->pods[i].attempt == a->attempt, "a pod of attempt %d is there beside new ones", WHERE(s), s->w->pods[i].attempt);
    world_create(s->w, a);
}

static void delete_pod(struct sim *s, const struct action *a)
{
    struct pod_view *pod = world_pod(s->w, a->role, a->index);

    if (pod == NULL || strcmp(pod->uid, a->uid) != 0)
        return; /* 404, or 409 by the UID */
    if (a->kind == ACTION_FORCE_DELETE_POD) {
        CHECK(s, s->w->job->spec.failure.force_delete_after_s.set, "force that nobody asked for", WHERE(s));
        if (s->zombie_count < ZOMBIES)
            s->zombies[s->zombie_count++] = (struct zombie){ pod->role, pod->index, pod->attempt };
        world_remove(s->w, pod);
    } else if (pod->phase == POD_SUCCEEDED || pod->phase == POD_FAILED || (pod->phase == POD_PENDING && !pod->scheduled)) {
        world_remove(s->w, pod); /* nothing runs: gone at once */
    } else {
        pod->deleting = true;
    }
}

static void act(struct sim *s, const struct action *a)
{
    switch (a->kind) {
    case ACTION_CREATE_POD: create_pod(s, a); break;
    case ACTION_DELETE_POD:
    case ACTION_FORCE_DELETE_POD: delete_pod(s, a); break;
    case ACTION_DELETE_JOB:
        CHECK(s, is_final(s) && s->w->now_ms >= s->w->status->completion_ms + s->w->job->spec.ttl_after_finished_s.value * 1000,
              "the job is deleted before its time", WHERE(s));
        s->w->job_deleted = true;
        break;
    default: world_act(s->w, a);
    }
}

/* ---- the operator ------------------------------------------------------------------------------------------------ */

static void check_status(struct sim *s, const struct plan *p)
{
    const struct job_status *was = s->w->status, *is = &p->status;
    const struct training_job *job = s->w->job;

    CHECK(s, !phase_is_final(was->phase) || is->phase == was->phase, "a final phase became %s", WHERE(s), phase_name(is->phase));
    CHECK(s, is->attempt == was->attempt || is->attempt == was->attempt + 1, "attempt %d follows", WHERE(s), is->attempt);
    CHECK(s, is->restarts >= was->restarts && is->restarts_counted >= was->restarts_counted && is->disruptions >= was->disruptions,
          "a counter fell", WHERE(s));
    CHECK(s, is->restarts <= s->incidents, "%d restarts, but only %d things happened", WHERE(s), is->restarts, s->incidents);
    CHECK(s, is->restarts == is->restarts_counted + is->disruptions, "%d restarts are not %d + %d", WHERE(s), is->restarts, is->restarts_counted, is->disruptions);
    CHECK(s, job->spec.backoff_limit < 0 || is->restarts_counted <= job->spec.backoff_limit, "%d restarts charged", WHERE(s), is->restarts_counted);
    CHECK(s, !job->spec.failure.max_restarts.set || is->restarts <= job->spec.failure.max_restarts.value, "%d restarts", WHERE(s), is->restarts);
    CHECK(s, !job->spec.failure.max_disruptions.set || is->disruptions <= job->spec.failure.max_disruptions.value, "%d disruptions", WHERE(s), is->disruptions);
    CHECK(s, !(is->conditions[CONDITION_RUNNING].is_true && is->conditions[CONDITION_RESTARTING].is_true), "running and restarting at once", WHERE(s));
    CHECK(s, !(is->conditions[CONDITION_SUCCEEDED].is_true && is->conditions[CONDITION_FAILED].is_true), "succeeded and failed at once", WHERE(s));
    CHECK(s, (is->phase == PHASE_RUNNING) == (is->conditions[CONDITION_RUNNING].present && is->conditions[CONDITION_RUNNING].is_true),
          "phase %s and condition Running differ", WHERE(s), phase_name(is->phase));
    CHECK(s, !p->record_first || (p->action_count == 0 && p->status_changed), "a decision comes with actions", WHERE(s));
    CHECK(s, is->attempt == was->attempt || p->record_first, "attempt is raised without being recorded first", WHERE(s));
    CHECK(s, phase_is_final(is->phase) == phase_is_final(was->phase) || p->record_first, "the end is not recorded first", WHERE(s));
    CHECK(s, p->requeue_at_ms == 0 || p->requeue_at_ms > s->w->now_ms, "called again at %lld, now is %lld", WHERE(s), (long long)p->requeue_at_ms,
          (long long)s->w->now_ms);
    const struct condition *target = &is->conditions[CONDITION_FAILURE_TARGET];
    CHECK(s, !target->is_true || was->conditions[CONDITION_FAILURE_TARGET].is_true ||
             target->transition_ms - was->start_ms - job->spec.active_deadline_s.value * 1000 <= 1000, "the deadline is late", WHERE(s));
}

/* The store keeps JSON, and whole seconds. */
static void through_the_store(struct sim *s)
{
    auto_json cJSON *tree = status_encode(s->w->job, s->w->status);
    auto_free struct job_status *back = xcalloc(1, sizeof *back);
    struct error e = ERROR_INIT;

    CHECK(s, status_decode(tree, back, &e) == 0, "%s", WHERE(s), e.text);
    memcpy(s->w->status, back, sizeof *back);
}

/* A turn of the operator: it may see old pods, and die before it stored, after it stored, or amid its actions. */
static bool turn(struct sim *s, bool perfect)
{
    struct plan *p = xcalloc(1, sizeof *p);
    struct observed seen;
    int crash = perfect ? 0 : pick(s, 12);

    if (perfect || crash < 6)
        s->seen = s->newest;
    else
        s->seen += pick(s, s->newest - s->seen + 1);
    world_observe(s->w, &seen);
    seen.pods = s->views[s->seen];
    seen.pod_count = s->view_counts[s->seen];
    reconcile(s->w->job, s->w->status, &seen, s->w->now_ms, p);
    check_status(s, p);
    bool busy = p->action_count > 0 || p->status_changed;
    /* After something was done, and after a new operator has come, the job is looked at once more. */
    s->requeue_ms = busy || crash >= 10 ? s->w->now_ms : p->requeue_at_ms;
    size_t done = p->action_count;
    if (crash == 11)
        done = 0; /* died before anything was stored */
    else
        memcpy(s->w->status, &p->status, sizeof p->status);
    if (crash == 10)
        done = p->action_count > 0 ? (size_t)pick(s, (int)p->action_count) : 0;
    for (size_t i = 0; i < done; i++)
        act(s, &p->actions[i]);
    if (crash >= 10) { /* whoever comes after reads everything anew */
        through_the_store(s);
        snapshot(s);
        s->seen = s->newest;
    }
    snapshot(s);
    plan_release(p);
    free(p);
    return busy;
}

/* ---- what happens ------------------------------------------------------------------------------------------------ */

static struct pod_view *random_pod(struct sim *s)
{
    return s->w->pod_count > 0 ? &s->w->pods[pick(s, (int)s->w->pod_count)] : NULL;
}

static void start_pod(struct sim *s, struct pod_view *pod)
{
    if (pod->phase != POD_PENDING || pod->deleting || pod->node_lost)
        return;
    if (!pod->scheduled) {
        pod->scheduled = true;
        return;
    }
    pod->phase = POD_RUNNING;
    pod->ready = true;
    pod->started_ms = s->w->now_ms;
}

static void end_pod(struct sim *s, struct pod_view *pod, int32_t code, const char *why)
{
    if (pod->phase != POD_RUNNING || pod->node_lost)
        return;
    pod->phase = code == 0 ? POD_SUCCEEDED : POD_FAILED;
    pod->ready = false;
    pod->has_exit = true;
    pod->exit_code = code;
    pod->finished_ms = s->w->now_ms;
    (void)snprintf(pod->reason, sizeof pod->reason, "%s", why);
    s->incidents += code != 0;
}

static bool all_run(const struct sim *s)
{
    int32_t running = 0;

    for (size_t i = 0; i < s->w->pod_count; i++)
        running += s->w->pods[i].attempt == s->w->status->attempt && s->w->pods[i].phase == POD_RUNNING && !s->w->pods[i].deleting;
    return running == job_replicas(s->w->job);
}

/* The coordinator of this attempt: forms when all run, restarts in place as restart_decide says. */
static void coordinate(struct sim *s, bool fault)
{
    struct coordinator_view *c = &s->w->coordinator;
    const struct job_status *status = s->w->status;

    if (s->w->job->spec.sidecar.mode == 3 || !all_run(s)) {
        c->group_formed = false;
        return;
    }
    if (!c->known || c->attempt != status->attempt) {
        *c = (struct coordinator_view){ .known = true, .attempt = status->attempt, .round = 1, .rounds = s->w->rounds,
                                        .latest.ring.straggler_rank = -1 };
        s->coordinator = (struct restart_counters){ .restarts = status->restarts, .restarts_counted = status->restarts_counted,
                                                    .disruptions = status->disruptions, .streak = status->streak };
    }
    struct pod_view *pod = random_pod(s);
    if (fault && pod != NULL && c->group_formed && c->round_count < COUNT(s->w->rounds)) {
        int32_t code = pick(s, 2) ? 137 : 1;
        struct failure_event e = { .role = pod->role, .index = pod->index, .has_exit = true, .exit_code = code, .reason = "Error" };
        struct restart_decision d;
        restart_decide(s->w->job, &s->coordinator, &e, s->w->now_ms, &d);
        if (d.verdict != VERDICT_RESTART_GROUP || d.needs_new_pod) {
            end_pod(s, pod, code, "Error");
            return;
        }
        struct round_view *r = &s->w->rounds[c->round_count++];
        memset(r, 0, sizeof *r);
        *r = (struct round_view){ .attempt = c->attempt, .round = c->round++, .counters = d.counters };
        r->cause = (struct failure){ .role = pod->role, .index = pod->index, .has_exit = true, .exit_code = code, .class = d.class,
                                     .time_ms = s->w->now_ms };
        s->coordinator = d.counters;
        s->incidents++;
        c->group_formed = false;
        return;
    }
    c->group_formed = true;
}

static void reap(struct sim *s)
{
    for (size_t i = s->w->pod_count; i-- > 0;) {
        if (s->w->pods[i].deleting && !s->w->pods[i].node_lost)
            world_remove(s->w, &s->w->pods[i]);
    }
}

static void happen(struct sim *s)
{
    static const int32_t codes[] = { 1, 137, 139, 143, 255, 137, 0, 0 };
    struct pod_view *pod = random_pod(s);
    struct training_job *job = s->w->job;

    switch (pick(s, 22)) {
    case 0: case 1: case 2: case 3: case 4: case 5:
        for (size_t i = 0; i < s->w->pod_count; i++)
            start_pod(s, &s->w->pods[i]);
        break;
    case 6: case 7: if (pod) end_pod(s, pod, codes[pick(s, COUNT(codes))], "Error"); break;
    case 8: if (pod) end_pod(s, pod, 137, "OOMKilled"); break;
    case 9: if (pod) end_pod(s, pod, 137, "Evicted"); break;
    case 10: if (pod && pick(s, 2)) { pod->node_lost = true; s->incidents++; } break;
    case 11:
        for (size_t i = 0; i < s->w->pod_count; i++)
            s->w->pods[i].node_lost = false;
        break;
    case 12: if (pod && !pod->deleting && pick(s, 2)) { pod->deleting = true; s->incidents++; } break;
    case 13: if (pod && pick(s, 3) == 0) { s->incidents++; world_remove(s->w, pod); } break;
    case 14: case 15: reap(s); break;
    case 16: if (pick(s, 4) == 0) job->spec.suspend = !job->spec.suspend; break;
    case 17: if (pick(s, 6) == 0 && job->spec.roles[ROLE_WORKER].present) job->spec.roles[ROLE_WORKER].replicas = 1 + pick(s, 5); break;
    case 18: coordinate(s, true); break;
    case 19: coordinate(s, false); break;
    case 20: if (pod && pod->deleting && !pod->node_lost) end_pod(s, pod, pick(s, 2) ? 0 : 143, "Error"); break;
    default: break;
    }
}

/* Time passes, but not past what the operator asked to be called for. */
static void pass_time(struct sim *s)
{
    int64_t to_ms = s->w->now_ms + (pick(s, 4) == 0 ? pick(s, 400000) : pick(s, 3000));

    if (s->requeue_ms > s->w->now_ms && to_ms > s->requeue_ms)
        to_ms = s->requeue_ms;
    s->w->now_ms = to_ms;
    s->incidents += 1; /* a time limit may strike */
}

/* ---- rest -------------------------------------------------------------------------------------------------------- */

static bool at_rest(const struct sim *s)
{
    enum job_phase phase = s->w->status->phase;

    return phase == PHASE_RUNNING || phase == PHASE_SUSPENDED || phase_is_final(phase);
}

/* Nothing bad happens any more: nodes come back, pods start, what is deleted goes. */
static void come_to_rest(struct sim *s)
{
    int quiet = 0;

    for (int i = 0; i < REST_TURNS && quiet < 3; i++) {
        for (size_t k = 0; k < s->w->pod_count; k++)
            s->w->pods[k].node_lost = false;
        reap(s);
        for (int k = 0; k < 2; k++)
            for (size_t n = 0; n < s->w->pod_count; n++)
                start_pod(s, &s->w->pods[n]);
        coordinate(s, false);
        if (s->w->coordinator.attempt == s->w->status->attempt && s->w->coordinator.known)
            s->w->coordinator.group_formed = true;
        snapshot(s);
        bool busy = turn(s, true);
        quiet = busy || !at_rest(s) ? 0 : quiet + 1;
        if (!busy && s->requeue_ms > s->w->now_ms && !at_rest(s))
            s->w->now_ms = s->requeue_ms;
    }
    CHECK(s, quiet >= 3, "it does not come to rest", WHERE(s));
    CHECK(s, !s->w->job->spec.suspend || s->w->status->phase == PHASE_SUSPENDED || is_final(s), "it is to be suspended", WHERE(s));
    CHECK(s, s->w->status->phase != PHASE_SUSPENDED || s->w->pod_count == 0, "%zu pods of a suspended job", WHERE(s), s->w->pod_count);
    for (size_t i = 0; i < s->w->pod_count && !is_final(s); i++)
        CHECK(s, s->w->pods[i].attempt == s->w->status->attempt, "a pod of attempt %d is left", WHERE(s), s->w->pods[i].attempt);
}

static void check_ttl(struct sim *s)
{
    const struct optional_int *ttl = &s->w->job->spec.ttl_after_finished_s;

    if (!is_final(s) || !ttl->set || s->w->job_deleted)
        return;
    int64_t at_ms = s->w->status->completion_ms + ttl->value * 1000;
    CHECK(s, s->requeue_ms == at_ms, "the TTL's time is not asked for", WHERE(s));
    s->w->now_ms = at_ms;
    (void)turn(s, true);
    CHECK(s, s->w->job_deleted, "the TTL has passed", WHERE(s));
}

static enum job_phase run_sequence(uint64_t seed)
{
    struct sim *s = xcalloc(1, sizeof *s);

    s->seed = seed;
    s->random = seed * 0x9e3779b97f4a7c15u + 1;
    for (int i = 0; i < 8; i++)
        (void)next(s);
    s->w = world_new(random_job(s));
    snapshot(s);
    for (int i = 0; i < STEPS && !s->w->job_deleted; i++) {
        happen(s);
        if (pick(s, 3) == 0)
            pass_time(s);
        snapshot(s);
        for (int turns = pick(s, 4); turns > 0; turns--)
            (void)turn(s, false);
        /* A time limit is met by being called at its time. */
        for (int turns = 0; turns < 100 && s->requeue_ms != 0 && s->w->now_ms >= s->requeue_ms; turns++)
            (void)turn(s, true);
    }
    if (!s->w->job_deleted) {
        come_to_rest(s);
        check_ttl(s);
    }
    enum job_phase phase = s->w->status->phase;
    world_free(s->w);
    free(s);
    return phase;
}

Test(properties, hold_in_random_sequences_of_events_crashes_and_stale_views, .timeout = 600)
{
    const char *one = getenv("RINGMASTER_SEED"), *many = getenv("RINGMASTER_SEQUENCES");
    uint64_t first = one != NULL ? strtoull(one, NULL, 10) : 1;
    uint64_t count = one != NULL ? 1 : many != NULL ? strtoull(many, NULL, 10) : SEQUENCES;
    int ends[PHASE_FAILED + 1] = { 0 };

    for (uint64_t seed = first; seed < first + count; seed++)
        ends[run_sequence(seed)]++;
    /* A test that never comes anywhere would pass, too. */
    if (count >= 500) {
        cr_expect(ends[PHASE_RUNNING] > 0 && ends[PHASE_SUSPENDED] > 0 && ends[PHASE_SUCCEEDED] > 0 && ends[PHASE_FAILED] > 0,
                  "%d running, %d suspended, %d succeeded, %d failed", ends[PHASE_RUNNING], ends[PHASE_SUSPENDED], ends[PHASE_SUCCEEDED], ends[PHASE_FAILED]);
        if (getenv("RINGMASTER_VERBOSE") != NULL)
            (void)fprintf(stderr, "%llu sequences end: %d running, %d suspended, %d succeeded, %d failed\n", (unsigned long long)count,
                          ends[PHASE_RUNNING], ends[PHASE_SUSPENDED], ends[PHASE_SUCCEEDED], ends[PHASE_FAILED]);
    }
}
