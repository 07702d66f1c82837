#include "cli/bench.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "wire/shm.h"

#define ITERATIONS_MAX 1000
#define ITERATIONS_MIN 5
#define BYTES_OF_A_SIZE (1ll << 30) /* as many iterations as move this much */

/* What we need of ringmaster.h. The library is the one that was put beside the job's processes, whatever release it is. */
typedef void done_fn(void *ctx, int status, const char *text);
struct client {
    void *library;
    int (*init)(const char *framework);
    int (*shutdown)(void);
    int (*rank)(void);
    int (*size)(void);
    const char *(*error_text)(void);
    int (*allreduce)(const char *name, const void *in, void *out, uint64_t count, int dtype, int op, double prescale, double postscale,
                     done_fn *done, void *ctx, uint64_t *ret_handle);
    int (*wait)(uint64_t handle, int64_t timeout_ms);
    int (*barrier)(const char *name);
    void *(*alloc)(size_t bytes);
    void (*free)(void *p);
};

int64_t bench_iterations(const struct bench_options *o, int64_t bytes)
{
    int64_t n = BYTES_OF_A_SIZE / (bytes > 0 ? bytes : 1);

    if (o->iterations > 0)
        return o->iterations;
    return n < ITERATIONS_MIN ? ITERATIONS_MIN : n > ITERATIONS_MAX ? ITERATIONS_MAX : n;
}

static int load(struct client *c, const char *directory, struct error *e)
{
    char path[4096];
    const struct { const char *name; void *at; } symbols[] = {
        { "rm_init", &c->init }, { "rm_shutdown", &c->shutdown }, { "rm_rank", &c->rank }, { "rm_size", &c->size },
        { "rm_error_text", &c->error_text }, { "rm_allreduce", &c->allreduce }, { "rm_wait", &c->wait }, { "rm_barrier", &c->barrier },
        { "rm_alloc", &c->alloc }, { "rm_free", &c->free },
    };

    (void)snprintf(path, sizeof path, "%s%slibringmaster.so", directory != NULL ? directory : "", directory != NULL ? "/" : "");
    c->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (c->library == NULL)
        return error_set(e, ERROR_NOT_FOUND, "cannot load the client library: %.180s", dlerror());
    for (size_t i = 0; i < COUNT(symbols); i++) {
        void *symbol = dlsym(c->library, symbols[i].name);
        if (symbol == NULL)
            return error_set(e, ERROR_NOT_FOUND, "%s has no %s: it is of another release", path, symbols[i].name);
        memcpy(symbols[i].at, &symbol, sizeof symbol);
    }
    return 0;
}

/* ---- values: small numbers, so that sums, products and averages are exact in every type ---- */

static int value(const struct bench_options *o, int rank, int64_t i)
{
    if (o->redop == SHM_PRODUCT)
        return (rank + i) % 5 == 0 ? 2 : 1;
    return (int)((i + rank) % 3);
}

static double expected(const struct bench_options *o, int size, int64_t i)
{
    double v = value(o, 0, i);

    for (int r = 1; r < size; r++) {
        double x = value(o, r, i);
        if (o->redop == SHM_PRODUCT)
            v *= x;
        else if (o->redop == SHM_MIN)
            v = x < v ? x : v;
        else if (o->redop == SHM_MAX)
            v = x > v ? x : v;
        else
            v += x;
    }
    return o->redop == SHM_AVERAGE ? v / size : v;
}

static void store(void *at, unsigned dtype, int64_t i, double v)
{
    float f = (float)v;
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    switch (dtype) {
    case SHM_U8: ((uint8_t *)at)[i] = (uint8_t)v; break;
    case SHM_I8: ((int8_t *)at)[i] = (int8_t)v; break;
    case SHM_I32: ((int32_t *)at)[i] = (int32_t)v; break;
    case SHM_I64: ((int64_t *)at)[i] = (int64_t)v; break;
    case SHM_BF16: ((uint16_t *)at)[i] = (uint16_t)(bits >> 16); break; /* exact: few digits */
    case SHM_F16: ((uint16_t *)at)[i] = v == 0 ? 0 : (uint16_t)((bits >> 13) - (112u << 10)); break; /* normal and exact */
    case SHM_F64: ((double *)at)[i] = v; break;
    default: ((float *)at)[i] = f;
    }
}

static double load_value(const void *at, unsigned dtype, int64_t i)
{
    uint32_t bits;
    float f;

    switch (dtype) {
    case SHM_U8: return ((const uint8_t *)at)[i];
    case SHM_I8: return ((const int8_t *)at)[i];
    case SHM_I32: return ((const int32_t *)at)[i];
    case SHM_I64: return (double)((const int64_t *)at)[i];
    case SHM_F64: return ((const double *)at)[i];
    case SHM_F32: return (double)((const float *)at)[i];
    default: break;
    }
    uint16_t h = ((const uint16_t *)at)[i];
    if (dtype == SHM_F16 && h == 0)
        return 0;
    bits = dtype == SHM_BF16 ? (uint32_t)h << 16 : ((uint32_t)h + (112u << 10)) << 13;
    memcpy(&f, &bits, sizeof f);
    return (double)f;
}

/* An average may be rounded once in its type. */
static bool is_right(const struct bench_options *o, double got, double want)
{
    double ulp = o->dtype == SHM_BF16 ? 0x1p-8 : o->dtype == SHM_F16 ? 0x1p-11 : o->dtype == SHM_F32 ? 0x1p-24 : 0x1p-53;

    if (o->dtype == SHM_U8 || o->dtype == SHM_I8) /* wraps around */
        return fmod(got - want, 256) == 0;
    return o->redop == SHM_AVERAGE ? fabs(got - want) <= fabs(want) * ulp : got == want;
}

/* ---- measuring ---- */

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void print_row(const struct bench_options *o, int size, int64_t bytes, double *us, int64_t n, double mean, int64_t wrong)
{
    double algbw = mean > 0 ? (double)bytes / mean / 1e3 : 0;

    printf("%12lld  %12lld  %8s  %6s  %9.2f  %6.3f  %6.3f", (long long)bytes, (long long)(bytes / (int64_t)shm_dtype_size(o->dtype)),
           shm_dtype_name(o->dtype), shm_redop_name(o->redop), mean, algbw, algbw * 2 * (size - 1) / size);
    if (o->check)
        printf("  %6lld", (long long)wrong);
    else
        printf("  %6s", "N/A");
    if (o->percentiles) {
        qsort(us, (size_t)n, sizeof *us, compare);
        printf("  %9.2f  %9.2f", us[n / 2], us[n - 1 - n / 100]);
    }
    putchar('\n');
    (void)fflush(stdout);
}

static void print_head(const struct bench_options *o, int size)
{
    printf("# all-reduce, %d ranks, %s\n", size, o->in_arena ? "in shared memory" : "from and to memory of the process");
    printf("#       size         count      type   redop       time   algbw   busbw   wrong%s\n", o->percentiles ? "        p50        p99" : "");
    printf("#        (B)    (elements)                         (us)  (GB/s)  (GB/s)        %s\n", o->percentiles ? "       (us)       (us)" : "");
}

static int one(struct client *c, const struct bench_options *o, const char *name, const void *in, void *out, int64_t count,
               struct error *e)
{
    uint64_t handle;

    if (c->allreduce(name, in, out, (uint64_t)count, (int)o->dtype, (int)o->redop, 1, 1, NULL, NULL, &handle) < 0 || c->wait(handle, -1) < 0)
        return error_set(e, ERROR_PEER_LOST, "%.200s", c->error_text());
    return 0;
}

static int measure_size(struct client *c, const struct bench_options *o, int64_t bytes, void *in, void *out, double *us,
                        int64_t *ret_wrong, struct error *e)
{
    int64_t count = bytes / (int64_t)shm_dtype_size(o->dtype), n = bench_iterations(o, bytes), wrong = 0, all = 0;
    int rank = c->rank(), size = c->size();
    char name[48];

    (void)snprintf(name, sizeof name, "bench %lld", (long long)bytes);
    for (int64_t i = 0; i < count; i++)
        store(in, o->dtype, i, value(o, rank, i));
    memset(out, 0xff, (size_t)bytes);
    for (int64_t i = 0; i < o->warmup; i++) {
        if (one(c, o, name, in, out, count, e) < 0)
            return -1;
    }
    if (c->barrier("bench begins") < 0)
        return error_set(e, ERROR_PEER_LOST, "%.200s", c->error_text());
    int64_t began = clock_mono_ns(), last = began;
    for (int64_t i = 0; i < n; i++) {
        if (one(c, o, name, in, out, count, e) < 0)
            return -1;
        int64_t now = clock_mono_ns();
        us[i] = (double)(now - last) / 1e3;
        last = now;
    }
    double mean = (double)(last - began) / 1e3 / (double)n;
    for (int64_t i = 0; o->check && i < count; i++)
        wrong += !is_right(o, load_value(out, o->dtype, i), expected(o, size, i));
    uint64_t handle; /* what any rank found wrong is wrong */
    if (c->allreduce("bench wrong", &wrong, &all, 1, SHM_I64, SHM_SUM, 1, 1, NULL, NULL, &handle) < 0 || c->wait(handle, -1) < 0)
        return error_set(e, ERROR_PEER_LOST, "%.200s", c->error_text());
    if (rank == 0)
        print_row(o, size, bytes, us, n, mean, all);
    *ret_wrong += all;
    return 0;
}

static int measure(struct client *c, const struct bench_options *o, int64_t *ret_wrong, struct error *e)
{
    size_t room = (size_t)o->max_bytes + 1;
    void *in = o->in_arena ? c->alloc(room) : malloc(room), *out = o->in_arena ? c->alloc(room) : malloc(room);
    double *us = xcalloc((size_t)(o->iterations > ITERATIONS_MAX ? o->iterations : ITERATIONS_MAX), sizeof *us);
    int64_t element = (int64_t)shm_dtype_size(o->dtype);
    int result = 0;

    if (in == NULL || out == NULL)
        result = error_set(e, ERROR_LIMIT, "no memory for two buffers of %lld bytes%s%.100s", (long long)o->max_bytes,
                           o->in_arena ? ": " : "", o->in_arena ? c->error_text() : "");
    else if (c->rank() == 0)
        print_head(o, c->size());
    for (int64_t bytes = o->min_bytes; result == 0 && bytes <= o->max_bytes; bytes *= o->factor)
        result = measure_size(c, o, bytes / element * element, in, out, us, ret_wrong, e);
    if (o->in_arena) {
        c->free(in);
        c->free(out);
    } else {
        free(in);
        free(out);
    }
    free(us);
    return result;
}

int bench_allreduce(const struct bench_options *o, int64_t *ret_wrong, struct error *e)
{
    struct client c = { .library = NULL };

    *ret_wrong = 0;
    if (load(&c, o->library_dir, e) < 0)
        return -1;
    if (c.init(NULL) < 0)
        return error_set(e, ERROR_PEER_LOST, "%.200s", c.error_text());
    int result = measure(&c, o, ret_wrong, e);
    (void)c.shutdown();
    return result;
}
