/*
 * stream.h — frames with small payloads over one connection (the ENGINE channel): what is sent waits in memory when the kernel has
 * no room, what is received is handed on frame by frame. One fence: frames of another one end the stream.
 */
#ifndef SIDECAR_RING_STREAM_H
#define SIDECAR_RING_STREAM_H

#include "base/buf.h"
#include "base/loop.h"
#include "wire/peer.h"

/* ---- pure: bytes to frames, however they were cut ---- */

struct frame_reader { struct buf bytes; size_t handed_out; /* bytes of the frame given last */ };
#define FRAME_READER_INIT { .bytes = BUF_INIT(PEER_HEADER_BYTES + PEER_MAX_CONTROL + 65536), .handed_out = 0 }

/* Adds what was read. 1: *ret_frame and *ret_payload (borrowed until the next call) hold a frame, call again with len 0 for more;
 * 0: needs more; -1: the bytes are no frames. */
MUST_CHECK int frame_reader_next(struct frame_reader *r, const void *bytes, size_t len, struct peer_frame *ret_frame,
                                 const uint8_t **ret_payload, struct error *e);
void frame_reader_release(struct frame_reader *r);

/* ---- on a loop ---- */

struct stream;

/* frame NULL: the stream has ended, why says so (ERROR_PEER_LOST: the connection is gone; ERROR_GONE: the other end says that our
 * fence is old; else: it sent what it must not). Then, and only then, the handler may call stream_free, and must not use it again. */
typedef void stream_fn(void *ctx, struct stream *s, const struct peer_frame *frame, const uint8_t *payload, const struct error *why);

/* fd is taken on success. */
MUST_CHECK int stream_new(struct loop *l, int fd, uint64_t fence, stream_fn *fn, void *ctx, struct stream **ret, struct error *e);
/* Never fails here: a connection that is gone or does not read is reported by the handler, from the loop. */
void stream_send(struct stream *s, enum peer_type type, const void *bytes, size_t len);
void stream_free(struct stream *s); /* closes; NULL is fine; not from inside the handler of a frame */

#endif
