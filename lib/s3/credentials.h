/*
 * credentials.h — who we are, as AWS's own tools find it: variables, a web identity (a token file and a role: what clusters mount), the
 * credentials file. Pure; asking for a web identity's keys is client.c's.
 */
#ifndef S3_CREDENTIALS_H
#define S3_CREDENTIALS_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct s3_credentials {
    char *access_key, *secret_key, *session_token; /* token NULL: none */
    int64_t expires_wall_ms;                       /* 0 = never, as far as is known */
};

void s3_credentials_release(struct s3_credentials *c);

/* A profile of the credentials file. NOT_FOUND: it has none of that name; INVALID: not both keys. */
MUST_CHECK int s3_credentials_of_profile(const char *text, const char *profile, struct s3_credentials *ret, struct error *e);
/* The answer to AssumeRoleWithWebIdentity. */
MUST_CHECK int s3_credentials_of_answer(const char *text, size_t len, struct s3_credentials *ret, struct error *e);
/* The body of the request for it; owned. */
char *s3_credentials_request(const char *role_arn, const char *session_name, const char *token);

#endif
