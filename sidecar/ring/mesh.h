/*
 * mesh.h — the data connections of one rank to the others of its round: byte streams that do not block, one or more *lanes* for each
 * pair. What travels on them is the collective's business.
 *
 * Of two ranks the higher one dials. Up to MESH_FULL ranks every pair is joined when the round forms; larger rounds join the
 * neighbours in rank then, and other pairs when a collective first needs them (both ends begin it, so both know).
 *
 * Ranks of one machine may be told to use memory that they share in place of TCP (mesh_shape.memory_dir): then each lane is a pipe
 * (pipe.h), and its TCP connection wakes who sleeps and tells of the other's end. Who uses such a mesh has to call mesh_look while it
 * is awake and mesh_sleep before it sleeps.
 *
 * One thread: the engine's. A connection that ends is reported once, from the loop, unless a collective meets it first.
 */
#ifndef SIDECAR_RING_MESH_H
#define SIDECAR_RING_MESH_H

#include <sys/uio.h>

#include "base/loop.h"
#include "sidecar/ring/link.h"

#define MESH_FULL 16
#define MESH_LANES_MAX 8

struct mesh;
struct ring_member; /* engine.h */
struct pulse;

struct mesh_lane {
    int fd;                    /* -1: not there yet */
    bool readable, writable;   /* false: tried in vain; the loop will say when to try again */
    int32_t rank;              /* of the other end */
    struct mesh *mesh;
    struct loop_source *source;
    struct link *dialling;
    struct pipe *pipe;         /* NULL: TCP */
    bool closed;               /* pipe: the other end is gone; what it wrote before can be read */
};

struct mesh_events {
    void (*on_ready)(void *ctx);  /* some lane has become readable, writable, or there at all */
    /* rank: whose connection failed or could not be made; gone: it says that this rank's fence is old */
    void (*on_lost)(void *ctx, int32_t rank, bool gone, const char *why);
    void *ctx;
};

struct mesh_shape {
    const struct link_identity *self;
    const struct ring_member *members; /* by rank; borrowed */
    uint64_t fence;
    int32_t rank, size, lanes;
    int64_t timeout_ms;                /* for dialling */
    struct pulse *pulse;               /* is told whose bytes come; may be NULL */
    const char *memory_dir;            /* all ranks are on this machine and share this directory; NULL: they are not. Borrowed */
};

/* loop NULL: nothing is watched or dialled (tests that put connections in by hand). */
struct mesh *mesh_new(struct loop *loop, const struct mesh_shape *shape, const struct mesh_events *events);
void mesh_free(struct mesh *m); /* closes everything; NULL is fine */

/* Dials what this rank has to dial at forming. Failures come by on_lost. */
void mesh_dial(struct mesh *m);
/* Takes a connection that `rank` dialled. False: there is no use for it, or it is there already; fd stays the caller's. */
bool mesh_put(struct mesh *m, int32_t rank, uint32_t lane, int fd);
int32_t mesh_missing(const struct mesh *m); /* a rank that has to be connected at forming and is not; -1: none */
/* Is every lane to this rank there? If not it is dialled or waited for. */
bool mesh_need(struct mesh *m, int32_t rank);
int32_t mesh_lanes(const struct mesh *m);
struct mesh_lane *mesh_lane(struct mesh *m, int32_t rank, int32_t lane);
/* The round is over: nothing is dialled or reported any more. The connections stay open: see README.md. */
void mesh_stop(struct mesh *m);

/* Pipes only; both are cheap when there are none. Tells by on_ready what can be read or written now; false: nothing new. */
bool mesh_look(struct mesh *m);
/* The thread is about to sleep; false: not now, something has come. */
bool mesh_sleep(struct mesh *m);
void mesh_wake(struct mesh *m); /* it is awake again */

/* Bytes moved (> 0); 0: none now; -1: the connection is gone (ERROR_PEER_LOST). */
MUST_CHECK ssize_t mesh_send(struct mesh_lane *l, const struct iovec *parts, size_t count, struct error *e);
MUST_CHECK ssize_t mesh_receive(struct mesh_lane *l, const struct iovec *parts, size_t count, struct error *e);

#endif
