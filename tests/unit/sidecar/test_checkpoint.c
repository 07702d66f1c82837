/* test_checkpoint.c — the whole engine: three ranks, their trainers, and coordinators that die. */
#include <criterion/criterion.h>

#include "checkpoint_group.h"

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

Test(checkpoint, without_a_volume_a_step_that_all_hold_counts_and_survives_trainers_and_sidecars, .timeout = 60)
{
    struct group g;
    group_init(&g, 3, false);
    cr_assert(group_form(&g, 0x100000001));
    for (int64_t step = 1; step <= 5; step++)
        cr_assert(group_save(&g, step, DATA), "step %d", (int)step);
    cr_expect(strncmp(g.members[1].uri, "memory:", 7) == 0, "%s", g.members[1].uri);
    for (int32_t rank = 0; rank < 3; rank++) {
        group_kill(&g, rank);
        group_start(&g, rank);
    }
    cr_assert(group_form(&g, 0x100000002), "%s", g.claim_error.text);
    cr_expect(g.restore.step == 5);
    cr_expect(group_restores(&g, 5, true));
    cr_expect(group_wait(&g, group_until_idle, 0, 5000), "the base is settled, nothing waits for ever");

    group_lose_node(&g, 1);
    cr_assert(group_form(&g, 0x100000003));
    cr_expect(!g.restore.found, "rank 1 has nothing, so there is no common step");
    group_release(&g);
}

Test(checkpoint, a_step_that_all_staged_is_committed_although_the_trainers_are_dead, .timeout = 60)
{
    struct group g;
    group_init(&g, 3, true);
    cr_assert(group_form(&g, 0x100000001));
    cr_assert(group_save(&g, 10, DATA));
    group_stage(&g, 20, DATA);
    for (int32_t rank = 0; rank < 3; rank++)
        checkpoint_trainer_gone(g.members[rank].checkpoint);
    cr_assert(group_form(&g, 0x100000002), "%s", g.claim_error.text);
    cr_expect(g.restore.step == 20 && g.restore.epoch == 0x100000001, "memory has it before the volume does");
    cr_expect(group_restores(&g, 20, true));
    cr_expect(group_wait(&g, group_until_committed, 20, 5000), "and it gets to the volume in its own epoch");
    cr_assert(group_save(&g, 30, DATA));
    for (int32_t rank = 0; rank < 3; rank++)
        group_lose_node(&g, rank);
    cr_assert(group_form(&g, 0x200000001));
    cr_expect(g.restore.step == 30);
    cr_expect(group_restores(&g, 30, false));
    group_release(&g);
}

Test(checkpoint, when_one_rank_has_not_staged_the_step_before_is_restored, .timeout = 60)
{
    struct group g;
    struct error e = ERROR_INIT;
    group_init(&g, 3, true);
    cr_assert(group_form(&g, 0x100000001));
    cr_assert(group_save(&g, 10, DATA));
    cr_expect(trainer_stage(&g, 0, 20, DATA) == STAGE_DONE);
    cr_expect(trainer_stage(&g, 2, 20, DATA) == STAGE_DONE);
    cr_expect(trainer_stage_as(&g, 1, 20, DATA, g.fence, true, &e) == STAGE_DONE, "rank 1 dies while it writes");
    checkpoint_trainer_gone(g.members[1].checkpoint);
    cr_assert(group_form(&g, 0x100000002));
    cr_expect(g.restore.step == 10);
    cr_expect(group_restores(&g, 10, true));
    cr_expect(group_wait(&g, group_until_idle, 0, 2000), "step 20 is dropped everywhere");
    cr_assert(group_save(&g, 20, DATA), "and can be saved in the new round");
    group_release(&g);
}

static int refuse_commit(void *ctx, const char *operation, const char *path)
{
    (void)ctx;
    return strcmp(operation, "link") == 0 && strstr(path, "/COMMIT") != NULL ? EIO : 0;
}

Test(checkpoint, a_coordinator_that_died_between_votes_and_commit_is_made_up_for, .timeout = 60)
{
    for (int with_manifest = 0; with_manifest < 2; with_manifest++) {
        struct group g;
        group_init(&g, 3, true);
        cr_assert(group_form(&g, 0x100000001));
        cr_assert(group_save(&g, 10, DATA));
        cr_assert(group_vote_unheard(&g, 20, DATA));
        if (with_manifest) {
            struct store s = group_store_of(&g);
            struct store_scan scan;
            struct error e = ERROR_INIT;
            cr_assert(store_scan(&s, &scan, &e) == 0);
            struct step_key key = { .job = GROUP_UID, .generation = scan.generations[0].generation, .world = 3 };
            fault_set(refuse_commit, NULL);
            cr_expect(store_commit(&s, &key, g.fence, &e) != 0);
            fault_set(NULL, NULL);
            store_scan_release(&scan);
            store_release(&s);
        }
        for (int32_t rank = 0; rank < 3; rank++)
            group_lose_node(&g, rank); /* nothing in memory: only the votes on the volume are left */
        g.drop = NULL;
        cr_assert(group_form(&g, 0x100000002), "%s", g.claim_error.text);
        cr_expect(g.restore.found && g.restore.step == 20, "case %d: %d", with_manifest, (int)g.restore.step);
        cr_expect(group_restores(&g, 20, false));
        group_release(&g);
    }
}

Test(checkpoint, a_restarted_coordinator_goes_on_with_what_members_still_save, .timeout = 60)
{
    struct group g;
    group_init(&g, 3, true);
    cr_assert(group_form(&g, 0x100000001));
    cr_assert(group_vote_unheard(&g, 10, DATA));
    g.drop = NULL;
    group_kill(&g, 0);
    group_start(&g, 0);
    cr_assert(group_form(&g, 0x100000002));
    cr_expect(g.restore.step == 10);
    cr_expect(group_wait(&g, group_until_idle, 0, 5000));
    for (int32_t rank = 0; rank < 3; rank++)
        cr_expect(checkpoint_committed_step(g.members[rank].checkpoint) == 10, "rank %d", (int)rank);
    group_release(&g);
}
