/* store.c — what is on the volume: names, scans, markers, what may go. Writing a step is in persist.c, reading it in restore.c. */
#include "sidecar/checkpoint/store.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/crypto.h"
#include "base/fault.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/mem.h"
#include "sidecar/checkpoint/io.h"

#define GENERATIONS_MAX 100000
#define EPOCH_FILES_KEPT 64
#define BASE_MAX_BYTES (1u << 20)

int store_init(struct store *s, const char *volume, const char *job_uid, struct error *e)
{
    if (!layout_uid_ok(job_uid))
        return error_set(e, ERROR_INVALID, "job UID \"%.80s\" cannot name a directory: expected at most 63 of [A-Za-z0-9_.-]", job_uid);
    *s = (struct store){ .root = fs_join(volume, job_uid) };
    s->epochs = fs_join(s->root, LAYOUT_EPOCHS);
    (void)snprintf(s->job, sizeof(s->job), "%s", job_uid);
    return 0;
}

void store_release(struct store *s)
{
    free(s->root);
    free(s->epochs);
    *s = (struct store){ .root = NULL };
}

void store_generation_path(const struct store *s, const struct generation *g, char **ret_path)
{
    char name[LAYOUT_NAME_MAX];
    layout_generation(g, name);
    *ret_path = fs_join(s->root, name);
}

typedef int entry_fn(void *ctx, const char *name, struct error *e);

/* Calls fn for every name in a directory; one that is not there has none. */
static int each_entry(const char *path, entry_fn *fn, void *ctx, struct error *e)
{
    DIR *dir = opendir(path);
    if (dir == NULL)
        return errno == ENOENT ? 0 : error_errno(e, "read directory %s", path);
    int result = 0;
    for (;;) {
        errno = 0;
        const struct dirent *entry = readdir(dir);
        if (entry == NULL) {
            if (errno != 0)
                result = error_errno(e, "read directory %s", path);
            break;
        }
        if (entry->d_name[0] != '.' && (result = fn(ctx, entry->d_name, e)) != 0)
            break;
    }
    (void)closedir(dir);
    return result;
}

/* ---- scan ------------------------------------------------------------------------------------------------------------- */

static bool has(const char *dir, const char *name)
{
    auto_free char *path = fs_join(dir, name);
    return access(path, F_OK) == 0;
}

struct scanning {
    const struct store *s;
    struct store_scan scan;
    size_t cap;
    uint64_t bases[EPOCH_FILES_KEPT]; /* newest first */
    size_t base_count;
};

static int scan_generation(void *ctx, const char *name, struct error *e)
{
    struct scanning *w = ctx;
    struct store_generation found = { .state = GENERATION_OPEN };
    if (!layout_generation_parse(name, &found.generation))
        return 0; /* not ours */
    if (w->scan.count == GENERATIONS_MAX)
        return error_set(e, ERROR_LIMIT, "%s holds more than %d checkpoints: remove old ones by hand", w->s->root, GENERATIONS_MAX);
    auto_free char *dir = fs_join(w->s->root, name);
    if (has(dir, LAYOUT_COMMIT))
        found.state = GENERATION_COMMITTED;
    else if (has(dir, LAYOUT_RETIRED))
        found.state = GENERATION_RETIRED;
    else if (has(dir, LAYOUT_ABORTED))
        found.state = GENERATION_ABORTED;
    found.bad = has(dir, LAYOUT_BAD);
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
    if (at == EPOCH_FILES_KEPT)
        return 0;
    size_t moved = (w->base_count < EPOCH_FILES_KEPT ? w->base_count : EPOCH_FILES_KEPT - 1) - at;
    memmove(&w->bases[at + 1], &w->bases[at], moved * sizeof(w->bases[0]));
    w->bases[at] = epoch;
    w->base_count += w->base_count < EPOCH_FILES_KEPT;
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
        if (io_read_file(w->s->epochs, name, BASE_MAX_BYTES, &text, &len, &e) == 0 &&
            base_decode(text, len, w->s->job, w->bases[i], &w->scan.lineage, &e) == 0)
            return;
        log_warn_from("base of an epoch cannot be read, its checkpoints are not used", &e, KV("dir", w->s->epochs), KV("file", name));
    }
}

int store_scan(const struct store *s, struct store_scan *ret_scan, struct error *e)
{
    struct scanning w = { .s = s };
    if (each_entry(s->root, scan_generation, &w, e) != 0 || each_entry(s->epochs, scan_epoch, &w, e) != 0) {
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

/* ---- epochs ----------------------------------------------------------------------------------------------------------- */

int store_newest_claim(const struct store *s, uint64_t *ret_epoch, struct error *e)
{
    struct scanning w = { .s = s };
    if (each_entry(s->epochs, scan_epoch, &w, e) != 0)
        return -1;
    *ret_epoch = w.scan.newest_claim;
    return 0;
}

int store_check_own(const struct store *s, uint64_t own_epoch, struct error *e)
{
    uint64_t newest;
    if (store_newest_claim(s, &newest, e) != 0)
        return -1;
    if (newest > own_epoch)
        return error_set(e, ERROR_GONE, "epoch %" PRIu64 " was claimed by another coordinator, this one has %" PRIu64, newest, own_epoch);
    return 0;
}

int store_claim(const struct store *s, uint64_t epoch, const char *member, const char *nonce, int32_t world, struct error *e)
{
    char name[LAYOUT_NAME_MAX];
    layout_claim(epoch, name);
    if ((errno = fault("mkdir", s->epochs)) != 0)
        return error_errno(e, "make directory %s", s->epochs);
    if (fs_mkdirs(s->epochs, 0755, e) != 0 || io_sync_dir(s->root, e) != 0)
        return -1;
    auto_free char *text = claim_encode(s->job, epoch, member, nonce, world);
    return io_link_file(s->epochs, name, nonce, text, e);
}

int store_base(const struct store *s, const char *nonce, int32_t world, const struct lineage *l, struct error *e)
{
    char name[LAYOUT_NAME_MAX];
    layout_base(lineage_head(l), name);
    auto_free char *text = base_encode(s->job, lineage_head(l), nonce, world, l);
    return io_link_file(s->epochs, name, nonce, text, e);
}

/* ---- generations ------------------------------------------------------------------------------------------------------ */

int store_prepare(const struct store *s, struct checkpoint_id id, struct generation *ret_generation, bool *ret_committed, struct error *e)
{
    auto_scan struct store_scan scan = { .generations = NULL };
    if (store_scan(s, &scan, e) != 0)
        return -1;
    for (size_t i = 0; i < scan.count; i++) {
        const struct store_generation *g = &scan.generations[i];
        bool committed = g->state == GENERATION_COMMITTED && !g->bad;
        if (checkpoint_id_equal(g->generation.id, id) && (committed || (g->state == GENERATION_OPEN && !g->bad))) {
            *ret_generation = g->generation;
            *ret_committed = committed;
            return 0;
        }
    }
    struct generation g = { .id = id };
    uint8_t nonce[(LAYOUT_NONCE_MAX - 1) / 2];
    if (crypto_random(nonce, sizeof(nonce), e) != 0)
        return -1;
    crypto_hex(nonce, sizeof(nonce), g.nonce);
    auto_free char *path = NULL;
    store_generation_path(s, &g, &path);
    if (io_make_dir(path, e) != 0 || io_sync_dir(s->root, e) != 0)
        return -1;
    *ret_generation = g;
    *ret_committed = false;
    return 0;
}

int store_mark(const struct store *s, const struct generation *g, const char *marker, const char *reason, struct error *e)
{
    auto_free char *dir = NULL, *unique = xasprintf("%ld", (long)getpid());
    auto_free char *text = xasprintf("%s\n", reason);
    store_generation_path(s, g, &dir);
    if (io_link_file(dir, marker, unique, text, e) == 0)
        return 0;
    return e->kind == ERROR_CONFLICT ? 0 : -1;
}

/* ---- what goes -------------------------------------------------------------------------------------------------------- */

static int retire(const struct store *s, const struct generation *g, struct error *e)
{
    auto_free char *dir = NULL;
    store_generation_path(s, g, &dir);
    auto_free char *from = fs_join(dir, LAYOUT_COMMIT), *to = fs_join(dir, LAYOUT_RETIRED);
    if (io_rename(from, to, e) != 0)
        return -1;
    return io_sync_dir(dir, e);
}

/* First out of the way in one step, so that a removal that is cut short leaves nothing that looks like a generation. */
int store_remove(const struct store *s, const struct generation *g, struct error *e)
{
    auto_free char *dir = NULL;
    store_generation_path(s, g, &dir);
    auto_free char *gone = xasprintf("%s" LAYOUT_TMP, dir);
    if (io_rename(dir, gone, e) != 0)
        return -1;
    if ((errno = fault("remove", gone)) != 0)
        return error_errno(e, "remove %s", gone);
    return fs_remove_tree(gone, e);
}

struct tidying {
    const struct store *s;
    uint64_t head;
    const char *dir; /* being looked through for leftovers */
};

/* A leftover of a generation that was being removed, or of the hint. */
static int tidy_root(void *ctx, const char *name, struct error *e)
{
    const struct tidying *t = ctx;
    struct generation g;
    auto_free char *stem = xstrndup(name, strlen(name) - (layout_is_tmp(name) ? strlen(LAYOUT_TMP) : 0));
    if (!layout_is_tmp(name) || (!layout_generation_parse(stem, &g) && strcmp(stem, LAYOUT_LATEST) != 0))
        return 0;
    auto_free char *path = fs_join(t->s->root, name);
    return fs_remove_tree(path, e);
}

/* Half-written claims and bases, and those of epochs so old that no chain needs them. */
static int tidy_epochs(void *ctx, const char *name, struct error *e)
{
    const struct tidying *t = ctx;
    char stem[LAYOUT_NAME_MAX];
    uint64_t epoch;
    (void)snprintf(stem, sizeof(stem), "%.*s", (int)strcspn(name, "-"), name);
    bool known = layout_claim_parse(stem, &epoch) || layout_base_parse(stem, &epoch);
    if (!known || epoch >= t->head || (!layout_is_tmp(name) && t->head - epoch <= EPOCH_FILES_KEPT))
        return 0;
    auto_free char *path = fs_join(t->s->epochs, name);
    return io_remove(path, e);
}

static int tidy_committed(void *ctx, const char *name, struct error *e)
{
    const struct tidying *t = ctx;
    if (!layout_is_tmp(name))
        return 0;
    auto_free char *path = fs_join(t->dir, name);
    return io_remove(path, e);
}

static int carry_out(const struct store *s, const struct store_generation *g, enum retention_verdict verdict, uint64_t head, struct error *e)
{
    if (verdict == RETENTION_KEEP) {
        if (g->state != GENERATION_COMMITTED)
            return 0;
        auto_free char *dir = NULL;
        store_generation_path(s, &g->generation, &dir);
        struct tidying t = { .s = s, .head = head, .dir = dir };
        return each_entry(dir, tidy_committed, &t, e);
    }
    if (store_check_own(s, head, e) != 0)
        return -1;
    return verdict == RETENTION_RETIRE ? retire(s, &g->generation, e) : store_remove(s, &g->generation, e);
}

int store_tidy(const struct store *s, const struct lineage *l, int32_t keep_last, store_wanted_fn *wanted, void *ctx, struct error *e)
{
    auto_scan struct store_scan scan = { .generations = NULL };
    uint64_t head = lineage_head(l);
    if (store_check_own(s, head, e) != 0 || store_scan(s, &scan, e) != 0)
        return -1;
    auto_free struct retention_item *items = xcalloc(scan.count + 1, sizeof(*items));
    auto_free enum retention_verdict *verdicts = xcalloc(scan.count + 1, sizeof(*verdicts));
    for (size_t i = 0; i < scan.count; i++) {
        const struct store_generation *g = &scan.generations[i];
        items[i] = (struct retention_item){ .id = g->generation.id, .state = g->state, .bad = g->bad,
                                            .wanted = wanted(ctx, g->generation.id) };
    }
    retention_choose(items, scan.count, l, keep_last, verdicts);
    /* Oldest first: a pass that is cut short has taken what is wanted least. */
    for (size_t i = scan.count; i-- > 0;)
        if (carry_out(s, &scan.generations[i], verdicts[i], head, e) != 0)
            return -1;
    struct tidying t = { .s = s, .head = head };
    if (each_entry(s->root, tidy_root, &t, e) != 0)
        return -1;
    return each_entry(s->epochs, tidy_epochs, &t, e);
}
