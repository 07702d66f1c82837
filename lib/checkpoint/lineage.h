/*
 * lineage.h — which checkpoints belong to the history of an epoch. Pure.
 *
 * Every epoch names its base, the checkpoint that it restored (or none: from scratch). The chain of bases from the newest
 * epoch back is the history; a checkpoint (e, s) is visible iff e is the newest epoch, or the chain goes through (e, b) with
 * s <= b. So what a coordinator of a superseded epoch commits late is never read by anybody, without any lock on the volume.
 */
#ifndef CHECKPOINT_LINEAGE_H
#define CHECKPOINT_LINEAGE_H

#include "base/json.h"
#include "checkpoint/layout.h"

#define LINEAGE_MAX 256 /* epochs that made progress and were restored from; older ones are forgotten */

struct lineage_link { uint64_t epoch; bool has_base; struct checkpoint_id base; };
struct lineage {
    struct lineage_link links[LINEAGE_MAX]; /* newest first; links[i].base.epoch == links[i + 1].epoch where that is known */
    size_t count;
};

uint64_t lineage_head(const struct lineage *l); /* the newest epoch, 0 = empty */
bool lineage_visible(const struct lineage *l, struct checkpoint_id id);
bool lineage_has_base(const struct lineage *l, struct checkpoint_id id); /* it is the base of an epoch on the chain */
/* The history of a new epoch that restored `base` (NULL: from scratch). l may be the source of a base that it does not know. */
void lineage_push(struct lineage *l, uint64_t epoch, const struct checkpoint_id *base);
/* The one with the newer head: each is a whole history. */
void lineage_adopt(struct lineage *l, const struct lineage *other);

cJSON *lineage_encode(const struct lineage *l); /* array; owned */
MUST_CHECK int lineage_decode(const cJSON *array, struct lineage *ret_lineage, struct error *e);

/* Epochs travel as decimal strings. */
void epoch_format(uint64_t epoch, char ret_text[24]);
bool epoch_parse(const char *text, uint64_t *ret_epoch); /* NULL is false */

#endif
