/*
 * peer.h — what travels between sidecars over TCP: handshake, frame header, and the vocabulary of both channels.
 *
 * Each sidecar listens on one port. A connection begins with a mutual challenge under the job's key (HMAC-SHA256) that
 * binds job UID, purpose, member and fence; nothing is parsed before it is complete except these fixed-size structs. Then
 * come frames: a 40-byte header and a payload of header.length bytes. Little endian throughout.
 *
 * Purposes: CONTROL — member to coordinator; payloads are JSON objects (sidecar/supervise). ENGINE — member to rank 0 of a
 * formed group: announcements and go-lists (sidecar/ring). DATA — ring neighbour to ring neighbour: tensor chunks.
 * WATCH — rank to rank: beats (sidecar/ring/pulse.h).
 *
 * Every frame carries the fence (attempt << 32 | round). Lower than the receiver's own: answered by PEER_FENCED and closed.
 */
#ifndef WIRE_PEER_H
#define WIRE_PEER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define PEER_MAGIC 0x50524d52u /* "RMRP" */
#define PEER_VERSION 1u
#define PEER_HEADER_BYTES 40u
#define PEER_MAX_CONTROL (1u << 20)  /* payload ceiling of CONTROL and ENGINE frames */
#define PEER_MAX_DATA (8u << 20)     /* payload ceiling of DATA frames */
#define PEER_NONCE_BYTES 32
#define PEER_MEMBER_MAX 80           /* "worker-12" */
#define PEER_UID_MAX 64

#define FENCE(attempt, round) ((uint64_t)(uint32_t)(attempt) << 32 | (uint32_t)(round))
#define FENCE_ATTEMPT(fence) ((uint32_t)((fence) >> 32))
#define FENCE_ROUND(fence) ((uint32_t)(fence))

enum peer_purpose { PEER_CONTROL = 1, PEER_ENGINE = 2, PEER_DATA = 3, PEER_WATCH = 4 };

/* What follows the handshake. Both ends must want the same; the proofs cover it, so nobody can talk them out of it. */
enum peer_security { PEER_PLAIN = 0, PEER_TLS = 1 /* TLS 1.3 by a key made from the handshake: sidecar/ring/secure.h */ };

enum peer_type {
    PEER_FENCED = 1,          /* either way, then close: your fence is old; payload u64: mine */
    /* CONTROL, member → coordinator (JSON) */
    PEER_JOIN = 16, PEER_BEAT = 17, PEER_TRAINER = 18, PEER_RING = 19, PEER_PROGRESS = 20, PEER_CHECKPOINT = 21,
    PEER_DUMPED = 22,
    /* CONTROL, coordinator → member (JSON) */
    PEER_FORM = 32, PEER_START = 33, PEER_ABORT = 34, PEER_RELEASE = 35, PEER_LEAVE = 36, PEER_COMMAND = 37, PEER_HOSTS = 38,
    PEER_DUMP = 39,
    /* ENGINE (binary, sidecar/ring/negotiate.h) */
    PEER_ANNOUNCE = 64, PEER_GO = 65, PEER_OP_ERROR = 66,
    PEER_LEFT = 68,           /* member → rank 0: its training process has ended well, or is there again */
    PEER_LOST = 67,           /* either way: the group has ended; rank 0 passes it on to everyone, so all ranks say the same */
    /* DATA (raw elements) */
    PEER_CHUNK = 96,
    /* WATCH */
    PEER_PULSE = 128,         /* i64: the sender's wall clock, ns */
    PEER_ECHO = 129,          /* rank 0's answer: i64 that, i64 its own */
    PEER_PROBE = 130,         /* i32 rank: when did you hear it? */
    PEER_VOUCH = 131,         /* i32 rank, i32 ms since then */
    PEER_GOODBYE = 132,       /* {}: this sidecar ends */
};

struct peer_frame {
    uint16_t type;      /* enum peer_type */
    uint16_t flags;     /* ENGINE, DATA and WATCH: 0 or PEER_CHECKED; else 0 */
    uint32_t length;    /* payload bytes */
    uint64_t fence;
    uint64_t op;        /* DATA: sequence number of the operation; else 0 */
    uint32_t chunk;     /* DATA: step << 16 | piece; checked against the schedule */
    uint32_t payload_crc; /* with PEER_CHECKED: CRC32C of the payload; else 0 */
};
#define PEER_CHECKED 1u

/* Header: magic u32, type u16, flags u16, length u32, fence u64, op u64, chunk u32, payload_crc u32, crc32c of the 36 bytes before u32. */
void peer_frame_encode(const struct peer_frame *f, uint8_t ret_bytes[PEER_HEADER_BYTES]);
MUST_CHECK int peer_frame_decode(const uint8_t bytes[PEER_HEADER_BYTES], uint32_t max_length, struct peer_frame *ret_frame,
                                 struct error *e);

/* Handshake: initiator sends hello; acceptor answers challenge (its proof included); initiator sends proof. */
struct peer_hello {
    uint32_t magic, version;
    uint16_t purpose, security; /* enum peer_purpose; enum peer_security */
    uint32_t lane;              /* DATA: index of the flow to this neighbour, from 0 */
    uint64_t fence;
    char job_uid[PEER_UID_MAX];
    char member[PEER_MEMBER_MAX]; /* who I am */
    uint8_t nonce[PEER_NONCE_BYTES];
};
struct peer_challenge {
    uint32_t magic, version;
    uint64_t fence;
    char member[PEER_MEMBER_MAX];
    uint8_t nonce[PEER_NONCE_BYTES];
    uint8_t proof[32];          /* HMAC(key, "acceptor", hello, this up to nonce) */
};
struct peer_proof { uint8_t proof[32]; }; /* HMAC(key, "initiator", hello, challenge) */

/* An acceptor that cannot serve a hello at all answers with a challenge whose magic is PEER_REFUSAL and whose fence field is an
 * enum peer_refusal. It proves nothing, so the initiator takes it as a hint for its message and dials again. (An old fence is
 * refused by a proved challenge that carries the higher fence.) */
#define PEER_REFUSAL 0x58524d52u /* "RMRX" */
enum peer_refusal { PEER_OTHER_JOB = 1, PEER_OTHER_VERSION = 2, PEER_BAD_HELLO = 3, PEER_OTHER_SECURITY = 4 };

_Static_assert(sizeof(struct peer_hello) == 200 && sizeof(struct peer_challenge) == 160 && sizeof(struct peer_proof) == 32,
               "the handshake has no padding");

/* What can be said about the structs without a key: magic, version, purpose, terminated texts that hold no control characters.
 * ERROR_INVALID says what is wrong. Pure. */
MUST_CHECK int peer_hello_check(const struct peer_hello *h, struct error *e);
MUST_CHECK int peer_challenge_check(const struct peer_challenge *c, struct error *e);

/* Is `theirs` too old for a receiver that holds `mine`? ENGINE and DATA belong to one round: any lower fence is. A CONTROL
 * connection may come from a sidecar that was restarted and does not know the round yet: only a lower attempt is. */
bool peer_fence_is_old(enum peer_purpose purpose, uint64_t theirs, uint64_t mine);
/* "attempt 2, round 5". */
#define PEER_FENCE_TEXT_MAX 48
const char *peer_fence_text(uint64_t fence, char ret_text[PEER_FENCE_TEXT_MAX]);

#endif
