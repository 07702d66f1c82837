#include "cli/control.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/ipc.h"
#include "base/mem.h"

struct control {
    struct loop *loop;
    int listen_fd, fd;           /* fd -1: no coordinator */
    struct loop_source *listen_source, *source;
    struct buf line;
    const char *job_uid;
    control_report_fn *report;
    control_note_fn *note;
    void *ctx;
};

static void hang_up(struct control *c)
{
    if (c->fd < 0)
        return;
    loop_remove(c->source);
    c->source = NULL;
    close(TAKE_FD(c->fd));
    buf_clear(&c->line);
}

static void notef(struct control *c, const char *what, const char *why)
{
    char text[400];
    snprintf(text, sizeof text, "%s: %s", what, why);
    c->note(c->ctx, text);
}

static void take_line(struct control *c, const char *text, size_t len)
{
    struct error e = ERROR_INIT;
    struct coordinator_report r;
    if (len == 0)
        return;
    if (report_decode(text, len, &r, &e) < 0) {
        notef(c, "a report of the coordinator cannot be read", e.text);
        return;
    }
    if (strcmp(r.job_uid, c->job_uid) == 0)
        c->report(c->ctx, &r, text, len);
    else
        notef(c, "a report was dropped", "it is of another job");
    report_release(&r);
}

static void take_lines(struct control *c)
{
    size_t from = 0;
    const char *text = buf_text(&c->line);
    for (const char *newline; (newline = memchr(text + from, '\n', c->line.len - from)) != NULL;) {
        size_t end = (size_t)(newline - text);
        take_line(c, text + from, end - from);
        from = end + 1;
    }
    buf_consume(&c->line, from);
}

static void on_readable(void *ctx, int fd, unsigned events)
{
    struct control *c = ctx;
    char bytes[65536];
    (void)events;
    ssize_t n = TEMP_FAILURE_RETRY(recv(fd, bytes, sizeof bytes, MSG_DONTWAIT));
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return;
    if (n <= 0) {
        hang_up(c);
        return;
    }
    buf_add_bytes(&c->line, bytes, (size_t)n);
    if (!buf_ok(&c->line)) {
        notef(c, "the coordinator was hung up on", "its report is too long");
        hang_up(c);
        buf_release(&c->line);
        c->line = (struct buf)BUF_INIT(CONTROL_LINE_MAX);
        return;
    }
    take_lines(c);
}

static void on_connection(void *ctx, int fd, unsigned events)
{
    struct control *c = ctx;
    struct error e = ERROR_INIT;
    (void)events;
    auto_close int new_fd = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (new_fd < 0)
        return;
    hang_up(c);
    if (loop_add(c->loop, new_fd, LOOP_READ, on_readable, c, &c->source, &e) < 0) {
        notef(c, "the coordinator cannot be heard", e.text);
        return;
    }
    c->fd = TAKE_FD(new_fd);
}

int control_new(struct loop *loop, const char *path, const char *job_uid, control_report_fn *report, control_note_fn *note,
                void *ctx, struct control **ret, struct error *e)
{
    auto_close int fd = -1;
    if (ipc_listen(path, &fd, e) < 0)
        return -1;
    struct control *c = xcalloc(1, sizeof *c);
    *c = (struct control){ .loop = loop, .listen_fd = fd, .fd = -1, .line = BUF_INIT(CONTROL_LINE_MAX), .job_uid = job_uid,
                           .report = report, .note = note, .ctx = ctx };
    if (loop_add(loop, fd, LOOP_READ, on_connection, c, &c->listen_source, e) < 0) {
        free(c);
        return -1;
    }
    TAKE_FD(fd);
    *ret = c;
    return 0;
}

bool control_command(struct control *c, enum report_command command, int64_t number)
{
    if (c->fd < 0)
        return false;
    auto_free char *text = report_command_encode(command, number);
    auto_free char *line = xasprintf("%s\n", text);
    size_t len = strlen(line);
    /* A few bytes into an empty socket buffer: what does not fit means that nobody reads there. */
    return send(c->fd, line, len, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)len;
}

void control_free(struct control *c)
{
    if (!c)
        return;
    hang_up(c);
    loop_remove(c->listen_source);
    close(c->listen_fd);
    buf_release(&c->line);
    free(c);
}
