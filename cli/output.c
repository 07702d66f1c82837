#include "cli/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/text.h"

#define LINE_MAX_BYTES 16384 /* longer lines are handed on in pieces */
#define TAIL_BYTES 1024

struct output {
    struct loop_source *source;
    int read_fd, log_fd, copy_fd; /* copy_fd -1: none */
    char *path, *copy_path;
    bool log_failed;
    output_line_fn *line;
    output_error_fn *failed;
    void *ctx;
    struct buf partial;
    char tail[TAIL_BYTES];
    size_t tail_len;
};

/* Length of "ESC [ ... m" at p, 0 when it is none. */
static size_t color_length(const char *p, const char *end)
{
    const char *q = p + 2;
    if (end - p < 3 || p[0] != '\033' || p[1] != '[')
        return 0;
    while (q < end && ((*q >= '0' && *q <= '9') || *q == ';'))
        q++;
    return q < end && *q == 'm' ? (size_t)(q - p + 1) : 0;
}

/* Skips an escape sequence that is no colour: CSI up to its final byte, else two bytes. */
static const char *skip_escape(const char *p, const char *end)
{
    if (end - p < 2 || p[1] != '[')
        return p + 2 < end ? p + 2 : end;
    for (p += 2; p < end && !(*p >= '@' && *p <= '~');)
        p++;
    return p < end ? p + 1 : end;
}

void output_clean(const char *raw, size_t len, struct buf *out)
{
    const char *end = raw + len, *p = raw;
    while (end > raw && end[-1] == '\r')
        end--;
    for (const char *q = raw; q < end; q++)
        if (*q == '\r')
            p = q + 1;
    while (p < end) {
        size_t color = color_length(p, end);
        if (color) {
            buf_add_bytes(out, p, color);
            p += color;
        } else if (*p == '\033') {
            p = skip_escape(p, end);
        } else {
            if ((unsigned char)*p >= 0x20 ? *p != 0x7f : *p == '\t')
                buf_add_bytes(out, p, 1);
            p++;
        }
    }
}

static void hand_on(struct output *o, const char *raw, size_t len)
{
    auto_buf struct buf clean = BUF_INIT(LINE_MAX_BYTES + 16);
    output_clean(raw, len, &clean);
    if (clean.len || len == 0)
        o->line(o->ctx, buf_text(&clean), clean.len);
}

static void split(struct output *o, const char *bytes, size_t len)
{
    while (len > 0) {
        const char *newline = memchr(bytes, '\n', len);
        size_t n = newline ? (size_t)(newline - bytes) : len;
        size_t room = LINE_MAX_BYTES - o->partial.len;
        size_t part = n < room ? n : room;
        buf_add_bytes(&o->partial, bytes, part);
        bool ends = newline && part == n;
        if (ends || o->partial.len == LINE_MAX_BYTES) {
            hand_on(o, buf_text(&o->partial), o->partial.len);
            buf_clear(&o->partial);
        }
        bytes += part + ends;
        len -= part + ends;
    }
}

static void remember(struct output *o, const char *bytes, size_t len)
{
    if (len >= TAIL_BYTES) {
        memcpy(o->tail, bytes + len - TAIL_BYTES, TAIL_BYTES);
        o->tail_len = TAIL_BYTES;
        return;
    }
    size_t keep = o->tail_len + len > TAIL_BYTES ? TAIL_BYTES - len : o->tail_len;
    memmove(o->tail, o->tail + o->tail_len - keep, keep);
    memcpy(o->tail + keep, bytes, len);
    o->tail_len = keep + len;
}

static void log_write(struct output *o, int fd, const char *path, const char *bytes, size_t len)
{
    while (len > 0 && !o->log_failed) {
        ssize_t n = write(fd, bytes, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            struct error e = ERROR_INIT;
            o->log_failed = true;
            error_errno(&e, "write %s", path);
            o->failed(o->ctx, &e);
            return;
        }
        bytes += n;
        len -= (size_t)n;
    }
}

/* False at the end of the pipe or when nothing is there now. */
static bool take(struct output *o)
{
    char bytes[65536];
    ssize_t n = TEMP_FAILURE_RETRY(read(o->read_fd, bytes, sizeof bytes));
    if (n < 0)
        return false;
    if (n == 0) {
        loop_remove(o->source);
        o->source = NULL;
        return false;
    }
    log_write(o, o->log_fd, o->path, bytes, (size_t)n);
    if (o->copy_fd >= 0)
        log_write(o, o->copy_fd, o->copy_path, bytes, (size_t)n);
    remember(o, bytes, (size_t)n);
    split(o, bytes, (size_t)n);
    return true;
}

static void on_readable(void *ctx, int fd, unsigned events)
{
    (void)fd;
    (void)events;
    take(ctx); /* one piece a turn: a command that writes without end must not hold up the others */
}

int output_new(struct loop *loop, const char *path, output_line_fn *line, output_error_fn *failed, void *ctx,
               struct output **ret, int *ret_write_fd, struct error *e)
{
    int fds[2];
    auto_close int log_fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (log_fd < 0)
        return error_errno(e, "open %s", path);
    if (pipe2(fds, O_CLOEXEC) < 0)
        return error_errno(e, "make a pipe");
    auto_close int read_fd = fds[0], write_fd = fds[1];
    (void)fcntl(read_fd, F_SETFL, O_NONBLOCK); /* the reader's side alone: the command's stays blocking */
    struct output *o = xcalloc(1, sizeof *o);
    *o = (struct output){ .read_fd = read_fd, .log_fd = log_fd, .copy_fd = -1, .line = line, .failed = failed, .ctx = ctx,
                          .partial = BUF_INIT(LINE_MAX_BYTES + 1) };
    if (loop_add(loop, read_fd, LOOP_READ, on_readable, o, &o->source, e) < 0) {
        free(o);
        return -1;
    }
    o->path = xstrdup(path);
    TAKE_FD(read_fd);
    TAKE_FD(log_fd);
    *ret = o;
    *ret_write_fd = TAKE_FD(write_fd);
    return 0;
}

int output_copy(struct output *o, const char *path, struct error *e)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0)
        return error_errno(e, "open %s", path);
    o->copy_fd = fd;
    o->copy_path = xstrdup(path);
    return 0;
}

void output_drain(struct output *o)
{
    if (!o)
        return;
    for (int i = 0; i < 64 && take(o); i++) /* bounded: a process that escaped may write on */
        continue;
    if (o->partial.len) {
        hand_on(o, buf_text(&o->partial), o->partial.len);
        buf_clear(&o->partial);
    }
}

void output_tail(const struct output *o, char *ret_text, size_t size)
{
    ret_text[0] = '\0';
    if (o && size > 0)
        text_tail(o->tail, o->tail_len, o->tail_len == TAIL_BYTES, ret_text, size);
}

void output_free(struct output *o)
{
    if (!o)
        return;
    loop_remove(o->source);
    close(o->read_fd);
    close(o->log_fd);
    if (o->copy_fd >= 0)
        close(o->copy_fd);
    free(o->copy_path);
    free(o->path);
    buf_release(&o->partial);
    free(o);
}
