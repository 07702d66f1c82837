#include <criterion/criterion.h>

#include "base/mem.h"
#include "checkpoint/lineage.h"

/* Epoch 1 ran to somewhere and was restored at 30 by 3 (2 was void); 3 was restored at 50 by 4; 4 at 40 by 6: back behind 50. */
static void history(struct lineage *l)
{
    *l = (struct lineage){ .count = 0 };
    lineage_push(l, 1, NULL);
    lineage_push(l, 3, &(struct checkpoint_id){ 1, 30 });
    lineage_push(l, 4, &(struct checkpoint_id){ 3, 50 });
    lineage_push(l, 6, &(struct checkpoint_id){ 3, 40 });
}

static const struct { const char *name; struct checkpoint_id id; bool visible; } SEEN[] = {
    { "own epoch, anything", { 6, 1000 }, true },
    { "the base itself", { 3, 40 }, true },
    { "older than the base, its epoch", { 3, 35 }, true },
    { "newer than the base, its epoch", { 3, 41 }, false },
    { "what the base's epoch began from", { 1, 30 }, true },
    { "older, in the first epoch", { 1, 1 }, true },
    { "late, in the first epoch", { 1, 31 }, false },
    { "an epoch that was left without being restored from", { 4, 45 }, false },
    { "an epoch without a base", { 2, 5 }, false },
    { "an epoch nobody has heard of", { 5, 5 }, false },
    { "a later epoch", { 7, 1 }, false },
};

Test(lineage, sees_its_own_history_and_nothing_else)
{
    struct lineage l;
    history(&l);
    for (size_t i = 0; i < COUNT(SEEN); i++)
        cr_expect(lineage_visible(&l, SEEN[i].id) == SEEN[i].visible, "case %s", SEEN[i].name);
    struct lineage none = { .count = 0 };
    cr_expect(!lineage_visible(&none, (struct checkpoint_id){ 0, 0 }));
    cr_expect(lineage_has_base(&l, (struct checkpoint_id){ 3, 40 }) && lineage_has_base(&l, (struct checkpoint_id){ 1, 30 }));
    cr_expect(!lineage_has_base(&l, (struct checkpoint_id){ 3, 50 }));
}

Test(lineage, from_scratch_ends_it)
{
    struct lineage l;
    history(&l);
    lineage_push(&l, 7, NULL);
    cr_expect(l.count == 1 && lineage_head(&l) == 7);
    cr_expect(!lineage_visible(&l, (struct checkpoint_id){ 3, 40 }));
}

Test(lineage, survives_being_written_and_read)
{
    struct lineage l, back;
    struct error e = ERROR_INIT;
    history(&l);
    auto_json cJSON *array = lineage_encode(&l);
    auto_free char *text = json_print(array, false);
    auto_json cJSON *tree = NULL;
    cr_assert(json_parse(text, strlen(text), &tree, &e) == 0 && lineage_decode(tree, &back, &e) == 0, "%s", e.text);
    cr_assert(back.count == l.count);
    for (size_t i = 0; i < COUNT(SEEN); i++)
        cr_expect(lineage_visible(&back, SEEN[i].id) == SEEN[i].visible, "case %s", SEEN[i].name);
}

Test(lineage, keeps_epochs_beyond_2_to_the_53_exact)
{
    struct lineage l = { .count = 0 }, back;
    struct error e = ERROR_INIT;
    lineage_push(&l, UINT64_MAX - 1, NULL);
    lineage_push(&l, UINT64_MAX, &(struct checkpoint_id){ UINT64_MAX - 1, 7 });
    auto_json cJSON *array = lineage_encode(&l);
    cr_assert(lineage_decode(array, &back, &e) == 0, "%s", e.text);
    cr_expect(lineage_head(&back) == UINT64_MAX && back.links[0].base.epoch == UINT64_MAX - 1);
}

static const struct { const char *name, *text, *says; } WRONG[] = {
    { "no array", "{}", "expected an array" },
    { "epoch as number", "[{\"epoch\":3}]", "decimal string" },
    { "epoch with junk", "[{\"epoch\":\"3x\"}]", "decimal string" },
    { "negative epoch", "[{\"epoch\":\"-3\"}]", "decimal string" },
    { "too large", "[{\"epoch\":\"18446744073709551616\"}]", "decimal string" },
    { "base without step", "[{\"epoch\":\"3\",\"base_epoch\":\"1\"}]", "base_step" },
    { "base in the future", "[{\"epoch\":\"3\",\"base_epoch\":\"3\",\"base_step\":1}]", "itself or a later" },
    { "broken chain", "[{\"epoch\":\"3\",\"base_epoch\":\"1\",\"base_step\":1},{\"epoch\":\"2\"}]", "not what the one before" },
    { "behind the end", "[{\"epoch\":\"3\"},{\"epoch\":\"1\"}]", "not what the one before" },
};

Test(lineage, refuses_what_no_history_can_be)
{
    for (size_t i = 0; i < COUNT(WRONG); i++) {
        struct error e = ERROR_INIT;
        struct lineage l;
        auto_json cJSON *tree = NULL;
        cr_assert(json_parse(WRONG[i].text, strlen(WRONG[i].text), &tree, &e) == 0);
        cr_expect(lineage_decode(tree, &l, &e) != 0 && strstr(e.text, WRONG[i].says) != NULL, "case %s: %s", WRONG[i].name, e.text);
    }
}

Test(lineage, is_bounded)
{
    struct lineage l = { .count = 0 };
    struct error e = ERROR_INIT;
    lineage_push(&l, 1, NULL);
    for (uint64_t epoch = 2; epoch < 3 * LINEAGE_MAX; epoch++)
        lineage_push(&l, epoch, &(struct checkpoint_id){ epoch - 1, (int64_t)epoch * 10 });
    cr_expect(l.count == LINEAGE_MAX);
    cr_expect(lineage_visible(&l, (struct checkpoint_id){ 3 * LINEAGE_MAX - 2, 10 }));
    auto_json cJSON *array = lineage_encode(&l);
    cr_expect(lineage_decode(array, &l, &e) == 0, "%s", e.text);
    json_append(array, json_object());
    cr_expect(lineage_decode(array, &l, &e) != 0 && e.kind == ERROR_LIMIT);
}

Test(lineage, the_one_with_the_newer_head_wins_as_a_whole)
{
    struct lineage old, new;
    history(&old);
    new = old;
    lineage_push(&new, 8, &(struct checkpoint_id){ 6, 90 });
    lineage_adopt(&old, &new);
    cr_expect(lineage_head(&old) == 8);
    history(&new);
    lineage_adopt(&old, &new);
    cr_expect(lineage_head(&old) == 8);
}
