#include "sidecar/supervise/channel.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"

#define READ_BYTES (64u << 10)
#define UNSENT_MAX (16u << 20)

struct channel {
    struct loop *loop;
    struct loop_source *source;
    int fd;
    channel_fn *fn;
    void *ctx;
    struct buf in, out;
    int64_t heard_ms;
    bool broken; /* sending failed: the read side reports it */
    bool in_handler, freed;
};

static void destroy(struct channel *c)
{
    buf_release(&c->in);
    buf_release(&c->out);
    free(c);
}

void channel_free(struct channel *c)
{
    if (c == NULL || c->freed)
        return;
    c->freed = true;
    loop_remove(c->source);
    (void)close(c->fd);
    if (!c->in_handler)
        destroy(c);
}

int64_t channel_heard_ms(const struct channel *c)
{
    return c->heard_ms;
}

void channel_excuse(struct channel *c, int64_t ms)
{
    c->heard_ms += ms;
}

static void flush(struct channel *c)
{
    while (c->out.len > 0 && !c->broken) {
        ssize_t n = send(c->fd, c->out.text, c->out.len, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0)
            buf_consume(&c->out, (size_t)n);
        else if (n < 0 && errno == EAGAIN)
            break;
        else if (n < 0 && errno != EINTR)
            c->broken = true;
    }
    if (c->broken)
        (void)shutdown(c->fd, SHUT_RDWR); /* wakes the read side */
    loop_set(c->source, LOOP_READ | (c->out.len > 0 && !c->broken ? LOOP_WRITE : 0));
}

void channel_send(struct channel *c, enum peer_type type, uint64_t fence, cJSON *body)
{
    uint8_t header[PEER_HEADER_BYTES];
    auto_json cJSON *owned = body != NULL ? body : json_object();
    auto_free char *text = json_print(owned, false);
    size_t len = strlen(text);

    if (c->freed || c->broken)
        return;
    if (len > PEER_MAX_CONTROL || c->out.len + len + sizeof header > UNSENT_MAX) {
        c->broken = true;
    } else {
        struct peer_frame frame = { .type = (uint16_t)type, .length = (uint32_t)len, .fence = fence };
        peer_frame_encode(&frame, header);
        buf_add_bytes(&c->out, header, sizeof header);
        buf_add_bytes(&c->out, text, len);
    }
    flush(c);
}

static int receive(struct channel *c, bool *ret_end, struct error *e)
{
    uint8_t bytes[READ_BYTES];

    ssize_t n = recv(c->fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : error_errno(e, "read from the connection");
    *ret_end = n == 0;
    if (n > 0)
        c->heard_ms = clock_mono_ms();
    buf_add_bytes(&c->in, bytes, (size_t)n);
    return 0;
}

/* Hands out every complete frame; -1 on a malformed one. Stops when the handler freed the channel. */
static int dispatch(struct channel *c, struct error *e)
{
    while (!c->freed && c->in.len >= PEER_HEADER_BYTES) {
        struct peer_frame frame;
        auto_json cJSON *body = NULL;
        if (peer_frame_decode((const uint8_t *)c->in.text, PEER_MAX_CONTROL, &frame, e) != 0)
            return -1;
        if (c->in.len < PEER_HEADER_BYTES + frame.length)
            return 0;
        if (json_parse(c->in.text + PEER_HEADER_BYTES, frame.length, &body, e) != 0)
            return error_wrap(e, "frame of type %u", frame.type);
        if (!cJSON_IsObject(body))
            return error_set(e, ERROR_INVALID, "frame of type %u holds no JSON object", frame.type);
        buf_consume(&c->in, PEER_HEADER_BYTES + frame.length);
        c->fn(c->ctx, c, &frame, body, NULL);
    }
    return 0;
}

static void on_io(void *ctx, int fd, unsigned events)
{
    struct channel *c = ctx;
    struct error e = ERROR_INIT;
    bool end = false;
    int result = 0;

    (void)fd;
    c->in_handler = true;
    if (events & LOOP_WRITE)
        flush(c);
    if (events & (LOOP_READ | LOOP_HANGUP))
        result = receive(c, &end, &e);
    struct error malformed = ERROR_INIT;
    if (dispatch(c, &malformed) != 0 && result == 0) {
        e = malformed;
        result = -1;
    }
    if (!c->freed && c->broken && result == 0)
        result = error_set(&e, ERROR_IO, "the peer does not read, or the connection broke while sending");
    if (!c->freed && (result != 0 || end))
        c->fn(c->ctx, c, NULL, NULL, &e);
    c->in_handler = false;
    if (c->freed)
        destroy(c);
}

int channel_new(struct loop *l, int fd, channel_fn *fn, void *ctx, struct channel **ret, struct error *e)
{
    auto_free struct channel *c = xcalloc(1, sizeof *c);
    int on = 1;

    *c = (struct channel){ .loop = l, .fd = fd, .fn = fn, .ctx = ctx, .heard_ms = clock_mono_ms() };
    c->in = (struct buf)BUF_INIT(PEER_MAX_CONTROL + PEER_HEADER_BYTES + READ_BYTES);
    c->out = (struct buf)BUF_INIT(UNSENT_MAX);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (loop_add(l, fd, LOOP_READ, on_io, c, &c->source, e) != 0)
        return -1;
    *ret = TAKE(c);
    return 0;
}
