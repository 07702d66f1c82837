#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sidecar/ring/reduce.h"
#include "tests/unit/quietly.h"

#define ELEMENTS 1200

static const enum shm_dtype ALL[] = { SHM_U8, SHM_I8, SHM_I32, SHM_I64, SHM_F16, SHM_BF16, SHM_F32, SHM_F64, SHM_BOOL };

/* ---- the 16-bit floats against definitions by arithmetic ---- */

static double f16_value(uint16_t h)
{
    double sign = h & 0x8000 ? -1 : 1;
    int exponent = h >> 10 & 31, mantissa = h & 0x3ff;

    if (exponent == 31)
        return mantissa ? NAN : sign * INFINITY;
    return sign * (exponent == 0 ? ldexp(mantissa, -24) : ldexp(1024 + mantissa, exponent - 25));
}

static double bf16_value(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float f;

    memcpy(&f, &bits, sizeof f);
    return (double)f;
}

/* Nearest of the finite values to v, ties to the even encoding; infinity beyond the largest by half a step. */
static uint16_t nearest_f16(double v)
{
    double a = fabs(v), step;
    int exponent;

    if (isnan(v))
        return 0x7e00;
    if (a >= 65520)
        return (uint16_t)(0x7c00 | (signbit(v) ? 0x8000 : 0));
    (void)frexp(a, &exponent); /* a = m * 2^exponent, 0.5 <= m < 1 */
    step = ldexp(1, exponent - 11 < -24 ? -24 : exponent - 11);
    double rounded = rint(a / step) * step; /* round to nearest, ties to even, as the default mode is */
    uint16_t bits = 0;
    if (rounded < ldexp(1, -14))
        bits = (uint16_t)(rounded * ldexp(1, 24));
    else {
        (void)frexp(rounded, &exponent);
        bits = (uint16_t)((exponent + 14) << 10 | (int)(ldexp(rounded, 11 - exponent) - 1024));
    }
    return (uint16_t)(bits | (signbit(v) ? 0x8000 : 0));
}

Test(reduce, float16_plus_zero_gives_every_value_back)
{
    for (int variant = 0; variant < REDUCE_VARIANTS; variant++) {
        const struct reduce_kernels *k = reduce_kernels_of((enum reduce_variant)variant);
        if (k == NULL)
            continue;
        for (uint32_t h = 0; h < 65536; h++) {
            uint16_t a = (uint16_t)h, minus_zero = 0x8000, out;
            k->combine[SHM_F16][SHM_SUM](&out, &a, &minus_zero, 1);
            QUIETLY(isnan(f16_value(a)) ? isnan(f16_value(out)) : out == a, "%s: float16 %04x + -0 gave %04x", k->name, a, out);
            k->combine[SHM_BF16][SHM_SUM](&out, &a, &minus_zero, 1);
            QUIETLY(isnan(bf16_value(a)) ? isnan(bf16_value(out)) : out == a, "%s: bfloat16 %04x + -0 gave %04x", k->name, a, out);
        }
    }
}

Test(reduce, float16_rounds_to_nearest_even)
{
    const struct reduce_kernels *k = reduce_kernels();
    uint32_t seed = 1;

    for (int i = 0; i < 400000; i++) {
        seed = seed * 1664525u + 1013904223u;
        uint16_t a = (uint16_t)(seed >> 16), b = (uint16_t)(seed >> 3), out;
        if (isnan(f16_value(a)) || isnan(f16_value(b)))
            continue;
        k->combine[SHM_F16][SHM_SUM](&out, &a, &b, 1);
        double exact = (double)(float)(f16_value(a) + f16_value(b));
        uint16_t want = nearest_f16(exact);
        QUIETLY(isnan(exact) ? isnan(f16_value(out)) : f16_value(out) == f16_value(want), "%04x + %04x = %04x, want %04x", a, b, out, want);
        k->combine[SHM_F16][SHM_PRODUCT](&out, &a, &b, 1);
        exact = f16_value(a) * f16_value(b);
        want = nearest_f16(exact);
        QUIETLY(isnan(exact) ? isnan(f16_value(out)) : f16_value(out) == f16_value(want), "%04x * %04x = %04x, want %04x", a, b, out, want);
    }
}

static const struct { const char *name; uint16_t a, b, want; } BF16[] = {
    { "1 + 1", 0x3f80, 0x3f80, 0x4000 },
    { "tie goes down to even: 256 + 1", 0x4380, 0x3f80, 0x4380 },
    { "tie goes up to even: 258 + 1", 0x4381, 0x3f80, 0x4382 },
    { "above the tie: 256 + 1.5", 0x4380, 0x3fc0, 0x4381 },
    { "overflow", 0x7f7f, 0x7f7f, 0x7f80 },
    { "negative", 0xbf80, 0xbf80, 0xc000 },
    { "subnormal", 0x0001, 0x0001, 0x0002 },
};

Test(reduce, bfloat16_rounds_to_nearest_even)
{
    for (size_t i = 0; i < COUNT(BF16); i++) {
        uint16_t out;
        reduce_kernels()->combine[SHM_BF16][SHM_SUM](&out, &BF16[i].a, &BF16[i].b, 1);
        cr_expect(out == BF16[i].want, "case %s: %04x", BF16[i].name, out);
    }
}

/* ---- every kernel against plain C ---- */

#define EXPECT(type, field, expression)                                                                     \
    do {                                                                                                    \
        type x, y, got, want;                                                                               \
        memcpy(&x, a + i * sizeof x, sizeof x);                                                             \
        memcpy(&y, b + i * sizeof y, sizeof y);                                                             \
        memcpy(&got, out + i * sizeof got, sizeof got);                                                     \
        want = (type)(expression);                                                                          \
        QUIETLY(memcmp(&got, &want, sizeof got) == 0, "%s %s: element %zu", shm_dtype_name(field), shm_redop_name(op), i); \
    } while (0)

#define EXPECT_OPS(type, wide, field)                                                     \
    do {                                                                                  \
        if (op == SHM_SUM || op == SHM_AVERAGE)                                           \
            EXPECT(type, field, (wide)x + (wide)y);                                       \
        else if (op == SHM_PRODUCT)                                                       \
            EXPECT(type, field, (wide)x * (wide)y);                                       \
        else if (op == SHM_MIN)                                                           \
            EXPECT(type, field, x < y ? x : y);                                           \
        else                                                                              \
            EXPECT(type, field, x > y ? x : y);                                           \
    } while (0)

static void fill(uint8_t *bytes, size_t len, enum shm_dtype dtype, uint32_t seed)
{
    for (size_t i = 0; i < len; i++)
        bytes[i] = (uint8_t)((seed = seed * 1664525u + 1013904223u) >> 24);
    /* No infinities and NaNs here: they have a test of their own. */
    size_t element = shm_dtype_size(dtype);
    for (size_t i = 0; i < len; i += element) {
        if (dtype == SHM_F32 || dtype == SHM_F64 || dtype == SHM_F16 || dtype == SHM_BF16)
            bytes[i + element - 1] = (uint8_t)(bytes[i + element - 1] % 2 ? 0x3c : 0xbc);
        if (dtype == SHM_BOOL)
            bytes[i] &= 1;
    }
}

static void check_element(enum shm_dtype dtype, enum shm_redop op, const uint8_t *a, const uint8_t *b, const uint8_t *out, size_t i)
{
    switch (dtype) {
    case SHM_U8: EXPECT_OPS(uint8_t, unsigned, SHM_U8); break;
    case SHM_BOOL: EXPECT_OPS(uint8_t, unsigned, SHM_BOOL); break;
    case SHM_I8: EXPECT_OPS(int8_t, int, SHM_I8); break;
    case SHM_I32: EXPECT_OPS(int32_t, uint32_t, SHM_I32); break;
    case SHM_I64: EXPECT_OPS(int64_t, uint64_t, SHM_I64); break;
    case SHM_F32: EXPECT_OPS(float, float, SHM_F32); break;
    case SHM_F64: EXPECT_OPS(double, double, SHM_F64); break;
    default: break; /* 16-bit floats: above */
    }
}

Test(reduce, kernels_do_what_plain_c_does)
{
    static uint8_t a[ELEMENTS * 8], b[ELEMENTS * 8], out[ELEMENTS * 8];
    const struct reduce_kernels *k = reduce_kernels();

    for (size_t t = 0; t < COUNT(ALL); t++)
        for (int op = SHM_SUM; op <= SHM_PRODUCT; op++) {
            if (k->combine[ALL[t]][op] == NULL) {
                cr_expect(ALL[t] == SHM_BOOL && op != SHM_MIN && op != SHM_MAX, "%s %s has no kernel", shm_dtype_name(ALL[t]),
                          shm_redop_name((unsigned)op));
                continue;
            }
            fill(a, sizeof a, ALL[t], 1);
            fill(b, sizeof b, ALL[t], 2);
            k->combine[ALL[t]][op](out, a, b, ELEMENTS);
            for (size_t i = 0; i < ELEMENTS; i++)
                check_element(ALL[t], (enum shm_redop)op, a, b, out, i);
        }
}

Test(reduce, variants_give_the_same_bits_at_every_length_and_alignment)
{
    static uint8_t a[1200], b[1200], portable[1200], out[1200];
    const struct reduce_kernels *p = reduce_kernels_of(REDUCE_PORTABLE);
    int compared = 0;

    for (int variant = REDUCE_AVX2; variant < REDUCE_VARIANTS; variant++) {
        const struct reduce_kernels *k = reduce_kernels_of((enum reduce_variant)variant);
        if (k == NULL)
            continue;
        for (size_t t = 0; t < COUNT(ALL); t++) {
            size_t element = shm_dtype_size(ALL[t]);
            fill(a, sizeof a, SHM_U8, 3); /* any bits, NaNs too */
            fill(b, sizeof b, ALL[t], 4); /* on one side only: which of two NaNs survives is the processor's choice */
            for (size_t count = 0; count <= 140; count++)
                for (size_t shift = 0; shift < 4; shift++) {
                    size_t bytes = count * element, room = sizeof out - 4;
                    if (bytes > room)
                        continue;
                    for (int op = SHM_SUM; op <= SHM_PRODUCT; op++) {
                        if (p->combine[ALL[t]][op] == NULL)
                            continue;
                        memset(portable, 0x55, sizeof portable);
                        memset(out, 0x55, sizeof out);
                        p->combine[ALL[t]][op](portable + shift, a + shift, b + shift, count);
                        k->combine[ALL[t]][op](out + shift, a + shift, b + shift, count);
                        QUIETLY(memcmp(out, portable, sizeof out) == 0, "%s %s %s x %zu", k->name, shm_dtype_name(ALL[t]),
                                  shm_redop_name((unsigned)op), count);
                        compared++;
                    }
                    if (p->scale[ALL[t]] == NULL)
                        continue;
                    p->scale[ALL[t]](portable + shift, a + shift, count, 0.1, 3);
                    k->scale[ALL[t]](out + shift, a + shift, count, 0.1, 3);
                    QUIETLY(memcmp(out, portable, sizeof out) == 0, "%s scale %s", k->name, shm_dtype_name(ALL[t]));
                    p->finish[ALL[t]](portable + shift, a + shift, b + shift, count, 0.1, 3);
                    k->finish[ALL[t]](out + shift, a + shift, b + shift, count, 0.1, 3);
                    QUIETLY(memcmp(out, portable, sizeof out) == 0, "%s finish %s", k->name, shm_dtype_name(ALL[t]));
                }
        }
    }
#ifdef __x86_64__
    if (reduce_kernels_of(REDUCE_AVX2) != NULL)
        cr_expect(compared > 10000, "%d comparisons", compared);
#endif
}

Test(reduce, min_and_max_pass_a_nan_on_from_either_side)
{
    for (int op = SHM_MIN; op <= SHM_MAX; op++) {
        float f[2] = { NAN, 1 }, g[2] = { 1, NAN }, out[2];
        double d[2] = { NAN, 1 }, h[2] = { 1, NAN }, wide[2];
        uint16_t s[2] = { 0x7e00, 0x3c00 }, u[2] = { 0x3c00, 0x7e00 }, narrow[2];
        reduce_kernels()->combine[SHM_F32][op](out, f, g, 2);
        cr_expect(isnan(out[0]) && isnan(out[1]));
        reduce_kernels()->combine[SHM_F64][op](wide, d, h, 2);
        cr_expect(isnan(wide[0]) && isnan(wide[1]));
        reduce_kernels()->combine[SHM_F16][op](narrow, s, u, 2);
        cr_expect(isnan(f16_value(narrow[0])) && isnan(f16_value(narrow[1])));
    }
}

Test(reduce, the_mean_of_equal_values_is_the_value)
{
    for (int size = 2; size <= 9; size++)
        for (int i = 1; i < 2000; i++) {
            float x = (float)i / 7, rest = x * (float)(size - 1), out;
            if (rest + x != x * (float)size)
                continue; /* the sum itself was rounded */
            reduce_kernels()->finish[SHM_F32](&out, &rest, &x, 1, 1.0, size);
            QUIETLY(fabsf(out - x) <= x * 1.2e-7f, "%d x %g / %d = %g", size, (double)x, size, (double)out);
        }
}

Test(reduce, the_sum_is_scaled_before_a_16_bit_type_is_rounded)
{
    uint16_t a = 0x6800, b = 0x3c00, out; /* 2048 + 1: rounds to 2048, but half of it is 1024.5 */

    reduce_kernels()->finish[SHM_F16](&out, &a, &b, 1, 1.0, 2.0);
    cr_expect(f16_value(out) == 1024, "%g", f16_value(out)); /* 1024.5: tie to even */
    b = 0x4000;                                              /* 2048 + 2 */
    reduce_kernels()->finish[SHM_F16](&out, &a, &b, 1, 1.0, 2.0);
    cr_expect(f16_value(out) == 1025, "%g", f16_value(out));
    a = 0x7bff;                                              /* 65504 + 65504 would be infinite on the way */
    reduce_kernels()->finish[SHM_F16](&out, &a, &a, 1, 1.0, 2.0);
    cr_expect(f16_value(out) == 65504, "%g", f16_value(out));
}
