#include "sidecar/ring/sets.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sidecar/ring/names.h"

struct process_sets {
    struct process_set **by_id; /* NULL: free */
    size_t capacity;
};

static struct process_set *set_new(uint32_t id, int32_t count)
{
    struct process_set *set = xcalloc(1, sizeof *set);

    set->id = id;
    set->count = count;
    set->ranks = xcalloc((size_t)count, sizeof *set->ranks);
    set->cache = name_cache_new();
    return set;
}

static void set_free(struct process_set *set)
{
    if (set == NULL)
        return;
    name_cache_free(set->cache);
    free(set->ranks);
    free(set);
}

struct process_sets *process_sets_new(int32_t size)
{
    struct process_sets *s = xcalloc(1, sizeof *s);

    s->capacity = 4;
    s->by_id = xcalloc(s->capacity, sizeof(struct process_set *));
    s->by_id[0] = set_new(0, size);
    for (int32_t r = 0; r < size; r++)
        s->by_id[0]->ranks[r] = r;
    return s;
}

void process_sets_free(struct process_sets *s)
{
    if (s == NULL)
        return;
    for (size_t i = 0; i < s->capacity; i++)
        set_free(s->by_id[i]);
    free(s->by_id);
    free(s);
}

struct process_set *process_sets_get(const struct process_sets *s, uint32_t id)
{
    return id < s->capacity ? s->by_id[id] : NULL;
}

struct process_set *process_sets_find(const struct process_sets *s, const int32_t *ranks, int32_t count)
{
    for (size_t i = 0; i < s->capacity; i++) {
        struct process_set *set = s->by_id[i];
        if (set != NULL && set->count == count && memcmp(set->ranks, ranks, (size_t)count * sizeof *ranks) == 0)
            return set;
    }
    return NULL;
}

struct process_set *process_sets_add(struct process_sets *s, const int32_t *ranks, int32_t count)
{
    size_t id = 1;

    while (id < s->capacity && s->by_id[id] != NULL)
        id++;
    if (id >= SETS_MAX)
        return NULL;
    if (id >= s->capacity) {
        s->by_id = xrealloc(s->by_id, 2 * s->capacity, sizeof(struct process_set *));
        memset(s->by_id + s->capacity, 0, s->capacity * sizeof(struct process_set *));
        s->capacity *= 2;
    }
    s->by_id[id] = set_new((uint32_t)id, count);
    memcpy(s->by_id[id]->ranks, ranks, (size_t)count * sizeof *ranks);
    return s->by_id[id];
}

bool process_sets_remove(struct process_sets *s, uint32_t id)
{
    if (id == 0 || process_sets_get(s, id) == NULL)
        return false;
    set_free(s->by_id[id]);
    s->by_id[id] = NULL;
    return true;
}

int32_t process_set_index(const struct process_set *s, int32_t rank)
{
    int32_t low = 0, high = s->count - 1;

    while (low <= high) {
        int32_t middle = low + (high - low) / 2;
        if (s->ranks[middle] == rank)
            return middle;
        if (s->ranks[middle] < rank)
            low = middle + 1;
        else
            high = middle - 1;
    }
    return -1;
}

const char *process_set_text(const int32_t *ranks, int32_t count, char *ret_text, size_t size)
{
    size_t len = 0;

    for (int32_t i = 0; i < count; i++) {
        if (len + 20 > size) {
            (void)snprintf(ret_text + len, size - len, ", ...}");
            return ret_text;
        }
        len += (size_t)snprintf(ret_text + len, size - len, "%s%d", i == 0 ? "{" : ", ", ranks[i]);
    }
    (void)snprintf(ret_text + len, size - len, count == 0 ? "{}" : "}");
    return ret_text;
}
