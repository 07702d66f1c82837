#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sidecar/ring/schedule.h"
#include "tests/unit/quietly.h"

#define SIZE_MAX_TESTED 9

Test(schedule, blocks_cover_the_tensor_in_order)
{
    static const uint64_t counts[] = { 0, 1, 2, 8, 9, 10, 1000, 1000003 };

    for (size_t c = 0; c < COUNT(counts); c++)
        for (int32_t size = 1; size <= SIZE_MAX_TESTED; size++) {
            uint64_t at = 0;
            for (int32_t b = 0; b < size; b++) {
                uint64_t begin, end;
                schedule_block_range(counts[c], size, b, &begin, &end);
                cr_expect(begin == at && end >= begin && end - begin <= counts[c] / (uint64_t)size + 1, "%llu over %d, block %d",
                          (unsigned long long)counts[c], size, b);
                at = end;
            }
            cr_expect(at == counts[c], "%llu over %d", (unsigned long long)counts[c], size);
        }
}

static const struct { const char *name; uint64_t count, chunk; int32_t size; uint64_t want; } BLOCKS[] = {
    { "even", 12, 100, 4, 3 }, { "one more in front", 13, 100, 4, 4 }, { "fewer than ranks", 2, 100, 4, 1 }, { "none", 0, 100, 4, 0 },
};

Test(schedule, the_first_blocks_are_the_larger_ones)
{
    for (size_t i = 0; i < COUNT(BLOCKS); i++) {
        uint64_t begin, end;
        schedule_block_range(BLOCKS[i].count, BLOCKS[i].size, 0, &begin, &end);
        cr_expect(end - begin == BLOCKS[i].want, "case %s", BLOCKS[i].name);
    }
}

/* Small example, by hand: member 1 of 3, 5 elements in blocks of 2, 2, 1, pieces of 1. */
Test(schedule, a_ring_all_reduce_of_three_as_on_paper)
{
    static const uint64_t offsets[] = { 0, 2, 4, 5 };
    static const struct { uint32_t run, piece; uint64_t offset; enum schedule_place place; enum schedule_wait wait; uint32_t wait_run; } sends[] = {
        { 0, 0, 0, PLACE_IN, WAIT_NOTHING, 0 }, { 0, 1, 1, PLACE_IN, WAIT_NOTHING, 0 }, { 1, 0, 4, PLACE_OUT, WAIT_RECEIVED, 0 },
        { 2, 0, 2, PLACE_OUT, WAIT_RECEIVED, 1 }, { 2, 1, 3, PLACE_OUT, WAIT_RECEIVED, 1 }, { 3, 0, 0, PLACE_OUT, WAIT_RECEIVED, 2 },
        { 3, 1, 1, PLACE_OUT, WAIT_RECEIVED, 2 },
    };
    static const struct { uint32_t run, piece; uint64_t offset; enum schedule_place place; bool last; } receives[] = {
        { 0, 0, 4, PLACE_ADD, false }, { 1, 0, 2, PLACE_ADD, true }, { 1, 1, 3, PLACE_ADD, true }, { 2, 0, 0, PLACE_OUT, false },
        { 2, 1, 1, PLACE_OUT, false }, { 3, 0, 4, PLACE_OUT, false },
    };
    struct schedule s = { 0 };
    struct schedule_shape shape = { .kind = SCHEDULE_RING_ALLREDUCE, .rank = 1, .size = 3, .chunk_elements = 1, .block_offset = offsets };
    struct schedule_cursor at = { 0 };
    struct schedule_piece p;

    schedule_make(&s, &shape);
    cr_assert(s.flow_count == 2 && s.flows[0].peer == 2 && s.flows[1].peer == 0 && s.wait_flow == 1);
    for (size_t i = 0; i < COUNT(sends); i++, schedule_step(&at, 1)) {
        cr_assert(schedule_piece_at(s.flows[0].sends, s.flows[0].send_count, &at, 0, &p), "send %zu", i);
        const struct schedule_run *run = &s.flows[0].sends[p.run];
        cr_expect(p.run == sends[i].run && p.piece == sends[i].piece && p.offset == sends[i].offset && p.count == 1 &&
                      run->place == sends[i].place && run->wait == sends[i].wait && run->wait_run == sends[i].wait_run, "send %zu", i);
    }
    cr_expect(!schedule_piece_at(s.flows[0].sends, s.flows[0].send_count, &at, 0, &p));
    at = (struct schedule_cursor){ 0 };
    for (size_t i = 0; i < COUNT(receives); i++, schedule_step(&at, 1)) {
        cr_assert(schedule_piece_at(s.flows[1].receives, s.flows[1].receive_count, &at, 0, &p), "receive %zu", i);
        const struct schedule_run *run = &s.flows[1].receives[p.run];
        cr_expect(p.run == receives[i].run && p.piece == receives[i].piece && p.offset == receives[i].offset &&
                      run->place == receives[i].place && run->last == receives[i].last, "receive %zu", i);
    }
    schedule_release(&s);
}

Test(schedule, pieces_are_dealt_out_to_lanes)
{
    static const struct schedule_run runs[] = { { .begin = 0, .end = 10, .chunk = 4 }, { .begin = 5, .end = 5, .chunk = 4 },
                                                { .begin = 20, .end = 22, .chunk = 4 } };
    static const struct { uint32_t lane, run, piece; uint64_t offset, count; } want[] = {
        { 0, 0, 0, 0, 4 }, { 0, 0, 2, 8, 2 }, { 0, 2, 0, 20, 2 }, { 1, 0, 1, 4, 4 },
    };
    struct schedule_piece p;
    size_t i = 0;

    for (uint32_t lane = 0; lane < 2; lane++) {
        struct schedule_cursor at = { .run = 0, .piece = lane };
        for (; schedule_piece_at(runs, COUNT(runs), &at, lane, &p); schedule_step(&at, 2), i++)
            cr_expect(i < COUNT(want) && want[i].lane == lane && want[i].run == p.run && want[i].piece == p.piece &&
                          want[i].offset == p.offset && want[i].count == p.count, "piece %zu", i);
    }
    cr_expect(i == COUNT(want));
}

static const enum schedule_kind KINDS[] = {
    SCHEDULE_RING_ALLREDUCE, SCHEDULE_DIRECT_ALLREDUCE, SCHEDULE_FLAT_ALLREDUCE, SCHEDULE_RING_ALLGATHER, SCHEDULE_DIRECT_ALLGATHER,
    SCHEDULE_CHAIN_BROADCAST, SCHEDULE_STAR_BROADCAST, SCHEDULE_REDUCESCATTER, SCHEDULE_ALLTOALL,
};

static const struct schedule_flow *flow_to(const struct schedule *s, int32_t peer, bool sends)
{
    for (int32_t i = 0; i < s->flow_count; i++) {
        if (s->flows[i].peer == peer && (sends ? s->flows[i].send_count : s->flows[i].receive_count) > 0)
            return &s->flows[i];
    }
    return NULL;
}

/* Element j of what member a sends to b: an all-to-all where every pair has another length. */
static uint64_t pair_count(uint64_t count, int32_t a, int32_t b)
{
    return (uint64_t)(a * 7 + b * 3) % 5 * count / 4;
}

struct all { struct schedule of[SIZE_MAX_TESTED]; };

static void make_all(struct all *all, enum schedule_kind kind, int32_t size, int32_t root, uint64_t count, uint64_t chunk)
{
    uint64_t blocks[SIZE_MAX_TESTED + 1] = { 0 }, send[SIZE_MAX_TESTED + 1], receive[SIZE_MAX_TESTED + 1], whole[2] = { 0, count };
    bool broadcast = kind == SCHEDULE_CHAIN_BROADCAST || kind == SCHEDULE_STAR_BROADCAST;

    for (int32_t b = 0; b < size; b++)
        schedule_block_range(count, size, b, &blocks[b], &blocks[b + 1]);
    for (int32_t r = 0; r < size; r++) {
        send[0] = receive[0] = 0;
        for (int32_t i = 0; i < size; i++) {
            send[i + 1] = send[i] + pair_count(count, r, i);
            receive[i + 1] = receive[i] + pair_count(count, i, r);
        }
        schedule_make(&all->of[r], &(struct schedule_shape){ .kind = kind, .rank = r, .size = size, .root = root, .chunk_elements = chunk,
                                                             .block_offset = broadcast ? whole : blocks, .send_offset = send,
                                                             .receive_offset = receive });
    }
}

/* What one end sends is what the other expects, run by run. */
static void check_pair(const struct all *all, int32_t from, int32_t to, const char *what)
{
    const struct schedule_flow *out = flow_to(&all->of[from], to, true), *in = flow_to(&all->of[to], from, false);

    QUIETLY((out != NULL) == (in != NULL), "%s: only one end of %d to %d knows of it", what, from, to);
    if (out == NULL || in == NULL)
        return;
    QUIETLY(out->send_count == in->receive_count, "%s: %d to %d: %u runs, %u expected", what, from, to, out->send_count, in->receive_count);
    for (uint32_t i = 0; i < out->send_count && i < in->receive_count; i++) {
        const struct schedule_run *a = &out->sends[i], *b = &in->receives[i];
        QUIETLY(a->end - a->begin == b->end - b->begin && a->chunk == b->chunk, "%s: %d to %d: run %u is cut otherwise", what, from, to, i);
    }
}

static void check_waits(const struct schedule *s, const char *what)
{
    for (int32_t i = 0; i < s->flow_count; i++)
        for (uint32_t k = 0; k < s->flows[i].send_count; k++) {
            const struct schedule_run *run = &s->flows[i].sends[k];
            if (run->wait == WAIT_SUMMED)
                QUIETLY(run->begin == s->sum_begin && run->end == s->sum_end && run->chunk == s->sum_chunk, "%s: another sum", what);
            if (run->wait != WAIT_RECEIVED)
                continue;
            const struct schedule_flow *left = &s->flows[s->wait_flow];
            QUIETLY(run->wait_run < left->receive_count, "%s: run %u waits for what never comes", what, k);
            const struct schedule_run *for_it = &left->receives[run->wait_run];
            QUIETLY(for_it->begin == run->begin && for_it->end == run->end && for_it->chunk == run->chunk &&
                        for_it->place != PLACE_SLOT, "%s: run %u waits for another range", what, k);
        }
}

Test(schedule, both_ends_of_every_flow_agree)
{
    static const uint64_t counts[] = { 0, 1, 2, 7, 9, 64, 1001 };
    static struct all all;
    char what[96];

    for (size_t k = 0; k < COUNT(KINDS); k++)
        for (int32_t size = 2; size <= SIZE_MAX_TESTED; size++)
            for (size_t c = 0; c < COUNT(counts); c++)
                for (uint64_t chunk = 1; chunk <= 64; chunk = chunk * 4 + 1) {
                    int32_t root = (int32_t)(c % (size_t)size);
                    (void)snprintf(what, sizeof what, "kind %zu, %d members, %llu elements, chunks of %llu", k, size,
                                   (unsigned long long)counts[c], (unsigned long long)chunk);
                    make_all(&all, KINDS[k], size, root, counts[c], chunk);
                    for (int32_t a = 0; a < size; a++) {
                        check_waits(&all.of[a], what);
                        for (int32_t b = 0; b < size; b++)
                            if (a != b)
                                check_pair(&all, a, b, what);
                    }
                }
    for (int32_t r = 0; r < SIZE_MAX_TESTED; r++)
        schedule_release(&all.of[r]);
}

Test(schedule, huge_runs_have_larger_pieces_so_that_their_number_fits_into_sixteen_bits)
{
    static const uint64_t counts[] = { 65536, 65537, 1ull << 40 };

    for (size_t i = 0; i < COUNT(counts); i++) {
        uint64_t offsets[] = { 0, counts[i], 2 * counts[i] };
        struct schedule s = { 0 };
        struct schedule_cursor at = { .run = 0, .piece = 65535 };
        struct schedule_piece p;
        schedule_make(&s, &(struct schedule_shape){ .kind = SCHEDULE_RING_ALLREDUCE, .rank = 0, .size = 2, .chunk_elements = 1,
                                                    .block_offset = offsets });
        cr_expect(s.flows[0].sends[0].chunk * 65536 >= counts[i], "%llu", (unsigned long long)counts[i]);
        if (schedule_piece_at(s.flows[0].sends, 1, &at, 0, &p))
            cr_expect(p.offset + p.count == s.flows[0].sends[0].end, "%llu: more than 65536 pieces", (unsigned long long)counts[i]);
        schedule_release(&s);
    }
}
