/* test_checkpoint.c — the whole engine: three ranks, their trainers, and what can happen to them. */
#include <criterion/criterion.h>
#include <fcntl.h>

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

static bool drop_votes(struct group *g, int32_t from, int32_t to, const cJSON *message)
{
    (void)g;
    (void)from;
    (void)to;
    return strcmp(json_text(message, "op", ""), "vote") == 0;
}

static struct store store_of(struct group *g)
{
    struct store s;
    struct error e = ERROR_INIT;
    cr_assert(store_init(&s, g->volume, GROUP_UID, &e) == 0);
    return s;
}

static bool until_all_voted(struct group *g, int64_t step)
{
    struct store s = store_of(g);
    struct store_scan scan;
    struct error e = ERROR_INIT;
    bool all = false;
    cr_assert(store_scan(&s, &scan, &e) == 0);
    for (size_t i = 0; i < scan.count; i++) {
        if (scan.generations[i].generation.id.step != step)
            continue;
        auto_free char *dir = NULL;
        store_generation_path(&s, &scan.generations[i].generation, &dir);
        all = true;
        for (int32_t rank = 0; rank < g->world; rank++) {
            char name[LAYOUT_NAME_MAX];
            layout_vote(rank, name);
            auto_free char *path = fs_join(dir, name);
            all = all && access(path, F_OK) == 0;
        }
    }
    store_scan_release(&scan);
    store_release(&s);
    return all;
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
        g.drop = drop_votes;
        group_stage(&g, 20, DATA);
        cr_assert(group_wait(&g, until_all_voted, 20, 5000));
        if (with_manifest) {
            struct store s = store_of(&g);
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
    g.drop = drop_votes;
    group_stage(&g, 10, DATA);
    cr_assert(group_wait(&g, until_all_voted, 10, 5000));
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

/* ---- damage ------------------------------------------------------------------------------------------------------------- */

static char *path_of_step(struct group *g, int64_t step, const char *name)
{
    struct store s = store_of(g);
    struct store_scan scan;
    struct error e = ERROR_INIT;
    char *path = NULL;
    cr_assert(store_scan(&s, &scan, &e) == 0);
    for (size_t i = 0; i < scan.count && path == NULL; i++)
        if (scan.generations[i].generation.id.step == step) {
            auto_free char *dir = NULL;
            store_generation_path(&s, &scan.generations[i].generation, &dir);
            path = fs_join(dir, name);
        }
    store_scan_release(&scan);
    store_release(&s);
    return path;
}

static void flip(const char *path, off_t at)
{
    char byte;
    FILE *f = fopen(path, "r+b");
    cr_assert(f != NULL, "%s", path);
    cr_assert(fseek(f, at, SEEK_SET) == 0 && fread(&byte, 1, 1, f) == 1);
    byte ^= 0x10;
    cr_assert(fseek(f, at, SEEK_SET) == 0 && fwrite(&byte, 1, 1, f) == 1);
    cr_assert(fclose(f) == 0);
}

Test(checkpoint, a_flipped_bit_is_never_handed_out_and_the_step_before_is_restored, .timeout = 60)
{
    struct group g;
    struct error e = ERROR_INIT;
    group_init(&g, 3, true);
    cr_assert(group_form(&g, 0x100000001));
    cr_assert(group_save(&g, 10, DATA));
    cr_assert(group_save(&g, 20, 9u << 20));
    auto_free char *shard = path_of_step(&g, 20, "shard-00001-model-00001-of-00001.safetensors");
    flip(shard, IMAGE_HEADER + (5 << 20));
    for (int32_t rank = 0; rank < 3; rank++)
        group_lose_node(&g, rank);
    cr_assert(group_form(&g, 0x100000002));
    cr_expect(g.restore.step == 20, "sizes are right, so the claim cannot know");
    cr_expect(trainer_restores(&g, 0, 20, false, &e), "%s", e.text);
    cr_expect(!trainer_restores(&g, 1, 20, false, &e));
    cr_expect(e.kind == ERROR_INVALID && strstr(e.text, "damaged in the 4 MiB from byte 4194304") != NULL, "%s", e.text);
    auto_free char *bad = path_of_step(&g, 20, LAYOUT_BAD);
    cr_expect(access(bad, F_OK) == 0);
    cr_assert(group_form(&g, 0x100000003), "%s", g.claim_error.text);
    cr_expect(g.restore.step == 10);
    cr_expect(group_restores(&g, 10, false));
    for (int32_t rank = 0; rank < 3; rank++)
        cr_expect(checkpoint_committed_step(g.members[rank].checkpoint) == 10, "rank %d no longer says 20", (int)rank);
    cr_assert(group_save(&g, 20, DATA), "the step can be saved anew");
    group_release(&g);
}

static const struct { const char *name, *file; off_t at; bool remove, cut; } DAMAGES[] = {
    { "a bit of MANIFEST.json", LAYOUT_MANIFEST, 60, false, false },
    { "a bit of COMMIT", LAYOUT_COMMIT, 20, false, false },
    { "MANIFEST.json missing", LAYOUT_MANIFEST, 0, true, false },
    { "an image missing", "shard-00002-model-00001-of-00001.safetensors", 0, true, false },
    { "an image cut short", "shard-00000-model-00001-of-00001.safetensors", 0, false, true },
};

Test(checkpoint, what_a_claim_can_see_to_be_damaged_it_passes_over, .timeout = 60)
{
    for (size_t i = 0; i < COUNT(DAMAGES); i++) {
        struct group g;
        group_init(&g, 3, true);
        cr_assert(group_form(&g, 0x100000001));
        cr_assert(group_save(&g, 10, DATA) && group_save(&g, 20, DATA));
        auto_free char *path = path_of_step(&g, 20, DAMAGES[i].file);
        if (DAMAGES[i].remove)
            cr_assert(unlink(path) == 0);
        else if (DAMAGES[i].cut)
            cr_assert(truncate(path, 100) == 0);
        else
            flip(path, DAMAGES[i].at);
        for (int32_t rank = 0; rank < 3; rank++)
            group_lose_node(&g, rank);
        cr_assert(group_form(&g, 0x100000002), "case %s: %s", DAMAGES[i].name, g.claim_error.text);
        cr_expect(g.restore.step == 10, "case %s: step %d", DAMAGES[i].name, (int)g.restore.step);
        auto_free char *bad = path_of_step(&g, 20, LAYOUT_BAD);
        cr_expect(access(bad, F_OK) == 0, "case %s", DAMAGES[i].name);
        group_release(&g);
    }
}

/* ---- full and broken disks ------------------------------------------------------------------------------------------------ */

struct failing { const char *operation, *part; int error, count; };

static int fail_some(void *ctx, const char *operation, const char *path)
{
    struct failing *f = ctx;
    if (strcmp(operation, f->operation) != 0 || strstr(path, f->part) == NULL)
        return 0;
    f->count++;
    return f->error;
}

static const struct failing BROKEN[] = {
    { "write", "shard-00001", ENOSPC, 0 },       { "fallocate", "shard-00001", ENOSPC, 0 }, { "fsync", "shard-00002", EIO, 0 },
    { "close", "shard-00000", EDQUOT, 0 },       { "rename", "shard-00001", EIO, 0 },       { "write", "vote-00001", ENOSPC, 0 },
    { "fsync", "vote-00000", EIO, 0 },           { "mkdir", "s000000000020", ENOSPC, 0 },   { "write", "MANIFEST", ENOSPC, 0 },
    { "link", "/COMMIT", EIO, 0 },               { "create", "COMMIT", ENOSPC, 0 },         { "fsync", "COMMIT", EIO, 0 },
};

static bool until_failed(struct group *g, int64_t step)
{
    for (int32_t rank = 0; rank < g->world; rank++)
        if (g->members[rank].failed != step)
            return false;
    return true;
}

static int count_entries(struct group *g, const char *what)
{
    auto_free char *command = xasprintf("find %s -name '*%s*' | wc -l", g->volume, what);
    FILE *f = popen(command, "r");
    int n = -1;
    cr_assert(f != NULL && fscanf(f, "%d", &n) == 1);
    pclose(f);
    return n;
}

static bool until_tidy(struct group *g, int64_t ignored)
{
    (void)ignored;
    return count_entries(g, "s000000000020") == 0 && count_entries(g, ".tmp") == 0;
}

Test(checkpoint, a_broken_disk_fails_the_save_and_nothing_else, .timeout = 120)
{
    for (size_t i = 0; i < COUNT(BROKEN); i++) {
        struct failing f = BROKEN[i];
        struct group g;
        group_init(&g, 3, true);
        cr_assert(group_form(&g, 0x100000001));
        cr_assert(group_save(&g, 10, DATA));
        (void)group_wait(&g, group_never, 0, 20); /* tidying after the commit is over: no thread asks for faults now */
        fault_set(fail_some, &f);
        group_stage(&g, 20, DATA);
        cr_expect(group_wait(&g, until_failed, 20, 5000), "case %s %s", f.operation, f.part);
        cr_expect(f.count > 0, "case %s %s was reached", f.operation, f.part);
        cr_expect(strstr(g.members[1].why.text, strerror(f.error)) != NULL, "case %s %s: %s", f.operation, f.part, g.members[1].why.text);
        cr_expect(group_wait(&g, group_until_idle, 0, 5000), "case %s %s", f.operation, f.part);
        cr_expect(group_wait(&g, until_tidy, 0, 5000), "case %s %s leaves nothing", f.operation, f.part);
        fault_set(NULL, NULL);
        cr_assert(group_save(&g, 30, DATA), "case %s %s", f.operation, f.part);
        for (int32_t rank = 0; rank < 3; rank++)
            group_lose_node(&g, rank);
        cr_assert(group_form(&g, 0x100000002));
        cr_expect(g.restore.step == 30 && group_restores(&g, 30, false), "case %s %s", f.operation, f.part);
        group_release(&g);
    }
}

Test(checkpoint, a_disk_that_is_full_at_the_claim_leaves_memory_and_is_used_again_when_there_is_room, .timeout = 60)
{
    static const struct { const char *operation, *part; } AT[] = { { "write", ".claim" }, { "write", ".base" } };
    for (size_t i = 0; i < COUNT(AT); i++) {
        struct failing f = { AT[i].operation, AT[i].part, ENOSPC, 0 };
        struct group g;
        group_init(&g, 3, true);
        cr_assert(group_form(&g, 0x100000001));
        cr_assert(group_save(&g, 10, DATA));
        (void)group_wait(&g, group_never, 0, 20);
        fault_set(fail_some, &f);
        cr_assert(group_form(&g, 0x100000002), "case %s: %s", f.part, g.claim_error.text);
        cr_expect(g.restore.step == 10 && f.count > 0);
        group_stage(&g, 20, DATA);
        cr_expect(group_wait(&g, until_failed, 20, 5000), "case %s", f.part);
        cr_expect(strstr(g.members[2].why.text, "No space") != NULL, "%s", g.members[2].why.text);
        cr_assert(group_form(&g, 0x100000003), "case %s: %s", f.part, g.claim_error.text);
        cr_expect(g.restore.step == 20 && g.restore.epoch == 0x100000002, "case %s: memory goes on from memory", f.part);
        fault_set(NULL, NULL);
        cr_assert(group_save(&g, 30, DATA), "case %s", f.part);
        for (int32_t rank = 0; rank < 3; rank++)
            group_lose_node(&g, rank);
        cr_assert(group_form(&g, 0x100000004), "%s", g.claim_error.text);
        cr_expect(g.restore.step == 30 && group_restores(&g, 30, false), "case %s", f.part);
        group_release(&g);
    }
}

Test(checkpoint, slots_that_do_not_fit_are_an_error_in_words, .timeout = 60)
{
    struct group g;
    struct error e = ERROR_INIT;
    int fds[2];
    uint64_t slot_bytes;
    group_init(&g, 1, false);
    cr_assert(group_form(&g, 0x100000001));
    cr_assert(group_save(&g, 10, DATA));
    cr_expect(trainer_slots(&g, 0, 1ull << 45, fds, &slot_bytes, &e) != 0);
    cr_expect(strstr(e.text, "32.0 TiB") != NULL && strstr(e.text, "free") != NULL, "%s", e.text);
    cr_assert(group_save(&g, 20, DATA), "the old size goes on");
    cr_assert(group_save(&g, 30, 100u << 20), "and they grow when there is room, off the loop");
    cr_assert(group_form(&g, 0x100000002));
    cr_expect(g.restore.step == 30 && group_restores(&g, 30, true));
    group_release(&g);
}

/* ---- fences and identities ------------------------------------------------------------------------------------------------ */

Test(checkpoint, rounds_only_rise_and_a_newer_attempt_ends_this_one, .timeout = 60)
{
    struct group g;
    group_init(&g, 2, true);
    cr_assert(group_form(&g, 0x200000005));
    cr_expect(!group_claim(&g, 0x200000005) && g.claim_error.kind == ERROR_CONFLICT, "%s", g.claim_error.text);
    cr_expect(checkpoint_newest_epoch(g.members[0].checkpoint) == 0x200000005);
    for (int32_t rank = 0; rank < 2; rank++)
        group_lose_node(&g, rank);
    cr_expect(!group_claim(&g, 0x200000004) && g.claim_error.kind == ERROR_CONFLICT, "%s", g.claim_error.text);
    cr_expect(checkpoint_newest_epoch(g.members[0].checkpoint) == 0x200000005, "the volume says how high to go");
    cr_expect(!group_claim(&g, 0x100000009) && g.claim_error.kind == ERROR_GONE, "%s", g.claim_error.text);
    cr_expect(group_claim(&g, 0x200000006), "%s", g.claim_error.text);
    group_release(&g);
}

/* ---- another number of ranks ---------------------------------------------------------------------------------------------- */

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
    cr_assert(store_init(&s, g.volume, GROUP_UID, &e) == 0 && store_scan(&s, &scan, &e) == 0 && scan.count == 1);
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
    cr_assert(store_init(&s, g.volume, GROUP_UID, &e) == 0 && store_scan(&s, &scan, &e) == 0);
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

static cJSON *vote_message(uint64_t epoch, int64_t step, const char *nonce)
{
    char text[24];
    cJSON *vote = json_object();
    epoch_format(epoch, text);
    json_put_text(vote, "op", "vote");
    json_put_text(vote, "epoch", text);
    json_put_int(vote, "step", step);
    json_put_text(vote, "nonce", nonce);
    json_put_int(vote, "bytes", IMAGE_HEADER + DATA);
    json_put_text(vote, "crc64nvme", "0123456789abcdef");
    return vote;
}

Test(checkpoint, votes_count_by_identity, .timeout = 60)
{
    struct group g;
    group_init(&g, 3, true);
    cr_assert(group_form(&g, 0x100000001));
    g.drop = drop_votes;
    group_stage(&g, 10, DATA);
    cr_assert(group_wait(&g, until_all_voted, 10, 5000));
    auto_free char *dir = path_of_step(&g, 10, "");
    struct generation generation;
    dir[strlen(dir) - 1] = '\0';
    cr_assert(layout_generation_parse(strrchr(dir, '/') + 1, &generation));
    /* Three votes of rank 1, one of no rank, one of another nonce: that is one vote. */
    auto_json cJSON *vote = vote_message(0x100000001, 10, generation.nonce);
    auto_json cJSON *other = vote_message(0x100000001, 10, "00000000000000000000000000000000");
    for (int i = 0; i < 3; i++)
        checkpoint_message(g.members[0].checkpoint, 1, vote);
    checkpoint_message(g.members[0].checkpoint, 3, vote);
    checkpoint_message(g.members[0].checkpoint, -1, vote);
    checkpoint_message(g.members[0].checkpoint, 2, other);
    (void)group_wait(&g, group_never, 0, 50);
    cr_expect(g.members[0].committed == -1 && g.members[0].failed == -1);
    /* The same rank with another image: two processes think that they are rank 1. */
    (void)cJSON_ReplaceItemInObject(vote, "crc64nvme", cJSON_CreateString("ffffffffffffffff"));
    checkpoint_message(g.members[0].checkpoint, 1, vote);
    cr_expect(group_wait(&g, until_failed, 10, 2000));
    cr_expect(strstr(g.members[2].why.text, "rank 1") != NULL && strstr(g.members[2].why.text, "twice") != NULL, "%s", g.members[2].why.text);
    g.drop = NULL;
    cr_assert(group_save(&g, 20, DATA));
    group_release(&g);
}

static cJSON *failed_message(uint64_t epoch, int64_t step)
{
    char text[24];
    cJSON *failed = json_object();
    epoch_format(epoch, text);
    json_put_text(failed, "op", "failed");
    json_put_text(failed, "epoch", text);
    json_put_int(failed, "step", step);
    json_put_text(failed, "text", "no space left on device");
    return failed;
}

Test(checkpoint, a_superseded_coordinator_removes_nothing_that_its_successor_committed, .timeout = 60)
{
    struct group g;
    struct error e = ERROR_INIT;
    struct store_scan scan;
    group_init(&g, 3, true);
    cr_assert(group_form(&g, 0x100000001));
    g.drop = drop_votes;
    group_stage(&g, 10, DATA);
    cr_assert(group_wait(&g, until_all_voted, 10, 5000));
    /* While it is stopped another one claims the next epoch, finds all the votes and commits. */
    struct store s = store_of(&g);
    cr_assert(store_scan(&s, &scan, &e) == 0);
    struct step_key key = { .job = GROUP_UID, .generation = scan.generations[0].generation, .world = 3 };
    cr_assert(store_claim(&s, 0x100000002, "chief-0", "0123456789abcdef0123456789abcdef", 3, &e) == 0, "%s", e.text);
    cr_assert(store_commit(&s, &key, 0x100000002, &e) == 0, "%s", e.text);
    /* It wakes up and gives the step up. */
    auto_json cJSON *failed = failed_message(0x100000001, 10);
    checkpoint_message(g.members[0].checkpoint, 1, failed);
    cr_assert(group_wait(&g, until_failed, 10, 2000));
    (void)group_wait(&g, group_never, 0, 200);
    auto_free char *commit = path_of_step(&g, 10, "COMMIT");
    cr_expect(commit != NULL && access(commit, F_OK) == 0, "what the successor committed is gone");
    store_scan_release(&scan);
    store_release(&s);
    group_release(&g);
}

static atomic_bool commit_begun;

static int commit_takes_a_while(void *ctx, const char *operation, const char *path)
{
    (void)ctx;
    if (strcmp(operation, "link") == 0 && strstr(path, "/COMMIT") != NULL) {
        atomic_store(&commit_begun, true);
        (void)usleep(300000);
    }
    return 0;
}

static bool until_commit_begun(struct group *g, int64_t ignored)
{
    (void)g;
    (void)ignored;
    return atomic_load(&commit_begun);
}

Test(checkpoint, when_all_have_voted_nothing_takes_the_step_back, .timeout = 60)
{
    struct group g;
    group_init(&g, 3, true);
    cr_assert(group_form(&g, 0x100000001));
    fault_set(commit_takes_a_while, NULL);
    group_stage(&g, 10, DATA);
    cr_assert(group_wait(&g, until_commit_begun, 0, 5000));
    auto_json cJSON *failed = failed_message(0x100000001, 10);
    checkpoint_message(g.members[0].checkpoint, 1, failed);
    cr_expect(group_wait(&g, group_until_committed, 10, 5000));
    cr_expect(g.members[0].failed == -1, "%s", g.members[0].why.text);
    fault_set(NULL, NULL);
    (void)group_wait(&g, group_never, 0, 100);
    auto_free char *commit = path_of_step(&g, 10, "COMMIT");
    cr_expect(commit != NULL && access(commit, F_OK) == 0, "the committed step is gone");
    group_release(&g);
}

Test(checkpoint, garbage_from_a_peer_is_ignored, .timeout = 60)
{
    static const char *const GARBAGE[] = {
        "{}", "[]", "{\"op\":\"staged\"}", "{\"op\":\"staged\",\"epoch\":\"x\",\"step\":1}", "{\"op\":\"staged\",\"epoch\":\"1\",\"step\":-1}",
        "{\"op\":\"staged\",\"epoch\":\"4294967297\",\"step\":5,\"world\":99999999,\"bytes\":3}",
        "{\"op\":\"staged\",\"epoch\":\"4294967297\",\"step\":5,\"world\":2,\"bytes\":-3}",
        "{\"op\":\"vote\",\"epoch\":\"4294967297\",\"step\":5,\"nonce\":\"../../../../../../etc/passwd0000\",\"bytes\":1,\"crc64nvme\":\"0\"}",
        "{\"op\":\"persist\",\"epoch\":\"4294967297\",\"step\":5,\"nonce\":\"/\",\"world\":2}",
        "{\"op\":\"committed\",\"epoch\":\"99\",\"step\":5,\"uri\":\"file:///x\"}", "{\"op\":\"no such\",\"epoch\":\"1\",\"step\":1}",
        "{\"op\":\"aborted\",\"epoch\":\"4294967297\",\"step\":77}",
    };
    struct group g;
    struct error e = ERROR_INIT;
    group_init(&g, 2, true);
    cr_assert(group_form(&g, 0x100000001));
    for (size_t i = 0; i < COUNT(GARBAGE); i++) {
        auto_json cJSON *message = NULL;
        cr_assert(json_parse(GARBAGE[i], strlen(GARBAGE[i]), &message, &e) == 0);
        for (int32_t rank = 0; rank < 2; rank++)
            checkpoint_message(g.members[rank].checkpoint, 1, message);
    }
    cr_assert(group_save(&g, 10, DATA));
    cr_expect(g.members[0].committed_count == 1 && g.members[0].failed_count == 0);
    group_release(&g);
}

/* ---- slots that run out ----------------------------------------------------------------------------------------------------- */

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

/* ---- retention -------------------------------------------------------------------------------------------------------------- */

static bool until_generations(struct group *g, int64_t count)
{
    struct store s = store_of(g);
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
    cr_expect(group_wait(&g, until_generations, 3, 2000), "two, and one that is retired");
    auto_free char *retired = path_of_step(&g, 40, LAYOUT_RETIRED), *commit = path_of_step(&g, 50, LAYOUT_COMMIT);
    cr_expect(access(retired, F_OK) == 0 && access(commit, F_OK) == 0);
    cr_expect(access(foreign, F_OK) == 0 && access(note, F_OK) == 0);

    for (int32_t rank = 0; rank < 2; rank++)
        group_lose_node(&g, rank);
    cr_assert(group_form(&g, 0x100000002));
    cr_expect(g.restore.step == 60);
    for (int64_t step = 70; step <= 120; step += 10)
        cr_assert(group_save(&g, step, DATA));
    cr_expect(group_wait(&g, until_generations, 4, 2000), "the base of the round is kept");
    auto_free char *base = path_of_step(&g, 60, LAYOUT_COMMIT);
    cr_expect(base != NULL && access(base, F_OK) == 0);
    group_release(&g);
}
