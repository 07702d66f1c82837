#include "base/buf.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* Makes room for `more` bytes and the NUL; false (and sticky) when that is over the ceiling. */
static bool reserve(struct buf *b, size_t more)
{
    if (b->overflow || more > b->max || b->len > b->max - more) {
        b->overflow = true;
        return false;
    }
    size_t need = b->len + more + 1;
    if (need > b->cap) {
        size_t cap = b->cap > 0 ? b->cap : 64;
        while (cap < need)
            cap *= 2;
        b->text = xrealloc(b->text, cap, 1);
        b->cap = cap;
    }
    return true;
}

void buf_add_bytes(struct buf *b, const void *bytes, size_t len)
{
    if (!reserve(b, len))
        return;
    if (len > 0)
        memcpy(b->text + b->len, bytes, len);
    b->len += len;
    b->text[b->len] = '\0';
}

void buf_add(struct buf *b, const char *text)
{
    buf_add_bytes(b, text, strlen(text));
}

void buf_addf(struct buf *b, const char *fmt, ...)
{
    va_list args, again;

    va_start(args, fmt);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (n >= 0 && reserve(b, (size_t)n)) {
        (void)vsnprintf(b->text + b->len, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    }
    va_end(again);
}

void buf_add_json_string(struct buf *b, const char *text)
{
    static const char *const SHORT[] = { ['"'] = "\\\"", ['\\'] = "\\\\", ['\n'] = "\\n", ['\r'] = "\\r", ['\t'] = "\\t" };
    const char *from = text, *p = text;

    buf_add_bytes(b, "\"", 1);
    for (; *p != '\0'; p++) {
        unsigned char c = (unsigned char)*p;
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        buf_add_bytes(b, from, (size_t)(p - from));
        from = p + 1;
        if (SHORT[c] != NULL)
            buf_add(b, SHORT[c]);
        else
            buf_addf(b, "\\u%04x", c);
    }
    buf_add_bytes(b, from, (size_t)(p - from));
    buf_add_bytes(b, "\"", 1);
}

bool buf_ok(const struct buf *b)
{
    return !b->overflow;
}

const char *buf_text(const struct buf *b)
{
    return b->text != NULL ? b->text : "";
}

char *buf_take(struct buf *b)
{
    char *text = b->text != NULL ? b->text : xstrdup("");

    b->text = NULL;
    b->len = b->cap = 0;
    b->overflow = false;
    return text;
}

void buf_clear(struct buf *b)
{
    b->len = 0;
    b->overflow = false;
    if (b->text != NULL)
        b->text[0] = '\0';
}

void buf_consume(struct buf *b, size_t n)
{
    if (n > b->len)
        n = b->len;
    if (n == 0)
        return;
    memmove(b->text, b->text + n, b->len - n);
    b->len -= n;
    b->text[b->len] = '\0';
}

void buf_release(struct buf *b)
{
    free(b->text);
    b->text = NULL;
    b->len = b->cap = 0;
}
