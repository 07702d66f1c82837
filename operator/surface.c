#include "operator/surface.h"

#include <errno.h>
#include <libwebsockets.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "job/control.h"

#define METRICS_MAX (256u << 10)
#define SILENT_MS 30000        /* of the loop, until /healthz says so */
#define SERVICE_MS 1000
#define SESSIONS_MAX 4096

/* A connection, on the thread. libwebsockets owns the memory. */
struct session {
    struct session *next;      /* of the coordinators */
    struct lws *wsi;
    uint64_t id;               /* 0: no coordinator */
    struct buf in;             /* a message whose end has not come */
    char *reply;               /* body of an HTTP answer */
};

/* What the thread tells the loop. */
enum notice_kind { NOTICE_OPENED, NOTICE_MESSAGE, NOTICE_CLOSED };
struct notice {
    struct surface *surface;
    enum notice_kind kind;
    uint64_t id;
    char ns[KUBE_NS_MAX], name[JOB_NAME_MAX + 1], token[CONTROL_TOKEN_MAX];
    char *text; size_t len;
};

/* A coordinator that has proved itself, on the loop. */
struct coordinator { uint64_t id; char ns[KUBE_NS_MAX], name[JOB_NAME_MAX + 1]; struct coordinator *next; };

struct surface {
    struct loop *loop;
    struct controller *controller;
    struct lws_context *lws;
    pthread_t thread;
    atomic_bool stop;

    struct coordinator *coordinators; /* loop */
    size_t coordinator_count;

    struct session *sessions;  /* thread */
    size_t session_count;
    uint64_t next_id;

    pthread_mutex_t lock;      /* of what follows */
    struct buf metrics;
    bool ready;
    int64_t told_ms;
    uint64_t *closing; size_t closing_count, closing_cap; /* ids that the loop wants closed */
};

/* ---- loop side -------------------------------------------------------------------------------------------------------- */

static void close_later(struct surface *s, uint64_t id)
{
    (void)pthread_mutex_lock(&s->lock);
    if (s->closing_count == s->closing_cap) {
        s->closing_cap = s->closing_cap > 0 ? 2 * s->closing_cap : 16;
        s->closing = xrealloc(s->closing, s->closing_cap, sizeof *s->closing);
    }
    s->closing[s->closing_count++] = id;
    (void)pthread_mutex_unlock(&s->lock);
    lws_cancel_service(s->lws);
}

static void on_opened(struct surface *s, const struct notice *n)
{
    enum caller caller = controller_check_caller(s->controller, n->ns, n->name, n->token);

    if (caller != CALLER_RIGHT) {
        if (caller == CALLER_WRONG)
            log_warn("a coordinator that could not prove its job was turned away", KV("namespace", n->ns), KV("job", n->name));
        close_later(s, n->id);
        return;
    }
    struct coordinator *c = xcalloc(1, sizeof *c);
    c->id = n->id;
    memcpy(c->ns, n->ns, sizeof c->ns);
    memcpy(c->name, n->name, sizeof c->name);
    c->next = s->coordinators;
    s->coordinators = c;
    s->coordinator_count++;
}

static void on_message(struct surface *s, const struct notice *n)
{
    const struct coordinator *c = s->coordinators;
    struct error e = ERROR_INIT;

    while (c != NULL && c->id != n->id)
        c = c->next;
    if (c == NULL)
        return; /* turned away */
    struct coordinator_report *report = xcalloc(1, sizeof *report);
    if (report_decode(n->text, n->len, report, &e) < 0) {
        log_warn_from("a coordinator's report cannot be read", &e, KV("namespace", c->ns), KV("job", c->name));
        free(report);
        close_later(s, n->id);
    } else if (!controller_take_report(s->controller, c->ns, c->name, report)) {
        close_later(s, n->id);
    }
}

static void on_closed(struct surface *s, uint64_t id)
{
    for (struct coordinator **at = &s->coordinators; *at != NULL; at = &(*at)->next) {
        struct coordinator *c = *at;
        if (c->id != id)
            continue;
        *at = c->next;
        free(c);
        s->coordinator_count--;
        return;
    }
}

static void on_notice(void *ctx)
{
    struct notice *n = ctx;
    struct surface *s = n->surface;

    if (!atomic_load(&s->stop)) {
        switch (n->kind) {
        case NOTICE_OPENED: on_opened(s, n); break;
        case NOTICE_MESSAGE: on_message(s, n); break;
        case NOTICE_CLOSED: on_closed(s, n->id); break;
        }
    }
    crypto_wipe(n->token, sizeof n->token);
    free(n->text);
    free(n);
}

void surface_tell(struct surface *s, const struct metrics *m)
{
    struct buf text = BUF_INIT(METRICS_MAX);

    metrics_format(m, &text);
    (void)pthread_mutex_lock(&s->lock);
    buf_release(&s->metrics);
    s->metrics = text;
    s->ready = m->synced;
    s->told_ms = clock_mono_ms();
    (void)pthread_mutex_unlock(&s->lock);
}

size_t surface_coordinators(const struct surface *s)
{
    return s->coordinator_count;
}

/* ---- thread side: HTTP ------------------------------------------------------------------------------------------------ */

static struct notice *notice_new(struct surface *s, enum notice_kind kind, uint64_t id)
{
    struct notice *n = xcalloc(1, sizeof *n);

    *n = (struct notice){ .surface = s, .kind = kind, .id = id };
    return n;
}

static void post(struct notice *n)
{
    loop_post(n->surface->loop, on_notice, n);
}

/* The body of the answer, owned; *ret_code its status. */
static char *answer(struct surface *s, const char *path, unsigned *ret_code)
{
    char *text = NULL;

    (void)pthread_mutex_lock(&s->lock);
    *ret_code = HTTP_STATUS_OK;
    bool silent = clock_mono_ms() - s->told_ms > SILENT_MS;
    if (strcmp(path, "/metrics") == 0) {
        text = xstrdup(buf_text(&s->metrics));
    } else if (strcmp(path, "/healthz") == 0) {
        *ret_code = silent ? HTTP_STATUS_SERVICE_UNAVAILABLE : HTTP_STATUS_OK;
        text = xstrdup(silent ? "the loop does not turn\n" : "ok\n");
    } else if (strcmp(path, "/readyz") == 0) {
        *ret_code = s->ready && !silent ? HTTP_STATUS_OK : HTTP_STATUS_SERVICE_UNAVAILABLE;
        text = xstrdup(s->ready ? "ok\n" : "the caches are not in step with the API server yet\n");
    } else {
        *ret_code = HTTP_STATUS_NOT_FOUND;
        text = xstrdup("there are /healthz, /readyz and /metrics\n");
    }
    (void)pthread_mutex_unlock(&s->lock);
    return text;
}

static int on_http(struct surface *s, struct lws *wsi, struct session *session, const char *path)
{
    uint8_t headers[LWS_PRE + 512], *start = headers + LWS_PRE, *at = start, *end = headers + sizeof headers - 1;
    unsigned code = 0;

    free(session->reply);
    session->reply = answer(s, path, &code);
    if (lws_add_http_common_headers(wsi, code, "text/plain; version=0.0.4; charset=utf-8", strlen(session->reply), &at, end) != 0 ||
        lws_finalize_write_http_header(wsi, start, &at, end) != 0)
        return 1;
    lws_callback_on_writable(wsi);
    return 0;
}

static int on_http_writable(struct lws *wsi, struct session *session)
{
    if (session->reply == NULL)
        return 0;
    size_t len = strlen(session->reply);
    auto_free uint8_t *bytes = xcalloc(1, LWS_PRE + len + 1);
    memcpy(bytes + LWS_PRE, session->reply, len);
    free(TAKE(session->reply));
    if (lws_write(wsi, bytes + LWS_PRE, len, LWS_WRITE_HTTP_FINAL) != (int)len)
        return 1;
    return lws_http_transaction_completed(wsi) != 0 ? -1 : 0;
}

/* ---- thread side: coordinators ---------------------------------------------------------------------------------------- */

static bool read_caller(struct lws *wsi, struct notice *n)
{
    static const char BEARER[] = "Bearer ";
    char path[256], header[sizeof BEARER + CONTROL_TOKEN_MAX + 1];

    if (lws_hdr_copy(wsi, path, sizeof path, WSI_TOKEN_GET_URI) <= 0 ||
        lws_hdr_copy(wsi, header, sizeof header, WSI_TOKEN_HTTP_AUTHORIZATION) <= 0)
        return false;
    if (strncmp(path, CONTROL_PATH, strlen(CONTROL_PATH)) != 0 || strncmp(header, BEARER, strlen(BEARER)) != 0)
        return false;
    char *ns = path + strlen(CONTROL_PATH), *slash = strchr(ns, '/');
    if (slash == NULL)
        return false;
    *slash = '\0';
    const char *name = slash + 1, *token = header + strlen(BEARER);
    if (strlen(ns) >= sizeof n->ns || strlen(name) >= sizeof n->name || strlen(token) >= sizeof n->token)
        return false;
    memcpy(n->ns, ns, strlen(ns) + 1);
    memcpy(n->name, name, strlen(name) + 1);
    memcpy(n->token, token, strlen(token) + 1);
    crypto_wipe(header, sizeof header);
    return true;
}

static int on_established(struct surface *s, struct lws *wsi, struct session *session)
{
    struct notice *n = notice_new(s, NOTICE_OPENED, ++s->next_id);

    if (s->session_count >= SESSIONS_MAX || !read_caller(wsi, n)) {
        free(n);
        return -1;
    }
    *session = (struct session){ .next = s->sessions, .wsi = wsi, .id = n->id, .in = BUF_INIT(CONTROL_MESSAGE_MAX) };
    s->sessions = session;
    s->session_count++;
    post(n);
    return 0;
}

static int on_receive(struct surface *s, struct lws *wsi, struct session *session, const void *bytes, size_t len)
{
    buf_add_bytes(&session->in, bytes, len);
    if (!buf_ok(&session->in))
        return -1;
    if (lws_remaining_packet_payload(wsi) > 0 || !lws_is_final_fragment(wsi))
        return 0;
    struct notice *n = notice_new(s, NOTICE_MESSAGE, session->id);
    n->len = session->in.len;
    n->text = buf_take(&session->in);
    post(n);
    return 0;
}

static void on_session_end(struct surface *s, struct session *session)
{
    if (session->id == 0)
        return;
    for (struct session **at = &s->sessions; *at != NULL; at = &(*at)->next) {
        if (*at == session) {
            *at = session->next;
            s->session_count--;
            break;
        }
    }
    buf_release(&session->in);
    if (!atomic_load(&s->stop)) /* at the end the loop does not turn any more */
        post(notice_new(s, NOTICE_CLOSED, session->id));
    session->id = 0;
}

static void close_unwanted(struct surface *s)
{
    (void)pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < s->closing_count; i++) {
        for (struct session *at = s->sessions; at != NULL; at = at->next) {
            if (at->id == s->closing[i])
                lws_set_timeout(at->wsi, PENDING_TIMEOUT_KILLED_BY_PARENT, LWS_TO_KILL_ASYNC);
        }
    }
    s->closing_count = 0;
    (void)pthread_mutex_unlock(&s->lock);
}

static int on_event(struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in, size_t len)
{
    struct surface *s = lws_context_user(lws_get_context(wsi));
    struct session *session = user;

    switch (reason) {
    case LWS_CALLBACK_HTTP: return on_http(s, wsi, session, in);
    case LWS_CALLBACK_HTTP_WRITEABLE: return on_http_writable(wsi, session);
    case LWS_CALLBACK_CLOSED_HTTP:
        if (session != NULL)
            free(TAKE(session->reply));
        return 0;
    case LWS_CALLBACK_ESTABLISHED: return on_established(s, wsi, session);
    case LWS_CALLBACK_RECEIVE: return on_receive(s, wsi, session, in, len);
    case LWS_CALLBACK_CLOSED: on_session_end(s, session); return 0;
    case LWS_CALLBACK_EVENT_WAIT_CANCELLED: close_unwanted(s); return 0;
    default: return lws_callback_http_dummy(wsi, reason, user, in, len);
    }
}

static void *serve(void *ctx)
{
    struct surface *s = ctx;

    while (!atomic_load(&s->stop) && lws_service(s->lws, SERVICE_MS) >= 0)
        continue;
    return NULL;
}

/* ---- life ------------------------------------------------------------------------------------------------------------- */

static void on_lws_log(int level, const char *line)
{
    auto_free char *text = xstrndup(line, strcspn(line, "\n"));

    log_at(level == LLL_ERR ? LOG_WARN : LOG_DEBUG, "libwebsockets", KV("says", text));
}

int surface_new(struct loop *l, const char *address, int port, struct controller *c, struct surface **ret, struct error *e)
{
    static const struct lws_protocols PROTOCOLS[] = {
        { .name = "http", .callback = on_event, .per_session_data_size = sizeof(struct session) },
        { .name = CONTROL_PROTOCOL, .callback = on_event, .per_session_data_size = sizeof(struct session), .rx_buffer_size = 64u << 10 },
        { .name = NULL },
    };
    struct surface *s = xcalloc(1, sizeof *s);
    struct lws_context_creation_info info = { .port = port, .iface = address[0] != '\0' ? address : NULL, .protocols = PROTOCOLS, .gid = -1,
                                              .uid = -1, .user = s, .timeout_secs = 20, .ka_time = 30, .ka_probes = 3, .ka_interval = 10,
                                              .options = LWS_SERVER_OPTION_FAIL_UPON_UNABLE_TO_BIND };

    s->loop = l;
    s->controller = c;
    s->told_ms = clock_mono_ms();
    s->metrics = (struct buf)BUF_INIT(METRICS_MAX);
    (void)pthread_mutex_init(&s->lock, NULL);
    lws_set_log_level(LLL_ERR | LLL_WARN, on_lws_log);
    s->lws = lws_create_context(&info);
    if (s->lws == NULL || (errno = pthread_create(&s->thread, NULL, serve, s)) != 0) {
        if (s->lws != NULL)
            lws_context_destroy(s->lws);
        (void)pthread_mutex_destroy(&s->lock);
        free(s);
        return error_set(e, ERROR_IO, "cannot listen on %s:%d; choose another with --listen", address, port);
    }
    *ret = s;
    return 0;
}

void surface_free(struct surface *s)
{
    if (s == NULL)
        return;
    atomic_store(&s->stop, true);
    lws_cancel_service(s->lws);
    (void)pthread_join(s->thread, NULL);
    lws_context_destroy(s->lws);
    while (s->coordinators != NULL)
        on_closed(s, s->coordinators->id);
    buf_release(&s->metrics);
    free(s->closing);
    (void)pthread_mutex_destroy(&s->lock);
    free(s);
}

