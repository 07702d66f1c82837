#include "talk.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "ringmaster.h"
#include "text.h"

void talk_init(struct talk *c, int fd)
{
    memset(c, 0, sizeof(*c));
    c->fd = fd;
}

void talk_close(struct talk *c)
{
    for (size_t i = 0; i < c->fd_count; i++)
        close(c->fds[i]);
    c->fd_count = 0;
    c->filled = 0;
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
}

int talk_send(struct talk *c, uint16_t type, const void *payload, size_t length)
{
    if (length > TALK_MAX_PAYLOAD)
        return text_fail(RM_INVALID, "a message of %zu bytes to the sidecar is over %u bytes", length, TALK_MAX_PAYLOAD);
    uint8_t header[TALK_HEADER] = { 0 };
    uint32_t length32 = (uint32_t)length;
    memcpy(header, &length32, 4);
    memcpy(header + 4, &type, 2);
    size_t sent = 0, total = sizeof(header) + length;
    while (sent < total) {
        struct iovec parts[2];
        size_t count = 0;
        if (sent < sizeof(header))
            parts[count++] = (struct iovec){ header + sent, sizeof(header) - sent };
        size_t skip = sent < sizeof(header) ? 0 : sent - sizeof(header);
        if (skip < length)
            parts[count++] = (struct iovec){ (uint8_t *)(uintptr_t)payload + skip, length - skip };
        struct msghdr m = { .msg_iov = parts, .msg_iovlen = count };
        ssize_t n = sendmsg(c->fd, &m, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return text_fail(RM_PEER_LOST, "the sidecar is gone: %s", strerror(errno));
        sent += (size_t)n;
    }
    return RM_OK;
}

/* One recvmsg into the buffer. 1: something came; 0: nothing now; negative: gone. */
static int fill(struct talk *c, size_t want)
{
    union { struct cmsghdr align; char bytes[CMSG_SPACE(sizeof(int) * TALK_MAX_FDS)]; } control;
    struct iovec part = { c->bytes + c->filled, want - c->filled };
    struct msghdr m = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control) };
    ssize_t n = recvmsg(c->fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : text_fail(RM_PEER_LOST, "the sidecar is gone: %s", strerror(errno));
    bool too_many = (m.msg_flags & MSG_CTRUNC) != 0;
    for (struct cmsghdr *h = CMSG_FIRSTHDR(&m); h != NULL; h = CMSG_NXTHDR(&m, h)) {
        if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(h) + i * sizeof(int), sizeof(int));
            if (c->fd_count < sizeof(c->fds) / sizeof(c->fds[0])) {
                c->fds[c->fd_count++] = fd;
            } else {
                close(fd);
                too_many = true;
            }
        }
    }
    if (too_many)
        return text_fail(RM_PEER_LOST, "the sidecar sent more descriptors than a message can have");
    if (n == 0)
        return text_fail(RM_PEER_LOST, "the sidecar closed the connection");
    c->filled += (size_t)n;
    return 1;
}

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

int talk_receive(struct talk *c, int timeout_ms, struct talk_message *ret_message)
{
    int64_t deadline = timeout_ms < 0 ? -1 : now_ms() + timeout_ms;
    for (;;) {
        uint32_t length = 0;
        uint16_t type = 0, fd_count = 0;
        size_t want = TALK_HEADER;
        if (c->filled >= TALK_HEADER) {
            memcpy(&length, c->bytes, 4);
            memcpy(&type, c->bytes + 4, 2);
            memcpy(&fd_count, c->bytes + 6, 2);
            if (length > TALK_MAX_PAYLOAD || fd_count > TALK_MAX_FDS)
                return text_fail(RM_PEER_LOST, "the sidecar sent a bad message (type %u, %u bytes, %u descriptors)", type, length,
                                 fd_count);
            want += length;
        }
        if (c->filled == want && want >= TALK_HEADER && c->filled >= TALK_HEADER) {
            if (c->fd_count < fd_count)
                return text_fail(RM_PEER_LOST, "the sidecar announced %u descriptors and sent %zu", fd_count, c->fd_count);
            *ret_message = (struct talk_message){ .type = type, .length = length, .payload = c->bytes + TALK_HEADER,
                                                     .fd_count = fd_count };
            memcpy(ret_message->fds, c->fds, fd_count * sizeof(int));
            c->fd_count -= fd_count;
            memmove(c->fds, c->fds + fd_count, c->fd_count * sizeof(int));
            return 1;
        }
        int got = fill(c, want);
        if (got != 0) {
            if (got < 0)
                return got;
            continue;
        }
        int64_t left = deadline < 0 ? -1 : deadline - now_ms();
        if (deadline >= 0 && left <= 0)
            return 0;
        struct pollfd p = { .fd = c->fd, .events = POLLIN };
        (void)poll(&p, 1, (int)left);
    }
}

void talk_drop(struct talk *c, struct talk_message *message)
{
    for (size_t i = 0; i < message->fd_count; i++)
        if (message->fds[i] >= 0)
            close(message->fds[i]);
    message->fd_count = 0;
    c->filled = 0;
}
