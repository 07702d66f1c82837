/* Lists are carried out, in GO order; see order.c for where they come from. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/mem.h"
#include "sidecar/ring/engine_private.h"

#define WORK_KEEP_BYTES (64u << 20)        /* a larger work area is given back after use */
#define BUSBW_MIN_BYTES (1u << 20)         /* smaller all-reduces measure latency, not bandwidth */

/* ---- the time line ---- */

static void note(struct engine *g, enum trace_kind kind, const char *phase)
{
    const struct running *run = &g->running;

    if (!timeline_is_on(g->timeline))
        return;
    for (size_t i = 0; i < run->list.count; i++) {
        if (run->requests[i]->client != NULL)
            timeline_add(g->timeline, kind, phase, run->requests[i]->r.name, -1);
    }
}

/* ---- one list ---- */

void execute_flush(struct engine *g)
{
    execute_advance(g);
}

static void clear_running(struct engine *g)
{
    struct running *run = &g->running;

    go_list_release(&run->list);
    free(run->requests);
    free(run->offsets);
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
    int32_t size = run->list.member_count;

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

    bool moved = shm_op_moves_data(first->r.op) && !run->list.along; /* else it came with its list */
    if (moved) {
        note(g, TRACE_END, ""); /* of the ring */
        note(g, TRACE_BEGIN, "MEMCPY_OUT_FUSION_BUFFER");
    }
    buffers_finish(g);
    if (moved)
        note(g, TRACE_END, "");
    note(g, TRACE_END, ""); /* of the operation */
    if (run->no_space)
        (void)snprintf(text, sizeof text, "\"%.100s\": the result of %llu bytes does not fit into the results area: release earlier "
                       "results, or make it larger", first->r.name,
                       (unsigned long long)(run->out_count * shm_dtype_size(first->sig.dtype)));
    count(g, run);
    run->active = false;
    g->queued--;
    for (size_t i = 0; i < run->list.count; i++) {
        struct request *q = run->requests[i];
        if (!shm_op_moves_data(q->r.op))
            request_end(g, q, q->verdict, NULL, 0, q->answer);
        else
            request_end(g, q, status, text, run->out_offset, run->has_result ? run->out_count : q->sig.count);
    }
    clear_running(g);
}

static void no_memory(struct engine *g)
{
    char why[SHM_TEXT_MAX];

    (void)snprintf(why, sizeof why, "no memory for \"%.100s\"", g->running.requests[0]->r.name);
    group_lost(g, g->group->rank, why);
}

/* Takes the next list from the queue. Afterwards it is running, or finished already. */
static void start(struct engine *g)
{
    struct group *p = g->group;
    struct running *run = &g->running;
    struct go_waiting *w = g->queue;
    char key[NAME_KEY_MAX];

    g->queue = w->next;
    if (g->queue == NULL)
        g->queue_end = &g->queue;
    *run = (struct running){ .active = true, .list = w->list, .began_ns = clock_mono_ns() };
    run->requests = xcalloc(run->list.count, sizeof(struct request *));
    for (size_t i = 0; i < run->list.count; i++)
        run->requests[i] = namemap_get(&g->by_name, name_key(run->list.set, run->list.entries[i].name, key));

    const struct signature *s = &run->requests[0]->sig;
    struct collective_plan plan = { .op = s->op, .dtype = s->dtype, .redop = s->redop, .fence = p->fence,
                                    .sequence = run->list.sequence, .chunk_bytes = w->chunk_bytes, .checksums = g->options.checksums,
                                    .rank = go_list_place(&run->list, p->rank), .size = run->list.member_count,
                                    .members = run->list.members, .factor = 1.0, .divisor = 1.0 };
    free(w);
    note(g, TRACE_END, ""); /* of the queue */
    if (!shm_op_moves_data(s->op) || run->list.along) { /* it took effect when its list came, or brings its results */
        finish(g);
        return;
    }
    note(g, TRACE_BEGIN, "MEMCPY_IN_FUSION_BUFFER");
    int prepared = buffers_prepare(g, &plan);
    note(g, TRACE_END, "");
    if (prepared < 0) {
        no_memory(g);
        return;
    }
    note(g, TRACE_BEGIN, trace_phase_ring(s->op));
    if (plan.size == 1) {
        finish(g);
        return;
    }
    struct codec codec = { .wire = s->wire, .dtype = s->dtype };
    run->squeezed = s->wire != 0;
    if (run->squeezed) {
        if (squeeze_start(g->squeeze, &plan, &codec, g->collective, p->mesh) < 0)
            no_memory(g);
        return;
    }
    uint64_t elements = plan.block_offset[plan.op == SHM_OP_BROADCAST ? 1 : plan.size];
    plan.algorithm = collective_choose(plan.op, elements * shm_dtype_size(plan.dtype), plan.size);
    collective_start(g->collective, &plan, p->mesh);
}

/* True: it is done, or its next part has begun. */
static bool pump(struct engine *g)
{
    struct error e = ERROR_INIT;
    int32_t rank = -1;
    bool again = false;

    switch (collective_pump(g->collective, &again, &rank, &e)) {
    case COLLECTIVE_DONE:
        if (g->running.squeezed && squeeze_next(g->squeeze, g->collective, g->group->mesh))
            return true;
        finish(g);
        return true;
    case COLLECTIVE_FAILED:
        if (e.kind == ERROR_IO) /* damage: whose data it was helps to find out how much of it there was */
            (void)error_wrap(&e, "\"%.60s\"", g->running.requests[0]->r.name);
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
    engine_stay_awake(g);
    while (group_is_alive(g)) {
        order_flush(g);
        if (!group_is_alive(g))
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

    if (run->active && run->has_result && run->requests[0]->client != NULL && !run->no_space)
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
