/*
 * layout.h — what things are called on the volume, and back. Pure. The picture is in docs/internals/checkpoint.md.
 *
 * Names that do not parse are somebody else's and are never touched.
 */
#ifndef CHECKPOINT_LAYOUT_H
#define CHECKPOINT_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

#define LAYOUT_NAME_MAX 96
#define LAYOUT_NONCE_MAX 33        /* 32 hex digits and NUL */
#define LAYOUT_EPOCHS "epochs"
#define LAYOUT_MANIFEST "MANIFEST.json"
#define LAYOUT_COMMIT "COMMIT"
#define LAYOUT_RETIRED "RETIRED"   /* COMMIT renamed: no reader may start; the data goes at the next retention */
#define LAYOUT_ABORTED "ABORTED"
#define LAYOUT_BAD "BAD"
#define LAYOUT_LATEST "LATEST"
#define LAYOUT_TMP ".tmp"          /* ends the name of every file that is being written */

/* What identifies a step: the same step computed in two epochs is two different things. */
struct checkpoint_id { uint64_t epoch; int64_t step; };

struct generation { struct checkpoint_id id; char nonce[LAYOUT_NONCE_MAX]; }; /* a directory of one attempt to commit a step */

bool checkpoint_id_equal(struct checkpoint_id a, struct checkpoint_id b);
int checkpoint_id_compare(struct checkpoint_id a, struct checkpoint_id b); /* by step, then epoch: newest is largest */

void layout_generation(const struct generation *g, char ret_name[LAYOUT_NAME_MAX]);
bool layout_generation_parse(const char *name, struct generation *ret_generation);
void layout_shard(int32_t rank, char ret_name[LAYOUT_NAME_MAX]);
void layout_vote(int32_t rank, char ret_name[LAYOUT_NAME_MAX]);
void layout_claim(uint64_t epoch, char ret_name[LAYOUT_NAME_MAX]);
void layout_base(uint64_t epoch, char ret_name[LAYOUT_NAME_MAX]);
bool layout_claim_parse(const char *name, uint64_t *ret_epoch);
bool layout_base_parse(const char *name, uint64_t *ret_epoch);
bool layout_is_tmp(const char *name);
bool layout_nonce_ok(const char *nonce);
bool layout_uid_ok(const char *uid); /* usable as the name of a directory */

#endif
