/* export_run.c — the bytes of an export: images are read in order, every piece goes where its tensors lie in the new files. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/mem.h"
#include "checkpoint/export.h"
#include "checkpoint/io.h"
#include "checkpoint/layout.h"

/* A part of a tensor in the image that is being read. */
struct part { const struct tensor *tensor; const struct tensor_part *part; const struct export_place *place; };

struct writing {
    const struct export_plan *plan;
    const char *dir;
    int *fds;
    struct part *parts; /* of this image, in the order of its bytes */
    size_t part_count, at; /* at: the first that does not end before the next piece */
    export_progress_fn *progress;
    void *ctx;
};

static char *tmp_path(const char *dir, const char *name)
{
    auto_free char *path = fs_join(dir, name);
    return xasprintf("%s" LAYOUT_TMP, path);
}

static int write_at(const struct writing *w, size_t file, const uint8_t *bytes, size_t len, uint64_t offset, struct error *e)
{
    while (len > 0) {
        ssize_t n = pwrite(w->fds[file], bytes, len, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return error_errno(e, "write %s/%s", w->dir, w->plan->files[file].name);
        bytes += n;
        len -= (size_t)n;
        offset += (uint64_t)n;
    }
    return 0;
}

/* Bytes of one part, from `at` in its data on. */
static int scatter(const struct writing *w, const struct part *p, uint64_t at, const uint8_t *bytes, size_t len, struct error *e)
{
    unsigned bits = safetensors_dtype_bits(p->tensor->dtype);
    while (len > 0) {
        uint64_t to = at, together = len;
        if (p->tensor->part_count > 1)
            box_run(&p->part->box, p->tensor->shape, p->tensor->dims, bits / 8, at, &to, &together);
        size_t n = together < len ? (size_t)together : len;
        if (write_at(w, p->place->file, bytes, n, p->place->offset + to, e) != 0)
            return -1;
        at += n;
        bytes += n;
        len -= n;
    }
    return 0;
}

static int take_piece(void *ctx, uint64_t offset, const uint8_t *bytes, size_t len, struct error *e)
{
    struct writing *w = ctx;
    uint64_t end = offset + len;
    while (w->at < w->part_count && w->parts[w->at].part->end <= offset)
        w->at++;
    for (size_t i = w->at; i < w->part_count && w->parts[i].part->begin < end; i++) {
        const struct part *p = &w->parts[i];
        uint64_t from = p->part->begin > offset ? p->part->begin : offset, to = p->part->end < end ? p->part->end : end;
        if (p->place->taken && from < to && scatter(w, p, from - p->part->begin, bytes + (from - offset), (size_t)(to - from), e) != 0)
            return -1;
    }
    if (w->progress != NULL)
        w->progress(w->ctx, len);
    return 0;
}

static int by_begin(const void *a, const void *b)
{
    const struct part *x = a, *y = b;
    if (x->part->begin != y->part->begin)
        return x->part->begin < y->part->begin ? -1 : 1;
    return (x->part->end > y->part->end) - (x->part->end < y->part->end);
}

static void parts_of(struct writing *w, const struct tensors *t, int32_t image)
{
    w->part_count = w->at = 0;
    for (size_t i = 0; i < t->count; i++)
        for (size_t k = 0; k < t->items[i].part_count; k++)
            if (t->items[i].parts[k].image == image)
                w->parts[w->part_count++] = (struct part){ &t->items[i], &t->items[i].parts[k], &w->plan->places[i] };
    if (w->part_count > 1)
        qsort(w->parts, w->part_count, sizeof(*w->parts), by_begin);
}

static int open_files(struct writing *w, struct error *e)
{
    for (size_t i = 0; i < w->plan->file_count; i++) {
        const struct export_file *f = &w->plan->files[i];
        auto_free char *tmp = tmp_path(w->dir, f->name);
        if (io_create(tmp, &w->fds[i], e) != 0 || io_reserve(w->fds[i], tmp, f->bytes, e) != 0)
            return -1;
        if (ftruncate(w->fds[i], (off_t)f->bytes) != 0)
            return error_errno(e, "make room for %s", tmp);
        if (write_at(w, i, (const uint8_t *)f->header, f->header_bytes, 0, e) != 0)
            return -1;
    }
    return 0;
}

/* The index last: what it names is there. */
static int name_files(struct writing *w, struct error *e)
{
    for (size_t i = 0; i < w->plan->file_count; i++) {
        auto_free char *tmp = tmp_path(w->dir, w->plan->files[i].name);
        if (io_finish(TAKE_FD(w->fds[i]), tmp, e) != 0)
            return -1;
    }
    for (size_t i = 0; i < w->plan->file_count; i++) {
        auto_free char *tmp = tmp_path(w->dir, w->plan->files[i].name), *path = fs_join(w->dir, w->plan->files[i].name);
        if (io_rename(tmp, path, e) != 0)
            return -1;
    }
    if (w->plan->index != NULL)
        return io_write_file(w->dir, "model.safetensors.index.json", w->plan->index, e);
    return io_sync_dir(w->dir, e);
}

static int copy(struct writing *w, const struct store *s, const struct step_key *key, const struct manifest_entry *entries,
                const struct tensors *t, struct error *e)
{
    if (fs_mkdirs(w->dir, 0755, e) != 0 || open_files(w, e) != 0)
        return -1;
    for (int32_t image = 0; image < key->world; image++) {
        parts_of(w, t, image);
        if (store_read_image(s, key, entries, image, take_piece, w, NULL, e) != 0)
            return -1;
    }
    return name_files(w, e);
}

int export_run(const struct store *s, const struct step_key *key, const struct manifest_entry *entries, const struct tensors *t,
               const struct export_plan *plan, const char *dir, export_progress_fn *progress, void *ctx, struct error *e)
{
    size_t most = 0;
    for (size_t i = 0; i < t->count; i++)
        most += t->items[i].part_count;
    auto_free int *fds = xcalloc(plan->file_count, sizeof(*fds));
    auto_free struct part *parts = xcalloc(most + 1, sizeof(*parts));
    struct writing w = { .plan = plan, .dir = dir, .fds = fds, .parts = parts, .progress = progress, .ctx = ctx };
    for (size_t i = 0; i < plan->file_count; i++)
        fds[i] = -1;
    int result = copy(&w, s, key, entries, t, e);
    for (size_t i = 0; i < plan->file_count; i++) {
        auto_free char *tmp = tmp_path(dir, plan->files[i].name);
        if (fds[i] >= 0)
            (void)close(fds[i]);
        if (result != 0)
            (void)unlink(tmp);
    }
    return result;
}
