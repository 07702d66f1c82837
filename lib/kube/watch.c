#include "kube/watch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kube/random.h"

#define PAGE_DEFAULT 500
#define SERVER_TIMEOUT_S 290
#define SERVER_JITTER_S 60        /* so that the watches of many processes do not end together */
#define IDLE_MARGIN_MS 10000
#define LIST_IDLE_MS 60000        /* the client's own deadline comes first; this is for a reply that never came */
#define STREAM_IDLE_MS 20000      /* between two objects of a streaming list, and before its end */
#define SHORT_WATCH_MS 1000
#define BACKOFF_BASE_MS 800
#define BACKOFF_MAX_MS 30000
#define GOOD_MS 120000            /* a watch that lived so long starts the backoff anew */
#define RETRY_AFTER_MAX_MS 300000 /* a server that asks for more than 5 min is asked again anyway */
#define SAME_VERSION_TRIES 5      /* watches from one version that failed, before a list is tried */

enum state { IDLE, STREAMING, LISTING, WATCHING, WAITING, STATE_COUNT };
static const char *const STATE_NAMES[STATE_COUNT] = { "idle", "streaming", "listing", "watching", "waiting" };

enum next { NEXT_LIST, NEXT_PAGE, NEXT_WATCH };

struct kube_watch {
    struct kube_watch_options options;
    uint64_t random;
    enum state state;
    enum next next;               /* after WAITING */
    bool streaming_refused;
    uint32_t limit;
    uint32_t failures;            /* in a row; decides the delay */
    uint32_t tries;               /* watches that failed since the version last moved */
    uint32_t events;              /* of the watch under way */
    uint32_t timeout_s;           /* of the watch under way */
    int64_t sent_ms;              /* when the request under way was sent */
    int64_t heard_ms;
    int64_t wake_ms;
    char version[KUBE_VERSION_MAX];
    char token[KUBE_TOKEN_TEXT_MAX];
};

struct kube_watch *kube_watch_new(const struct kube_watch_options *options)
{
    struct kube_watch *w = xcalloc(1, sizeof *w);

    w->options = *options;
    if (w->options.page == 0)
        w->options.page = PAGE_DEFAULT;
    if (w->options.server_timeout_s == 0)
        w->options.server_timeout_s = SERVER_TIMEOUT_S;
    w->random = options->seed;
    w->limit = w->options.page;
    return w;
}

void kube_watch_free(struct kube_watch *w)
{
    free(w);
}

const char *kube_watch_state_name(const struct kube_watch *w)
{
    return STATE_NAMES[w->state];
}

uint32_t kube_watch_failures(const struct kube_watch *w)
{
    return w->failures;
}

/* ---- requests ---------------------------------------------------------------------------------------------------------- */

static int64_t idle_limit_ms(const struct kube_watch *w)
{
    if (w->state == STREAMING)
        return STREAM_IDLE_MS;
    return w->state == LISTING ? LIST_IDLE_MS : (int64_t)w->timeout_s * 1000 + IDLE_MARGIN_MS;
}

static void sent(struct kube_watch *w, enum state state, int64_t now_ms, struct kube_watch_output *out)
{
    w->state = state;
    w->sent_ms = w->heard_ms = now_ms;
    w->events = 0;
    if (state != LISTING)
        w->timeout_s = w->options.server_timeout_s + (uint32_t)kube_random_below(&w->random, SERVER_JITTER_S + 1);
    out->send = state == LISTING ? KUBE_SEND_LIST : KUBE_SEND_WATCH;
    out->version = state == LISTING ? "" : w->version;
    out->continue_token = state == LISTING ? w->token : "";
    out->limit = state == LISTING ? w->limit : 0;
    out->server_timeout_s = state == LISTING ? 0 : w->timeout_s;
    out->initial_events = state == STREAMING;
    w->wake_ms = now_ms + idle_limit_ms(w);
}

static void send_list(struct kube_watch *w, int64_t now_ms, struct kube_watch_output *out)
{
    bool streaming = !w->options.no_streaming && !w->streaming_refused;

    w->version[0] = w->token[0] = '\0';
    w->tries = 0;
    out->begin = true;
    sent(w, streaming ? STREAMING : LISTING, now_ms, out);
}

static void send_next(struct kube_watch *w, enum next next, int64_t now_ms, struct kube_watch_output *out)
{
    if (next == NEXT_LIST)
        send_list(w, now_ms, out);
    else
        sent(w, next == NEXT_PAGE ? LISTING : WATCHING, now_ms, out);
}

/* ---- waiting ----------------------------------------------------------------------------------------------------------- */

/* A watch that lived for long makes up for what failed before it. */
static void settle(struct kube_watch *w, int64_t now_ms)
{
    if (w->state == WATCHING && now_ms - w->sent_ms >= GOOD_MS)
        w->failures = 0;
}

static void wait_for(struct kube_watch *w, enum next next, int64_t retry_after_ms, int64_t now_ms)
{
    int64_t delay = BACKOFF_BASE_MS;

    settle(w, now_ms);
    for (uint32_t i = 0; i < w->failures && delay < BACKOFF_MAX_MS; i++)
        delay *= 2;
    if (delay > BACKOFF_MAX_MS)
        delay = BACKOFF_MAX_MS;
    delay = delay / 2 + kube_random_below(&w->random, delay / 2 + 1);
    if (retry_after_ms > RETRY_AFTER_MAX_MS)
        retry_after_ms = RETRY_AFTER_MAX_MS;
    if (retry_after_ms > delay)
        delay = retry_after_ms + kube_random_below(&w->random, retry_after_ms / 5 + 1);
    if (w->failures < UINT32_MAX)
        w->failures++;
    w->state = WAITING;
    w->next = next;
    w->wake_ms = now_ms + delay;
}

static enum next same_again(const struct kube_watch *w)
{
    return w->state == WATCHING ? NEXT_WATCH : w->state == LISTING && w->token[0] != '\0' ? NEXT_PAGE : NEXT_LIST;
}

/* ---- inputs ------------------------------------------------------------------------------------------------------------ */

/* False: a version that cannot be kept. It is opaque and short; anything else comes from no API server. */
static bool move_version(struct kube_watch *w, const char *version)
{
    size_t len = version != NULL ? strlen(version) : 0;

    if (len == 0 || len >= sizeof w->version)
        return false;
    memcpy(w->version, version, len + 1);
    w->tries = 0;
    return true;
}

static void on_page(struct kube_watch *w, const struct kube_watch_input *in, int64_t now_ms, struct kube_watch_output *out)
{
    const char *token = in->continue_token != NULL ? in->continue_token : "";

    if (w->state != LISTING)
        return;
    if (!move_version(w, in->version) || strlen(token) >= sizeof w->token) {
        wait_for(w, NEXT_LIST, 0, now_ms);
        return;
    }
    if (token[0] != '\0') {
        memcpy(w->token, token, strlen(token) + 1);
        sent(w, LISTING, now_ms, out);
        return;
    }
    w->token[0] = '\0';
    w->limit = w->options.page;
    out->store = KUBE_STORE_COMMIT;
    sent(w, WATCHING, now_ms, out);
}

static void garbled(struct kube_watch *w, int64_t now_ms, struct kube_watch_output *out)
{
    out->cancel = true;
    wait_for(w, NEXT_LIST, 0, now_ms);
}

static void on_event(struct kube_watch *w, const struct kube_watch_input *in, int64_t now_ms, struct kube_watch_output *out)
{
    bool bookmark = in->event == KUBE_BOOKMARK || in->event == KUBE_INITIAL_END;

    if (w->state != WATCHING && w->state != STREAMING)
        return;
    /* Objects of a streaming list come in no order of version: only its end says from where to go on. */
    bool unordered = w->state == STREAMING && !bookmark;
    if (!unordered && !move_version(w, in->version)) {
        garbled(w, now_ms, out);
        return;
    }
    w->heard_ms = now_ms;
    w->events++;
    w->wake_ms = now_ms + idle_limit_ms(w);
    if (!bookmark)
        out->store = in->event == KUBE_DELETED ? KUBE_STORE_DROP : KUBE_STORE_PUT;
    if (in->event == KUBE_INITIAL_END && w->state == STREAMING) {
        out->store = KUBE_STORE_COMMIT;
        w->state = WATCHING;
    }
}

/* The server ended a watch in order: it does so every few minutes. A streaming list has to reach its end first. */
static void on_closed(struct kube_watch *w, int64_t now_ms, struct kube_watch_output *out)
{
    if (w->state == STREAMING)
        wait_for(w, NEXT_LIST, 0, now_ms);
    else if (w->state == WATCHING && w->events == 0 && now_ms - w->sent_ms < SHORT_WATCH_MS)
        wait_for(w, NEXT_WATCH, 0, now_ms);
    else if (w->state == WATCHING) {
        settle(w, now_ms);
        sent(w, WATCHING, now_ms, out);
    }
}

static void on_failed(struct kube_watch *w, const struct kube_watch_input *in, int64_t now_ms, struct kube_watch_output *out)
{
    enum next next = same_again(w);

    if (w->state == IDLE || w->state == WAITING)
        return;
    settle(w, now_ms);
    out->cancel = true;
    if (in->http_status == 401)
        out->reread_credentials = true;
    if (in->error == ERROR_INVALID && w->state == STREAMING) {
        /* A server without streaming lists. It is not asked again, and it need not be waited for. */
        w->streaming_refused = true;
        send_list(w, now_ms, out);
        return;
    }
    if (in->error == ERROR_LIMIT && w->state == LISTING && w->limit > 1) {
        w->limit /= 2;
        sent(w, LISTING, now_ms, out);
        return;
    }
    bool anew = in->error == ERROR_GONE || in->error == ERROR_LIMIT || in->error == ERROR_INVALID;
    if (anew || (next == NEXT_WATCH && ++w->tries >= SAME_VERSION_TRIES))
        next = NEXT_LIST;
    /* The first 410 of a watch is what compaction does to a quiet one: list at once. More of them in a row wait. */
    if (in->error == ERROR_GONE && w->state == WATCHING && w->failures == 0) {
        w->failures = 1;
        send_list(w, now_ms, out);
        return;
    }
    wait_for(w, next, in->retry_after_ms, now_ms);
}

static void on_wake(struct kube_watch *w, int64_t now_ms, struct kube_watch_output *out)
{
    if (w->state == WAITING) {
        send_next(w, w->next, now_ms, out);
    } else if (w->state != IDLE && now_ms - w->heard_ms >= idle_limit_ms(w)) {
        /* A streaming list ends when the server's own cache is up to date, and nobody knows anything before: pages do not wait for that. */
        w->streaming_refused |= w->state == STREAMING;
        out->cancel = true;
        wait_for(w, same_again(w), 0, now_ms);
    } else if (w->state != IDLE) {
        w->wake_ms = w->heard_ms + idle_limit_ms(w);
    }
}

void kube_watch_step(struct kube_watch *w, const struct kube_watch_input *in, int64_t now_ms, struct kube_watch_output *ret)
{
    *ret = (struct kube_watch_output){ .store = KUBE_STORE_NONE, .send = KUBE_SEND_NOTHING, .version = "", .continue_token = "",
                                       .wake_at_ms = 0 };
    switch (in->kind) {
    case KUBE_WATCH_START:
        ret->cancel = w->state == STREAMING || w->state == LISTING || w->state == WATCHING;
        send_list(w, now_ms, ret);
        break;
    case KUBE_WATCH_WAKE: on_wake(w, now_ms, ret); break;
    case KUBE_WATCH_PAGE: on_page(w, in, now_ms, ret); break;
    case KUBE_WATCH_EVENT: on_event(w, in, now_ms, ret); break;
    case KUBE_WATCH_CLOSED: on_closed(w, now_ms, ret); break;
    case KUBE_WATCH_FAILED: on_failed(w, in, now_ms, ret); break;
    case KUBE_WATCH_GARBLED:
        if (w->state == STREAMING || w->state == WATCHING)
            garbled(w, now_ms, ret);
        break;
    }
    ret->wake_at_ms = w->wake_ms;
}
