/*
 * store.h — the checkpoints of one job on a volume. Layout and order of the writes: docs/internals/checkpoint.md.
 *
 * A store holds two strings and no state: what counts is on the volume. Every call blocks on the disk and belongs on a
 * checkpoint thread; calls from several threads and machines at once are safe by the protocol (names with nonces, link(2)).
 */
#ifndef SIDECAR_CHECKPOINT_STORE_H
#define SIDECAR_CHECKPOINT_STORE_H

#include "sidecar/checkpoint/manifest.h"
#include "sidecar/checkpoint/retention.h"

struct store {
    char *root;     /* <volume>/<job uid> */
    char *epochs;   /* <root>/epochs */
    char job[64];
};

struct store_generation {
    struct generation generation;
    enum generation_state state;
    bool bad;
};

struct store_scan {
    struct store_generation *generations; /* newest first */
    size_t count;
    uint64_t newest_claim;  /* 0 = none */
    struct lineage lineage; /* of the newest epoch that has a base */
};

MUST_CHECK int store_init(struct store *s, const char *volume, const char *job_uid, struct error *e);
void store_release(struct store *s);
void store_generation_path(const struct store *s, const struct generation *g, char **ret_path /* owned */);

/* A store that nobody has written is empty, not an error. */
MUST_CHECK int store_scan(const struct store *s, struct store_scan *ret_scan, struct error *e);
void store_scan_release(struct store_scan *scan);
#define auto_scan __attribute__((cleanup(store_scan_release)))

/* Epochs. CONFLICT: the epoch is somebody's already. */
MUST_CHECK int store_claim(const struct store *s, uint64_t epoch, const char *member, const char *nonce, int32_t world, struct error *e);
MUST_CHECK int store_base(const struct store *s, const char *nonce, int32_t world, const struct lineage *l, struct error *e);
MUST_CHECK int store_newest_claim(const struct store *s, uint64_t *ret_epoch, struct error *e);
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

/* The reader's rule without reading the images: COMMIT, the MANIFEST that it names, every file's size. */
MUST_CHECK int store_check(const struct store *s, const struct generation *g, struct step_key *ret_key,
                           struct manifest_entry **ret_entries, struct error *e);
/* Image `rank` of the `world` that saved it, every byte read against the checksums. The descriptor is at 0. ERROR_INVALID: damaged. */
MUST_CHECK int store_open_image(const struct store *s, const struct generation *g, int32_t rank, int32_t world, int *ret_fd,
                                uint64_t *ret_bytes, struct error *e);

/* Marks a generation BAD or ABORTED, with the reason for a person. Marked already is fine. */
MUST_CHECK int store_mark(const struct store *s, const struct generation *g, const char *marker, const char *reason, struct error *e);

MUST_CHECK int store_remove(const struct store *s, const struct generation *g, struct error *e);

/* One pass of retention, and leftovers of crashed writers removed. `wanted` is asked for each generation. Stops with GONE when a
 * newer epoch than the lineage's is claimed. */
typedef bool store_wanted_fn(void *ctx, struct checkpoint_id id);
MUST_CHECK int store_tidy(const struct store *s, const struct lineage *l, int32_t keep_last, store_wanted_fn *wanted, void *ctx, struct error *e);

#endif
