/*
 * websocket.h — the client's half of RFC 6455, as far as one channel needs it: the opening handshake and frames. Pure, bounded.
 *
 * Messages are texts. A fragmented message is put together; what is larger than `max` is an error, and so is everything that a
 * server must not send (masked frames, reserved bits, unknown opcodes, control frames that are cut or long).
 */
#ifndef SUPERVISE_WEBSOCKET_H
#define SUPERVISE_WEBSOCKET_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

#define WEBSOCKET_KEY_MAX 32
#define WEBSOCKET_HEAD_MAX 4096 /* of the server's answer */

struct websocket_url { char host[256], path[512]; int32_t port; bool secure; };

/* "ws://host[:port]/path" or "wss://..."; the host may be an IPv6 address in brackets. */
MUST_CHECK int websocket_parse_url(const char *text, struct websocket_url *ret_url, struct error *e);

/* A fresh Sec-WebSocket-Key, and the request that goes with it. */
MUST_CHECK int websocket_make_key(char ret_key[WEBSOCKET_KEY_MAX], struct error *e);
void websocket_request(const struct websocket_url *url, const char *key, const char *protocol, const char *bearer, struct buf *out);
/* Looks at what the server has sent so far: 0 = its head is not complete; else the bytes that belong to the head; -1 = refused
 * (ERROR_BUSY: with status 503, so try again; another of its kind may take it). */
MUST_CHECK int websocket_answer(const char *bytes, size_t len, const char *key, struct error *e);

enum websocket_opcode { WEBSOCKET_CONTINUED = 0, WEBSOCKET_TEXT = 1, WEBSOCKET_BINARY = 2, WEBSOCKET_CLOSE = 8, WEBSOCKET_PING = 9, WEBSOCKET_PONG = 10 };

/* One whole frame, masked as a client's must be, with random bytes of the caller's. */
void websocket_frame(enum websocket_opcode opcode, const void *bytes, size_t len, const uint8_t mask[4], struct buf *out);

struct websocket_frame { enum websocket_opcode opcode; bool is_last; const uint8_t *bytes; size_t len, consumed; };
/* 1: *ret_frame is the first frame in `bytes`, borrowed; 0: it is not complete; -1: what is there is no frame. */
MUST_CHECK int websocket_read(const uint8_t *bytes, size_t len, size_t max, struct websocket_frame *ret_frame, struct error *e);

#define WEBSOCKET_TRY_LATER 1013 /* RFC 6455, 7.4.2: a close code */
/* The words of a CLOSE frame; *ret_code is 0 when it gives none. Cut to fit. */
void websocket_close_reason(const struct websocket_frame *f, uint16_t *ret_code, char ret_text[128]);

#endif
