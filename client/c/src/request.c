#include "request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"
#include "name.h"

#define REQUESTS_MAX (1u << 20)

uint64_t request_piece_bytes(uint64_t arena_bytes)
{
    uint64_t piece = REQUEST_PIECE_MAX;
    while (piece > REQUEST_PIECE_MIN && piece > arena_bytes / 16)
        piece /= 2;
    return piece;
}

struct split request_split(uint64_t bytes, uint64_t piece_bytes)
{
    if (bytes <= piece_bytes)
        return (struct split){ .first = bytes, .other = piece_bytes, .pieces = 1 };
    /* The smallest n with half + 64 n + (n - 1) * piece_bytes >= bytes: */
    uint64_t half = piece_bytes / 2, each = piece_bytes + SHM_ALIGN;
    uint64_t n = (bytes + half + each - 1) / each;
    uint64_t mark = n % (piece_bytes / 4 / SHM_ALIGN); /* 64 * mark stays under a quarter of a piece */
    struct split s = { .first = half + mark * SHM_ALIGN, .other = piece_bytes };
    s.pieces = 1 + (uint32_t)((bytes - s.first + s.other - 1) / s.other);
    if (s.pieces < n && mark == n) { /* by less than 64 bytes: slightly smaller pieces make it n, as the first one says */
        s.other -= SHM_ALIGN;
        s.pieces = 1 + (uint32_t)((bytes - s.first + s.other - 1) / s.other);
    }
    return s;
}

bool requests_attach(struct requests *q, uint32_t in_flight, uint64_t arena_bytes)
{
    q->pieces = calloc(in_flight, sizeof(*q->pieces));
    if (q->pieces == NULL)
        return false;
    q->piece_count = in_flight;
    q->pieces_in_flight = 0;
    q->piece_bytes = request_piece_bytes(arena_bytes);
    return true;
}

void requests_detach(struct requests *q)
{
    free(q->pieces);
    free(q->frees);
    q->pieces = NULL;
    q->frees = NULL;
    q->piece_count = 0;
    q->free_count = q->free_capacity = 0;
    for (uint32_t i = 0; i < q->count; i++)
        q->table[i]->has_result = false; /* the results area is unmapped */
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

struct request *request_new(struct requests *q, const char *name, int *ret_error)
{
    uint64_t hash = name_hash(name);
    for (uint32_t i = 0; q->live > 0 && i < q->count; i++)
        if (q->table[i]->state == REQUEST_LIVE && q->table[i]->hash == hash) {
            *ret_error = text_fail(RM_INVALID, "\"%s\" is in flight already: wait for it, or give this request another name", name);
            return NULL;
        }
    struct request *r = fresh(q);
    if (r == NULL) {
        *ret_error = text_fail(RM_NO_MEMORY, "\"%s\": out of memory for one more request (%u are kept; are handles released?)",
                               name, q->count);
        return NULL;
    }
    uint32_t index = r->index, generation = r->generation + 1 == 0 ? 1 : r->generation + 1;
    *r = (struct request){ .index = index, .generation = generation, .state = REQUEST_LIVE, .hash = hash, .prescale = 1,
                           .postscale = 1, .row_elements = 1 };
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
    free(r->result_heap);
    r->result_heap = NULL;
    r->state = REQUEST_FREE;
    r->next = c->requests.free_list;
    c->requests.free_list = r;
}

void request_finish(struct client *c, struct request *r)
{
    if (r->segments != &r->one)
        free(r->segments);
    r->segments = NULL;
    c->requests.live--;
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

void request_enqueue(struct requests *q, struct request *r)
{
    r->queued = true;
    r->next = NULL;
    if (q->queue_tail == NULL)
        q->queue_head = r;
    else
        q->queue_tail->next = r;
    q->queue_tail = r;
}
