/* writer.c — epochs, directories of generations, and what may go. Writing a step is in persist.c. */
#include "sidecar/checkpoint/writer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crypto.h"
#include "base/fs.h"
#include "base/mem.h"

/* ---- epochs ----------------------------------------------------------------------------------------------------------- */

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
    if (s->volume->ops->make_dir(s->volume, LAYOUT_EPOCHS, e) != 0)
        return -1;
    auto_free char *path = fs_join(LAYOUT_EPOCHS, name), *text = claim_encode(s->job, epoch, member, nonce, world);
    return s->volume->ops->create(s->volume, path, nonce, text, e);
}

int store_base(const struct store *s, const char *nonce, int32_t world, const struct lineage *l, struct error *e)
{
    char name[LAYOUT_NAME_MAX];
    layout_base(lineage_head(l), name);
    auto_free char *path = fs_join(LAYOUT_EPOCHS, name), *text = base_encode(s->job, lineage_head(l), nonce, world, l);
    return s->volume->ops->create(s->volume, path, nonce, text, e);
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
    char name[LAYOUT_NAME_MAX];
    layout_generation(&g, name);
    if (s->volume->ops->make_dir(s->volume, name, e) != 0)
        return -1;
    *ret_generation = g;
    *ret_committed = false;
    return 0;
}

/* ---- what goes -------------------------------------------------------------------------------------------------------- */

struct tidying {
    const struct volume *volume;
    uint64_t head;
    const char *dir;    /* being looked through for leftovers */
    char **gone;        /* names in it that go: removed when the listing is over */
    size_t count, cap;
};

static void tidying_add(struct tidying *t, const char *name)
{
    if (t->count == t->cap) {
        t->cap = t->cap > 0 ? t->cap * 2 : 16;
        t->gone = xrealloc(t->gone, t->cap, sizeof(*t->gone));
    }
    t->gone[t->count++] = xstrdup(name);
}

/* A leftover of a generation that was being removed, or of the hint. */
static int tidy_root(void *ctx, const char *name, struct error *e)
{
    struct tidying *t = ctx;
    struct generation g;
    (void)e;
    if (!t->volume->ops->is_leftover(name))
        return 0;
    auto_free char *stem = xstrndup(name, strlen(name) - strlen(LAYOUT_TMP));
    if (layout_generation_parse(stem, &g) || strcmp(stem, LAYOUT_LATEST) == 0)
        tidying_add(t, name);
    return 0;
}

/* Half-written claims and bases, and those of epochs so old that no chain needs them. */
static int tidy_epochs(void *ctx, const char *name, struct error *e)
{
    struct tidying *t = ctx;
    char stem[LAYOUT_NAME_MAX];
    uint64_t epoch;
    (void)e;
    (void)snprintf(stem, sizeof(stem), "%.*s", (int)strcspn(name, "-"), name);
    bool known = layout_claim_parse(stem, &epoch) || layout_base_parse(stem, &epoch);
    if (known && epoch < t->head && (t->volume->ops->is_leftover(name) || t->head - epoch > STORE_EPOCH_FILES_KEPT))
        tidying_add(t, name);
    return 0;
}

static int tidy_committed(void *ctx, const char *name, struct error *e)
{
    struct tidying *t = ctx;
    (void)e;
    if (t->volume->ops->is_leftover(name))
        tidying_add(t, name);
    return 0;
}

static int tidy(const struct store *s, const char *dir, uint64_t head, volume_name_fn *choose, struct error *e)
{
    struct tidying t = { .volume = s->volume, .head = head, .dir = dir };
    int result = s->volume->ops->list(s->volume, dir, choose, &t, e);
    for (size_t i = 0; i < t.count; i++) {
        auto_free char *path = dir[0] != '\0' ? fs_join(dir, t.gone[i]) : xstrdup(t.gone[i]);
        bool is_dir = dir[0] == '\0' && t.gone[i][0] == 's';
        if (result == 0)
            result = is_dir ? s->volume->ops->remove_dir(s->volume, path, e) : s->volume->ops->remove(s->volume, path, e);
        free(t.gone[i]);
    }
    free(t.gone);
    return result;
}

static int carry_out(const struct store *s, const struct store_generation *g, enum retention_verdict verdict, uint64_t head, struct error *e)
{
    if (verdict == RETENTION_KEEP) {
        if (g->state != GENERATION_COMMITTED)
            return 0;
        char dir[LAYOUT_NAME_MAX];
        layout_generation(&g->generation, dir);
        return tidy(s, dir, head, tidy_committed, e);
    }
    if (store_check_own(s, head, e) != 0)
        return -1;
    return verdict == RETENTION_RETIRE ? store_retire(s, &g->generation, e) : store_remove(s, &g->generation, e);
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
    if (tidy(s, "", head, tidy_root, e) != 0 || tidy(s, LAYOUT_EPOCHS, head, tidy_epochs, e) != 0)
        return -1;
    return s->volume->ops->sweep != NULL ? s->volume->ops->sweep(s->volume, head, e) : 0;
}
