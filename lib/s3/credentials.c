#include "s3/credentials.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/crypto.h"
#include "base/mem.h"
#include "s3/sign.h"
#include "s3/xml.h"

static void wipe(char *secret)
{
    if (secret != NULL)
        crypto_wipe(secret, strlen(secret));
    free(secret);
}

void s3_credentials_release(struct s3_credentials *c)
{
    wipe(c->access_key);
    wipe(c->secret_key);
    wipe(c->session_token);
    *c = (struct s3_credentials){ .access_key = NULL };
}

/* A line without blanks around it. */
static char *stripped(const char *line, size_t len)
{
    while (len > 0 && (*line == ' ' || *line == '\t')) {
        line++;
        len--;
    }
    while (len > 0 && strchr(" \t\r", line[len - 1]) != NULL)
        len--;
    return xstrndup(line, len);
}

static void take_value(const char *line, struct s3_credentials *c)
{
    const char *equals = strchr(line, '=');
    if (equals == NULL)
        return;
    auto_free char *name = stripped(line, (size_t)(equals - line)), *value = stripped(equals + 1, strlen(equals + 1));
    char **to = strcmp(name, "aws_access_key_id") == 0 ? &c->access_key : strcmp(name, "aws_secret_access_key") == 0 ? &c->secret_key
              : strcmp(name, "aws_session_token") == 0 ? &c->session_token : NULL;
    if (to == NULL)
        return;
    wipe(*to);
    *to = TAKE(value);
}

int s3_credentials_of_profile(const char *text, const char *profile, struct s3_credentials *ret, struct error *e)
{
    struct s3_credentials c = { .access_key = NULL };
    auto_free char *heading = xasprintf("[%s]", profile);
    bool within = false, found = false;
    for (const char *p = text; *p != '\0';) {
        size_t len = strcspn(p, "\n");
        auto_free char *line = stripped(p, len);
        if (line[0] == '[')
            found = (within = strcmp(line, heading) == 0) || found;
        else if (within && line[0] != '#' && line[0] != ';')
            take_value(line, &c);
        p += len + (p[len] == '\n');
    }
    if (c.access_key != NULL && c.secret_key != NULL) {
        *ret = c;
        return 0;
    }
    s3_credentials_release(&c);
    if (!found)
        return error_set(e, ERROR_NOT_FOUND, "there is no profile [%.60s]", profile);
    return error_set(e, ERROR_INVALID, "profile [%.60s] has not both of aws_access_key_id and aws_secret_access_key", profile);
}

int s3_credentials_of_answer(const char *text, size_t len, struct s3_credentials *ret, struct error *e)
{
    struct xml whole = { text, len };
    struct s3_credentials c = { .access_key = xml_text(whole, "AccessKeyId"), .secret_key = xml_text(whole, "SecretAccessKey"),
                                .session_token = xml_text(whole, "SessionToken") };
    auto_free char *expires = xml_text(whole, "Expiration");
    if (c.access_key == NULL || c.secret_key == NULL || c.session_token == NULL || expires == NULL ||
        clock_parse(expires, &c.expires_wall_ms) != 0) {
        s3_credentials_release(&c);
        return error_set(e, ERROR_IO, "the answer to AssumeRoleWithWebIdentity has no credentials in it");
    }
    if (c.session_token[0] == '\0') { /* servers other than AWS may have none */
        free(c.session_token);
        c.session_token = NULL;
    }
    *ret = c;
    return 0;
}

char *s3_credentials_request(const char *role_arn, const char *session_name, const char *token)
{
    struct buf b = BUF_INIT(64u << 10);
    buf_add(&b, "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=");
    sign_encode(role_arn, false, &b);
    buf_add(&b, "&RoleSessionName=");
    sign_encode(session_name, false, &b);
    buf_add(&b, "&WebIdentityToken=");
    sign_encode(token, false, &b);
    return buf_take(&b);
}
