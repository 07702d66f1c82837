#include <criterion/criterion.h>

#include "tests/unit/job/world.h"

static bool plans(struct world *w, const char *action)
{
    auto_free char *text = world_plan(w);

    return strstr(text, action) != NULL;
}

static const struct condition *condition(const struct world *w, enum condition_type type)
{
    return &w->status->conditions[type];
}

/* ---- what is made before pods ----------------------------------------------------------------------------------- */

Test(prepare, what_a_cluster_has_and_a_machine_has_not_is_made_once)
{
    struct world *w = world_new(fixture_job(0, 0, 2, 0, 0));

    w->lacks_check = w->lacks_network_policy = w->lacks_claims = w->lacks_trim = true;
    (void)world_step(w);
    cr_expect(plans(w, "check-pods") && plans(w, "create-network-policy") && plans(w, "create-claims") && plans(w, "trim-claims"));
    (void)world_settle(w);
    cr_expect(w->created == 2 && !w->lacks_check && !w->lacks_network_policy && !w->lacks_claims && !w->lacks_trim);
    world_free(w);
}

Test(prepare, a_pod_that_is_refused_fails_the_job_with_the_servers_words)
{
    struct world *w = world_new(fixture_job(0, 0, 2, 0, 0));

    w->lacks_check = true;
    w->refuses = "spec.containers[0].image: Required value";
    (void)world_settle(w);
    cr_expect(w->status->phase == PHASE_FAILED && w->created == 0);
    cr_expect(condition(w, CONDITION_INVALID)->is_true && strstr(condition(w, CONDITION_INVALID)->message, w->refuses) != NULL);
    cr_expect_str_eq(condition(w, CONDITION_FAILED)->reason, "InvalidPod");
    world_free(w);
}

Test(prepare, a_pod_is_shown_before_a_start_and_a_resume_but_not_before_a_restart)
{
    struct world *w = world_running(fixture_job(0, 0, 2, 0, 0));

    w->lacks_check = true;
    world_exit(w, ROLE_WORKER, 0, 139);
    (void)world_step(w);
    while (w->pod_count > 0)
        (void)world_step(w);
    cr_expect(!plans(w, "check-pods"));
    (void)world_settle(w);
    w->job->spec.suspend = true;
    (void)world_settle(w);
    w->job->spec.suspend = false;
    (void)world_step(w);
    cr_expect(plans(w, "check-pods"));
    world_free(w);
}

/* ---- gang schedulers -------------------------------------------------------------------------------------------- */

static struct world *world_with(enum gang_kind asked, enum gang_kind served)
{
    struct training_job *job = fixture_job(0, 0, 3, 0, 0);

    job->spec.scheduling.gang = asked;
    struct world *w = world_new(job);
    w->gang.looked = true;
    w->gang.served[served] = true;
    return w;
}

static void answer(struct world *w, const char *phase, const char *message)
{
    (void)snprintf(w->gang.phase, sizeof w->gang.phase, "%s", phase);
    (void)snprintf(w->gang.message, sizeof w->gang.message, "%s", message);
}

Test(prepare, volcano_takes_the_group_in_before_there_are_pods)
{
    struct world *w = world_with(GANG_AUTO, GANG_VOLCANO);

    (void)world_settle(w);
    cr_expect(w->status->gang.set && w->status->gang.kind == GANG_VOLCANO && w->gang.has_group && w->created == 0);
    cr_expect_str_eq(w->status->gang.group, "mnist");
    answer(w, "Pending", "queue team-a is full");
    (void)world_settle(w);
    cr_expect(w->created == 0 && w->status->phase == PHASE_PENDING);
    cr_expect_str_eq(w->status->gang.phase, "Pending");
    cr_expect(!condition(w, CONDITION_GANG_SCHEDULED)->is_true && strstr(condition(w, CONDITION_GANG_SCHEDULED)->message, "queue team-a is full") != NULL);
    cr_expect_str_eq(condition(w, CONDITION_GANG_SCHEDULED)->reason, "GroupPending");
    answer(w, "Inqueue", "");
    (void)world_settle(w);
    cr_expect(w->created == 3);
    world_run(w);
    (void)world_settle(w);
    cr_expect(w->status->phase == PHASE_RUNNING && condition(w, CONDITION_GANG_SCHEDULED)->is_true);
    world_free(w);
}

Test(prepare, a_group_follows_the_size_of_the_job_and_goes_with_its_pods)
{
    struct world *w = world_with(GANG_VOLCANO, GANG_VOLCANO);

    (void)world_settle(w);
    answer(w, "Running", "");
    (void)world_settle(w);
    world_run(w);
    (void)world_settle(w);
    w->job->spec.roles[ROLE_WORKER].replicas = 5;
    (void)world_settle(w);
    cr_expect(w->gang.min_member == 5 && w->pod_count == 5 && w->status->attempt == 2);
    w->job->spec.suspend = true;
    (void)world_settle(w);
    cr_expect(!w->gang.has_group && w->pod_count == 0);
    w->job->spec.suspend = false;
    (void)world_settle(w);
    cr_expect(w->gang.has_group);
    answer(w, "Running", "");
    (void)world_settle(w);
    world_run(w);
    (void)world_settle(w);
    for (int32_t i = 0; i < 5; i++)
        world_exit(w, ROLE_WORKER, i, 0);
    (void)world_settle(w);
    cr_expect(w->status->phase == PHASE_SUCCEEDED && !w->gang.has_group);
    world_free(w);
}

Test(prepare, a_scheduler_that_does_not_answer_is_passed_over)
{
    struct world *w = world_with(GANG_AUTO, GANG_COSCHEDULING);

    (void)world_settle(w);
    w->now_ms += GANG_SILENCE_MS - 1;
    (void)world_settle(w);
    cr_expect(w->created == 0 && w->status->gang.kind == GANG_COSCHEDULING);
    w->now_ms += 1;
    (void)world_settle(w);
    cr_expect(w->created == 3 && w->status->gang.kind == GANG_NONE && w->warnings == 1);
    world_free(w);
}

Test(prepare, one_that_was_asked_for_and_is_not_there_is_waited_for)
{
    struct world *w = world_with(GANG_VOLCANO, GANG_COSCHEDULING);

    (void)world_settle(w);
    cr_expect(w->created == 0 && !w->gang.has_group);
    cr_expect_str_eq(condition(w, CONDITION_DEGRADED)->reason, "GangSchedulerMissing");
    auto_free char *text = world_plan(w);
    cr_expect(strstr(text, "requeue never") == NULL, "it is looked for again");
    w->gang.served[GANG_VOLCANO] = true;
    (void)world_settle(w);
    answer(w, "Inqueue", "");
    (void)world_settle(w);
    cr_expect(w->created == 3 && !condition(w, CONDITION_DEGRADED)->is_true);
    world_free(w);
}

Test(prepare, one_that_was_found_and_is_removed_is_left)
{
    struct world *w = world_with(GANG_AUTO, GANG_VOLCANO);

    (void)world_settle(w);
    cr_assert(w->status->gang.kind == GANG_VOLCANO && w->created == 0);
    w->gang.served[GANG_VOLCANO] = w->gang.has_group = false;
    (void)world_settle(w);
    cr_expect(w->status->gang.kind == GANG_NONE && w->created == 3 && w->warnings == 1);
    world_free(w);
}

Test(prepare, native_groups_are_trusted_after_a_pod_kept_its_own)
{
    for (int works = 0; works < 2; works++) {
        struct world *w = world_with(GANG_AUTO, GANG_NATIVE);
        w->lacks_check = true;
        w->native_works = works;
        (void)world_step(w);
        cr_expect(!w->status->gang.set && plans(w, "check-pods") && !plans(w, "create-pod"));
        (void)world_settle(w);
        cr_expect(w->created == 3 && w->status->gang.kind == (works ? GANG_NATIVE : GANG_NONE) && w->gang.has_group == works, "works %d", works);
        world_free(w);
    }
}

Test(prepare, the_choice_stays_when_another_scheduler_comes)
{
    struct world *w = world_with(GANG_AUTO, GANG_NONE);

    (void)world_settle(w);
    cr_expect(w->status->gang.kind == GANG_NONE && w->created == 3);
    w->gang.served[GANG_VOLCANO] = true;
    world_run(w);
    (void)world_settle(w);
    world_exit(w, ROLE_WORKER, 0, 139);
    (void)world_settle(w);
    cr_expect(w->status->attempt == 2 && w->status->gang.kind == GANG_NONE && w->created == 6);
    world_free(w);
}

/* ---- gates ------------------------------------------------------------------------------------------------------ */

Test(prepare, gates_are_lifted_when_all_pods_are_there)
{
    struct world *w = world_with(GANG_SCHEDULING_GATES, GANG_NONE);

    (void)world_step(w);
    (void)world_step(w);
    cr_assert(w->pod_count == 3 && w->pods[0].gated);
    world_remove(w, &w->pods[2]); /* the quota had room for two */
    cr_expect(!plans(w, "ungate-pod"));
    (void)world_settle(w);
    for (size_t i = 0; i < 3; i++)
        cr_expect(!w->pods[i].gated, "pod %zu", i);
    world_free(w);
}

/* ---- half a gang ------------------------------------------------------------------------------------------------ */

Test(prepare, half_a_gang_is_given_back_when_the_rest_cannot_be_created)
{
    struct world *w = world_new(fixture_job(0, 0, 3, 0, 0));

    w->job->spec.scheduling.schedule_timeout_s = (struct optional_int){ true, 60 };
    (void)world_step(w);
    (void)world_step(w);
    world_remove(w, &w->pods[2]);
    (void)snprintf(w->create_error, sizeof w->create_error, "exceeded quota: gpus");
    w->now_ms += 59999;
    cr_expect(plans(w, "create-pod worker-2") && !plans(w, "ScheduleTimeout"));
    w->now_ms += 1;
    (void)world_step(w);
    cr_expect(w->status->attempt == 2 && w->status->phase == PHASE_RESTARTING);
    cr_expect_str_eq(w->status->failures[0].reason, "ScheduleTimeout");
    cr_expect(strstr(w->status->failures[0].message, "exceeded quota") != NULL);
    (void)world_step(w);
    cr_expect(w->pod_count == 0 && w->status->next_restart_ms > w->now_ms);
    world_free(w);
}

/* ---- many deletions as one -------------------------------------------------------------------------------------- */

static const struct { const char *name; size_t pods, asked; int32_t attempt, current; enum job_phase phase; size_t least, most; bool joined; } JOINS[] = {
    { "all of an old attempt", 4, 4, 1, 2, PHASE_RESTARTING, 3, 100, true },
    { "one stays", 4, 3, 1, 2, PHASE_RESTARTING, 3, 100, false },
    { "too few to be worth it", 2, 2, 1, 2, PHASE_RESTARTING, 3, 100, false },
    { "too many at once", 5, 5, 1, 2, PHASE_RESTARTING, 3, 4, false },
    { "pods of this attempt may come again", 4, 4, 2, 2, PHASE_RUNNING, 3, 100, false },
    { "not of a job that is suspended", 4, 4, 2, 2, PHASE_SUSPENDED, 3, 100, true },
    { "nor of one that is over", 4, 4, 2, 2, PHASE_SUCCEEDED, 3, 100, true },
};

Test(prepare, one_request_deletes_all_pods_of_an_attempt)
{
    for (size_t i = 0; i < COUNT(JOINS); i++) {
        struct plan *p = xcalloc(1, sizeof *p);
        struct pod_view pods[8] = { 0 };
        struct observed seen = { .pods = pods, .pod_count = JOINS[i].pods };

        p->status.attempt = JOINS[i].current;
        p->status.phase = JOINS[i].phase;
        p->actions = xcalloc(8, sizeof *p->actions);
        for (size_t k = 0; k < JOINS[i].pods; k++) {
            pods[k] = (struct pod_view){ .role = ROLE_WORKER, .index = (int32_t)k, .attempt = JOINS[i].attempt };
            if (k < JOINS[i].asked)
                p->actions[p->action_count++] = (struct action){ .kind = ACTION_DELETE_POD, .role = ROLE_WORKER, .index = (int32_t)k,
                                                                 .attempt = JOINS[i].attempt, .reason = "old" };
        }
        p->actions[p->action_count++] = (struct action){ .kind = ACTION_DELETE_JOB, .reason = "last" };
        plan_join_deletions(p, &seen, JOINS[i].least, JOINS[i].most);
        size_t expected = JOINS[i].joined ? 2 : JOINS[i].asked + 1;
        cr_expect(p->action_count == expected && (p->actions[0].kind == ACTION_DELETE_PODS) == JOINS[i].joined &&
                  p->actions[expected - 1].kind == ACTION_DELETE_JOB, "case %s", JOINS[i].name);
        cr_expect(!JOINS[i].joined || p->actions[0].attempt == JOINS[i].attempt);
        plan_release(p);
        free(p);
    }
}

/* ---- the environment -------------------------------------------------------------------------------------------- */

Test(prepare, the_user_is_told_which_variables_are_his_and_which_are_not)
{
    struct world *w = world_new(fixture_job(0, 0, 2, 0, 0));
    struct plan *p = xcalloc(1, sizeof *p);
    struct observed seen;
    bool kept = false, reserved = false;

    cJSON_Delete(w->job->spec.roles[ROLE_WORKER].template);
    w->job->spec.roles[ROLE_WORKER].template = fixture_json(
        "{\"spec\":{\"containers\":[{\"name\":\"tensorflow\",\"command\":[\"x\"],\"env\":[{\"name\":\"TF_CONFIG\",\"value\":\"{}\"},"
        "{\"name\":\"RINGMASTER_RANK\",\"value\":\"7\"},{\"name\":\"LR\",\"value\":\"0.1\"},{\"name\":\"PYTHONPATH\",\"value\":\"/x\"}]}]}}");
    world_observe(w, &seen);
    reconcile(w->job, w->status, &seen, w->now_ms, p);
    for (size_t i = 0; i < p->event_count; i++) {
        kept |= strcmp(p->events[i].reason, "EnvironmentOverridden") == 0 && !p->events[i].warning && strstr(p->events[i].message, "kept for TF_CONFIG") != NULL;
        reserved |= strcmp(p->events[i].reason, "EnvironmentReserved") == 0 && p->events[i].warning && strstr(p->events[i].message, "RINGMASTER_RANK") != NULL;
        cr_expect(strstr(p->events[i].message, "LR") == NULL && strstr(p->events[i].message, "PYTHONPATH") == NULL);
    }
    cr_expect(kept && reserved);
    plan_release(p);
    free(p);
    world_free(w);
}
