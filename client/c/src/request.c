#include "request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"
#include "name.h"

#define REQUESTS_MAX (1u << 20)
/* While one piece is reduced the next is copied in and the last one out, in the cache; where there are many ranks each has only a
 * block of it, which must not become so small that the ring's steps are all waiting. */
#define BLOCK_BYTES (512ull << 10)
#define PIECE_MAX (4ull << 20)
#define PIECES_AHEAD 8u /* copies that run further ahead of the ring find their memory no longer in a cache */

static uint64_t power_of_two(uint64_t at_most, uint64_t low, uint64_t high)
{
    uint64_t n = high;
    while (n > low && n > at_most)
        n /= 2;
    return n;
}

struct areas request_areas(uint64_t arena_bytes, uint32_t size)
{
    uint64_t piece = (uint64_t)size * BLOCK_BYTES < PIECE_MAX ? size * BLOCK_BYTES : PIECE_MAX;
    uint64_t most = PIECES_AHEAD * piece, large = arena_bytes / 4 < most ? arena_bytes / 4 : most;
    struct areas a = { .large_bytes = large / ARENA_ALIGN * ARENA_ALIGN };
    a.small_bytes = arena_bytes / ARENA_ALIGN * ARENA_ALIGN - a.large_bytes;
    a.small_max = power_of_two(arena_bytes / 2048, 4096, 256u << 10);
    a.piece_max = power_of_two(a.large_bytes / PIECES_AHEAD, 4096, piece);
    return a;
}

static uint64_t round_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

struct split request_split(uint64_t bytes, const struct areas *areas)
{
    if (bytes <= areas->small_max)
        return (struct split){ .first = bytes, .other = areas->piece_max, .pieces = 1 };
    uint64_t others = (bytes + areas->piece_max - 1) / areas->piece_max, marks = areas->small_max / SHM_ALIGN - 1;
    struct split s = { .first = SHM_ALIGN * (1 + others % marks) };
    s.other = round_up((bytes - s.first + others - 1) / others, SHM_ALIGN);
    s.pieces = 1 + (uint32_t)((bytes - s.first + s.other - 1) / s.other);
    return s;
}

bool requests_attach(struct requests *q, const struct areas *areas)
{
    q->pieces = calloc(REQUEST_IN_FLIGHT, sizeof(*q->pieces));
    if (q->pieces == NULL)
        return false;
    q->piece_count = REQUEST_IN_FLIGHT;
    q->free_pieces = NULL;
    q->sessions++;
    for (uint32_t i = q->piece_count; i-- > 0;) {
        q->pieces[i].serial = q->sessions << 24; /* a copy of an earlier session may land yet, and must not be taken for one of this */
        q->pieces[i].next_free = q->free_pieces;
        q->free_pieces = &q->pieces[i];
    }
    q->pieces_in_flight = q->copying = q->on_gpu = q->starting = 0;
    q->landed = q->ahead = NULL;
    q->areas = *areas;
    return true;
}

/* The results area goes away: what lies there is no result any more. */
static void outputs_unmap(struct request *r)
{
    for (size_t i = 0; r->has_result && i < r->output_count; i++)
        if (r->outputs[i].heap == NULL)
            r->outputs[i].data = NULL;
    r->has_result = false;
}

void requests_detach(struct requests *q)
{
    free(q->pieces);
    free(q->frees);
    q->pieces = q->free_pieces = NULL;
    q->frees = NULL;
    q->piece_count = 0;
    q->free_count = q->free_capacity = 0;
    for (uint32_t i = 0; i < q->count; i++)
        outputs_unmap(q->table[i]);
}

static struct request *fresh(struct requests *q)
{
    struct request *r = q->free_list;
    if (r != NULL) {
        q->free_list = r->next;
        return r;
    }
    if (q->count == q->capacity) {
        uint32_t capacity = q->capacity == 0 ? 64 : 2 * q->capacity;
        struct request **table = capacity > REQUESTS_MAX ? NULL : realloc(q->table, capacity * sizeof(*table));
        if (table == NULL)
            return NULL;
        q->table = table;
        q->capacity = capacity;
    }
    r = calloc(1, sizeof(*r));
    if (r == NULL)
        return NULL;
    r->index = q->count;
    q->table[q->count++] = r;
    return r;
}

static struct request **bucket(struct requests *q, uint64_t hash)
{
    return &q->by_hash[(hash ^ hash >> 32) & (REQUEST_BUCKETS - 1)];
}

static bool in_flight(struct requests *q, uint64_t hash)
{
    for (const struct request *r = *bucket(q, hash); r != NULL; r = r->same_hash)
        if (r->hash == hash)
            return true;
    return false;
}

static void forget_hash(struct requests *q, struct request *r)
{
    struct request **at = bucket(q, r->hash);
    while (*at != r)
        at = &(*at)->same_hash;
    *at = r->same_hash;
}

struct request *request_new(struct requests *q, uint32_t set, const char *name, int *ret_error)
{
    uint64_t hash = name_hash(name) + set * 0x9e3779b97f4a7c15u;
    if (q->by_hash == NULL)
        q->by_hash = calloc(REQUEST_BUCKETS, sizeof(struct request *));
    if (q->by_hash != NULL && in_flight(q, hash)) {
        *ret_error = text_fail(RM_INVALID, "\"%s\" is in flight already: wait for it, or give this request another name", name);
        return NULL;
    }
    struct request *r = q->by_hash == NULL ? NULL : fresh(q);
    if (r == NULL) {
        *ret_error = text_fail(RM_NO_MEMORY, "\"%s\": out of memory for one more request (%u are kept; are handles released?)",
                               name, q->count);
        return NULL;
    }
    uint32_t index = r->index, generation = r->generation + 1 == 0 ? 1 : r->generation + 1;
    *r = (struct request){ .index = index, .generation = generation, .state = REQUEST_LIVE, .set = set, .hash = hash,
                           .same_hash = *bucket(q, hash) };
    *bucket(q, hash) = r;
    name_short(r->name, name);
    q->live++;
    return r;
}

rm_handle request_handle(const struct request *r)
{
    return (uint64_t)r->generation << 32 | r->index;
}

struct request *request_find(struct requests *q, rm_handle handle)
{
    uint32_t index = (uint32_t)handle;
    if (index >= q->count || q->table[index]->generation != (uint32_t)(handle >> 32) || !q->table[index]->kept
        || q->table[index]->state == REQUEST_FREE)
        return NULL;
    return q->table[index];
}

static void hand_back_result(struct client *c, uint64_t offset)
{
    struct requests *q = &c->requests;
    if (q->free_count == q->free_capacity) {
        size_t capacity = q->free_capacity == 0 ? 16 : 2 * q->free_capacity;
        uint64_t *frees = realloc(q->frees, capacity * sizeof(*frees));
        if (frees == NULL)
            return; /* this result stays taken until the process leaves: better than failing the caller */
        q->frees = frees;
        q->free_capacity = capacity;
    }
    q->frees[q->free_count++] = offset;
}

void request_release(struct client *c, struct request *r)
{
    r->kept = false;
    if (r->state != REQUEST_DONE)
        return; /* request_finish comes by */
    if (r->has_result)
        hand_back_result(c, r->result_offset);
    r->has_result = false;
    outputs_release(r);
    r->state = REQUEST_FREE;
    r->next = c->requests.free_list;
    c->requests.free_list = r;
}

/* It ends before its first copy began. Without lock: see gpu.h. */
static void unmark(struct client *c, struct request *r)
{
    CUevent mark = r->mark;
    r->mark = NULL;
    pthread_mutex_unlock(&c->lock);
    gpu_unmark(&c->gpu, r->device, mark);
    pthread_mutex_lock(&c->lock);
}

void request_finish(struct client *c, struct request *r)
{
    if (r->mark != NULL)
        unmark(c, r);
    if (r->segments != &r->one)
        free(r->segments);
    r->segments = NULL;
    free(r->splits);
    free(r->scratch);
    r->splits = NULL;
    r->scratch = NULL;
    forget_hash(&c->requests, r);
    c->requests.live--;
    c->requests.callbacks -= r->done != NULL;
    if (r->done != NULL) {
        r->state = REQUEST_CALLING;
        pthread_mutex_unlock(&c->lock);
        r->done(r->ctx, r->status, r->text);
        pthread_mutex_lock(&c->lock);
    }
    r->state = REQUEST_DONE;
    if (!r->kept)
        request_release(c, r);
    pthread_cond_broadcast(&c->changed);
}

void request_enqueue(struct queue *queue, struct request *r)
{
    r->queue = queue;
    r->next = NULL;
    if (queue->tail == NULL)
        queue->head = r;
    else
        queue->tail->next = r;
    queue->tail = r;
}

void request_unqueue(struct request *r)
{
    struct queue *queue = r->queue;
    if (queue == NULL)
        return;
    struct request *before = NULL;
    for (struct request *at = queue->head; at != r; at = at->next)
        before = at;
    if (before == NULL)
        queue->head = r->next;
    else
        before->next = r->next;
    if (queue->tail == r)
        queue->tail = before;
    r->queue = NULL;
    r->next = NULL;
}
