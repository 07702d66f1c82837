/*
 * channel.h — messages with descriptors over the sidecar's unix socket, in the format of wire/local.h.
 *
 * u32 length, u16 type, u16 descriptors, payload; little endian. One thread reads (the one that attaches, then the
 * completion thread); any thread may send, under the client's send lock. Nothing that arrives is trusted: a payload over
 * CHANNEL_MAX_PAYLOAD, more than CHANNEL_MAX_FDS descriptors, or a count of descriptors that is not the one announced is a
 * broken channel.
 */
#ifndef CLIENT_CHANNEL_H
#define CLIENT_CHANNEL_H

#include <stddef.h>
#include <stdint.h>

#define CHANNEL_HEADER 8u
#define CHANNEL_MAX_PAYLOAD 65536u
#define CHANNEL_MAX_FDS 8u

struct channel {
    int fd;
    size_t filled;            /* bytes of `bytes` that are there */
    int fds[2 * CHANNEL_MAX_FDS]; /* arrived, not handed out yet */
    size_t fd_count;
    uint8_t bytes[CHANNEL_HEADER + CHANNEL_MAX_PAYLOAD];
};

struct channel_message {
    uint16_t type;
    uint32_t length;
    const uint8_t *payload;   /* followed by a NUL is not promised; valid until channel_drop */
    int fds[CHANNEL_MAX_FDS]; /* the receiver's to close or to keep (then it writes -1 here) */
    size_t fd_count;
};

void channel_init(struct channel *c, int fd /* taken */);
void channel_close(struct channel *c);
/* Sends all or fails. Blocks for as long as the sidecar does not read. RM_OK or RM_PEER_LOST. */
int channel_send(struct channel *c, uint16_t type, const void *payload, size_t length);
/* Waits up to timeout_ms (0: do not, -1: for ever). 1: a message; 0: none yet; RM_PEER_LOST: closed or broken. */
int channel_receive(struct channel *c, int timeout_ms, struct channel_message *ret_message);
/* Done with the message that channel_receive gave: closes the descriptors that were not taken out of it. */
void channel_drop(struct channel *c, struct channel_message *message);

#endif
