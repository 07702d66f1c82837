#include "checkpoint/inspect.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/fs.h"
#include "base/mem.h"
#include "base/text.h"

#define MARK_MAX_BYTES 4096

const char *inspect_state_name(enum inspect_state state)
{
    static const char *const NAMES[INSPECT_STATES] = {
        [INSPECT_COMMITTED] = "committed", [INSPECT_COMPLETE] = "complete", [INSPECT_PARTIAL] = "partial",
        [INSPECT_ABORTED] = "aborted", [INSPECT_RETIRED] = "retired", [INSPECT_DAMAGED] = "damaged",
    };
    return NAMES[state];
}

struct counting { const struct store *s; struct inspection *item; };

/* Rank of "vote-00003.json" or of a shard, by writing the name of each number that could be meant. */
static bool numbered(const char *name, const char *prefix, void (*write)(int32_t, char *), int32_t *ret_rank)
{
    char canonical[LAYOUT_NAME_MAX];
    size_t n = strlen(prefix);
    if (strncmp(name, prefix, n) != 0)
        return false;
    long rank = strtol(name + n, NULL, 10);
    if (rank < 0 || rank >= MANIFEST_MAX_WORLD)
        return false;
    write((int32_t)rank, canonical);
    *ret_rank = (int32_t)rank;
    return strcmp(canonical, name) == 0;
}

static int count_file(void *ctx, const char *name, struct error *e)
{
    struct counting *c = ctx;
    struct volume_stat st;
    int32_t rank;
    bool is_vote = numbered(name, "vote-", layout_vote, &rank);
    if (!is_vote && !numbered(name, "shard-", layout_shard, &rank))
        return 0;
    auto_free char *path = store_path(&c->item->generation, name);
    if (c->s->volume->ops->stat(c->s->volume, path, &st, e) != 0)
        return e->kind == ERROR_NOT_FOUND || e->kind == ERROR_INVALID ? 0 : -1; /* removed just now, or no file */
    if (is_vote) {
        c->item->votes++;
        if (c->item->time_wall_ms < st.modified_wall_ms)
            c->item->time_wall_ms = st.modified_wall_ms;
    } else {
        c->item->bytes += st.bytes;
    }
    return 0;
}

/* How many ranks save it, from the first vote that can be read. */
static int32_t world_of(const struct store *s, const struct generation *g)
{
    struct step_key key = { .generation = *g };
    memcpy(key.job, s->job, sizeof(key.job));
    for (int32_t rank = 0; rank < 64; rank++) {
        struct error ignored = ERROR_INIT;
        char name[LAYOUT_NAME_MAX];
        auto_free char *text = NULL;
        size_t len;
        auto_vote struct vote v = { .rank = rank };
        layout_vote(rank, name);
        auto_free char *path = store_path(g, name);
        if (s->volume->ops->read(s->volume, path, MANIFEST_MAX_BYTES, &text, &len, &ignored) == 0 &&
            vote_decode(text, len, &key, rank, &v, &ignored) == 0)
            return v.world;
    }
    return 0;
}

static int look_at_files(const struct store *s, struct inspection *i, struct error *e)
{
    char dir[LAYOUT_NAME_MAX];
    struct counting c = { .s = s, .item = i };
    layout_generation(&i->generation, dir);
    if (s->volume->ops->list(s->volume, dir, count_file, &c, e) != 0)
        return -1;
    i->world = i->votes > 0 ? world_of(s, &i->generation) : 0;
    return 0;
}

static void read_mark(const struct store *s, struct inspection *i, const char *marker)
{
    struct error ignored = ERROR_INIT;
    auto_free char *text = NULL, *path = store_path(&i->generation, marker);
    size_t len;
    if (s->volume->ops->read(s->volume, path, MARK_MAX_BYTES, &text, &len, &ignored) != 0)
        return;
    text[strcspn(text, "\n")] = '\0';
    (void)snprintf(i->note, sizeof(i->note), "%s", text);
}

static int look_at_committed(const struct store *s, struct inspection *i, bool marked_bad, struct error *e)
{
    struct step_key key;
    struct volume_stat st;
    auto_free struct manifest_entry *entries = NULL;
    auto_free char *path = store_path(&i->generation, LAYOUT_COMMIT);
    i->state = INSPECT_COMMITTED;
    if (store_check(s, &i->generation, &key, &entries, e) == 0) {
        i->world = i->votes = key.world;
        for (int32_t rank = 0; rank < key.world; rank++)
            i->bytes += entries[rank].bytes;
    } else if (e->kind == ERROR_INVALID) {
        i->state = INSPECT_DAMAGED;
        (void)snprintf(i->note, sizeof(i->note), "%.255s", e->text);
        if (look_at_files(s, i, e) != 0)
            return -1;
    } else {
        return -1;
    }
    if (s->volume->ops->stat(s->volume, path, &st, e) == 0)
        i->time_wall_ms = st.modified_wall_ms;
    if (marked_bad) {
        i->state = INSPECT_DAMAGED;
        read_mark(s, i, LAYOUT_BAD);
    }
    return 0;
}

static int look(const struct store *s, const struct store_generation *g, const struct lineage *l, struct inspection *i, struct error *e)
{
    *i = (struct inspection){ .generation = g->generation, .visible = lineage_visible(l, g->generation.id) };
    i->base = l->count > 0 && l->links[0].has_base && checkpoint_id_equal(l->links[0].base, g->generation.id);
    if (g->state == GENERATION_COMMITTED)
        return look_at_committed(s, i, g->bad, e);
    if (look_at_files(s, i, e) != 0)
        return -1;
    i->state = g->state == GENERATION_RETIRED ? INSPECT_RETIRED : g->state == GENERATION_ABORTED ? INSPECT_ABORTED
             : i->world > 0 && i->votes == i->world ? INSPECT_COMPLETE : INSPECT_PARTIAL;
    if (g->state == GENERATION_ABORTED)
        read_mark(s, i, LAYOUT_ABORTED);
    return 0;
}

int inspect_store(const struct store *s, struct inspections *ret_inspections, struct error *e)
{
    auto_inspections struct inspections all = { .items = NULL };
    if (store_scan(s, &all.scan, e) != 0)
        return -1;
    all.items = xcalloc(all.scan.count + 1, sizeof(*all.items));
    bool found = false;
    for (size_t i = 0; i < all.scan.count; i++) {
        struct error why = ERROR_INIT;
        struct inspection *item = &all.items[all.count];
        if (look(s, &all.scan.generations[i], &all.scan.lineage, item, &why) != 0) {
            if (why.kind == ERROR_NOT_FOUND)
                continue; /* removed since the scan */
            *e = why;
            return -1;
        }
        item->newest = !found && item->visible && item->state == INSPECT_COMMITTED;
        found = found || item->newest;
        all.count++;
    }
    *ret_inspections = all;
    all = (struct inspections){ .items = NULL };
    return 0;
}

void inspections_release(struct inspections *i)
{
    free(i->items);
    store_scan_release(&i->scan);
    *i = (struct inspections){ .items = NULL };
}

static bool is_meant(const struct inspection *i, const char *which, int64_t step)
{
    char name[LAYOUT_NAME_MAX];
    layout_generation(&i->generation, name);
    return i->generation.id.step == step || strcmp(name, which) == 0;
}

static bool is_better(const struct inspection *a, const struct inspection *b)
{
    int x = (a->state == INSPECT_COMMITTED) * 2 + a->visible, y = (b->state == INSPECT_COMMITTED) * 2 + b->visible;
    return x > y;
}

int inspect_find(const struct inspections *all, const char *which, const struct inspection **ret_inspection, struct error *e)
{
    const struct inspection *best = NULL;
    int64_t step = -1;
    bool latest = strcmp(which, "latest") == 0;
    (void)text_int(which, &step);
    for (size_t i = 0; i < all->count; i++) {
        const struct inspection *item = &all->items[i];
        if (latest ? item->newest : is_meant(item, which, step) && (best == NULL || is_better(item, best)))
            best = item;
    }
    if (best != NULL) {
        *ret_inspection = best;
        return 0;
    }
    auto_buf struct buf steps = BUF_INIT(200);
    for (size_t i = 0; i < all->count && i < 8; i++)
        buf_addf(&steps, "%s%" PRId64, i > 0 ? ", " : "", all->items[i].generation.id.step);
    if (latest)
        return error_set(e, ERROR_NOT_FOUND, "no step is committed here%s%s", all->count > 0 ? "; there are " : "", buf_text(&steps));
    return error_set(e, ERROR_NOT_FOUND, "there is no step \"%.100s\"%s%s%s", which, all->count > 0 ? "; there are " : "; there is none at all",
                     buf_text(&steps), all->count > 8 ? ", ..." : "");
}
