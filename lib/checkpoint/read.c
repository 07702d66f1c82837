/* restore.c — the reader's rule: nothing counts without COMMIT, and no byte is handed out unchecked. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc.h"
#include "base/fs.h"
#include "base/mem.h"
#include "checkpoint/checksum.h"
#include "checkpoint/io.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/store.h"

#define COMMIT_MAX_BYTES 4096
#define PIECE (1u << 20)

static int check_size(const char *dir, int32_t rank, uint64_t bytes, struct error *e)
{
    char name[LAYOUT_NAME_MAX];
    layout_shard(rank, name);
    auto_free char *path = fs_join(dir, name);
    struct stat st;
    if (stat(path, &st) != 0)
        return errno == ENOENT ? error_set(e, ERROR_INVALID, "%s is missing", path) : error_errno(e, "look at %s", path);
    if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != bytes)
        return error_set(e, ERROR_INVALID, "%s has %lld bytes, the manifest says %" PRIu64, path, (long long)st.st_size, bytes);
    return 0;
}

static int read_manifest(const struct store *s, const char *dir, const struct generation *g, struct step_key *ret_key,
                         struct manifest_entry **ret_entries, struct error *e)
{
    struct step_key key = { .generation = *g };
    memcpy(key.job, s->job, sizeof(key.job));
    auto_free char *commit = NULL, *manifest = NULL;
    size_t commit_len, manifest_len;
    struct commit_record record;
    if (io_read_file(dir, LAYOUT_COMMIT, COMMIT_MAX_BYTES, &commit, &commit_len, e) != 0)
        return -1;
    if (commit_decode(commit, commit_len, &key, &record, e) != 0)
        return error_wrap(e, "%s/%s", dir, LAYOUT_COMMIT);
    if (io_read_file(dir, LAYOUT_MANIFEST, MANIFEST_MAX_BYTES, &manifest, &manifest_len, e) != 0) {
        if (e->kind == ERROR_NOT_FOUND)
            return error_set(e, ERROR_INVALID, "%s/%s is missing", dir, LAYOUT_MANIFEST);
        return -1;
    }
    if (manifest_len != record.manifest_bytes || crc64nvme(0, manifest, manifest_len) != record.manifest_crc64nvme)
        return error_set(e, ERROR_INVALID, "%s/%s is not the one that COMMIT names: its checksum differs", dir, LAYOUT_MANIFEST);
    if (manifest_decode(manifest, manifest_len, &key, ret_entries, e) != 0)
        return error_wrap(e, "%s/%s", dir, LAYOUT_MANIFEST);
    *ret_key = key;
    return 0;
}

int store_check(const struct store *s, const struct generation *g, struct step_key *ret_key, struct manifest_entry **ret_entries,
                struct error *e)
{
    auto_free char *dir = NULL;
    auto_free struct manifest_entry *entries = NULL;
    struct step_key key;
    store_generation_path(s, g, &dir);
    if (read_manifest(s, dir, g, &key, &entries, e) != 0)
        return -1;
    for (int32_t rank = 0; rank < key.world; rank++)
        if (check_size(dir, rank, entries[rank].bytes, e) != 0)
            return -1;
    *ret_key = key;
    *ret_entries = TAKE(entries);
    return 0;
}

/* Where the damage is, from the chunk checksums of the vote file, as far as that one is whole itself. */
static int damaged(const char *dir, const char *path, const struct step_key *key, int32_t rank, const struct manifest_entry *entry,
                   const struct checksum *sum, struct error *e)
{
    struct error ignored = ERROR_INIT;
    char name[LAYOUT_NAME_MAX];
    auto_free char *text = NULL;
    size_t len;
    auto_vote struct vote v = { .rank = rank };
    layout_vote(rank, name);
    if (io_read_file(dir, name, MANIFEST_MAX_BYTES, &text, &len, &ignored) == 0 && crc32c(0, text, len) == entry->vote_crc32c &&
        vote_decode(text, len, key, rank, &v, &ignored) == 0)
        for (size_t i = 0; i < v.chunk_count && i < sum->chunk_count; i++)
            if (v.chunks[i] != sum->chunks[i])
                return error_set(e, ERROR_INVALID, "%s is damaged in the 4 MiB from byte %llu on: crc32c %08" PRIx32 ", written was %08"
                                 PRIx32, path, (unsigned long long)i * CHECKSUM_CHUNK_BYTES, sum->chunks[i], v.chunks[i]);
    return error_set(e, ERROR_INVALID, "%s is damaged: crc64nvme %016" PRIx64 ", written was %016" PRIx64, path, sum->crc64nvme,
                     entry->crc64nvme);
}

static int sum_file(int fd, const char *path, struct checksum *sum, struct error *e)
{
    auto_free uint8_t *piece = xcalloc(1, PIECE);
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    for (;;) {
        ssize_t n = read(fd, piece, PIECE);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return error_errno(e, "read %s", path);
        if (n == 0)
            return 0;
        checksum_add(sum, piece, (size_t)n);
    }
}

static int check_header(int fd, const char *path, const struct manifest_entry *entry, struct error *e)
{
    auto_free uint8_t *header = xcalloc(1, entry->header_bytes);
    struct safetensors parsed;
    if (pread(fd, header, entry->header_bytes, 0) != (ssize_t)entry->header_bytes)
        return error_errno(e, "read %s", path);
    if (safetensors_parse(header, entry->header_bytes, entry->bytes, &parsed, e) != 0)
        return error_wrap(e, "%s", path);
    safetensors_release(&parsed);
    return 0;
}

int store_open_image(const struct store *s, const struct generation *g, int32_t rank, int32_t world, int *ret_fd, uint64_t *ret_bytes,
                     struct error *e)
{
    auto_free char *dir = NULL;
    auto_free struct manifest_entry *entries = NULL;
    struct step_key key;
    store_generation_path(s, g, &dir);
    if (store_check(s, g, &key, &entries, e) != 0)
        return -1;
    if (key.world != world || rank < 0 || rank >= world)
        return error_set(e, ERROR_CONFLICT, "checkpoint of step %" PRId64 " was saved by %" PRId32 " ranks, asked for was image %" PRId32
                         " of %" PRId32, g->id.step, key.world, rank, world);
    char name[LAYOUT_NAME_MAX];
    layout_shard(rank, name);
    auto_free char *path = fs_join(dir, name);
    auto_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return error_errno(e, "open %s", path);
    auto_checksum struct checksum sum = CHECKSUM_INIT;
    if (sum_file(fd, path, &sum, e) != 0)
        return -1;
    if (sum.bytes != entries[rank].bytes || sum.crc64nvme != entries[rank].crc64nvme)
        return damaged(dir, path, &key, rank, &entries[rank], &sum, e);
    if (check_header(fd, path, &entries[rank], e) != 0)
        return -1;
    if (lseek(fd, 0, SEEK_SET) != 0)
        return error_errno(e, "rewind %s", path);
    *ret_bytes = sum.bytes;
    *ret_fd = TAKE_FD(fd);
    return 0;
}
