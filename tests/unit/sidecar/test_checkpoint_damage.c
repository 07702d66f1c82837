/* test_checkpoint_damage.c — bits that flipped, files that are gone, disks that are full or broken. */
#include <criterion/criterion.h>

#include "checkpoint_group.h"

#define DATA 50000u

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
    auto_free char *shard = group_path_of_step(&g, 20, "shard-00001-model-00001-of-00001.safetensors");
    flip(shard, IMAGE_HEADER + (5 << 20));
    for (int32_t rank = 0; rank < 3; rank++)
        group_lose_node(&g, rank);
    cr_assert(group_form(&g, 0x100000002));
    cr_expect(g.restore.step == 20, "sizes are right, so the claim cannot know");
    cr_expect(trainer_restores(&g, 0, 20, false, &e), "%s", e.text);
    cr_expect(!trainer_restores(&g, 1, 20, false, &e));
    cr_expect(e.kind == ERROR_INVALID && strstr(e.text, "damaged in the 4 MiB from byte 4194304") != NULL, "%s", e.text);
    auto_free char *bad = group_path_of_step(&g, 20, LAYOUT_BAD);
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
        auto_free char *path = group_path_of_step(&g, 20, DAMAGES[i].file);
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
        auto_free char *bad = group_path_of_step(&g, 20, LAYOUT_BAD);
        cr_expect(access(bad, F_OK) == 0, "case %s", DAMAGES[i].name);
        group_release(&g);
    }
}

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
        cr_expect(group_wait(&g, group_until_failed, 20, 5000), "case %s %s", f.operation, f.part);
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
        cr_expect(group_wait(&g, group_until_failed, 20, 5000), "case %s", f.part);
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
