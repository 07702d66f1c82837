#include "checkpoint/retention.h"

static bool is_good(const struct retention_item *item, const struct lineage *l)
{
    return item->state == GENERATION_COMMITTED && !item->bad && lineage_visible(l, item->id);
}

/* How many good ones are newer. */
static int32_t newer(const struct retention_item *items, size_t count, const struct lineage *l, const struct retention_item *than)
{
    int32_t n = 0;
    for (size_t i = 0; i < count; i++)
        if (is_good(&items[i], l) && checkpoint_id_compare(items[i].id, than->id) > 0)
            n++;
    return n;
}

static bool is_recent_base(const struct lineage *l, struct checkpoint_id id)
{
    for (size_t i = 0; i < l->count && i < 2; i++)
        if (l->links[i].has_base && checkpoint_id_equal(l->links[i].base, id))
            return true;
    return false;
}

void retention_choose(const struct retention_item *items, size_t count, const struct lineage *l, int32_t keep_last,
                      enum retention_verdict *ret_verdicts)
{
    uint64_t head = lineage_head(l);
    int32_t keep = keep_last < 1 ? 1 : keep_last, good = 0;
    for (size_t i = 0; i < count; i++)
        good += is_good(&items[i], l);
    for (size_t i = 0; i < count; i++) {
        const struct retention_item *item = &items[i];
        enum retention_verdict verdict = RETENTION_KEEP;
        if (item->id.epoch > head || item->wanted)
            verdict = RETENTION_KEEP;
        else if (item->state == GENERATION_RETIRED || item->state == GENERATION_ABORTED)
            verdict = RETENTION_REMOVE;
        else if (item->state == GENERATION_OPEN)
            verdict = item->id.epoch == head ? RETENTION_KEEP : RETENTION_REMOVE;
        else if (is_good(item, l))
            verdict = newer(items, count, l, item) >= keep && !is_recent_base(l, item->id) ? RETENTION_RETIRE : RETENTION_KEEP;
        else
            verdict = good >= keep ? RETENTION_RETIRE : RETENTION_KEEP;
        ret_verdicts[i] = verdict;
    }
}
