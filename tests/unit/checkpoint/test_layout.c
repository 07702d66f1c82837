#include <criterion/criterion.h>
#include <string.h>

#include "base/mem.h"
#include "checkpoint/layout.h"

#define NONCE "0123456789abcdef0123456789abcdef"

static const struct { const char *name; bool ours; int64_t step; uint64_t epoch; } GENERATIONS[] = {
    { "s000000000050-e0000000100000002-" NONCE, true, 50, 0x100000002 },
    { "s000000000000-e0000000000000000-" NONCE, true, 0, 0 },
    { "s999999999999999-effffffffffffffff-" NONCE, true, 999999999999999, UINT64_MAX },
    { "s0000000000050-e0000000100000002-" NONCE, false, 0, 0 },
    { "s50-e0000000100000002-" NONCE, false, 0, 0 },
    { "s000000000050-e000000010000002-" NONCE, false, 0, 0 },
    { "s000000000050-e0000000100000002-" NONCE "0", false, 0, 0 },
    { "s000000000050-e0000000100000002-0123", false, 0, 0 },
    { "s000000000050-e000000010000000A-" NONCE, false, 0, 0 },
    { "s000000000050-e0000000100000002-" NONCE ".tmp", false, 0, 0 },
    { "s-00000000050-e0000000100000002-" NONCE, false, 0, 0 },
    { "s9999999999999999999-e0000000100000002-" NONCE, false, 0, 0 },
    { "epochs", false, 0, 0 }, { "LATEST", false, 0, 0 }, { "s", false, 0, 0 }, { "", false, 0, 0 }, { "model.safetensors", false, 0, 0 },
};

Test(layout, knows_its_own_names_and_no_others)
{
    for (size_t i = 0; i < COUNT(GENERATIONS); i++) {
        struct generation g;
        char name[LAYOUT_NAME_MAX];
        bool ours = layout_generation_parse(GENERATIONS[i].name, &g);
        cr_expect(ours == GENERATIONS[i].ours, "case %s", GENERATIONS[i].name);
        if (!ours || !GENERATIONS[i].ours)
            continue;
        cr_expect(g.id.step == GENERATIONS[i].step && g.id.epoch == GENERATIONS[i].epoch, "case %s", GENERATIONS[i].name);
        layout_generation(&g, name);
        cr_expect_str_eq(name, GENERATIONS[i].name);
    }
}

Test(layout, names_the_files_of_epochs_and_ranks)
{
    char name[LAYOUT_NAME_MAX];
    uint64_t epoch = 0;
    layout_claim(0x100000002, name);
    cr_expect_str_eq(name, "e0000000100000002.claim");
    cr_expect(layout_claim_parse(name, &epoch) && epoch == 0x100000002 && !layout_base_parse(name, &epoch));
    layout_base(UINT64_MAX, name);
    cr_expect(layout_base_parse(name, &epoch) && epoch == UINT64_MAX);
    cr_expect(!layout_claim_parse("e0000000100000002.claim-abc.tmp", &epoch) && !layout_claim_parse("e1.claim", &epoch));
    layout_shard(3, name);
    cr_expect_str_eq(name, "shard-00003-model-00001-of-00001.safetensors");
    layout_vote(12345, name);
    cr_expect_str_eq(name, "vote-12345.json");
    cr_expect(layout_is_tmp("COMMIT-x.tmp") && !layout_is_tmp(".tmp") && !layout_is_tmp("tmp"));
}

static const struct { const char *uid; bool ok; } UIDS[] = {
    { "5f1c7e0a-3b1d-4a6f-9d0e-8d1c2b3a4f5e", true }, { "a", true }, { "A_b.c-9", true },
    { "", false }, { ".", false }, { "..", false }, { ".hidden", false }, { "a/b", false }, { "a b", false }, { "a\n", false },
    { "0123456789012345678901234567890123456789012345678901234567890123", false },
};

Test(layout, takes_no_uid_that_leads_elsewhere)
{
    for (size_t i = 0; i < COUNT(UIDS); i++)
        cr_expect(layout_uid_ok(UIDS[i].uid) == UIDS[i].ok, "case %s", UIDS[i].uid);
}
