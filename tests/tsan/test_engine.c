/* The ring engine, whole: 1 to 5 engines in one process over loopback, with real clients over shared memory. A plain main, so that
 * it also runs under ThreadSanitizer and valgrind ("quick": a small subset for the latter). */
#include <math.h>
#include <time.h>

#include "tests/tsan/ring_world.h"

static int passed, failed, killed_in_the_middle;
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

static void begin(const char *name, int size)
{
    (void)snprintf(case_name, sizeof case_name, "%s, %d rank%s", name, size, size == 1 ? "" : "s");
    case_failed = false;
}

static void end(void)
{
    if (case_failed)
        failed++;
    else
        passed++;
    printf("%s %s\n", case_failed ? "FAILED" : "ok", case_name);
    (void)fflush(stdout);
}

/* ---- values ---- */

static double load(const uint8_t *at, enum shm_dtype t)
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
static void store(uint8_t *at, enum shm_dtype t, int value)
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
static int value_of(int rank, uint64_t i, enum shm_redop op)
{
    uint64_t mixed = (i + 1) * 2654435761u + (uint64_t)rank * 40503u;
    int v = (int)(mixed >> 7 & 7);

    return op == SHM_PRODUCT ? v % 3 : v;
}

static double expected(int size, uint64_t i, enum shm_redop op, bool is_bool)
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

static void set_up(struct setup *s, int size, int32_t chunk_bytes)
{
    world_start(&s->world, size, chunk_bytes);
    CHECK(world_form(&s->world, FENCE(1, 1)), "the group did not form");
    for (int r = 0; r < size; r++)
        client_attach(&s->clients[r], &s->world.nodes[r], FENCE(1, 1));
}

static void tear_down(struct setup *s)
{
    for (int r = 0; r < s->world.size; r++)
        client_detach(&s->clients[r]);
    world_stop(&s->world);
}

static void rewind_arenas(struct setup *s)
{
    for (int r = 0; r < s->world.size; r++)
        s->clients[r].used = 0;
}

/* Waits for one reply on every rank, which must be `status`. */
static void collect(struct setup *s, enum shm_status status, struct shm_reply *replies)
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

static bool is_float(enum shm_dtype t)
{
    return t >= SHM_F16 && t <= SHM_F64;
}

static bool has_meaning(enum shm_dtype t, enum shm_redop op)
{
    if (t == SHM_BOOL)
        return op == SHM_MIN || op == SHM_MAX;
    return op != SHM_AVERAGE || is_float(t);
}

static double tolerance_of(enum shm_dtype t)
{
    return t == SHM_F16 ? 1e-3 : t == SHM_BF16 ? 8e-3 : t == SHM_F32 ? 1e-6 : t == SHM_F64 ? 1e-14 : 0;
}

static void one_allreduce(struct setup *s, enum shm_dtype t, enum shm_redop op, uint64_t count, bool in_place)
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

static void all_reductions(struct setup *s, const uint64_t *counts, size_t how_many)
{
    for (size_t t = 0; t < COUNT(ALL_DTYPES); t++)
        for (int op = SHM_SUM; op <= SHM_PRODUCT; op++)
            for (size_t c = 0; c < how_many; c++)
                if (has_meaning(ALL_DTYPES[t], (enum shm_redop)op))
                    one_allreduce(s, ALL_DTYPES[t], (enum shm_redop)op, counts[c], (c + t) % 2 == 1);
}

static void test_allreduce(int size, bool quick)
{
    static const uint64_t counts[] = { 0, 1, 3, 17, 1000, 33333 };
    struct setup s;

    begin("all-reduce of every type and operation", size);
    set_up(&s, size, 4096);
    all_reductions(&s, counts, quick ? 5 : COUNT(counts));
    if (!quick) {
        one_allreduce(&s, SHM_F32, SHM_SUM, 1500001, false);
        one_allreduce(&s, SHM_F32, SHM_AVERAGE, 1500001, true);
        one_allreduce(&s, SHM_BF16, SHM_SUM, 2000003, false);
    }
    tear_down(&s);
    end();
}

static void test_scaling(int size)
{
    struct setup s;
    struct shm_reply replies[WORLD_MAX];
    uint64_t out[WORLD_MAX], count = 5000;

    begin("scaling before and after", size);
    set_up(&s, size, 4096);
    for (int in_place = 0; in_place < 2; in_place++) {
        for (int r = 0; r < size; r++) {
            struct test_client *c = &s.clients[r];
            uint64_t in = client_alloc(c, count * 4);
            out[r] = in_place ? in : client_alloc(c, count * 4);
            for (uint64_t i = 0; i < count; i++)
                store(c->base + in + 4 * i, SHM_F32, value_of(r, i, SHM_SUM));
            struct shm_request q = request_of("scaled", SHM_OP_ALLREDUCE, SHM_F32, count, in, out[r]);
            q.prescale = 0.5;
            q.postscale = 8;
            (void)client_submit(c, &q);
        }
        collect(&s, SHM_OK, replies);
        for (uint64_t i = 0; i < count; i++) {
            double want = expected(size, i, SHM_SUM, false) * 4, got = load(s.clients[size - 1].base + out[size - 1] + 4 * i, SHM_F32);
            if (want != got) {
                CHECK(false, "element %llu is %g, want %g", (unsigned long long)i, got, want);
                break;
            }
        }
        rewind_arenas(&s);
    }
    tear_down(&s);
    end();
}

static void test_broadcast(int size)
{
    static const uint64_t counts[] = { 0, 1, 5, 70001 };
    struct setup s;
    struct shm_reply replies[WORLD_MAX];

    begin("broadcast from every root", size);
    set_up(&s, size, 4096);
    for (int root = 0; root < size; root++) {
        for (size_t n = 0; n < COUNT(counts) * COUNT(ALL_DTYPES); n++) {
            enum shm_dtype t = ALL_DTYPES[n % COUNT(ALL_DTYPES)];
            uint64_t count = counts[n / COUNT(ALL_DTYPES)], element = shm_dtype_size(t), out[WORLD_MAX];
            for (int r = 0; r < size; r++) {
                struct test_client *c = &s.clients[r];
                uint64_t in = client_alloc(c, count * element);
                out[r] = n % 2 ? in : client_alloc(c, count * element);
                memset(c->base + in, r + 1, count * element);
                struct shm_request q = request_of("weights", SHM_OP_BROADCAST, t, count, in, out[r]);
                q.root = root;
                (void)client_submit(c, &q);
            }
            collect(&s, SHM_OK, replies);
            for (int r = 0; r < size; r++)
                for (uint64_t i = 0; i < count * element; i++)
                    if (s.clients[r].base[out[r] + i] != root + 1) {
                        CHECK(false, "rank %d, byte %llu is %d", r, (unsigned long long)i, s.clients[r].base[out[r] + i]);
                        break;
                    }
            rewind_arenas(&s);
        }
    }
    tear_down(&s);
    end();
}

static uint64_t rows_of(int rank, int round)
{
    static const uint64_t rows[][WORLD_MAX] = { { 1, 1, 1, 1, 1 }, { 3, 0, 5, 1, 700 }, { 0, 0, 0, 0, 0 }, { 20000, 1, 0, 9, 4 } };

    return rows[round][rank];
}

static void test_allgather(int size)
{
    struct setup s;
    struct shm_reply replies[WORLD_MAX];

    begin("all-gather of ragged rows", size);
    set_up(&s, size, 4096);
    for (int round = 0; round < 40; round++) { /* results are handed back: forty of them would not fit otherwise */
        uint64_t row = 7, total = 0;
        for (int r = 0; r < size; r++) {
            struct test_client *c = &s.clients[r];
            uint64_t count = rows_of(r, round % 4) * row, in = client_alloc(c, count * 4);
            for (uint64_t i = 0; i < count; i++)
                store(c->base + in + 4 * i, SHM_I32, r * 100000 + (int)i % 1000);
            struct shm_request q = request_of("ids", SHM_OP_ALLGATHER, SHM_I32, count, in, 0);
            q.row_elements = row;
            (void)client_submit(c, &q);
            total += count;
        }
        collect(&s, SHM_OK, replies);
        for (int r = 0; r < size; r++) {
            struct test_client *c = &s.clients[r];
            CHECK(replies[r].out_count == total, "rank %d: %llu elements", r, (unsigned long long)replies[r].out_count);
            const uint8_t *at = c->base + replies[r].out_offset;
            bool right = true;
            for (int from = 0; from < size; from++)
                for (uint64_t i = 0; i < rows_of(from, round % 4) * row; i++, at += 4)
                    right = right && load(at, SHM_I32) == from * 100000 + (int)i % 1000;
            CHECK(right, "round %d, rank %d has other data", round, r);
            struct shm_request back = { .op = SHM_OP_FREE, .in_offset = replies[r].out_offset };
            (void)client_submit(c, &back);
        }
        rewind_arenas(&s);
    }
    tear_down(&s);
    end();
}

static void test_no_space(int size)
{
    struct setup s;
    struct shm_reply reply;
    uint64_t bytes = (8 << 20) / (uint64_t)size; /* together the whole results area */

    begin("a result that does not fit", size);
    set_up(&s, size, 65536);
    for (int round = 0; round < 3; round++) {
        for (int r = 0; r < size; r++) {
            uint64_t in = client_alloc(&s.clients[r], bytes);
            memset(s.clients[r].base + in, r, bytes);
            struct shm_request q = request_of("large", SHM_OP_ALLGATHER, SHM_U8, bytes, in, 0);
            (void)client_submit(&s.clients[r], &q);
        }
        for (int r = 0; r < size; r++) {
            /* Rank 0 never hands its results back; the others are not to suffer. */
            enum shm_status want = r == 0 && round > 0 ? SHM_NO_SPACE : SHM_OK;
            CHECK(client_next(&s.clients[r], 60000, &reply) && reply.status == want, "round %d rank %d: %u %s", round, r,
                  reply.status, reply.text);
            if (r > 0 && reply.status == SHM_OK) {
                CHECK(s.clients[r].base[reply.out_offset + reply.out_count - 1] == size - 1, "rank %d has other data", r);
                struct shm_request back = { .op = SHM_OP_FREE, .in_offset = reply.out_offset };
                (void)client_submit(&s.clients[r], &back);
            }
        }
        rewind_arenas(&s);
    }
    tear_down(&s);
    end();
}

/* ---- order, fusion, determinism ---- */

struct submitter { struct setup *s; int rank, first, count, step; uint64_t *in; };

static void *submit_some(void *ctx)
{
    struct submitter *job = ctx;

    for (int k = 0; k < job->count; k++) {
        int i = job->first + (int)((unsigned)k * (unsigned)job->step % (unsigned)job->count);
        char name[32];
        (void)snprintf(name, sizeof name, "grad/%d", i);
        struct shm_request q = request_of(name, SHM_OP_ALLREDUCE, SHM_F32, (uint64_t)(i % 50) * 37, job->in[i], job->in[i]);
        (void)client_submit(&job->s->clients[job->rank], &q);
    }
    return NULL;
}

#define TENSORS 240

static void fill_random(uint8_t *at, uint64_t count, unsigned seed)
{
    for (uint64_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        float f = (float)(int32_t)seed / 1e6f;
        memcpy(at + 4 * i, &f, 4);
    }
}

/* Runs all tensors once; digests of the results are compared by the caller. threads 0: one at a time, so that nothing is fused. */
static void run_step(struct setup *s, int threads, uint8_t *ret_result, uint64_t *ret_bytes)
{
    static const int steps[] = { 1, 7, 11, 13, 17 }; /* coprime to the thread's share: every rank has another order */
    uint64_t in[WORLD_MAX][TENSORS] = { { 0 } };
    struct shm_reply reply;

    for (int r = 0; r < s->world.size; r++)
        for (int i = 0; i < TENSORS; i++) {
            uint64_t count = (uint64_t)(i % 50) * 37;
            in[r][i] = client_alloc(&s->clients[r], count * 4);
            fill_random(s->clients[r].base + in[r][i], count, (unsigned)(r * 1000 + i));
        }
    if (threads == 0) {
        for (int i = 0; i < TENSORS; i++)
            for (int turn = 0; turn < 2; turn++)
                for (int r = 0; r < s->world.size; r++) {
                    struct submitter one = { s, r, i, 1, 1, in[r] };
                    if (turn == 0)
                        (void)submit_some(&one);
                    else
                        CHECK(client_next(&s->clients[r], 60000, &reply) && reply.status == SHM_OK, "%s", reply.text);
                }
    } else {
        pthread_t ids[WORLD_MAX][4];
        struct submitter jobs[WORLD_MAX][4];
        for (int r = 0; r < s->world.size; r++)
            for (int t = 0; t < threads; t++) {
                jobs[r][t] = (struct submitter){ s, r, t * (TENSORS / threads), TENSORS / threads, steps[r], in[r] };
                (void)pthread_create(&ids[r][t], NULL, submit_some, &jobs[r][t]);
            }
        for (int r = 0; r < s->world.size; r++) {
            for (int i = 0; i < TENSORS; i++)
                CHECK(client_next(&s->clients[r], 60000, &reply) && reply.status == SHM_OK, "%s", reply.text);
            for (int t = 0; t < threads; t++)
                (void)pthread_join(ids[r][t], NULL);
        }
    }
    for (int r = 1; r < s->world.size; r++)
        CHECK(memcmp(s->clients[r].base + in[r][0], s->clients[0].base + in[0][0], s->clients[0].used) == 0,
              "rank %d has other bits than rank 0", r);
    *ret_bytes = s->clients[0].used;
    memcpy(ret_result, s->clients[0].base + in[0][0], s->clients[0].used);
    rewind_arenas(s);
}

static void test_order_and_bits(int size)
{
    static uint8_t alone[4 << 20], together[4 << 20];
    uint64_t bytes, same;
    struct setup s;

    begin("unordered submission from threads, same bits alone or fused", size);
    set_up(&s, size, 65536);
    run_step(&s, 0, alone, &bytes);
    for (int turn = 0; turn < 5; turn++) {
        run_step(&s, turn % 2 ? 4 : 2, together, &same);
        CHECK(same == bytes && memcmp(alone, together, bytes) == 0, "turn %d: the bits depend on what travelled together", turn);
    }
    struct engine_stats stats;
    engine_stats_read(s.world.nodes[0].engine, &stats);
    CHECK(stats.operations == 6 * TENSORS, "%llu operations", (unsigned long long)stats.operations);
    CHECK(stats.bytes_reduced > 0 && (size == 1 || stats.slowest_rank >= 0), "statistics are empty");
    tear_down(&s);
    end();
}

static void test_barrier(int size)
{
    struct setup s;
    struct shm_reply replies[WORLD_MAX], early;
    struct shm_request q = request_of("barrier", SHM_OP_BARRIER, 0, 0, 0, 0);

    begin("barrier", size);
    set_up(&s, size, 65536);
    for (int r = 0; r < size - 1; r++)
        (void)client_submit(&s.clients[r], &q);
    if (size > 1)
        CHECK(!client_next(&s.clients[0], 50, &early), "rank 0 left before rank %d came", size - 1);
    (void)client_submit(&s.clients[size - 1], &q);
    collect(&s, SHM_OK, replies);
    tear_down(&s);
    end();
}

/* ---- what can be wrong with a request ---- */

static void test_mismatch(int size)
{
    struct setup s;
    struct shm_reply replies[WORLD_MAX];

    begin("ranks that disagree are told who sent what", size);
    set_up(&s, size, 65536);
    for (int kind = 0; kind < 6; kind++) {
        uint64_t in = s.clients[0].h->arena_offset;
        for (int r = 0; r < size; r++) {
            bool odd = r == size - 1;
            struct shm_request q = request_of("loss", SHM_OP_ALLREDUCE, SHM_F32, 100, in, in);
            if (odd && kind == 0)
                q.count = 101;
            if (odd && kind == 1)
                q.dtype = SHM_F64;
            if (odd && kind == 2)
                q.redop = SHM_MAX;
            if (odd && kind == 3)
                q.op = SHM_OP_BARRIER;
            if (kind == 4) {
                q.op = SHM_OP_BROADCAST;
                q.root = odd ? 1 : 0;
            }
            if (odd && kind == 5)
                q.postscale = 2;
            (void)client_submit(&s.clients[r], &q);
        }
        collect(&s, SHM_MISMATCH, replies);
        for (int r = 0; r < size; r++) {
            char odd[64];
            (void)snprintf(odd, sizeof odd, "rank %d (worker-%d)", size - 1, size - 2);
            CHECK(strstr(replies[r].text, "rank ") != NULL && strstr(replies[r].text, odd) != NULL &&
                      strstr(replies[r].text, "\"loss\"") != NULL, "kind %d: \"%s\"", kind, replies[r].text);
            CHECK(strcmp(replies[r].text, replies[0].text) == 0, "ranks hear different things");
        }
        one_allreduce(&s, SHM_F32, SHM_SUM, 100, false); /* and the group goes on */
    }
    tear_down(&s);
    end();
}

static const struct bad_request {
    const char *name, *says;
    struct shm_request r;
} BAD[] = {
    { "offset before the arena", "outside", { .op = SHM_OP_ALLREDUCE, .dtype = SHM_F32, .redop = SHM_SUM, .count = 4, .name = "x" } },
    { "count that wraps around", "do not fit", { .op = SHM_OP_ALLREDUCE, .dtype = SHM_F64, .redop = SHM_SUM,
                                                 .count = UINT64_MAX / 4, .name = "x" } },
    { "offset that wraps around", "outside", { .op = SHM_OP_ALLREDUCE, .dtype = SHM_F32, .redop = SHM_SUM, .count = 4,
                                               .in_offset = UINT64_MAX - 3, .name = "x" } },
    { "unknown operation", "unknown operation", { .op = 77, .dtype = SHM_F32, .name = "x" } },
    { "unknown dtype", "unknown dtype", { .op = SHM_OP_BROADCAST, .dtype = 12, .name = "x" } },
    { "unknown reduction", "is no reduction", { .op = SHM_OP_ALLREDUCE, .dtype = SHM_F32, .redop = 9, .name = "x" } },
    { "adasum of integers", "floating", { .op = SHM_OP_ALLREDUCE, .dtype = SHM_I32, .redop = SHM_ADASUM, .prescale = 1,
                                          .postscale = 1, .name = "x" } },
    { "sum of int16", "not reduced", { .op = SHM_OP_ALLREDUCE, .dtype = SHM_I16, .redop = SHM_SUM, .prescale = 1, .postscale = 1,
                                       .name = "x" } },
    { "splits that are not there", "outside", { .op = SHM_OP_ALLTOALL, .dtype = SHM_F32, .splits = 2, .name = "x" } },
    { "no splits", "list of 0 ranks", { .op = SHM_OP_REDUCESCATTER, .dtype = SHM_F32, .redop = SHM_SUM, .name = "x" } },
    { "a set that is not there", "no process set 9", { .op = SHM_OP_BARRIER, .set = 9, .name = "x" } },
    { "join in a set", "all ranks have to take part", { .op = SHM_OP_JOIN, .set = 9, .name = "x" } },
    { "sum of bool", "bool", { .op = SHM_OP_ALLREDUCE, .dtype = SHM_BOOL, .redop = SHM_SUM, .name = "x" } },
    { "no name", "name is empty", { .op = SHM_OP_BARRIER } },
    { "a control character in the name", "control character", { .op = SHM_OP_BARRIER, .name = "\1self-test all-reduce" } },
    { "root out of range", "ranks are 0 to", { .op = SHM_OP_BROADCAST, .dtype = SHM_F32, .root = 55, .name = "x" } },
    { "negative root", "rank -1", { .op = SHM_OP_BROADCAST, .dtype = SHM_F32, .root = -1, .name = "x" } },
    { "half a row", "rows", { .op = SHM_OP_ALLGATHER, .dtype = SHM_F32, .count = 7, .row_elements = 2, .name = "x" } },
};

static void test_bad_requests(int size)
{
    struct setup s;
    struct shm_reply reply;
    struct shm_request q;

    begin("requests that cannot be right", size);
    set_up(&s, size, 65536);
    for (size_t i = 0; i < COUNT(BAD); i++) {
        uint64_t id = client_submit(&s.clients[0], &BAD[i].r);
        CHECK(client_next(&s.clients[0], 10000, &reply) && reply.id == id && reply.status == SHM_INVALID &&
                  strstr(reply.text, BAD[i].says) != NULL, "%s: status %u, \"%s\"", BAD[i].name, reply.status, reply.text);
    }
    q = request_of("x", SHM_OP_BARRIER, 0, 0, 0, 0);
    memset(q.name, 'n', sizeof q.name);
    (void)client_submit(&s.clients[0], &q);
    CHECK(client_next(&s.clients[0], 10000, &reply) && reply.status == SHM_INVALID, "a name without an end: %u", reply.status);
    q = request_of("twice", SHM_OP_BARRIER, 0, 0, 0, 0);
    if (size > 1) {
        (void)client_submit(&s.clients[0], &q);
        (void)client_submit(&s.clients[0], &q);
        CHECK(client_next(&s.clients[0], 10000, &reply) && reply.status == SHM_INVALID && strstr(reply.text, "already in flight"),
              "a name that is in flight: %u %s", reply.status, reply.text);
        for (int r = 1; r < size; r++)
            (void)client_submit(&s.clients[r], &q);
        struct shm_reply replies[WORLD_MAX];
        collect(&s, SHM_OK, replies);
    }
    struct shm_request back = { .op = SHM_OP_FREE, .in_offset = 12345 };
    (void)client_submit(&s.clients[0], &back); /* no reply, no harm */
    one_allreduce(&s, SHM_F32, SHM_SUM, 10, false);
    tear_down(&s);
    end();
}

/* A process may attach, and ask, while its round still forms: nothing is known then of the world's size. */
static void test_early_requests(int size)
{
    static const char *const empty[] = { "nothing", "nothing either" };
    struct setup s;
    struct shm_reply reply, replies[WORLD_MAX];

    begin("requests that come before the group is formed", size);
    world_start(&s.world, size, 65536);
    for (int r = 0; r < size; r++) {
        client_attach(&s.clients[r], &s.world.nodes[r], FENCE(1, 1));
        struct shm_request q = request_of("no such root", SHM_OP_BROADCAST, SHM_F32, 1, s.clients[r].h->arena_offset,
                                          s.clients[r].h->arena_offset);
        q.root = 99;
        (void)client_submit(&s.clients[r], &q);
        for (size_t i = 0; i < COUNT(empty); i++) { /* they are fused, and that needs no memory */
            q = request_of(empty[i], SHM_OP_ALLREDUCE, SHM_F32, 0, 0, 0);
            (void)client_submit(&s.clients[r], &q);
        }
    }
    CHECK(world_form(&s.world, FENCE(1, 1)), "the group did not form");
    for (int r = 0; r < size; r++)
        CHECK(client_next(&s.clients[r], 10000, &reply) && reply.status == SHM_INVALID && strstr(reply.text, "rank 99") != NULL,
              "rank %d: status %u, \"%s\"", r, reply.status, reply.text);
    for (size_t i = 0; i < COUNT(empty); i++)
        collect(&s, SHM_OK, replies);
    one_allreduce(&s, SHM_F32, SHM_SUM, 10, false);
    tear_down(&s);
    end();
}

static void test_broken_client(int size)
{
    struct setup s;
    struct test_client bad;
    struct shm_reply reply;

    begin("a client that breaks the queue protocol", size);
    set_up(&s, size, 65536);
    client_attach(&bad, &s.world.nodes[0], FENCE(1, 1));
    atomic_store(&bad.h->sq_tail, 123456u);
    memset(bad.base, 0xff, 256);
    uint64_t one = 1;
    (void)!write(bad.fds[1], &one, sizeof one);
    CHECK(!client_next(&bad, 50, &reply), "it was served");
    one_allreduce(&s, SHM_F32, SHM_SUM, 1000, false); /* the others are */
    client_detach(&bad);
    tear_down(&s);
    end();
}

static void test_full_reply_queue(int size)
{
    struct setup s;
    struct shm_reply reply;
    int many = 6000; /* three times what the reply queue holds */

    begin("replies that nobody takes yet", size);
    set_up(&s, size, 65536);
    for (int i = 0; i < many; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "m%d", i);
        struct shm_request q = request_of(name, SHM_OP_ALLREDUCE, SHM_F32, 1, s.clients[0].h->arena_offset, s.clients[0].h->arena_offset);
        for (int r = 0; r < size; r++)
            (void)client_submit(&s.clients[r], &q);
    }
    for (int r = 0; r < size; r++) {
        int got = 0;
        while (got < many && client_next(&s.clients[r], 20000, &reply))
            got++;
        CHECK(got == many, "rank %d: %d of %d replies", r, got, many);
    }
    tear_down(&s);
    end();
}

/* ---- losing ranks ---- */

static void submit_large(struct setup *s, uint64_t count, int but_not)
{
    for (int r = 0; r < s->world.size; r++) {
        uint64_t in = s->clients[r].h->arena_offset;
        struct shm_request q = request_of("large", SHM_OP_ALLREDUCE, SHM_F32, count, in, in + count * 4);
        struct shm_request w = request_of(r == but_not ? "mine" : "waits for one", SHM_OP_BARRIER, 0, 0, 0, 0);
        (void)client_submit(&s->clients[r], &q);
        (void)client_submit(&s->clients[r], &w);
    }
}

/* Returns how many ranks were in the middle of the large all-reduce. */
static int expect_lost(struct setup *s, int dead, const char *says)
{
    struct shm_reply reply;
    int interrupted = 0;

    for (int r = 0; r < s->world.size; r++) {
        if (r == dead)
            continue;
        bool barrier_lost = false;
        int lost = 0;
        for (int i = 0; i < 2; i++) {
            bool came = client_next(&s->clients[r], 1000, &reply);
            CHECK(came, "rank %d heard nothing within a second", r);
            if (came && reply.status == SHM_OK)
                continue; /* the large one may have been done before */
            CHECK(came && reply.status == SHM_PEER_LOST && strstr(reply.text, says) == reply.text, "rank %d: %u \"%s\"", r,
                  reply.status, reply.text);
            barrier_lost = true;
            lost++;
        }
        CHECK(barrier_lost, "rank %d: the barrier ended well without rank %d", r, dead);
        interrupted += lost == 2;
    }
    return interrupted;
}

static void test_killed_rank(int size, int dead)
{
    struct setup s;
    struct shm_reply reply;
    char says[160];

    begin(dead == 0 ? "rank 0 killed in the middle" : "a rank killed in the middle", size);
    set_up(&s, size, 65536);
    submit_large(&s, 4 << 20, dead);
    (void)usleep(3000);
    world_call(&s.world, node_stop, &s.world.nodes[dead]);
    (void)snprintf(says, sizeof says, "peer lost: rank %d (%s)", dead, s.world.nodes[dead].member);
    killed_in_the_middle += expect_lost(&s, dead, says) > 0;
    CHECK(world_wait(&s.world, all_alive_lost, 1000), "not every rank was told");
    for (int r = 0; r < size; r++) {
        struct node *n = &s.world.nodes[r];
        if (r == dead)
            continue;
        CHECK(n->lost_rank == dead && n->lost_calls == 1 && strstr(n->lost_text, says) == n->lost_text, "rank %d: %d calls, rank %d, %s",
              r, n->lost_calls, n->lost_rank, n->lost_text);
        /* A request that comes later hears the same. */
        struct shm_request late = request_of("late", SHM_OP_BARRIER, 0, 0, 0, 0);
        (void)client_submit(&s.clients[r], &late);
        CHECK(client_next(&s.clients[r], 1000, &reply) && reply.status == SHM_PEER_LOST && strstr(reply.text, says) == reply.text,
              "rank %d, late: %u \"%s\"", r, reply.status, reply.text);
    }

    /* The dead one comes back, the same engines form again under a higher fence; new clients work, old ones do not. */
    world_call(&s.world, node_start, &s.world.nodes[dead]);
    client_drop(&s.clients[dead]);
    struct test_client old = s.clients[(dead + 1) % size];
    for (int r = 0; r < size; r++)
        client_attach(&s.clients[r], &s.world.nodes[r], FENCE(1, 2));
    struct shm_request early = request_of("early", SHM_OP_BARRIER, 0, 0, 0, 0);
    for (int r = 0; r < size; r++)
        (void)client_submit(&s.clients[r], &early); /* waits for the round to form */
    int64_t began = clock_mono_ms();
    CHECK(world_form(&s.world, FENCE(1, 2)), "the group did not form again");
    printf("  formed again in %lld ms\n", (long long)(clock_mono_ms() - began));
    struct shm_reply replies[WORLD_MAX];
    collect(&s, SHM_OK, replies);
    one_allreduce(&s, SHM_F32, SHM_SUM, 100000, false);
    struct shm_request stale = request_of("stale", SHM_OP_BARRIER, 0, 0, 0, 0);
    (void)client_submit(&old, &stale);
    CHECK(client_next(&old, 1000, &reply) && reply.status == SHM_PEER_LOST, "an old client was served: %u", reply.status);
    client_drop(&old);
    tear_down(&s);
    end();
}

static void abort_call(void *ctx)
{
    struct node *n = ctx;

    engine_abort(n->engine, n->world->fence, "peer lost: rank 1 (worker-0): said the coordinator");
}

static void test_abort(int size)
{
    struct setup s;

    begin("aborted by the coordinator", size);
    set_up(&s, size, 65536);
    submit_large(&s, 1 << 20, size - 1);
    world_call(&s.world, abort_call, &s.world.nodes[size - 1]);
    (void)expect_lost(&s, size - 1, "peer lost: rank 1 (worker-0): said the coordinator");
    CHECK(world_wait(&s.world, all_alive_lost, 1000), "not every rank was told");
    /* The same fence does not come back. */
    world_form_one(&s.world, 0, s.world.fence);
    s.world.nodes[0].formed_fence = 0;
    (void)usleep(20000);
    CHECK(s.world.nodes[0].formed_fence == 0, "an aborted fence formed again");
    CHECK(world_form(&s.world, FENCE(1, 7)), "a higher fence did not form");
    tear_down(&s);
    end();
}

static void test_client_leaves(int size)
{
    struct setup s;
    char says[128];

    begin("a training process that leaves in the middle", size);
    set_up(&s, size, 65536);
    submit_large(&s, 1000, 1);
    (void)usleep(50000); /* the large one is done, the barriers wait */
    client_detach(&s.clients[1]);
    (void)snprintf(says, sizeof says, "peer lost: rank 1 (worker-0): its training process left");
    (void)expect_lost(&s, 1, says);
    client_attach(&s.clients[1], &s.world.nodes[1], FENCE(1, 1));
    tear_down(&s);
    end();
}

static void test_rank_that_does_not_come(int size)
{
    struct world w;

    begin("a rank that does not come", size);
    world_start(&w, size, 65536);
    for (int r = 0; r < size; r++) { /* short patience, with engines of their own */
        world_call(&w, node_stop, &w.nodes[r]);
    }
    w.options.connect_timeout_ms = 1500; /* those that do come must be done by then, on a busy machine too: the first that is missing is named */
    w.fence = FENCE(2, 1);
    for (int r = 0; r < size - 1; r++) {
        world_call(&w, node_start, &w.nodes[r]);
        world_form_one(&w, r, w.fence);
    }
    CHECK(world_wait(&w, all_alive_lost, 20000), "the others wait for ever");
    char says[160];
    (void)snprintf(says, sizeof says, "peer lost: rank %d (worker-%d)", size - 1, size - 2);
    CHECK(strstr(w.nodes[0].lost_text, says) == w.nodes[0].lost_text && w.nodes[0].lost_rank == size - 1, "\"%s\"", w.nodes[0].lost_text);
    world_stop(&w);
    end();
}

static double cpu_ms(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void test_idle(int size)
{
    struct setup s;

    begin("idle engines use no processor", size);
    set_up(&s, size, 65536);
    (void)usleep(50000);
    double before = cpu_ms();
    (void)usleep(400000);
    double used = cpu_ms() - before;
    CHECK(used < 2.0 * size, "%.1f ms of processor time in 400 ms", used);
    tear_down(&s);
    end();
}

/* Figures, not a test: what this build moves. */
static void show_speed(int size)
{
    static const uint64_t counts[] = { 1, 1024, 16384, 262144, 4 << 20 };
    struct setup s;
    struct shm_reply reply;

    (void)snprintf(case_name, sizeof case_name, "speed");
    set_up(&s, size, 0);
    for (size_t n = 0; n < COUNT(counts); n++) {
        int turns = counts[n] > 100000 ? 10 : 200;
        int64_t began = 0;
        for (int i = -turns / 5; i < turns; i++) {
            if (i == 0)
                began = clock_mono_ns();
            for (int r = 0; r < size; r++) {
                uint64_t in = s.clients[r].h->arena_offset;
                struct shm_request q = request_of("speed", SHM_OP_ALLREDUCE, SHM_F32, counts[n], in, in + (16 << 20));
                (void)client_submit(&s.clients[r], &q);
            }
            for (int r = 0; r < size; r++)
                CHECK(client_next(&s.clients[r], 60000, &reply) && reply.status == SHM_OK, "%s", reply.text);
        }
        double seconds = (double)(clock_mono_ns() - began) / 1e9 / turns, bytes = (double)counts[n] * 4;
        printf("  %d ranks, %9.0f bytes: %9.1f us, busbw %.3f GB/s\n", size, bytes, seconds * 1e6,
               2.0 * (size - 1) / size * bytes / seconds / 1e9);
    }
    tear_down(&s);
}

/* The same through memory that the ranks share. */
static void test_through_memory(bool quick)
{
    char directory[] = "/dev/shm/ringmaster-test-XXXXXX";

    if (mkdtemp(directory) == NULL) {
        perror(directory);
        exit(1);
    }
    world_memory_dir = directory;
    for (int size = quick ? 3 : 2; size <= (quick ? 3 : 4); size++) {
        test_allreduce(size, true);
        test_broadcast(size);
        test_allgather(size);
        test_order_and_bits(size);
        test_idle(size);
        test_killed_rank(size, size - 1);
        test_killed_rank(size, 0);
        test_client_leaves(size);
    }
    world_memory_dir = NULL;
    begin("files of shared memory are gone", 4);
    CHECK(rmdir(directory) == 0, "%s is not empty", directory);
    end();
}

int main(int argc, char **argv)
{
    bool quick = argc > 1 && strcmp(argv[1], "quick") == 0, speed = argc > 1 && strcmp(argv[1], "speed") == 0;

    log_setup("test", NULL, LOG_ERROR, false);
    if (speed) {
        show_speed(2);
        show_speed(4);
        return 0;
    }
    for (int size = quick ? 3 : 1; size <= (quick ? 3 : WORLD_MAX); size++) {
        test_allreduce(size, quick || size == 4);
        test_broadcast(size);
        test_allgather(size);
        test_order_and_bits(size);
        test_barrier(size);
    }
    for (int size = quick ? 3 : 1; size <= 3; size += 2) {
        test_scaling(size);
        test_bad_requests(size);
        test_early_requests(size);
        test_no_space(size);
        test_broken_client(size);
        test_full_reply_queue(size);
        if (!quick)
            test_idle(size);
    }
    for (int size = quick ? 3 : 2; size <= (quick ? 3 : 4); size++) {
        test_mismatch(size);
        for (int dead = 0; dead < size; dead++)
            test_killed_rank(size, dead);
        test_abort(size);
        test_client_leaves(size);
        test_rank_that_does_not_come(size);
    }
    test_through_memory(quick);
    begin("the kills above met all-reduces under way", quick ? 3 : 4);
    CHECK(killed_in_the_middle > 0, "none did: the tensor is too small for this machine");
    end();
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
