#include "sidecar/ring/schedule.h"

#define PIECES_MAX 65536u /* piece has 16 bits in the frame */

void schedule_block_range(uint64_t count, int32_t size, int32_t block, uint64_t *ret_begin, uint64_t *ret_end)
{
    uint64_t each = count / (uint64_t)size, more = count % (uint64_t)size, b = (uint64_t)block;

    *ret_begin = b * each + (b < more ? b : more);
    *ret_end = *ret_begin + each + (b < more ? 1 : 0);
}

static void prepare(struct schedule *s, int32_t rank, int32_t size, int32_t blocks, const uint64_t *block_offset,
                    uint64_t chunk_elements)
{
    uint64_t largest = 0;

    for (int32_t b = 0; b < blocks; b++) {
        uint64_t count = block_offset[b + 1] - block_offset[b];
        if (count > largest)
            largest = count;
    }
    uint64_t least = largest / PIECES_MAX + (largest % PIECES_MAX != 0);
    if (chunk_elements < least)
        chunk_elements = least;
    *s = (struct schedule){ .rank = rank, .size = size, .blocks = blocks, .block_offset = block_offset,
                            .chunk_elements = chunk_elements > 0 ? chunk_elements : 1 };
}

void schedule_allreduce(struct schedule *ret, int32_t rank, int32_t size, const uint64_t *block_offset, uint64_t chunk_elements)
{
    prepare(ret, rank, size, size, block_offset, chunk_elements);
    ret->send_end = ret->receive_end = 2 * ((uint32_t)size - 1);
    ret->reduce_end = (uint32_t)size - 1;
}

void schedule_allgather(struct schedule *ret, int32_t rank, int32_t size, const uint64_t *block_offset, uint64_t chunk_elements)
{
    prepare(ret, rank, size, size, block_offset, chunk_elements);
    ret->send_end = ret->receive_end = (uint32_t)size - 1;
}

void schedule_broadcast(struct schedule *ret, int32_t rank, int32_t size, int32_t root, const uint64_t *block_offset,
                        uint64_t chunk_elements)
{
    uint32_t distance = (uint32_t)((rank - root + size) % size);

    prepare(ret, rank, size, 1, block_offset, chunk_elements);
    if (distance > 0) {
        ret->receive_begin = distance - 1;
        ret->receive_end = distance;
    }
    if (distance < (uint32_t)size - 1) {
        ret->send_begin = distance;
        ret->send_end = distance + 1;
    }
}

void schedule_begin(const struct schedule *s, struct schedule_cursor *ret_send, struct schedule_cursor *ret_receive)
{
    *ret_send = (struct schedule_cursor){ .step = s->send_begin, .piece = 0 };
    *ret_receive = (struct schedule_cursor){ .step = s->receive_begin, .piece = 0 };
}

/* The block that this rank sends in a step; it receives the one before it. */
static int32_t block_of(const struct schedule *s, uint32_t step, int32_t before)
{
    if (s->blocks == 1)
        return 0;
    int32_t back = (int32_t)(step % (uint32_t)s->size);
    return (s->rank - back - before + 2 * s->size) % s->size;
}

/* Moves the cursor over empty blocks and describes the piece it then points to. */
static bool next(const struct schedule *s, struct schedule_cursor *at, uint32_t end, int32_t before, struct schedule_piece *ret)
{
    for (; at->step < end; at->step++, at->piece = 0) {
        int32_t block = block_of(s, at->step, before);
        uint64_t begin = s->block_offset[block], stop = s->block_offset[block + 1];
        uint64_t offset = begin + at->piece * s->chunk_elements;
        if (offset < stop) {
            uint64_t left = stop - offset;
            *ret = (struct schedule_piece){ .step = at->step, .piece = at->piece, .offset = offset,
                                            .count = left < s->chunk_elements ? left : s->chunk_elements };
            return true;
        }
    }
    return false;
}

bool schedule_next_receive(const struct schedule *s, struct schedule_cursor *receive, struct schedule_piece *ret_piece)
{
    if (!next(s, receive, s->receive_end, 1, ret_piece))
        return false;
    ret_piece->reduce = ret_piece->step < s->reduce_end;
    ret_piece->last_reduce = ret_piece->step + 1 == s->reduce_end;
    return true;
}

bool schedule_next_send(const struct schedule *s, struct schedule_cursor *send, const struct schedule_cursor *receive,
                        struct schedule_piece *ret_piece, bool *ret_ready)
{
    if (!next(s, send, s->send_end, 0, ret_piece))
        return false;

    /* The piece came (or comes) in the step before; a rank's first send step has its own data. */
    *ret_ready = ret_piece->step == 0 || receive->step >= ret_piece->step ||
                 (receive->step + 1 == ret_piece->step && receive->piece > ret_piece->piece);
    return true;
}
