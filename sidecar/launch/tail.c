#include "sidecar/launch/tail.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"

#define KEPT_BYTES 4096
#define LEFT_MAX_BYTES (4u << 20) /* more than a pipe can hold at its end */
#define TURNS_MAX 16
#define PAUSE_MS 5

struct tail {
    struct loop *loop;
    struct loop_source *source; /* NULL: no process writes */
    struct loop_timer *resume;  /* stderr was full */
    int read_fd, write_fd;
    struct buf left;            /* read from a process that has ended, and not handed on yet */
    size_t left_at;
    char kept[KEPT_BYTES];
    size_t kept_len;
    bool cut;
    uint64_t bytes;
};

static void keep(struct tail *t, const char *bytes, size_t len)
{
    size_t room = KEPT_BYTES - t->kept_len;

    t->bytes += len;
    if (len > room) {
        size_t drop = len - room < t->kept_len ? len - room : t->kept_len;
        memmove(t->kept, t->kept + drop, t->kept_len - drop);
        t->kept_len -= drop;
        t->cut = true;
    }
    size_t take = len < KEPT_BYTES ? len : KEPT_BYTES;
    memcpy(t->kept + t->kept_len, bytes + (len - take), take);
    t->kept_len += take;
}

/* POLLOUT of a pipe means that PIPE_BUF bytes fit; files are always ready. */
static bool is_ready(int timeout_ms)
{
    struct pollfd p = { .fd = STDERR_FILENO, .events = POLLOUT };

    return poll(&p, 1, timeout_ms) == 1;
}

/* False: nobody reads any more, or the disk is full. */
static bool hand_on(const char *bytes, size_t len)
{
    while (len > 0) {
        ssize_t n = write(STDERR_FILENO, bytes, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN) {
            (void)is_ready(-1);
            continue;
        }
        if (n <= 0)
            return false;
        bytes += n;
        len -= (size_t)n;
    }
    return true;
}

static void close_pipe(struct tail *t)
{
    loop_remove(t->source);
    t->source = NULL;
    cleanup_close(&t->read_fd);
    t->read_fd = -1;
}

static void drop_left(struct tail *t)
{
    buf_release(&t->left);
    t->left = (struct buf)BUF_INIT(LEFT_MAX_BYTES);
    t->left_at = 0;
}

/* True when nothing of an earlier process is left. */
static bool hand_on_left(struct tail *t, int timeout_ms)
{
    while (t->left_at < t->left.len) {
        size_t rest = t->left.len - t->left_at, len = rest < PIPE_BUF ? rest : PIPE_BUF;
        if (!is_ready(timeout_ms))
            return false;
        if (!hand_on(t->left.text + t->left_at, len))
            break;
        t->left_at += len;
    }
    drop_left(t);
    return true;
}

static void pause_reading(struct tail *t)
{
    if (t->source != NULL)
        loop_set(t->source, 0);
    loop_timer_at(t->resume, clock_mono_ms() + PAUSE_MS);
}

static void on_readable(void *ctx, int fd, unsigned events)
{
    struct tail *t = ctx;
    char bytes[PIPE_BUF];

    (void)events;
    for (int turn = 0; turn < TURNS_MAX; turn++) {
        if (!hand_on_left(t, 0) || !is_ready(0)) {
            pause_reading(t);
            return;
        }
        ssize_t n = read(fd, bytes, sizeof bytes);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0) {
            close_pipe(t);
            return;
        }
        keep(t, bytes, (size_t)n);
        if (!hand_on(bytes, (size_t)n)) {
            close_pipe(t); /* the process gets SIGPIPE, as it would from the reader itself */
            return;
        }
    }
}

static void resume(void *ctx)
{
    struct tail *t = ctx;

    if (!hand_on_left(t, 0))
        pause_reading(t);
    else if (t->source != NULL)
        loop_set(t->source, LOOP_READ);
}

struct tail *tail_new(struct loop *l)
{
    struct tail *t = xcalloc(1, sizeof *t);

    *t = (struct tail){ .loop = l, .read_fd = -1, .write_fd = -1, .left = BUF_INIT(LEFT_MAX_BYTES) };
    t->resume = loop_timer_new(l, resume, t);
    return t;
}

static bool are_one_file(int a, int b)
{
    struct stat x, y;

    return fstat(a, &x) == 0 && fstat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

struct tail_ends tail_begin(struct tail *t)
{
    struct tail_ends none = { -1, -1 };
    struct error e = ERROR_INIT;
    int ends[2];

    t->kept_len = 0;
    t->cut = false;
    if (isatty(STDERR_FILENO) == 1)
        return none;
    if (pipe2(ends, O_CLOEXEC) != 0) {
        (void)error_errno(&e, "make a pipe");
        log_warn_from("the end of what the process writes will not be in the report of a failure", &e);
        return none;
    }
    t->read_fd = ends[0];
    t->write_fd = ends[1];
    if (fcntl(t->read_fd, F_SETFL, O_NONBLOCK) != 0 || loop_add(t->loop, t->read_fd, LOOP_READ, on_readable, t, &t->source, &e) != 0) {
        tail_started(t);
        close_pipe(t);
        return none;
    }
    return (struct tail_ends){ .out = are_one_file(STDOUT_FILENO, STDERR_FILENO) ? t->write_fd : -1, .err = t->write_fd };
}

void tail_started(struct tail *t)
{
    cleanup_close(&t->write_fd);
    t->write_fd = -1;
}

void tail_end(struct tail *t)
{
    char bytes[PIPE_BUF];
    ssize_t n;

    while (t->source != NULL) {
        do
            n = read(t->read_fd, bytes, sizeof bytes);
        while (n < 0 && errno == EINTR);
        if (n <= 0)
            break; /* its end, or one who has escaped holds it open */
        keep(t, bytes, (size_t)n);
        buf_add_bytes(&t->left, bytes, (size_t)n);
    }
    close_pipe(t);
    resume(t);
}

void tail_text(const struct tail *t, char *ret_text, size_t size)
{
    text_tail(t->kept, t->kept_len, t->cut, ret_text, size);
}

uint64_t tail_bytes(const struct tail *t)
{
    return t->bytes;
}

void tail_flush(struct tail *t, int limit_ms)
{
    int64_t until = clock_mono_ms() + limit_ms;

    while (!hand_on_left(t, 50) && clock_mono_ms() < until)
        continue;
}

void tail_free(struct tail *t)
{
    if (t == NULL)
        return;
    tail_started(t);
    close_pipe(t);
    loop_timer_free(t->resume);
    buf_release(&t->left);
    free(t);
}
