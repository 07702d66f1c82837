#include <criterion/criterion.h>
#include <string.h>

#include "base/mem.h"
#include "sidecar/checkpoint/agree.h"

#define S(e, s) { { e, s }, 3 }      /* of a world of three */
#define W(e, s, w) { { e, s }, w }

/* The lineage is: epoch 1 restored at 30 by epoch 2. */
static const struct {
    const char *name;
    struct holding volume[3];
    size_t volume_count;
    struct holding slots[3][2]; /* world 0: empty */
    bool found;
    struct checkpoint_id id;
} CASES[] = {
    { "nothing anywhere", { { { 0, 0 }, 0 } }, 0, { { { { 0, 0 }, 0 } } }, false, { 0, 0 } },
    { "only the volume", { S(2, 40), S(1, 30) }, 2, { { { { 0, 0 }, 0 } } }, true, { 2, 40 } },
    { "memory is newer", { S(2, 40) }, 1, { { S(2, 50), S(2, 40) }, { S(2, 50) }, { S(2, 40), S(2, 50) } }, true, { 2, 50 } },
    { "the volume is newer", { S(2, 60) }, 1, { { S(2, 50) }, { S(2, 50) }, { S(2, 50) } }, true, { 2, 60 } },
    { "one rank lags", { S(1, 30) }, 1, { { S(2, 60), S(2, 50) }, { S(2, 50), S(1, 30) }, { S(2, 50), S(2, 60) } }, true, { 2, 50 } },
    { "one rank has nothing", { S(1, 30) }, 1, { { S(2, 60) }, { { { 0, 0 }, 0 } }, { S(2, 60) } }, true, { 1, 30 } },
    { "no common step", { { { 0, 0 }, 0 } }, 0, { { S(2, 60) }, { S(2, 50) }, { S(2, 40) } }, false, { 0, 0 } },
    { "same step of two epochs is two steps", { S(1, 30) }, 1, { { S(2, 30) }, { S(1, 30) }, { S(2, 30) } }, true, { 1, 30 } },
    { "same step, later epoch", { S(1, 30) }, 1, { { S(2, 30) }, { S(2, 30) }, { S(2, 30) } }, true, { 2, 30 } },
    { "all hold what was left behind", { S(2, 35) }, 1, { { S(1, 99) }, { S(1, 99) }, { S(1, 99) } }, true, { 2, 35 } },
    { "the volume has an orphan", { S(1, 99), S(1, 20) }, 2, { { { { 0, 0 }, 0 } } }, true, { 1, 20 } },
    { "another world on the volume", { W(2, 40, 4) }, 1, { { { { 0, 0 }, 0 } } }, true, { 2, 40 } },
    { "another world, but older", { W(1, 20, 4), S(2, 40) }, 2, { { { { 0, 0 }, 0 } } }, true, { 2, 40 } },
    { "another world, and newer", { S(1, 20), W(2, 40, 4) }, 2, { { { { 0, 0 }, 0 } } }, true, { 2, 40 } },
    { "a larger world in memory: one of its ranks is gone", { S(1, 20) }, 1, { { W(2, 50, 4) }, { W(2, 50, 4) }, { W(2, 50, 4) } }, true, { 1, 20 } },
    { "a larger world in memory, and nowhere else", { { { 0, 0 }, 0 } }, 0, { { W(2, 50, 4) }, { W(2, 50, 4) }, { W(2, 50, 4) } }, false, { 0, 0 } },
    { "a larger world in memory and on the volume", { W(2, 50, 4) }, 1, { { W(2, 50, 4) }, { W(2, 50, 4) }, { W(2, 50, 4) } }, true, { 2, 50 } },
    { "a smaller world in memory", { S(1, 20) }, 1, { { W(2, 50, 2) }, { W(2, 50, 2) }, { { { 0, 0 }, 0 } } }, true, { 2, 50 } },
    { "a smaller world in memory, one of it started anew", { S(1, 20) }, 1, { { W(2, 50, 2) }, { { { 0, 0 }, 0 } }, { W(2, 50, 2) } }, true, { 1, 20 } },
};

Test(agree, takes_the_newest_step_that_every_rank_can_restore)
{
    struct lineage l = { .count = 0 };
    lineage_push(&l, 1, NULL);
    lineage_push(&l, 2, &(struct checkpoint_id){ 1, 30 });
    for (size_t i = 0; i < COUNT(CASES); i++) {
        struct holdings by_rank[3] = { { .slot_count = 0 } };
        struct holding found = { .world = 0 };
        for (int rank = 0; rank < 3; rank++)
            for (int slot = 0; slot < 2; slot++)
                if (CASES[i].slots[rank][slot].world > 0)
                    by_rank[rank].slots[by_rank[rank].slot_count++] = CASES[i].slots[rank][slot];
        bool result = agree(CASES[i].volume, CASES[i].volume_count, by_rank, 3, &l, NULL, &found);
        cr_expect(result == CASES[i].found, "case %s: %d", CASES[i].name, result);
        if (result)
            cr_expect(checkpoint_id_equal(found.id, CASES[i].id), "case %s: epoch %d step %d", CASES[i].name, (int)found.id.epoch,
                      (int)found.id.step);
    }
}

Test(agree, below_a_step_only_what_is_older_counts)
{
    static const struct { const char *name; struct checkpoint_id below; bool found; struct checkpoint_id id; } rows[] = {
        { "one older on the volume", { 2, 40 }, true, { 1, 30 } },
        { "one older in memory", { 2, 50 }, true, { 2, 40 } },
        { "none", { 1, 20 }, false, { 0, 0 } },
    };
    struct holding volume[] = { S(1, 20), S(1, 30) };
    struct holdings by_rank[3] = { { .slots = { S(2, 40), S(2, 50) }, .slot_count = 2 }, { .slots = { S(2, 40), S(2, 50) }, .slot_count = 2 },
                                   { .slots = { S(2, 40), S(2, 50) }, .slot_count = 2 } };
    struct lineage l = { .count = 0 };

    lineage_push(&l, 1, NULL);
    lineage_push(&l, 2, &(struct checkpoint_id){ 1, 30 });
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct holding found = { .world = 0 };
        cr_expect(agree(volume, 2, by_rank, 3, &l, &rows[i].below, &found) == rows[i].found, "case %s", rows[i].name);
        cr_expect(!rows[i].found || checkpoint_id_equal(found.id, rows[i].id), "case %s: step %d", rows[i].name, (int)found.id.step);
    }
}

Test(agree, holdings_survive_the_way)
{
    struct holdings h = { .slots = { S(UINT64_MAX - 1, 77), S(3, 9) }, .slot_count = 2 }, back;
    struct holding volume = S(2, 5);
    struct error e = ERROR_INIT;
    lineage_push(&h.lineage, 4, NULL);
    auto_json cJSON *tree = holdings_encode(&h, &volume, 1);
    auto_free char *text = json_print(tree, false);
    auto_json cJSON *parsed = NULL;
    cr_assert(json_parse(text, strlen(text), &parsed, &e) == 0 && holdings_decode(parsed, &back, &e) == 0, "%s", e.text);
    cr_expect(back.slot_count == 2 && checkpoint_id_equal(back.slots[0].id, h.slots[0].id) && back.slots[1].world == 3);
    cr_expect(lineage_head(&back.lineage) == 4);
    cr_expect(holdings_decode(NULL, &back, &e) == 0 && back.slot_count == 0 && back.lineage.count == 0, "a member without any");
}

static const struct { const char *name, *text; } WRONG[] = {
    { "epoch as number", "{\"slots\":[{\"epoch\":3,\"step\":1,\"world\":2}]}" },
    { "no step", "{\"slots\":[{\"epoch\":\"3\",\"world\":2}]}" },
    { "world 0", "{\"slots\":[{\"epoch\":\"3\",\"step\":1,\"world\":0}]}" },
    { "world beyond 32 bits", "{\"slots\":[{\"epoch\":\"3\",\"step\":1,\"world\":4294967298}]}" },
    { "too many", "{\"slots\":[{\"epoch\":\"1\",\"step\":1,\"world\":1},{\"epoch\":\"1\",\"step\":1,\"world\":1},{\"epoch\":\"1\",\"step\":1,\"world\":1},"
                  "{\"epoch\":\"1\",\"step\":1,\"world\":1},{\"epoch\":\"1\",\"step\":1,\"world\":1},{\"epoch\":\"1\",\"step\":1,\"world\":1},"
                  "{\"epoch\":\"1\",\"step\":1,\"world\":1},{\"epoch\":\"1\",\"step\":1,\"world\":1},{\"epoch\":\"1\",\"step\":1,\"world\":1}]}" },
    { "bad lineage", "{\"slots\":[],\"lineage\":[{}]}" },
};

Test(agree, holdings_that_cannot_be_are_refused)
{
    for (size_t i = 0; i < COUNT(WRONG); i++) {
        struct holdings h;
        struct error e = ERROR_INIT;
        auto_json cJSON *tree = NULL;
        cr_assert(json_parse(WRONG[i].text, strlen(WRONG[i].text), &tree, &e) == 0);
        cr_expect(holdings_decode(tree, &h, &e) != 0, "case %s", WRONG[i].name);
    }
}
