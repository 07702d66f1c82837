/* fuzz_checkpoint.c — the JSON documents on the volume and in a JOIN. What is read can be written and read again. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sidecar/checkpoint/agree.h"
#include "checkpoint/manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct step_key KEY = { .job = "uid-1", .generation = { { 4294967297, 70 }, "0123456789abcdef0123456789abcdef" } };

static void documents(const char *text, size_t len)
{
    struct error e = ERROR_INIT;
    struct step_key key = KEY;
    auto_free struct manifest_entry *entries = NULL;
    struct commit_record record;
    struct lineage l;
    if (manifest_decode(text, len, &key, &entries, &e) == 0) {
        auto_free char *again = manifest_encode(&key, entries);
        auto_free struct manifest_entry *back = NULL;
        if (manifest_decode(again, strlen(again), &key, &back, &e) != 0 || memcmp(entries, back, (size_t)key.world * sizeof(*back)) != 0)
            abort();
    }
    key.world = 0;
    if (commit_decode(text, len, &key, &record, &e) == 0 && key.world < 1)
        abort();
    if (base_decode(text, len, KEY.job, 4294967297, &l, &e) == 0 && lineage_head(&l) != 4294967297)
        abort();
    (void)!claim_check(text, len, KEY.job, 4294967297, NULL, &e);
}

static void votes(const char *text, size_t len)
{
    struct error e = ERROR_INIT;
    struct step_key key = KEY;
    auto_vote struct vote v = { .rank = 0 }, of_any = { .rank = 0 };
    if (vote_decode(text, len, &key, 1, &of_any, &e) == 0 && (of_any.world < 2 || of_any.world > MANIFEST_MAX_WORLD))
        abort();
    key.world = 2;
    if (vote_decode(text, len, &key, 1, &v, &e) == 0) {
        if (v.world != 2 || of_any.world != 2)
            abort();
        auto_free char *again = vote_encode(&key, &v);
        auto_vote struct vote back = { .rank = 0 };
        if (vote_decode(again, strlen(again), &key, 1, &back, &e) != 0 || back.crc64nvme != v.crc64nvme || back.bytes != v.bytes)
            abort();
    }
}

static void holdings(const char *text, size_t len)
{
    struct error e = ERROR_INIT;
    struct holdings h, back;
    auto_json cJSON *tree = NULL;
    if (json_parse(text, len, &tree, &e) != 0 || holdings_decode(tree, &h, &e) != 0)
        return;
    auto_json cJSON *again = holdings_encode(&h, NULL, 0);
    if (holdings_decode(again, &back, &e) != 0 || back.slot_count != h.slot_count || back.lineage.count != h.lineage.count)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    documents((const char *)data, size);
    votes((const char *)data, size);
    holdings((const char *)data, size);
    return 0;
}
