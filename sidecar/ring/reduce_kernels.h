/*
 * reduce_kernels.h — the kernels of reduce.h, written once over the compiler's vector extension. Included by reduce.c,
 * reduce_avx2.c and reduce_avx512.c, which define VECTOR_BYTES and KERNELS (the table's name) and are compiled for their
 * instruction set. Not a header for anyone else.
 */
#include <stdint.h>
#include <string.h>

#include "sidecar/ring/reduce.h"

#define INLINE static inline __attribute__((always_inline))
/* aligned(1): loads and stores of any address; may_alias: the memory has whatever type the tensor has. */
#define VECTOR(name, element, bytes) \
    typedef element name __attribute__((vector_size(bytes), aligned(1), may_alias))

VECTOR(vu8, uint8_t, VECTOR_BYTES);
VECTOR(vi8, int8_t, VECTOR_BYTES);
VECTOR(vu32, uint32_t, VECTOR_BYTES);
VECTOR(vi32, int32_t, VECTOR_BYTES);
VECTOR(vu64, uint64_t, VECTOR_BYTES);
VECTOR(vi64, int64_t, VECTOR_BYTES);
VECTOR(vf32, float, VECTOR_BYTES);
VECTOR(vf64, double, VECTOR_BYTES);
VECTOR(vu16, uint16_t, VECTOR_BYTES / 2); /* as many lanes as vf32 */

/* mask: all ones or all zeros in each lane */
INLINE vu32 select32(vi32 mask, vu32 yes, vu32 no)
{
    return ((vu32)mask & yes) | (~(vu32)mask & no);
}

INLINE vu64 select64(vi64 mask, vu64 yes, vu64 no)
{
    return ((vu64)mask & yes) | (~(vu64)mask & no);
}

/* ---- 16-bit floats ---- */

INLINE vf32 widen_bf16(vu16 h)
{
    return (vf32)(__builtin_convertvector(h, vu32) << 16);
}

INLINE vu16 narrow_bf16(vf32 f)
{
    vu32 bits = (vu32)f;
    vu32 rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    vu32 nan = (bits >> 16) | 0x40; /* stays a NaN, quiet, of the same sign */

    return __builtin_convertvector(select32(f != f, nan, rounded), vu16);
}

/* The exponent is moved to float32's place and corrected by a multiplication, which is exact and normalizes subnormals. */
INLINE vf32 widen_f16(vu16 h)
{
    vu32 bits = __builtin_convertvector(h, vu32);
    vu32 sign = (bits & 0x8000) << 16, rest = bits & 0x7fff;
    const vu32 two_to_112 = (vu32){ 0 } + 0x77800000u;
    vu32 number = (vu32)((vf32)(rest << 13) * (vf32)two_to_112);
    vu32 special = number | 0x7f800000u | ((vu32)(rest > 0x7c00) & 0x00400000u); /* infinity, quiet NaN */

    return (vf32)(select32((vi32)(rest >= 0x7c00), special, number) | sign);
}

/* Round to nearest even. Below 2^-14 the adder of float32 does it (0.5f has the subnormals' spacing), above it integer arithmetic. */
INLINE vu16 narrow_f16(vf32 f)
{
    vu32 bits = (vu32)f, sign = (bits >> 16) & 0x8000, rest = bits & 0x7fffffff;
    const vu32 half = (vu32){ 0 } + 0x3f000000u;
    vu32 subnormal = (vu32)((vf32)rest + (vf32)half) - half;
    vu32 normal = (rest - 0x38000000u + 0xfff + ((rest >> 13) & 1)) >> 13;
    vu32 special = select32((vi32)(rest > 0x7f800000), 0x7e00 | ((rest >> 13) & 0x3ff), (vu32){ 0 } + 0x7c00);
    vu32 finite = select32((vi32)(rest < 0x38800000), subnormal, normal);

    return __builtin_convertvector(select32((vi32)(rest >= 0x47800000), special, finite) | sign, vu16);
}

/* ---- operations on one vector ---- */

#define SUM(x, y) ((x) + (y))
#define PRODUCT(x, y) ((x) * (y))

INLINE vf32 min_f32(vf32 x, vf32 y) { return (vf32)select32((x < y) | (x != x), (vu32)x, (vu32)y); }
INLINE vf32 max_f32(vf32 x, vf32 y) { return (vf32)select32((x > y) | (x != x), (vu32)x, (vu32)y); }
INLINE vf64 min_f64(vf64 x, vf64 y) { return (vf64)select64((x < y) | (x != x), (vu64)x, (vu64)y); }
INLINE vf64 max_f64(vf64 x, vf64 y) { return (vf64)select64((x > y) | (x != x), (vu64)x, (vu64)y); }
INLINE vu32 min_i32(vu32 x, vu32 y) { return select32((vi32)x < (vi32)y, x, y); }
INLINE vu32 max_i32(vu32 x, vu32 y) { return select32((vi32)x > (vi32)y, x, y); }
INLINE vu64 min_i64(vu64 x, vu64 y) { return select64((vi64)x < (vi64)y, x, y); }
INLINE vu64 max_i64(vu64 x, vu64 y) { return select64((vi64)x > (vi64)y, x, y); }
INLINE vu8 select8(vi8 mask, vu8 yes, vu8 no) { return ((vu8)mask & yes) | (~(vu8)mask & no); }
INLINE vu8 min_u8(vu8 x, vu8 y) { return select8((vi8)(x < y), x, y); }
INLINE vu8 max_u8(vu8 x, vu8 y) { return select8((vi8)(x > y), x, y); }
INLINE vu8 min_i8(vu8 x, vu8 y) { return select8((vi8)x < (vi8)y, x, y); }
INLINE vu8 max_i8(vu8 x, vu8 y) { return select8((vi8)x > (vi8)y, x, y); }

#define SAME(x) (x)

/* ---- loops: whole vectors, then the rest through a padded copy, so that every element sees the same operations ---- */

/* stored: vector type in memory; load/store: conversions from and to it; operation on the loaded values x and y */
#define LOOP2(name, stored, load, store, computed, ...) \
    static void name(void *dst, const void *a, const void *b, size_t count) LOOP2_BODY(stored, load, store, computed, __VA_ARGS__)

#define LOOP2_BODY(stored, load, store, computed, ...)                                          \
    {                                                                                           \
        const size_t lanes = sizeof(stored) / sizeof(((stored){ 0 })[0]);                       \
        const size_t element = sizeof(stored) / lanes;                                          \
        const char *pa = a, *pb = b;                                                            \
        char *pd = dst;                                                                         \
        for (; count >= lanes; count -= lanes, pa += sizeof(stored), pb += sizeof(stored), pd += sizeof(stored)) { \
            computed x = load(*(const stored *)pa), y = load(*(const stored *)pb);              \
            *(stored *)pd = store(__VA_ARGS__);                                                 \
        }                                                                                       \
        if (count > 0) {                                                                        \
            stored ra = { 0 }, rb = { 0 };                                                      \
            memcpy(&ra, pa, count * element);                                                   \
            memcpy(&rb, pb, count * element);                                                   \
            computed x = load(ra), y = load(rb);                                                \
            ra = store(__VA_ARGS__);                                                            \
            memcpy(pd, &ra, count * element);                                                   \
        }                                                                                       \
    }

#define LOOP_SCALED(type, stored, load, store, computed, real)                                                         \
    static void scale_##type(void *dst, const void *a, size_t count, double factor, double divisor)                     \
    {                                                                                                                   \
        const void *b = a;                                                                                              \
        real f = (real)factor, d = (real)divisor;                                                                       \
        LOOP2_BODY(stored, load, store, computed, ((void)y, x * f / d))                                                 \
    }                                                                                                                   \
    static void finish_##type(void *dst, const void *a, const void *b, size_t count, double factor, double divisor)     \
    {                                                                                                                   \
        real f = (real)factor, d = (real)divisor;                                                                       \
        LOOP2_BODY(stored, load, store, computed, (x + y) * f / d)                                                      \
    }

#define KERNELS_OF(type, stored, load, store, computed, min, max)                    \
    LOOP2(sum_##type, stored, load, store, computed, SUM(x, y))                      \
    LOOP2(product_##type, stored, load, store, computed, PRODUCT(x, y))              \
    LOOP2(min_##type, stored, load, store, computed, min(x, y))                      \
    LOOP2(max_##type, stored, load, store, computed, max(x, y))

KERNELS_OF(of_u8, vu8, SAME, SAME, vu8, min_u8, max_u8)
KERNELS_OF(of_i8, vu8, SAME, SAME, vu8, min_i8, max_i8)
KERNELS_OF(of_i32, vu32, SAME, SAME, vu32, min_i32, max_i32)
KERNELS_OF(of_i64, vu64, SAME, SAME, vu64, min_i64, max_i64)
KERNELS_OF(of_f16, vu16, widen_f16, narrow_f16, vf32, min_f32, max_f32)
KERNELS_OF(of_bf16, vu16, widen_bf16, narrow_bf16, vf32, min_f32, max_f32)
KERNELS_OF(of_f32, vf32, SAME, SAME, vf32, min_f32, max_f32)
KERNELS_OF(of_f64, vf64, SAME, SAME, vf64, min_f64, max_f64)
LOOP_SCALED(of_f16, vu16, widen_f16, narrow_f16, vf32, float)
LOOP_SCALED(of_bf16, vu16, widen_bf16, narrow_bf16, vf32, float)
LOOP_SCALED(of_f32, vf32, SAME, SAME, vf32, float)
LOOP_SCALED(of_f64, vf64, SAME, SAME, vf64, double)

/* The vectors of 16-bit lanes and of float32 have as many lanes as each other. */
#define CONVERT(name, to_type, from_type, to_stored, from_stored, convert)                              \
    static void name(to_type *dst, const from_type *a, size_t count)                                    \
    {                                                                                                   \
        const size_t lanes = sizeof(vf32) / sizeof(float);                                              \
        const size_t to_size = sizeof(to_stored) / lanes, from_size = sizeof(from_stored) / lanes;      \
        const char *from = (const char *)a;                                                             \
        char *to = (char *)dst;                                                                         \
        for (; count >= lanes; count -= lanes, from += sizeof(from_stored), to += sizeof(to_stored))    \
            *(to_stored *)to = convert(*(const from_stored *)from);                                     \
        if (count > 0) {                                                                                \
            from_stored rest = { 0 };                                                                   \
            memcpy(&rest, from, count * from_size);                                                     \
            to_stored converted = convert(rest);                                                        \
            memcpy(to, &converted, count * to_size);                                                    \
        }                                                                                               \
    }

CONVERT(narrow_to_f16, void, float, vu16, vf32, narrow_f16)
CONVERT(narrow_to_bf16, void, float, vu16, vf32, narrow_bf16)
CONVERT(widen_from_f16, float, void, vf32, vu16, widen_f16)
CONVERT(widen_from_bf16, float, void, vf32, vu16, widen_bf16)

#define ROW(type) \
    { [SHM_SUM] = sum_##type, [SHM_AVERAGE] = sum_##type, [SHM_MIN] = min_##type, [SHM_MAX] = max_##type, \
      [SHM_PRODUCT] = product_##type }

const struct reduce_kernels KERNELS = {
    .name = KERNELS_NAME,
    .combine = {
        [SHM_U8] = ROW(of_u8), [SHM_I8] = ROW(of_i8), [SHM_I32] = ROW(of_i32), [SHM_I64] = ROW(of_i64),
        [SHM_F16] = ROW(of_f16), [SHM_BF16] = ROW(of_bf16), [SHM_F32] = ROW(of_f32), [SHM_F64] = ROW(of_f64),
        [SHM_BOOL] = { [SHM_MIN] = min_of_u8, [SHM_MAX] = max_of_u8 },
    },
    .scale = { [SHM_F16] = scale_of_f16, [SHM_BF16] = scale_of_bf16, [SHM_F32] = scale_of_f32, [SHM_F64] = scale_of_f64 },
    .narrow = { [SHM_F16] = narrow_to_f16, [SHM_BF16] = narrow_to_bf16 },
    .widen = { [SHM_F16] = widen_from_f16, [SHM_BF16] = widen_from_bf16 },
    .finish = { [SHM_F16] = finish_of_f16, [SHM_BF16] = finish_of_bf16, [SHM_F32] = finish_of_f32, [SHM_F64] = finish_of_f64 },
};
