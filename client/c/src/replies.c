/*
 * replies.c — the completion thread: replies of the engine, messages of the sidecar, reports that are due.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "client.h"
#include "wire/local.h"

/* What an answer is called, how long it is at least, and which call waits for it. */
static const struct answer_def {
    uint16_t type, request;
    uint32_t bytes;
} ANSWERS[CALL_KINDS] = {
    [CALL_SLOTS] = { LOCAL_SLOTS_READY, LOCAL_SLOTS, sizeof(struct local_slots_ready) },
    [CALL_RESTORE] = { LOCAL_RESTORE_READY, LOCAL_RESTORE, sizeof(struct local_restore_ready) },
    [CALL_FLUSH] = { LOCAL_FLUSHED, LOCAL_FLUSH, sizeof(struct local_flushed) },
};

static void answer(struct client *c, struct call *call, const struct answer_def *def, struct talk_message *m)
{
    if (!call->busy || call->answered)
        return; /* talk_drop closes what came with it */
    if (call->abandoned) {
        *call = (struct call){ 0 };
        pthread_cond_broadcast(&c->changed);
        return;
    }
    if (m->type == LOCAL_REFUSED) {
        call->refused = true;
        snprintf(call->text, sizeof(call->text), "%.*s", (int)(m->length - 4), (const char *)m->payload + 4);
    } else {
        memcpy(call->answer, m->payload, def->bytes);
        memcpy(call->fds, m->fds, sizeof(call->fds));
        call->fd_count = m->fd_count;
        m->fd_count = 0;
    }
    call->answered = true;
    pthread_cond_broadcast(&c->changed);
}

static void handle_message(struct client *c, struct talk_message *m)
{
    _Static_assert(sizeof(struct local_restore_ready) <= sizeof(c->calls[0].answer), "the longest answer fits");
    uint32_t refused = 0;
    if (m->type == LOCAL_REFUSED && m->length > 4)
        memcpy(&refused, m->payload, 4);
    for (int i = 0; i < CALL_KINDS; i++) {
        if (m->type == ANSWERS[i].type && m->length < ANSWERS[i].bytes) {
            client_lose(c, "the sidecar sent an answer that is too short: it must come from the same release");
            return;
        }
        if (m->type == ANSWERS[i].type || refused == ANSWERS[i].request) {
            answer(c, &c->calls[i], &ANSWERS[i], m);
            return;
        }
    }
    struct local_committed committed;
    if (refused == LOCAL_STAGED) {
        snprintf(c->stage_refused, sizeof(c->stage_refused), "%.*s", (int)(m->length - 4), (const char *)m->payload + 4);
    } else if (m->type == LOCAL_SAVE) {
        c->save_wanted = true;
    } else if (m->type == LOCAL_COMMITTED && m->length >= sizeof(committed)) {
        memcpy(&committed, m->payload, sizeof(committed));
        c->committed_step = (int64_t)committed.step;
    }
}

static void read_socket(struct client *c)
{
    struct talk_message m;
    int got;
    while ((got = talk_receive(&c->talk, 0, &m)) == 1) {
        pthread_mutex_lock(&c->lock);
        handle_message(c, &m);
        pthread_mutex_unlock(&c->lock);
        talk_drop(&c->talk, &m);
    }
    if (got < 0) {
        pthread_mutex_lock(&c->lock);
        client_lose(c, text_last());
        pthread_mutex_unlock(&c->lock);
    }
}

/* Sends the report when it is due. Milliseconds until it is, -1: none. */
static int send_report(struct client *c, bool at_once)
{
    char text[REPORT_TEXT_MAX];
    pthread_mutex_lock(&c->lock);
    int64_t now = client_now_ms(), due = c->reported_ms + CLIENT_REPORT_INTERVAL_MS;
    if (!c->report.pending || c->lost || (now < due && !at_once)) {
        int wait = c->report.pending && !c->lost ? (int)(due - now) : -1;
        pthread_mutex_unlock(&c->lock);
        return wait;
    }
    size_t length = report_take(&c->report, text);
    c->reported_ms = now;
    pthread_mutex_unlock(&c->lock);
    (void)client_send(c, LOCAL_REPORT, text, length);
    return -1;
}

static void take_replies(struct client *c)
{
    struct shm_reply reply;
    while (shared_take(&c->shared, &reply)) {
        pthread_mutex_lock(&c->lock);
        requests_reply(c, &reply);
        pthread_mutex_unlock(&c->lock);
    }
}

/* One look at everything that may have happened. False: time to go. */
static bool turn(struct client *c, int *ret_timeout_ms)
{
    take_replies(c);
    pthread_mutex_lock(&c->lock);
    if (!c->lost)
        requests_pump(c);
    bool retry = (c->requests.free_count > 0 || c->requests.engine_busy) && !c->lost, stopping = c->stopping, lost = c->lost;
    if (lost)
        requests_fail_all(c);
    pthread_mutex_unlock(&c->lock);
    if (!lost)
        read_socket(c);
    *ret_timeout_ms = send_report(c, stopping);
    if (retry)
        *ret_timeout_ms = 1;
    return !stopping;
}

void *client_thread(void *client)
{
    struct client *c = client;
    int timeout_ms;
    while (turn(c, &timeout_ms)) {
        if (!shared_before_sleep(&c->shared))
            continue;
        pthread_mutex_lock(&c->lock);
        bool lost = c->lost, idle = !lost || c->requests.live == 0;
        pthread_mutex_unlock(&c->lock);
        struct pollfd fds[2] = { { .fd = c->shared.ring_us, .events = POLLIN },
                                 { .fd = lost ? -1 : c->talk.fd, .events = POLLIN } };
        (void)poll(fds, 2, idle ? timeout_ms : 1);
        shared_after_sleep(&c->shared);
    }
    pthread_mutex_lock(&c->lock);
    client_lose(c, "rm_shutdown was called");
    requests_fail_all(c);
    pthread_mutex_unlock(&c->lock);
    return NULL;
}
