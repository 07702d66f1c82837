#include "operator/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define BUCKETS_FIRST 256
#define FRESH_FOR_MS 30000

struct state_table { struct job_state **buckets; size_t bucket_count, count; };

struct state_table *state_table_new(void)
{
    struct state_table *t = xcalloc(1, sizeof *t);

    t->bucket_count = BUCKETS_FIRST;
    t->buckets = xcalloc(t->bucket_count, sizeof(struct job_state *));
    return t;
}

static void state_reset(struct job_state *s)
{
    free(s->fresh_text);
    free(s->own);
    state_take_report(s, NULL);
    crypto_wipe(s->job_key, sizeof s->job_key);
}

static size_t bucket_of(const struct state_table *t, const struct kube_key *key)
{
    uint64_t h = 0xcbf29ce484222325u;

    for (const char *p = key->ns; *p != '\0'; p++)
        h = (h ^ (unsigned char)*p) * 0x100000001b3u;
    h = (h ^ '/') * 0x100000001b3u;
    for (const char *p = key->name; *p != '\0'; p++)
        h = (h ^ (unsigned char)*p) * 0x100000001b3u;
    return (size_t)((h ^ (h >> 29)) % t->bucket_count);
}

static void grow(struct state_table *t)
{
    struct state_table bigger = { .bucket_count = 2 * t->bucket_count, .count = t->count };

    bigger.buckets = xcalloc(bigger.bucket_count, sizeof(struct job_state *));
    for (size_t i = 0; i < t->bucket_count; i++) {
        for (struct job_state *s = t->buckets[i], *next; s != NULL; s = next) {
            size_t at = bucket_of(&bigger, &s->key);
            next = s->next;
            s->next = bigger.buckets[at];
            bigger.buckets[at] = s;
        }
    }
    free(t->buckets);
    *t = bigger;
}

struct job_state *state_find(const struct state_table *t, const struct kube_key *key)
{
    struct job_state *s = t->buckets[bucket_of(t, key)];

    while (s != NULL && !kube_key_equal(&s->key, key))
        s = s->next;
    return s;
}

struct job_state *state_get(struct state_table *t, const struct kube_key *key, const char *uid)
{
    struct job_state *s = state_find(t, key);

    if (s != NULL && strcmp(s->uid, uid) == 0)
        return s;
    if (s != NULL) { /* deleted and made anew under the same name */
        struct job_state *next = s->next;
        bool in_work = s->in_work;
        state_reset(s);
        *s = (struct job_state){ .key = *key, .in_work = in_work, .next = next };
    } else {
        if (t->count >= 2 * t->bucket_count)
            grow(t);
        s = xcalloc(1, sizeof *s);
        s->key = *key;
        size_t at = bucket_of(t, key);
        s->next = t->buckets[at];
        t->buckets[at] = s;
        t->count++;
    }
    (void)snprintf(s->uid, sizeof s->uid, "%s", uid);
    return s;
}

void state_drop(struct state_table *t, const struct kube_key *key)
{
    struct job_state **at = &t->buckets[bucket_of(t, key)];

    while (*at != NULL && !kube_key_equal(&(*at)->key, key))
        at = &(*at)->next;
    struct job_state *s = *at;
    if (s == NULL || s->in_work)
        return;
    *at = s->next;
    state_reset(s);
    free(s);
    t->count--;
}

void state_table_free(struct state_table *t)
{
    if (t == NULL)
        return;
    for (size_t i = 0; i < t->bucket_count; i++) {
        for (struct job_state *s = t->buckets[i], *next; s != NULL; s = next) {
            next = s->next;
            state_reset(s);
            free(s);
        }
    }
    free(t->buckets);
    free(t);
}

size_t state_count(const struct state_table *t)
{
    return t->count;
}

void state_each(const struct state_table *t, void (*each)(void *ctx, const struct job_state *s), void *ctx)
{
    for (size_t i = 0; i < t->bucket_count; i++) {
        for (const struct job_state *s = t->buckets[i]; s != NULL; s = s->next)
            each(ctx, s);
    }
}

/* ---- our own status writes --------------------------------------------------------------------------------------------- */

void state_clear_fresh(struct job_state *s)
{
    free(TAKE(s->fresh_text));
    s->fresh_version[0] = '\0';
    memset(s->older, 0, sizeof s->older);
}

void state_set_fresh(struct job_state *s, const char *old_version, const char *new_version, char *text, int64_t now_ms)
{
    char *older = s->older[s->older_next++ % STATE_OLDER_MAX];

    (void)snprintf(older, KUBE_VERSION_MAX, "%s", old_version);
    s->fresh_ms = now_ms;
    free(s->fresh_text);
    s->fresh_text = text;
    (void)snprintf(s->fresh_version, sizeof s->fresh_version, "%s", new_version);
}

bool state_is_newer(const struct job_state *s, const char *cache_version)
{
    int order;

    if (s->fresh_text == NULL)
        return false;
    if (kube_version_order(s->fresh_version, cache_version, &order))
        return order > 0;
    for (size_t i = 0; i < STATE_OLDER_MAX; i++) {
        if (s->older[i][0] != '\0' && strcmp(s->older[i], cache_version) == 0)
            return true;
    }
    return false;
}

bool state_is_stale(const struct job_state *s, int64_t now_ms)
{
    return s->fresh_text != NULL && now_ms - s->fresh_ms > FRESH_FOR_MS;
}

/* ---- our own pods ------------------------------------------------------------------------------------------------------ */

void state_own_add(struct job_state *s, const struct own_pod *pod)
{
    if (s->own_count == s->own_cap) {
        s->own_cap = s->own_cap > 0 ? 2 * s->own_cap : 8;
        s->own = xrealloc(s->own, s->own_cap, sizeof *s->own);
    }
    s->own[s->own_count++] = *pod;
}

const struct own_pod *state_own_find(const struct job_state *s, const char *uid, bool deleted)
{
    for (size_t i = 0; i < s->own_count; i++) {
        if (s->own[i].deleted == deleted && strcmp(s->own[i].uid, uid) == 0)
            return &s->own[i];
    }
    return NULL;
}

static void own_remove(struct job_state *s, size_t i)
{
    s->own[i] = s->own[--s->own_count];
    if (s->own_count > 0)
        return;
    free(TAKE(s->own));
    s->own_cap = 0;
}

void state_own_forget(struct job_state *s, const char *uid, bool deleted)
{
    for (size_t i = s->own_count; i-- > 0;) {
        if (s->own[i].deleted == deleted && strcmp(s->own[i].uid, uid) == 0)
            own_remove(s, i);
    }
}

void state_own_expire(struct job_state *s, int64_t now_ms)
{
    for (size_t i = s->own_count; i-- > 0;) {
        if (s->own[i].until_ms <= now_ms)
            own_remove(s, i);
    }
}

void state_take_report(struct job_state *s, struct coordinator_report *report)
{
    if (s->report != NULL) {
        report_release(s->report);
        free(s->report);
    }
    s->report = report;
}
