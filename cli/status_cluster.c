#include "cli/status_cluster.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/yaml.h"
#include "cli/command.h"
#include "cli/jobdir.h"
#include "cli/jobview.h"
#include "cli/outcome.h"
#include "cli/replica.h"
#include "cli/screen.h"

#define EVENTS_SHOWN 8
#define TICK_MS 1000 /* ages and times go on between changes */

/* ---- once -------------------------------------------------------------------------------------------------------------- */

/* A list's items as an array of borrowed objects. */
static const cJSON **items_of(const cJSON *list, size_t *ret_count)
{
    const cJSON **items = xcalloc((size_t)cJSON_GetArraySize(list) + 1, sizeof *items), *item;
    size_t n = 0;
    cJSON_ArrayForEach(item, list)
        items[n++] = item;
    *ret_count = n;
    return items;
}

static void print_tree(const cJSON *tree, enum status_output output)
{
    auto_free char *text = output == STATUS_JSON ? json_print(tree, true) : yaml_print(tree);
    fputs(text, stdout);
    if (output == STATUS_JSON)
        puts("");
}

/* What names a job, and its status. */
static cJSON *brief(const cJSON *job)
{
    cJSON *o = json_object(), *metadata = json_object();
    const cJSON *status = json_at(job, "status");
    json_put_text(metadata, "name", kube_name(job));
    json_put_text(metadata, "namespace", kube_namespace(job));
    json_put(o, "metadata", metadata);
    json_put(o, "status", status ? cJSON_Duplicate(status, true) : json_object());
    return o;
}

static void print_jobs(const cJSON *list, const struct status_options *o)
{
    size_t count;
    auto_free const cJSON **jobs = items_of(list, &count);
    if (o->output == STATUS_NAME) {
        for (size_t i = 0; i < count; i++)
            puts(kube_name(jobs[i]));
    } else if (o->output == STATUS_TEXT) {
        struct view_style style = screen_stdout_style();
        auto_buf struct buf text = BUF_INIT(64u << 20);
        jobview_table(jobs, count, o->all_namespaces, &style, clock_wall_ms(), &text);
        fputs(buf_text(&text), stdout);
    } else {
        auto_json cJSON *tree = json_object();
        cJSON *items = json_array();
        for (size_t i = 0; i < count; i++)
            json_append(items, brief(jobs[i]));
        json_put(tree, "items", items);
        print_tree(tree, (enum status_output)o->output);
    }
}

static int show_all(struct cluster *c, const struct status_options *o)
{
    struct error e = ERROR_INIT;
    auto_json cJSON *list = NULL;
    if (cluster_list(c, &CLUSTER_JOBS, o->all_namespaces ? NULL : c->ns, NULL, NULL, &list, &e) < 0)
        return command_fail("status", COMMAND_CANNOT_RUN, &e);
    if (o->output == STATUS_TEXT && cJSON_GetArraySize(list) == 0)
        fprintf(stderr, "no TrainingJob %s%s of %s\n", o->all_namespaces ? "in any namespace" : "in namespace ", o->all_namespaces ? "" : c->ns, c->tried);
    else
        print_jobs(list, o);
    return COMMAND_OK;
}

/* Events are of use, but not the matter: without the right to see them the rest is shown. */
static cJSON *events_or_none(struct cluster *c, const char *field_selector)
{
    struct error ignored = ERROR_INIT;
    cJSON *events = NULL;
    return cluster_list(c, &CLUSTER_EVENTS, c->ns, NULL, field_selector, &events, &ignored) == 0 ? events : json_array();
}

static int show_one(struct cluster *c, const struct status_options *o, const char *name)
{
    struct error e = ERROR_INIT;
    auto_json cJSON *job = NULL, *pods = NULL, *events = NULL;
    if (cluster_job(c, name, &job, &e) < 0)
        return command_fail("status", COMMAND_CANNOT_RUN, &e);
    if (o->output == STATUS_NAME) {
        puts(kube_name(job));
        return COMMAND_OK;
    }
    if (o->output != STATUS_TEXT) {
        const cJSON *status = json_at(job, "status");
        auto_json cJSON *none = json_object();
        print_tree(status ? status : none, (enum status_output)o->output);
        return COMMAND_OK;
    }
    auto_free char *selector = xasprintf(REPLICA_SELECTOR "%s", name);
    auto_free char *about = xasprintf("involvedObject.kind=%s,involvedObject.name=%s", CLUSTER_JOBS.kind, name);
    if (cluster_list(c, &CLUSTER_PODS, c->ns, selector, NULL, &pods, &e) < 0)
        return command_fail("status", COMMAND_CANNOT_RUN, &e);
    events = events_or_none(c, about);
    struct jobview v = { .job = job, .events_shown = EVENTS_SHOWN, .now_wall_ms = clock_wall_ms() };
    auto_free const cJSON **pod_items = items_of(pods, &v.pod_count), **event_items = items_of(events, &v.event_count);
    struct view_style style = screen_stdout_style();
    auto_buf struct buf text = BUF_INIT(16u << 20);
    v.pods = pod_items;
    v.events = event_items;
    jobview_format(&v, &style, &text);
    fputs(buf_text(&text), stdout);
    return COMMAND_OK;
}

/* ---- as it changes ----------------------------------------------------------------------------------------------------- */

struct watching {
    struct cluster *cluster;
    const struct status_options *o;
    const char *name;                   /* NULL: all jobs */
    struct objects *jobs, *pods, *events;
    struct screen *screen;
    struct loop_timer *timer;
    bool timer_soon;                    /* it is set to SCREEN_INTERVAL_MS */
    struct buf last;                    /* what was printed last, without a terminal */
    bool seen;
    int code;
};

/* The first `rows` lines: what is above the terminal's top cannot be drawn over. */
static void cut_rows(struct buf *text, int rows)
{
    size_t at = 0;
    for (; rows > 0 && at < text->len; rows--)
        at += strcspn(buf_text(text) + at, "\n") + 1;
    if (at < text->len) {
        text->text[at] = '\0';
        text->len = at;
    }
}

static void draw_one(struct watching *w, const cJSON *job, struct buf *text)
{
    struct view_style style = screen_style(w->screen);
    struct jobview v = { .job = job, .events_shown = EVENTS_SHOWN, .now_wall_ms = clock_wall_ms() };
    if (!screen_live(w->screen)) {
        jobview_line(job, true, text);
        buf_add(text, "\n");
        return;
    }
    auto_free const cJSON **pods = objects_all(w->pods, &v.pod_count), **events = objects_all(w->events, &v.event_count);
    v.pods = pods;
    v.events = events;
    jobview_format(&v, &style, text);
}

/* Without a terminal a line is printed when it is another one. */
static void put(struct watching *w, struct buf *text)
{
    if (screen_live(w->screen)) {
        cut_rows(text, screen_style(w->screen).max_rows + 5);
        screen_picture(w->screen, buf_text(text));
    } else if (strcmp(buf_text(text), buf_text(&w->last)) != 0) {
        screen_text(w->screen, buf_text(text));
        buf_clear(&w->last);
        buf_add(&w->last, buf_text(text));
    }
}

static void draw(struct watching *w)
{
    size_t count;
    auto_free const cJSON **jobs = objects_all(w->jobs, &count);
    auto_buf struct buf text = BUF_INIT(64u << 20);
    struct view_style style = screen_style(w->screen);
    if (!w->name) {
        jobview_table(jobs, count, w->o->all_namespaces, &style, clock_wall_ms(), &text);
        put(w, &text);
        return;
    }
    if (count == 0) {
        struct error e = ERROR_INIT;
        (void)error_set(&e, ERROR_NOT_FOUND, w->seen ? "job %.80s was deleted" : "no job \"%.80s\" in namespace %.80s of %.300s", w->name,
                        w->cluster->ns, w->cluster->tried);
        w->code = command_fail("status", COMMAND_CANNOT_RUN, &e);
        cluster_stop(w->cluster);
        return;
    }
    w->seen = true;
    draw_one(w, jobs[0], &text);
    put(w, &text);
    enum outcome outcome = outcome_of(jobs[0]);
    if (outcome != OUTCOME_NONE && (!w->pods || (objects_known(w->pods) && objects_known(w->events)))) {
        w->code = outcome == OUTCOME_SUCCEEDED ? COMMAND_OK : COMMAND_JOB_FAILED;
        cluster_stop(w->cluster);
    }
}

static void on_timer(void *ctx)
{
    struct watching *w = ctx;
    w->timer_soon = false;
    if (objects_known(w->jobs))
        draw(w);
    if (screen_live(w->screen))
        loop_timer_at(w->timer, clock_mono_ms() + TICK_MS);
}

/* Many changes make one drawing. */
static void on_changed(void *ctx)
{
    struct watching *w = ctx;
    if (!w->timer_soon)
        loop_timer_at(w->timer, clock_mono_ms() + SCREEN_INTERVAL_MS);
    w->timer_soon = true;
}

static void on_failed(void *ctx, const struct error *e)
{
    struct watching *w = ctx;
    if (w->code < 0)
        w->code = command_fail("status", COMMAND_CANNOT_RUN, e);
    cluster_stop(w->cluster);
}

/* Without the right to see events the picture has none. */
static void on_no_events(void *ctx, const struct error *e)
{
    (void)ctx;
    (void)e;
}

static int follow(struct watching *w, struct error *e)
{
    const char *ns = w->o->all_namespaces ? NULL : w->cluster->ns;
    auto_free char *selector = w->name ? xasprintf(REPLICA_SELECTOR "%s", w->name) : NULL, *field = w->name ? xasprintf("metadata.name=%s", w->name) : NULL;
    auto_free char *about = w->name ? xasprintf("involvedObject.kind=%s,involvedObject.name=%s", CLUSTER_JOBS.kind, w->name) : NULL;
    struct objects_def jobs = { .resource = &CLUSTER_JOBS, .ns = ns, .field_selector = field, .changed = on_changed, .failed = on_failed, .ctx = w };
    struct objects_def pods = { .resource = &CLUSTER_PODS, .ns = ns, .label_selector = selector, .changed = on_changed, .failed = on_failed, .ctx = w };
    struct objects_def events = { .resource = &CLUSTER_EVENTS, .ns = ns, .field_selector = about, .changed = on_changed, .failed = on_no_events,
                                  .ctx = w };
    if (objects_new(w->cluster, &jobs, &w->jobs, e) < 0)
        return -1;
    if (w->name && screen_live(w->screen) &&
        (objects_new(w->cluster, &pods, &w->pods, e) < 0 || objects_new(w->cluster, &events, &w->events, e) < 0))
        return -1;
    return cluster_run(w->cluster, e);
}

static int watch(struct cluster *c, const struct status_options *o, const char *name)
{
    struct error e = ERROR_INIT;
    struct screen_options options = { .plain = false };
    struct watching w = { .cluster = c, .o = o, .name = name, .last = BUF_INIT(64u << 20), .code = -1 };
    w.screen = screen_new(STDOUT_FILENO, &options, 0);
    w.timer = loop_timer_new(c->loop, on_timer, &w);
    int rc = follow(&w, &e);
    screen_free(w.screen);
    objects_free(w.jobs);
    objects_free(w.pods);
    objects_free(w.events);
    loop_timer_free(w.timer);
    buf_release(&w.last);
    if (rc < 0)
        return command_fail("status", COMMAND_CANNOT_RUN, &e);
    return w.code >= 0 ? w.code : COMMAND_INTERRUPTED;
}

/* ---- which ------------------------------------------------------------------------------------------------------------- */

int status_cluster(const struct status_options *o, const char *name)
{
    struct error e = ERROR_INIT;
    struct cluster c = CLUSTER_INIT;
    int code;
    if (o->watch && o->output != STATUS_TEXT) {
        (void)error_set(&e, ERROR_INVALID, "-w shows a picture; with -o ask again for each answer");
        return command_usage("status", &e);
    }
    if (cluster_open(&o->cluster, &c, &e) < 0) {
        if (name)
            (void)error_wrap(&e, "%.80s is no directory with a job here, and the cluster cannot be asked", name);
        return command_fail("status", COMMAND_CANNOT_RUN, &e);
    }
    if (o->watch)
        code = watch(&c, o, name);
    else
        code = name ? show_one(&c, o, name) : show_all(&c, o);
    cluster_close(&c);
    return code;
}
