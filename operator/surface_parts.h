/*
 * surface_parts.h — the inside of surface.h: what surface.c (life, HTTP) and channel.c (coordinators) share. libwebsockets is known
 * here and nowhere else. Nobody else includes it.
 *
 * Functions say on which thread they run: "loop" is the program's, "thread" the one that serves.
 */
#ifndef OPERATOR_SURFACE_PARTS_H
#define OPERATOR_SURFACE_PARTS_H

#include <libwebsockets.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/certificate.h"
#include "job/control.h"
#include "operator/surface.h"

/* A connection, on the thread. libwebsockets owns the memory. */
struct session {
    struct session *next;      /* of the coordinators */
    struct lws *wsi;
    uint64_t id;               /* 0: no coordinator */
    struct buf in;             /* a message whose end has not come */
    char *out;                 /* the word that waits to be sent; a newer one takes its place */
    uint16_t close_code;       /* 0: it stays */
    const char *close_reason;  /* static */
    char *reply;               /* body of an HTTP answer */
};

/* A coordinator that has proved itself, on the loop. */
struct coordinator { uint64_t id; struct kube_key key; struct coordinator *next; };

/* What the loop wants done with a connection: a text sent, or the connection closed. */
struct errand { uint64_t id; char *text; uint16_t close_code; const char *close_reason; struct errand *next; };

struct surface {
    struct loop *loop;
    struct controller *controller;
    struct surface_options options;
    char *address, *control_address;
    struct lws_context *lws;
    pthread_t thread;
    atomic_bool stop, leading;

    struct coordinator *coordinators; /* loop */
    size_t coordinator_count;

    struct session *sessions;  /* thread */
    size_t session_count;
    uint64_t next_id;
    struct lws_vhost *secure;  /* thread; NULL: there is no certificate yet */
    void *tls_context;         /* thread; of `secure` */
    struct certificate shown;  /* thread; what a new vhost begins with */

    pthread_mutex_t lock;      /* of what follows */
    struct buf metrics;
    bool ready;
    int64_t told_ms;
    struct errand *errands, **errands_end;
    struct certificate certificate; /* that the thread has not taken yet; NULL fields = none */
};

/* channel.c, thread */
int channel_confirm(struct surface *s, struct lws *wsi); /* may a connection become a WebSocket? 0, or the answer is given: 1, or -1 */
int channel_established(struct surface *s, struct lws *wsi, struct session *session);
int channel_receive(struct surface *s, struct lws *wsi, struct session *session, const void *bytes, size_t len);
int channel_writable(struct session *session);
void channel_ended(struct surface *s, struct session *session);
void channel_do_errands(struct surface *s);
/* channel.c, loop */
void channel_release(struct surface *s);

#endif
