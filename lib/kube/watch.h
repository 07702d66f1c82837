/*
 * watch.h — when to list, when to watch, from which version, and what to do when either ends. Pure: no time, no I/O.
 *
 * The informer (informer.h) carries out what a step says and tells the next step what came of it. One request at a time:
 * while one is under way no step asks for another without cancelling it.
 *
 *     start -> streaming list (sendInitialEvents) -> watching     where the server does it; otherwise, and for ever after
 *     start -> list, page by page -> watching                     a refusal (400, 422) or 20 s without a word in it, pages
 *
 *  - A list asks for the most recent state; its pages are `limit` objects, half as many after a page that was too large.
 *  - A watch resumes at the last version seen, bookmarks included. 410 (as status or as event), and a line that is too long or
 *    is no event, start over with a list: the cache then reports what vanished meanwhile, so nothing is lost.
 *  - The server is asked to end a watch after 290 s (+ up to 60 by jitter); 10 s of silence beyond that and it is cut.
 *  - A watch that ends in less than a second without an event, and every error, waits: 0.8 s doubled to 30 s with jitter; after
 *    two good minutes it starts at 0.8 s again. Retry-After counts where it is longer. 401 asks for new credentials.
 */
#ifndef KUBE_WATCH_H
#define KUBE_WATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "kube/object.h"

#define KUBE_TOKEN_TEXT_MAX 4096 /* a continue token */

enum kube_watch_input_kind {
    KUBE_WATCH_START,    /* the first step, and after a stop */
    KUBE_WATCH_WAKE,     /* wake_at_ms has come */
    KUBE_WATCH_PAGE,     /* a list page arrived: version, continue_token; its objects are put by the informer first */
    KUBE_WATCH_EVENT,    /* a line of a watch: event, version */
    KUBE_WATCH_CLOSED,   /* the watch ended in order */
    KUBE_WATCH_FAILED,   /* the list or the watch failed: error, http_status, retry_after_ms */
    KUBE_WATCH_GARBLED,  /* a line that is no watch event */
};

enum kube_watch_event { KUBE_ADDED, KUBE_MODIFIED, KUBE_DELETED, KUBE_BOOKMARK, KUBE_INITIAL_END /* bookmark that ends the initial events */ };

struct kube_watch_input {
    enum kube_watch_input_kind kind;
    enum kube_watch_event event;
    const char *version;        /* of the list, or of the event's object */
    const char *continue_token; /* NULL or "" = the last page */
    enum error_kind error;
    int http_status;
    int64_t retry_after_ms;
};

enum kube_watch_store {
    KUBE_STORE_NONE,
    KUBE_STORE_PUT,    /* the event's object is current */
    KUBE_STORE_DROP,   /* the event's object is gone */
    KUBE_STORE_COMMIT, /* all there is has been put since the last begin: the rest is gone */
};

enum kube_watch_send { KUBE_SEND_NOTHING, KUBE_SEND_LIST, KUBE_SEND_WATCH };

struct kube_watch_output {
    enum kube_watch_store store;
    bool cancel;                /* end the request under way first */
    bool reread_credentials;
    bool begin;                 /* kube_cache_begin before the request is sent: a list starts from its first object */
    enum kube_watch_send send;
    /* Of the request; borrowed from the watch until its next step. */
    const char *version, *continue_token;
    uint32_t limit, server_timeout_s;
    bool initial_events;
    int64_t wake_at_ms;         /* step with WAKE then; 0 = never */
};

struct kube_watch; /* opaque */

struct kube_watch_options {
    uint64_t seed;              /* of the jitter */
    uint32_t page;              /* objects a page; 0 = 500 */
    uint32_t server_timeout_s;  /* 0 = 290 */
    bool no_streaming;          /* never ask for a streaming list */
};

struct kube_watch *kube_watch_new(const struct kube_watch_options *options);
void kube_watch_free(struct kube_watch *w); /* NULL is fine */
void kube_watch_step(struct kube_watch *w, const struct kube_watch_input *in, int64_t now_ms, struct kube_watch_output *ret);
const char *kube_watch_state_name(const struct kube_watch *w); /* "listing"; static */
uint32_t kube_watch_failures(const struct kube_watch *w);      /* in a row */

#endif
