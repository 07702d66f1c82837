#include "cli/jobview.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/text.h"
#include "cli/line.h"
#include "cli/output.h"
#include "cli/replica.h"
#include "job/decode.h"
#include "kube/object.h"

/* ---- small texts ------------------------------------------------------------------------------------------------------- */

/* Whatever came from the cluster, in one printable line; cut at size. */
static const char *plain(const char *text, char *ret, size_t size)
{
    snprintf(ret, size, "%s", text);
    text_make_plain(ret);
    for (char *p = ret; *p; p++)
        if (*p == '\n' || *p == '\t')
            *p = ' ';
    return ret;
}

static int64_t time_at(const cJSON *object, const char *path)
{
    int64_t ms;
    return clock_parse(json_text(object, path, ""), &ms) == 0 ? ms : 0;
}

static void heading(const char *text, const struct view_style *style, struct buf *out)
{
    buf_add(out, "\n");
    struct line l = line_start(out, style->width, style->color);
    line_colored(&l, SGR_BOLD, text);
    line_end(&l);
}

/* ---- the table of jobs ------------------------------------------------------------------------------------------------- */

static size_t widest(const cJSON *const *jobs, size_t count, const char *(*text)(const cJSON *), const char *title)
{
    size_t width = strlen(title);
    for (size_t i = 0; i < count; i++)
        width = strlen(text(jobs[i])) > width ? strlen(text(jobs[i])) : width;
    return width;
}

static void job_row(const cJSON *job, int ns_width, int name_width, const struct view_style *style, int64_t now_ms, struct buf *out)
{
    char step[48] = "-", old[VIEW_AGE_MAX], text[64];
    const char *phase = json_text(job, "status.phase", "-");
    int64_t done = json_int(job, "status.progress.step", -1), total = json_int(job, "status.progress.totalSteps", 0);
    if (done >= 0 && total > 0)
        snprintf(step, sizeof step, "%lld/%lld", (long long)done, (long long)total);
    else if (done >= 0)
        snprintf(step, sizeof step, "%lld", (long long)done);
    struct line l = line_start(out, style->width, style->color);
    if (ns_width)
        line_textf(&l, "%-*.*s  ", ns_width, ns_width, kube_namespace(job));
    line_textf(&l, "%-*.*s  ", name_width, name_width, kube_name(job));
    snprintf(text, sizeof text, "%-10.20s", phase);
    text_make_plain(text);
    line_colored(&l, view_phase_color(phase), text);
    line_textf(&l, "  %-9.20s  %8lld  %15s  %5s", plain(json_text(job, "status.ready", "-"), text, sizeof text),
               (long long)json_int(job, "status.restarts", 0), step, view_age(time_at(job, "metadata.creationTimestamp"), now_ms, old));
    line_end(&l);
}

void jobview_table(const cJSON *const *jobs, size_t count, bool namespaces, const struct view_style *style, int64_t now_wall_ms,
                   struct buf *out)
{
    int ns_width = namespaces ? (int)widest(jobs, count, kube_namespace, "NAMESPACE") : 0;
    int name_width = (int)widest(jobs, count, kube_name, "NAME");
    char text[600];
    size_t at = 0;
    struct line l = line_start(out, style->width, style->color);
    if (ns_width)
        at = (size_t)snprintf(text, sizeof text, "%-*s  ", ns_width, "NAMESPACE");
    snprintf(text + at, sizeof text - at, "%-*s  %-10s  %-9s  %8s  %15s  %5s", name_width, "NAME", "PHASE", "READY", "RESTARTS", "STEP", "AGE");
    line_colored(&l, SGR_DIM, text);
    line_end(&l);
    for (size_t i = 0; i < count; i++)
        job_row(jobs[i], ns_width, name_width, style, now_wall_ms, out);
}

/* ---- ranks ------------------------------------------------------------------------------------------------------------- */

struct rank_row { int32_t rank; struct replica replica; bool there; };
struct rank_rows { struct rank_row *items; size_t count; };

static int by_rank(const void *a, const void *b)
{
    const struct rank_row *x = a, *y = b;
    int64_t rank_x = x->rank < 0 ? INT32_MAX : x->rank, rank_y = y->rank < 0 ? INT32_MAX : y->rank;
    if (rank_x != rank_y)
        return rank_x < rank_y ? -1 : 1;
    if (x->replica.role != y->replica.role)
        return x->replica.role < y->replica.role ? -1 : 1;
    return (x->replica.index > y->replica.index) - (x->replica.index < y->replica.index);
}

static struct rank_row *row_of(struct rank_rows *rows, enum job_role role, int32_t index)
{
    for (size_t i = 0; i < rows->count; i++)
        if (rows->items[i].replica.role == role && rows->items[i].replica.index == index)
            return &rows->items[i];
    return NULL;
}

/* The replicas that the job wants and those that are there; the newest pod of each. job may be NULL: it cannot be read. */
static struct rank_rows rank_rows(const struct jobview *v, const struct training_job *job)
{
    size_t wanted = job ? (size_t)job_replicas(job) : 0;
    struct rank_rows rows = { .items = xcalloc(wanted + v->pod_count + 1, sizeof *rows.items) };
    for (enum job_role role = 0; job && role < ROLE_COUNT; role++) {
        for (int32_t i = 0; job->spec.roles[role].present && i < job->spec.roles[role].replicas; i++) {
            struct rank_row *row = &rows.items[rows.count++];
            row->rank = job_rank(job, role, i);
            row->replica = (struct replica){ .role = role, .index = i, .pod = "", .node = "", .reason = "", .phase = "pending" };
            job_member_name(role, i, row->replica.member);
        }
    }
    for (size_t i = 0; i < v->pod_count; i++) {
        struct replica r;
        if (!replica_of(v->pods[i], &r))
            continue;
        struct rank_row *row = row_of(&rows, r.role, r.index);
        if (!row) {
            row = &rows.items[rows.count++];
            row->rank = -1;
        }
        if (!row->there || r.created_ms >= row->replica.created_ms)
            row->replica = r;
        row->there = true;
    }
    qsort(rows.items, rows.count, sizeof *rows.items, by_rank);
    return rows;
}

static int failures_of(const struct job_status *status, const struct replica *r)
{
    int count = 0;
    for (size_t i = 0; i < status->failure_count; i++)
        count += status->failures[i].role == r->role && status->failures[i].index == r->index;
    return count;
}

static void rank_line(const struct rank_row *row, const struct job_status *status, int member_width, int node_width,
                      const struct view_style *style, int64_t now_ms, struct buf *out)
{
    const struct replica *r = &row->replica;
    char rank[16] = "-", old[VIEW_AGE_MAX], text[128], node[128], exit[48] = "";
    bool over = phase_is_final(status->phase);
    const char *phase = !row->there && over ? "ended" : r->phase;
    if (row->rank >= 0)
        snprintf(rank, sizeof rank, "%d", row->rank);
    if (r->has_exit && r->exit_code != 0)
        snprintf(exit, sizeof exit, " (exit code %d)", r->exit_code);
    struct line l = line_start(out, style->width, style->color);
    line_textf(&l, "%4s  %-*.*s  ", rank, member_width, member_width, r->member);
    snprintf(text, sizeof text, "%-10s", phase);
    line_colored(&l, view_phase_color(phase), text);
    line_textf(&l, "  %-*.*s", node_width, node_width, *r->node ? plain(r->node, node, sizeof node) : "-");
    line_textf(&l, "  %8d  %8d  %5s", r->restarts, failures_of(status, r), view_age(r->created_ms, now_ms, old));
    line_textf(&l, "  %s", row->there ? plain(r->pod, text, sizeof text) : "-");
    if (status->ring.set && row->rank >= 0 && status->ring.straggler_rank == row->rank)
        line_colored(&l, SGR_YELLOW, "  slowest");
    if (*r->reason)
        line_colored(&l, r->ended && r->exit_code == 0 ? SGR_DIM : SGR_YELLOW, "  ");
    if (*r->reason)
        line_text(&l, plain(r->reason, text, sizeof text));
    line_text(&l, exit);
    line_end(&l);
}

static void ranks_format(const struct rank_rows *rows, const struct job_status *status, const struct view_style *style, int64_t now_ms,
                         struct buf *out)
{
    size_t member_width = strlen("MEMBER"), node_width = strlen("NODE"), shown = rows->count;
    char text[200];
    for (size_t i = 0; i < rows->count; i++) {
        member_width = strlen(rows->items[i].replica.member) > member_width ? strlen(rows->items[i].replica.member) : member_width;
        node_width = strlen(rows->items[i].replica.node) > node_width ? strlen(rows->items[i].replica.node) : node_width;
    }
    node_width = node_width < 40 ? node_width : 40;
    struct line l = line_start(out, style->width, style->color);
    snprintf(text, sizeof text, "%4s  %-*s  %-10s  %-*s  %8s  %8s  %5s  %s", "RANK", (int)member_width, "MEMBER", "PHASE", (int)node_width, "NODE",
             "RESTARTS", "FAILURES", "AGE", "POD");
    line_colored(&l, SGR_DIM, text);
    line_end(&l);
    if (style->max_rows > 0 && shown > (size_t)style->max_rows)
        shown = (size_t)style->max_rows;
    for (size_t i = 0; i < shown; i++)
        rank_line(&rows->items[i], status, (int)member_width, (int)node_width, style, now_ms, out);
    if (shown < rows->count) {
        l = line_start(out, style->width, style->color);
        snprintf(text, sizeof text, "and %zu more", rows->count - shown);
        line_colored(&l, SGR_DIM, text);
        line_end(&l);
    }
}

/* ---- the sections ------------------------------------------------------------------------------------------------------ */

static void conditions_format(const struct jobview *v, const struct view_style *style, struct buf *out)
{
    const cJSON *list = json_at(v->job, "status.conditions"), *item;
    char type[40], reason[64], message[600], old[VIEW_AGE_MAX];
    if (!cJSON_IsArray(list) || !list->child)
        return;
    heading("Conditions:", style, out);
    cJSON_ArrayForEach(item, list) {
        bool is_true = strcmp(json_text(item, "status", ""), "True") == 0;
        struct line l = line_start(out, style->width, style->color);
        plain(json_text(item, "type", ""), type, sizeof type);
        line_textf(&l, "  %-14s ", type);
        line_colored(&l, is_true ? view_phase_color(type) : SGR_DIM, is_true ? "True  " : "False ");
        line_textf(&l, " %5s  %-24s  %s", view_age(time_at(item, "lastTransitionTime"), v->now_wall_ms, old),
                   plain(json_text(item, "reason", ""), reason, sizeof reason), plain(json_text(item, "message", ""), message, sizeof message));
        line_end(&l);
    }
}

static void ring_format(const struct job_status *status, const struct view_style *style, int64_t now_ms, struct buf *out)
{
    char size[TEXT_SIZE_MAX], old[VIEW_AGE_MAX], members[600];
    if (!status->ring.set)
        return;
    heading("Ring:", style, out);
    struct line l = line_start(out, style->width, style->color);
    line_textf(&l, "  %d ranks, self-test ", status->ring.size);
    line_colored(&l, status->ring.self_test_ok ? SGR_GREEN : SGR_RED, status->ring.self_test_ok ? "passed" : "not passed");
    if (status->ring.formed_ms)
        line_textf(&l, ", formed %s ago", view_age(status->ring.formed_ms, now_ms, old));
    if (status->ring.operations > 0)
        line_textf(&l, "; %s reduced in %lld operations", text_bytes((uint64_t)status->ring.bytes_reduced, size), (long long)status->ring.operations);
    if (status->ring.busbw_gbps > 0)
        line_textf(&l, ", busbw %.2f GB/s", status->ring.busbw_gbps);
    line_end(&l);
    if (status->ring.step_ms > 0) {
        l = line_start(out, style->width, style->color);
        line_textf(&l, "  a step takes a rank %.1f ms of its own (median), the slowest", status->ring.step_ms);
        if (status->ring.straggler_rank >= 0)
            line_textf(&l, ", rank %d,", status->ring.straggler_rank);
        line_textf(&l, " %.1f ms", status->ring.slowest_step_ms);
        line_end(&l);
    }
    if (status->ring.members[0]) {
        l = line_start(out, style->width, style->color);
        line_textf(&l, "  in the order %s", plain(status->ring.members, members, sizeof members));
        line_end(&l);
    }
}

static void checkpoint_format(const struct job_status *status, const struct view_style *style, int64_t now_ms, struct buf *out)
{
    char old[VIEW_AGE_MAX], uri[520];
    if (!status->checkpoint.set)
        return;
    heading("Checkpoint:", style, out);
    struct line l = line_start(out, style->width, style->color);
    line_textf(&l, "  step %lld, %s ago, attempt %d%s  %s", (long long)status->checkpoint.step, view_age(status->checkpoint.time_ms, now_ms, old),
               status->checkpoint.attempt, status->checkpoint.verified ? ", verified" : "", plain(status->checkpoint.uri, uri, sizeof uri));
    line_end(&l);
}

/* The last line of a log tail says most. */
static const char *last_line(const char *text, char *ret, size_t size)
{
    size_t end = strlen(text), from;
    while (end > 0 && (text[end - 1] == '\n' || text[end - 1] == ' '))
        end--;
    for (from = end; from > 0 && text[from - 1] != '\n'; from--)
        continue;
    snprintf(ret, size, "%.*s", (int)(end - from), text + from);
    return ret;
}

static void failures_format(const struct job_status *status, const struct view_style *style, int64_t now_ms, struct buf *out)
{
    char member[80], old[VIEW_AGE_MAX], reason[64], node[128], tail[1024], message[1024], evidence[256];
    if (status->failure_count)
        heading("Failures:", style, out);
    for (size_t i = 0; i < status->failure_count; i++) {
        const struct failure *f = &status->failures[i];
        job_member_name(f->role, f->index, member);
        struct line l = line_start(out, style->width, style->color);
        line_textf(&l, "  %5s  %-12s  attempt %d round %d  ", view_age(f->time_ms, now_ms, old), member, f->attempt, f->round);
        if (f->rank.set)
            line_textf(&l, "rank %lld  ", (long long)f->rank.value);
        line_colored(&l, SGR_RED, plain(f->reason, reason, sizeof reason));
        line_textf(&l, " (%s)", failure_class_name(f->class));
        if (f->signal)
            line_textf(&l, "  signal %d", f->signal);
        else if (f->has_exit)
            line_textf(&l, "  exit code %d", f->exit_code);
        if (f->node[0])
            line_textf(&l, "  on %s", plain(f->node, node, sizeof node));
        if (f->lost_steps.set)
            line_textf(&l, "  %lld steps lost", (long long)f->lost_steps.value);
        line_end(&l);
        if (f->message[0]) {
            l = line_start(out, style->width, style->color);
            line_textf(&l, "         %s", plain(last_line(f->message, tail, sizeof tail), message, sizeof message));
            line_end(&l);
        }
        if (f->evidence[0]) {
            l = line_start(out, style->width, style->color);
            line_textf(&l, "         evidence in %s", plain(f->evidence, evidence, sizeof evidence));
            line_end(&l);
        }
    }
}

/* ---- events ------------------------------------------------------------------------------------------------------------ */

int64_t jobview_event_ms(const cJSON *event)
{
    static const char *const PATHS[] = { "series.lastObservedTime", "lastTimestamp", "eventTime", "firstTimestamp",
                                         "metadata.creationTimestamp" };
    for (size_t i = 0; i < COUNT(PATHS); i++) {
        int64_t ms = time_at(event, PATHS[i]);
        if (ms)
            return ms;
    }
    return 0;
}

static int by_time(const void *a, const void *b)
{
    int64_t x = jobview_event_ms(*(const cJSON *const *)a), y = jobview_event_ms(*(const cJSON *const *)b);
    return (x > y) - (x < y);
}

static void event_line(const cJSON *event, const char *job, const struct view_style *style, int64_t now_ms, struct buf *out)
{
    char old[VIEW_AGE_MAX], reason[128], message[1000], object[300];
    int64_t count = json_int(event, "count", json_int(event, "series.count", 1));
    bool warning = strcmp(json_text(event, "type", ""), "Warning") == 0;
    const char *name = json_text(event, "involvedObject.name", "");
    struct line l = line_start(out, style->width, style->color);
    line_textf(&l, "  %5s", view_age(jobview_event_ms(event), now_ms, old));
    if (count > 1)
        line_textf(&l, " x%-3lld", (long long)count);
    else
        line_text(&l, "     ");
    line_colored(&l, warning ? SGR_YELLOW : SGR_DIM, warning ? " Warning  " : " Normal   ");
    line_textf(&l, "%-22s  ", plain(json_text(event, "reason", ""), reason, sizeof reason));
    if (strcmp(name, job) != 0)
        line_textf(&l, "%s: ", plain(name, object, sizeof object));
    line_text(&l, plain(json_text(event, "message", ""), message, sizeof message));
    line_end(&l);
}

void jobview_events(const cJSON *const *events, size_t count, const char *job, const struct view_style *style, int64_t now_wall_ms,
                    struct buf *out)
{
    auto_free const cJSON **sorted = xcalloc(count + 1, sizeof *sorted);
    memcpy(sorted, events, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, by_time);
    for (size_t i = 0; i < count; i++)
        event_line(sorted[i], job, style, now_wall_ms, out);
}

static void events_format(const struct jobview *v, const struct view_style *style, struct buf *out)
{
    if (v->event_count == 0)
        return;
    auto_free const cJSON **sorted = xcalloc(v->event_count, sizeof *sorted);
    memcpy(sorted, v->events, v->event_count * sizeof *sorted);
    qsort(sorted, v->event_count, sizeof *sorted, by_time);
    size_t from = v->event_count > v->events_shown ? v->event_count - v->events_shown : 0;
    heading(from ? "Last events:" : "Events:", style, out);
    jobview_events(sorted + from, v->event_count - from, kube_name(v->job), style, v->now_wall_ms, out);
}

/* ---- all of it --------------------------------------------------------------------------------------------------------- */

static void progress_fill(const struct job_status *status, struct view *w)
{
    if (status->ring.set) {
        w->ring_size = status->ring.size;
        w->busbw_gbps = status->ring.busbw_gbps;
    }
    if (status->checkpoint.set)
        w->checkpoint_step = status->checkpoint.step;
    if (!status->progress.set)
        return;
    w->step = status->progress.step;
    w->total_steps = status->progress.total_steps;
    w->steps_per_second = status->progress.steps_per_second;
    w->has_loss = status->progress.has_loss;
    w->loss = status->progress.loss;
    w->eta_s = status->progress.eta_s > 0 ? status->progress.eta_s : -1;
}

static struct view picture_of(const cJSON *job, const struct job_status *status, int64_t now_ms)
{
    struct view w = { .job = kube_name(job), .phase = status->phase, .attempt = status->attempt, .round = status->round,
                      .restarts = status->restarts, .step = -1, .total_steps = -1, .eta_s = -1, .checkpoint_step = -1 };
    int64_t end = status->completion_ms ? status->completion_ms : now_ms;
    w.elapsed_ms = status->start_ms && end > status->start_ms ? end - status->start_ms : 0;
    progress_fill(status, &w);
    return w;
}

static void status_read(const cJSON *job, struct job_status *ret)
{
    struct error e = ERROR_INIT;
    if (status_decode(json_at(job, "status"), ret, &e) < 0)
        status_init(ret); /* of another version of us: the conditions are shown as they stand */
}

void jobview_format(const struct jobview *v, const struct view_style *style, struct buf *out)
{
    auto_free struct job_status *status = xcalloc(1, sizeof *status);
    auto_free struct problems *problems = xcalloc(1, sizeof *problems);
    auto_job struct training_job *job = NULL;
    struct error e = ERROR_INIT;
    status_read(v->job, status);
    if (job_decode(v->job, NULL, problems, &job, &e) < 0)
        job = NULL; /* its pods, if any, are shown without ranks */
    struct view w = picture_of(v->job, status, v->now_wall_ms);
    view_header(&w, style, out);
    struct rank_rows rows = rank_rows(v, job);
    ranks_format(&rows, status, style, v->now_wall_ms, out);
    free(rows.items);
    view_bar(&w, style, out);
    conditions_format(v, style, out);
    ring_format(status, style, v->now_wall_ms, out);
    checkpoint_format(status, style, v->now_wall_ms, out);
    failures_format(status, style, v->now_wall_ms, out);
    events_format(v, style, out);
}

void jobview_line(const cJSON *job, bool progress, struct buf *out)
{
    auto_free struct job_status *status = xcalloc(1, sizeof *status);
    char ready[40];
    status_read(job, status);
    struct view w = picture_of(job, status, 0);
    buf_addf(out, "%s: %s, attempt %d round %d, %s ready", w.job, phase_name(w.phase), w.attempt, w.round,
             plain(json_text(job, "status.ready", "none"), ready, sizeof ready));
    if (progress && w.step >= 0) {
        buf_add(out, ", ");
        view_progress_line(&w, out);
    }
}
