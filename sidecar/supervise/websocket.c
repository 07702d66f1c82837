#include "sidecar/supervise/websocket.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/base64.h"
#include "base/crypto.h"
#include "base/mem.h"
#include "base/text.h"

static const struct { const char *scheme; int64_t port; bool secure; } SCHEMES[] = { { "ws://", 80, false }, { "wss://", 443, true } };
#define CONTROL_FRAME_MAX 125
static const char MAGIC[] = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"; /* RFC 6455, 1.3 */

int websocket_parse_url(const char *text, struct websocket_url *url, struct error *e)
{
    size_t scheme = 0;

    while (scheme < COUNT(SCHEMES) && strncmp(text, SCHEMES[scheme].scheme, strlen(SCHEMES[scheme].scheme)) != 0)
        scheme++;
    if (scheme == COUNT(SCHEMES))
        return error_set(e, ERROR_INVALID, "found \"%.100s\", expected ws://HOST[:PORT]/PATH or wss://HOST[:PORT]/PATH", text);
    const char *host = text + strlen(SCHEMES[scheme].scheme);
    int64_t port = SCHEMES[scheme].port;
    size_t len = strcspn(host, "/");
    const char *path = host[len] == '/' ? host + len : "/", *bracket = host[0] == '[' ? memchr(host, ']', len) : NULL;
    const char *colon = memchr(bracket != NULL ? bracket : host, ':', len - (bracket != NULL ? (size_t)(bracket - host) : 0));
    if (colon != NULL) {
        auto_free char *digits = xstrndup(colon + 1, len - (size_t)(colon + 1 - host));
        if (!text_int(digits, &port) || port < 1 || port > 65535)
            return error_set(e, ERROR_INVALID, "found port \"%.20s\" in \"%.100s\", expected 1 to 65535", digits, text);
        len = (size_t)(colon - host);
    }
    if (len == 0 || len >= sizeof url->host || strlen(path) >= sizeof url->path || strpbrk(path, " \r\n") != NULL)
        return error_set(e, ERROR_INVALID, "\"%.100s\" has no host, or is too long, or holds blanks", text);
    (void)snprintf(url->host, sizeof url->host, "%.*s", (int)len, host);
    (void)snprintf(url->path, sizeof url->path, "%s", path);
    url->port = (int32_t)port;
    url->secure = SCHEMES[scheme].secure;
    return 0;
}

/* ---- handshake ------------------------------------------------------------------------------------------------------------ */

int websocket_make_key(char ret_key[WEBSOCKET_KEY_MAX], struct error *e)
{
    uint8_t bytes[16];

    if (crypto_random(bytes, sizeof bytes, e) < 0)
        return -1;
    auto_free char *text = base64_encode(bytes, sizeof bytes);
    (void)snprintf(ret_key, WEBSOCKET_KEY_MAX, "%s", text);
    return 0;
}

void websocket_request(const struct websocket_url *url, const char *key, const char *protocol, const char *bearer, struct buf *out)
{
    buf_addf(out, "GET %s HTTP/1.1\r\nHost: %s:%d\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                  "Sec-WebSocket-Key: %s\r\nSec-WebSocket-Protocol: %s\r\nAuthorization: Bearer %s\r\n\r\n",
             url->path, url->host, (int)url->port, key, protocol, bearer);
}

/* The value of a header in a head that ends in an empty line; cut, without blanks around. */
static bool header(const char *head, const char *name, char *ret_value, size_t size)
{
    size_t len = strlen(name);

    for (const char *line = strstr(head, "\r\n"); line != NULL; line = strstr(line + 2, "\r\n")) {
        const char *at = line + 2;
        if (strncasecmp(at, name, len) != 0 || at[len] != ':')
            continue;
        at += len + 1;
        at += strspn(at, " \t");
        (void)snprintf(ret_value, size, "%.*s", (int)strcspn(at, " \t\r\n"), at);
        return true;
    }
    return false;
}

int websocket_answer(const char *bytes, size_t len, const char *key, struct error *e)
{
    const char *end = memmem(bytes, len, "\r\n\r\n", 4);
    char accept[64] = "";
    uint8_t digest[20];

    if (end == NULL && len < WEBSOCKET_HEAD_MAX)
        return 0;
    if (end == NULL || (size_t)(end - bytes) >= WEBSOCKET_HEAD_MAX)
        return error_set(e, ERROR_LIMIT, "the answer to the WebSocket handshake is longer than %d bytes", WEBSOCKET_HEAD_MAX);
    auto_free char *head = xstrndup(bytes, (size_t)(end - bytes) + 2);
    if (strncmp(head, "HTTP/1.1 101", 12) != 0) {
        size_t first = strcspn(head, "\r\n");
        enum error_kind kind = strncmp(head, "HTTP/1.1 503", 12) == 0 ? ERROR_BUSY : ERROR_DENIED;
        return error_set(e, kind, "the WebSocket handshake was answered with \"%.*s\"", (int)(first < 80 ? first : 80), head);
    }
    auto_free char *proof = xasprintf("%s%s", key, MAGIC);
    crypto_sha1(proof, strlen(proof), digest);
    auto_free char *expected = base64_encode(digest, sizeof digest);
    if (!header(head, "Sec-WebSocket-Accept", accept, sizeof accept) || strcmp(accept, expected) != 0)
        return error_set(e, ERROR_INVALID, "the answer to the WebSocket handshake does not belong to it");
    return (int)(end - bytes) + 4;
}

/* ---- frames --------------------------------------------------------------------------------------------------------------- */

void websocket_frame(enum websocket_opcode opcode, const void *bytes, size_t len, const uint8_t mask[4], struct buf *out)
{
    uint8_t head[14] = { (uint8_t)(0x80 | opcode) };
    const uint8_t *from = bytes;
    size_t used = 2;

    if (len < 126) {
        head[1] = (uint8_t)(0x80 | len);
    } else if (len <= UINT16_MAX) {
        head[1] = 0x80 | 126;
        head[used++] = (uint8_t)(len >> 8);
        head[used++] = (uint8_t)len;
    } else {
        head[1] = 0x80 | 127;
        for (int shift = 56; shift >= 0; shift -= 8)
            head[used++] = (uint8_t)((uint64_t)len >> shift);
    }
    memcpy(head + used, mask, 4);
    buf_add_bytes(out, head, used + 4);
    auto_free uint8_t *masked = xcalloc(1, len + 1);
    for (size_t i = 0; i < len; i++)
        masked[i] = from[i] ^ mask[i % 4];
    buf_add_bytes(out, masked, len);
}

static bool is_known(unsigned opcode)
{
    return opcode <= WEBSOCKET_BINARY || (opcode >= WEBSOCKET_CLOSE && opcode <= WEBSOCKET_PONG);
}

int websocket_read(const uint8_t *bytes, size_t len, size_t max, struct websocket_frame *ret, struct error *e)
{
    size_t head = 2, extra;
    uint64_t size;

    if (len < 2)
        return 0;
    unsigned opcode = bytes[0] & 0x0f;
    if ((bytes[0] & 0x70) != 0 || (bytes[1] & 0x80) != 0 || !is_known(opcode))
        return error_set(e, ERROR_INVALID, "a WebSocket frame begins with %02x %02x, which no server sends", bytes[0], bytes[1]);
    size = bytes[1] & 0x7f;
    extra = size == 126 ? 2 : size == 127 ? 8 : 0;
    if (opcode >= WEBSOCKET_CLOSE && (size > CONTROL_FRAME_MAX || (bytes[0] & 0x80) == 0))
        return error_set(e, ERROR_INVALID, "a WebSocket control frame is cut or longer than %d bytes", CONTROL_FRAME_MAX);
    if (len < head + extra)
        return 0;
    if (extra > 0) {
        size = 0;
        for (size_t i = 0; i < extra; i++)
            size = size << 8 | bytes[head + i];
        head += extra;
    }
    if (size > max)
        return error_set(e, ERROR_LIMIT, "a WebSocket frame of %llu bytes is over the limit of %zu", (unsigned long long)size, max);
    if (len - head < size)
        return 0;
    *ret = (struct websocket_frame){ .opcode = (enum websocket_opcode)opcode, .is_last = (bytes[0] & 0x80) != 0, .bytes = bytes + head,
                                     .len = (size_t)size, .consumed = head + (size_t)size };
    return 1;
}

void websocket_close_reason(const struct websocket_frame *f, uint16_t *ret_code, char ret_text[128])
{
    size_t len = f->len > 2 ? f->len - 2 : 0;

    *ret_code = f->len >= 2 ? (uint16_t)(f->bytes[0] << 8 | f->bytes[1]) : 0;
    (void)snprintf(ret_text, 128, "%.*s", (int)(len < 123 ? len : 123), len > 0 ? (const char *)f->bytes + 2 : "");
}
