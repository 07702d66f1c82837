#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sidecar/supervise/websocket.h"

Test(websocket, urls)
{
    static const struct { const char *text, *host, *path; int32_t port; } ROWS[] = {
        { "ws://operator.ns.svc:8080/control/a/b", "operator.ns.svc", "/control/a/b", 8080 },
        { "ws://10.0.0.1/x", "10.0.0.1", "/x", 80 },
        { "ws://[::1]:9/x", "[::1]", "/x", 9 },
        { "ws://[::1]", "[::1]", "/", 80 },
        { "ws://h", "h", "/", 80 },
        { "wss://h/", "h", "/", 443 },
        { "wss://operator.ns.svc:8443/control/a/b", "operator.ns.svc", "/control/a/b", 8443 },
        { "wsss://h/", NULL, NULL, 0 },
        { "wss://", NULL, NULL, 0 },
        { "ws:///x", NULL, NULL, 0 },
        { "ws://h:0/x", NULL, NULL, 0 },
        { "ws://h:x/x", NULL, NULL, 0 },
        { "ws://h:65536/x", NULL, NULL, 0 },
        { "ws://h/a\r\nHost: other", NULL, NULL, 0 },
        { "http://h/", NULL, NULL, 0 },
    };

    for (size_t i = 0; i < COUNT(ROWS); i++) {
        struct websocket_url url = { .port = 0 };
        struct error e = ERROR_INIT;
        int result = websocket_parse_url(ROWS[i].text, &url, &e);
        cr_expect_eq(result == 0, ROWS[i].host != NULL, "case %s", ROWS[i].text);
        if (result == 0 && ROWS[i].host != NULL)
            cr_expect(url.secure == (strncmp(ROWS[i].text, "wss:", 4) == 0) && strcmp(url.host, ROWS[i].host) == 0 && strcmp(url.path, ROWS[i].path) == 0 && url.port == ROWS[i].port, "case %s: %s %s %d",
                      ROWS[i].text, url.host, url.path, (int)url.port);
    }
}

/* The example of RFC 6455, 1.3. */
#define KEY "dGhlIHNhbXBsZSBub25jZQ=="
#define ACCEPT "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"

Test(websocket, answers_to_the_handshake)
{
    static const struct { const char *name, *text; int result; } ROWS[] = {
        { "right", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n" ACCEPT "\r\n", 1 },
        { "right, names in small letters", "HTTP/1.1 101 x\r\nsec-websocket-accept:s3pPLMBiTxaQ9kYGzzhZRbK+xOo=  \r\n\r\n", 1 },
        { "nothing yet", "", 0 },
        { "cut before its last byte", "HTTP/1.1 101 x\r\n" ACCEPT "\r", 0 },
        { "refused", "HTTP/1.1 401 Unauthorized\r\n\r\n", -1 },
        { "of another handshake", "HTTP/1.1 101 x\r\nSec-WebSocket-Accept: c3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n", -1 },
        { "without proof", "HTTP/1.1 101 x\r\n\r\n", -1 },
    };

    for (size_t i = 0; i < COUNT(ROWS); i++) {
        struct error e = ERROR_INIT;
        int result = websocket_answer(ROWS[i].text, strlen(ROWS[i].text), KEY, &e);
        cr_expect_eq(result, ROWS[i].result == 1 ? (int)strlen(ROWS[i].text) : ROWS[i].result, "case %s: %d", ROWS[i].name, result);
    }
    auto_free char *endless = xcalloc(1, WEBSOCKET_HEAD_MAX + 1);
    memset(endless, 'x', WEBSOCKET_HEAD_MAX);
    struct error e = ERROR_INIT;
    cr_expect_eq(websocket_answer(endless, WEBSOCKET_HEAD_MAX, KEY, &e), -1);
    cr_expect_eq(e.kind, ERROR_LIMIT);
}

Test(websocket, frames_are_read_at_every_cut)
{
    static const uint8_t HELLO[] = { 0x81, 5, 'H', 'e', 'l', 'l', 'o', 0x89, 0 };
    struct websocket_frame f;
    struct error e = ERROR_INIT;

    for (size_t len = 0; len < 7; len++)
        cr_expect_eq(websocket_read(HELLO, len, 100, &f, &e), 0, "%zu bytes", len);
    for (size_t len = 7; len <= sizeof HELLO; len++) {
        cr_expect_eq(websocket_read(HELLO, len, 100, &f, &e), 1);
        cr_expect(f.opcode == WEBSOCKET_TEXT && f.is_last && f.len == 5 && f.consumed == 7 && memcmp(f.bytes, "Hello", 5) == 0);
    }
    cr_expect_eq(websocket_read(HELLO + 7, 2, 100, &f, &e), 1);
    cr_expect(f.opcode == WEBSOCKET_PING && f.len == 0);
}

Test(websocket, what_is_no_frame)
{
    static const struct { const char *name; uint8_t bytes[10]; size_t len; } ROWS[] = {
        { "masked by a server", { 0x81, 0x85 }, 2 },
        { "a reserved bit", { 0xc1, 5 }, 2 },
        { "an opcode that is none", { 0x83, 5 }, 2 },
        { "a ping that is cut", { 0x09, 0 }, 2 },
        { "a ping that is long", { 0x89, 126 }, 2 },
        { "more than may be", { 0x81, 126, 1, 0 }, 4 },
        { "more than there is", { 0x81, 127, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff }, 10 },
    };

    for (size_t i = 0; i < COUNT(ROWS); i++) {
        struct websocket_frame f;
        struct error e = ERROR_INIT;
        cr_expect_eq(websocket_read(ROWS[i].bytes, ROWS[i].len, 200, &f, &e), -1, "case %s", ROWS[i].name);
    }
}

Test(websocket, frames_of_every_size_are_masked)
{
    static const size_t SIZES[] = { 0, 1, 125, 126, 65535, 65536, 100000 };
    static const uint8_t MASK[4] = { 0x37, 0xfa, 0x21, 0x3d };

    for (size_t i = 0; i < COUNT(SIZES); i++) {
        size_t size = SIZES[i], head = size < 126 ? 2 : size <= 65535 ? 4 : 10;
        auto_buf struct buf out = BUF_INIT(1u << 20);
        auto_free uint8_t *bytes = xcalloc(1, size + 1);
        for (size_t k = 0; k < size; k++)
            bytes[k] = (uint8_t)(k * 7);
        websocket_frame(WEBSOCKET_TEXT, bytes, size, MASK, &out);
        cr_assert_eq(out.len, head + 4 + size, "%zu bytes", size);
        uint8_t *frame = (uint8_t *)out.text;
        cr_expect(frame[0] == 0x81 && (frame[1] & 0x80) != 0 && memcmp(frame + head, MASK, 4) == 0);
        size_t wrong = 0;
        for (size_t k = 0; k < size; k++)
            wrong += (uint8_t)(frame[head + 4 + k] ^ MASK[k % 4]) != bytes[k];
        cr_expect_eq(wrong, 0, "%zu bytes", size);
    }
}

Test(websocket, a_close_says_why)
{
    static const struct { const char *name; const uint8_t bytes[8]; size_t len; uint16_t code; const char *text; } ROWS[] = {
        { "code and words", { 0x03, 0xf5, 'l', 'a', 't', 'e', 'r' }, 7, WEBSOCKET_TRY_LATER, "later" },
        { "code alone", { 0x03, 0xe8 }, 2, 1000, "" },
        { "nothing", { 0 }, 0, 0, "" },
        { "half a code", { 0x03 }, 1, 0, "" },
    };

    for (size_t i = 0; i < COUNT(ROWS); i++) {
        struct websocket_frame f = { .opcode = WEBSOCKET_CLOSE, .is_last = true, .bytes = ROWS[i].bytes, .len = ROWS[i].len };
        uint16_t code = 9;
        char text[128];
        websocket_close_reason(&f, &code, text);
        cr_expect(code == ROWS[i].code && strcmp(text, ROWS[i].text) == 0, "case %s: %u %s", ROWS[i].name, code, text);
    }
}

Test(websocket, an_operator_that_does_not_lead_is_busy_and_any_other_refusal_is_not)
{
    static const struct { const char *head; enum error_kind kind; } ROWS[] = {
        { "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 3\r\n\r\nno!", ERROR_BUSY },
        { "HTTP/1.1 403 Forbidden\r\n\r\n", ERROR_DENIED },
        { "HTTP/1.1 404 Not Found\r\n\r\n", ERROR_DENIED },
    };

    for (size_t i = 0; i < COUNT(ROWS); i++) {
        struct error e = ERROR_INIT;
        cr_expect_eq(websocket_answer(ROWS[i].head, strlen(ROWS[i].head), KEY, &e), -1);
        cr_expect_eq(e.kind, ROWS[i].kind, "case %s", ROWS[i].head);
    }
}
