#include "operator/surface.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/tls.h"
#include "operator/surface_parts.h"

#define SILENT_MS 30000        /* of the loop, until /healthz says so */
#define SERVICE_MS 1000

/* ---- loop side -------------------------------------------------------------------------------------------------------- */

void surface_tell(struct surface *s, bool leading, bool ready, struct buf *metrics)
{
    atomic_store(&s->leading, leading);
    (void)pthread_mutex_lock(&s->lock);
    buf_release(&s->metrics);
    s->metrics = *metrics;
    s->ready = ready;
    s->told_ms = clock_mono_ms();
    (void)pthread_mutex_unlock(&s->lock);
    *metrics = (struct buf)BUF_INIT(0);
}

void surface_show_certificate(struct surface *s, const struct certificate *c)
{
    (void)pthread_mutex_lock(&s->lock);
    certificate_release(&s->certificate);
    s->certificate = (struct certificate){ .pem = xstrdup(c->pem), .key_pem = xstrdup(c->key_pem) };
    (void)pthread_mutex_unlock(&s->lock);
    lws_cancel_service(s->lws);
}

/* ---- thread side: HTTP ------------------------------------------------------------------------------------------------ */

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

/* ---- thread side: TLS ------------------------------------------------------------------------------------------------- */

static int on_event(struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in, size_t len);

/* The plain port knows the channel only where there is no other: a token is not shown in clear. */
static const struct lws_protocols WITHOUT_CHANNEL[] = {
    { .name = "http", .callback = on_event, .per_session_data_size = sizeof(struct session) },
    { .name = NULL },
};
static const struct lws_protocols WITH_CHANNEL[] = {
    { .name = "http", .callback = on_event, .per_session_data_size = sizeof(struct session) },
    { .name = CONTROL_PROTOCOL, .callback = on_event, .per_session_data_size = sizeof(struct session), .rx_buffer_size = 64u << 10 },
    { .name = NULL },
};

static struct lws_vhost *listen_at(struct surface *s, const char *name, const char *address, int port, bool secure)
{
    bool has_channel = secure || s->options.control_port == 0;
    struct lws_context_creation_info info = {
        .vhost_name = name, .port = port, .iface = address[0] != '\0' ? address : NULL, .protocols = has_channel ? WITH_CHANNEL : WITHOUT_CHANNEL,
        .timeout_secs = 20, .ka_time = 30, .ka_probes = 3, .ka_interval = 10,
        .options = LWS_SERVER_OPTION_FAIL_UPON_UNABLE_TO_BIND |
                   (secure ? LWS_SERVER_OPTION_DO_SSL_GLOBAL_INIT | LWS_SERVER_OPTION_CREATE_VHOST_SSL_CTX | LWS_SERVER_OPTION_DISABLE_OS_CA_CERTS : 0),
    };

    return lws_create_vhost(s->lws, &info);
}

/* libwebsockets has made a context of OpenSSL's for the secure port: it gets its certificate now, and later ones as they come. */
static int on_tls_context(struct surface *s, void *openssl_context)
{
    struct error e = ERROR_INIT;

    if (s->shown.pem == NULL)
        return 0; /* of the plain port */
    if (tls_server_use(openssl_context, &s->shown, &e) < 0) {
        log_error_from("the certificate of the coordinators' channel cannot be used", &e);
        return 1;
    }
    s->tls_context = openssl_context;
    return 0;
}

static void take_certificate(struct surface *s)
{
    struct error e = ERROR_INIT;

    (void)pthread_mutex_lock(&s->lock);
    struct certificate newest = s->certificate;
    s->certificate = (struct certificate){ .pem = NULL };
    (void)pthread_mutex_unlock(&s->lock);
    if (newest.pem == NULL)
        return;
    certificate_release(&s->shown);
    s->shown = newest;
    if (s->secure != NULL) {
        if (tls_server_use(s->tls_context, &s->shown, &e) < 0)
            log_error_from("the new certificate of the coordinators' channel cannot be used; the former one is shown on", &e);
        return;
    }
    s->secure = listen_at(s, "control", s->control_address, s->options.control_port, true);
    if (s->secure == NULL)
        log_error("the coordinators' channel cannot listen; choose another port with --listen-control", KV("address", s->control_address),
                  KVI("port", s->options.control_port));
}

/* ---- thread side: events ---------------------------------------------------------------------------------------------- */

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
    case LWS_CALLBACK_HTTP_CONFIRM_UPGRADE: return channel_confirm(s, wsi);
    case LWS_CALLBACK_ESTABLISHED: return channel_established(s, wsi, session);
    case LWS_CALLBACK_RECEIVE: return channel_receive(s, wsi, session, in, len);
    case LWS_CALLBACK_SERVER_WRITEABLE: return channel_writable(session);
    case LWS_CALLBACK_CLOSED: channel_ended(s, session); return 0;
    case LWS_CALLBACK_OPENSSL_LOAD_EXTRA_SERVER_VERIFY_CERTS: return on_tls_context(s, user);
    case LWS_CALLBACK_EVENT_WAIT_CANCELLED:
        take_certificate(s);
        channel_do_errands(s);
        return 0;
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

static void release(struct surface *s)
{
    if (s->lws != NULL)
        lws_context_destroy(s->lws);
    channel_release(s);
    buf_release(&s->metrics);
    certificate_release(&s->certificate);
    certificate_release(&s->shown);
    (void)pthread_mutex_destroy(&s->lock);
    free(s->address);
    free(s->control_address);
    free(s);
}

int surface_new(struct loop *l, const struct surface_options *options, struct controller *c, struct surface **ret, struct error *e)
{
    struct surface *s = xcalloc(1, sizeof *s);
    struct lws_context_creation_info info = { .port = CONTEXT_PORT_NO_LISTEN, .gid = -1, .uid = -1, .user = s,
                                              .options = LWS_SERVER_OPTION_EXPLICIT_VHOSTS };

    if (options->control_port > 0)
        info.options |= LWS_SERVER_OPTION_DO_SSL_GLOBAL_INIT;
    *s = (struct surface){ .loop = l, .controller = c, .options = *options, .told_ms = clock_mono_ms(), .metrics = BUF_INIT(0),
                           .address = xstrdup(options->address), .control_address = xstrdup(options->control_address) };
    s->errands_end = &s->errands;
    (void)pthread_mutex_init(&s->lock, NULL);
    lws_set_log_level(LLL_ERR | LLL_WARN, on_lws_log);
    s->lws = lws_create_context(&info);
    if (s->lws == NULL || listen_at(s, "default", s->address, options->port, false) == NULL ||
        (errno = pthread_create(&s->thread, NULL, serve, s)) != 0) {
        (void)error_set(e, ERROR_IO, "cannot listen on %s:%d; choose another with --listen", options->address, options->port);
        release(s);
        return -1;
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
    release(s);
}
