/*
 * results.h — the engine's allocator in a client's results area: first fit over a list ordered by offset, neighbours are
 * merged when freed. The book-keeping lies in our own memory; the client can neither see nor damage it. Pure.
 */
#ifndef SIDECAR_RING_RESULTS_H
#define SIDECAR_RING_RESULTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct results_range { uint64_t offset, bytes; bool in_use; };
struct results { struct results_range *ranges; size_t count, capacity; };

void results_init(struct results *a, uint64_t offset, uint64_t bytes);
/* Offset of a range of at least `bytes` (0 counts as 1), a multiple of SHM_ALIGN when `offset` was; false: no room. */
bool results_allocate(struct results *a, uint64_t bytes, uint64_t *ret_offset);
bool results_free(struct results *a, uint64_t offset); /* false: no result begins there */
void results_release(struct results *a);

#endif
