#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "sidecar/ring/engine_private.h"

#define DEFAULT_ARENA_BYTES (256ll << 20)
#define DEFAULT_RESULTS_BYTES (64ll << 20)
#define DEFAULT_CONNECT_TIMEOUT_MS 30000
#define DEFAULT_CHUNK_BYTES (256 << 10)
#define CHUNK_BYTES_MIN 64
#define DEFAULT_PEER_TIMEOUT_MS 1000
#define PEER_TIMEOUT_MIN_MS 100
#define DEFAULT_SPIN_US 100
#define CROWDED_NS 700000         /* a core that was offered and came back later than this was used by strangers for a slice of time ... */
#define CROWDED_FOR_NS 20000000   /* ... and is not looked around on for so long */

/* ---- notices: from the engine's thread to the callbacks on the main loop ---- */

void engine_notify(struct engine *g, const struct notice *n)
{
    struct notice *copy = xcalloc(1, sizeof *copy);
    uint64_t one = 1;

    *copy = *n;
    copy->next = NULL;
    (void)pthread_mutex_lock(&g->lock);
    *g->notices_end = copy;
    g->notices_end = &copy->next;
    (void)pthread_mutex_unlock(&g->lock);
    (void)!write(g->notice_fd, &one, sizeof one); /* full means that it is awake already */
}

static struct notice *take_notice(struct engine *g)
{
    (void)pthread_mutex_lock(&g->lock);
    struct notice *n = g->notices;
    if (n != NULL) {
        g->notices = n->next;
        if (g->notices == NULL)
            g->notices_end = &g->notices;
    }
    (void)pthread_mutex_unlock(&g->lock);
    return n;
}

/* A callback may free the engine, so nothing is touched behind one; the event comes again while notices are left. */
static void on_notice(void *ctx, int fd, unsigned events)
{
    struct engine *g = ctx;
    uint64_t count;

    (void)events;
    struct notice *n = take_notice(g);
    if (n == NULL) {
        (void)!read(fd, &count, sizeof count);
        n = take_notice(g); /* one that came between the two */
        if (n == NULL)
            return;
        count = 1;
        (void)!write(fd, &count, sizeof count);
    }
    struct notice copy = *n;
    free(n);
    if (copy.kind == NOTICE_FORMED)
        g->events.on_formed(g->events.ctx, copy.fence, copy.ok, copy.seconds);
    else if (copy.kind == NOTICE_STALL && g->events.on_stall != NULL)
        g->events.on_stall(g->events.ctx, copy.fence, copy.rank, copy.text);
    else if (copy.kind == NOTICE_LOST)
        g->events.on_lost(g->events.ctx, copy.fence, copy.rank, copy.text);
}

/* ---- statistics ---- */

void engine_count(struct engine *g, uint64_t operations, uint64_t bytes, double busbw_bytes, double busbw_seconds)
{
    (void)pthread_mutex_lock(&g->lock);
    g->stats.operations += operations;
    g->stats.bytes_reduced += bytes;
    if (busbw_seconds > 0) {
        /* The last ten or so count. */
        g->busbw_bytes = g->busbw_bytes * 0.9 + busbw_bytes;
        g->busbw_seconds = g->busbw_seconds * 0.9 + busbw_seconds;
        g->stats.busbw_gbps = g->busbw_bytes / g->busbw_seconds / 1e9;
    }
    (void)pthread_mutex_unlock(&g->lock);
}

void engine_count_wait(struct engine *g, double wait_ms, int32_t last_rank)
{
    int32_t slowest = 0;

    g->waited_for[last_rank] += wait_ms;
    for (int32_t r = 1; r < g->group->size; r++) {
        if (g->waited_for[r] > g->waited_for[slowest])
            slowest = r;
    }
    (void)pthread_mutex_lock(&g->lock);
    g->stats.wait_ms += wait_ms;
    g->stats.slowest_rank = slowest;
    (void)pthread_mutex_unlock(&g->lock);
}

void engine_stats_read(struct engine *g, struct engine_stats *ret_stats)
{
    (void)pthread_mutex_lock(&g->lock);
    *ret_stats = g->stats;
    (void)pthread_mutex_unlock(&g->lock);
}

/* ---- calls that are carried out on the engine's thread ---- */

struct call_form { struct engine *g; struct ring_plan plan; };

static void call_form(void *ctx)
{
    struct call_form *call = ctx;

    group_form(call->g, &call->plan);
    free((struct ring_member *)call->plan.members);
    free(call);
}

void engine_form(struct engine *g, const struct ring_plan *plan)
{
    struct call_form *call = xcalloc(1, sizeof *call);
    struct ring_member *members = xcalloc((size_t)plan->size, sizeof *members);

    memcpy(members, plan->members, (size_t)plan->size * sizeof *members);
    call->g = g;
    call->plan = *plan;
    call->plan.members = members;
    pulse_form(g->pulse, plan);
    loop_post(g->loop, call_form, call);
}

struct call_accept { struct engine *g; int fd; struct peer_hello hello; };

static void call_accept(void *ctx)
{
    struct call_accept *call = ctx;

    group_accept(call->g, call->fd, &call->hello);
    free(call);
}

void engine_accept(struct engine *g, int fd, const struct peer_hello *hello)
{
    if (hello->purpose == PEER_WATCH) {
        pulse_accept(g->pulse, fd, hello);
        return;
    }
    struct call_accept *call = xcalloc(1, sizeof *call);
    *call = (struct call_accept){ .g = g, .fd = fd, .hello = *hello };
    loop_post(g->loop, call_accept, call);
}

struct call_abort { struct engine *g; uint64_t fence; char text[SHM_TEXT_MAX]; };

static void call_abort(void *ctx)
{
    struct call_abort *call = ctx;

    group_abort(call->g, call->fence, call->text);
    free(call);
}

void engine_abort(struct engine *g, uint64_t fence, const char *text)
{
    struct call_abort *call = xcalloc(1, sizeof *call);

    call->g = g;
    call->fence = fence;
    (void)snprintf(call->text, sizeof call->text, "%s", text);
    loop_post(g->loop, call_abort, call);
}

static void call_attach(void *ctx)
{
    struct client *c = ctx;

    clients_add(c->engine, c);
}

struct call_detach { struct engine *g; uint64_t client; };

static void call_detach(void *ctx)
{
    struct call_detach *call = ctx;

    clients_remove(call->g, call->client);
    free(call);
}

void engine_detach(struct engine *g, uint64_t client)
{
    struct call_detach *call = xcalloc(1, sizeof *call);

    *call = (struct call_detach){ .g = g, .client = client };
    loop_post(g->loop, call_detach, call);
}

static void call_left(void *ctx)
{
    order_left(ctx, true);
}

void engine_left(struct engine *g)
{
    loop_post(g->loop, call_left, g);
}

/* ---- what the pulse says ---- */

static void call_missed(void *ctx)
{
    struct engine *g = ctx;

    (void)pthread_mutex_lock(&g->lock);
    __auto_type missed = g->missed;
    (void)pthread_mutex_unlock(&g->lock);
    if (g->group != NULL && g->group->fence == missed.fence)
        group_lost(g, missed.rank, missed.why);
}

/* On the pulse's thread. The first loss ends the group: the others of its fence say nothing more. */
static void on_missed(void *ctx, uint64_t fence, int32_t rank, const char *why)
{
    struct engine *g = ctx;

    (void)pthread_mutex_lock(&g->lock);
    bool first = g->missed.fence < fence;
    if (first) {
        g->missed.fence = fence;
        g->missed.rank = rank;
        (void)snprintf(g->missed.why, sizeof g->missed.why, "%s", why);
    }
    (void)pthread_mutex_unlock(&g->lock);
    if (first)
        loop_post(g->loop, call_missed, g);
}

/* ---- the time line ---- */

static bool read_clock(void *ctx, int64_t *ret_offset_ns, int64_t *ret_error_ns)
{
    struct engine *g = ctx;

    return pulse_clock(g->pulse, ret_offset_ns, ret_error_ns);
}

int engine_timeline(struct engine *g, const char *path, bool mark_cycles, int32_t rank, int32_t size, struct error *e)
{
    if (path != NULL)
        return timeline_start(g->timeline, path, g->identity.member, g->identity.job_uid, rank, size, mark_cycles, e);
    timeline_stop(g->timeline);
    return 0;
}

/* ---- a client's memory ---- */

/* Sealed against shrinking: reading beyond the end of a file that the client cut off would kill us with SIGBUS. Pages are taken
 * when they are first touched. */
static int make_memory(struct client *c, struct error *e)
{
    c->fds[0] = memfd_create("ringmaster-client", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (c->fds[0] < 0)
        return error_errno(e, "create the shared memory of a client");
    if (ftruncate(c->fds[0], (off_t)c->bytes) != 0 ||
        fcntl(c->fds[0], F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        return error_errno(e, "size the shared memory of a client to %llu bytes", (unsigned long long)c->bytes);
    void *base = mmap(NULL, c->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, c->fds[0], 0);
    if (base == MAP_FAILED)
        return error_errno(e, "map %llu bytes of shared memory for a client", (unsigned long long)c->bytes);
    c->base = base;
    for (int i = 1; i < 3; i++) {
        c->fds[i] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (c->fds[i] < 0)
            return error_errno(e, "create a client's event descriptor");
    }
    return 0;
}

int engine_attach(struct engine *g, uint64_t fence, uint64_t *ret_client, int ret_fds[3], uint64_t *ret_shm_bytes, struct error *e)
{
    struct client *c = xcalloc(1, sizeof *c);

    *c = (struct client){ .engine = g, .id = ++g->next_client, .fence = fence, .fds = { -1, -1, -1 } };
    c->bytes = shm_layout(&c->layout, fence, CLIENT_SQ_ENTRIES, CLIENT_CQ_ENTRIES, (uint64_t)g->options.arena_bytes,
                          (uint64_t)g->options.results_bytes);
    if (make_memory(c, e) < 0) {
        client_release(c);
        return -1;
    }
    memcpy(c->base, &c->layout, sizeof c->layout);
    results_init(&c->results, c->layout.results_offset, c->layout.results_bytes);
    memcpy(ret_fds, c->fds, sizeof c->fds);
    *ret_client = c->id;
    *ret_shm_bytes = c->bytes;
    loop_post(g->loop, call_attach, c);
    return 0;
}

/* ---- life ---- */

static bool on_idle(void *ctx);

static void *run(void *ctx)
{
    struct engine *g = ctx;
    struct error e = ERROR_INIT;

    loop_on_idle(g->loop, on_idle, g);
    if (loop_run(g->loop, &e) < 0) {
        log_error_from("the ring engine's loop ended", &e);
        abort(); /* nothing on this rank can go on; the parent starts us anew */
    }
    return NULL;
}

static void on_again(void *ctx)
{
    execute_advance(ctx);
}

void engine_stay_awake(struct engine *g)
{
    if (g->group != NULL)
        mesh_wake(g->group->mesh);
    g->spin_until_ns = clock_mono_ns() + g->spin_ns;
}

/* A thread that sleeps takes some 50 us to wake up on a virtual machine, many times what a small collective takes. So for a little
 * while after each thing that happened the thread looks for the next one and offers its core to whoever else wants to run. When
 * somebody takes it for longer than a hand-over there are more who want to run than cores: then it is better to sleep, for who
 * wakes up comes first, and who looks around comes last. */
static bool on_idle(void *ctx)
{
    struct engine *g = ctx;
    int64_t before = clock_mono_ns();

    if (clients_look(g) || (g->group != NULL && mesh_look(g->group->mesh)))
        return true;
    if (before >= g->spin_until_ns || before < g->crowded_until_ns)
        return !clients_sleep(g) || (g->group != NULL && !mesh_sleep(g->group->mesh));
    (void)sched_yield();
    int64_t now = clock_mono_ns();
    if (now - before > CROWDED_NS)
        g->crowded_until_ns = now + CROWDED_FOR_NS;
    return true;
}

static int check_options(const struct engine_options *o, struct error *e)
{
    if (o->arena_bytes < 0 || o->results_bytes < 0 || o->connect_timeout_ms < 0 || o->chunk_bytes < 0 ||
        o->stall_warning_ms < 0 || o->stall_shutdown_ms < 0 || o->peer_timeout_ms < 0)
        return error_set(e, ERROR_INVALID, "engine options must not be negative");
    struct shm_header layout;
    if (shm_layout(&layout, 0, CLIENT_SQ_ENTRIES, CLIENT_CQ_ENTRIES, (uint64_t)o->arena_bytes, (uint64_t)o->results_bytes) == 0)
        return error_set(e, ERROR_LIMIT, "an arena of %lld and results of %lld bytes are over the limit of 4 TiB each",
                         (long long)o->arena_bytes, (long long)o->results_bytes);
    if (o->chunk_bytes != 0 && (o->chunk_bytes < CHUNK_BYTES_MIN || (uint32_t)o->chunk_bytes > PEER_MAX_DATA))
        return error_set(e, ERROR_INVALID, "chunks of %d bytes: allowed are %d to %u", o->chunk_bytes, CHUNK_BYTES_MIN,
                         PEER_MAX_DATA);
    return 0;
}

static void set_defaults(struct engine_options *o)
{
    if (o->arena_bytes == 0)
        o->arena_bytes = DEFAULT_ARENA_BYTES;
    if (o->results_bytes == 0)
        o->results_bytes = DEFAULT_RESULTS_BYTES;
    if (o->connect_timeout_ms == 0)
        o->connect_timeout_ms = DEFAULT_CONNECT_TIMEOUT_MS;
    if (o->chunk_bytes == 0)
        o->chunk_bytes = DEFAULT_CHUNK_BYTES;
    if (o->peer_timeout_ms == 0)
        o->peer_timeout_ms = DEFAULT_PEER_TIMEOUT_MS;
    if (o->peer_timeout_ms < PEER_TIMEOUT_MIN_MS)
        o->peer_timeout_ms = PEER_TIMEOUT_MIN_MS;
    if (o->spin_us == 0)
        o->spin_us = DEFAULT_SPIN_US;
    if (o->spin_us < 0)
        o->spin_us = 0;
}

static void release(struct engine *g)
{
    timeline_free(g->timeline); /* asks the pulse for the clock */
    pulse_free(g->pulse);       /* posts to the loop */
    loop_remove(g->notice_source);
    loop_timer_free(g->again);
    if (g->notice_fd >= 0)
        (void)close(g->notice_fd);
    for (struct notice *n; (n = take_notice(g)) != NULL;)
        free(n);
    loop_free(g->loop);
    collective_free(g->collective);
    squeeze_free(g->squeeze);
    namemap_release(&g->by_name);
    free(g->waited_for);
    (void)pthread_mutex_destroy(&g->lock);
    free(g);
}

/* The thread takes no signals: they are the main loop's. */
static int start_thread(struct engine *g, struct error *e)
{
    sigset_t all, before;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(&g->thread, NULL, run, g);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code == 0)
        return 0;
    errno = code;
    return error_errno(e, "start the ring engine's thread");
}

int engine_new(struct loop *loop, const struct engine_options *options, const struct engine_events *events,
               struct engine **ret_engine, struct error *e)
{
    if (check_options(options, e) < 0)
        return -1;

    struct engine *g = xcalloc(1, sizeof *g);
    g->options = *options;
    set_defaults(&g->options);
    g->events = *events;
    g->identity = (struct link_identity){ .key = options->key, .job_uid = options->job_uid, .member = options->member,
                                          .tls = options->tls };
    g->main = loop;
    g->notices_end = &g->notices;
    g->requests_end = &g->requests;
    g->queue_end = &g->queue;
    g->stats.slowest_rank = -1;
    g->spin_ns = g->options.spin_us * 1000;
    (void)snprintf(g->over_text, sizeof g->over_text, "this process belongs to no round: it was not started by the sidecar");
    g->collective = collective_new();
    g->squeeze = squeeze_new();
    g->timeline = timeline_new(read_clock, g);
    (void)pthread_mutex_init(&g->lock, NULL);
    g->notice_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (g->notice_fd < 0)
        (void)error_errno(e, "create the ring engine's event descriptor");
    if (g->notice_fd < 0 || loop_add(loop, g->notice_fd, LOOP_READ, on_notice, g, &g->notice_source, e) < 0 ||
        loop_new(&g->loop, e) < 0 || (g->again = loop_timer_new(g->loop, on_again, g)) == NULL ||
        pulse_new(&g->identity, g->options.peer_timeout_ms, on_missed, g, &g->pulse, e) < 0 || start_thread(g, e) < 0) {
        release(g);
        return -1;
    }
    *ret_engine = g;
    return 0;
}

static void call_shut_down(void *ctx)
{
    struct engine *g = ctx;

    requests_fail(g, UINT64_MAX, SHM_SHUTDOWN, "the sidecar is shutting down");
    group_free(g);
    pending_free(g);
    while (g->clients != NULL)
        clients_remove(g, g->clients->id);
    loop_stop(g->loop);
}

void engine_free(struct engine *g)
{
    if (g == NULL)
        return;
    pulse_goodbye(g->pulse);
    loop_post(g->loop, call_shut_down, g);
    (void)pthread_join(g->thread, NULL);
    if (g->work != NULL)
        (void)munmap(g->work, g->work_bytes);
    release(g);
}
