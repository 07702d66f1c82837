/*
 * collective.h — one collective being carried out by this rank: pieces are received, combined and sent as the schedule says,
 * without blocking. Knows connections and buffers, nothing of clients, names or the event loop.
 *
 * It takes place among `size` members of the round, which may be all ranks or some of them (a process set); everything is counted in
 * their positions, `members` says which rank stands at which. Those that are not members know nothing of it.
 *
 * The input is never written to; the output is complete only when collective_pump says so.
 */
#ifndef SIDECAR_RING_COLLECTIVE_H
#define SIDECAR_RING_COLLECTIVE_H

#include "base/error.h"
#include "sidecar/ring/mesh.h"
#include "sidecar/ring/reduce.h"
#include "sidecar/ring/schedule.h"
#include "wire/peer.h"

/* Which algorithm; the same on all members. Results do not depend on it. */
enum collective_algorithm { ALGORITHM_RING, ALGORITHM_DIRECT, ALGORITHM_FLAT };
/* The one for an operation whose data (all-gather: of all members) have `bytes`. The same on all ranks: it knows nothing else. */
enum collective_algorithm collective_choose(enum shm_op op, uint64_t bytes, int32_t size);

/* What the collective is to do. Pointers are borrowed until it is done or dropped. Offsets are in elements. */
struct collective_plan {
    enum shm_op op;                 /* all-reduce, all-gather, broadcast, reduce-scatter, all-to-all */
    enum shm_dtype dtype;
    enum shm_redop redop;           /* all-reduce, reduce-scatter */
    enum collective_algorithm algorithm; /* reduce-scatter and all-to-all have one only */
    int32_t root;                   /* broadcast: position */
    uint64_t fence, sequence;
    uint32_t chunk_bytes;
    bool checksums;                 /* what this member sends carries a checksum; what it gets is checked wherever it has one */
    int32_t rank, size;             /* this member's position, and how many take part; size > 1 */
    const int32_t *members;         /* ranks of the round by position */
    const uint64_t *block_offset;   /* size + 1 (all-reduce, all-gather, reduce-scatter), 2 (broadcast) */
    const uint64_t *send_offset, *receive_offset; /* all-to-all: size + 1 each; what member i gets and gives */
    double factor, divisor;         /* reductions of a floating type: applied to the finished sum */
    /* all-reduce:     in: this member's contribution; may equal out
     * reduce-scatter: in: the whole; out: this member's block alone; they must not overlap
     * all-to-all:     in: by receiver; out: by sender, holds this member's own part already; they must not overlap
     * all-gather, broadcast: in is unused; out holds this member's own part already */
    const uint8_t *in;
    uint8_t *out;
};

/* The sum that an all-reduce of `size` parts would give, bit by bit, computed here; of the plan the arithmetic alone is looked at. */
void collective_sum(const struct collective_plan *arithmetic, const uint8_t *const *parts, int32_t size, uint64_t count, uint8_t *out);

enum collective_state { COLLECTIVE_RUNNING, COLLECTIVE_DONE, COLLECTIVE_FAILED };

struct collective;

struct collective *collective_new(void); /* used for one collective after the other */
void collective_free(struct collective *c);
void collective_start(struct collective *c, const struct collective_plan *plan, struct mesh *mesh);
/* Does what can be done now. RUNNING: to be called again when a lane of the mesh has become ready; *ret_again: also without that,
 * the turn was a long one and others may want theirs.
 * FAILED: *ret_rank (of the round) is who it failed with, e says why (ERROR_PEER_LOST: the connection is gone; ERROR_GONE: this
 * rank's fence is old; else that rank sent what it must not). */
enum collective_state collective_pump(struct collective *c, bool *ret_again, int32_t *ret_rank, struct error *e);

#endif
