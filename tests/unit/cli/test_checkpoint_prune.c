#include <criterion/criterion.h>

#include "base/mem.h"
#include "cli/checkpoint_prune.h"

#define C INSPECT_COMMITTED

/* The history: epoch 1 was restored at 30 by 2, that at 50 by 3; 3 is the newest. --keep 2 --keep-every 20. */
static const struct { const char *name; struct checkpoint_id id; enum inspect_state state; bool goes; } ROWS[] = {
    { "the newest", { 3, 95 }, C, false },          { "the second", { 3, 90 }, C, false },
    { "damaged, newer than both", { 3, 99 }, INSPECT_DAMAGED, true },
    { "divided", { 3, 80 }, C, false },             { "too old", { 3, 75 }, C, true },
    { "base of the newest round", { 2, 50 }, C, false }, { "base of the round before", { 1, 30 }, C, false },
    { "in no history", { 2, 60 }, C, true },        { "in the history, not divided", { 1, 25 }, C, true },
    { "being saved", { 3, 100 }, INSPECT_PARTIAL, false }, { "still on its way from the round before", { 2, 45 }, INSPECT_PARTIAL, false },
    { "left by a round that is no history", { 2, 70 }, INSPECT_PARTIAL, true },
    { "complete, and of the history", { 2, 48 }, INSPECT_COMPLETE, false },
    { "aborted", { 3, 85 }, INSPECT_ABORTED, true }, { "retired", { 3, 65 }, INSPECT_RETIRED, true },
    { "of a round that is just beginning", { 4, 96 }, INSPECT_PARTIAL, false },
};

Test(checkpoint_prune, what_a_restart_may_need_stays)
{
    struct inspections all = { .count = COUNT(ROWS), .items = xcalloc(COUNT(ROWS), sizeof(struct inspection)) };
    bool goes[COUNT(ROWS)];
    lineage_push(&all.scan.lineage, 1, NULL);
    lineage_push(&all.scan.lineage, 2, &(struct checkpoint_id){ 1, 30 });
    lineage_push(&all.scan.lineage, 3, &(struct checkpoint_id){ 2, 50 });
    for (size_t i = 0; i < COUNT(ROWS); i++)
        all.items[i] = (struct inspection){ .generation.id = ROWS[i].id, .state = ROWS[i].state,
                                            .visible = lineage_visible(&all.scan.lineage, ROWS[i].id), .newest = i == 0 };
    checkpoint_prune(&all, 2, 20, goes);
    for (size_t i = 0; i < COUNT(ROWS); i++)
        cr_expect(goes[i] == ROWS[i].goes, "case %s", ROWS[i].name);
    inspections_release(&all);
}

Test(checkpoint_prune, the_newest_whole_step_stays_whatever_is_asked)
{
    struct inspection items[] = { { .generation.id = { 1, 20 }, .state = INSPECT_DAMAGED, .visible = true },
                                  { .generation.id = { 1, 10 }, .state = C, .visible = true, .newest = true } };
    struct inspections all = { .count = 2, .items = items };
    bool goes[2];
    lineage_push(&all.scan.lineage, 1, NULL);
    checkpoint_prune(&all, 0, 7, goes);
    cr_expect(goes[0] && !goes[1]);
}

Test(checkpoint_prune, without_a_history_nothing_goes)
{
    struct inspection items[] = { { .generation.id = { 1, 20 }, .state = C }, { .generation.id = { 1, 10 }, .state = INSPECT_DAMAGED } };
    struct inspections all = { .count = 2, .items = items };
    bool goes[2];
    checkpoint_prune(&all, 1, 0, goes);
    cr_expect(!goes[0] && !goes[1]);
}
