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

/* Small example, by hand: rank 1 of 3, 5 elements in blocks of 2, 2, 1, pieces of 1. */
Test(schedule, an_all_reduce_of_three_as_on_paper)
{
    static const uint64_t offsets[] = { 0, 2, 4, 5 };
    static const struct { uint32_t step, piece; uint64_t offset; } sends[] = {
        { 0, 0, 2 }, { 0, 1, 3 }, { 1, 0, 0 }, { 1, 1, 1 }, { 2, 0, 4 }, { 3, 0, 2 }, { 3, 1, 3 },
    };
    static const struct { uint32_t step, piece; uint64_t offset; bool reduce, last; } receives[] = {
        { 0, 0, 0, true, false }, { 0, 1, 1, true, false }, { 1, 0, 4, true, true }, { 2, 0, 2, false, false },
        { 2, 1, 3, false, false }, { 3, 0, 0, false, false }, { 3, 1, 1, false, false },
    };
    struct schedule s;
    struct schedule_cursor send, receive, all = { .step = 99 };
    struct schedule_piece p;
    bool ready;

    schedule_allreduce(&s, 1, 3, offsets, 1);
    schedule_begin(&s, &send, &receive);
    for (size_t i = 0; i < COUNT(sends); i++, send.piece++) {
        cr_assert(schedule_next_send(&s, &send, &all, &p, &ready) && ready);
        cr_expect(p.step == sends[i].step && p.piece == sends[i].piece && p.offset == sends[i].offset && p.count == 1, "send %zu", i);
    }
    cr_expect(!schedule_next_send(&s, &send, &all, &p, &ready));
    for (size_t i = 0; i < COUNT(receives); i++, receive.piece++) {
        cr_assert(schedule_next_receive(&s, &receive, &p));
        cr_expect(p.step == receives[i].step && p.piece == receives[i].piece && p.offset == receives[i].offset &&
                      p.reduce == receives[i].reduce && p.last_reduce == receives[i].last, "receive %zu", i);
    }
    cr_expect(!schedule_next_receive(&s, &receive, &p));
}

/* ---- the whole ring, simulated with sets of contributors in place of data ---- */

enum kind { REDUCE, GATHER, BROADCAST };

#define PIECES_IN_FLIGHT 4096
struct wire { struct { uint32_t chunk; uint64_t offset, count; uint32_t sets[64]; } pieces[PIECES_IN_FLIGHT]; size_t head, tail; };

struct rank {
    struct schedule s;
    struct schedule_cursor send, receive;
    uint32_t *set; /* per element: bit r = rank r's contribution is in it */
};

static void plan(struct schedule *s, enum kind kind, int32_t r, int32_t size, int32_t root, const uint64_t *offsets, uint64_t chunk)
{
    if (kind == REDUCE)
        schedule_allreduce(s, r, size, offsets, chunk);
    else if (kind == GATHER)
        schedule_allgather(s, r, size, offsets, chunk);
    else
        schedule_broadcast(s, r, size, root, offsets, chunk);
}

static bool try_send(struct rank *k, struct wire *w)
{
    struct schedule_piece p;
    bool ready;

    if (!schedule_next_send(&k->s, &k->send, &k->receive, &p, &ready) || !ready)
        return false;
    QUIETLY(w->tail - w->head < PIECES_IN_FLIGHT && p.count > 0 && p.count <= 64, "a piece of %llu", (unsigned long long)p.count);
    w->pieces[w->tail % PIECES_IN_FLIGHT].chunk = p.step << 16 | p.piece;
    w->pieces[w->tail % PIECES_IN_FLIGHT].offset = p.offset;
    w->pieces[w->tail % PIECES_IN_FLIGHT].count = p.count;
    memcpy(w->pieces[w->tail % PIECES_IN_FLIGHT].sets, k->set + p.offset, p.count * sizeof *k->set);
    w->tail++;
    k->send.piece++;
    return true;
}

static bool try_receive(struct rank *k, struct wire *w, const char *what)
{
    struct schedule_piece p;

    if (w->head == w->tail)
        return false;
    QUIETLY(schedule_next_receive(&k->s, &k->receive, &p), "%s: a piece that nobody expects", what);
    size_t i = w->head++ % PIECES_IN_FLIGHT;
    QUIETLY(w->pieces[i].chunk == (p.step << 16 | p.piece) && w->pieces[i].offset == p.offset && w->pieces[i].count == p.count,
              "%s: another piece than expected", what);
    for (uint64_t e = 0; e < p.count; e++) {
        QUIETLY(!p.reduce || (k->set[p.offset + e] & w->pieces[i].sets[e]) == 0, "%s: a contribution counted twice", what);
        k->set[p.offset + e] = p.reduce ? k->set[p.offset + e] | w->pieces[i].sets[e] : w->pieces[i].sets[e];
    }
    k->receive.piece++;
    return true;
}

static void simulate(enum kind kind, int32_t size, int32_t root, const uint64_t *offsets, uint64_t chunk, const char *what)
{
    static struct wire wires[SIZE_MAX_TESTED];
    struct rank ranks[SIZE_MAX_TESTED];
    int32_t blocks = kind == BROADCAST ? 1 : size;
    uint64_t count = offsets[blocks];
    bool moved = true;

    for (int32_t r = 0; r < size; r++) {
        wires[r].head = wires[r].tail = 0; /* wires[r] leads to r */
        plan(&ranks[r].s, kind, r, size, root, offsets, chunk);
        schedule_begin(&ranks[r].s, &ranks[r].send, &ranks[r].receive);
        ranks[r].set = xcalloc(count + 1, sizeof *ranks[r].set);
        for (uint64_t e = 0; e < count; e++) {
            bool own = kind == REDUCE || (kind == BROADCAST && r == root) || (kind == GATHER && e >= offsets[r] && e < offsets[r + 1]);
            ranks[r].set[e] = own ? 1u << r : 0;
        }
    }
    while (moved) {
        moved = false;
        for (int32_t r = 0; r < size; r++) {
            moved = try_send(&ranks[r], &wires[(r + 1) % size]) || moved;
            moved = try_receive(&ranks[r], &wires[r], what) || moved;
        }
    }
    for (int32_t r = 0; r < size; r++) {
        struct schedule_piece p;
        bool ready;
        QUIETLY(!schedule_next_send(&ranks[r].s, &ranks[r].send, &ranks[r].receive, &p, &ready) &&
                      !schedule_next_receive(&ranks[r].s, &ranks[r].receive, &p), "%s: rank %d is not done", what, r);
        for (uint64_t e = 0; e < count; e++) {
            uint32_t want = (1u << size) - 1;
            for (int32_t b = 0; kind == GATHER && b < size; b++)
                want = e >= offsets[b] && e < offsets[b + 1] ? 1u << b : want;
            if (kind == BROADCAST)
                want = 1u << root;
            QUIETLY(ranks[r].set[e] == want, "%s: rank %d, element %llu has %x", what, r, (unsigned long long)e, ranks[r].set[e]);
        }
        free(ranks[r].set);
    }
}

Test(schedule, every_contribution_arrives_once_on_every_rank)
{
    static const uint64_t counts[] = { 0, 1, 2, 7, 8, 9, 10, 64, 100, 1001 };
    char what[96];

    for (int32_t size = 2; size <= SIZE_MAX_TESTED; size++)
        for (size_t c = 0; c < COUNT(counts); c++)
            for (uint64_t chunk = 1; chunk <= 64; chunk = chunk * 4 + 1) {
                uint64_t offsets[SIZE_MAX_TESTED + 1], ragged[SIZE_MAX_TESTED + 1] = { 0 }, whole[2] = { 0, counts[c] };
                for (int32_t b = 0; b < size; b++) {
                    schedule_block_range(counts[c], size, b, &offsets[b], &offsets[b + 1]);
                    ragged[b + 1] = ragged[b] + (uint64_t)b * counts[c] / 10 * (uint64_t)(b % 3 != 1);
                }
                (void)snprintf(what, sizeof what, "%d ranks, %llu elements, chunks of %llu", size, (unsigned long long)counts[c],
                               (unsigned long long)chunk);
                simulate(REDUCE, size, 0, offsets, chunk, what);
                simulate(GATHER, size, 0, ragged, chunk, what);
                for (int32_t root = 0; root < size; root++)
                    simulate(BROADCAST, size, root, whole, chunk, what);
            }
}

Test(schedule, huge_blocks_raise_the_chunk_so_that_pieces_fit_into_sixteen_bits)
{
    static const uint64_t counts[] = { 65536, 65537, 1ull << 40 };

    for (size_t i = 0; i < COUNT(counts); i++) {
        uint64_t offsets[] = { 0, counts[i], 2 * counts[i] };
        struct schedule s;
        struct schedule_cursor send, receive;
        struct schedule_piece p;
        bool ready;
        schedule_allreduce(&s, 0, 2, offsets, 1);
        schedule_begin(&s, &send, &receive);
        send.piece = 65535;
        cr_expect(s.chunk_elements * 65536 >= counts[i], "%llu", (unsigned long long)counts[i]);
        if (schedule_next_send(&s, &send, &receive, &p, &ready) && p.step == 0)
            cr_expect(p.offset + p.count == counts[i], "%llu: more than 65536 pieces", (unsigned long long)counts[i]);
    }
}

Test(schedule, nothing_is_sent_before_it_was_received)
{
    static const uint64_t offsets[] = { 0, 4, 8, 12 };
    struct schedule s;
    struct schedule_cursor send, receive;
    struct schedule_piece p;
    bool ready;

    schedule_allreduce(&s, 0, 3, offsets, 2);
    schedule_begin(&s, &send, &receive);
    send = (struct schedule_cursor){ .step = 1, .piece = 0 };
    cr_expect(schedule_next_send(&s, &send, &receive, &p, &ready) && !ready, "before the piece came");
    receive.piece = 1;
    cr_expect(schedule_next_send(&s, &send, &receive, &p, &ready) && ready, "when it is there");
    send.piece = 1;
    cr_expect(schedule_next_send(&s, &send, &receive, &p, &ready) && !ready, "the second piece");
    receive = (struct schedule_cursor){ .step = 1, .piece = 0 };
    cr_expect(schedule_next_send(&s, &send, &receive, &p, &ready) && ready, "when the step is over");
}
