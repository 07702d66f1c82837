#include "sidecar/ring/scale.h"

#include <string.h>

#include "sidecar/ring/reduce.h"

/* Truncated towards zero; a NaN becomes 0. */
static int64_t to_integer(double x, int64_t low, int64_t high)
{
    if (!(x == x))
        return 0;
    if (x <= (double)low)
        return low;
    if (x >= (double)high) /* for 64 bits `high` rounds up to 2^63, which does not fit either */
        return high;
    return (int64_t)x;
}

#define SCALE_INTEGERS(type, low, high)                                                                       \
    static void scale_##type(uint8_t *dst, const uint8_t *a, uint64_t count, double factor, double divisor)   \
    {                                                                                                         \
        for (uint64_t i = 0; i < count; i++) {                                                                \
            type value;                                                                                       \
            memcpy(&value, a + i * sizeof value, sizeof value);                                               \
            if (factor == 1.0)                                                                                \
                value = (type)(value / (int64_t)divisor);                                                     \
            else                                                                                              \
                value = (type)to_integer((double)value * factor / divisor, low, high);                        \
            memcpy(dst + i * sizeof value, &value, sizeof value);                                             \
        }                                                                                                     \
    }

SCALE_INTEGERS(uint8_t, 0, UINT8_MAX)
SCALE_INTEGERS(int8_t, INT8_MIN, INT8_MAX)
SCALE_INTEGERS(int32_t, INT32_MIN, INT32_MAX)
SCALE_INTEGERS(int64_t, INT64_MIN, INT64_MAX)

void scale_elements(void *dst, const void *a, uint64_t count, enum shm_dtype dtype, double factor, double divisor)
{
    if (count == 0)
        return;
    if (factor == 1.0 && divisor == 1.0) {
        if (dst != a)
            memmove(dst, a, count * shm_dtype_size(dtype));
        return;
    }
    switch (dtype) {
    case SHM_U8:
        scale_uint8_t(dst, a, count, factor, divisor);
        break;
    case SHM_I8:
        scale_int8_t(dst, a, count, factor, divisor);
        break;
    case SHM_I32:
        scale_int32_t(dst, a, count, factor, divisor);
        break;
    case SHM_I64:
        scale_int64_t(dst, a, count, factor, divisor);
        break;
    case SHM_F16: case SHM_BF16: case SHM_F32: case SHM_F64:
        reduce_kernels()->scale[dtype](dst, a, count, factor, divisor);
        break;
    case SHM_BOOL: case SHM_U16: case SHM_I16:
        break;
    }
}
