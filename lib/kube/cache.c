#include "kube/cache.h"

#include <stdalign.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/crypto.h"
#include "base/mem.h"
#include "kube/hash.h"

#define SLOTS_FIRST 64

struct bucket { /* the entries of one index text, newest first */
    struct bucket *next; /* in the slot */
    struct entry *first;
    size_t count;
    uint64_t hash;
    char text[];
};

/*
 * One block of memory: this head, the program's entry, then the texts namespace, name, resourceVersion and uid, each with its
 * NUL. The head is in front of the entry at a fixed distance, so that a borrowed entry leads back to it.
 */
struct entry {
    struct entry *next;            /* in the slot */
    struct entry *newer, *older;   /* in the bucket */
    struct bucket *bucket;         /* NULL = under no index */
    uint64_t hash;
    uint32_t round;                /* the list in which it was last seen */
    uint32_t ns_at, name_at, version_at, uid_at; /* from the entry's first byte */
    alignas(max_align_t) char data[];
};

struct kube_cache {
    struct kube_cache_def def;
    uint64_t seed;
    struct entry **slots;
    size_t slot_count, count;      /* slot_count is a power of two; so is bucket_slots */
    struct bucket **buckets;
    size_t bucket_slots, bucket_count;
    size_t bytes;
    uint32_t round;
    bool synced;
};

struct kube_cache *kube_cache_new(const struct kube_cache_def *def)
{
    struct kube_cache *c = xcalloc(1, sizeof *c);
    struct error e;

    c->def = *def;
    if (crypto_random(&c->seed, sizeof c->seed, &e) < 0)
        c->seed = (uintptr_t)c; /* better than a constant */
    c->slot_count = c->bucket_slots = SLOTS_FIRST;
    c->slots = xcalloc(c->slot_count, sizeof *c->slots);
    c->buckets = xcalloc(c->bucket_slots, sizeof *c->buckets);
    return c;
}

/* ---- entries ----------------------------------------------------------------------------------------------------------- */

static struct entry *entry_of(const void *data)
{
    return (struct entry *)((char *)(uintptr_t)data - offsetof(struct entry, data));
}

static size_t entry_bytes(const struct entry *en)
{
    return sizeof *en + en->uid_at + strlen(en->data + en->uid_at) + 1;
}

static void entry_free(struct kube_cache *c, struct entry *en)
{
    if (c->def.release != NULL)
        c->def.release(c->def.ctx, en->data);
    c->bytes -= entry_bytes(en);
    free(en);
}

static struct entry **place_of(const struct kube_cache *c, const struct kube_key *key)
{
    struct entry **at = &c->slots[kube_hash_key(c->seed, key->ns, key->name) & (c->slot_count - 1)];

    while (*at != NULL && (strcmp((*at)->data + (*at)->name_at, key->name) != 0 || strcmp((*at)->data + (*at)->ns_at, key->ns) != 0))
        at = &(*at)->next;
    return at;
}

static void grow_slots(struct kube_cache *c)
{
    size_t more = c->slot_count * 2;
    struct entry **slots = xcalloc(more, sizeof *slots);

    for (size_t i = 0; i < c->slot_count; i++)
        for (struct entry *en = c->slots[i], *next; en != NULL; en = next) {
            next = en->next;
            en->next = slots[en->hash & (more - 1)];
            slots[en->hash & (more - 1)] = en;
        }
    free(c->slots);
    c->slots = slots;
    c->slot_count = more;
}

/* ---- index ------------------------------------------------------------------------------------------------------------- */

static struct bucket **bucket_place(const struct kube_cache *c, const char *text, uint64_t hash)
{
    struct bucket **at = &c->buckets[hash & (c->bucket_slots - 1)];

    while (*at != NULL && ((*at)->hash != hash || strcmp((*at)->text, text) != 0))
        at = &(*at)->next;
    return at;
}

static void grow_buckets(struct kube_cache *c)
{
    size_t more = c->bucket_slots * 2;
    struct bucket **slots = xcalloc(more, sizeof *slots);

    for (size_t i = 0; i < c->bucket_slots; i++)
        for (struct bucket *b = c->buckets[i], *next; b != NULL; b = next) {
            next = b->next;
            b->next = slots[b->hash & (more - 1)];
            slots[b->hash & (more - 1)] = b;
        }
    free(c->buckets);
    c->buckets = slots;
    c->bucket_slots = more;
}

static void index_add(struct kube_cache *c, struct entry *en, const char *text)
{
    if (text == NULL || text[0] == '\0')
        return;
    uint64_t hash = kube_hash_key(c->seed, "", text);
    struct bucket **at = bucket_place(c, text, hash);
    if (*at == NULL) {
        size_t len = strlen(text);
        if (c->bucket_count >= c->bucket_slots) {
            grow_buckets(c);
            at = bucket_place(c, text, hash);
        }
        struct bucket *b = xcalloc(1, sizeof *b + len + 1);
        b->hash = hash;
        memcpy(b->text, text, len + 1);
        c->bytes += sizeof *b + len + 1;
        c->bucket_count++;
        *at = b;
    }
    en->bucket = *at;
    en->older = (*at)->first;
    if (en->older != NULL)
        en->older->newer = en;
    (*at)->first = en;
    (*at)->count++;
}

static void index_remove(struct kube_cache *c, struct entry *en)
{
    struct bucket *b = en->bucket;

    if (b == NULL)
        return;
    if (en->newer != NULL)
        en->newer->older = en->older;
    else
        b->first = en->older;
    if (en->older != NULL)
        en->older->newer = en->newer;
    en->bucket = NULL;
    if (--b->count > 0)
        return;
    *bucket_place(c, b->text, b->hash) = b->next;
    c->bucket_count--;
    c->bytes -= sizeof *b + strlen(b->text) + 1;
    free(b);
}

/* ---- changes ----------------------------------------------------------------------------------------------------------- */

static void report(struct kube_cache *c, const struct kube_key *key, const struct entry *before, const struct entry *after)
{
    if (c->def.changed != NULL)
        c->def.changed(c->def.ctx, key, before != NULL ? before->data : NULL, after != NULL ? after->data : NULL);
}

/* Takes what *at holds out of the tables, reports and frees it. */
static void remove_at(struct kube_cache *c, struct entry **at)
{
    struct entry *en = *at;
    struct kube_key key;

    *at = en->next;
    c->count--;
    index_remove(c, en);
    (void)kube_key_set(&key, en->data + en->ns_at, en->data + en->name_at);
    report(c, &key, en, NULL);
    entry_free(c, en);
}

static uint32_t put_text(struct entry *en, uint32_t *at, const char *text)
{
    uint32_t start = *at;
    size_t len = strlen(text) + 1;

    memcpy(en->data + start, text, len);
    *at = start + (uint32_t)len;
    return start;
}

static struct entry *entry_new(struct kube_cache *c, const cJSON *object, const struct kube_key *key)
{
    const char *version = kube_version(object), *uid = kube_uid(object);
    size_t texts = strlen(key->ns) + strlen(key->name) + strlen(version) + strlen(uid) + 4;
    struct entry *en = xcalloc(1, sizeof *en + c->def.entry_size + texts);
    uint32_t at = (uint32_t)c->def.entry_size;

    if (!c->def.project(c->def.ctx, object, en->data)) {
        if (c->def.release != NULL)
            c->def.release(c->def.ctx, en->data);
        free(en);
        return NULL;
    }
    en->ns_at = put_text(en, &at, key->ns);
    en->name_at = put_text(en, &at, key->name);
    en->version_at = put_text(en, &at, version);
    en->uid_at = put_text(en, &at, uid);
    en->hash = kube_hash_key(c->seed, key->ns, key->name);
    en->round = c->round;
    c->bytes += entry_bytes(en);
    return en;
}

void kube_cache_begin(struct kube_cache *c)
{
    c->round++;
}

void kube_cache_put(struct kube_cache *c, const cJSON *object)
{
    struct kube_key key;

    if (!kube_object_key(object, &key) || strlen(kube_version(object)) >= KUBE_VERSION_MAX || strlen(kube_uid(object)) >= KUBE_UID_MAX)
        return;
    struct entry **at = place_of(c, &key), *old = *at;
    if (old != NULL && kube_version(object)[0] != '\0' && strcmp(old->data + old->version_at, kube_version(object)) == 0 &&
        strcmp(old->data + old->uid_at, kube_uid(object)) == 0) {
        old->round = c->round;
        return;
    }
    struct entry *en = entry_new(c, object, &key);
    if (en == NULL) {
        if (old != NULL)
            remove_at(c, at);
        return;
    }
    if (old != NULL) {
        en->next = old->next;
        *at = en;
        index_remove(c, old);
    } else {
        if (c->count >= c->slot_count)
            grow_slots(c);
        at = &c->slots[en->hash & (c->slot_count - 1)];
        en->next = *at;
        *at = en;
        c->count++;
    }
    index_add(c, en, c->def.index != NULL ? c->def.index(c->def.ctx, object) : kube_controller_uid(object));
    report(c, &key, old, en);
    if (old != NULL)
        entry_free(c, old);
}

void kube_cache_drop(struct kube_cache *c, const struct kube_key *key, const char *uid)
{
    struct entry **at = place_of(c, key);

    /* An object that was deleted and made anew under its name: the late word of the first one's end says nothing of the second. */
    if (*at == NULL || (uid != NULL && uid[0] != '\0' && strcmp((*at)->data + (*at)->uid_at, uid) != 0))
        return;
    remove_at(c, at);
}

void kube_cache_commit(struct kube_cache *c)
{
    c->synced = true;
    for (size_t i = 0; i < c->slot_count; i++)
        for (struct entry **at = &c->slots[i]; *at != NULL;) {
            if ((*at)->round != c->round)
                remove_at(c, at);
            else
                at = &(*at)->next;
        }
}

void kube_cache_free(struct kube_cache *c)
{
    if (c == NULL)
        return;
    for (size_t i = 0; i < c->slot_count; i++)
        for (struct entry *en = c->slots[i], *next; en != NULL; en = next) {
            next = en->next;
            index_remove(c, en);
            entry_free(c, en);
        }
    free(c->slots);
    free(c->buckets);
    free(c);
}

/* ---- readings ---------------------------------------------------------------------------------------------------------- */

bool kube_cache_synced(const struct kube_cache *c)
{
    return c->synced;
}

size_t kube_cache_count(const struct kube_cache *c)
{
    return c->count;
}

size_t kube_cache_bytes(const struct kube_cache *c)
{
    return sizeof *c + c->bytes + (c->slot_count + c->bucket_slots) * sizeof(void *);
}

const void *kube_cache_get(const struct kube_cache *c, const struct kube_key *key)
{
    const struct entry *en = *place_of(c, key);

    return en != NULL ? en->data : NULL;
}

static const void *walk_slots(struct kube_cache_at *at)
{
    const struct entry *en = NULL;

    while (at->slot < at->cache->slot_count && (en = at->cache->slots[at->slot]) == NULL)
        at->slot++;
    at->entry = en != NULL ? en->data : NULL;
    return at->entry;
}

const void *kube_cache_first(const struct kube_cache *c, struct kube_cache_at *at)
{
    *at = (struct kube_cache_at){ .cache = c, .entry = NULL, .slot = 0, .of_index = false };
    return walk_slots(at);
}

static const struct bucket *find_bucket(const struct kube_cache *c, const char *index)
{
    return *bucket_place(c, index, kube_hash_key(c->seed, "", index));
}

const void *kube_cache_first_of(const struct kube_cache *c, const char *index, struct kube_cache_at *at)
{
    const struct bucket *b = find_bucket(c, index);

    *at = (struct kube_cache_at){ .cache = c, .entry = b != NULL ? b->first->data : NULL, .slot = 0, .of_index = true };
    return at->entry;
}

const void *kube_cache_next(struct kube_cache_at *at)
{
    if (at->entry == NULL)
        return NULL;
    const struct entry *en = entry_of(at->entry);
    en = at->of_index ? en->older : en->next;
    if (en == NULL && !at->of_index) {
        at->slot++;
        return walk_slots(at);
    }
    at->entry = en != NULL ? en->data : NULL;
    return at->entry;
}

size_t kube_cache_count_of(const struct kube_cache *c, const char *index)
{
    const struct bucket *b = find_bucket(c, index);

    return b != NULL ? b->count : 0;
}

const char *kube_entry_namespace(const void *entry)
{
    const struct entry *en = entry_of(entry);

    return en->data + en->ns_at;
}

const char *kube_entry_name(const void *entry)
{
    const struct entry *en = entry_of(entry);

    return en->data + en->name_at;
}
