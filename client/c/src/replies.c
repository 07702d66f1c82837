/*
 * replies.c — the completion thread: replies of the engine, messages of the sidecar, reports that are due.
 */
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "client.h"
#include "wire/local.h"

#define LOOK_MAX_NS 200000
#define LOOK_MIN_NS 5000
#define CROWDED_NS 700000       /* a core that was offered and came back later than this was used by strangers for a slice of time ... */
#define CROWDED_FOR_NS 20000000 /* ... and is not looked around on for so long: who sleeps comes first when it wakes up */

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
    struct local_hosts hosts;
    if (refused == LOCAL_STAGED) {
        snprintf(c->stage_refused, sizeof(c->stage_refused), "%.*s", (int)(m->length - 4), (const char *)m->payload + 4);
    } else if (m->type == LOCAL_SAVE) {
        c->save_wanted = true;
    } else if (m->type == LOCAL_HOSTS && m->length >= sizeof(hosts)) {
        memcpy(&hosts, m->payload, sizeof(hosts));
        c->hosts |= hosts.bits;
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

/* One thread at a time; any other than the completion thread only while there are no callbacks. With lock held, which is dropped while
 * data is copied. */
static void take_replies(struct client *c, bool own_thread)
{
    struct shm_reply reply;
    if (c->taking)
        return;
    c->taking = true;
    while ((own_thread || c->requests.callbacks == 0) && shared_take(&c->shared, &reply))
        requests_reply(c, &reply);
    c->taking = false;
    if (c->lost)
        pthread_cond_broadcast(&c->changed);
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* The waiting thread takes the replies itself for a while: to be woken by way of the completion thread takes two wake-ups, some
 * 100 us on a virtual machine. Meanwhile the engine need not ring. Not while a request has a `done` callback, which is the completion
 * thread's to call. */
void replies_look(struct client *c, rm_handle handle)
{
    if (c->looking || c->taking || c->lost || c->requests.callbacks > 0 || c->shared.base == NULL)
        return;
    int64_t now = now_ns(), until = now + c->look_ns;
    const struct request *r;
    if (now < c->crowded_until_ns)
        return;
    c->looking = true;
    shared_stay_awake(&c->shared);
    while (!c->lost && !c->stopping && c->requests.callbacks == 0 && (r = request_find(&c->requests, handle)) != NULL
           && r->state != REQUEST_DONE && (now = now_ns()) < until) {
        take_replies(c, false);
        pthread_mutex_unlock(&c->lock);
        if (!shared_has_reply(&c->shared)) {
            sched_yield();
            if (now_ns() - now > CROWDED_NS)
                until = 0;
        }
        pthread_mutex_lock(&c->lock);
    }
    if (until == 0)
        c->crowded_until_ns = now_ns() + CROWDED_FOR_NS;
    c->looking = false;
    if (c->shared.base != NULL && !shared_before_sleep(&c->shared))
        shared_wake_us(&c->shared); /* came just now, perhaps another request's: the completion thread's */
    pthread_cond_broadcast(&c->changed);
}

/* How long to look next time: as long as pays when this wait was short, hardly at all when it was long. */
void replies_waited(struct client *c, int64_t began_ns)
{
    c->look_ns = now_ns() - began_ns < 2 * LOOK_MAX_NS ? LOOK_MAX_NS : LOOK_MIN_NS;
}

/* One look at everything that may have happened. False: time to go. */
static bool turn(struct client *c, int *ret_timeout_ms)
{
    pthread_mutex_lock(&c->lock);
    take_replies(c, true);
    pieces_land(c);
    pieces_drop_failed(c);
    if (!c->lost)
        requests_pump(c);
    bool on_gpu = c->requests.on_gpu > 0, watched = c->gpu.watched;
    bool retry = (c->requests.free_count > 0 || c->requests.engine_busy) && !c->lost, stopping = c->stopping, lost = c->lost;
    if (lost && !c->taking) /* else once that thread is done with its reply */
        requests_fail_all(c);
    pthread_mutex_unlock(&c->lock);
    if (on_gpu)
        pieces_watch(c);
    if (!lost)
        read_socket(c);
    *ret_timeout_ms = send_report(c, stopping);
    if (watched && (*ret_timeout_ms < 0 || *ret_timeout_ms > PIECES_WATCH_MS))
        *ret_timeout_ms = PIECES_WATCH_MS;
    if (retry)
        *ret_timeout_ms = 1;
    return !stopping;
}

void *client_thread(void *client)
{
    struct client *c = client;
    int timeout_ms;
    while (turn(c, &timeout_ms)) {
        pthread_mutex_lock(&c->lock);
        if (!c->looking && !shared_before_sleep(&c->shared)) {
            pthread_mutex_unlock(&c->lock);
            continue;
        }
        bool lost = c->lost, idle = !lost || c->requests.live == 0;
        pthread_mutex_unlock(&c->lock);
        struct pollfd fds[2] = { { .fd = c->shared.ring_us, .events = POLLIN },
                                 { .fd = lost ? -1 : c->talk.fd, .events = POLLIN } };
        (void)poll(fds, 2, idle ? timeout_ms : 1);
        shared_after_sleep(&c->shared);
    }
    pthread_mutex_lock(&c->lock);
    client_lose(c, "rm_shutdown was called");
    while (c->taking)
        pthread_cond_wait(&c->changed, &c->lock);
    requests_fail_all(c);
    c->gpu_settled = pieces_settle(c);
    pthread_mutex_unlock(&c->lock);
    return NULL;
}
