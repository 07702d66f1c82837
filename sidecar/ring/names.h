/*
 * names.h — names of tensors: a name and its set as one key, and the numbers that stand for names on the wire.
 *
 * Every rank of a process set, rank 0 included, keeps a cache for it. Only GO entries change it, so all are equal, and both ends
 * number the names in GO order without a word about it. Pure; not thread-safe; cannot fail (mem.h).
 */
#ifndef SIDECAR_RING_NAMES_H
#define SIDECAR_RING_NAMES_H

#include "sidecar/ring/signature.h"
#include "wire/shm.h"

#define NAME_CACHE_MAX 16384 /* names with a number; those beyond travel in full */

/* Names of different sets do not meet. */
#define NAME_KEY_MAX (SHM_NAME_MAX + 12)
const char *name_key(uint32_t set, const char *name, char ret_key[NAME_KEY_MAX]);

struct cached_name { uint32_t id; char name[SHM_NAME_MAX]; struct signature sig; /* a count that is free: 0 */ };

struct name_cache;
struct name_cache *name_cache_new(void);
void name_cache_free(struct name_cache *c);
/* An entry of a GO list was made (rank 0) or received: remembers it. */
void name_cache_note(struct name_cache *c, const char *name, const struct signature *sig);
/* NULL: it has no such name, or number. Valid until the cache is freed. */
const struct cached_name *name_cache_find(const struct name_cache *c, const char *name);
const struct cached_name *name_cache_at(const struct name_cache *c, uint64_t id);

#endif
