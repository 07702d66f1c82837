/*
 * signature.h — what a collective on a named tensor is, in the words that all ranks must agree on. Pure.
 */
#ifndef SIDECAR_RING_SIGNATURE_H
#define SIDECAR_RING_SIGNATURE_H

#include <stdbool.h>
#include <stdint.h>

#include "wire/shm.h"

#define SIGNATURE_ALONG_BYTES (32u << 10) /* that rank 0 receives, and sends, for one all-reduce whose data travel along */

/* The count may differ in an all-gather and an all-to-all. The text of the shape is for people: shapes are compared by their hash.
 * Fields that mean nothing for the operation are 0. */
struct signature {
    uint8_t op, dtype, redop, wire; /* wire: enum shm_wire, settled; 0: as they are */
    int32_t root;
    uint64_t count, row_elements;
    double prescale, postscale;
    uint64_t shape_hash;
    char shape[SHM_SHAPE_MAX];
};

struct signature signature_of(const struct shm_request *r, const uint64_t *splits /* checked; NULL: none */);
/* What shm_request_check says of a request holds for an announced one too; a peer's word is not taken for it. */
bool signature_is_sound(const struct signature *s);
bool signature_equal(const struct signature *a, const struct signature *b); /* but for a count that may differ */
bool signature_count_is_free(const struct signature *s);
bool signature_can_fuse(const struct signature *a, const struct signature *b); /* same arithmetic: may travel packed */
/* Do the data travel along with announcements and GO lists (negotiate.h), in a set of so many ranks? The same on all ranks. */
bool signature_travels_along(const struct signature *s, int32_t set_size);
/* "all-reduce sum of float32 [2, 5], scaled by 0.5 and 1" */
#define SIGNATURE_TEXT_MAX 192
const char *signature_text(const struct signature *s, char ret_text[SIGNATURE_TEXT_MAX]);

#endif
