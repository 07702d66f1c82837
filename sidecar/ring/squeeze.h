/*
 * squeeze.h — an all-reduce or reduce-scatter whose data travel in another form (codec.h), made of collectives that move bytes.
 *
 * Segment by segment: each member encodes what the others own and sends it (an all-to-all), sums up its own block in the order that
 * schedule.h gives it, encodes the sum once and sends that to all (an all-gather); everybody decodes the same bytes, the owner too. So a
 * contribution is rounded once and the sum once, whatever the number of members, and the results are the same bits everywhere.
 *
 * One at a time, on the engine's thread.
 */
#ifndef SIDECAR_RING_SQUEEZE_H
#define SIDECAR_RING_SQUEEZE_H

#include "sidecar/ring/codec.h"
#include "sidecar/ring/collective.h"

struct squeeze;

struct squeeze *squeeze_new(void);
void squeeze_free(struct squeeze *s); /* NULL is fine */
/* The plan is that of an all-reduce or reduce-scatter; what it points to is borrowed until the end. Starts the first collective.
 * -1: no memory. */
MUST_CHECK int squeeze_start(struct squeeze *s, const struct collective_plan *plan, const struct codec *codec, struct collective *c,
                             struct mesh *mesh);
/* The collective is done. False: that was all. True: the next one was started. */
bool squeeze_next(struct squeeze *s, struct collective *c, struct mesh *mesh);

/* The sum as collective_sum gives it, in the arithmetic of `exact`. */
void squeeze_sum_exact(const struct collective_plan *arithmetic, const uint8_t *const *parts, int32_t size, uint64_t count, uint8_t *out);

#endif
