#include "wire/peer.h"

#include <stdio.h>
#include <string.h>

#include "base/crc.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the handshake structs travel as they lie in memory");

enum {
    AT_MAGIC = 0,
    AT_TYPE = 4,
    AT_FLAGS = 6,
    AT_LENGTH = 8,
    AT_FENCE = 12,
    AT_OP = 20,
    AT_CHUNK = 28,
    AT_RESERVED = 32,
    AT_CRC = 36,
};
_Static_assert(AT_CRC + sizeof(uint32_t) == PEER_HEADER_BYTES, "the checksum ends the header");

static void put(uint8_t *at, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t get(const uint8_t *at, int bytes)
{
    uint64_t value = 0;

    for (int i = 0; i < bytes; i++)
        value |= (uint64_t)at[i] << (8 * i);
    return value;
}

void peer_frame_encode(const struct peer_frame *f, uint8_t ret_bytes[PEER_HEADER_BYTES])
{
    put(ret_bytes + AT_MAGIC, PEER_MAGIC, 4);
    put(ret_bytes + AT_TYPE, f->type, 2);
    put(ret_bytes + AT_FLAGS, f->flags, 2);
    put(ret_bytes + AT_LENGTH, f->length, 4);
    put(ret_bytes + AT_FENCE, f->fence, 8);
    put(ret_bytes + AT_OP, f->op, 8);
    put(ret_bytes + AT_CHUNK, f->chunk, 4);
    put(ret_bytes + AT_RESERVED, f->payload_crc, 4);
    put(ret_bytes + AT_CRC, crc32c(0, ret_bytes, AT_CRC), 4);
}

int peer_frame_decode(const uint8_t bytes[PEER_HEADER_BYTES], uint32_t max_length, struct peer_frame *ret_frame,
                      struct error *e)
{
    uint32_t magic = (uint32_t)get(bytes + AT_MAGIC, 4);
    uint32_t crc = (uint32_t)get(bytes + AT_CRC, 4);

    if (magic != PEER_MAGIC)
        return error_set(e, ERROR_INVALID, "frame begins with %08x instead of %08x: the other end does not speak this protocol",
                         magic, PEER_MAGIC);
    if (crc != crc32c(0, bytes, AT_CRC))
        return error_set(e, ERROR_INVALID, "frame header is damaged: checksum %08x, computed %08x", crc,
                         crc32c(0, bytes, AT_CRC));

    struct peer_frame f = {
        .type = (uint16_t)get(bytes + AT_TYPE, 2),
        .flags = (uint16_t)get(bytes + AT_FLAGS, 2),
        .length = (uint32_t)get(bytes + AT_LENGTH, 4),
        .fence = get(bytes + AT_FENCE, 8),
        .op = get(bytes + AT_OP, 8),
        .chunk = (uint32_t)get(bytes + AT_CHUNK, 4),
        .payload_crc = (uint32_t)get(bytes + AT_RESERVED, 4),
    };
    if (f.length > max_length)
        return error_set(e, ERROR_LIMIT, "frame of type %u announces %u bytes, at most %u are allowed", f.type, f.length,
                         max_length);
    bool checked = f.type >= PEER_ANNOUNCE && f.flags == PEER_CHECKED;
    if (!checked && (f.flags != 0 || f.payload_crc != 0))
        return error_set(e, ERROR_INVALID, "frame of type %u has flags %04x and a checksum of %08x, both must be 0", f.type, f.flags,
                         f.payload_crc);
    *ret_frame = f;
    return 0;
}

/* A text in a fixed field: ended by NUL, not empty, printable. What comes after the NUL does not count. */
static bool is_text(const char *field, size_t size)
{
    size_t len = strnlen(field, size);

    if (len == 0 || len == size)
        return false;
    for (size_t i = 0; i < len; i++) {
        if ((unsigned char)field[i] < 0x21 || (unsigned char)field[i] > 0x7e)
            return false;
    }
    return true;
}

int peer_hello_check(const struct peer_hello *h, struct error *e)
{
    if (h->magic != PEER_MAGIC)
        return error_set(e, ERROR_INVALID, "hello begins with %08x instead of %08x: the other end does not speak this protocol",
                         h->magic, PEER_MAGIC);
    if (h->version != PEER_VERSION)
        return error_set(e, ERROR_INVALID, "the other end speaks version %u of the peer protocol, this one %u: run one release",
                         h->version, PEER_VERSION);
    if (h->purpose < PEER_CONTROL || h->purpose > PEER_WATCH || h->security > PEER_TLS)
        return error_set(e, ERROR_INVALID, "hello has an unknown purpose %u or security %u", h->purpose, h->security);
    if (!is_text(h->job_uid, sizeof h->job_uid))
        return error_set(e, ERROR_INVALID, "hello has no valid job uid");
    if (!is_text(h->member, sizeof h->member))
        return error_set(e, ERROR_INVALID, "hello has no valid member name");
    return 0;
}

int peer_challenge_check(const struct peer_challenge *c, struct error *e)
{
    if (c->magic != PEER_MAGIC && c->magic != PEER_REFUSAL)
        return error_set(e, ERROR_INVALID,
                         "challenge begins with %08x instead of %08x: the other end does not speak this protocol", c->magic,
                         PEER_MAGIC);
    if (c->version != PEER_VERSION)
        return error_set(e, ERROR_INVALID, "the other end speaks version %u of the peer protocol, this one %u: run one release",
                         c->version, PEER_VERSION);
    if (!is_text(c->member, sizeof c->member))
        return error_set(e, ERROR_INVALID, "challenge has no valid member name");
    return 0;
}

bool peer_fence_is_old(enum peer_purpose purpose, uint64_t theirs, uint64_t mine)
{
    return purpose == PEER_CONTROL ? FENCE_ATTEMPT(theirs) < FENCE_ATTEMPT(mine) : theirs < mine;
}

const char *peer_fence_text(uint64_t fence, char ret_text[PEER_FENCE_TEXT_MAX])
{
    (void)snprintf(ret_text, PEER_FENCE_TEXT_MAX, "attempt %u, round %u", FENCE_ATTEMPT(fence), FENCE_ROUND(fence));
    return ret_text;
}
