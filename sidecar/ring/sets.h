/*
 * sets.h — the process sets of a group: which ranks belong to which number. Pure.
 *
 * Set 0 is all ranks and always there. The others are added and removed by collectives of all ranks, whose GO lists every rank
 * takes in one order, so every rank gives a set the same number without a word about it: the lowest that is free. Each set
 * keeps the cache of names (names.h) that its GO entries fill, because only its ranks see them.
 */
#ifndef SIDECAR_RING_SETS_H
#define SIDECAR_RING_SETS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SETS_MAX 65536 /* numbers are below this */

struct name_cache;

struct process_set {
    uint32_t id;
    int32_t *ranks;             /* ascending */
    int32_t count;
    struct name_cache *cache;
};

struct process_sets;

struct process_sets *process_sets_new(int32_t size); /* with set 0 */
void process_sets_free(struct process_sets *s);
struct process_set *process_sets_get(const struct process_sets *s, uint32_t id); /* NULL: there is none */
struct process_set *process_sets_find(const struct process_sets *s, const int32_t *ranks, int32_t count); /* the very same ranks */
/* NULL: no number is free. `ranks` are ascending ranks of the group and no other set's. */
struct process_set *process_sets_add(struct process_sets *s, const int32_t *ranks, int32_t count);
bool process_sets_remove(struct process_sets *s, uint32_t id); /* false: there is none, or it is set 0 */

int32_t process_set_index(const struct process_set *s, int32_t rank); /* the place of a rank in a set; -1: not in it */
/* "{0, 2, 5}", cut off with "..." where it does not fit. */
const char *process_set_text(const int32_t *ranks, int32_t count, char *ret_text, size_t size);

#endif
