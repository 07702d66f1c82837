#include "checkpoint/copy.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/mem.h"

struct copying { copy_progress_fn *progress; void *ctx; };

static int take_piece(void *ctx, uint64_t offset, const uint8_t *bytes, size_t len, struct error *e)
{
    struct copying *c = ctx;
    (void)offset;
    (void)bytes;
    (void)e;
    if (c->progress != NULL)
        c->progress(c->ctx, len);
    return 0;
}

static int copy_text(const struct store *from, const struct store *to, const char *path, bool create, struct error *e)
{
    auto_free char *text = NULL;
    size_t len;
    if (from->volume->ops->read(from->volume, path, MANIFEST_MAX_BYTES, &text, &len, e) != 0)
        return -1;
    return create ? to->volume->ops->create(to->volume, path, "copy", text, e) : to->volume->ops->replace(to->volume, path, text, e);
}

static int copy_image(const struct store *from, const struct store *to, const struct step_key *key, const struct manifest_entry *entries, int32_t rank,
                      struct copying *c, struct error *e)
{
    char shard_name[LAYOUT_NAME_MAX], vote_name[LAYOUT_NAME_MAX];
    struct volume_stat st;
    auto_image_sum struct image_sum sum = IMAGE_SUM_INIT;
    auto_close int fd = -1;
    layout_shard(rank, shard_name);
    layout_vote(rank, vote_name);
    auto_free char *shard = store_path(&key->generation, shard_name), *vote = store_path(&key->generation, vote_name);
    /* The vote is written behind its image: where both are, an earlier copy has come so far. */
    if (to->volume->ops->stat(to->volume, vote, &st, e) == 0 && to->volume->ops->stat(to->volume, shard, &st, e) == 0 &&
        st.bytes == entries[rank].bytes) {
        (void)take_piece(c, 0, NULL, entries[rank].bytes, e);
        return 0;
    }
    if (store_read_image(from, key, entries, rank, take_piece, c, &fd, e) != 0 ||
        to->volume->ops->write_image(to->volume, shard, fd, 0, entries[rank].bytes, &sum, e) != 0)
        return -1;
    if (sum.sum.crc64nvme != entries[rank].crc64nvme)
        return error_set(e, ERROR_CONFLICT, "%s/%s has changed while it was copied", from->volume->name, shard);
    return copy_text(from, to, vote, false, e);
}

struct names { char **items; size_t count; };

static int take_name(void *ctx, const char *name, struct error *e)
{
    struct names *n = ctx;
    uint64_t epoch;
    (void)e;
    if (!layout_claim_parse(name, &epoch) && !layout_base_parse(name, &epoch))
        return 0;
    n->items = xrealloc(n->items, n->count + 1, sizeof(*n->items));
    n->items[n->count++] = xstrdup(name);
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Claims and bases, old ones first: at every moment what is there is a history. */
static int copy_history(const struct store *from, const struct store *to, struct error *e)
{
    struct names n = { .items = NULL };
    int result = to->volume->ops->make_dir(to->volume, LAYOUT_EPOCHS, e);
    if (result == 0)
        result = from->volume->ops->list(from->volume, LAYOUT_EPOCHS, take_name, &n, e);
    if (n.count > 1)
        qsort(n.items, n.count, sizeof(*n.items), by_name);
    for (size_t i = 0; i < n.count; i++) {
        auto_free char *path = fs_join(LAYOUT_EPOCHS, n.items[i]), *mine = NULL, *theirs = NULL;
        size_t len;
        if (result == 0 && copy_text(from, to, path, true, e) != 0) {
            result = -1;
            /* On a directory a file that is there is a conflict also when it says the same. */
            struct error ignored = ERROR_INIT;
            if (e->kind == ERROR_CONFLICT && from->volume->ops->read(from->volume, path, MANIFEST_MAX_BYTES, &mine, &len, &ignored) == 0 &&
                to->volume->ops->read(to->volume, path, MANIFEST_MAX_BYTES, &theirs, &len, &ignored) == 0)
                result = strcmp(mine, theirs) == 0 ? 0 : error_set(e, ERROR_CONFLICT, "%s has another history of this job than %s: %s differs",
                                                                   to->volume->name, from->volume->name, path);
        }
        free(n.items[i]);
    }
    free(n.items);
    return result;
}

int store_copy(const struct store *from, const struct store *to, const struct generation *g, copy_progress_fn *progress, void *ctx, bool *ret_there,
               struct error *e)
{
    struct step_key key, other;
    auto_free struct manifest_entry *entries = NULL, *others = NULL;
    struct copying c = { progress, ctx };
    struct error ignored = ERROR_INIT;
    char dir[LAYOUT_NAME_MAX];
    layout_generation(g, dir);
    auto_free char *manifest = store_path(g, LAYOUT_MANIFEST), *commit = store_path(g, LAYOUT_COMMIT);
    *ret_there = store_check(to, g, &other, &others, &ignored) == 0;
    if (*ret_there)
        return 0;
    if (store_check(from, g, &key, &entries, e) != 0 || to->volume->ops->make_dir(to->volume, dir, e) != 0)
        return -1;
    for (int32_t rank = 0; rank < key.world; rank++)
        if (copy_image(from, to, &key, entries, rank, &c, e) != 0)
            return -1;
    if (copy_text(from, to, manifest, false, e) != 0 || copy_history(from, to, e) != 0)
        return -1;
    if (copy_text(from, to, commit, true, e) != 0 && e->kind != ERROR_CONFLICT)
        return -1;
    return store_check(to, g, &other, &others, e);
}
