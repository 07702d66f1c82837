#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "job/coordinate.h"

static struct training_job *job_of(int32_t workers)
{
    struct training_job *job = xcalloc(1, sizeof *job);
    job->name = xstrdup("digits");
    job->labels = json_object();
    job->annotations = json_object();
    job->spec.roles[ROLE_WORKER] = (struct replica_spec){ .present = true, .replicas = workers };
    return job;
}

Test(coordinate, nothing_heard_is_nothing_known)
{
    auto_job struct training_job *job = job_of(2);
    auto_free struct coordinator_view *v = xcalloc(1, sizeof *v);
    coordinate_view(job, NULL, 1000, v);
    cr_expect(!v->known);
    cr_expect(!v->latest.progress.set);
}

Test(coordinate, a_report_becomes_what_reconcile_reads)
{
    auto_job struct training_job *job = job_of(2);
    auto_free struct coordinator_view *v = xcalloc(1, sizeof *v);
    struct member_report members[] = {
        { .member = "worker-0", .rank = 0, .state = PROCESS_DONE, .step = 50, .total_steps = 100, .step_ms = 20, .bytes_reduced = 10,
          .operations = 3, .busbw_gbps = 0.5 },
        { .member = "worker-1", .rank = 1, .state = PROCESS_RUNNING, .step = 40, .total_steps = 100, .step_ms = 25, .bytes_reduced = 12,
          .operations = 4 },
        { .member = "evaluator-0", .rank = -1, .state = PROCESS_WAITING, .step = -1 },
    };
    struct coordinator_report r = { .attempt = 2, .round = 3, .formed = true, .self_test_ok = true, .formed_ms = 77, .members = members,
                                    .member_count = 3, .checkpoint_step = 30, .checkpoint_ms = 99, .checkpoint_uri = "/c/30" };
    coordinate_view(job, &r, 5000, v);
    cr_expect(v->known && v->group_formed);
    cr_expect_eq(v->attempt, 2);
    cr_expect_eq(v->round, 3);
    cr_expect_eq(v->members_ready, 2);
    cr_expect_eq(v->latest.progress.step, 40, "the slowest rank's");
    cr_expect_eq(v->latest.progress.total_steps, 100);
    cr_expect_float_eq(v->latest.progress.percent, 40, 1e-9);
    cr_expect_float_eq(v->latest.progress.steps_per_second, 40, 1e-9);
    cr_expect_eq(v->latest.progress.eta_s, 2);
    cr_expect_eq(v->latest.ring.size, 2);
    cr_expect_str_eq(v->latest.ring.members, "worker-0,worker-1", "without those outside of it");
    cr_expect_eq(v->latest.ring.bytes_reduced, 12);
    cr_expect_eq(v->latest.ring.operations, 4);
    cr_expect_eq(v->latest.checkpoint.step, 30);
    cr_expect_str_eq(v->latest.checkpoint.uri, "/c/30");
}

Test(coordinate, how_many_workers_there_are_and_whether_all_listen)
{
    auto_job struct training_job *job = job_of(3);
    auto_free struct coordinator_view *v = xcalloc(1, sizeof *v);
    struct member_report members[] = {
        { .member = "chief-0", .rank = 0, .state = PROCESS_RUNNING, .listens = true },
        { .member = "worker-0", .rank = 1, .state = PROCESS_RUNNING, .listens = true },
        { .member = "worker-1", .rank = -1, .state = PROCESS_WAITING },
    };
    struct coordinator_report r = { .attempt = 1, .round = 1, .formed = true, .members = members, .member_count = 3, .workers = 2, .checkpoint_step = -1 };

    coordinate_view(job, &r, 1000, v);
    cr_expect(v->workers == 1 && v->workers_wanted == 2 && v->listens, "%d of %d", v->workers, v->workers_wanted);
    cr_expect_eq(v->latest.ring.size, 2, "as it is, and not as the spec has it by now");
    members[1].listens = false;
    coordinate_view(job, &r, 1000, v);
    cr_expect(!v->listens);
}

Test(coordinate, a_long_list_of_members_is_cut)
{
    auto_job struct training_job *job = job_of(1000);
    auto_free struct coordinator_view *v = xcalloc(1, sizeof *v);
    auto_free struct member_report *members = xcalloc(1000, sizeof *members);
    struct coordinator_report r = { .formed = true, .members = members, .member_count = 1000, .checkpoint_step = -1 };
    for (int i = 0; i < 1000; i++) {
        snprintf(members[i].member, sizeof members[i].member, "worker-%d", i);
        members[i].rank = i;
        members[i].step = -1;
    }
    coordinate_view(job, &r, 5000, v);
    size_t len = strlen(v->latest.ring.members);
    cr_expect_lt(len, sizeof v->latest.ring.members);
    cr_expect_str_eq(v->latest.ring.members + len - 4, ",...");
    cr_expect(!v->latest.checkpoint.set);
}

Test(coordinate, when_the_end_has_been_told)
{
    static const struct { const char *name; bool group, over; enum process_state ranks[2]; bool expected; } ROWS[] = {
        { "a group at work", true, false, { PROCESS_RUNNING, PROCESS_RUNNING }, false },
        { "rank 0 is held, another may make it run again", true, false, { PROCESS_DONE, PROCESS_RUNNING }, false },
        { "all released", true, true, { PROCESS_DONE, PROCESS_DONE }, true },
        { "each for itself, rank 0 at work", false, false, { PROCESS_RUNNING, PROCESS_DONE }, false },
        { "each for itself, rank 0 done", false, false, { PROCESS_DONE, PROCESS_RUNNING }, true },
    };

    for (size_t i = 0; i < COUNT(ROWS); i++) {
        auto_job struct training_job *job = job_of(2);
        auto_free struct coordinator_view *v = xcalloc(1, sizeof *v);
        job->spec.roles[ROLE_PS] = (struct replica_spec){ .present = !ROWS[i].group, .replicas = ROWS[i].group ? 0 : 1 };
        struct member_report members[2] = { { .rank = 0, .state = ROWS[i].ranks[0] }, { .rank = 1, .state = ROWS[i].ranks[1] } };
        struct coordinator_report r = { .members = members, .member_count = 2, .over = ROWS[i].over, .checkpoint_step = -1 };
        coordinate_view(job, &r, 5000, v);
        cr_expect(v->over == ROWS[i].expected, "case %s", ROWS[i].name);
    }
}

Test(coordinate, out_of_memory_is_told_by_the_coordinator)
{
    struct pod_view pods[] = { { .phase = POD_FAILED, .has_exit = true, .exit_code = 137, .reason = "Error" },
                               { .phase = POD_RUNNING, .reason = "" } };
    struct coordinator_report r = { .gave_up = true, .give_up_reason = "OOMKilled" };
    coordinate_give_up(&r, pods, 2);
    cr_expect_str_eq(pods[0].reason, "OOMKilled");
    cr_expect_str_eq(pods[1].reason, "");
    snprintf(pods[0].reason, sizeof pods[0].reason, "Error");
    snprintf(r.give_up_reason, sizeof r.give_up_reason, "BackoffLimitExceeded");
    coordinate_give_up(&r, pods, 2);
    cr_expect_str_eq(pods[0].reason, "Error");
}

Test(coordinate, the_straggler_is_who_takes_longest_by_itself)
{
    /* step_ms is the same for all who reduce together; what a rank waited for the others is not its own. */
    static const struct { const char *name; int32_t percent; struct { double step_ms, wait_ms; } ranks[3]; int32_t straggler; double slowest_ms; } ROWS[] = {
        { "rank 1 holds the others up", 25, { { 100, 500 }, { 100, 0 }, { 100, 600 } }, 1, 100 },
        { "all alike", 25, { { 100, 10 }, { 100, 0 }, { 100, 20 } }, -1, 100 },
        { "without a ring their own times differ", 25, { { 100, 0 }, { 100, 0 }, { 180, 0 } }, 2, 180 },
        { "switched off", 0, { { 100, 500 }, { 100, 0 }, { 100, 600 } }, -1, 100 },
        { "too little to tell", 25, { { 0.2, 0 }, { 0.1, 0 }, { 0.1, 0 } }, -1, 0.2 },
        { "nothing is known", 25, { { 0, 0 }, { 0, 0 }, { 0, 0 } }, -1, 0 },
        { "waits of many tensors at once", 25, { { 100, 5000 }, { 100, 0 }, { 100, 5000 } }, 1, 100 },
    };

    for (size_t i = 0; i < COUNT(ROWS); i++) {
        struct member_report members[3] = { 0 };
        struct coordinator_report r = { .members = members, .member_count = 3, .resume_step = 90 };
        struct job_stragglers s;
        for (int32_t k = 0; k < 3; k++)
            members[k] = (struct member_report){ .rank = k, .step = 100, .step_ms = ROWS[i].ranks[k].step_ms, .wait_ms = ROWS[i].ranks[k].wait_ms };
        coordinate_stragglers(&r, ROWS[i].percent, &s);
        cr_expect(s.rank == ROWS[i].straggler && s.slowest_ms == ROWS[i].slowest_ms, "case %s: rank %d, %g ms", ROWS[i].name, (int)s.rank, s.slowest_ms);
    }
}
