/*
 * collective.h — one collective being carried out between the two neighbours: pieces are received, combined and passed on as
 * the schedule says, without blocking. Knows sockets and buffers, nothing of clients, names or the event loop.
 *
 * The input is never written to; the output is complete only when collective_pump says so.
 */
#ifndef SIDECAR_RING_COLLECTIVE_H
#define SIDECAR_RING_COLLECTIVE_H

#include "base/error.h"
#include "sidecar/ring/reduce.h"
#include "sidecar/ring/schedule.h"
#include "wire/peer.h"

/* What the collective is to do. Pointers are borrowed until it is done or dropped. */
struct collective_plan {
    enum shm_op op;                 /* all-reduce, all-gather, broadcast */
    enum shm_dtype dtype;
    enum shm_redop redop;
    int32_t root;
    uint64_t fence, sequence;
    uint32_t chunk_bytes;
    const uint64_t *block_offset;   /* see schedule.h */
    double factor, divisor;         /* all-reduce of a floating type: applied to the finished sum */
    const uint8_t *in;              /* all-reduce: this rank's contribution; may equal out. Else unused */
    uint8_t *out;                   /* all-gather, broadcast: holds this rank's own block already */
};

struct collective_lane { int left_fd, right_fd; }; /* receive from left, send to right; non-blocking, borrowed */

enum collective_state { COLLECTIVE_RUNNING, COLLECTIVE_DONE, COLLECTIVE_FAILED };
enum collective_side { COLLECTIVE_LEFT, COLLECTIVE_RIGHT };

struct collective;

struct collective *collective_new(void); /* used for one collective after the other */
void collective_free(struct collective *c);
void collective_start(struct collective *c, const struct collective_plan *plan, int32_t rank, int32_t size,
                      const struct collective_lane *lane);
/* Does what can be done now, but not for ever: *ret_read and *ret_write tell what to wait for; the right side can
 * always be written to sooner or later, so asking for both is also how it comes back after a long turn.
 * FAILED: *ret_side is the neighbour it failed with, e says why (ERROR_PEER_LOST: the connection is gone; ERROR_GONE: this
 * rank's fence is old; else the neighbour sent what it must not). */
enum collective_state collective_pump(struct collective *c, bool *ret_read, bool *ret_write, enum collective_side *ret_side,
                                      struct error *e);

#endif
