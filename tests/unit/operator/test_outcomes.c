#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "operator/outcomes.h"

struct change { struct job_status *before, *now; };

static void set(struct job_status *s, enum condition_type type, bool is_true, int64_t at_ms, const char *reason)
{
    s->conditions[type] = (struct condition){ .present = true, .is_true = is_true, .transition_ms = at_ms };
    (void)snprintf(s->conditions[type].reason, sizeof s->conditions[type].reason, "%s", reason);
}

static void fail(struct job_status *s, enum failure_class class, int32_t attempt, int64_t at_ms, int64_t lost)
{
    s->failures[s->failure_count++] =
        (struct failure){ .class = class, .attempt = attempt, .time_ms = at_ms, .lost_steps = { .set = lost >= 0, .value = lost } };
}

static void nothing(struct change *c) { (void)c; }
static void accepted(struct change *c) { set(c->now, CONDITION_CREATED, true, 1000, "TrainingJobCreated"); }
static void accepted_before(struct change *c) { set(c->before, CONDITION_CREATED, true, 1000, "TrainingJobCreated"); accepted(c); }
static void succeeds(struct change *c) { c->now->phase = PHASE_SUCCEEDED; }
static void suspended(struct change *c) { c->now->phase = PHASE_SUSPENDED; }
static void runs(struct change *c) { set(c->now, CONDITION_RUNNING, true, 4000, "TrainingJobRunning"); }
static void saves(struct change *c) { c->now->checkpoint.set = true; c->now->checkpoint.step = 20; }

static void saved_before(struct change *c)
{
    saves(c);
    c->before->checkpoint = c->now->checkpoint;
}

static void fails(struct change *c)
{
    c->now->phase = PHASE_FAILED;
    set(c->now, CONDITION_FAILED, true, 5000, "BackoffLimitExceeded");
}

static void failed_before(struct change *c)
{
    fails(c);
    c->before->phase = PHASE_FAILED;
}

static void restarts(struct change *c)
{
    c->before->progress.set = true;
    c->before->progress.steps_per_second = 4;
    c->now->restarts = 1;
    fail(c->now, FAILURE_OOM, 1, 9000, 12);
    set(c->now, CONDITION_RESTARTING, true, 9500, "RestartInPlace");
}

static void runs_again_in_place(struct change *c)
{
    set(c->before, CONDITION_RUNNING, false, 9500, "RestartInPlace");
    set(c->before, CONDITION_RESTARTING, true, 9500, "RestartInPlace");
    fail(c->before, FAILURE_OOM, 1, 9000, 12);
    c->before->attempt = c->now->attempt = 1;
    fail(c->now, FAILURE_OOM, 1, 9000, 12);
    set(c->now, CONDITION_RUNNING, true, 10500, "TrainingJobRunning");
}

static void runs_again_with_new_pods(struct change *c)
{
    runs_again_in_place(c);
    c->before->attempt = c->now->attempt = 2;
}

/* The report that tells of the failure is the one that tells of the new ring. */
static void runs_again_at_once(struct change *c)
{
    set(c->before, CONDITION_RUNNING, true, 2000, "TrainingJobRunning");
    set(c->now, CONDITION_RUNNING, true, 2000, "TrainingJobRunning");
    c->before->attempt = c->now->attempt = 1;
    c->now->restarts = 1;
    fail(c->now, FAILURE_USER, 1, 9000, -1);
    c->now->ring.set = true;
    c->now->ring.formed_ms = 9700;
}

/* A restart that nothing failed for: from the time on at which it began. */
static void runs_again_after_a_wish(struct change *c)
{
    set(c->before, CONDITION_RESTARTING, true, 20000, "Scaled");
    set(c->now, CONDITION_RUNNING, true, 23000, "TrainingJobRunning");
}

static void clock_went_back(struct change *c) { set(c->now, CONDITION_RUNNING, true, 10, "TrainingJobRunning"); }

static const struct { const char *name; void (*make)(struct change *c); const char *expected; } ROWS[] = {
    { "nothing", nothing, "ringmaster_jobs_created_total{namespace=\"team\"} 0\n" },
    { "accepted", accepted, "ringmaster_jobs_created_total{namespace=\"team\"} 1\n" },
    { "accepted before", accepted_before, "ringmaster_jobs_created_total{namespace=\"team\"} 0\n" },
    { "succeeds", succeeds, "ringmaster_jobs_succeeded_total{namespace=\"team\"} 1\n" },
    { "suspended", suspended, "ringmaster_jobs_suspended_total{namespace=\"team\"} 1\n" },
    { "fails", fails, "ringmaster_jobs_failed_total{namespace=\"team\",reason=\"BackoffLimitExceeded\"} 1\n" },
    { "failed before", failed_before, "# TYPE ringmaster_jobs_failed_total counter\n# HELP" },
    { "saves", saves, "ringmaster_checkpoints_committed_total{namespace=\"team\"} 1\n" },
    { "saved before", saved_before, "ringmaster_checkpoints_committed_total{namespace=\"team\"} 0\n" },
    { "runs", runs, "ringmaster_job_time_to_running_seconds_sum 3\n" },
    { "clock went back", clock_went_back, "ringmaster_job_time_to_running_seconds_count 0\n" },
    { "restarts", restarts, "ringmaster_jobs_restarted_total{namespace=\"team\",class=\"OOM\"} 1\n" },
    { "restarts: steps", restarts, "ringmaster_lost_steps_total{namespace=\"team\"} 12\n" },
    { "restarts: time", restarts, "ringmaster_lost_work_seconds_total{namespace=\"team\"} 3\n" },
    { "restarts: not over yet", restarts, "ringmaster_restart_duration_seconds_count{strategy=\"InPlace\"} 0\n" },
    { "again in place", runs_again_in_place, "ringmaster_restart_duration_seconds_sum{strategy=\"InPlace\"} 1.5\n" },
    { "again in place: bucket", runs_again_in_place, "ringmaster_restart_duration_seconds_bucket{strategy=\"InPlace\",le=\"2\"} 1\n" },
    { "again: not the first time", runs_again_in_place, "ringmaster_job_time_to_running_seconds_count 0\n" },
    { "again with new pods", runs_again_with_new_pods, "ringmaster_restart_duration_seconds_sum{strategy=\"Recreate\"} 1.5\n" },
    { "again at once", runs_again_at_once, "ringmaster_restart_duration_seconds_sum{strategy=\"InPlace\"} 0.69999999999999996\n" },
    { "again after a wish", runs_again_after_a_wish, "ringmaster_restart_duration_seconds_sum{strategy=\"Recreate\"} 3\n" },
};

Test(outcomes, each_change_is_counted_once)
{
    for (size_t i = 0; i < COUNT(ROWS); i++) {
        struct change c = { xcalloc(1, sizeof *c.before), xcalloc(1, sizeof *c.now) };
        struct outcomes *o = outcomes_new();
        auto_buf struct buf text = BUF_INIT(1u << 20);
        ROWS[i].make(&c);
        outcomes_note(o, "team", 1000, c.before, c.now);
        outcomes_format(o, &text);
        cr_expect(strstr(buf_text(&text), ROWS[i].expected) != NULL, "case %s: %s", ROWS[i].name, buf_text(&text));
        outcomes_free(o);
        free(c.before);
        free(c.now);
    }
}

/* Whoever makes namespaces without end does not fill the operator's memory. */
Test(outcomes, namespaces_and_reasons_are_bounded)
{
    struct outcomes *o = outcomes_new();
    auto_buf struct buf text = BUF_INIT(4u << 20);
    struct job_status *before = xcalloc(1, sizeof *before), *now = xcalloc(1, sizeof *now);
    char name[32];

    for (int i = 0; i < OUTCOMES_NAMESPACES_MAX + 10; i++) {
        (void)snprintf(name, sizeof name, "ns-%d", i);
        outcomes_note_invalid(o, name);
    }
    for (int i = 0; i < OUTCOMES_REASONS_MAX + 10; i++) {
        (void)snprintf(name, sizeof name, "Reason%d", i);
        set(now, CONDITION_FAILED, true, 1, name);
        now->phase = PHASE_FAILED;
        outcomes_note(o, "ns-0", 0, before, now);
    }
    outcomes_format(o, &text);
    cr_assert(buf_ok(&text));
    cr_expect(strstr(text.text, "ringmaster_jobs_invalid_total{namespace=\"\"} 10\n") != NULL);
    cr_expect(strstr(text.text, "ringmaster_jobs_failed_total{namespace=\"ns-0\",reason=\"Other\"} 11\n") != NULL);
    cr_expect(strstr(text.text, "reason=\"Reason62\"} 1\n") != NULL && strstr(text.text, "reason=\"Reason63\"") == NULL);
    outcomes_free(o);
    free(before);
    free(now);
}
