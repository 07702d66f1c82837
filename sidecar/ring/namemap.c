#include "sidecar/ring/namemap.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define CAPACITY_MIN 64u

static char removed[] = ""; /* the name of a slot whose entry was removed: probing goes on behind it */

static uint64_t hash_of(const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */

    for (; *name != '\0'; name++)
        hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
    return hash ^ hash >> 32;
}

static struct namemap_slot *find(const struct namemap *m, const char *name, uint64_t hash)
{
    if (m->capacity == 0)
        return NULL;
    for (size_t i = hash & (m->capacity - 1);; i = (i + 1) & (m->capacity - 1)) {
        struct namemap_slot *slot = &m->slots[i];
        if (slot->name == NULL)
            return NULL;
        if (slot->name != removed && slot->hash == hash && strcmp(slot->name, name) == 0)
            return slot;
    }
}

static void insert(struct namemap *m, char *name, uint64_t hash, void *value)
{
    size_t i = hash & (m->capacity - 1);

    while (m->slots[i].name != NULL)
        i = (i + 1) & (m->capacity - 1);
    m->slots[i] = (struct namemap_slot){ .name = name, .value = value, .hash = hash };
}

/* Makes room for one more: at most three quarters of the slots are in use. */
static void grow(struct namemap *m)
{
    if ((m->used + 1) * 4 <= m->capacity * 3)
        return;

    struct namemap old = *m;
    m->capacity = CAPACITY_MIN;
    while (m->capacity < (old.count + 1) * 2)
        m->capacity *= 2;
    m->slots = xcalloc(m->capacity, sizeof *m->slots);
    m->used = old.count;
    for (size_t i = 0; i < old.capacity; i++) {
        if (old.slots[i].name != NULL && old.slots[i].name != removed)
            insert(m, old.slots[i].name, old.slots[i].hash, old.slots[i].value);
    }
    free(old.slots);
}

void *namemap_get(const struct namemap *m, const char *name)
{
    struct namemap_slot *slot = find(m, name, hash_of(name));

    return slot != NULL ? slot->value : NULL;
}

void namemap_put(struct namemap *m, const char *name, void *value)
{
    uint64_t hash = hash_of(name);
    struct namemap_slot *slot = find(m, name, hash);

    if (slot != NULL) {
        slot->value = value;
        return;
    }
    grow(m);
    insert(m, xstrdup(name), hash, value);
    m->count++;
    m->used++;
}

void *namemap_remove(struct namemap *m, const char *name)
{
    struct namemap_slot *slot = find(m, name, hash_of(name));

    if (slot == NULL)
        return NULL;
    void *value = slot->value;
    free(slot->name);
    *slot = (struct namemap_slot){ .name = removed };
    m->count--;
    return value;
}

void *namemap_each(const struct namemap *m, size_t *at)
{
    while (*at < m->capacity) {
        struct namemap_slot *slot = &m->slots[(*at)++];
        if (slot->name != NULL && slot->name != removed)
            return slot->value;
    }
    return NULL;
}

void namemap_release(struct namemap *m)
{
    for (size_t i = 0; i < m->capacity; i++) {
        if (m->slots[i].name != removed)
            free(m->slots[i].name);
    }
    free(m->slots);
    *m = (struct namemap){ 0 };
}
