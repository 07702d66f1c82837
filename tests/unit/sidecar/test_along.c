/* Data of small all-reduces that travel with their announcements and GO entries: negotiate.h. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sidecar/ring/collective.h"
#include "sidecar/ring/negotiate.h"
#include "tests/unit/quietly.h"
#include "tests/unit/sidecar/announcements.h"

static const char *const MEMBERS[] = { "chief-0", "worker-0", "worker-1" };

static struct announcement with_data(const char *name, uint64_t count, float first)
{
    struct announcement a = { .set_is_known = true, .sig = sum_of(count) };
    float *data = xcalloc(count, sizeof *data);

    (void)snprintf(a.name, sizeof a.name, "%s", name);
    for (uint64_t i = 0; i < count; i++)
        data[i] = first + (float)i;
    a.along = (uint8_t *)data;
    return a;
}

static const struct { const char *name; struct signature sig; int32_t size; bool along; } SIGNATURES[] = {
    { "small", { .op = SHM_OP_ALLREDUCE, .dtype = SHM_F32, .redop = SHM_SUM, .count = 1 }, 2, true },
    { "the largest", { .op = SHM_OP_ALLREDUCE, .dtype = SHM_F32, .redop = SHM_SUM, .count = SIGNATURE_ALONG_BYTES / 4 }, 2, true },
    { "one more", { .op = SHM_OP_ALLREDUCE, .dtype = SHM_F32, .redop = SHM_SUM, .count = SIGNATURE_ALONG_BYTES / 4 + 1 }, 2, false },
    { "too large for four", { .op = SHM_OP_ALLREDUCE, .dtype = SHM_F32, .redop = SHM_SUM, .count = SIGNATURE_ALONG_BYTES / 4 }, 4, false },
    { "a huge count", { .op = SHM_OP_ALLREDUCE, .dtype = SHM_F64, .redop = SHM_SUM, .count = UINT64_MAX }, 2, false },
    { "nothing", { .op = SHM_OP_ALLREDUCE, .dtype = SHM_F32, .redop = SHM_SUM }, 2, false },
    { "alone", { .op = SHM_OP_ALLREDUCE, .dtype = SHM_F32, .redop = SHM_SUM, .count = 1 }, 1, false },
    { "adasum", { .op = SHM_OP_ALLREDUCE, .dtype = SHM_F32, .redop = SHM_ADASUM, .count = 1 }, 2, false },
    { "another operation", { .op = SHM_OP_BROADCAST, .dtype = SHM_F32, .count = 1 }, 2, false },
};

Test(along, follows_from_the_signature)
{
    for (size_t i = 0; i < COUNT(SIGNATURES); i++)
        cr_expect(signature_travels_along(&SIGNATURES[i].sig, SIGNATURES[i].size) == SIGNATURES[i].along, "case %s", SIGNATURES[i].name);
}

Test(along, announcements_bring_data_and_no_others_than_announced)
{
    struct process_sets *sets = process_sets_new(3);
    auto_buf struct buf b = BUF_INIT(4096);
    struct announcement a = with_data("x", 10, 7), got;
    struct error e = ERROR_INIT;
    size_t at = 0;

    announce_encode(&b, process_sets_get(sets, 0)->cache, &a);
    cr_assert(announce_decode(sets, (const uint8_t *)b.text, b.len, &at, &got, &e) == 0, "%s", e.text);
    cr_expect(at == b.len && got.along != NULL && memcmp(got.along, a.along, 40) == 0);
    announcement_release(&got);
    for (size_t len = 0; len < b.len; len++) {
        at = 0;
        cr_expect(announce_decode(sets, (const uint8_t *)b.text, len, &at, &got, &e) < 0, "cut at %zu", len);
    }
    b.text[b.len - 44]++; /* the length of the data */
    at = 0;
    cr_expect(announce_decode(sets, (const uint8_t *)b.text, b.len, &at, &got, &e) < 0, "41 bytes for 10 elements");
    announcement_release(&a);
    process_sets_free(sets);
}

static void announce(struct negotiation *n, int32_t rank, struct announcement a)
{
    struct error e = ERROR_INIT;

    cr_assert(negotiation_announce(n, rank, &a, 0, &e) == 0, "%s", e.text);
    announcement_release(&a);
}

static const struct signature *lookup(void *ctx, uint32_t set, const char *name)
{
    (void)set;
    (void)name;
    return ctx;
}

Test(along, a_list_has_the_data_of_all_or_goes_without)
{
    struct process_sets *sets = process_sets_new(3);
    struct negotiation *n = negotiation_new(3, MEMBERS, sets);
    struct go_list l;

    for (int32_t r = 2; r >= 0; r--) {
        announce(n, r, with_data("a", 4, (float)r * 10));
        announce(n, r, with_data("b", 4, (float)r * 100));
        struct announcement plain = { .set_is_known = true, .name = "c", .sig = sum_of(4) };
        announce(n, r, r == 1 ? plain : with_data("c", 4, 0));
    }
    cr_assert(negotiation_next(n, &l) && l.along && l.count == 2, "a and b together");
    cr_expect(((float *)l.entries[1].along[2])[3] == 203.0f && ((float *)l.entries[0].along[0])[0] == 0.0f);
    go_list_release(&l);
    cr_assert(negotiation_next(n, &l) && !l.along && l.count == 1, "c without: rank 1 sent none");
    go_list_release(&l);

    struct announcement join = { .set_is_known = true, .name = "join", .sig = { .op = SHM_OP_JOIN } };
    announce(n, 1, join);
    announce(n, 2, with_data("d", 4, 5));
    announce(n, 0, with_data("d", 4, 6));
    cr_assert(negotiation_next(n, &l) && l.along && l.member_count == 2 && l.members[1] == 2, "without the one that has joined");
    cr_expect(((float *)l.entries[0].along[1])[0] == 5.0f);
    go_list_release(&l);
    negotiation_free(n);
    process_sets_free(sets);
}

Test(along, results_come_with_the_list)
{
    struct process_sets *root = process_sets_new(3), *rank = process_sets_new(3);
    int32_t all[] = { 0, 1, 2 };
    float result[] = { 1, 2, 3, 4 };
    struct signature sig = sum_of(4);
    struct go_entry entry = { .name = "a", .sig = sig, .result = (uint8_t *)result };
    struct go_list list = { .whole = true, .along = true, .members = all, .member_count = 3, .entries = &entry, .count = 1 }, *lists;
    auto_buf struct buf b = BUF_INIT(4096);
    struct error e = ERROR_INIT;
    uint32_t chunk;
    size_t count;

    go_begin(&b, 1, 4096);
    go_add(&b, process_sets_get(root, 0), 1, &list);
    cr_assert(go_decode(rank, 1, (const uint8_t *)b.text, b.len, lookup, &sig, &chunk, &lists, &count, &e) == 0, "%s", e.text);
    cr_expect(count == 1 && lists[0].along && memcmp(lists[0].entries[0].result, result, sizeof result) == 0);
    go_lists_free(lists, count);
    for (size_t len = 13; len < b.len; len++)
        cr_expect(go_decode(rank, 1, (const uint8_t *)b.text, len, lookup, &sig, &chunk, &lists, &count, &e) < 0, "cut at %zu", len);
    struct signature other = sum_of(5);
    cr_expect(go_decode(rank, 1, (const uint8_t *)b.text, b.len, lookup, &other, &chunk, &lists, &count, &e) < 0, "another count");
    process_sets_free(root);
    process_sets_free(rank);
}

/* Bit by bit what the algorithms of schedule.h give: block b begins with member b + 1. */
Test(along, sums_are_made_in_the_order_of_the_ring)
{
    static float in[5][1000], out[1000];
    const uint8_t *parts[5];
    struct collective_plan plan = { .dtype = SHM_F32, .redop = SHM_AVERAGE, .factor = 3, .divisor = 7 };

    for (int size = 2; size <= 5; size++) {
        for (int r = 0; r < size; r++) {
            parts[r] = (const uint8_t *)in[r];
            for (int i = 0; i < 1000; i++)
                in[r][i] = (float)((i * 2654435761u + (unsigned)r * 40503u) % 10007u) * (r % 2 ? 1e-4f : 1.0f);
        }
        collective_sum(&plan, parts, size, 1000, (uint8_t *)out);
        for (int b = 0; b < size; b++) {
            uint64_t begin, stop;
            schedule_block_range(1000, size, b, &begin, &stop);
            for (uint64_t i = begin; i < stop; i++) {
                float sum = in[(b + 1) % size][i];
                for (int k = 2; k <= size; k++)
                    sum += in[(b + k) % size][i];
                sum = sum * 3.0f / 7.0f;
                QUIETLY(memcmp(&sum, &out[i], sizeof sum) == 0, "%d members, element %llu", size, (unsigned long long)i);
            }
        }
    }
}
