/*
 * sign.h — AWS Signature Version 4: the Authorization header of a request. Pure.
 *
 * docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html; the published suite of known answers is in
 * tests/unit/s3/vectors.
 */
#ifndef S3_SIGN_H
#define S3_SIGN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

#define SIGN_UNSIGNED_PAYLOAD "UNSIGNED-PAYLOAD"
#define SIGN_TIME_MAX 20

struct sign_pair { const char *name, *value; };

struct sign_request {
    const char *method, *path;       /* path: not encoded, begins with '/' */
    const struct sign_pair *query;   /* not encoded, in any order */
    size_t query_count;
    const struct sign_pair *headers; /* all of them are signed: host and x-amz-date have to be there; names in any case, in any order */
    size_t header_count;
    const char *payload_sha256;      /* 64 hex digits, or SIGN_UNSIGNED_PAYLOAD */
    const char *time;                /* "20150830T123600Z" */
    const char *region, *service;
};

struct sign_key { const char *access_key, *secret_key; };

void sign_time(int64_t wall_ms, char ret_time[SIGN_TIME_MAX]);
/* RFC 3986: all but A-Z a-z 0-9 - _ . ~, and '/' where slashes are kept. */
void sign_encode(const char *text, bool keep_slashes, struct buf *out);
/* The encoded query in canonical order, as it has to stand in the URL too. */
void sign_query(const struct sign_request *r, struct buf *out);

/* The steps, for tests; and the value of the Authorization header. */
void sign_canonical(const struct sign_request *r, struct buf *out);
void sign_string(const struct sign_request *r, struct buf *out);
void sign_authorization(const struct sign_request *r, const struct sign_key *key, struct buf *out);

#endif
