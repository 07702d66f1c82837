#include "operator/version.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#define NATIVE_MAJOR 1
#define NATIVE_MINOR 29
#define AGAIN_MS 2000

struct version_query {
    struct kube_client *client;
    struct kube_call *call;
    struct loop_timer *timer;
    version_fn *fn;
    void *ctx;
};

bool version_has_native_sidecars(const cJSON *version)
{
    long major = strtol(json_text(version, "major", "0"), NULL, 10), minor = strtol(json_text(version, "minor", "0"), NULL, 10); /* "29+" */

    return major <= 0 || major > NATIVE_MAJOR || (major == NATIVE_MAJOR && minor >= NATIVE_MINOR);
}

static void on_answer(void *ctx, struct kube_reply *reply)
{
    struct version_query *q = ctx;

    q->call = NULL;
    if (reply->error != NULL) {
        log_warn_from("the API server's version is not known yet; it is asked again", reply->error);
        loop_timer_at(q->timer, clock_mono_ms() + AGAIN_MS);
        return;
    }
    log_info("cluster", KV("version", json_text(reply->object, "gitVersion", "unknown")),
             KV("native_sidecars", version_has_native_sidecars(reply->object) ? "yes" : "no"));
    q->fn(q->ctx, version_has_native_sidecars(reply->object));
}

static void ask(void *ctx)
{
    struct version_query *q = ctx;
    struct kube_request r = { .verb = KUBE_GET, .path = "/version", .urgent = true, .deadline_ms = 5000 };
    struct error e = ERROR_INIT;

    if (kube_client_send(q->client, &r, on_answer, q, &q->call, &e) < 0)
        log_error_from("the API server's version cannot be asked for", &e);
}

struct version_query *version_ask(struct loop *l, struct kube_client *client, version_fn *fn, void *ctx)
{
    struct version_query *q = xcalloc(1, sizeof *q);

    *q = (struct version_query){ .client = client, .fn = fn, .ctx = ctx };
    q->timer = loop_timer_new(l, ask, q);
    loop_timer_at(q->timer, clock_mono_ms());
    return q;
}

void version_free(struct version_query *q)
{
    if (q == NULL)
        return;
    kube_client_cancel(q->client, q->call);
    loop_timer_free(q->timer);
    free(q);
}
