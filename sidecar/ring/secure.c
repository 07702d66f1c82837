#include "sidecar/ring/secure.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/loop.h"
#include "base/mem.h"
#include "base/tls.h"

#define BUFFER_BYTES (64u << 10)
#define ROUNDS_PER_EVENT 8 /* of one connection, before the others have their turn */

struct secure { struct tls *tls; int fd; };

int secure_new(int fd, bool is_server, const uint8_t secret[CRYPTO_MAC_BYTES], struct secure **ret, struct error *e)
{
    struct secure *s = xcalloc(1, sizeof *s);

    s->fd = fd;
    if (tls_key_new(fd, is_server, secret, &s->tls, e) < 0) {
        free(s);
        return -1;
    }
    *ret = s;
    return 0;
}

void secure_free(struct secure *s)
{
    if (s == NULL)
        return;
    tls_free(s->tls);
    free(s);
}

int secure_step(struct secure *s, bool *ret_wants_write, struct error *e)
{
    return tls_handshake(s->tls, ret_wants_write, e);
}

/* ---- in user space: a thread between the connection and a socket pair ---- */

struct half { uint8_t bytes[BUFFER_BYTES]; size_t at, len; bool over; };

struct relay {
    struct secure *secure;
    int tls_fd, pair_fd;
    struct loop_source *tls_source, *pair_source;
    struct half out, in;    /* to the peer, from the peer */
    struct relay *next, **link;
};

static struct {
    pthread_once_t once;
    struct loop *loop;      /* NULL: it could not be started */
    pthread_t thread;
    struct relay *first;    /* the thread's */
} relays = { .once = PTHREAD_ONCE_INIT };

static bool would_block(void)
{
    return errno == EAGAIN || errno == EINTR;
}

/* > 0: bytes; 0: not now; -1: over. As from a system call. */
static int outcome(ssize_t n)
{
    return n > 0 ? (int)n : n < 0 && would_block() ? 0 : -1;
}

static bool fill(struct half *h, int n)
{
    if (n < 0)
        h->over = true;
    h->at = 0;
    h->len = n > 0 ? (size_t)n : 0;
    return n > 0;
}

static bool drain(struct half *h, int n)
{
    if (n < 0) {
        h->over = true;
        h->len = 0;
    } else {
        h->at += (size_t)n;
        h->len -= (size_t)n;
    }
    return n > 0;
}

/* One step of each direction; false: nothing moved. */
static bool move(struct relay *r)
{
    bool moved = false;

    if (r->out.len == 0 && !r->out.over)
        moved |= fill(&r->out, outcome(recv(r->pair_fd, r->out.bytes, BUFFER_BYTES, MSG_DONTWAIT)));
    if (r->out.len > 0)
        moved |= drain(&r->out, outcome(tls_send(r->secure->tls, r->out.bytes + r->out.at, r->out.len)));
    if (r->in.len == 0 && !r->in.over)
        moved |= fill(&r->in, outcome(tls_receive(r->secure->tls, r->in.bytes, BUFFER_BYTES)));
    if (r->in.len > 0)
        moved |= drain(&r->in, outcome(send(r->pair_fd, r->in.bytes + r->in.at, r->in.len, MSG_DONTWAIT | MSG_NOSIGNAL)));
    return moved;
}

static void end(struct relay *r)
{
    *r->link = r->next;
    if (r->next != NULL)
        r->next->link = r->link;
    loop_remove(r->tls_source);
    loop_remove(r->pair_source);
    secure_free(r->secure);
    (void)close(r->tls_fd);
    (void)close(r->pair_fd);
    free(r);
}

/* Either end may be the one that closes; neither keeps the other half open. */
static bool is_over(const struct relay *r)
{
    return (r->in.over && r->in.len == 0) || (r->out.over && r->out.len == 0);
}

static void on_io(void *ctx, int fd, unsigned events)
{
    struct relay *r = ctx;
    int rounds = 0;

    (void)fd;
    (void)events;
    while (rounds++ < ROUNDS_PER_EVENT && move(r))
        continue;
    if (is_over(r)) {
        end(r);
        return;
    }
    /* What TLS has received and not given yet is not seen by epoll: as long as there is some the pair is asked to be writable. */
    bool more = tls_pending(r->secure->tls);
    loop_set(r->tls_source, (r->in.len == 0 ? LOOP_READ : 0) | (r->out.len > 0 ? LOOP_WRITE : 0));
    loop_set(r->pair_source, (r->out.len == 0 ? LOOP_READ : 0) | (r->in.len > 0 || more ? LOOP_WRITE : 0));
}

static void begin(void *ctx)
{
    struct relay *r = ctx;
    struct error e = ERROR_INIT;

    r->next = relays.first;
    r->link = &relays.first;
    if (r->next != NULL)
        r->next->link = &r->next;
    relays.first = r;
    if (loop_add(relays.loop, r->tls_fd, LOOP_READ, on_io, r, &r->tls_source, &e) < 0 ||
        loop_add(relays.loop, r->pair_fd, LOOP_READ, on_io, r, &r->pair_source, &e) < 0) {
        log_warn_from("a connection cannot be encrypted", &e);
        end(r);
        return;
    }
    on_io(r, r->tls_fd, LOOP_READ); /* what came with the end of the handshake */
}

static void *run(void *ctx)
{
    struct error e = ERROR_INIT;

    (void)ctx;
    if (loop_run(relays.loop, &e) < 0) {
        log_error_from("the thread that encrypts ended", &e);
        abort(); /* connections would hang */
    }
    return NULL;
}

static void call_stop(void *ctx)
{
    (void)ctx;
    while (relays.first != NULL)
        end(relays.first);
    loop_stop(relays.loop);
}

/* Before libssl's own exit handler, which takes away what the thread uses: handlers run in the reverse order. */
static void stop_thread(void)
{
    loop_post(relays.loop, call_stop, NULL);
    (void)pthread_join(relays.thread, NULL);
    loop_free(relays.loop);
}

/* For the life of the process. */
static void start_thread(void)
{
    struct error e = ERROR_INIT;
    sigset_t all, before;

    if (loop_new(&relays.loop, &e) < 0)
        return;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(&relays.thread, NULL, run, NULL);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code == 0) {
        (void)atexit(stop_thread); /* none to be had: the thread goes with the process */
        return;
    }
    loop_free(relays.loop);
    relays.loop = NULL;
}

/* ---- afterwards ---- */

int secure_take(struct secure *s, int *ret_fd, struct error *e)
{
    int ends[2];

    if (tls_in_kernel(s->tls)) {
        *ret_fd = s->fd;
        secure_free(s);
        return 0;
    }
    (void)pthread_once(&relays.once, start_thread);
    if (relays.loop == NULL)
        return error_set(e, ERROR_IO, "the thread that encrypts could not be started");
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0)
        return error_errno(e, "make a socket pair");
    struct relay *r = xcalloc(1, sizeof *r);
    r->secure = s;
    r->tls_fd = s->fd;
    r->pair_fd = ends[1];
    loop_post(relays.loop, begin, r);
    *ret_fd = ends[0];
    return 0;
}
