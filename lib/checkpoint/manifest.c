#include "checkpoint/manifest.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "checkpoint/checksum.h"
#include "checkpoint/safetensors.h"

#define KIND "ringmaster.dev/checkpoint-"
#define VERSION 1
#define MAX_EXACT (1ll << 53)

void crc64_format(uint64_t crc, char ret_text[20])
{
    (void)snprintf(ret_text, 20, "%016" PRIx64, crc);
}

/* Exactly `digits` lower-case hex digits. */
static bool hex_parse(const char *text, size_t digits, uint64_t *ret_value)
{
    uint64_t value = 0;
    for (size_t i = 0; i < digits; i++) {
        char c = text[i];
        if (c >= '0' && c <= '9')
            value = value << 4 | (uint64_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            value = value << 4 | (uint64_t)(c - 'a' + 10);
        else
            return false;
    }
    *ret_value = value;
    return true;
}

bool crc64_parse(const char *text, uint64_t *ret_crc)
{
    return text != NULL && hex_parse(text, 16, ret_crc) && text[16] == '\0';
}

static bool crc32_parse(const char *text, uint32_t *ret_crc)
{
    uint64_t value;
    if (text == NULL || !hex_parse(text, 8, &value) || text[8] != '\0')
        return false;
    *ret_crc = (uint32_t)value;
    return true;
}

static void put_epoch(cJSON *object, const char *key, uint64_t epoch)
{
    char text[24];
    epoch_format(epoch, text);
    json_put_text(object, key, text);
}

static void put_crc64(cJSON *object, const char *key, uint64_t crc)
{
    char text[20];
    crc64_format(crc, text);
    json_put_text(object, key, text);
}

static void put_crc32(cJSON *object, const char *key, uint32_t crc)
{
    char text[12];
    (void)snprintf(text, sizeof(text), "%08" PRIx32, crc);
    json_put_text(object, key, text);
}

static cJSON *document(const char *kind, const char *job)
{
    cJSON *tree = json_object();
    json_put_text(tree, "kind", kind);
    json_put_int(tree, "version", VERSION);
    json_put_text(tree, "job", job);
    return tree;
}

static int document_parse(const char *text, size_t len, const char *kind, const char *job, cJSON **ret_tree, struct error *e)
{
    auto_json cJSON *tree = NULL;
    if (json_parse(text, len, &tree, e) != 0)
        return -1;
    if (strcmp(json_text(tree, "kind", ""), kind) != 0)
        return error_set(e, ERROR_INVALID, "kind: found \"%.60s\", expected \"%s\"", json_text(tree, "kind", ""), kind);
    if (json_int(tree, "version", 0) != VERSION)
        return error_set(e, ERROR_INVALID, "version: found %" PRId64 ", this release reads %d", json_int(tree, "version", 0), VERSION);
    if (strcmp(json_text(tree, "job", ""), job) != 0)
        return error_set(e, ERROR_INVALID, "job: found \"%.63s\", expected \"%s\"", json_text(tree, "job", ""), job);
    *ret_tree = TAKE(tree);
    return 0;
}

static cJSON *step_document(const char *kind, const struct step_key *key)
{
    cJSON *tree = document(kind, key->job);
    put_epoch(tree, "epoch", key->generation.id.epoch);
    json_put_int(tree, "step", key->generation.id.step);
    json_put_text(tree, "nonce", key->generation.nonce);
    json_put_int(tree, "world", key->world);
    return tree;
}

/* key->world 0: whatever the document says, within bounds. */
static int step_document_parse(const char *text, size_t len, const char *kind, struct step_key *key, cJSON **ret_tree, struct error *e)
{
    auto_json cJSON *tree = NULL;
    uint64_t epoch;
    if (document_parse(text, len, kind, key->job, &tree, e) != 0)
        return -1;
    if (!epoch_parse(json_text(tree, "epoch", NULL), &epoch) || epoch != key->generation.id.epoch)
        return error_set(e, ERROR_INVALID, "epoch: found \"%.24s\", expected %" PRIu64, json_text(tree, "epoch", ""), key->generation.id.epoch);
    if (json_int(tree, "step", -1) != key->generation.id.step)
        return error_set(e, ERROR_INVALID, "step: found %" PRId64 ", expected %" PRId64, json_int(tree, "step", -1), key->generation.id.step);
    if (strcmp(json_text(tree, "nonce", ""), key->generation.nonce) != 0)
        return error_set(e, ERROR_INVALID, "nonce: found \"%.33s\", expected %s", json_text(tree, "nonce", ""), key->generation.nonce);
    int64_t world = json_int(tree, "world", 0);
    if (world < 1 || world > MANIFEST_MAX_WORLD || (key->world != 0 && world != key->world))
        return error_set(e, ERROR_INVALID, "world: found %" PRId64 ", expected %" PRId32, world, key->world);
    key->world = (int32_t)world;
    *ret_tree = TAKE(tree);
    return 0;
}

char *claim_encode(const char *job, uint64_t epoch, const char *member, const char *nonce, int32_t world)
{
    auto_json cJSON *tree = document(KIND "claim", job);
    put_epoch(tree, "epoch", epoch);
    json_put_text(tree, "member", member);
    json_put_text(tree, "nonce", nonce);
    json_put_int(tree, "world", world);
    return json_print(tree, true);
}

int claim_check(const char *text, size_t len, const char *job, uint64_t epoch, const char *nonce, struct error *e)
{
    auto_json cJSON *tree = NULL;
    uint64_t found;
    if (document_parse(text, len, KIND "claim", job, &tree, e) != 0)
        return -1;
    if (!epoch_parse(json_text(tree, "epoch", NULL), &found) || found != epoch)
        return error_set(e, ERROR_INVALID, "epoch: found \"%.24s\", expected %" PRIu64, json_text(tree, "epoch", ""), epoch);
    if (nonce != NULL && strcmp(json_text(tree, "nonce", ""), nonce) != 0)
        return error_set(e, ERROR_CONFLICT, "epoch %" PRIu64 " is claimed by %.80s", epoch, json_text(tree, "member", "somebody else"));
    return 0;
}

char *base_encode(const char *job, uint64_t epoch, const char *nonce, int32_t world, const struct lineage *l)
{
    auto_json cJSON *tree = document(KIND "base", job);
    put_epoch(tree, "epoch", epoch);
    json_put_text(tree, "nonce", nonce);
    json_put_int(tree, "world", world);
    json_put(tree, "lineage", lineage_encode(l));
    return json_print(tree, true);
}

int base_decode(const char *text, size_t len, const char *job, uint64_t epoch, struct lineage *ret_lineage, struct error *e)
{
    auto_json cJSON *tree = NULL;
    struct lineage l;
    if (document_parse(text, len, KIND "base", job, &tree, e) != 0 || lineage_decode(json_at(tree, "lineage"), &l, e) != 0)
        return -1;
    if (lineage_head(&l) != epoch)
        return error_set(e, ERROR_INVALID, "lineage: begins at epoch %" PRIu64 ", expected %" PRIu64, lineage_head(&l), epoch);
    *ret_lineage = l;
    return 0;
}

char *vote_encode(const struct step_key *key, const struct vote *v)
{
    auto_json cJSON *tree = step_document(KIND "vote", key);
    auto_free char *chunks = xcalloc(v->chunk_count * 8 + 1, 1);
    for (size_t i = 0; i < v->chunk_count; i++)
        (void)snprintf(chunks + i * 8, 9, "%08" PRIx32, v->chunks[i]);
    json_put_int(tree, "rank", v->rank);
    json_put_int(tree, "bytes", (int64_t)v->bytes);
    json_put_int(tree, "header_bytes", (int64_t)v->header_bytes);
    put_crc32(tree, "header_crc32c", v->header_crc32c);
    put_crc64(tree, "crc64nvme", v->crc64nvme);
    json_put_int(tree, "chunk_bytes", CHECKSUM_CHUNK_BYTES);
    json_put_text(tree, "crc32c", chunks);
    return json_print(tree, true);
}

/* Sizes and checksums as a vote and a manifest entry both have them. */
static int sizes_parse(const cJSON *tree, uint64_t *ret_bytes, uint64_t *ret_header_bytes, uint32_t *ret_header_crc32c,
                       uint64_t *ret_crc64nvme, struct error *e)
{
    int64_t bytes = json_int(tree, "bytes", -1), header = json_int(tree, "header_bytes", -1);
    if (bytes < 0 || bytes > MAX_EXACT || header < 10 || header > bytes || header > (int64_t)SAFETENSORS_MAX_HEADER + 8)
        return error_set(e, ERROR_INVALID, "bytes and header_bytes: found %" PRId64 " and %" PRId64 ", which cannot be", bytes, header);
    if (!crc32_parse(json_text(tree, "header_crc32c", NULL), ret_header_crc32c))
        return error_set(e, ERROR_INVALID, "header_crc32c: expected 8 hex digits");
    if (!crc64_parse(json_text(tree, "crc64nvme", NULL), ret_crc64nvme))
        return error_set(e, ERROR_INVALID, "crc64nvme: expected 16 hex digits");
    *ret_bytes = (uint64_t)bytes;
    *ret_header_bytes = (uint64_t)header;
    return 0;
}

int vote_decode(const char *text, size_t len, const struct step_key *key, int32_t rank, struct vote *ret_vote, struct error *e)
{
    auto_json cJSON *tree = NULL;
    auto_vote struct vote v = { .rank = rank };
    struct step_key expected = *key;
    if (step_document_parse(text, len, KIND "vote", &expected, &tree, e) != 0)
        return -1;
    if (json_int(tree, "rank", -1) != rank)
        return error_set(e, ERROR_INVALID, "rank: found %" PRId64 ", expected %" PRId32, json_int(tree, "rank", -1), rank);
    if (sizes_parse(tree, &v.bytes, &v.header_bytes, &v.header_crc32c, &v.crc64nvme, e) != 0)
        return -1;
    if (rank >= expected.world)
        return error_set(e, ERROR_INVALID, "rank: found %" PRId32 " in a world of %" PRId32, rank, expected.world);
    v.world = expected.world;
    const char *chunks = json_text(tree, "crc32c", "");
    v.chunk_count = (size_t)((v.bytes + CHECKSUM_CHUNK_BYTES - 1) / CHECKSUM_CHUNK_BYTES);
    if (json_int(tree, "chunk_bytes", 0) != CHECKSUM_CHUNK_BYTES || strlen(chunks) / 8 != v.chunk_count || strlen(chunks) % 8 != 0)
        return error_set(e, ERROR_INVALID, "crc32c: expected %zu checksums of chunks of %u bytes", v.chunk_count, CHECKSUM_CHUNK_BYTES);
    v.chunks = xcalloc(v.chunk_count + 1, sizeof(*v.chunks));
    for (size_t i = 0; i < v.chunk_count; i++) {
        uint64_t crc;
        if (!hex_parse(chunks + i * 8, 8, &crc))
            return error_set(e, ERROR_INVALID, "crc32c: checksum %zu is not 8 hex digits", i);
        v.chunks[i] = (uint32_t)crc;
    }
    *ret_vote = v;
    v.chunks = NULL;
    return 0;
}

void vote_release(struct vote *v)
{
    free(v->chunks);
    v->chunks = NULL;
}

char *manifest_encode(const struct step_key *key, const struct manifest_entry *entries)
{
    auto_json cJSON *tree = step_document(KIND "manifest", key);
    cJSON *shards = json_array();
    for (int32_t rank = 0; rank < key->world; rank++) {
        char name[LAYOUT_NAME_MAX];
        cJSON *shard = json_object();
        layout_shard(rank, name);
        json_put_text(shard, "file", name);
        json_put_int(shard, "bytes", (int64_t)entries[rank].bytes);
        json_put_int(shard, "header_bytes", (int64_t)entries[rank].header_bytes);
        put_crc32(shard, "header_crc32c", entries[rank].header_crc32c);
        put_crc64(shard, "crc64nvme", entries[rank].crc64nvme);
        put_crc32(shard, "vote_crc32c", entries[rank].vote_crc32c);
        json_append(shards, shard);
    }
    json_put(tree, "shards", shards);
    return json_print(tree, true);
}

int manifest_decode(const char *text, size_t len, struct step_key *key, struct manifest_entry **ret_entries, struct error *e)
{
    auto_json cJSON *tree = NULL;
    if (step_document_parse(text, len, KIND "manifest", key, &tree, e) != 0)
        return -1;
    const cJSON *shards = json_at(tree, "shards");
    if (!cJSON_IsArray(shards) || cJSON_GetArraySize(shards) != key->world)
        return error_set(e, ERROR_INVALID, "shards: expected an array of %" PRId32, key->world);
    auto_free struct manifest_entry *entries = xcalloc((size_t)key->world, sizeof(*entries));
    int32_t rank = 0;
    for (const cJSON *shard = shards->child; shard != NULL; shard = shard->next, rank++) {
        struct manifest_entry *entry = &entries[rank];
        char name[LAYOUT_NAME_MAX];
        layout_shard(rank, name);
        if (strcmp(json_text(shard, "file", ""), name) != 0)
            return error_set(e, ERROR_INVALID, "shards[%" PRId32 "].file: found \"%.90s\", expected %s", rank, json_text(shard, "file", ""), name);
        if (sizes_parse(shard, &entry->bytes, &entry->header_bytes, &entry->header_crc32c, &entry->crc64nvme, e) != 0)
            return error_wrap(e, "shards[%" PRId32 "]", rank);
        if (!crc32_parse(json_text(shard, "vote_crc32c", NULL), &entry->vote_crc32c))
            return error_set(e, ERROR_INVALID, "shards[%" PRId32 "].vote_crc32c: expected 8 hex digits", rank);
    }
    *ret_entries = TAKE(entries);
    return 0;
}

char *commit_encode(const struct step_key *key, const struct commit_record *r)
{
    auto_json cJSON *tree = step_document(KIND "commit", key);
    json_put_int(tree, "manifest_bytes", (int64_t)r->manifest_bytes);
    put_crc64(tree, "manifest_crc64nvme", r->manifest_crc64nvme);
    return json_print(tree, true);
}

int commit_decode(const char *text, size_t len, struct step_key *key, struct commit_record *ret_record, struct error *e)
{
    auto_json cJSON *tree = NULL;
    if (step_document_parse(text, len, KIND "commit", key, &tree, e) != 0)
        return -1;
    int64_t bytes = json_int(tree, "manifest_bytes", -1);
    uint64_t crc;
    if (bytes < 2 || bytes > MANIFEST_MAX_BYTES || !crc64_parse(json_text(tree, "manifest_crc64nvme", NULL), &crc))
        return error_set(e, ERROR_INVALID, "manifest_bytes and manifest_crc64nvme: expected a size and 16 hex digits");
    *ret_record = (struct commit_record){ .manifest_bytes = (uint64_t)bytes, .manifest_crc64nvme = crc };
    return 0;
}
