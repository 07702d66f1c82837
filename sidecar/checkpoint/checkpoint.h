/*
 * checkpoint.h — the checkpoint engine of one member: slots in memory, persist, two-phase commit, restore agreement,
 * retention. The layout on the volume and the commit protocol are in docs/internals/checkpoint.md.
 *
 * Who is who: every member holds slots and persists its own images; the member that coordinates also runs the commit. Both
 * sides live behind this one facade; messages between members travel as PEER_CHECKPOINT JSON objects through the send
 * callback (member → coordinator, coordinator → all). No call blocks: disk work runs on the checkpoint's own threads and
 * comes back through the loop.
 *
 * Order of a round: the coordinator calls checkpoint_claim (epoch = fence; names the base that is restored), members learn
 * {fence, base step, world} from FORM and call checkpoint_enter. A save: the trainers stage (LOCAL_STAGED) → each member
 * persists and votes → the coordinator commits when each identity 0..world-1 has voted for the same (epoch, step, world,
 * nonce) → everyone hears COMMITTED. A step that all ranks staged is committed also when the trainers are dead.
 */
#ifndef SIDECAR_CHECKPOINT_CHECKPOINT_H
#define SIDECAR_CHECKPOINT_CHECKPOINT_H

#include "base/json.h"
#include "base/loop.h"

struct checkpoint;

struct checkpoint_options {
    const char *volume;        /* directory for this and other jobs, or s3://BUCKET[/PREFIX]; NULL: memory only */
    const struct s3_config *s3; /* borrowed as long as the checkpoint; may be NULL */
    const char *memory;        /* directory on tmpfs for the slots; survives the sidecar */
    const char *job_uid, *member;
    int32_t rank;              /* -1: outside the ring: takes part in no save and no restore; its trainer is refused in words */
    int32_t keep_last;
};

struct checkpoint_restore {
    bool found; int64_t step; uint64_t epoch; int32_t world; /* ranks that saved it */
    bool skipped; int64_t skipped_step;                      /* of a claim: this newer one was passed over, as asked; it stays where it is */
};

struct checkpoint_events {
    void (*send)(void *ctx, cJSON *message /* taken */);          /* member → coordinator */
    void (*broadcast)(void *ctx, cJSON *message /* taken */);     /* coordinator → every member, itself included */
    void (*committed)(void *ctx, int64_t step, const char *uri);  /* on every member */
    void (*failed)(void *ctx, int64_t step, const struct error *why); /* this save did not commit; training goes on */
    void (*ready)(void *ctx);                                     /* may be NULL: a call that ended with ERROR_BUSY can be made again */
    void *ctx;
};

MUST_CHECK int checkpoint_new(struct loop *loop, const struct checkpoint_options *options, const struct checkpoint_events *events,
                              struct checkpoint **ret_checkpoint, struct error *e);

/* What this member can restore: {"slots":[{"epoch":"n","step":n,"world":n}],"volume":[the same, committed], "lineage":[{"epoch":"n",
 * "base_epoch":"n","base_step":n}]}. Epochs are decimal strings because JSON numbers are doubles. For JOIN. Owned. */
cJSON *checkpoint_holdings(struct checkpoint *c);

/* Coordinator, at each forming: agrees on the newest step that the volume or the members' holdings cover, claims the epoch on the
 * volume, writes its base. Done on the checkpoint's thread; done(ctx, restore, why) is called on the loop. One claim at a time.
 *
 * Kinds of error: CONFLICT — this epoch or a newer one of the same attempt is claimed already: raise the round above
 * checkpoint_newest_epoch() and claim again. GONE — a newer attempt has claimed: this coordinator is stale and must stop.
 * INVALID — the holdings cannot be read. IO — the volume cannot be read. A volume that cannot be written (full) does not stop
 * the forming: the round runs on memory alone, its saves fail in words, and each save tries the claim again. */
typedef void checkpoint_claimed_fn(void *ctx, const struct checkpoint_restore *restore, const struct error *why /* NULL: well */);
void checkpoint_claim(struct checkpoint *c, uint64_t fence, int32_t world, const cJSON *const *holdings /* by rank; borrowed */,
                      bool skip_newest /* the job dies of it again and again: an older one, where there is one */,
                      checkpoint_claimed_fn *done, void *ctx);
uint64_t checkpoint_newest_epoch(const struct checkpoint *c); /* highest fence known, from claims on the volume and from enter; 0 = none */

/* Every member, at FORM. */
void checkpoint_enter(struct checkpoint *c, uint64_t fence, int32_t world, const struct checkpoint_restore *restore);

/* A message that arrived for this engine, on a member or on the coordinator. `from` is the sender's rank. */
void checkpoint_message(struct checkpoint *c, int32_t from, const cJSON *message);

/* The local trainer, through the attach server. Slots are created or re-used, and grow in place; fds are borrowed and stay valid as
 * long as the checkpoint. ERROR_BUSY: their memory is still being allocated (seconds for tens of GiB): ask again at `ready`. */
MUST_CHECK int checkpoint_slots(struct checkpoint *c, uint64_t image_bytes, int ret_fds[2], uint64_t *ret_slot_bytes, struct error *e);
MUST_CHECK int checkpoint_staged(struct checkpoint *c, uint32_t slot, int64_t step, uint64_t image_bytes, struct error *e);
void checkpoint_trainer_gone(struct checkpoint *c); /* slots in WRITING become EMPTY */
/* One image of the agreed step, 0 to ret_restore->world - 1: a descriptor (owned by the caller) and where in it. found=false: from
 * scratch. An image beyond that world is none: no descriptor and 0 bytes. When as many ranks saved the step as there are now, each
 * takes the one of its own number; when not, image i is for rank i % (ranks of now), so that memory is used where it can be: a slot
 * serves only the rank that it belongs to. Ask for one after the other, not for two at a time.
 * ERROR_BUSY: the image on the volume is still being read against its checksums: ask again at `ready`. Another error: the
 * image is damaged (the step is marked BAD, the next claim takes an older one). */
MUST_CHECK int checkpoint_open_restore(struct checkpoint *c, int32_t image, struct checkpoint_restore *ret_restore, int *ret_fd,
                                       uint64_t *ret_offset, uint64_t *ret_bytes, bool *ret_from_memory, struct error *e);
bool checkpoint_idle(const struct checkpoint *c);             /* nothing staged is left to persist or commit */
int64_t checkpoint_committed_step(const struct checkpoint *c); /* newest, -1 = none */
void checkpoint_free(struct checkpoint *c);                   /* waits for disk work in flight; slots stay in memory */

#endif
