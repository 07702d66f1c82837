#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "cli/summary.h"

/* JSON has no NaN; a loss that is none is null. */
static cJSON *number_or_null(bool known, double value)
{
    return known && isfinite(value) ? cJSON_CreateNumber(value) : cJSON_CreateNull();
}

static void put_seconds(cJSON *o, const char *key, bool known, double value)
{
    json_put(o, key, number_or_null(known, round(value * 1000) / 1000));
}

static void put_time(cJSON *o, const char *key, int64_t wall_ms)
{
    char text[CLOCK_TEXT_MAX];
    if (!wall_ms)
        return;
    clock_format(wall_ms, text);
    json_put_text(o, key, text);
}

static cJSON *failure_json(const struct history *h, const struct history_failure *f)
{
    const struct failure *c = &f->cause;
    char member[80];
    job_member_name(c->role, c->index, member);
    cJSON *o = json_object();
    json_put_text(o, "member", member);
    json_put(o, "rank", number_or_null(c->rank.set, (double)c->rank.value));
    json_put_int(o, "attempt", c->attempt);
    json_put_int(o, "round", c->round);
    json_put_int(o, "time_ms", c->time_ms);
    put_time(o, "time", c->time_ms);
    json_put_text(o, "reason", c->reason);
    json_put_text(o, "class", failure_class_name(c->class));
    if (c->has_exit) {
        json_put_int(o, "exit_code", c->exit_code);
        json_put_int(o, "signal", c->signal);
    }
    json_put_text(o, "message", c->message);
    if (c->evidence[0])
        json_put_text(o, "evidence", c->evidence);
    int64_t lost = history_steps_lost(h, f);
    json_put(o, "steps_lost", number_or_null(lost >= 0, (double)lost));
    json_put(o, "step_before", number_or_null(f->step_before >= 0, (double)f->step_before));
    json_put(o, "resume_step", number_or_null(f->resume_known, (double)f->resume_step));
    put_seconds(o, "recovery_seconds", f->recovered_ms != 0, (double)(f->recovered_ms - c->time_ms) / 1000.0);
    put_seconds(o, "recovery_without_startup_seconds", f->started_ms != 0, (double)(f->started_ms - c->time_ms) / 1000.0);
    if (f->started_ms)
        json_put_int(o, "started_ms", f->started_ms);
    if (f->recovered_ms)
        json_put_int(o, "recovered_ms", f->recovered_ms);
    return o;
}

static cJSON *round_json(const struct history_fence *f)
{
    cJSON *o = json_object();
    json_put_int(o, "attempt", f->attempt);
    json_put_int(o, "round", f->round);
    if (f->formed_ms) {
        json_put_int(o, "formed_ms", f->formed_ms);
        put_seconds(o, "form_seconds", true, f->form_seconds);
        json_put_bool(o, "self_test_ok", f->self_test_ok);
        json_put_int(o, "resume_step", f->resume_step);
    }
    json_put(o, "peak_step", number_or_null(f->peak_step >= 0, (double)f->peak_step));
    return o;
}

static cJSON *member_json(const struct member_report *m)
{
    struct error e = ERROR_INIT;
    cJSON *o = json_object(), *metrics = NULL;
    json_put_text(o, "member", m->member);
    json_put_int(o, "rank", m->rank);
    json_put_text(o, "state", process_state_name(m->state));
    json_put_int(o, "restarts", m->restarts);
    json_put(o, "step", number_or_null(m->step >= 0, (double)m->step));
    json_put(o, "total_steps", number_or_null(m->total_steps >= 0, (double)m->total_steps));
    json_put(o, "loss", number_or_null(m->has_loss, m->loss));
    json_put(o, "step_ms", number_or_null(m->step_ms > 0, m->step_ms));
    json_put_int(o, "bytes_reduced", m->bytes_reduced);
    json_put_int(o, "operations", m->operations);
    json_put_double(o, "busbw_gbps", m->busbw_gbps);
    json_put_double(o, "wait_ms", m->wait_ms);
    if (m->metrics[0] && json_parse(m->metrics, strlen(m->metrics), &metrics, &e) == 0)
        json_put(o, "metrics", metrics);
    return o;
}

/* Columns instead of objects: a curve of thousands of points stays small and plots as it is. Times in seconds from t0. */
static cJSON *series_json(const struct history_series *s, int64_t t0_ms)
{
    cJSON *o = json_object(), *t = json_array(), *step = json_array(), *loss = json_array(), *step_ms = json_array();
    for (size_t i = 0; i < s->count; i++) {
        const struct history_sample *p = &s->samples[i];
        json_append(t, cJSON_CreateNumber((double)(p->time_ms - t0_ms) / 1000.0));
        json_append(step, cJSON_CreateNumber((double)p->step));
        json_append(loss, number_or_null(p->has_loss, p->loss));
        json_append(step_ms, number_or_null(p->step_ms > 0, p->step_ms));
    }
    json_put_text(o, "member", s->member);
    json_put_int(o, "rank", s->rank);
    json_put(o, "t", t);
    json_put(o, "step", step);
    json_put(o, "loss", loss);
    json_put(o, "step_ms", step_ms);
    return o;
}

static int64_t first_moment(const struct job_status *status, const struct history *h)
{
    int64_t t0 = status->start_ms;
    for (size_t i = 0; i < h->series_count; i++)
        if (h->series[i].count > 0 && (!t0 || h->series[i].samples[0].time_ms < t0))
            t0 = h->series[i].samples[0].time_ms;
    return t0;
}

static void weights_json(cJSON *o, const struct summary *s)
{
    cJSON *hashes = json_object();
    for (size_t i = 0; i < s->hash_count; i++) {
        char rank[16];
        snprintf(rank, sizeof rank, "%d", s->hashes[i].rank);
        json_put_text(hashes, rank, s->hashes[i].weights_hash);
    }
    json_put(o, "weights_equal", s->weights == WEIGHTS_UNKNOWN ? cJSON_CreateNull() : cJSON_CreateBool(s->weights == WEIGHTS_EQUAL));
    json_put(o, "weights_hash", hashes);
}

cJSON *report_json_build(const struct training_job *job, const struct job_status *status,
                         const struct coordinator_report *report, const struct history *history, const struct summary *s)
{
    cJSON *o = json_object();
    int64_t t0 = first_moment(status, history);
    json_put_text(o, "job", job->name);
    json_put_text(o, "uid", job->uid);
    json_put_bool(o, "succeeded", s->phase == PHASE_SUCCEEDED);
    json_put_text(o, "phase", phase_name(s->phase));
    json_put_text(o, "reason", s->reason);
    json_put_text(o, "message", s->message);
    put_time(o, "start_time", status->start_ms);
    put_time(o, "completion_time", status->completion_ms);
    json_put_int(o, "t0_ms", t0);
    put_seconds(o, "elapsed_seconds", true, (double)s->elapsed_ms / 1000.0);
    json_put_int(o, "ranks", s->ranks);
    json_put_int(o, "attempt", s->attempt);
    json_put_int(o, "restarts", s->restarts);
    weights_json(o, s);
    json_put(o, "accuracy", number_or_null(s->has_accuracy, s->accuracy));
    json_put(o, "loss", number_or_null(s->has_loss, s->loss));
    put_seconds(o, "recovery_seconds", s->has_recovery, s->recovery_s);
    put_seconds(o, "recovery_without_startup_seconds", s->has_started, s->started_s);
    json_put(o, "steps_lost", number_or_null(s->has_steps_lost, (double)s->steps_lost));
    json_put(o, "last_committed_step", number_or_null(s->last_committed_step >= 0, (double)s->last_committed_step));
    json_put(o, "checkpoint_interval", number_or_null(s->checkpoint_every_steps > 0, (double)s->checkpoint_every_steps));
    json_put_int(o, "ring_size", s->ring_size);
    json_put_bool(o, "self_test_ok", s->self_test_ok);
    json_put_double(o, "busbw_gbps", s->busbw_gbps);
    json_put_int(o, "bytes_reduced", s->bytes_reduced);

    cJSON *failures = json_array(), *rounds = json_array(), *members = json_array(), *series = json_array();
    for (size_t i = 0; i < history->failure_count; i++)
        json_append(failures, failure_json(history, &history->failures[i]));
    for (size_t i = 0; i < history->fence_count; i++)
        json_append(rounds, round_json(&history->fences[i]));
    for (size_t i = 0; report && i < report->member_count; i++)
        json_append(members, member_json(&report->members[i]));
    for (size_t i = 0; i < history->series_count; i++)
        json_append(series, series_json(&history->series[i], t0));
    json_put(o, "failures", failures);
    json_put(o, "rounds", rounds);
    json_put(o, "members", members);
    json_put(o, "series", series);
    return o;
}
