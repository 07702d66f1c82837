/*
 * engine_private.h — what the parts of the engine share. Everything here belongs to the engine's own thread, except where
 * "main" says otherwise.
 *
 *   engine.c    the facade: thread, posted calls, notices to the main loop, statistics
 *   clients.c   shared memory of the training processes: requests in, replies out
 *   group.c     connections to the other ranks: forming, losing
 *   order.c     from requests to GO lists: announcing, what rank 0 sends, refusals, stalls
 *   buffers.c   a list's data: where it comes from and goes to, packing, scaling
 *   execute.c   lists become finished collectives, in GO order
 *   selftest.c  the known all-reduce and all-gather at each forming
 */
#ifndef SIDECAR_RING_ENGINE_PRIVATE_H
#define SIDECAR_RING_ENGINE_PRIVATE_H

#include <pthread.h>

#include "sidecar/ring/collective.h"
#include "sidecar/ring/engine.h"
#include "sidecar/ring/link.h"
#include "sidecar/ring/mesh.h"
#include "sidecar/ring/namemap.h"
#include "sidecar/ring/negotiate.h"
#include "sidecar/ring/pulse.h"
#include "sidecar/ring/results.h"
#include "sidecar/ring/squeeze.h"
#include "sidecar/ring/stream.h"
#include "sidecar/ring/timeline.h"

#define CLIENT_SQ_ENTRIES 1024u
#define CLIENT_CQ_ENTRIES 2048u
#define CLIENT_IN_FLIGHT_MAX 65536u /* then requests stay in the queue until some are answered */
#define GO_WINDOW 4                 /* lists that are out but not done: meanwhile ready tensors gather and are fused */
#define PENDING_MAX 1024            /* connections for a round that is not formed yet */

/* A training process. */
struct client {
    uint64_t id, fence;
    int fds[3];                     /* memfd, eventfd client → engine, eventfd engine → client */
    uint8_t *base;                  /* the mapped memory */
    uint64_t bytes;
    struct shm_header layout;       /* our own copy: what stands in shared memory is never believed */
    uint32_t sq_head, cq_tail;
    struct results results;
    size_t in_flight;
    struct shm_reply *backlog;      /* replies that did not fit into the queue, oldest first */
    size_t backlog_count, backlog_capacity;
    struct loop_source *source;
    struct loop_timer *again;       /* looks at the queues once more: the backlog, or requests that had to stay */
    bool broken;                    /* broke the queue protocol: nothing is taken from it any more */
    struct client *next;
    struct engine *engine;
};

struct request;
typedef void request_done_fn(struct engine *g, struct request *q, enum shm_status status, const char *text, uint64_t out_count);

/* A tensor of this rank that was submitted and is not answered. */
struct request {
    struct client *client;          /* NULL: the engine's own, `done` is told */
    struct shm_request r;
    struct signature sig;
    const uint8_t *in;
    uint8_t *out;                   /* all-gather: NULL, the engine finds the place; its own: room for out_capacity elements */
    uint64_t out_capacity;
    uint64_t *splits;               /* r.splits of them, checked; owned */
    uint64_t answer;                /* operations without data: out_count of the reply, and how they end */
    enum shm_status verdict;
    int32_t members, set_size;      /* ranks that take part, and of the set; 0: not told to start yet */
    bool announced;
    request_done_fn *done;          /* its own: told when it has ended */
    void *done_ctx;
    int64_t submitted_ns, go_ns;    /* go_ns 0: not told to start yet */
    struct request *next, **link;   /* engine.requests, in the order submitted */
};

/* ASKING: it has ended, and rank 0 is about to say in which words. */
enum group_state { GROUP_FORMING, GROUP_TESTING, GROUP_FORMED, GROUP_ASKING, GROUP_LOST };

struct group {
    struct engine *engine;
    enum group_state state;
    uint64_t fence;
    int32_t rank, size;
    struct ring_member *members;
    const char **names;             /* members[i].member */
    int64_t began_ms;
    struct loop_timer *deadline;
    struct loop_timer *ruling;      /* ASKING: until when rank 0 is waited for */
    int32_t lost_rank;              /* ASKING: what this rank itself has seen */
    char lost_text[SHM_TEXT_MAX];

    struct link *dial_root;
    struct mesh *mesh;
    int32_t *everyone;              /* 0, 1, ..., size - 1: the members of what all ranks take part in */
    struct stream **streams;        /* rank 0: by rank, [0] unused; others: [0] is rank 0 */
    struct negotiation *negotiation; /* rank 0 */
    struct process_sets *sets;
    struct buf announcements;       /* not yet sent */
    uint64_t last_sequence;         /* of the lists that rank 0 has sent */
    bool has_left;                  /* rank 0 was told that this rank's training process has ended well */
    struct loop_timer *stalls;      /* rank 0 */
    bool stalled;                   /* on_stall was told of something that may wait still */
    struct selftest *selftest;
};

/* The list that is being executed. */
struct running {
    bool active;
    struct go_list list;
    struct request **requests;      /* of the entries */
    uint64_t *offsets;              /* what the plan's offsets point to */
    bool has_result;                /* in the results area: */
    uint64_t out_offset, out_count;
    uint8_t *copy_to;               /* where `work` goes when it is done (in place), or NULL */
    bool no_space;                  /* takes part, but has nowhere to put the result */
    bool squeezed;                  /* its data travel in another form */
    uint8_t *result;                /* reduce-scatter: where it is, for what is left to do to it */
    int64_t began_ns;
};

struct pending { int fd; struct peer_hello hello; struct pending *next; };
struct go_waiting { struct go_list list; uint32_t chunk_bytes; struct go_waiting *next; };

struct notice {
    enum { NOTICE_FORMED, NOTICE_LOST, NOTICE_STALL } kind;
    uint64_t fence;
    int32_t rank;
    int ok;
    double seconds;
    char text[SHM_TEXT_MAX];
    struct notice *next;
};

struct engine {
    struct engine_options options;
    struct engine_events events;
    struct link_identity identity;

    struct loop *main;              /* main: callbacks go there, through notice_fd */
    struct loop_source *notice_source;
    int notice_fd;
    uint64_t next_client;           /* main */
    pthread_t thread;

    pthread_mutex_t lock;           /* guards the next four lines */
    struct notice *notices, **notices_end;
    struct engine_stats stats;
    double busbw_bytes, busbw_seconds;
    struct { uint64_t fence; int32_t rank; char why[SHM_TEXT_MAX]; } missed; /* what the pulse says; the first of a fence */

    struct pulse *pulse;
    struct timeline *timeline;

    struct loop *loop;              /* the engine's */
    struct client *clients;
    struct request *requests, **requests_end;
    struct namemap by_name;         /* of requests, by name_key */
    struct group *group;
    uint64_t top_fence;             /* highest that was formed or aborted: only a higher one can form */
    uint64_t over_fence;            /* requests of clients up to this fence end with over_text */
    char over_text[SHM_TEXT_MAX];
    struct pending *pending;
    size_t pending_count;

    struct go_waiting *queue, **queue_end;
    size_t queued;                  /* lists in the queue and the running one */
    struct running running;
    struct collective *collective;
    struct squeeze *squeeze;
    struct loop_timer *again;       /* the collective has more to do, after the others' turn */
    int64_t spin_until_ns;          /* until then the thread looks again and again in place of sleeping */
    int64_t spin_ns, crowded_until_ns;
    uint8_t *work;                  /* packed or out-of-place data */
    size_t work_bytes;
    double *waited_for;             /* by rank of the group, ms */
};

/* engine.c */
void engine_notify(struct engine *g, const struct notice *n);
void engine_count(struct engine *g, uint64_t operations, uint64_t bytes, double busbw_bytes, double busbw_seconds);
void engine_stay_awake(struct engine *g); /* something is under way whose next part may come soon */
void engine_count_wait(struct engine *g, double wait_ms, int32_t last_rank);

/* clients.c */
void clients_add(struct engine *g, struct client *c);
void clients_remove(struct engine *g, uint64_t id);
void client_reply(struct client *c, const struct shm_reply *reply);
void client_release(struct client *c);
/* A finished or failed request: answers and frees it. text may be NULL. */
void request_end(struct engine *g, struct request *q, enum shm_status status, const char *text, uint64_t out_offset,
                 uint64_t out_count);
void request_add(struct engine *g, struct request *q);
/* Ends all requests of clients whose fence is at most this one, and the engine's own. */
void requests_fail(struct engine *g, uint64_t fence, enum shm_status status, const char *text);
bool clients_look(struct engine *g);  /* takes what lies in their queues; false: nothing does */
bool clients_sleep(struct engine *g); /* tells them to ring from now on; false: not to be, something came meanwhile */

/* group.c */
void group_form(struct engine *g, const struct ring_plan *plan);
void group_accept(struct engine *g, int fd, const struct peer_hello *hello);
void group_abort(struct engine *g, uint64_t fence, const char *text);
void group_free(struct engine *g);
void pending_free(struct engine *g);
/* Ends the group: "peer lost: rank 2 (worker-1): why". rank -1: `why` is the whole text. */
void group_lost(struct engine *g, int32_t rank, const char *why);
void group_lost_as(struct engine *g, int32_t rank, const char *text); /* the whole text, as another rank put it */
bool group_is_alive(const struct engine *g);
bool group_is_ready(const struct engine *g, uint64_t client_fence); /* can requests of such a client be announced? */
void group_tested(struct engine *g, bool ok);

/* order.c */
void order_announce(struct engine *g, struct request *q);
void order_frame(struct engine *g, int32_t from, const struct peer_frame *frame, const uint8_t *payload);
void order_flush(struct engine *g);   /* sends what was announced; rank 0: what can go */
void order_left(struct engine *g, bool left);
void order_watch(struct engine *g);   /* rank 0, once the group is formed: looks for what stalls */

/* buffers.c */
int buffers_prepare(struct engine *g, struct collective_plan *plan); /* of the running list; -1: no memory */
uint8_t *buffers_along(const struct request *q);       /* what travels along with its announcement; the caller frees it */
void buffers_sum_along(const struct go_list *l);       /* rank 0: the results of such a list */
void buffers_finish(struct engine *g); /* the collective is done (of one member: was nothing to do) */

/* execute.c */
void execute_flush(struct engine *g); /* sends what was announced; starts what can start */
void execute_advance(struct engine *g);
void execute_drop(struct engine *g);  /* forgets the queue and the running collective */

/* selftest.c */
struct selftest *selftest_new(struct engine *g);     /* submits its requests */
void selftest_free(struct selftest *t);

#endif
