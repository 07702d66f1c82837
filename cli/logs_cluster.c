#include "cli/logs_cluster.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cli/command.h"
#include "cli/logline.h"
#include "cli/logmerge.h"
#include "cli/members.h"
#include "cli/outcome.h"
#include "cli/output.h"
#include "cli/replica.h"
#include "cli/screen.h"
#include "job/decode.h"

#define SIDECAR_CONTAINER "ringmaster"
#define LINE_MAX_BYTES 65536         /* a longer line comes in pieces */
#define WAITING_MAX_BYTES (64u << 20) /* lines that wait for their turn */
#define PATIENCE_MS 250              /* while following: a line waits so long for older ones of other ranks */
#define AGAIN_MS 500                 /* after the end of a stream whose container still runs */
#define AGAIN_MAX_MS 8000
#define TRIES 5                      /* of a log that is not followed */
#define STREAMS_MAX 1000
#define LATE_MS 1000                 /* the job has ended: so long a pod may take to be seen as started */

struct reading;

/* The log of one pod. */
struct source {
    struct source *next;
    struct reading *reading;
    char *member, *pod, *uid, *container;
    struct kube_call *call;
    struct loop_timer *timer;    /* the next try */
    size_t log;                  /* in the merge */
    struct logline_place place;
    uint32_t failures;           /* in a row */
    bool opened_ended;           /* the container had ended before this stream was opened: its end is the log's */
    bool started, ended, gone;   /* the pod, as seen last */
    bool done;
};

struct reading {
    struct cluster *cluster;
    const struct logs_options *o;
    const char *says, *name;
    struct members members;
    struct objects *jobs, *pods; /* while following */
    struct source *first, **last;
    size_t count;
    struct logmerge *merge;
    struct loop_timer *timer;    /* lines that have waited long enough */
    bool color, broken;          /* broken: nobody reads our output */
    struct loop_timer *late;
    bool late_over;
    int width;
    int code;
};

static void open_stream(struct source *s);
static void look(struct reading *r);

/* ---- lines ------------------------------------------------------------------------------------------------------------- */

static void put_line(struct reading *r, const struct logmerge_line *line)
{
    const struct source *s = line->of;
    auto_buf struct buf out = BUF_INIT(4 * LINE_MAX_BYTES);
    char time[CLOCK_TEXT_MAX];
    if (r->o->timestamps) {
        clock_format(line->time_ns / 1000000, time);
        buf_addf(&out, "%.19s.%03dZ ", time, (int)(line->time_ns / 1000000 % 1000));
    }
    if (r->width > 0) {
        view_log_prefix(s->member, r->width, r->color, &out);
        output_clean(line->text, line->len, &out);
        buf_add(&out, r->color ? "\033[0m" : "");
    } else {
        buf_add_bytes(&out, line->text, line->len);
    }
    buf_add(&out, "\n");
    fwrite(buf_text(&out), 1, out.len, stdout);
}

static void give(struct reading *r)
{
    struct logmerge_line line;
    bool any = false;
    while (logmerge_next(r->merge, clock_mono_ms(), &line)) {
        put_line(r, &line);
        any = true;
    }
    if (any && (fflush(stdout) != 0 || ferror(stdout))) {
        r->broken = true;
        cluster_stop(r->cluster);
    }
    int64_t wake_ms = logmerge_wake_ms(r->merge);
    if (wake_ms >= 0)
        loop_timer_at(r->timer, wake_ms);
}

static void on_give_timer(void *ctx)
{
    give(ctx);
}

static void on_line(void *ctx, const char *line, size_t len)
{
    struct source *s = ctx;
    int64_t ns;
    size_t at;
    bool has_time = logline_split(line, len, &ns, &at);
    if (!logline_is_new(&s->place, has_time, ns, len))
        return;
    s->failures = 0;
    logmerge_add(s->reading->merge, s->log, has_time ? ns : s->place.last_ns, line + at, len - at, clock_mono_ms());
    give(s->reading);
}

/* ---- streams ----------------------------------------------------------------------------------------------------------- */

static void note(const struct source *s, const char *text)
{
    fprintf(stderr, "ringmaster %s: %s: %s\n", s->reading->says, s->member, text);
}

static void finish(struct source *s)
{
    s->done = true;
    logmerge_rest(s->reading->merge, s->log);
    give(s->reading);
    look(s->reading);
}

static void again(struct source *s)
{
    int64_t wait_ms = s->failures < 5 ? (int64_t)AGAIN_MS << s->failures : AGAIN_MAX_MS;
    logmerge_rest(s->reading->merge, s->log);
    give(s->reading);
    loop_timer_at(s->timer, clock_mono_ms() + (wait_ms < AGAIN_MAX_MS ? wait_ms : AGAIN_MAX_MS));
}

/* What the end of a stream means for the log. */
enum closing { LOG_ENDED, LOG_GOES_ON, LOG_REFUSED };

static enum closing closing_of(const struct source *s, const struct error *why)
{
    bool follow = s->reading->o->follow;
    if (!why) /* a stream that ends while its container runs was ended by the kubelet, we do not know yet why */
        return s->opened_ended || s->gone || !follow ? LOG_ENDED : LOG_GOES_ON;
    if (why->kind == ERROR_NOT_FOUND || (s->gone && why->kind != ERROR_IO))
        return LOG_ENDED; /* the pod is gone, and its log with it */
    if (why->kind == ERROR_DENIED || (!follow && (s->failures >= TRIES || why->kind == ERROR_INVALID)))
        return LOG_REFUSED;
    return LOG_GOES_ON;
}

static void on_closed(void *ctx, struct kube_reply *reply)
{
    struct source *s = ctx;
    s->call = NULL;
    switch (closing_of(s, reply->error)) {
    case LOG_ENDED:
        finish(s);
        break;
    case LOG_GOES_ON:
        s->failures += reply->error != NULL;
        again(s);
        break;
    case LOG_REFUSED:
        note(s, reply->error->text);
        s->reading->code = COMMAND_CANNOT_RUN;
        finish(s);
        break;
    }
}

static void on_again(void *ctx)
{
    open_stream(ctx);
}

/* "since" and "tail" are of the first stream; what is opened again begins where it was. */
static void query_of(struct source *s, struct buf *query)
{
    const struct logs_options *o = s->reading->o;
    char time[CLOCK_TEXT_MAX];
    int64_t from_s = logline_again(&s->place);
    buf_addf(query, "container=%s&timestamps=true%s%s", s->container, o->follow ? "&follow=true" : "", o->previous ? "&previous=true" : "");
    if (from_s > 0) {
        clock_format(from_s * 1000, time);
        buf_addf(query, "&sinceTime=%.13s%%3A%.2s%%3A%.2sZ", time, time + 14, time + 17);
        return;
    }
    if (o->since_ms > 0)
        buf_addf(query, "&sinceSeconds=%lld", (long long)((o->since_ms + 999) / 1000));
    if (o->tail >= 0)
        buf_addf(query, "&tailLines=%lld", (long long)o->tail);
}

static void open_stream(struct source *s)
{
    struct reading *r = s->reading;
    struct error e = ERROR_INIT;
    auto_buf struct buf query = BUF_INIT(1024);
    query_of(s, &query);
    struct kube_request request = { .verb = KUBE_GET, .resource = &CLUSTER_PODS, .ns = r->cluster->ns, .name = s->pod, .subresource = "log",
                                    .query = buf_text(&query), .raw = true, .max_bytes = LINE_MAX_BYTES };
    s->opened_ended = s->ended;
    logmerge_wait(r->merge, s->log);
    if (kube_client_stream(r->cluster->client, &request, on_line, on_closed, s, &s->call, &e) == 0)
        return;
    note(s, e.text);
    r->code = COMMAND_CANNOT_RUN;
    finish(s);
}

/* ---- pods -------------------------------------------------------------------------------------------------------------- */

static struct source *source_of(struct reading *r, const char *uid)
{
    for (struct source *s = r->first; s; s = s->next)
        if (strcmp(s->uid, uid) == 0)
            return s;
    return NULL;
}

static struct source *source_new(struct reading *r, const struct replica *replica)
{
    struct source *s = xcalloc(1, sizeof *s);
    *s = (struct source){ .reading = r, .member = xstrdup(replica->member), .pod = xstrdup(replica->pod), .uid = xstrdup(replica->uid),
                          .container = xstrdup(r->o->sidecar ? SIDECAR_CONTAINER : replica->container) };
    s->timer = loop_timer_new(r->cluster->loop, on_again, s);
    s->log = logmerge_open(r->merge, s);
    logmerge_rest(r->merge, s->log); /* until its stream is open */
    *r->last = s;
    r->last = &s->next;
    r->count++;
    return s;
}

static void take_pod(struct reading *r, const cJSON *pod)
{
    struct replica replica;
    if (!replica_of(pod, &replica) || (!r->members.all && !members_have(&r->members, replica.member)))
        return;
    struct source *s = source_of(r, replica.uid);
    if (!s && r->count >= STREAMS_MAX)
        return;
    if (!s)
        s = source_new(r, &replica);
    s->gone = false;
    s->ended = replica.ended;
    bool has_log = r->o->sidecar ? *replica.node != '\0' : replica.started;
    if (!has_log || s->started)
        return;
    s->started = true;
    open_stream(s);
}

static bool over(const struct reading *r)
{
    size_t count;
    auto_free const cJSON **jobs = objects_all(r->jobs, &count);
    return count == 0 || outcome_of(jobs[0]) != OUTCOME_NONE;
}

/* The end: nothing is read any more and, while following, nothing can come. The job's end may be seen before its pods' starts. */
static void look(struct reading *r)
{
    bool unstarted = false;
    for (struct source *s = r->first; s; s = s->next) {
        if (s->started && !s->done)
            return;
        unstarted |= !s->started && !s->gone;
    }
    if (r->o->follow && (!r->jobs || !r->pods || !objects_known(r->jobs) || !objects_known(r->pods) || !over(r)))
        return;
    if (!r->o->follow || !unstarted || r->late_over)
        cluster_stop(r->cluster);
    else if (!loop_timer_armed(r->late))
        loop_timer_at(r->late, clock_mono_ms() + LATE_MS);
}

static void on_late(void *ctx)
{
    struct reading *r = ctx;
    r->late_over = true;
    look(r);
}

static void on_pods(void *ctx)
{
    struct reading *r = ctx;
    size_t count;
    auto_free const cJSON **pods = objects_all(r->pods, &count);
    for (struct source *s = r->first; s; s = s->next)
        s->gone = true;
    for (size_t i = 0; i < count; i++)
        take_pod(r, pods[i]);
    look(r);
}

static void on_jobs(void *ctx)
{
    look(ctx);
}

static void on_failed(void *ctx, const struct error *e)
{
    struct reading *r = ctx;
    if (r->code == COMMAND_OK)
        r->code = command_fail(r->says, COMMAND_CANNOT_RUN, e);
    cluster_stop(r->cluster);
}

/* ---- both ways --------------------------------------------------------------------------------------------------------- */

static int start_following(struct reading *r, struct error *e)
{
    auto_free char *selector = xasprintf(REPLICA_SELECTOR "%s", r->name), *field = xasprintf("metadata.name=%s", r->name);
    struct objects_def jobs = { .resource = &CLUSTER_JOBS, .ns = r->cluster->ns, .field_selector = field, .changed = on_jobs, .failed = on_failed,
                                .ctx = r };
    struct objects_def pods = { .resource = &CLUSTER_PODS, .ns = r->cluster->ns, .label_selector = selector, .changed = on_pods,
                                .failed = on_failed, .ctx = r };
    return objects_new(r->cluster, &jobs, &r->jobs, e) < 0 || objects_new(r->cluster, &pods, &r->pods, e) < 0 ? -1 : 0;
}

static int start_once(struct reading *r, struct error *e)
{
    auto_free char *selector = xasprintf(REPLICA_SELECTOR "%s", r->name);
    auto_json cJSON *pods = NULL;
    const cJSON *pod;
    if (cluster_list(r->cluster, &CLUSTER_PODS, r->cluster->ns, selector, NULL, &pods, e) < 0)
        return -1;
    cJSON_ArrayForEach(pod, pods)
        take_pod(r, pod);
    for (struct source *s = r->first; s; s = s->next)
        if (!s->started)
            note(s, "its container has not started yet: there is no log");
    if (r->count == 0)
        fprintf(stderr, "ringmaster %s: the job has no pods now%s\n", r->says, r->o->follow ? "" : "; -f waits for them");
    return 0;
}

static bool reads(const struct reading *r)
{
    for (struct source *s = r->first; s; s = s->next)
        if (s->started && !s->done)
            return true;
    return false;
}

static void reading_release(struct reading *r)
{
    objects_free(r->jobs);
    objects_free(r->pods);
    for (struct source *s = r->first, *next; s; s = next) {
        next = s->next;
        kube_client_cancel(r->cluster->client, s->call);
        loop_timer_free(s->timer);
        free(s->member);
        free(s->pod);
        free(s->uid);
        free(s->container);
        free(s);
    }
    logmerge_free(r->merge);
    loop_timer_free(r->timer);
    loop_timer_free(r->late);
    members_release(&r->members);
}

static int read_all(struct reading *r)
{
    struct error e = ERROR_INIT;
    int rc = r->o->follow ? start_following(r, &e) : start_once(r, &e);
    if (rc == 0 && (r->o->follow || reads(r)))
        rc = cluster_run(r->cluster, &e);
    if (rc < 0)
        return command_fail(r->says, COMMAND_CANNOT_RUN, &e);
    for (struct source *s = r->first; s; s = s->next)
        logmerge_rest(r->merge, s->log);
    give(r);
    if (r->count >= STREAMS_MAX)
        fprintf(stderr, "ringmaster %s: only the first %d pods were read; choose members, --rank or --role\n", r->says, STREAMS_MAX);
    return r->broken ? COMMAND_OK : r->cluster->interrupted ? COMMAND_INTERRUPTED : r->code;
}

int logs_follow(struct cluster *c, const char *says, const struct logs_options *o, const char *name, char *const *members, size_t count,
                cJSON **ret_job)
{
    struct error e = ERROR_INIT;
    auto_json cJSON *tree = NULL;
    auto_free struct problems *problems = xcalloc(1, sizeof *problems);
    auto_job struct training_job *job = NULL;
    struct members_wish wish = { .words = members, .count = count, .role = o->role, .rank = o->rank };
    struct reading r = { .cluster = c, .o = o, .says = says, .name = name, .last = &r.first, .color = screen_wants_color(STDOUT_FILENO) };
    *ret_job = NULL;
    if (cluster_job(c, name, &tree, &e) < 0)
        return command_fail(says, COMMAND_CANNOT_RUN, &e);
    if (job_decode(tree, NULL, problems, &job, &e) < 0) {
        (void)error_wrap(&e, "job %.80s", name);
        return command_fail(says, COMMAND_CANNOT_RUN, &e);
    }
    if (members_choose(job, &wish, &r.members, &e) < 0)
        return command_usage(says, &e);
    r.width = r.members.count > 1 && o->prefix ? members_width(&r.members) : 0;
    r.merge = logmerge_new(o->follow ? PATIENCE_MS : -1, WAITING_MAX_BYTES);
    r.timer = loop_timer_new(c->loop, on_give_timer, &r);
    r.late = loop_timer_new(c->loop, on_late, &r);
    int code = read_all(&r);
    if (r.jobs) {
        size_t jobs_count;
        auto_free const cJSON **jobs = objects_all(r.jobs, &jobs_count);
        *ret_job = jobs_count ? cJSON_Duplicate(jobs[0], true) : NULL;
    }
    reading_release(&r);
    return code;
}

int logs_cluster(const struct logs_options *o, const char *name, char *const *members, size_t count)
{
    struct error e = ERROR_INIT;
    struct cluster c = CLUSTER_INIT;
    auto_json cJSON *job = NULL;
    if (cluster_open(&o->cluster, &c, &e) < 0) {
        (void)error_wrap(&e, "%.80s is no directory with a job here, and the cluster cannot be asked", name);
        return command_fail("logs", COMMAND_CANNOT_RUN, &e);
    }
    int code = logs_follow(&c, "logs", o, name, members, count, &job);
    cluster_close(&c);
    return code;
}
