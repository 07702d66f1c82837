#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"
#include "sidecar/ring/collective.h"

#define RANKS 4
#define COUNT_MAX 5000

/* Four collectives in one thread, joined by socket pairs with small buffers, pumped in turn. */
struct ring {
    struct collective *ranks[RANKS];
    struct collective_lane lanes[RANKS];
    int32_t in[RANKS][COUNT_MAX], out[RANKS][COUNT_MAX];
    uint64_t offsets[RANKS + 1];
    bool done[RANKS];
};

static void ring_open(struct ring *r)
{
    memset(r, 0, sizeof *r);
    for (int i = 0; i < RANKS; i++) {
        int pair[2], bytes = 4096;
        cr_assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0);
        (void)setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
        r->lanes[i].right_fd = pair[0];
        r->lanes[(i + 1) % RANKS].left_fd = pair[1];
        r->ranks[i] = collective_new();
    }
}

static void ring_close(struct ring *r)
{
    for (int i = 0; i < RANKS; i++) {
        (void)close(r->lanes[i].right_fd);
        (void)close(r->lanes[i].left_fd);
        collective_free(r->ranks[i]);
    }
}

static struct collective_plan sum_plan(struct ring *r, int i, uint64_t sequence)
{
    return (struct collective_plan){ .op = SHM_OP_ALLREDUCE, .dtype = SHM_I32, .redop = SHM_SUM, .fence = FENCE(1, 1), .sequence = sequence,
                                     .chunk_bytes = 512, .block_offset = r->offsets, .factor = 1, .divisor = 1,
                                     .in = (uint8_t *)r->in[i], .out = (uint8_t *)r->out[i] };
}

static void start(struct ring *r, uint64_t count, uint64_t sequence)
{
    for (int i = 0; i < RANKS; i++)
        schedule_block_range(count, RANKS, i, &r->offsets[i], &r->offsets[i + 1]);
    for (int i = 0; i < RANKS; i++) {
        struct collective_plan plan = sum_plan(r, i, sequence);
        for (uint64_t k = 0; k < count; k++)
            r->in[i][k] = (int32_t)(k * 10) + i;
        collective_start(r->ranks[i], &plan, i, RANKS, &r->lanes[i]);
        r->done[i] = false;
    }
}

static enum collective_state pump(struct ring *r, int i, enum collective_side *side, struct error *e)
{
    bool reads, writes;

    return collective_pump(r->ranks[i], &reads, &writes, side, e);
}

static void run(struct ring *r)
{
    for (int turns = 0, left = RANKS; left > 0; turns++) {
        cr_assert(turns < 10000, "it does not come to an end");
        for (int i = 0; i < RANKS; i++) {
            enum collective_side side;
            struct error e = ERROR_INIT;
            if (r->done[i])
                continue;
            enum collective_state state = pump(r, i, &side, &e);
            cr_assert(state != COLLECTIVE_FAILED, "rank %d: %s", i, e.text);
            r->done[i] = state == COLLECTIVE_DONE;
            left -= r->done[i];
        }
    }
}

Test(collective, one_after_the_other_gives_sums_and_leaves_the_input_alone)
{
    static struct ring r;
    static const uint64_t counts[] = { 0, 1, 3, 4, 5, 129, 4999 };

    ring_open(&r);
    for (size_t c = 0; c < COUNT(counts); c++) {
        start(&r, counts[c], c + 1);
        run(&r);
        for (int i = 0; i < RANKS; i++)
            for (uint64_t k = 0; k < counts[c]; k++) {
                cr_assert(r.out[i][k] == (int32_t)(k * 40) + 6, "%llu elements, rank %d, element %llu: %d",
                          (unsigned long long)counts[c], i, (unsigned long long)k, r.out[i][k]);
                cr_assert(r.in[i][k] == (int32_t)(k * 10) + i);
            }
    }
    ring_close(&r);
}

Test(collective, a_neighbour_that_is_gone_is_named)
{
    static struct ring r;
    enum collective_side side;
    struct error e = ERROR_INIT;

    ring_open(&r);
    start(&r, 4999, 1);
    (void)shutdown(r.lanes[2].right_fd, SHUT_RDWR); /* rank 2 dies: its right neighbour is 3 */
    enum collective_state state = COLLECTIVE_RUNNING;
    for (int turns = 0; turns < 100 && state == COLLECTIVE_RUNNING; turns++)
        state = pump(&r, 3, &side, &e);
    cr_expect(state == COLLECTIVE_FAILED && side == COLLECTIVE_LEFT && e.kind == ERROR_PEER_LOST, "%s", e.text);
    state = COLLECTIVE_RUNNING;
    for (int turns = 0; turns < 100 && state == COLLECTIVE_RUNNING; turns++)
        state = pump(&r, 2, &side, &e);
    cr_expect(state == COLLECTIVE_FAILED && side == COLLECTIVE_RIGHT && e.kind == ERROR_PEER_LOST, "%s", e.text);
    ring_close(&r);
}

/* What a left neighbour may send instead of the first chunk. */
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

Test(collective, a_wrong_frame_ends_it_before_a_byte_is_stored)
{
    static struct ring r;

    for (size_t i = 0; i < COUNT(WRONG); i++) {
        enum collective_side side;
        struct error e = ERROR_INIT;
        uint8_t bytes[PEER_HEADER_BYTES + 8];
        ring_open(&r);
        start(&r, 4, 1);
        memset(bytes, 0x77, sizeof bytes);
        peer_frame_encode(&WRONG[i].f, bytes);
        cr_assert(write(r.lanes[0].right_fd, bytes, sizeof bytes) == (ssize_t)sizeof bytes);
        enum collective_state state = COLLECTIVE_RUNNING;
        for (int turns = 0; turns < 10 && state == COLLECTIVE_RUNNING; turns++)
            state = pump(&r, 1, &side, &e);
        cr_expect(state == COLLECTIVE_FAILED && side == COLLECTIVE_LEFT && e.kind == WRONG[i].kind, "case %s: %s", WRONG[i].name, e.text);
        for (int k = 0; k < 4; k++)
            cr_expect(r.out[1][k] == 0, "case %s", WRONG[i].name);
        ring_close(&r);
    }
}

Test(collective, a_header_that_was_damaged_on_the_way_is_noticed)
{
    static struct ring r;
    enum collective_side side;
    struct error e = ERROR_INIT;
    uint8_t bytes[PEER_HEADER_BYTES + 4] = { 0 };

    ring_open(&r);
    start(&r, 4, 1);
    peer_frame_encode(&(struct peer_frame){ .type = PEER_CHUNK, .length = 4, .fence = FENCE(1, 1), .op = 1 }, bytes);
    bytes[21] ^= 4;
    cr_assert(write(r.lanes[0].right_fd, bytes, sizeof bytes) == (ssize_t)sizeof bytes);
    enum collective_state state = COLLECTIVE_RUNNING;
    for (int turns = 0; turns < 10 && state == COLLECTIVE_RUNNING; turns++)
        state = pump(&r, 1, &side, &e);
    cr_expect(state == COLLECTIVE_FAILED && strstr(e.text, "damaged") != NULL, "%s", e.text);
    ring_close(&r);
}
