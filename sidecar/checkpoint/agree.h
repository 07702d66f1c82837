/*
 * agree.h — which step a round begins from: the newest that can be restored as a whole. Pure.
 *
 * A candidate is a step committed on the volume (every rank's image is there), or one that every rank that saved it is here with and
 * holds in a slot. The number of ranks that saved it need not be the number of today: the images are dealt out anew (checkpoint.h).
 * What is not in the lineage is no candidate. Ranks may restore the same step from different tiers: an identity (epoch, step)
 * names the same bytes wherever they lie.
 */
#ifndef SIDECAR_CHECKPOINT_AGREE_H
#define SIDECAR_CHECKPOINT_AGREE_H

#include "base/json.h"
#include "checkpoint/lineage.h"

#define HOLDINGS_SLOTS_MAX 8

struct holding { struct checkpoint_id id; int32_t world; };
struct holdings { /* what one member says at its JOIN */
    struct holding slots[HOLDINGS_SLOTS_MAX];
    size_t slot_count;
    struct lineage lineage;
};

cJSON *holdings_encode(const struct holdings *h, const struct holding *volume, size_t volume_count); /* owned */
MUST_CHECK int holdings_decode(const cJSON *tree, struct holdings *ret_holdings, struct error *e); /* NULL or {} is none */

/* false: there is nothing to restore, begin from scratch. With `below` (may be NULL) only what is older than that counts. */
bool agree(const struct holding *volume, size_t volume_count, const struct holdings *by_rank, int32_t world, const struct lineage *l,
           const struct checkpoint_id *below, struct holding *ret_holding);

#endif
