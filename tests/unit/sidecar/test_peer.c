#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/crc.h"
#include "base/mem.h"
#include "sidecar/ring/stream.h"
#include "wire/peer.h"

static const struct peer_frame FRAMES[] = {
    { .type = PEER_JOIN, .length = 0, .fence = 0 },
    { .type = PEER_CHUNK, .length = 131072, .fence = FENCE(3, 7), .op = 0x0123456789abcdefu, .chunk = 0xfffe0001u },
    { .type = PEER_FENCED, .length = 8, .fence = UINT64_MAX, .op = UINT64_MAX, .chunk = UINT32_MAX },
    { .type = UINT16_MAX, .length = PEER_MAX_DATA, .fence = 1 },
};

Test(peer, frames_come_back_as_they_went)
{
    for (size_t i = 0; i < COUNT(FRAMES); i++) {
        uint8_t bytes[PEER_HEADER_BYTES];
        struct peer_frame back;
        struct error e = ERROR_INIT;
        peer_frame_encode(&FRAMES[i], bytes);
        cr_assert(peer_frame_decode(bytes, PEER_MAX_DATA, &back, &e) == 0, "frame %zu: %s", i, e.text);
        cr_expect(back.type == FRAMES[i].type && back.length == FRAMES[i].length && back.fence == FRAMES[i].fence &&
                      back.op == FRAMES[i].op && back.chunk == FRAMES[i].chunk, "frame %zu", i);
    }
}

/* The layout is the protocol: these bytes must never change. */
Test(peer, the_header_lies_as_written_down)
{
    const struct peer_frame f = { .type = 0x0102, .length = 0x00030405, .fence = 0x060708090a0b0c0du, .op = 0x0e0f101112131415u,
                                  .chunk = 0x16171819 };
    const uint8_t want[36] = { 0x52, 0x4d, 0x52, 0x50, 0x02, 0x01, 0, 0, 0x05, 0x04, 0x03, 0, 0x0d, 0x0c, 0x0b, 0x0a, 0x09, 0x08,
                               0x07, 0x06, 0x15, 0x14, 0x13, 0x12, 0x11, 0x10, 0x0f, 0x0e, 0x19, 0x18, 0x17, 0x16, 0, 0, 0, 0 };
    uint8_t bytes[PEER_HEADER_BYTES];
    uint32_t crc;

    peer_frame_encode(&f, bytes);
    cr_expect(memcmp(bytes, want, sizeof want) == 0);
    memcpy(&crc, bytes + 36, 4);
    cr_expect(crc == crc32c(0, want, sizeof want));
}

Test(peer, every_flipped_bit_is_noticed)
{
    for (int bit = 0; bit < (int)PEER_HEADER_BYTES * 8; bit++) {
        uint8_t bytes[PEER_HEADER_BYTES];
        struct peer_frame back;
        struct error e = ERROR_INIT;
        peer_frame_encode(&FRAMES[1], bytes);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        cr_expect(peer_frame_decode(bytes, PEER_MAX_DATA, &back, &e) == -1 && e.text[0] != '\0', "bit %d", bit);
    }
}

Test(peer, lengths_and_reserved_fields_are_bounded)
{
    uint8_t bytes[PEER_HEADER_BYTES];
    struct peer_frame back;
    struct error e = ERROR_INIT;

    peer_frame_encode(&(struct peer_frame){ .type = PEER_GO, .length = 101 }, bytes);
    cr_expect(peer_frame_decode(bytes, 100, &back, &e) == -1 && e.kind == ERROR_LIMIT && strstr(e.text, "101") != NULL, "%s", e.text);
    cr_expect(peer_frame_decode(bytes, 101, &back, &e) == 0);
    static const struct { const char *name; struct peer_frame frame; bool good; } rows[] = {
        { "an unknown flag", { .type = PEER_GO, .flags = 2 }, false },
        { "a checksum without its flag", { .type = PEER_CHUNK, .payload_crc = 1 }, false },
        { "a checksum on a channel that has none", { .type = PEER_JOIN, .flags = PEER_CHECKED }, false },
        { "checked data", { .type = PEER_CHUNK, .flags = PEER_CHECKED, .payload_crc = 7 }, true },
        { "a checked list", { .type = PEER_GO, .flags = PEER_CHECKED, .payload_crc = 7 }, true },
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        peer_frame_encode(&rows[i].frame, bytes);
        int result = peer_frame_decode(bytes, 100, &back, &e);
        cr_expect_eq(result == 0, rows[i].good, "case %s", rows[i].name);
        cr_expect(rows[i].good ? back.payload_crc == 7 : e.kind == ERROR_INVALID, "case %s", rows[i].name);
    }
}

static struct peer_hello good_hello(void)
{
    return (struct peer_hello){ .magic = PEER_MAGIC, .version = PEER_VERSION, .purpose = PEER_DATA, .job_uid = "uid", .member = "worker-0" };
}

Test(peer, hellos_are_checked)
{
    struct { const char *name, *says; struct peer_hello h; } rows[] = {
        { "good", NULL, good_hello() },             { "magic", "does not speak", good_hello() },
        { "version", "version 9", good_hello() },   { "purpose 0", "purpose", good_hello() },
        { "purpose 5", "purpose", good_hello() },   { "security 2", "purpose", good_hello() },
        { "no uid", "job uid", good_hello() },      { "uid without end", "job uid", good_hello() },
        { "no member", "member", good_hello() },    { "member without end", "member", good_hello() },
        { "control character", "member", good_hello() }, { "space in the uid", "job uid", good_hello() },
    };
    rows[1].h.magic++;
    rows[2].h.version = 9;
    rows[3].h.purpose = 0;
    rows[4].h.purpose = 5;
    rows[5].h.security = 2;
    rows[6].h.job_uid[0] = '\0';
    memset(rows[7].h.job_uid, 'u', sizeof rows[7].h.job_uid);
    rows[8].h.member[0] = '\0';
    memset(rows[9].h.member, 'm', sizeof rows[9].h.member);
    rows[10].h.member[3] = '\n';
    rows[11].h.job_uid[1] = ' ';
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct error e = ERROR_INIT;
        int result = peer_hello_check(&rows[i].h, &e);
        cr_expect(rows[i].says == NULL ? result == 0 : result == -1 && strstr(e.text, rows[i].says) != NULL, "case %s: %s",
                  rows[i].name, e.text);
    }
}

Test(peer, challenges_are_checked)
{
    struct peer_challenge good = { .magic = PEER_MAGIC, .version = PEER_VERSION, .member = "chief-0" }, bad;
    struct error e = ERROR_INIT;

    cr_expect(peer_challenge_check(&good, &e) == 0);
    bad = good;
    bad.magic = PEER_REFUSAL;
    cr_expect(peer_challenge_check(&bad, &e) == 0, "a refusal is well-formed");
    bad.magic = 7;
    cr_expect(peer_challenge_check(&bad, &e) == -1);
    bad = good;
    bad.version++;
    cr_expect(peer_challenge_check(&bad, &e) == -1);
    bad = good;
    memset(bad.member, 'x', sizeof bad.member);
    cr_expect(peer_challenge_check(&bad, &e) == -1);
}

Test(peer, old_fences)
{
    static const struct { const char *name; enum peer_purpose purpose; uint64_t theirs, mine; bool old; } rows[] = {
        { "same round", PEER_DATA, FENCE(1, 2), FENCE(1, 2), false },
        { "older round", PEER_DATA, FENCE(1, 1), FENCE(1, 2), true },
        { "newer round", PEER_ENGINE, FENCE(1, 3), FENCE(1, 2), false },
        { "older attempt, higher round", PEER_ENGINE, FENCE(1, 9), FENCE(2, 0), true },
        { "control: a restarted sidecar knows no round", PEER_CONTROL, FENCE(1, 0), FENCE(1, 5), false },
        { "control: older attempt", PEER_CONTROL, FENCE(1, 5), FENCE(2, 0), true },
    };
    for (size_t i = 0; i < COUNT(rows); i++)
        cr_expect(peer_fence_is_old(rows[i].purpose, rows[i].theirs, rows[i].mine) == rows[i].old, "case %s", rows[i].name);
    char text[PEER_FENCE_TEXT_MAX];
    cr_expect_str_eq(peer_fence_text(FENCE(UINT32_MAX, 5), text), "attempt 4294967295, round 5");
}

/* ---- the reader of frames, fed cut at every offset ---- */

static size_t make_stream(uint8_t *bytes)
{
    size_t at = 0;

    for (unsigned i = 0; i < 4; i++) {
        peer_frame_encode(&(struct peer_frame){ .type = PEER_GO, .length = i * 3, .fence = i }, bytes + at);
        at += PEER_HEADER_BYTES;
        memset(bytes + at, 'a' + (int)i, i * 3);
        at += i * 3;
    }
    return at;
}

static unsigned drain(struct frame_reader *r, const uint8_t *bytes, size_t len, unsigned seen)
{
    struct peer_frame f;
    const uint8_t *payload;
    struct error e = ERROR_INIT;

    for (int got; (got = frame_reader_next(r, bytes, len, &f, &payload, &e)) != 0; len = 0, seen++) {
        cr_assert(got == 1, "%s", e.text);
        cr_expect(f.fence == seen && f.length == seen * 3);
        for (uint32_t i = 0; i < f.length; i++)
            cr_expect(payload[i] == 'a' + (int)seen);
    }
    return seen;
}

Test(frame_reader, it_does_not_matter_where_the_bytes_are_cut)
{
    uint8_t bytes[512];
    size_t len = make_stream(bytes);

    for (size_t cut = 0; cut <= len; cut++) {
        struct frame_reader r = FRAME_READER_INIT;
        unsigned seen = drain(&r, bytes, cut, 0);
        seen = drain(&r, bytes + cut, len - cut, seen);
        cr_expect(seen == 4, "cut at %zu: %u frames", cut, seen);
        frame_reader_release(&r);
    }
    struct frame_reader r = FRAME_READER_INIT;
    unsigned seen = 0;
    for (size_t i = 0; i < len; i++)
        seen = drain(&r, bytes + i, 1, seen);
    cr_expect(seen == 4, "byte by byte: %u frames", seen);
    frame_reader_release(&r);
}

Test(frame_reader, garbage_and_lengths_that_are_too_large_end_it)
{
    struct frame_reader r = FRAME_READER_INIT;
    struct peer_frame f;
    const uint8_t *payload;
    struct error e = ERROR_INIT;
    uint8_t bytes[PEER_HEADER_BYTES];

    peer_frame_encode(&(struct peer_frame){ .type = PEER_GO, .length = PEER_MAX_CONTROL + 1 }, bytes);
    cr_expect(frame_reader_next(&r, bytes, sizeof bytes, &f, &payload, &e) == -1 && e.kind == ERROR_LIMIT);
    frame_reader_release(&r);

    struct frame_reader other = FRAME_READER_INIT;
    memset(bytes, 'G', sizeof bytes);
    cr_expect(frame_reader_next(&other, bytes, sizeof bytes, &f, &payload, &e) == -1 && e.kind == ERROR_INVALID);
    frame_reader_release(&other);
}
