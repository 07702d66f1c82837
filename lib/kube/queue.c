#include "kube/queue.h"

#include <stdlib.h>
#include <string.h>

#include "base/crypto.h"
#include "base/mem.h"
#include "kube/hash.h"
#include "kube/random.h"

#define RETRY_BASE_MS 200
#define RETRY_MAX_MS (5 * 60 * 1000)
#define SLOTS_FIRST 64
#define NEVER INT64_MIN

struct space { /* a namespace with keys that are ready; in a ring, whose head's turn it is */
    struct space *next_slot;
    struct space *before, *after;
    struct item *first, **last;
    char ns[KUBE_NS_MAX];
};

enum place { NOWHERE, DELAYED, READY };

/* Lives while it waits, is in work, or has failures or a spacing to be remembered. */
struct item {
    struct item *next_slot;
    struct item *next_ready;
    size_t heap_at;          /* when DELAYED */
    enum place place;
    bool in_work;
    bool again;              /* added while in work */
    uint32_t failures;
    int64_t at_ms;           /* when it is due; of `again` while it is in work */
    int64_t taken_ms;        /* NEVER = not yet */
    uint64_t hash, order;
    const char *reason;
    struct kube_key key;
};

struct kube_queue {
    struct kube_queue_options options;
    uint64_t seed, random, order;
    struct item **slots;
    size_t slot_count, item_count;
    struct item **heap;      /* DELAYED, the earliest first */
    size_t delayed, heap_cap;
    struct space **spaces;
    size_t space_slots, space_count;
    struct space *turn;      /* NULL when nothing is ready */
    size_t ready, in_work;
    int64_t now_ms;          /* of the last take */
};

struct kube_queue *kube_queue_new(const struct kube_queue_options *options)
{
    struct kube_queue *q = xcalloc(1, sizeof *q);
    struct error e;

    q->options = *options;
    if (q->options.retry_base_ms <= 0)
        q->options.retry_base_ms = RETRY_BASE_MS;
    if (q->options.retry_max_ms <= 0)
        q->options.retry_max_ms = RETRY_MAX_MS;
    q->random = options->seed;
    if (crypto_random(&q->seed, sizeof q->seed, &e) < 0)
        q->seed = (uintptr_t)q;
    q->slot_count = q->space_slots = SLOTS_FIRST;
    q->slots = xcalloc(q->slot_count, sizeof *q->slots);
    q->spaces = xcalloc(q->space_slots, sizeof *q->spaces);
    return q;
}

void kube_queue_free(struct kube_queue *q)
{
    if (q == NULL)
        return;
    for (size_t i = 0; i < q->slot_count; i++)
        for (struct item *it = q->slots[i], *next; it != NULL; it = next) {
            next = it->next_slot;
            free(it);
        }
    for (size_t i = 0; i < q->space_slots; i++)
        for (struct space *s = q->spaces[i], *next; s != NULL; s = next) {
            next = s->next_slot;
            free(s);
        }
    free(q->slots);
    free(q->spaces);
    free(q->heap);
    free(q);
}

/* ---- items ------------------------------------------------------------------------------------------------------------- */

static struct item **item_place(const struct kube_queue *q, const struct kube_key *key, uint64_t hash)
{
    struct item **at = &q->slots[hash & (q->slot_count - 1)];

    while (*at != NULL && ((*at)->hash != hash || !kube_key_equal(&(*at)->key, key)))
        at = &(*at)->next_slot;
    return at;
}

static struct item *item_find(const struct kube_queue *q, const struct kube_key *key)
{
    return *item_place(q, key, kube_hash_key(q->seed, key->ns, key->name));
}

/* An idle item is kept for its failures, and for as long as its spacing lasts. */
static bool is_remembered(const struct kube_queue *q, const struct item *it)
{
    return it->failures > 0 || (it->taken_ms != NEVER && it->taken_ms + q->options.spacing_ms > q->now_ms);
}

/* What was kept for its spacing goes here, when the table would have to grow for it. */
static void sweep(struct kube_queue *q)
{
    for (size_t i = 0; i < q->slot_count; i++)
        for (struct item **at = &q->slots[i]; *at != NULL;) {
            struct item *it = *at;
            if (it->in_work || it->place != NOWHERE || is_remembered(q, it)) {
                at = &it->next_slot;
                continue;
            }
            *at = it->next_slot;
            q->item_count--;
            free(it);
        }
}

static void grow_slots(struct kube_queue *q)
{
    size_t more = q->slot_count * 2;
    struct item **slots = xcalloc(more, sizeof(struct item *));

    for (size_t i = 0; i < q->slot_count; i++)
        for (struct item *it = q->slots[i], *next; it != NULL; it = next) {
            next = it->next_slot;
            it->next_slot = slots[it->hash & (more - 1)];
            slots[it->hash & (more - 1)] = it;
        }
    free(q->slots);
    q->slots = slots;
    q->slot_count = more;
}

static struct item *item_get(struct kube_queue *q, const struct kube_key *key)
{
    struct item *it = item_find(q, key);

    if (it != NULL)
        return it;
    if (q->item_count >= q->slot_count)
        sweep(q);
    if (q->item_count > q->slot_count / 2) /* half full after a sweep: the next one would come too soon */
        grow_slots(q);
    it = xcalloc(1, sizeof *it);
    it->key = *key;
    it->hash = kube_hash_key(q->seed, key->ns, key->name);
    it->taken_ms = NEVER;
    it->next_slot = q->slots[it->hash & (q->slot_count - 1)];
    q->slots[it->hash & (q->slot_count - 1)] = it;
    q->item_count++;
    return it;
}

static void item_drop(struct kube_queue *q, struct item *it)
{
    struct item **at = item_place(q, &it->key, it->hash);

    *at = it->next_slot;
    q->item_count--;
    free(it);
}

/* ---- delayed: a heap by time, then by order of arrival ----------------------------------------------------------------- */

static bool before(const struct item *a, const struct item *b)
{
    return a->at_ms != b->at_ms ? a->at_ms < b->at_ms : a->order < b->order;
}

static void heap_set(struct kube_queue *q, size_t at, struct item *it)
{
    q->heap[at] = it;
    it->heap_at = at;
}

static void heap_up(struct kube_queue *q, size_t at)
{
    struct item *it = q->heap[at];

    for (; at > 0 && before(it, q->heap[(at - 1) / 2]); at = (at - 1) / 2)
        heap_set(q, at, q->heap[(at - 1) / 2]);
    heap_set(q, at, it);
}

static void heap_down(struct kube_queue *q, size_t at)
{
    struct item *it = q->heap[at];

    for (size_t child; (child = 2 * at + 1) < q->delayed; at = child) {
        if (child + 1 < q->delayed && before(q->heap[child + 1], q->heap[child]))
            child++;
        if (!before(q->heap[child], it))
            break;
        heap_set(q, at, q->heap[child]);
    }
    heap_set(q, at, it);
}

static void heap_add(struct kube_queue *q, struct item *it)
{
    if (q->delayed == q->heap_cap) {
        q->heap_cap = q->heap_cap > 0 ? 2 * q->heap_cap : SLOTS_FIRST;
        q->heap = xrealloc(q->heap, q->heap_cap, sizeof(struct item *));
    }
    it->place = DELAYED;
    heap_set(q, q->delayed++, it);
    heap_up(q, it->heap_at);
}

static void heap_remove(struct kube_queue *q, struct item *it)
{
    size_t at = it->heap_at;

    it->place = NOWHERE;
    if (at == --q->delayed)
        return;
    heap_set(q, at, q->heap[q->delayed]);
    heap_up(q, at);
    heap_down(q, q->heap[at]->heap_at);
}

/* ---- ready: a first-come list for each namespace, and a ring of those that have one ------------------------------------ */

static struct space **space_place(const struct kube_queue *q, const char *ns)
{
    struct space **at = &q->spaces[kube_hash_key(q->seed, "", ns) & (q->space_slots - 1)];

    while (*at != NULL && strcmp((*at)->ns, ns) != 0)
        at = &(*at)->next_slot;
    return at;
}

static void grow_spaces(struct kube_queue *q)
{
    struct space **old = q->spaces;
    size_t count = q->space_slots;

    q->space_slots *= 2;
    q->spaces = xcalloc(q->space_slots, sizeof(struct space *));
    for (size_t i = 0; i < count; i++)
        for (struct space *s = old[i], *next; s != NULL; s = next) {
            next = s->next_slot;
            struct space **at = space_place(q, s->ns);
            s->next_slot = NULL;
            *at = s;
        }
    free(old);
}

static struct space *space_get(struct kube_queue *q, const char *ns)
{
    struct space **at = space_place(q, ns), *s = *at;

    if (s != NULL)
        return s;
    if (q->space_count >= q->space_slots) {
        grow_spaces(q);
        at = space_place(q, ns);
    }
    s = xcalloc(1, sizeof *s);
    memcpy(s->ns, ns, strlen(ns) + 1);
    s->last = &s->first;
    *at = s;
    q->space_count++;
    /* At the end of the ring: just before the one whose turn it is. */
    if (q->turn == NULL) {
        s->before = s->after = s;
        q->turn = s;
    } else {
        s->after = q->turn;
        s->before = q->turn->before;
        s->before->after = s->after->before = s;
    }
    return s;
}

static void space_drop(struct kube_queue *q, struct space *s)
{
    struct space **at = space_place(q, s->ns);

    *at = s->next_slot;
    q->space_count--;
    if (s->after == s) {
        q->turn = NULL;
    } else {
        s->before->after = s->after;
        s->after->before = s->before;
        if (q->turn == s)
            q->turn = s->after;
    }
    free(s);
}

static void ready_add(struct kube_queue *q, struct item *it)
{
    struct space *s = space_get(q, it->key.ns);

    it->place = READY;
    it->next_ready = NULL;
    *s->last = it;
    s->last = &it->next_ready;
    q->ready++;
}

static struct item *ready_take(struct kube_queue *q)
{
    struct space *s = q->turn;

    if (s == NULL)
        return NULL;
    struct item *it = s->first;
    s->first = it->next_ready;
    it->place = NOWHERE;
    q->ready--;
    if (s->first == NULL)
        space_drop(q, s);
    else
        q->turn = s->after;
    return it;
}

/* ---- the queue --------------------------------------------------------------------------------------------------------- */

static void enqueue(struct kube_queue *q, struct item *it, const char *reason, int64_t at_ms)
{
    if (it->taken_ms != NEVER && at_ms < it->taken_ms + q->options.spacing_ms)
        at_ms = it->taken_ms + q->options.spacing_ms;
    if (it->place == READY || (it->place == DELAYED && it->at_ms <= at_ms))
        return;
    if (it->place == DELAYED)
        heap_remove(q, it);
    it->at_ms = at_ms;
    it->reason = reason;
    it->order = q->order++;
    heap_add(q, it);
}

void kube_queue_add(struct kube_queue *q, const struct kube_key *key, const char *reason, int64_t at_ms)
{
    struct item *it = item_get(q, key);

    if (!it->in_work) {
        enqueue(q, it, reason, at_ms);
    } else if (!it->again || at_ms < it->at_ms) {
        it->again = true;
        it->at_ms = at_ms;
        it->reason = reason;
    }
}

bool kube_queue_take(struct kube_queue *q, int64_t now_ms, struct kube_key *ret_key, const char **ret_reason)
{
    q->now_ms = now_ms;
    while (q->delayed > 0 && q->heap[0]->at_ms <= now_ms) {
        struct item *it = q->heap[0];
        heap_remove(q, it);
        ready_add(q, it);
    }
    struct item *it = ready_take(q);
    if (it == NULL)
        return false;
    it->in_work = true;
    it->again = false;
    it->taken_ms = now_ms;
    q->in_work++;
    *ret_key = it->key;
    if (ret_reason != NULL)
        *ret_reason = it->reason;
    return true;
}

static struct item *leave_work(struct kube_queue *q, const struct kube_key *key)
{
    struct item *it = item_find(q, key);

    if (it == NULL || !it->in_work)
        return NULL;
    it->in_work = false;
    q->in_work--;
    return it;
}

void kube_queue_done(struct kube_queue *q, const struct kube_key *key)
{
    struct item *it = leave_work(q, key);

    if (it == NULL)
        return;
    if (it->again) {
        it->again = false;
        enqueue(q, it, it->reason, it->at_ms);
    } else if (!is_remembered(q, it)) {
        item_drop(q, it);
    }
}

void kube_queue_retry(struct kube_queue *q, const struct kube_key *key, int64_t now_ms, int64_t at_least_ms)
{
    struct item *it = leave_work(q, key);

    if (it == NULL)
        return;
    int64_t delay = q->options.retry_base_ms;
    for (uint32_t i = 0; i < it->failures && delay < q->options.retry_max_ms; i++)
        delay *= 2;
    if (delay > q->options.retry_max_ms)
        delay = q->options.retry_max_ms;
    delay -= kube_random_below(&q->random, delay / 5 + 1);
    if (delay < at_least_ms)
        delay = at_least_ms;
    if (it->failures < UINT32_MAX)
        it->failures++;
    /* A change that came while it was in work may be what mends it: the earlier time wins, as it does for one that comes later. */
    bool again = it->again;
    int64_t again_ms = it->at_ms;
    const char *reason = it->reason;
    it->again = false;
    enqueue(q, it, "retry", now_ms + delay);
    if (again)
        enqueue(q, it, reason, again_ms);
}

void kube_queue_forget(struct kube_queue *q, const struct kube_key *key)
{
    struct item *it = item_find(q, key);

    if (it == NULL)
        return;
    it->failures = 0;
    if (!it->in_work && it->place == NOWHERE && !is_remembered(q, it))
        item_drop(q, it);
}

uint32_t kube_queue_failures(const struct kube_queue *q, const struct kube_key *key)
{
    const struct item *it = item_find(q, key);

    return it != NULL ? it->failures : 0;
}

int64_t kube_queue_next_due(const struct kube_queue *q)
{
    if (q->ready > 0)
        return INT64_MIN;
    return q->delayed > 0 ? q->heap[0]->at_ms : INT64_MAX;
}

size_t kube_queue_length(const struct kube_queue *q)
{
    return q->ready + q->delayed;
}

size_t kube_queue_ready(const struct kube_queue *q)
{
    return q->ready;
}

size_t kube_queue_in_work(const struct kube_queue *q)
{
    return q->in_work;
}
