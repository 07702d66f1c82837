#include "alone.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "wire/half.h"
#include "wire/shm.h"

static int64_t truncated(double x, int64_t low, int64_t high)
{
    if (!(x == x))
        return 0;
    return x <= (double)low ? low : x >= (double)high ? high : (int64_t)x;
}

void alone_scale(const void *in, void *out, uint64_t count, unsigned dtype, double scale)
{
    if (scale == 1.0 || dtype == SHM_BOOL || dtype == SHM_U16 || dtype == SHM_I16) {
        if (in != out && count > 0)
            memmove(out, in, count * shm_dtype_size(dtype));
        return;
    }
    float scale32 = (float)scale;
    for (uint64_t i = 0; i < count; i++) {
        switch (dtype) {
        case SHM_F16: ((uint16_t *)out)[i] = half_of_float(half_to_float(((const uint16_t *)in)[i]) * scale32); break;
        case SHM_BF16: ((uint16_t *)out)[i] = brain_of_float(brain_to_float(((const uint16_t *)in)[i]) * scale32); break;
        case SHM_F32: ((float *)out)[i] = ((const float *)in)[i] * scale32; break;
        case SHM_F64: ((double *)out)[i] = ((const double *)in)[i] * scale; break;
        case SHM_U8: ((uint8_t *)out)[i] = (uint8_t)truncated(((const uint8_t *)in)[i] * scale, 0, UINT8_MAX); break;
        case SHM_I8: ((int8_t *)out)[i] = (int8_t)truncated(((const int8_t *)in)[i] * scale, INT8_MIN, INT8_MAX); break;
        case SHM_I32: ((int32_t *)out)[i] = (int32_t)truncated(((const int32_t *)in)[i] * scale, INT32_MIN, INT32_MAX); break;
        case SHM_I64: ((int64_t *)out)[i] = truncated((double)((const int64_t *)in)[i] * scale, INT64_MIN, INT64_MAX); break;
        default: return;
        }
    }
}
