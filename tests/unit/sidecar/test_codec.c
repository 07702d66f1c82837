/* The forms in which sums travel: what they are off by, what they keep, and that every processor gives the same bits. */

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sidecar/ring/codec.h"
#include "sidecar/ring/collective.h"
#include "sidecar/ring/squeeze.h"
#include "tests/unit/quietly.h"

static uint32_t next(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

/* -1 to 1, times a power of two. */
static float value(uint32_t *seed)
{
    float x = (float)next(seed) / 8388608.0f - 1.0f;

    return ldexpf(x, (int)(next(seed) % 12) - 6);
}

static float *values(uint64_t count, uint32_t seed)
{
    float *a = xcalloc(count + 1, sizeof *a);

    for (uint64_t i = 0; i < count; i++)
        a[i] = value(&seed);
    return a;
}

static const uint64_t COUNTS[] = { 0, 1, 2, 7, 15, 16, 17, 255, 256, 257, 511, 1024, 1025, 5000 };

Test(codec, sizes)
{
    static const struct { enum shm_wire wire; enum shm_dtype dtype; uint64_t count, bytes; } rows[] = {
        { SHM_WIRE_F16, SHM_F32, 1000, 2000 }, { SHM_WIRE_BF16, SHM_F32, 3, 6 }, { SHM_WIRE_EXACT, SHM_BF16, 5, 10 },
        { SHM_WIRE_I8, SHM_F32, 0, 0 }, { SHM_WIRE_I8, SHM_F32, 1, 5 }, { SHM_WIRE_I8, SHM_F32, 256, 260 }, { SHM_WIRE_I8, SHM_F32, 257, 265 },
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct codec c = { rows[i].wire, rows[i].dtype };
        cr_expect_eq(codec_bytes(&c, rows[i].count), rows[i].bytes, "case %zu", i);
    }
}

Test(codec, what_comes_back_is_as_near_as_the_form_can_be)
{
    static const enum shm_wire forms[] = { SHM_WIRE_F16, SHM_WIRE_BF16, SHM_WIRE_I8 };

    for (size_t f = 0; f < COUNT(forms); f++) {
        struct codec c = { forms[f], SHM_F32 };
        for (size_t k = 0; k < COUNT(COUNTS); k++) {
            uint64_t count = COUNTS[k], bytes = codec_bytes(&c, count);
            auto_free float *a = values(count, (uint32_t)k), *b = xcalloc(count + 1, sizeof *b);
            auto_free uint8_t *wire = xcalloc(bytes + 1, 1);
            wire[bytes] = 0xa5;
            b[count] = 42;
            codec_encode(&c, wire, (const uint8_t *)a, count);
            codec_decode(&c, (uint8_t *)b, wire, count);
            QUIETLY(wire[bytes] == 0xa5 && b[count] == 42, "form %d, %d elements: written behind the end", forms[f], (int)count);
            for (uint64_t i = 0; i < count; i++) {
                float largest = 0;
                for (uint64_t j = i / CODEC_GROUP * CODEC_GROUP; j < count && j < (i / CODEC_GROUP + 1) * CODEC_GROUP; j++)
                    largest = fmaxf(largest, fabsf(a[j]));
                float off = fabsf(a[i] - b[i]);
                float allowed = forms[f] == SHM_WIRE_I8 ? largest / 254 * 1.0001f
                                : forms[f] == SHM_WIRE_F16 ? fmaxf(fabsf(a[i]) / 2048, 0x1p-25f) : fabsf(a[i]) / 256;
                QUIETLY(off <= allowed, "form %d, element %d of %d: %g became %g", forms[f], (int)i, (int)count, (double)a[i], (double)b[i]);
            }
        }
    }
}

Test(codec, what_is_no_number_stays_none)
{
    static const float odd[] = { INFINITY, -INFINITY, NAN };
    static const enum shm_wire forms[] = { SHM_WIRE_F16, SHM_WIRE_BF16, SHM_WIRE_I8 };
    float a[600], b[600];
    uint8_t wire[2048];

    for (size_t f = 0; f < COUNT(forms); f++) {
        for (size_t o = 0; o < COUNT(odd); o++) {
            struct codec c = { forms[f], SHM_F32 };
            for (size_t i = 0; i < COUNT(a); i++)
                a[i] = (float)i;
            a[300] = odd[o];
            codec_encode(&c, wire, (const uint8_t *)a, COUNT(a));
            codec_decode(&c, (uint8_t *)b, wire, COUNT(b));
            cr_expect(!isfinite(b[300]), "form %d: %g became %g", forms[f], (double)odd[o], (double)b[300]);
            cr_expect(forms[f] != SHM_WIRE_I8 || (isnan(b[300]) && isnan(b[256]) && isnan(b[511])), "the whole group is");
            cr_expect(isfinite(b[255]) && isfinite(b[512]), "and no other");
        }
    }
}

Test(codec, groups_too_small_for_a_scale_are_zero)
{
    struct codec c = { SHM_WIRE_I8, SHM_F32 };
    float a[3] = { 0x1p-120f, -0x1p-126f, 0 }, b[3] = { 1, 1, 1 };
    uint8_t wire[16];

    codec_encode(&c, wire, (const uint8_t *)a, 3);
    codec_decode(&c, (uint8_t *)b, wire, 3);
    cr_expect(b[0] == 0 && b[1] == 0 && b[2] == 0);
}

/* ---- exact ---- */

static float widen_bf16(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

/* The two neighbours in bfloat16 of a finite sum, by search among its own bits. */
static bool is_nearest_bf16(uint16_t got, double sum)
{
    double off = fabs((double)widen_bf16(got) - sum);
    uint16_t up = (uint16_t)(got + 1), down = (uint16_t)(got - 1);

    if ((got & 0x7fff) == 0)
        return off <= (double)widen_bf16(1) / 2;
    return off <= fabs((double)widen_bf16(up) - sum) && off <= fabs((double)widen_bf16(down) - sum);
}

Test(codec, an_exact_sum_is_the_nearest_to_the_true_one)
{
    enum { RANKS = 7, COUNT_OF = 3001 };
    auto_free uint16_t *out = xcalloc(COUNT_OF, sizeof *out);
    uint16_t *parts[RANKS];
    uint32_t seed = 5;
    int worse = 0;
    struct collective_plan plan = { .dtype = SHM_BF16, .redop = SHM_AVERAGE, .factor = 1.0, .divisor = RANKS };

    for (int r = 0; r < RANKS; r++) {
        parts[r] = xcalloc(COUNT_OF, sizeof **parts);
        for (int i = 0; i < COUNT_OF; i++) {
            float x = value(&seed);
            uint32_t bits;
            memcpy(&bits, &x, sizeof bits);
            parts[r][i] = (uint16_t)(bits >> 16);
        }
    }
    squeeze_sum_exact(&plan, (const uint8_t *const *)parts, RANKS, COUNT_OF, (uint8_t *)out);
    for (int i = 0; i < COUNT_OF; i++) {
        double sum = 0;
        for (int r = 0; r < RANKS; r++)
            sum += (double)widen_bf16(parts[r][i]);
        QUIETLY(is_nearest_bf16(out[i], sum / RANKS), "element %d: %g for %g", i, (double)widen_bf16(out[i]), sum / RANKS);
    }
    /* What it is for: the arithmetic that rounds at each hop is further off. */
    collective_sum(&plan, (const uint8_t *const *)parts, RANKS, COUNT_OF, (uint8_t *)out);
    for (int i = 0; i < COUNT_OF; i++) {
        double sum = 0;
        for (int r = 0; r < RANKS; r++)
            sum += (double)widen_bf16(parts[r][i]);
        worse += !is_nearest_bf16(out[i], sum / RANKS);
    }
    cr_expect_gt(worse, COUNT_OF / 10);
    for (int r = 0; r < RANKS; r++)
        free(parts[r]);
}

Test(codec, a_tie_that_is_none_is_not_taken_for_one)
{
    /* 1 + 2^-8 is in the middle between two bfloat16; what float64 holds beside it decides. */
    static const struct { double sum; uint16_t expected; } rows[] = {
        { 1.0 + 0x1p-8, 0x3f80 }, { 1.0 + 0x1p-8 + 0x1p-40, 0x3f81 }, { 1.0 + 0x1p-8 - 0x1p-40, 0x3f80 },
        { 1.0 + 3 * 0x1p-8, 0x3f82 }, { 1.0 + 3 * 0x1p-8 - 0x1p-40, 0x3f81 }, { -(1.0 + 0x1p-8 + 0x1p-40), 0xbf81 },
        { 0, 0 }, { 1e300, 0x7f80 }, { -1e300, 0xff80 },
    };
    struct codec c = { SHM_WIRE_EXACT, SHM_BF16 };

    for (size_t i = 0; i < COUNT(rows); i++) {
        uint16_t got = 0;
        codec_take_sums(&c, (uint8_t *)&got, &rows[i].sum, 1);
        cr_expect_eq(got, rows[i].expected, "case %zu: %04x, expected %04x", i, got, rows[i].expected);
    }
}
