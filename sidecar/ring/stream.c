#include "sidecar/ring/stream.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/crc.h"
#include "base/mem.h"

#define UNSENT_MAX (16u << 20) /* a peer that leaves this much unread is as good as lost */
#define READ_BYTES 65536u

struct stream {
    struct loop *loop;
    struct loop_source *source;
    struct loop_timer *ending;  /* reports from the loop what a send met */
    int fd;
    uint64_t fence;
    stream_fn *fn;
    void *ctx;
    struct frame_reader reader;
    struct buf unsent;
    struct error why;           /* set: the stream has ended */
};

/* ---- bytes to frames ---- */

int frame_reader_next(struct frame_reader *r, const void *bytes, size_t len, struct peer_frame *ret_frame,
                      const uint8_t **ret_payload, struct error *e)
{
    struct peer_frame f;

    buf_consume(&r->bytes, r->handed_out);
    r->handed_out = 0;
    if (len > 0)
        buf_add_bytes(&r->bytes, bytes, len);
    if (!buf_ok(&r->bytes))
        return error_set(e, ERROR_LIMIT, "more than %zu bytes wait to be read as frames", r->bytes.max);
    if (r->bytes.len < PEER_HEADER_BYTES)
        return 0;
    if (peer_frame_decode((const uint8_t *)r->bytes.text, PEER_MAX_CONTROL, &f, e) < 0)
        return -1;
    if (r->bytes.len - PEER_HEADER_BYTES < f.length)
        return 0;
    r->handed_out = PEER_HEADER_BYTES + (size_t)f.length;
    *ret_frame = f;
    *ret_payload = (const uint8_t *)r->bytes.text + PEER_HEADER_BYTES;
    if (f.flags == PEER_CHECKED && crc32c(0, *ret_payload, f.length) != f.payload_crc)
        return error_set(e, ERROR_INVALID, "a frame of type %u and %u bytes arrived damaged: its checksum is %08x, sent was %08x", f.type,
                         f.length, crc32c(0, *ret_payload, f.length), f.payload_crc);
    return 1;
}

void frame_reader_release(struct frame_reader *r)
{
    buf_release(&r->bytes);
}

/* ---- on a loop ---- */

/* The first reason counts. Reported by a timer that is due now, so that the handler never runs inside a stream_send. */
static void end(struct stream *s, const struct error *why)
{
    if (s->why.kind != ERROR_NONE)
        return;
    s->why = *why;
    loop_remove(s->source);
    s->source = NULL;
    loop_timer_at(s->ending, loop_now(s->loop));
}

static void report_end(void *ctx)
{
    struct stream *s = ctx;

    s->fn(s->ctx, s, NULL, NULL, &s->why);
}

static void end_lost(struct stream *s, int code)
{
    struct error why = ERROR_INIT;

    (void)error_set(&why, ERROR_PEER_LOST, "%s", code != 0 ? strerror(code) : "connection closed");
    why.os_errno = code;
    end(s, &why);
}

static void send_unsent(struct stream *s)
{
    while (s->unsent.len > 0 && s->why.kind == ERROR_NONE) {
        ssize_t n = send(s->fd, s->unsent.text, s->unsent.len, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            break;
        if (n < 0) {
            end_lost(s, errno);
            return;
        }
        buf_consume(&s->unsent, (size_t)n);
    }
    if (s->source != NULL)
        loop_set(s->source, LOOP_READ | (s->unsent.len > 0 ? LOOP_WRITE : 0u));
}

void stream_send(struct stream *s, enum peer_type type, const void *bytes, size_t len)
{
    uint8_t header[PEER_HEADER_BYTES];
    struct error why = ERROR_INIT;
    bool was_empty = s->unsent.len == 0;

    if (s->why.kind != ERROR_NONE)
        return;
    peer_frame_encode(&(struct peer_frame){ .type = (uint16_t)type, .length = (uint32_t)len, .fence = s->fence, .flags = PEER_CHECKED,
                                            .payload_crc = crc32c(0, bytes, len) }, header);
    buf_add_bytes(&s->unsent, header, sizeof header);
    if (len > 0)
        buf_add_bytes(&s->unsent, bytes, len);
    if (!buf_ok(&s->unsent)) {
        (void)error_set(&why, ERROR_PEER_LOST, "does not read: %zu bytes wait to be sent", s->unsent.len);
        end(s, &why);
        return;
    }
    if (was_empty)
        send_unsent(s);
}

/* -1: the stream has ended. */
static int hand_on(struct stream *s, const uint8_t *bytes, size_t len)
{
    struct error why = ERROR_INIT;
    struct peer_frame frame;
    const uint8_t *payload;
    char mine[PEER_FENCE_TEXT_MAX];

    for (;; len = 0) {
        int got = frame_reader_next(&s->reader, bytes, len, &frame, &payload, &why);
        if (got == 0)
            return 0;
        if (got > 0 && (frame.type == PEER_FENCED || frame.fence > s->fence))
            (void)error_set(&why, ERROR_GONE, "this rank is behind (%s): the group has gone on", peer_fence_text(s->fence, mine));
        else if (got > 0 && frame.fence < s->fence)
            (void)error_set(&why, ERROR_INVALID, "it sent a frame of an older round");
        if (why.kind != ERROR_NONE) {
            end(s, &why);
            return -1;
        }
        s->fn(s->ctx, s, &frame, payload, NULL);
        if (s->why.kind != ERROR_NONE)
            return -1;
    }
}

static void on_io(void *ctx, int fd, unsigned events)
{
    struct stream *s = ctx;
    static __thread uint8_t bytes[READ_BYTES];

    if (events & LOOP_WRITE)
        send_unsent(s);
    if (s->why.kind != ERROR_NONE || !(events & (LOOP_READ | LOOP_HANGUP)))
        return;
    ssize_t n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0)
        end_lost(s, n < 0 ? errno : 0);
    else
        (void)hand_on(s, bytes, (size_t)n);
}

int stream_new(struct loop *l, int fd, uint64_t fence, stream_fn *fn, void *ctx, struct stream **ret, struct error *e)
{
    struct stream *s = xcalloc(1, sizeof *s);

    *s = (struct stream){ .loop = l, .fd = fd, .fence = fence, .fn = fn, .ctx = ctx, .reader = FRAME_READER_INIT,
                          .unsent = BUF_INIT(UNSENT_MAX) };
    if (loop_add(l, fd, LOOP_READ, on_io, s, &s->source, e) < 0) {
        free(s);
        return -1;
    }
    s->ending = loop_timer_new(l, report_end, s);
    *ret = s;
    return 0;
}

void stream_free(struct stream *s)
{
    if (s == NULL)
        return;
    loop_remove(s->source);
    loop_timer_free(s->ending);
    frame_reader_release(&s->reader);
    buf_release(&s->unsent);
    (void)close(s->fd);
    free(s);
}
