/*
 * config.h — where S3 is and who we are there: the variables that AWS's own tools read. Texts are borrowed from the option table.
 */
#ifndef S3_CONFIG_H
#define S3_CONFIG_H

#include "base/opt.h"

struct s3_config {
    const char *endpoint, *any_endpoint;      /* "https://host[:port]"; NULL: AWS's of the region. The first that is set counts. */
    const char *sts_endpoint;
    const char *region, *default_region;      /* the first that is set; else us-east-1 */
    const char *ca_file;                      /* certificates that are trusted; NULL: the system's */
    const char *access_key, *secret_key, *session_token;
    const char *token_file, *role_arn, *session_name; /* web identity */
    const char *credentials_file, *profile, *home;    /* NULL file: HOME/.aws/credentials */
};

#define S3_ROW(s, field, name, variable) \
    { .flag = name, .env = variable, .type = OPT_TEXT, .at = OPT_AT(s, field, const char *), .value = "TEXT", .help = "for s3:// places", .hidden = true }

/* Rows for a program's option table; they are for the environment. */
#define S3_OPTIONS(s, f) \
    S3_ROW(s, f.endpoint, "s3-endpoint", "AWS_ENDPOINT_URL_S3"), S3_ROW(s, f.any_endpoint, "s3-any-endpoint", "AWS_ENDPOINT_URL"), \
    S3_ROW(s, f.sts_endpoint, "s3-sts-endpoint", "AWS_ENDPOINT_URL_STS"), S3_ROW(s, f.region, "s3-region", "AWS_REGION"), \
    S3_ROW(s, f.default_region, "s3-default-region", "AWS_DEFAULT_REGION"), S3_ROW(s, f.ca_file, "s3-ca-file", "AWS_CA_BUNDLE"), \
    S3_ROW(s, f.access_key, "s3-access-key", "AWS_ACCESS_KEY_ID"), S3_ROW(s, f.secret_key, "s3-secret-key", "AWS_SECRET_ACCESS_KEY"), \
    S3_ROW(s, f.session_token, "s3-session-token", "AWS_SESSION_TOKEN"), \
    S3_ROW(s, f.token_file, "s3-token-file", "AWS_WEB_IDENTITY_TOKEN_FILE"), S3_ROW(s, f.role_arn, "s3-role", "AWS_ROLE_ARN"), \
    S3_ROW(s, f.session_name, "s3-session-name", "AWS_ROLE_SESSION_NAME"), \
    S3_ROW(s, f.credentials_file, "s3-credentials-file", "AWS_SHARED_CREDENTIALS_FILE"), \
    S3_ROW(s, f.profile, "s3-profile", "AWS_PROFILE"), S3_ROW(s, f.home, "s3-home", "HOME")

#endif
