/* Shared memory of the training processes: requests in, replies out. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "sidecar/ring/engine_private.h"

#define TAKE_PER_TURN CLIENT_SQ_ENTRIES
#define AGAIN_MS 1

static struct shm_header *shared(const struct client *c)
{
    return (struct shm_header *)c->base;
}

/* ---- replies ---- */

static bool push(struct client *c, const struct shm_reply *reply)
{
    struct shm_header *h = shared(c);
    struct shm_reply *queue = (struct shm_reply *)(c->base + c->layout.cq_offset);
    uint32_t used = c->cq_tail - atomic_load_explicit(&h->cq_head, memory_order_acquire);

    if (used >= c->layout.cq_entries) /* full, or a head that cannot be right: it comes to the same */
        return false;
    memcpy(&queue[c->cq_tail & (c->layout.cq_entries - 1)], reply, sizeof *reply);
    c->cq_tail++;
    /* Sequentially consistent, as are the client's store to its waiting word and its look at the tail after it: one of the two
     * sees the other. */
    atomic_store(&h->cq_tail, c->cq_tail);
    if (atomic_load(&h->cq_waiting) != 0) {
        uint64_t one = 1;
        (void)!write(c->fds[2], &one, sizeof one);
    }
    return true;
}

static void push_backlog(struct client *c)
{
    size_t done = 0;

    if (c->backlog_count == 0)
        return;
    while (done < c->backlog_count && push(c, &c->backlog[done]))
        done++;
    memmove(c->backlog, c->backlog + done, (c->backlog_count - done) * sizeof *c->backlog);
    c->backlog_count -= done;
}

void client_reply(struct client *c, const struct shm_reply *reply)
{
    if (c->backlog_count == 0 && push(c, reply))
        return;
    if (c->backlog_count == c->backlog_capacity) {
        c->backlog_capacity = c->backlog_capacity > 0 ? 2 * c->backlog_capacity : 64;
        c->backlog = xrealloc(c->backlog, c->backlog_capacity, sizeof *c->backlog);
    }
    c->backlog[c->backlog_count++] = *reply;
    if (!loop_timer_armed(c->again))
        loop_timer_at(c->again, clock_mono_ms() + AGAIN_MS);
}

static void refuse(struct client *c, uint64_t id, enum shm_status status, const char *text)
{
    struct shm_reply reply = { .id = id, .status = status };

    (void)snprintf(reply.text, sizeof reply.text, "%s", text);
    client_reply(c, &reply);
}

/* ---- requests ---- */

static void request_free(struct request *q)
{
    free(q->splits);
    free(q);
}

void request_add(struct engine *g, struct request *q)
{
    char key[NAME_KEY_MAX];

    q->submitted_ns = clock_mono_ns();
    q->sig = signature_of(&q->r, q->splits);
    q->next = NULL;
    q->link = g->requests_end;
    *g->requests_end = q;
    g->requests_end = &q->next;
    namemap_put(&g->by_name, name_key(q->r.set, q->r.name, key), q);
    if (q->client != NULL)
        q->client->in_flight++;
}

void request_end(struct engine *g, struct request *q, enum shm_status status, const char *text, uint64_t out_offset,
                 uint64_t out_count)
{
    char key[NAME_KEY_MAX];

    *q->link = q->next;
    if (q->next != NULL)
        q->next->link = q->link;
    else
        g->requests_end = q->link;
    (void)namemap_remove(&g->by_name, name_key(q->r.set, q->r.name, key));

    if (q->client == NULL) {
        q->done(g, q, status, text != NULL ? text : "", out_count);
    } else {
        struct shm_reply reply = { .id = q->r.id, .status = status, .out_offset = out_offset, .out_count = out_count,
                                   .size = status == SHM_OK ? (uint32_t)q->members : 0 };
        (void)snprintf(reply.text, sizeof reply.text, "%s", text != NULL ? text : "");
        q->client->in_flight--;
        client_reply(q->client, &reply);
    }
    request_free(q);
}

void requests_fail(struct engine *g, uint64_t fence, enum shm_status status, const char *text)
{
    for (struct request *q = g->requests, *next; q != NULL; q = next) {
        next = q->next;
        if (q->client == NULL || q->client->fence <= fence)
            request_end(g, q, status, text, 0, 0);
    }
}

/* Why requests of this client cannot be done any more; false: they can, now or when the group is formed. */
static bool is_over(const struct engine *g, const struct client *c, char ret_text[SHM_TEXT_MAX])
{
    if (c->fence > g->over_fence)
        return false;
    (void)snprintf(ret_text, SHM_TEXT_MAX, "%s", g->over_text);
    return true;
}

/* Copied before anything is looked at: the client could change it between the check and the use. */
static int copy_splits(const struct client *c, struct request *q, struct error *e)
{
    if (q->r.splits == 0)
        return 0;
    q->splits = xcalloc(q->r.splits, sizeof *q->splits);
    memcpy(q->splits, c->base + q->r.splits_offset, q->r.splits * sizeof *q->splits);
    return shm_splits_check(&q->r, q->splits, 0, e);
}

/* A request that can be carried out, or NULL: e says why not. */
static struct request *request_new(struct engine *g, struct client *c, const struct shm_request *r, struct error *e)
{
    char key[NAME_KEY_MAX];

    if (shm_request_check(&c->layout, r, group_is_ready(g, c->fence) ? g->group->size : 0, e) < 0)
        return NULL;
    if (namemap_get(&g->by_name, name_key(r->set, r->name, key)) != NULL) {
        (void)error_set(e, ERROR_INVALID, "\"%s\" is already in flight on this rank: wait for it, or give every tensor a name of its "
                        "own", r->name);
        return NULL;
    }
    struct request *q = xcalloc(1, sizeof *q);
    q->client = c;
    q->r = *r;
    if (r->wire == SHM_WIRE_JOB && shm_wire_fits(g->options.wire, r->op, r->dtype, r->redop))
        q->r.wire = (uint16_t)g->options.wire;
    if (shm_dtype_size(r->dtype) > 0 && r->count > 0 && shm_op_moves_data(r->op)) { /* else the offsets mean nothing */
        q->in = c->base + r->in_offset;
        q->out = shm_op_has_result(r->op) ? NULL : c->base + r->out_offset;
    }
    if (copy_splits(c, q, e) < 0) {
        request_free(q);
        return NULL;
    }
    return q;
}

static void take_request(struct engine *g, struct client *c, const struct shm_request *r)
{
    struct error e = ERROR_INIT;
    char text[SHM_TEXT_MAX];

    if (r->op == SHM_OP_FREE) {
        if (!results_free(&c->results, r->in_offset))
            log_debug("a client handed back a result that it does not have", KVI("offset", r->in_offset));
        return;
    }
    struct request *q = request_new(g, c, r, &e);
    if (q == NULL) {
        refuse(c, r->id, SHM_INVALID, e.text);
        return;
    }
    if (is_over(g, c, text)) {
        request_free(q);
        refuse(c, r->id, SHM_PEER_LOST, text);
        return;
    }
    request_add(g, q);
    if (group_is_ready(g, c->fence))
        order_announce(g, q);
}

static void break_off(struct client *c)
{
    c->broken = true;
    loop_remove(c->source);
    c->source = NULL;
    log_warn("a client broke the queue protocol, nothing more is taken from it", KVI("client", c->id));
}

/* Takes what is in the queue. False: some had to stay. */
static bool take_requests(struct engine *g, struct client *c)
{
    struct shm_header *h = shared(c);
    const struct shm_request *queue = (const struct shm_request *)(c->base + c->layout.sq_offset);

    for (unsigned taken = 0;; taken++) {
        uint32_t waiting = atomic_load(&h->sq_tail) - c->sq_head;
        if (waiting == 0)
            return true;
        if (waiting > c->layout.sq_entries) {
            break_off(c);
            return true;
        }
        if (taken == TAKE_PER_TURN || c->in_flight + c->backlog_count >= CLIENT_IN_FLIGHT_MAX)
            return false;

        /* Copied before anything is looked at: the client could change it between the check and the use. */
        struct shm_request r;
        memcpy(&r, &queue[c->sq_head & (c->layout.sq_entries - 1)], sizeof r);
        c->sq_head++;
        atomic_store_explicit(&h->sq_head, c->sq_head, memory_order_release);
        take_request(g, c, &r);
    }
}

/* While the thread is awake the client need not ring: the queues are looked at all the time (on_idle in engine.c). */
static void look_at_queues(struct client *c)
{
    struct engine *g = c->engine;
    struct shm_header *h = shared(c);

    if (c->broken)
        return;
    push_backlog(c);
    atomic_store_explicit(&h->sq_waiting, 0, memory_order_relaxed);
    bool all = take_requests(g, c);
    if (!c->broken && (!all || c->backlog_count > 0) && !loop_timer_armed(c->again))
        loop_timer_at(c->again, clock_mono_ms() + AGAIN_MS);
    execute_flush(g);
}

bool clients_look(struct engine *g)
{
    bool some = false;

    for (struct client *c = g->clients; c != NULL; c = c->next) {
        if (c->broken || loop_timer_armed(c->again) || atomic_load_explicit(&shared(c)->sq_tail, memory_order_relaxed) == c->sq_head)
            continue;
        look_at_queues(c);
        some = true;
    }
    return some;
}

/* Says to all clients that they have to ring, then looks once more. False: requests came meanwhile. */
bool clients_sleep(struct engine *g)
{
    for (struct client *c = g->clients; c != NULL; c = c->next) {
        if (!c->broken)
            atomic_store(&shared(c)->sq_waiting, 1);
    }
    return !clients_look(g);
}

static void on_doorbell(void *ctx, int fd, unsigned events)
{
    struct client *c = ctx;
    uint64_t count;

    (void)events;
    (void)!read(fd, &count, sizeof count);
    look_at_queues(c);
}

static void on_again(void *ctx)
{
    look_at_queues(ctx);
}

/* ---- life ---- */

void clients_add(struct engine *g, struct client *c)
{
    struct error e = ERROR_INIT;

    c->next = g->clients;
    g->clients = c;
    order_left(g, false);
    c->again = loop_timer_new(g->loop, on_again, c);
    if (loop_add(g->loop, c->fds[1], LOOP_READ, on_doorbell, c, &c->source, &e) < 0) {
        log_error_from("a client cannot be served", &e);
        c->broken = true;
        return;
    }
    look_at_queues(c);
}

void client_release(struct client *c)
{
    loop_remove(c->source);
    loop_timer_free(c->again);
    if (c->base != NULL)
        (void)munmap(c->base, c->bytes);
    for (int i = 0; i < 3; i++) {
        if (c->fds[i] >= 0)
            (void)close(c->fds[i]);
    }
    results_release(&c->results);
    free(c->backlog);
    free(c);
}

/* The others wait for what this rank has announced: when the process that has it is gone, the group is. */
static void give_up_announced(struct engine *g, const struct client *c)
{
    size_t announced = 0;
    char why[SHM_TEXT_MAX];

    for (const struct request *q = g->requests; q != NULL; q = q->next)
        announced += q->client == c && q->announced;
    if (announced == 0)
        return;
    (void)snprintf(why, sizeof why, ENGINE_PROCESS_LEFT " with %zu collective%s in flight", announced,
                   announced == 1 ? "" : "s");
    group_lost(g, g->group->rank, why);
}

void clients_remove(struct engine *g, uint64_t id)
{
    struct client **at = &g->clients;

    while (*at != NULL && (*at)->id != id)
        at = &(*at)->next;
    struct client *c = *at;
    if (c == NULL)
        return;
    give_up_announced(g, c);
    for (struct request *q = g->requests, *next; q != NULL; q = next) {
        next = q->next;
        if (q->client == c)
            request_end(g, q, SHM_PEER_LOST, "the client was detached", 0, 0);
    }
    *at = c->next;
    client_release(c);
}
