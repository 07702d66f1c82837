#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "job/decode.h"

static struct training_job *job_of_two_roles(void)
{
    struct training_job *job = xcalloc(1, sizeof *job);

    job->name = xstrdup("mnist");
    job->namespace = xstrdup("default");
    job->uid = xstrdup("u");
    job->labels = json_object();
    job->annotations = json_object();
    job->spec.roles[ROLE_CHIEF] = (struct replica_spec){ .present = true, .replicas = 1 };
    job->spec.roles[ROLE_WORKER] = (struct replica_spec){ .present = true, .replicas = 3 };
    return job;
}

/* Every member that status_encode writes has a value of its own. */
static void fill(struct job_status *s)
{
    status_init(s);
    s->observed_generation = 3;
    s->phase = PHASE_RESTARTING;
    for (enum condition_type t = 0; t < CONDITION_COUNT; t++) {
        struct condition *c = &s->conditions[t];
        *c = (struct condition){ .present = true, .is_true = t % 2 == 0, .transition_ms = 1770091506000 + t, .observed_generation = t };
        (void)snprintf(c->reason, sizeof c->reason, "Reason%d", t);
        (void)snprintf(c->message, sizeof c->message, "message \"%d\"\n", t);
    }
    s->roles[ROLE_CHIEF] = (struct role_status){ .replicas = 1, .active = 1, .ready = 1 };
    s->roles[ROLE_WORKER] = (struct role_status){ .replicas = 3, .active = 2, .ready = 1, .succeeded = 4, .failed = 5, .completed = "0-1" };
    s->attempt = 4;
    s->round = 7;
    s->restarts = 11;
    s->restarts_counted = 6;
    s->disruptions = 5;
    s->streak = 2;
    s->window = (struct restart_window){ .parts = { { 1770000000000, 2 }, { 1770000060000, 1 } }, .part_count = 2 };
    s->roles[ROLE_WORKER].oom_kills = 12;
    s->next_restart_ms = 1770091506123;
    s->start_ms = 1770091400000;
    s->completion_ms = 1770091500000;
    s->suspended_ms = 1770091500001;
    s->progress.set = true;
    s->progress.step = 12000;
    s->progress.total_steps = 90000;
    s->progress.eta_s = 1893;
    s->progress.update_ms = 1770091506999;
    s->progress.percent = 13.25;
    s->progress.steps_per_second = 41.2;
    s->progress.has_loss = true;
    s->progress.loss = 0.125;
    s->checkpoint.set = s->checkpoint.verified = true;
    s->checkpoint.step = 11500;
    s->checkpoint.time_ms = 1770091505000;
    s->checkpoint.attempt = 4;
    strcpy(s->checkpoint.uri, "/ckpt/11500");
    s->queue.set = true;
    strcpy(s->queue.name, "team-a");
    strcpy(s->queue.workload, "trainingjob-mnist-1a2b3");
    s->queue.position = 2;
    s->queue.admitted_ms = 1770091399000;
    s->gang.set = true;
    s->gang.kind = GANG_NATIVE;
    strcpy(s->gang.group, "mnist");
    strcpy(s->gang.phase, "Scheduled");
    s->ring.set = s->ring.self_test_ok = true;
    s->ring.size = 4;
    s->ring.bytes_reduced = 123456789012345;
    s->ring.operations = 4242;
    s->ring.busbw_gbps = 1.5;
    s->ring.formed_ms = 1770091501500;
    s->ring.straggler_rank = 2;
    strcpy(s->ring.members, "chief-0,worker-0,worker-1,worker-2");
    for (int i = 0; i < JOB_FAILURES_KEPT; i++) {
        struct failure *f = &s->failures[s->failure_count++];
        *f = (struct failure){ .attempt = i, .round = i + 1, .role = i % ROLE_COUNT, .index = i + 2, .has_exit = i % 2 == 0, .exit_code = i % 2 == 0 ? 128 + i : 0,
                               .signal = i % 3, .class = (enum failure_class)(i % 5), .time_ms = 1770091000000 + i,
                               .lost_steps = { .set = i % 2 == 1, .value = i % 2 == 1 ? 180 + i : 0 } };
        (void)snprintf(f->pod, sizeof f->pod, "mnist-worker-%d", i);
        (void)snprintf(f->pod_uid, sizeof f->pod_uid, "uid-%d", i);
        (void)snprintf(f->node, sizeof f->node, "n%d", i);
        strcpy(f->container, "tensorflow");
        strcpy(f->reason, "Error");
        strcpy(f->message, "Traceback: \xc3\xa4\n");
    }
    for (int i = 0; i < JOB_AVOID_NODES_MAX; i++) {
        struct avoided_node *n = &s->avoid_nodes[s->avoid_count++];
        (void)snprintf(n->name, sizeof n->name, "n%d", i);
        strcpy(n->reason, "NodeLost");
        n->until_ms = 1770100000000 + i;
    }
}

Test(status, what_is_written_reads_back_the_same)
{
    auto_job struct training_job *job = job_of_two_roles();
    auto_free struct job_status *before = xcalloc(1, sizeof *before), *after = xcalloc(1, sizeof *after);
    struct error e = ERROR_INIT;

    fill(before);
    auto_json cJSON *first = status_encode(job, before);
    auto_free char *text = json_print(first, false); /* through text, as it travels */
    auto_json cJSON *parsed = NULL;
    cr_assert_eq(json_parse(text, strlen(text), &parsed, &e), 0);
    cr_assert_eq(status_decode(parsed, after, &e), 0, "%s", e.text);
    auto_json cJSON *second = status_encode(job, after);
    auto_free char *again = json_print(second, false);
    cr_expect_str_eq(again, text);

    /* The structs themselves, section by section: an encoder that forgets a member would pass the comparison above. */
    cr_expect_eq(memcmp(&after->progress, &before->progress, sizeof before->progress), 0, "progress");
    cr_expect_eq(memcmp(&after->queue, &before->queue, sizeof before->queue), 0, "queue");
    cr_expect_eq(memcmp(&after->gang, &before->gang, sizeof before->gang), 0, "gang");
    cr_expect_eq(memcmp(&after->checkpoint, &before->checkpoint, sizeof before->checkpoint), 0, "checkpoint");
    cr_expect_eq(memcmp(&after->ring, &before->ring, sizeof before->ring), 0, "ring");
    cr_expect_eq(memcmp(after->roles, before->roles, sizeof before->roles), 0, "roles");
    for (enum condition_type t = 0; t < CONDITION_COUNT; t++) {
        const struct condition *a = &after->conditions[t], *b = &before->conditions[t];
        cr_expect(a->present && a->is_true == b->is_true && a->transition_ms == b->transition_ms &&
                  a->observed_generation == b->observed_generation && strcmp(a->reason, b->reason) == 0 &&
                  strcmp(a->message, b->message) == 0, "condition %s", condition_name(t));
    }
    for (size_t i = 0; i < before->failure_count; i++) {
        const struct failure *a = &after->failures[i], *b = &before->failures[i];
        cr_expect(a->attempt == b->attempt && a->round == b->round && a->role == b->role && a->index == b->index &&
                  a->has_exit == b->has_exit && a->exit_code == b->exit_code && a->signal == b->signal && a->class == b->class &&
                  a->time_ms == b->time_ms && a->lost_steps.set == b->lost_steps.set && a->lost_steps.value == b->lost_steps.value &&
                  strcmp(a->pod, b->pod) == 0 && strcmp(a->pod_uid, b->pod_uid) == 0 && strcmp(a->node, b->node) == 0 && strcmp(a->container, b->container) == 0 &&
                  strcmp(a->reason, b->reason) == 0 && strcmp(a->message, b->message) == 0, "failure %zu", i);
    }
    cr_expect_eq(after->avoid_count, before->avoid_count);
    cr_expect_eq(after->avoid_nodes[63].until_ms, before->avoid_nodes[63].until_ms);
    cr_expect(after->observed_generation == 3 && after->phase == PHASE_RESTARTING && after->attempt == 4 && after->round == 7 &&
              after->restarts == 11 && after->restarts_counted == 6 && after->disruptions == 5 && after->streak == 2 &&
              memcmp(&after->window, &before->window, sizeof after->window) == 0 && after->roles[ROLE_WORKER].oom_kills == 12 &&
              after->next_restart_ms == before->next_restart_ms && after->start_ms == before->start_ms &&
              after->completion_ms == before->completion_ms && after->suspended_ms == before->suspended_ms);
}

Test(status, what_is_written_is_what_the_crd_allows)
{
    auto_job struct training_job *job = job_of_two_roles();
    auto_free struct job_status *status = xcalloc(1, sizeof *status);
    auto_free struct problems *problems = xcalloc(1, sizeof *problems);
    const cJSON *schema = json_at(schema_of_kind(JOB_KIND), "properties.status");

    fill(status);
    auto_json cJSON *full = status_encode(job, status);
    schema_check(schema, full, NULL, problems);
    status_init(status);
    status->conditions[CONDITION_CREATED].present = true; /* no reason, no time: the API server requires both */
    auto_json cJSON *fresh = status_encode(job, status);
    schema_check(schema, fresh, NULL, problems);
    auto_free char *report = problems_format(problems, "status");
    cr_expect_eq(problems->count, 0, "%s", report);
}

Test(status, what_kubectl_and_scale_read)
{
    auto_job struct training_job *job = job_of_two_roles();
    auto_free struct job_status *status = xcalloc(1, sizeof *status);

    fill(status);
    auto_json cJSON *tree = status_encode(job, status);
    cr_expect_str_eq(json_text(tree, "phase", ""), "Restarting");
    cr_expect_str_eq(json_text(tree, "ready", ""), "2/4");
    cr_expect_eq(json_int(tree, "replicas", -1), 3);
    cr_expect_str_eq(json_text(tree, "selector", ""), "ringmaster.dev/job-name=mnist,ringmaster.dev/replica-type=worker");
    cr_expect_eq(json_int(tree, "replicaStatuses.Worker.failed", -1), 5);
    cr_expect_null(json_at(tree, "replicaStatuses.PS"));
    cr_expect_str_eq(json_text(tree, "nextRestartTime", ""), "2026-02-03T04:05:06.123Z");
    cr_expect_str_eq(json_text(tree, "startTime", ""), "2026-02-03T04:03:20Z");
}

Test(status, absent_is_fresh)
{
    static const char *const rows[] = { NULL, "null", "{}" };

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct error e = ERROR_INIT;
        auto_free struct job_status *fresh = xcalloc(1, sizeof *fresh), *found = xcalloc(1, sizeof *found);
        auto_json cJSON *tree = rows[i] != NULL ? cJSON_Parse(rows[i]) : NULL;
        status_init(fresh);
        found->attempt = 99;
        cr_assert_eq(status_decode(tree, found, &e), 0, "%s", e.text);
        cr_expect_eq(memcmp(found, fresh, sizeof *fresh), 0, "case %zu", i);
        cr_expect_eq(found->ring.straggler_rank, -1);
    }
}

Test(status, what_is_no_status_is_refused)
{
    static const struct { const char *text, *error; } rows[] = {
        { "{\"attempt\":\"x\"}", "status.attempt: found \"x\", expected an integer" },
        { "{\"phase\":\"Done\"}", "status.phase: found \"Done\", expected one of" },
        { "{\"startTime\":\"now\"}", "status.startTime: found \"now\", expected a time" },
        { "{\"surprise\":1}", "status.surprise: unknown field" },
        { "{\"failures\":[{},{},{},{},{},{},{},{},{},{},{}]}", "status.failures: found 11 items" },
        { "[]", "found a list, expected a mapping" },
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct error e = ERROR_INIT;
        auto_free struct job_status *status = xcalloc(1, sizeof *status);
        auto_json cJSON *tree = cJSON_Parse(rows[i].text);
        status->attempt = 99;
        cr_expect_eq(status_decode(tree, status, &e), -1, "case %s", rows[i].text);
        cr_expect_not_null(strstr(e.text, rows[i].error), "case %s: %s", rows[i].text, e.text);
        cr_expect_eq(status->attempt, 99, "case %s: written in spite of the error", rows[i].text);
    }
}

Test(status, numbers_that_json_has_not_are_left_out)
{
    auto_job struct training_job *job = job_of_two_roles();
    auto_free struct job_status *status = xcalloc(1, sizeof *status);

    fill(status);
    status->progress.loss = NAN;
    status->progress.steps_per_second = INFINITY;
    auto_json cJSON *tree = status_encode(job, status);
    cr_expect_null(json_at(tree, "progress.loss"));
    cr_expect_null(json_at(tree, "progress.stepsPerSecond"));
    cr_expect_not_null(json_at(tree, "progress.percent"));
}

Test(status, long_text_is_cut_between_characters)
{
    struct error e = ERROR_INIT;
    auto_free struct job_status *status = xcalloc(1, sizeof *status);
    char reason[200] = "";

    for (int i = 0; i < 40; i++)
        strcat(reason, "\xe2\x82\xac"); /* three bytes each, 120 in all */
    auto_json cJSON *tree = json_object();
    cJSON *list = json_array(), *failure = json_object();
    json_put_text(failure, "reason", reason);
    json_append(list, failure);
    json_put(tree, "failures", list);
    cr_assert_eq(status_decode(tree, status, &e), 0, "%s", e.text);
    cr_expect_eq(strlen(status->failures[0].reason), 63);
}

Test(status, names_are_the_crds)
{
    cr_expect_str_eq(phase_name(PHASE_PENDING), "Pending");
    cr_expect_str_eq(phase_name(PHASE_FAILED), "Failed");
    cr_expect_str_eq(condition_name(CONDITION_CREATED), "Created");
    cr_expect_str_eq(condition_name(CONDITION_COOPERATING), "Cooperating");
    cr_expect_str_eq(condition_name(CONDITION_FAILED), "Failed");
    cr_expect_str_eq(failure_class_name(FAILURE_OOM), "OOM");
    for (enum job_phase p = 0; p <= PHASE_FAILED; p++)
        cr_expect_eq(phase_is_final(p), p == PHASE_SUCCEEDED || p == PHASE_FAILED);
}
