#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cli/history.h"
#include "cli/summary.h"

#define T0 1700000000000ll

/* A recorded life of a job of two ranks: 20 steps a second, worker-0 killed at 5 s, back from step 80 at 7 s. */
struct tape { struct history h; struct member_report members[2]; struct coordinator_report report; struct job_status *status; };

static void tape_start(struct tape *t)
{
    memset(t, 0, sizeof *t);
    history_init(&t->h);
    t->status = xcalloc(1, sizeof *t->status);
    t->members[0] = (struct member_report){ .member = "chief-0", .rank = 0, .state = PROCESS_RUNNING, .step = -1, .total_steps = 200 };
    t->members[1] = (struct member_report){ .member = "worker-0", .rank = 1, .state = PROCESS_RUNNING, .step = -1, .total_steps = 200 };
    t->report = (struct coordinator_report){ .attempt = 1, .round = 1, .formed = true, .self_test_ok = true, .formed_ms = T0,
                                             .form_seconds = 0.1, .members = t->members, .member_count = 2, .resume_step = -1,
                                             .checkpoint_step = -1 };
}

static void tape_end(struct tape *t)
{
    history_release(&t->h);
    free(t->status);
}

static void play(struct tape *t, int64_t step, int64_t now_ms, struct buf *lines)
{
    for (int i = 0; i < 2; i++) {
        t->members[i].step = step;
        t->members[i].has_loss = true;
        t->members[i].loss = 1.0 / (double)(step + 1);
        t->members[i].step_ms = 50;
    }
    history_report(&t->h, &t->report, now_ms, lines);
}

static void fail_and_recover(struct tape *t, struct buf *lines)
{
    t->members[0].started_ms = t->members[1].started_ms = T0;
    t->members[0].first_step_ms = t->members[1].first_step_ms = T0 + 50;
    for (int64_t step = 1; step <= 100; step++)
        play(t, step, T0 + step * 50, lines);

    struct failure f = { .attempt = 1, .round = 1, .role = ROLE_WORKER, .index = 0, .has_exit = true, .exit_code = 137, .signal = 9,
                         .class = FAILURE_USER, .time_ms = T0 + 5000 };
    snprintf(f.reason, sizeof f.reason, "Error");
    snprintf(f.message, sizeof f.message, "killed\n\"quoted\"");
    t->status->failures[t->status->failure_count++] = f;
    t->status->restarts = 1;
    history_failures(&t->h, t->status, lines);
    history_failures(&t->h, t->status, lines); /* the same status is seen again at every pass */

    t->report.round = 2;
    t->report.formed = false;
    t->members[0].step = t->members[1].step = -1;
    t->members[0].started_ms = t->members[1].started_ms = t->members[0].first_step_ms = t->members[1].first_step_ms = 0;
    history_report(&t->h, &t->report, T0 + 5100, lines);
    t->report.formed = true;
    t->report.formed_ms = T0 + 5400;
    t->report.resume_step = 80;
    t->members[0].started_ms = T0 + 5450;
    t->members[1].started_ms = T0 + 5500;
    history_report(&t->h, &t->report, T0 + 5500, lines);
    t->members[0].first_step_ms = T0 + 6900; /* the slower one decides */
    play(t, 81, T0 + 6950, lines);
    t->members[1].first_step_ms = T0 + 7000;
    play(t, 82, T0 + 7050, lines);
}

Test(history, a_failure_knows_what_was_lost_and_when_training_went_on)
{
    struct tape t;
    tape_start(&t);
    fail_and_recover(&t, NULL);
    cr_assert_eq(t.h.failure_count, 1);
    const struct history_failure *f = &t.h.failures[0];
    cr_expect_eq(f->step_before, 100);
    cr_expect(f->resume_known);
    cr_expect_eq(f->resume_step, 80);
    cr_expect_eq(history_steps_lost(&t.h, f), 20);
    cr_expect_eq(f->started_ms, T0 + 5500);
    cr_expect_eq(f->recovered_ms, T0 + 7000);
    tape_end(&t);
}

Test(history, what_is_written_reads_back_the_same)
{
    struct tape t;
    struct history again;
    auto_buf struct buf lines = BUF_INIT(1 << 20);
    tape_start(&t);
    fail_and_recover(&t, &lines);
    history_init(&again);
    for (char *line, *rest = lines.text; (line = strsep(&rest, "\n")) != NULL;)
        if (*line)
            history_read(&again, line, strlen(line));
    cr_assert_eq(again.series_count, t.h.series_count);
    for (size_t i = 0; i < again.series_count; i++) {
        cr_assert_eq(again.series[i].count, t.h.series[i].count);
        cr_expect_str_eq(again.series[i].member, t.h.series[i].member);
        for (size_t k = 0; k < again.series[i].count; k++) {
            cr_expect_eq(again.series[i].samples[k].step, t.h.series[i].samples[k].step);
            cr_expect_eq(again.series[i].samples[k].time_ms, t.h.series[i].samples[k].time_ms);
            cr_expect_float_eq(again.series[i].samples[k].loss, t.h.series[i].samples[k].loss, 1e-6);
        }
    }
    cr_assert_eq(again.failure_count, 1);
    cr_expect_eq(again.failures[0].recovered_ms, t.h.failures[0].recovered_ms);
    cr_expect_eq(history_steps_lost(&again, &again.failures[0]), 20);
    cr_expect_str_eq(again.failures[0].cause.message, "killed\n\"quoted\"");
    cr_expect_eq(again.fence_count, 2);
    cr_expect_eq(again.fences[1].resume_step, 80);
    history_release(&again);
    tape_end(&t);
}

Test(history, half_a_line_and_nonsense_are_passed_over)
{
    static const char *const LINES[] = { "", "{", "{\"time\":1,\"member\":\"worker-0\",\"st", "[]", "null", "{\"event\":\"failure\"}",
                                         "{\"event\":\"formed\"}", "{\"member\":7}", "{\"member\":\"w\",\"step\":-3}" };
    struct history h;
    history_init(&h);
    for (size_t i = 0; i < COUNT(LINES); i++)
        history_read(&h, LINES[i], strlen(LINES[i]));
    cr_expect_eq(h.failure_count, 0);
    for (size_t i = 0; i < h.series_count; i++)
        cr_expect_eq(h.series[i].count, 0);
    history_release(&h);
}

Test(history, a_long_job_keeps_its_whole_curve_at_a_coarser_grain)
{
    struct tape t;
    tape_start(&t);
    for (int64_t step = 1; step <= 100000; step++)
        play(&t, step, T0 + step, NULL);
    const struct history_series *s = &t.h.series[0];
    cr_expect_leq(s->count, HISTORY_SAMPLES_MAX);
    cr_expect_geq(s->count, HISTORY_SAMPLES_MAX / 2 - 1);
    cr_expect_leq(s->samples[0].step, 32);
    cr_expect_geq(s->samples[s->count - 1].step, 100000 - 64);
    for (size_t i = 1; i < s->count; i++)
        cr_assert_gt(s->samples[i].step, s->samples[i - 1].step);
    tape_end(&t);
}

Test(history, a_coordinator_that_counted_the_lost_steps_is_believed)
{
    struct history_series told = { .last_step = 7 };
    struct history h = { .series = NULL };
    struct history_failure f = { .step_before = 100, .resume_known = true, .resume_step = 80 };
    f.cause.lost_steps = (struct optional_int){ .set = true, .value = 23 };
    cr_expect_eq(history_steps_lost(&h, &f), 23);
    f.cause.lost_steps.set = false;
    f.resume_step = -1; /* from scratch: all of them */
    cr_expect_eq(history_steps_lost(&h, &f), 100);
    f.resume_known = false;
    cr_expect_eq(history_steps_lost(&h, &f), -1);
    f = (struct history_failure){ .step_before = -1, .resume_known = true, .resume_step = -1 };
    cr_expect_eq(history_steps_lost(&h, &f), -1, "nobody tells steps");
    h.series = &told;
    h.series_count = 1;
    cr_expect_eq(history_steps_lost(&h, &f), 0, "it ended before its first step");
}

/* ---- summary and reports over the same tape ---- */

static struct training_job *job_of_two(void)
{
    struct training_job *job = xcalloc(1, sizeof *job);
    job->name = xstrdup("digits");
    job->uid = xstrdup("u");
    job->labels = json_object();
    job->annotations = json_object();
    job->spec.roles[ROLE_CHIEF] = (struct replica_spec){ .present = true, .replicas = 1 };
    job->spec.roles[ROLE_WORKER] = (struct replica_spec){ .present = true, .replicas = 1 };
    job->spec.checkpoint.enabled = true;
    job->spec.checkpoint.every_steps = (struct optional_int){ .set = true, .value = 20 };
    return job;
}

static void finish(struct tape *t, const char *chief, const char *worker)
{
    snprintf(t->members[0].metrics, sizeof t->members[0].metrics, "%s", chief);
    snprintf(t->members[1].metrics, sizeof t->members[1].metrics, "%s", worker);
    t->members[0].bytes_reduced = t->members[1].bytes_reduced = 1 << 20;
    t->members[0].busbw_gbps = 0.5;
    t->report.checkpoint_step = 200;
    t->status->phase = PHASE_SUCCEEDED;
    t->status->attempt = 1;
    t->status->start_ms = T0;
    t->status->completion_ms = T0 + 12000;
}

Test(summary, figures_of_a_job_that_lost_a_worker)
{
    auto_job struct training_job *job = job_of_two();
    struct tape t;
    struct summary s;
    tape_start(&t);
    fail_and_recover(&t, NULL);
    finish(&t, "{\"accuracy\":0.97,\"weights_hash\":\"ab\"}", "{\"accuracy\":0.5,\"weights_hash\":\"ab\"}");
    summary_build(job, t.status, &t.report, &t.h, &s);
    cr_expect_eq(s.weights, WEIGHTS_EQUAL);
    cr_expect_float_eq(s.accuracy, 0.97, 1e-9, "rank 0's");
    cr_expect(s.has_recovery);
    cr_expect_float_eq(s.recovery_s, 2.0, 1e-9);
    cr_expect_float_eq(s.started_s, 0.5, 1e-9);
    cr_expect_eq(s.steps_lost, 20);
    cr_expect_eq(s.last_committed_step, 200);
    cr_expect_eq(s.ring_size, 2);
    cr_expect(s.self_test_ok);

    const char *paths[] = { "report", "/x/report.json", NULL };
    auto_buf struct buf text = BUF_INIT(1 << 16);
    summary_format(&s, paths, false, &text);
    cr_expect_str_eq(buf_text(&text),
        "\ndigits Succeeded in 12 s\n"
        "  accuracy             0.9700\n"
        "  loss                 0.0120\n"
        "  weights              equal on all 2 ranks\n"
        "    rank 0 chief-0     ab\n"
        "    rank 1 worker-0    ab\n"
        "  ring                 2 ranks, self-test passed, bus bandwidth 0.50 GB/s\n"
        "  all-reduced          1.0 MiB a rank in 0 operations\n"
        "  failures             1, restarts 1\n"
        "  training again after 2.00 s (processes started again after 0.50 s)\n"
        "  steps lost           20 (a checkpoint every 20)\n"
        "  last checkpoint      step 200\n"
        "  report               /x/report.json\n");
    summary_release(&s);
    tape_end(&t);
}

Test(summary, weights_are_equal_only_when_every_rank_says_the_same)
{
    static const struct { const char *name, *chief, *worker; enum weights_verdict verdict; } ROWS[] = {
        { "equal", "{\"weights_hash\":\"a\"}", "{\"weights_hash\":\"a\"}", WEIGHTS_EQUAL },
        { "differ", "{\"weights_hash\":\"a\"}", "{\"weights_hash\":\"b\"}", WEIGHTS_DIFFER },
        { "one is missing", "{\"weights_hash\":\"a\"}", "{}", WEIGHTS_UNKNOWN },
        { "none", "", "", WEIGHTS_UNKNOWN },
        { "no JSON", "{\"weights_hash\":\"a\"}", "{\"weights", WEIGHTS_UNKNOWN },
        { "no text", "{\"weights_hash\":\"1\"}", "{\"weights_hash\":1}", WEIGHTS_UNKNOWN },
    };
    auto_job struct training_job *job = job_of_two();
    for (size_t i = 0; i < COUNT(ROWS); i++) {
        struct tape t;
        struct summary s;
        tape_start(&t);
        finish(&t, ROWS[i].chief, ROWS[i].worker);
        summary_build(job, t.status, &t.report, &t.h, &s);
        cr_expect_eq(s.weights, ROWS[i].verdict, "case %s", ROWS[i].name);
        summary_release(&s);
        tape_end(&t);
    }
}

Test(summary, a_job_that_nobody_reported_of_has_a_summary_too)
{
    auto_job struct training_job *job = job_of_two();
    auto_free struct job_status *status = xcalloc(1, sizeof *status);
    struct history h;
    struct summary s;
    history_init(&h);
    status->phase = PHASE_FAILED;
    status->conditions[CONDITION_FAILED] = (struct condition){ .present = true, .is_true = true, .reason = "PermanentExitCode",
                                                               .message = "worker-0 exited with code 127 (command not found)" };
    summary_build(job, status, NULL, &h, &s);
    auto_buf struct buf text = BUF_INIT(4096);
    summary_format(&s, NULL, false, &text);
    cr_expect_str_eq(buf_text(&text), "\ndigits Failed: PermanentExitCode\n  worker-0 exited with code 127 (command not found)\n");
    auto_json cJSON *report = report_json_build(job, status, NULL, &h, &s);
    cr_expect(!json_bool(report, "succeeded", true));
    cr_expect_null(json_at(report, "weights_equal"), "unknown is null, not false");
    cr_expect_null(json_at(report, "accuracy"));
    cr_expect_eq(json_int(report, "steps_lost", -1), 0);
    summary_release(&s);
}

Test(reports, json_has_the_documented_fields)
{
    auto_job struct training_job *job = job_of_two();
    struct tape t;
    struct summary s;
    tape_start(&t);
    fail_and_recover(&t, NULL);
    finish(&t, "{\"accuracy\":0.97,\"weights_hash\":\"ab\"}", "{\"weights_hash\":\"ab\"}");
    summary_build(job, t.status, &t.report, &t.h, &s);
    auto_json cJSON *r = report_json_build(job, t.status, &t.report, &t.h, &s);
    cr_expect(json_bool(r, "succeeded", false));
    cr_expect_eq(json_int(r, "ranks", 0), 2);
    cr_expect_eq(json_int(r, "restarts", 0), 1);
    cr_expect(json_bool(r, "weights_equal", false));
    cr_expect_str_eq(json_text(json_at(r, "weights_hash"), "1", ""), "ab");
    cr_expect_float_eq(json_double(r, "recovery_seconds", 0), 2.0, 1e-9);
    cr_expect_float_eq(json_double(r, "recovery_without_startup_seconds", 0), 0.5, 1e-9);
    cr_expect_eq(json_int(r, "steps_lost", 0), 20);
    cr_expect_eq(json_int(r, "checkpoint_interval", 0), 20);
    cr_expect_eq(cJSON_GetArraySize(json_at(r, "failures")), 1);
    cr_expect_eq(cJSON_GetArraySize(json_at(r, "rounds")), 2);
    cr_expect_eq(cJSON_GetArraySize(json_at(r, "members")), 2);
    const cJSON *series = cJSON_GetArrayItem(json_at(r, "series"), 0);
    cr_expect_eq(cJSON_GetArraySize(json_at(series, "t")), 102);
    cr_expect_eq(cJSON_GetArraySize(json_at(series, "loss")), 102);
    summary_release(&s);
    tape_end(&t);
}

Test(reports, html_is_whole_and_a_message_cannot_end_its_script)
{
    auto_json cJSON *report = json_object();
    json_put_text(report, "job", "x</script><script>alert(1)</script><!--");
    auto_free char *html = report_html_build(report);
    cr_assert_not_null(html);
    cr_expect(strncmp(html, "<!doctype html>", 15) == 0);
    cr_expect(strstr(html, "@REPORT@") == NULL);
    cr_expect(strstr(html, "alert(1)</script>") == NULL);
    cr_expect(strstr(html, "x\\u003c/script>\\u003cscript>alert(1)\\u003c/script>\\u003c!--") != NULL);
    cr_expect(strstr(html, "http://") == NULL || strstr(html, "http://www.w3.org/2000/svg") != NULL);
    cr_expect(strstr(html, "https://") == NULL, "no network");
    cr_expect(strstr(html + strlen(html) - 10, "</html>") != NULL);
}
