/* persist.c — a step onto the volume: each rank's image and vote, then MANIFEST and COMMIT. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/mem.h"
#include "checkpoint/checksum.h"
#include "checkpoint/io.h"
#include "checkpoint/safetensors.h"
#include "sidecar/checkpoint/writer.h"

#define PIECE (1u << 20)

/* The slot is read, not mapped: a trainer that cuts the file short must not end the sidecar. */
static int read_piece(int fd, uint64_t offset, uint8_t *bytes, size_t len, struct error *e)
{
    size_t have = 0;
    while (have < len) {
        ssize_t n = pread(fd, bytes + have, len - have, (off_t)(offset + have));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return error_errno(e, "read slot");
        if (n == 0)
            return error_set(e, ERROR_INVALID, "slot ends %zu bytes early: its file was cut short", len - have);
        have += (size_t)n;
    }
    return 0;
}

/* CRC32C of the header on its own, so that a manifest vouches for the description of the tensors without their bytes. */
struct header_sum { uint64_t bytes; uint32_t crc; };

static int header_add(struct header_sum *h, uint64_t offset, const uint8_t *bytes, size_t len, uint64_t image_bytes, struct error *e)
{
    if (offset == 0 && safetensors_header_bytes(bytes, len, image_bytes, &h->bytes, e) != 0)
        return -1;
    if (offset < h->bytes)
        h->crc = crc32c(h->crc, bytes, h->bytes - offset < len ? (size_t)(h->bytes - offset) : len);
    return 0;
}

static int copy_image(int from, uint64_t offset, uint64_t bytes, int to, const char *path, struct checksum *sum,
                      struct header_sum *header, struct error *e)
{
    auto_free uint8_t *piece = xcalloc(1, PIECE);
    for (uint64_t at = 0; at < bytes;) {
        size_t n = bytes - at < PIECE ? (size_t)(bytes - at) : PIECE;
        if (read_piece(from, offset + at, piece, n, e) != 0 || header_add(header, at, piece, n, bytes, e) != 0)
            return -1;
        checksum_add(sum, piece, n);
        if (io_write(to, path, piece, n, e) != 0)
            return -1;
        at += n;
    }
    return 0;
}

static int write_image(const char *path, int from, uint64_t offset, uint64_t bytes, struct checksum *sum, struct header_sum *header,
                       struct error *e)
{
    auto_close int to = -1;
    if (io_create(path, &to, e) != 0)
        return -1;
    if (io_reserve(to, path, bytes, e) != 0 || copy_image(from, offset, bytes, to, path, sum, header, e) != 0)
        return -1;
    return io_finish(TAKE_FD(to), path, e);
}

/* A vote that an earlier life of this sidecar has written stands: its image is durable, and it is this slot's. */
static bool voted_already(const char *dir, const struct step_key *key, int32_t rank, uint64_t bytes, struct vote *ret_vote)
{
    struct error ignored = ERROR_INIT;
    char vote_name[LAYOUT_NAME_MAX], shard_name[LAYOUT_NAME_MAX];
    auto_free char *text = NULL;
    size_t len;
    struct vote v = { .rank = rank };
    layout_vote(rank, vote_name);
    layout_shard(rank, shard_name);
    auto_free char *shard = fs_join(dir, shard_name);
    struct stat st;
    if (io_read_file(dir, vote_name, MANIFEST_MAX_BYTES, &text, &len, &ignored) != 0 ||
        vote_decode(text, len, key, rank, &v, &ignored) != 0)
        return false;
    if (v.bytes != bytes || stat(shard, &st) != 0 || (uint64_t)st.st_size != bytes) {
        vote_release(&v);
        return false;
    }
    *ret_vote = v;
    return true;
}

int store_persist(const struct store *s, const struct step_key *key, int32_t rank, int fd, uint64_t offset, uint64_t bytes,
                  struct vote *ret_vote, struct error *e)
{
    auto_free char *dir = NULL;
    store_generation_path(s, &key->generation, &dir);
    if (voted_already(dir, key, rank, bytes, ret_vote))
        return 0;

    char shard_name[LAYOUT_NAME_MAX], vote_name[LAYOUT_NAME_MAX];
    layout_shard(rank, shard_name);
    layout_vote(rank, vote_name);
    auto_free char *shard = fs_join(dir, shard_name);
    auto_free char *tmp = xasprintf("%s" LAYOUT_TMP, shard);
    auto_checksum struct checksum sum = CHECKSUM_INIT;
    struct header_sum header = { .bytes = 0 };
    if (write_image(tmp, fd, offset, bytes, &sum, &header, e) != 0) {
        (void)unlink(tmp);
        return -1;
    }
    struct vote v = { .rank = rank, .bytes = bytes, .header_bytes = header.bytes, .header_crc32c = header.crc,
                      .crc64nvme = sum.crc64nvme, .chunks = sum.chunks, .chunk_count = sum.chunk_count };
    auto_free char *text = vote_encode(key, &v);
    /* The image is durable under its name before the vote says so. */
    if (io_rename(tmp, shard, e) != 0 || io_sync_dir(dir, e) != 0 || io_write_file(dir, vote_name, text, e) != 0) {
        auto_free char *vote = fs_join(dir, vote_name);
        (void)unlink(vote);
        (void)unlink(tmp);
        (void)unlink(shard);
        return -1;
    }
    sum.chunks = NULL; /* the vote's now */
    *ret_vote = v;
    return 0;
}

/* ---- commit ----------------------------------------------------------------------------------------------------------- */

static int read_vote(const char *dir, const struct step_key *key, int32_t rank, struct manifest_entry *ret_entry, int32_t *ret_world,
                     struct error *e)
{
    char name[LAYOUT_NAME_MAX];
    auto_free char *text = NULL;
    size_t len;
    auto_vote struct vote v = { .rank = rank };
    layout_vote(rank, name);
    if (io_read_file(dir, name, MANIFEST_MAX_BYTES, &text, &len, e) != 0)
        return -1;
    if (vote_decode(text, len, key, rank, &v, e) != 0)
        return error_wrap(e, "%s/%s", dir, name);
    layout_shard(rank, name);
    auto_free char *shard = fs_join(dir, name);
    struct stat st;
    if (stat(shard, &st) != 0)
        return error_errno(e, "look at %s", shard);
    if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != v.bytes)
        return error_set(e, ERROR_INVALID, "%s has %lld bytes, its vote says %" PRIu64, shard, (long long)st.st_size, v.bytes);
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
    if (io_write_file(s->root, LAYOUT_LATEST, text, &e) != 0)
        log_debug("hint to the newest checkpoint not written", KV("error", e.text));
}

int store_commit(const struct store *s, const struct step_key *given, uint64_t own_epoch, struct error *e)
{
    struct step_key known = *given;
    const struct step_key *key = &known;
    struct manifest_entry first;
    auto_free char *dir = NULL;
    store_generation_path(s, &key->generation, &dir);
    auto_free char *committed = fs_join(dir, LAYOUT_COMMIT);
    if (access(committed, F_OK) == 0)
        return 0;
    if (read_vote(dir, key, 0, &first, &known.world, e) != 0)
        return -1;
    auto_free struct manifest_entry *entries = xcalloc((size_t)key->world, sizeof(*entries));
    entries[0] = first;
    for (int32_t rank = 1; rank < key->world; rank++)
        if (read_vote(dir, key, rank, &entries[rank], &known.world, e) != 0)
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
    if (io_write_file(dir, LAYOUT_MANIFEST, manifest, e) != 0)
        return -1;
    if (io_link_file(dir, LAYOUT_COMMIT, key->generation.nonce, commit, e) != 0 && e->kind != ERROR_CONFLICT)
        return -1;
    if (io_sync_dir(s->root, e) != 0)
        return -1;
    write_latest(s, &key->generation);
    return 0;
}
