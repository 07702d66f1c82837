/* read.c — the reader's rule: nothing counts without COMMIT, and no byte is handed out unchecked. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc.h"
#include "base/mem.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/store.h"

#define COMMIT_MAX_BYTES 4096

static int check_size(const struct store *s, const struct generation *g, int32_t rank, uint64_t bytes, struct error *e)
{
    char name[LAYOUT_NAME_MAX];
    struct volume_stat st;
    layout_shard(rank, name);
    auto_free char *path = store_path(g, name);
    if (s->volume->ops->stat(s->volume, path, &st, e) != 0)
        return e->kind == ERROR_NOT_FOUND ? error_set(e, ERROR_INVALID, "%s/%s is missing", s->volume->name, path) : -1;
    if (st.bytes != bytes)
        return error_set(e, ERROR_INVALID, "%s/%s has %" PRIu64 " bytes, the manifest says %" PRIu64, s->volume->name, path, st.bytes, bytes);
    return 0;
}

static int read_manifest(const struct store *s, const struct generation *g, struct step_key *ret_key, struct manifest_entry **ret_entries,
                         struct error *e)
{
    struct step_key key = { .generation = *g };
    memcpy(key.job, s->job, sizeof(key.job));
    auto_free char *commit = NULL, *manifest = NULL, *commit_path = store_path(g, LAYOUT_COMMIT), *path = store_path(g, LAYOUT_MANIFEST);
    size_t commit_len, len;
    struct commit_record record;
    if (s->volume->ops->read(s->volume, commit_path, COMMIT_MAX_BYTES, &commit, &commit_len, e) != 0)
        return -1;
    if (commit_decode(commit, commit_len, &key, &record, e) != 0)
        return error_wrap(e, "%s/%s", s->volume->name, commit_path);
    if (s->volume->ops->read(s->volume, path, MANIFEST_MAX_BYTES, &manifest, &len, e) != 0)
        return e->kind == ERROR_NOT_FOUND ? error_set(e, ERROR_INVALID, "%s/%s is missing", s->volume->name, path) : -1;
    if (len != record.manifest_bytes || crc64nvme(0, manifest, len) != record.manifest_crc64nvme)
        return error_set(e, ERROR_INVALID, "%s/%s is not the one that COMMIT names: its checksum differs", s->volume->name, path);
    if (manifest_decode(manifest, len, &key, ret_entries, e) != 0)
        return error_wrap(e, "%s/%s", s->volume->name, path);
    *ret_key = key;
    return 0;
}

int store_check(const struct store *s, const struct generation *g, struct step_key *ret_key, struct manifest_entry **ret_entries,
                struct error *e)
{
    auto_free struct manifest_entry *entries = NULL;
    struct step_key key;
    if (read_manifest(s, g, &key, &entries, e) != 0)
        return -1;
    for (int32_t rank = 0; rank < key.world; rank++)
        if (check_size(s, g, rank, entries[rank].bytes, e) != 0)
            return -1;
    *ret_key = key;
    *ret_entries = TAKE(entries);
    return 0;
}

struct reading { struct checksum sum; volume_bytes_fn *fn; void *ctx; uint8_t *header; uint64_t header_bytes; };

/* Where the damage is, from the chunk checksums of the vote file, as far as that one is whole itself. */
static int damaged(const struct store *s, const struct step_key *key, int32_t rank, const struct manifest_entry *entry, const char *path,
                   const struct checksum *sum, struct error *e)
{
    struct error ignored = ERROR_INIT;
    char name[LAYOUT_NAME_MAX];
    auto_free char *text = NULL;
    size_t len, count = 0, first = 0;
    auto_vote struct vote v = { .rank = rank };
    layout_vote(rank, name);
    auto_free char *vote = store_path(&key->generation, name);
    if (s->volume->ops->read(s->volume, vote, MANIFEST_MAX_BYTES, &text, &len, &ignored) == 0 && crc32c(0, text, len) == entry->vote_crc32c &&
        vote_decode(text, len, key, rank, &v, &ignored) == 0)
        for (size_t i = v.chunk_count < sum->chunk_count ? v.chunk_count : sum->chunk_count; i-- > 0;)
            if (v.chunks[i] != sum->chunks[i]) {
                first = i;
                count++;
            }
    if (count == 0)
        return error_set(e, ERROR_INVALID, "%s/%s is damaged: crc64nvme %016" PRIx64 ", written was %016" PRIx64, s->volume->name, path,
                         sum->crc64nvme, entry->crc64nvme);
    (void)error_set(e, ERROR_INVALID, "%s/%s is damaged in the 4 MiB from byte %llu on: crc32c %08" PRIx32 ", written was %08" PRIx32,
                    s->volume->name, path, (unsigned long long)first * CHECKSUM_CHUNK_BYTES, sum->chunks[first], v.chunks[first]);
    size_t at = strlen(e->text);
    if (count > 1)
        (void)snprintf(e->text + at, sizeof(e->text) - at, ", and in %zu more such pieces", count - 1);
    return -1;
}

static int take_piece(void *ctx, uint64_t offset, const uint8_t *bytes, size_t len, struct error *e)
{
    struct reading *r = ctx;
    checksum_add(&r->sum, bytes, len);
    if (offset < r->header_bytes)
        memcpy(r->header + offset, bytes, r->header_bytes - offset < len ? (size_t)(r->header_bytes - offset) : len);
    return r->fn != NULL ? r->fn(r->ctx, offset, bytes, len, e) : 0;
}

int store_read_image(const struct store *s, const struct step_key *key, const struct manifest_entry *entries, int32_t rank,
                     volume_bytes_fn *fn, void *ctx, int *ret_fd, struct error *e)
{
    const struct manifest_entry *entry = &entries[rank];
    char name[LAYOUT_NAME_MAX];
    struct safetensors parsed;
    layout_shard(rank, name);
    auto_free char *path = store_path(&key->generation, name);
    auto_free uint8_t *header = xcalloc(1, entry->header_bytes);
    struct reading r = { .sum = CHECKSUM_INIT, .fn = fn, .ctx = ctx, .header = header, .header_bytes = entry->header_bytes };
    auto_close int fd = -1;
    int result = s->volume->ops->read_image(s->volume, path, entry->bytes, take_piece, &r, ret_fd != NULL ? &fd : NULL, e);
    if (result == 0 && (r.sum.bytes != entry->bytes || r.sum.crc64nvme != entry->crc64nvme))
        result = damaged(s, key, rank, entry, path, &r.sum, e);
    checksum_release(&r.sum);
    if (result != 0)
        return -1;
    if (safetensors_parse(header, entry->header_bytes, entry->bytes, &parsed, e) != 0)
        return error_wrap(e, "%s/%s", s->volume->name, path);
    safetensors_release(&parsed);
    if (ret_fd != NULL)
        *ret_fd = TAKE_FD(fd);
    return 0;
}

int store_open_image(const struct store *s, const struct generation *g, int32_t rank, int32_t world, int *ret_fd, uint64_t *ret_bytes,
                     struct error *e)
{
    auto_free struct manifest_entry *entries = NULL;
    struct step_key key;
    if (store_check(s, g, &key, &entries, e) != 0)
        return -1;
    if (key.world != world || rank < 0 || rank >= world)
        return error_set(e, ERROR_CONFLICT, "checkpoint of step %" PRId64 " was saved by %" PRId32 " ranks, asked for was image %" PRId32
                         " of %" PRId32, g->id.step, key.world, rank, world);
    if (store_read_image(s, &key, entries, rank, NULL, NULL, ret_fd, e) != 0)
        return -1;
    *ret_bytes = entries[rank].bytes;
    return 0;
}
