/*
 * internal.h — the state behind checkpoint.h, shared by its files: checkpoint.c (facade), saver.c and resume.c (this rank's
 * slots and images), committer.c and claim.c (tallies, commit, claim). Everything here belongs to the loop's thread unless it says otherwise.
 *
 * Messages (JSON; epoch is a decimal string):
 *   member → coordinator  {"op":"staged","epoch","step","world","bytes"}
 *                         {"op":"vote","epoch","step","nonce","bytes","crc64nvme"}
 *                         {"op":"failed","epoch","step","text"}
 *   coordinator → all     {"op":"all_staged","epoch","step"}             every rank holds it: older slots may go
 *                         {"op":"persist","epoch","step","nonce","world"} write it there
 *                         {"op":"committed","epoch","step","uri"}
 *                         {"op":"aborted","epoch","step","text"}
 */
#ifndef SIDECAR_CHECKPOINT_INTERNAL_H
#define SIDECAR_CHECKPOINT_INTERNAL_H

#include "sidecar/checkpoint/agree.h"
#include "sidecar/checkpoint/checkpoint.h"
#include "sidecar/checkpoint/slots.h"
#include "sidecar/checkpoint/tally.h"
#include "sidecar/checkpoint/worker.h"
#include "sidecar/checkpoint/writer.h"

#define SAVES_MAX 4
#define COMMITTED_MAX 16
#define TALLIES_MAX 8
#define URI_MAX 512

/* What is decided about a step is remembered a while, for members that ask late. */
struct decided { struct holding what; char uri[URI_MAX]; };

enum save_phase { SAVE_STAGED, SAVE_PERSISTING, SAVE_VOTED };
struct save { /* a staged image whose step is neither committed nor aborted */
    struct checkpoint_id id;
    int32_t world;
    enum save_phase phase;
    char nonce[LAYOUT_NONCE_MAX]; /* of the generation it is, or was, persisted into */
    uint64_t bytes, crc64nvme;    /* crc: once voted */
};

enum image_state { IMAGE_NONE, IMAGE_CHECKING, IMAGE_READY, IMAGE_FAILED };

struct saver {
    struct slots slots;
    bool has_slots;
    struct worker *worker;       /* persists and checks images */
    uint64_t epoch;              /* of the round entered, 0 = none */
    int32_t world;
    struct lineage lineage;
    struct checkpoint_restore restore;
    bool has_newest;
    struct checkpoint_id newest; /* newest step that all ranks hold, or the base */
    int64_t last_staged;         /* in this epoch, -1 = none */
    struct save saves[SAVES_MAX];
    size_t save_count;
    uint32_t persisting;         /* jobs in flight */
    bool slot_busy[SLOT_COUNT];  /* a job reads it */
    struct checkpoint_id slot_committed[SLOT_COUNT];
    int64_t committed_step;
    struct holding committed[COMMITTED_MAX]; /* on the volume, as far as heard; newest last */
    size_t committed_count;
    /* One image of the base on the volume, read against its checksums. */
    enum image_state image_state;
    int32_t image_index;
    int image_fd;
    uint64_t image_bytes;
    struct error image_error;
    /* Slots whose memory is being allocated. */
    bool allocating, allocation_failed;
    struct error allocation_error;
};

struct committer {
    struct worker *worker;       /* claim, prepare, commit, tidy: in order */
    bool claiming, active;       /* active: this member coordinates */
    uint64_t epoch;
    int32_t world;
    struct checkpoint_id base;   /* what this epoch restored; step -1: nothing */
    int32_t base_world;          /* ranks that saved it: those save it to the end */
    struct lineage lineage;
    uint64_t newest_epoch;
    struct tally *tallies;
    struct loop_timer *timer;
    struct checkpoint_id dead;   /* steps of this epoch up to here that are not being saved are aborted */
    struct decided decided[COMMITTED_MAX];
    size_t decided_count;
    /* Of the coordinator's worker thread alone: */
    uint64_t claimed_epoch;      /* 0: not claimed (the volume was full) */
    char claimed_nonce[LAYOUT_NONCE_MAX];
};

struct checkpoint {
    struct loop *loop;
    struct checkpoint_events events;
    char *memory, *name;         /* options */
    int32_t rank, keep_last;
    bool has_volume;
    struct store store;          /* never changes: all threads read it */
    struct saver saver;
    struct committer committer;
};

/* saver.c */
MUST_CHECK int saver_open(struct checkpoint *c, struct error *e);
void saver_close(struct checkpoint *c);
void saver_enter(struct checkpoint *c, uint64_t fence, int32_t world, const struct checkpoint_restore *restore);
void saver_all_staged(struct checkpoint *c, struct checkpoint_id id);
void saver_persist(struct checkpoint *c, struct checkpoint_id id, const char *nonce, int32_t world);
void saver_committed(struct checkpoint *c, struct checkpoint_id id, int32_t world, const char *uri);
void saver_aborted(struct checkpoint *c, struct checkpoint_id id, const char *text);

bool saver_slot_of(const struct saver *m, struct checkpoint_id id, uint32_t *ret_slot, struct holding *ret_holding, uint64_t *ret_bytes);

/* resume.c */
void saver_check_image(struct checkpoint *c, int32_t image); /* begins to read it on the volume; image_state says how it went */
void saver_drop_image(struct saver *m);

/* committer.c */
MUST_CHECK int committer_open(struct checkpoint *c, struct error *e);
void committer_close(struct checkpoint *c);
void committer_staged(struct checkpoint *c, int32_t from, struct checkpoint_id id, int32_t world, uint64_t bytes);
void committer_vote(struct checkpoint *c, int32_t from, struct checkpoint_id id, const char *nonce, uint64_t bytes, uint64_t crc64nvme);
void committer_failed(struct checkpoint *c, int32_t from, struct checkpoint_id id, const char *text);

/* claim.c: the blocking part of a claim, on the coordinator's thread. */
struct claim {
    uint64_t fence;
    int32_t world;
    const char *member;
    struct holdings *by_rank;    /* world of them */
    bool skip_newest;            /* the newest is taken for poisoned: an older one, where there is one */
    struct lineage known;        /* what this member knows, then: the history of the new epoch */
    struct checkpoint_restore ret_restore;
    bool ret_on_volume;          /* the base is committed there */
    uint64_t ret_newest_epoch;
};
/* *claimed_epoch and claimed_nonce become this epoch's when the volume could be written; not when it was full. */
MUST_CHECK int claim_run(const struct store *s /* NULL: memory only */, struct claim *claim, uint64_t *claimed_epoch,
                         char claimed_nonce[LAYOUT_NONCE_MAX], struct error *e);
/* The epoch of `l` once more, after the volume was full at the forming. */
MUST_CHECK int claim_late(const struct store *s, const char *member, int32_t world, const struct lineage *l, uint64_t *claimed_epoch,
                          char claimed_nonce[LAYOUT_NONCE_MAX], struct error *e);

cJSON *checkpoint_message_new(const char *op, struct checkpoint_id id); /* owned */

#endif
