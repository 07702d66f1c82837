/*
 * schedule.h — who sends what to whom, and in which order. Pure: no sockets, no time, no buffers.
 *
 * A collective of `size` members is a set of *flows*, one for each member that this one exchanges data with. A flow is a list of
 * runs to send and a list of runs to receive. A run is a range of elements; it travels as pieces of at most chunk_elements, run
 * after run, piece after piece, so both ends know what comes next and no handshake is needed. Piece k travels on lane k modulo
 * the number of lanes; each lane keeps the order.
 *
 *   ring all-reduce    2(N-1) runs to the right, as many from the left: a reduce-scatter (each received piece is combined with this
 *                      member's own and goes on), then an all-gather. Every byte crosses each edge of the ring once.
 *   direct all-reduce  every member sends each other one that one's block, sums up its own, and sends the sum to all. As many
 *                      bytes as the ring in 2 rounds in place of 2(N-1).
 *   flat all-reduce    every member sends all it has to every other one, and each computes the whole. 1 round, N times the bytes.
 *   all-gather         ring or direct
 *   broadcast          chain: one after the other along the ring; star: from the root to all
 *   reduce-scatter     direct: the first half of the direct all-reduce
 *   all-to-all         direct
 *
 * The order in which an element's contributions are added up depends only on its block: block b begins with member b+1 and ends
 * with member b, in each of the algorithms. Blocks depend only on the count and on the size (schedule_block_range). So the bits of a
 * result are the same for any algorithm, chunk size, number of lanes and fusion.
 */
#ifndef SIDECAR_RING_SCHEDULE_H
#define SIDECAR_RING_SCHEDULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SCHEDULE_PIECES_MAX 65536u /* of a run: a piece's number has 16 bits in the frame */
#define SCHEDULE_RUNS_MAX 65536u

enum schedule_kind {
    SCHEDULE_RING_ALLREDUCE, SCHEDULE_DIRECT_ALLREDUCE, SCHEDULE_FLAT_ALLREDUCE, SCHEDULE_RING_ALLGATHER, SCHEDULE_DIRECT_ALLGATHER,
    SCHEDULE_CHAIN_BROADCAST, SCHEDULE_STAR_BROADCAST, SCHEDULE_REDUCESCATTER, SCHEDULE_ALLTOALL,
};

enum schedule_place {
    PLACE_IN,    /* sent from the input */
    PLACE_OUT,   /* sent from the output; received into it as it is */
    PLACE_ADD,   /* received, combined with the input at the same elements, stored in the output */
    PLACE_SLOT,  /* received into this flow's slot; summed up with the other flows' when all have piece k */
};

/* What piece k of a run to send waits for. */
enum schedule_wait { WAIT_NOTHING, WAIT_RECEIVED /* piece k of run `wait_run` from schedule.wait_flow */, WAIT_SUMMED /* of the slots */ };

struct schedule_run {
    uint64_t begin, end;        /* elements */
    uint64_t chunk;             /* elements of a piece */
    enum schedule_place place;
    enum schedule_wait wait;    /* sends only */
    uint32_t wait_run;
    bool last;                  /* PLACE_ADD: the sum is complete; scaling is applied */
};

struct schedule_flow {
    int32_t peer;               /* position of the other end */
    struct schedule_run *sends, *receives;
    uint32_t send_count, receive_count;
};

struct schedule {
    enum schedule_kind kind;
    int32_t rank, size;         /* this member's position, and how many there are */
    uint64_t chunk_elements;    /* as asked for */
    uint64_t piece_elements;    /* of the largest piece to receive */
    struct schedule_flow *flows;
    int32_t flow_count;
    int32_t wait_flow;          /* the one that WAIT_RECEIVED looks at */
    uint64_t sum_begin, sum_end, sum_chunk; /* the elements that the slots hold, and of a piece; begin == end: there are none */
    struct schedule_run *runs;  /* where the flows' runs lie; kept from one collective to the next */
    size_t run_capacity, flow_capacity;
};

struct schedule_shape {
    enum schedule_kind kind;
    int32_t rank, size, root;   /* size > 1; root: broadcasts */
    uint64_t chunk_elements;    /* of a piece; more where a run would have more than SCHEDULE_PIECES_MAX pieces */
    /* Elements; borrowed during the call. block_offset: size + 1 of them, broadcasts: 2. All-to-all: what goes to and comes from
     * member i is [offset[i], offset[i + 1]) of input and output. */
    const uint64_t *block_offset, *send_offset, *receive_offset;
};

/* *s is zero before its first use and is used again and again. */
void schedule_make(struct schedule *s, const struct schedule_shape *shape);
void schedule_release(struct schedule *s);

/* Elements [*ret_begin, *ret_end) of a tensor of `count` that belong to block `block` of `size`: the first count % size
 * blocks have one element more. */
void schedule_block_range(uint64_t count, int32_t size, int32_t block, uint64_t *ret_begin, uint64_t *ret_end);

/* A place in a list of runs: the next piece of one lane. */
struct schedule_cursor { uint32_t run, piece; };

struct schedule_piece { uint32_t run, piece; uint64_t offset, count; /* elements, count > 0 */ };

/* The piece at the cursor of a lane, which is moved over what is empty; false: there are no more. A lane's cursor begins at {0, lane}
 * and goes on by schedule_step. */
bool schedule_piece_at(const struct schedule_run *runs, uint32_t count, struct schedule_cursor *at, uint32_t lane,
                       struct schedule_piece *ret_piece);
static inline void schedule_step(struct schedule_cursor *at, uint32_t lanes) { at->piece += lanes; }

/* Is the lane that carries it past piece (run, piece)? */
static inline bool schedule_is_past(const struct schedule_cursor *at, uint32_t run, uint32_t piece)
{
    return at->run > run || (at->run == run && at->piece > piece);
}

#endif
