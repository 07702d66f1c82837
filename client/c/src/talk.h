/*
 * talk.h — messages with descriptors over the sidecar's unix socket, in the format of wire/local.h.
 *
 * u32 length, u16 type, u16 descriptors, payload; little endian. One thread reads (the one that attaches, then the
 * completion thread); any thread may send, under the client's send lock. Nothing that arrives is trusted: a payload over
 * TALK_MAX_PAYLOAD, more than TALK_MAX_FDS descriptors, or a count of descriptors that is not the one announced is a
 * broken channel.
 */
#ifndef CLIENT_TALK_H
#define CLIENT_TALK_H

#include <stddef.h>
#include <stdint.h>

#define TALK_HEADER 8u
#define TALK_MAX_PAYLOAD 65536u
#define TALK_MAX_FDS 8u

struct talk {
    int fd;
    size_t filled;            /* bytes of `bytes` that are there */
    int fds[2 * TALK_MAX_FDS]; /* arrived, not handed out yet */
    size_t fd_count;
    uint8_t bytes[TALK_HEADER + TALK_MAX_PAYLOAD];
};

struct talk_message {
    uint16_t type;
    uint32_t length;
    const uint8_t *payload;   /* followed by a NUL is not promised; valid until talk_drop */
    int fds[TALK_MAX_FDS]; /* the receiver's to close or to keep (then it writes -1 here) */
    size_t fd_count;
};

void talk_init(struct talk *c, int fd /* taken */);
void talk_close(struct talk *c);
/* Sends all or fails. Blocks for as long as the sidecar does not read. RM_OK or RM_PEER_LOST. */
int talk_send(struct talk *c, uint16_t type, const void *payload, size_t length);
/* Waits up to timeout_ms (0: do not, -1: for ever). 1: a message; 0: none yet; RM_PEER_LOST: closed or broken. */
int talk_receive(struct talk *c, int timeout_ms, struct talk_message *ret_message);
/* Done with the message that talk_receive gave: closes the descriptors that were not taken out of it. */
void talk_drop(struct talk *c, struct talk_message *message);

#endif
