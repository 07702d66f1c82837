#include <criterion/criterion.h>

#include "base/buf.h"
#include "tests/unit/job/golden.h"
#include "tests/unit/job/world.h"

static bool is_true(const struct world *w, enum condition_type type)
{
    return w->status->conditions[type].present && w->status->conditions[type].is_true;
}

static const char *reason(const struct world *w, enum condition_type type)
{
    return w->status->conditions[type].reason;
}

static void expect_phase(const struct world *w, enum job_phase phase)
{
    cr_expect(w->status->phase == phase, "phase %s, expected %s", phase_name(w->status->phase), phase_name(phase));
}

static struct optional_int optional(int64_t value)
{
    return (struct optional_int){ .set = true, .value = value };
}

/* ---- the course of a job, as whole plans ------------------------------------------------------------------------- */

Test(reconcile, the_course_of_a_job_is_that_of_the_golden_file)
{
    struct world *w = world_new(fixture_job(1, 0, 1, 0, 0));
    auto_buf struct buf b = BUF_INIT(1 << 20);
    static const char *const stages[] = { "a new job", "recorded", "pods asked for", "pods run, group formed", "a worker dies", "the restart is recorded",
                                          "old pods are gone", "new pods run", "chief and worker are done", "the end is recorded", "nothing is left to do" };

    w->job->spec.ttl_after_finished_s = optional(60);
    for (size_t i = 0; i < COUNT(stages); i++) {
        if (i == 3 || i == 7)
            world_run(w);
        if (i == 4)
            world_exit(w, ROLE_WORKER, 0, 139);
        if (i == 8) {
            world_exit(w, ROLE_CHIEF, 0, 0);
            world_exit(w, ROLE_WORKER, 0, 0);
        }
        auto_free char *text = world_plan(w);
        buf_addf(&b, "# %s\n%s\n", stages[i], text);
        (void)world_step(w);
        w->now_ms += 1000;
    }
    expect_golden("plans.txt", buf_text(&b));
    world_free(w);
}

/* ---- beginnings -------------------------------------------------------------------------------------------------- */

Test(reconcile, the_first_attempt_is_recorded_before_a_pod_of_it_exists)
{
    struct world *w = world_new(fixture_job(1, 0, 3, 1, 1));

    cr_expect(world_step(w) && w->created == 0 && w->status->attempt == 1 && is_true(w, CONDITION_CREATED));
    cr_expect_str_eq(w->last_event, "TrainingJobCreated");
    (void)world_step(w);
    cr_expect(w->created == 6 && w->has_secret && w->has_service);
    expect_phase(w, PHASE_PENDING);
    (void)world_settle(w);
    expect_phase(w, PHASE_STARTING);
    world_free(w);
}

Test(reconcile, a_job_of_somebody_else_is_left_alone)
{
    struct world *w = world_new(fixture_job(0, 0, 2, 0, 0));

    w->job->spec.managed_by = xstrdup("kueue.x-k8s.io/multikueue");
    cr_expect(!world_step(w) && w->created == 0);
    free(w->job->spec.managed_by);
    w->job->spec.managed_by = xstrdup(JOB_MANAGED_BY);
    cr_expect(world_step(w));
    world_free(w);
}

Test(reconcile, a_job_that_is_being_deleted_is_left_alone)
{
    struct world *w = world_running(fixture_job(0, 0, 2, 0, 0));

    w->job->deleting = true;
    w->pod_count = 0;
    cr_expect(!world_step(w) && w->created == 2);
    world_free(w);
}

Test(reconcile, a_command_that_is_not_known_ends_the_job_with_advice)
{
    struct world *w = world_new(fixture_job(0, 0, 2, 0, 0));

    cJSON_Delete(w->job->spec.roles[ROLE_WORKER].template);
    w->job->spec.roles[ROLE_WORKER].template = fixture_json("{\"spec\":{\"containers\":[{\"name\":\"main\",\"image\":\"i\"}]}}");
    (void)world_settle(w);
    expect_phase(w, PHASE_FAILED);
    cr_expect(w->created == 0);
    cr_expect_str_eq(reason(w, CONDITION_FAILED), "CommandMissing");
    cr_expect(strstr(w->status->conditions[CONDITION_FAILED].message, "spec.sidecar.mode to None") != NULL);
    world_free(w);
}

Test(reconcile, pods_of_a_job_whose_status_was_lost_are_replaced_by_a_later_attempt)
{
    struct world *w = world_running(fixture_job(0, 0, 2, 0, 0));

    memset(w->status, 0, sizeof *w->status);
    for (size_t i = 0; i < w->pod_count; i++)
        w->pods[i].attempt = 7;
    (void)world_settle(w);
    cr_expect(w->status->attempt == 8 && w->deleted == 2 && w->created == 4 && world_pod(w, ROLE_WORKER, 0)->attempt == 8);
    world_free(w);
}

Test(reconcile, an_old_status_moves_nothing)
{
    struct world *w = world_running(fixture_job(0, 0, 2, 0, 0));

    w->pods[0].attempt = 2;
    auto_free char *text = world_plan(w);
    cr_expect(strncmp(text, "status same", 11) == 0, "%s", text);
    world_free(w);
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

Test(reconcile, running_means_that_the_processes_run)
{
    struct world *w = world_new(fixture_job(1, 0, 1, 0, 0));

    (void)world_settle(w);
    world_run(w);
    w->coordinator.group_formed = false;
    (void)world_settle(w);
    expect_phase(w, PHASE_STARTING);
    cr_expect(is_true(w, CONDITION_PODS_READY) && !is_true(w, CONDITION_RUNNING));
    w->coordinator.group_formed = true;
    (void)world_settle(w);
    expect_phase(w, PHASE_RUNNING);
    cr_expect(is_true(w, CONDITION_RUNNING));
    cr_expect_str_eq(w->last_event, "TrainingJobRunning");
    world_free(w);
}

Test(reconcile, a_coordinator_that_cannot_report_does_not_hold_up_the_status)
{
    struct world *w = world_new(fixture_job(1, 0, 1, 0, 0));

    (void)world_settle(w);
    world_run(w);
    w->coordinator.known = false;
    (void)world_settle(w);
    expect_phase(w, PHASE_STARTING);
    w->now_ms += 60000;
    (void)world_settle(w);
    expect_phase(w, PHASE_RUNNING);
    world_free(w);
}

Test(reconcile, without_sidecars_the_pods_say_it)
{
    struct world *w = world_new(fixture_job(1, 0, 1, 0, 0));

    w->job->spec.sidecar.mode = 3;
    (void)world_settle(w);
    world_run(w);
    w->coordinator.known = false;
    (void)world_settle(w);
    expect_phase(w, PHASE_RUNNING);
    world_free(w);
}

Test(reconcile, what_keeps_a_pod_from_starting_is_said_on_the_job)
{
    struct world *w = world_new(fixture_job(0, 0, 2, 0, 0));

    (void)world_settle(w);
    w->pods[1].scheduled = true;
    (void)snprintf(w->pods[1].reason, 32, "ImagePullBackOff");
    (void)snprintf(w->pods[1].message, 32, "no such image: trainer");
    (void)world_settle(w);
    cr_expect(is_true(w, CONDITION_DEGRADED) && w->warnings == 1);
    cr_expect_str_eq(reason(w, CONDITION_DEGRADED), "ImagePullBackOff");
    cr_expect_str_eq(w->status->conditions[CONDITION_DEGRADED].message, "worker-1 cannot start: ImagePullBackOff: no such image: trainer");
    cr_expect(!is_true(w, CONDITION_GANG_SCHEDULED));
    memset(w->pods[1].reason, 0, sizeof w->pods[1].reason);
    world_run(w);
    (void)world_settle(w);
    cr_expect(!is_true(w, CONDITION_DEGRADED) && w->warnings == 1 && is_true(w, CONDITION_GANG_SCHEDULED));
    world_free(w);
}

Test(reconcile, a_standstill_that_ends_nothing_is_said_on_the_job)
{
    struct world *w = world_new(fixture_job(0, 0, 2, 0, 0));

    (void)world_settle(w);
    world_run(w);
    (void)world_settle(w);
    w->coordinator.suspected = "worker-1 made no first step for 1800 s and uses no CPU";
    (void)world_settle(w);
    cr_expect(is_true(w, CONDITION_DEGRADED) && w->warnings == 1);
    cr_expect_str_eq(reason(w, CONDITION_DEGRADED), "NoProgress");
    w->coordinator.suspected = "";
    (void)world_settle(w);
    cr_expect(!is_true(w, CONDITION_DEGRADED));
    world_free(w);
}

Test(reconcile, a_stalled_collective_is_said_on_the_job)
{
    struct world *w = world_new(fixture_job(0, 0, 2, 0, 0));

    (void)world_settle(w);
    world_run(w);
    (void)world_settle(w);
    (void)snprintf(w->coordinator.stalled, sizeof w->coordinator.stalled, "\"w\" has waited 60 s for rank 1 (worker-1)");
    (void)world_settle(w);
    (void)world_settle(w);
    cr_expect(is_true(w, CONDITION_DEGRADED) && w->warnings == 1, "told once, not at every look");
    cr_expect_str_eq(reason(w, CONDITION_DEGRADED), "CollectiveStalled");
    cr_expect_str_eq(w->status->conditions[CONDITION_DEGRADED].message,
                     "a collective is stalled: \"w\" has waited 60 s for rank 1 (worker-1)");
    expect_phase(w, PHASE_RUNNING);
    w->coordinator.stalled[0] = '\0';
    (void)world_settle(w);
    cr_expect(!is_true(w, CONDITION_DEGRADED) && w->warnings == 1);
    world_free(w);
}

Test(reconcile, a_refused_creation_is_said_on_the_job)
{
    struct world *w = world_new(fixture_job(0, 0, 1, 0, 0));
    struct plan *p = xcalloc(1, sizeof *p);
    struct observed seen;

    (void)world_step(w);
    world_observe(w, &seen);
    (void)snprintf(seen.create_error, sizeof seen.create_error, "exceeded quota: gpus");
    reconcile(w->job, w->status, &seen, w->now_ms, p);
    cr_expect_str_eq(p->status.conditions[CONDITION_DEGRADED].reason, "FailedCreatePod");
    cr_expect_str_eq(p->status.conditions[CONDITION_DEGRADED].message, "could not be created: exceeded quota: gpus");
    cr_expect(p->event_count == 1 && p->events[0].warning);
    plan_release(p);
    free(p);
    world_free(w);
}

/* ---- ends -------------------------------------------------------------------------------------------------------- */

static const struct { const char *name; int32_t counts[ROLE_COUNT]; enum success_policy policy; enum job_role role; int32_t index; bool ends; } SUCCESS[] = {
    { "the chief decides", { 1, 0, 2, 1, 0 }, SUCCESS_CHIEF, ROLE_CHIEF, 0, true },
    { "the master decides", { 0, 1, 2, 0, 0 }, SUCCESS_CHIEF, ROLE_MASTER, 0, true },
    { "worker 0 does not decide beside a chief", { 1, 0, 2, 1, 0 }, SUCCESS_CHIEF, ROLE_WORKER, 0, false },
    { "worker 0 decides without a chief", { 0, 0, 2, 1, 0 }, SUCCESS_CHIEF, ROLE_WORKER, 0, true },
    { "worker 1 never decides alone", { 0, 0, 2, 1, 0 }, SUCCESS_CHIEF, ROLE_WORKER, 1, false },
    { "one of all workers is not all", { 0, 0, 2, 1, 0 }, SUCCESS_ALL_WORKERS, ROLE_WORKER, 0, false },
    { "the only worker is all", { 0, 0, 1, 1, 0 }, SUCCESS_ALL_WORKERS, ROLE_WORKER, 0, true },
    { "an evaluator does not decide", { 1, 0, 2, 0, 1 }, SUCCESS_CHIEF, ROLE_EVALUATOR, 0, false },
};

Test(reconcile, success_is_decided_by_the_replicas_that_the_policy_names)
{
    for (size_t i = 0; i < COUNT(SUCCESS); i++) {
        const int32_t *n = SUCCESS[i].counts;
        struct world *w = world_running(fixture_job(n[0], n[1], n[2], n[3], n[4]));
        w->job->spec.success_policy = SUCCESS[i].policy;
        world_exit(w, SUCCESS[i].role, SUCCESS[i].index, 0);
        (void)world_settle(w);
        cr_expect((w->status->phase == PHASE_SUCCEEDED) == SUCCESS[i].ends, "case %s", SUCCESS[i].name);
        world_free(w);
    }
}

Test(reconcile, a_succeeded_worker_whose_pod_was_collected_is_not_made_again)
{
    struct world *w = world_running(fixture_job(1, 0, 2, 1, 0));

    world_exit(w, ROLE_WORKER, 1, 0);
    (void)world_settle(w);
    cr_expect(w->status->roles[ROLE_WORKER].succeeded == 1);
    world_remove(w, world_pod(w, ROLE_WORKER, 1));
    (void)world_settle(w);
    cr_expect(w->created == 4 && w->status->attempt == 1 && w->status->restarts == 0);
    w->job->spec.success_policy = SUCCESS_ALL_WORKERS;
    world_exit(w, ROLE_WORKER, 0, 0);
    world_exit(w, ROLE_CHIEF, 0, 0);
    (void)world_settle(w);
    expect_phase(w, PHASE_SUCCEEDED);
    world_free(w);
}

Test(reconcile, after_the_end_no_pod_is_ever_created)
{
    static const int32_t codes[] = { 0, 1 };

    for (size_t i = 0; i < COUNT(codes); i++) {
        struct world *w = world_running(fixture_job(1, 0, 2, 0, 0));
        world_exit(w, ROLE_CHIEF, 0, codes[i]);
        (void)world_settle(w);
        cr_expect(phase_is_final(w->status->phase) && w->status->completion_ms == w->now_ms);
        int created = w->created;
        w->pod_count = 0;
        w->job->spec.suspend = true;
        w->job->spec.roles[ROLE_WORKER].replicas = 5;
        w->now_ms += 86400000;
        (void)world_settle(w);
        w->job->spec.suspend = false;
        (void)world_settle(w);
        expect_phase(w, codes[i] == 0 ? PHASE_SUCCEEDED : PHASE_FAILED);
        cr_expect(w->created == created);
        world_free(w);
    }
}

static const struct { const char *name; enum clean_pod_policy policy; size_t left; } CLEAN[] = {
    { "All takes every pod", CLEAN_ALL, 0 },
    { "Running keeps what has ended", CLEAN_RUNNING, 1 },
    { "None keeps all", CLEAN_NONE, 3 },
};

Test(reconcile, clean_pod_policy_decides_what_stays)
{
    for (size_t i = 0; i < COUNT(CLEAN); i++) {
        struct world *w = world_running(fixture_job(1, 0, 2, 0, 0));
        w->job->spec.clean_pod_policy = CLEAN[i].policy;
        world_exit(w, ROLE_CHIEF, 0, 0);
        (void)world_settle(w);
        w->now_ms += 5000; /* the others had their time to leave by themselves */
        (void)world_settle(w);
        cr_expect(w->pod_count == CLEAN[i].left, "case %s: %zu", CLEAN[i].name, w->pod_count);
        cr_expect(w->status->roles[ROLE_CHIEF].succeeded == 1, "case %s", CLEAN[i].name);
        world_free(w);
    }
}

Test(reconcile, ranks_that_were_released_end_by_themselves_and_keep_their_logs)
{
    struct world *w = world_running(fixture_job(1, 0, 2, 0, 0));

    world_exit(w, ROLE_CHIEF, 0, 0);
    (void)world_settle(w);
    expect_phase(w, PHASE_SUCCEEDED);
    cr_expect(w->pod_count == 3);
    world_exit(w, ROLE_WORKER, 0, 0);
    world_exit(w, ROLE_WORKER, 1, 0);
    w->now_ms += 10000;
    (void)world_settle(w);
    cr_expect(w->pod_count == 3, "what has ended well is kept: %zu", w->pod_count);
    cr_expect(w->status->roles[ROLE_WORKER].succeeded == 2);
    world_free(w);
}

Test(reconcile, ttl_deletes_the_job_and_nothing_else)
{
    struct world *w = world_running(fixture_job(1, 0, 2, 0, 0));

    w->job->spec.ttl_after_finished_s = optional(3600);
    world_exit(w, ROLE_CHIEF, 0, 0);
    (void)world_settle(w);
    w->now_ms += 5000;
    (void)world_settle(w);
    auto_free char *before = world_plan(w);
    auto_free char *requeue = xasprintf("requeue %lld\n", (long long)(w->status->completion_ms + 3600000));
    cr_expect(strstr(before, requeue) != NULL, "%s", before);
    w->now_ms += 3594999;
    cr_expect(!world_step(w) && !w->job_deleted);
    w->now_ms += 1;
    int deleted = w->deleted;
    (void)world_step(w);
    cr_expect(w->job_deleted && w->deleted == deleted);
    world_free(w);
}

Test(reconcile, the_deadline_stops_pods_before_the_job_is_called_failed)
{
    struct world *w = world_running(fixture_job(1, 0, 2, 0, 0));

    w->slow_deletes = true;
    w->job->spec.active_deadline_s = optional(100);
    w->now_ms = w->status->start_ms + 99999;
    cr_expect(!world_step(w));
    w->now_ms += 1;
    (void)world_settle(w);
    cr_expect(is_true(w, CONDITION_FAILURE_TARGET) && !is_true(w, CONDITION_FAILED), "the intent is shown at once");
    cr_expect_str_eq(reason(w, CONDITION_FAILURE_TARGET), "DeadlineExceeded");
    cr_expect(w->pod_count == 3 && w->pods[0].deleting);
    expect_phase(w, PHASE_RUNNING);
    world_reap(w);
    (void)world_settle(w);
    expect_phase(w, PHASE_FAILED);
    cr_expect_str_eq(reason(w, CONDITION_FAILED), "DeadlineExceeded");
    world_free(w);
}

Test(reconcile, a_pod_that_does_not_end_does_not_hold_up_the_deadline_for_ever)
{
    struct world *w = world_running(fixture_job(1, 0, 2, 0, 0));

    w->job->spec.active_deadline_s = optional(100);
    world_pod(w, ROLE_WORKER, 1)->node_lost = true;
    world_pod(w, ROLE_WORKER, 1)->deleting = true;
    w->now_ms = w->status->start_ms + 100000;
    (void)world_settle(w);
    expect_phase(w, PHASE_RUNNING);
    w->now_ms += 59999;
    (void)world_settle(w);
    expect_phase(w, PHASE_RUNNING);
    w->now_ms += 1;
    (void)world_settle(w);
    expect_phase(w, PHASE_FAILED);
    world_free(w);
}

Test(reconcile, an_exit_while_the_deadline_drains_is_no_failure_of_its_own)
{
    struct world *w = world_running(fixture_job(1, 0, 2, 0, 0));

    w->slow_deletes = true;
    w->job->spec.active_deadline_s = optional(100);
    w->now_ms = w->status->start_ms + 100000;
    (void)world_settle(w);
    world_exit(w, ROLE_WORKER, 0, 143);
    world_exit(w, ROLE_CHIEF, 0, 0);
    (void)world_settle(w);
    cr_expect(w->status->restarts == 0 && w->status->failure_count == 0 && !is_true(w, CONDITION_SUCCEEDED));
    world_reap(w);
    (void)world_settle(w);
    expect_phase(w, PHASE_FAILED);
    world_free(w);
}

/* ---- suspend ----------------------------------------------------------------------------------------------------- */

Test(reconcile, suspending_deletes_pods_and_stops_the_clock)
{
    struct world *w = world_running(fixture_job(1, 0, 2, 0, 0));

    w->job->spec.active_deadline_s = optional(100);
    w->job->spec.suspend = true;
    cr_expect(world_step(w) && w->deleted == 0, "recorded first");
    (void)world_settle(w);
    expect_phase(w, PHASE_SUSPENDED);
    cr_expect(w->pod_count == 0 && w->status->start_ms == 0 && is_true(w, CONDITION_SUSPENDED) && !is_true(w, CONDITION_RUNNING));
    w->now_ms += 1000000;
    cr_expect(!world_step(w), "no deadline while suspended");

    w->job->spec.suspend = false;
    (void)world_settle(w);
    cr_expect(w->status->attempt == 2 && w->status->start_ms == w->now_ms && w->pod_count == 3 && w->pods[0].attempt == 2);
    cr_expect(!is_true(w, CONDITION_SUSPENDED) && w->status->conditions[CONDITION_SUSPENDED].present);
    cr_expect_str_eq(reason(w, CONDITION_SUSPENDED), "TrainingJobResumed");
    world_run(w);
    (void)world_settle(w);
    expect_phase(w, PHASE_RUNNING);
    world_free(w);
}

Test(reconcile, resuming_waits_for_the_old_pods_and_forgives_nothing)
{
    struct world *w = world_running(fixture_job(1, 0, 2, 0, 0));

    world_exit(w, ROLE_WORKER, 0, 139);
    (void)world_settle(w);
    world_run(w);
    (void)world_settle(w);
    w->slow_deletes = true;
    w->job->spec.suspend = true;
    (void)world_settle(w);
    w->job->spec.suspend = false;
    int created = w->created;
    (void)world_settle(w);
    cr_expect(w->created == created && w->status->attempt == 3);
    world_reap(w);
    (void)world_settle(w);
    cr_expect(w->created == created + 3 && w->status->restarts_counted == 1);
    world_free(w);
}

Test(reconcile, a_job_that_is_born_suspended_has_no_attempt)
{
    struct world *w = world_new(fixture_job(1, 0, 2, 0, 0));

    w->job->spec.suspend = true;
    (void)world_settle(w);
    expect_phase(w, PHASE_SUSPENDED);
    cr_expect(w->status->attempt == 0 && w->created == 0 && is_true(w, CONDITION_CREATED));
    w->job->spec.suspend = false;
    (void)world_settle(w);
    cr_expect(w->status->attempt == 1 && w->created == 3 && w->status->restarts == 0);
    world_free(w);
}

Test(reconcile, what_a_process_says_while_it_is_suspended_means_nothing)
{
    struct world *w = world_running(fixture_job(1, 0, 2, 0, 0));

    w->slow_deletes = true;
    w->job->spec.suspend = true;
    (void)world_settle(w);
    world_exit(w, ROLE_CHIEF, 0, 0);
    world_exit(w, ROLE_WORKER, 0, 1);
    w->rounds[0] = (struct round_view){ .attempt = 1, .round = 1, .counters = { .restarts = 1, .restarts_counted = 1 } };
    w->coordinator.round_count = 1;
    (void)world_settle(w);
    expect_phase(w, PHASE_SUSPENDED);
    cr_expect(w->status->restarts == 0 && w->status->failure_count == 0);
    world_free(w);
}

/* ---- scale ------------------------------------------------------------------------------------------------------- */

Test(reconcile, another_size_of_the_world_is_another_attempt_free_of_charge)
{
    struct world *w = world_running(fixture_job(1, 0, 2, 0, 0));

    w->job->spec.roles[ROLE_WORKER].replicas = 4;
    (void)world_step(w);
    cr_expect(w->status->attempt == 2 && w->deleted == 0);
    (void)world_settle(w);
    cr_expect(w->pod_count == 5 && w->created == 8 && w->status->restarts == 0);
    world_run(w);
    (void)world_settle(w);
    expect_phase(w, PHASE_RUNNING);
    w->job->spec.roles[ROLE_WORKER].replicas = 1;
    (void)world_settle(w);
    cr_expect(w->pod_count == 2 && w->status->attempt == 3);
    world_free(w);
}

Test(reconcile, dynamic_workers_come_and_go_without_the_others)
{
    struct training_job *job = fixture_job(1, 0, 2, 1, 0);
    job->spec.enable_dynamic_worker = true;
    struct world *w = world_running(job);

    w->job->spec.roles[ROLE_WORKER].replicas = 4;
    (void)world_settle(w);
    cr_expect(w->status->attempt == 1 && w->created == 6 && w->deleted == 0);
    world_run(w);
    (void)world_settle(w);
    w->job->spec.roles[ROLE_WORKER].replicas = 1;
    (void)world_settle(w);
    cr_expect(w->status->attempt == 1 && w->deleted == 3 && world_pod(w, ROLE_WORKER, 0) != NULL && w->status->restarts == 0);
    world_free(w);
}

/* What the coordinator of an elastic job reports when its ring has `workers` and is to have `wanted`. */
static void says(struct world *w, int32_t workers, int32_t wanted, bool listens)
{
    w->coordinator.workers = workers;
    w->coordinator.workers_wanted = wanted;
    w->coordinator.listens = listens;
}

static struct world *world_elastic(void)
{
    struct training_job *job = fixture_job(1, 0, 2, 0, 0);

    job->spec.elastic = true;
    struct world *w = world_running(job);
    says(w, 2, 2, true);
    (void)world_settle(w);
    return w;
}

static int32_t told(const struct world *w)
{
    return resize_is_wanted(w->job, w->status, &w->coordinator);
}

Test(reconcile, the_ring_of_an_elastic_job_grows_without_the_others)
{
    struct world *w = world_elastic();

    cr_expect_eq(told(w), 0);
    w->job->spec.roles[ROLE_WORKER].replicas = 3;
    (void)world_settle(w);
    cr_expect(w->status->attempt == 1 && w->created == 4 && w->deleted == 0, "attempt %d", w->status->attempt);
    cr_expect_eq(told(w), 3);
    cr_expect_str_eq(w->last_event, "TrainingJobScaled");
    says(w, 2, 3, true);
    cr_expect_eq(told(w), 0, "it knows");
    world_run(w);
    w->coordinator.group_formed = false;
    w->coordinator.round = 2;
    (void)world_settle(w);
    expect_phase(w, PHASE_RESTARTING);
    w->coordinator.group_formed = true;
    says(w, 3, 3, true);
    (void)world_settle(w);
    expect_phase(w, PHASE_RUNNING);
    cr_expect(w->status->attempt == 1 && w->status->restarts == 0 && w->deleted == 0 && is_true(w, CONDITION_PODS_READY));
    world_free(w);
}

Test(reconcile, the_ring_of_an_elastic_job_shrinks_before_its_pods_go)
{
    struct world *w = world_elastic();

    w->job->spec.roles[ROLE_WORKER].replicas = 1;
    (void)world_settle(w);
    cr_expect(w->status->attempt == 1 && w->deleted == 0 && told(w) == 1);
    says(w, 2, 1, true);
    (void)world_settle(w);
    cr_expect(w->deleted == 0, "its program has not come to the end of the round yet");
    says(w, 1, 1, true);
    (void)world_settle(w);
    cr_expect(w->deleted == 1 && world_pod(w, ROLE_WORKER, 1) == NULL && w->status->attempt == 1 && w->status->restarts == 0);
    expect_phase(w, PHASE_RUNNING);
    world_free(w);
}

Test(reconcile, programs_that_do_not_listen_are_started_again)
{
    static const struct { const char *name; int32_t workers, wanted; bool listens, elastic; } rows[] = {
        { "no elasticPolicy", 2, 2, true, false },
        { "a program that does not listen", 2, 2, false, true },
        { "a coordinator that cannot", 2, 0, true, true },
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct world *w = world_elastic();
        w->job->spec.elastic = rows[i].elastic;
        says(w, rows[i].workers, rows[i].wanted, rows[i].listens);
        w->job->spec.roles[ROLE_WORKER].replicas = 3;
        (void)world_settle(w);
        cr_expect(w->status->attempt == 2 && told(w) == 0, "case %s", rows[i].name);
        world_free(w);
    }
}

Test(reconcile, programs_that_have_just_begun_may_be_about_to_listen)
{
    for (int late = 0; late < 2; late++) {
        struct world *w = world_elastic();
        says(w, 2, 2, false);
        w->coordinator.latest.ring.set = true;
        w->coordinator.latest.ring.size = 3;
        w->coordinator.latest.ring.formed_ms = w->now_ms;
        (void)world_settle(w);
        w->job->spec.roles[ROLE_WORKER].replicas = 3;
        w->now_ms += 19000;
        (void)world_settle(w);
        cr_expect(w->status->attempt == 1 && w->created == 3, "it waits");
        w->now_ms += late ? 1000 : 0;
        says(w, 2, 2, !late);
        (void)world_settle(w);
        cr_expect_eq(w->status->attempt, late ? 2 : 1, "late %d: attempt %d", late, w->status->attempt);
        world_free(w);
    }
}

Test(reconcile, a_lost_pod_of_an_elastic_job_is_made_anew_alone)
{
    struct world *w = world_elastic();

    world_remove(w, world_pod(w, ROLE_WORKER, 0));
    (void)world_step(w);
    cr_expect(w->status->attempt == 1 && w->status->disruptions == 1 && w->status->failure_count == 1);
    w->now_ms += 60000;
    (void)world_settle(w);
    cr_expect(w->created == 4 && w->deleted == 0 && world_pod(w, ROLE_WORKER, 0) != NULL && w->status->attempt == 1);
    world_free(w);
}

/* Both the coordinator and the pod tell of one launcher's end, in either order. */
Test(reconcile, a_lost_launcher_is_counted_once)
{
    for (int pod_first = 0; pod_first < 2; pod_first++) {
        struct world *w = world_elastic();
        struct failure cause = { .attempt = 1, .round = 1, .role = ROLE_WORKER, .index = 1, .class = FAILURE_INFRASTRUCTURE, .reason = "LauncherLost",
                                 .time_ms = w->now_ms };
        for (int turn = 0; turn < 2; turn++) {
            if (turn == pod_first) {
                w->rounds[0] = (struct round_view){ .attempt = 1, .round = 1, .cause = cause, .counters = { .restarts = 1, .disruptions = 1 } };
                w->coordinator.round_count = 1;
            } else {
                world_exit(w, ROLE_WORKER, 1, 137);
            }
            w->now_ms += 1000;
            (void)world_settle(w);
        }
        w->now_ms += 60000;
        (void)world_settle(w);
        cr_expect(w->status->restarts == 1 && w->status->failure_count == 1, "pod first %d: %d restarts, %zu failures", pod_first, w->status->restarts,
                  w->status->failure_count);
        cr_expect(w->status->attempt == 1 && w->created == 4 && world_pod(w, ROLE_WORKER, 1) != NULL, "pod first %d", pod_first);
        world_free(w);
    }
}

Test(reconcile, the_pod_of_rank_0_takes_the_attempt_with_it)
{
    struct world *w = world_elastic();

    world_remove(w, world_pod(w, ROLE_CHIEF, 0));
    (void)world_step(w);
    cr_expect_eq(w->status->attempt, 2);
    world_free(w);
}

/* ---- progress ---------------------------------------------------------------------------------------------------- */

Test(reconcile, progress_alone_is_written_now_and_then)
{
    struct world *w = world_running(fixture_job(1, 0, 1, 0, 0));
    int writes = 0;

    for (int second = 0; second < 60; second++) {
        w->now_ms += 1000;
        w->coordinator.latest.progress.set = true;
        w->coordinator.latest.progress.step = second;
        w->coordinator.latest.progress.update_ms = w->now_ms;
        writes += world_step(w);
    }
    cr_expect(writes >= 4 && writes <= 5, "%d writes in a minute", writes);
    world_exit(w, ROLE_CHIEF, 0, 0);
    (void)world_settle(w);
    cr_expect(w->status->progress.step == 59, "with the end everything is written");
    world_free(w);
}

Test(reconcile, a_time_that_lost_its_milliseconds_in_the_store_is_no_news)
{
    struct world *w = world_running(fixture_job(1, 0, 1, 0, 0));

    w->coordinator.latest.progress.set = w->coordinator.latest.checkpoint.set = w->coordinator.latest.ring.set = true;
    w->coordinator.latest.progress.update_ms = w->coordinator.latest.checkpoint.time_ms = w->coordinator.latest.ring.formed_ms = w->now_ms + 345;
    (void)world_settle(w);
    w->status->progress.update_ms -= 345;
    w->status->checkpoint.time_ms -= 345;
    w->status->ring.formed_ms -= 345;
    w->now_ms += 60000;
    cr_expect(!world_step(w));
    world_free(w);
}

Test(reconcile, a_ring_that_passed_its_test_is_said_to_cooperate)
{
    struct world *w = world_running(fixture_job(1, 0, 1, 0, 0));

    w->coordinator.latest.ring.set = true;
    w->coordinator.latest.ring.size = 2;
    w->coordinator.latest.ring.formed_ms = w->now_ms;
    w->coordinator.latest.ring.self_test_ok = true;
    (void)world_settle(w);
    cr_expect(is_true(w, CONDITION_COOPERATING));
    w->coordinator.latest.ring.self_test_ok = false;
    (void)world_settle(w);
    cr_expect(w->status->conditions[CONDITION_COOPERATING].present && !is_true(w, CONDITION_COOPERATING));
    world_free(w);
}
