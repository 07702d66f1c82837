#include "kube/client.h"

#include <assert.h>
#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "kube/credentials.h"
#include "kube/line.h"
#include "kube/request.h"
#include "kube/socks.h"
#include "kube/strip.h"
#include "kube/throttle.h"
#include "kube/transfer.h"

#define IN_FLIGHT 64
#define IDLE_HANDLES 64
#define DEADLINE_MS 60000
#define SILENT_MS 3000              /* the least silence for which a connection is cut */
#define STREAM_AHEAD (4u << 20)     /* bytes of a stream that one turn of the loop may bring, beyond a line */
#define KEEP_BYTES (256u << 10)     /* a stream's buffer that grew over this is given back when it is empty */
#define EXPIRE_EVERY_MS 500
#define BACKGROUND_ALONE 8          /* calls of the background at a time while there is nothing else; else one */

struct calls { struct kube_call *first, **last; };

/* A call's list holds it through `link`, whichever of the client's lists that is. */
struct kube_call {
    struct kube_call *next, **link;
    struct calls *list;
    struct kube_call *next_ready;   /* a stream with bytes to give */
    struct kube_client *client;
    CURL *easy;                     /* NULL while it waits */
    struct curl_slist *headers;
    struct kube_http http;
    kube_reply_fn *done;
    kube_line_fn *line;             /* a stream */
    void (*drop)(void *ctx);
    void *ctx;
    bool raw, counted, background, is_list, writes, fenced, ready, ended;
    const char *const *drops;
    enum kube_want want;
    int64_t begun_ms, until_ms;     /* until_ms 0 = for ever */
    size_t max_bytes;
    bool overflow;
    struct buf answer;              /* of a stream: what came and is not given yet, or the body of an error */
    struct kube_lines lines;
    char curl_text[CURL_ERROR_SIZE];
};

struct kube_client {
    struct loop *loop;
    const struct kube_config *config;
    CURLM *multi;
    struct loop_timer *timer, *pump_timer;
    struct kube_credentials credentials;
    struct kube_throttle throttle;
    struct calls waiting, background, active, dead;
    uint32_t background_active;
    struct kube_call *ready;
    struct kube_socks socks;
    CURL *idle[IDLE_HANDLES];
    size_t idle_count;
    struct kube_endpoint endpoint;
    bool (*may_write)(void *ctx);
    void *ctx;
    unsigned busy;                   /* callbacks on the stack: calls are not freed */
    struct kube_client_stats stats;
};

static void pump(struct kube_client *c);
static void end_fenced(struct kube_client *c);

/* ---- lists of calls ---------------------------------------------------------------------------------------------------- */

static void calls_add(struct calls *list, struct kube_call *k)
{
    k->next = NULL;
    k->list = list;
    k->link = list->last;
    *list->last = k;
    list->last = &k->next;
}

static void calls_remove(struct kube_call *k)
{
    *k->link = k->next;
    if (k->next != NULL)
        k->next->link = k->link;
    else
        k->list->last = k->link;
}

static void call_free(struct kube_call *k)
{
    kube_http_release(&k->http);
    buf_release(&k->answer);
    kube_lines_release(&k->lines);
    free(k);
}

static void free_dead(struct kube_client *c)
{
    for (struct kube_call *k = c->dead.first, *next; k != NULL; k = next) {
        next = k->next;
        call_free(k);
    }
    c->dead = (struct calls){ .first = NULL, .last = &c->dead.first };
}

/* Takes the call from the network. It may still be in the ready list, so it is freed when nobody walks that any more. */
static void end_call(struct kube_call *k)
{
    struct kube_client *c = k->client;

    if (k->ended)
        return;
    k->ended = true;
    if (k->easy != NULL) {
        (void)curl_multi_remove_handle(c->multi, k->easy);
        curl_slist_free_all(k->headers);
        if (c->idle_count < IDLE_HANDLES) {
            curl_easy_reset(k->easy);
            c->idle[c->idle_count++] = k->easy;
        } else {
            curl_easy_cleanup(k->easy);
        }
        k->easy = NULL;
        k->headers = NULL;
        c->stats.in_flight--;
        c->background_active -= k->background;
    } else {
        c->stats.waiting--;
    }
    calls_remove(k);
    calls_add(&c->dead, k);
}

/* ---- what curl calls --------------------------------------------------------------------------------------------------- */

static size_t on_body(char *bytes, size_t size, size_t count, void *ctx)
{
    struct kube_call *k = ctx;
    size_t len = size * count;
    long status = 0;

    k->client->stats.bytes_in += len;
    (void)curl_easy_getinfo(k->easy, CURLINFO_RESPONSE_CODE, &status);
    if (k->line == NULL && k->want == KUBE_WANT_NOTHING && status >= 200 && status < 300)
        return len;
    buf_add_bytes(&k->answer, bytes, len);
    if (!buf_ok(&k->answer)) {
        k->overflow = true;
        return CURL_WRITEFUNC_ERROR;
    }
    /* Lines are given outside of curl, whose functions may not be called from here. */
    if (k->line != NULL && status == 200 && !k->ready) {
        k->ready = true;
        k->next_ready = k->client->ready;
        k->client->ready = k;
    }
    return len;
}

static void on_io(void *ctx, int fd, int mask)
{
    struct kube_client *c = ctx;
    int running;

    end_fenced(c); /* curl would send what waits for this connection */
    (void)curl_multi_socket_action(c->multi, fd, mask, &running);
    pump(c);
}

static int on_socket(CURL *easy, curl_socket_t fd, int what, void *ctx, void *known)
{
    struct kube_client *c = ctx;

    (void)easy;
    kube_socks_watch(&c->socks, c->multi, fd, what, known);
    return 0;
}

static int on_timeout_wanted(CURLM *multi, long ms, void *ctx)
{
    struct kube_client *c = ctx;

    (void)multi;
    if (ms < 0)
        loop_timer_cancel(c->timer);
    else
        loop_timer_at(c->timer, clock_mono_ms() + ms);
    return 0;
}

static void on_timer(void *ctx)
{
    struct kube_client *c = ctx;
    int running;

    end_fenced(c);
    (void)curl_multi_socket_action(c->multi, CURL_SOCKET_TIMEOUT, 0, &running);
    pump(c);
}

static void on_pump_timer(void *ctx)
{
    pump(ctx);
}

/* ---- sending ----------------------------------------------------------------------------------------------------------- */

static void start(struct kube_client *c, struct kube_call *k, int64_t now_ms)
{
    calls_remove(k);
    c->stats.waiting--;
    c->background_active += k->background;
    kube_credentials_refresh(&c->credentials, now_ms, clock_wall_ms());
    k->easy = c->idle_count > 0 ? c->idle[--c->idle_count] : curl_easy_init();
    assert(k->easy != NULL);
    k->headers = kube_transfer_set(k->easy, &c->endpoint, &c->credentials, &k->http);
    (void)curl_easy_setopt(k->easy, CURLOPT_PRIVATE, k);
    (void)curl_easy_setopt(k->easy, CURLOPT_ERRORBUFFER, k->curl_text);
    (void)curl_easy_setopt(k->easy, CURLOPT_WRITEFUNCTION, on_body);
    (void)curl_easy_setopt(k->easy, CURLOPT_WRITEDATA, k);
    if (k->until_ms > 0)
        (void)curl_easy_setopt(k->easy, CURLOPT_TIMEOUT_MS, (long)(k->until_ms > now_ms ? k->until_ms - now_ms : 1));
    if (k->counted)
        kube_throttle_sent(&c->throttle);
    calls_add(&c->active, k);
    c->stats.in_flight++;
    c->stats.requests++;
    CURLMcode code = curl_multi_add_handle(c->multi, k->easy);
    assert(code == CURLM_OK);
    (void)code;
}

/* ---- answers ----------------------------------------------------------------------------------------------------------- */

static void give_line(void *ctx, const char *line, size_t len)
{
    struct kube_call *k = ctx;

    if (!k->ended)
        k->line(k->ctx, line, len);
}

/* -1: a line is too long, the stream is worth nothing more. */
static int give_lines(struct kube_call *k, struct error *e)
{
    /* Lines may be asked to go on only after these: what comes meanwhile comes into a buffer of its own. */
    struct buf came = k->answer;
    k->answer = (struct buf)BUF_INIT(came.max);
    int code = kube_lines_feed(&k->lines, buf_text(&came), came.len, give_line, k, e);
    if (k->answer.text == NULL && came.cap <= KEEP_BYTES) {
        k->answer = came;
        buf_clear(&k->answer);
    } else {
        buf_release(&came);
    }
    return code;
}

/* The connections that said nothing since the request was sent are dead, or their server hangs: the next request gets a new one. */
static void cut_silent(struct kube_client *c, const struct kube_call *k)
{
    int64_t long_ago_ms = clock_mono_ms() - SILENT_MS;

    kube_socks_cut_silent(&c->socks, k->begun_ms < long_ago_ms ? k->begun_ms : long_ago_ms);
}

static void transfer_error(struct kube_call *k, CURLcode code, struct error *e)
{
    const char *words = k->curl_text[0] != '\0' ? k->curl_text : curl_easy_strerror(code);

    if (k->overflow)
        (void)error_set(e, ERROR_LIMIT, "%s: the answer is larger than %zu bytes", k->http.what, k->max_bytes);
    else if (code == CURLE_OPERATION_TIMEDOUT)
        (void)error_set(e, ERROR_TIMEOUT, "%s: no answer from %s in time: %s", k->http.what, k->client->config->server, words);
    else if (code == CURLE_PEER_FAILED_VERIFICATION)
        (void)error_set(e, ERROR_DENIED, "%s: the certificate of %s is not trusted: %s; check certificate-authority of the cluster",
                        k->http.what, k->client->config->server, words);
    else if (code == CURLE_SSL_CERTPROBLEM)
        (void)error_set(e, ERROR_DENIED, "%s: our client certificate cannot be used: %s", k->http.what, words);
    else
        (void)error_set(e, ERROR_IO, "%s: %s: %s", k->http.what, k->client->config->server, words);
}

static void give_reply(struct kube_call *k, struct kube_reply *reply, struct error *e)
{
    reply->error = e->kind != ERROR_NONE ? e : NULL;
    if (reply->error != NULL)
        k->client->stats.errors++;
    end_call(k);
    if (k->done != NULL)
        k->done(k->ctx, reply);
    cJSON_Delete(reply->object);
}

static int parse_answer(struct kube_call *k, cJSON **ret_object, struct error *e)
{
    if (k->drops != NULL) {
        struct buf stripped = BUF_INIT(k->answer.max + sizeof "null");
        kube_strip(buf_text(&k->answer), k->answer.len, k->is_list ? "items" : NULL, k->drops, &stripped);
        buf_release(&k->answer);
        k->answer = stripped;
    }
    return json_parse(buf_text(&k->answer), k->answer.len, ret_object, e);
}

static void finish(struct kube_call *k, CURLcode code)
{
    struct kube_client *c = k->client;
    struct error e = ERROR_INIT;
    struct kube_status status = { .reason = "" };
    struct kube_reply reply = { .reason = "" };
    long http_status = 0;
    curl_off_t retry_after = 0;

    (void)curl_easy_getinfo(k->easy, CURLINFO_RESPONSE_CODE, &http_status);
    (void)curl_easy_getinfo(k->easy, CURLINFO_RETRY_AFTER, &retry_after);
    reply.http_status = (int)http_status;
    if (code == CURLE_OPERATION_TIMEDOUT)
        cut_silent(c, k);
    /* Of a watch that broke, what waits is half a line: it comes again from the version before it. */
    if (k->line != NULL && http_status == 200 && give_lines(k, &e) == 0 && !k->ended && (code == CURLE_OK || k->raw))
        kube_lines_end(&k->lines, give_line, k);
    if (k->ended)
        return; /* cancelled by one of its lines */
    if (e.kind != ERROR_NONE)
        (void)error_wrap(&e, "%s", k->http.what);
    else if (http_status >= 300)
        kube_status_error((int)http_status, buf_text(&k->answer), k->answer.len, k->http.what, &status, &e);
    else if (code != CURLE_OK)
        transfer_error(k, code, &e);
    else if (k->line == NULL && k->want != KUBE_WANT_NOTHING && parse_answer(k, &reply.object, &e) < 0)
        (void)error_set(&e, ERROR_IO, "%s: the answer is no JSON", k->http.what);
    reply.reason = status.reason;
    reply.already_exists = strcmp(status.reason, "AlreadyExists") == 0;
    reply.retry_after_ms = retry_after > 0 && retry_after < 86400 ? (int64_t)retry_after * 1000 : status.retry_after_ms;
    bool busy = http_status == 429 || http_status == 503;
    if (busy)
        c->stats.throttled++;
    if (k->counted)
        kube_throttle_answered(&c->throttle, busy, reply.retry_after_ms, loop_now(c->loop));
    give_reply(k, &reply, &e);
}

/* ---- the fence --------------------------------------------------------------------------------------------------------- */

static bool is_fenced(const struct kube_client *c)
{
    return c->may_write != NULL && !c->may_write(c->ctx);
}

static void end_fenced(struct kube_client *c)
{
    const struct calls *lists[] = { &c->active, &c->waiting, &c->background };

    if (!is_fenced(c))
        return;
    c->busy++;
    for (size_t i = 0; i < COUNT(lists); i++) /* not those that a reply to one of these asks for */
        for (struct kube_call *k = lists[i]->first; k != NULL; k = k->next)
            k->fenced = k->writes;
    for (size_t i = 0; i < COUNT(lists); i++) {
        for (struct kube_call *k = lists[i]->first, *next; k != NULL; k = next) {
            struct kube_reply reply = { .reason = "" };
            struct error e = ERROR_INIT;
            next = k->next;
            if (!k->fenced)
                continue;
            if (k->counted && k->easy != NULL)
                kube_throttle_answered(&c->throttle, false, 0, loop_now(c->loop));
            (void)error_set(&e, ERROR_TIMEOUT, "%s: not sent, or its answer is not waited for: this process may not write any more", k->http.what);
            give_reply(k, &reply, &e);
            next = lists[i]->first; /* the callback may have cancelled the one that was next */
        }
    }
    c->busy--;
}

/* ---- the pump: everything that calls back, outside of curl ------------------------------------------------------------- */

static void give_ready(struct kube_client *c)
{
    struct error e = ERROR_INIT;

    while (c->ready != NULL) {
        struct kube_call *k = c->ready;
        c->ready = k->next_ready;
        k->ready = false;
        if (k->ended || give_lines(k, &e) == 0 || k->ended)
            continue;
        struct kube_reply reply = { .http_status = 200, .reason = "" };
        (void)error_wrap(&e, "%s", k->http.what);
        give_reply(k, &reply, &e);
    }
}

static void finish_done(struct kube_client *c)
{
    CURLMsg *message;
    int left;

    while ((message = curl_multi_info_read(c->multi, &left)) != NULL) {
        char *k = NULL;
        CURLcode code = message->data.result; /* the message is gone after the handle is */
        if (message->msg != CURLMSG_DONE)
            continue;
        (void)curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &k);
        finish((struct kube_call *)(void *)k, code);
    }
}

/* Whose turn it is; NULL: nobody waits. */
static struct kube_call *next_waiting(const struct kube_client *c)
{
    uint32_t others = c->throttle.in_flight - c->background_active;
    uint32_t room = others > 0 ? 1 : BACKGROUND_ALONE;

    return c->background.first != NULL && c->background_active < room ? c->background.first : c->waiting.first;
}

static void start_waiting(struct kube_client *c)
{
    int64_t now_ms = clock_mono_ms();

    for (struct kube_call *k; (k = next_waiting(c)) != NULL && kube_throttle_may_send(&c->throttle, now_ms);) {
        if (k->writes && is_fenced(c))
            return; /* it has its answer in the next turn */
        start(c, k, now_ms);
    }
}

/* What waited too long for its turn. */
static void expire_waiting(const struct calls *list)
{
    int64_t now_ms = clock_mono_ms();

    for (struct kube_call *k = list->first, *next; k != NULL; k = next) {
        next = k->next;
        if (k->until_ms == 0 || now_ms < k->until_ms)
            continue;
        struct kube_reply reply = { .reason = "" };
        struct error e = ERROR_INIT;
        (void)error_set(&e, ERROR_TIMEOUT, "%s: not sent: the API server takes too long for the requests before it", k->http.what);
        give_reply(k, &reply, &e);
        next = list->first; /* the callback may have cancelled the one that was next */
    }
}

static void pump(struct kube_client *c)
{
    assert(c->busy == 0); /* only the loop calls it, and callbacks do not run the loop */
    end_fenced(c);
    c->busy++;
    give_ready(c);
    finish_done(c);
    give_ready(c);
    start_waiting(c);
    if ((c->waiting.first != NULL || c->background.first != NULL) && !loop_timer_armed(c->pump_timer)) {
        expire_waiting(&c->waiting);
        expire_waiting(&c->background);
        int64_t now_ms = clock_mono_ms(), wake = kube_throttle_wake_ms(&c->throttle, now_ms);
        loop_timer_at(c->pump_timer, wake > 0 && wake < now_ms + EXPIRE_EVERY_MS ? wake : now_ms + EXPIRE_EVERY_MS);
    }
    c->busy--;
    free_dead(c);
}

/* ---- the interface ----------------------------------------------------------------------------------------------------- */

static int send_call(struct kube_client *c, const struct kube_request *r, kube_line_fn *line, kube_reply_fn *done, void *ctx,
                     struct kube_call **ret_call, struct error *e)
{
    struct kube_http http;

    if (kube_http_of(r, &http, e) < 0)
        return -1;
    struct kube_call *k = xcalloc(1, sizeof *k);
    *k = (struct kube_call){ .client = c, .http = http, .done = done, .line = line, .drop = r->drop, .ctx = ctx, .raw = r->raw, .background = r->background,
                             .is_list = r->verb == KUBE_LIST, .drops = r->drops, .want = r->want, .begun_ms = clock_mono_ms() };
    k->max_bytes = r->max_bytes > 0 ? r->max_bytes : JSON_MAX_BYTES;
    k->answer = (struct buf)BUF_INIT(k->max_bytes + (line != NULL ? STREAM_AHEAD : 0));
    kube_lines_init(&k->lines, k->max_bytes, r->raw);
    k->counted = line == NULL && !r->urgent;
    k->until_ms = r->deadline_ms > 0 ? k->begun_ms + r->deadline_ms : line != NULL ? 0 : k->begun_ms + DEADLINE_MS;
    k->writes = r->verb >= KUBE_CREATE && !r->urgent && !r->dry_run;
    calls_add(k->background ? &c->background : &c->waiting, k);
    c->stats.waiting++;
    bool first = next_waiting(c) == k && kube_throttle_may_send(&c->throttle, k->begun_ms);
    if ((!k->counted || first) && !(k->writes && is_fenced(c)))
        start(c, k, k->begun_ms);
    else if (!loop_timer_armed(c->pump_timer))
        loop_timer_at(c->pump_timer, k->begun_ms);
    if (ret_call != NULL)
        *ret_call = k;
    return 0;
}

int kube_client_send(struct kube_client *c, const struct kube_request *r, kube_reply_fn *done, void *ctx, struct kube_call **ret_call,
                     struct error *e)
{
    if (r->verb == KUBE_WATCH || r->raw)
        return error_set(e, ERROR_INVALID, "a watch is a stream");
    return send_call(c, r, NULL, done, ctx, ret_call, e);
}

int kube_client_stream(struct kube_client *c, const struct kube_request *r, kube_line_fn *line, kube_reply_fn *closed, void *ctx,
                       struct kube_call **ret_call, struct error *e)
{
    if (r->verb != KUBE_WATCH && !(r->verb == KUBE_GET && r->raw))
        return error_set(e, ERROR_INVALID, "only a watch or a raw text is a stream");
    return send_call(c, r, line, closed, ctx, ret_call, e);
}

void kube_client_cancel(struct kube_client *c, struct kube_call *k)
{
    if (k == NULL || k->ended)
        return;
    if (k->counted && k->easy != NULL)
        kube_throttle_answered(&c->throttle, false, 0, loop_now(c->loop));
    end_call(k);
    if (c->busy == 0) {
        /* Not walked by anybody: out of the ready list, and free. */
        for (struct kube_call **at = &c->ready; *at != NULL; at = &(*at)->next_ready)
            if (*at == k) {
                *at = k->next_ready;
                break;
            }
        free_dead(c);
    }
}

void kube_client_reread(struct kube_client *c)
{
    c->credentials.stale = true;
}

void kube_client_stats(const struct kube_client *c, struct kube_client_stats *ret_stats)
{
    *ret_stats = c->stats;
    ret_stats->window = c->throttle.window;
}

/* ---- life -------------------------------------------------------------------------------------------------------------- */

int kube_client_new(struct loop *l, const struct kube_config *config, const struct kube_client_options *options,
                    struct kube_client **ret, struct error *e)
{
    struct kube_client *c = xcalloc(1, sizeof *c);
    const char *agent = options != NULL && options->user_agent != NULL ? options->user_agent : "ringmaster/" RINGMASTER_VERSION;

    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
        free(c);
        return error_set(e, ERROR_BUG, "libcurl cannot be initialized");
    }
    c->loop = l;
    c->socks = (struct kube_socks){ .loop = l, .ready = on_io, .ctx = c };
    c->config = config;
    c->may_write = options != NULL ? options->may_write : NULL;
    c->ctx = options != NULL ? options->ctx : NULL;
    c->waiting.last = &c->waiting.first;
    c->background.last = &c->background.first;
    c->active.last = &c->active.first;
    c->dead.last = &c->dead.first;
    kube_throttle_init(&c->throttle, options != NULL && options->max_in_flight > 0 ? options->max_in_flight : IN_FLIGHT);
    c->timer = loop_timer_new(l, on_timer, c);
    c->pump_timer = loop_timer_new(l, on_pump_timer, c);
    c->multi = curl_multi_init();
    assert(c->multi != NULL);
    (void)curl_multi_setopt(c->multi, CURLMOPT_SOCKETFUNCTION, on_socket);
    (void)curl_multi_setopt(c->multi, CURLMOPT_SOCKETDATA, c);
    (void)curl_multi_setopt(c->multi, CURLMOPT_TIMERFUNCTION, on_timeout_wanted);
    (void)curl_multi_setopt(c->multi, CURLMOPT_TIMERDATA, c);
    (void)curl_multi_setopt(c->multi, CURLMOPT_PIPELINING, (long)CURLPIPE_MULTIPLEX);
    if (kube_endpoint_init(&c->endpoint, config, agent, e) < 0 || kube_credentials_init(&c->credentials, config, clock_mono_ms(), clock_wall_ms(), e) < 0) {
        kube_client_free(c);
        return -1;
    }
    *ret = c;
    return 0;
}

static void drop_calls(const struct calls *list)
{
    for (struct kube_call *k; (k = list->first) != NULL;) {
        if (k->drop != NULL)
            k->drop(k->ctx);
        end_call(k);
    }
}

void kube_client_free(struct kube_client *c)
{
    if (c == NULL)
        return;
    assert(c->busy == 0);
    drop_calls(&c->waiting);
    drop_calls(&c->background);
    drop_calls(&c->active);
    free_dead(c);
    for (size_t i = 0; i < c->idle_count; i++)
        curl_easy_cleanup(c->idle[i]);
    (void)curl_multi_cleanup(c->multi);
    kube_socks_release(&c->socks);
    loop_timer_free(c->timer);
    loop_timer_free(c->pump_timer);
    kube_credentials_release(&c->credentials);
    kube_endpoint_release(&c->endpoint);
    free(c);
    curl_global_cleanup();
}
