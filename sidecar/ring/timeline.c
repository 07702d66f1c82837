#include "sidecar/ring/timeline.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#define QUEUE_EVENTS 16384u /* a power of two; some 3 MiB, taken when the first recording begins */
#define WRITE_EVERY_MS 200
#define CLOCK_EVERY 25      /* writes */
#define TEXT_MAX (64u << 20)

/* What the writer shall do next: begin with this file, or, fd -1, end. */
struct order { int fd; bool mark_cycles; struct trace_about about; struct order *next; };

struct timeline {
    timeline_clock_fn *clock;
    void *ctx;

    struct trace_event *queue;        /* the engine puts in at head, the writer takes out at tail */
    atomic_uint head, tail;
    atomic_ulong dropped;
    atomic_bool on, mark_cycles;

    pthread_mutex_t lock;             /* guards the rest of this paragraph */
    pthread_cond_t changed;
    struct order *orders;
    bool leaving, running;

    pthread_t thread;
    int fd;                           /* the writer's, as the rest */
    off_t end;                        /* of the file */
    struct trace trace;
    uint64_t told_dropped;
    unsigned writes;
    bool failed;                      /* told once */
};

/* ---- the engine's side ---- */

bool timeline_is_on(const struct timeline *t)
{
    return atomic_load_explicit(&t->on, memory_order_acquire);
}

bool timeline_marks_cycles(const struct timeline *t)
{
    return timeline_is_on(t) && atomic_load_explicit(&t->mark_cycles, memory_order_relaxed);
}

void timeline_add(struct timeline *t, enum trace_kind kind, const char *phase, const char *tensor, int32_t rank)
{
    if (!timeline_is_on(t))
        return;
    unsigned head = atomic_load_explicit(&t->head, memory_order_relaxed);
    if (head - atomic_load_explicit(&t->tail, memory_order_acquire) == QUEUE_EVENTS) {
        (void)atomic_fetch_add_explicit(&t->dropped, 1, memory_order_relaxed);
        return;
    }
    struct trace_event *e = &t->queue[head % QUEUE_EVENTS];
    e->kind = kind;
    e->at_ns = clock_mono_ns();
    e->rank = rank;
    (void)snprintf(e->phase, sizeof e->phase, "%s", phase);
    (void)snprintf(e->tensor, sizeof e->tensor, "%s", tensor);
    atomic_store_explicit(&t->head, head + 1, memory_order_release);
}

/* ---- the writer ---- */

static bool write_all(int fd, const char *text, size_t len, off_t at)
{
    for (size_t done = 0; done < len;) {
        ssize_t n = pwrite(fd, text + done, len - done, at + (off_t)done);
        if (n < 0 && errno != EINTR)
            return false;
        done += n > 0 ? (size_t)n : 0;
    }
    return true;
}

/* `text` takes the place of the closing bracket and brings a new one. */
static void put(struct timeline *t, const struct buf *text)
{
    off_t at = t->end >= TRACE_END_BYTES ? t->end - TRACE_END_BYTES : 0;

    if (t->failed || text->len == 0 || !buf_ok(text))
        return;
    (void)flock(t->fd, LOCK_EX);
    bool well = write_all(t->fd, text->text, text->len, at);
    int code = errno;
    (void)flock(t->fd, LOCK_UN);
    if (!well) {
        t->failed = true;
        log_warn("the time line ends early: it cannot be written", KV("error", strerror(code)));
        return;
    }
    t->end = at + (off_t)text->len;
}

static void write_queue(struct timeline *t)
{
    auto_buf struct buf out = BUF_INIT(TEXT_MAX);
    int64_t offset_ns, error_ns;
    unsigned tail = atomic_load_explicit(&t->tail, memory_order_relaxed);
    unsigned head = atomic_load_explicit(&t->head, memory_order_acquire);

    for (; tail != head; tail++) {
        if (t->fd >= 0)
            trace_add(&t->trace, &t->queue[tail % QUEUE_EVENTS], &out);
        atomic_store_explicit(&t->tail, tail + 1, memory_order_release);
    }
    uint64_t dropped = atomic_load_explicit(&t->dropped, memory_order_relaxed);
    if (t->fd >= 0 && dropped != t->told_dropped)
        trace_dropped(&t->trace, dropped - t->told_dropped, clock_mono_ns(), &out);
    t->told_dropped = dropped;
    if (t->fd < 0)
        return;
    if (t->writes++ % CLOCK_EVERY == 0 && t->clock(t->ctx, &offset_ns, &error_ns))
        trace_clock(&t->trace, offset_ns, error_ns, &out);
    if (out.len > 0)
        buf_add(&out, "\n]");
    put(t, &out);
}

static void end_file(struct timeline *t)
{
    if (t->fd < 0)
        return;
    t->writes = 0; /* the clock once more */
    write_queue(t);
    (void)close(t->fd);
    t->fd = -1;
    trace_release(&t->trace);
}

static void carry_out(struct timeline *t, struct order *o)
{
    auto_buf struct buf out = BUF_INIT(TEXT_MAX);

    write_queue(t);
    end_file(t);
    if (o->fd >= 0) {
        t->fd = o->fd;
        t->end = 0;
        t->writes = 0;
        t->failed = false;
        t->told_dropped = atomic_load(&t->dropped);
        trace_begin(&t->trace, &o->about, &out);
        put(t, &out);
        atomic_store(&t->mark_cycles, o->mark_cycles);
    }
    free(o);
}

static struct order *next_order(struct timeline *t, bool *ret_leaving)
{
    struct timespec until;

    (void)pthread_mutex_lock(&t->lock);
    if (t->orders == NULL && !t->leaving && t->fd >= 0) {
        (void)clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += WRITE_EVERY_MS * 1000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        (void)pthread_cond_timedwait(&t->changed, &t->lock, &until);
    }
    while (t->orders == NULL && !t->leaving && t->fd < 0)
        (void)pthread_cond_wait(&t->changed, &t->lock);
    struct order *o = t->orders;
    if (o != NULL)
        t->orders = o->next;
    *ret_leaving = t->leaving && o == NULL;
    (void)pthread_mutex_unlock(&t->lock);
    return o;
}

static void *run(void *ctx)
{
    struct timeline *t = ctx;
    bool leaving = false;

    while (!leaving) {
        struct order *o = next_order(t, &leaving);
        if (o != NULL)
            carry_out(t, o);
        else
            write_queue(t);
    }
    end_file(t);
    return NULL;
}

/* ---- orders ---- */

char *timeline_path(const char *path, int32_t rank)
{
    const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path, *dot = strrchr(name, '.');
    size_t stem = dot != NULL && dot != name ? (size_t)(dot - path) : strlen(path);

    return rank == 0 ? xasprintf("%s", path) : xasprintf("%.*s.rank-%d%s", (int)stem, path, rank, path + stem);
}

static int start_thread(struct timeline *t, struct error *e)
{
    sigset_t all, before;

    if (t->running)
        return 0;
    t->queue = xcalloc(QUEUE_EVENTS, sizeof *t->queue);
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(&t->thread, NULL, run, t);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code != 0)
        return error_set(e, ERROR_IO, "start the thread of the time line: %s", strerror(code));
    t->running = true;
    return 0;
}

static void give(struct timeline *t, const struct order *what)
{
    struct order *o = xcalloc(1, sizeof *o), **end = &t->orders;

    *o = *what;
    (void)pthread_mutex_lock(&t->lock);
    while (*end != NULL)
        end = &(*end)->next;
    *end = o;
    (void)pthread_cond_signal(&t->changed);
    (void)pthread_mutex_unlock(&t->lock);
}

int timeline_start(struct timeline *t, const char *path, const char *member, const char *job_uid, int32_t rank, int32_t size,
                   bool mark_cycles, struct error *e)
{
    struct order o = { .mark_cycles = mark_cycles, .about = { .rank = rank, .size = size, .start_mono_ns = clock_mono_ns() } };
    struct timespec wall;

    if (path[0] != '/')
        return error_set(e, ERROR_INVALID, "time line \"%.200s\": expected an absolute path", path);
    auto_free char *file = timeline_path(path, rank);
    (void)clock_gettime(CLOCK_REALTIME, &wall);
    o.about.start_wall_us = (int64_t)wall.tv_sec * 1000000 + wall.tv_nsec / 1000;
    (void)snprintf(o.about.member, sizeof o.about.member, "%s", member);
    (void)snprintf(o.about.job_uid, sizeof o.about.job_uid, "%s", job_uid);
    if (start_thread(t, e) < 0)
        return -1;
    o.fd = open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (o.fd < 0)
        return error_errno(e, "make the time line %s", file);
    give(t, &o);
    atomic_store_explicit(&t->on, true, memory_order_release);
    return 0;
}

void timeline_stop(struct timeline *t)
{
    if (!timeline_is_on(t))
        return;
    atomic_store_explicit(&t->on, false, memory_order_release);
    give(t, &(struct order){ .fd = -1 });
}

/* ---- life ---- */

struct timeline *timeline_new(timeline_clock_fn *clock, void *ctx)
{
    struct timeline *t = xcalloc(1, sizeof *t);

    t->clock = clock;
    t->ctx = ctx;
    t->fd = -1;
    (void)pthread_mutex_init(&t->lock, NULL);
    (void)pthread_cond_init(&t->changed, NULL);
    return t;
}

void timeline_free(struct timeline *t)
{
    if (t == NULL)
        return;
    if (t->running) {
        (void)pthread_mutex_lock(&t->lock);
        t->leaving = true;
        (void)pthread_cond_signal(&t->changed);
        (void)pthread_mutex_unlock(&t->lock);
        (void)pthread_join(t->thread, NULL);
    }
    (void)pthread_cond_destroy(&t->changed);
    (void)pthread_mutex_destroy(&t->lock);
    free(t->queue);
    free(t);
}
