#include "base/ipc.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"

#define HEADER_BYTES 8u
#define READ_BYTES (64u << 10)
#define UNSENT_MAX (8u << 20)

/* Descriptors that came in wait here until the message that they belong to is complete; a peer cannot pile up more. */
#define PENDING_FDS (4 * IPC_MAX_FDS)

struct unsent_fds { size_t at; /* offset in `out` of the header that they go with */ int fds[IPC_MAX_FDS]; size_t count; struct unsent_fds *next; };

struct ipc {
    struct loop *loop;
    struct loop_source *source;
    int fd;
    ipc_fn *fn;
    void *ctx;
    struct buf in, out;
    int fds_in[PENDING_FDS];
    size_t fds_in_count;
    struct unsent_fds *fds_out;
    bool in_handler, freed;
};

static void put16(uint8_t *p, unsigned v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static void put32(uint8_t *p, uint32_t v)
{
    put16(p, v & 0xffff);
    put16(p + 2, v >> 16);
}

static uint32_t get16(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8;
}

static uint32_t get32(const uint8_t *p)
{
    return get16(p) | get16(p + 2) << 16;
}

static void close_fds(int *fds, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (fds[i] >= 0)
            (void)close(fds[i]);
    }
}

static void destroy(struct ipc *c)
{
    buf_release(&c->in);
    buf_release(&c->out);
    free(c);
}

void ipc_free(struct ipc *c)
{
    if (c == NULL || c->freed)
        return;
    c->freed = true;
    loop_remove(c->source);
    (void)close(c->fd);
    close_fds(c->fds_in, c->fds_in_count);
    while (c->fds_out != NULL) {
        struct unsent_fds *u = c->fds_out;
        c->fds_out = u->next;
        close_fds(u->fds, u->count);
        free(u);
    }
    if (!c->in_handler)
        destroy(c);
}

/* Tells the handler that the connection is over. The handler frees it, now or inside. */
static void closed(struct ipc *c, const struct error *why)
{
    c->fn(c->ctx, c, NULL, why);
}

/* ---- in ---- */

static int receive(struct ipc *c, bool *ret_end, struct error *e)
{
    uint8_t bytes[READ_BYTES];
    union { char space[CMSG_SPACE(sizeof(int) * IPC_MAX_FDS)]; struct cmsghdr align; } control;
    struct iovec iov = { .iov_base = bytes, .iov_len = sizeof bytes };
    struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.space, .msg_controllen = sizeof control.space };

    *ret_end = false;
    ssize_t n = recvmsg(c->fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : error_errno(e, "read from the socket");

    for (struct cmsghdr *m = CMSG_FIRSTHDR(&message); m != NULL; m = CMSG_NXTHDR(&message, m)) {
        if (m->cmsg_level != SOL_SOCKET || m->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (m->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        int fds[IPC_MAX_FDS];
        memcpy(fds, CMSG_DATA(m), count * sizeof(int));
        if (c->fds_in_count + count > PENDING_FDS) {
            close_fds(fds, count);
            return error_set(e, ERROR_INVALID, "more descriptors than messages that need them");
        }
        memcpy(c->fds_in + c->fds_in_count, fds, count * sizeof(int));
        c->fds_in_count += count;
    }
    if (message.msg_flags & MSG_CTRUNC)
        return error_set(e, ERROR_INVALID, "more than %d descriptors in one message", IPC_MAX_FDS);
    *ret_end = n == 0;
    buf_add_bytes(&c->in, bytes, (size_t)n);
    return 0;
}

/* Hands out every complete message. Returns -1 on a malformed one; stops when the handler freed the connection. */
static int dispatch(struct ipc *c, struct error *e)
{
    while (!c->freed && c->in.len >= HEADER_BYTES) {
        const uint8_t *p = (const uint8_t *)c->in.text;
        uint32_t len = get32(p);
        size_t fd_count = get16(p + 6);

        if (len > IPC_MAX_PAYLOAD || fd_count > IPC_MAX_FDS)
            return error_set(e, ERROR_INVALID, "a message of %u bytes and %zu descriptors is over the limit", len, fd_count);
        if (c->in.len < HEADER_BYTES + len)
            return 0;
        if (fd_count > c->fds_in_count)
            return error_set(e, ERROR_INVALID, "a message names %zu descriptors and %zu came", fd_count, c->fds_in_count);

        struct ipc_message message = { .type = (uint16_t)get16(p + 4), .bytes = p + HEADER_BYTES, .len = len, .fd_count = fd_count };
        memcpy(message.fds, c->fds_in, fd_count * sizeof(int));
        c->fds_in_count -= fd_count;
        memmove(c->fds_in, c->fds_in + fd_count, c->fds_in_count * sizeof(int));

        c->fn(c->ctx, c, &message, NULL);
        close_fds(message.fds, fd_count);
        if (!c->freed)
            buf_consume(&c->in, HEADER_BYTES + len);
    }
    return 0;
}

/* ---- out ---- */

static int send_some(struct ipc *c, bool *ret_again, struct error *e)
{
    size_t len = c->out.len;
    union { char space[CMSG_SPACE(sizeof(int) * IPC_MAX_FDS)]; struct cmsghdr align; } control;
    struct msghdr message = { 0 };
    struct unsent_fds *u = c->fds_out;

    /* Descriptors travel with the first byte of their header: send up to it, then from it. */
    if (u != NULL && u->at > 0) {
        len = u->at;
        u = NULL;
    } else if (u != NULL && u->next != NULL) {
        len = u->next->at;
    }
    struct iovec iov = { .iov_base = c->out.text, .iov_len = len };
    message.msg_iov = &iov;
    message.msg_iovlen = 1;
    if (u != NULL) {
        memset(&control, 0, sizeof control);
        message.msg_control = control.space;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * u->count);
        struct cmsghdr *m = CMSG_FIRSTHDR(&message);
        m->cmsg_level = SOL_SOCKET;
        m->cmsg_type = SCM_RIGHTS;
        m->cmsg_len = CMSG_LEN(sizeof(int) * u->count);
        memcpy(CMSG_DATA(m), u->fds, sizeof(int) * u->count);
    }
    ssize_t n = sendmsg(c->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) {
        *ret_again = errno == EINTR;
        return errno == EAGAIN || errno == EINTR ? 0 : error_errno(e, "write to the socket");
    }
    if (u != NULL) {
        c->fds_out = u->next;
        close_fds(u->fds, u->count);
        free(u);
    }
    buf_consume(&c->out, (size_t)n);
    for (struct unsent_fds *f = c->fds_out; f != NULL; f = f->next)
        f->at -= (size_t)n;
    *ret_again = true;
    return 0;
}

static int flush(struct ipc *c, struct error *e)
{
    bool again = true;

    while (again && c->out.len > 0) {
        again = false;
        if (send_some(c, &again, e) != 0)
            return -1;
    }
    loop_set(c->source, LOOP_READ | (c->out.len > 0 ? LOOP_WRITE : 0));
    return 0;
}

int ipc_send(struct ipc *c, uint16_t type, const void *bytes, size_t len, const int *fds, size_t fd_count, struct error *e)
{
    uint8_t header[HEADER_BYTES];

    if (c->freed)
        return error_set(e, ERROR_IO, "the connection is closed");
    if (len > IPC_MAX_PAYLOAD || fd_count > IPC_MAX_FDS)
        return error_set(e, ERROR_LIMIT, "a message of %zu bytes and %zu descriptors is over the limit", len, fd_count);
    if (c->out.len + HEADER_BYTES + len > UNSENT_MAX)
        return error_set(e, ERROR_LIMIT, "the peer does not read: %zu bytes wait", c->out.len);
    if (fd_count > 0) {
        struct unsent_fds *u = xcalloc(1, sizeof *u), **last = &c->fds_out;
        u->at = c->out.len;
        for (size_t i = 0; i < fd_count; i++) {
            u->fds[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 0);
            if (u->fds[i] < 0) {
                (void)error_errno(e, "duplicate descriptor %d", fds[i]);
                close_fds(u->fds, i);
                free(u);
                return -1;
            }
        }
        u->count = fd_count;
        while (*last != NULL)
            last = &(*last)->next;
        *last = u;
    }
    put32(header, (uint32_t)len);
    put16(header + 4, type);
    put16(header + 6, (unsigned)fd_count);
    buf_add_bytes(&c->out, header, sizeof header);
    buf_add_bytes(&c->out, bytes, len);

    /* An error while sending is reported by the read side, where the handler can free the connection safely. */
    struct error ignored = ERROR_INIT;
    (void)flush(c, &ignored);
    return 0;
}

/* False when the connection is over and c is no more. */
static bool handle(struct ipc *c, unsigned events)
{
    struct error e = ERROR_INIT;
    bool end = false;
    int result = 0;

    c->in_handler = true;
    if (events & LOOP_WRITE)
        result = flush(c, &e);
    if (result == 0 && events & (LOOP_READ | LOOP_HANGUP))
        result = receive(c, &end, &e);
    if (!c->freed && c->in.len > 0) {
        struct error malformed = ERROR_INIT;
        if (dispatch(c, &malformed) != 0 && result == 0) {
            e = malformed;
            result = -1;
        }
    }
    if (!c->freed && (result != 0 || end)) {
        if (end && c->in.len > 0 && result == 0)
            (void)error_set(&e, ERROR_INVALID, "the connection ended in the middle of a message");
        closed(c, &e);
    }
    c->in_handler = false;
    if (!c->freed)
        return true;
    destroy(c);
    return false;
}

static void on_io(void *ctx, int fd, unsigned events)
{
    (void)fd;
    (void)handle(ctx, events);
}

void ipc_drain(struct ipc *c)
{
    struct pollfd ready = { .fd = c->fd, .events = POLLIN };

    while (poll(&ready, 1, 0) > 0 && handle(c, LOOP_READ))
        continue;
}

int ipc_new(struct loop *l, int fd, ipc_fn *fn, void *ctx, struct ipc **ret, struct error *e)
{
    auto_free struct ipc *c = xcalloc(1, sizeof *c);

    *c = (struct ipc){ .loop = l, .fd = fd, .fn = fn, .ctx = ctx };
    c->in = (struct buf)BUF_INIT(IPC_MAX_PAYLOAD + HEADER_BYTES + READ_BYTES);
    c->out = (struct buf)BUF_INIT(UNSENT_MAX);
    if (loop_add(l, fd, LOOP_READ, on_io, c, &c->source, e) != 0)
        return -1;
    *ret = TAKE(c);
    return 0;
}

pid_t ipc_peer_pid(const struct ipc *c)
{
    struct ucred cred = { 0 };
    socklen_t len = sizeof cred;

    return getsockopt(c->fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) == 0 ? cred.pid : -1;
}

bool ipc_flushed(const struct ipc *c)
{
    return c->out.len == 0;
}

/* ---- sockets ---- */

static int address_of(const char *path, struct sockaddr_un *ret_address, struct error *e)
{
    *ret_address = (struct sockaddr_un){ .sun_family = AF_UNIX };
    if (strlen(path) >= sizeof ret_address->sun_path)
        return error_set(e, ERROR_INVALID, "socket path %s is longer than the %zu characters that the system allows", path,
                         sizeof ret_address->sun_path - 1);
    memcpy(ret_address->sun_path, path, strlen(path) + 1);
    return 0;
}

int ipc_listen(const char *path, int *ret_fd, struct error *e)
{
    struct sockaddr_un address;
    if (address_of(path, &address, e) != 0)
        return -1;

    auto_close int probe = -1;
    struct error ignored = ERROR_INIT;
    if (ipc_connect(path, &probe, &ignored) == 0 || ignored.kind == ERROR_BUSY)
        return error_set(e, ERROR_CONFLICT, "somebody listens on %s already", path);
    struct stat st;
    if (lstat(path, &st) == 0 && !S_ISSOCK(st.st_mode))
        return error_set(e, ERROR_CONFLICT, "%s is there and is no socket", path);
    (void)unlink(path);

    auto_close int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return error_errno(e, "make a unix socket");
    mode_t old = umask(0177);
    int code = bind(fd, (struct sockaddr *)&address, sizeof address);
    (void)umask(old);
    if (code != 0)
        return error_errno(e, "bind %s", path);
    if (listen(fd, 64) != 0)
        return error_errno(e, "listen on %s", path);
    *ret_fd = TAKE_FD(fd);
    return 0;
}

int ipc_connect(const char *path, int *ret_fd, struct error *e)
{
    struct sockaddr_un address;
    if (address_of(path, &address, e) != 0)
        return -1;

    auto_close int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return error_errno(e, "make a unix socket");
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        if (errno == EAGAIN) /* a blocking socket would wait until one of them is accepted */
            return error_set(e, ERROR_BUSY, "connect to %s: too many others wait there", path);
        return error_errno(e, "connect to %s", path);
    }
    *ret_fd = TAKE_FD(fd);
    return 0;
}
