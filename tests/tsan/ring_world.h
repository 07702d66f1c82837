/*
 * ring_world.h — several engines in one process, each with its own listening address on loopback, and small clients that speak
 * wire/shm.h to them. For tests of the engine that cannot run under Criterion (threads under TSan).
 */
#ifndef TESTS_TSAN_RING_WORLD_H
#define TESTS_TSAN_RING_WORLD_H

#include <pthread.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/mem.h"
#include "sidecar/ring/engine.h"
#include "sidecar/ring/link.h"

#define WORLD_MAX 5

static bool world_tls; /* of the worlds that start from now on */

struct world;

/* Set: data moves through memory in this directory in place of TCP. */
static const char *world_memory_dir;

struct node {
    struct world *world;
    int rank, listen_fd;
    int32_t port;
    char member[PEER_MEMBER_MAX], host[32];
    struct loop_source *source;
    struct engine *engine;
    /* under world.lock */
    uint64_t formed_fence, lost_fence;
    int self_test_ok, lost_calls;
    int32_t lost_rank;
    char lost_text[SHM_TEXT_MAX];
};

struct world {
    int size;
    uint64_t fence;
    struct loop *loop;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int calls;
    struct engine_options options;
    struct node nodes[WORLD_MAX];
};

/* ---- calls on the main loop's thread, which is where the engine wants them ---- */

struct world_call { void (*fn)(void *); void *ctx; struct world *world; bool done; };

static inline void world_run_call(void *ctx)
{
    struct world_call *call = ctx;

    call->fn(call->ctx);
    (void)pthread_mutex_lock(&call->world->lock);
    call->done = true;
    (void)pthread_cond_broadcast(&call->world->changed);
    (void)pthread_mutex_unlock(&call->world->lock);
}

static inline void world_call(struct world *w, void (*fn)(void *), void *ctx)
{
    struct world_call call = { .fn = fn, .ctx = ctx, .world = w };

    loop_post(w->loop, world_run_call, &call);
    (void)pthread_mutex_lock(&w->lock);
    while (!call.done)
        (void)pthread_cond_wait(&w->changed, &w->lock);
    (void)pthread_mutex_unlock(&w->lock);
}

/* ---- nodes ---- */

static const uint8_t world_key[32] = "a key that all ranks of it hold";

static inline void world_on_formed(void *ctx, uint64_t fence, int ok, double seconds)
{
    struct node *n = ctx;

    (void)seconds;
    (void)pthread_mutex_lock(&n->world->lock);
    n->formed_fence = fence;
    n->self_test_ok = ok;
    (void)pthread_cond_broadcast(&n->world->changed);
    (void)pthread_mutex_unlock(&n->world->lock);
}

static inline void world_on_lost(void *ctx, uint64_t fence, int32_t rank, const char *text)
{
    struct node *n = ctx;

    (void)pthread_mutex_lock(&n->world->lock);
    n->lost_fence = fence;
    n->lost_rank = rank;
    n->lost_calls++;
    (void)snprintf(n->lost_text, sizeof n->lost_text, "%s", text);
    (void)pthread_cond_broadcast(&n->world->changed);
    (void)pthread_mutex_unlock(&n->world->lock);
}

struct world_accepted { struct node *node; };

static inline void world_on_link(void *ctx, int fd, const struct peer_hello *peer, const struct error *why)
{
    struct node *n = ctx;

    (void)why;
    if (fd >= 0 && n->engine != NULL)
        engine_accept(n->engine, fd, peer);
    else if (fd >= 0)
        (void)close(fd);
}

static inline void world_on_connection(void *ctx, int listen_fd, unsigned events)
{
    struct node *n = ctx;
    struct link_identity self = { .key = world_key, .job_uid = "uid-1", .member = n->member, .tls = n->world->options.tls };

    (void)events;
    int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0)
        (void)link_accept(n->world->loop, &self, fd, 0, 5000, world_on_link, n);
}

static inline void die(const char *what, const struct error *e)
{
    printf("%s: %s\n", what, e->text);
    exit(1);
}

static inline void node_start(void *ctx)
{
    struct node *n = ctx;
    struct error e = ERROR_INIT;
    struct engine_options options = n->world->options;
    struct engine_events events = { .on_formed = world_on_formed, .on_lost = world_on_lost, .ctx = n };

    options.key = world_key;
    options.job_uid = "uid-1";
    options.member = n->member;
    if (engine_new(n->world->loop, &options, &events, &n->engine, &e) < 0)
        die("engine_new", &e);
}

static inline void node_stop(void *ctx)
{
    struct node *n = ctx;

    engine_free(n->engine);
    n->engine = NULL;
}

static inline int32_t port_of(int fd)
{
    struct sockaddr_storage address;
    socklen_t len = sizeof address;
    char text[8];

    (void)getsockname(fd, (struct sockaddr *)&address, &len);
    (void)text;
    return (int32_t)__builtin_bswap16(((uint16_t *)&address)[1]); /* the port stands here for IPv4 and IPv6 */
}

static inline void node_listen(void *ctx)
{
    struct node *n = ctx;
    struct error e = ERROR_INIT;

    (void)snprintf(n->host, sizeof n->host, "127.0.0.%d", 10 + n->rank);
    if (n->rank == 0)
        (void)snprintf(n->member, sizeof n->member, "chief-0");
    else
        (void)snprintf(n->member, sizeof n->member, "worker-%d", n->rank - 1);
    if (link_listen(n->host, 0, &n->listen_fd, &e) < 0 ||
        loop_add(n->world->loop, n->listen_fd, LOOP_READ, world_on_connection, n, &n->source, &e) < 0)
        die("listen", &e);
    n->port = port_of(n->listen_fd);
    node_start(n);
}

static inline void node_close(void *ctx)
{
    struct node *n = ctx;

    node_stop(n);
    loop_remove(n->source);
    (void)close(n->listen_fd);
}

static inline void *world_thread(void *ctx)
{
    struct world *w = ctx;
    struct error e = ERROR_INIT;

    if (loop_run(w->loop, &e) < 0)
        die("loop", &e);
    return NULL;
}

static inline void world_start(struct world *w, int size, int32_t chunk_bytes)
{
    struct error e = ERROR_INIT;

    memset(w, 0, sizeof *w);
    w->size = size;
    w->options = (struct engine_options){ .tls = world_tls, .arena_bytes = 64 << 20, .results_bytes = 8 << 20, .connect_timeout_ms = 20000,
                                          .chunk_bytes = chunk_bytes, .memory_dir = world_memory_dir };
    (void)pthread_mutex_init(&w->lock, NULL);
    (void)pthread_cond_init(&w->changed, NULL);
    if (loop_new(&w->loop, &e) < 0)
        die("loop_new", &e);
    (void)pthread_create(&w->thread, NULL, world_thread, w);
    for (int i = 0; i < size; i++) {
        w->nodes[i].world = w;
        w->nodes[i].rank = i;
        world_call(w, node_listen, &w->nodes[i]);
    }
}

static inline void world_stop_loop(void *ctx)
{
    loop_stop(ctx);
}

static inline void world_stop(struct world *w)
{
    for (int i = 0; i < w->size; i++)
        world_call(w, node_close, &w->nodes[i]);
    world_call(w, world_stop_loop, w->loop);
    (void)pthread_join(w->thread, NULL);
    loop_free(w->loop);
    (void)pthread_mutex_destroy(&w->lock);
    (void)pthread_cond_destroy(&w->changed);
}

struct form_call { struct node *node; struct ring_plan plan; };

static inline void node_form(void *ctx)
{
    struct form_call *call = ctx;

    engine_form(call->node->engine, &call->plan);
}

/* Asks rank `rank` alone to form; others may be asked later. */
static inline void world_form_one(struct world *w, int rank, uint64_t fence)
{
    struct ring_member members[WORLD_MAX];

    memset(members, 0, sizeof members);
    for (int i = 0; i < w->size; i++) {
        (void)snprintf(members[i].member, sizeof members[i].member, "%s", w->nodes[i].member);
        (void)snprintf(members[i].host, sizeof members[i].host, "%s", w->nodes[i].host);
        members[i].port = w->nodes[i].port;
    }
    struct form_call call = { .node = &w->nodes[rank],
                              .plan = { .fence = fence, .rank = rank, .size = w->size, .members = members } };
    world_call(w, node_form, &call);
}

static inline bool world_wait(struct world *w, bool (*is_so)(struct world *), int64_t timeout_ms)
{
    int64_t until = clock_wall_ms() + timeout_ms;
    struct timespec at = { .tv_sec = until / 1000, .tv_nsec = until % 1000 * 1000000 };
    int code = 0;

    (void)pthread_mutex_lock(&w->lock);
    while (!is_so(w) && code == 0)
        code = pthread_cond_timedwait(&w->changed, &w->lock, &at);
    bool result = is_so(w);
    (void)pthread_mutex_unlock(&w->lock);
    return result;
}

static inline bool all_formed(struct world *w)
{
    for (int i = 0; i < w->size; i++) {
        if (w->nodes[i].formed_fence != w->fence || !w->nodes[i].self_test_ok)
            return false;
    }
    return true;
}

static inline bool all_alive_lost(struct world *w)
{
    for (int i = 0; i < w->size; i++) {
        if (w->nodes[i].engine != NULL && w->nodes[i].lost_fence != w->fence)
            return false;
    }
    return true;
}

static inline bool world_form(struct world *w, uint64_t fence)
{
    w->fence = fence;
    for (int i = 0; i < w->size; i++)
        world_form_one(w, i, fence);
    return world_wait(w, all_formed, 60000);
}

/* ---- clients ---- */

struct test_client {
    struct node *node;
    uint64_t id, fence, bytes;
    int fds[3];
    uint8_t *base;
    struct shm_header *h;
    pthread_mutex_t lock; /* submission */
    uint64_t next_id, used; /* of the arena: a bump allocator */
    struct error error;
};

static inline void attach_call(void *ctx)
{
    struct test_client *c = ctx;
    int fds[3];

    if (engine_attach(c->node->engine, c->fence, &c->id, fds, &c->bytes, &c->error) < 0)
        die("engine_attach", &c->error);
    for (int i = 0; i < 3; i++)
        c->fds[i] = dup(fds[i]); /* as SCM_RIGHTS does */
}

static inline void client_attach(struct test_client *c, struct node *n, uint64_t fence)
{
    memset(c, 0, sizeof *c);
    c->node = n;
    c->fence = fence;
    world_call(n->world, attach_call, c);
    c->base = mmap(NULL, c->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, c->fds[0], 0);
    if (c->base == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    c->h = (struct shm_header *)c->base;
    (void)pthread_mutex_init(&c->lock, NULL);
}

/* Forgets the memory without a word to the engine. */
static inline void client_drop(struct test_client *c)
{
    (void)munmap(c->base, c->bytes);
    for (int i = 0; i < 3; i++)
        (void)close(c->fds[i]);
    (void)pthread_mutex_destroy(&c->lock);
}

static inline void detach_call(void *ctx)
{
    struct test_client *c = ctx;

    engine_detach(c->node->engine, c->id);
}

static inline void client_detach(struct test_client *c)
{
    if (c->node->engine != NULL)
        world_call(c->node->world, detach_call, c);
    client_drop(c);
}

static inline uint64_t client_alloc(struct test_client *c, uint64_t bytes)
{
    uint64_t offset = c->h->arena_offset + c->used;

    c->used += (bytes + 63) / 64 * 64;
    if (c->used > c->h->arena_bytes) {
        printf("the test's arena is full\n");
        exit(1);
    }
    return offset;
}

static inline void ring_doorbell(struct test_client *c)
{
    uint64_t one = 1;

    if (atomic_load(&c->h->sq_waiting) != 0)
        (void)!write(c->fds[1], &one, sizeof one);
}

/* Returns the request's id. */
static inline uint64_t client_submit(struct test_client *c, const struct shm_request *request)
{
    struct shm_request *queue = (struct shm_request *)(c->base + c->h->sq_offset);

    (void)pthread_mutex_lock(&c->lock);
    uint32_t tail = atomic_load(&c->h->sq_tail);
    while (tail - atomic_load(&c->h->sq_head) == c->h->sq_entries)
        (void)usleep(100);
    struct shm_request *slot = &queue[tail & (c->h->sq_entries - 1)];
    *slot = *request;
    uint64_t id = slot->id = ++c->next_id;
    atomic_store(&c->h->sq_tail, tail + 1);
    ring_doorbell(c);
    (void)pthread_mutex_unlock(&c->lock);
    return id;
}

/* The next reply in whatever order; false: none came in time. */
static inline bool client_next(struct test_client *c, int64_t timeout_ms, struct shm_reply *ret)
{
    const struct shm_reply *queue = (const struct shm_reply *)(c->base + c->h->cq_offset);
    int64_t until = clock_mono_ms() + timeout_ms;
    uint32_t head = atomic_load(&c->h->cq_head);

    while (atomic_load(&c->h->cq_tail) == head) {
        int64_t left = until - clock_mono_ms();
        if (left <= 0)
            return false;
        atomic_store(&c->h->cq_waiting, 1);
        if (atomic_load(&c->h->cq_tail) == head) {
            struct pollfd p = { .fd = c->fds[2], .events = POLLIN };
            uint64_t count;
            (void)poll(&p, 1, (int)left);
            (void)!read(c->fds[2], &count, sizeof count);
        }
        atomic_store(&c->h->cq_waiting, 0);
    }
    *ret = queue[head & (c->h->cq_entries - 1)];
    atomic_store(&c->h->cq_head, head + 1);
    return true;
}

static inline struct shm_request request_of(const char *name, enum shm_op op, enum shm_dtype dtype, uint64_t count, uint64_t in,
                                            uint64_t out)
{
    struct shm_request r = { .op = (uint16_t)op, .dtype = (uint16_t)dtype, .redop = SHM_SUM, .count = count, .row_elements = 1,
                             .in_offset = in, .out_offset = out, .prescale = 1.0, .postscale = 1.0 };

    (void)snprintf(r.name, sizeof r.name, "%s", name);
    return r;
}

#endif
