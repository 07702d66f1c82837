#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "operator/urgency.h"

struct change { struct job_status *before; struct plan *plan; };

static void pods_come(struct change *c)
{
    c->plan->status.phase = PHASE_STARTING;
    c->plan->status.roles[ROLE_WORKER].active = 3;
    c->plan->status.roles[ROLE_WORKER].ready = 2;
    c->plan->status.conditions[CONDITION_GANG_SCHEDULED].present = true;
}

static void a_pod_goes(struct change *c) { c->before->roles[ROLE_WORKER].ready = 1; }
static void a_pod_ends(struct change *c) { c->plan->status.roles[ROLE_WORKER].succeeded = 1; }
static void a_pod_fails(struct change *c) { c->plan->status.roles[ROLE_WORKER].failed = 1; }
static void it_runs(struct change *c) { c->plan->status.phase = PHASE_RUNNING; }
static void it_restarts(struct change *c) { c->before->phase = PHASE_RUNNING; c->plan->status.phase = PHASE_STARTING; }
static void an_attempt_begins(struct change *c) { pods_come(c); c->plan->status.attempt = 2; }
static void it_is_to_be_recorded(struct change *c) { pods_come(c); c->plan->record_first = true; }
static void there_is_something_to_tell(struct change *c) { pods_come(c); c->plan->event_count = 1; }
static void it_is_degraded(struct change *c) { pods_come(c); c->plan->status.conditions[CONDITION_DEGRADED].present = true; }
static void the_generation_was_seen(struct change *c) { c->plan->status.observed_generation = 2; }

static const struct { const char *name; void (*make)(struct change *c); bool may_wait; } ROWS[] = {
    { "pods come up", pods_come, true },
    { "a pod is less", a_pod_goes, false },
    { "a pod has ended", a_pod_ends, false },
    { "a pod has failed", a_pod_fails, false },
    { "the job runs", it_runs, false },
    { "the job starts again", it_restarts, false },
    { "an attempt begins", an_attempt_begins, false },
    { "a decision", it_is_to_be_recorded, false },
    { "an event", there_is_something_to_tell, false },
    { "another condition", it_is_degraded, false },
    { "a change of the spec was followed", the_generation_was_seen, false },
};

Test(urgency, a_status_waits_when_nothing_was_decided)
{
    for (size_t i = 0; i < COUNT(ROWS); i++) {
        auto_free struct job_status *before = xcalloc(1, sizeof *before);
        auto_free struct plan *plan = xcalloc(1, sizeof *plan);
        struct change c = { before, plan };
        ROWS[i].make(&c);
        cr_expect_eq(status_may_wait(before, plan), ROWS[i].may_wait, "case %s", ROWS[i].name);
    }
}

static const struct pod_entry PENDING = { .uid = "a", .phase = POD_PENDING };
static const struct pod_entry BOUND = { .uid = "a", .phase = POD_PENDING, .scheduled = true };
static const struct pod_entry STUCK = { .uid = "a", .phase = POD_PENDING, .reason = (char *)(uintptr_t)"ImagePullBackOff" };
static const struct pod_entry RUNS = { .uid = "a", .phase = POD_RUNNING, .scheduled = true };
static const struct pod_entry READY = { .uid = "a", .phase = POD_RUNNING, .scheduled = true, .ready = true };
static const struct pod_entry OTHER = { .uid = "b", .phase = POD_RUNNING, .scheduled = true, .ready = true };
static const struct pod_entry GOING = { .uid = "a", .phase = POD_RUNNING, .scheduled = true, .deleting = true };
static const struct pod_entry EXITED = { .uid = "a", .phase = POD_RUNNING, .scheduled = true, .has_exit = true };
static const struct pod_entry EVICTED = { .uid = "a", .phase = POD_RUNNING, .scheduled = true, .disrupted = true };
static const struct pod_entry FAILED = { .uid = "a", .phase = POD_FAILED };
static const struct pod_entry ENDED = { .uid = "a", .phase = POD_SUCCEEDED };

static const struct { const char *name; const struct pod_entry *was, *is; bool may_wait; } PODS[] = {
    { "it was created", NULL, &PENDING, true },
    { "it has a node", &PENDING, &BOUND, true },
    { "it runs", &BOUND, &RUNS, true },
    { "it is ready", &RUNS, &READY, true },
    { "it is not ready any more", &READY, &RUNS, false },
    { "another one has its name", &READY, &OTHER, false },
    { "it does not start", &PENDING, &STUCK, false },
    { "it is being deleted", &READY, &GOING, false },
    { "it is gone", &READY, NULL, false },
    { "its program has ended", &READY, &EXITED, false },
    { "it is evicted", &READY, &EVICTED, false },
    { "it failed", &READY, &FAILED, false },
    { "it has ended well", &READY, &ENDED, false },
    { "it was not known and failed", NULL, &FAILED, false },
};

Test(urgency, a_pod_waits_when_it_rises)
{
    for (size_t i = 0; i < COUNT(PODS); i++)
        cr_expect_eq(pod_may_wait(PODS[i].was, PODS[i].is), PODS[i].may_wait, "case %s", PODS[i].name);
}
