/* test_checkpoint.c — the whole engine: three ranks, their trainers, and what can happen to them. */
#include <criterion/criterion.h>

#include "group.h"

#define DATA 50000u

Test(checkpoint, a_step_that_all_stage_is_committed_and_restored_from_memory_and_from_the_volume, .timeout = 60)
{
    struct group g;
    group_init(&g, 3, true);
    cr_assert(group_form(&g, 0x100000001), "%s", g.claim_error.text);
    cr_expect(group_restores(&g, -1, false), "a new job begins from scratch");
    cr_assert(group_save(&g, 10, DATA));
    cr_assert(group_save(&g, 20, DATA));
    for (int32_t rank = 0; rank < 3; rank++) {
        cr_expect(checkpoint_committed_step(g.members[rank].checkpoint) == 20);
        cr_expect(strncmp(g.members[rank].uri, "file:///", 8) == 0, "%s", g.members[rank].uri);
        cr_expect(g.members[rank].committed_count == 2 && g.members[rank].failed_count == 0);
    }

    cr_assert(group_form(&g, 0x100000002), "%s", g.claim_error.text);
    cr_expect(g.restore.found && g.restore.step == 20 && g.restore.world == 3);
    cr_expect(group_restores(&g, 20, true), "the slots still hold it");

    for (int32_t rank = 0; rank < 3; rank++)
        group_lose_node(&g, rank);
    cr_assert(group_form(&g, 0x200000001), "%s", g.claim_error.text);
    cr_expect(g.restore.found && g.restore.step == 20);
    cr_expect(group_restores(&g, 20, false), "the volume has it");
    group_release(&g);
}
