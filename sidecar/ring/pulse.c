#include "sidecar/ring/pulse.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "sidecar/ring/link.h"
#include "sidecar/ring/stream.h"
#include "sidecar/ring/suspicion.h"

#define NICE (-5)             /* of the thread, where it is allowed */
#define ASKED 2               /* how many others are asked about a suspect */
#define WAITING_MAX 1024      /* connections for a round that is not formed here yet */
#define DIAL_FOR_MS 86400000  /* as long as the round lasts: the engine has a limit for its forming */
#define CLOCK_FADES 1.02      /* clocks drift: an old measurement gives way to one that is a little worse */

struct peer {
    struct pulse *pulse;
    int32_t rank;
    struct stream *stream;    /* NULL: not connected */
    struct link *dialling;
    unsigned seen;            /* of heard[] */
};

struct waiting { int fd; struct peer_hello hello; struct waiting *next; };

struct pulse {
    struct link_identity self;
    int64_t timeout_ms;
    struct suspicion_limits limits;
    pulse_lost_fn *on_lost;
    void *ctx;
    pthread_t thread;
    struct loop *loop;
    struct loop_timer *beat;
    bool leaving;

    uint64_t fence;           /* 0: none yet */
    bool resting;             /* the group has ended */
    int32_t rank, size;
    struct ring_member *members;
    struct peer *peers;       /* by rank */
    struct suspicion *suspicion;
    struct waiting *waiting;
    size_t waiting_count;
    int64_t best_ns;          /* round trip of the measurement that counts; 0: none */

    pthread_mutex_t lock;     /* guards the next three */
    bool clock_known;
    int64_t offset_ns, error_ns;

    atomic_uint heard[PULSE_RANKS_MAX]; /* by rank: counted up by whoever gets bytes from it */
};

static int64_t wall_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

bool pulse_watches(int32_t size, int32_t rank, int32_t other)
{
    int32_t apart = abs(rank - other);

    if (apart == 0)
        return false;
    return size <= PULSE_FULL || rank == 0 || other == 0 || apart <= 2 || apart >= size - 2;
}

void pulse_heard(struct pulse *p, int32_t rank)
{
    if (p != NULL)
        (void)atomic_fetch_add_explicit(&p->heard[rank % PULSE_RANKS_MAX], 1, memory_order_relaxed);
}

bool pulse_clock(struct pulse *p, int64_t *ret_offset_ns, int64_t *ret_error_ns)
{
    (void)pthread_mutex_lock(&p->lock);
    bool known = p->clock_known;
    *ret_offset_ns = p->offset_ns;
    *ret_error_ns = p->error_ns;
    (void)pthread_mutex_unlock(&p->lock);
    return known;
}

static void set_clock(struct pulse *p, bool known, int64_t offset_ns, int64_t error_ns)
{
    (void)pthread_mutex_lock(&p->lock);
    p->clock_known = known;
    p->offset_ns = offset_ns;
    p->error_ns = error_ns;
    (void)pthread_mutex_unlock(&p->lock);
}

/* ---- losses ---- */

static void tell_lost(struct pulse *p, int32_t rank, const char *why)
{
    if (!p->resting)
        p->on_lost(p->ctx, p->fence, rank, why);
}

static void drop(struct peer *peer)
{
    link_cancel(TAKE(peer->dialling));
    stream_free(TAKE(peer->stream));
}

/* ---- frames ---- */

/* Rank 0's clock by the shortest round trip of late: the less it took, the less its two halves can differ. */
static void measure(struct pulse *p, int64_t sent_ns, int64_t theirs_ns)
{
    int64_t now_ns = wall_ns(), trip_ns = now_ns - sent_ns;

    if (trip_ns <= 0 || trip_ns > p->timeout_ms * 1000000)
        return;
    if (p->best_ns != 0 && trip_ns > p->best_ns) {
        p->best_ns = (int64_t)((double)p->best_ns * CLOCK_FADES) + 1;
        return;
    }
    p->best_ns = trip_ns;
    set_clock(p, true, theirs_ns - (sent_ns + trip_ns / 2), trip_ns / 2);
}

static void answer_probe(struct pulse *p, struct stream *s, int32_t rank)
{
    int64_t silent = p->suspicion != NULL ? suspicion_silence(p->suspicion, rank, clock_mono_ms()) : -1;
    int32_t words[2] = { rank, silent > INT32_MAX ? INT32_MAX : (int32_t)silent };

    if (silent >= 0)
        stream_send(s, PEER_VOUCH, words, sizeof words);
}

/* False: it sent what it must not. */
static bool take(struct peer *peer, const struct peer_frame *f, const uint8_t *payload)
{
    struct pulse *p = peer->pulse;
    int64_t times[2] = { 0 };
    int32_t words[2] = { 0 };

    if (f->type == PEER_PULSE && f->length == sizeof times[0]) {
        memcpy(times, payload, sizeof times[0]);
        times[1] = wall_ns();
        if (p->rank == 0)
            stream_send(peer->stream, PEER_ECHO, times, sizeof times);
    } else if (f->type == PEER_ECHO && f->length == sizeof times && peer->rank == 0) {
        memcpy(times, payload, sizeof times);
        measure(p, times[0], times[1]);
    } else if (f->type == PEER_PROBE && f->length == sizeof words[0]) {
        memcpy(words, payload, sizeof words[0]);
        answer_probe(p, peer->stream, words[0]);
    } else if (f->type == PEER_VOUCH && f->length == sizeof words) {
        memcpy(words, payload, sizeof words);
        suspicion_vouched(p->suspicion, words[0], words[1], clock_mono_ms());
    } else {
        return f->type == PEER_GOODBYE && f->length == 0;
    }
    return true;
}

static void on_stream(void *ctx, struct stream *s, const struct peer_frame *frame, const uint8_t *payload, const struct error *why)
{
    struct peer *peer = ctx;
    struct pulse *p = peer->pulse;

    if (frame == NULL) {
        peer->stream = NULL;
        stream_free(s);
        tell_lost(p, peer->rank, why->text);
        return;
    }
    suspicion_heard(p->suspicion, peer->rank, clock_mono_ms());
    if (!take(peer, frame, payload))
        tell_lost(p, peer->rank, "it sent a beat that is none");
    else if (frame->type == PEER_GOODBYE)
        tell_lost(p, peer->rank, "its sidecar was asked to end");
}

/* ---- connections ---- */

static void beat_one(const struct peer *peer)
{
    int64_t now_ns = wall_ns();

    if (peer->stream != NULL)
        stream_send(peer->stream, PEER_PULSE, &now_ns, sizeof now_ns);
}

/* False: fd stays the caller's. */
static bool take_over(struct peer *peer, int fd)
{
    struct pulse *p = peer->pulse;
    struct error e = ERROR_INIT;

    if (peer->stream != NULL || stream_new(p->loop, fd, p->fence, on_stream, peer, &peer->stream, &e) < 0)
        return false;
    suspicion_watch(p->suspicion, peer->rank, clock_mono_ms());
    beat_one(peer);
    return true;
}

static void on_dialled(void *ctx, int fd, const struct peer_hello *hello, const struct error *why)
{
    struct peer *peer = ctx;
    struct pulse *p = peer->pulse;

    peer->dialling = NULL;
    if (fd < 0) {
        log_info("no beats with a peer", KVI("rank", peer->rank), KV("why", why->text)); /* its round is over, or ours */
    } else if (strcmp(hello->member, p->members[peer->rank].member) != 0 || !take_over(peer, fd)) {
        (void)close(fd);
    }
}

static void dial_lower(struct pulse *p)
{
    struct error e = ERROR_INIT;

    for (int32_t r = 0; r < p->rank; r++) {
        struct peer *peer = &p->peers[r];
        if (pulse_watches(p->size, p->rank, r) &&
            link_dial(p->loop, &p->self, p->members[r].host, p->members[r].port, PEER_WATCH, 0, p->fence,
                      clock_mono_ms() + DIAL_FOR_MS, on_dialled, peer, &peer->dialling, &e) < 0)
            log_warn_from("no beats with a peer", &e, KVI("rank", r));
    }
}

static int32_t rank_of(const struct pulse *p, const char *member)
{
    for (int32_t r = 0; r < p->size; r++) {
        if (strcmp(p->members[r].member, member) == 0)
            return r;
    }
    return -1;
}

static void place(struct pulse *p, int fd, const struct peer_hello *hello)
{
    int32_t rank = hello->fence == p->fence ? rank_of(p, hello->member) : -1;

    if (hello->fence > p->fence && p->waiting_count < WAITING_MAX) {
        struct waiting *w = xcalloc(1, sizeof *w);
        *w = (struct waiting){ .fd = fd, .hello = *hello, .next = p->waiting };
        p->waiting = w;
        p->waiting_count++;
    } else if (rank <= p->rank || !take_over(&p->peers[rank], fd)) {
        (void)close(fd);
    }
}

static void sort_waiting(struct pulse *p)
{
    struct waiting *w = TAKE(p->waiting);

    p->waiting_count = 0;
    while (w != NULL) {
        struct waiting *next = w->next;
        if (p->leaving)
            (void)close(w->fd);
        else
            place(p, w->fd, &w->hello);
        free(w);
        w = next;
    }
}

/* ---- the beat ---- */

static void ask(struct pulse *p, int32_t about)
{
    int32_t asked = 0;

    beat_one(&p->peers[about]); /* rank 0 answers that, and it wakes up a connection that is waiting to send again */
    for (int32_t i = 1; i < p->size && asked < ASKED; i++) {
        struct peer *other = &p->peers[(about + i) % p->size];
        if (other->stream == NULL || other->rank == about)
            continue;
        stream_send(other->stream, PEER_PROBE, &about, sizeof about);
        asked++;
    }
}

static void judge(struct pulse *p, int32_t rank, int64_t now)
{
    char why[SUSPICION_WHY_MAX];

    switch (suspicion_judge(p->suspicion, rank, now, why)) {
    case SUSPICION_NONE:
        break;
    case SUSPICION_ASK:
        if (!p->resting)
            ask(p, rank);
        break;
    case SUSPICION_LOST:
        tell_lost(p, rank, why);
        break;
    }
}

static void look_at_all(struct pulse *p, int64_t now)
{
    for (int32_t r = 0; r < p->size; r++) {
        struct peer *peer = &p->peers[r];
        unsigned heard = atomic_load_explicit(&p->heard[r], memory_order_relaxed);
        if (heard != peer->seen)
            suspicion_heard(p->suspicion, r, now);
        peer->seen = heard;
    }
    suspicion_tick(p->suspicion, now);
    for (int32_t r = 0; r < p->size; r++)
        judge(p, r, now);
}

/* Looks first: the loop hands on what has come in before it looks at timers, so that everything that waited is known. */
static void on_beat(void *ctx)
{
    struct pulse *p = ctx;
    int64_t now = clock_mono_ms();

    loop_timer_at(p->beat, now + p->limits.beat_ms);
    if (p->fence == 0)
        return;
    look_at_all(p, now);
    for (int32_t r = 0; r < p->size; r++)
        beat_one(&p->peers[r]);
}

/* ---- calls that are carried out on the thread ---- */

static void let_go(struct pulse *p)
{
    for (int32_t r = 0; r < p->size && p->peers != NULL; r++)
        drop(&p->peers[r]);
    suspicion_free(TAKE(p->suspicion));
    free(TAKE(p->peers));
    free(TAKE(p->members));
    p->size = 0;
}

struct call_form { struct pulse *p; struct ring_plan plan; struct ring_member *members; };

static void call_form(void *ctx)
{
    struct call_form *call = ctx;
    struct pulse *p = call->p;
    size_t size = (size_t)call->plan.size;

    if (call->plan.fence > p->fence) {
        let_go(p);
        p->fence = call->plan.fence;
        p->rank = call->plan.rank;
        p->size = call->plan.size;
        p->resting = false;
        p->members = TAKE(call->members);
        p->peers = xcalloc(size, sizeof *p->peers);
        for (int32_t r = 0; r < p->size; r++)
            p->peers[r] = (struct peer){ .pulse = p, .rank = r };
        p->suspicion = suspicion_new(&p->limits, p->size, clock_mono_ms());
        p->best_ns = 0;
        set_clock(p, p->rank == 0, 0, 0);
        sort_waiting(p);
        dial_lower(p);
    }
    free(call->members);
    free(call);
}

void pulse_form(struct pulse *p, const struct ring_plan *plan)
{
    if (plan->size < 1 || plan->size > PULSE_RANKS_MAX || plan->rank < 0 || plan->rank >= plan->size)
        return; /* the engine says what is wrong with it */
    struct call_form *call = xcalloc(1, sizeof *call);
    *call = (struct call_form){ .p = p, .plan = *plan };
    call->members = xcalloc((size_t)plan->size, sizeof *call->members);
    memcpy(call->members, plan->members, (size_t)plan->size * sizeof *call->members);
    loop_post(p->loop, call_form, call);
}

struct call_accept { struct pulse *p; int fd; struct peer_hello hello; };

static void call_accept(void *ctx)
{
    struct call_accept *call = ctx;

    place(call->p, call->fd, &call->hello);
    free(call);
}

void pulse_accept(struct pulse *p, int fd, const struct peer_hello *hello)
{
    struct call_accept *call = xcalloc(1, sizeof *call);

    *call = (struct call_accept){ .p = p, .fd = fd, .hello = *hello };
    loop_post(p->loop, call_accept, call);
}

struct call_rest { struct pulse *p; uint64_t fence; };

static void call_rest(void *ctx)
{
    struct call_rest *call = ctx;

    if (call->fence >= call->p->fence)
        call->p->resting = true;
    free(call);
}

void pulse_rest(struct pulse *p, uint64_t fence)
{
    struct call_rest *call = xcalloc(1, sizeof *call);

    *call = (struct call_rest){ .p = p, .fence = fence };
    loop_post(p->loop, call_rest, call);
}

/* ---- life ---- */

static void call_goodbye(void *ctx)
{
    struct pulse *p = ctx;

    p->resting = true;
    for (int32_t r = 0; r < p->size; r++) {
        if (p->peers[r].stream != NULL)
            stream_send(p->peers[r].stream, PEER_GOODBYE, NULL, 0);
    }
}

void pulse_goodbye(struct pulse *p)
{
    loop_post(p->loop, call_goodbye, p);
}

static void call_leave(void *ctx)
{
    struct pulse *p = ctx;

    p->leaving = true;
    sort_waiting(p);
    let_go(p);
    loop_stop(p->loop);
}

static void *run(void *ctx)
{
    struct pulse *p = ctx;
    struct error e = ERROR_INIT;

    (void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICE);
    on_beat(p);
    if (loop_run(p->loop, &e) < 0) {
        log_error_from("the loop of the beats ended", &e);
        abort(); /* the others would take this rank for lost */
    }
    return NULL;
}

int pulse_new(const struct link_identity *self, int64_t timeout_ms, pulse_lost_fn *on_lost, void *ctx, struct pulse **ret,
              struct error *e)
{
    struct pulse *p = xcalloc(1, sizeof *p);
    sigset_t all, before;

    p->self = *self;
    p->timeout_ms = timeout_ms;
    p->limits = suspicion_limits_for(timeout_ms);
    p->on_lost = on_lost;
    p->ctx = ctx;
    if (loop_new(&p->loop, e) < 0) {
        free(p);
        return -1;
    }
    p->beat = loop_timer_new(p->loop, on_beat, p);
    (void)pthread_mutex_init(&p->lock, NULL);
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(&p->thread, NULL, run, p);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code == 0) {
        *ret = p;
        return 0;
    }
    loop_timer_free(p->beat);
    loop_free(p->loop);
    (void)pthread_mutex_destroy(&p->lock);
    free(p);
    return error_set(e, ERROR_IO, "start the thread of the beats: %s", strerror(code));
}

void pulse_free(struct pulse *p)
{
    if (p == NULL)
        return;
    loop_post(p->loop, call_leave, p);
    (void)pthread_join(p->thread, NULL);
    loop_timer_free(p->beat);
    loop_free(p->loop);
    (void)pthread_mutex_destroy(&p->lock);
    free(p);
}
