#include "sidecar/ring/adasum.h"

#include <string.h>

#include "wire/half.h"

#define BLOCK 256u

/* Elements as doubles, and back; the 16-bit types by way of float, so that they are rounded once more than a double is. */
static void load(double *to, const uint8_t *from, uint64_t count, enum shm_dtype dtype)
{
    for (uint64_t i = 0; i < count; i++) {
        uint16_t bits;
        float single;
        switch (dtype) {
        case SHM_F64:
            memcpy(&to[i], from + i * 8, 8);
            break;
        case SHM_F32:
            memcpy(&single, from + i * 4, 4);
            to[i] = (double)single;
            break;
        default:
            memcpy(&bits, from + i * 2, 2);
            to[i] = (double)(dtype == SHM_F16 ? half_to_float(bits) : brain_to_float(bits));
        }
    }
}

static void store(uint8_t *to, const double *from, uint64_t count, enum shm_dtype dtype)
{
    for (uint64_t i = 0; i < count; i++) {
        float single = (float)from[i];
        uint16_t bits;
        switch (dtype) {
        case SHM_F64:
            memcpy(to + i * 8, &from[i], 8);
            break;
        case SHM_F32:
            memcpy(to + i * 4, &single, 4);
            break;
        default:
            bits = dtype == SHM_F16 ? half_of_float(single) : brain_of_float(single);
            memcpy(to + i * 2, &bits, 2);
        }
    }
}

static void products(const uint8_t *a, const uint8_t *b, uint64_t count, enum shm_dtype dtype, double *ret_ab, double *ret_aa,
                     double *ret_bb)
{
    uint64_t element = shm_dtype_size(dtype);
    double x[BLOCK], y[BLOCK];

    *ret_ab = *ret_aa = *ret_bb = 0;
    for (uint64_t at = 0; at < count; at += BLOCK) {
        uint64_t n = count - at < BLOCK ? count - at : BLOCK;
        load(x, a + at * element, n, dtype);
        load(y, b + at * element, n, dtype);
        for (uint64_t i = 0; i < n; i++) {
            *ret_ab += x[i] * y[i];
            *ret_aa += x[i] * x[i];
            *ret_bb += y[i] * y[i];
        }
    }
}

/* a = adasum(a, b) */
static void combine(uint8_t *a, const uint8_t *b, uint64_t count, enum shm_dtype dtype)
{
    uint64_t element = shm_dtype_size(dtype);
    double ab, aa, bb, x[BLOCK], y[BLOCK];

    products(a, b, count, dtype, &ab, &aa, &bb);
    double of_a = aa > 0 ? 1.0 - ab / (2.0 * aa) : 1.0, of_b = bb > 0 ? 1.0 - ab / (2.0 * bb) : 1.0;
    for (uint64_t at = 0; at < count; at += BLOCK) {
        uint64_t n = count - at < BLOCK ? count - at : BLOCK;
        load(x, a + at * element, n, dtype);
        load(y, b + at * element, n, dtype);
        for (uint64_t i = 0; i < n; i++)
            x[i] = of_a * x[i] + of_b * y[i];
        store(a + at * element, x, n, dtype);
    }
}

void adasum(uint8_t *vectors, int32_t parts, uint64_t count, enum shm_dtype dtype)
{
    uint64_t bytes = count * shm_dtype_size(dtype);

    for (int32_t step = 1; step < parts; step *= 2) {
        for (int32_t at = 0; at + step < parts; at += 2 * step)
            combine(vectors + (uint64_t)at * bytes, vectors + (uint64_t)(at + step) * bytes, count, dtype);
    }
}
