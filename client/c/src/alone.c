#include "alone.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "wire/shm.h"

static float half_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 0x1fu, fraction = h & 0x3ffu, bits;
    if (exponent == 31) {
        bits = sign | 0x7f800000u | fraction << 13;
    } else if (exponent != 0) {
        bits = sign | (exponent + 112) << 23 | fraction << 13;
    } else { /* zero or subnormal: fraction * 2^-24, exact in float */
        float magnitude = (float)fraction * 0x1p-24f;
        memcpy(&bits, &magnitude, sizeof(bits));
        bits |= sign;
    }
    float f;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

/* Round to nearest, ties to even. */
static uint16_t float_to_half(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof(bits));
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) /* 65520 and more round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) { /* subnormal: adding 0.5 makes the float unit do the rounding at 2^-24 */
        float shifted;
        memcpy(&shifted, &magnitude, sizeof(shifted));
        shifted += 0.5f;
        uint32_t shifted_bits;
        memcpy(&shifted_bits, &shifted, sizeof(shifted_bits));
        return (uint16_t)(sign | (shifted_bits - 0x3f000000u));
    }
    uint32_t odd = magnitude >> 13 & 1u;
    return (uint16_t)(sign | (magnitude - 0x38000000u + 0xfffu + odd) >> 13);
}

static float brain_to_float(uint16_t b)
{
    uint32_t bits = (uint32_t)b << 16;
    float f;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

static uint16_t float_to_brain(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof(bits));
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

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
        case SHM_F16: ((uint16_t *)out)[i] = float_to_half(half_to_float(((const uint16_t *)in)[i]) * scale32); break;
        case SHM_BF16: ((uint16_t *)out)[i] = float_to_brain(brain_to_float(((const uint16_t *)in)[i]) * scale32); break;
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
