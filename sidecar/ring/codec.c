#include "sidecar/ring/codec.h"

#include <math.h>
#include <string.h>

#include "sidecar/ring/reduce.h"

#define SMALLEST 0x1p-100f      /* below, 127 / magnitude would leave float32 */
#define ROUNDING 0x1.8p23f      /* adding and taking it away rounds to an integer */
#define INFINITY_BITS 0x7f800000u
#define BLOCK 1024u             /* elements that are widened at a time: in the first-level cache */

/* ---- int8 in groups ---- */

/* The largest magnitude; NaN when an infinity or a NaN is among them. As bits, magnitudes are in the order of their numbers, and those come
 * last. */
static float largest_of(const float *a, uint64_t count)
{
    uint32_t largest = 0, bits;
    float magnitude;

    for (uint64_t i = 0; i < count; i++) {
        memcpy(&bits, &a[i], sizeof bits);
        bits &= 0x7fffffff;
        largest = bits > largest ? bits : largest;
    }
    memcpy(&magnitude, &largest, sizeof magnitude);
    return largest < INFINITY_BITS ? magnitude : NAN;
}

static uint64_t group_at(uint64_t at, uint64_t count)
{
    return count - at < CODEC_GROUP ? count - at : CODEC_GROUP;
}

static void encode_groups(uint8_t *to, const float *a, uint64_t count)
{
    for (uint64_t at = 0; at < count; at += CODEC_GROUP) {
        uint64_t n = group_at(at, count);
        float largest = largest_of(a + at, n);
        bool counts = largest >= SMALLEST; /* false for a NaN */
        float scale = counts ? largest / 127.0f : largest == largest ? 0.0f : NAN, inverse = counts ? 127.0f / largest : 0.0f;
        int8_t *numbers = (int8_t *)to + sizeof scale;
        memcpy(to, &scale, sizeof scale);
        for (uint64_t i = 0; i < n; i++) {
            float x = counts ? a[at + i] * inverse : 0.0f;
            numbers[i] = (int8_t)(x + ROUNDING - ROUNDING);
        }
        to += sizeof scale + n;
    }
}

static void decode_groups(float *a, const uint8_t *from, uint64_t count, bool add)
{
    for (uint64_t at = 0; at < count; at += CODEC_GROUP) {
        uint64_t n = group_at(at, count);
        float scale;
        const int8_t *numbers = (const int8_t *)from + sizeof scale;
        memcpy(&scale, from, sizeof scale);
        for (uint64_t i = 0; i < n; i++) {
            float x = (float)numbers[i] * scale;
            a[at + i] = add ? a[at + i] + x : x;
        }
        from += sizeof scale + n;
    }
}

/* ---- 16-bit types ---- */

/* The type that elements have on the wire. */
static enum shm_dtype narrow_type(const struct codec *c)
{
    return c->wire == SHM_WIRE_EXACT ? c->dtype : c->wire == SHM_WIRE_F16 ? SHM_F16 : SHM_BF16;
}

static void add_widened(float *sums, const uint8_t *from, uint64_t count, enum shm_dtype type)
{
    const struct reduce_kernels *k = reduce_kernels();
    float wide[BLOCK];

    for (uint64_t at = 0; at < count; at += BLOCK) {
        size_t n = count - at < BLOCK ? (size_t)(count - at) : BLOCK;
        k->widen[type](wide, from + 2 * at, n);
        k->combine[SHM_F32][SHM_SUM](sums + at, sums + at, wide, n);
    }
}

static void add_exact(double *sums, const uint8_t *from, uint64_t count, enum shm_dtype type, bool begin)
{
    const struct reduce_kernels *k = reduce_kernels();
    float wide[BLOCK];

    for (uint64_t at = 0; at < count; at += BLOCK) {
        size_t n = count - at < BLOCK ? (size_t)(count - at) : BLOCK;
        k->widen[type](wide, from + 2 * at, n);
        for (size_t i = 0; i < n; i++)
            sums[at + i] = begin ? wide[i] : sums[at + i] + wide[i];
    }
}

/* float64 to a 16-bit type, rounded once: what float32 cannot hold is kept in its last bit (round to odd), so that the second rounding
 * does not see a tie that is none. */
static float to_odd(double x)
{
    float f = (float)x;
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    if ((double)f == x || (bits & INFINITY_BITS) == INFINITY_BITS)
        return f;
    bits -= fabs((double)f) > fabs(x); /* towards zero */
    bits |= 1;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static void narrow_exact(uint8_t *to, const double *sums, uint64_t count, enum shm_dtype type)
{
    const struct reduce_kernels *k = reduce_kernels();
    float wide[BLOCK];

    for (uint64_t at = 0; at < count; at += BLOCK) {
        size_t n = count - at < BLOCK ? (size_t)(count - at) : BLOCK;
        for (size_t i = 0; i < n; i++)
            wide[i] = to_odd(sums[at + i]);
        k->narrow[type](to + 2 * at, wide, n);
    }
}

/* ---- all forms ---- */

uint64_t codec_bytes(const struct codec *c, uint64_t count)
{
    if (c->wire == SHM_WIRE_I8)
        return count + (count + CODEC_GROUP - 1) / CODEC_GROUP * sizeof(float);
    return 2 * count;
}

size_t codec_accumulator_size(const struct codec *c)
{
    return c->wire == SHM_WIRE_EXACT ? sizeof(double) : sizeof(float);
}

void codec_encode(const struct codec *c, uint8_t *to, const uint8_t *elements, uint64_t count)
{
    if (c->wire == SHM_WIRE_EXACT)
        memcpy(to, elements, 2 * count);
    else
        codec_encode_sums(c, to, elements, count);
}

void codec_decode(const struct codec *c, uint8_t *elements, const uint8_t *from, uint64_t count)
{
    if (c->wire == SHM_WIRE_EXACT)
        memcpy(elements, from, 2 * count);
    else
        codec_begin(c, elements, from, count);
}

void codec_begin(const struct codec *c, void *sums, const uint8_t *from, uint64_t count)
{
    if (c->wire == SHM_WIRE_EXACT)
        add_exact(sums, from, count, c->dtype, true);
    else if (c->wire == SHM_WIRE_I8)
        decode_groups(sums, from, count, false);
    else
        reduce_kernels()->widen[narrow_type(c)](sums, from, count);
}

void codec_add(const struct codec *c, void *sums, const uint8_t *from, uint64_t count)
{
    if (c->wire == SHM_WIRE_EXACT)
        add_exact(sums, from, count, c->dtype, false);
    else if (c->wire == SHM_WIRE_I8)
        decode_groups(sums, from, count, true);
    else
        add_widened(sums, from, count, narrow_type(c));
}

void codec_begin_own(const struct codec *c, void *sums, const uint8_t *elements, uint64_t count)
{
    if (c->wire == SHM_WIRE_EXACT)
        add_exact(sums, elements, count, c->dtype, true);
    else
        memcpy(sums, elements, count * sizeof(float));
}

void codec_add_own(const struct codec *c, void *sums, const uint8_t *elements, uint64_t count)
{
    if (c->wire == SHM_WIRE_EXACT)
        add_exact(sums, elements, count, c->dtype, false);
    else
        reduce_kernels()->combine[SHM_F32][SHM_SUM](sums, sums, elements, count);
}

void codec_scale(const struct codec *c, void *sums, uint64_t count, double factor, double divisor)
{
    if (factor != 1.0 || divisor != 1.0)
        reduce_kernels()->scale[c->wire == SHM_WIRE_EXACT ? SHM_F64 : SHM_F32](sums, sums, count, factor, divisor);
}

void codec_encode_sums(const struct codec *c, uint8_t *to, const void *sums, uint64_t count)
{
    if (c->wire == SHM_WIRE_EXACT)
        narrow_exact(to, sums, count, c->dtype);
    else if (c->wire == SHM_WIRE_I8)
        encode_groups(to, sums, count);
    else
        reduce_kernels()->narrow[narrow_type(c)](to, sums, count);
}

void codec_take_sums(const struct codec *c, uint8_t *elements, const void *sums, uint64_t count)
{
    if (c->wire == SHM_WIRE_EXACT)
        narrow_exact(elements, sums, count, c->dtype);
    else
        memcpy(elements, sums, count * sizeof(float));
}
