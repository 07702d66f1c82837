/*
 * manifest.h — the JSON documents on the volume, written and read back with every field checked. Pure.
 *
 *   claim   who took an epoch                         base    what that epoch restored, and the history behind it
 *   vote    one rank's image is durable               MANIFEST  all votes of a step: what the step consists of
 *   COMMIT  the step counts (its CRC names the one manifest that counts)
 *
 * Each says what it is in "kind" and "version". Sizes are JSON numbers (exact to 2^53), epochs decimal strings, checksums
 * hex strings. A document of another job, epoch, step or nonce is an error of kind INVALID, never something to believe.
 */
#ifndef CHECKPOINT_MANIFEST_H
#define CHECKPOINT_MANIFEST_H

#include "base/json.h"
#include "checkpoint/lineage.h"

#define MANIFEST_MAX_WORLD 16384
#define MANIFEST_MAX_BYTES JSON_MAX_BYTES

struct step_key { /* what all documents of one generation must say alike */
    char job[64];
    struct generation generation;
    int32_t world;
};

struct vote {
    int32_t rank, world;
    uint64_t bytes, header_bytes; /* of the file; of its safetensors header */
    uint64_t crc64nvme;
    uint32_t header_crc32c;
    uint32_t *chunks;             /* CRC32C of each CHECKSUM_CHUNK_BYTES; owned */
    size_t chunk_count;
};

struct manifest_entry { /* by rank */
    uint64_t bytes, header_bytes, crc64nvme;
    uint32_t header_crc32c, vote_crc32c; /* of the vote file, which holds the chunks' checksums */
};

struct commit_record { uint64_t manifest_bytes, manifest_crc64nvme; };

char *claim_encode(const char *job, uint64_t epoch, const char *member, const char *nonce, int32_t world); /* owned */
MUST_CHECK int claim_check(const char *text, size_t len, const char *job, uint64_t epoch, const char *nonce /* or NULL: any */, struct error *e);

char *base_encode(const char *job, uint64_t epoch, const char *nonce, int32_t world, const struct lineage *l); /* l's head is epoch */
MUST_CHECK int base_decode(const char *text, size_t len, const char *job, uint64_t epoch, struct lineage *ret_lineage, struct error *e);

char *vote_encode(const struct step_key *key, const struct vote *v); /* the world is the key's */
/* A key of world 0 takes a vote of any world. */
MUST_CHECK int vote_decode(const char *text, size_t len, const struct step_key *key, int32_t rank, struct vote *ret_vote, struct error *e);
void vote_release(struct vote *v);
#define auto_vote __attribute__((cleanup(vote_release)))

char *manifest_encode(const struct step_key *key, const struct manifest_entry *entries /* key->world */);
/* Fills key->world, which the caller does not know; *ret_entries owned. */
MUST_CHECK int manifest_decode(const char *text, size_t len, struct step_key *key, struct manifest_entry **ret_entries, struct error *e);

char *commit_encode(const struct step_key *key, const struct commit_record *r);
MUST_CHECK int commit_decode(const char *text, size_t len, struct step_key *key /* world filled */, struct commit_record *ret_record, struct error *e);

/* For a nonce that is kept as text and for checksums. */
void crc64_format(uint64_t crc, char ret_text[20]);
bool crc64_parse(const char *text, uint64_t *ret_crc);

#endif
