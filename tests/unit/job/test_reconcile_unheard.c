#include <criterion/criterion.h>

#include "tests/unit/job/world.h"

enum { WITHIN_MS = 10000 };

/* A job at work whose leader has just begun: what the coordinator told the one before is not in the status. */
static struct world *with_a_new_leader(struct training_job *job)
{
    struct world *w = world_running(job);

    for (size_t i = 0; i < w->pod_count; i++)
        w->pods[i].speaks = true;
    memset(&w->coordinator, 0, sizeof w->coordinator);
    w->coordinator.rounds = w->rounds;
    w->coordinator.latest.ring.straggler_rank = -1;
    w->listens_from_ms = w->now_ms;
    return w;
}

/* Two restarts in place, of which nobody has told yet. */
static void hear(struct world *w, bool over)
{
    w->coordinator.known = w->coordinator.group_formed = true;
    w->coordinator.attempt = w->status->attempt;
    w->coordinator.round = 3;
    w->coordinator.round_count = 2;
    w->coordinator.over = over;
    for (int32_t i = 0; i < 2; i++)
        w->rounds[i] = (struct round_view){
            .attempt = w->status->attempt, .round = i + 1, .counters = { .restarts = i + 1, .restarts_counted = 1, .disruptions = i, .streak = i + 1 },
            .cause = { .role = ROLE_WORKER, .index = i, .class = i == 0 ? FAILURE_USER : FAILURE_INFRASTRUCTURE, .time_ms = w->now_ms,
                       .reason = "Error" } };
}

static void end_chief(struct world *w)
{
    world_exit(w, ROLE_CHIEF, 0, 0);
}

static bool all_told(const struct world *w)
{
    const struct job_status *s = w->status;

    return s->restarts == 2 && s->restarts_counted == 1 && s->disruptions == 1 && s->failure_count == 2 && s->failures[0].index == 0 &&
           s->failures[1].index == 1;
}

Test(unheard, an_end_waits_for_the_report_that_tells_of_it)
{
    struct world *w = with_a_new_leader(fixture_job(1, 0, 2, 0, 0));

    end_chief(w);
    (void)world_settle(w);
    cr_expect(w->status->phase == PHASE_RUNNING, "%s", phase_name(w->status->phase));
    hear(w, false);
    (void)world_settle(w);
    cr_expect(w->status->phase != PHASE_SUCCEEDED && all_told(w), "what was told is taken in, and the last report waited for");
    hear(w, true);
    (void)world_settle(w);
    cr_expect(w->status->phase == PHASE_SUCCEEDED && all_told(w));
    cr_expect(strstr(w->status->conditions[CONDITION_SUCCEEDED].message, "2 restarts") != NULL, "%s",
              w->status->conditions[CONDITION_SUCCEEDED].message);
    world_free(w);
}

Test(unheard, how_long_an_end_waits)
{
    static const struct { const char *name; bool speaks, known, over, last_word; int64_t after_ms; bool ends; int restarts; } ROWS[] = {
        { "not heard, it may still speak", true, false, false, false, 0, false, 0 },
        { "just before the limit", true, false, false, false, WITHIN_MS - 1, false, 0 },
        { "the limit", true, false, false, false, WITHIN_MS, true, 0 },
        { "heard, its end not", true, true, false, false, WITHIN_MS - 1, false, 2 },
        { "heard to the end", true, true, true, false, 0, true, 2 },
        { "its pod is over, without a last word", false, false, false, false, 0, true, 0 },
        { "its pod is over and had a last word", false, true, false, true, 0, true, 2 },
    };

    for (size_t i = 0; i < COUNT(ROWS); i++) {
        struct world *w = with_a_new_leader(fixture_job(1, 0, 2, 0, 0));
        end_chief(w);
        world_pod(w, ROLE_CHIEF, 0)->speaks = ROWS[i].speaks;
        if (ROWS[i].known)
            hear(w, ROWS[i].over);
        w->coordinator.group_formed = !ROWS[i].last_word;
        w->now_ms += ROWS[i].after_ms;
        (void)world_settle(w);
        cr_expect((w->status->phase == PHASE_SUCCEEDED) == ROWS[i].ends, "case %s: %s", ROWS[i].name, phase_name(w->status->phase));
        cr_expect_eq(w->status->restarts, ROWS[i].restarts, "case %s: %d restarts", ROWS[i].name, w->status->restarts);
        world_free(w);
    }
}

Test(unheard, it_asks_to_be_called_when_the_time_is_over)
{
    struct world *w = with_a_new_leader(fixture_job(1, 0, 2, 0, 0));

    end_chief(w);
    (void)world_settle(w);
    auto_free char *plan = world_plan(w);
    cr_expect(strstr(plan, "requeue") != NULL, "%s", plan);
    cr_expect(strstr(plan, "create") == NULL && strstr(plan, "delete") == NULL, "%s", plan);
    world_free(w);
}

Test(unheard, a_failure_is_decided_on_with_all_that_was_counted)
{
    struct training_job *job = fixture_job(1, 0, 2, 0, 0);
    job->spec.backoff_limit = 1;
    struct world *w = with_a_new_leader(job);

    world_exit(w, ROLE_WORKER, 1, 1);
    (void)world_settle(w);
    cr_expect(w->status->attempt == 1 && w->status->phase == PHASE_RUNNING && w->created == 3 && w->deleted == 0, "nothing is done before it is known");
    hear(w, false);
    (void)world_settle(w);
    cr_expect(w->status->phase == PHASE_FAILED && w->status->restarts == 2, "the budget was spent in place: %s", phase_name(w->status->phase));
    world_free(w);
}

Test(unheard, how_long_a_failure_waits)
{
    static const struct { const char *name; bool listens, speaks, vanished, coordinator_fails; int64_t after_ms; bool decides; } ROWS[] = {
        { "the coordinator may come", true, true, false, false, 0, false },
        { "a pod that vanished is not simply made anew", true, true, true, false, 0, false },
        { "just before the limit", true, true, false, false, WITHIN_MS - 1, false },
        { "the limit", true, true, false, false, WITHIN_MS, true },
        { "nobody listens", false, true, false, false, 0, true },
        { "its sidecar does not run", true, false, false, false, 0, true },
        { "the coordinator's own pod, its sidecar lives", true, true, false, true, 0, false },
    };

    for (size_t i = 0; i < COUNT(ROWS); i++) {
        struct world *w = with_a_new_leader(fixture_job(1, 0, 2, 0, 0));
        if (!ROWS[i].listens)
            w->listens_from_ms = 0;
        world_pod(w, ROLE_CHIEF, 0)->speaks = ROWS[i].speaks;
        if (ROWS[i].vanished)
            world_remove(w, world_pod(w, ROLE_WORKER, 1));
        else
            world_exit(w, ROWS[i].coordinator_fails ? ROLE_CHIEF : ROLE_WORKER, 0, 139);
        w->now_ms += ROWS[i].after_ms;
        (void)world_settle(w);
        cr_expect((w->status->attempt == 2) == ROWS[i].decides, "case %s: attempt %d", ROWS[i].name, w->status->attempt);
        cr_expect(ROWS[i].decides || (w->created == 3 && w->deleted == 0), "case %s: %d created", ROWS[i].name, w->created);
        world_free(w);
    }
}

Test(unheard, a_leader_that_has_heard_waits_for_nothing)
{
    struct world *w = with_a_new_leader(fixture_job(1, 0, 2, 0, 0));

    hear(w, false);
    (void)world_settle(w);
    world_exit(w, ROLE_WORKER, 1, 139);
    (void)world_settle(w);
    cr_expect(w->status->attempt == 2 && w->status->restarts == 3 && w->status->restarts_counted == 2);
    world_free(w);
}
