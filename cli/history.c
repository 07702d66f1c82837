#include "cli/history.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

void history_init(struct history *h)
{
    memset(h, 0, sizeof *h);
}

void history_release(struct history *h)
{
    for (size_t i = 0; i < h->series_count; i++)
        free(h->series[i].samples);
    free(h->series);
    history_init(h);
}

static struct history_series *series_of(struct history *h, const char *member, int32_t rank)
{
    for (size_t i = 0; i < h->series_count; i++)
        if (strcmp(h->series[i].member, member) == 0)
            return &h->series[i];
    if (h->series_count >= REPORT_MAX_MEMBERS)
        return NULL;
    h->series = xrealloc(h->series, h->series_count + 1, sizeof *h->series);
    struct history_series *s = &h->series[h->series_count++];
    *s = (struct history_series){ .rank = rank, .stride = 1, .last_step = -1 };
    snprintf(s->member, sizeof s->member, "%s", member);
    return s;
}

static void series_thin(struct history_series *s)
{
    size_t kept = 0;
    for (size_t i = 0; i < s->count; i += 2)
        s->samples[kept++] = s->samples[i];
    s->count = kept;
    s->stride *= 2;
}

/* True when the sample was new (a step other than the last). */
static bool series_add(struct history_series *s, const struct history_sample *sample)
{
    if (sample->step < 0 || sample->step == s->last_step)
        return false;
    bool went_back = sample->step < s->last_step; /* resumed from a checkpoint: never thinned away */
    s->last_step = sample->step;
    if (!went_back && ++s->skipped < s->stride)
        return true;
    s->skipped = 0;
    if (s->count == HISTORY_SAMPLES_MAX)
        series_thin(s);
    if (!s->samples)
        s->samples = xcalloc(HISTORY_SAMPLES_MAX, sizeof *s->samples);
    s->samples[s->count++] = *sample;
    return true;
}

static struct history_fence *fence_find(struct history *h, int32_t attempt, int32_t round)
{
    for (size_t i = h->fence_count; i-- > 0;)
        if (h->fences[i].attempt == attempt && h->fences[i].round == round)
            return &h->fences[i];
    return NULL;
}

static struct history_fence *fence_of(struct history *h, int32_t attempt, int32_t round)
{
    struct history_fence *f = fence_find(h, attempt, round);
    if (f)
        return f;
    if (h->fence_count == HISTORY_FENCES_MAX) {
        memmove(h->fences, h->fences + 1, sizeof h->fences - sizeof h->fences[0]);
        h->fence_count--;
    }
    f = &h->fences[h->fence_count++];
    *f = (struct history_fence){ .attempt = attempt, .round = round, .resume_step = -1, .peak_step = -1 };
    return f;
}

static bool fence_after(int32_t attempt, int32_t round, const struct failure *f)
{
    return attempt > f->attempt || (attempt == f->attempt && round > f->round);
}

/* A failure is over when every member of the ring runs a process that was started after it and has made a step. */
static bool failure_follow(struct history_failure *f, const struct coordinator_report *r)
{
    if (f->recovered_ms || !r->formed || !fence_after(r->attempt, r->round, &f->cause))
        return false;
    if (!f->resume_known) {
        f->resume_known = true;
        f->resume_step = r->resume_step;
    }
    int64_t started = 0, stepped = 0;
    bool all_started = true, all_stepped = true;
    for (size_t i = 0; i < r->member_count; i++) {
        const struct member_report *m = &r->members[i];
        if (m->rank < 0)
            continue;
        bool member_started = m->started_ms > f->cause.time_ms;
        bool member_stepped = member_started && m->first_step_ms > f->cause.time_ms;
        all_started &= member_started;
        all_stepped &= member_stepped;
        if (member_started && m->started_ms > started)
            started = m->started_ms;
        if (member_stepped && m->first_step_ms > stepped)
            stepped = m->first_step_ms;
    }
    if (all_started && started)
        f->started_ms = started;
    if (all_stepped && stepped)
        f->recovered_ms = stepped;
    return f->recovered_ms != 0;
}

static void sample_line(const struct history_series *s, const struct history_sample *sample, struct buf *lines)
{
    buf_addf(lines, "{\"time\":%lld,\"member\":", (long long)sample->time_ms);
    buf_add_json_string(lines, s->member);
    buf_addf(lines, ",\"rank\":%d,\"step\":%lld", s->rank, (long long)sample->step);
    if (sample->has_loss && isfinite(sample->loss))
        buf_addf(lines, ",\"loss\":%.9g", sample->loss);
    if (sample->step_ms > 0 && isfinite(sample->step_ms))
        buf_addf(lines, ",\"step_ms\":%.6g", sample->step_ms);
    buf_add(lines, "}\n");
}

static void failure_line(const struct history_failure *f, struct buf *lines)
{
    const struct failure *c = &f->cause;
    buf_addf(lines, "{\"time\":%lld,\"event\":\"failure\",\"attempt\":%d,\"round\":%d,\"role\":\"%s\",\"index\":%d",
             (long long)c->time_ms, c->attempt, c->round, role_name(c->role), c->index);
    if (c->has_exit)
        buf_addf(lines, ",\"exit_code\":%d,\"signal\":%d", c->exit_code, c->signal);
    buf_add(lines, ",\"reason\":");
    buf_add_json_string(lines, c->reason);
    buf_add(lines, ",\"message\":");
    buf_add_json_string(lines, c->message);
    buf_addf(lines, ",\"class\":\"%s\",\"step_before\":%lld", failure_class_name(c->class), (long long)f->step_before);
    if (f->resume_known)
        buf_addf(lines, ",\"resume_step\":%lld", (long long)f->resume_step);
    if (c->lost_steps.set)
        buf_addf(lines, ",\"lost_steps\":%lld", (long long)c->lost_steps.value);
    if (c->rank.set)
        buf_addf(lines, ",\"rank\":%lld", (long long)c->rank.value);
    if (c->evidence[0]) {
        buf_add(lines, ",\"evidence\":");
        buf_add_json_string(lines, c->evidence);
    }
    buf_addf(lines, ",\"started\":%lld,\"recovered\":%lld}\n", (long long)f->started_ms, (long long)f->recovered_ms);
}

static void fence_line(const struct history_fence *f, struct buf *lines)
{
    buf_addf(lines, "{\"time\":%lld,\"event\":\"formed\",\"attempt\":%d,\"round\":%d,\"resume_step\":%lld,"
             "\"self_test_ok\":%s,\"form_seconds\":%.6g}\n", (long long)f->formed_ms, f->attempt, f->round,
             (long long)f->resume_step, f->self_test_ok ? "true" : "false", f->form_seconds);
}

static void fence_report(struct history *h, const struct coordinator_report *r, struct buf *lines)
{
    struct history_fence *f = fence_of(h, r->attempt, r->round);
    if (r->formed && f->formed_ms != r->formed_ms) {
        f->formed_ms = r->formed_ms;
        f->form_seconds = r->form_seconds;
        f->self_test_ok = r->self_test_ok;
        f->resume_step = r->resume_step;
        if (lines)
            fence_line(f, lines);
    }
}

void history_report(struct history *h, const struct coordinator_report *r, int64_t now_wall_ms, struct buf *lines)
{
    if (r->round > 0) /* 0: members are still gathering for the first one */
        fence_report(h, r, lines);
    struct history_fence *fence = fence_find(h, r->attempt, r->round);
    for (size_t i = 0; i < r->member_count; i++) {
        const struct member_report *m = &r->members[i];
        struct history_series *s = series_of(h, m->member, m->rank);
        struct history_sample sample = { .time_ms = now_wall_ms, .step = m->step, .has_loss = m->has_loss, .loss = m->loss,
                                         .step_ms = m->step_ms };
        if (!s || !series_add(s, &sample))
            continue;
        if (fence && m->rank >= 0 && m->step > fence->peak_step)
            fence->peak_step = m->step;
        if (lines)
            sample_line(s, &sample, lines);
    }
    for (size_t i = 0; i < h->failure_count; i++)
        if (failure_follow(&h->failures[i], r) && lines)
            failure_line(&h->failures[i], lines);
}

static struct history_failure *failure_find(struct history *h, const struct failure *f)
{
    for (size_t i = 0; i < h->failure_count; i++) {
        const struct failure *have = &h->failures[i].cause;
        if (have->attempt == f->attempt && have->round == f->round && have->role == f->role && have->index == f->index &&
            have->time_ms / 1000 == f->time_ms / 1000) /* status keeps whole seconds when it was read back */
            return &h->failures[i];
    }
    return NULL;
}

static struct history_failure *failure_add(struct history *h, const struct failure *f)
{
    if (h->failure_count == HISTORY_FAILURES_MAX) {
        memmove(h->failures, h->failures + 1, sizeof h->failures - sizeof h->failures[0]);
        h->failure_count--;
        h->failures_dropped = true;
    }
    struct history_failure *ret = &h->failures[h->failure_count++];
    *ret = (struct history_failure){ .cause = *f, .step_before = -1, .resume_step = -1 };
    return ret;
}

void history_failures(struct history *h, const struct job_status *status, struct buf *lines)
{
    for (size_t i = 0; i < status->failure_count; i++) {
        if (failure_find(h, &status->failures[i]))
            continue;
        struct history_failure *f = failure_add(h, &status->failures[i]);
        const struct history_fence *fence = fence_find(h, f->cause.attempt, f->cause.round);
        f->step_before = fence ? fence->peak_step : -1;
        if (lines)
            failure_line(f, lines);
    }
}

static bool steps_are_told(const struct history *h)
{
    for (size_t i = 0; i < h->series_count; i++)
        if (h->series[i].last_step >= 0)
            return true;
    return false;
}

int64_t history_steps_lost(const struct history *h, const struct history_failure *f)
{
    if (f->cause.lost_steps.set)
        return f->cause.lost_steps.value;
    if (!f->resume_known || (f->step_before < 0 && !steps_are_told(h)))
        return -1;
    int64_t from = f->resume_step > 0 ? f->resume_step : 0;
    return f->step_before > from ? f->step_before - from : 0;
}

/* ---- reading back ---- */

static void read_sample(struct history *h, const cJSON *tree)
{
    const char *member = json_text(tree, "member", NULL);
    if (!member)
        return;
    struct history_series *s = series_of(h, member, (int32_t)json_int(tree, "rank", -1));
    const cJSON *loss = json_at(tree, "loss");
    struct history_sample sample = { .time_ms = json_int(tree, "time", 0), .step = json_int(tree, "step", -1),
                                     .has_loss = cJSON_IsNumber(loss), .loss = json_double(tree, "loss", 0),
                                     .step_ms = json_double(tree, "step_ms", 0) };
    if (!s || !series_add(s, &sample) || s->rank < 0 || h->fence_count == 0)
        return;
    struct history_fence *fence = &h->fences[h->fence_count - 1];
    if (sample.step > fence->peak_step)
        fence->peak_step = sample.step;
}

static enum failure_class class_parse(const char *text)
{
    for (int c = FAILURE_USER; c <= FAILURE_HARDWARE; c++)
        if (strcmp(failure_class_name((enum failure_class)c), text) == 0)
            return (enum failure_class)c;
    return FAILURE_USER;
}

static void read_failure(struct history *h, const cJSON *tree)
{
    struct failure cause = { .attempt = (int32_t)json_int(tree, "attempt", 0), .round = (int32_t)json_int(tree, "round", 0),
                             .index = (int32_t)json_int(tree, "index", 0), .time_ms = json_int(tree, "time", 0),
                             .has_exit = cJSON_IsNumber(json_at(tree, "exit_code")),
                             .exit_code = (int32_t)json_int(tree, "exit_code", 0),
                             .signal = (int32_t)json_int(tree, "signal", 0),
                             .class = class_parse(json_text(tree, "class", "")) };
    if (!role_parse(json_text(tree, "role", ""), &cause.role))
        return;
    snprintf(cause.reason, sizeof cause.reason, "%s", json_text(tree, "reason", ""));
    snprintf(cause.message, sizeof cause.message, "%s", json_text(tree, "message", ""));
    cause.lost_steps.set = cJSON_IsNumber(json_at(tree, "lost_steps"));
    cause.lost_steps.value = json_int(tree, "lost_steps", 0);
    cause.rank.set = cJSON_IsNumber(json_at(tree, "rank"));
    cause.rank.value = json_int(tree, "rank", 0);
    snprintf(cause.evidence, sizeof cause.evidence, "%s", json_text(tree, "evidence", ""));
    struct history_failure *f = failure_find(h, &cause);
    if (!f)
        f = failure_add(h, &cause);
    f->step_before = json_int(tree, "step_before", -1);
    f->resume_known = cJSON_IsNumber(json_at(tree, "resume_step"));
    f->resume_step = json_int(tree, "resume_step", -1);
    f->started_ms = json_int(tree, "started", 0);
    f->recovered_ms = json_int(tree, "recovered", 0);
}

static void read_formed(struct history *h, const cJSON *tree)
{
    struct history_fence *f = fence_of(h, (int32_t)json_int(tree, "attempt", 0), (int32_t)json_int(tree, "round", 0));
    f->formed_ms = json_int(tree, "time", 0);
    f->resume_step = json_int(tree, "resume_step", -1);
    f->self_test_ok = json_bool(tree, "self_test_ok", false);
    f->form_seconds = json_double(tree, "form_seconds", 0);
}

void history_read(struct history *h, const char *line, size_t len)
{
    struct error e = ERROR_INIT;
    auto_json cJSON *tree = NULL;
    if (json_parse(line, len, &tree, &e) < 0)
        return; /* the last line of a runner that was killed may be half */
    const char *event = json_text(tree, "event", "");
    if (strcmp(event, "failure") == 0)
        read_failure(h, tree);
    else if (strcmp(event, "formed") == 0)
        read_formed(h, tree);
    else
        read_sample(h, tree);
}
