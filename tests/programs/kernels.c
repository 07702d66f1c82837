/* The kernels of reduce.h over known input, as one line for each variant, type and operation: enum shm_dtype, operation, elements and
 * a hash of the result. What another processor computes has to be the same, bit by bit. Needs no C library when FREESTANDING is
 * defined (aarch64), so that a cross compiler without one will do. */
#include <stdint.h>
#include <string.h>

#include "sidecar/ring/reduce.h"

enum { SCALE = 100, FINISH = 101 }; /* beside enum shm_redop */

static void say(const char *bytes, size_t len);

#ifdef FREESTANDING
void *memcpy(void *restrict to, const void *restrict from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ((volatile char *)to)[i] = ((const char *)from)[i];
    return to;
}

void *memset(void *to, int c, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ((volatile char *)to)[i] = (char)c;
    return to;
}

static long call(long number, long x, long y, long z)
{
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = x, x1 __asm__("x1") = y, x2 __asm__("x2") = z;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
    return x0;
}

static void say(const char *bytes, size_t len)
{
    (void)call(64, 1, (long)bytes, (long)len);
}

int main(void);
void _start(void);
void _start(void)
{
    (void)call(93, main(), 0, 0);
    __builtin_unreachable();
}
#else
#include <unistd.h>

static void say(const char *bytes, size_t len)
{
    (void)!write(1, bytes, len);
}
#endif

static void say_number(uint64_t n, char end)
{
    char text[24];
    size_t at = sizeof text;

    text[--at] = end;
    do
        text[--at] = (char)('0' + n % 10);
    while ((n /= 10) > 0);
    say(text + at, sizeof text - at);
}

#define BYTES 4096

static uint8_t a[BYTES + 64], b[BYTES + 64], out[BYTES + 64];

static uint64_t hash(void)
{
    uint64_t h = 14695981039346656037ull;

    for (size_t i = 0; i < sizeof out; i++)
        h = (h ^ out[i]) * 1099511628211ull;
    return h;
}

/* Every pattern of bits may come, but for NaNs: which of two becomes the result is the processor's choice. */
static void fill(uint8_t *to, unsigned dtype, uint64_t seed)
{
    for (size_t i = 0; i < BYTES + 64; i++) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        to[i] = (uint8_t)(seed >> 56);
    }
    size_t element = dtype == SHM_F64 ? 8 : dtype == SHM_F32 ? 4 : 2;
    for (size_t i = element - 1; shm_dtype_is_float(dtype) && i < BYTES + 64; i += element)
        to[i] &= 0xbf; /* exponents of the lower half: no infinity, no NaN */
}

static void say_result(unsigned dtype, unsigned op, size_t count)
{
    say_number(dtype, ' ');
    say_number(op, ' ');
    say_number(count, ' ');
    say_number(hash(), '\n');
}

static void one(const struct reduce_kernels *k, unsigned dtype, size_t count)
{
    for (unsigned op = SHM_SUM; op <= SHM_PRODUCT; op++) {
        memset(out, 0, sizeof out);
        if (k->combine[dtype][op] == NULL)
            continue;
        k->combine[dtype][op](out + 1, a + 1, b, count); /* misaligned on purpose */
        say_result(dtype, op, count);
    }
    if (k->scale[dtype] == NULL)
        return;
    memset(out, 0, sizeof out);
    k->scale[dtype](out, a, count, 0.3, 7);
    say_result(dtype, SCALE, count);
    memset(out, 0, sizeof out);
    k->finish[dtype](out, a, b, count, 0.3, 7);
    say_result(dtype, FINISH, count);
}

int main(void)
{
    for (int variant = 0; variant < REDUCE_VARIANTS; variant++) {
        const struct reduce_kernels *k = reduce_kernels_of((enum reduce_variant)variant);
        if (k == NULL)
            continue;
        say("# ", 2);
        say_number((uint64_t)variant, '\n');
        for (unsigned dtype = SHM_U8; dtype <= SHM_BOOL; dtype++) {
            fill(a, dtype, dtype);
            fill(b, dtype, dtype + 100);
            one(k, dtype, 1);
            one(k, dtype, BYTES / 8);
            one(k, dtype, BYTES / 8 - 3);
        }
    }
    return 0;
}
