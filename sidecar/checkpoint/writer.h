/*
 * writer.h — what the engine changes in a store (checkpoint/store.h): epochs, generations, images and votes, commit, retention.
 * The order of the writes is in docs/internals/checkpoint.md. Every call blocks on the disk and belongs on a checkpoint thread.
 */
#ifndef SIDECAR_CHECKPOINT_WRITER_H
#define SIDECAR_CHECKPOINT_WRITER_H

#include "checkpoint/store.h"

/* Epochs. CONFLICT: the epoch is somebody's already. */
MUST_CHECK int store_claim(const struct store *s, uint64_t epoch, const char *member, const char *nonce, int32_t world, struct error *e);
MUST_CHECK int store_base(const struct store *s, const char *nonce, int32_t world, const struct lineage *l, struct error *e);
/* GONE when an epoch newer than this coordinator's own was claimed: it commits and removes nothing any more. */
MUST_CHECK int store_check_own(const struct store *s, uint64_t own_epoch, struct error *e);

/* A directory to save `id` in: the one that a coordinator before us has made, or a new one. *ret_committed: it is there
 * already and counts. */
MUST_CHECK int store_prepare(const struct store *s, struct checkpoint_id id, struct generation *ret_generation, bool *ret_committed,
                             struct error *e);

/* Writes this rank's image (bytes at offset of fd) and its vote. Doing it twice gives the same vote. Nothing is left when it fails. */
MUST_CHECK int store_persist(const struct store *s, const struct step_key *key, int32_t rank, int fd, uint64_t offset, uint64_t bytes,
                             struct vote *ret_vote, struct error *e);

/* Makes the step count, once all votes are there and fit their files. key->world 0: as many as the vote of rank 0 says. `own_epoch` is
 * the claim of this coordinator: GONE when there is a newer one. Committing what is committed is fine. */
MUST_CHECK int store_commit(const struct store *s, const struct step_key *key, uint64_t own_epoch, struct error *e);

/* One pass of retention, and leftovers of crashed writers removed. `wanted` is asked for each generation. Stops with GONE when a
 * newer epoch than the lineage's is claimed. */
typedef bool store_wanted_fn(void *ctx, struct checkpoint_id id);
MUST_CHECK int store_tidy(const struct store *s, const struct lineage *l, int32_t keep_last, store_wanted_fn *wanted, void *ctx, struct error *e);

#endif
