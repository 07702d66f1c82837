#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "job/decode.h"
#include "operator/work.h"

static void post(struct work *w, bool warning, const char *reason, const char *message)
{
    struct kube_event event = { .about = { .resource = &RESOURCE_JOB, .key = w->key }, .warning = warning, .reason = reason, .message = message };

    (void)snprintf(event.about.uid, sizeof event.about.uid, "%s", w->state->uid);
    (void)snprintf(event.about.version, sizeof event.about.version, "%s", w->version);
    kube_recorder_post(w->c->recorder, &event);
}

static void tell_events(struct work *w)
{
    for (size_t i = 0; i < w->plan.event_count; i++) {
        const struct event *e = &w->plan.events[i];
        post(w, e->warning, e->reason, e->message);
        log_info("event", KV("namespace", w->key.ns), KV("job", w->key.name), KV("reason", e->reason), KV("message", e->message));
    }
}

static bool send(struct work *w, cJSON *status /* taken */, kube_reply_fn *done)
{
    auto_json cJSON *body = json_object();
    cJSON *metadata = json_object();
    struct error e = ERROR_INIT;

    json_put_text(body, "apiVersion", JOB_API_VERSION);
    json_put_text(body, "kind", JOB_KIND);
    json_put_text(metadata, "name", w->key.name);
    json_put_text(metadata, "namespace", w->key.ns);
    json_put_text(metadata, "uid", w->state->uid);
    json_put_text(metadata, "resourceVersion", w->version); /* whoever wrote meanwhile wins: we look again */
    json_put(body, "metadata", metadata);
    json_put(body, "status", status);
    struct kube_request r = { .verb = KUBE_UPDATE, .resource = &RESOURCE_JOB, .ns = w->key.ns, .name = w->key.name, .subresource = "status",
                              .body = body, .field_manager = FIELD_MANAGER, .want = KUBE_WANT_METADATA, .drops = JOB_ENTRY_DROPS };
    if (controller_may_write(w->c) && kube_client_send(w->c->def.client, &r, done, w, NULL, &e) == 0) {
        w->sent = cJSON_DetachItemFromObjectCaseSensitive(body, "status");
        return true;
    }
    if (e.kind != ERROR_NONE)
        log_error_from("status not written", &e, KV("namespace", w->key.ns), KV("job", w->key.name));
    w->retry = true;
    return false;
}

/* The job as it is now: the version that we read, which the server held us to, and our status. */
static char *stored_text(struct work *w, const char *version)
{
    cJSON *metadata = cJSON_GetObjectItemCaseSensitive(w->object, "metadata");

    cJSON_DeleteItemFromObjectCaseSensitive(metadata, "resourceVersion");
    json_put_text(metadata, "resourceVersion", version);
    cJSON_DeleteItemFromObjectCaseSensitive(w->object, "status");
    json_put(w->object, "status", TAKE(w->sent));
    return job_text(w->object);
}

/* False: it was not stored, and the look has ended. */
static bool stored(struct work *w, struct kube_reply *reply)
{
    if (reply->error == NULL) {
        const char *version = kube_version(reply->object);
        const struct job_entry *cached = kube_cache_get(kube_informer_cache(w->scope->jobs), &w->key);
        if (cached == NULL || strcmp(cached->version, version) != 0)
            state_set_fresh(w->state, w->version, version, stored_text(w, version), clock_mono_ms());
        else
            state_clear_fresh(w->state); /* the watch was faster */
        cJSON_Delete(TAKE(w->sent));
        w->state->stored_ms = clock_mono_ms();
        (void)snprintf(w->version, sizeof w->version, "%s", version);
        return true;
    }
    if (reply->error->kind == ERROR_CONFLICT)
        w->c->def.metrics->status_conflicts++;
    /* It may have been stored, or another has written, or the job is gone and the watch has not told: see what is there. */
    w->state->must_read = true;
    if (reply->error->kind != ERROR_NOT_FOUND)
        work_fail(w, "write the status", reply);
    work_end(w);
    return false;
}

static void on_stored(void *ctx, struct kube_reply *reply)
{
    struct work *w = ctx;

    if (!stored(w, reply))
        return;
    w->c->def.metrics->status_writes++;
    outcomes_note(w->c->def.outcomes, w->key.ns, w->job->created_ms, w->status, &w->plan.status);
    *w->status = w->plan.status;
    tell_events(w);
    if (w->plan.record_first)
        work_step(w);
    else
        execute_begin(w);
}

void status_store(struct work *w)
{
    if (!send(w, status_encode(w->job, &w->plan.status), on_stored))
        work_end(w);
}

/* ---- jobs that cannot be read ------------------------------------------------------------------------------------------ */

static cJSON *condition(const char *type, const char *reason, const char *message, int64_t generation)
{
    cJSON *o = json_object();
    char now[CLOCK_TEXT_MAX];

    clock_format(clock_wall_ms(), now);
    json_put_text(o, "type", type);
    json_put_text(o, "status", "True");
    json_put_text(o, "reason", reason);
    json_put_text(o, "message", message);
    json_put_text(o, "lastTransitionTime", now);
    json_put_int(o, "observedGeneration", generation);
    return o;
}

static void on_invalid_stored(void *ctx, struct kube_reply *reply)
{
    struct work *w = ctx;

    if (!stored(w, reply))
        return;
    w->c->def.metrics->status_writes++;
    outcomes_note_invalid(w->c->def.outcomes, w->key.ns);
    post(w, true, "InvalidSpec", w->said);
    work_end(w);
}

/* A job that never started fails; one that runs keeps its pods, and is told that its change is not followed. */
void status_store_invalid(struct work *w, const char *why)
{
    const cJSON *before = cJSON_GetObjectItemCaseSensitive(w->object, "status");
    const cJSON *degraded = kube_condition(w->object, "Degraded");
    bool started = kube_condition(w->object, "Created") != NULL;
    int64_t generation = json_int(w->object, "metadata.generation", 0);
    const char *managed_by = json_text(w->object, "spec.managedBy", json_text(w->object, "spec.runPolicy.managedBy", ""));
    auto_free char *message = xasprintf("%s%s", why, started ? "; the job goes on as it was, mend the manifest" : "");
    const char *type = started ? "Degraded" : "Failed";

    bool is_said = degraded != NULL && strcmp(json_text(degraded, "message", ""), message) == 0 && strcmp(json_text(degraded, "status", ""), "True") == 0;
    bool is_ours = managed_by[0] == '\0' || strcmp(managed_by, JOB_MANAGED_BY) == 0;
    if (!is_ours || is_said || kube_deleting(w->object) || kube_condition(w->object, "Failed") != NULL) {
        work_end(w);
        return;
    }
    log_warn("the manifest of a job passed the schema and cannot be run", KV("namespace", w->key.ns), KV("job", w->key.name), KV("why", why));
    cJSON *status = before != NULL ? cJSON_Duplicate(before, true) : json_object(), *conditions = json_array();
    const cJSON *item;
    cJSON_ArrayForEach(item, json_at(before, "conditions")) {
        if (strcmp(json_text(item, "type", ""), type) != 0)
            json_append(conditions, cJSON_Duplicate(item, true));
    }
    json_append(conditions, condition(type, "InvalidSpec", message, generation));
    cJSON_DeleteItemFromObjectCaseSensitive(status, "conditions");
    json_put(status, "conditions", conditions);
    if (!started) {
        char now[CLOCK_TEXT_MAX];
        clock_format(clock_wall_ms(), now);
        cJSON_DeleteItemFromObjectCaseSensitive(status, "phase");
        json_put_text(status, "phase", phase_name(PHASE_FAILED));
        json_put_text(status, "completionTime", now);
    }
    w->said = TAKE(message);
    if (!send(w, status, on_invalid_stored))
        work_end(w);
}
