/*
 * negotiate.h — how ranks that submit tensors in any order agree on one order: the binary layout of announcements and
 * GO lists (ENGINE channel), and the pure state machine of rank 0. No sockets, no clock.
 *
 * Every rank announces each request by name to rank 0. When all ranks of its process set have announced a name, rank 0 puts it
 * into a GO list, and every rank of the set executes the lists in the order of their sequence numbers, which is one order for
 * all sets: so sets that overlap cannot block each other. When the ranks disagree on what the name is, every rank gets an error
 * for it that says who sent what. A name lives in its set: "x" of set 1 and "x" of set 2 are two tensors.
 *
 * A rank that has *joined* (SHM_OP_JOIN) is not waited for: lists go without it, and name the ranks that take part. A rank whose
 * training process has *left* (ended well) fails what waits for it.
 *
 * A name that has gone once is *cached*, per set: both ends number such names in GO order, without a word about it on the wire,
 * and say the number from then on as long as nothing about the tensor has changed. (What may change freely, the count of an
 * all-gather and the splits of an all-to-all, is said every time.) The table is bounded; names beyond it travel in full. Lists
 * that go without a joined rank, which cannot see them, leave the cache alone.
 *
 * The data of a small all-reduce travel *along*: each rank's with its announcement, the finished sum with the GO entry. So it takes
 * two hops, and nothing is left to exchange. Whether they do follows from the signature (signature_travels_along).
 *
 * Layout, little endian, no padding. Every count is checked against what is there.
 *
 *   ANNOUNCE  entries until the end of the payload:
 *               u8 1, u32 set, u8 op, u8 dtype, u8 redop, i32 root, u64 count, u64 row_elements, f64 prescale, f64 postscale,
 *               u64 hash of the shape, u8 length, text of the shape, u8 name length, name        (in full)
 *               u8 2, u32 set, u32 id, u64 count                                                 (cached)
 *               all-to-all, both forms (u8 + 128): u16 ranks, u64 elements for each of the set
 *               data along, both forms (u8 + 64): u32 length, elements
 *   GO        u64 first sequence number, u32 chunk bytes, then lists until the end of the payload:
 *               u32 set, u16 entries, u16 rank that announced last, u16 ranks that take part (0: all of the set), i32 each,
 *               then each entry:
 *                 u8 1, u8 name length, name        or  u8 2, u32 id
 *                 all-gather (u8 + 128): u16 ranks that take part, u64 count of each
 *                 all-to-all (u8 + 128): u16 ranks that take part, u64 elements that the receiver of the frame gets from each
 *                 data along (u8 + 64; all entries of the list or none): u32 length, elements of the result
 *             entries of one list are all-reduces that travel packed (fused); other operations stand alone.
 *   OP_ERROR  u32 set, u8 status (enum shm_status), u8 name length, name, u16 text length, text
 *   LEFT      u8: 1 = the rank's process has ended well, 0 = there is one again
 *   LOST      i32 rank or -1, u16 text length, text
 */
#ifndef SIDECAR_RING_NEGOTIATE_H
#define SIDECAR_RING_NEGOTIATE_H

#include "base/buf.h"
#include "base/error.h"
#include "sidecar/ring/names.h"
#include "sidecar/ring/sets.h"
#include "sidecar/ring/signature.h"
#include "wire/peer.h"
#include "wire/shm.h"

#define NEGOTIATE_SIZE_MAX 4096            /* ranks */
#define NEGOTIATE_FUSE_ENTRY_BYTES (512u << 10) /* all-reduces up to this size are fused ... */
#define NEGOTIATE_FUSE_BYTES (4u << 20)    /* ... into lists of up to this */
#define NEGOTIATE_FUSE_ENTRIES 512
#define NEGOTIATE_ALONG_LIST_BYTES (64u << 10) /* of results that travel along in one list */

struct announcement {
    uint32_t set;
    bool set_is_known;      /* false: it was removed meanwhile; nothing else is set then */
    char name[SHM_NAME_MAX];
    struct signature sig;
    uint64_t *splits;       /* all-to-all: elements for each rank of the set; owned */
    int32_t split_count;
    uint8_t *along;         /* data that travel along, prescaled; owned */
};
void announcement_release(struct announcement *a);

/* ---- announcements ---- */

void announce_encode(struct buf *b, const struct name_cache *c /* of the set */, const struct announcement *a);
/* Reads the entry at *at and moves it. ERROR_INVALID: the payload cannot be right. The caller releases *ret. */
MUST_CHECK int announce_decode(const struct process_sets *sets, const uint8_t *bytes, size_t len, size_t *at,
                               struct announcement *ret, struct error *e);

/* ---- rank 0 ---- */

struct negotiation;
struct negotiation *negotiation_new(int32_t size, const char *const *members /* by rank; borrowed */,
                                    const struct process_sets *sets /* borrowed */);
void negotiation_free(struct negotiation *n);

/* Takes the splits. ERROR_INVALID: the rank announced a name twice or something impossible; its engine is broken and the group
 * must end. now_ms is of any clock, for negotiation_stalls. */
MUST_CHECK int negotiation_announce(struct negotiation *n, int32_t rank, struct announcement *a, int64_t now_ms, struct error *e);
/* The rank's training process has ended well (or there is one again): what waits for it, now or later, fails with SHM_LEFT. */
void negotiation_left(struct negotiation *n, int32_t rank, bool left);
/* The set is about to be removed: what waits in it is dropped (each rank ends its own requests). */
void negotiation_forget_set(struct negotiation *n, uint32_t set);

struct go_entry {
    char name[SHM_NAME_MAX];
    struct signature sig;      /* as this rank knows it; not on the wire */
    uint64_t *counts;          /* all-gather: elements of each rank that takes part; all-to-all: what this rank gets from each */
    uint8_t **along;           /* on rank 0: by rank that takes part, the data that came along. Owned */
    uint8_t *result;           /* the sum that goes along. Owned */
    uint64_t **matrix;         /* all-to-all, on rank 0: by rank that takes part, elements for each rank of the set. Owned */
};
struct go_list {
    uint64_t sequence;
    uint32_t set;
    int32_t last_rank;         /* who announced last */
    int32_t *members;          /* ranks that take part, ascending; owned */
    int32_t *places;           /* of the members in the set; owned */
    int32_t member_count, set_size;
    bool whole;                /* they are all of the set */
    bool along;                /* each entry brings its result */
    struct go_entry *entries;
    size_t count;
    enum shm_status status;    /* not SHM_OK: the single entry ends with this and `text` on `members`, nothing is executed */
    char text[SHM_TEXT_MAX];
};

/* The next list that all ranks are ready for, or that has failed; false: none. The caller releases it. */
bool negotiation_next(struct negotiation *n, struct go_list *ret_list);
size_t negotiation_waiting(const struct negotiation *n); /* names that some but not all ranks have announced */
void go_list_release(struct go_list *l);
int32_t go_list_place(const struct go_list *l, int32_t rank); /* in members; -1: it does not take part */

/* A name that waits longer than it should. */
struct stall {
    const char *name;
    uint32_t set;
    int64_t waited_ms;
    const int32_t *missing;    /* ranks that have not announced it */
    int32_t missing_count;
    const char *text;          /* all of it in words: "grad" has waited 61 s for rank 2 (worker-1); ... */
};
typedef void stall_fn(void *ctx, const struct stall *s);
/* Tells of every name that has waited for after_ms and was not told of yet (`again`: told or not). Returns how many. */
size_t negotiation_stalls(struct negotiation *n, int64_t now_ms, int64_t after_ms, bool again, stall_fn *fn, void *ctx);

/* ---- GO, OP_ERROR, LEFT, LOST on the wire ---- */

/* Appends a list to a GO frame that go_begin began, as `rank` of the group needs it. Sequence numbers of the lists in a frame follow
 * each other. */
void go_begin(struct buf *b, uint64_t first_sequence, uint32_t chunk_bytes);
void go_add(struct buf *b, const struct process_set *set, int32_t rank, const struct go_list *l);
/* Notes the entries in the cache of the set: rank 0, after the list was encoded for everyone. */
void go_note(struct process_set *set, const struct go_list *l);
/* all-to-all, rank 0: fills in entry->counts for this rank from the matrix. */
void go_entry_for(const struct process_set *set, int32_t rank, const struct go_list *l, struct go_entry *entry);
/* Decodes a whole frame. Entries carry names and counts; their signatures come from `lookup`: what this rank itself announced
 * under that name (rank 0 saw that all are equal), NULL when it did not. Notes the entries in the caches. A list that adds or
 * removes a set (`lookup` sees it) comes alone in its frame. */
typedef const struct signature *go_lookup_fn(void *ctx, uint32_t set, const char *name);
MUST_CHECK int go_decode(struct process_sets *sets, int32_t rank, const uint8_t *bytes, size_t len, go_lookup_fn *lookup,
                         void *ctx, uint32_t *ret_chunk_bytes, struct go_list **ret_lists, size_t *ret_count, struct error *e);
void go_lists_free(struct go_list *lists, size_t count);

void op_error_encode(struct buf *b, uint32_t set, const char *name, enum shm_status status, const char *text);
MUST_CHECK int op_error_decode(const uint8_t *bytes, size_t len, uint32_t *ret_set, char ret_name[SHM_NAME_MAX], enum shm_status *ret_status,
                               char ret_text[SHM_TEXT_MAX], struct error *e);
void left_encode(struct buf *b, bool left);
MUST_CHECK int left_decode(const uint8_t *bytes, size_t len, bool *ret_left, struct error *e);
void lost_encode(struct buf *b, int32_t rank, const char *text);
MUST_CHECK int lost_decode(const uint8_t *bytes, size_t len, int32_t size, int32_t *ret_rank, char ret_text[SHM_TEXT_MAX],
                           struct error *e);

#endif
