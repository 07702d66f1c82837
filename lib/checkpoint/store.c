/* store.c — what is on the volume: names, scans, markers. Reading a step is in read.c. */
#include "checkpoint/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/mem.h"

#define GENERATIONS_MAX 100000
#define BASE_MAX_BYTES (1u << 20)

int store_init(struct store *s, const char *place, const char *job_uid, const struct volume_options *options, struct error *e)
{
    struct volume *volume;
    if (volume_open(place, job_uid, options, &volume, e) != 0)
        return -1;
    *s = (struct store){ .volume = volume };
    (void)snprintf(s->job, sizeof(s->job), "%s", job_uid);
    return 0;
}

void store_release(struct store *s)
{
    volume_close(s->volume);
    *s = (struct store){ .volume = NULL };
}

void store_generation_path(const struct store *s, const struct generation *g, char **ret_path)
{
    char name[LAYOUT_NAME_MAX];
    layout_generation(g, name);
    *ret_path = fs_join(s->volume->name, name);
}

char *store_path(const struct generation *g, const char *name)
{
    char dir[LAYOUT_NAME_MAX];
    layout_generation(g, dir);
    return fs_join(dir, name);
}

/* ---- scan ------------------------------------------------------------------------------------------------------------- */

struct scanning {
    const struct store *s;
    struct store_scan scan;
    size_t cap;
    uint64_t bases[STORE_EPOCH_FILES_KEPT]; /* newest first */
    size_t base_count;
};

static int scan_generation(void *ctx, const char *name, struct error *e)
{
    struct scanning *w = ctx;
    struct store_generation found = { .state = GENERATION_OPEN };
    if (!layout_generation_parse(name, &found.generation))
        return 0; /* not ours */
    if (w->scan.count == GENERATIONS_MAX)
        return error_set(e, ERROR_LIMIT, "%s holds more than %d checkpoints: remove old ones by hand", w->s->volume->name, GENERATIONS_MAX);
    static const char *const MARKERS[] = { LAYOUT_COMMIT, LAYOUT_RETIRED, LAYOUT_ABORTED, LAYOUT_BAD };
    bool there[COUNT(MARKERS)];
    if (w->s->volume->ops->has(w->s->volume, name, MARKERS, COUNT(MARKERS), there, e) != 0)
        return -1;
    found.state = there[0] ? GENERATION_COMMITTED : there[1] ? GENERATION_RETIRED : there[2] ? GENERATION_ABORTED : GENERATION_OPEN;
    found.bad = there[3];
    if (w->scan.count == w->cap) {
        w->cap = w->cap > 0 ? w->cap * 2 : 32;
        w->scan.generations = xrealloc(w->scan.generations, w->cap, sizeof(*w->scan.generations));
    }
    w->scan.generations[w->scan.count++] = found;
    return 0;
}

static int scan_epoch(void *ctx, const char *name, struct error *e)
{
    struct scanning *w = ctx;
    uint64_t epoch;
    (void)e;
    if (layout_claim_parse(name, &epoch) && epoch > w->scan.newest_claim)
        w->scan.newest_claim = epoch;
    if (!layout_base_parse(name, &epoch))
        return 0;
    size_t at = w->base_count;
    while (at > 0 && w->bases[at - 1] < epoch)
        at--;
    if (at == STORE_EPOCH_FILES_KEPT)
        return 0;
    size_t moved = (w->base_count < STORE_EPOCH_FILES_KEPT ? w->base_count : STORE_EPOCH_FILES_KEPT - 1) - at;
    memmove(&w->bases[at + 1], &w->bases[at], moved * sizeof(w->bases[0]));
    w->bases[at] = epoch;
    w->base_count += w->base_count < STORE_EPOCH_FILES_KEPT;
    return 0;
}

static int newest_first(const void *a, const void *b)
{
    const struct store_generation *x = a, *y = b;
    int by_id = checkpoint_id_compare(y->generation.id, x->generation.id);
    return by_id != 0 ? by_id : strcmp(x->generation.nonce, y->generation.nonce);
}

/* The newest base that can be read tells the history. One that cannot (it was complete when it got its name) is damage: the
 * epoch before it is gone by then, and what the damaged epoch saved is not known to be in any history. */
static void scan_lineage(struct scanning *w)
{
    for (size_t i = 0; i < w->base_count; i++) {
        struct error e = ERROR_INIT;
        char name[LAYOUT_NAME_MAX];
        auto_free char *text = NULL;
        size_t len;
        layout_base(w->bases[i], name);
        auto_free char *path = fs_join(LAYOUT_EPOCHS, name);
        if (w->s->volume->ops->read(w->s->volume, path, BASE_MAX_BYTES, &text, &len, &e) == 0 &&
            base_decode(text, len, w->s->job, w->bases[i], &w->scan.lineage, &e) == 0)
            return;
        if (w->scan.damage.kind == ERROR_NONE) {
            w->scan.damage = e;
            (void)error_wrap(&w->scan.damage, "%s", path);
        }
    }
}

int store_scan(const struct store *s, struct store_scan *ret_scan, struct error *e)
{
    struct scanning w = { .s = s };
    if (s->volume->ops->list(s->volume, "", scan_generation, &w, e) != 0 || s->volume->ops->list(s->volume, LAYOUT_EPOCHS, scan_epoch, &w, e) != 0) {
        store_scan_release(&w.scan);
        return -1;
    }
    if (w.scan.count > 1)
        qsort(w.scan.generations, w.scan.count, sizeof(*w.scan.generations), newest_first);
    scan_lineage(&w);
    *ret_scan = w.scan;
    return 0;
}

void store_scan_release(struct store_scan *scan)
{
    free(scan->generations);
    *scan = (struct store_scan){ .generations = NULL };
}

int store_newest_claim(const struct store *s, uint64_t *ret_epoch, struct error *e)
{
    struct scanning w = { .s = s };
    if (s->volume->ops->list(s->volume, LAYOUT_EPOCHS, scan_epoch, &w, e) != 0)
        return -1;
    *ret_epoch = w.scan.newest_claim;
    return 0;
}

/* ---- generations ------------------------------------------------------------------------------------------------------ */

int store_mark(const struct store *s, const struct generation *g, const char *marker, const char *reason, struct error *e)
{
    auto_free char *path = store_path(g, marker), *unique = xasprintf("%ld", (long)getpid());
    auto_free char *text = xasprintf("%s\n", reason);
    if (s->volume->ops->create(s->volume, path, unique, text, e) == 0)
        return 0;
    return e->kind == ERROR_CONFLICT ? 0 : -1;
}

int store_retire(const struct store *s, const struct generation *g, struct error *e)
{
    char dir[LAYOUT_NAME_MAX];
    layout_generation(g, dir);
    return s->volume->ops->move(s->volume, dir, LAYOUT_COMMIT, LAYOUT_RETIRED, e);
}

int store_remove(const struct store *s, const struct generation *g, struct error *e)
{
    char dir[LAYOUT_NAME_MAX];
    layout_generation(g, dir);
    return s->volume->ops->remove_dir(s->volume, dir, e);
}
