/*
 * scale.h — scaling of any dtype that can be reduced. Floating types go through the kernels of reduce.h; integers are
 * multiplied in double and lose their fraction (what does not fit becomes the nearest that does), or divided exactly when only
 * a divisor is given. Pure, thread-safe.
 */
#ifndef SIDECAR_RING_SCALE_H
#define SIDECAR_RING_SCALE_H

#include <stdint.h>

#include "wire/shm.h"

/* dst[i] = a[i] * factor / divisor; dst may be a. bool and 16-bit integers: factor and divisor have to be 1. */
void scale_elements(void *dst, const void *a, uint64_t count, enum shm_dtype dtype, double factor, double divisor);

#endif
