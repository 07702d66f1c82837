#include "base/base64.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static const char ALPHABET[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

char *base64_encode(const void *bytes, size_t len)
{
    const uint8_t *in = bytes;
    char *text = xcalloc((len + 2) / 3 * 4 + 1, 1), *out = text;

    for (size_t i = 0; i < len; i += 3) {
        size_t left = len - i;
        uint32_t group = (uint32_t)in[i] << 16 | (left > 1 ? (uint32_t)in[i + 1] << 8 : 0) | (left > 2 ? in[i + 2] : 0);
        *out++ = ALPHABET[group >> 18];
        *out++ = ALPHABET[group >> 12 & 63];
        *out++ = left > 1 ? ALPHABET[group >> 6 & 63] : '=';
        *out++ = left > 2 ? ALPHABET[group & 63] : '=';
    }
    return text;
}

static int value_of(char c)
{
    const char *at = c != '\0' ? strchr(ALPHABET, c) : NULL;

    return at != NULL ? (int)(at - ALPHABET) : -1;
}

bool base64_decode(const char *text, size_t len, char **ret_bytes, size_t *ret_len)
{
    auto_free char *bytes = xcalloc(len / 4 * 3 + 4, 1);
    size_t digits = 0, padding = 0, used = 0;
    uint32_t group = 0;

    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        if (c == ' ' || c == '\n' || c == '\r' || c == '\t')
            continue;
        int value = c == '=' ? 0 : value_of(c);
        if (value < 0 || (padding > 0 && c != '=') || (c == '=' && ++padding > 2))
            return false;
        group = group << 6 | (uint32_t)value;
        if (++digits % 4 == 0) {
            bytes[used++] = (char)(group >> 16);
            bytes[used++] = (char)(group >> 8);
            bytes[used++] = (char)group;
            group = 0;
        }
    }
    if (digits % 4 != 0)
        return false;
    used -= padding;
    bytes[used] = '\0';
    *ret_len = used;
    *ret_bytes = TAKE(bytes);
    return true;
}
