/*
 * client.h — requests to one bucket of an S3 server, each blocking until it is answered. The only file that knows libcurl is client.c.
 *
 * What may pass is tried again, with pauses that grow and are random: 429, 5xx, a connection that broke, an answer of 200 that holds an
 * error, and credentials that have expired, which are fetched anew. A request that was answered by a lost reply is made again too: callers
 * make requests that may be carried out twice. Threads: calls from several at once are fine.
 */
#ifndef S3_CLIENT_H
#define S3_CLIENT_H

#include "s3/config.h"
#include "s3/sign.h"

struct s3_client;

#define S3_HEADERS_MAX 8

struct s3_request {
    const char *method, *key;      /* key: "" is the bucket itself */
    struct sign_pair query[6]; size_t query_count;
    struct sign_pair headers[S3_HEADERS_MAX]; size_t header_count;
    const void *body; size_t body_len;
    int fd; uint64_t offset, bytes; /* the body when `body` is NULL: so many bytes of a descriptor */
    void *into; size_t into_len;   /* the answer has to be exactly so long and goes there; NULL: into s3_answer.body */
    bool is_data;                  /* the answer is an object whose content may look like anything */
};

struct s3_answer {
    char *body; size_t len;        /* owned; NUL after */
    char etag[80], crc64nvme[16];  /* "" where there was none */
    uint64_t length;               /* Content-Length */
    int64_t modified_wall_ms;      /* Last-Modified, 0 = none */
};

void s3_answer_release(struct s3_answer *a);
#define auto_s3_answer __attribute__((cleanup(s3_answer_release)))

/* Copies what it keeps of the config's texts: none; they are borrowed as long as the client. INVALID: endpoint or bucket cannot be. */
MUST_CHECK int s3_new(const struct s3_config *config, const char *bucket, struct s3_client **ret_client, struct error *e);
void s3_free(struct s3_client *c); /* NULL is fine */

/* Kinds: NOT_FOUND (404), CONFLICT (412: a condition does not hold), DENIED (403, or nobody to be), TIMEOUT and IO (it was tried long
 * enough, or the server refuses otherwise; the text has its code and message). *ret_answer (may be NULL) is released by the caller. */
MUST_CHECK int s3_call(struct s3_client *c, const struct s3_request *r, struct s3_answer *ret_answer, struct error *e);

/* Whether an error of that kind may pass: what is tried again. Pure. `code`: of the XML body, "" where there is none. */
enum s3_verdict { S3_FINE, S3_AGAIN, S3_REFRESH /* the credentials */, S3_NO };
enum s3_verdict s3_judge(long status, const char *code);
/* Before try number `attempt` (1 is the second): up to this, at random. Pure. */
int64_t s3_pause_ms(int attempt);

#endif
