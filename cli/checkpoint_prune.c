#include "cli/checkpoint_prune.h"

#include <stdlib.h>

#include "base/mem.h"

static enum generation_state state_of(enum inspect_state state)
{
    switch (state) {
    case INSPECT_COMMITTED:
    case INSPECT_DAMAGED: return GENERATION_COMMITTED;
    case INSPECT_ABORTED: return GENERATION_ABORTED;
    case INSPECT_RETIRED: return GENERATION_RETIRED;
    default: return GENERATION_OPEN;
    }
}

void checkpoint_prune(const struct inspections *all, int64_t keep, int64_t keep_every, bool *ret_goes)
{
    auto_free struct retention_item *items = xcalloc(all->count + 1, sizeof *items);
    auto_free enum retention_verdict *verdicts = xcalloc(all->count + 1, sizeof *verdicts);
    uint64_t head = lineage_head(&all->scan.lineage);
    for (size_t i = 0; i < all->count; i++) {
        const struct inspection *item = &all->items[i];
        bool divides = keep_every > 0 && item->state == INSPECT_COMMITTED && item->visible && item->generation.id.step % keep_every == 0;
        /* A step of the epoch before may still be persisted: it was staged before its trainers died. */
        bool on_its_way = (item->state == INSPECT_PARTIAL || item->state == INSPECT_COMPLETE) && (item->visible || item->generation.id.epoch >= head);
        items[i] = (struct retention_item){ .id = item->generation.id, .state = state_of(item->state), .bad = item->state == INSPECT_DAMAGED,
                                            .wanted = divides || on_its_way || item->newest };
    }
    retention_choose(items, all->count, &all->scan.lineage, (int32_t)keep, verdicts);
    for (size_t i = 0; i < all->count; i++)
        ret_goes[i] = verdicts[i] != RETENTION_KEEP;
}
