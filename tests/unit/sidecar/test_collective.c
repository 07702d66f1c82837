#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"
#include "sidecar/ring/collective.h"
#include "tests/unit/quietly.h"

#define RANKS 5
#define COUNT_MAX 5000

/* Ranks of a round in one thread, every pair joined by socket pairs with small buffers, pumped in turn. */
struct world {
    int size, lanes;
    struct mesh *meshes[RANKS];
    struct collective *ranks[RANKS];
    float in[RANKS][COUNT_MAX], out[RANKS][COUNT_MAX * RANKS];
    uint64_t offsets[RANKS + 1];
};

static void world_open(struct world *w, int size, int lanes)
{
    memset(w, 0, sizeof *w);
    w->size = size;
    w->lanes = lanes;
    for (int i = 0; i < size; i++) {
        w->meshes[i] = mesh_new(NULL, &(struct mesh_shape){ .rank = i, .size = size, .lanes = lanes }, NULL);
        w->ranks[i] = collective_new();
    }
    for (int a = 0; a < size; a++)
        for (int b = 0; b < a; b++)
            for (int l = 0; l < lanes; l++) {
                int pair[2], bytes = 4096;
                cr_assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0);
                for (int i = 0; i < 2; i++)
                    (void)setsockopt(pair[i], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
                cr_assert(mesh_put(w->meshes[a], b, (uint32_t)l, pair[0]) && mesh_put(w->meshes[b], a, (uint32_t)l, pair[1]));
            }
}

static void world_close(struct world *w)
{
    for (int i = 0; i < w->size; i++) {
        mesh_free(w->meshes[i]);
        collective_free(w->ranks[i]);
    }
}

static const int32_t EVERYONE[] = { 0, 1, 2, 3, 4 };

static struct collective_plan plan_of(struct world *w, enum shm_op op, int i)
{
    return (struct collective_plan){ .op = op, .dtype = SHM_F32, .redop = SHM_SUM, .fence = FENCE(1, 1), .sequence = 1, .chunk_bytes = 512,
                                     .rank = i, .size = w->size, .members = EVERYONE, .block_offset = w->offsets, .factor = 1,
                                     .divisor = 1, .in = (uint8_t *)w->in[i], .out = (uint8_t *)w->out[i] };
}

/* Values whose sum depends on the order. */
static float value(int rank, uint64_t k)
{
    return (float)((k * 2654435761u + (uint64_t)rank * 40503u) % 10007) / 1000.0f * (rank % 2 == 0 ? 1.0f : 1e-4f);
}

static void fill(struct world *w, uint64_t count)
{
    for (int i = 0; i < w->size; i++) {
        schedule_block_range(count, w->size, i, &w->offsets[i], &w->offsets[i + 1]);
        for (uint64_t k = 0; k < count; k++)
            w->in[i][k] = value(i, k);
    }
    memset(w->out, 0, sizeof w->out);
}

static enum collective_state pump(struct world *w, int i, int32_t *ret_rank, struct error *e)
{
    bool again;

    /* No loop watches them: what was in vain is tried again. */
    for (int r = 0; r < w->size; r++)
        for (int l = 0; l < w->lanes; l++) {
            struct mesh_lane *lane = mesh_lane(w->meshes[i], r, l);
            lane->readable = lane->writable = true;
        }
    return collective_pump(w->ranks[i], &again, ret_rank, e);
}

/* Pumps the members given by a bit each. */
static void run(struct world *w, unsigned members, const char *what)
{
    for (int turns = 0; members != 0; turns++) {
        cr_assert(turns < 20000, "%s: it does not come to an end", what);
        for (int i = 0; i < w->size; i++) {
            struct error e = ERROR_INIT;
            int32_t rank;
            if ((members >> i & 1) == 0)
                continue;
            enum collective_state state = pump(w, i, &rank, &e);
            cr_assert(state != COLLECTIVE_FAILED, "%s: rank %d: %s", what, i, e.text);
            if (state == COLLECTIVE_DONE)
                members &= ~(1u << i);
        }
    }
}

/* As schedule.h says: block b begins with member b + 1 and ends with b. */
static float expected(const struct world *w, uint64_t k)
{
    int b = 0;

    while (k >= w->offsets[b + 1])
        b++;
    float sum = value((b + 1) % w->size, k);
    for (int i = 2; i <= w->size; i++)
        sum += value((b + i) % w->size, k);
    return sum;
}

static const uint64_t COUNTS[] = { 0, 1, 3, 4, 5, 129, 4999 };

static void one_allreduce(struct world *w, uint64_t count, enum collective_algorithm algorithm, bool in_place, const char *what)
{
    fill(w, count);
    for (int i = 0; i < w->size; i++) {
        struct collective_plan plan = plan_of(w, SHM_OP_ALLREDUCE, i);
        plan.algorithm = algorithm;
        if (in_place)
            plan.out = (uint8_t *)w->in[i];
        collective_start(w->ranks[i], &plan, w->meshes[i]);
    }
    run(w, (1u << w->size) - 1, what);
    for (int i = 0; i < w->size; i++)
        for (uint64_t k = 0; k < count; k++) {
            float want = expected(w, k), got = in_place ? w->in[i][k] : w->out[i][k];
            QUIETLY(memcmp(&got, &want, sizeof got) == 0, "%s: rank %d, element %llu: %.9g, want %.9g", what, i, (unsigned long long)k,
                    (double)got, (double)want);
            QUIETLY(in_place || w->in[i][k] == value(i, k), "%s: the input was written to", what);
        }
}

Test(collective, every_algorithm_gives_the_same_bits_on_every_rank)
{
    static struct world w;
    char what[96];

    for (int size = 2; size <= RANKS; size++)
        for (int lanes = 1; lanes <= 3; lanes++) {
            world_open(&w, size, lanes);
            for (size_t c = 0; c < COUNT(COUNTS); c++)
                for (int algorithm = ALGORITHM_RING; algorithm <= ALGORITHM_FLAT; algorithm++)
                    for (int in_place = 0; in_place < 2; in_place++) {
                        (void)snprintf(what, sizeof what, "%d ranks, %d lanes, %llu elements, algorithm %d, in place %d", size, lanes,
                                       (unsigned long long)COUNTS[c], algorithm, in_place);
                        one_allreduce(&w, COUNTS[c], (enum collective_algorithm)algorithm, in_place != 0, what);
                    }
            world_close(&w);
        }
}

static void one_reducescatter(struct world *w, uint64_t count, const char *what)
{
    fill(w, count);
    for (int i = 0; i < w->size; i++) {
        struct collective_plan plan = plan_of(w, SHM_OP_REDUCESCATTER, i);
        collective_start(w->ranks[i], &plan, w->meshes[i]);
    }
    run(w, (1u << w->size) - 1, what);
    for (int i = 0; i < w->size; i++) {
        uint64_t block = w->offsets[i + 1] - w->offsets[i];
        for (uint64_t k = 0; k < block; k++)
            QUIETLY(w->out[i][k] == expected(w, w->offsets[i] + k), "%s: rank %d, element %llu", what, i, (unsigned long long)k);
        QUIETLY(w->out[i][block] == 0, "%s: rank %d wrote behind its block", what, i);
    }
}

static void one_gather(struct world *w, uint64_t count, enum collective_algorithm algorithm, const char *what)
{
    fill(w, count);
    for (int i = 0; i < w->size; i++) {
        struct collective_plan plan = plan_of(w, SHM_OP_ALLGATHER, i);
        plan.algorithm = algorithm;
        memcpy(w->out[i] + w->offsets[i], w->in[i] + w->offsets[i], (w->offsets[i + 1] - w->offsets[i]) * sizeof(float));
        collective_start(w->ranks[i], &plan, w->meshes[i]);
    }
    run(w, (1u << w->size) - 1, what);
    for (int i = 0; i < w->size; i++)
        for (int b = 0; b < w->size; b++)
            for (uint64_t k = w->offsets[b]; k < w->offsets[b + 1]; k++)
                QUIETLY(w->out[i][k] == value(b, k), "%s: rank %d, element %llu", what, i, (unsigned long long)k);
}

static void one_broadcast(struct world *w, uint64_t count, enum collective_algorithm algorithm, int root, const char *what)
{
    uint64_t whole[2] = { 0, count };

    fill(w, count);
    for (int i = 0; i < w->size; i++) {
        struct collective_plan plan = plan_of(w, SHM_OP_BROADCAST, i);
        plan.algorithm = algorithm;
        plan.root = root;
        plan.block_offset = whole;
        if (i == root)
            memcpy(w->out[i], w->in[i], count * sizeof(float));
        collective_start(w->ranks[i], &plan, w->meshes[i]);
    }
    run(w, (1u << w->size) - 1, what);
    for (int i = 0; i < w->size; i++)
        for (uint64_t k = 0; k < count; k++)
            QUIETLY(w->out[i][k] == value(root, k), "%s: rank %d, element %llu", what, i, (unsigned long long)k);
}

/* How many elements a gives to b. */
static uint64_t gives(int a, int b, uint64_t count)
{
    return (uint64_t)(a * 7 + b * 3) % 5 * count / 32;
}

static void one_alltoall(struct world *w, uint64_t count, const char *what)
{
    static uint64_t send[RANKS][RANKS + 1], receive[RANKS][RANKS + 1];

    fill(w, count);
    for (int i = 0; i < w->size; i++) {
        for (int r = 0; r < w->size; r++) {
            send[i][r + 1] = send[i][r] + gives(i, r, count);
            receive[i][r + 1] = receive[i][r] + gives(r, i, count);
        }
        struct collective_plan plan = plan_of(w, SHM_OP_ALLTOALL, i);
        plan.send_offset = send[i];
        plan.receive_offset = receive[i];
        memcpy(w->out[i] + receive[i][i], w->in[i] + send[i][i], gives(i, i, count) * sizeof(float));
        collective_start(w->ranks[i], &plan, w->meshes[i]);
    }
    run(w, (1u << w->size) - 1, what);
    for (int i = 0; i < w->size; i++)
        for (int r = 0; r < w->size; r++)
            for (uint64_t k = 0; k < gives(r, i, count); k++)
                QUIETLY(w->out[i][receive[i][r] + k] == value(r, send[r][i] + k), "%s: rank %d, from %d, element %llu", what, i, r,
                        (unsigned long long)k);
}

Test(collective, the_other_operations)
{
    static struct world w;
    char what[96];

    for (int size = 2; size <= RANKS; size++)
        for (int lanes = 1; lanes <= 2; lanes++) {
            world_open(&w, size, lanes);
            for (size_t c = 0; c < COUNT(COUNTS); c++) {
                (void)snprintf(what, sizeof what, "%d ranks, %d lanes, %llu elements", size, lanes, (unsigned long long)COUNTS[c]);
                one_reducescatter(&w, COUNTS[c], what);
                one_alltoall(&w, COUNTS[c], what);
                for (int algorithm = ALGORITHM_RING; algorithm <= ALGORITHM_DIRECT; algorithm++) {
                    one_gather(&w, COUNTS[c], (enum collective_algorithm)algorithm, what);
                    for (int root = 0; root < size; root++)
                        one_broadcast(&w, COUNTS[c], (enum collective_algorithm)algorithm, root, what);
                }
            }
            world_close(&w);
        }
}

/* Ranks 3, 0 and 2, in that order, out of five. */
Test(collective, some_of_the_ranks)
{
    static const int32_t members[] = { 3, 0, 2 };
    static struct world w;

    world_open(&w, RANKS, 1);
    for (int algorithm = ALGORITHM_RING; algorithm <= ALGORITHM_FLAT; algorithm++) {
        fill(&w, 1000);
        for (int i = 0; i < 3; i++)
            schedule_block_range(1000, 3, i, &w.offsets[i], &w.offsets[i + 1]);
        for (int i = 0; i < 3; i++) {
            struct collective_plan plan = plan_of(&w, SHM_OP_ALLREDUCE, members[i]);
            plan.algorithm = (enum collective_algorithm)algorithm;
            plan.rank = i;
            plan.size = 3;
            plan.members = members;
            plan.redop = SHM_MAX;
            collective_start(w.ranks[members[i]], &plan, w.meshes[members[i]]);
        }
        run(&w, 1u << 3 | 1u << 0 | 1u << 2, "three of five");
        for (int i = 0; i < 3; i++)
            for (uint64_t k = 0; k < 1000; k++) {
                float want = value(3, k);
                want = value(0, k) > want ? value(0, k) : want;
                want = value(2, k) > want ? value(2, k) : want;
                QUIETLY(w.out[members[i]][k] == want, "algorithm %d, rank %d, element %llu", algorithm, members[i], (unsigned long long)k);
            }
    }
    world_close(&w);
}

static void start_ring(struct world *w, uint64_t count)
{
    fill(w, count);
    for (int i = 0; i < w->size; i++) {
        struct collective_plan plan = plan_of(w, SHM_OP_ALLREDUCE, i);
        collective_start(w->ranks[i], &plan, w->meshes[i]);
    }
}

Test(collective, a_member_that_is_gone_is_named)
{
    static struct world w;
    struct error e = ERROR_INIT;
    int32_t rank = -1;

    world_open(&w, 4, 1);
    start_ring(&w, 4999);
    (void)shutdown(mesh_lane(w.meshes[2], 3, 0)->fd, SHUT_RDWR);
    enum collective_state state = COLLECTIVE_RUNNING;
    for (int turns = 0; turns < 100 && state == COLLECTIVE_RUNNING; turns++)
        state = pump(&w, 3, &rank, &e);
    cr_expect(state == COLLECTIVE_FAILED && rank == 2 && e.kind == ERROR_PEER_LOST, "%s", e.text);
    state = COLLECTIVE_RUNNING;
    for (int turns = 0; turns < 100 && state == COLLECTIVE_RUNNING; turns++)
        state = pump(&w, 2, &rank, &e);
    cr_expect(state == COLLECTIVE_FAILED && rank == 3 && e.kind == ERROR_PEER_LOST, "%s", e.text);
    world_close(&w);
}

/* What rank 0 may send to rank 1 instead of the first chunk of a ring of four; 4 elements, so one in each block. */
static const struct { const char *name; struct peer_frame f; enum error_kind kind; } WRONG[] = {
    { "another operation", { .type = PEER_CHUNK, .length = 4, .fence = FENCE(1, 1), .op = 2 }, ERROR_INVALID },
    { "another chunk", { .type = PEER_CHUNK, .length = 4, .fence = FENCE(1, 1), .op = 1, .chunk = 1 }, ERROR_INVALID },
    { "another length", { .type = PEER_CHUNK, .length = 8, .fence = FENCE(1, 1), .op = 1 }, ERROR_INVALID },
    { "a huge length", { .type = PEER_CHUNK, .length = PEER_MAX_DATA + 1, .fence = FENCE(1, 1), .op = 1 }, ERROR_LIMIT },
    { "another type", { .type = PEER_GO, .length = 4, .fence = FENCE(1, 1), .op = 1 }, ERROR_INVALID },
    { "an older fence", { .type = PEER_CHUNK, .length = 4, .fence = FENCE(1, 0), .op = 1 }, ERROR_INVALID },
    { "a newer fence", { .type = PEER_CHUNK, .length = 4, .fence = FENCE(1, 2), .op = 1 }, ERROR_GONE },
    { "we are fenced off", { .type = PEER_FENCED, .length = 8, .fence = FENCE(1, 1) }, ERROR_GONE },
};

static void receive_wrong(struct world *w, const uint8_t *bytes, size_t len, struct error *e)
{
    enum collective_state state = COLLECTIVE_RUNNING;
    int32_t rank = -1;

    world_open(w, 4, 1);
    start_ring(w, 4);
    cr_assert(write(mesh_lane(w->meshes[0], 1, 0)->fd, bytes, len) == (ssize_t)len);
    for (int turns = 0; turns < 10 && state == COLLECTIVE_RUNNING; turns++)
        state = pump(w, 1, &rank, e);
    cr_expect(state == COLLECTIVE_FAILED && rank == 0, "state %d, rank %d", (int)state, rank);
    for (int k = 0; k < 4; k++)
        cr_expect(w->out[1][k] == 0);
    world_close(w);
}

Test(collective, a_wrong_frame_ends_it_before_a_byte_is_stored)
{
    static struct world w;

    for (size_t i = 0; i < COUNT(WRONG); i++) {
        struct error e = ERROR_INIT;
        uint8_t bytes[PEER_HEADER_BYTES + 8];
        memset(bytes, 0x77, sizeof bytes);
        peer_frame_encode(&WRONG[i].f, bytes);
        receive_wrong(&w, bytes, sizeof bytes, &e);
        cr_expect(e.kind == WRONG[i].kind, "case %s: %s", WRONG[i].name, e.text);
    }
}

Test(collective, a_header_that_was_damaged_on_the_way_is_noticed)
{
    static struct world w;
    struct error e = ERROR_INIT;
    uint8_t bytes[PEER_HEADER_BYTES + 4] = { 0 };

    peer_frame_encode(&(struct peer_frame){ .type = PEER_CHUNK, .length = 4, .fence = FENCE(1, 1), .op = 1 }, bytes);
    bytes[21] ^= 4;
    receive_wrong(&w, bytes, sizeof bytes, &e);
    cr_expect(strstr(e.text, "damaged") != NULL, "%s", e.text);
}

/* Two members whose bytes go through here, a byte at a time, so that one of them can be changed. Position of the end of each socket in pair. */
static enum collective_state run_with_damage(bool checksums, uint64_t damage_at, struct error *e)
{
    auto_free struct world *w = xcalloc(1, sizeof *w);
    int ends[2], relays[2];
    uint64_t moved = 0;
    enum collective_state states[2] = { COLLECTIVE_RUNNING, COLLECTIVE_RUNNING };

    world_open(w, 2, 1);
    for (int i = 0; i < 2; i++) {
        int pair[2];
        cr_assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0);
        ends[i] = pair[0];
        relays[i] = pair[1];
        mesh_free(w->meshes[i]);
        w->meshes[i] = mesh_new(NULL, &(struct mesh_shape){ .rank = i, .size = 2, .lanes = 1 }, NULL);
        cr_assert(mesh_put(w->meshes[i], 1 - i, 0, ends[i]));
    }
    fill(w, 1000);
    for (int i = 0; i < 2; i++) {
        struct collective_plan plan = plan_of(w, SHM_OP_ALLREDUCE, i);
        plan.checksums = checksums;
        collective_start(w->ranks[i], &plan, w->meshes[i]);
    }
    for (int turns = 0; turns < 10000 && (states[0] == COLLECTIVE_RUNNING || states[1] == COLLECTIVE_RUNNING); turns++) {
        for (int i = 0; i < 2; i++) {
            uint8_t bytes[4096];
            int32_t rank = -1;
            if (states[i] == COLLECTIVE_RUNNING)
                states[i] = pump(w, i, &rank, e);
            if (states[i] == COLLECTIVE_FAILED) {
                cr_expect_eq(rank, 1 - i);
                turns = 10000;
                break;
            }
            ssize_t n = read(relays[i], bytes, sizeof bytes);
            if (i == 0 && n > 0 && moved <= damage_at && damage_at < moved + (uint64_t)n)
                bytes[damage_at - moved] ^= 0x10;
            moved += i == 0 && n > 0 ? (uint64_t)n : 0;
            cr_assert(n <= 0 || write(relays[1 - i], bytes, (size_t)n) == n);
        }
    }
    enum collective_state worst = states[0] == COLLECTIVE_FAILED || states[1] == COLLECTIVE_FAILED ? COLLECTIVE_FAILED : states[1];
    world_close(w);
    close(relays[0]);
    close(relays[1]);
    return worst;
}

Test(collective, a_changed_byte_is_found_where_checksums_are_on)
{
    static const struct { const char *name, *says; bool checksums; uint64_t at; enum collective_state state; } rows[] = {
        { "none changed", NULL, true, UINT64_MAX, COLLECTIVE_DONE },
        { "the first of the data", "arrived damaged (operation 1, piece 00000000)", true, PEER_HEADER_BYTES, COLLECTIVE_FAILED },
        { "the last of a piece", "arrived damaged", true, PEER_HEADER_BYTES + 511, COLLECTIVE_FAILED },
        { "one of a later piece", "512 bytes of its data arrived damaged (operation 1, piece 00000001)", true, 2 * PEER_HEADER_BYTES + 512 + 99, COLLECTIVE_FAILED },
        { "one of a header", "header is damaged", true, 9, COLLECTIVE_FAILED },
        { "without checksums nobody sees it", NULL, false, PEER_HEADER_BYTES, COLLECTIVE_DONE },
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct error e = ERROR_INIT;
        enum collective_state state = run_with_damage(rows[i].checksums, rows[i].at, &e);
        cr_expect_eq(state, rows[i].state, "case %s: state %d: %s", rows[i].name, state, e.text);
        cr_expect(rows[i].says == NULL || strstr(e.text, rows[i].says) != NULL, "case %s: %s", rows[i].name, e.text);
    }
}
