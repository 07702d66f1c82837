/*
 * engine.h — the all-reduce engine of one rank: takes requests from local clients over shared memory, agrees with the other
 * ranks on their order, moves and reduces the data over TCP, answers.
 *
 * Threads: the engine owns one thread (later engines more). Functions here are called from the loop's thread and post to it;
 * callbacks run on the loop's thread. Life of a group:
 *
 *   engine_form(plan)  → connects to the ranks that it dials, takes over the connections that others dialled (engine_accept),
 *                        runs the self-test → on_formed.
 *   requests flow      → a lost neighbour or engine_abort ends every request in flight on this rank with SHM_PEER_LOST and its
 *                        text → on_lost (once a group). Requests that arrive with no group formed wait for the next one
 *                        unless their client belongs to an older fence: then they end with SHM_PEER_LOST too.
 *   engine_form again  → a higher fence. Lower or equal fences are refused everywhere.
 *
 * on_formed tells whether this rank's self-test was right; on_lost comes once for every group that was asked for and ended:
 * not formed in time, refused plan, neighbour gone, engine_abort, a client that was detached with requests announced (then rank is
 * this rank). Its text is what the clients hear, "peer lost: rank 2 (worker-1): connection closed", and the same on all ranks.
 *
 * Dial rule: of two ranks the higher one dials, DATA (mesh.h says which pairs) and, to rank 0, ENGINE. Handshakes (peer.h) are done by
 * link.h.
 * Results are bit-identical on every rank and from run to run for the same world size.
 */
#ifndef SIDECAR_RING_ENGINE_H
#define SIDECAR_RING_ENGINE_H

#include "base/loop.h"
#include "wire/peer.h"
#include "wire/shm.h"

struct engine;

struct ring_member { char member[PEER_MEMBER_MAX]; char host[256]; int32_t port; };
struct ring_plan {
    uint64_t fence;
    int32_t rank, size;
    const struct ring_member *members; /* by rank; copied */
};

struct engine_stats {
    uint64_t operations, bytes_reduced;   /* payload of all-reduces that ended well, this process's life */
    double busbw_gbps;                    /* GB/s over the last large all-reduces: 2(N-1)/N * bytes / time */
    double wait_ms;                       /* time requests of this rank waited for other ranks, sum */
    int32_t slowest_rank;                 /* who was waited for most, -1 = unknown */
};

/* In on_lost's text when what the group lost is a rank's process, and not its sidecar or the way to it. */
#define ENGINE_PROCESS_LEFT "its training process left"

struct engine_events {
    void (*on_formed)(void *ctx, uint64_t fence, int self_test_ok, double seconds);
    void (*on_lost)(void *ctx, uint64_t fence, int32_t rank /* -1 unknown */, const char *text);
    /* Rank 0 only; may be NULL. A collective has waited for stall_warning_ms; once for each. `rank` is the first that is missing.
     * text "": none waits that long any more. */
    void (*on_stall)(void *ctx, uint64_t fence, int32_t rank, const char *text);
    void *ctx;
};

struct engine_options {
    const uint8_t *key;                   /* CRYPTO_KEY_BYTES, kept */
    const char *job_uid, *member;         /* kept */
    bool tls;                             /* between ranks */
    int64_t arena_bytes, results_bytes;   /* of each client's shared memory, taken as it is touched; 0: 256 MiB, 64 MiB */
    int64_t connect_timeout_ms;           /* for forming, self-test included; 0: 30 s */
    int32_t chunk_bytes;                  /* of a DATA frame, as rank 0 has it; 0: 256 KiB */
    const char *memory_dir;               /* kept: all ranks are on this machine and move data through memory in this directory; NULL: TCP */
    int32_t spin_us;                      /* how long to look for more before sleeping; 0: 100, negative: not at all */
    int64_t stall_warning_ms;             /* a collective that some ranks have sent and others not for so long: on_stall; 0: never */
    int64_t stall_shutdown_ms;            /* ... ends the group; 0: never */
    bool checksums;                       /* of the tensor data that this rank sends */
    enum shm_wire wire;                   /* the job's: in which form sums travel where that goes with their dtype and nothing else is asked
                                           * for; 0: as they are */
    int64_t peer_timeout_ms;              /* a rank that is silent is lost within it; 0: 1 s */
};

MUST_CHECK int engine_new(struct loop *loop, const struct engine_options *options, const struct engine_events *events,
                          struct engine **ret_engine, struct error *e);
void engine_form(struct engine *g, const struct ring_plan *plan); /* size >= 1 */
/* Hands over a connection whose handshake is complete. fd is taken. A connection for a fence not yet formed waits for it. */
void engine_accept(struct engine *g, int fd, const struct peer_hello *hello);
/* Ends the group of this fence or a lower one, and all requests of clients up to it. The fence cannot form any more. */
void engine_abort(struct engine *g, uint64_t fence, const char *text);
/* A client attaches: creates its memfd and eventfds (owned by the engine; the caller passes them on by SCM_RIGHTS at once and
 * does not close them). ret_client identifies it in engine_detach. */
MUST_CHECK int engine_attach(struct engine *g, uint64_t fence, uint64_t *ret_client, int ret_fds[3], uint64_t *ret_shm_bytes, struct error *e);
void engine_detach(struct engine *g, uint64_t client);
/* This rank's training process has ended well: collectives that wait for this rank, now or later, fail on the others, at once
 * and by its name. It holds until a client attaches or another group forms. */
void engine_left(struct engine *g);
/* A Chrome trace of what this rank does from now on (timeline.h); path NULL ends it. */
MUST_CHECK int engine_timeline(struct engine *g, const char *path, bool mark_cycles, int32_t rank, int32_t size, struct error *e);
void engine_stats_read(struct engine *g, struct engine_stats *ret_stats);
void engine_free(struct engine *g); /* ends the thread; requests in flight end with SHM_SHUTDOWN; no callback comes afterwards */

#endif
