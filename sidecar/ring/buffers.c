/* The data of one list: where it comes from and where it goes, packing of what travels together, scaling. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/mem.h"
#include "sidecar/ring/adasum.h"
#include "sidecar/ring/engine_private.h"
#include "sidecar/ring/scale.h"

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
    scale_elements(to, from, count, s->dtype, s->prescale, 1.0);
}

static double divisor_of(const struct request *q)
{
    return q->sig.redop == SHM_AVERAGE ? q->set_size : 1.0;
}

/* Sums of integers are scaled when they are complete; those of floating types on their way, by the plan. */
static bool scales_afterwards(const struct signature *s)
{
    return !shm_dtype_is_float(s->dtype);
}

static void plan_arithmetic(const struct signature *s, int32_t set_size, struct collective_plan *plan)
{
    if (scales_afterwards(s)) {
        plan->redop = s->redop == SHM_AVERAGE ? SHM_SUM : s->redop;
    } else {
        plan->factor = s->postscale;
        plan->divisor = s->redop == SHM_AVERAGE ? set_size : 1.0;
    }
}

/* ---- data that travel along ---- */

uint8_t *buffers_along(const struct request *q)
{
    uint8_t *data = xcalloc(q->sig.count, shm_dtype_size(q->sig.dtype));

    put_in(data, q->in, q->sig.count, &q->sig);
    return data;
}

void buffers_sum_along(const struct go_list *l)
{
    for (size_t i = 0; i < l->count; i++) {
        struct go_entry *entry = &l->entries[i];
        const struct signature *s = &entry->sig;
        struct collective_plan plan = { .dtype = s->dtype, .redop = s->redop, .factor = 1.0, .divisor = 1.0 };
        plan_arithmetic(s, l->set_size, &plan);
        entry->result = xcalloc(s->count, shm_dtype_size(s->dtype));
        (s->wire == SHM_WIRE_EXACT ? squeeze_sum_exact : collective_sum)(&plan, (const uint8_t *const *)entry->along, l->member_count, s->count, entry->result);
    }
}

static void take_results(const struct running *run)
{
    for (size_t i = 0; i < run->list.count; i++) {
        const struct request *q = run->requests[i];
        memcpy(q->out, run->list.entries[i].result, q->sig.count * shm_dtype_size(q->sig.dtype));
    }
}

/* Walks the packed form of a fused list: block by block, in each the tensors' shares of that block, so that an element meets the
 * same ranks in the same order whether its tensor travels alone or not. Packs the inputs or unpacks into the outputs. */
static void pack(struct engine *g, const struct running *run, bool out)
{
    int32_t size = run->list.member_count;
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

/* Where a result of count elements goes, `header` bytes before it; NULL: no memory. When the results area is full the others need
 * what goes through this rank all the same: then it is `spare` bytes into the work area. */
static uint8_t *place_result(struct engine *g, uint64_t count, uint64_t header, uint64_t spare)
{
    struct running *run = &g->running;
    struct request *q = run->requests[0];
    uint64_t bytes = header + count * shm_dtype_size(q->sig.dtype);

    run->has_result = true;
    run->out_count = count;
    if (q->client == NULL) { /* the engine's own */
        run->no_space = count > q->out_capacity;
        if (!run->no_space)
            return q->out;
    } else {
        run->no_space = !results_allocate(&q->client->results, bytes, &run->out_offset);
        if (!run->no_space)
            return q->client->base + run->out_offset;
    }
    uint8_t *work = work_area(g, spare + bytes);
    return work != NULL ? work + spare : NULL;
}

/* The prepare functions fill the plan with buffers and offsets. -1: no memory. */

static int prepare_allreduce(struct engine *g, struct collective_plan *plan)
{
    struct running *run = &g->running;
    struct request *q = run->requests[0];
    bool fused = run->list.count > 1;

    for (int32_t b = 0; b < plan->size; b++) {
        run->offsets[b + 1] = run->offsets[b];
        for (size_t i = 0; i < run->list.count; i++) {
            uint64_t begin, end;
            schedule_block_range(run->requests[i]->sig.count, plan->size, b, &begin, &end);
            run->offsets[b + 1] += end - begin;
        }
    }
    plan_arithmetic(&q->sig, q->set_size, plan);

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

/* Every rank gets all the vectors and computes the whole. */
static int prepare_adasum(struct engine *g, struct collective_plan *plan)
{
    struct running *run = &g->running;
    struct request *q = run->requests[0];
    uint64_t bytes = bytes_of(run), all;

    if (__builtin_mul_overflow(bytes, (uint64_t)plan->size, &all) || work_area(g, all) == NULL)
        return -1;
    for (int32_t b = 0; b < plan->size; b++)
        run->offsets[b + 1] = run->offsets[b] + q->sig.count;
    plan->op = SHM_OP_ALLGATHER;
    plan->out = g->work;
    put_in(g->work + (uint64_t)plan->rank * bytes, q->in, q->sig.count, &q->sig);
    return 0;
}

static int prepare_allgather(struct engine *g, struct collective_plan *plan)
{
    struct running *run = &g->running;
    struct request *q = run->requests[0];
    const uint64_t *counts = run->list.entries[0].counts;

    for (int32_t m = 0; m < plan->size; m++)
        run->offsets[m + 1] = run->offsets[m] + counts[m];
    plan->out = place_result(g, run->offsets[plan->size], 0, 0);
    if (plan->out == NULL)
        return -1;
    if (q->sig.count > 0)
        memmove(plan->out + run->offsets[plan->rank] * shm_dtype_size(q->sig.dtype), q->in, q->sig.count * shm_dtype_size(q->sig.dtype));
    return 0;
}

static int prepare_broadcast(struct engine *g, struct collective_plan *plan)
{
    struct running *run = &g->running;
    struct request *q = run->requests[0];

    run->offsets[1] = q->sig.count;
    plan->root = go_list_place(&run->list, q->sig.root);
    plan->out = q->out;
    if (g->group->rank == q->sig.root && q->in != q->out && q->sig.count > 0)
        memmove(q->out, q->in, q->sig.count * shm_dtype_size(q->sig.dtype));
    return 0;
}

/* A tensor of which each rank of the set has its part, reduced to the parts of those that take part. */
static void pack_parts(const struct running *run, uint8_t *to)
{
    const struct request *q = run->requests[0];
    uint64_t element = shm_dtype_size(q->sig.dtype), from = 0;
    int32_t m = 0;

    for (int32_t place = 0; place < run->list.set_size; place++) {
        uint64_t count = q->splits[place];
        if (m < run->list.member_count && run->list.places[m] == place) {
            scale_elements(to, q->in + from * element, count, q->sig.dtype, q->sig.op == SHM_OP_ALLTOALL ? 1.0 : q->sig.prescale, 1.0);
            to += count * element;
            m++;
        }
        from += count;
    }
}

static int prepare_reducescatter(struct engine *g, struct collective_plan *plan)
{
    struct running *run = &g->running;
    struct request *q = run->requests[0];
    bool packs = !run->list.whole || q->sig.prescale != 1.0;

    for (int32_t m = 0; m < plan->size; m++)
        run->offsets[m + 1] = run->offsets[m] + q->splits[run->list.places[m]];
    plan_arithmetic(&q->sig, q->set_size, plan);
    uint64_t packed = packs ? run->offsets[plan->size] * shm_dtype_size(q->sig.dtype) : 0;
    plan->out = place_result(g, q->splits[run->list.places[plan->rank]], 0, packed);
    if (plan->out == NULL || (packs && work_area(g, packed) == NULL))
        return -1;
    if (packs && q->sig.count > 0)
        pack_parts(run, g->work);
    plan->in = packs ? g->work : q->in;
    run->result = plan->out;
    if (plan->size == 1 && q->sig.count > 0)
        memmove(plan->out, plan->in, run->offsets[1] * shm_dtype_size(q->sig.dtype));
    return 0;
}

/* Before the elements: how many came from each rank of the set. */
static void put_header(const struct running *run, uint8_t *to, const uint64_t *counts)
{
    memset(to, 0, shm_splits_bytes((uint32_t)run->list.set_size));
    for (int32_t m = 0; m < run->list.member_count; m++)
        memcpy(to + (size_t)run->list.places[m] * 8, &counts[m], 8);
}

static int prepare_alltoall(struct engine *g, struct collective_plan *plan)
{
    struct running *run = &g->running;
    struct request *q = run->requests[0];
    const uint64_t *counts = run->list.entries[0].counts;
    uint64_t element = shm_dtype_size(q->sig.dtype), header = shm_splits_bytes((uint32_t)run->list.set_size);
    uint64_t *send = run->offsets, *receive = run->offsets + plan->size + 1;

    for (int32_t m = 0; m < plan->size; m++) {
        send[m + 1] = send[m] + q->splits[run->list.places[m]];
        receive[m + 1] = receive[m] + counts[m];
    }
    uint64_t packed = run->list.whole ? 0 : (send[plan->size] * element + SHM_ALIGN - 1) / SHM_ALIGN * SHM_ALIGN;
    uint8_t *result = place_result(g, receive[plan->size], header, packed);
    if (result == NULL || (packed > 0 && work_area(g, packed) == NULL))
        return -1;
    put_header(run, result, counts);
    if (packed > 0)
        pack_parts(run, g->work);
    plan->in = packed > 0 ? g->work : q->in;
    plan->out = result + header;
    plan->send_offset = send;
    plan->receive_offset = receive;
    if (counts[plan->rank] > 0)
        memmove(plan->out + receive[plan->rank] * element, plan->in + send[plan->rank] * element, counts[plan->rank] * element);
    return 0;
}

int buffers_prepare(struct engine *g, struct collective_plan *plan)
{
    struct running *run = &g->running;

    run->offsets = xcalloc(2 * ((size_t)plan->size + 1), sizeof *run->offsets);
    plan->block_offset = run->offsets;
    switch (plan->op) {
    case SHM_OP_ALLREDUCE:
        if (plan->size == 1)
            return 0;
        return plan->redop == SHM_ADASUM ? prepare_adasum(g, plan) : prepare_allreduce(g, plan);
    case SHM_OP_ALLGATHER:
        return prepare_allgather(g, plan);
    case SHM_OP_BROADCAST:
        return prepare_broadcast(g, plan);
    case SHM_OP_REDUCESCATTER:
        return prepare_reducescatter(g, plan);
    case SHM_OP_ALLTOALL:
        return prepare_alltoall(g, plan);
    default:
        return 0;
    }
}

/* One member has nothing to send. An average still divides by the set's size: the others have joined. */
static void reduce_alone(const struct request *q)
{
    const struct signature *s = &q->sig;

    if (s->count == 0)
        return;
    if (scales_afterwards(s)) {
        scale_elements(q->out, q->in, s->count, s->dtype, s->prescale, 1.0);
        scale_elements(q->out, q->out, s->count, s->dtype, s->postscale, divisor_of(q));
    } else {
        scale_elements(q->out, q->in, s->count, s->dtype, s->prescale * s->postscale, divisor_of(q));
    }
}

static void finish_allreduce(struct engine *g)
{
    struct running *run = &g->running;
    struct request *first = run->requests[0];

    for (size_t i = 0; run->list.member_count == 1 && i < run->list.count; i++)
        reduce_alone(run->requests[i]);
    if (run->list.member_count == 1)
        return;
    if (first->sig.redop == SHM_ADASUM && first->sig.count > 0) {
        adasum(g->work, run->list.member_count, first->sig.count, first->sig.dtype);
        scale_elements(first->out, g->work, first->sig.count, first->sig.dtype, first->sig.postscale, 1.0);
        return;
    }
    if (run->copy_to != NULL)
        memcpy(run->copy_to, g->work, bytes_of(run));
    if (run->list.along)
        take_results(run);
    else if (run->list.count > 1)
        pack(g, run, true);
    for (size_t i = 0; scales_afterwards(&first->sig) && i < run->list.count; i++) {
        struct request *q = run->requests[i];
        scale_elements(q->out, q->out, q->sig.count, q->sig.dtype, q->sig.postscale, divisor_of(q));
    }
}

void buffers_finish(struct engine *g)
{
    struct running *run = &g->running;
    struct request *q = run->requests[0];

    if (q->sig.op == SHM_OP_ALLREDUCE) {
        finish_allreduce(g);
    } else if (q->sig.op == SHM_OP_REDUCESCATTER && (scales_afterwards(&q->sig) || run->list.member_count == 1)) {
        scale_elements(run->result, run->result, run->out_count, q->sig.dtype, q->sig.postscale, divisor_of(q));
    }
}
