/*
 * agree.h — which step a round begins from: the newest that every rank can restore. Pure.
 *
 * A candidate is a step committed on the volume (every rank's image is there), or one that every rank holds in a slot. What
 * is not in the lineage is no candidate. Ranks may restore the same step from different tiers: an identity (epoch, step)
 * names the same bytes wherever they lie.
 */
#ifndef SIDECAR_CHECKPOINT_AGREE_H
#define SIDECAR_CHECKPOINT_AGREE_H

#include "base/json.h"
#include "sidecar/checkpoint/lineage.h"

#define HOLDINGS_SLOTS_MAX 8

struct holding { struct checkpoint_id id; int32_t world; };
struct holdings { /* what one member says at its JOIN */
    struct holding slots[HOLDINGS_SLOTS_MAX];
    size_t slot_count;
    struct lineage lineage;
};

enum agreement { AGREE_SCRATCH, AGREE_STEP, AGREE_OTHER_WORLD /* the newest is of another world size */ };

cJSON *holdings_encode(const struct holdings *h, const struct holding *volume, size_t volume_count); /* owned */
MUST_CHECK int holdings_decode(const cJSON *tree, struct holdings *ret_holdings, struct error *e); /* NULL or {} is none */

/* ret_holding is written unless AGREE_SCRATCH. */
enum agreement agree(const struct holding *volume, size_t volume_count, const struct holdings *by_rank, int32_t world,
                     const struct lineage *l, struct holding *ret_holding);

#endif
