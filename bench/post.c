/*
 * post — sends the same request many times to an API server over one HTTP/2 connection, N of them in flight, and says how long
 * all of them took. What benchmarks submit jobs with, and what measures how fast an API server takes pods from anybody.
 *
 * "@I@" in path and body stands for the number of the request. Standard output gets one line of JSON: {sent, failed, seconds,
 * error}. It shares nothing with lib/kube, so that a slow client of ours cannot lower the bar.
 */
#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/fs.h"
#include "base/mem.h"
#include "base/opt.h"

#define BODY_MAX (1u << 20)
#define ANSWER_KEPT 600
#define PLACE "@I@"

struct options {
    const char *server, *ca, *cert, *key, *method, *path, *body, *type;
    int64_t count, first, in_flight;
};

#define TEXT(f) .type = OPT_TEXT, .at = OPT_AT(struct options, f, const char *)
#define INT(f, least, most) .type = OPT_INT, .at = OPT_AT(struct options, f, int64_t), .min = (least), .max = (most), .value = "N"

static const struct opt_def OPTIONS[] = {
    { .flag = "server", TEXT(server), .value = "URL", .help = "the API server" },
    { .flag = "ca", TEXT(ca), .value = "FILE", .help = "its certificate authority" },
    { .flag = "cert", TEXT(cert), .value = "FILE", .help = "our certificate" },
    { .flag = "key", TEXT(key), .value = "FILE", .help = "our key" },
    { .flag = "method", .def = "POST", TEXT(method), .value = "WORD", .help = "POST, PATCH, PUT or DELETE" },
    { .flag = "path", TEXT(path), .value = "PATH", .help = "path and query" },
    { .flag = "body", TEXT(body), .value = "FILE", .help = "what is sent; nothing when not given" },
    { .flag = "type", .def = "application/json", TEXT(type), .value = "TYPE", .help = "content type of the body" },
    { .flag = "count", .def = "1", INT(count, 1, 1000000), .help = "how many requests" },
    { .flag = "first", INT(first, 0, 1000000), .help = "number of the first one" },
    { .flag = "in-flight", .def = "16", INT(in_flight, 1, 256), .help = "how many at a time" },
};

struct answer { char text[ANSWER_KEPT]; size_t len; };

struct slot { CURL *easy; char *body; struct answer answer; };

struct post {
    const struct options *options;
    CURLM *multi;
    struct curl_slist *headers;
    char *body;
    struct slot *slots;
    int64_t next, failed;
    struct answer first_error;
};

/* Owned. */
static char *numbered(const char *text, int64_t number)
{
    struct buf b = BUF_INIT(2 * BODY_MAX);

    for (const char *at; (at = strstr(text, PLACE)) != NULL; text = at + strlen(PLACE)) {
        buf_add_bytes(&b, text, (size_t)(at - text));
        buf_addf(&b, "%lld", (long long)number);
    }
    buf_add(&b, text);
    return buf_take(&b);
}

static size_t on_answer(char *bytes, size_t size, size_t count, void *ctx)
{
    struct answer *a = ctx;
    size_t len = size * count, room = sizeof a->text - 1 - a->len, part = len < room ? len : room;

    memcpy(a->text + a->len, bytes, part);
    a->len += part;
    a->text[a->len] = '\0';
    return len;
}

static void send_next(struct post *p, struct slot *s)
{
    const struct options *o = p->options;
    int64_t number = p->next++;
    auto_free char *path = numbered(o->path, number), *url = xasprintf("%s%s", o->server, path);

    s->answer.len = 0;
    s->answer.text[0] = '\0';
    (void)curl_easy_setopt(s->easy, CURLOPT_URL, url);
    if (p->body != NULL) {
        free(s->body);
        s->body = numbered(p->body, number);
        (void)curl_easy_setopt(s->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(s->body));
        (void)curl_easy_setopt(s->easy, CURLOPT_POSTFIELDS, s->body);
    }
    (void)curl_easy_setopt(s->easy, CURLOPT_CUSTOMREQUEST, o->method);
    (void)curl_multi_add_handle(p->multi, s->easy);
}

static void slot_init(struct post *p, struct slot *s)
{
    const struct options *o = p->options;

    s->easy = curl_easy_init();
    (void)curl_easy_setopt(s->easy, CURLOPT_CAINFO, o->ca);
    (void)curl_easy_setopt(s->easy, CURLOPT_SSLCERT, o->cert);
    (void)curl_easy_setopt(s->easy, CURLOPT_SSLKEY, o->key);
    (void)curl_easy_setopt(s->easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_2TLS);
    (void)curl_easy_setopt(s->easy, CURLOPT_PIPEWAIT, 1L);
    (void)curl_easy_setopt(s->easy, CURLOPT_HTTPHEADER, p->headers);
    (void)curl_easy_setopt(s->easy, CURLOPT_WRITEFUNCTION, on_answer);
    (void)curl_easy_setopt(s->easy, CURLOPT_WRITEDATA, &s->answer);
    (void)curl_easy_setopt(s->easy, CURLOPT_PRIVATE, s);
}

static void take_answer(struct post *p, struct slot *s, CURLcode code)
{
    long status = 0;

    (void)curl_easy_getinfo(s->easy, CURLINFO_RESPONSE_CODE, &status);
    if (code == CURLE_OK && status >= 200 && status < 300)
        return;
    if (p->failed++ > 0)
        return;
    p->first_error = s->answer;
    if (code != CURLE_OK)
        p->first_error.len = (size_t)snprintf(p->first_error.text, sizeof p->first_error.text, "%s", curl_easy_strerror(code));
}

static void run(struct post *p)
{
    int64_t end = p->options->first + p->options->count;
    int running = 0, left;
    CURLMsg *message;

    p->next = p->options->first;
    for (int64_t i = 0; i < p->options->in_flight && p->next < end; i++) {
        slot_init(p, &p->slots[i]);
        send_next(p, &p->slots[i]);
    }
    do {
        (void)curl_multi_perform(p->multi, &running);
        while ((message = curl_multi_info_read(p->multi, &left)) != NULL) {
            char *place = NULL;
            CURLcode code = message->data.result;
            (void)curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &place);
            struct slot *s = (struct slot *)(void *)place;
            (void)curl_multi_remove_handle(p->multi, s->easy);
            take_answer(p, s, code);
            if (p->next < end) {
                send_next(p, s);
                running++;
            }
        }
        if (running > 0)
            (void)curl_multi_poll(p->multi, NULL, 0, 1000, NULL);
    } while (running > 0);
}

static int post_all(const struct options *o)
{
    struct post p = { .options = o, .multi = curl_multi_init() };
    auto_buf struct buf out = BUF_INIT(8192);
    struct error e = ERROR_INIT;

    if (o->body != NULL && fs_read(o->body, BODY_MAX, &p.body, NULL, &e) < 0) {
        (void)fprintf(stderr, "post: %s\n", e.text);
        return 1;
    }
    auto_free char *type = xasprintf("Content-Type: %s", o->type);
    p.headers = curl_slist_append(NULL, type);
    p.headers = curl_slist_append(p.headers, "Expect:");
    p.slots = xcalloc((size_t)o->in_flight, sizeof *p.slots);
    (void)curl_multi_setopt(p.multi, CURLMOPT_PIPELINING, (long)CURLPIPE_MULTIPLEX);
    int64_t began_ms = clock_mono_ms();
    run(&p);
    double seconds = (double)(clock_mono_ms() - began_ms) / 1000.0;
    buf_addf(&out, "{\"sent\": %lld, \"failed\": %lld, \"seconds\": %.3f, \"error\": ", (long long)o->count, (long long)p.failed, seconds);
    buf_add_json_string(&out, p.first_error.text);
    (void)printf("%s}\n", buf_text(&out));
    for (int64_t i = 0; i < o->in_flight; i++) {
        curl_easy_cleanup(p.slots[i].easy);
        free(p.slots[i].body);
    }
    free(p.slots);
    free(p.body);
    curl_slist_free_all(p.headers);
    (void)curl_multi_cleanup(p.multi);
    return p.failed > 0;
}

int main(int argc, char **argv)
{
    struct options o = { .server = NULL };
    struct error e = ERROR_INIT;
    bool help = false;
    int next = 0;

    if (opt_parse(OPTIONS, COUNT(OPTIONS), argc, argv, false, &o, &next, &help, &e) != 0) {
        (void)fprintf(stderr, "post: %s\n", e.text);
        return 2;
    }
    if (help) {
        opt_help(OPTIONS, COUNT(OPTIONS), stdout);
        return 0;
    }
    if (o.server == NULL || o.ca == NULL || o.cert == NULL || o.key == NULL || o.path == NULL) {
        (void)fprintf(stderr, "post: --server, --ca, --cert, --key and --path are needed\n");
        return 2;
    }
    int code = post_all(&o);
    opt_release(OPTIONS, COUNT(OPTIONS), &o);
    return code;
}
