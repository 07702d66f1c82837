#include "sidecar/ring/schedule.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

void schedule_block_range(uint64_t count, int32_t size, int32_t block, uint64_t *ret_begin, uint64_t *ret_end)
{
    uint64_t each = count / (uint64_t)size, more = count % (uint64_t)size, b = (uint64_t)block;

    *ret_begin = b * each + (b < more ? b : more);
    *ret_end = *ret_begin + each + (b < more ? 1 : 0);
}

/* ---- making one ---- */

static int32_t ring(const struct schedule *s, int32_t position)
{
    return ((position % s->size) + s->size) % s->size;
}

/* Room for `flows` with at most `runs` runs each way. */
static void prepare(struct schedule *s, int32_t flows, uint32_t runs)
{
    size_t need = (size_t)flows * runs * 2;

    if (s->flow_capacity < (size_t)flows) {
        s->flow_capacity = (size_t)flows;
        s->flows = xrealloc(s->flows, s->flow_capacity, sizeof *s->flows);
    }
    if (s->run_capacity < need) {
        s->run_capacity = need;
        s->runs = xrealloc(s->runs, need, sizeof *s->runs);
    }
    s->flow_count = flows;
    for (int32_t i = 0; i < flows; i++)
        s->flows[i] = (struct schedule_flow){ .sends = s->runs + (size_t)i * runs * 2, .receives = s->runs + ((size_t)i * 2 + 1) * runs };
}

/* Both ends know how long a run is, so they cut it alike. */
static uint64_t chunk_of(const struct schedule *s, uint64_t count)
{
    uint64_t least = count / SCHEDULE_PIECES_MAX + (count % SCHEDULE_PIECES_MAX != 0);

    return s->chunk_elements > least ? s->chunk_elements : least;
}

static struct schedule_run *add_send(struct schedule *s, struct schedule_flow *f, uint64_t begin, uint64_t end,
                                     enum schedule_place place)
{
    struct schedule_run *r = &f->sends[f->send_count++];

    *r = (struct schedule_run){ .begin = begin, .end = end, .chunk = chunk_of(s, end - begin), .place = place };
    return r;
}

static struct schedule_run *add_receive(struct schedule *s, struct schedule_flow *f, uint64_t begin, uint64_t end,
                                        enum schedule_place place)
{
    struct schedule_run *r = &f->receives[f->receive_count++];

    *r = (struct schedule_run){ .begin = begin, .end = end, .chunk = chunk_of(s, end - begin), .place = place };
    if (s->piece_elements < r->chunk)
        s->piece_elements = r->chunk;
    return r;
}

/* A send whose pieces wait for those of a run that the left neighbour sends. */
static void add_forward(struct schedule *s, struct schedule_flow *f, uint64_t begin, uint64_t end, uint32_t wait_run)
{
    struct schedule_run *r = add_send(s, f, begin, end, PLACE_OUT);

    r->wait = WAIT_RECEIVED;
    r->wait_run = wait_run;
}

/* Flow 0 leads to the right; the one from the left is another one unless there are only two. */
static struct schedule_flow *ring_flows(struct schedule *s, uint32_t runs, struct schedule_flow **ret_left)
{
    prepare(s, s->size == 2 ? 1 : 2, runs);
    s->flows[0].peer = ring(s, s->rank + 1);
    s->wait_flow = s->flow_count - 1;
    *ret_left = &s->flows[s->wait_flow];
    (*ret_left)->peer = ring(s, s->rank - 1);
    return &s->flows[0];
}

static void ring_allreduce(struct schedule *s, const uint64_t *offset)
{
    uint32_t steps = (uint32_t)s->size - 1;
    struct schedule_flow *left, *right = ring_flows(s, 2 * steps, &left);

    for (uint32_t i = 0; i < steps; i++) {
        int32_t out = ring(s, s->rank - (int32_t)i - 1), in = ring(s, s->rank - (int32_t)i - 2);
        if (i == 0)
            (void)add_send(s, right, offset[out], offset[out + 1], PLACE_IN);
        else
            add_forward(s, right, offset[out], offset[out + 1], i - 1);
        add_receive(s, left, offset[in], offset[in + 1], PLACE_ADD)->last = i + 1 == steps;
    }
    for (uint32_t i = 0; i < steps; i++) {
        int32_t out = ring(s, s->rank - (int32_t)i), in = ring(s, s->rank - (int32_t)i - 1);
        add_forward(s, right, offset[out], offset[out + 1], steps + i - 1);
        (void)add_receive(s, left, offset[in], offset[in + 1], PLACE_OUT);
    }
}

static void ring_allgather(struct schedule *s, const uint64_t *offset)
{
    uint32_t steps = (uint32_t)s->size - 1;
    struct schedule_flow *left, *right = ring_flows(s, steps, &left);

    for (uint32_t i = 0; i < steps; i++) {
        int32_t out = ring(s, s->rank - (int32_t)i), in = ring(s, s->rank - (int32_t)i - 1);
        if (i == 0)
            (void)add_send(s, right, offset[out], offset[out + 1], PLACE_OUT);
        else
            add_forward(s, right, offset[out], offset[out + 1], i - 1);
        (void)add_receive(s, left, offset[in], offset[in + 1], PLACE_OUT);
    }
}

static void chain_broadcast(struct schedule *s, int32_t root, const uint64_t *offset)
{
    int32_t distance = ring(s, s->rank - root);
    struct schedule_flow *left, *right = ring_flows(s, 1, &left);

    if (distance == 0)
        (void)add_send(s, right, offset[0], offset[1], PLACE_OUT);
    else if (distance < s->size - 1)
        add_forward(s, right, offset[0], offset[1], 0);
    if (distance > 0)
        (void)add_receive(s, left, offset[0], offset[1], PLACE_OUT);
}

static void direct_flows(struct schedule *s, uint32_t runs)
{
    prepare(s, s->size - 1, runs);
    /* Each begins with its right neighbour: not all with the same one. */
    for (int32_t i = 0; i < s->flow_count; i++)
        s->flows[i].peer = ring(s, s->rank + 1 + i);
}

static void star_broadcast(struct schedule *s, int32_t root, const uint64_t *offset)
{
    direct_flows(s, 1);
    for (int32_t i = 0; i < s->flow_count; i++) {
        if (s->rank == root)
            (void)add_send(s, &s->flows[i], offset[0], offset[1], PLACE_OUT);
        else if (s->flows[i].peer == root)
            (void)add_receive(s, &s->flows[i], offset[0], offset[1], PLACE_OUT);
    }
}

static void direct_allgather(struct schedule *s, const uint64_t *offset)
{
    direct_flows(s, 1);
    for (int32_t i = 0; i < s->flow_count; i++) {
        int32_t peer = s->flows[i].peer;
        (void)add_send(s, &s->flows[i], offset[s->rank], offset[s->rank + 1], PLACE_OUT);
        (void)add_receive(s, &s->flows[i], offset[peer], offset[peer + 1], PLACE_OUT);
    }
}

static void sum_slots(struct schedule *s, uint64_t begin, uint64_t end)
{
    s->sum_begin = begin;
    s->sum_end = end;
    s->sum_chunk = chunk_of(s, end - begin);
}

static void direct_reduce(struct schedule *s, const uint64_t *offset, bool then_gather)
{
    direct_flows(s, 2);
    sum_slots(s, offset[s->rank], offset[s->rank + 1]);
    for (int32_t i = 0; i < s->flow_count; i++) {
        struct schedule_flow *f = &s->flows[i];
        (void)add_send(s, f, offset[f->peer], offset[f->peer + 1], PLACE_IN);
        (void)add_receive(s, f, s->sum_begin, s->sum_end, PLACE_SLOT);
        if (then_gather) {
            add_send(s, f, s->sum_begin, s->sum_end, PLACE_OUT)->wait = WAIT_SUMMED;
            (void)add_receive(s, f, offset[f->peer], offset[f->peer + 1], PLACE_OUT);
        }
    }
}

static void flat_allreduce(struct schedule *s, const uint64_t *offset)
{
    direct_flows(s, 1);
    sum_slots(s, offset[0], offset[s->size]);
    for (int32_t i = 0; i < s->flow_count; i++) {
        (void)add_send(s, &s->flows[i], s->sum_begin, s->sum_end, PLACE_IN);
        (void)add_receive(s, &s->flows[i], s->sum_begin, s->sum_end, PLACE_SLOT);
    }
}

static void alltoall(struct schedule *s, const uint64_t *send, const uint64_t *receive)
{
    direct_flows(s, 1);
    for (int32_t i = 0; i < s->flow_count; i++) {
        int32_t peer = s->flows[i].peer;
        (void)add_send(s, &s->flows[i], send[peer], send[peer + 1], PLACE_IN);
        (void)add_receive(s, &s->flows[i], receive[peer], receive[peer + 1], PLACE_OUT);
    }
}

void schedule_make(struct schedule *s, const struct schedule_shape *shape)
{
    s->kind = shape->kind;
    s->rank = shape->rank;
    s->size = shape->size;
    s->chunk_elements = shape->chunk_elements > 0 ? shape->chunk_elements : 1;
    s->piece_elements = 0;
    s->wait_flow = 0;
    sum_slots(s, 0, 0);
    switch (shape->kind) {
    case SCHEDULE_RING_ALLREDUCE:
        ring_allreduce(s, shape->block_offset);
        break;
    case SCHEDULE_DIRECT_ALLREDUCE:
        direct_reduce(s, shape->block_offset, true);
        break;
    case SCHEDULE_REDUCESCATTER:
        direct_reduce(s, shape->block_offset, false);
        break;
    case SCHEDULE_FLAT_ALLREDUCE:
        flat_allreduce(s, shape->block_offset);
        break;
    case SCHEDULE_RING_ALLGATHER:
        ring_allgather(s, shape->block_offset);
        break;
    case SCHEDULE_DIRECT_ALLGATHER:
        direct_allgather(s, shape->block_offset);
        break;
    case SCHEDULE_CHAIN_BROADCAST:
        chain_broadcast(s, shape->root, shape->block_offset);
        break;
    case SCHEDULE_STAR_BROADCAST:
        star_broadcast(s, shape->root, shape->block_offset);
        break;
    case SCHEDULE_ALLTOALL:
        alltoall(s, shape->send_offset, shape->receive_offset);
        break;
    }
}

void schedule_release(struct schedule *s)
{
    free(s->flows);
    free(s->runs);
    *s = (struct schedule){ 0 };
}

bool schedule_piece_at(const struct schedule_run *runs, uint32_t count, struct schedule_cursor *at, uint32_t lane,
                       struct schedule_piece *ret_piece)
{
    for (; at->run < count; at->run++, at->piece = lane) {
        const struct schedule_run *r = &runs[at->run];
        uint64_t offset = r->begin + at->piece * r->chunk;
        if (offset < r->end) {
            uint64_t left = r->end - offset;
            *ret_piece = (struct schedule_piece){ .run = at->run, .piece = at->piece, .offset = offset,
                                                  .count = left < r->chunk ? left : r->chunk };
            return true;
        }
    }
    return false;
}
