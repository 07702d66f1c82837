/*
 * reduce.h — element-wise arithmetic of the collectives: combine two vectors, scale one. Pure, thread-safe.
 *
 * Three builds of the same source (reduce_kernels.h) for different vector widths; the best one that this processor can run is
 * chosen once. All of them give the same bits: every lane does the same IEEE operations in the same order, nothing is
 * contracted. float16 and bfloat16 are widened to float32, combined, and rounded to nearest even once. Integers wrap around.
 * Min and max: a NaN on either side gives NaN. Operands need no alignment; dst may be a or b.
 */
#ifndef SIDECAR_RING_REDUCE_H
#define SIDECAR_RING_REDUCE_H

#include <stddef.h>

#include "wire/shm.h"

/* dst[i] = a[i] op b[i] */
typedef void reduce_combine_fn(void *dst, const void *a, const void *b, size_t count);
/* dst[i] = a[i] * factor / divisor, in the type that the sum is computed in */
typedef void reduce_scale_fn(void *dst, const void *a, size_t count, double factor, double divisor);
/* dst[i] = (a[i] + b[i]) * factor / divisor, rounded once for the 16-bit types */
typedef void reduce_finish_fn(void *dst, const void *a, const void *b, size_t count, double factor, double divisor);

/* Between float32 and the 16-bit types: dst[i] = a[i], to nearest even where it is narrowed. */
typedef void reduce_narrow_fn(void *dst, const float *a, size_t count);
typedef void reduce_widen_fn(float *dst, const void *a, size_t count);

struct reduce_kernels {
    const char *name;
    reduce_combine_fn *combine[SHM_BOOL + 1][SHM_PRODUCT + 1]; /* [dtype][redop]; NULL where it has no meaning */
    reduce_scale_fn *scale[SHM_BOOL + 1];                      /* floating types only */
    reduce_finish_fn *finish[SHM_BOOL + 1];
    reduce_narrow_fn *narrow[SHM_BF16 + 1];                    /* 16-bit types only */
    reduce_widen_fn *widen[SHM_BF16 + 1];
};

const struct reduce_kernels *reduce_kernels(void); /* the best for this processor */

/* All variants, for the tests that hold them against each other; NULL: this processor cannot run it. */
enum reduce_variant { REDUCE_PORTABLE, REDUCE_AVX2, REDUCE_AVX512, REDUCE_VARIANTS };
const struct reduce_kernels *reduce_kernels_of(enum reduce_variant variant);

#endif
