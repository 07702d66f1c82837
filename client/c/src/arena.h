/*
 * arena.h — which bytes of the tensor arena are taken. Knows offsets only; the memory itself is nobody's business here.
 *
 * First fit over a sorted list of blocks; neighbours that are free are joined. The list lives on the heap, outside the shared
 * memory, so that a confused engine cannot corrupt it. Not thread-safe: the client's lock is held around every call.
 */
#ifndef CLIENT_ARENA_H
#define CLIENT_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ARENA_ALIGN 64u /* SHM_ALIGN: offsets and block sizes are multiples */

struct arena_block { uint64_t offset, bytes; bool used; };

struct arena {
    struct arena_block *blocks; /* sorted, without gaps, cover [base, base + bytes) */
    size_t count, capacity;
    uint64_t base, bytes, used;
};

/* base and bytes are offsets into the shared memory, base a multiple of ARENA_ALIGN. False: out of memory. */
bool arena_init(struct arena *a, uint64_t base, uint64_t bytes);
void arena_release(struct arena *a);
/* At least `bytes` (0 counts as 1). False when no block is large enough. */
bool arena_alloc(struct arena *a, uint64_t bytes, uint64_t *ret_offset);
/* False, and nothing happens, when offset is not the start of a taken block. */
bool arena_free(struct arena *a, uint64_t offset);
/* Whether [offset, offset + bytes) lies inside one taken block. */
bool arena_holds(const struct arena *a, uint64_t offset, uint64_t bytes);

#endif
