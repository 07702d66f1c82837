/*
 * descriptors.h — bytes and open files through a unix socket, for tests that play one end of the sidecar's socket (wire/local.h).
 */
#ifndef TESTS_DESCRIPTORS_H
#define TESTS_DESCRIPTORS_H

#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define DESCRIPTORS_MAX 32

/* Bytes that were sent, as sendmsg; count: up to DESCRIPTORS_MAX, which stay the caller's. */
static inline ssize_t send_with_descriptors(int to, const void *bytes, size_t length, const int *fds, size_t count)
{
    union { struct cmsghdr align; char bytes[CMSG_SPACE(DESCRIPTORS_MAX * sizeof(int))]; } control = { .bytes = { 0 } };
    struct iovec part = { (void *)(uintptr_t)bytes, length };
    struct msghdr m = { .msg_iov = &part, .msg_iovlen = 1 };
    if (count > 0) {
        m.msg_control = control.bytes;
        m.msg_controllen = CMSG_SPACE(count * sizeof(int));
        struct cmsghdr *h = CMSG_FIRSTHDR(&m);
        h->cmsg_level = SOL_SOCKET;
        h->cmsg_type = SCM_RIGHTS;
        h->cmsg_len = CMSG_LEN(count * sizeof(int));
        memcpy(CMSG_DATA(h), fds, count * sizeof(int));
    }
    return sendmsg(to, &m, MSG_NOSIGNAL);
}

#endif
