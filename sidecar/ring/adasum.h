/*
 * adasum.h — the Adasum of the ranks' gradients, as Horovod defines it: two gradients that point the same way are averaged, two
 * that are orthogonal are added; in between,
 *
 *   adasum(a, b) = (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b
 *
 * More than two are combined pairwise, neighbours first, like a binary tree over the ranks; where their number is odd the last
 * one waits for the next level. Floating types only; products and sums are computed in double, in one order, so every rank
 * that does this over the same inputs has the same bits. Pure.
 */
#ifndef SIDECAR_RING_ADASUM_H
#define SIDECAR_RING_ADASUM_H

#include <stdint.h>

#include "wire/shm.h"

/* `parts` vectors of `count` elements, end to end, no alignment needed; the result is in the first, the others are spoilt. */
void adasum(uint8_t *vectors, int32_t parts, uint64_t count, enum shm_dtype dtype);

#endif
