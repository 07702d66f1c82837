/*
 * request.h — collectives in flight: requests, their pieces, their handles.
 *
 * A request is one call of the API. Its tensors, end to end, are its data; large data travels in pieces. Where it is cut
 * depends on its size and the arena's size alone (request_split), so ranks that agree on the size agree on the pieces. Piece 0
 * has the tensor's own name, piece k is called name#k.
 *
 * Ranks submit in any order, and a piece holds arena memory until every rank has sent its own. Two rules keep ranks that
 * submit in different orders from waiting for each other for ever:
 *   - the first piece of every request goes before the second piece of any;
 *   - a request has more than one piece in flight only while more than half of the arena is free.
 * So any set of tensors makes progress whose first pieces fit into half of the arena, in whatever order ranks have them.
 *
 * Ranks that do not agree on a tensor's size must hear of it, not wait for pieces that the others do not have. So the length
 * of piece 0 tells how many pieces there are, no two numbers alike, and the other pieces wait until piece 0 came back:
 * another number of pieces is a mismatch at piece 0, and with the same number every piece finds its counterpart. (Not seen is
 * one thing: a tensor of a single piece that is to the byte as long as the other rank's piece 0.)
 */
#ifndef CLIENT_REQUEST_H
#define CLIENT_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ringmaster.h"
#include "text.h"
#include "wire/shm.h"

#define REQUEST_WINDOW 4u             /* pieces of one request in flight */
#define REQUEST_PIECE_MAX (32u << 20) /* bytes */
#define REQUEST_PIECE_MIN 4096u
#define REQUEST_NO_BLOCK UINT64_MAX

struct client;

struct segment { const void *in; void *out; uint64_t bytes; };

/* How data is cut: piece 0 has `first` bytes, the others `other`, the last one what is left. */
struct split { uint64_t first, other; uint32_t pieces; };

enum request_state { REQUEST_FREE, REQUEST_LIVE, REQUEST_CALLING /* done runs */, REQUEST_DONE };

struct request {
    uint32_t index, generation; /* the handle; generation is never 0 */
    enum request_state state;
    bool kept;                  /* somebody holds the handle */
    bool queued;                /* has pieces that were not sent */
    struct request *next;       /* in the queue, or in the free list */

    uint16_t op, dtype, redop;
    int32_t root;
    double prescale, postscale;
    uint64_t row_elements;
    char name[SHM_NAME_MAX];
    uint64_t hash;              /* of the name as the caller gave it */

    struct segment one, *segments; /* segments == &one or on the heap */
    size_t segment_count;
    uint64_t bytes;
    struct split split;
    uint32_t sent, returned;

    int status;
    char text[TEXT_MAX];
    rm_done_fn *done;
    void *ctx;

    void *result_heap;          /* all-gather alone */
    uint64_t result_offset, result_elements;
    bool has_result;            /* in the results area: to be handed back */
};

/* A piece in flight. Its index and serial make the id of the shm_request. */
struct piece {
    struct request *request;    /* NULL: free */
    uint32_t number, serial;
    uint64_t begin, bytes;      /* of the request's data */
    uint64_t block;             /* arena memory that is ours to free, or REQUEST_NO_BLOCK */
    uint64_t in_offset, out_offset;
    bool copies_in, copies_out; /* between the caller's tensors and in_offset, out_offset */
    bool submitted;             /* in the queue; false while a thread still copies into it */
};

struct requests {
    struct request **table;
    uint32_t count, capacity, live;
    struct request *free_list;
    struct request *queue_head, *queue_tail;
    struct piece *pieces;
    uint32_t piece_count, pieces_in_flight;
    uint64_t *frees;            /* results to hand back, waiting for room in the queue */
    size_t free_count, free_capacity;
    uint64_t piece_bytes;
};

/* Pure: how large a piece is for an arena of this size. A power of two. */
uint64_t request_piece_bytes(uint64_t arena_bytes);
/* Pure. Up to piece_bytes is one piece; then the first has half of that and 64 bytes for each piece there is. */
struct split request_split(uint64_t bytes, uint64_t piece_bytes);

/* All of the following are called with the client's lock held unless they say otherwise. */
bool requests_attach(struct requests *q, uint32_t in_flight, uint64_t arena_bytes); /* false: out of memory */
void requests_detach(struct requests *q);

/* A fresh request with its handle, or NULL (out of memory, or the name is in flight: the reason is in text_last). */
struct request *request_new(struct requests *q, const char *name, int *ret_error);
struct request *request_find(struct requests *q, rm_handle handle);
rm_handle request_handle(const struct request *r);
/* The request will have its handle released: by rm_release, by rm_wait, or because nobody holds it. */
void request_release(struct client *c, struct request *r);
/* Ends the request: done is called (lock is dropped meanwhile), waiters wake. */
void request_finish(struct client *c, struct request *r);

void request_enqueue(struct requests *q, struct request *r);
/* Sends what can be sent: takes pieces, copies them in (lock is dropped meanwhile), submits them. */
void requests_pump(struct client *c);
/* A reply of the engine. Called by the completion thread. */
void requests_reply(struct client *c, const struct shm_reply *reply);
/* Ends everything in flight with c->lost_text. */
void requests_fail_all(struct client *c);

#endif
