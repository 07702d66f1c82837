/* test_checkpoint_slots.c — slots that run out, and what goes from the volume. */
#include <criterion/criterion.h>

#include "checkpoint_group.h"

#define DATA 50000u

Test(checkpoint, ranks_whose_slots_were_busy_at_different_times_find_together_again, .timeout = 60)
{
    struct group g;
    struct error e = ERROR_INIT;
    group_init(&g, 3, true);
    cr_assert(group_form(&g, 0x100000001));
    cr_assert(group_save(&g, 10, DATA));
    /* Rank 1 skips 20; for 30 the others have no room, and so on: without help they would take turns for ever. */
    int64_t step = 20;
    cr_expect(trainer_stage(&g, 0, step, DATA) == STAGE_DONE && trainer_stage(&g, 2, step, DATA) == STAGE_DONE);
    bool together = false;
    for (step = 30; step < 100 && !together; step += 10) {
        enum stage_result results[3];
        for (int32_t rank = 0; rank < 3; rank++)
            results[rank] = trainer_stage(&g, rank, step, DATA);
        together = results[0] == STAGE_DONE && results[1] == STAGE_DONE && results[2] == STAGE_DONE &&
                   group_wait(&g, group_until_committed, step, 2000);
        (void)group_wait(&g, group_until_idle, 0, 2000);
    }
    cr_expect(together && step <= 60, "they saved together at step %d", (int)step - 10);
    cr_expect(strstr(g.members[0].why.text, "rank 1 has skipped") != NULL, "%s", g.members[0].why.text);
    cr_expect(trainer_stage_as(&g, 0, 5, DATA, g.fence, false, &e) == STAGE_REFUSED && strstr(e.text, "must rise") != NULL, "%s", e.text);
    group_release(&g);
}

Test(checkpoint, the_newest_step_that_all_hold_is_never_given_away, .timeout = 60)
{
    struct group g;
    group_init(&g, 2, false);
    cr_assert(group_form(&g, 0x100000001));
    cr_assert(group_save(&g, 10, DATA));
    cr_expect(trainer_stage(&g, 0, 20, DATA) == STAGE_DONE);
    (void)group_wait(&g, group_never, 0, 20);
    for (int64_t step = 30; step < 60; step += 10)
        cr_expect(trainer_stage(&g, 0, step, DATA) == STAGE_SKIPPED, "one slot is step 10's, the other waits for rank 1");
    cr_expect(trainer_stage(&g, 1, 20, DATA) == STAGE_DONE);
    cr_assert(group_wait(&g, group_until_committed, 20, 2000));
    cr_expect(trainer_stage(&g, 0, 60, DATA) == STAGE_DONE, "now step 10 may go");
    group_release(&g);
}

Test(checkpoint, a_step_before_the_base_or_of_another_fence_is_refused, .timeout = 60)
{
    struct group g;
    struct error e = ERROR_INIT;
    group_init(&g, 2, true);
    cr_assert(group_form(&g, 0x100000001));
    cr_assert(group_save(&g, 50, DATA));
    cr_assert(group_form(&g, 0x100000002));
    cr_expect(trainer_stage_as(&g, 0, 10, DATA, g.fence, false, &e) == STAGE_REFUSED);
    cr_expect(strstr(e.text, "resumes from step 50") != NULL, "%s", e.text);
    cr_expect(trainer_stage_as(&g, 0, 60, DATA, 0x100000001, false, &e) == STAGE_REFUSED);
    cr_expect(strstr(e.text, "fence") != NULL, "%s", e.text);
    cr_assert(group_save(&g, 50, DATA), "the base itself may be saved again, in its new epoch");
    group_release(&g);
}

Test(checkpoint, a_member_outside_the_ring_is_refused_in_words, .timeout = 60)
{
    struct group g;
    struct error e = ERROR_INIT;
    struct checkpoint *c;
    struct member_of_group m = { .group = &g, .committed = -1 };
    int fds[2], fd;
    uint64_t a, b;
    bool memory;
    group_init(&g, 1, true);
    struct checkpoint_options options = { .volume = g.volume, .memory = g.dir, .job_uid = GROUP_UID, .member = "evaluator-0", .rank = -1 };
    struct checkpoint_events events = { .send = group_send, .broadcast = group_broadcast, .committed = group_committed,
                                        .failed = group_failed, .ctx = &m };
    cr_assert(checkpoint_new(g.loop, &options, &events, &c, &e) == 0);
    struct checkpoint_restore restore = { .found = false };
    checkpoint_enter(c, 0x100000001, 1, &restore);
    cr_expect(checkpoint_slots(c, 100, fds, &a, &e) != 0 && strstr(e.text, "evaluator-0 is outside the ring") != NULL, "%s", e.text);
    cr_expect(checkpoint_staged(c, 0, 1, 100, &e) != 0);
    cr_expect(checkpoint_open_restore(c, 0, &restore, &fd, &a, &b, &memory, &e) != 0 && e.kind == ERROR_INVALID);
    cr_expect(checkpoint_idle(c));
    checkpoint_free(c);
    group_release(&g);
}

static bool until_generations(struct group *g, int64_t count)
{
    struct store s = group_store_of(g);
    struct store_scan scan;
    struct error e = ERROR_INIT;
    cr_assert(store_scan(&s, &scan, &e) == 0);
    int64_t found = (int64_t)scan.count;
    store_scan_release(&scan);
    store_release(&s);
    return found == count;
}

Test(checkpoint, old_checkpoints_go_in_two_steps_and_foreign_files_stay, .timeout = 60)
{
    struct group g;
    group_init(&g, 2, true);
    g.keep = 2;
    for (int32_t rank = 0; rank < 2; rank++)
        group_lose_node(&g, rank);
    cr_assert(group_form(&g, 0x100000001));
    auto_free char *root = xasprintf("%s/%s", g.volume, GROUP_UID);
    auto_free char *foreign = xasprintf("%s/s1-mine", root), *note = xasprintf("%s/notes.tmp", root);
    cr_assert(mkdir(foreign, 0755) == 0);
    FILE *f = fopen(note, "w");
    cr_assert(f != NULL && fclose(f) == 0);
    for (int64_t step = 10; step <= 60; step += 10)
        cr_assert(group_save(&g, step, DATA));
    cr_expect(group_wait(&g, until_generations, 3, 20000), "two, and one that is retired");
    auto_free char *retired = group_path_of_step(&g, 40, LAYOUT_RETIRED), *commit = group_path_of_step(&g, 50, LAYOUT_COMMIT);
    cr_expect(access(retired, F_OK) == 0 && access(commit, F_OK) == 0);
    cr_expect(access(foreign, F_OK) == 0 && access(note, F_OK) == 0);

    for (int32_t rank = 0; rank < 2; rank++)
        group_lose_node(&g, rank);
    cr_assert(group_form(&g, 0x100000002));
    cr_expect(g.restore.step == 60);
    for (int64_t step = 70; step <= 120; step += 10)
        cr_assert(group_save(&g, step, DATA));
    cr_expect(group_wait(&g, until_generations, 4, 20000), "the base of the round is kept");
    auto_free char *base = group_path_of_step(&g, 60, LAYOUT_COMMIT);
    cr_expect(base != NULL && access(base, F_OK) == 0);
    group_release(&g);
}
