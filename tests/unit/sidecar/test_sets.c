#include <criterion/criterion.h>

#include "base/mem.h"
#include "sidecar/ring/sets.h"

Test(sets, numbers_are_the_lowest_that_are_free)
{
    struct process_sets *s = process_sets_new(5);
    int32_t even[] = { 0, 2, 4 }, odd[] = { 1, 3 };

    cr_expect(process_sets_get(s, 0)->count == 5 && process_sets_get(s, 1) == NULL && process_sets_get(s, 99999) == NULL);
    cr_expect(process_sets_add(s, even, 3)->id == 1 && process_sets_add(s, odd, 2)->id == 2);
    cr_expect(process_sets_find(s, odd, 2)->id == 2 && process_sets_find(s, odd, 1) == NULL);
    cr_expect(process_sets_find(s, (int32_t[]){ 0, 1, 2, 3, 4 }, 5)->id == 0);
    cr_expect(process_sets_remove(s, 1) && !process_sets_remove(s, 1) && !process_sets_remove(s, 0));
    for (int32_t r = 0; r < 5; r++)
        cr_expect_eq(process_sets_add(s, &r, 1)->id, r == 0 ? 1u : (uint32_t)r + 2);
    process_sets_free(s);
}

Test(sets, ranks_have_places)
{
    struct process_sets *s = process_sets_new(9);
    struct process_set *set = process_sets_add(s, (int32_t[]){ 0, 3, 4, 8 }, 4);
    static const int32_t want[9] = { 0, -1, -1, 1, 2, -1, -1, -1, 3 };

    for (int32_t r = 0; r < 9; r++)
        cr_expect_eq(process_set_index(set, r), want[r], "rank %d", r);
    char text[32];
    cr_expect_str_eq(process_set_text(set->ranks, set->count, text, sizeof text), "{0, 3, 4, 8}");
    cr_expect_str_eq(process_set_text(set->ranks, 0, text, sizeof text), "{}");
    process_sets_free(s);
}
