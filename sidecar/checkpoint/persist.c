/* persist.c — a step onto the volume: each rank's image and vote, then MANIFEST and COMMIT. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc.h"
#include "base/log.h"
#include "base/mem.h"
#include "sidecar/checkpoint/writer.h"

/* A vote that an earlier life of this sidecar has written stands: its image is durable, and it is this slot's. */
static bool voted_already(const struct store *s, const struct step_key *key, int32_t rank, uint64_t bytes, struct vote *ret_vote)
{
    struct error ignored = ERROR_INIT;
    char vote_name[LAYOUT_NAME_MAX], shard_name[LAYOUT_NAME_MAX];
    auto_free char *text = NULL;
    size_t len;
    struct vote v = { .rank = rank };
    struct volume_stat st;
    layout_vote(rank, vote_name);
    layout_shard(rank, shard_name);
    auto_free char *vote = store_path(&key->generation, vote_name), *shard = store_path(&key->generation, shard_name);
    if (s->volume->ops->read(s->volume, vote, MANIFEST_MAX_BYTES, &text, &len, &ignored) != 0 ||
        vote_decode(text, len, key, rank, &v, &ignored) != 0)
        return false;
    if (v.bytes != bytes || s->volume->ops->stat(s->volume, shard, &st, &ignored) != 0 || st.bytes != bytes) {
        vote_release(&v);
        return false;
    }
    *ret_vote = v;
    return true;
}

int store_persist(const struct store *s, const struct step_key *key, int32_t rank, int fd, uint64_t offset, uint64_t bytes,
                  struct vote *ret_vote, struct error *e)
{
    char shard_name[LAYOUT_NAME_MAX], vote_name[LAYOUT_NAME_MAX];
    auto_image_sum struct image_sum sum = IMAGE_SUM_INIT;
    if (voted_already(s, key, rank, bytes, ret_vote))
        return 0;
    layout_shard(rank, shard_name);
    layout_vote(rank, vote_name);
    auto_free char *shard = store_path(&key->generation, shard_name), *vote = store_path(&key->generation, vote_name);
    if (s->volume->ops->write_image(s->volume, shard, fd, offset, bytes, &sum, e) != 0)
        return -1;
    struct vote v = { .rank = rank, .world = key->world, .bytes = bytes, .header_bytes = sum.header_bytes, .header_crc32c = sum.header_crc32c,
                      .crc64nvme = sum.sum.crc64nvme, .chunks = sum.sum.chunks, .chunk_count = sum.sum.chunk_count };
    auto_free char *text = vote_encode(key, &v);
    /* The image is durable under its name before the vote says so. */
    if (s->volume->ops->replace(s->volume, vote, text, e) != 0) {
        struct error ignored = ERROR_INIT;
        (void)(s->volume->ops->remove(s->volume, vote, &ignored) == 0 && s->volume->ops->remove(s->volume, shard, &ignored) == 0);
        return -1;
    }
    sum.sum.chunks = NULL; /* the vote's now */
    *ret_vote = v;
    return 0;
}

/* ---- commit ----------------------------------------------------------------------------------------------------------- */

static int read_vote(const struct store *s, const struct step_key *key, int32_t rank, struct manifest_entry *ret_entry, int32_t *ret_world,
                     struct error *e)
{
    char name[LAYOUT_NAME_MAX];
    auto_free char *text = NULL;
    size_t len;
    auto_vote struct vote v = { .rank = rank };
    struct volume_stat st;
    layout_vote(rank, name);
    auto_free char *path = store_path(&key->generation, name);
    if (s->volume->ops->read(s->volume, path, MANIFEST_MAX_BYTES, &text, &len, e) != 0)
        return -1;
    if (vote_decode(text, len, key, rank, &v, e) != 0)
        return error_wrap(e, "%s/%s", s->volume->name, path);
    layout_shard(rank, name);
    auto_free char *shard = store_path(&key->generation, name);
    if (s->volume->ops->stat(s->volume, shard, &st, e) != 0)
        return -1;
    if (st.bytes != v.bytes)
        return error_set(e, ERROR_INVALID, "%s/%s has %" PRIu64 " bytes, its vote says %" PRIu64, s->volume->name, shard, st.bytes, v.bytes);
    *ret_world = v.world;
    *ret_entry = (struct manifest_entry){ .bytes = v.bytes, .header_bytes = v.header_bytes, .crc64nvme = v.crc64nvme,
                                          .header_crc32c = v.header_crc32c, .vote_crc32c = crc32c(0, text, len) };
    return 0;
}

/* Only a hint for people and tools: no reader of ours decides by it. */
static void write_latest(const struct store *s, const struct generation *g)
{
    struct error e = ERROR_INIT;
    char name[LAYOUT_NAME_MAX];
    layout_generation(g, name);
    auto_free char *text = xasprintf("%s\n", name);
    if (s->volume->ops->replace(s->volume, LAYOUT_LATEST, text, &e) != 0)
        log_debug("hint to the newest checkpoint not written", KV("error", e.text));
}

int store_commit(const struct store *s, const struct step_key *given, uint64_t own_epoch, struct error *e)
{
    struct step_key known = *given;
    const struct step_key *key = &known;
    struct manifest_entry first;
    auto_free char *manifest_path = store_path(&key->generation, LAYOUT_MANIFEST), *commit_path = store_path(&key->generation, LAYOUT_COMMIT);
    struct volume_stat st;
    if (s->volume->ops->stat(s->volume, commit_path, &st, e) == 0)
        return 0;
    if (e->kind != ERROR_NOT_FOUND || read_vote(s, key, 0, &first, &known.world, e) != 0)
        return -1;
    auto_free struct manifest_entry *entries = xcalloc((size_t)key->world, sizeof(*entries));
    entries[0] = first;
    for (int32_t rank = 1; rank < key->world; rank++)
        if (read_vote(s, key, rank, &entries[rank], &known.world, e) != 0)
            return -1;
    /* A stalled coordinator that wakes up here can only add what no reader sees (lineage.h); the look saves it the work. */
    if (store_check_own(s, own_epoch, e) != 0)
        return -1;
    auto_free char *manifest = manifest_encode(key, entries);
    size_t len = strlen(manifest);
    if (len > MANIFEST_MAX_BYTES)
        return error_set(e, ERROR_LIMIT, "manifest of %zu bytes is over the limit of %u", len, MANIFEST_MAX_BYTES);
    struct commit_record record = { .manifest_bytes = len, .manifest_crc64nvme = crc64nvme(0, manifest, len) };
    auto_free char *commit = commit_encode(key, &record);
    if (s->volume->ops->replace(s->volume, manifest_path, manifest, e) != 0)
        return -1;
    if (s->volume->ops->create(s->volume, commit_path, key->generation.nonce, commit, e) != 0 && e->kind != ERROR_CONFLICT)
        return -1;
    write_latest(s, &key->generation);
    return 0;
}
