/*
 * buf.h — text or bytes being put together, with a ceiling.
 *
 * The ceiling is mandatory. Overflow is sticky: the adders return nothing, one buf_ok() before use is enough. `text` is
 * always NUL-terminated, so a buffer of text is a C string. Not thread-safe.
 */
#ifndef BASE_BUF_H
#define BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

struct buf {
    char *text;      /* never NULL after the first add; "" before */
    size_t len, cap; /* bytes without the NUL; bytes allocated */
    size_t max;      /* ceiling for len */
    bool overflow;
};

#define BUF_INIT(ceiling) { .text = NULL, .len = 0, .cap = 0, .max = (ceiling), .overflow = false }

void buf_add(struct buf *b, const char *text);
void buf_add_bytes(struct buf *b, const void *bytes, size_t len);
void buf_addf(struct buf *b, const char *fmt, ...) FORMAT(2, 3);
void buf_add_json_string(struct buf *b, const char *text); /* quoted and escaped */
bool buf_ok(const struct buf *b);
const char *buf_text(const struct buf *b); /* borrowed; "" when empty */
char *buf_take(struct buf *b);             /* owned by the caller; the buffer is empty again */
void buf_clear(struct buf *b);             /* keeps the memory */
void buf_consume(struct buf *b, size_t n); /* drops the first n bytes */
void buf_release(struct buf *b);

#define auto_buf __attribute__((cleanup(buf_release)))

#endif
