/* What the ring engine computes: 1 to 5 engines in one process over loopback, with real clients over shared memory. A plain main, so
 * that it also runs under ThreadSanitizer and valgrind ("quick": a small subset for the latter; "speed": figures). */
#include <time.h>

#include "tests/tsan/ring_checks.h"

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

/* ---- rest, and figures ---- */

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
    double used = 0;
    for (int i = 0; i == 0 || (i < 20 && used >= 2.0 * size); i++) { /* on a busy machine they come to rest later */
        (void)usleep(50000);
        double before = cpu_ms();
        (void)usleep(400000);
        used = cpu_ms() - before;
    }
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

static void in_memory(bool quick)
{
    for (int size = quick ? 3 : 2; size <= (quick ? 3 : 4); size++) {
        test_allreduce(size, true);
        test_broadcast(size);
        test_allgather(size);
        test_order_and_bits(size);
        test_idle(size);
    }
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
        if (!quick)
            test_idle(size);
    }
    through_memory(in_memory, quick);
    return report();
}
