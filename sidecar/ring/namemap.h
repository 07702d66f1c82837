/*
 * namemap.h — a map from tensor names to pointers: open addressing, names are copied, values are the caller's.
 * Names are at most SHM_NAME_MAX - 1 bytes. Not thread-safe. Cannot fail (mem.h).
 */
#ifndef SIDECAR_RING_NAMEMAP_H
#define SIDECAR_RING_NAMEMAP_H

#include <stddef.h>
#include <stdint.h>

struct namemap_slot { char *name; void *value; uint64_t hash; };
struct namemap { struct namemap_slot *slots; size_t capacity, count, used; }; /* zero-initialized is empty */

void *namemap_get(const struct namemap *m, const char *name); /* NULL: not there */
void namemap_put(struct namemap *m, const char *name, void *value /* not NULL */); /* replaces */
void *namemap_remove(struct namemap *m, const char *name);    /* what stood there, or NULL */
/* Walks in no order: start with *at = 0; NULL at the end. The map must not change meanwhile. */
void *namemap_each(const struct namemap *m, size_t *at);
void namemap_release(struct namemap *m); /* not the values */

#endif
