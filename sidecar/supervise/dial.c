#include "sidecar/supervise/dial.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/ipc.h"
#include "base/mem.h"
#include "base/tls.h"
#include "sidecar/ring/resolve.h"

enum dial_state { DIAL_RESOLVING, DIAL_CONNECTING, DIAL_SECURING, DIAL_OPEN };

struct dial {
    struct loop *loop;
    dial_fn *fn;
    void *ctx;
    enum dial_state state;
    char host[256];                /* without brackets */
    char *authority;               /* PEM; NULL: no TLS */
    struct resolve *resolve;
    int fd;
    struct loop_source *source;
    struct loop_timer *soon;       /* what is told from the loop and not from inside dial_new */
    struct tls *tls;
};

bool dial_is_open(const struct dial *d)
{
    return d->state == DIAL_OPEN;
}

static void become_open(struct dial *d)
{
    d->state = DIAL_OPEN;
    loop_set(d->source, LOOP_READ);
    d->fn(d->ctx, NULL);
}

static int secure(struct dial *d, struct error *e)
{
    bool wants_write = false;

    if (d->tls == NULL && tls_client_new(d->fd, d->host, d->authority, &d->tls, e) < 0)
        return -1;
    d->state = DIAL_SECURING;
    int result = tls_handshake(d->tls, &wants_write, e);
    if (result < 0)
        return error_wrap(e, "%s", d->host);
    loop_set(d->source, LOOP_READ | (wants_write ? LOOP_WRITE : 0));
    return result;
}

/* 1: open; 0: later; -1. */
static int go_on(struct dial *d, struct error *e)
{
    int code = 0;
    socklen_t len = sizeof code;

    if (d->state == DIAL_CONNECTING) {
        if (getsockopt(d->fd, SOL_SOCKET, SO_ERROR, &code, &len) != 0 || code != 0) {
            errno = code != 0 ? code : errno;
            return error_errno(e, "connect to %s", d->host);
        }
        return d->authority != NULL ? secure(d, e) : 1;
    }
    return secure(d, e);
}

static void on_io(void *ctx, int fd, unsigned events)
{
    struct dial *d = ctx;
    struct error e = ERROR_INIT;

    (void)fd, (void)events;
    int result = d->state == DIAL_OPEN ? 0 : go_on(d, &e);
    if (d->state == DIAL_OPEN)
        d->fn(d->ctx, NULL);
    else if (result < 0)
        d->fn(d->ctx, &e);
    else if (result > 0)
        become_open(d);
}

static int connect_to(struct dial *d, const struct addrinfo *a, struct error *e)
{
    int on = 1, idle_s = 10, interval_s = 5, probes = 3;

    d->fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (d->fd < 0)
        return error_errno(e, "socket");
    /* A server whose node is gone says nothing: the kernel finds out. */
    (void)setsockopt(d->fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)setsockopt(d->fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    (void)setsockopt(d->fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    (void)setsockopt(d->fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    if (connect(d->fd, a->ai_addr, a->ai_addrlen) < 0 && errno != EINPROGRESS)
        return error_errno(e, "connect to %s", d->host);
    d->state = DIAL_CONNECTING;
    return loop_add(d->loop, d->fd, LOOP_WRITE, on_io, d, &d->source, e);
}

static void on_resolved(void *ctx, struct addrinfo *addresses, const struct error *why)
{
    struct dial *d = ctx;
    struct error e = ERROR_INIT;

    d->resolve = NULL;
    int result = addresses != NULL ? connect_to(d, addresses, &e) : -1;
    if (addresses != NULL)
        freeaddrinfo(addresses);
    if (result < 0)
        d->fn(d->ctx, addresses != NULL ? &e : why);
}

static void on_soon(void *ctx)
{
    become_open(ctx);
}

static int begin(struct dial *d, const struct dial_options *o, struct error *e)
{
    struct addrinfo *addresses = NULL;
    size_t len = 0;

    if (o->path != NULL) {
        if (ipc_connect(o->path, &d->fd, e) < 0 || loop_add(d->loop, d->fd, 0, on_io, d, &d->source, e) < 0)
            return -1;
        d->soon = loop_timer_new(d->loop, on_soon, d);
        loop_timer_at(d->soon, loop_now(d->loop));
        return 0;
    }
    size_t bare = o->host[0] == '[';
    (void)snprintf(d->host, sizeof d->host, "%.*s", (int)(strlen(o->host) - 2 * bare), o->host + bare);
    if (o->authority_file != NULL && fs_read(o->authority_file, CERTIFICATE_PEM_MAX, &d->authority, &len, e) < 0)
        return error_wrap(e, "the operator cannot be checked");
    if (resolve_literal(o->host, o->port, &addresses) != 1)
        return resolve_start(d->loop, o->host, o->port, on_resolved, d, &d->resolve, e);
    int result = connect_to(d, addresses, e);
    freeaddrinfo(addresses);
    return result;
}

int dial_new(struct loop *l, const struct dial_options *options, dial_fn *fn, void *ctx, struct dial **ret, struct error *e)
{
    struct dial *d = xcalloc(1, sizeof *d);

    *d = (struct dial){ .loop = l, .fn = fn, .ctx = ctx, .fd = -1 };
    if (begin(d, options, e) < 0) {
        dial_free(d);
        return -1;
    }
    *ret = d;
    return 0;
}

void dial_free(struct dial *d)
{
    if (d == NULL)
        return;
    resolve_cancel(d->resolve);
    loop_timer_free(d->soon);
    loop_remove(d->source);
    tls_free(d->tls);
    if (d->fd >= 0)
        (void)close(d->fd);
    free(d->authority);
    free(d);
}

/* ---- bytes ---------------------------------------------------------------------------------------------------------------- */

static ssize_t fail(const char *what, struct error *e)
{
    if (errno == EAGAIN || errno == EINTR)
        return error_set(e, ERROR_BUSY, "%s: later", what);
    return error_errno(e, "%s", what);
}

ssize_t dial_receive(struct dial *d, void *bytes, size_t len, struct error *e)
{
    ssize_t n = d->tls != NULL ? tls_receive(d->tls, bytes, len) : recv(d->fd, bytes, len, MSG_DONTWAIT);

    if (n == 0)
        return error_set(e, ERROR_GONE, "the connection was closed");
    return n > 0 ? n : fail("receive", e);
}

ssize_t dial_send(struct dial *d, const void *bytes, size_t len, struct error *e)
{
    ssize_t n = d->tls != NULL ? tls_send(d->tls, bytes, len) : send(d->fd, bytes, len, MSG_NOSIGNAL | MSG_DONTWAIT);

    loop_set(d->source, LOOP_READ | (n < 0 && errno == EAGAIN ? LOOP_WRITE : 0));
    return n >= 0 ? n : fail("send", e);
}
