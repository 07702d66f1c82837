/* The coordinators' channel: who may speak, what is said, and the end. The upper half runs on the loop, the lower on the thread. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "operator/surface_parts.h"

#define SESSIONS_MAX 16384
#define CLOSE_LATER 1013     /* RFC 6455: try again later */
#define CLOSE_DENIED 4403    /* of the range for applications: as the status of HTTP */
#define CLOSE_MALFORMED 1007
#define CLOSE_NO_JOB 4404

/* What the thread tells the loop. */
enum notice_kind { NOTICE_OPENED, NOTICE_MESSAGE, NOTICE_CLOSED };
struct notice {
    struct surface *surface;
    enum notice_kind kind;
    uint64_t id;
    struct kube_key key;
    char token[CONTROL_TOKEN_MAX];
    char *text; size_t len;
};

/* ---- loop ------------------------------------------------------------------------------------------------------------- */

static void send_errand(struct surface *s, struct errand *errand)
{
    (void)pthread_mutex_lock(&s->lock);
    *s->errands_end = errand;
    s->errands_end = &errand->next;
    (void)pthread_mutex_unlock(&s->lock);
    lws_cancel_service(s->lws);
}

static void close_later(struct surface *s, uint64_t id, uint16_t code, const char *reason)
{
    struct errand *errand = xcalloc(1, sizeof *errand);

    *errand = (struct errand){ .id = id, .close_code = code, .close_reason = reason };
    send_errand(s, errand);
}

bool surface_say(struct surface *s, const struct kube_key *job, const char *text)
{
    const struct coordinator *c = s->coordinators;

    while (c != NULL && !kube_key_equal(&c->key, job))
        c = c->next; /* the newest comes first: an older connection may be one that nobody has seen end */
    if (c == NULL)
        return false;
    struct errand *errand = xcalloc(1, sizeof *errand);
    *errand = (struct errand){ .id = c->id, .text = xstrdup(text) };
    send_errand(s, errand);
    return true;
}

static void on_opened(struct surface *s, const struct notice *n)
{
    enum caller caller = controller_check_caller(s->controller, n->key.ns, n->key.name, n->token);

    if (caller == CALLER_WRONG) {
        log_warn("a coordinator that could not prove its job was turned away", KV("namespace", n->key.ns), KV("job", n->key.name));
        close_later(s, n->id, CLOSE_DENIED, "there is no such job at work, or the token is not made from its key");
        return;
    }
    if (caller == CALLER_LATER) {
        close_later(s, n->id, CLOSE_LATER, "the job's key is being read");
        return;
    }
    struct coordinator *c = xcalloc(1, sizeof *c);
    *c = (struct coordinator){ .id = n->id, .key = n->key, .next = s->coordinators };
    s->coordinators = c;
    s->coordinator_count++;
    controller_greet(s->controller, &c->key);
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
        log_warn_from("a coordinator's report cannot be read", &e, KV("namespace", c->key.ns), KV("job", c->key.name));
        free(report);
        close_later(s, n->id, CLOSE_MALFORMED, "the report cannot be read; the operator's log says why");
    } else if (!controller_take_report(s->controller, c->key.ns, c->key.name, report)) {
        close_later(s, n->id, CLOSE_NO_JOB, "there is no such job at work");
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

size_t surface_coordinators(const struct surface *s)
{
    return s->coordinator_count;
}

void channel_release(struct surface *s)
{
    while (s->coordinators != NULL)
        on_closed(s, s->coordinators->id);
    for (struct errand *at = s->errands, *next; at != NULL; at = next) {
        next = at->next;
        free(at->text);
        free(at);
    }
}

/* ---- thread ----------------------------------------------------------------------------------------------------------- */

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

/* "/control/NAMESPACE/JOB" and "Authorization: Bearer TOKEN". */
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
    const char *token = header + strlen(BEARER);
    if (slash == NULL || strlen(token) >= sizeof n->token)
        return false;
    *slash = '\0';
    memcpy(n->token, token, strlen(token) + 1);
    crypto_wipe(header, sizeof header);
    return strlen(slash + 1) <= JOB_NAME_MAX && kube_key_set(&n->key, ns, slash + 1);
}

int channel_confirm(struct surface *s, struct lws *wsi)
{
    if (atomic_load(&s->leading))
        return 0;
    return lws_return_http_status(wsi, HTTP_STATUS_SERVICE_UNAVAILABLE, "this replica does not lead: try again, another one does") < 0 ? -1 : 1;
}

int channel_established(struct surface *s, struct lws *wsi, struct session *session)
{
    struct notice *n = notice_new(s, NOTICE_OPENED, ++s->next_id);

    if (s->session_count >= SESSIONS_MAX || !read_caller(wsi, n)) {
        crypto_wipe(n->token, sizeof n->token);
        free(n);
        return -1;
    }
    *session = (struct session){ .next = s->sessions, .wsi = wsi, .id = n->id, .in = BUF_INIT(CONTROL_MESSAGE_MAX) };
    s->sessions = session;
    s->session_count++;
    post(n);
    return 0;
}

int channel_receive(struct surface *s, struct lws *wsi, struct session *session, const void *bytes, size_t len)
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

int channel_writable(struct session *session)
{
    if (session->close_code != 0) {
        char text[123]; /* as much as fits behind the code */
        size_t len = strnlen(session->close_reason, sizeof text);
        memcpy(text, session->close_reason, len);
        lws_close_reason(session->wsi, session->close_code, (unsigned char *)text, len);
        return -1;
    }
    if (session->out == NULL)
        return 0;
    size_t len = strlen(session->out);
    auto_free uint8_t *bytes = xcalloc(1, LWS_PRE + len + 1);
    memcpy(bytes + LWS_PRE, session->out, len);
    free(TAKE(session->out));
    return lws_write(session->wsi, bytes + LWS_PRE, len, LWS_WRITE_TEXT) < (int)len ? -1 : 0;
}

void channel_ended(struct surface *s, struct session *session)
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
    free(TAKE(session->out));
    if (!atomic_load(&s->stop)) /* at the end the loop does not turn any more */
        post(notice_new(s, NOTICE_CLOSED, session->id));
    session->id = 0;
}

static void do_errand(struct surface *s, struct errand *errand)
{
    struct session *session = s->sessions;

    while (session != NULL && session->id != errand->id)
        session = session->next;
    if (session == NULL)
        return; /* it has ended meanwhile */
    if (errand->close_code != 0) {
        session->close_code = errand->close_code;
        session->close_reason = errand->close_reason;
    } else {
        free(session->out);
        session->out = TAKE(errand->text);
    }
    (void)lws_callback_on_writable(session->wsi);
}

void channel_do_errands(struct surface *s)
{
    (void)pthread_mutex_lock(&s->lock);
    struct errand *errands = s->errands;
    s->errands = NULL;
    s->errands_end = &s->errands;
    (void)pthread_mutex_unlock(&s->lock);
    for (struct errand *at = errands, *next; at != NULL; at = next) {
        next = at->next;
        do_errand(s, at);
        free(at->text);
        free(at);
    }
}
