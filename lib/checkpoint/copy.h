/*
 * copy.h — a committed step from one store to another: a directory, a bucket, either way.
 *
 * In the order of a save: images, each byte read against its checksums and summed up again on its way out; votes; MANIFEST; the history;
 * COMMIT. A copy that is cut short is no step, and doing it again goes on where it can.
 */
#ifndef CHECKPOINT_COPY_H
#define CHECKPOINT_COPY_H

#include "checkpoint/store.h"

typedef void copy_progress_fn(void *ctx, uint64_t bytes); /* of images, as they are read */

/* *ret_there: it was there already, whole. CONFLICT: `to` has another history of this job. INVALID: damaged. */
MUST_CHECK int store_copy(const struct store *from, const struct store *to, const struct generation *g, copy_progress_fn *progress, void *ctx,
                          bool *ret_there, struct error *e);

#endif
