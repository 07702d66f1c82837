/* test_checkpoint_world.c — a step that is restored by another number of ranks. */
#include <criterion/criterion.h>
#include <fcntl.h>

#include "checkpoint_group.h"

#define DATA 50000u

static void group_resize(struct group *g, int32_t world)
{
    for (int32_t rank = world; rank < g->world; rank++)
        group_kill(g, rank);
    int32_t before = g->world;
    g->world = world;
    for (int32_t rank = before; rank < world; rank++)
        group_start(g, rank);
}

/* Every image of `saved` ranks, each at the rank that has to read it. */
static bool dealt_out(struct group *g, int32_t saved, int64_t step, int32_t from_memory)
{
    for (int32_t image = 0; image < saved; image++) {
        struct error e = ERROR_INIT;
        if (!trainer_reads(g, image % g->world, image, step, image < from_memory, &e)) {
            fprintf(stderr, "image %d: %s\n", (int)image, e.text);
            return false;
        }
    }
    return true;
}

static const struct { const char *name; int32_t saved, ranks; bool lost; int32_t from_memory; } WORLDS[] = {
    { "four to two", 4, 2, false, 2 },
    { "four to three", 4, 3, false, 3 },
    { "four to eight", 4, 8, false, 4 },
    { "two to four", 2, 4, false, 2 },
    { "four to one on another node", 4, 1, true, 0 },
    { "two to four on other nodes", 2, 4, true, 0 },
};

Test(checkpoint, a_step_is_restored_by_another_number_of_ranks, .timeout = 60)
{
    for (size_t i = 0; i < COUNT(WORLDS); i++) {
        struct group g;
        group_init(&g, WORLDS[i].saved, true);
        cr_assert(group_form(&g, 0x100000001));
        cr_assert(group_save(&g, 10, DATA), "case %s", WORLDS[i].name);
        group_resize(&g, WORLDS[i].ranks);
        for (int32_t rank = 0; WORLDS[i].lost && rank < g.world; rank++)
            group_lose_node(&g, rank);
        cr_assert(group_form(&g, 0x200000001), "case %s: %s", WORLDS[i].name, g.claim_error.text);
        cr_expect(g.restore.found && g.restore.step == 10 && g.restore.world == WORLDS[i].saved, "case %s", WORLDS[i].name);
        cr_expect(dealt_out(&g, WORLDS[i].saved, 10, WORLDS[i].from_memory), "case %s", WORLDS[i].name);
        /* What this world saves is of this world, and what follows is of the next. */
        cr_expect(group_save(&g, 20, DATA), "case %s", WORLDS[i].name);
        cr_assert(group_form(&g, 0x200000002));
        cr_expect(g.restore.step == 20 && g.restore.world == WORLDS[i].ranks && group_restores(&g, 20, true), "case %s", WORLDS[i].name);
        group_release(&g);
    }
}

Test(checkpoint, ranks_that_the_step_does_not_have_are_given_none, .timeout = 60)
{
    struct group g;
    struct checkpoint_restore restore;
    struct error e = ERROR_INIT;
    uint64_t offset, bytes = 7;
    bool memory = true;
    int fd = 7;
    group_init(&g, 2, true);
    cr_assert(group_form(&g, 0x100000001) && group_save(&g, 10, DATA));
    group_resize(&g, 3);
    cr_assert(group_form(&g, 0x200000001));
    cr_assert(checkpoint_open_restore(g.members[2].checkpoint, 2, &restore, &fd, &offset, &bytes, &memory, &e) == 0, "%s", e.text);
    cr_expect(restore.found && restore.world == 2 && fd == -1 && bytes == 0 && !memory);
    cr_assert(checkpoint_open_restore(g.members[2].checkpoint, -1, &restore, &fd, &offset, &bytes, &memory, &e) == 0 && fd == -1);
    group_release(&g);
}

static bool no_votes(struct group *g, int32_t from, int32_t to, const cJSON *message)
{
    (void)g;
    (void)from;
    (void)to;
    return strcmp(json_text(message, "op", ""), "persist") == 0;
}

/* Staged everywhere and not yet on the volume when the ranks become more: restored from memory, and still committed, by those who saved it. */
Test(checkpoint, a_step_in_memory_is_taken_along_and_committed_by_its_own_ranks, .timeout = 60)
{
    struct group g;
    group_init(&g, 2, true);
    cr_assert(group_form(&g, 0x100000001));
    g.drop = no_votes;
    group_stage(&g, 10, DATA);
    (void)group_wait(&g, group_never, 0, 100);
    g.drop = NULL;
    group_resize(&g, 4);
    cr_assert(group_form(&g, 0x100000002), "%s", g.claim_error.text);
    cr_expect(g.restore.found && g.restore.step == 10 && g.restore.world == 2 && dealt_out(&g, 2, 10, 2));
    cr_expect(group_wait(&g, group_until_committed, 10, 20000), "failed: %s", g.members[0].why.text);
    for (int32_t rank = 0; rank < 4; rank++)
        cr_expect(g.members[rank].failed_count == 0, "rank %d: %s", (int)rank, g.members[rank].why.text);
    for (int32_t rank = 0; rank < 4; rank++)
        group_lose_node(&g, rank);
    cr_assert(group_form(&g, 0x200000001));
    cr_expect(g.restore.step == 10 && g.restore.world == 2 && dealt_out(&g, 2, 10, 0));
    group_release(&g);
}

/* The ranks that are gone took their images along: back to what is committed, and not to a mix. */
Test(checkpoint, fewer_ranks_go_back_to_what_is_committed, .timeout = 60)
{
    struct group g;
    group_init(&g, 3, true);
    cr_assert(group_form(&g, 0x100000001) && group_save(&g, 10, DATA));
    g.drop = no_votes;
    group_stage(&g, 20, DATA);
    (void)group_wait(&g, group_never, 0, 100);
    g.drop = NULL;
    group_resize(&g, 2);
    cr_assert(group_form(&g, 0x200000001), "%s", g.claim_error.text);
    cr_expect(g.restore.found && g.restore.step == 10 && g.restore.world == 3 && dealt_out(&g, 3, 10, 2));
    group_release(&g);
}

/* All votes are there, COMMIT is not, and the next world is another: its coordinator finishes what it finds. */
Test(checkpoint, a_step_that_lacks_only_commit_is_finished_by_another_number_of_ranks, .timeout = 60)
{
    struct group g;
    struct store s;
    struct store_scan scan;
    struct error e = ERROR_INIT;
    group_init(&g, 3, true);
    cr_assert(group_form(&g, 0x100000001) && group_save(&g, 10, DATA));
    cr_assert(store_init(&s, g.volume, GROUP_UID, NULL, &e) == 0 && store_scan(&s, &scan, &e) == 0 && scan.count == 1);
    auto_free char *dir = NULL;
    store_generation_path(&s, &scan.generations[0].generation, &dir);
    auto_free char *commit = fs_join(dir, LAYOUT_COMMIT);
    group_resize(&g, 2);
    for (int32_t rank = 0; rank < 2; rank++)
        group_lose_node(&g, rank);
    cr_assert(unlink(commit) == 0);
    cr_assert(group_form(&g, 0x200000001));
    cr_expect(g.restore.found && g.restore.step == 10 && g.restore.world == 3 && dealt_out(&g, 3, 10, 0));
    store_scan_release(&scan);
    store_release(&s);
    group_release(&g);
}

Test(checkpoint, damage_in_an_image_that_another_rank_reads_costs_the_step, .timeout = 60)
{
    struct group g;
    struct store s;
    struct store_scan scan;
    struct error e = ERROR_INIT;
    char name[LAYOUT_NAME_MAX];
    group_init(&g, 3, true);
    cr_assert(group_form(&g, 0x100000001) && group_save(&g, 10, DATA) && group_save(&g, 20, DATA));
    cr_assert(store_init(&s, g.volume, GROUP_UID, NULL, &e) == 0 && store_scan(&s, &scan, &e) == 0);
    auto_free char *dir = NULL;
    store_generation_path(&s, &scan.generations[0].generation, &dir);
    layout_shard(2, name);
    auto_free char *path = fs_join(dir, name);
    auto_close int fd = open(path, O_WRONLY | O_CLOEXEC);
    cr_assert(fd >= 0 && pwrite(fd, "\xff\xfe\xfd", 3, IMAGE_HEADER + 100) == 3);
    group_resize(&g, 2);
    cr_assert(group_form(&g, 0x200000001));
    cr_expect(g.restore.step == 20 && trainer_reads(&g, 1, 1, 20, true, &e), "%s", e.text);
    cr_expect(!trainer_reads(&g, 0, 2, 20, false, &e) && strstr(e.text, "is damaged in the 4 MiB from byte 0") != NULL, "%s", e.text);
    cr_assert(group_form(&g, 0x200000002), "%s", g.claim_error.text);
    cr_expect(g.restore.step == 10 && g.restore.world == 3 && dealt_out(&g, 3, 10, 2), "the step before");
    store_scan_release(&scan);
    store_release(&s);
    group_release(&g);
}
