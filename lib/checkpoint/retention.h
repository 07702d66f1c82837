/*
 * retention.h — which generations on the volume may go. Pure.
 *
 * Kept: the newest keep_last committed ones of the lineage, the bases of this epoch and the one before, whatever is still
 * being saved, and everything of an epoch newer than ours. Going is in two steps: a committed generation is first retired (no
 * reader may start on it), and removed at the next pass. Damaged and foreign-lineage ones go only when enough good ones are there.
 */
#ifndef CHECKPOINT_RETENTION_H
#define CHECKPOINT_RETENTION_H

#include <stddef.h>

#include "checkpoint/lineage.h"

enum generation_state { GENERATION_OPEN, GENERATION_ABORTED, GENERATION_COMMITTED, GENERATION_RETIRED };

struct retention_item {
    struct checkpoint_id id;
    enum generation_state state;
    bool bad;     /* a reader found it damaged */
    bool wanted;  /* being saved now, or in somebody's slot and not yet committed */
};

enum retention_verdict { RETENTION_KEEP, RETENTION_RETIRE, RETENTION_REMOVE };

void retention_choose(const struct retention_item *items, size_t count, const struct lineage *l, int32_t keep_last,
                      enum retention_verdict *ret_verdicts /* count */);

#endif
