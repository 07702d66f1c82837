#include "sidecar/supervise/control.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/ipc.h"
#include "base/log.h"
#include "base/mem.h"
#include "job/control.h"
#include "sidecar/ring/resolve.h"
#include "sidecar/supervise/websocket.h"

#define SCHEME "unix:"
#define RECONNECT_FIRST_MS 50
#define RECONNECT_MAX_MS 2000
#define REMOTE_FIRST_MS 500       /* an operator that is away is asked less often than a process beside us */
#define REMOTE_MAX_MS 15000
#define OPENING_MS 10000          /* look-up, connection and handshake */
#define LINE_MAX_BYTES 65536
#define REPORT_MAX_BYTES CONTROL_MESSAGE_MAX

enum control_state { CONTROL_DOWN, CONTROL_RESOLVING, CONTROL_CONNECTING, CONTROL_UPGRADING, CONTROL_UP };

struct control {
    struct loop *loop;
    char *address, *path;         /* path: of the unix socket; NULL = a WebSocket */
    struct websocket_url url;
    char *token, key[WEBSOCKET_KEY_MAX];
    control_command_fn *on_command;
    control_connected_fn *on_connected;
    void *ctx;
    enum control_state state;
    struct resolve *resolve;
    int fd;                       /* -1: none */
    struct loop_source *source;
    struct loop_timer *timer;     /* down: connect again; between: give up */
    int64_t reconnect_ms;
    bool told;                    /* that it is down; said once */
    struct buf in, message, out;  /* message: of a frame that is continued; out: what is being sent */
    char *next;                   /* the report after it */
};

/* ---- up and down ---------------------------------------------------------------------------------------------------------- */

/* The coordinators of a thousand jobs lose an operator at one moment; they do not come back at one. */
static int64_t spread(const struct control *c)
{
    struct error e = ERROR_INIT;
    uint16_t random = 0;

    if (c->path != NULL || crypto_random(&random, sizeof random, &e) < 0)
        return c->reconnect_ms;
    return c->reconnect_ms / 2 + c->reconnect_ms * random / UINT16_MAX / 2;
}

static void disconnect(struct control *c)
{
    int64_t most = c->path != NULL ? RECONNECT_MAX_MS : REMOTE_MAX_MS;

    resolve_cancel(TAKE(c->resolve));
    loop_remove(c->source);
    c->source = NULL;
    if (c->fd >= 0)
        (void)close(c->fd);
    c->fd = -1;
    c->state = CONTROL_DOWN;
    buf_clear(&c->in);
    buf_clear(&c->message);
    buf_clear(&c->out);
    free(TAKE(c->next));
    loop_timer_at(c->timer, clock_mono_ms() + spread(c));
    c->reconnect_ms = c->reconnect_ms < most / 2 ? 2 * c->reconnect_ms : most;
}

static void lose(struct control *c, const struct error *why)
{
    if (!c->told)
        log_warn_from("nobody reads the reports; training goes on", why, KV("control", c->address));
    c->told = true;
    disconnect(c);
}

static void come_up(struct control *c)
{
    if (c->told)
        log_info("reports are read again", KV("control", c->address));
    c->told = false;
    c->state = CONTROL_UP;
    c->reconnect_ms = c->path != NULL ? RECONNECT_FIRST_MS : REMOTE_FIRST_MS;
    loop_timer_cancel(c->timer);
    c->on_connected(c->ctx);
}

/* ---- sending -------------------------------------------------------------------------------------------------------------- */

static void take_next(struct control *c)
{
    struct error e = ERROR_INIT;
    uint8_t mask[4];

    if (c->path != NULL) {
        buf_add(&c->out, c->next);
        buf_add(&c->out, "\n");
    } else if (crypto_random(mask, sizeof mask, &e) == 0) {
        websocket_frame(WEBSOCKET_TEXT, c->next, strlen(c->next), mask, &c->out);
    }
    free(TAKE(c->next));
    if (!buf_ok(&c->out)) { /* it would be cut: none is better */
        log_warn("a report is too large to be sent");
        buf_release(&c->out);
        c->out = (struct buf)BUF_INIT(REPORT_MAX_BYTES);
    }
}

static bool flush(struct control *c)
{
    for (;;) {
        if (c->out.len == 0 && c->next != NULL && c->state == CONTROL_UP)
            take_next(c);
        if (c->out.len == 0)
            break;
        ssize_t n = send(c->fd, c->out.text, c->out.len, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0)
            buf_consume(&c->out, (size_t)n);
        else if (n < 0 && errno == EAGAIN)
            break;
        else if (n < 0 && errno != EINTR)
            return false;
    }
    loop_set(c->source, LOOP_READ | (c->out.len > 0 ? LOOP_WRITE : 0));
    return true;
}

/* ---- receiving ------------------------------------------------------------------------------------------------------------ */

static void on_text(struct control *c, const char *text, size_t len)
{
    enum report_command command;
    int64_t grace_ms = 0;
    struct error e = ERROR_INIT;

    if (len == 0)
        return;
    if (report_command_decode(text, len, &command, &grace_ms, &e) != 0)
        log_warn_from("command not understood", &e);
    else
        c->on_command(c->ctx, command, grace_ms);
}

static int take_lines(struct control *c, struct error *e)
{
    for (char *end = memchr(c->in.text, '\n', c->in.len); end != NULL; end = memchr(c->in.text, '\n', c->in.len)) {
        size_t len = (size_t)(end - c->in.text);
        on_text(c, c->in.text, len);
        if (c->state != CONTROL_UP)
            return 0; /* what it led to has closed the channel */
        buf_consume(&c->in, len + 1);
        if (c->in.len == 0)
            break;
    }
    return buf_ok(&c->in) ? 0 : error_set(e, ERROR_LIMIT, "a line is longer than %d bytes", LINE_MAX_BYTES);
}

static int take_frame(struct control *c, const struct websocket_frame *f, struct error *e)
{
    uint8_t mask[4];

    switch (f->opcode) {
    case WEBSOCKET_CLOSE: return error_set(e, ERROR_GONE, "the operator closed the channel");
    case WEBSOCKET_PONG: return 0;
    case WEBSOCKET_PING:
        if (crypto_random(mask, sizeof mask, e) < 0)
            return -1;
        websocket_frame(WEBSOCKET_PONG, f->bytes, f->len, mask, &c->out);
        return 0;
    case WEBSOCKET_TEXT: case WEBSOCKET_BINARY: case WEBSOCKET_CONTINUED: break;
    }
    buf_add_bytes(&c->message, f->bytes, f->len);
    if (!buf_ok(&c->message))
        return error_set(e, ERROR_LIMIT, "a message is longer than %d bytes", LINE_MAX_BYTES);
    if (f->is_last) {
        on_text(c, buf_text(&c->message), c->message.len);
        buf_clear(&c->message);
    }
    return 0;
}

static int take_frames(struct control *c, struct error *e)
{
    struct websocket_frame f;
    int found;

    while ((found = websocket_read((const uint8_t *)buf_text(&c->in), c->in.len, LINE_MAX_BYTES / 2, &f, e)) == 1) {
        if (take_frame(c, &f, e) < 0)
            return -1;
        if (c->state != CONTROL_UP)
            return 0; /* what it led to has closed the channel */
        buf_consume(&c->in, f.consumed);
    }
    return found;
}

static int take_answer(struct control *c, struct error *e)
{
    int head = websocket_answer(buf_text(&c->in), c->in.len, c->key, e);

    if (head <= 0)
        return head;
    buf_consume(&c->in, (size_t)head);
    come_up(c);
    return 0;
}

static int receive(struct control *c, struct error *e)
{
    char bytes[4096];

    ssize_t n = recv(c->fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : error_errno(e, "receive");
    if (n == 0)
        return error_set(e, ERROR_GONE, "the other side closed the connection");
    buf_add_bytes(&c->in, bytes, (size_t)n);
    if (!buf_ok(&c->in))
        return error_set(e, ERROR_LIMIT, "a message is longer than %d bytes", LINE_MAX_BYTES);
    if (c->path != NULL)
        return take_lines(c, e);
    if (c->state == CONTROL_UPGRADING && take_answer(c, e) < 0)
        return -1;
    return c->state == CONTROL_UP ? take_frames(c, e) : 0;
}

/* ---- connecting ----------------------------------------------------------------------------------------------------------- */

static int upgrade(struct control *c, struct error *e)
{
    int code = 0;
    socklen_t len = sizeof code;

    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &code, &len) < 0)
        return error_errno(e, "connect to %s", c->url.host);
    errno = code;
    if (code != 0)
        return error_errno(e, "connect to %s", c->url.host);
    if (websocket_make_key(c->key, e) < 0)
        return -1;
    websocket_request(&c->url, c->key, CONTROL_PROTOCOL, c->token, &c->out);
    c->state = CONTROL_UPGRADING;
    return 0;
}

static void on_io(void *ctx, int fd, unsigned events)
{
    struct control *c = ctx;
    struct error e = ERROR_INIT;
    int result = 0;

    (void)fd;
    if (c->state == CONTROL_CONNECTING)
        result = upgrade(c, &e);
    else if (events & (LOOP_READ | LOOP_HANGUP))
        result = receive(c, &e);
    if (result == 0 && c->fd >= 0 && !flush(c))
        result = error_errno(&e, "send");
    if (result < 0)
        lose(c, &e);
}

static int dial(struct control *c, const struct addrinfo *a, struct error *e)
{
    int on = 1, idle_s = 10, interval_s = 5, probes = 3;

    c->fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->fd < 0)
        return error_errno(e, "socket");
    /* An operator whose node is gone says nothing: the kernel finds out. */
    (void)setsockopt(c->fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)setsockopt(c->fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    (void)setsockopt(c->fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    (void)setsockopt(c->fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    if (connect(c->fd, a->ai_addr, a->ai_addrlen) < 0 && errno != EINPROGRESS)
        return error_errno(e, "connect to %s", c->url.host);
    c->state = CONTROL_CONNECTING;
    return loop_add(c->loop, c->fd, LOOP_WRITE, on_io, c, &c->source, e);
}

static void on_resolved(void *ctx, struct addrinfo *addresses, const struct error *why)
{
    struct control *c = ctx;
    struct error e = ERROR_INIT;

    c->resolve = NULL;
    if (addresses == NULL) {
        lose(c, why);
        return;
    }
    if (dial(c, addresses, &e) < 0)
        lose(c, &e);
    freeaddrinfo(addresses);
}

static int open_local(struct control *c, struct error *e)
{
    if (ipc_connect(c->path, &c->fd, e) < 0 || loop_add(c->loop, c->fd, LOOP_READ, on_io, c, &c->source, e) < 0)
        return -1;
    come_up(c);
    return 0;
}

static int open_remote(struct control *c, struct error *e)
{
    struct addrinfo *addresses = NULL;
    int result = 0;

    loop_timer_at(c->timer, clock_mono_ms() + OPENING_MS);
    if (resolve_literal(c->url.host, c->url.port, &addresses) == 1) {
        result = dial(c, addresses, e);
        freeaddrinfo(addresses);
        return result;
    }
    c->state = CONTROL_RESOLVING;
    return resolve_start(c->loop, c->url.host, c->url.port, on_resolved, c, &c->resolve, e);
}

static void on_timer(void *ctx)
{
    struct control *c = ctx;
    struct error e = ERROR_INIT;

    if (c->state != CONTROL_DOWN) {
        (void)error_set(&e, ERROR_TIMEOUT, "%s does not answer", c->url.host);
        lose(c, &e);
    } else if ((c->path != NULL ? open_local(c, &e) : open_remote(c, &e)) < 0) {
        lose(c, &e);
    }
}

/* ---- life ----------------------------------------------------------------------------------------------------------------- */

void control_send(struct control *c, char *text)
{
    struct error e = ERROR_INIT;

    free(c->next);
    c->next = text;
    if (c->state != CONTROL_UP) {
        free(TAKE(c->next)); /* whoever connects gets the state of that time */
    } else if (!flush(c)) {
        (void)error_errno(&e, "send");
        lose(c, &e);
    }
}

bool control_flushed(const struct control *c)
{
    return c->state != CONTROL_UP || (c->out.len == 0 && c->next == NULL);
}

int control_new(struct loop *l, const struct control_options *options, control_command_fn *on_command, control_connected_fn *on_connected,
                void *ctx, struct control **ret, struct error *e)
{
    const char *address = options->address;
    bool local = strncmp(address, SCHEME, strlen(SCHEME)) == 0;
    struct websocket_url url = { .port = 0 };

    if (local && address[strlen(SCHEME)] == '\0')
        return error_set(e, ERROR_INVALID, "RINGMASTER_CONTROL: found \"%.100s\", expected unix:PATH or ws://HOST[:PORT]/PATH", address);
    if (!local && websocket_parse_url(address, &url, e) < 0)
        return error_wrap(e, "RINGMASTER_CONTROL");
    struct control *c = xcalloc(1, sizeof *c);
    *c = (struct control){ .loop = l, .address = xstrdup(address), .path = local ? xstrdup(address + strlen(SCHEME)) : NULL, .url = url,
                           .token = xstrdup(options->token), .on_command = on_command, .on_connected = on_connected, .ctx = ctx, .fd = -1,
                           .reconnect_ms = local ? RECONNECT_FIRST_MS : REMOTE_FIRST_MS };
    c->in = (struct buf)BUF_INIT(LINE_MAX_BYTES);
    c->message = (struct buf)BUF_INIT(LINE_MAX_BYTES);
    c->out = (struct buf)BUF_INIT(REPORT_MAX_BYTES);
    c->timer = loop_timer_new(l, on_timer, c);
    loop_timer_at(c->timer, clock_mono_ms());
    *ret = c;
    return 0;
}

void control_free(struct control *c)
{
    if (c == NULL)
        return;
    resolve_cancel(c->resolve);
    loop_timer_free(c->timer);
    loop_remove(c->source);
    if (c->fd >= 0)
        (void)close(c->fd);
    buf_release(&c->in);
    buf_release(&c->message);
    buf_release(&c->out);
    free(c->next);
    if (c->token != NULL)
        crypto_wipe(c->token, strlen(c->token));
    free(c->token);
    free(c->path);
    free(c->address);
    free(c);
}
