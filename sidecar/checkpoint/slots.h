/*
 * slots.h — the two slots of a member: files on tmpfs that the trainer fills and the sidecar reads (layout: wire/shm.h).
 *
 * They outlive the sidecar and the trainer. After a restart only what is provably complete is taken over: STAGED, PERSISTING or
 * COMMITTED, sealed by the sidecar for that step, of this rank, with a header that checks. Everything else is EMPTY.
 *
 * The rule of re-use. The trainer may take a slot that is EMPTY or COMMITTED; so the sidecar lets a slot become that only when
 * the group can do without its image: a newer step is staged on all ranks (or was the base of this round), and nobody is
 * persisting it. The newest step that all ranks hold is therefore never overwritten, and whatever dies, one common step is left.
 *
 * Files only ever grow, in place, so a good image is never copied or lost. Their pages are allocated when the file is made:
 * a tmpfs that is too small is an error here and not a SIGBUS in the trainer. Not thread-safe, except reading an fd.
 */
#ifndef SIDECAR_CHECKPOINT_SLOTS_H
#define SIDECAR_CHECKPOINT_SLOTS_H

#include "sidecar/checkpoint/agree.h"
#include "wire/shm.h"

#define SLOT_COUNT 2
#define SLOTS_MAX_IMAGE (1ull << 46)

struct slot {
    char *path;
    int fd;                       /* -1: not made yet */
    struct slot_control *control; /* shared with the trainer: NULL while fd is -1 */
};

struct slots { struct slot slot[SLOT_COUNT]; };

/* Takes over what an earlier sidecar has left for this rank. `dir` must exist. */
MUST_CHECK int slots_open(struct slots *s, const char *dir, int32_t rank, struct error *e);
/* Bytes of memory that slots_ensure would have to allocate. Files are made (empty) where there are none. */
MUST_CHECK int slots_prepare(struct slots *s, uint64_t image_bytes, uint64_t *ret_missing, struct error *e);
/* Allocates one slot's pages, ahead of slots_ensure; touches nothing but the file, so it may run on another thread. */
MUST_CHECK int slot_allocate(int fd, const char *path, uint64_t image_bytes, struct error *e);
MUST_CHECK int slots_ensure(struct slots *s, uint64_t image_bytes, uint64_t *ret_slot_bytes, struct error *e);
void slots_close(struct slots *s); /* the files stay */

/* The trainer says that a slot holds a complete image: control page, header and bounds are checked, and it is sealed.
 * When it is not taken, slots_reject gives the slot back. */
MUST_CHECK int slots_accept(struct slots *s, uint32_t slot, struct checkpoint_id id, uint64_t image_bytes, int32_t world, int32_t rank, struct error *e);
void slots_reject(struct slots *s, uint32_t slot); /* staged and not sealed: EMPTY again */
void slots_drop_unfinished(struct slots *s); /* WRITING without a writer */

/* What a slot holds, sealed; false: nothing. */
bool slots_held(const struct slots *s, uint32_t slot, struct holding *ret_holding, uint64_t *ret_image_bytes);
void slots_set(struct slots *s, uint32_t slot, enum slot_state state);

/* The rule of re-use. Pure. */
struct slot_facts {
    bool held;       /* it holds a sealed image */
    bool busy;       /* which is being written to the volume */
    bool is_newest;  /* of the newest step that all ranks hold, or of the base */
    bool undecided;  /* staged here; not yet known whether all ranks do, or not yet persisted */
    bool committed;
};
enum slot_state slot_rest_state(const struct slot_facts *f);

#endif
