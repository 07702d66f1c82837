/*
 * pulse.h — who of the round is alive: a thread of its own exchanges beats with the other ranks over connections of its own, so
 * that neither a busy engine nor a full data connection delays them. Data that arrives counts as a beat (pulse_heard).
 *
 * Up to PULSE_FULL ranks everybody watches everybody; in larger rounds rank 0 and two neighbours on each side. A connection that
 * ends is a loss at once, silence one by suspicion.h. Beats to rank 0 also measure how far its clock is from ours.
 *
 * Threads: every function may be called from any one; on_lost runs on the pulse's own.
 */
#ifndef SIDECAR_RING_PULSE_H
#define SIDECAR_RING_PULSE_H

#include "sidecar/ring/engine.h"

#define PULSE_FULL 16
#define PULSE_RANKS_MAX 4096

struct pulse;

/* Once for each rank of a round, and not after pulse_rest for this fence or a higher one has been carried out. */
typedef void pulse_lost_fn(void *ctx, uint64_t fence, int32_t rank, const char *why);

struct link_identity;
/* What is in `self` is kept. timeout_ms: a silent peer is told of within it. */
MUST_CHECK int pulse_new(const struct link_identity *self, int64_t timeout_ms, pulse_lost_fn *on_lost, void *ctx, struct pulse **ret,
                         struct error *e);
void pulse_goodbye(struct pulse *p); /* tells the peers that this sidecar ends: before its other connections close */
void pulse_free(struct pulse *p);    /* ends the thread; no callback comes afterwards. NULL is fine */

void pulse_form(struct pulse *p, const struct ring_plan *plan); /* of a higher fence; what was before is let go */
void pulse_accept(struct pulse *p, int fd /* taken */, const struct peer_hello *hello); /* purpose WATCH */
/* The group of this fence has ended: its peers still get beats and are not judged any more. */
void pulse_rest(struct pulse *p, uint64_t fence);
void pulse_heard(struct pulse *p, int32_t rank); /* NULL is fine; costs next to nothing */

/* What to add to this machine's wall clock to get rank 0's, and half the round trip in which it was measured: it is not off by
 * more. False: not measured in this round (rank 0 itself: 0 and 0). */
bool pulse_clock(struct pulse *p, int64_t *ret_offset_ns, int64_t *ret_error_ns);

/* Pure: does `rank` of a round of `size` watch `other`? Symmetric. */
bool pulse_watches(int32_t size, int32_t rank, int32_t other);

#endif
