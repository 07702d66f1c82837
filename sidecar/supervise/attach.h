/*
 * attach.h — the sidecar's unix socket: the launcher of this pod, and the clients inside the training process (wire/local.h).
 *
 * Who connects must have this process's user or be root; in a pod the socket is for whoever sees its directory, because a training
 * container may run as any user and the directory is mounted in this pod's containers alone. The first message must be a HELLO of
 * this release; a malformed message closes the connection. A client belongs to the round that its process was started for: one that comes with another
 * fence is refused in words. Runs on the loop's thread.
 */
#ifndef SUPERVISE_ATTACH_H
#define SUPERVISE_ATTACH_H

#include "base/loop.h"
#include "sidecar/checkpoint/checkpoint.h"
#include "sidecar/ring/engine.h"
#include "sidecar/supervise/trainer.h"

struct attach;

struct attach_events {
    void (*launcher)(void *ctx, const struct trainer_event *event); /* HELLO, GONE, STARTED, EXITED or SIGNALLED */
    void (*signs)(void *ctx, const struct local_signs *signs);       /* answers to attach_look; may be NULL */
    void (*stacks)(void *ctx, const char *text, size_t len);         /* may be NULL */
    void (*report)(void *ctx, const char *text, size_t len, struct error *e, bool *ret_taken); /* false: e is told to the client */
    void (*listens)(void *ctx);                                     /* a client's program goes into another round when asked. May be NULL */
    void (*clients)(void *ctx, size_t attached, const char *framework); /* their number changed */
    void (*parked)(void *ctx, bool waits);                          /* a client waits for the next round; or none does any more. May be NULL */
    bool (*timeline)(void *ctx, bool on, const char *path, bool mark_cycles, struct error *e); /* NULL: nothing can record */
    bool (*is_member)(void *ctx);                                   /* for the probe: does the coordinator know this member? */
    void *ctx;
};

enum attach_access { ATTACH_USER, ATTACH_POD /* the directory is the boundary */ };

struct attach_options {
    const char *path;            /* of the socket */
    enum attach_access access;
    const char *job;             /* kept */
    struct engine *engine;       /* kept; may be NULL in tests: clients are refused then */
    struct checkpoint *checkpoint;
    bool elastic;                /* a client may wait for the round after one that was lost */
};

MUST_CHECK int attach_new(struct loop *l, const struct attach_options *options, const struct attach_events *events,
                          struct attach **ret, struct error *e);
void attach_free(struct attach *a);
bool attach_launcher_is_gone(const struct attach *a); /* one was there, and is not now */

/* The round that clients may belong to from now on. */
void attach_session(struct attach *a, uint64_t fence, uint32_t rank, uint32_t size, int64_t resume_step);

/* The clients that wait for a round after the one before are in this session now. */
void attach_admit(struct attach *a);

/* Words to the launcher; nothing happens when none is connected. `environment`: "K=V\0K=V\0". */
void attach_start(struct attach *a, uint64_t fence, const char *environment, size_t len);
void attach_stop(struct attach *a, uint64_t fence, uint32_t grace_ms);
void attach_leave(struct attach *a, int32_t code);

/* Asks the programs of this session to come to another round: bits of wire/local.h. Clients that attach later hear it, too. */
void attach_hosts(struct attach *a, uint32_t bits);
bool attach_look(struct attach *a, uint32_t what /* enum local_look_what */); /* false: no launcher is there to ask */

void attach_committed(struct attach *a, int64_t step); /* tells the clients; answers flushes */
void attach_ready(struct attach *a);                   /* the checkpoint engine is not busy any more */
void attach_save(struct attach *a);                    /* asks the clients for a checkpoint */

#endif
