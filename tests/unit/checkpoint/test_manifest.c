#include <criterion/criterion.h>
#include <string.h>

#include "base/mem.h"
#include "checkpoint/checksum.h"
#include "checkpoint/manifest.h"

#define NONCE "0123456789abcdef0123456789abcdef"

static const struct step_key KEY = { .job = "uid-1", .generation = { { UINT64_MAX - 5, 70 }, NONCE }, .world = 2 };

static uint32_t two_chunks[] = { 0xdeadbeef, 7 };
static const struct vote VOTE = { .rank = 1, .bytes = CHECKSUM_CHUNK_BYTES + 10, .header_bytes = 4096, .crc64nvme = 0xfedcba9876543210,
                                  .header_crc32c = 0x01020304, .chunks = two_chunks, .chunk_count = 2 };

Test(manifest, a_vote_survives_being_written_and_read)
{
    struct error e = ERROR_INIT;
    auto_free char *text = vote_encode(&KEY, &VOTE);
    auto_vote struct vote v = { .rank = 0 };
    cr_assert(vote_decode(text, strlen(text), &KEY, 1, &v, &e) == 0, "%s", e.text);
    cr_expect(v.bytes == VOTE.bytes && v.header_bytes == 4096 && v.crc64nvme == VOTE.crc64nvme && v.header_crc32c == 0x01020304);
    cr_expect(v.chunk_count == 2 && v.chunks[0] == 0xdeadbeef && v.chunks[1] == 7);
}

Test(manifest, a_vote_says_how_many_ranks_there_were)
{
    struct error e = ERROR_INIT;
    struct step_key any = KEY, small = KEY;
    any.world = 0;
    small.world = 1;
    auto_free char *text = vote_encode(&KEY, &VOTE), *of_nobody = vote_encode(&small, &VOTE);
    auto_vote struct vote v = { .rank = 0 };
    cr_assert(vote_decode(text, strlen(text), &any, 1, &v, &e) == 0, "%s", e.text);
    cr_expect(v.world == KEY.world && any.world == 0);
    vote_release(&v);
    cr_expect(vote_decode(of_nobody, strlen(of_nobody), &any, 1, &v, &e) != 0 && strstr(e.text, "found 1 in a world of 1") != NULL, "%s", e.text);
}

/* Each row changes one thing of a good vote, text for text. */
static const struct { const char *name, *from, *to, *says; } CHANGES[] = {
    { "kind", "checkpoint-vote", "checkpoint-commit", "kind" },
    { "version", "\"version\":\t1", "\"version\":\t2", "version: found 2" },
    { "job", "uid-1", "uid-2", "job: found \"uid-2\", expected \"uid-1\"" },
    { "epoch", "18446744073709551610", "18446744073709551611", "epoch" },
    { "epoch as a number", "\"18446744073709551610\"", "18446744073709551610", "epoch" },
    { "step", "\"step\":\t70", "\"step\":\t71", "step: found 71, expected 70" },
    { "nonce", "0123456789abcdef0", "0123456789abcdef1", "nonce" },
    { "world", "\"world\":\t2", "\"world\":\t3", "world: found 3, expected 2" },
    { "rank", "\"rank\":\t1", "\"rank\":\t0", "rank: found 0, expected 1" },
    { "bytes", "\"bytes\":\t4194314", "\"bytes\":\t99999999", "crc32c: expected 24 checksums" },
    { "negative bytes", "\"bytes\":\t4194314", "\"bytes\":\t-1", "cannot be" },
    { "header beyond the file", "\"header_bytes\":\t4096", "\"header_bytes\":\t4194315", "cannot be" },
    { "checksum", "fedcba9876543210", "fedcba987654321", "crc64nvme" },
    { "checksum in capitals", "fedcba9876543210", "FEDCBA9876543210", "crc64nvme" },
    { "header checksum", "01020304", "0102030", "header_crc32c" },
    { "chunk missing", "deadbeef00000007", "deadbeef", "crc32c: expected 2 checksums" },
    { "chunk cut", "deadbeef00000007", "deadbeef0000000", "crc32c: expected 2 checksums" },
    { "chunk that is none", "deadbeef00000007", "deadbeefxxxxxxxx", "not 8 hex digits" },
    { "chunk size", "\"chunk_bytes\":\t4194304", "\"chunk_bytes\":\t1", "crc32c" },
    { "not JSON", "{", "", "" },
};

static char *changed(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    cr_assert(at != NULL, "%s is in %s", from, text);
    return xasprintf("%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
}

Test(manifest, a_vote_that_says_anything_else_is_refused)
{
    auto_free char *text = vote_encode(&KEY, &VOTE);
    for (size_t i = 0; i < COUNT(CHANGES); i++) {
        struct error e = ERROR_INIT;
        auto_vote struct vote v = { .rank = 0 };
        auto_free char *other = changed(text, CHANGES[i].from, CHANGES[i].to);
        cr_expect(vote_decode(other, strlen(other), &KEY, 1, &v, &e) != 0, "case %s", CHANGES[i].name);
        cr_expect(strstr(e.text, CHANGES[i].says) != NULL, "case %s: %s", CHANGES[i].name, e.text);
    }
}

static const struct manifest_entry ENTRIES[] = {
    { .bytes = 1000, .header_bytes = 100, .crc64nvme = 1, .header_crc32c = 2, .vote_crc32c = 3 },
    { .bytes = 1ull << 52, .header_bytes = 4096, .crc64nvme = UINT64_MAX, .header_crc32c = UINT32_MAX, .vote_crc32c = 0 },
};

static const struct { const char *name, *from, *to, *says; } MANIFEST_CHANGES[] = {
    { "world", "\"world\":\t2", "\"world\":\t3", "shards: expected an array of 3" },
    { "no world", "\"world\":\t2", "\"world\":\t0", "world" },
    { "a huge world", "\"world\":\t2", "\"world\":\t1000000000", "world" },
    { "another file", "shard-00001", "shard-00000", "shards[1].file" },
    { "a path", "shard-00001-model", "../../../etc/x", "shards[1].file" },
    { "vote checksum", "00000003", "0000003", "shards[0].vote_crc32c" },
    { "size", "\"bytes\":\t1000", "\"bytes\":\t99", "shards[0]" },
};

Test(manifest, a_manifest_survives_and_any_change_of_it_is_seen)
{
    struct error e = ERROR_INIT;
    auto_free char *text = manifest_encode(&KEY, ENTRIES);
    struct step_key key = KEY;
    key.world = 0;
    auto_free struct manifest_entry *back = NULL;
    cr_assert(manifest_decode(text, strlen(text), &key, &back, &e) == 0, "%s", e.text);
    cr_expect(key.world == 2 && memcmp(back, ENTRIES, sizeof(ENTRIES)) == 0);
    for (size_t i = 0; i < COUNT(MANIFEST_CHANGES); i++) {
        struct step_key again = KEY;
        auto_free struct manifest_entry *none = NULL;
        auto_free char *other = changed(text, MANIFEST_CHANGES[i].from, MANIFEST_CHANGES[i].to);
        again.world = 0;
        cr_expect(manifest_decode(other, strlen(other), &again, &none, &e) != 0, "case %s", MANIFEST_CHANGES[i].name);
        cr_expect(strstr(e.text, MANIFEST_CHANGES[i].says) != NULL, "case %s: %s", MANIFEST_CHANGES[i].name, e.text);
    }
}

Test(manifest, a_commit_names_one_manifest)
{
    struct error e = ERROR_INIT;
    struct commit_record record = { .manifest_bytes = 1234, .manifest_crc64nvme = 0xabcdef }, back;
    struct step_key key = KEY;
    auto_free char *text = commit_encode(&KEY, &record);
    key.world = 0;
    cr_assert(commit_decode(text, strlen(text), &key, &back, &e) == 0, "%s", e.text);
    cr_expect(key.world == 2 && back.manifest_bytes == 1234 && back.manifest_crc64nvme == 0xabcdef);
    auto_free char *other = changed(text, "0000000000abcdef", "0000000000abcde");
    cr_expect(commit_decode(other, strlen(other), &key, &back, &e) != 0 && strstr(e.text, "manifest_crc64nvme") != NULL, "%s", e.text);
    struct step_key stranger = KEY;
    stranger.generation.id.step = 71;
    cr_expect(commit_decode(text, strlen(text), &stranger, &back, &e) != 0 && strstr(e.text, "step") != NULL, "%s", e.text);
}

Test(manifest, a_base_carries_the_history)
{
    struct error e = ERROR_INIT;
    struct lineage l = { .count = 0 }, back;
    lineage_push(&l, 3, NULL);
    lineage_push(&l, 9, &(struct checkpoint_id){ 3, 44 });
    auto_free char *text = base_encode("uid-1", 9, NONCE, 2, &l);
    cr_assert(base_decode(text, strlen(text), "uid-1", 9, &back, &e) == 0, "%s", e.text);
    cr_expect(lineage_visible(&back, (struct checkpoint_id){ 3, 44 }) && !lineage_visible(&back, (struct checkpoint_id){ 3, 45 }));
    cr_expect(base_decode(text, strlen(text), "uid-1", 8, &back, &e) != 0, "a base of epoch 9 under the name of 8");
    cr_expect(base_decode(text, strlen(text), "uid-2", 9, &back, &e) != 0);
}
