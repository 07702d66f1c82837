/*
 * request.h — collectives in flight: requests, their pieces, their handles.
 *
 * A request is one call of the API; its tensors, end to end, are its data. Small data travels as it is. Large data is cut: a
 * small piece 0 under the tensor's own name, then even pieces called name#k. Where the cuts are depends on the sizes of data,
 * arena and job alone (request_split), so ranks that agree on the size agree on the pieces.
 *
 * Ranks submit in any order, and what is in flight holds memory until every rank has sent its own. So that ranks with
 * different orders never wait for each other for ever:
 *   - Small data and pieces 0 go at once, into their own part of the arena (request_areas), where thousands of them fit.
 *   - Piece 0 coming back says that every rank has this tensor. Replies come in the same order on all ranks, so from here on
 *     there is one order: the other pieces go in that order, strictly, through the rest of the arena.
 *
 * The length of piece 0 says how many others there are. Ranks that disagree on a tensor's size therefore hear of it, all of
 * them, at piece 0 (another number of pieces) or at a piece that each of them has; none waits for pieces that the others do
 * not send. (Only a number of pieces that is the same modulo `marks`, or small data of the very length of the other rank's
 * piece 0, goes unseen.)
 */
#ifndef CLIENT_REQUEST_H
#define CLIENT_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu.h"
#include "ringmaster.h"
#include "text.h"
#include "wire/shm.h"

#define REQUEST_IN_FLIGHT 16384u      /* pieces; what is more waits here */
#define REQUEST_NO_BLOCK UINT64_MAX

struct client;
struct queue;

struct segment { const void *in; void *out; uint64_t bytes; };

/* A result, or a tensor of a group's: rows of row_bytes. data is in the results area, or the heap's (then owned). */
struct output { int64_t rows; uint64_t row_bytes; const uint8_t *data; void *heap; };

/* What stands in a result. */
enum request_form {
    FORM_PLAIN,   /* the tensor's elements */
    FORM_GROUP,   /* all-gather: for each rank the rows of each tensor (i64), then the tensors, each padded to 8 bytes */
    FORM_HOLLOW,  /* all-to-all of rows without elements: a byte stands for each row */
};

/* How the arena is used, from its size and the job's alone: small data and memory of rm_alloc below, pieces above. */
struct areas { uint64_t small_bytes, large_bytes, small_max, piece_max; };

/* How data is cut: piece 0 has `first` bytes, the others `other`, the last one what is left. */
struct split { uint64_t first, other; uint32_t pieces; };

enum request_state { REQUEST_FREE, REQUEST_LIVE, REQUEST_CALLING /* done runs */, REQUEST_DONE };

struct request {
    uint32_t index, generation; /* the handle; generation is never 0 */
    enum request_state state;
    bool kept;                  /* somebody holds the handle */
    struct queue *queue;        /* where it waits to send pieces, or NULL */
    struct request *next;       /* in a queue, or in the free list */

    uint16_t op, dtype, redop, wire; /* as the engine gets them */
    int32_t root;
    uint32_t set;
    double prescale, postscale;
    uint64_t row_elements;
    uint64_t shape_hash;
    char shape[SHM_SHAPE_MAX];
    char name[SHM_NAME_MAX];
    uint64_t hash;              /* of the name as the caller gave it, and the set */
    struct request *same_hash;  /* the next in its bucket */
    uint64_t *splits;           /* elements, owned */
    uint32_t split_count;

    struct segment one, *segments; /* segments == &one or on the heap */
    size_t segment_count;
    struct gpu_device *device;  /* the tensors lie there; NULL: in host memory */
    CUstream stream;            /* the program's, of device */
    CUevent mark;               /* in it; until the first piece has been told to wait for it */
    uint64_t bytes;
    struct split split;
    uint32_t sent, returned;

    int status;
    char text[TEXT_MAX];
    rm_done_fn *done;
    void *ctx;

    void *scratch;              /* what some segments point to; owned */
    enum request_form form;
    struct output *outputs;     /* owned; rows and data once it is done */
    size_t output_count;
    uint16_t output_dtype;      /* as the caller has it, of the first tensor */
    int64_t *received;          /* all-to-all: rows from each rank of the set; owned */
    size_t received_count;
    uint64_t result_offset;
    bool has_result;            /* in the results area: to be handed back */
    uint64_t answer;            /* out_count of what has no data: a number of a process set, a rank */
};

/* Where a copy engine has a piece. ENTERING and LEAVING end when the driver says so, on a thread of its own. */
enum piece_way { WAY_NONE, WAY_ENTERING, WAY_LEAVING, WAY_LANDED /* left, or entered too late: the completion thread ends it */ };

/* A piece in flight. Its index and serial make the id of the shm_request. */
struct piece {
    struct request *request;    /* NULL: free */
    struct piece *next_free;
    uint32_t number, serial;
    uint64_t begin, bytes;      /* of the request's data */
    uint64_t block;             /* arena memory that is ours to free, or REQUEST_NO_BLOCK */
    uint64_t in_offset, out_offset, splits_offset;
    bool copies_in, copies_out; /* between the caller's tensors and in_offset, out_offset */
    bool large;                 /* which arena block is of */
    bool submitted;             /* in the queue; false while a thread still copies into it */
    enum piece_way way;
    bool ordered;               /* piece 0: those after it were let go when its reply came, before it was copied out */
    struct piece *next_landed;
};

struct queue { struct request *head, *tail; };

#define REQUEST_BUCKETS 16384u /* a power of two */

struct requests {
    struct request **table;
    struct request **by_hash;     /* the live ones: REQUEST_BUCKETS chains */
    uint32_t count, capacity, live;
    uint32_t callbacks;           /* live ones with `done` */
    struct request *free_list;
    struct queue fresh;         /* piece 0 was not sent */
    struct queue ordered;       /* piece 0 came back: the order of all ranks */
    struct piece *pieces;
    struct piece *free_pieces;  /* by next_free */
    struct piece *ahead;        /* piece 1 of a request whose piece 0 is under way: it waits for its turn */
    bool ahead_is_there;        /* false: its data are still being copied */
    uint32_t piece_count, pieces_in_flight, copying;
    uint32_t sessions;          /* how often it was attached */
    uint32_t on_gpu;            /* pieces that are ENTERING or LEAVING */
    uint32_t starting;          /* threads that are about to start a copy, without lock */
    struct piece *landed;       /* by next_landed, the newest first */
    bool engine_busy;           /* its queue was full: look again soon */
    uint64_t *frees;            /* results to hand back, waiting for room in the queue */
    size_t free_count, free_capacity;
    struct areas areas;
};

struct areas request_areas(uint64_t arena_bytes, uint32_t size); /* of the job; pure */
struct split request_split(uint64_t bytes, const struct areas *areas); /* pure */

/* All of the following are called with the client's lock held unless they say otherwise. */
bool requests_attach(struct requests *q, const struct areas *areas); /* false: out of memory */
void requests_detach(struct requests *q);

/* A fresh request with its handle, or NULL (out of memory, or the name is in flight: the reason is in text_last). */
struct request *request_new(struct requests *q, uint32_t set, const char *name, int *ret_error);
struct request *request_find(struct requests *q, rm_handle handle);
rm_handle request_handle(const struct request *r);
/* The request will have its handle released: by rm_release, by rm_wait, or because nobody holds it. */
void request_release(struct client *c, struct request *r);
/* Ends the request: done is called (lock is dropped meanwhile), waiters wake. */
void request_finish(struct client *c, struct request *r);

void request_enqueue(struct queue *queue, struct request *r);
void request_unqueue(struct request *r); /* nothing happens when it waits nowhere */
/* outputs.c. The result of a reply becomes r's outputs; without lock. False: the reply cannot be right. When memory is
 * short r->status says so. */
bool outputs_take(const struct client *c, struct request *r, const struct shm_reply *reply);
/* A world of one: the result is what was given. */
void outputs_alone(struct request *r);
void outputs_release(struct request *r);

/* gpu_pieces.c. Starts copying a piece in, and submits it when it is there; copies a reply's data out, and ends it when it is there. */
void piece_enter(struct client *c, struct piece *p);
void piece_leave(struct client *c, struct piece *p);
void pieces_land(struct client *c);     /* ends what has landed */
void pieces_watch(struct client *c);    /* without lock: has a GPU failed? Asks every PIECES_WATCH_MS at most */
void pieces_drop_failed(struct client *c); /* when a GPU has failed: ends what will never land */
/* At the end, when nothing new begins: waits for all copies, gpu_settle_ms at most. False: some may still write to the arena. */
bool pieces_settle(struct client *c);
#define PIECES_WATCH_MS 100

/* pieces.c, for gpu_pieces.c. */
void piece_end(struct client *c, struct piece *p, int status, const char *text);
bool piece_submit(struct client *c, struct piece *p); /* false: the sidecar is out of order, and lost */

/* Sends what can be sent: takes pieces, copies them in (lock is dropped meanwhile), submits them. */
void requests_pump(struct client *c);
/* A reply of the engine. Called by the completion thread. */
void requests_reply(struct client *c, const struct shm_reply *reply);
/* Ends everything in flight with c->lost_text. */
void requests_fail_all(struct client *c);

#endif
