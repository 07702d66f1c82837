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
#include "job/child.h"
#include "operator/work.h"

#define WINDOW_FIRST 4
#define WINDOW_MAX 64
#define OWN_FOR_MS 30000       /* how long a write of ours is believed without the cache */
#define SERVICE_FOR_MS 5000
#define HOLD_FIRST_MS 1000     /* between refused creations; doubles */
#define HOLD_MAX_MS 60000
#define LOOK_AGAIN_MS 200
#define ASK_AGAIN_MS 30000     /* for a checkpoint: longer than most take to be committed */

#define COLLECTION_LEAST 3     /* from here on one request deletes all pods of an attempt; the API server takes them one after */
#define COLLECTION_MOST 256    /* another, so that very many are faster by themselves */

struct step *step_new(struct work *w, const struct item *item, const struct kube_resource *resource, const char *name)
{
    struct step *s = xcalloc(1, sizeof *s);

    *s = (struct step){ .work = w, .item = *item, .resource = resource };
    (void)snprintf(s->name, sizeof s->name, "%s", name);
    return s;
}

void step_free(struct step *s)
{
    free(s);
}

int step_send(struct step *s, struct kube_request *r, kube_reply_fn *done, struct error *e)
{
    r->drop = free;
    return kube_client_send(s->work->c->def.client, r, done, s, NULL, e);
}

void step_done(struct step *s, bool well)
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
        step_send(s, &r, on_deleted_stranger, &e) < 0)
        step_done(s, false);
}

static void adopt(struct step *s, const cJSON *object)
{
    struct work *w = s->work;
    char attempt[16];

    if (s->resource != &RESOURCE_POD) {
        w->retry |= kube_deleting(object); /* it goes away first: a claim waits for the pods that still use it */
        step_done(s, !kube_deleting(object));
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
    bool is_free = s->resource == &RESOURCE_CLAIM && owner == NULL && !kube_deleting(reply->object); /* retained, or the user's own */
    bool of_a_job = strcmp(json_text(owner, "kind", ""), JOB_KIND) == 0 && strcmp(json_text(owner, "name", ""), w->key.name) == 0;
    if (is_free || strcmp(kube_controller_uid(reply->object), w->state->uid) == 0) {
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

    if (step_send(s, &r, on_found, &e) < 0)
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
    if (s->item.kind == ACTION_CREATE_GROUP)
        w->state->group_until_ms = clock_mono_ms() + SERVICE_FOR_MS;
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

cJSON *execute_pod(const struct work *w, const struct item *item, enum gang_kind gang)
{
    static const struct address_plan ADDRESSES = { .kind = ADDRESS_CLUSTER };
    const struct options *o = w->c->def.options;
    auto_free char *control = o->control_url != NULL && o->control_url[0] != '\0'
                                  ? xasprintf("%s/control/%s/%s", o->control_url, w->key.ns, w->key.name) : NULL;
    struct pod_context context = { .addresses = &ADDRESSES, .attempt = item->attempt, .status = w->status,
                                   .sidecar_image = o->sidecar_image, .gang = gang, .control = control,
                                   .no_native_sidecars = w->c->def.options->no_native_sidecars };

    return pod_build(w->job, item->role, item->index, &context);
}

static bool create(struct work *w, const struct item *item, const struct kube_resource *resource, cJSON *body /* taken */)
{
    auto_json cJSON *object = body;
    struct kube_request r = { .verb = KUBE_CREATE, .resource = resource, .ns = w->key.ns, .body = object, .field_manager = FIELD_MANAGER,
                              .want = KUBE_WANT_METADATA };
    struct step *s = step_new(w, item, resource, kube_name(object));
    struct error e = ERROR_INIT;

    if (step_send(s, &r, on_created, &e) == 0)
        return true;
    struct kube_reply refused = { .error = &e, .reason = "" };
    execute_refused(w, resource->kind, &refused);
    step_free(s);
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
    struct step *s = step_new(w, item, is_job ? &RESOURCE_JOB : &RESOURCE_POD, w->key.name);
    struct error e = ERROR_INIT;

    if (!is_job)
        job_pod_name(w->job, item->role, item->index, s->name);
    struct kube_request r = { .verb = KUBE_DELETE, .resource = s->resource, .ns = w->key.ns, .name = s->name,
                              .delete_uid = is_job ? w->state->uid : item->action->uid, .propagation = KUBE_BACKGROUND,
                              .has_grace = item->kind == ACTION_FORCE_DELETE_POD, .grace_s = 0, .want = KUBE_WANT_NOTHING };
    log_info(is_job ? "job deleted" : "pod deleted", KV("namespace", w->key.ns), KV("job", w->key.name), KV("name", s->name),
             KV("because", item->action->reason), KV("force", r.has_grace ? "yes" : "no"));
    if (step_send(s, &r, on_deleted, &e) == 0)
        return true;
    log_error_from("deletion not sent", &e, KV("namespace", w->key.ns), KV("name", s->name));
    step_free(s);
    return false;
}

static void note_deleted(struct work *w, int32_t attempt)
{
    struct kube_cache_at at;
    const struct kube_cache *pods = kube_informer_cache(w->scope->pods);

    for (const struct pod_entry *p = kube_cache_first_of(pods, w->state->uid, &at); p != NULL; p = kube_cache_next(&at)) {
        struct own_pod own = { .deleted = true, .until_ms = clock_mono_ms() + OWN_FOR_MS };
        if (p->attempt != attempt || p->deleting)
            continue;
        (void)snprintf(own.uid, sizeof own.uid, "%s", p->uid);
        state_own_add(w->state, &own);
    }
}

static void on_all_deleted(void *ctx, struct kube_reply *reply)
{
    struct step *s = ctx;

    if (reply->error != NULL)
        work_fail(s->work, "delete the pods of an attempt", reply);
    else
        note_deleted(s->work, s->item.attempt);
    s->work->c->def.metrics->pods_deleted += reply->error == NULL ? s->item.number : 0;
    step_done(s, reply->error == NULL);
}

/* The selector is the precondition: this job, by UID, and an attempt that no pod is ever created for again. */
static bool delete_attempt(struct work *w, const struct item *item)
{
    auto_free char *selector = xasprintf(LABEL_JOB_UID "=%s," LABEL_ATTEMPT "=%d", w->state->uid, (int)item->attempt);
    struct step *s = step_new(w, item, &RESOURCE_POD, "");
    struct kube_request r = { .verb = KUBE_DELETE_COLLECTION, .resource = &RESOURCE_POD, .ns = w->key.ns, .label_selector = selector,
                              .propagation = KUBE_BACKGROUND, .want = KUBE_WANT_NOTHING };
    struct error e = ERROR_INIT;

    log_info("all pods of an attempt deleted", KV("namespace", w->key.ns), KV("job", w->key.name), KVI("attempt", item->attempt),
             KVI("count", item->number), KV("because", item->action->reason));
    if (step_send(s, &r, on_all_deleted, &e) == 0)
        return true;
    log_error_from("deletion not sent", &e, KV("namespace", w->key.ns), KV("job", w->key.name));
    step_free(s);
    return false;
}

/* ---- changing -------------------------------------------------------------------------------------------------------- */

static void on_changed(void *ctx, struct kube_reply *reply)
{
    struct step *s = ctx;
    enum error_kind kind = reply->error != NULL ? reply->error->kind : ERROR_NONE;
    /* INVALID: a test in the patch did not hold, what we know is old; the cache will show what is there */
    bool well = kind == ERROR_NONE || kind == ERROR_NOT_FOUND || kind == ERROR_CONFLICT || (kind == ERROR_INVALID && s->resource == &RESOURCE_POD);

    if (!well)
        work_fail(s->work, s->item.kind == ACTION_UNGATE_POD ? "lift the gate of a pod" : "change or delete a PodGroup", reply);
    step_done(s, well);
}

static bool change(struct work *w, const struct item *item, const struct kube_resource *resource, const char *name, struct kube_request *r)
{
    struct step *s = step_new(w, item, resource, name);
    struct error e = ERROR_INIT;

    r->resource = resource;
    r->ns = w->key.ns;
    r->name = s->name;
    r->want = KUBE_WANT_NOTHING;
    r->field_manager = r->body != NULL ? FIELD_MANAGER : NULL;
    if (step_send(s, r, on_changed, &e) == 0)
        return true;
    log_error_from("change not sent", &e, KV("namespace", w->key.ns), KV("name", name));
    step_free(s);
    return false;
}

static bool ungate(struct work *w, const struct item *item)
{
    auto_json cJSON *patch = json_array();
    char name[128], path[64];
    struct kube_key key;

    job_pod_name(w->job, item->role, item->index, name);
    const struct pod_entry *pod = kube_key_set(&key, w->key.ns, name) ? kube_cache_get(kube_informer_cache(w->scope->pods), &key) : NULL;
    if (pod == NULL || pod->gate_index < 0 || strcmp(pod->uid, item->action->uid) != 0)
        return false;
    kube_patch_add(patch, "test", "/metadata/uid", cJSON_CreateString(pod->uid));
    (void)snprintf(path, sizeof path, "/spec/schedulingGates/%d/name", pod->gate_index);
    kube_patch_add(patch, "test", path, cJSON_CreateString(POD_GATE));
    (void)snprintf(path, sizeof path, "/spec/schedulingGates/%d", pod->gate_index);
    kube_patch_add(patch, "remove", path, NULL);
    struct kube_request r = { .verb = KUBE_JSON_PATCH, .body = patch };
    return change(w, item, &RESOURCE_POD, name, &r);
}

static bool send_group(struct work *w, const struct item *item)
{
    const struct group_resource *g = controller_group(w->c, w->status->gang.kind);
    auto_json cJSON *patch = gang_group_patch(w->job, w->status->gang.kind);
    struct kube_request r = { .verb = KUBE_MERGE_PATCH, .body = patch };
    struct kube_key key;

    if (g == NULL)
        return false;
    if (item->kind == ACTION_CREATE_GROUP)
        return create(w, item, &g->resource, gang_group_build(w->job, g->kind, g->api_version));
    struct kube_informer *informer = w->scope->groups[g - GROUPS];
    const struct group_entry *group = informer != NULL && kube_key_set(&key, w->key.ns, w->key.name)
                                          ? kube_cache_get(kube_informer_cache(informer), &key) : NULL;
    if (item->kind == ACTION_DELETE_GROUP)
        r = (struct kube_request){ .verb = KUBE_DELETE, .delete_uid = group != NULL ? group->uid : NULL, .propagation = KUBE_BACKGROUND };
    return change(w, item, &g->resource, w->key.name, &r);
}

/* ---- the order ------------------------------------------------------------------------------------------------------- */

static void add_item(struct work *w, const struct item *item)
{
    if (w->item_count == w->item_cap) {
        w->item_cap = w->item_cap > 0 ? 2 * w->item_cap : 16;
        w->items = xrealloc(w->items, w->item_cap, sizeof *w->items);
    }
    w->items[w->item_count++] = *item;
}

static int32_t replicas_of(const struct work *w, enum job_role role)
{
    return w->job->spec.roles[role].present ? w->job->spec.roles[role].replicas : 0;
}

static void add_services(struct work *w, const struct action *a)
{
    add_item(w, &(struct item){ .kind = a->kind, .index = -1, .action = a });
    for (enum job_role role = 0; role < ROLE_COUNT && w->job->spec.network.service_per_pod; role++) {
        for (int32_t i = 0; i < replicas_of(w, role); i++)
            add_item(w, &(struct item){ .kind = a->kind, .role = role, .index = i, .action = a });
    }
}

static void add_claims(struct work *w, const struct action *a)
{
    size_t count = volume_claim_count(w->job);

    for (enum job_role role = 0; role < ROLE_COUNT; role++) {
        for (size_t k = 0; k < count && replicas_of(w, role) > 0; k++) {
            for (int32_t i = 0; i < replicas_of(w, role) && volume_claim_is_wanted(w->job, role, k); i++)
                add_item(w, &(struct item){ .kind = a->kind, .role = role, .index = i, .number = k, .action = a });
        }
    }
}

static void add_checks(struct work *w, const struct action *a)
{
    bool known = check_is_known(w);

    for (enum job_role role = 0; role < ROLE_COUNT && !known; role++) {
        if (replicas_of(w, role) > 0)
            add_item(w, &(struct item){ .kind = a->kind, .role = role, .attempt = w->status->attempt, .action = a });
    }
}

/* What pods need is there before them. */
static bool is_before_barrier(enum action_kind kind)
{
    return kind == ACTION_CHECK_PODS || kind == ACTION_CREATE_SECRET || kind == ACTION_CREATE_SERVICE ||
           kind == ACTION_CREATE_NETWORK_POLICY || kind == ACTION_CREATE_CLAIMS || kind == ACTION_CREATE_GROUP;
}

static size_t pods_of_attempt(const struct work *w, int32_t attempt)
{
    size_t count = 0;

    for (size_t i = 0; i < w->seen.pod_count; i++)
        count += w->seen.pods[i].attempt == attempt;
    return count;
}

static void list_items(struct work *w)
{
    const struct plan *p = &w->plan;

    for (size_t i = 0; i < p->action_count; i++) {
        if (p->actions[i].kind == ACTION_CHECK_PODS)
            add_checks(w, &p->actions[i]);
    }
    w->checks = w->item_count;
    for (size_t i = 0; i < p->action_count; i++) {
        const struct action *a = &p->actions[i];
        if (a->kind == ACTION_CREATE_SERVICE)
            add_services(w, a);
        else if (a->kind == ACTION_CREATE_CLAIMS)
            add_claims(w, a);
        else if (is_before_barrier(a->kind) && a->kind != ACTION_CHECK_PODS)
            add_item(w, &(struct item){ .kind = a->kind, .action = a });
    }
    w->barrier = w->item_count;
    for (size_t i = 0; i < p->action_count; i++) {
        const struct action *a = &p->actions[i];
        if (!is_before_barrier(a->kind))
            add_item(w, &(struct item){ .kind = a->kind, .role = a->role, .index = a->index, .attempt = a->attempt, .action = a,
                                        .number = a->kind == ACTION_DELETE_PODS ? pods_of_attempt(w, a->attempt) : 0 });
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
    case ACTION_CREATE_NETWORK_POLICY: return create(w, item, &RESOURCE_NETWORK_POLICY, network_policy_build(w->job));
    case ACTION_CREATE_CLAIMS: return create(w, item, &RESOURCE_CLAIM, volume_claim_build(w->job, item->role, item->index, item->number));
    case ACTION_TRIM_CLAIMS: return claims_trim(w, item);
    case ACTION_CHECK_PODS: return check_pod(w, item);
    case ACTION_CREATE_GROUP:
    case ACTION_UPDATE_GROUP:
    case ACTION_DELETE_GROUP: return send_group(w, item);
    case ACTION_CREATE_POD: return create(w, item, &RESOURCE_POD, execute_pod(w, item, w->status->gang.kind));
    case ACTION_UNGATE_POD: return ungate(w, item);
    case ACTION_DELETE_PODS: return delete_attempt(w, item);
    case ACTION_DELETE_POD:
    case ACTION_FORCE_DELETE_POD:
    case ACTION_DELETE_JOB: return delete(w, item);
    }
    return false;
}

static bool creates(enum action_kind kind)
{
    return is_before_barrier(kind) || kind == ACTION_CREATE_POD;
}

/* Everything that was asked for before the pods is there. */
static void note_prepared(struct work *w)
{
    struct job_state *s = w->state;
    bool checked = false;

    w->prepared = true;
    for (size_t i = 0; i < w->barrier; i++) {
        s->network_policy_known |= w->items[i].kind == ACTION_CREATE_NETWORK_POLICY;
        checked |= w->items[i].kind == ACTION_CHECK_PODS;
    }
    for (size_t i = 0; i < w->plan.action_count; i++) {
        s->claims_known |= w->plan.actions[i].kind == ACTION_CREATE_CLAIMS;
        s->pods_checked |= w->plan.actions[i].kind == ACTION_CHECK_PODS;
    }
    if (checked)
        check_note_accepted(w);
    w->again |= checked && w->barrier == w->item_count; /* what was learnt was waited for */
}

static void finish(struct work *w)
{
    struct job_state *s = w->state;

    if (w->created > 0)
        log_info("pods created", KV("namespace", w->key.ns), KV("job", w->key.name), KVI("count", w->created), KVI("attempt", w->status->attempt));
    for (size_t i = 0; i < w->plan.action_count && !w->stopped; i++)
        s->trimmed |= w->plan.actions[i].kind == ACTION_TRIM_CLAIMS;
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
        if (w->item_next == w->checks && w->outstanding > 0)
            break; /* nothing is made for pods that the API server would not take */
        if (w->item_next == w->barrier && !w->prepared) {
            if (w->outstanding > 0)
                break; /* pods come when what they refer to is there */
            note_prepared(w);
        }
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
    if (w->outstanding > 0 || (!w->stopped && w->item_next < w->item_count))
        return;
    if (!w->stopped && !w->prepared)
        note_prepared(w);
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

/* The coordinator's report says when it knows. */
static void tell_size(struct work *w)
{
    int32_t workers = resize_is_wanted(w->job, w->status, &w->seen.coordinator);

    if (w->c->say == NULL || workers == 0)
        return;
    auto_free char *text = report_command_encode(COMMAND_RESIZE, workers);
    if (w->c->say(w->c->say_ctx, &w->key, text))
        log_info("ring is to change its size", KV("namespace", w->key.ns), KV("job", w->key.name), KVI("workers", workers));
}

void execute_begin(struct work *w)
{
    ask_for_checkpoint(w);
    tell_size(w);
    secret_refresh(w);
    plan_join_deletions(&w->plan, &w->seen, COLLECTION_LEAST, COLLECTION_MOST);
    list_items(w);
    w->window = WINDOW_FIRST;
    execute_pump(w);
}
