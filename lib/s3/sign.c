#include "s3/sign.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "base/crypto.h"
#include "base/mem.h"

#define TEXT_MAX (1u << 20)

void sign_time(int64_t wall_ms, char ret_time[SIGN_TIME_MAX])
{
    char text[CLOCK_TEXT_MAX]; /* 2015-08-30T12:36:00Z */
    size_t n = 0;
    clock_format(wall_ms, text);
    for (const char *p = text; *p != '\0' && n < SIGN_TIME_MAX - 1; p++)
        if (*p != '-' && *p != ':')
            ret_time[n++] = *p;
    ret_time[n] = '\0';
}

void sign_encode(const char *text, bool keep_slashes, struct buf *out)
{
    for (const unsigned char *p = (const unsigned char *)text; *p != '\0'; p++) {
        if (isalnum(*p) || strchr("-_.~", *p) != NULL || (keep_slashes && *p == '/'))
            buf_add_bytes(out, p, 1);
        else
            buf_addf(out, "%%%02X", *p);
    }
}

struct row { char *name, *value; };

static int by_name_and_value(const void *a, const void *b)
{
    const struct row *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    return order != 0 ? order : strcmp(x->value, y->value);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct row *)a)->name, ((const struct row *)b)->name);
}

static void rows_free(struct row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        free(rows[i].name);
        free(rows[i].value);
    }
    free(rows);
}

static char *encoded(const char *text)
{
    struct buf b = BUF_INIT(TEXT_MAX);
    sign_encode(text, false, &b);
    return b.text != NULL ? buf_take(&b) : xstrdup("");
}

void sign_query(const struct sign_request *r, struct buf *out)
{
    struct row *rows = xcalloc(r->query_count + 1, sizeof(*rows));
    for (size_t i = 0; i < r->query_count; i++)
        rows[i] = (struct row){ encoded(r->query[i].name), encoded(r->query[i].value) };
    if (r->query_count > 1)
        qsort(rows, r->query_count, sizeof(*rows), by_name_and_value);
    for (size_t i = 0; i < r->query_count; i++)
        buf_addf(out, "%s%s=%s", i > 0 ? "&" : "", rows[i].name, rows[i].value);
    rows_free(rows, r->query_count);
}

/* Without blanks at the ends, runs of blanks within as one. */
static char *trimmed(const char *value)
{
    char *text = xcalloc(1, strlen(value) + 1), *to = text;
    while (*value == ' ')
        value++;
    for (; *value != '\0'; value++)
        if (*value != ' ' || (value[1] != ' ' && value[1] != '\0'))
            *to++ = *value;
    return text;
}

static char *lower(const char *name)
{
    char *text = xstrdup(name);
    for (char *p = text; *p != '\0'; p++)
        *p = (char)tolower((unsigned char)*p);
    return text;
}

static struct row *header_rows(const struct sign_request *r)
{
    struct row *rows = xcalloc(r->header_count + 1, sizeof(*rows));
    for (size_t i = 0; i < r->header_count; i++)
        rows[i] = (struct row){ lower(r->headers[i].name), trimmed(r->headers[i].value) };
    if (r->header_count > 1)
        qsort(rows, r->header_count, sizeof(*rows), by_name);
    return rows;
}

static void signed_headers(const struct row *rows, size_t count, struct buf *out)
{
    for (size_t i = 0; i < count; i++)
        buf_addf(out, "%s%s", i > 0 ? ";" : "", rows[i].name);
}

void sign_canonical(const struct sign_request *r, struct buf *out)
{
    struct row *rows = header_rows(r);
    buf_addf(out, "%s\n", r->method);
    sign_encode(r->path, true, out);
    buf_add(out, "\n");
    sign_query(r, out);
    buf_add(out, "\n");
    for (size_t i = 0; i < r->header_count; i++)
        buf_addf(out, "%s:%s\n", rows[i].name, rows[i].value);
    buf_add(out, "\n");
    signed_headers(rows, r->header_count, out);
    buf_addf(out, "\n%s", r->payload_sha256);
    rows_free(rows, r->header_count);
}

static void scope(const struct sign_request *r, struct buf *out)
{
    buf_addf(out, "%.8s/%s/%s/aws4_request", r->time, r->region, r->service);
}

void sign_string(const struct sign_request *r, struct buf *out)
{
    auto_buf struct buf canonical = BUF_INIT(TEXT_MAX);
    uint8_t digest[32];
    char hex[65];
    sign_canonical(r, &canonical);
    crypto_sha256(buf_text(&canonical), canonical.len, digest);
    crypto_hex(digest, sizeof(digest), hex);
    buf_addf(out, "AWS4-HMAC-SHA256\n%s\n", r->time);
    scope(r, out);
    buf_addf(out, "\n%s", hex);
}

static void signing_key(const struct sign_request *r, const struct sign_key *key, uint8_t ret_key[CRYPTO_MAC_BYTES])
{
    auto_free char *secret = xasprintf("AWS4%s", key->secret_key);
    crypto_hmac_sha256(secret, strlen(secret), r->time, 8, ret_key);
    crypto_hmac_sha256(ret_key, CRYPTO_MAC_BYTES, r->region, strlen(r->region), ret_key);
    crypto_hmac_sha256(ret_key, CRYPTO_MAC_BYTES, r->service, strlen(r->service), ret_key);
    crypto_hmac_sha256(ret_key, CRYPTO_MAC_BYTES, "aws4_request", strlen("aws4_request"), ret_key);
    crypto_wipe(secret, strlen(secret));
}

void sign_authorization(const struct sign_request *r, const struct sign_key *key, struct buf *out)
{
    auto_buf struct buf string = BUF_INIT(TEXT_MAX);
    uint8_t derived[CRYPTO_MAC_BYTES], mac[CRYPTO_MAC_BYTES];
    char hex[2 * CRYPTO_MAC_BYTES + 1];
    struct row *rows = header_rows(r);
    sign_string(r, &string);
    signing_key(r, key, derived);
    crypto_hmac_sha256(derived, sizeof(derived), buf_text(&string), string.len, mac);
    crypto_hex(mac, sizeof(mac), hex);
    crypto_wipe(derived, sizeof(derived));
    buf_addf(out, "AWS4-HMAC-SHA256 Credential=%s/", key->access_key);
    scope(r, out);
    buf_add(out, ", SignedHeaders=");
    signed_headers(rows, r->header_count, out);
    buf_addf(out, ", Signature=%s", hex);
    rows_free(rows, r->header_count);
}
