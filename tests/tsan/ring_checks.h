/*
 * ring_checks.h — what the tests of the whole engine share: cases and their count, values of every type, worlds with one client a
 * rank, an all-reduce that is checked element by element.
 */
#ifndef TESTS_TSAN_RING_CHECKS_H
#define TESTS_TSAN_RING_CHECKS_H

#include <math.h>

#include "tests/tsan/ring_world.h"

static int passed, failed;
static bool case_failed;
static char case_name[128];

#define CHECK(condition, ...)                                             \
    do {                                                                  \
        if (!(condition)) {                                               \
            case_failed = true;                                           \
            printf("  %s:%d: %s: ", __FILE__, __LINE__, case_name);       \
            printf(__VA_ARGS__);                                          \
            printf("\n");                                                 \
        }                                                                 \
    } while (0)

static inline void begin(const char *name, int size)
{
    (void)snprintf(case_name, sizeof case_name, "%s, %d rank%s", name, size, size == 1 ? "" : "s");
    case_failed = false;
}

static inline void end(void)
{
    if (case_failed)
        failed++;
    else
        passed++;
    printf("%s %s\n", case_failed ? "FAILED" : "ok", case_name);
    (void)fflush(stdout);
}

/* ---- values ---- */

static inline double load(const uint8_t *at, enum shm_dtype t)
{
    uint16_t h;
    uint32_t bits;
    float f;
    double d;
    int32_t i;
    int64_t l;

    switch (t) {
    case SHM_U8: case SHM_BOOL: return *at;
    case SHM_I8: return (int8_t)*at;
    case SHM_I32: memcpy(&i, at, 4); return i;
    case SHM_I64: memcpy(&l, at, 8); return (double)l;
    case SHM_F32: memcpy(&f, at, 4); return (double)f;
    case SHM_F64: memcpy(&d, at, 8); return d;
    case SHM_BF16: memcpy(&h, at, 2); bits = (uint32_t)h << 16; memcpy(&f, &bits, 4); return (double)f;
    case SHM_F16: memcpy(&h, at, 2);
        if ((h & 0x7c00) == 0)
            return (h & 0x8000 ? -1 : 1) * ldexp(h & 0x3ff, -24);
        return (h & 0x8000 ? -1 : 1) * ldexp(0x400 | (h & 0x3ff), (h >> 10 & 31) - 25);
    case SHM_U16: memcpy(&h, at, 2); return h;
    case SHM_I16: memcpy(&h, at, 2); return (int16_t)h;
    }
    return 0;
}

/* Small whole numbers only: exact in every type. */
static inline void store(uint8_t *at, enum shm_dtype t, int value)
{
    float f = (float)value;
    uint32_t bits;
    uint16_t h = 0;
    int exponent;

    switch (t) {
    case SHM_U8: case SHM_BOOL: case SHM_I8: *at = (uint8_t)value; break;
    case SHM_I32: memcpy(at, &(int32_t){ value }, 4); break;
    case SHM_I64: memcpy(at, &(int64_t){ value }, 8); break;
    case SHM_F32: memcpy(at, &f, 4); break;
    case SHM_F64: memcpy(at, &(double){ value }, 8); break;
    case SHM_BF16: memcpy(&bits, &f, 4); h = (uint16_t)(bits >> 16); memcpy(at, &h, 2); break;
    case SHM_F16:
        if (value != 0) {
            double m = frexp(abs(value), &exponent); /* 0.5 <= m < 1 */
            h = (uint16_t)((value < 0 ? 0x8000 : 0) | (exponent + 14) << 10 | (int)((m * 2 - 1) * 1024));
        }
        memcpy(at, &h, 2);
        break;
    case SHM_U16: case SHM_I16: memcpy(at, &(int16_t){ (int16_t)value }, 2); break;
    }
}

/* Element i of a rank's contribution: small, so that sums over five ranks stay exact even in bfloat16 and int8. */
static inline int value_of(int rank, uint64_t i, enum shm_redop op)
{
    uint64_t mixed = (i + 1) * 2654435761u + (uint64_t)rank * 40503u;
    int v = (int)(mixed >> 7 & 7);

    return op == SHM_PRODUCT ? v % 3 : v;
}

static inline double expected(int size, uint64_t i, enum shm_redop op, bool is_bool)
{
    double result = 0;

    for (int r = 0; r < size; r++) {
        double v = is_bool ? value_of(r, i, op) & 1 : value_of(r, i, op);
        if (r == 0)
            result = v;
        else if (op == SHM_SUM || op == SHM_AVERAGE)
            result += v;
        else if (op == SHM_PRODUCT)
            result *= v;
        else if (op == SHM_MIN)
            result = v < result ? v : result;
        else
            result = v > result ? v : result;
    }
    return op == SHM_AVERAGE ? result / size : result;
}

/* ---- a world with one client per rank ---- */

struct setup { struct world world; struct test_client clients[WORLD_MAX]; };

static inline void set_up(struct setup *s, int size, int32_t chunk_bytes)
{
    world_start(&s->world, size, chunk_bytes);
    CHECK(world_form(&s->world, FENCE(1, 1)), "the group did not form");
    for (int r = 0; r < size; r++)
        client_attach(&s->clients[r], &s->world.nodes[r], FENCE(1, 1));
}

static inline void tear_down(struct setup *s)
{
    for (int r = 0; r < s->world.size; r++)
        client_detach(&s->clients[r]);
    world_stop(&s->world);
}

static inline void rewind_arenas(struct setup *s)
{
    for (int r = 0; r < s->world.size; r++)
        s->clients[r].used = 0;
}

/* Waits for one reply on every rank, which must be `status`. */
static inline void collect(struct setup *s, enum shm_status status, struct shm_reply *replies)
{
    for (int r = 0; r < s->world.size; r++) {
        bool came = client_next(&s->clients[r], 60000, &replies[r]);
        CHECK(came, "rank %d: no reply", r);
        if (!came) {
            replies[r] = (struct shm_reply){ .status = 99 };
            continue;
        }
        CHECK(replies[r].status == status, "rank %d: status %u, text \"%s\"", r, replies[r].status, replies[r].text);
    }
}

static const enum shm_dtype ALL_DTYPES[] = { SHM_U8, SHM_I8, SHM_I32, SHM_I64, SHM_F16, SHM_BF16, SHM_F32, SHM_F64, SHM_BOOL };

static inline bool is_float(enum shm_dtype t)
{
    return t >= SHM_F16 && t <= SHM_F64;
}

static inline bool has_meaning(enum shm_dtype t, enum shm_redop op)
{
    if (t == SHM_BOOL)
        return op == SHM_MIN || op == SHM_MAX;
    return op != SHM_AVERAGE || is_float(t);
}

static inline double tolerance_of(enum shm_dtype t)
{
    return t == SHM_F16 ? 1e-3 : t == SHM_BF16 ? 8e-3 : t == SHM_F32 ? 1e-6 : t == SHM_F64 ? 1e-14 : 0;
}

static inline void one_allreduce(struct setup *s, enum shm_dtype t, enum shm_redop op, uint64_t count, bool in_place)
{
    struct shm_reply replies[WORLD_MAX];
    uint64_t element = shm_dtype_size(t), out[WORLD_MAX];

    for (int r = 0; r < s->world.size; r++) {
        struct test_client *c = &s->clients[r];
        uint64_t in = client_alloc(c, count * element);
        out[r] = in_place ? in : client_alloc(c, count * element);
        for (uint64_t i = 0; i < count; i++)
            store(c->base + in + i * element, t, t == SHM_BOOL ? value_of(r, i, op) & 1 : value_of(r, i, op));
        struct shm_request q = request_of("x", SHM_OP_ALLREDUCE, t, count, in, out[r]);
        q.redop = (uint16_t)op;
        (void)client_submit(c, &q);
    }
    collect(s, SHM_OK, replies);
    for (int r = 0; r < s->world.size; r++) {
        const uint8_t *result = s->clients[r].base + out[r];
        CHECK(replies[r].size == (uint32_t)s->world.size, "reply says %u ranks", replies[r].size);
        CHECK(memcmp(result, s->clients[0].base + out[0], count * element) == 0, "%s %s x %llu: ranks 0 and %d differ",
              shm_redop_name(op), shm_dtype_name(t), (unsigned long long)count, r);
        for (uint64_t i = 0; i < count && r == 0; i++) {
            double want = expected(s->world.size, i, op, t == SHM_BOOL), got = load(result + i * element, t);
            if (fabs(got - want) <= tolerance_of(t) * fabs(want))
                continue;
            CHECK(false, "%s %s x %llu: element %llu is %.17g, want %.17g", shm_redop_name(op), shm_dtype_name(t),
                  (unsigned long long)count, (unsigned long long)i, got, want);
            break;
        }
    }
    rewind_arenas(s);
}

/* Runs tests through memory that the ranks share in place of TCP, and looks that nothing of it is left. */
static inline void through_memory(void (*tests)(bool quick), bool quick)
{
    char directory[] = "/dev/shm/ringmaster-test-XXXXXX";

    if (mkdtemp(directory) == NULL) {
        perror(directory);
        exit(1);
    }
    world_memory_dir = directory;
    tests(quick);
    world_memory_dir = NULL;
    begin("files of shared memory are gone", 4);
    CHECK(rmdir(directory) == 0, "%s is not empty", directory);
    end();
}

static inline int report(void)
{
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}

#endif
