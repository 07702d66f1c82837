/*
 * client.h — requests to an API server over one connection pool (HTTP/2, TLS) on the program's loop.
 *
 * One thread: everything is called on the loop's thread, and so are the callbacks, never from within the call that caused
 * them. A call ends in exactly one reply unless it is cancelled or the client freed. Requests beyond the window of requests in
 * flight wait in the client, urgent ones (leases) ahead of the others, those in the background (events) behind; the window halves
 * when the server says 429 or 503 and grows again with its answers. Nothing is retried here: reply.error->kind says what the caller does next.
 *
 *   ERROR_CONFLICT   409: AlreadyExists (reply.already_exists) or a resourceVersion or uid that is no longer current
 *   ERROR_NOT_FOUND  404      ERROR_GONE  410, list or watch again from the start
 *   ERROR_DENIED     401, 403 ERROR_INVALID  400, 405, 413, 415, 422
 *   ERROR_BUSY       429, 503: reply.retry_after_ms says when      ERROR_TIMEOUT  504, or no answer in time
 *   ERROR_LIMIT      the answer is larger than max_bytes           ERROR_IO  no connection, or another 5xx
 *
 * After ERROR_TIMEOUT and ERROR_IO the request may have been carried out: look, then decide. A connection that was silent for
 * as long as a request that timed out on it is cut, so that the next request has a new one.
 */
#ifndef KUBE_CLIENT_H
#define KUBE_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "base/loop.h"
#include "kube/config.h"
#include "kube/object.h"

enum kube_verb {
    KUBE_GET,
    KUBE_LIST,
    KUBE_WATCH,            /* kube_client_stream */
    KUBE_CREATE,
    KUBE_UPDATE,           /* PUT: the body's resourceVersion must be current */
    KUBE_APPLY,            /* server-side apply; needs field_manager */
    KUBE_JSON_PATCH,       /* RFC 6902: an array of operations */
    KUBE_MERGE_PATCH,      /* RFC 7386 */
    KUBE_DELETE,
    KUBE_DELETE_COLLECTION,
};

enum kube_want { KUBE_WANT_OBJECT, KUBE_WANT_METADATA /* PartialObjectMetadata */, KUBE_WANT_NOTHING /* no object in the reply */ };
enum kube_propagation { KUBE_PROPAGATION_DEFAULT, KUBE_BACKGROUND, KUBE_FOREGROUND, KUBE_ORPHAN };

/* Designated initializers; zero is the default. Texts are copied. */
struct kube_request {
    enum kube_verb verb;
    const struct kube_resource *resource; /* or NULL with `path` */
    const char *path;                     /* "/version", "/apis/ringmaster.dev/v1" */
    const char *ns, *name;                /* NULL ns on LIST and WATCH: all namespaces */
    const char *subresource;              /* "status", "scale", "log" */
    const cJSON *body;                    /* printed at once, not kept */
    const char *query;                    /* more parameters, already encoded: "container=main&follow=true" */

    const char *label_selector, *field_selector;
    const char *resource_version, *resource_version_match;
    const char *continue_token;
    uint32_t limit;                       /* objects a page; 0 = all */
    uint32_t server_timeout_s;            /* WATCH: timeoutSeconds */
    bool bookmarks, initial_events;       /* WATCH: allowWatchBookmarks, sendInitialEvents */

    const char *field_manager;            /* APPLY; recommended for every write */
    bool force;                           /* APPLY: take fields over from other managers */
    bool dry_run;
    bool strict;                          /* fieldValidation=Strict */

    const char *delete_uid, *delete_version; /* preconditions of DELETE */
    bool has_grace;
    uint32_t grace_s;                     /* gracePeriodSeconds when has_grace */
    enum kube_propagation propagation;

    enum kube_want want;
    const char *const *drops;             /* members of the objects that nobody reads: null in the reply (strip.h); kept, not copied */
    bool background;                      /* behind everything else that waits; one at a time gets through all the same */
    bool urgent;                          /* ahead of everything that waits, and outside the window */
    void (*drop)(void *ctx);              /* frees ctx where the client is freed before the reply; NULL: somebody else holds it */
    bool raw;                             /* a stream of text, not of JSON: lines longer than max_line come in pieces */
    int64_t deadline_ms;                  /* how long it may take in all, waiting included; 0 = 60 s, for streams for ever */
    size_t max_bytes;                     /* of the answer; 0 = JSON_MAX_BYTES. Streams: of one line */
};

struct kube_reply {
    int http_status;           /* 0: there was no answer */
    cJSON *object;             /* borrowed for the call; the callback may take it (and set it NULL here). NULL on errors */
    const struct error *error; /* NULL = all went well; text holds the server's own message */
    const char *reason;        /* the Status' reason ("AlreadyExists"), or "" */
    bool already_exists;
    int64_t retry_after_ms;    /* 0 = the server did not say */
};

struct kube_client;
struct kube_call; /* valid until its reply begins */

typedef void kube_reply_fn(void *ctx, struct kube_reply *reply);
/* One whole line without its end, however the bytes were cut. NUL-terminated; borrowed for the call. */
typedef void kube_line_fn(void *ctx, const char *line, size_t len);

struct kube_client_options {
    const char *user_agent;  /* copied; NULL = "ringmaster/<version>" */
    uint32_t max_in_flight;  /* 0 = 64 */
    /* The fence, asked before anything is given to the network: a process that slept may have lost its lease while writes of it waited
     * for their turn or for a connection. While it says no, every write that is under way ends with ERROR_TIMEOUT (it may have been
     * carried out) and none is begun; urgent ones and dry runs are let through. NULL: always. */
    bool (*may_write)(void *ctx);
    void *ctx;
};

/* `config` is kept and stays the caller's; it must outlive the client. Fails when a token or certificate cannot be read or a
 * credential plugin fails: no connection is tried yet. */
MUST_CHECK int kube_client_new(struct loop *l, const struct kube_config *config, const struct kube_client_options *options,
                               struct kube_client **ret, struct error *e);
/* Ends all calls without their replies. Not from within a callback of the client. NULL is fine. */
void kube_client_free(struct kube_client *c);

/* Fails only with ERROR_INVALID: a request that makes no sense (a name that no object can have, no body...). NULL done: the
 * outcome is of no interest. ret_call may be NULL. */
MUST_CHECK int kube_client_send(struct kube_client *c, const struct kube_request *r, kube_reply_fn *done, void *ctx,
                                struct kube_call **ret_call, struct error *e);
/* WATCH, or GET with `raw` (logs). `closed` comes at its end: its error is NULL when the server ended the stream in order. */
MUST_CHECK int kube_client_stream(struct kube_client *c, const struct kube_request *r, kube_line_fn *line, kube_reply_fn *closed,
                                  void *ctx, struct kube_call **ret_call, struct error *e);
void kube_client_cancel(struct kube_client *c, struct kube_call *call); /* no reply comes any more; NULL is fine */

/* Credentials are read again before the next request: after a 401. At most once a second. */
void kube_client_reread(struct kube_client *c);

struct kube_client_stats {
    uint64_t requests, errors, throttled; /* all answers; those with an error; 429 and 503 among them */
    uint64_t bytes_in;
    uint32_t in_flight, waiting, window;
};
void kube_client_stats(const struct kube_client *c, struct kube_client_stats *ret_stats);

#endif
