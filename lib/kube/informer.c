#include "kube/informer.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kube/request.h"
#include "kube/strip.h"

#define INITIAL_END "k8s.io/initial-events-end"
#define KEEP_BYTES (64u << 10)   /* a line's buffer that grew over this is given back */

struct kube_informer {
    struct loop *loop;
    struct kube_client *client;
    struct kube_informer_def def;
    char *ns, *label_selector, *field_selector;
    struct kube_cache *cache;
    struct kube_watch *watch;
    struct kube_call *call;      /* the request under way, or NULL */
    struct loop_timer *timer;
    enum error_kind told;        /* the trouble told last, in a row */
    bool synced;
    struct buf stripped;         /* of the line that is being read; the memory is kept */
    struct kube_informer_stats stats;
};

static void step(struct kube_informer *i, const struct kube_watch_input *in, const cJSON *object);

/* ---- what happened ----------------------------------------------------------------------------------------------------- */

static void tell(struct kube_informer *i, const struct error *why)
{
    i->stats.failures++;
    if (why->kind == i->told || i->def.trouble == NULL)
        return;
    i->told = why->kind;
    i->def.trouble(i->def.ctx, why, kube_watch_failures(i->watch));
}

static void failed(struct kube_informer *i, const struct error *why, int http_status, int64_t retry_after_ms)
{
    struct error copy = *why; /* the step may end what it belongs to */

    step(i, &(struct kube_watch_input){ .kind = KUBE_WATCH_FAILED, .error = why->kind, .http_status = http_status,
                                        .retry_after_ms = retry_after_ms }, NULL);
    /* A server without streaming lists, and a version that is too old: both are part of the day. */
    if (copy.kind != ERROR_GONE && !(copy.kind == ERROR_INVALID && kube_watch_failures(i->watch) == 0))
        tell(i, &copy);
}

static void on_list(void *ctx, struct kube_reply *reply)
{
    struct kube_informer *i = ctx;
    const cJSON *item;

    i->call = NULL;
    if (reply->error != NULL) {
        failed(i, reply->error, reply->http_status, reply->retry_after_ms);
        return;
    }
    i->told = ERROR_NONE;
    cJSON_ArrayForEach(item, json_at(reply->object, "items"))
        kube_cache_put(i->cache, item);
    step(i, &(struct kube_watch_input){ .kind = KUBE_WATCH_PAGE, .version = kube_version(reply->object),
                                        .continue_token = json_text(reply->object, "metadata.continue", "") }, NULL);
}

static void on_watch_end(void *ctx, struct kube_reply *reply)
{
    struct kube_informer *i = ctx;

    i->call = NULL;
    if (reply->error != NULL)
        failed(i, reply->error, reply->http_status, reply->retry_after_ms);
    else
        step(i, &(struct kube_watch_input){ .kind = KUBE_WATCH_CLOSED }, NULL);
}

static void garbled(struct kube_informer *i, const char *why)
{
    struct error e;

    step(i, &(struct kube_watch_input){ .kind = KUBE_WATCH_GARBLED }, NULL);
    (void)error_set(&e, ERROR_IO, "watch %s: %s; starting over with a list", i->def.resource->plural, why);
    tell(i, &e);
}

static int parse_line(struct kube_informer *i, const char *line, size_t len, cJSON **ret_frame, struct error *e)
{
    if (i->def.drops == NULL)
        return json_parse(line, len, ret_frame, e);
    buf_clear(&i->stripped);
    kube_strip(line, len, "object", i->def.drops, &i->stripped);
    int code = json_parse(buf_text(&i->stripped), i->stripped.len, ret_frame, e);
    if (i->stripped.cap > KEEP_BYTES)
        buf_release(&i->stripped);
    return code;
}

static void on_line(void *ctx, const char *line, size_t len)
{
    static const struct { const char *type; enum kube_watch_event event; } TYPES[] = {
        { "ADDED", KUBE_ADDED }, { "MODIFIED", KUBE_MODIFIED }, { "DELETED", KUBE_DELETED }, { "BOOKMARK", KUBE_BOOKMARK },
    };
    struct kube_informer *i = ctx;
    auto_json cJSON *frame = NULL;
    struct error e;
    struct kube_key key;

    if (parse_line(i, line, len, &frame, &e) < 0) {
        garbled(i, "a line is no JSON");
        return;
    }
    const char *type = json_text(frame, "type", "");
    const cJSON *object = json_at(frame, "object");
    if (strcmp(type, "ERROR") == 0) {
        struct kube_status status;
        int code;
        kube_status_object_error(object, &code, &status, &e);
        failed(i, &e, code, status.retry_after_ms);
        return;
    }
    for (size_t t = 0; t < COUNT(TYPES); t++) {
        if (strcmp(TYPES[t].type, type) != 0)
            continue;
        enum kube_watch_event event = TYPES[t].event;
        const char *end = kube_annotation(object, INITIAL_END);
        if (event == KUBE_BOOKMARK && end != NULL && strcmp(end, "true") == 0)
            event = KUBE_INITIAL_END;
        if (event != KUBE_BOOKMARK && event != KUBE_INITIAL_END && !kube_object_key(object, &key))
            break;
        i->stats.events++;
        i->told = ERROR_NONE;
        step(i, &(struct kube_watch_input){ .kind = KUBE_WATCH_EVENT, .event = event, .version = kube_version(object) }, object);
        return;
    }
    garbled(i, "a line is no watch event");
}

static void on_timer(void *ctx)
{
    step(ctx, &(struct kube_watch_input){ .kind = KUBE_WATCH_WAKE }, NULL);
}

/* ---- what is done about it --------------------------------------------------------------------------------------------- */

static void send_request(struct kube_informer *i, const struct kube_watch_output *out)
{
    bool watch = out->send == KUBE_SEND_WATCH;
    struct error e;
    struct kube_request r = {
        .verb = watch ? KUBE_WATCH : KUBE_LIST, .resource = i->def.resource, .ns = i->ns, .label_selector = i->label_selector,
        .field_selector = i->field_selector, .want = i->def.want, .drops = i->def.drops, .urgent = true, .limit = out->limit,
        .continue_token = out->continue_token[0] != '\0' ? out->continue_token : NULL,
        .resource_version = out->version[0] != '\0' ? out->version : NULL,
        .server_timeout_s = out->server_timeout_s, .bookmarks = watch, .initial_events = out->initial_events,
        .resource_version_match = out->initial_events ? "NotOlderThan" : NULL,
    };

    int code = watch ? kube_client_stream(i->client, &r, on_line, on_watch_end, i, &i->call, &e)
                     : kube_client_send(i->client, &r, on_list, i, &i->call, &e);
    if (watch)
        i->stats.watches++;
    else
        i->stats.lists++;
    /* kube_informer_new has sent the like of it: only a continue token that is too long for a URL gets here. */
    if (code < 0)
        failed(i, &e, 0, 0);
}

static void step(struct kube_informer *i, const struct kube_watch_input *in, const cJSON *object)
{
    struct kube_watch_output out;
    struct kube_key key;

    kube_watch_step(i->watch, in, loop_now(i->loop), &out);
    if (out.cancel) {
        kube_client_cancel(i->client, i->call);
        i->call = NULL;
    }
    if (out.reread_credentials)
        kube_client_reread(i->client);
    if (out.store == KUBE_STORE_PUT)
        kube_cache_put(i->cache, object);
    else if (out.store == KUBE_STORE_DROP && kube_object_key(object, &key))
        kube_cache_drop(i->cache, &key, kube_uid(object));
    else if (out.store == KUBE_STORE_COMMIT)
        kube_cache_commit(i->cache);
    if (out.begin) {
        kube_cache_begin(i->cache);
        i->stats.starts++;
    }
    if (out.wake_at_ms > 0)
        loop_timer_at(i->timer, out.wake_at_ms);
    if (out.send != KUBE_SEND_NOTHING)
        send_request(i, &out);
    if (out.store == KUBE_STORE_COMMIT && !i->synced) {
        i->synced = true;
        if (i->def.synced != NULL)
            i->def.synced(i->def.ctx);
    }
    if (out.cancel && in->kind == KUBE_WATCH_WAKE) {
        struct error e;
        (void)error_set(&e, ERROR_TIMEOUT, "watch %s: the API server said nothing, not even that the time is over", i->def.resource->plural);
        tell(i, &e);
    }
}

/* ---- life -------------------------------------------------------------------------------------------------------------- */

int kube_informer_new(struct loop *l, struct kube_client *client, const struct kube_informer_def *def, struct kube_informer **ret,
                      struct error *e)
{
    struct kube_request like = { .verb = KUBE_LIST, .resource = def->resource, .ns = def->ns, .label_selector = def->label_selector,
                                 .field_selector = def->field_selector };
    struct kube_http http;

    if (kube_http_of(&like, &http, e) < 0)
        return -1;
    kube_http_release(&http);
    struct kube_informer *i = xcalloc(1, sizeof *i);
    *i = (struct kube_informer){ .loop = l, .client = client, .def = *def, .ns = xstrdup(def->ns),
                                 .label_selector = xstrdup(def->label_selector), .field_selector = xstrdup(def->field_selector),
                                 .stripped = BUF_INIT(JSON_MAX_BYTES) };
    i->cache = kube_cache_new(&def->cache);
    i->watch = kube_watch_new(&def->watch);
    i->timer = loop_timer_new(l, on_timer, i);
    step(i, &(struct kube_watch_input){ .kind = KUBE_WATCH_START }, NULL);
    *ret = i;
    return 0;
}

void kube_informer_free(struct kube_informer *i)
{
    if (i == NULL)
        return;
    kube_client_cancel(i->client, i->call);
    loop_timer_free(i->timer);
    kube_watch_free(i->watch);
    kube_cache_free(i->cache);
    buf_release(&i->stripped);
    free(i->ns);
    free(i->label_selector);
    free(i->field_selector);
    free(i);
}

const struct kube_cache *kube_informer_cache(const struct kube_informer *i)
{
    return i->cache;
}

void kube_informer_stats(const struct kube_informer *i, struct kube_informer_stats *ret_stats)
{
    *ret_stats = i->stats;
}
