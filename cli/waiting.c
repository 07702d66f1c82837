#include "cli/waiting.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cli/command.h"
#include "cli/jobview.h"
#include "cli/outcome.h"

struct wait {
    struct cluster *cluster;
    const char *says, *name, *goal;
    struct objects *jobs;
    struct loop_timer *timer;
    bool tells, seen;
    int64_t timeout_ms;
    struct buf told;
    int code;                  /* -1: it goes on */
};

static void end(struct wait *w, int code)
{
    if (w->code < 0)
        w->code = code;
    cluster_stop(w->cluster);
}

static void tell(struct wait *w, const cJSON *job)
{
    auto_buf struct buf line = BUF_INIT(4096);
    jobview_line(job, false, &line);
    if (w->tells && strcmp(buf_text(&line), buf_text(&w->told)) != 0) {
        fprintf(stderr, "%s\n", buf_text(&line));
        buf_clear(&w->told);
        buf_add(&w->told, buf_text(&line));
    }
}

static void ended_otherwise(struct wait *w, const cJSON *job)
{
    char text[700];
    struct error e = ERROR_INIT;
    if (job) {
        (void)error_set(&e, ERROR_INVALID, "job %s will not be %s any more: %.400s", w->name, w->goal, outcome_text(job, text, sizeof text));
        end(w, command_fail(w->says, COMMAND_JOB_FAILED, &e));
        return;
    }
    (void)error_set(&e, ERROR_NOT_FOUND, w->seen ? "job %s was deleted" : "no job \"%.80s\" in namespace %.80s of %.300s", w->name, w->cluster->ns,
                    w->cluster->tried);
    end(w, command_fail(w->says, COMMAND_CANNOT_RUN, &e));
}

static void on_changed(void *ctx)
{
    struct wait *w = ctx;
    size_t count;
    auto_free const cJSON **jobs = objects_all(w->jobs, &count);
    const cJSON *job = count ? jobs[0] : NULL;
    if (job)
        tell(w, job);
    switch (wait_verdict_of(w->goal, job)) {
    case WAIT_ON: break;
    case WAIT_REACHED: end(w, COMMAND_OK); break;
    case WAIT_NEVER: ended_otherwise(w, job); break;
    }
    w->seen |= job != NULL;
}

static void on_failed(void *ctx, const struct error *e)
{
    struct wait *w = ctx;
    end(w, command_fail(w->says, COMMAND_CANNOT_RUN, e));
}

static void on_timeout(void *ctx)
{
    struct wait *w = ctx;
    struct error e = ERROR_INIT;
    char time[VIEW_DURATION_MAX];
    (void)error_set(&e, ERROR_TIMEOUT, "job %s is not %s after %s", w->name, w->goal, view_duration(w->timeout_ms, time));
    end(w, command_fail(w->says, COMMAND_TIMED_OUT, &e));
}

int wait_for_job(struct cluster *c, const char *says, const char *name, const char *goal, int64_t timeout_ms, bool tells)
{
    struct error e = ERROR_INIT;
    struct wait w = { .cluster = c, .says = says, .name = name, .goal = goal, .tells = tells, .timeout_ms = timeout_ms,
                      .told = BUF_INIT(4096), .code = -1 };
    auto_free char *field = xasprintf("metadata.name=%s", name);
    struct objects_def def = { .resource = &CLUSTER_JOBS, .ns = c->ns, .field_selector = field, .changed = on_changed, .failed = on_failed, .ctx = &w };
    w.timer = loop_timer_new(c->loop, on_timeout, &w);
    if (timeout_ms > 0)
        loop_timer_at(w.timer, clock_mono_ms() + timeout_ms);
    if (objects_new(c, &def, &w.jobs, &e) < 0 || cluster_run(c, &e) < 0)
        w.code = command_fail(says, COMMAND_CANNOT_RUN, &e);
    objects_free(w.jobs);
    loop_timer_free(w.timer);
    buf_release(&w.told);
    return w.code < 0 ? COMMAND_INTERRUPTED : w.code;
}
