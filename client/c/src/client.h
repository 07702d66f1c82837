/*
 * client.h — the one client of this process: what rm_init makes and rm_shutdown ends.
 *
 * Threads. Callers' threads submit; one completion thread takes replies, reads the socket, sends reports and calls `done`. A thread
 * in rm_wait takes replies itself for a moment (replies_look).
 * `lock` guards everything below it; it is never held while memory is copied, a message is sent or a callback runs. Two
 * smaller locks: `init_lock` (rm_init and rm_shutdown one after the other) and `send_lock` (whole messages on the socket).
 *
 * A forked child has the memory but not the thread: it finds `forked` set and every function refuses.
 */
#ifndef CLIENT_CLIENT_H
#define CLIENT_CLIENT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "arena.h"
#include "gpu.h"
#include "talk.h"
#include "report.h"
#include "request.h"
#include "sets.h"
#include "ringmaster.h"
#include "shared.h"
#include "text.h"

#define CLIENT_REPORT_INTERVAL_MS 100

/* Requests to the sidecar that have an answer; one of each kind at a time. */
enum call_kind { CALL_SLOTS, CALL_RESTORE, CALL_FLUSH, CALL_KINDS };

struct call {
    bool busy, answered;
    bool abandoned;             /* its caller gave up waiting */
    bool refused;
    char text[256];             /* why refused */
    uint8_t answer[64];
    int fds[TALK_MAX_FDS];   /* owned by the caller once answered */
    size_t fd_count;
};

enum client_state { CLIENT_NONE, CLIENT_ALONE, CLIENT_ATTACHED, CLIENT_LEAVING /* rm_shutdown was called by a done callback */ };

struct client {
    pthread_mutex_t init_lock, send_lock, lock;
    pthread_cond_t changed;     /* a request is done, a call is answered, the sidecar is lost */
    _Atomic int state;          /* enum client_state */
    atomic_bool forked;

    /* Fixed from rm_init to rm_shutdown. */
    int rank, size, local_rank, local_size;
    uint64_t fence;
    int64_t resume_step;
    pthread_t thread;

    struct talk talk;         /* sent on under send_lock; received on by the completion thread */

    /* Guarded by lock. */
    struct shared shared;
    struct arena small, large;  /* request.h, areas */
    struct gpu gpu;             /* but for `failed` under its own lock */
    int gpu_settle_ms;          /* for how long the end waits for copies; tests shorten it */
    bool gpu_settled;           /* the completion thread's last word: nothing writes to the arena any more */
    struct requests requests;
    struct sets sets;
    struct report report;
    int64_t reported_ms;        /* when the last report was sent, monotonic */
    struct call calls[CALL_KINDS];
    bool stopping, lost;
    bool round_lost;            /* a collective has ended with RM_PEER_LOST, the sidecar is gone, or rm_next_round was called: rm_init
                                 * waits for another round */
    bool taking;                /* a thread takes replies */
    bool looking;               /* a waiting thread looks for replies, so the completion thread sleeps on without being rung */
    int64_t look_ns, crowded_until_ns; /* for how long at most; not before */
    char lost_text[TEXT_MAX];
    int64_t committed_step;     /* newest that the sidecar told of, -1 = none */
    bool save_wanted;           /* LOCAL_SAVE came */
    bool listens;               /* rm_hosts_listen was called: said again in every round */
    uint32_t hosts;             /* bits of LOCAL_HOSTS that nobody has asked for yet */
    char stage_refused[TEXT_MAX]; /* why the last staged image was not taken; "" = it was */
};

extern struct client the_client;

int64_t client_now_ms(void);
/* RM_OK when rm_init went well in this very process; else RM_NOT_INITIALIZED and a reason. */
int client_ready(void);
/* The sidecar is gone, and why: everything in flight ends. Call with lock held. */
void client_lose(struct client *c, const char *why);
/* Waits for `changed`, with lock held. False when the deadline (monotonic milliseconds, -1: none) has passed. */
bool client_wait_changed(struct client *c, int64_t deadline);
/* Sends one message; a broken socket loses the sidecar. RM_OK or RM_PEER_LOST. Without lock. */
int client_send(struct client *c, uint16_t type, const void *payload, size_t length);
/* Asks and waits for the answer. RM_OK, RM_PEER_LOST, RM_TIMEOUT, RM_INVALID (refused, with the sidecar's words). */
int client_call(struct client *c, enum call_kind kind, uint16_t type, const void *payload, size_t length, int64_t timeout_ms,
                struct call *ret_answer);

/* replies.c, with lock held: looks for replies itself for a while, until the request of this handle is done; afterwards tells how
 * long the wait was in all. */
void replies_look(struct client *c, rm_handle handle);
void replies_waited(struct client *c, int64_t began_ns /* CLOCK_MONOTONIC */);
/* The completion thread: replies.c */
void *client_thread(void *client);

/* checkpoint.c: forgets slots and the restored image at rm_shutdown. */
void checkpoint_forget(void);

#endif
