#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "client/c/src/arena.h"
#include "tests/unit/quietly.h"

Test(arena, blocks_are_aligned_and_do_not_overlap)
{
    struct arena a;
    uint64_t first, second, third;

    cr_assert(arena_init(&a, 4096, 1000)); /* 960 bytes: whole blocks only */
    cr_expect(arena_alloc(&a, 1, &first) && arena_alloc(&a, 65, &second) && arena_alloc(&a, 0, &third));
    cr_expect_eq(first, 4096);
    cr_expect_eq(second, 4096 + 64);
    cr_expect_eq(third, 4096 + 64 + 128);
    cr_expect_eq(a.used, 256);
    arena_release(&a);
}

Test(arena, what_is_freed_is_joined_with_its_neighbours)
{
    struct arena a;
    uint64_t at[4], whole;

    cr_assert(arena_init(&a, 0, 256));
    for (size_t i = 0; i < COUNT(at); i++)
        cr_assert(arena_alloc(&a, 64, &at[i]));
    cr_expect_not(arena_alloc(&a, 1, &whole), "it is full");
    cr_expect(arena_free(&a, at[1]) && arena_free(&a, at[3]) && arena_free(&a, at[2]) && arena_free(&a, at[0]));
    cr_expect_eq(a.used, 0);
    cr_expect_eq(a.count, 1);
    cr_expect(arena_alloc(&a, 256, &whole));
    cr_expect_eq(whole, 0);
    arena_release(&a);
}

Test(arena, what_is_not_a_block_cannot_be_freed)
{
    struct arena a;
    uint64_t at;

    cr_assert(arena_init(&a, 128, 512));
    cr_assert(arena_alloc(&a, 128, &at));
    static const struct { const char *name; uint64_t offset; } rows[] = {
        { "the middle of a block", 192 }, { "free memory", 256 }, { "before the arena", 64 }, { "behind it", 640 }, { "far away", UINT64_MAX },
    };
    for (size_t i = 0; i < COUNT(rows); i++)
        cr_expect_not(arena_free(&a, rows[i].offset), "case %s", rows[i].name);
    cr_expect(arena_free(&a, at));
    cr_expect_not(arena_free(&a, at), "case twice");
    arena_release(&a);
}

Test(arena, a_range_is_held_by_one_taken_block_or_not_at_all)
{
    struct arena a;
    uint64_t first, second;

    cr_assert(arena_init(&a, 64, 1024));
    cr_assert(arena_alloc(&a, 128, &first) && arena_alloc(&a, 128, &second));
    static const struct { uint64_t offset, bytes; bool held; } rows[] = {
        { 64, 128, true }, { 64, 129, false }, { 128, 64, true }, { 128, 65, false }, { 192, 128, true },
        { 320, 1, false }, { 0, 8, false }, { 64, UINT64_MAX, false }, { UINT64_MAX, 1, false }, { 100, 0, true },
    };
    for (size_t i = 0; i < COUNT(rows); i++)
        cr_expect_eq(arena_holds(&a, rows[i].offset, rows[i].bytes), rows[i].held, "case %zu", i);
    arena_release(&a);
}

Test(arena, sizes_that_cannot_be_are_refused)
{
    struct arena a;
    uint64_t at;

    cr_assert(arena_init(&a, 0, 4096));
    cr_expect_not(arena_alloc(&a, 4097, &at));
    cr_expect_not(arena_alloc(&a, UINT64_MAX, &at));
    cr_expect(arena_alloc(&a, 4096, &at));
    arena_release(&a);
    cr_assert(arena_init(&a, 0, 63));
    cr_expect_not(arena_alloc(&a, 1, &at), "an arena without a whole block");
    arena_release(&a);
}

/* Against a map of every 64 bytes: no overlap, nothing lost, the sum is right, after each of many random steps. */
Test(arena, random_use_keeps_its_invariants)
{
    enum { UNITS = 512, LIVE = 200 };
    struct arena a;
    unsigned char taken[UNITS] = { 0 };
    struct { uint64_t at, units; } live[LIVE];
    size_t count = 0;

    srand(7);
    cr_assert(arena_init(&a, 64 * 3, 64 * UNITS));
    for (int step = 0; step < 20000; step++) {
        uint64_t bytes = (uint64_t)(rand() % (64 * 20)), at, units = bytes == 0 ? 1 : (bytes + 63) / 64;
        if (count < LIVE && rand() % 2 == 0) {
            if (!arena_alloc(&a, bytes, &at))
                continue;
            uint64_t unit = at / 64 - 3;
            QUIETLY(at % 64 == 0 && unit + units <= UNITS, "step %d: offset %llu", step, (unsigned long long)at);
            for (uint64_t i = 0; i < units; i++) {
                QUIETLY(taken[unit + i] == 0, "step %d overlaps", step);
                taken[unit + i] = 1;
            }
            live[count].at = at;
            live[count++].units = units;
        } else if (count > 0) {
            size_t i = (size_t)rand() % count;
            QUIETLY(arena_free(&a, live[i].at), "step %d", step);
            memset(taken + live[i].at / 64 - 3, 0, live[i].units);
            live[i] = live[--count];
        }
        uint64_t sum = 0, covered = 0;
        for (size_t i = 0; i < UNITS; i++)
            sum += taken[i];
        QUIETLY(a.used == 64 * sum, "step %d", step);
        for (size_t i = 0; i < a.count; i++) {
            QUIETLY(a.blocks[i].offset == a.base + covered, "step %d", step);
            QUIETLY(i == 0 || a.blocks[i].used || a.blocks[i - 1].used, "two free neighbours after step %d", step);
            covered += a.blocks[i].bytes;
        }
        QUIETLY(covered == a.bytes, "step %d", step);
    }
    arena_release(&a);
}
