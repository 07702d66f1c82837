#include "sidecar/checkpoint/agree.h"

#include <string.h>

#include "checkpoint/manifest.h"

static cJSON *holding_encode(const struct holding *h)
{
    char text[24];
    cJSON *item = json_object();
    epoch_format(h->id.epoch, text);
    json_put_text(item, "epoch", text);
    json_put_int(item, "step", h->id.step);
    json_put_int(item, "world", h->world);
    return item;
}

cJSON *holdings_encode(const struct holdings *h, const struct holding *volume, size_t volume_count)
{
    cJSON *tree = json_object(), *slots = json_array(), *committed = json_array();
    for (size_t i = 0; i < h->slot_count; i++)
        json_append(slots, holding_encode(&h->slots[i]));
    for (size_t i = 0; i < volume_count; i++)
        json_append(committed, holding_encode(&volume[i]));
    json_put(tree, "slots", slots);
    json_put(tree, "volume", committed);
    json_put(tree, "lineage", lineage_encode(&h->lineage));
    return tree;
}

int holdings_decode(const cJSON *tree, struct holdings *ret_holdings, struct error *e)
{
    struct holdings h = { .slot_count = 0, .lineage = { .count = 0 } };
    const cJSON *slots = json_at(tree, "slots"), *lineage = json_at(tree, "lineage");
    for (const cJSON *item = slots != NULL ? slots->child : NULL; item != NULL; item = item->next) {
        if (h.slot_count == HOLDINGS_SLOTS_MAX)
            return error_set(e, ERROR_LIMIT, "holdings.slots: more than %d", HOLDINGS_SLOTS_MAX);
        struct holding *slot = &h.slots[h.slot_count++];
        int64_t world = json_int(item, "world", 0);
        slot->id.step = json_int(item, "step", -1);
        slot->world = (int32_t)world;
        if (!epoch_parse(json_text(item, "epoch", NULL), &slot->id.epoch) || slot->id.step < 0 || world < 1 || world > MANIFEST_MAX_WORLD)
            return error_set(e, ERROR_INVALID, "holdings.slots[%zu]: expected epoch, step and world", h.slot_count - 1);
    }
    if (lineage != NULL && lineage_decode(lineage, &h.lineage, e) != 0)
        return error_wrap(e, "holdings");
    *ret_holdings = h;
    return 0;
}

static bool holds(const struct holdings *h, const struct holding *what)
{
    for (size_t i = 0; i < h->slot_count; i++)
        if (checkpoint_id_equal(h->slots[i].id, what->id) && h->slots[i].world == what->world)
            return true;
    return false;
}

/* Of a larger world the images of the ranks that are gone went with them. */
static bool held_by_all(const struct holdings *by_rank, int32_t world, const struct holding *what)
{
    if (what->world > world)
        return false;
    for (int32_t rank = 0; rank < what->world; rank++)
        if (!holds(&by_rank[rank], what))
            return false;
    return true;
}

static bool is_candidate(const struct holding *h, const struct lineage *l, const struct checkpoint_id *below)
{
    return lineage_visible(l, h->id) && (below == NULL || checkpoint_id_compare(h->id, *below) < 0);
}

bool agree(const struct holding *volume, size_t volume_count, const struct holdings *by_rank, int32_t world, const struct lineage *l,
           const struct checkpoint_id *below, struct holding *ret_holding)
{
    const struct holding *best = NULL;
    for (size_t i = 0; i < volume_count; i++)
        if (is_candidate(&volume[i], l, below) && (best == NULL || checkpoint_id_compare(volume[i].id, best->id) > 0))
            best = &volume[i];
    /* What all ranks hold rank 0 holds. */
    for (size_t i = 0; world > 0 && i < by_rank[0].slot_count; i++) {
        const struct holding *slot = &by_rank[0].slots[i];
        if (is_candidate(slot, l, below) && (best == NULL || checkpoint_id_compare(slot->id, best->id) > 0) &&
            held_by_all(by_rank, world, slot))
            best = slot;
    }
    if (best != NULL)
        *ret_holding = *best;
    return best != NULL;
}
