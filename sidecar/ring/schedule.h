/*
 * schedule.h — who sends which piece when. Pure: no sockets, no time, no buffers.
 *
 * A collective on a ring of `size` ranks is a number of steps. In a step a rank sends one block to its right neighbour and
 * receives one from its left; a block travels as pieces of at most chunk_elements. Pieces are sent and received strictly in
 * the order of (step, piece), so both ends know what comes next and no handshake is needed. What is sent in step s > 0 is
 * the block that was received in step s - 1: a piece may go on as soon as it is there.
 *
 *   all-reduce   2(N-1) steps: a reduce-scatter (the first N-1, each received piece is combined with the rank's own), then an
 *                all-gather. The piece received in step N-2 is the finished one (`last_reduce`): scaling is applied there.
 *   all-gather   N-1 steps, block b is rank b's contribution
 *   broadcast    one block, passed on from the root along the ring
 *
 * The order in which an element's contributions are combined depends only on its block, and blocks depend only on the count and
 * on the size (schedule_block_range), so results are the same for any chunk size and any fusion.
 */
#ifndef SIDECAR_RING_SCHEDULE_H
#define SIDECAR_RING_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

struct schedule {
    int32_t rank, size;
    uint32_t send_begin, send_end;     /* steps in which this rank sends: [begin, end) */
    uint32_t receive_begin, receive_end;
    uint32_t reduce_end;               /* pieces received in a step below are combined, others stored */
    int32_t blocks;                    /* 1 for a broadcast, else size */
    const uint64_t *block_offset;      /* blocks + 1 of them, in elements; borrowed */
    uint64_t chunk_elements;
};

struct schedule_piece {
    uint32_t step, piece;              /* the frame's chunk field: step << 16 | piece */
    uint64_t offset, count;            /* elements; count > 0 */
    bool reduce, last_reduce;          /* received pieces only */
};

/* Where the next piece to send or to receive stands. */
struct schedule_cursor { uint32_t step, piece; };

/* Elements [*ret_begin, *ret_end) of a tensor of `count` that belong to block `block` of `size`: the first count % size
 * blocks have one element more. */
void schedule_block_range(uint64_t count, int32_t size, int32_t block, uint64_t *ret_begin, uint64_t *ret_end);

/* block_offset has size + 1 entries (broadcast: 2) and is borrowed. chunk_elements is raised where a block would have more
 * than 65536 pieces. size > 1. */
void schedule_allreduce(struct schedule *ret, int32_t rank, int32_t size, const uint64_t *block_offset, uint64_t chunk_elements);
void schedule_allgather(struct schedule *ret, int32_t rank, int32_t size, const uint64_t *block_offset, uint64_t chunk_elements);
void schedule_broadcast(struct schedule *ret, int32_t rank, int32_t size, int32_t root, const uint64_t *block_offset,
                        uint64_t chunk_elements);

/* Cursors at the first piece. */
void schedule_begin(const struct schedule *s, struct schedule_cursor *ret_send, struct schedule_cursor *ret_receive);

/* The piece at the cursor; empty blocks are skipped by moving the cursor. False: there are no more. */
bool schedule_next_receive(const struct schedule *s, struct schedule_cursor *receive, struct schedule_piece *ret_piece);
/* The same for sending. *ret_ready tells whether its data are there, given what was received (`receive` points to the piece that
 * is not yet complete). */
bool schedule_next_send(const struct schedule *s, struct schedule_cursor *send, const struct schedule_cursor *receive,
                        struct schedule_piece *ret_piece, bool *ret_ready);

#endif
