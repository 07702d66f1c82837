#include "operator/authority.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base64.h"
#include "base/clock.h"
#include "base/crypto.h"
#include "base/log.h"
#include "base/mem.h"
#include "operator/resources.h"

#define LOOK_MOST_MS 300000     /* between two looks at the Secret */
#define LOOK_PARTS 20           /* of a certificate's life, where that is shorter */
#define LOOK_SOON_MS 1000       /* while there is nothing to show, or a write failed */

struct authority {
    struct loop *loop;
    struct kube_client *client;
    struct authority_def def;
    char *ns, *name, *host;
    struct authority_data data; bool known;
    struct authority_data made; /* what is being written */
    struct kube_call *call;
    struct loop_timer *timer;
    bool tried, complained;
};

void authority_data_release(struct authority_data *d)
{
    certificate_release(&d->authority);
    certificate_release(&d->serving);
}

/* ---- pure ------------------------------------------------------------------------------------------------------------- */

/* Whether less than a third of a life is left. */
static bool is_due(int64_t not_after_ms, int64_t now_ms, int64_t lifetime_ms)
{
    return not_after_ms - now_ms < lifetime_ms / 3;
}

enum authority_step authority_next(const struct authority_data *have, const char *host, int64_t now_ms, int64_t lifetime_ms, char ret_why[160])
{
    struct error e = ERROR_INIT;
    int64_t not_after_ms = 0;

    ret_why[0] = '\0';
    if (have->authority.pem == NULL || have->authority.key_pem == NULL) {
        (void)snprintf(ret_why, 160, "there is no authority yet");
        return AUTHORITY_BEGIN;
    }
    if (certificate_check_authority(&have->authority, &not_after_ms, &e) < 0) {
        (void)snprintf(ret_why, 160, "the authority cannot be used: %.120s", e.text);
        return AUTHORITY_BEGIN;
    }
    if (is_due(not_after_ms, now_ms, AUTHORITY_LIFETIME_MS)) {
        (void)snprintf(ret_why, 160, "the authority's time is nearly over");
        return AUTHORITY_RENEW;
    }
    if (have->serving.pem == NULL || have->serving.key_pem == NULL) {
        (void)snprintf(ret_why, 160, "there is no serving certificate yet");
        return AUTHORITY_ISSUE;
    }
    if (certificate_check(&have->serving, have->authority.pem, host, &not_after_ms, &e) < 0) {
        (void)snprintf(ret_why, 160, "%.150s", e.text);
        return AUTHORITY_ISSUE;
    }
    if (is_due(not_after_ms, now_ms, lifetime_ms)) {
        (void)snprintf(ret_why, 160, "the serving certificate's time is %s", not_after_ms < now_ms ? "over" : "nearly over");
        return AUTHORITY_ISSUE;
    }
    return AUTHORITY_KEEP;
}

static struct certificate copy(const struct certificate *c)
{
    return (struct certificate){ .pem = xstrdup(c->pem), .key_pem = xstrdup(c->key_pem) };
}

int authority_make(const struct authority_data *have, enum authority_step step, const char *host, int64_t now_ms, int64_t lifetime_ms,
                   struct authority_data *ret, struct error *e)
{
    struct authority_data d = { .authority = { .pem = NULL } };
    const char *former_key = step == AUTHORITY_RENEW ? have->authority.key_pem : NULL;
    int result = 0;

    if (step == AUTHORITY_KEEP || step == AUTHORITY_ISSUE)
        d.authority = copy(&have->authority);
    else
        result = certificate_make_authority("ringmaster-operator authority", former_key, now_ms, AUTHORITY_LIFETIME_MS, &d.authority, e);
    if (result == 0 && step == AUTHORITY_KEEP)
        d.serving = copy(&have->serving);
    else if (result == 0)
        result = certificate_issue(&d.authority, host, now_ms, lifetime_ms, &d.serving, e);
    if (result < 0)
        authority_data_release(&d);
    else
        *ret = d;
    return result;
}

static const struct { const char *key; size_t at; bool is_key; } ROWS[] = {
    { POD_SECRET_AUTHORITY, offsetof(struct authority_data, authority), false },
    { "ca.key", offsetof(struct authority_data, authority), true },
    { "tls.crt", offsetof(struct authority_data, serving), false },
    { "tls.key", offsetof(struct authority_data, serving), true },
};

static char **text_at(const struct authority_data *d, size_t row)
{
    struct certificate *c = (struct certificate *)((char *)d + ROWS[row].at);

    return ROWS[row].is_key ? &c->key_pem : &c->pem;
}

void authority_read(const cJSON *secret, struct authority_data *ret)
{
    const cJSON *data = cJSON_GetObjectItemCaseSensitive(secret, "data");

    *ret = (struct authority_data){ .authority = { .pem = NULL } };
    for (size_t i = 0; i < COUNT(ROWS); i++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(data, ROWS[i].key); /* json_text would take the dot for a path */
        const char *text = cJSON_IsString(item) ? item->valuestring : "";
        char *bytes = NULL;
        size_t len = 0;
        if (text[0] == '\0' || !base64_decode(text, strlen(text), &bytes, &len))
            continue;
        *text_at(ret, i) = len > 0 && len <= CERTIFICATE_PEM_MAX ? xstrndup(bytes, len) : NULL;
        crypto_wipe(bytes, len);
        free(bytes);
    }
}

static cJSON *new_secret(const char *ns, const char *name)
{
    cJSON *o = json_object(), *metadata = json_object();

    json_put_text(metadata, "name", name);
    json_put_text(metadata, "namespace", ns);
    json_put(o, "metadata", metadata);
    json_put_text(o, "type", "Opaque");
    return o;
}

cJSON *authority_secret(const struct authority_data *d, const char *ns, const char *name, const cJSON *existing)
{
    cJSON *o = existing != NULL ? cJSON_Duplicate(existing, true) : new_secret(ns, name), *data = json_object();

    cJSON_DeleteItemFromObjectCaseSensitive(o, "data");
    cJSON_DeleteItemFromObjectCaseSensitive(o, "stringData");
    for (const char *const *key = (const char *const[]){ "apiVersion", "kind", NULL }; *key != NULL; key++)
        cJSON_DeleteItemFromObjectCaseSensitive(o, *key);
    json_put_text(o, "apiVersion", "v1");
    json_put_text(o, "kind", "Secret");
    for (size_t i = 0; i < COUNT(ROWS); i++)
        json_put_text(data, ROWS[i].key, *text_at(d, i));
    json_put(o, "stringData", data);
    return o;
}

/* ---- on the loop ------------------------------------------------------------------------------------------------------ */

static void look_again(struct authority *a, bool soon)
{
    int64_t often_ms = a->def.lifetime_ms / LOOK_PARTS, pause_ms = often_ms < LOOK_MOST_MS ? often_ms : LOOK_MOST_MS;

    loop_timer_at(a->timer, clock_mono_ms() + (soon ? LOOK_SOON_MS : pause_ms));
}

static void complain(struct authority *a, const char *what, const struct error *e)
{
    a->tried = true;
    if (!a->complained)
        log_warn_from(what, e, KV("secret", a->name), KV("namespace", a->ns),
                      KV("hint", "the chart's Role lets the operator read and write this Secret; coordinators cannot report until it can"));
    a->complained = true;
    look_again(a, true);
}

static bool same_text(const char *one, const char *other)
{
    return one != NULL && other != NULL && strcmp(one, other) == 0;
}

/* Takes over `d` when it can be shown to coordinators at this moment. */
static bool take(struct authority *a, struct authority_data *d)
{
    struct error e = ERROR_INIT;
    int64_t not_after_ms = 0;

    if (d->authority.pem == NULL || d->serving.pem == NULL ||
        certificate_check(&d->serving, d->authority.pem, a->host, &not_after_ms, &e) < 0 || not_after_ms < clock_wall_ms()) {
        authority_data_release(d);
        return false;
    }
    bool same = a->known && same_text(a->data.serving.pem, d->serving.pem) && same_text(a->data.authority.pem, d->authority.pem);
    authority_data_release(&a->data);
    a->data = *d;
    a->known = true;
    a->tried = true;
    a->complained = false;
    if (!same)
        a->def.changed(a->def.ctx);
    return true;
}

static void on_written(void *ctx, struct kube_reply *reply)
{
    struct authority *a = ctx;
    struct authority_data made = a->made;

    a->call = NULL;
    a->made = (struct authority_data){ .authority = { .pem = NULL } };
    if (reply->error != NULL) {
        authority_data_release(&made);
        if (reply->error->kind == ERROR_CONFLICT)
            look_again(a, true); /* another was faster */
        else
            complain(a, "the operator's certificates cannot be stored", reply->error);
        return;
    }
    log_info("certificates for the coordinators' channel are made", KV("secret", a->name), KV("namespace", a->ns));
    look_again(a, !take(a, &made));
}

static void write_new(struct authority *a, const struct authority_data *have, enum authority_step step, const char *why, const cJSON *object)
{
    struct error e = ERROR_INIT;

    log_info("making certificates", KV("because", why));
    if (authority_make(have, step, a->host, clock_wall_ms(), a->def.lifetime_ms, &a->made, &e) < 0) {
        complain(a, "no certificates for the coordinators' channel", &e);
        return;
    }
    auto_json cJSON *body = authority_secret(&a->made, a->ns, a->name, object);
    struct kube_request r = { .verb = object != NULL ? KUBE_UPDATE : KUBE_CREATE, .resource = &RESOURCE_SECRET, .ns = a->ns,
                              .name = object != NULL ? a->name : NULL, .body = body, .field_manager = FIELD_MANAGER, .want = KUBE_WANT_METADATA };
    if (kube_client_send(a->client, &r, on_written, a, &a->call, &e) < 0) {
        authority_data_release(&a->made);
        complain(a, "the operator's certificates cannot be stored", &e);
    }
}

static void on_read(void *ctx, struct kube_reply *reply)
{
    struct authority *a = ctx;
    struct authority_data have;
    char why[160];

    a->call = NULL;
    if (reply->error != NULL && reply->error->kind != ERROR_NOT_FOUND) {
        complain(a, "the operator's certificates cannot be read", reply->error);
        return;
    }
    const cJSON *object = reply->error == NULL ? reply->object : NULL;
    authority_read(object, &have);
    enum authority_step step = authority_next(&have, a->host, clock_wall_ms(), a->def.lifetime_ms, why);
    if (step != AUTHORITY_KEEP && a->def.may_write(a->def.ctx)) {
        write_new(a, &have, step, why, object);
        authority_data_release(&have);
        return;
    }
    look_again(a, !take(a, &have));
}

static void on_timer(void *ctx)
{
    struct authority *a = ctx;
    struct kube_request r = { .verb = KUBE_GET, .resource = &RESOURCE_SECRET, .ns = a->ns, .name = a->name };
    struct error e = ERROR_INIT;

    if (a->call == NULL && kube_client_send(a->client, &r, on_read, a, &a->call, &e) < 0)
        complain(a, "the operator's certificates cannot be read", &e);
}

void authority_look(struct authority *a)
{
    loop_timer_at(a->timer, clock_mono_ms());
}

const struct authority_data *authority_get(const struct authority *a)
{
    return a->known ? &a->data : NULL;
}

bool authority_is_late(const struct authority *a)
{
    return a->tried && !a->known;
}

int authority_new(struct loop *l, struct kube_client *client, const struct authority_def *def, struct authority **ret, struct error *e)
{
    struct kube_key key;

    if (!kube_key_set(&key, def->ns, def->name) || def->ns == NULL || def->ns[0] == '\0')
        return error_set(e, ERROR_INVALID, "--tls-secret: \"%.80s\" in namespace \"%.60s\" is no name of a Secret; set --lease-namespace", def->name,
                         def->ns != NULL ? def->ns : "");
    struct authority *a = xcalloc(1, sizeof *a);
    *a = (struct authority){ .loop = l, .client = client, .def = *def, .ns = xstrdup(def->ns), .name = xstrdup(def->name), .host = xstrdup(def->host) };
    a->timer = loop_timer_new(l, on_timer, a);
    authority_look(a);
    *ret = a;
    return 0;
}

void authority_free(struct authority *a)
{
    if (a == NULL)
        return;
    kube_client_cancel(a->client, a->call);
    loop_timer_free(a->timer);
    authority_data_release(&a->data);
    authority_data_release(&a->made);
    free(a->ns);
    free(a->name);
    free(a->host);
    free(a);
}
