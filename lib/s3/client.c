#include "s3/client.h"

#include <curl/curl.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crypto.h"
#include "base/fs.h"
#include "base/mem.h"
#include "s3/credentials.h"
#include "s3/xml.h"

#define TRIES 9
#define IDLE_HANDLES 16
#define ANSWER_MAX (16u << 20)
#define CONNECT_MS 10000L
#define SILENT_S 20L          /* slower than a KB a second for so long is no connection */
#define FRESH_MS (5 * 60000)  /* credentials are renewed so long before they expire */
#define TOKEN_MAX (64u << 10)
#define DEFAULT_REGION "us-east-1"

struct s3_client {
    const struct s3_config *config;
    char *bucket, *endpoint, *host, *region;
    pthread_mutex_t lock;
    struct s3_credentials credentials; /* under lock */
    bool has_credentials;
    CURL *idle[IDLE_HANDLES];          /* under lock */
    size_t idle_count;
};

/* One try of one request. */
struct exchange {
    const struct s3_request *request;
    struct buf body;
    size_t into_done;
    bool into_overflow;
    uint64_t sent;
    struct s3_answer answer;
    long status;
};

static void global_init(void)
{
    (void)curl_global_init(CURL_GLOBAL_DEFAULT);
}

static const char *first_of(const char *a, const char *b, const char *otherwise)
{
    return a != NULL && *a != '\0' ? a : b != NULL && *b != '\0' ? b : otherwise;
}

/* ---- client ----------------------------------------------------------------------------------------------------------- */

/* "host:port" as it stands in the Host header: without the port that the scheme has anyway. */
static int host_of(const char *endpoint, char **ret_host, struct error *e)
{
    bool tls = strncmp(endpoint, "https://", 8) == 0;
    if (!tls && strncmp(endpoint, "http://", 7) != 0)
        return error_set(e, ERROR_INVALID, "S3 endpoint \"%.100s\": expected https://HOST[:PORT] or http://HOST[:PORT]", endpoint);
    const char *host = endpoint + (tls ? 8 : 7);
    size_t n = strcspn(host, "/?#");
    if (n == 0 || host[n + strspn(host + n, "/")] != '\0' || memchr(host, '@', n) != NULL)
        return error_set(e, ERROR_INVALID, "S3 endpoint \"%.100s\": expected a host and a port alone", endpoint);
    const char *usual = tls ? ":443" : ":80";
    if (n > strlen(usual) && strncmp(host + n - strlen(usual), usual, strlen(usual)) == 0)
        n -= strlen(usual);
    *ret_host = xstrndup(host, n);
    return 0;
}

static bool bucket_ok(const char *bucket)
{
    size_t n = strspn(bucket, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.");
    return n >= 1 && n <= 255 && bucket[n] == '\0' && bucket[0] != '.';
}

int s3_new(const struct s3_config *config, const char *bucket, struct s3_client **ret_client, struct error *e)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const char *region = first_of(config->region, config->default_region, DEFAULT_REGION);
    auto_free char *aws = xasprintf("https://s3.%s.amazonaws.com", region);
    auto_free char *endpoint = xstrdup(first_of(config->endpoint, config->any_endpoint, aws)), *host = NULL;
    if (!bucket_ok(bucket))
        return error_set(e, ERROR_INVALID, "\"%.80s\" is no name of a bucket", bucket);
    while (endpoint[0] != '\0' && endpoint[strlen(endpoint) - 1] == '/')
        endpoint[strlen(endpoint) - 1] = '\0';
    if (host_of(endpoint, &host, e) != 0)
        return -1;
    (void)pthread_once(&once, global_init);
    struct s3_client *c = xcalloc(1, sizeof(*c));
    *c = (struct s3_client){ .config = config, .bucket = xstrdup(bucket), .endpoint = TAKE(endpoint), .host = TAKE(host), .region = xstrdup(region) };
    (void)pthread_mutex_init(&c->lock, NULL);
    *ret_client = c;
    return 0;
}

void s3_free(struct s3_client *c)
{
    if (c == NULL)
        return;
    for (size_t i = 0; i < c->idle_count; i++)
        curl_easy_cleanup(c->idle[i]);
    s3_credentials_release(&c->credentials);
    (void)pthread_mutex_destroy(&c->lock);
    free(c->bucket);
    free(c->endpoint);
    free(c->host);
    free(c->region);
    free(c);
}

void s3_answer_release(struct s3_answer *a)
{
    free(a->body);
    *a = (struct s3_answer){ .body = NULL };
}

static CURL *handle_take(struct s3_client *c)
{
    (void)pthread_mutex_lock(&c->lock);
    CURL *easy = c->idle_count > 0 ? c->idle[--c->idle_count] : NULL;
    (void)pthread_mutex_unlock(&c->lock);
    return easy != NULL ? easy : curl_easy_init();
}

static void handle_give(struct s3_client *c, CURL *easy)
{
    curl_easy_reset(easy); /* its connection stays */
    (void)pthread_mutex_lock(&c->lock);
    bool kept = c->idle_count < IDLE_HANDLES;
    if (kept)
        c->idle[c->idle_count++] = easy;
    (void)pthread_mutex_unlock(&c->lock);
    if (!kept)
        curl_easy_cleanup(easy);
}

/* ---- bytes out and in ------------------------------------------------------------------------------------------------- */

static size_t on_read(char *to, size_t size, size_t count, void *ctx)
{
    struct exchange *x = ctx;
    const struct s3_request *r = x->request;
    size_t room = size * count;
    uint64_t total = r->body != NULL ? r->body_len : r->bytes, left = total - x->sent;
    size_t n = left < room ? (size_t)left : room;
    if (r->body != NULL) {
        memcpy(to, (const char *)r->body + x->sent, n);
    } else if (n > 0) {
        ssize_t got;
        while ((got = pread(r->fd, to, n, (off_t)(r->offset + x->sent))) < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return CURL_READFUNC_ABORT;
        n = (size_t)got;
    }
    x->sent += n;
    return n;
}

static int on_seek(void *ctx, curl_off_t offset, int origin)
{
    if (origin != SEEK_SET || offset < 0)
        return CURL_SEEKFUNC_CANTSEEK;
    ((struct exchange *)ctx)->sent = (uint64_t)offset;
    return CURL_SEEKFUNC_OK;
}

static size_t on_write(char *bytes, size_t size, size_t count, void *ctx)
{
    struct exchange *x = ctx;
    size_t n = size * count;
    if (x->request->into != NULL && x->into_done + n <= x->request->into_len) {
        memcpy((char *)x->request->into + x->into_done, bytes, n);
        x->into_done += n;
    } else if (x->request->into != NULL) {
        x->into_overflow = true;
    }
    /* The body of an error is kept, too, where data was expected. */
    if (x->request->into == NULL || x->body.len < 4096)
        buf_add_bytes(&x->body, bytes, n);
    return x->request->into == NULL && x->body.overflow ? 0 : n;
}

static void header_value(const char *line, size_t len, const char *name, char *ret, size_t size)
{
    size_t n = strlen(name);
    if (len <= n + 1 || strncasecmp(line, name, n) != 0 || line[n] != ':')
        return;
    line += n + 1;
    len -= n + 1;
    while (len > 0 && *line == ' ') {
        line++;
        len--;
    }
    while (len > 0 && strchr("\r\n ", line[len - 1]) != NULL)
        len--;
    (void)snprintf(ret, size, "%.*s", (int)len, line);
}

static size_t on_header(char *line, size_t size, size_t count, void *ctx)
{
    struct exchange *x = ctx;
    char text[80] = "";
    header_value(line, size * count, "etag", x->answer.etag, sizeof(x->answer.etag));
    header_value(line, size * count, "x-amz-checksum-crc64nvme", x->answer.crc64nvme, sizeof(x->answer.crc64nvme));
    header_value(line, size * count, "content-length", text, sizeof(text));
    if (text[0] != '\0')
        x->answer.length = strtoull(text, NULL, 10);
    text[0] = '\0';
    header_value(line, size * count, "last-modified", text, sizeof(text));
    if (text[0] != '\0') {
        time_t when = curl_getdate(text, NULL);
        x->answer.modified_wall_ms = when > 0 ? (int64_t)when * 1000 : 0;
    }
    return size * count;
}

/* ---- one try ---------------------------------------------------------------------------------------------------------- */

static void set_transfer(CURL *easy, const struct s3_client *c, struct exchange *x)
{
    const struct s3_request *r = x->request;
    bool put = strcmp(r->method, "PUT") == 0, post = strcmp(r->method, "POST") == 0;
    (void)curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    (void)curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);
    (void)curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    (void)curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, CONNECT_MS);
    (void)curl_easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, 1024L);
    (void)curl_easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, SILENT_S);
    (void)curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_write);
    (void)curl_easy_setopt(easy, CURLOPT_WRITEDATA, x);
    (void)curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, on_header);
    (void)curl_easy_setopt(easy, CURLOPT_HEADERDATA, x);
    (void)curl_easy_setopt(easy, CURLOPT_UPLOAD_BUFFERSIZE, 1L << 20);
    (void)curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, 512L << 10);
    if (c->config->ca_file != NULL && c->config->ca_file[0] != '\0')
        (void)curl_easy_setopt(easy, CURLOPT_CAINFO, c->config->ca_file);
    if (put) {
        (void)curl_easy_setopt(easy, CURLOPT_UPLOAD, 1L);
        (void)curl_easy_setopt(easy, CURLOPT_INFILESIZE_LARGE, (curl_off_t)(r->body != NULL ? r->body_len : r->bytes));
        (void)curl_easy_setopt(easy, CURLOPT_READFUNCTION, on_read);
        (void)curl_easy_setopt(easy, CURLOPT_READDATA, x);
        (void)curl_easy_setopt(easy, CURLOPT_SEEKFUNCTION, on_seek);
        (void)curl_easy_setopt(easy, CURLOPT_SEEKDATA, x);
    } else if (post) {
        (void)curl_easy_setopt(easy, CURLOPT_POST, 1L);
        (void)curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)r->body_len);
        (void)curl_easy_setopt(easy, CURLOPT_POSTFIELDS, r->body != NULL ? r->body : "");
    } else if (strcmp(r->method, "HEAD") == 0) {
        (void)curl_easy_setopt(easy, CURLOPT_NOBODY, 1L);
    } else if (strcmp(r->method, "GET") != 0) {
        (void)curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, r->method);
    }
}

/* ERROR_BUSY: the connection failed, it may work the next time. */
static int perform(struct s3_client *c, const char *url, struct curl_slist *headers, struct exchange *x, struct error *e)
{
    char text[CURL_ERROR_SIZE] = "";
    CURL *easy = handle_take(c);
    if (easy == NULL)
        return error_set(e, ERROR_LIMIT, "no memory for a connection");
    set_transfer(easy, c, x);
    (void)curl_easy_setopt(easy, CURLOPT_URL, url);
    (void)curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
    (void)curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, text);
    CURLcode code = curl_easy_perform(easy);
    (void)curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &x->status);
    handle_give(c, easy);
    if (code == CURLE_OK)
        return 0;
    if (x->body.overflow)
        return error_set(e, ERROR_LIMIT, "%.200s: the answer is longer than %u bytes", url, ANSWER_MAX);
    bool for_good = code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE || code == CURLE_URL_MALFORMAT ||
                    code == CURLE_ABORTED_BY_CALLBACK;
    return error_set(e, for_good ? ERROR_IO : code == CURLE_OPERATION_TIMEDOUT ? ERROR_TIMEOUT : ERROR_BUSY, "%.200s: %.100s", c->endpoint,
                     text[0] != '\0' ? text : curl_easy_strerror(code));
}

static char *url_of(const struct s3_client *c, const struct sign_request *s)
{
    struct buf url = BUF_INIT(16u << 10);
    buf_add(&url, c->endpoint);
    sign_encode(s->path, true, &url);
    if (s->query_count > 0) {
        buf_add(&url, "?");
        sign_query(s, &url);
    }
    return buf_take(&url);
}

/* Signs and sends. The lock is held only while the keys are used. */
static int try_once(struct s3_client *c, struct exchange *x, struct error *e)
{
    const struct s3_request *r = x->request;
    struct sign_pair headers[S3_HEADERS_MAX + 4];
    char time[SIGN_TIME_MAX], hash[65] = SIGN_UNSIGNED_PAYLOAD;
    auto_free char *path = r->key[0] != '\0' ? xasprintf("/%s/%s", c->bucket, r->key) : xasprintf("/%s", c->bucket);
    uint8_t digest[32];
    sign_time(clock_wall_ms(), time);
    if (r->body != NULL || r->bytes == 0) {
        crypto_sha256(r->body != NULL ? r->body : "", r->body_len, digest);
        crypto_hex(digest, sizeof(digest), hash);
    }
    size_t n = 0;
    headers[n++] = (struct sign_pair){ "host", c->host };
    headers[n++] = (struct sign_pair){ "x-amz-content-sha256", hash };
    headers[n++] = (struct sign_pair){ "x-amz-date", time };
    for (size_t i = 0; i < r->header_count; i++)
        headers[n++] = r->headers[i];
    struct sign_request s = { .method = r->method, .path = path, .query = r->query, .query_count = r->query_count, .headers = headers,
                              .payload_sha256 = hash, .time = time, .region = c->region, .service = "s3" };
    auto_buf struct buf authorization = BUF_INIT(8192);
    auto_free char *token = NULL, *url = url_of(c, &s);
    (void)pthread_mutex_lock(&c->lock);
    token = xstrdup(c->credentials.session_token);
    if (token != NULL)
        headers[n++] = (struct sign_pair){ "x-amz-security-token", token };
    s.header_count = n;
    sign_authorization(&s, &(struct sign_key){ c->credentials.access_key, c->credentials.secret_key }, &authorization);
    (void)pthread_mutex_unlock(&c->lock);
    struct curl_slist *list = curl_slist_append(NULL, "Expect:");
    for (size_t i = 1; i < n; i++) {
        auto_free char *line = xasprintf("%s: %s", headers[i].name, headers[i].value);
        list = curl_slist_append(list, line);
    }
    auto_free char *line = xasprintf("Authorization: %s", buf_text(&authorization));
    list = curl_slist_append(list, line);
    int result = perform(c, url, list, x, e);
    curl_slist_free_all(list);
    return result;
}

/* ---- credentials ------------------------------------------------------------------------------------------------------ */

static int ask_for_role(struct s3_client *c, struct s3_credentials *ret, struct error *e)
{
    const struct s3_config *o = c->config;
    auto_free char *token = NULL, *aws = xasprintf("https://sts.%s.amazonaws.com", c->region);
    size_t len;
    if (fs_read(o->token_file, TOKEN_MAX, &token, &len, e) != 0)
        return error_wrap(e, "web identity");
    token[strcspn(token, "\r\n")] = '\0';
    auto_free char *body = s3_credentials_request(o->role_arn, first_of(o->session_name, NULL, "ringmaster"), token);
    auto_free char *url = xasprintf("%s/", first_of(o->sts_endpoint, o->any_endpoint, aws));
    struct s3_request request = { .method = "POST", .key = "", .body = body, .body_len = strlen(body) };
    struct exchange x = { .request = &request, .body = BUF_INIT(ANSWER_MAX) };
    struct curl_slist *headers = curl_slist_append(NULL, "Content-Type: application/x-www-form-urlencoded");
    int result = perform(c, url, headers, &x, e);
    curl_slist_free_all(headers);
    if (result == 0 && x.status != 200) {
        auto_free char *message = xml_text((struct xml){ buf_text(&x.body), x.body.len }, "Message");
        result = error_set(e, s3_judge(x.status, "") == S3_AGAIN ? ERROR_BUSY : ERROR_DENIED, "role %.100s: status %ld: %.150s", o->role_arn, x.status,
                           message != NULL ? message : "no reason was given");
    }
    if (result == 0)
        result = s3_credentials_of_answer(buf_text(&x.body), x.body.len, ret, e);
    buf_release(&x.body);
    return result;
}

static int of_file(const struct s3_config *o, struct s3_credentials *ret, struct error *e)
{
    auto_free char *usual = xasprintf("%s/.aws/credentials", o->home != NULL ? o->home : ""), *text = NULL;
    const char *path = first_of(o->credentials_file, usual, usual);
    size_t len;
    if (fs_read(path, TOKEN_MAX, &text, &len, e) != 0)
        return e->kind == ERROR_NOT_FOUND ? error_set(e, ERROR_DENIED, "no credentials for S3: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
                                                      "AWS_ROLE_ARN and AWS_WEB_IDENTITY_TOKEN_FILE, or write %.150s", path) : -1;
    if (s3_credentials_of_profile(text, first_of(o->profile, NULL, "default"), ret, e) != 0) {
        (void)error_wrap(e, "%.150s", path);
        e->kind = ERROR_DENIED;
        return -1;
    }
    return 0;
}

static int find_credentials(struct s3_client *c, struct s3_credentials *ret, struct error *e)
{
    const struct s3_config *o = c->config;
    bool keys = first_of(o->access_key, NULL, NULL) != NULL && first_of(o->secret_key, NULL, NULL) != NULL;
    if (keys) {
        *ret = (struct s3_credentials){ .access_key = xstrdup(o->access_key), .secret_key = xstrdup(o->secret_key),
                                        .session_token = xstrdup(first_of(o->session_token, NULL, NULL)) };
        return 0;
    }
    if (first_of(o->token_file, NULL, NULL) != NULL && first_of(o->role_arn, NULL, NULL) != NULL)
        return ask_for_role(c, ret, e);
    return of_file(o, ret, e);
}

/* Fetched where there are none yet, where they are about to expire, and when the server says that they have. */
static int refresh(struct s3_client *c, bool expired, struct error *e)
{
    struct s3_credentials fresh;
    (void)pthread_mutex_lock(&c->lock);
    bool good = c->has_credentials && !expired &&
                (c->credentials.expires_wall_ms == 0 || c->credentials.expires_wall_ms - clock_wall_ms() > FRESH_MS);
    (void)pthread_mutex_unlock(&c->lock);
    if (good)
        return 0;
    if (find_credentials(c, &fresh, e) != 0)
        return -1;
    (void)pthread_mutex_lock(&c->lock);
    s3_credentials_release(&c->credentials);
    c->credentials = fresh;
    c->has_credentials = true;
    (void)pthread_mutex_unlock(&c->lock);
    return 0;
}

/* ---- a request -------------------------------------------------------------------------------------------------------- */

/* What went wrong by the answer's own words. */
static int refused(const struct s3_client *c, const struct exchange *x, const char *code, struct error *e)
{
    auto_free char *message = xml_text((struct xml){ buf_text(&x->body), x->body.len }, "Message");
    const struct s3_request *r = x->request;
    enum error_kind kind = x->status == 404 ? ERROR_NOT_FOUND : x->status == 412 ? ERROR_CONFLICT : x->status == 403 || x->status == 401 ? ERROR_DENIED
                         : ERROR_IO;
    return error_set(e, kind, "%s s3://%s/%.120s: status %ld%s%s%s%.100s", r->method, c->bucket, r->key, x->status, code[0] != '\0' ? " " : "", code,
                     message != NULL ? ": " : "", message != NULL ? message : "");
}

/* The code of an error's body; of an answer of 200 too, unless it is data. */
static char *code_of(const struct exchange *x)
{
    bool fine = x->status >= 200 && x->status < 300;
    struct xml whole = { buf_text(&x->body), x->body.len };
    struct xml error;
    if ((fine && (x->request->is_data || x->request->into != NULL)) || !xml_next(&whole, "Error", &error))
        return xstrdup("");
    char *code = xml_text(error, "Code");
    return code != NULL ? code : xstrdup("Error");
}

static void pause_before(int attempt)
{
    struct error ignored = ERROR_INIT;
    uint32_t random = 0;
    int64_t most = s3_pause_ms(attempt);
    if (crypto_random(&random, sizeof(random), &ignored) != 0)
        random = 0;
    (void)poll(NULL, 0, (int)(most / 4 + random % (uint64_t)most));
}

static bool is_short(const struct exchange *x)
{
    return x->request->into != NULL && (x->into_done != x->request->into_len || x->into_overflow);
}

/* One try with what follows from it. S3_FINE: x->answer; else e. */
static enum s3_verdict attempt(struct s3_client *c, struct exchange *x, struct error *e)
{
    if (try_once(c, x, e) != 0)
        return e->kind == ERROR_BUSY || e->kind == ERROR_TIMEOUT ? S3_AGAIN : S3_NO;
    auto_free char *code = code_of(x);
    enum s3_verdict verdict = s3_judge(x->status, code);
    if (verdict != S3_FINE) {
        (void)refused(c, x, code, e);
        return verdict;
    }
    if (is_short(x)) {
        (void)error_set(e, ERROR_IO, "%s s3://%s/%.120s: %zu bytes came, %zu were asked for", x->request->method, c->bucket, x->request->key, x->into_done,
                        x->request->into_len);
        return S3_AGAIN;
    }
    return S3_FINE;
}

int s3_call(struct s3_client *c, const struct s3_request *r, struct s3_answer *ret_answer, struct error *e)
{
    bool expired = false;
    for (int i = 0; i < TRIES; i++) {
        struct exchange x = { .request = r, .body = BUF_INIT(ANSWER_MAX) };
        enum s3_verdict verdict = S3_AGAIN;
        if (i > 0)
            pause_before(i);
        if (refresh(c, expired, e) == 0)
            verdict = attempt(c, &x, e);
        else if (e->kind != ERROR_BUSY && e->kind != ERROR_TIMEOUT)
            verdict = S3_NO;
        expired = verdict == S3_REFRESH;
        if (verdict == S3_FINE && ret_answer != NULL) {
            *ret_answer = x.answer;
            ret_answer->len = x.body.len;
            ret_answer->body = x.body.text != NULL ? buf_take(&x.body) : xstrdup("");
        }
        buf_release(&x.body);
        if (verdict == S3_FINE)
            return 0;
        if (verdict == S3_NO)
            return -1;
    }
    if (e->kind == ERROR_BUSY)
        e->kind = ERROR_IO;
    return error_wrap(e, "tried %d times", TRIES);
}
