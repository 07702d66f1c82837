/*
 * codec.h — the form in which a sum's parts and its result travel between ranks (enum shm_wire). Pure, thread-safe; the same bits on
 * every processor.
 *
 *   float16, bfloat16   each float32 rounded to nearest even; the sum is computed in float32
 *   int8                groups of CODEC_GROUP float32: a float32 scale, the largest magnitude / 127, then an int8 for each element, rounded
 *                       to nearest even. An infinity or a NaN makes its whole group NaN; magnitudes below 2^-100 become zero
 *   exact               elements of float16 and bfloat16 as they are; the sum is computed in float64 and rounded at its end
 *
 * A sum is held in accumulators: float for all but `exact`, double for that.
 */
#ifndef SIDECAR_RING_CODEC_H
#define SIDECAR_RING_CODEC_H

#include <stddef.h>

#include "wire/shm.h"

#define CODEC_GROUP 256u

struct codec { enum shm_wire wire; enum shm_dtype dtype; /* of the tensor */ };

uint64_t codec_bytes(const struct codec *c, uint64_t count);     /* on the wire */
size_t codec_accumulator_size(const struct codec *c);            /* of one element's */
void codec_encode(const struct codec *c, uint8_t *to, const uint8_t *elements, uint64_t count);
void codec_decode(const struct codec *c, uint8_t *elements, const uint8_t *from, uint64_t count);
/* Accumulators become what was encoded, or have it added. */
void codec_begin(const struct codec *c, void *sums, const uint8_t *from, uint64_t count);
void codec_add(const struct codec *c, void *sums, const uint8_t *from, uint64_t count);
/* The same with elements of the tensor that did not travel. */
void codec_begin_own(const struct codec *c, void *sums, const uint8_t *elements, uint64_t count);
void codec_add_own(const struct codec *c, void *sums, const uint8_t *elements, uint64_t count);
/* sums * factor / divisor, to be encoded or taken as elements. */
void codec_scale(const struct codec *c, void *sums, uint64_t count, double factor, double divisor);
void codec_encode_sums(const struct codec *c, uint8_t *to, const void *sums, uint64_t count);
void codec_take_sums(const struct codec *c, uint8_t *elements, const void *sums, uint64_t count);

#endif
