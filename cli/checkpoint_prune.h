/*
 * checkpoint_prune.h — which steps `checkpoint prune` takes. Pure. The rule is retention's (checkpoint/retention.h) with two more
 * reasons to stay: keep_every divides the step, or it is being saved in an epoch that may go on.
 */
#ifndef CLI_CHECKPOINT_PRUNE_H
#define CLI_CHECKPOINT_PRUNE_H

#include "checkpoint/inspect.h"

/* keep 0 counts as 1, keep_every 0 as none. */
void checkpoint_prune(const struct inspections *all, int64_t keep, int64_t keep_every, bool *ret_goes /* all->count */);

#endif
