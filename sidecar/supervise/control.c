#include "sidecar/supervise/control.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/ipc.h"
#include "base/log.h"
#include "base/mem.h"

#define SCHEME "unix:"
#define RECONNECT_FIRST_MS 50
#define RECONNECT_MAX_MS 2000
#define LINE_MAX_BYTES 65536
#define REPORT_MAX_BYTES (8u << 20)

struct control {
    struct loop *loop;
    char *path;
    control_command_fn *on_command;
    control_connected_fn *on_connected;
    void *ctx;
    int fd; /* -1: not connected */
    struct loop_source *source;
    struct loop_timer *reconnect;
    int64_t reconnect_ms;
    struct buf in, out; /* out: the report that is being sent */
    char *next;         /* the one after it */
};

static void disconnect(struct control *c)
{
    loop_remove(c->source);
    c->source = NULL;
    if (c->fd >= 0)
        (void)close(c->fd);
    c->fd = -1;
    buf_clear(&c->in);
    buf_clear(&c->out);
    free(TAKE(c->next));
    loop_timer_at(c->reconnect, clock_mono_ms() + c->reconnect_ms);
}

static bool flush(struct control *c)
{
    for (;;) {
        if (c->out.len == 0 && c->next != NULL) {
            buf_add(&c->out, c->next);
            buf_add(&c->out, "\n");
            free(TAKE(c->next));
        }
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

static void on_line(struct control *c, const char *line, size_t len)
{
    enum report_command command;
    int64_t grace_ms = 0;
    struct error e = ERROR_INIT;

    if (len == 0)
        return;
    if (report_command_decode(line, len, &command, &grace_ms, &e) != 0)
        log_warn_from("command not understood", &e);
    else
        c->on_command(c->ctx, command, grace_ms);
}

static bool receive(struct control *c)
{
    char bytes[4096];

    ssize_t n = recv(c->fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR;
    if (n == 0)
        return false;
    buf_add_bytes(&c->in, bytes, (size_t)n);
    if (!buf_ok(&c->in))
        return false; /* a line without an end */
    for (char *end = memchr(c->in.text, '\n', c->in.len); end != NULL; end = memchr(c->in.text, '\n', c->in.len)) {
        size_t len = (size_t)(end - c->in.text);
        on_line(c, c->in.text, len);
        buf_consume(&c->in, len + 1);
        if (c->in.len == 0)
            break;
    }
    return true;
}

static void on_io(void *ctx, int fd, unsigned events)
{
    struct control *c = ctx;
    bool well = true;

    (void)fd;
    if (events & (LOOP_READ | LOOP_HANGUP))
        well = receive(c);
    if (well && events & LOOP_WRITE)
        well = flush(c);
    if (!well) {
        log_warn("nobody reads the reports any more; training goes on", KV("socket", c->path));
        disconnect(c);
    }
}

static void reconnect(void *ctx)
{
    struct control *c = ctx;
    struct error e = ERROR_INIT;

    if (ipc_connect(c->path, &c->fd, &e) == 0 && loop_add(c->loop, c->fd, LOOP_READ, on_io, c, &c->source, &e) == 0) {
        c->reconnect_ms = RECONNECT_FIRST_MS;
        c->on_connected(c->ctx);
        return;
    }
    if (c->fd >= 0)
        (void)close(c->fd);
    c->fd = -1;
    c->reconnect_ms = c->reconnect_ms < RECONNECT_MAX_MS / 2 ? 2 * c->reconnect_ms : RECONNECT_MAX_MS;
    loop_timer_at(c->reconnect, clock_mono_ms() + c->reconnect_ms);
}

void control_send(struct control *c, char *text)
{
    free(c->next);
    c->next = text;
    if (c->fd < 0)
        free(TAKE(c->next)); /* whoever connects gets the state of that time */
    else if (!flush(c))
        disconnect(c);
}

bool control_flushed(const struct control *c)
{
    return c->fd < 0 || (c->out.len == 0 && c->next == NULL);
}

int control_new(struct loop *l, const char *address, control_command_fn *on_command, control_connected_fn *on_connected, void *ctx,
                struct control **ret, struct error *e)
{
    if (strncmp(address, SCHEME, strlen(SCHEME)) != 0 || address[strlen(SCHEME)] == '\0')
        return error_set(e, ERROR_INVALID, "RINGMASTER_CONTROL: found \"%.100s\", expected unix:PATH", address);
    struct control *c = xcalloc(1, sizeof *c);
    *c = (struct control){ .loop = l, .path = xstrdup(address + strlen(SCHEME)), .on_command = on_command, .on_connected = on_connected,
                           .ctx = ctx, .fd = -1, .reconnect_ms = RECONNECT_FIRST_MS };
    c->in = (struct buf)BUF_INIT(LINE_MAX_BYTES);
    c->out = (struct buf)BUF_INIT(REPORT_MAX_BYTES);
    c->reconnect = loop_timer_new(l, reconnect, c);
    loop_timer_at(c->reconnect, clock_mono_ms());
    *ret = c;
    return 0;
}

void control_free(struct control *c)
{
    if (c == NULL)
        return;
    loop_timer_free(c->reconnect);
    loop_remove(c->source);
    if (c->fd >= 0)
        (void)close(c->fd);
    buf_release(&c->in);
    buf_release(&c->out);
    free(c->next);
    free(c->path);
    free(c);
}
