/*
 * store.h — the checkpoints of one job on a volume. Layout and order of the writes: docs/internals/checkpoint.md.
 *
 * A store holds a volume and a name and no state: what counts is on the volume. Every call blocks: in the sidecar it belongs on a
 * checkpoint thread. Calls from several threads and machines at once are safe by the protocol (names with nonces, exclusive creation).
 * What the sidecars write, and when: sidecar/checkpoint/writer.h.
 */
#ifndef CHECKPOINT_STORE_H
#define CHECKPOINT_STORE_H

#include "checkpoint/manifest.h"
#include "checkpoint/retention.h"
#include "checkpoint/volume.h"

#define STORE_EPOCH_FILES_KEPT 64 /* claims and bases of so many epochs stay and are looked at */

struct store {
    struct volume *volume; /* its name is for messages: "/ckpt/<uid>" */
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
    struct lineage lineage; /* of the newest epoch whose base can be read */
    struct error damage;    /* kind NONE, or why a newer one cannot: its checkpoints are in no history that is known */
};

/* `place`: a directory or s3://BUCKET[/PREFIX]; options as in volume.h. */
MUST_CHECK int store_init(struct store *s, const char *place, const char *job_uid, const struct volume_options *options, struct error *e);
void store_release(struct store *s);
void store_generation_path(const struct store *s, const struct generation *g, char **ret_path /* owned; with the volume's name */);
char *store_path(const struct generation *g, const char *name); /* of a file in it, for the volume; owned */

/* A store that nobody has written is empty, not an error. */
MUST_CHECK int store_scan(const struct store *s, struct store_scan *ret_scan, struct error *e);
void store_scan_release(struct store_scan *scan);
#define auto_scan __attribute__((cleanup(store_scan_release)))

MUST_CHECK int store_newest_claim(const struct store *s, uint64_t *ret_epoch /* 0 = none */, struct error *e);

/* The reader's rule without reading the images: COMMIT, the MANIFEST that it names, every file's size. */
MUST_CHECK int store_check(const struct store *s, const struct generation *g, struct step_key *ret_key,
                           struct manifest_entry **ret_entries, struct error *e);
/* Every byte of an image, against its checksums; the pieces go to fn (NULL: nowhere) as they come, and are known to be right only at
 * the end. ret_fd (or NULL): a descriptor at 0. ERROR_INVALID: damaged, and where. */
MUST_CHECK int store_read_image(const struct store *s, const struct step_key *key, const struct manifest_entry *entries, int32_t rank,
                                volume_bytes_fn *fn, void *ctx, int *ret_fd, struct error *e);
/* Image `rank` of the `world` that saved it: store_check and store_read_image in one. */
MUST_CHECK int store_open_image(const struct store *s, const struct generation *g, int32_t rank, int32_t world, int *ret_fd,
                                uint64_t *ret_bytes, struct error *e);

/* Marks a generation BAD or ABORTED, with the reason for a person. Marked already is fine. */
MUST_CHECK int store_mark(const struct store *s, const struct generation *g, const char *marker, const char *reason, struct error *e);

/* Out in two steps: a retired one is begun by no reader, a removed one is gone. */
MUST_CHECK int store_retire(const struct store *s, const struct generation *g, struct error *e);
MUST_CHECK int store_remove(const struct store *s, const struct generation *g, struct error *e);

#endif
