/*
 * negotiate.h — how ranks that submit tensors in any order agree on one order: the binary layout of announcements and
 * GO lists (ENGINE channel), and the pure state machine of rank 0. No sockets, no time.
 *
 * Every rank announces each request by name to rank 0. When all ranks have announced a name, rank 0 puts it into a GO list,
 * and every rank executes the lists in the order of their sequence numbers. When they disagree on what the name is, every
 * rank gets an error for it that says who sent what.
 *
 * A name that has gone once is *cached*: both ends number such names in GO order, without a word about it on the wire, and
 * say the number from then on as long as nothing about the tensor has changed. (An all-gather's count is said every time:
 * it may change freely.) The table is bounded; names beyond it travel in full.
 *
 * Layout, little endian, no padding. Every count is checked against what is there.
 *
 *   ANNOUNCE  entries until the end of the payload:
 *               u8 1, u8 op, u8 dtype, u8 redop, i32 root, u64 count, u64 row_elements, f64 prescale, f64 postscale,
 *               u8 name length, name                                                             (in full)
 *               u8 2, u32 id, u64 count                                                          (cached)
 *   GO        u64 first sequence number, u32 chunk bytes, then lists until the end of the payload:
 *               u16 entries, u16 rank that announced last, then each entry:
 *                 u8 1, u8 name length, name        or  u8 2, u32 id
 *                 all-gather (u8 + 128): u16 ranks, u64 count of each rank
 *             entries of one list are all-reduces that travel packed (fused); other operations stand alone.
 *   OP_ERROR  u8 status (enum shm_status), u8 name length, name, u16 text length, text
 *   LOST      i32 rank or -1, u16 text length, text
 */
#ifndef SIDECAR_RING_NEGOTIATE_H
#define SIDECAR_RING_NEGOTIATE_H

#include "base/buf.h"
#include "base/error.h"
#include "wire/peer.h"
#include "wire/shm.h"

#define NEGOTIATE_SIZE_MAX 4096            /* ranks */
#define NEGOTIATE_CACHE_MAX 16384          /* names with a number */
#define NEGOTIATE_FUSE_ENTRY_BYTES (512u << 10) /* all-reduces up to this size are fused ... */
#define NEGOTIATE_FUSE_BYTES (4u << 20)    /* ... into lists of up to this */
#define NEGOTIATE_FUSE_ENTRIES 512

/* What all ranks must agree on for a name. An all-gather's count is the one field that may differ. */
struct signature {
    uint8_t op, dtype, redop;
    int32_t root;
    uint64_t count, row_elements;
    double prescale, postscale;
};

struct announcement { char name[SHM_NAME_MAX]; struct signature sig; };

struct signature signature_of(const struct shm_request *r); /* fields that mean nothing for the operation are 0 */
bool signature_equal(const struct signature *a, const struct signature *b); /* all-gather: but for the count */
bool signature_can_fuse(const struct signature *a, const struct signature *b); /* same arithmetic: may travel packed */
/* "all-reduce sum of 10 x float32, scaled by 0.5 and 1" */
#define SIGNATURE_TEXT_MAX 128
const char *signature_text(const struct signature *s, char ret_text[SIGNATURE_TEXT_MAX]);

/* ---- the cache that every rank keeps, rank 0 included; changed by GO entries only, so all are equal ---- */

struct name_cache;
struct name_cache *name_cache_new(void);
void name_cache_free(struct name_cache *c);
/* An entry of a GO list was made (rank 0) or received: remembers it. */
void name_cache_note(struct name_cache *c, const char *name, const struct signature *sig);

/* ---- announcements ---- */

void announce_encode(struct buf *b, const struct name_cache *c, const char *name, const struct signature *sig);
/* Reads the entry at *at and moves it. ERROR_INVALID: the payload cannot be right. */
MUST_CHECK int announce_decode(const struct name_cache *c, const uint8_t *bytes, size_t len, size_t *at,
                               struct announcement *ret, struct error *e);

/* ---- rank 0 ---- */

struct negotiation;
struct negotiation *negotiation_new(int32_t size, const char *const *members /* by rank; borrowed */);
void negotiation_free(struct negotiation *n);

/* ERROR_INVALID: the rank announced a name twice or something impossible; its engine is broken and the group must end. */
MUST_CHECK int negotiation_announce(struct negotiation *n, int32_t rank, const struct announcement *a, struct error *e);

struct go_entry {
    char name[SHM_NAME_MAX];
    struct signature sig;      /* as rank 0 knows it; not on the wire */
    uint64_t *counts;          /* all-gather: elements of each rank; else NULL. Owned by the entry */
};
struct go_list {
    uint64_t sequence;
    int32_t last_rank;         /* who announced last */
    struct go_entry *entries;
    size_t count;
    enum shm_status status;    /* not SHM_OK: the single entry ends with this and `text`, nothing is executed */
    char text[SHM_TEXT_MAX];
};

/* The next list that all ranks are ready for; false: none. The caller releases it. */
bool negotiation_next(struct negotiation *n, struct go_list *ret_list);
size_t negotiation_waiting(const struct negotiation *n); /* names that some but not all ranks have announced */
void go_list_release(struct go_list *l);

/* ---- GO, OP_ERROR, LOST on the wire ---- */

/* Appends a list to a GO frame that go_begin began, noting its entries in the cache of rank 0. Sequence numbers of the lists in a
 * frame follow each other. */
void go_begin(struct buf *b, uint64_t first_sequence, uint32_t chunk_bytes);
void go_add(struct buf *b, struct name_cache *c, int32_t size, const struct go_list *l);
/* Decodes a whole frame. Entries carry names and counts; their signatures come from `lookup`: what this rank itself announced
 * under that name (rank 0 saw that all are equal), NULL when it did not. Notes the entries in the cache. */
typedef const struct signature *go_lookup_fn(void *ctx, const char *name);
MUST_CHECK int go_decode(struct name_cache *c, int32_t size, const uint8_t *bytes, size_t len, go_lookup_fn *lookup, void *ctx,
                         uint32_t *ret_chunk_bytes, struct go_list **ret_lists, size_t *ret_count, struct error *e);
void go_lists_free(struct go_list *lists, size_t count);

void op_error_encode(struct buf *b, const char *name, enum shm_status status, const char *text);
MUST_CHECK int op_error_decode(const uint8_t *bytes, size_t len, char ret_name[SHM_NAME_MAX], enum shm_status *ret_status,
                               char ret_text[SHM_TEXT_MAX], struct error *e);
void lost_encode(struct buf *b, int32_t rank, const char *text);
MUST_CHECK int lost_decode(const uint8_t *bytes, size_t len, int32_t size, int32_t *ret_rank, char ret_text[SHM_TEXT_MAX],
                           struct error *e);

#endif
