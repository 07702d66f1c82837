/* From announcements to finished collectives, in GO order. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/mem.h"
#include "sidecar/ring/engine_private.h"

#define ANNOUNCE_FRAME_BYTES (64u << 10)   /* then a frame is sent and the next begun */
#define WORK_KEEP_BYTES (64u << 20)        /* a larger work area is given back after use */
#define BUSBW_MIN_BYTES (1u << 20)         /* smaller all-reduces measure latency, not bandwidth */

static bool is_alive(const struct engine *g)
{
    return g->group != NULL && g->group->state != GROUP_LOST;
}

/* ---- announcing ---- */

static void send_announcements(struct group *p)
{
    if (p->announcements.len == 0)
        return;
    stream_send(p->streams[0], PEER_ANNOUNCE, p->announcements.text, p->announcements.len);
    buf_clear(&p->announcements);
}

void execute_announce(struct engine *g, struct request *q)
{
    struct group *p = g->group;
    struct error e = ERROR_INIT;
    char text[SHM_TEXT_MAX];

    if (q->sig.op == SHM_OP_BROADCAST && q->sig.root >= p->size) {
        (void)snprintf(text, sizeof text, "\"%s\": broadcast from rank %d, but ranks are 0 to %d", q->r.name, q->sig.root,
                       p->size - 1);
        request_end(g, q, SHM_INVALID, text, 0, 0);
        return;
    }
    q->announced = true;
    if (p->rank == 0) {
        struct announcement a = { .sig = q->sig };
        memcpy(a.name, q->r.name, sizeof a.name);
        if (negotiation_announce(p->negotiation, 0, &a, &e) < 0)
            group_lost(g, 0, e.text);
        return;
    }
    announce_encode(&p->announcements, p->cache, q->r.name, &q->sig);
    if (p->announcements.len > ANNOUNCE_FRAME_BYTES)
        send_announcements(p);
}

void execute_flush(struct engine *g)
{
    execute_advance(g);
}

/* ---- lists ---- */

/* -1: what rank 0 says does not fit what this rank has. */
static int enqueue(struct engine *g, struct go_list *l, uint32_t chunk_bytes, struct error *e)
{
    struct group *p = g->group;
    int64_t now = clock_mono_ns();

    if (l->sequence != p->last_sequence + 1)
        return error_set(e, ERROR_INVALID, "it sent list %llu after list %llu", (unsigned long long)l->sequence,
                         (unsigned long long)p->last_sequence);
    p->last_sequence = l->sequence;
    for (size_t i = 0; i < l->count; i++) {
        struct request *q = namemap_get(&g->by_name, l->entries[i].name);
        if (q == NULL || !q->announced || q->go_ns != 0)
            return error_set(e, ERROR_INVALID, "it started \"%s\", which this rank has not announced", l->entries[i].name);
        if (l->entries[i].counts != NULL && l->entries[i].counts[p->rank] != q->r.count)
            return error_set(e, ERROR_INVALID, "it started \"%s\" with a wrong count for this rank", q->r.name);
        q->go_ns = now;
        if (q->client != NULL && l->last_rank != p->rank)
            engine_count_wait(g, (double)(now - q->submitted_ns) / 1e6, l->last_rank);
    }
    struct go_waiting *w = xcalloc(1, sizeof *w);
    *w = (struct go_waiting){ .list = *l, .chunk_bytes = chunk_bytes };
    *l = (struct go_list){ 0 };
    *g->queue_end = w;
    g->queue_end = &w->next;
    g->queued++;
    return 0;
}

static void send_to_all(struct group *p, enum peer_type type, const struct buf *b)
{
    for (int32_t r = 1; r < p->size; r++) {
        if (p->streams[r] != NULL)
            stream_send(p->streams[r], type, b->text, b->len);
    }
}

static void say_op_error(struct engine *g, const struct go_list *l)
{
    auto_buf struct buf b = BUF_INIT(1024);
    struct request *q = namemap_get(&g->by_name, l->entries[0].name);

    op_error_encode(&b, l->entries[0].name, l->status, l->text);
    send_to_all(g->group, PEER_OP_ERROR, &b);
    if (q != NULL)
        request_end(g, q, l->status, l->text, 0, 0);
}

/* Rank 0: sends what all ranks are ready for, a few lists ahead of the one that is running. */
static void issue(struct engine *g)
{
    struct group *p = g->group;
    uint32_t chunk_bytes = (uint32_t)g->options.chunk_bytes;
    struct error e = ERROR_INIT;
    struct go_list l;

    while (g->queued < GO_WINDOW && negotiation_next(p->negotiation, &l)) {
        if (l.status != SHM_OK) {
            say_op_error(g, &l);
        } else {
            auto_buf struct buf b = BUF_INIT(PEER_MAX_CONTROL);
            go_begin(&b, l.sequence, chunk_bytes);
            go_add(&b, p->cache, p->size, &l);
            send_to_all(p, PEER_GO, &b);
            if (enqueue(g, &l, chunk_bytes, &e) < 0)
                group_lost(g, 0, e.text);
        }
        go_list_release(&l);
        if (!is_alive(g))
            return;
    }
}

/* ---- frames ---- */

static const struct signature *announced_signature(void *ctx, const char *name)
{
    const struct engine *g = ctx;
    const struct request *q = namemap_get(&g->by_name, name);

    return q != NULL && q->announced ? &q->sig : NULL;
}

static int take_announcements(struct engine *g, int32_t from, const uint8_t *payload, size_t len, struct error *e)
{
    struct announcement a;

    for (size_t at = 0; at < len;) {
        if (announce_decode(g->group->cache, payload, len, &at, &a, e) < 0 ||
            negotiation_announce(g->group->negotiation, from, &a, e) < 0)
            return -1;
    }
    return 0;
}

static int take_go(struct engine *g, const uint8_t *payload, size_t len, struct error *e)
{
    struct group *p = g->group;
    struct go_list *lists;
    size_t count;
    uint32_t chunk_bytes;
    int result = 0;

    if (go_decode(p->cache, p->size, payload, len, announced_signature, g, &chunk_bytes, &lists, &count, e) < 0)
        return -1;
    for (size_t i = 0; i < count && result == 0; i++)
        result = enqueue(g, &lists[i], chunk_bytes, e);
    go_lists_free(lists, count);
    return result;
}

static int take_op_error(struct engine *g, const uint8_t *payload, size_t len, struct error *e)
{
    char name[SHM_NAME_MAX], text[SHM_TEXT_MAX];
    enum shm_status status;

    if (op_error_decode(payload, len, name, &status, text, e) < 0)
        return -1;
    struct request *q = namemap_get(&g->by_name, name);
    if (q == NULL || !q->announced || q->go_ns != 0)
        return error_set(e, ERROR_INVALID, "it refused \"%s\", which this rank has not announced", name);
    request_end(g, q, status, text, 0, 0);
    return 0;
}

void execute_frame(struct engine *g, int32_t from, const struct peer_frame *frame, const uint8_t *payload)
{
    struct group *p = g->group;
    struct error e = ERROR_INIT;
    char text[SHM_TEXT_MAX];
    int32_t rank;
    int result;

    if (frame->type == PEER_LOST) {
        result = lost_decode(payload, frame->length, p->size, &rank, text, &e);
        if (result == 0) {
            group_lost_as(g, rank, text);
            return;
        }
    } else if (frame->type == PEER_ANNOUNCE && p->rank == 0) {
        result = take_announcements(g, from, payload, frame->length, &e);
    } else if (frame->type == PEER_GO && p->rank != 0) {
        result = take_go(g, payload, frame->length, &e);
    } else if (frame->type == PEER_OP_ERROR && p->rank != 0) {
        result = take_op_error(g, payload, frame->length, &e);
    } else {
        result = error_set(&e, ERROR_INVALID, "it sent a frame of type %u, which has no place here", frame->type);
    }
    if (result < 0)
        group_lost(g, from, e.text);
    else
        execute_advance(g);
}

/* ---- one list ---- */

/* NULL: there is no memory for it. */
static uint8_t *work_area(struct engine *g, uint64_t bytes)
{
    if (bytes == 0)
        bytes = 1; /* tensors without elements, fused: NULL would say that there is no memory */
    if (g->work_bytes >= bytes)
        return g->work;
    if (g->work != NULL)
        (void)munmap(g->work, g->work_bytes);
    g->work = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    g->work_bytes = bytes;
    if (g->work == MAP_FAILED) {
        g->work = NULL;
        g->work_bytes = 0;
    }
    return g->work;
}

static bool overlap(const uint8_t *a, const uint8_t *b, uint64_t bytes)
{
    return a < b + bytes && b < a + bytes;
}

/* The contribution, scaled where that is asked for. */
static void put_in(uint8_t *to, const uint8_t *from, uint64_t count, const struct signature *s)
{
    if (count == 0)
        return;
    if (s->prescale != 1.0)
        reduce_kernels()->scale[s->dtype](to, from, count, s->prescale, 1.0);
    else
        memcpy(to, from, count * shm_dtype_size(s->dtype));
}

/* Walks the packed form of a fused list: block by block, in each the tensors' shares of that block, so that an element meets the
 * same ranks in the same order whether its tensor travels alone or not. Packs the inputs or unpacks into the outputs. */
static void pack(struct engine *g, const struct running *run, bool out)
{
    int32_t size = g->group->size;
    uint8_t *at = g->work;

    for (int32_t b = 0; b < size; b++) {
        for (size_t i = 0; i < run->list.count; i++) {
            struct request *q = run->requests[i];
            uint64_t element = shm_dtype_size(q->sig.dtype), begin, end;
            schedule_block_range(q->sig.count, size, b, &begin, &end);
            if (out && end > begin)
                memcpy(q->out + begin * element, at, (end - begin) * element);
            else if (end > begin)
                put_in(at, q->in + begin * element, end - begin, &q->sig);
            at += (end - begin) * element;
        }
    }
}

static uint64_t bytes_of(const struct running *run)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < run->list.count; i++)
        bytes += run->requests[i]->sig.count * shm_dtype_size(run->requests[i]->sig.dtype);
    return bytes;
}

/* The prepare functions fill the plan with buffers and blocks. -1: no memory. */

static int prepare_allreduce(struct engine *g, struct collective_plan *plan)
{
    struct running *run = &g->running;
    struct request *q = run->requests[0];
    int32_t size = g->group->size;
    bool fused = run->list.count > 1;

    for (int32_t b = 0; b < size; b++) {
        run->block_offset[b + 1] = run->block_offset[b];
        for (size_t i = 0; i < run->list.count; i++) {
            uint64_t begin, end;
            schedule_block_range(run->requests[i]->sig.count, size, b, &begin, &end);
            run->block_offset[b + 1] += end - begin;
        }
    }
    plan->factor = q->sig.postscale;
    plan->divisor = q->sig.redop == SHM_AVERAGE ? size : 1.0;

    bool in_place = !fused && overlap(q->in, q->out, bytes_of(run));
    if ((fused || in_place) && work_area(g, bytes_of(run)) == NULL)
        return -1;
    if (fused) {
        pack(g, run, false);
        plan->in = plan->out = g->work;
        return 0;
    }
    plan->in = q->in;
    plan->out = in_place ? g->work : q->out;
    run->copy_to = in_place ? q->out : NULL;
    if (q->sig.prescale != 1.0) {
        put_in(plan->out, q->in, q->sig.count, &q->sig);
        plan->in = plan->out;
    }
    return 0;
}

static int prepare_allgather(struct engine *g, struct collective_plan *plan)
{
    struct running *run = &g->running;
    struct request *q = run->requests[0];
    const uint64_t *counts = run->list.entries[0].counts;
    uint64_t element = shm_dtype_size(q->sig.dtype);

    for (int32_t r = 0; r < g->group->size; r++)
        run->block_offset[r + 1] = run->block_offset[r] + counts[r];
    run->out_count = run->block_offset[g->group->size];

    uint64_t bytes = run->out_count * element;
    if (q->client == NULL) {
        run->no_space = run->out_count > q->out_capacity;
        plan->out = q->out;
    } else {
        run->no_space = !results_allocate(&q->client->results, bytes, &run->out_offset);
        plan->out = run->no_space ? NULL : q->client->base + run->out_offset;
    }
    if (run->no_space && bytes > 0) { /* the others need what goes through this rank all the same */
        plan->out = work_area(g, bytes);
        if (plan->out == NULL)
            return -1;
    }
    if (q->sig.count > 0)
        memmove(plan->out + run->block_offset[g->group->rank] * element, q->in, q->sig.count * element);
    return 0;
}

static int prepare_broadcast(struct engine *g, struct collective_plan *plan)
{
    struct running *run = &g->running;
    struct request *q = run->requests[0];

    run->block_offset[1] = q->sig.count;
    plan->root = q->sig.root;
    plan->out = q->out;
    if (g->group->rank == q->sig.root && q->in != q->out && q->sig.count > 0)
        memmove(q->out, q->in, q->sig.count * shm_dtype_size(q->sig.dtype));
    return 0;
}

static int prepare(struct engine *g, struct collective_plan *plan)
{
    switch (plan->op) {
    case SHM_OP_ALLREDUCE:
        return prepare_allreduce(g, plan);
    case SHM_OP_ALLGATHER:
        return prepare_allgather(g, plan);
    case SHM_OP_BROADCAST:
        return prepare_broadcast(g, plan);
    default:
        return 0; /* a barrier is over when everyone was told to go */
    }
}

/* A group of one has nothing to send. */
static void reduce_alone(struct running *run)
{
    for (size_t i = 0; i < run->list.count; i++) {
        struct request *q = run->requests[i];
        double factor = q->sig.prescale * q->sig.postscale;
        if (q->sig.count == 0)
            continue;
        if (q->in != q->out)
            memmove(q->out, q->in, q->sig.count * shm_dtype_size(q->sig.dtype));
        if (factor != 1.0)
            reduce_kernels()->scale[q->sig.dtype](q->out, q->out, q->sig.count, factor, 1.0);
    }
}

static void clear_running(struct engine *g)
{
    struct running *run = &g->running;

    go_list_release(&run->list);
    free(run->requests);
    free(run->block_offset);
    *run = (struct running){ 0 };
    if (g->work_bytes > WORK_KEEP_BYTES) {
        (void)munmap(g->work, g->work_bytes);
        g->work = NULL;
        g->work_bytes = 0;
    }
}

static void count(struct engine *g, const struct running *run)
{
    uint64_t bytes = 0, operations = 0;
    double seconds = (double)(clock_mono_ns() - run->began_ns) / 1e9;
    int32_t size = g->group->size;

    for (size_t i = 0; i < run->list.count; i++) {
        const struct request *q = run->requests[i];
        if (q->client == NULL)
            continue;
        operations++;
        if (q->sig.op == SHM_OP_ALLREDUCE)
            bytes += q->sig.count * shm_dtype_size(q->sig.dtype);
    }
    bool measures = size > 1 && bytes >= BUSBW_MIN_BYTES;
    engine_count(g, operations, bytes, 2.0 * (size - 1) / size * (double)bytes, measures ? seconds : 0);
}

static void finish(struct engine *g)
{
    struct running *run = &g->running;
    struct request *first = run->requests[0];
    enum shm_status status = run->no_space ? SHM_NO_SPACE : SHM_OK;
    char text[SHM_TEXT_MAX] = "";

    if (run->copy_to != NULL)
        memcpy(run->copy_to, g->work, bytes_of(run));
    if (run->list.count > 1 && g->group->size > 1)
        pack(g, run, true);
    if (run->no_space)
        (void)snprintf(text, sizeof text, "\"%.100s\": the result of %llu bytes does not fit into the results area: release earlier "
                       "results, or make it larger", first->r.name,
                       (unsigned long long)(run->out_count * shm_dtype_size(first->sig.dtype)));
    count(g, run);
    run->active = false;
    g->queued--;
    bool gathers = first->sig.op == SHM_OP_ALLGATHER;
    for (size_t i = 0; i < run->list.count; i++) {
        uint64_t out_count = gathers ? run->out_count : run->requests[i]->sig.count;
        request_end(g, run->requests[i], status, text, run->out_offset, out_count);
    }
    clear_running(g);
}

/* Takes the next list from the queue. Afterwards it is running, or finished already. */
static void start(struct engine *g)
{
    struct group *p = g->group;
    struct running *run = &g->running;
    struct go_waiting *w = g->queue;

    g->queue = w->next;
    if (g->queue == NULL)
        g->queue_end = &g->queue;
    *run = (struct running){ .active = true, .list = w->list, .began_ns = clock_mono_ns() };
    run->requests = xcalloc(run->list.count, sizeof(struct request *));
    run->block_offset = xcalloc((size_t)p->size + 1, sizeof *run->block_offset);
    for (size_t i = 0; i < run->list.count; i++)
        run->requests[i] = namemap_get(&g->by_name, run->list.entries[i].name);

    const struct signature *s = &run->requests[0]->sig;
    struct collective_plan plan = { .op = s->op, .dtype = s->dtype, .redop = s->redop, .fence = p->fence,
                                    .sequence = run->list.sequence, .chunk_bytes = w->chunk_bytes,
                                    .rank = p->rank, .size = p->size, .members = p->everyone,
                                    .block_offset = run->block_offset, .factor = 1.0, .divisor = 1.0 };
    free(w);
    if (p->size == 1 && s->op == SHM_OP_ALLREDUCE) {
        reduce_alone(run);
        finish(g);
        return;
    }
    if (prepare(g, &plan) < 0) {
        char why[SHM_TEXT_MAX];
        (void)snprintf(why, sizeof why, "no memory for \"%.100s\"", run->requests[0]->r.name);
        group_lost(g, p->rank, why);
        return;
    }
    if (p->size == 1 || s->op == SHM_OP_BARRIER) {
        finish(g);
        return;
    }
    collective_start(g->collective, &plan, p->mesh);
}

/* True: it is done. */
static bool pump(struct engine *g)
{
    struct error e = ERROR_INIT;
    int32_t rank = -1;
    bool again = false;

    switch (collective_pump(g->collective, &again, &rank, &e)) {
    case COLLECTIVE_DONE:
        finish(g);
        return true;
    case COLLECTIVE_FAILED:
        group_lost(g, e.kind == ERROR_GONE ? -1 : rank, e.text);
        return false;
    case COLLECTIVE_RUNNING:
        if (again)
            loop_timer_at(g->again, loop_now(g->loop));
        return false;
    }
    return false;
}

void execute_advance(struct engine *g)
{
    while (is_alive(g)) {
        if (g->group->rank == 0)
            issue(g);
        else
            send_announcements(g->group);
        if (!is_alive(g))
            return;
        if (!g->running.active) {
            if (g->queue == NULL)
                return;
            start(g);
        } else if (!pump(g)) {
            return;
        }
    }
}

void execute_drop(struct engine *g)
{
    struct running *run = &g->running;

    if (run->active && run->list.entries[0].counts != NULL && run->requests[0]->client != NULL && !run->no_space)
        (void)results_free(&run->requests[0]->client->results, run->out_offset);
    clear_running(g);
    while (g->queue != NULL) {
        struct go_waiting *w = g->queue;
        g->queue = w->next;
        go_list_release(&w->list);
        free(w);
    }
    g->queue_end = &g->queue;
    g->queued = 0;
}
