#include <criterion/criterion.h>

#include "tests/unit/job/world.h"

static bool is_true(const struct world *w, enum condition_type type)
{
    return w->status->conditions[type].present && w->status->conditions[type].is_true;
}

static struct optional_int optional(int64_t value)
{
    return (struct optional_int){ .set = true, .value = value };
}

static const struct failure *last_failure(const struct world *w)
{
    cr_assert(w->status->failure_count > 0);
    return &w->status->failures[w->status->failure_count - 1];
}

static void report_round(struct world *w, int32_t round, enum job_role role, int32_t index, const char *why, int32_t code, struct restart_counters counters)
{
    struct round_view *r = &w->rounds[w->coordinator.round_count++];

    memset(r, 0, sizeof *r);
    r->attempt = w->status->attempt;
    r->round = round;
    r->counters = counters;
    r->cause.role = role;
    r->cause.index = index;
    r->cause.has_exit = code != 0;
    r->cause.exit_code = code;
    r->cause.class = code != 0 ? FAILURE_USER : FAILURE_INFRASTRUCTURE;
    r->cause.time_ms = w->now_ms;
    (void)snprintf(r->cause.reason, sizeof r->cause.reason, "%s", why);
    w->coordinator.round = round + 1;
}

/* ---- groups and single pods -------------------------------------------------------------------------------------- */

Test(failures, a_rank_that_dies_takes_its_group_to_the_next_attempt)
{
    struct world *w = world_running(fixture_job(1, 0, 2, 0, 0));

    world_exit(w, ROLE_WORKER, 1, 139);
    (void)snprintf(world_pod(w, ROLE_WORKER, 1)->message, 64, "Segmentation fault");
    cr_expect(world_step(w) && w->deleted == 0 && w->status->attempt == 2 && w->status->restarts_counted == 1, "recorded first");
    cr_expect(is_true(w, CONDITION_RESTARTING) && !is_true(w, CONDITION_RUNNING) && w->status->phase == PHASE_RESTARTING);
    cr_expect_str_eq(last_failure(w)->message, "Segmentation fault");
    cr_expect_str_eq(last_failure(w)->pod, "mnist-worker-1");
    cr_expect(last_failure(w)->attempt == 1 && last_failure(w)->exit_code == 139);
    (void)world_settle(w);
    cr_expect(w->deleted == 3 && w->created == 6 && w->pods[0].attempt == 2);
    world_run(w);
    (void)world_settle(w);
    cr_expect(w->status->phase == PHASE_RUNNING && !is_true(w, CONDITION_RESTARTING) && is_true(w, CONDITION_RUNNING));
    cr_expect(w->status->restarts == 1 && w->warnings == 1);
    world_free(w);
}

Test(failures, no_new_pod_comes_before_the_last_old_one_is_gone)
{
    struct world *w = world_running(fixture_job(1, 0, 2, 0, 0));

    w->slow_deletes = true;
    world_exit(w, ROLE_WORKER, 1, 139);
    (void)world_settle(w);
    cr_expect(w->created == 3 && w->pod_count == 3);
    world_remove(w, world_pod(w, ROLE_WORKER, 1));
    (void)world_settle(w);
    cr_expect(w->created == 3, "one of them is gone, two are not");
    world_reap(w);
    (void)world_settle(w);
    cr_expect(w->created == 6);
    world_free(w);
}

Test(failures, a_worker_beside_a_ps_is_replaced_alone_and_counted_once)
{
    struct world *w = world_running(fixture_job(1, 0, 3, 1, 0));

    world_exit(w, ROLE_WORKER, 1, 139);
    (void)world_settle(w);
    cr_expect(w->status->attempt == 1 && w->deleted == 1 && w->created == 6 && w->status->restarts == 1);
    cr_expect(w->status->phase == PHASE_RESTARTING);
    world_run(w);
    (void)world_settle(w);
    cr_expect(w->status->phase == PHASE_RUNNING && w->status->restarts == 1);
    world_free(w);
}

Test(failures, a_second_failure_waits_until_the_first_is_carried_out)
{
    struct world *w = world_running(fixture_job(1, 0, 20, 1, 0));

    for (int i = 0; i < 20; i++)
        world_exit(w, ROLE_WORKER, i, 139);
    w->job->spec.backoff_limit = -1;
    (void)world_settle(w);
    cr_expect(w->status->restarts == 20, "%d restarts of 20 failures, though only 10 are kept", w->status->restarts);
    cr_expect(w->deleted == 20);
    w->now_ms += 3600000;
    (void)world_settle(w);
    cr_expect(w->created == 42 && w->status->restarts == 20);
    world_free(w);
}

Test(failures, restart_strategy_recreate_failed_keeps_the_others)
{
    struct training_job *job = fixture_job(1, 0, 2, 0, 0);
    job->spec.failure.strategy = STRATEGY_RECREATE_FAILED;
    struct world *w = world_running(job);

    world_exit(w, ROLE_WORKER, 1, 139);
    (void)world_settle(w);
    cr_expect(w->status->attempt == 1 && w->deleted == 1 && w->created == 4 && w->status->restarts == 1);
    world_run(w);
    (void)world_settle(w);
    cr_expect(w->status->phase == PHASE_RUNNING);
    world_pod(w, ROLE_WORKER, 0)->node_lost = true;
    w->job->spec.failure.force_delete_after_s = optional(60);
    (void)world_settle(w);
    cr_expect(w->status->attempt == 2, "what is forced away takes its attempt along");
    world_free(w);
}

Test(failures, an_evaluator_never_takes_the_ring_along)
{
    struct world *w = world_running(fixture_job(1, 0, 2, 0, 1));

    world_exit(w, ROLE_EVALUATOR, 0, 139);
    (void)world_settle(w);
    cr_expect(w->status->attempt == 1 && w->deleted == 1 && w->status->restarts == 1);
    world_free(w);
}

Test(failures, the_earliest_failure_is_the_cause_and_memory_outranks_time)
{
    struct world *w = world_running(fixture_job(1, 0, 3, 0, 0));

    w->job->spec.roles[ROLE_WORKER].restart_policy = RESTART_ON_FAILURE;
    world_exit(w, ROLE_WORKER, 2, 134);
    w->now_ms += 50;
    world_exit(w, ROLE_WORKER, 0, 1);
    auto_free char *first = world_plan(w);
    cr_expect(strstr(first, "worker-2 exited with code 134") != NULL, "%s", first);
    w->now_ms += 50;
    world_exit(w, ROLE_WORKER, 1, 137);
    (void)snprintf(world_pod(w, ROLE_WORKER, 1)->reason, 32, "OOMKilled");
    auto_free char *memory = world_plan(w);
    cr_expect(strstr(memory, "worker-1 was killed because it ran out of memory") != NULL, "%s", memory);
    world_free(w);
}

/* ---- ends by failure --------------------------------------------------------------------------------------------- */

static const struct { const char *name; enum restart_policy policy; int32_t code; const char *reason; } ENDS[] = {
    { "a permanent code", RESTART_EXIT_CODE, 1, "PermanentExitCode" },
    { "a missing command", RESTART_EXIT_CODE, 127, "PermanentExitCode" },
    { "Never", RESTART_NEVER, 139, "WorkerFailed" },
};

Test(failures, a_failure_that_is_for_good_ends_the_job)
{
    for (size_t i = 0; i < COUNT(ENDS); i++) {
        struct world *w = world_running(fixture_job(1, 0, 2, 0, 0));
        w->job->spec.roles[ROLE_WORKER].restart_policy = ENDS[i].policy;
        world_exit(w, ROLE_WORKER, 0, ENDS[i].code);
        cr_expect(world_step(w) && w->deleted == 0, "case %s: recorded first", ENDS[i].name);
        cr_expect(w->status->phase == PHASE_FAILED && w->status->restarts == 0, "case %s", ENDS[i].name);
        cr_expect_str_eq(w->status->conditions[CONDITION_FAILED].reason, ENDS[i].reason, "case %s", ENDS[i].name);
        cr_expect_str_eq(w->last_event, "TrainingJobFailed", "case %s", ENDS[i].name);
        cr_expect(w->warnings == 1, "case %s", ENDS[i].name);
        (void)world_settle(w);
        cr_expect(w->pod_count == 1 && w->created == 3, "case %s: what runs is deleted, the failed pod stays", ENDS[i].name);
        world_free(w);
    }
}

Test(failures, the_backoff_limit_holds_across_attempts_and_suspension)
{
    struct world *w = world_running(fixture_job(1, 0, 2, 0, 0));
    int crashes = 0;

    w->job->spec.backoff_limit = 3;
    while (!phase_is_final(w->status->phase) && crashes < 20) {
        world_exit(w, ROLE_WORKER, 1, 137);
        crashes++;
        (void)world_settle(w);
        if (crashes == 2) {
            w->job->spec.suspend = true;
            (void)world_settle(w);
            w->job->spec.suspend = false;
        }
        w->now_ms += 600000;
        (void)world_settle(w);
        world_run(w);
        (void)world_settle(w);
    }
    cr_expect(crashes == 4 && w->status->restarts_counted == 3);
    cr_expect_str_eq(w->status->conditions[CONDITION_FAILED].reason, "BackoffLimitExceeded");
    world_free(w);
}

Test(failures, back_off_delays_the_pods_and_is_kept_in_the_status)
{
    struct world *w = world_running(fixture_job(1, 0, 2, 0, 0));

    for (int i = 0; i < 3; i++) {
        world_exit(w, ROLE_WORKER, 1, 137);
        (void)world_settle(w);
        if (i > 0) {
            int64_t delay = w->status->next_restart_ms - w->now_ms;
            int created = w->created;
            cr_expect(delay >= 900 * i && delay <= 1100 * i, "restart %d after %lld ms", i, (long long)delay);
            cr_expect(w->pod_count == 0);
            w->now_ms = w->status->next_restart_ms - 1;
            (void)world_settle(w);
            cr_expect(w->created == created);
            w->now_ms++;
            (void)world_settle(w);
            cr_expect(w->created == created + 3 && w->status->next_restart_ms == 0);
        }
        world_run(w);
        (void)world_settle(w);
    }
    world_free(w);
}

Test(failures, a_committed_step_ends_the_streak)
{
    struct world *w = world_running(fixture_job(1, 0, 2, 0, 0));

    for (int i = 0; i < 4; i++) {
        w->now_ms += 60000;
        w->coordinator.latest.checkpoint.set = true;
        w->coordinator.latest.checkpoint.step = i;
        w->coordinator.latest.checkpoint.time_ms = w->now_ms;
        w->now_ms += 1000;
        world_exit(w, ROLE_WORKER, 1, 139);
        (void)world_settle(w);
        cr_expect(w->status->next_restart_ms == 0 && w->status->streak == 1 && w->pod_count == 3, "restart %d is immediate", i);
        world_run(w);
        (void)world_settle(w);
    }
    cr_expect(w->status->restarts_counted == 4);
    world_free(w);
}

Test(failures, ignored_failures_of_many_replicas_do_not_keep_the_reconciler_busy)
{
    struct training_job *job = fixture_job(1, 0, 20, 1, 0);
    job->spec.enable_dynamic_worker = true;
    struct world *w = world_running(job);

    for (int i = 0; i < 20; i++)
        world_exit(w, ROLE_WORKER, i, 1);
    (void)world_settle(w);
    cr_expect(!phase_is_final(w->status->phase) && w->status->restarts == 0 && w->status->failure_count == 10);
    world_exit(w, ROLE_CHIEF, 0, 0);
    (void)world_settle(w);
    cr_expect(w->status->phase == PHASE_SUCCEEDED);
    world_free(w);
}

Test(failures, ignoring_the_replica_that_decides_ends_the_job)
{
    struct world *w = world_running(fixture_job(1, 0, 2, 0, 0));

    (void)fixture_rule(w->job, RULE_IGNORE);
    world_exit(w, ROLE_WORKER, 0, 3);
    (void)world_settle(w);
    cr_expect(w->status->phase == PHASE_RUNNING && w->warnings == 1);
    world_exit(w, ROLE_CHIEF, 0, 3);
    (void)world_settle(w);
    cr_expect(w->status->phase == PHASE_FAILED);
    cr_expect_str_eq(w->status->conditions[CONDITION_FAILED].reason, "DecidingReplicaFailed");
    world_free(w);
}

/* ---- infrastructure ---------------------------------------------------------------------------------------------- */

Test(failures, a_pod_that_vanishes_while_the_job_runs_is_a_disruption)
{
    struct world *w = world_running(fixture_job(1, 0, 2, 0, 0));

    world_remove(w, world_pod(w, ROLE_WORKER, 0));
    (void)world_settle(w);
    cr_expect(w->status->attempt == 2 && w->status->restarts == 1 && w->status->restarts_counted == 0 && w->status->disruptions == 1);
    cr_expect_str_eq(last_failure(w)->reason, "PodDeleted");
    cr_expect(w->pod_count == 3);
    world_free(w);
}

Test(failures, a_pod_that_vanishes_before_the_job_runs_is_simply_made_again)
{
    struct world *w = world_new(fixture_job(1, 0, 2, 0, 0));

    (void)world_settle(w);
    world_remove(w, world_pod(w, ROLE_WORKER, 0));
    (void)world_settle(w);
    cr_expect(w->status->attempt == 1 && w->status->restarts == 0 && w->pod_count == 3);
    world_free(w);
}

Test(failures, a_pod_that_is_being_deleted_is_no_failure_of_the_user)
{
    struct world *w = world_running(fixture_job(1, 0, 2, 0, 0));

    world_pod(w, ROLE_WORKER, 0)->deleting = true;
    world_exit(w, ROLE_WORKER, 0, 1);
    (void)world_settle(w);
    cr_expect(w->status->phase == PHASE_RESTARTING && w->status->disruptions == 1 && w->status->restarts_counted == 0);
    cr_expect(!last_failure(w)->has_exit);
    world_free(w);
}

Test(failures, the_systems_word_for_a_deletion_is_kept)
{
    struct world *w = world_running(fixture_job(1, 0, 2, 0, 0));

    world_pod(w, ROLE_WORKER, 0)->deleting = true;
    (void)snprintf(world_pod(w, ROLE_WORKER, 0)->reason, 32, "Preempted");
    (void)world_settle(w);
    cr_expect_str_eq(last_failure(w)->reason, "Preempted");
    world_free(w);
}

Test(failures, a_lost_node_is_left_waited_for_or_forced_as_the_user_says)
{
    struct training_job *job = fixture_job(1, 0, 2, 0, 0);
    struct world *w = world_running(job);
    int created = w->created;

    world_pod(w, ROLE_WORKER, 1)->node_lost = true;
    (void)world_settle(w);
    cr_expect(w->status->attempt == 2 && w->pod_count == 1 && w->pods[0].deleting && w->created == created);
    cr_expect_str_eq(last_failure(w)->reason, "NodeLost");
    cr_expect(w->status->avoid_count == 1 && strcmp(w->status->avoid_nodes[0].name, "node-1") == 0);
    cr_expect(is_true(w, CONDITION_DEGRADED));
    cr_expect_str_eq(w->status->conditions[CONDITION_DEGRADED].message,
                     "worker-1 is stuck on node node-1, which does not answer: delete the node or set spec.failurePolicy.nodeLost.forceDeleteAfterSeconds");
    w->now_ms += 86400000;
    (void)world_settle(w);
    cr_expect(w->created == created, "nobody asked for force");
    job->spec.failure.force_delete_after_s = optional(120);
    (void)world_settle(w);
    cr_expect(w->created == created + 3 && w->status->restarts == 1);
    world_free(w);
}

Test(failures, a_node_that_is_lost_with_its_pods_on_their_way_out_is_lost_before_the_first_start_too)
{
    struct training_job *job = fixture_job(1, 0, 2, 0, 0);
    job->spec.failure.force_delete_after_s = optional(1);
    struct world *w = world_new(job);

    (void)world_settle(w);
    cr_expect(w->pod_count == 3 && w->status->attempt == 1 && !is_true(w, CONDITION_PODS_READY));
    world_pod(w, ROLE_WORKER, 1)->node_lost = true; /* nobody led when the taint manager gave up on it */
    world_pod(w, ROLE_WORKER, 1)->deleting = true;
    (void)world_settle(w);
    cr_expect(w->status->attempt == 2, "what may still run there has to be fenced off");
    cr_expect_str_eq(last_failure(w)->reason, "NodeLost");
    w->now_ms += 1000;
    (void)world_settle(w);
    cr_expect(w->pod_count == 3 && world_pod(w, ROLE_WORKER, 1) != NULL && !world_pod(w, ROLE_WORKER, 1)->deleting);
    world_free(w);
}

Test(failures, force_waits_for_its_time)
{
    struct training_job *job = fixture_job(1, 0, 2, 0, 0);
    job->spec.failure.force_delete_after_s = optional(120);
    struct world *w = world_running(job);

    world_pod(w, ROLE_WORKER, 1)->node_lost = true;
    (void)world_settle(w);
    int64_t lost_ms = w->now_ms;
    auto_free char *text = world_plan(w), *requeue = xasprintf("requeue %lld\n", (long long)(lost_ms + 120000));
    cr_expect(strstr(text, requeue) != NULL, "%s", text);
    w->now_ms = lost_ms + 119999;
    (void)world_settle(w);
    cr_expect(w->pod_count == 1);
    w->now_ms++;
    (void)world_settle(w);
    cr_expect(w->pod_count == 3);
    world_free(w);
}

Test(failures, nodes_are_avoided_within_bounds_and_for_a_time)
{
    struct training_job *job = fixture_job(1, 0, 2, 0, 0);
    struct world *w = world_running(job);
    struct plan *p = xcalloc(1, sizeof *p);
    struct observed seen;

    world_exit(w, ROLE_WORKER, 1, 201);
    world_observe(w, &seen);
    seen.node_count = 9;
    reconcile(w->job, w->status, &seen, w->now_ms, p);
    cr_expect(p->status.avoid_count == 0, "a tenth of 9 nodes is none");
    plan_release(p);
    seen.node_count = 10;
    reconcile(w->job, w->status, &seen, w->now_ms, p);
    cr_expect(p->status.avoid_count == 1 && p->status.avoid_nodes[0].until_ms == w->now_ms + 86400000);
    plan_release(p);
    free(p);
    world_free(w);
}

/* ---- rounds in place --------------------------------------------------------------------------------------------- */

Test(failures, a_round_in_place_is_folded_in_once)
{
    struct world *w = world_running(fixture_job(1, 0, 2, 0, 0));

    report_round(w, 1, ROLE_WORKER, 1, "Error", 137, (struct restart_counters){ .restarts = 1, .restarts_counted = 1, .streak = 1 });
    w->coordinator.group_formed = false;
    (void)world_settle(w);
    cr_expect(w->status->phase == PHASE_RESTARTING && is_true(w, CONDITION_RESTARTING) && !is_true(w, CONDITION_RUNNING));
    cr_expect(w->status->attempt == 1 && w->status->round == 1 && w->status->restarts == 1 && w->status->failure_count == 1);
    w->coordinator.group_formed = true;
    (void)world_settle(w);
    cr_expect(w->status->phase == PHASE_RUNNING && w->status->restarts == 1 && w->status->failure_count == 1 && w->deleted == 0 && w->created == 3);
    cr_expect_str_eq(last_failure(w)->node, "node-1");
    world_free(w);
}

Test(failures, rounds_of_an_attempt_that_is_over_change_nothing)
{
    struct world *w = world_running(fixture_job(1, 0, 2, 0, 0));

    world_exit(w, ROLE_WORKER, 1, 139);
    (void)world_settle(w);
    struct round_view *late = &w->rounds[w->coordinator.round_count++];
    *late = (struct round_view){ .attempt = 1, .round = 1, .counters = { .restarts = 9 } };
    (void)world_settle(w);
    cr_expect(w->status->restarts == 1 && w->status->round == 0);
    world_free(w);
}

Test(failures, a_lost_member_is_counted_once_whoever_sees_it_first)
{
    for (int coordinator_first = 0; coordinator_first < 2; coordinator_first++) {
        struct world *w = world_running(fixture_job(1, 0, 2, 0, 0));
        struct restart_counters counters = { .restarts = 1, .disruptions = 1, .streak = 1 };
        if (coordinator_first) {
            report_round(w, 1, ROLE_WORKER, 1, "SidecarLost", 0, counters);
            w->coordinator.group_formed = false;
            (void)world_settle(w);
            world_remove(w, world_pod(w, ROLE_WORKER, 1));
        } else {
            world_remove(w, world_pod(w, ROLE_WORKER, 1));
            (void)world_step(w);
            report_round(w, 1, ROLE_WORKER, 1, "SidecarLost", 0, counters);
            w->rounds[0].attempt = 1;
        }
        (void)world_settle(w);
        cr_expect(w->status->restarts == 1 && w->status->disruptions == 1 && w->status->failure_count == 1, "coordinator first %d: %d restarts",
                  coordinator_first, w->status->restarts);
        cr_expect(w->status->attempt == 2 && w->pod_count == 3);
        world_free(w);
    }
}

Test(failures, two_replicas_of_one_lost_node_are_one_loss)
{
    struct world *w = world_running(fixture_job(1, 0, 3, 0, 0));

    report_round(w, 1, ROLE_WORKER, 2, "SidecarLost", 0, (struct restart_counters){ .restarts = 1, .disruptions = 1, .streak = 1 });
    w->coordinator.group_formed = false;
    (void)world_settle(w);
    world_pod(w, ROLE_WORKER, 0)->node_lost = world_pod(w, ROLE_WORKER, 2)->node_lost = true;
    (void)world_step(w);
    cr_expect(w->status->attempt == 2 && w->status->restarts == 1 && w->status->disruptions == 1 && w->status->failure_count == 1, "%d restarts",
              w->status->restarts);
    world_free(w);
}

Test(failures, a_loss_that_was_counted_does_not_overdraw_the_budget_by_being_seen_again)
{
    struct training_job *job = fixture_job(1, 0, 2, 0, 0);
    job->spec.failure.max_disruptions = optional(1);
    struct world *w = world_running(job);

    report_round(w, 1, ROLE_WORKER, 1, "SidecarLost", 0, (struct restart_counters){ .restarts = 1, .disruptions = 1, .streak = 1 });
    (void)world_settle(w);
    world_remove(w, world_pod(w, ROLE_WORKER, 1));
    (void)world_settle(w);
    cr_expect(!phase_is_final(w->status->phase) && w->status->disruptions == 1);
    world_free(w);
}

/* ---- time limits ------------------------------------------------------------------------------------------------- */

Test(failures, a_gang_that_finds_no_nodes_gives_all_of_them_back)
{
    struct training_job *job = fixture_job(1, 0, 2, 0, 0);
    job->spec.scheduling.schedule_timeout_s = optional(600);
    struct world *w = world_new(job);

    (void)world_settle(w);
    w->pods[0].scheduled = true;
    (void)snprintf(w->pods[1].message, 64, "0/5 nodes are available");
    w->now_ms += 599999;
    (void)world_settle(w);
    cr_expect(w->deleted == 0);
    w->now_ms += 1;
    (void)world_settle(w);
    cr_expect(w->deleted == 3 && w->status->attempt == 2 && w->status->disruptions == 1 && w->status->restarts_counted == 0);
    cr_expect_str_eq(last_failure(w)->reason, "ScheduleTimeout");
    cr_expect(w->status->next_restart_ms > w->now_ms && w->pod_count == 0, "they wait before they ask again, each job for another time");
    w->now_ms = w->status->next_restart_ms;
    (void)world_settle(w);
    cr_expect(w->pod_count == 3 && w->status->attempt == 2);
    int64_t asked_ms = w->now_ms;
    w->now_ms += 600000;
    (void)world_settle(w);
    cr_expect(w->status->next_restart_ms - w->now_ms > 1500 && w->pod_count == 0 && w->now_ms > asked_ms, "and longer the second time");
    w->now_ms = w->status->next_restart_ms;
    (void)world_settle(w);
    cr_expect(w->pod_count == 3 && w->status->attempt == 3);
    world_free(w);
}

static const struct { const char *name, *waiting, *reason; } STARTS[] = {
    { "an image that is not there", "ImagePullBackOff", "ImagePullBackOff" },
    { "no reason", "", "StartTimeout" },
    { "an ordinary wait", "ContainerCreating", "StartTimeout" },
};

Test(failures, a_pod_that_does_not_start_in_time_ends_the_job_with_its_reason)
{
    for (size_t i = 0; i < COUNT(STARTS); i++) {
        struct training_job *job = fixture_job(1, 0, 2, 0, 0);
        job->spec.scheduling.start_timeout_s = optional(900);
        struct world *w = world_new(job);
        (void)world_settle(w);
        for (size_t k = 0; k < w->pod_count; k++)
            w->pods[k].scheduled = true;
        (void)snprintf(w->pods[2].reason, 64, "%s", STARTS[i].waiting);
        w->pods[0].phase = w->pods[1].phase = POD_RUNNING;
        w->now_ms += 899999;
        (void)world_settle(w);
        cr_expect(w->status->phase == PHASE_STARTING, "case %s", STARTS[i].name);
        w->now_ms += 1;
        (void)world_settle(w);
        cr_expect(w->status->phase == PHASE_FAILED, "case %s: %s", STARTS[i].name, phase_name(w->status->phase));
        cr_expect_str_eq(w->status->conditions[CONDITION_FAILED].reason, "StartTimeout", "case %s", STARTS[i].name);
        cr_expect_str_eq(last_failure(w)->reason, STARTS[i].reason, "case %s", STARTS[i].name);
        world_free(w);
    }
}

Test(failures, a_rule_for_a_waiting_reason_does_not_wait_for_the_time_limit)
{
    static const char *const reasons[] = { "ImagePullBackOff" };
    struct training_job *job = fixture_job(1, 0, 2, 0, 0);
    struct failure_rule *rule = fixture_rule(job, RULE_FAIL_JOB);
    rule->reason_count = 1;
    rule->reasons = fixture_texts(1, reasons);
    struct world *w = world_new(job);

    (void)world_settle(w);
    (void)snprintf(w->pods[2].reason, 64, "ImagePullBackOff");
    (void)world_settle(w);
    cr_expect(w->status->phase == PHASE_FAILED);
    cr_expect_str_eq(w->status->conditions[CONDITION_FAILED].reason, "FailurePolicy");
    world_free(w);
}

/* ---- a hang ---------------------------------------------------------------------------------------------------------- */

/* The coordinator has told a process that hung to leave: its exit code says nothing. */
Test(failures, a_pod_that_the_coordinator_ended_because_it_hung_is_a_hang)
{
    static const struct { const char *name; int32_t index, attempt; const char *reason; bool ends; } ROWS[] = {
        { "of this pod and attempt", 1, 1, "Hang", false },
        { "of another pod", 0, 1, "Error", true },
        { "of an attempt that is over", 1, 0, "Error", true },
    };

    for (size_t i = 0; i < COUNT(ROWS); i++) {
        struct world *w = world_running(fixture_job(1, 0, 2, 0, 0));
        struct failure hung = { .role = ROLE_WORKER, .index = ROWS[i].index, .class = FAILURE_HANG, .reason = "Hang",
                                .message = "worker-1 made no progress", .evidence = "/volume/evidence/hang-1-1-worker-1" };
        w->job->spec.roles[ROLE_WORKER].restart_policy = RESTART_EXIT_CODE;
        w->coordinator.known = true;
        w->coordinator.attempt = ROWS[i].attempt;
        w->coordinator.handed = &hung;
        world_exit(w, ROLE_WORKER, 1, 1);
        (void)world_step(w);
        cr_expect_str_eq(last_failure(w)->reason, ROWS[i].reason, "case %s: %s", ROWS[i].name, last_failure(w)->reason);
        cr_expect((w->status->phase == PHASE_FAILED) == ROWS[i].ends, "case %s: code 1 is permanent, a hang is not", ROWS[i].name);
        if (!ROWS[i].ends) {
            cr_expect_str_eq(last_failure(w)->message, "worker-1 made no progress");
            cr_expect_str_eq(last_failure(w)->evidence, "/volume/evidence/hang-1-1-worker-1");
            cr_expect(last_failure(w)->class == FAILURE_HANG && w->status->attempt == 2 && w->status->restarts_counted == 1);
        }
        world_free(w);
    }
}
