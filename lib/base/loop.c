#include "base/loop.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"

#define EVENTS_PER_TURN 64

struct loop_source {
    struct loop *loop;
    int fd;
    unsigned events;
    loop_io_fn *fn; /* NULL: removed during this turn, freed at its end */
    void *ctx;
    struct loop_source *next_dead;
};

struct loop_timer {
    struct loop *loop;
    loop_timer_fn *fn;
    void *ctx;
    int64_t at_ms;
    ssize_t place; /* in the heap; -1 = idle */
};

struct posted { loop_post_fn *fn; void *ctx; struct posted *next; };

struct loop {
    int epoll_fd, wake_fd, signal_fd;
    int64_t now_ms;
    bool stop;

    struct loop_timer **heap; /* the earliest first */
    size_t timers, heap_cap;

    struct loop_source *dead;
    struct loop_source *wake_source, *signal_source;
    loop_signal_fn *signal_fn;
    void *signal_ctx;
    loop_idle_fn *idle_fn;
    void *idle_ctx;

    pthread_mutex_t post_lock;
    struct posted *post_first, **post_last; /* under post_lock */
};

/* ---- timers: a binary heap that knows where each timer is, so that setting one again costs O(log n) ---- */

static void heap_put(struct loop *l, size_t place, struct loop_timer *t)
{
    l->heap[place] = t;
    t->place = (ssize_t)place;
}

static void heap_up(struct loop *l, size_t place)
{
    struct loop_timer *t = l->heap[place];

    while (place > 0 && l->heap[(place - 1) / 2]->at_ms > t->at_ms) {
        heap_put(l, place, l->heap[(place - 1) / 2]);
        place = (place - 1) / 2;
    }
    heap_put(l, place, t);
}

static void heap_down(struct loop *l, size_t place)
{
    struct loop_timer *t = l->heap[place];

    for (;;) {
        size_t child = 2 * place + 1;
        if (child >= l->timers)
            break;
        if (child + 1 < l->timers && l->heap[child + 1]->at_ms < l->heap[child]->at_ms)
            child++;
        if (l->heap[child]->at_ms >= t->at_ms)
            break;
        heap_put(l, place, l->heap[child]);
        place = child;
    }
    heap_put(l, place, t);
}

struct loop_timer *loop_timer_new(struct loop *l, loop_timer_fn *fn, void *ctx)
{
    struct loop_timer *t = xcalloc(1, sizeof *t);

    *t = (struct loop_timer){ .loop = l, .fn = fn, .ctx = ctx, .at_ms = 0, .place = -1 };
    return t;
}

void loop_timer_cancel(struct loop_timer *t)
{
    struct loop *l = t->loop;

    if (t->place < 0)
        return;
    size_t place = (size_t)t->place;
    t->place = -1;
    l->timers--;
    if (place == l->timers)
        return;
    heap_put(l, place, l->heap[l->timers]);
    heap_up(l, place);
    heap_down(l, (size_t)l->heap[place]->place);
}

void loop_timer_at(struct loop_timer *t, int64_t mono_ms)
{
    struct loop *l = t->loop;

    loop_timer_cancel(t);
    if (l->timers == l->heap_cap) {
        l->heap_cap = l->heap_cap > 0 ? 2 * l->heap_cap : 16;
        l->heap = xrealloc(l->heap, l->heap_cap, sizeof *l->heap);
    }
    t->at_ms = mono_ms;
    heap_put(l, l->timers, t);
    l->timers++;
    heap_up(l, l->timers - 1);
}

bool loop_timer_armed(const struct loop_timer *t)
{
    return t->place >= 0;
}

void loop_timer_free(struct loop_timer *t)
{
    if (t == NULL)
        return;
    loop_timer_cancel(t);
    free(t);
}

/* Only timers that were due when the turn began, so that a timer set to "now" by its own callback cannot starve the rest. */
static void run_timers(struct loop *l)
{
    size_t budget = l->timers;

    while (budget-- > 0 && l->timers > 0 && l->heap[0]->at_ms <= l->now_ms && !l->stop) {
        struct loop_timer *t = l->heap[0];
        loop_timer_cancel(t);
        t->fn(t->ctx);
    }
}

/* ---- descriptors ---- */

static uint32_t to_epoll(unsigned events)
{
    return (events & LOOP_READ ? EPOLLIN | EPOLLRDHUP : 0u) | (events & LOOP_WRITE ? EPOLLOUT : 0u) |
           (events & LOOP_EDGE ? (uint32_t)EPOLLET : 0u);
}

int loop_add(struct loop *l, int fd, unsigned events, loop_io_fn *fn, void *ctx, struct loop_source **ret_source, struct error *e)
{
    auto_free struct loop_source *s = xcalloc(1, sizeof *s);
    *s = (struct loop_source){ .loop = l, .fd = fd, .events = events, .fn = fn, .ctx = ctx, .next_dead = NULL };

    struct epoll_event event = { .events = to_epoll(events), .data.ptr = s };
    if (epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0)
        return error_errno(e, "watch descriptor %d", fd);
    *ret_source = TAKE(s);
    return 0;
}

void loop_set(struct loop_source *s, unsigned events)
{
    if (events == s->events)
        return;
    struct epoll_event event = { .events = to_epoll(events), .data.ptr = s };
    if (epoll_ctl(s->loop->epoll_fd, EPOLL_CTL_MOD, s->fd, &event) == 0)
        s->events = events;
}

void loop_remove(struct loop_source *s)
{
    if (s == NULL)
        return;
    (void)epoll_ctl(s->loop->epoll_fd, EPOLL_CTL_DEL, s->fd, NULL);
    s->fn = NULL;
    s->next_dead = s->loop->dead; /* an event of this turn may still point to it */
    s->loop->dead = s;
}

static void free_dead(struct loop *l)
{
    while (l->dead != NULL) {
        struct loop_source *s = l->dead;
        l->dead = s->next_dead;
        free(s);
    }
}

static void run_source(struct loop_source *s, uint32_t epoll_events)
{
    unsigned events = 0;

    if (epoll_events & (EPOLLIN | EPOLLRDHUP))
        events |= LOOP_READ;
    if (epoll_events & EPOLLOUT)
        events |= LOOP_WRITE;
    if (epoll_events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP))
        events |= LOOP_HANGUP;
    if (s->fn != NULL)
        s->fn(s->ctx, s->fd, events);
}

/* ---- messages from other threads ---- */

void loop_post(struct loop *l, loop_post_fn *fn, void *ctx)
{
    struct posted *p = xcalloc(1, sizeof *p);

    *p = (struct posted){ .fn = fn, .ctx = ctx, .next = NULL };
    (void)pthread_mutex_lock(&l->post_lock);
    *l->post_last = p;
    l->post_last = &p->next;
    (void)pthread_mutex_unlock(&l->post_lock);

    uint64_t one = 1;
    (void)!write(l->wake_fd, &one, sizeof one); /* full means that it is awake already */
}

static struct posted *take_posted(struct loop *l)
{
    (void)pthread_mutex_lock(&l->post_lock);
    struct posted *first = l->post_first;
    l->post_first = NULL;
    l->post_last = &l->post_first;
    (void)pthread_mutex_unlock(&l->post_lock);
    return first;
}

static void on_wake(void *ctx, int fd, unsigned events)
{
    struct loop *l = ctx;
    uint64_t count;

    (void)events;
    (void)!read(fd, &count, sizeof count);
    for (struct posted *p = take_posted(l); p != NULL;) {
        struct posted *next = p->next;
        p->fn(p->ctx);
        free(p);
        p = next;
    }
}

/* ---- signals ---- */

static void on_signal(void *ctx, int fd, unsigned events)
{
    struct loop *l = ctx;
    struct signalfd_siginfo info;

    (void)events;
    while (read(fd, &info, sizeof info) == (ssize_t)sizeof info)
        l->signal_fn(l->signal_ctx, (int)info.ssi_signo);
}

int loop_signals(struct loop *l, const int *signals, size_t count, loop_signal_fn *fn, void *ctx, struct error *e)
{
    sigset_t set;

    (void)sigemptyset(&set);
    for (size_t i = 0; i < count; i++)
        (void)sigaddset(&set, signals[i]);
    int code = pthread_sigmask(SIG_BLOCK, &set, NULL);
    if (code != 0) {
        errno = code;
        return error_errno(e, "block signals");
    }
    l->signal_fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    if (l->signal_fd < 0)
        return error_errno(e, "make a signal descriptor");
    l->signal_fn = fn;
    l->signal_ctx = ctx;
    return loop_add(l, l->signal_fd, LOOP_READ, on_signal, l, &l->signal_source, e);
}

/* ---- life ---- */

int loop_new(struct loop **ret_loop, struct error *e)
{
    struct loop *l = xcalloc(1, sizeof *l);

    *l = (struct loop){ .epoll_fd = epoll_create1(EPOLL_CLOEXEC), .wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC),
                        .signal_fd = -1, .now_ms = clock_mono_ms() };
    l->post_last = &l->post_first;
    (void)pthread_mutex_init(&l->post_lock, NULL);
    if (l->epoll_fd < 0 || l->wake_fd < 0) {
        (void)error_errno(e, "make an event loop");
        loop_free(l);
        return -1;
    }
    if (loop_add(l, l->wake_fd, LOOP_READ, on_wake, l, &l->wake_source, e) != 0) {
        loop_free(l);
        return -1;
    }
    *ret_loop = l;
    return 0;
}

void loop_free(struct loop *l)
{
    if (l == NULL)
        return;
    loop_remove(l->wake_source);
    loop_remove(l->signal_source);
    free_dead(l);
    for (struct posted *p = l->post_first; p != NULL;) {
        struct posted *next = p->next;
        free(p);
        p = next;
    }
    if (l->epoll_fd >= 0)
        (void)close(l->epoll_fd);
    if (l->wake_fd >= 0)
        (void)close(l->wake_fd);
    if (l->signal_fd >= 0)
        (void)close(l->signal_fd);
    (void)pthread_mutex_destroy(&l->post_lock);
    free(l->heap);
    free(l);
}

int64_t loop_now(const struct loop *l)
{
    return l->now_ms;
}

static int wait_ms(const struct loop *l)
{
    if (l->timers == 0)
        return -1;
    int64_t left = l->heap[0]->at_ms - clock_mono_ms();
    if (left <= 0)
        return 0;
    return left < 3600000 ? (int)left : 3600000;
}

void loop_on_idle(struct loop *l, loop_idle_fn *fn, void *ctx)
{
    l->idle_fn = fn;
    l->idle_ctx = ctx;
}

/* Waits for events: for a while by looking again and again, where that is wanted. */
static int wait_for_events(struct loop *l, struct epoll_event *events)
{
    while (l->idle_fn != NULL && !l->stop) {
        int n = epoll_wait(l->epoll_fd, events, EVENTS_PER_TURN, 0);
        if (n != 0 || wait_ms(l) == 0)
            return n;
        if (!l->idle_fn(l->idle_ctx))
            break;
    }
    return epoll_wait(l->epoll_fd, events, EVENTS_PER_TURN, wait_ms(l));
}

int loop_run(struct loop *l, struct error *e)
{
    struct epoll_event events[EVENTS_PER_TURN];

    l->stop = false;
    while (!l->stop) {
        int n = wait_for_events(l, events);
        if (n < 0 && errno != EINTR)
            return error_errno(e, "wait for events");
        l->now_ms = clock_mono_ms();
        for (int i = 0; i < n && !l->stop; i++)
            run_source(events[i].data.ptr, events[i].events);
        run_timers(l);
        free_dead(l);
    }
    return 0;
}

void loop_stop(struct loop *l)
{
    l->stop = true;
}
