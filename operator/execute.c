/*
 * Carrying out a plan: the key Secret and the Services first, then pods, many at a time. The number of requests under way begins
 * small and grows with each that went well, so that a quota that is used up costs four refusals and not ten thousand.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "operator/work.h"

#define WINDOW_FIRST 4
#define WINDOW_MAX 64
#define OWN_FOR_MS 30000       /* how long a write of ours is believed without the cache */
#define SERVICE_FOR_MS 5000
#define HOLD_FIRST_MS 1000     /* between refused creations; doubles */
#define HOLD_MAX_MS 60000
#define LOOK_AGAIN_MS 200
#define ASK_AGAIN_MS 30000     /* for a checkpoint: longer than most take to be committed */

/* One request and what it is about. */
struct step {
    struct work *work;
    struct item item;
    const struct kube_resource *resource;
    char name[KUBE_NAME_MAX];
};

static void step_done(struct step *s, bool well)
{
    struct work *w = s->work;

    free(s);
    w->outstanding--;
    if (well && w->window < WINDOW_MAX)
        w->window++;
    w->stopped |= !well;
    execute_pump(w);
}

void execute_refused(struct work *w, const char *what, const struct kube_reply *reply)
{
    struct job_state *s = w->state;
    enum error_kind kind = reply->error->kind;

    work_fail(w, what, reply);
    if (kind != ERROR_DENIED && kind != ERROR_INVALID && kind != ERROR_LIMIT)
        return; /* it passes */
    (void)snprintf(s->create_error, sizeof s->create_error, "%s: %s", what, reply->error->text);
    s->hold_ms = s->hold_ms == 0 ? HOLD_FIRST_MS : 2 * s->hold_ms < HOLD_MAX_MS ? 2 * s->hold_ms : HOLD_MAX_MS;
    s->hold_until_ms = clock_mono_ms() + s->hold_ms;
}

/* ---- what is there already ------------------------------------------------------------------------------------------- */

static void on_deleted_stranger(void *ctx, struct kube_reply *reply)
{
    struct step *s = ctx;

    if (reply->error != NULL && reply->error->kind != ERROR_NOT_FOUND)
        work_fail(s->work, "delete what a former job of this name left", reply);
    s->work->retry = true;
    step_done(s, false);
}

/* It belonged to a job of the same name that is gone. The garbage collector would come; the name is needed now. */
static void delete_stranger(struct step *s, const cJSON *object)
{
    struct work *w = s->work;
    struct kube_request r = { .verb = KUBE_DELETE, .resource = s->resource, .ns = w->key.ns, .name = s->name, .delete_uid = kube_uid(object),
                              .propagation = KUBE_BACKGROUND, .want = KUBE_WANT_NOTHING };
    struct error e = ERROR_INIT;

    w->retry = true;
    w->retry_after_ms = LOOK_AGAIN_MS;
    if (kube_deleting(object) || !controller_may_write(w->c) ||
        kube_client_send(w->c->def.client, &r, on_deleted_stranger, s, NULL, &e) < 0)
        step_done(s, false);
}

static void adopt(struct step *s, const cJSON *object)
{
    struct work *w = s->work;
    char attempt[16];

    if (s->resource != &RESOURCE_POD) {
        step_done(s, true);
        return;
    }
    (void)snprintf(attempt, sizeof attempt, "%d", (int)s->item.attempt);
    const char *label = kube_label(object, LABEL_ATTEMPT);
    bool is_it = label != NULL && strcmp(label, attempt) == 0 && !kube_deleting(object);
    if (is_it) {
        struct own_pod own = { .role = (uint8_t)s->item.role, .index = s->item.index, .attempt = s->item.attempt,
                               .wall_ms = clock_wall_ms(), .until_ms = clock_mono_ms() + OWN_FOR_MS };
        (void)snprintf(own.uid, sizeof own.uid, "%s", kube_uid(object));
        state_own_add(w->state, &own);
    } else { /* of another attempt, or on its way out: the cache will show it, and it is decided about then */
        w->retry = true;
        w->retry_after_ms = LOOK_AGAIN_MS;
    }
    step_done(s, is_it);
}

static void on_found(void *ctx, struct kube_reply *reply)
{
    struct step *s = ctx;
    struct work *w = s->work;

    if (reply->error != NULL) {
        work_fail(w, "look at what is there", reply);
        step_done(s, false);
        return;
    }
    const cJSON *owner = kube_controller(reply->object);
    bool of_a_job = strcmp(json_text(owner, "kind", ""), JOB_KIND) == 0 && strcmp(json_text(owner, "name", ""), w->key.name) == 0;
    if (strcmp(kube_controller_uid(reply->object), w->state->uid) == 0) {
        adopt(s, reply->object);
    } else if (of_a_job) {
        delete_stranger(s, reply->object);
    } else {
        struct error e = ERROR_INIT;
        struct kube_reply refused = { .error = &e, .reason = "" };
        auto_free char *what = xasprintf("%s %s", s->resource->kind, s->name);
        (void)error_set(&e, ERROR_INVALID, "it exists and is not of this job; delete or rename it");
        execute_refused(w, what, &refused);
        step_done(s, false);
    }
}

static void look_what_is_there(struct step *s)
{
    struct work *w = s->work;
    struct kube_request r = { .verb = KUBE_GET, .resource = s->resource, .ns = w->key.ns, .name = s->name };
    struct error e = ERROR_INIT;

    if (kube_client_send(w->c->def.client, &r, on_found, s, NULL, &e) < 0)
        step_done(s, false);
}

/* ---- creating -------------------------------------------------------------------------------------------------------- */

static void note_created(struct step *s, const cJSON *object)
{
    struct work *w = s->work;
    struct own_pod own = { .role = (uint8_t)s->item.role, .index = s->item.index, .attempt = s->item.attempt,
                           .wall_ms = clock_wall_ms(), .until_ms = clock_mono_ms() + OWN_FOR_MS };

    if (s->resource == &RESOURCE_SERVICE)
        w->state->service_until_ms = clock_mono_ms() + SERVICE_FOR_MS;
    if (s->resource != &RESOURCE_POD)
        return;
    w->created++;
    w->c->def.metrics->pods_created++;
    (void)snprintf(own.uid, sizeof own.uid, "%s", kube_uid(object));
    struct kube_key key;
    const struct pod_entry *cached = kube_key_set(&key, w->key.ns, s->name) ? kube_cache_get(kube_informer_cache(w->scope->pods), &key) : NULL;
    if (cached == NULL || strcmp(cached->uid, own.uid) != 0) /* the watch may have been faster than the reply */
        state_own_add(w->state, &own);
}

static void on_created(void *ctx, struct kube_reply *reply)
{
    struct step *s = ctx;
    struct work *w = s->work;

    if (reply->error == NULL) {
        note_created(s, reply->object);
        step_done(s, true);
    } else if (reply->already_exists) {
        look_what_is_there(s);
    } else {
        auto_free char *what = xasprintf("%s %s", s->resource->kind, s->name);
        if (s->resource == &RESOURCE_POD)
            w->c->def.metrics->pod_create_errors++;
        execute_refused(w, what, reply);
        step_done(s, false);
    }
}

static cJSON *build_pod(const struct work *w, const struct item *item)
{
    static const struct address_plan ADDRESSES = { .kind = ADDRESS_CLUSTER };
    const struct options *o = w->c->def.options;
    auto_free char *control = o->control_url != NULL && o->control_url[0] != '\0'
                                  ? xasprintf("%s/control/%s/%s", o->control_url, w->key.ns, w->key.name) : NULL;
    struct pod_context context = { .addresses = &ADDRESSES, .attempt = item->attempt, .status = w->status,
                                   .sidecar_image = o->sidecar_image, .gang = GANG_AUTO, .control = control,
                                   .no_native_sidecars = w->c->def.options->no_native_sidecars };

    return pod_build(w->job, item->role, item->index, &context);
}

static bool create(struct work *w, const struct item *item, const struct kube_resource *resource, cJSON *body /* taken */)
{
    auto_json cJSON *object = body;
    struct kube_request r = { .verb = KUBE_CREATE, .resource = resource, .ns = w->key.ns, .body = object, .field_manager = FIELD_MANAGER,
                              .want = KUBE_WANT_METADATA };
    struct step *s = xcalloc(1, sizeof *s);
    struct error e = ERROR_INIT;

    *s = (struct step){ .work = w, .item = *item, .resource = resource };
    (void)snprintf(s->name, sizeof s->name, "%s", kube_name(object));
    if (kube_client_send(w->c->def.client, &r, on_created, s, NULL, &e) == 0)
        return true;
    struct kube_reply refused = { .error = &e, .reason = "" };
    execute_refused(w, resource->kind, &refused);
    free(s);
    return false;
}

/* ---- deleting -------------------------------------------------------------------------------------------------------- */

static void on_deleted(void *ctx, struct kube_reply *reply)
{
    struct step *s = ctx;
    struct work *w = s->work;
    enum error_kind kind = reply->error != NULL ? reply->error->kind : ERROR_NONE;
    bool is_over = kind == ERROR_NONE || kind == ERROR_NOT_FOUND || kind == ERROR_CONFLICT; /* conflict: another one has the name */

    if (!is_over)
        work_fail(w, "delete", reply);
    else if (s->item.action->kind != ACTION_DELETE_JOB) {
        struct own_pod own = { .deleted = true, .until_ms = clock_mono_ms() + OWN_FOR_MS };
        (void)snprintf(own.uid, sizeof own.uid, "%s", s->item.action->uid);
        const struct kube_cache *pods = kube_informer_cache(w->scope->pods);
        struct kube_key key;
        const struct pod_entry *cached = kube_key_set(&key, w->key.ns, s->name) ? kube_cache_get(pods, &key) : NULL;
        if (cached != NULL && strcmp(cached->uid, own.uid) == 0 && !cached->deleting)
            state_own_add(w->state, &own);
        w->c->def.metrics->pods_deleted++;
    }
    step_done(s, is_over);
}

static bool delete(struct work *w, const struct item *item)
{
    bool is_job = item->kind == ACTION_DELETE_JOB;
    struct step *s = xcalloc(1, sizeof *s);
    struct error e = ERROR_INIT;

    *s = (struct step){ .work = w, .item = *item, .resource = is_job ? &RESOURCE_JOB : &RESOURCE_POD };
    if (is_job)
        (void)snprintf(s->name, sizeof s->name, "%s", w->key.name);
    else
        job_pod_name(w->job, item->role, item->index, s->name);
    struct kube_request r = { .verb = KUBE_DELETE, .resource = s->resource, .ns = w->key.ns, .name = s->name,
                              .delete_uid = is_job ? w->state->uid : item->action->uid, .propagation = KUBE_BACKGROUND,
                              .has_grace = item->kind == ACTION_FORCE_DELETE_POD, .grace_s = 0, .want = KUBE_WANT_NOTHING };
    log_info(is_job ? "job deleted" : "pod deleted", KV("namespace", w->key.ns), KV("job", w->key.name), KV("name", s->name),
             KV("because", item->action->reason), KV("force", r.has_grace ? "yes" : "no"));
    if (kube_client_send(w->c->def.client, &r, on_deleted, s, NULL, &e) == 0)
        return true;
    log_error_from("deletion not sent", &e, KV("namespace", w->key.ns), KV("name", s->name));
    free(s);
    return false;
}

/* ---- the order ------------------------------------------------------------------------------------------------------- */

static void add_item(struct work *w, const struct item *item)
{
    w->items[w->item_count++] = *item;
}

static void add_services(struct work *w, const struct action *a)
{
    add_item(w, &(struct item){ .kind = ACTION_CREATE_SERVICE, .index = -1, .action = a });
    if (!w->job->spec.network.service_per_pod)
        return;
    for (enum job_role role = 0; role < ROLE_COUNT; role++) {
        int32_t replicas = w->job->spec.roles[role].present ? w->job->spec.roles[role].replicas : 0;
        for (int32_t i = 0; i < replicas; i++)
            add_item(w, &(struct item){ .kind = ACTION_CREATE_SERVICE, .role = role, .index = i, .action = a });
    }
}

static void list_items(struct work *w)
{
    const struct plan *p = &w->plan;

    w->items = xcalloc(p->action_count + (size_t)job_replicas(w->job) + 1, sizeof *w->items);
    for (size_t i = 0; i < p->action_count; i++) {
        const struct action *a = &p->actions[i];
        if (a->kind == ACTION_CREATE_SECRET)
            add_item(w, &(struct item){ .kind = a->kind, .action = a });
        else if (a->kind == ACTION_CREATE_SERVICE)
            add_services(w, a);
    }
    w->barrier = w->item_count;
    for (size_t i = 0; i < p->action_count; i++) {
        const struct action *a = &p->actions[i];
        if (a->kind != ACTION_CREATE_SECRET && a->kind != ACTION_CREATE_SERVICE)
            add_item(w, &(struct item){ .kind = a->kind, .role = a->role, .index = a->index, .attempt = a->attempt, .action = a });
    }
}

/* False: the request could not be made. */
static bool send(struct work *w, const struct item *item)
{
    switch (item->kind) {
    case ACTION_CREATE_SECRET: return secret_create(w);
    case ACTION_CREATE_SERVICE:
        return create(w, item, &RESOURCE_SERVICE,
                      item->index < 0 ? service_build(w->job) : service_build_replica(w->job, item->role, item->index));
    case ACTION_CREATE_POD: return create(w, item, &RESOURCE_POD, build_pod(w, item));
    case ACTION_DELETE_POD:
    case ACTION_FORCE_DELETE_POD:
    case ACTION_DELETE_JOB: return delete(w, item);
    }
    return false;
}

static bool creates(enum action_kind kind)
{
    return kind == ACTION_CREATE_SECRET || kind == ACTION_CREATE_SERVICE || kind == ACTION_CREATE_POD;
}

static void finish(struct work *w)
{
    struct job_state *s = w->state;

    if (w->created > 0)
        log_info("pods created", KV("namespace", w->key.ns), KV("job", w->key.name), KVI("count", w->created), KVI("attempt", w->status->attempt));
    if (w->created > 0 && !w->stopped) {
        s->create_error[0] = '\0';
        s->hold_ms = 0;
        s->hold_until_ms = 0;
    }
    work_end(w);
}

void execute_pump(struct work *w)
{
    while (!w->stopped && w->item_next < w->item_count && w->outstanding < w->window) {
        if (w->outstanding > 0 && w->barrier > 0 && w->item_next == w->barrier)
            break; /* pods come when what they refer to is there */
        const struct item *item = &w->items[w->item_next++];
        if (creates(item->kind) && clock_mono_ms() < w->state->hold_until_ms) {
            int64_t at_ms = clock_wall_ms() + w->state->hold_until_ms - clock_mono_ms();
            w->requeue_at_ms = w->requeue_at_ms == 0 || at_ms < w->requeue_at_ms ? at_ms : w->requeue_at_ms;
            w->stopped = true;
        } else if (controller_may_write(w->c) && send(w, item)) {
            w->outstanding++;
        } else {
            w->retry = w->stopped = true;
        }
    }
    if (w->outstanding == 0 && (w->stopped || w->item_next == w->item_count))
        finish(w);
}

/* A checkpoint that is wanted is asked for until the status has it committed: who was told may be gone. */
static void ask_for_checkpoint(struct work *w)
{
    struct job_state *s = w->state;
    int64_t now_ms = clock_mono_ms(), again_ms = clock_wall_ms() + ASK_AGAIN_MS;

    if (w->c->say == NULL || !checkpoint_is_wanted(w->job, w->status)) {
        s->asked_ms = 0;
        return;
    }
    if (s->asked_ms == 0 || now_ms - s->asked_ms >= ASK_AGAIN_MS) {
        auto_free char *text = report_command_encode(COMMAND_CHECKPOINT, 0);
        if (w->c->say(w->c->say_ctx, &w->key, text)) {
            log_info("checkpoint asked for", KV("namespace", w->key.ns), KV("job", w->key.name));
            s->asked_ms = now_ms;
        }
    }
    if (w->requeue_at_ms == 0 || again_ms < w->requeue_at_ms)
        w->requeue_at_ms = again_ms;
}

void execute_begin(struct work *w)
{
    ask_for_checkpoint(w);
    secret_refresh(w);
    list_items(w);
    w->window = WINDOW_FIRST;
    execute_pump(w);
}
