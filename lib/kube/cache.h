/*
 * cache.h — what is known of one resource's objects, as small entries of the program's own.
 *
 * The program gives the size of its entry and `project`, which fills one from an object; the object is not kept. Entries are
 * found by key and by index (the UID of the controlling owner, unless the program says otherwise). Entries are immutable: a
 * change replaces them; a borrowed entry lives until the next change of the cache. Not thread-safe. Cannot fail.
 *
 * A list is put between begin and commit; whatever was not put since begin is gone at the commit and is reported as such. An
 * object whose resourceVersion is the one already here is no change.
 */
#ifndef KUBE_CACHE_H
#define KUBE_CACHE_H

#include "kube/object.h"

struct kube_cache;

/* One of before and after may be NULL: new, or gone. Both are valid for the call. The callback may read the cache (it already
 * holds `after`), not change it. */
typedef void kube_change_fn(void *ctx, const struct kube_key *key, const void *before, const void *after);

struct kube_cache_def {
    size_t entry_size;
    /* Fills the zeroed entry. False: the object is of no interest, and gone if it was here. */
    bool (*project)(void *ctx, const cJSON *object, void *ret_entry);
    void (*release)(void *ctx, void *entry); /* of what the entry owns; NULL = nothing */
    /* The text under which it is found by kube_cache_first_of; NULL function = the controlling owner's UID. "" = under none. */
    const char *(*index)(void *ctx, const cJSON *object);
    kube_change_fn *changed; /* may be NULL */
    void *ctx;
};

struct kube_cache *kube_cache_new(const struct kube_cache_def *def);
void kube_cache_free(struct kube_cache *c); /* NULL is fine; reports no changes */

void kube_cache_begin(struct kube_cache *c);
void kube_cache_put(struct kube_cache *c, const cJSON *object);
void kube_cache_drop(struct kube_cache *c, const struct kube_key *key, const char *uid /* NULL or "": any; another is ignored */);
void kube_cache_commit(struct kube_cache *c);

bool kube_cache_synced(const struct kube_cache *c); /* committed at least once */
size_t kube_cache_count(const struct kube_cache *c);
size_t kube_cache_bytes(const struct kube_cache *c); /* memory of entries and indexes, without what entries own */
const void *kube_cache_get(const struct kube_cache *c, const struct kube_key *key); /* NULL when it is not here */

/* Walks. The cache must not change during one.
 *     for (const struct pod *p = kube_cache_first_of(pods, uid, &at); p != NULL; p = kube_cache_next(&at)) */
struct kube_cache_at { const struct kube_cache *cache; const void *entry; size_t slot; bool of_index; };
const void *kube_cache_first(const struct kube_cache *c, struct kube_cache_at *at);
const void *kube_cache_first_of(const struct kube_cache *c, const char *index, struct kube_cache_at *at);
const void *kube_cache_next(struct kube_cache_at *at);
size_t kube_cache_count_of(const struct kube_cache *c, const char *index);
/* The key of an entry given out by this cache; "" texts for namespace where it has none. Borrowed like the entry. */
const char *kube_entry_namespace(const void *entry);
const char *kube_entry_name(const void *entry);

#endif
