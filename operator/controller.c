#include "operator/controller.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/crypto.h"
#include "base/log.h"
#include "base/mem.h"
#include "job/control.h"
#include "operator/urgency.h"
#include "operator/series.h"
#include "operator/work.h"

#define SPACING_MS 20           /* between two looks at a job: events come in bursts */
#define OVER_DELAY_MS 1000      /* of a job that is over: nobody waits for it */
#define REPORT_DELAY_MS 1000    /* of a report of nothing but progress: several become one look */
#define CALM_DELAY_MS 100       /* of a change that asks for nothing: a pod was scheduled, a pod runs. The others follow soon, */
#define CALM_DELAY_MAX_MS 5000  /* the later the more jobs wait: what is shown of a job comes after what is done for one */
#define CALM_DELAY_A_JOB_MS 10
#define CALM_DELAY_CROWD_MAX_MS 15000 /* while jobs wait that are due: those may wait for their first pods */
#define CALM_DELAY_A_READY_JOB_MS 50
#define CALM_DELAY_PODS_A_MS 8  /* a look at a job with ten thousand pods is a hundredth of a second */
#define GROUPS_EVERY_MS 60000   /* between two looks for gang schedulers */
#define JOBS_PER_TURN 64        /* of the loop, so that replies are not kept waiting */

/* ---- keys ------------------------------------------------------------------------------------------------------------- */

bool controller_may_write(const struct controller *c)
{
    const struct kube_elector *el = *c->def.elector;

    return c->leading && (el == NULL || kube_elector_held(el));
}

void controller_wake(struct controller *c)
{
    loop_timer_at(c->timer, clock_mono_ms());
}

struct scope *controller_scope(struct controller *c, const char *ns)
{
    for (size_t i = 0; i < c->scope_count; i++) {
        if (c->scopes[i].ns == NULL || strcmp(c->scopes[i].ns, ns) == 0)
            return &c->scopes[i];
    }
    return NULL;
}

void controller_add(struct controller *c, const struct kube_key *key, const char *reason, int64_t delay_ms)
{
    kube_queue_add(c->queue, key, reason, clock_mono_ms() + delay_ms);
    controller_wake(c);
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t calm_delay_ms(const struct scope *scope, const struct job_entry *job)
{
    const struct kube_queue *q = scope->controller->queue;
    int64_t ms = CALM_DELAY_MS + (int64_t)kube_queue_length(q) * CALM_DELAY_A_JOB_MS +
                 (int64_t)kube_cache_count_of(kube_informer_cache(scope->pods), job->uid) / CALM_DELAY_PODS_A_MS;
    int64_t crowd_ms = least((int64_t)kube_queue_ready(q) * CALM_DELAY_A_READY_JOB_MS, CALM_DELAY_CROWD_MAX_MS);

    ms = least(ms, CALM_DELAY_MAX_MS);
    return ms > crowd_ms ? ms : crowd_ms;
}

/* `calm`: nothing is to be done about it, it is only to be shown. */
static void add_owner(struct scope *scope, const char *ns, const char *job_name, bool calm, const char *reason)
{
    struct kube_key key;

    if (!scope->controller->synced || !kube_key_set(&key, ns, job_name))
        return;
    const struct job_entry *job = kube_cache_get(kube_informer_cache(scope->jobs), &key);
    if (job != NULL) /* without one the garbage collector has it */
        controller_add(scope->controller, &key, reason, job->is_over ? OVER_DELAY_MS : calm ? calm_delay_ms(scope, job) : 0);
}

static void on_timer(void *ctx)
{
    struct controller *c = ctx;
    struct kube_key key;
    const char *reason = "";
    size_t most = (size_t)c->def.options->max_jobs;

    if (!c->synced || !c->leading)
        return;
    for (int i = 0; kube_queue_in_work(c->queue) < most && kube_queue_take(c->queue, clock_mono_ms(), &key, &reason); i++) {
        work_begin(c, &key, reason);
        if (i == JOBS_PER_TURN) {
            controller_wake(c);
            return;
        }
    }
    int64_t due_ms = kube_queue_next_due(c->queue);
    if (due_ms != INT64_MAX && kube_queue_in_work(c->queue) < most) /* else the next one that ends wakes us */
        loop_timer_at(c->timer, due_ms);
}

/* ---- changes ---------------------------------------------------------------------------------------------------------- */

static void on_job(void *ctx, const struct kube_key *key, const void *before, const void *after)
{
    struct scope *scope = ctx;
    struct controller *c = scope->controller;
    const struct job_entry *job = after, *former = before;
    struct job_state *s = state_find(c->states, key);

    if (former != NULL)
        c->def.metrics->phases[former->phase]--;
    if (job != NULL)
        c->def.metrics->phases[job->phase]++;
    if (s != NULL && job != NULL && s->fresh_text != NULL && !state_is_newer(s, job->version)) {
        bool echo = strcmp(s->fresh_version, job->version) == 0;
        state_clear_fresh(s);
        if (echo)
            return; /* our own write; what follows from it was done when it was answered */
    }
    if (!c->synced)
        return;
    if (s != NULL && job != NULL && state_is_newer(s, job->version) && !state_is_stale(s, clock_mono_ms()))
        return; /* what we have replaced already */
    if (s != NULL && s->in_work && job != NULL && strcmp(s->uid, job->uid) == 0) {
        /* The watch may be faster than the reply to our own write: at the end of the look it is known whose this is. */
        (void)snprintf(s->seen, sizeof s->seen, "%s", job->version);
        return;
    }
    if (job == NULL && before != NULL)
        state_drop(c->states, key); /* one that is in work is dropped by the next look */
    controller_add(c, key, job == NULL ? "the job is gone" : "the job changed", 0);
}

static bool text_differs(const char *a, const char *b)
{
    return a == NULL || b == NULL ? a != b : strcmp(a, b) != 0;
}

static bool pod_differs(const struct pod_entry *a, const struct pod_entry *b)
{
    return a->gate_index != b->gate_index || strcmp(a->uid, b->uid) != 0 || a->phase != b->phase || a->scheduled != b->scheduled ||
           a->ready != b->ready || a->sidecar_runs != b->sidecar_runs || text_differs(a->last_word, b->last_word) ||
           a->deleting != b->deleting || a->disrupted != b->disrupted || a->has_exit != b->has_exit || a->all_ended != b->all_ended ||
           a->exit_code != b->exit_code || a->attempt != b->attempt || text_differs(a->node, b->node) ||
           text_differs(a->reason, b->reason) || text_differs(a->message, b->message);
}

static void on_pod(void *ctx, const struct kube_key *key, const void *before, const void *after)
{
    struct scope *scope = ctx;
    const struct pod_entry *was = before, *is = after, *any = is != NULL ? is : was;
    struct kube_key job;
    struct job_state *s = kube_key_set(&job, key->ns, any->job) ? state_find(scope->controller->states, &job) : NULL;

    if (s != NULL && is == NULL)
        s->must_read = true; /* perhaps the garbage collector took it, and the watch of jobs has not told yet: make none for a job that is gone */
    if (s != NULL && s->own_count > 0) {
        state_own_forget(s, any->uid, false);
        if (is == NULL || is->deleting)
            state_own_forget(s, any->uid, true);
        if (was != NULL && is != NULL && strcmp(was->uid, is->uid) != 0)
            state_own_forget(s, was->uid, true);
    }
    if (was != NULL && is != NULL && !pod_differs(was, is))
        return;
    add_owner(scope, key->ns, any->job, pod_may_wait(was, is), "a pod changed");
}

/* What was made a moment ago is believed without the cache, until the cache says that it is gone again. */
static void forget_bridge(const struct scope *scope, const char *ns, const char *job, bool is_gone)
{
    struct kube_key key;
    struct job_state *s = is_gone && kube_key_set(&key, ns, job) ? state_find(scope->controller->states, &key) : NULL;

    if (s != NULL)
        s->service_until_ms = s->group_until_ms = 0;
}

static bool group_differs(const struct group_entry *a, const struct group_entry *b)
{
    return a == NULL || b == NULL || strcmp(a->uid, b->uid) != 0 || strcmp(a->phase, b->phase) != 0 || strcmp(a->message, b->message) != 0 ||
           a->min_member != b->min_member;
}

static void on_group(void *ctx, const struct kube_key *key, const void *before, const void *after)
{
    const struct group_entry *was = before, *is = after;

    forget_bridge(ctx, key->ns, is != NULL ? is->job : was->job, is == NULL);
    if (group_differs(was, is))
        add_owner(ctx, key->ns, is != NULL ? is->job : was->job, false, "a PodGroup changed");
}

static void on_service(void *ctx, const struct kube_key *key, const void *before, const void *after)
{
    const struct child_entry *any = after != NULL ? after : before;

    forget_bridge(ctx, key->ns, any->job, after == NULL);
    if (before == NULL || after == NULL)
        add_owner(ctx, key->ns, any->job, after != NULL, "a Service came or went");
}

static void add_jobs_on_node(struct controller *c, const char *node)
{
    for (size_t i = 0; i < c->scope_count; i++) {
        struct kube_cache_at at;
        for (const struct pod_entry *p = kube_cache_first(kube_informer_cache(c->scopes[i].pods), &at); p != NULL; p = kube_cache_next(&at)) {
            if (p->node != NULL && strcmp(p->node, node) == 0)
                add_owner(&c->scopes[i], kube_entry_namespace(p), p->job, false, "a node changed");
        }
    }
}

static void on_node(void *ctx, const struct kube_key *key, const void *before, const void *after)
{
    struct controller *c = ctx;
    const struct node_entry *was = before, *is = after;
    bool was_lost = was == NULL || was->lost, is_lost = is == NULL || is->lost;

    c->node_count += (is != NULL && is->takes_pods) - (was != NULL && was->takes_pods);
    if (was_lost == is_lost || !c->synced)
        return;
    log_info(is_lost ? "node lost" : "node is back", KV("node", key->name));
    add_jobs_on_node(c, key->name);
}

static void on_trouble(void *ctx, const struct error *why, uint32_t failures)
{
    (void)ctx;
    log_warn_from("a list or watch failed, it is taken up again", why, KVI("failures", failures));
}

/* ---- what is there at the start -------------------------------------------------------------------------------------- */

static bool is_synced(const struct kube_informer *i)
{
    return kube_cache_synced(kube_informer_cache(i));
}

static void on_synced(void *ctx)
{
    struct controller *c = ctx;
    bool all = (c->nodes == NULL || is_synced(c->nodes)) && c->discovery != NULL && kube_discovery_known(c->discovery);
    size_t jobs = 0;

    for (size_t i = 0; i < c->scope_count; i++)
        all = all && c->scopes[i].services != NULL && is_synced(c->scopes[i].jobs) && is_synced(c->scopes[i].pods) && is_synced(c->scopes[i].services);
    if (!all || c->synced)
        return;
    c->synced = true;
    for (size_t i = 0; i < c->scope_count; i++) {
        struct kube_cache_at at;
        for (const struct job_entry *j = kube_cache_first(kube_informer_cache(c->scopes[i].jobs), &at); j != NULL; j = kube_cache_next(&at)) {
            struct kube_key key;
            bool rests = j->is_over && j->ttl_at_ms == 0 && kube_cache_count_of(kube_informer_cache(c->scopes[i].pods), j->uid) == 0;
            jobs++;
            if (!rests && kube_key_set(&key, kube_entry_namespace(j), kube_entry_name(j)))
                kube_queue_add(c->queue, &key, "start", clock_mono_ms());
        }
    }
    log_info("caches are in step with the API server", KVI("jobs", jobs), KVI("nodes", c->node_count), KV("leading", c->leading ? "yes" : "no"));
    controller_wake(c);
    if (c->def.synced != NULL)
        c->def.synced(c->def.ctx);
}

/* ---- life ------------------------------------------------------------------------------------------------------------- */

static int start_scope(struct controller *c, struct scope *s, struct error *e)
{
    const struct kube_informer_def jobs = {
        .resource = &RESOURCE_JOB, .ns = s->ns, .drops = JOB_ENTRY_DROPS, .synced = on_synced, .trouble = on_trouble, .ctx = c,
        .cache = { .entry_size = sizeof(struct job_entry), .project = job_entry_project, .release = job_entry_release,
                   .index = job_entry_index, .changed = on_job, .ctx = s } };
    const struct kube_informer_def pods = {
        .resource = &RESOURCE_POD, .ns = s->ns, .label_selector = LABEL_JOB_UID, .drops = POD_ENTRY_DROPS, .synced = on_synced, .trouble = on_trouble, .ctx = c,
        .cache = { .entry_size = sizeof(struct pod_entry), .project = pod_entry_project, .release = pod_entry_release,
                   .changed = on_pod, .ctx = s } };
    const struct kube_informer_def services = {
        .resource = &RESOURCE_SERVICE, .ns = s->ns, .label_selector = LABEL_JOB_UID, .want = KUBE_WANT_METADATA, .synced = on_synced,
        .trouble = on_trouble, .ctx = c,
        .cache = { .entry_size = sizeof(struct child_entry), .project = child_entry_project, .changed = on_service, .ctx = s } };

    if (kube_informer_new(c->loop, c->def.client, &jobs, &s->jobs, e) < 0 ||
        kube_informer_new(c->loop, c->def.client, &pods, &s->pods, e) < 0)
        return -1;
    return kube_informer_new(c->loop, c->def.client, &services, &s->services, e);
}

/* ---- gang schedulers: there or not, today or tomorrow ------------------------------------------------------------------- */

const struct group_resource *controller_group(const struct controller *c, enum gang_kind kind)
{
    for (size_t i = 0; i < GROUP_RESOURCES; i++) {
        if (GROUPS[i].kind == kind && c->discovery != NULL && kube_discovery_served(c->discovery, &GROUPS[i].resource))
            return &GROUPS[i];
    }
    return NULL;
}

static void watch_groups(struct scope *s, size_t which)
{
    const struct kube_informer_def def = {
        .resource = &GROUPS[which].resource, .ns = s->ns, .label_selector = LABEL_JOB_UID, .trouble = on_trouble, .ctx = s->controller,
        .cache = { .entry_size = sizeof(struct group_entry), .project = group_entry_project, .index = job_entry_index, .changed = on_group,
                   .ctx = s } };
    struct error e = ERROR_INIT;

    if (kube_informer_new(s->controller->loop, s->controller->def.client, &def, &s->groups[which], &e) < 0)
        log_error_from("PodGroups are not watched", &e, KV("group", GROUPS[which].resource.group));
}

static void on_discovered(void *ctx)
{
    struct controller *c = ctx;

    memset(&c->gang, 0, sizeof c->gang);
    c->gang.looked = true;
    for (size_t i = 0; i < GROUP_RESOURCES; i++) {
        bool served = controller_group(c, GROUPS[i].kind) == &GROUPS[i];
        c->gang.served[GROUPS[i].kind] |= served;
        if (served)
            log_info("gang scheduler found", KV("kind", gang_name(GROUPS[i].kind)), KV("version", GROUPS[i].api_version));
        for (size_t k = 0; k < c->scope_count; k++) {
            if (served && c->scopes[k].groups[i] == NULL)
                watch_groups(&c->scopes[k], i);
            if (!served && c->scopes[k].groups[i] != NULL) {
                kube_informer_free(c->scopes[k].groups[i]);
                c->scopes[k].groups[i] = NULL;
            }
        }
    }
    on_synced(c);
}

static void on_discovery_trouble(void *ctx, const struct error *why)
{
    (void)ctx;
    log_warn_from("what the API server has could not be asked, it is asked again", why);
}

static int start_discovery(struct controller *c, struct error *e)
{
    static const struct kube_resource *resources[GROUP_RESOURCES];

    for (size_t i = 0; i < GROUP_RESOURCES; i++)
        resources[i] = &GROUPS[i].resource;
    struct kube_discovery_def def = { .resources = resources, .count = GROUP_RESOURCES, .period_ms = GROUPS_EVERY_MS, .changed = on_discovered,
                                      .trouble = on_discovery_trouble, .ctx = c };
    return kube_discovery_new(c->loop, c->def.client, &def, &c->discovery, e);
}

static int start_informers(struct controller *c, struct error *e)
{
    const struct kube_informer_def nodes = {
        .resource = &RESOURCE_NODE, .synced = on_synced, .trouble = on_trouble, .ctx = c,
        .cache = { .entry_size = sizeof(struct node_entry), .project = node_entry_project, .index = job_entry_index, .changed = on_node, .ctx = c } };

    for (size_t i = 0; i < c->scope_count; i++) {
        if (start_scope(c, &c->scopes[i], e) < 0)
            return -1;
    }
    if (c->def.options->watch_nodes && kube_informer_new(c->loop, c->def.client, &nodes, &c->nodes, e) < 0)
        return -1;
    return start_discovery(c, e);
}

int controller_new(struct loop *l, const struct controller_def *def, struct controller **ret, struct error *e)
{
    const struct options *o = def->options;
    struct controller *c = xcalloc(1, sizeof *c);
    uint64_t seed = 0;

    *c = (struct controller){ .loop = l, .def = *def };
    if (crypto_random(&seed, sizeof seed, e) < 0) {
        free(c);
        return -1;
    }
    c->states = state_table_new();
    c->queue = kube_queue_new(&(struct kube_queue_options){ .spacing_ms = SPACING_MS, .retry_max_ms = 60000, .seed = seed });
    c->timer = loop_timer_new(l, on_timer, c);
    c->recorder = kube_recorder_new(def->client, FIELD_MANAGER, def->instance, seed);
    c->scope_count = o->namespace_count > 0 ? o->namespace_count : 1;
    c->scopes = xcalloc(c->scope_count, sizeof *c->scopes);
    for (size_t i = 0; i < c->scope_count; i++)
        c->scopes[i] = (struct scope){ .controller = c, .ns = o->namespace_count > 0 ? o->namespace_list[i] : NULL };
    if (start_informers(c, e) < 0) {
        controller_free(c);
        return -1;
    }
    *ret = c;
    return 0;
}

void controller_free(struct controller *c)
{
    if (c == NULL)
        return;
    c->synced = false;
    for (size_t i = 0; i < c->scope_count; i++) {
        kube_informer_free(c->scopes[i].jobs);
        kube_informer_free(c->scopes[i].pods);
        kube_informer_free(c->scopes[i].services);
        for (size_t k = 0; k < GROUP_RESOURCES; k++)
            kube_informer_free(c->scopes[i].groups[k]);
    }
    kube_discovery_free(c->discovery);
    kube_informer_free(c->nodes);
    kube_recorder_free(c->recorder);
    while (c->works != NULL)
        work_free(c->works);
    work_free_spares(c);
    loop_timer_free(c->timer);
    kube_queue_free(c->queue);
    state_table_free(c->states);
    free(c->scopes);
    free(c);
}

void controller_lead(struct controller *c)
{
    c->leading = true;
    c->leading_from_ms = clock_wall_ms();
    controller_wake(c);
}

void controller_rest(struct controller *c)
{
    loop_timer_cancel(c->timer);
    c->synced = false; /* nothing comes into the queue or out of it any more */
}

bool controller_idle(const struct controller *c)
{
    return c->works == NULL;
}

bool controller_synced(const struct controller *c)
{
    return c->synced;
}

void controller_measure(const struct controller *c, struct metrics *m)
{
    m->pods = m->services = m->cache_bytes = 0;
    for (size_t i = 0; i < c->scope_count; i++) {
        const struct scope *s = &c->scopes[i];
        const struct kube_cache *caches[] = { kube_informer_cache(s->jobs), kube_informer_cache(s->pods), kube_informer_cache(s->services) };
        m->pods += kube_cache_count(caches[1]);
        m->services += kube_cache_count(caches[2]);
        for (size_t k = 0; k < COUNT(caches); k++)
            m->cache_bytes += kube_cache_bytes(caches[k]);
    }
    m->nodes = c->node_count > 0 ? (size_t)c->node_count : 0;
    m->queue_length = kube_queue_length(c->queue);
    m->states = state_count(c->states);
    m->jobs_in_work = kube_queue_in_work(c->queue);
    m->leading = controller_may_write(c);
    m->synced = c->synced;
    kube_client_stats(c->def.client, &m->client);
}

static void collect(void *ctx, const struct job_state *s)
{
    struct series *all = ctx;

    if (s->report != NULL)
        series_add(all, s->key.ns, s->key.name, s->report);
}

void controller_describe_jobs(const struct controller *c, struct buf *out)
{
    struct series all = SERIES_INIT;

    state_each(c->states, collect, &all);
    series_format(&all, out);
    series_release(&all);
}

/* ---- coordinators ----------------------------------------------------------------------------------------------------- */

static struct job_state *state_of(struct controller *c, const char *ns, const char *name)
{
    struct kube_key key;
    struct scope *scope = controller_scope(c, ns);
    const struct job_entry *job = NULL;

    if (scope != NULL && c->synced && kube_key_set(&key, ns, name))
        job = kube_cache_get(kube_informer_cache(scope->jobs), &key);
    return job != NULL && !job->is_over ? state_get(c->states, &key, job->uid) : NULL;
}

enum caller controller_check_caller(struct controller *c, const char *ns, const char *name, const char *token)
{
    struct job_state *s = state_of(c, ns, name);
    char right[CONTROL_TOKEN_MAX];

    if (!c->synced)
        return CALLER_LATER;
    if (s == NULL)
        return CALLER_WRONG;
    if (!s->key_known) {
        secret_fetch(c, s);
        return CALLER_LATER;
    }
    control_token(s->job_key, s->uid, right);
    bool same = strlen(token) == strlen(right) && crypto_equal(token, right, strlen(right));
    crypto_wipe(right, sizeof right);
    if (!same)
        return CALLER_WRONG;
    return controller_may_write(c) ? CALLER_RIGHT : CALLER_LATER; /* behind the Service is another one, who leads */
}

/* Something that is to be acted on, and not only shown. */
static bool report_is_weighty(const struct coordinator_report *before, const struct coordinator_report *now)
{
    return before == NULL || before->attempt != now->attempt || before->round != now->round || before->formed != now->formed ||
           before->gave_up != now->gave_up || before->over != now->over || before->round_count != now->round_count ||
           before->checkpoint_step != now->checkpoint_step;
}

bool controller_take_report(struct controller *c, const char *ns, const char *name, struct coordinator_report *report)
{
    struct job_state *s = state_of(c, ns, name);

    if (s == NULL || strcmp(s->uid, report->job_uid) != 0) {
        report_release(report);
        free(report);
        return false;
    }
    bool weighty = report_is_weighty(s->report, report);
    state_take_report(s, report);
    controller_add(c, &s->key, "its coordinator reported", weighty ? 0 : REPORT_DELAY_MS);
    return true;
}

void controller_greet(struct controller *c, const struct kube_key *job)
{
    struct job_state *s = state_find(c->states, job);

    if (s == NULL)
        return;
    s->asked_ms = 0;
    controller_add(c, job, "its coordinator is connected", 0);
}

void controller_set_say(struct controller *c, controller_say_fn *say, void *ctx)
{
    c->say = say;
    c->say_ctx = ctx;
}

void controller_authority_changed(struct controller *c)
{
    c->authority_generation++;
    if (!c->synced)
        return; /* every job is looked at then */
    for (size_t i = 0; i < c->scope_count; i++) {
        struct kube_cache_at at;
        for (const struct job_entry *j = kube_cache_first(kube_informer_cache(c->scopes[i].jobs), &at); j != NULL; j = kube_cache_next(&at)) {
            struct kube_key key;
            if (!j->is_over && kube_key_set(&key, kube_entry_namespace(j), kube_entry_name(j)))
                kube_queue_add(c->queue, &key, "the operator's authority changed", clock_mono_ms());
        }
    }
    controller_wake(c);
}
