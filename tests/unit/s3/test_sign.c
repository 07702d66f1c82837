/* The known answers that AWS publishes: its suite for Signature Version 4 (github.com/awslabs/aws-c-auth, tests/aws-signing-test-suite/v4, the
 * header form; without those that have a path normalized, which S3 does not do), and the examples of S3's own page. */
#include <criterion/criterion.h>
#include <string.h>

#include "base/mem.h"
#include "s3/sign.h"

#define EMPTY "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
#define PAYLOAD "9095672bbd1f56dfc5b65f3e153adc8731a4a654192329106275f4c7b24d0b6e"
#define UNRESERVED "-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
#define SHORT_TOKEN "6e86291e8372ff2a2260956d9b8aae1d763fbf315fa00fa31553b73ebf194267"
#define TOKEN \
    "AQoDYXdzEPT//////////wEXAMPLEtc764bNrC9SAPBSM22wDOk4x4HIZ8j4FZTwdQWLWsKWHGBuFqwAeMicRXmxfpSPfIeoIYRqTflfKD8YUuwthAx7mSEI/qkPpKPi/" \
    "kMcGdQrmGdeehM4IC1NtBmUpp2wUE8phUZampKsburEDy0KPkyQDYwT7WZ0wq5VSXDvp75YU9HFvlRd8Tx6q6fE8YQcHNVXAkiY9q6d+xo0rKwT38xVqr7ZD0u0iPPkUL64l" \
    "IZbqBAz+scqKmlzm8FDrypNC9Yjc8fPOLn9FX9KSYvKTr4rvx3iSIlTJabIQwj2ICCR/oLxBA=="
#define HOST { "Host", "example.amazonaws.com" }
#define DATE { "X-Amz-Date", "20150830T123600Z" }

struct row {
    const char *name, *method, *path;
    struct sign_pair query[3]; size_t query_count;
    struct sign_pair headers[5]; size_t header_count;
    const char *payload, *signature;
};

static const struct row SUITE[] = {
    { "get-header-value-trim", "GET", "/", { { NULL, NULL } }, 0,
      { HOST, DATE, { "My-Header1", " value1" }, { "My-Header2", " \"a   b   c\"" } }, 4, EMPTY, "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736" },
    { "get-space-normalized", "GET", "/example space/", { { NULL, NULL } }, 0,
      { HOST, DATE }, 2, EMPTY, "652487583200325589f1fba4c7e578f72c47cb61beeca81406b39ddec1366741" },
    { "get-space-unnormalized", "GET", "/example space/", { { NULL, NULL } }, 0,
      { HOST, DATE }, 2, EMPTY, "652487583200325589f1fba4c7e578f72c47cb61beeca81406b39ddec1366741" },
    { "get-unreserved", "GET", "/-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz", { { NULL, NULL } }, 0,
      { HOST, DATE }, 2, EMPTY, "07ef7494c76fa4850883e2b006601f940f8a34d404d0cfa977f52a65bbf5f24f" },
    { "get-utf8", "GET", "/ሴ", { { NULL, NULL } }, 0,
      { HOST, DATE }, 2, EMPTY, "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85" },
    { "get-vanilla-empty-query-key", "GET", "/", { { "Param1", "value1" } }, 1,
      { HOST, DATE }, 2, EMPTY, "a67d582fa61cc504c4bae71f336f98b97f1ea3c7a6bfe1b6e45aec72011b9aeb" },
    { "get-vanilla-query-order-encoded", "GET", "/", { { "Param-3", "Value3" }, { "Param", "Value2" }, { "ሴ", "Value1" } }, 3,
      { HOST, DATE }, 2, EMPTY, "371d3713e185cc334048618a97f809c9ffe339c62934c032af5a0e595648fcac" },
    { "get-vanilla-query-order-key-case", "GET", "/", { { "Param2", "value2" }, { "Param1", "value1" } }, 2,
      { HOST, DATE }, 2, EMPTY, "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500" },
    { "get-vanilla-query-unreserved", "GET", "/", { { UNRESERVED,
      UNRESERVED } }, 1,
      { HOST, DATE }, 2, EMPTY, "9c3e54bfcdf0b19771a7f523ee5669cdf59bc7cc0884027167c21bb143a40197" },
    { "get-vanilla-query", "GET", "/", { { NULL, NULL } }, 0,
      { HOST, DATE }, 2, EMPTY, "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31" },
    { "get-vanilla-utf8-query", "GET", "/", { { "ሴ", "bar" } }, 1,
      { HOST, DATE }, 2, EMPTY, "2cdec8eed098649ff3a119c94853b13c643bcf08f8b0a1d91e12c9027818dd04" },
    { "get-vanilla-with-session-token", "GET", "/", { { NULL, NULL } }, 0,
      { HOST, DATE, { "X-Amz-Security-Token", SHORT_TOKEN } }, 3, EMPTY, "07ec1639c89043aa0e3e2de82b96708f198cceab042d4a97044c66dd9f74e7f8" },
    { "get-vanilla", "GET", "/", { { NULL, NULL } }, 0,
      { HOST, DATE }, 2, EMPTY, "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31" },
    { "post-header-key-case", "POST", "/", { { NULL, NULL } }, 0,
      { HOST, DATE }, 2, EMPTY, "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b" },
    { "post-header-key-sort", "POST", "/", { { NULL, NULL } }, 0,
      { HOST, DATE, { "My-Header1", "value1" } }, 3, EMPTY, "c5410059b04c1ee005303aed430f6e6645f61f4dc9e1461ec8f8916fdf18852c" },
    { "post-header-value-case", "POST", "/", { { NULL, NULL } }, 0,
      { HOST, DATE, { "My-Header1", "VALUE1" } }, 3, EMPTY, "cdbc9802e29d2942e5e10b5bccfdd67c5f22c7c4e8ae67b53629efa58b974b7d" },
    { "post-sts-header-after", "POST", "/", { { NULL, NULL } }, 0,
      { HOST, DATE }, 2, EMPTY, "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b" },
    { "post-sts-header-before", "POST", "/", { { NULL, NULL } }, 0,
      { HOST, DATE, { "X-Amz-Security-Token", TOKEN } }, 3, EMPTY, "85d96828115b5dc0cfc3bd16ad9e210dd772bbebba041836c64533a82be05ead" },
    { "post-vanilla-empty-query-value", "POST", "/", { { "Param1", "value1" } }, 1,
      { HOST, DATE }, 2, EMPTY, "28038455d6de14eafc1f9222cf5aa6f1a96197d7deb8263271d420d138af7f11" },
    { "post-vanilla-query", "POST", "/", { { "Param1", "value1" } }, 1,
      { HOST, DATE }, 2, EMPTY, "28038455d6de14eafc1f9222cf5aa6f1a96197d7deb8263271d420d138af7f11" },
    { "post-vanilla", "POST", "/", { { NULL, NULL } }, 0,
      { HOST, DATE }, 2, EMPTY, "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b" },
    { "post-x-www-form-urlencoded-parameters", "POST", "/", { { NULL, NULL } }, 0,
      { HOST, DATE, { "Content-Type", "application/x-www-form-urlencoded; charset=utf-8" }, { "Content-Length", "13" }, { "X-Amz-Content-Sha256", PAYLOAD } }, 5, PAYLOAD, "328d1b9eaadca9f5818ef05e8392801e091653bafec24fcab71e7344e7f51422" },
    { "post-x-www-form-urlencoded", "POST", "/", { { NULL, NULL } }, 0,
      { HOST, DATE, { "Content-Type", "application/x-www-form-urlencoded" }, { "Content-Length", "13" }, { "X-Amz-Content-Sha256", PAYLOAD } }, 5, PAYLOAD, "d3875051da38690788ef43de4db0d8f280229d82040bfac253562e56c3f20e0b" },
};

static void check(const struct row *row, const char *time, const char *service, const struct sign_key *key)
{
    struct sign_request r = { .method = row->method, .path = row->path, .query = row->query, .query_count = row->query_count, .headers = row->headers,
                              .header_count = row->header_count, .payload_sha256 = row->payload, .time = time, .region = "us-east-1",
                              .service = service };
    auto_buf struct buf text = BUF_INIT(8192), canonical = BUF_INIT(8192);
    sign_canonical(&r, &canonical);
    sign_authorization(&r, key, &text);
    const char *signature = strstr(buf_text(&text), "Signature=");
    cr_expect(signature != NULL && strcmp(signature + strlen("Signature="), row->signature) == 0, "case %s: %s of\n%s", row->name, buf_text(&text),
              buf_text(&canonical));
}

Test(sign, the_published_suite_comes_out)
{
    const struct sign_key key = { "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY" };
    for (size_t i = 0; i < COUNT(SUITE); i++)
        check(&SUITE[i], "20150830T123600Z", "service", &key);
}

#undef HOST
#undef DATE
#define HOST { "host", "examplebucket.s3.amazonaws.com" }
#define DATE { "x-amz-date", "20130524T000000Z" }
#define SHA(text) { "x-amz-content-sha256", text }
#define TEXT_SHA "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072"

static const struct row S3[] = {
    { "get a range", "GET", "/test.txt", { { NULL, NULL } }, 0, { HOST, DATE, SHA(EMPTY), { "range", "bytes=0-9" } }, 4, EMPTY,
      "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41" },
    { "put", "PUT", "/test$file.text", { { NULL, NULL } }, 0,
      { HOST, DATE, SHA(TEXT_SHA), { "date", "Fri, 24 May 2013 00:00:00 GMT" }, { "x-amz-storage-class", "REDUCED_REDUNDANCY" } }, 5, TEXT_SHA,
      "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd" },
    { "a query without a value", "GET", "/", { { "lifecycle", "" } }, 1, { HOST, DATE, SHA(EMPTY) }, 3, EMPTY,
      "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543" },
    { "list", "GET", "/", { { "prefix", "J" }, { "max-keys", "2" } }, 2, { HOST, DATE, SHA(EMPTY) }, 3, EMPTY,
      "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7" },
};

Test(sign, the_examples_of_s3_come_out)
{
    const struct sign_key key = { "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY" };
    for (size_t i = 0; i < COUNT(S3); i++)
        check(&S3[i], "20130524T000000Z", "s3", &key);
}

Test(sign, a_time_is_written_as_signatures_have_it)
{
    char time[SIGN_TIME_MAX];
    sign_time(1440938160000, time);
    cr_expect(strcmp(time, "20150830T123600Z") == 0, "%s", time);
}
