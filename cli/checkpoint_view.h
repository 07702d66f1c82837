/*
 * checkpoint_view.h — how checkpoints look: the list of a store, one step in full. Pure: text from what was read.
 */
#ifndef CLI_CHECKPOINT_VIEW_H
#define CLI_CHECKPOINT_VIEW_H

#include "checkpoint/inspect.h"
#include "checkpoint/tensors.h"
#include "cli/view.h"

void checkpoint_table(const struct inspections *all, const struct view_style *style, int64_t now_wall_ms, struct buf *out);
cJSON *checkpoint_list_json(const struct inspections *all, const char *volume); /* owned */

struct checkpoint_step {
    const struct inspection *inspection;
    const char *directory;
    const struct manifest_entry *entries; /* of each image */
    const struct tensors *tensors;
    const uint32_t *const *part_crc32c;   /* [tensor][part], or NULL: not computed */
};

void checkpoint_format(const struct checkpoint_step *s, const struct view_style *style, int64_t now_wall_ms, struct buf *out);
cJSON *checkpoint_step_json(const struct checkpoint_step *s); /* owned */

#endif
