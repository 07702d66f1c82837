/*
 * ipc.h — length-prefixed messages over a unix stream socket, with descriptors (SCM_RIGHTS).
 *
 * Header on the wire, little endian: u32 length of the payload, u16 type, u16 number of descriptors. The payload is at most
 * IPC_MAX_PAYLOAD; at most IPC_MAX_FDS descriptors. Non-blocking: unsent bytes wait in the connection, up to a ceiling.
 * Used by the launcher, the sidecar and the runner; the client library has its own small blocking reader of the same
 * format. Not thread-safe.
 */
#ifndef BASE_IPC_H
#define BASE_IPC_H

#include <stddef.h>
#include <stdint.h>
#include <stdbool.h>

#include "base/error.h"
#include "base/loop.h"

#define IPC_MAX_PAYLOAD (1u << 20)
#define IPC_MAX_FDS 8

struct ipc; /* one connection */

struct ipc_message {
    uint16_t type;
    const uint8_t *bytes; /* borrowed for the call */
    size_t len;
    int fds[IPC_MAX_FDS]; /* owned by the connection: what the handler wants to keep it takes with TAKE_FD */
    size_t fd_count;
};

/* Called for each message; `message` NULL means that the connection is closed (why says so, ERROR_NONE for a clean end):
 * the handler must then call ipc_free and not touch it again. */
typedef void ipc_fn(void *ctx, struct ipc *c, struct ipc_message *message, const struct error *why);

MUST_CHECK int ipc_new(struct loop *l, int fd /* taken on success */, ipc_fn *fn, void *ctx, struct ipc **ret, struct error *e);
/* Descriptors are duplicated by the kernel: the caller keeps its own. Fails with ERROR_LIMIT when the peer does not read. */
MUST_CHECK int ipc_send(struct ipc *c, uint16_t type, const void *bytes, size_t len, const int *fds, size_t fd_count,
                        struct error *e);
pid_t ipc_peer_pid(const struct ipc *c); /* SO_PEERCRED */
bool ipc_flushed(const struct ipc *c);   /* nothing waits to be sent */
/* Handles what has arrived already, as the loop would do later: for a caller that has learnt by another way that the other end
 * is gone. The connection may end in it (its handler is told). Not from inside the connection's own handler. */
void ipc_drain(struct ipc *c);
void ipc_free(struct ipc *c);            /* closes; NULL is fine; may be called from the handler */

MUST_CHECK int ipc_listen(const char *path, int *ret_fd, struct error *e);  /* mode 0600; replaces a dead socket file */
/* Never blocks: ERROR_BUSY when too many wait to be accepted already. */
MUST_CHECK int ipc_connect(const char *path, int *ret_fd, struct error *e);

#endif
