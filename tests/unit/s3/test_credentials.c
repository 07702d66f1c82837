#include <criterion/criterion.h>
#include <string.h>

#include "base/mem.h"
#include "s3/client.h"
#include "s3/credentials.h"

static const char FILE_TEXT[] = "# of the team\n[default]\naws_access_key_id=A\naws_secret_access_key = S/+=x \n\n[ other ]\n[half]\r\naws_access_key_id = H\n"
                                "[full]\n; old\naws_session_token=T=\naws_access_key_id =F\n region = x\naws_secret_access_key= G\n";

static const struct { const char *profile, *access, *secret, *token; enum error_kind kind; } PROFILES[] = {
    { "default", "A", "S/+=x", NULL, ERROR_NONE },
    { "full", "F", "G", "T=", ERROR_NONE },
    { "half", NULL, NULL, NULL, ERROR_INVALID },
    { "none", NULL, NULL, NULL, ERROR_NOT_FOUND },
};

static bool same(const char *a, const char *b)
{
    return (a == NULL) == (b == NULL) && (a == NULL || strcmp(a, b) == 0);
}

Test(credentials, a_profile_of_the_file_is_read_alone)
{
    for (size_t i = 0; i < COUNT(PROFILES); i++) {
        struct s3_credentials c = { .access_key = NULL };
        struct error e = ERROR_INIT;
        int result = s3_credentials_of_profile(FILE_TEXT, PROFILES[i].profile, &c, &e);
        cr_expect((result == 0) == (PROFILES[i].kind == ERROR_NONE) && e.kind == PROFILES[i].kind, "case %s: %s", PROFILES[i].profile, e.text);
        cr_expect(same(c.access_key, PROFILES[i].access) && same(c.secret_key, PROFILES[i].secret) && same(c.session_token, PROFILES[i].token),
                  "case %s", PROFILES[i].profile);
        s3_credentials_release(&c);
    }
}

#define ANSWER \
    "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials><SessionToken>T&#43;</SessionToken><SecretAccessKey>S</SecretAccessKey>" \
    "<Expiration>%s</Expiration><AccessKeyId>A</AccessKeyId></Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"

Test(credentials, the_answer_to_a_web_identity_is_read_and_its_end_known)
{
    struct s3_credentials c = { .access_key = NULL };
    struct error e = ERROR_INIT;
    auto_free char *answer = xasprintf(ANSWER, "2015-08-30T12:36:00Z"), *bad = xasprintf(ANSWER, "soon");
    cr_assert(s3_credentials_of_answer(answer, strlen(answer), &c, &e) == 0, "%s", e.text);
    cr_expect(same(c.access_key, "A") && same(c.secret_key, "S") && same(c.session_token, "T+") && c.expires_wall_ms == 1440938160000);
    s3_credentials_release(&c);
    cr_expect(s3_credentials_of_answer(bad, strlen(bad), &c, &e) != 0 && s3_credentials_of_answer(answer, 60, &c, &e) != 0);
    auto_free char *body = s3_credentials_request("arn:aws:iam::1:role/a b", "me", "t&=");
    cr_expect(same(body, "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fa%20b&RoleSessionName=me"
                         "&WebIdentityToken=t%26%3D"), "%s", body);
}

static const struct { long status; const char *code; enum s3_verdict verdict; } ANSWERS[] = {
    { 200, "", S3_FINE }, { 206, "", S3_FINE }, { 204, "", S3_FINE }, { 200, "InternalError", S3_AGAIN }, { 200, "SlowDown", S3_AGAIN },
    { 200, "NoSuchUpload", S3_NO }, { 500, "", S3_AGAIN }, { 500, "InternalError", S3_AGAIN }, { 503, "SlowDown", S3_AGAIN }, { 502, "", S3_AGAIN },
    { 501, "NotImplemented", S3_NO }, { 429, "", S3_AGAIN }, { 400, "RequestTimeout", S3_AGAIN }, { 400, "BadDigest", S3_AGAIN },
    { 400, "ExpiredToken", S3_REFRESH }, { 403, "ExpiredToken", S3_REFRESH }, { 403, "AccessDenied", S3_NO }, { 403, "", S3_NO }, { 404, "NoSuchKey", S3_NO },
    { 404, "", S3_NO }, { 409, "ConditionalRequestConflict", S3_AGAIN }, { 412, "PreconditionFailed", S3_NO }, { 400, "InvalidPart", S3_NO }, { 301, "", S3_NO },
};

Test(judge, what_may_pass_is_tried_again_and_nothing_else)
{
    for (size_t i = 0; i < COUNT(ANSWERS); i++)
        cr_expect(s3_judge(ANSWERS[i].status, ANSWERS[i].code) == ANSWERS[i].verdict, "case %ld %s", ANSWERS[i].status, ANSWERS[i].code);
    for (int i = 1; i < 100; i++)
        cr_expect(s3_pause_ms(i) >= (i > 1 ? s3_pause_ms(i - 1) : 1) && s3_pause_ms(i) <= 5000, "try %d", i);
}

static const struct { const char *endpoint, *bucket, *says; } PLACES[] = {
    { "https://s3.example.com", "b", NULL }, { "http://127.0.0.1:9000/", "some.bucket-1", NULL }, { "ftp://x", "b", "expected https://HOST" },
    { "https://", "b", "expected https://HOST" }, { "https://host/path", "b", "a host and a port alone" }, { "https://me@host", "b", "a host and a port alone" },
    { "https://h", "", "no name of a bucket" }, { "https://h", "a/b", "no name of a bucket" }, { "https://h", "..", "no name of a bucket" },
};

Test(client, an_endpoint_or_bucket_that_cannot_be_is_refused_in_words)
{
    for (size_t i = 0; i < COUNT(PLACES); i++) {
        struct s3_config config = { .endpoint = PLACES[i].endpoint };
        struct s3_client *c = NULL;
        struct error e = ERROR_INIT;
        cr_expect((s3_new(&config, PLACES[i].bucket, &c, &e) == 0) == (PLACES[i].says == NULL), "case %s %s: %s", PLACES[i].endpoint, PLACES[i].bucket, e.text);
        cr_expect(PLACES[i].says == NULL || strstr(e.text, PLACES[i].says) != NULL, "case %s: %s", PLACES[i].endpoint, e.text);
        s3_free(c);
    }
}
