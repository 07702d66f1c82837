/*
 * pieces.c — how the data of requests travels: which piece goes next, into which memory, and what its reply means.
 */
#include <stdio.h>
#include <string.h>

#include "client.h"
#include "name.h"

static uint64_t piece_begin(const struct request *r, uint32_t number)
{
    return number == 0 ? 0 : r->split.first + (uint64_t)(number - 1) * r->split.other;
}

static uint64_t piece_length(const struct request *r, uint32_t number)
{
    uint64_t left = r->bytes - piece_begin(r, number), most = number == 0 ? r->split.first : r->split.other;
    return left < most ? left : most;
}

/* Where in the arena the caller's own buffer for [begin, begin + bytes) lies, if it does and the engine can use it there. */
static bool caller_block(const struct client *c, const struct request *r, bool output, uint64_t begin, uint64_t bytes,
                         uint64_t *ret_offset)
{
    for (size_t i = 0; i < r->segment_count; i++) {
        const struct segment *s = &r->segments[i];
        if (begin >= s->bytes) {
            begin -= s->bytes;
            continue;
        }
        if (bytes > s->bytes - begin)
            return false;
        uintptr_t at = (uintptr_t)(output ? s->out : s->in) + begin, base = (uintptr_t)c->shared.base;
        if (at < base || at - base >= c->shared.bytes || (at - base) % SHM_ALIGN != 0)
            return false;
        *ret_offset = at - base;
        return arena_holds(&c->small, *ret_offset, bytes);
    }
    return false;
}

/* Finds memory for a piece: for its list of splits, and for its data where the engine cannot use the caller's. False: the arena is
 * full now. */
static bool place(struct client *c, struct piece *p)
{
    struct request *r = p->request;
    bool result = shm_op_has_result(r->op), gives_data = r->op != SHM_OP_BROADCAST || r->root == c->rank;
    uint64_t list = ((uint64_t)r->split_count * 8 + SHM_ALIGN - 1) / SHM_ALIGN * SHM_ALIGN;
    p->block = REQUEST_NO_BLOCK;
    p->in_offset = p->out_offset = p->splits_offset = c->shared.arena_offset;
    if (!shm_op_moves_data(r->op) && list == 0)
        return true;
    bool on_host = r->device == NULL;
    bool in_place = gives_data && on_host && caller_block(c, r, false, p->begin, p->bytes, &p->in_offset);
    bool out_place = result || (on_host && caller_block(c, r, true, p->begin, p->bytes, &p->out_offset));
    bool needs_data = result ? !in_place : !out_place;
    if (needs_data || list > 0) {
        p->large = p->number > 0;
        if (!arena_alloc(p->large ? &c->large : &c->small, list + (needs_data ? p->bytes : 0), &p->block))
            return false;
        p->splits_offset = p->block;
        if (needs_data)
            p->out_offset = p->block + list;
    }
    if (!in_place)
        p->in_offset = p->out_offset;
    p->copies_in = gives_data && !in_place;
    p->copies_out = !result && !out_place;
    return true;
}

/* Makes the next piece of r, if there is memory for it. */
static struct piece *make_piece(struct client *c, struct request *r)
{
    struct requests *q = &c->requests;
    struct piece *p = q->free_pieces;
    if (p == NULL)
        return NULL;
    struct piece *next_free = p->next_free;
    *p = (struct piece){ .request = r, .number = r->sent, .serial = p->serial + 1, .begin = piece_begin(r, r->sent),
                         .bytes = piece_length(r, r->sent) };
    if (!place(c, p)) {
        *p = (struct piece){ .serial = p->serial, .next_free = next_free };
        return NULL;
    }
    q->free_pieces = next_free;
    q->pieces_in_flight++;
    r->sent++;
    if (r->sent == 1 || r->sent == r->split.pieces)
        request_unqueue(r); /* it waits for piece 0 to come back, or has nothing left to send */
    return p;
}

/* The next piece of the request whose turn it is. NULL: there is no memory for it, or its data are still on their way. */
static struct piece *ordered_piece(struct client *c)
{
    struct requests *q = &c->requests;
    struct request *r = q->ordered.head;
    if (r == NULL || q->ahead == NULL || q->ahead->request != r)
        return r != NULL ? make_piece(c, r) : NULL;
    if (!q->ahead_is_there)
        return NULL;
    struct piece *p = q->ahead;
    q->ahead = NULL;
    p->copies_in = false;
    if (r->sent == r->split.pieces)
        request_unqueue(r);
    return p;
}

static struct piece *next_piece(struct client *c)
{
    struct requests *q = &c->requests;
    struct shm_header *h = shared_header(&c->shared);
    uint32_t waiting = atomic_load(&h->sq_tail) - atomic_load(&h->sq_head);
    q->engine_busy = waiting + q->copying >= c->shared.sq_entries;
    if (q->engine_busy)
        return NULL;
    struct piece *p = ordered_piece(c); /* strictly in their order */
    for (struct request *r = q->fresh.head; r != NULL && p == NULL; r = r->next)
        p = make_piece(c, r);
    return p;
}

/* Copies between the caller's tensors and `at`, for the range of this piece. */
static void copy_range(const struct request *r, uint64_t begin, uint64_t bytes, uint8_t *at, bool outwards)
{
    for (size_t i = 0; i < r->segment_count && bytes > 0; i++) {
        const struct segment *s = &r->segments[i];
        if (begin >= s->bytes) {
            begin -= s->bytes;
            continue;
        }
        uint64_t n = s->bytes - begin < bytes ? s->bytes - begin : bytes;
        if (outwards)
            memmove((uint8_t *)s->out + begin, at, n);
        else
            memmove(at, (const uint8_t *)s->in + begin, n);
        at += n;
        bytes -= n;
        begin = 0;
    }
}

static void fill_request(const struct client *c, const struct piece *p, struct shm_request *ret)
{
    const struct request *r = p->request;
    *ret = (struct shm_request){
        .id = (uint64_t)p->serial << 32 | (uint64_t)(p - c->requests.pieces),
        .op = r->op, .dtype = r->dtype, .redop = r->redop, .wire = r->wire, .root = r->root, .set = r->set,
        .count = shm_op_moves_data(r->op) ? p->bytes / shm_dtype_size(r->dtype) : r->answer,
        .splits_offset = p->splits_offset, .splits = r->split_count, .shape_hash = r->shape_hash,
        .row_elements = r->row_elements,
        .in_offset = p->in_offset, .out_offset = p->out_offset, .prescale = r->prescale, .postscale = r->postscale,
    };
    memcpy(ret->shape, r->shape, sizeof(ret->shape));
    if (p->number > 0)
        name_piece(ret->name, r->name, p->number);
    else
        memcpy(ret->name, r->name, sizeof(ret->name));
}

/* The engine names the tensor in most of what it says, and knows pieces only. */
static void describe_failure(struct request *r, const char *text)
{
    bool named = text[0] == '"';
    int n = snprintf(r->text, sizeof(r->text), "%s%s%s%s", named ? "" : "\"", named ? "" : r->name, named ? "" : "\": ", text);
    if (r->status == RM_MISMATCH && r->split.pieces > 1 && n > 0 && (size_t)n < sizeof(r->text))
        snprintf(r->text + n, sizeof(r->text) - (size_t)n, " (in a piece; here the whole has %llu elements in %u pieces)",
                 (unsigned long long)(r->bytes / shm_dtype_size(r->dtype)), r->split.pieces);
}

static void release_piece(struct client *c, struct piece *p)
{
    if (p->block != REQUEST_NO_BLOCK)
        (void)arena_free(p->large ? &c->large : &c->small, p->block);
    p->request = NULL;
    p->next_free = c->requests.free_pieces;
    c->requests.free_pieces = p;
    c->requests.pieces_in_flight--;
}

/* The request goes no further: what was copied ahead was for nothing. A copy that is under way is dropped by whoever makes it. */
static void drop_ahead(struct client *c, struct request *r)
{
    struct requests *q = &c->requests;
    if (q->ahead == NULL || q->ahead->request != r || !q->ahead_is_there)
        return;
    release_piece(c, q->ahead);
    q->ahead = NULL;
    r->sent--;
}

/* The piece has come to its end; so has the request when it was the last one, or the first one and it failed. */
void piece_end(struct client *c, struct piece *p, int status, const char *text)
{
    struct request *r = p->request;
    bool first = p->number == 0;
    release_piece(c, p);
    r->returned++;
    c->round_lost |= status == RM_PEER_LOST && !c->stopping;
    if (status != RM_OK && r->status == RM_OK) {
        r->status = status;
        describe_failure(r, text);
    }
    /* After piece 0 only the end of everything stops the rest: the other ranks count on it. */
    bool give_up = r->status != RM_OK && (first || r->status == RM_PEER_LOST || c->lost);
    if (give_up) {
        request_unqueue(r);
        drop_ahead(c, r);
    } else if (first && r->split.pieces > 1 && !p->ordered) {
        request_enqueue(&c->requests.ordered, r);
    }
    if (r->returned == r->sent && (r->sent == r->split.pieces || give_up))
        request_finish(c, r);
}

static void hand_back_results(struct client *c)
{
    struct requests *q = &c->requests;
    struct shm_header *h = shared_header(&c->shared);
    while (q->free_count > 0) {
        uint32_t waiting = atomic_load(&h->sq_tail) - atomic_load(&h->sq_head);
        if (waiting + q->copying >= c->shared.sq_entries) /* pieces that are being copied have their place already */
            return;
        struct shm_request r = { .op = SHM_OP_FREE, .in_offset = q->frees[q->free_count - 1] };
        if (!shared_submit(&c->shared, &r))
            return;
        q->free_count--;
    }
}

bool piece_submit(struct client *c, struct piece *p)
{
    struct shm_request request;
    fill_request(c, p, &request);
    p->submitted = shared_submit(&c->shared, &request);
    if (!p->submitted)
        client_lose(c, "the engine's queue is full although its length is bounded: the sidecar is out of order");
    return p->submitted;
}

/* Piece 0 of r has just gone and is away for a while: piece 1 is copied meanwhile, to go as soon as it is its turn. One at a time, and
 * only while no other piece wants the memory or this thread, so that the order of all ranks is what decides about memory. */
static void copy_ahead(struct client *c, struct request *r)
{
    struct requests *q = &c->requests;
    if (r->split.pieces == 1 || r->device != NULL || r->sent != 1 || q->ahead != NULL || q->ordered.head != NULL || q->fresh.head != NULL)
        return;
    struct piece *p = make_piece(c, r);
    if (p == NULL)
        return;
    q->ahead = p;
    q->ahead_is_there = false;
    if (p->copies_in) {
        pthread_mutex_unlock(&c->lock);
        copy_range(r, p->begin, p->bytes, c->shared.base + p->in_offset, false);
        pthread_mutex_lock(&c->lock);
    }
    q->ahead_is_there = true;
    if (r->status == RM_OK)
        return;
    drop_ahead(c, r);
    if (r->returned == r->sent)
        request_finish(c, r);
}

void requests_pump(struct client *c)
{
    if (c->lost || c->stopping || c->shared.base == NULL)
        return;
    hand_back_results(c);
    struct piece *p;
    while (!c->lost && (p = next_piece(c)) != NULL) {
        c->requests.copying++;
        if (p->copies_in && p->request->device != NULL) {
            piece_enter(c, p);
            continue;
        }
        pthread_mutex_unlock(&c->lock);
        if (p->copies_in)
            copy_range(p->request, p->begin, p->bytes, c->shared.base + p->in_offset, false);
        if (p->request->split_count > 0)
            memcpy(c->shared.base + p->splits_offset, p->request->splits, p->request->split_count * 8);
        pthread_mutex_lock(&c->lock);
        c->requests.copying--;
        if (c->lost || !piece_submit(c, p))
            piece_end(c, p, RM_PEER_LOST, c->lost_text);
        else if (p->number == 0)
            copy_ahead(c, p->request);
    }
}

static int status_of(uint32_t status)
{
    switch (status) {
    case SHM_OK: return RM_OK;
    case SHM_PEER_LOST: case SHM_SHUTDOWN: return RM_PEER_LOST;
    case SHM_MISMATCH: return RM_MISMATCH;
    case SHM_INVALID: return RM_INVALID;
    case SHM_NO_SPACE: return RM_NO_MEMORY;
    case SHM_LEFT: return RM_LEFT;
    case SHM_EXISTS: return RM_EXISTS;
    default: return RM_IO;
    }
}

void requests_reply(struct client *c, const struct shm_reply *reply)
{
    uint32_t index = (uint32_t)reply->id;
    struct piece *p = index < c->requests.piece_count ? &c->requests.pieces[index] : NULL;
    if (p == NULL || p->request == NULL || !p->submitted || p->serial != (uint32_t)(reply->id >> 32)) {
        client_lose(c, "the engine answered a request that was never made: the sidecar is out of order");
        return;
    }
    struct request *r = p->request;
    int status = status_of(reply->status);
    bool right = true;
    if (status == RM_OK && p->copies_out && r->device != NULL) {
        r->answer = reply->out_count;
        piece_leave(c, p);
        requests_pump(c);
        return;
    }
    if (status == RM_OK && (p->copies_out || shm_op_has_result(r->op))) {
        pthread_mutex_unlock(&c->lock);
        if (p->copies_out)
            copy_range(r, p->begin, p->bytes, c->shared.base + p->out_offset, true);
        else
            right = outputs_take(c, r, reply);
        pthread_mutex_lock(&c->lock);
    }
    if (!right) {
        client_lose(c, "the engine named a result outside its memory, or of another size: the sidecar is out of order");
        return;
    }
    r->answer = reply->out_count;
    piece_end(c, p, status, reply->text[0] != '\0' ? reply->text : "the engine gave no reason");
    requests_pump(c);
}

void requests_fail_all(struct client *c)
{
    struct requests *q = &c->requests;
    for (uint32_t i = 0; i < q->piece_count; i++)
        if (q->pieces[i].request != NULL && q->pieces[i].submitted && q->pieces[i].way == WAY_NONE)
            piece_end(c, &q->pieces[i], RM_PEER_LOST, c->lost_text);
    for (;;) {
        struct request *r = q->ordered.head != NULL ? q->ordered.head : q->fresh.head;
        if (r == NULL)
            return;
        request_unqueue(r);
        drop_ahead(c, r);
        if (r->status == RM_OK) {
            r->status = RM_PEER_LOST;
            describe_failure(r, c->lost_text);
        }
        if (r->returned == r->sent)
            request_finish(c, r); /* else when its last piece comes back */
    }
}
