/*
 * The key of a job: 256 random bits in a Secret that only its sidecars mount. Made once; never logged, never in a status.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base64.h"
#include "base/log.h"
#include "base/mem.h"
#include "operator/work.h"

#define KEY_TEXT_BYTES (2 * CRYPTO_KEY_BYTES)

/* The authority that a coordinator checks us by; NULL: none, or none yet. */
static const char *authority_pem(const struct controller *c)
{
    const struct authority_data *d = c->def.authority != NULL ? authority_get(c->def.authority) : NULL;

    return d != NULL ? d->authority.pem : NULL;
}

static cJSON *secret_object(const struct work *w, const char *hex)
{
    cJSON *o = json_object(), *metadata = json_object(), *labels = json_object(), *data = json_object(), *owners = json_array();
    char name[128];

    pod_secret_name(w->job, name);
    json_put_text(o, "apiVersion", "v1");
    json_put_text(o, "kind", "Secret");
    json_put_text(metadata, "name", name);
    json_put_text(metadata, "namespace", w->key.ns);
    json_put_text(labels, LABEL_JOB_NAME, w->key.name);
    json_put_text(labels, LABEL_JOB_UID, w->state->uid);
    json_put(metadata, "labels", labels);
    json_append(owners, kube_owner_reference(&RESOURCE_JOB, w->key.name, w->state->uid));
    json_put(metadata, "ownerReferences", owners);
    json_put(o, "metadata", metadata);
    json_put_text(o, "type", "Opaque");
    json_put_text(data, POD_SECRET_KEY, hex);
    if (authority_pem(w->c) != NULL)
        json_put_text(data, POD_SECRET_AUTHORITY, authority_pem(w->c));
    json_put(o, "stringData", data);
    return o;
}

static bool take_key(struct job_state *s, const cJSON *object)
{
    const char *text = json_text(object, "data.key", "");
    char hex[KEY_TEXT_BYTES + 1] = "";
    char *bytes = NULL;
    size_t len = 0;

    if (!base64_decode(text, strlen(text), &bytes, &len))
        return false;
    if (len == KEY_TEXT_BYTES)
        memcpy(hex, bytes, len);
    crypto_wipe(bytes, len);
    free(bytes);
    s->key_known = crypto_unhex(hex, s->job_key, sizeof s->job_key);
    crypto_wipe(hex, sizeof hex);
    return s->key_known;
}

/* ---- the authority in it ---------------------------------------------------------------------------------------------- */

struct mend { struct controller *c; struct kube_key key; uint64_t generation; };

static void on_mended(void *ctx, struct kube_reply *reply)
{
    struct mend *m = ctx;
    struct job_state *s = state_find(m->c->states, &m->key);

    if (reply->error != NULL && reply->error->kind != ERROR_CONFLICT && reply->error->kind != ERROR_NOT_FOUND)
        log_warn_from("the Secret of a job keeps a former authority; its coordinator cannot report", reply->error, KV("namespace", m->key.ns),
                      KV("job", m->key.name));
    if (s != NULL && reply->error == NULL)
        s->authority_seen = m->generation;
    free(m);
}

/* A Secret of a former authority gets the present one; the kubelets bring it to the pods, and the sidecars read it at each try. */
static void mend_authority(struct controller *c, struct job_state *s, const cJSON *object)
{
    const char *right = authority_pem(c);
    cJSON *data = cJSON_GetObjectItemCaseSensitive(object, "data");
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(data, POD_SECRET_AUTHORITY);
    struct error e = ERROR_INIT;

    if (right == NULL)
        return;
    auto_free char *encoded = base64_encode(right, strlen(right));
    if (cJSON_IsString(item) && strcmp(item->valuestring, encoded) == 0) {
        s->authority_seen = c->authority_generation;
        return;
    }
    auto_json cJSON *body = cJSON_Duplicate(object, true);
    data = cJSON_GetObjectItemCaseSensitive(body, "data");
    cJSON_DeleteItemFromObjectCaseSensitive(data, POD_SECRET_AUTHORITY);
    json_put_text(data, POD_SECRET_AUTHORITY, encoded);
    struct mend *m = xcalloc(1, sizeof *m);
    *m = (struct mend){ .c = c, .key = s->key, .generation = c->authority_generation };
    struct kube_request r = { .verb = KUBE_UPDATE, .resource = &RESOURCE_SECRET, .ns = s->key.ns, .name = kube_name(object), .body = body,
                              .field_manager = FIELD_MANAGER, .want = KUBE_WANT_METADATA, .drop = free };
    if (!controller_may_write(c) || kube_client_send(c->def.client, &r, on_mended, m, NULL, &e) < 0)
        free(m);
}

/* ---- creating -------------------------------------------------------------------------------------------------------- */

static void done(struct work *w, bool well)
{
    w->outstanding--;
    w->stopped |= !well;
    w->state->secret_known |= well;
    execute_pump(w);
}

static void refuse(struct work *w, const char *why)
{
    struct error e = ERROR_INIT;
    struct kube_reply refused = { .error = &e, .reason = "" };
    char name[128], what[160];

    pod_secret_name(w->job, name);
    (void)snprintf(what, sizeof what, "Secret %s", name);
    (void)error_set(&e, ERROR_INVALID, "%s", why);
    execute_refused(w, what, &refused);
}

static void on_removed(void *ctx, struct kube_reply *reply)
{
    struct work *w = ctx;

    if (reply->error != NULL && reply->error->kind != ERROR_NOT_FOUND)
        work_fail(w, "delete the key of a former job of this name", reply);
    w->retry = true;
    done(w, false);
}

static void remove_former(struct work *w, const cJSON *object)
{
    struct kube_request r = { .verb = KUBE_DELETE, .resource = &RESOURCE_SECRET, .ns = w->key.ns, .name = kube_name(object),
                              .delete_uid = kube_uid(object), .want = KUBE_WANT_NOTHING };
    struct error e = ERROR_INIT;

    w->retry = true;
    if (!controller_may_write(w->c) || kube_client_send(w->c->def.client, &r, on_removed, w, NULL, &e) < 0)
        done(w, false);
}

static void on_found(void *ctx, struct kube_reply *reply)
{
    struct work *w = ctx;

    if (reply->error != NULL) {
        work_fail(w, "read the job's key", reply);
        done(w, false);
        return;
    }
    const cJSON *owner = kube_controller(reply->object);
    if (strcmp(kube_controller_uid(reply->object), w->state->uid) == 0) {
        bool well = take_key(w->state, reply->object);
        if (well)
            mend_authority(w->c, w->state, reply->object);
        else
            refuse(w, "it does not hold a key of 64 hex digits under \"key\"; delete it, it is made anew");
        done(w, well);
    } else if (strcmp(json_text(owner, "kind", ""), JOB_KIND) == 0 && strcmp(json_text(owner, "name", ""), w->key.name) == 0) {
        remove_former(w, reply->object);
    } else {
        refuse(w, "it exists and is not of this job; delete or rename it");
        done(w, false);
    }
}

static void on_created(void *ctx, struct kube_reply *reply)
{
    struct work *w = ctx;
    struct error e = ERROR_INIT;

    if (reply->error == NULL) {
        w->state->key_known = true;
        w->state->authority_seen = w->made_generation;
        done(w, true);
        return;
    }
    w->state->key_known = false;
    if (!reply->already_exists) {
        char what[160], name[128];
        pod_secret_name(w->job, name);
        (void)snprintf(what, sizeof what, "Secret %s", name);
        execute_refused(w, what, reply);
        done(w, false);
        return;
    }
    char name[128];
    pod_secret_name(w->job, name);
    struct kube_request r = { .verb = KUBE_GET, .resource = &RESOURCE_SECRET, .ns = w->key.ns, .name = name };
    if (kube_client_send(w->c->def.client, &r, on_found, w, NULL, &e) < 0)
        done(w, false);
}

bool secret_create(struct work *w)
{
    char hex[KEY_TEXT_BYTES + 1];
    struct error e = ERROR_INIT;

    if (w->c->def.authority != NULL && authority_pem(w->c) == NULL && !authority_is_late(w->c->def.authority))
        return false; /* it takes a moment, once in the life of an installation */
    w->made_generation = authority_pem(w->c) != NULL ? w->c->authority_generation : 0;
    if (!w->state->key_known && crypto_random(w->state->job_key, sizeof w->state->job_key, &e) < 0) {
        log_error_from("no random bytes for a key", &e);
        return false;
    }
    crypto_hex(w->state->job_key, sizeof w->state->job_key, hex);
    auto_json cJSON *object = secret_object(w, hex);
    struct kube_request r = { .verb = KUBE_CREATE, .resource = &RESOURCE_SECRET, .ns = w->key.ns, .body = object,
                              .field_manager = FIELD_MANAGER, .want = KUBE_WANT_METADATA };
    int result = kube_client_send(w->c->def.client, &r, on_created, w, NULL, &e);
    crypto_wipe(hex, sizeof hex);
    return result == 0;
}

/* ---- reading --------------------------------------------------------------------------------------------------------- */

struct fetch { struct controller *c; struct kube_key key; char uid[KUBE_UID_MAX]; };

static void on_fetched(void *ctx, struct kube_reply *reply)
{
    struct fetch *f = ctx;
    struct job_state *s = state_find(f->c->states, &f->key);

    if (s != NULL)
        s->key_asked = false;
    if (s != NULL && strcmp(s->uid, f->uid) == 0 && reply->error == NULL && strcmp(kube_controller_uid(reply->object), f->uid) == 0 &&
        take_key(s, reply->object)) /* without it the coordinator is turned away and asks again */
        mend_authority(f->c, s, reply->object);
    free(f);
}

void secret_fetch(struct controller *c, struct job_state *s)
{
    if (s->key_asked)
        return;
    struct fetch *f = xcalloc(1, sizeof *f);
    struct training_job named = { .name = s->key.name };
    struct error e = ERROR_INIT;
    char name[128];

    *f = (struct fetch){ .c = c, .key = s->key };
    (void)snprintf(f->uid, sizeof f->uid, "%s", s->uid);
    pod_secret_name(&named, name);
    struct kube_request r = { .verb = KUBE_GET, .resource = &RESOURCE_SECRET, .ns = s->key.ns, .name = name, .drop = free };
    s->key_asked = kube_client_send(c->def.client, &r, on_fetched, f, NULL, &e) == 0;
    if (!s->key_asked)
        free(f);
}

void secret_refresh(struct work *w)
{
    struct job_state *s = w->state;
    bool at_work = pod_has_sidecar(w->job) && !phase_is_final(w->status->phase) && w->status->phase != PHASE_SUSPENDED &&
                   kube_cache_count_of(kube_informer_cache(w->scope->pods), s->uid) > 0;

    if (at_work && authority_pem(w->c) != NULL && s->authority_seen != w->c->authority_generation)
        secret_fetch(w->c, s);
}
