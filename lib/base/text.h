/*
 * text.h — small readings of text that manifests, options and names share. Pure.
 */
#ifndef BASE_TEXT_H
#define BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* "250ms", "5s", "2m", "1h30m", or a bare number of seconds. False when it is no duration or does not fit. */
bool text_duration(const char *text, int64_t *ret_ms);
/* Kubernetes quantity ("100m", "64Mi", "1G", "1e3"); fractions round up to whole units. */
bool text_quantity(const char *text, int64_t *ret_units);
/* A decimal integer that is the whole text. */
bool text_int(const char *text, int64_t *ret_value);
/* RFC 1123 / RFC 1035 labels and subdomains as Kubernetes checks them. */
bool text_is_dns1123_label(const char *text);
bool text_is_dns1035_label(const char *text);
bool text_is_dns1123_subdomain(const char *text);
bool text_is_env_name(const char *text);
/* The nearest of names (NULL-terminated) within a third of its length by edit distance, case-insensitive, or NULL. */
const char *text_nearest(const char *text, const char *const *names);
/* Makes text printable in place: no control characters but line feeds and tabs, and what is no UTF-8 becomes '?'. */
void text_make_plain(char *text);
/* The end of `bytes` as plain text that fits `size`, without line ends at its end. What was cut off (here, or before: `cut`) leaves
 * whole lines where there is one. */
void text_tail(const char *bytes, size_t len, bool cut, char *ret_text, size_t size);
/* "1.5 GiB", "312 KiB", "17 B". ret is borrowed back for printf. */
#define TEXT_SIZE_MAX 24
const char *text_bytes(uint64_t bytes, char ret[TEXT_SIZE_MAX]);

#endif
