#include <criterion/criterion.h>

#include "base/mem.h"
#include "checkpoint/retention.h"

#define C GENERATION_COMMITTED

/* The lineage is: 1 restored at 30 by 2, 2 restored at 50 by 3; 3 is the newest. Two are to be kept. */
static const struct { const char *name; struct retention_item item; enum retention_verdict verdict; } CASES[] = {
    { "the newest", { { 3, 90 }, C, false, false }, RETENTION_KEEP },
    { "the second", { { 3, 80 }, C, false, false }, RETENTION_KEEP },
    { "the third", { { 3, 70 }, C, false, false }, RETENTION_RETIRE },
    { "the base of this epoch", { { 2, 50 }, C, false, false }, RETENTION_KEEP },
    { "between the bases", { { 2, 40 }, C, false, false }, RETENTION_RETIRE },
    { "the base of the epoch before", { { 1, 30 }, C, false, false }, RETENTION_KEEP },
    { "older than all bases", { { 1, 20 }, C, false, false }, RETENTION_RETIRE },
    { "retired", { { 1, 10 }, GENERATION_RETIRED, false, false }, RETENTION_REMOVE },
    { "damaged", { { 3, 85 }, C, true, false }, RETENTION_RETIRE },
    { "of another history", { { 2, 60 }, C, false, false }, RETENTION_RETIRE },
    { "being saved", { { 3, 100 }, GENERATION_OPEN, false, true }, RETENTION_KEEP },
    { "of this epoch, open", { { 3, 95 }, GENERATION_OPEN, false, false }, RETENTION_KEEP },
    { "of an older epoch, open", { { 2, 55 }, GENERATION_OPEN, false, false }, RETENTION_REMOVE },
    { "of an older epoch, open and wanted", { { 2, 50 }, GENERATION_OPEN, false, true }, RETENTION_KEEP },
    { "aborted", { { 3, 88 }, GENERATION_ABORTED, false, false }, RETENTION_REMOVE },
    { "of a newer epoch, committed", { { 4, 10 }, C, false, false }, RETENTION_KEEP },
    { "of a newer epoch, aborted", { { 4, 20 }, GENERATION_ABORTED, false, false }, RETENTION_KEEP },
};

static void lineage(struct lineage *l)
{
    *l = (struct lineage){ .count = 0 };
    lineage_push(l, 1, NULL);
    lineage_push(l, 2, &(struct checkpoint_id){ 1, 30 });
    lineage_push(l, 3, &(struct checkpoint_id){ 2, 50 });
}

Test(retention, keeps_the_newest_the_bases_and_what_is_being_saved)
{
    struct lineage l;
    struct retention_item items[COUNT(CASES)];
    enum retention_verdict verdicts[COUNT(CASES)];
    lineage(&l);
    for (size_t i = 0; i < COUNT(CASES); i++)
        items[i] = CASES[i].item;
    retention_choose(items, COUNT(CASES), &l, 2, verdicts);
    for (size_t i = 0; i < COUNT(CASES); i++)
        cr_expect(verdicts[i] == CASES[i].verdict, "case %s: %d", CASES[i].name, (int)verdicts[i]);
}

Test(retention, gives_up_nothing_while_too_few_good_ones_are_there)
{
    static const struct retention_item FEW[] = {
        { { 3, 90 }, C, false, false }, { { 3, 85 }, C, true, false }, { { 2, 60 }, C, false, false }, { { 1, 30 }, C, true, false },
    };
    enum retention_verdict verdicts[COUNT(FEW)];
    struct lineage l;
    lineage(&l);
    retention_choose(FEW, COUNT(FEW), &l, 2, verdicts);
    for (size_t i = 0; i < COUNT(FEW); i++)
        cr_expect(verdicts[i] == RETENTION_KEEP, "case %zu", i);
    retention_choose(FEW, COUNT(FEW), &l, 0, verdicts);
    cr_expect(verdicts[0] == RETENTION_KEEP, "one is always kept");
    cr_expect(verdicts[1] == RETENTION_RETIRE);
}
