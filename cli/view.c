#include "cli/view.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "cli/line.h"
#include "job/coordinate.h"

#define STEP_COLUMN 15
#define BAR_MAX 40

static const char *phase_of_process(enum process_state state, int32_t restarts)
{
    switch (state) {
    case PROCESS_WAITING: return restarts > 0 ? "restarting" : "waiting";
    case PROCESS_STARTING: return "starting";
    case PROCESS_RUNNING: return "running";
    case PROCESS_STOPPING: return "stopping";
    case PROCESS_DONE: return "done";
    case PROCESS_FAILED: return "failed";
    case PROCESS_LOST: return "lost";
    }
    return "unknown";
}

/* The pod has the last word when it ended or is not there yet; between these the coordinator knows better. */
static const char *phase_of_member(const struct view_pod *pod, const struct member_report *m, bool job_is_over)
{
    if (!pod && job_is_over)
        return m && m->state == PROCESS_DONE ? "done" : "ended"; /* and cleaned up */
    if (!pod)
        return "pending";
    if (pod->phase == POD_SUCCEEDED)
        return "done";
    if (pod->phase == POD_FAILED)
        return "failed";
    if (pod->deleting)
        return "stopping";
    return m ? phase_of_process(m->state, m->restarts) : "starting";
}

static void member_build(struct view_member *row, const struct view_pod *pod, const struct member_report *m, bool job_is_over)
{
    row->step = row->total_steps = -1;
    row->phase = phase_of_member(pod, m, job_is_over);
    if (!m)
        return;
    row->step = m->step;
    row->total_steps = m->total_steps;
    row->has_loss = m->has_loss;
    row->loss = m->loss;
    row->step_ms = m->step_ms;
    row->bytes_reduced = m->bytes_reduced;
    row->restarts = m->restarts;
}

static const struct member_report *report_member(const struct coordinator_report *report, const char *name)
{
    for (size_t i = 0; report && i < report->member_count; i++)
        if (strcmp(report->members[i].member, name) == 0)
            return &report->members[i];
    return NULL;
}

static void progress_build(const struct coordinator_report *report, struct view *v)
{
    struct job_progress p = { .step = -1, .total_steps = -1, .eta_s = -1 };
    if (report)
        coordinate_progress(report, &p);
    v->step = p.step;
    v->total_steps = p.total_steps;
    v->eta_s = p.eta_s;
    v->steps_per_second = p.steps_per_second;
    v->has_loss = p.has_loss;
    v->loss = p.loss;
}

/* A round is as large as it was formed: the job may be about to be larger. */
static int32_t ring_size(const struct coordinator_report *report)
{
    int32_t size = 0;
    for (size_t i = 0; i < report->member_count; i++)
        size += report->members[i].rank >= 0;
    return size;
}

void view_build(const struct training_job *job, const struct job_status *status, const struct coordinator_report *report,
                const struct view_pod *pods, size_t pod_count, int64_t now_wall_ms, struct view *ret_view)
{
    struct view v = { .job = job->name, .phase = status->phase, .attempt = status->attempt, .round = status->round,
                      .restarts = status->restarts, .checkpoint_step = -1 };
    v.members = xcalloc((size_t)job_replicas(job) + 1, sizeof *v.members);
    for (int role = 0; role < ROLE_COUNT; role++) {
        int32_t replicas = job->spec.roles[role].present ? job->spec.roles[role].replicas : 0;
        for (int32_t index = 0; index < replicas; index++) {
            struct view_member *row = &v.members[v.member_count++];
            job_member_name((enum job_role)role, index, row->member);
            row->rank = job_rank(job, (enum job_role)role, index);
            const struct view_pod *pod = NULL;
            for (size_t i = 0; i < pod_count && !pod; i++)
                if (pods[i].role == (enum job_role)role && pods[i].index == index)
                    pod = &pods[i];
            member_build(row, pod, report_member(report, row->member), phase_is_final(status->phase));
        }
    }
    progress_build(report, &v);
    if (report) {
        if (report->attempt == status->attempt && report->round > v.round)
            v.round = report->round;
        v.ring_size = report->formed ? ring_size(report) : 0;
        for (size_t i = 0; i < report->member_count; i++)
            if (report->members[i].busbw_gbps > v.busbw_gbps)
                v.busbw_gbps = report->members[i].busbw_gbps;
        v.checkpoint_step = report->checkpoint_step;
    } else if (status->checkpoint.set) {
        v.checkpoint_step = status->checkpoint.step;
    }
    int64_t end = status->completion_ms ? status->completion_ms : now_wall_ms;
    v.elapsed_ms = status->start_ms && end > status->start_ms ? end - status->start_ms : 0;
    *ret_view = v;
}

void view_release(struct view *v)
{
    free(v->members);
    *v = (struct view){ .members = NULL };
}

const char *view_age(int64_t since_ms, int64_t now_ms, char ret[VIEW_AGE_MAX])
{
    int64_t s = (now_ms - since_ms) / 1000;
    if (since_ms <= 0)
        snprintf(ret, VIEW_AGE_MAX, "-");
    else if (s < 120)
        snprintf(ret, VIEW_AGE_MAX, "%llds", (long long)(s > 0 ? s : 0));
    else if (s < 2 * 3600)
        snprintf(ret, VIEW_AGE_MAX, "%lldm", (long long)(s / 60));
    else if (s < 48 * 3600)
        snprintf(ret, VIEW_AGE_MAX, "%lldh", (long long)(s / 3600));
    else
        snprintf(ret, VIEW_AGE_MAX, "%lldd", (long long)(s / 86400));
    return ret;
}

const char *view_duration(int64_t ms, char ret[VIEW_DURATION_MAX])
{
    int64_t s = ms / 1000;
    if (ms < 0)
        snprintf(ret, VIEW_DURATION_MAX, "-");
    else if (ms < 10000)
        snprintf(ret, VIEW_DURATION_MAX, "%.1f s", (double)ms / 1000.0);
    else if (s < 60)
        snprintf(ret, VIEW_DURATION_MAX, "%lld s", (long long)s);
    else if (s < 3600)
        snprintf(ret, VIEW_DURATION_MAX, "%lld min %02lld s", (long long)(s / 60), (long long)(s % 60));
    else
        snprintf(ret, VIEW_DURATION_MAX, "%lld h %02lld min", (long long)(s / 3600), (long long)(s / 60 % 60));
    return ret;
}

/* ---- colours ---- */

const char *view_phase_color(const char *phase)
{
    static const struct { const char *phase, *color; } ROWS[] = {
        { "running", SGR_GREEN }, { "done", SGR_GREEN }, { "failed", SGR_RED }, { "lost", SGR_RED },
        { "restarting", SGR_YELLOW }, { "stopping", SGR_YELLOW }, { "starting", SGR_CYAN }, { "Running", SGR_GREEN },
        { "Succeeded", SGR_GREEN }, { "Failed", SGR_RED }, { "Restarting", SGR_YELLOW }, { "Suspended", SGR_YELLOW },
        { "Starting", SGR_CYAN }, { "Pending", SGR_CYAN }, { "Queued", SGR_CYAN },
    };
    for (size_t i = 0; i < COUNT(ROWS); i++)
        if (strcmp(ROWS[i].phase, phase) == 0)
            return ROWS[i].color;
    return SGR_DIM;
}

/* ---- members ---- */

static int name_width(const struct view *v)
{
    size_t width = strlen("MEMBER");
    for (size_t i = 0; i < v->member_count; i++)
        if (strlen(v->members[i].member) > width)
            width = strlen(v->members[i].member);
    return (int)(width < 24 ? width : 24);
}

static void step_text(const struct view_member *m, char *ret, size_t size)
{
    if (m->step < 0)
        snprintf(ret, size, "-");
    else if (m->total_steps > 0)
        snprintf(ret, size, "%lld/%lld", (long long)m->step, (long long)m->total_steps);
    else
        snprintf(ret, size, "%lld", (long long)m->step);
}

static void member_format(const struct view_member *m, int width, const struct view_style *style, struct buf *out)
{
    char text[160], step[48], loss[32] = "-", time[32] = "-", size[TEXT_SIZE_MAX];
    step_text(m, step, sizeof step);
    if (m->has_loss)
        snprintf(loss, sizeof loss, "%.4f", m->loss);
    if (m->step_ms > 0)
        snprintf(time, sizeof time, m->step_ms < 100 ? "%.1f ms" : "%.0f ms", m->step_ms);
    text_bytes((uint64_t)m->bytes_reduced, size);

    struct line l = line_start(out, style->width, style->color);
    snprintf(text, sizeof text, "%-*.*s  ", width, width, m->member);
    line_text(&l, text);
    snprintf(text, sizeof text, "%-10s", m->phase);
    line_colored(&l, view_phase_color(m->phase), text);
    snprintf(text, sizeof text, " %*s  %10s  %9s  %10s  %8d", STEP_COLUMN, step, loss, time,
             m->bytes_reduced > 0 ? size : "-", m->restarts);
    line_text(&l, text);
    line_end(&l);
}

int view_table(const struct view *v, const struct view_style *style, struct buf *out)
{
    int width = name_width(v), lines = 1;
    char text[160];
    struct line l = line_start(out, style->width, style->color);
    snprintf(text, sizeof text, "%-*s  %-10s %*s  %10s  %9s  %10s  %8s", width, "MEMBER", "PHASE", STEP_COLUMN, "STEP", "LOSS",
             "STEP TIME", "REDUCED", "RESTARTS");
    line_colored(&l, SGR_DIM, text);
    line_end(&l);

    size_t shown = v->member_count;
    if (style->max_rows > 0 && shown > (size_t)style->max_rows)
        shown = (size_t)style->max_rows;
    for (size_t i = 0; i < shown; i++, lines++)
        member_format(&v->members[i], width, style, out);
    if (shown < v->member_count) {
        snprintf(text, sizeof text, "and %zu more", v->member_count - shown);
        l = line_start(out, style->width, style->color);
        line_colored(&l, SGR_DIM, text);
        line_end(&l);
        lines++;
    }
    return lines;
}

/* ---- header and bar ---- */

void view_header(const struct view *v, const struct view_style *style, struct buf *out)
{
    char text[256], elapsed[VIEW_DURATION_MAX];
    struct line l = line_start(out, style->width, style->color);
    line_colored(&l, SGR_BOLD, v->job);
    line_text(&l, "  ");
    line_colored(&l, view_phase_color(phase_name(v->phase)), phase_name(v->phase));
    snprintf(text, sizeof text, "  attempt %d round %d", v->attempt, v->round);
    line_text(&l, text);
    if (v->ring_size > 0) {
        snprintf(text, sizeof text, "  ring of %d", v->ring_size);
        line_text(&l, text);
    }
    if (v->busbw_gbps > 0) {
        snprintf(text, sizeof text, "  busbw %.2f GB/s", v->busbw_gbps);
        line_text(&l, text);
    }
    if (v->checkpoint_step >= 0) {
        snprintf(text, sizeof text, "  checkpoint at %lld", (long long)v->checkpoint_step);
        line_text(&l, text);
    }
    if (v->restarts > 0) {
        snprintf(text, sizeof text, "  restarts %d", v->restarts);
        line_text(&l, text);
    }
    snprintf(text, sizeof text, "  %s", view_duration(v->elapsed_ms, elapsed));
    line_text(&l, text);
    line_end(&l);
}

static double fraction_done(const struct view *v)
{
    if (v->step < 0 || v->total_steps <= 0)
        return -1;
    double f = (double)v->step / (double)v->total_steps;
    return f > 1 ? 1 : f;
}

void view_bar(const struct view *v, const struct view_style *style, struct buf *out)
{
    struct line l = line_start(out, style->width, style->color);
    double fraction = fraction_done(v);
    int width = style->width - 50;
    if (fraction >= 0 && width >= 10) {
        width = width < BAR_MAX ? width : BAR_MAX;
        line_bar(&l, width, fraction, style->unicode);
        line_text(&l, " ");
    }
    auto_buf struct buf text = BUF_INIT(512);
    view_progress_line(v, &text);
    line_text(&l, text.len ? buf_text(&text) : phase_is_final(v->phase) ? "" : "waiting for the first step");
    line_end(&l);
}

void view_progress_line(const struct view *v, struct buf *out)
{
    char eta[VIEW_DURATION_MAX];
    if (v->step < 0)
        return;
    double fraction = fraction_done(v);
    if (fraction >= 0)
        buf_addf(out, "step %lld/%lld (%d %%)", (long long)v->step, (long long)v->total_steps, (int)(fraction * 100));
    else
        buf_addf(out, "step %lld", (long long)v->step);
    if (v->has_loss)
        buf_addf(out, "  loss %.4f", v->loss);
    if (v->steps_per_second > 0)
        buf_addf(out, "  %.1f steps/s", v->steps_per_second);
    if (v->eta_s >= 0 && fraction < 1)
        buf_addf(out, "  eta %s", view_duration(v->eta_s * 1000, eta));
}

int view_format(const struct view *v, const struct view_style *style, struct buf *out)
{
    int lines = 2;
    view_header(v, style, out);
    lines += view_table(v, style, out);
    view_bar(v, style, out);
    if (v->note) {
        struct line l = line_start(out, style->width, style->color);
        line_colored(&l, SGR_YELLOW, v->note);
        line_end(&l);
        lines++;
    }
    return lines;
}

static const struct view_member *same_member(const struct view *v, const struct view_member *m)
{
    for (size_t i = 0; i < v->member_count; i++)
        if (strcmp(v->members[i].member, m->member) == 0)
            return &v->members[i];
    return NULL;
}

void view_changes(const struct view *before, const struct view *now, struct buf *out)
{
    if (before->phase != now->phase || before->attempt != now->attempt || before->round != now->round ||
        before->ring_size != now->ring_size) {
        buf_addf(out, "%s: %s, attempt %d round %d", now->job, phase_name(now->phase), now->attempt, now->round);
        if (now->ring_size > 0)
            buf_addf(out, ", ring of %d", now->ring_size);
        buf_add(out, "\n");
    }
    for (size_t i = 0; i < now->member_count; i++) {
        const struct view_member *m = &now->members[i], *was = same_member(before, m);
        if (was && was->phase && strcmp(was->phase, m->phase) != 0)
            buf_addf(out, "%s: %s %s\n", now->job, m->member, m->phase);
        if (was && m->restarts > was->restarts)
            buf_addf(out, "%s: %s was started again (%d)\n", now->job, m->member, m->restarts);
    }
    if (now->checkpoint_step > before->checkpoint_step)
        buf_addf(out, "%s: checkpoint of step %lld committed\n", now->job, (long long)now->checkpoint_step);
}

int view_rows(const char *text, int width)
{
    int rows = 0, column = 0;
    for (const char *p = text; *p; p++) {
        if (*p == '\033') {
            while (p[1] && *p != 'm')
                p++;
        } else if (*p == '\n') {
            rows += column > width && width > 0 ? (column + width - 1) / width : 1;
            column = 0;
        } else if (((unsigned char)*p & 0xc0) != 0x80) {
            column++;
        }
    }
    return rows;
}

void view_log_prefix(const char *member, int width, bool color, struct buf *out)
{
    static const char *const COLORS[] = { "\033[36m", "\033[33m", "\033[32m", "\033[35m", "\033[34m", "\033[96m", "\033[93m",
                                          "\033[92m", "\033[95m", "\033[94m" };
    unsigned sum = 0;
    for (const char *p = member; *p; p++)
        sum = sum * 31 + (unsigned char)*p;
    if (color)
        buf_add(out, COLORS[sum % COUNT(COLORS)]);
    buf_addf(out, "[%s]", member);
    for (int i = (int)strlen(member); i < width; i++)
        buf_add(out, " ");
    buf_add(out, color ? SGR_RESET " " : " ");
}
