#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "job/decode.h"
#include "operator/urgency.h"
#include "operator/work.h"

#define SHOWN_EVERY_MS 3000    /* how far pods have come on their way up is written after so long, or with what comes next; */
#define SHOWN_EVERY_MAX_MS 15000 /* again after twice as long each time; seldom while many jobs wait to be looked at */
#define SHOWN_DOUBLED_MAX 3
#define SHOWN_A_JOB_MS 50
#define SPARES_MAX 8
#define PASSES_MAX 16          /* of reconcile in one look; more is a fault in it */

/* ---- life ------------------------------------------------------------------------------------------------------------- */

static void drop_plan(struct work *w)
{
    if (w->has_plan)
        plan_release(&w->plan);
    w->has_plan = false;
    observe_release(&w->seen);
}

void work_free(struct work *w)
{
    if (w->previous != NULL)
        w->previous->next = w->next;
    else
        w->c->works = w->next;
    if (w->next != NULL)
        w->next->previous = w->previous;
    drop_plan(w);
    cJSON_Delete(w->object);
    cJSON_Delete(w->sent);
    training_job_free(w->job);
    free(w->items);
    free(w->said);
    if (w->c->spare_count == SPARES_MAX) {
        free(w);
        return;
    }
    w->next = w->c->spares;
    w->c->spares = w;
    w->c->spare_count++;
}

void work_free_spares(struct controller *c)
{
    for (struct work *w; (w = c->spares) != NULL;) {
        c->spares = w->next;
        free(w);
    }
}

void work_end(struct work *w)
{
    struct controller *c = w->c;
    struct kube_key key = w->key;
    int64_t now_ms = clock_mono_ms(), wall_ms = clock_wall_ms(), at_ms = w->requeue_at_ms;
    bool retry = w->retry, again = w->again;
    int64_t retry_after_ms = w->retry_after_ms;

    bool changed = w->state->seen[0] != '\0' && strcmp(w->state->seen, w->version) != 0;

    w->state->in_work = false;
    w->state->seen[0] = '\0';
    metrics_observe_pass(c->def.metrics, now_ms - w->begun_ms);
    work_free(w);
    if (retry) {
        kube_queue_retry(c->queue, &key, now_ms, retry_after_ms);
    } else {
        kube_queue_forget(c->queue, &key);
        kube_queue_done(c->queue, &key);
    }
    if (changed)
        kube_queue_add(c->queue, &key, "the job changed", now_ms);
    if (again)
        kube_queue_add(c->queue, &key, "something was learnt", now_ms);
    if (at_ms > 0)
        kube_queue_add(c->queue, &key, "a time has come", now_ms + (at_ms > wall_ms ? at_ms - wall_ms : 0));
    controller_wake(c);
}

void work_fail(struct work *w, const char *what, const struct kube_reply *reply)
{
    enum error_kind kind = reply->error != NULL ? reply->error->kind : ERROR_NONE;

    w->retry = true;
    if (reply->retry_after_ms > w->retry_after_ms)
        w->retry_after_ms = reply->retry_after_ms;
    if (kind == ERROR_CONFLICT || kind == ERROR_GONE)
        log_debug("an answer says that what is known here is old", KV("what", what), KV("namespace", w->key.ns), KV("job", w->key.name));
    else if (reply->error != NULL)
        log_warn_from("request failed, it is made again", reply->error, KV("what", what), KV("namespace", w->key.ns), KV("job", w->key.name));
}

/* ---- reading ---------------------------------------------------------------------------------------------------------- */

static bool read_object(struct work *w)
{
    auto_free struct problems *problems = xcalloc(1, sizeof *problems);
    struct error e = ERROR_INIT;

    (void)snprintf(w->version, sizeof w->version, "%s", kube_version(w->object));
    if (job_decode(w->object, NULL, problems, &w->job, &e) < 0) {
        /* While the cluster's CRD is newer than this program, it fills in defaults of fields that are not known here. */
        memset(problems, 0, sizeof *problems);
        schema_prune(schema_of_kind(JOB_KIND), w->object);
        if (job_decode(w->object, NULL, problems, &w->job, &e) < 0) {
            status_store_invalid(w, e.text);
            return false;
        }
    }
    if (status_decode(cJSON_GetObjectItemCaseSensitive(w->object, "status"), w->status, &e) < 0) {
        /* Acting without it might start again what is over. */
        log_error_from("the status of a job cannot be read; the job is left alone", &e, KV("namespace", w->key.ns), KV("job", w->key.name));
        w->retry = true;
        work_end(w);
        return false;
    }
    return true;
}

static void start(struct work *w)
{
    if (read_object(w))
        work_step(w);
}

static void on_read(void *ctx, struct kube_reply *reply)
{
    struct work *w = ctx;

    if (reply->error != NULL) {
        if (reply->error->kind != ERROR_NOT_FOUND)
            work_fail(w, "read the job", reply);
        work_end(w);
        return;
    }
    if (strcmp(kube_uid(reply->object), w->state->uid) != 0) {
        w->retry = true; /* another job under the name: the cache will tell */
        work_end(w);
        return;
    }
    w->object = TAKE(reply->object);
    w->state->must_read = false;
    /* The next look begins with this, too, and not with what a watch that is behind still shows. */
    const struct job_entry *cached = kube_cache_get(kube_informer_cache(w->scope->jobs), &w->key);
    state_clear_fresh(w->state);
    if (cached != NULL && strcmp(cached->version, kube_version(w->object)) != 0)
        state_set_fresh(w->state, cached->version, kube_version(w->object), job_text(w->object), clock_mono_ms());
    start(w);
}

static void read_from_server(struct work *w)
{
    struct kube_request r = { .verb = KUBE_GET, .resource = &RESOURCE_JOB, .ns = w->key.ns, .name = w->key.name };
    struct error e = ERROR_INIT;

    if (kube_client_send(w->c->def.client, &r, on_read, w, NULL, &e) == 0)
        return;
    log_error_from("job not read", &e, KV("namespace", w->key.ns), KV("job", w->key.name));
    work_end(w);
}

static void read_text(struct work *w, const char *text)
{
    struct error e = ERROR_INIT;

    if (json_parse(text, strlen(text), &w->object, &e) < 0) { /* it was printed by us */
        log_error_from("a job in the cache cannot be read", &e, KV("namespace", w->key.ns), KV("job", w->key.name));
        read_from_server(w);
        return;
    }
    start(w);
}

static struct work *work_new(struct controller *c, struct scope *scope, const struct kube_key *key, const char *uid)
{
    struct work *w = c->spares;

    if (w != NULL) {
        c->spares = w->next;
        c->spare_count--;
        memset(w, 0, sizeof *w);
    } else {
        w = xcalloc(1, sizeof *w);
    }
    w->c = c;
    w->scope = scope;
    w->key = *key;
    w->begun_ms = clock_mono_ms();
    w->status = &w->stored;
    w->next = c->works;
    if (w->next != NULL)
        w->next->previous = w;
    c->works = w;
    w->state = state_get(c->states, key, uid);
    w->state->in_work = true;
    return w;
}

/* What is over and needs nothing now: no request is spent on it. */
static bool may_rest(const struct controller *c, const struct scope *scope, const struct job_entry *job, const struct kube_key *key)
{
    int64_t wall_ms = clock_wall_ms();

    if (!job->is_over || kube_cache_count_of(kube_informer_cache(scope->pods), job->uid) > 0)
        return false;
    if (job->ttl_at_ms > wall_ms)
        kube_queue_add(c->queue, key, "time to live", clock_mono_ms() + job->ttl_at_ms - wall_ms);
    return job->ttl_at_ms == 0 || job->ttl_at_ms > wall_ms;
}

void work_begin(struct controller *c, const struct kube_key *key, const char *reason)
{
    struct scope *scope = controller_scope(c, key->ns);
    const struct job_entry *job = scope != NULL ? kube_cache_get(kube_informer_cache(scope->jobs), key) : NULL;

    if (job == NULL || may_rest(c, scope, job, key)) {
        if (job == NULL)
            state_drop(c->states, key);
        kube_queue_forget(c->queue, key);
        kube_queue_done(c->queue, key);
        return;
    }
    log_debug("looking at a job", KV("namespace", key->ns), KV("job", key->name), KV("because", reason));
    struct work *w = work_new(c, scope, key, job->uid);
    struct job_state *s = w->state;
    const char *text = state_is_newer(s, job->version) ? s->fresh_text : job->text;
    if (text != NULL && !s->must_read && !state_is_stale(s, clock_mono_ms()))
        read_text(w, text);
    else
        read_from_server(w);
}

/* ---- deciding --------------------------------------------------------------------------------------------------------- */

/* Looked for again in each attempt and at each size: somebody may have deleted it. */
static void forget_children(struct job_state *s, const struct training_job *job, int32_t attempt)
{
    if (s->children_attempt == attempt && s->children_generation == job->generation)
        return;
    s->network_policy_known = s->claims_known = s->trimmed = s->pods_checked = false;
    s->pod_refused[0] = '\0';
    s->children_attempt = attempt;
    s->children_generation = job->generation;
}

static const struct kube_cache *groups_of(const struct work *w)
{
    const struct group_resource *g = w->status->gang.set ? controller_group(w->c, w->status->gang.kind) : NULL;

    return g != NULL && w->scope->groups[g - GROUPS] != NULL ? kube_informer_cache(w->scope->groups[g - GROUPS]) : NULL;
}

static bool has_channel(const struct controller *c)
{
    const char *url = c->def.options->control_url;

    return c->say != NULL && url != NULL && url[0] != '\0';
}

static void look(struct work *w)
{
    struct controller *c = w->c;
    int64_t wall_ms = clock_wall_ms(), now_ms = clock_mono_ms();
    struct observe_input in = { .job = w->job, .job_is_over = phase_is_final(w->status->phase),
                                .pods = kube_informer_cache(w->scope->pods), .services = kube_informer_cache(w->scope->services),
                                .nodes = c->nodes != NULL ? kube_informer_cache(c->nodes) : NULL, .node_count = c->node_count,
                                .gang = &c->gang, .groups = groups_of(w), .state = w->state, .now_wall_ms = wall_ms, .now_mono_ms = now_ms,
                                .listens_from_ms = has_channel(c) ? c->leading_from_ms : 0 };

    drop_plan(w);
    if (w->state->secret_attempt != w->status->attempt) {
        w->state->secret_known = false; /* looked for again in each attempt: somebody may have deleted it */
        w->state->secret_attempt = w->status->attempt;
    }
    forget_children(w->state, w->job, w->status->attempt);
    state_own_expire(w->state, now_ms);
    observe_job(&in, &w->seen);
    reconcile(w->job, w->status, &w->seen, wall_ms, &w->plan);
    w->has_plan = true;
    if (w->plan.requeue_at_ms > 0)
        w->requeue_at_ms = w->plan.requeue_at_ms;
}

/* A status write costs the API server as much as three pods: what can wait does. */
static bool holds_back(struct work *w)
{
    int64_t now_ms = clock_mono_ms(), wall_ms = clock_wall_ms();

    if (!status_may_wait(w->status, &w->plan)) {
        w->state->shown = 0;
        return false;
    }
    if (w->state->stored_ms == 0)
        w->state->stored_ms = now_ms;
    int64_t every_ms = ((int64_t)SHOWN_EVERY_MS << w->state->shown) + (int64_t)kube_queue_length(w->c->queue) * SHOWN_A_JOB_MS;
    int64_t left_ms = w->state->stored_ms + (every_ms < SHOWN_EVERY_MAX_MS ? every_ms : SHOWN_EVERY_MAX_MS) - now_ms;
    if (left_ms <= 0) {
        w->state->shown += w->state->shown < SHOWN_DOUBLED_MAX;
        return false;
    }
    if (w->requeue_at_ms == 0 || wall_ms + left_ms < w->requeue_at_ms)
        w->requeue_at_ms = wall_ms + left_ms;
    return true;
}

void work_step(struct work *w)
{
    if (w->passes++ == PASSES_MAX) {
        log_error("reconcile does not come to rest", KV("namespace", w->key.ns), KV("job", w->key.name));
        w->retry = true;
        work_end(w);
        return;
    }
    w->requeue_at_ms = 0;
    look(w);
    if (w->plan.status_changed && !holds_back(w))
        status_store(w);
    else
        execute_begin(w);
}
