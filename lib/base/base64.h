/*
 * base64.h — RFC 4648 base64 with padding. Pure, thread-safe.
 */
#ifndef BASE_BASE64_H
#define BASE_BASE64_H

#include <stdbool.h>
#include <stddef.h>

char *base64_encode(const void *bytes, size_t len); /* owned by the caller */
/* White space is skipped, as YAML and PEM fold lines. False for anything else that does not belong, missing padding too. The
 * result is followed by a NUL that ret_len does not count; owned by the caller. */
bool base64_decode(const char *text, size_t len, char **ret_bytes, size_t *ret_len);

#endif
