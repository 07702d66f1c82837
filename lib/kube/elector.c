#include "kube/elector.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"

static const struct kube_resource LEASES = { "coordination.k8s.io", "v1", "leases", "Lease", false };

struct kube_elector {
    struct loop *loop;
    struct kube_client *client;
    struct kube_elector_def def;
    char *ns, *name;
    struct kube_lease lease;
    struct kube_call *call;
    struct loop_timer *timer;
    enum kube_lease_action sent;
    void (*released)(void *ctx); /* release is under way */
    void *released_ctx;
    bool releasing;
};

static void step(struct kube_elector *el, const struct kube_lease_input *in);

static void on_reply(void *ctx, struct kube_reply *reply)
{
    struct kube_elector *el = ctx;
    struct kube_lease_record record;
    enum kube_lease_action sent = el->sent;

    el->call = NULL;
    if (reply->error != NULL && sent == KUBE_LEASE_GET && reply->error->kind == ERROR_NOT_FOUND) {
        step(el, &(struct kube_lease_input){ .kind = KUBE_LEASE_ABSENT });
        return;
    }
    struct error e = ERROR_INIT;
    if (reply->error != NULL)
        e = *reply->error;
    else if (!kube_lease_read(reply->object, &record))
        (void)error_set(&e, ERROR_INVALID, "lease %s/%s: what the API server sent is no Lease", el->ns, el->name);
    if (e.kind == ERROR_NONE) {
        step(el, &(struct kube_lease_input){ .kind = sent == KUBE_LEASE_GET ? KUBE_LEASE_READ : KUBE_LEASE_WRITTEN, .record = &record });
        return;
    }
    if (reply->http_status == 401)
        kube_client_reread(el->client);
    /* Another candidate was faster: no trouble. */
    if (e.kind != ERROR_CONFLICT && el->def.trouble != NULL)
        el->def.trouble(el->def.ctx, &e);
    step(el, &(struct kube_lease_input){ .kind = KUBE_LEASE_FAILED, .error = e.kind });
}

static void send_request(struct kube_elector *el, const struct kube_lease_output *out)
{
    auto_json cJSON *body = out->action == KUBE_LEASE_GET ? NULL : kube_lease_object(&out->write, el->ns, el->name);
    struct kube_request r = {
        .verb = out->action == KUBE_LEASE_GET ? KUBE_GET : out->action == KUBE_LEASE_CREATE ? KUBE_CREATE : KUBE_UPDATE,
        .resource = &LEASES, .ns = el->ns, .name = out->action == KUBE_LEASE_CREATE ? NULL : el->name, .body = body, .urgent = true,
        .deadline_ms = out->deadline_ms,
    };
    struct error e;

    /* An answer that is late is not waited for; the step that asks for more has given the request up. */
    kube_client_cancel(el->client, el->call);
    el->call = NULL;
    el->sent = out->action;
    if (kube_client_send(el->client, &r, on_reply, el, &el->call, &e) < 0 && el->def.trouble != NULL)
        el->def.trouble(el->def.ctx, &e); /* names were checked when it was made; the next wake tries again */
}

static void step(struct kube_elector *el, const struct kube_lease_input *in)
{
    struct kube_lease_output out;

    kube_lease_step(&el->lease, in, clock_mono_ms(), clock_wall_ms(), &out);
    if (out.wake_at_ms > 0)
        loop_timer_at(el->timer, out.wake_at_ms);
    else
        loop_timer_cancel(el->timer);
    if (out.action != KUBE_LEASE_WAIT)
        send_request(el, &out);
    if (out.lost || out.acquired)
        el->def.changed(el->def.ctx, out.acquired);
    if (el->releasing && out.action == KUBE_LEASE_WAIT && out.wake_at_ms == 0) {
        void (*done)(void *ctx) = el->released;
        el->released = NULL;
        if (done != NULL)
            done(el->released_ctx);
    }
}

static void on_timer(void *ctx)
{
    step(ctx, &(struct kube_lease_input){ .kind = KUBE_LEASE_WAKE });
}

int kube_elector_new(struct loop *l, struct kube_client *client, const struct kube_elector_def *def, struct kube_elector **ret,
                     struct error *e)
{
    if (def->lease.identity == NULL || def->lease.identity[0] == '\0')
        return error_set(e, ERROR_INVALID, "leader election needs an identity of this process");
    struct kube_elector *el = xcalloc(1, sizeof *el);
    *el = (struct kube_elector){ .loop = l, .client = client, .def = *def, .ns = xstrdup(def->ns), .name = xstrdup(def->name) };
    kube_lease_init(&el->lease, &def->lease);
    el->timer = loop_timer_new(l, on_timer, el);
    loop_timer_at(el->timer, clock_mono_ms());
    *ret = el;
    return 0;
}

bool kube_elector_held(const struct kube_elector *el)
{
    return kube_lease_is_held(&el->lease, clock_mono_ms());
}

const char *kube_elector_holder(const struct kube_elector *el)
{
    return el->lease.seen.holder;
}

void kube_elector_release(struct kube_elector *el, void (*done)(void *ctx), void *ctx)
{
    if (el->releasing)
        return;
    el->releasing = true;
    el->released = done;
    el->released_ctx = ctx;
    step(el, &(struct kube_lease_input){ .kind = KUBE_LEASE_RELEASE });
}

void kube_elector_free(struct kube_elector *el)
{
    if (el == NULL)
        return;
    kube_client_cancel(el->client, el->call);
    loop_timer_free(el->timer);
    free(el->ns);
    free(el->name);
    free(el);
}
