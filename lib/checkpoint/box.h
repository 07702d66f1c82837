/*
 * box.h — which part of a tensor an image holds, and where its bytes belong in the whole. Pure.
 *
 * A box begins at `offset` on each axis of the whole and goes `shape` far. Its elements lie in its own image, row-major; so do
 * those of the whole.
 */
#ifndef CHECKPOINT_BOX_H
#define CHECKPOINT_BOX_H

#include "base/error.h"
#include "checkpoint/safetensors.h"

struct box { uint64_t offset[SAFETENSORS_MAX_DIMS], shape[SAFETENSORS_MAX_DIMS]; };

/* INVALID unless every element of a tensor of this shape is in exactly one of the boxes; says which box is wrong. */
MUST_CHECK int box_check_cover(const uint64_t *shape, uint32_t dims, const struct box *boxes, size_t count, struct error *e);

/* Byte `at` of a box's data: *ret_at is where it belongs in the whole's, *ret_len how many bytes from there on lie together in
 * both. at is less than the box's size. */
void box_run(const struct box *b, const uint64_t *shape, uint32_t dims, uint64_t element_bytes, uint64_t at, uint64_t *ret_at, uint64_t *ret_len);

#endif
