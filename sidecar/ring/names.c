#include "sidecar/ring/names.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "sidecar/ring/namemap.h"

const char *name_key(uint32_t set, const char *name, char ret_key[NAME_KEY_MAX])
{
    if (set == 0)
        (void)snprintf(ret_key, NAME_KEY_MAX, "%s", name);
    else /* no client's name has a control character */
        (void)snprintf(ret_key, NAME_KEY_MAX, "\2%x\2%s", set, name);
    return ret_key;
}

struct name_cache {
    struct namemap by_name;
    struct cached_name **by_id;
    size_t count, capacity;
};

struct name_cache *name_cache_new(void)
{
    return xcalloc(1, sizeof(struct name_cache));
}

void name_cache_free(struct name_cache *c)
{
    if (c == NULL)
        return;
    for (size_t i = 0; i < c->count; i++)
        free(c->by_id[i]);
    free(c->by_id);
    namemap_release(&c->by_name);
    free(c);
}

void name_cache_note(struct name_cache *c, const char *name, const struct signature *sig)
{
    struct cached_name *known = namemap_get(&c->by_name, name);

    if (known == NULL) {
        if (c->count == NAME_CACHE_MAX)
            return;
        if (c->count == c->capacity) {
            c->capacity = c->capacity > 0 ? 2 * c->capacity : 64;
            c->by_id = xrealloc(c->by_id, c->capacity, sizeof *c->by_id);
        }
        known = xcalloc(1, sizeof *known);
        known->id = (uint32_t)c->count;
        (void)snprintf(known->name, sizeof known->name, "%s", name);
        c->by_id[c->count++] = known;
        namemap_put(&c->by_name, name, known);
    }
    known->sig = *sig;
    if (signature_count_is_free(sig))
        known->sig.count = 0; /* each rank has its own: it is said every time */
}

const struct cached_name *name_cache_find(const struct name_cache *c, const char *name)
{
    return namemap_get(&c->by_name, name);
}

const struct cached_name *name_cache_at(const struct name_cache *c, uint64_t id)
{
    return id < c->count ? c->by_id[id] : NULL;
}
