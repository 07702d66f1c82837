#include <criterion/criterion.h>
#include <stdlib.h>

#include "sidecar/ring/results.h"
#include "wire/shm.h"

#define BEGIN 4096u
#define BYTES (64u * 100)

Test(results, the_area_is_given_out_whole_and_taken_back_whole)
{
    struct results a;
    uint64_t at, offsets[100];

    results_init(&a, BEGIN, BYTES);
    for (int turn = 0; turn < 3; turn++) {
        for (int i = 0; i < 100; i++) {
            cr_assert(results_allocate(&a, (uint64_t)i % 65, &offsets[i]), "turn %d, allocation %d", turn, i);
            cr_expect(offsets[i] % SHM_ALIGN == 0 && offsets[i] == BEGIN + 64u * (unsigned)i);
        }
        cr_expect(!results_allocate(&a, 1, &at), "there is nothing left");
        for (int i = 0; i < 100; i++) /* in an order that leaves holes and closes them */
            cr_expect(results_free(&a, offsets[i * 37 % 100]), "turn %d", turn);
        cr_expect(results_allocate(&a, BYTES, &at) && at == BEGIN, "turn %d: the holes were not joined", turn);
        cr_expect(results_free(&a, at));
    }
    results_release(&a);
}

Test(results, what_was_not_given_out_cannot_be_taken_back)
{
    struct results a;
    uint64_t first, second;

    results_init(&a, BEGIN, BYTES);
    cr_assert(results_allocate(&a, 100, &first) && results_allocate(&a, 100, &second));
    cr_expect(!results_free(&a, first + 64) && !results_free(&a, 0) && !results_free(&a, second + 128));
    cr_expect(results_free(&a, first) && !results_free(&a, first), "twice");
    results_release(&a);
}

static const struct { const char *name; uint64_t bytes; bool fits; } SIZES[] = {
    { "nothing", 0, true }, { "all", BYTES, true }, { "one too many", BYTES + 1, false }, { "wraps around", UINT64_MAX, false },
    { "wraps around when rounded up", UINT64_MAX - 63, false },
};

Test(results, sizes_are_checked)
{
    for (size_t i = 0; i < sizeof SIZES / sizeof SIZES[0]; i++) {
        struct results a;
        uint64_t at;
        results_init(&a, BEGIN, BYTES);
        cr_expect(results_allocate(&a, SIZES[i].bytes, &at) == SIZES[i].fits, "case %s", SIZES[i].name);
        results_release(&a);
    }
}

/* Random steps against the plain truth: a map of who owns each 64 bytes. */
Test(results, ranges_never_overlap)
{
    struct results a;
    int owner[100] = { 0 };
    uint64_t offsets[40] = { 0 };
    uint32_t seed = 7;

    results_init(&a, BEGIN, BYTES);
    for (int step = 0; step < 20000; step++) {
        seed = seed * 1664525u + 1013904223u;
        int slot = (int)(seed >> 8) % 40;
        uint64_t units = (seed >> 20) % 12 + 1;
        if (offsets[slot] == 0 && results_allocate(&a, units * 64, &offsets[slot])) {
            for (uint64_t u = (offsets[slot] - BEGIN) / 64, end = u + units; u < end; u++) {
                cr_assert(owner[u] == 0, "step %d: given out twice", step);
                owner[u] = slot + 1;
            }
        } else if (offsets[slot] != 0) {
            cr_assert(results_free(&a, offsets[slot]));
            for (int u = 0; u < 100; u++)
                owner[u] = owner[u] == slot + 1 ? 0 : owner[u];
            offsets[slot] = 0;
        }
    }
    results_release(&a);
}
