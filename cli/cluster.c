#include "cli/cluster.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "job/job.h"
#include "kube/informer.h"

#define PAGE 500

const struct kube_resource CLUSTER_JOBS = { .group = "ringmaster.dev", .version = "v1alpha1", .plural = "trainingjobs", .kind = JOB_KIND };
const struct kube_resource CLUSTER_PODS = { .group = "", .version = "v1", .plural = "pods", .kind = "Pod" };
const struct kube_resource CLUSTER_EVENTS = { .group = "", .version = "v1", .plural = "events", .kind = "Event" };

bool cluster_is_named(const struct cluster_options *o)
{
    return o->context || o->kubeconfig || o->ns;
}

/* ---- opening ----------------------------------------------------------------------------------------------------------- */

static char *describe(const struct kube_config_source *source, const struct kube_config *config)
{
    auto_free char *context = *config->context ? xasprintf("context \"%.120s\" of ", config->context) : xstrdup("");
    if (source->kubeconfig)
        return xasprintf("%s (%s%s)", config->server, context, source->kubeconfig);
    if (source->paths && *config->context)
        return xasprintf("%s (%sKUBECONFIG=%.200s)", config->server, context, source->paths);
    return xasprintf("%s (%s%s)", config->server, context, *config->context ? "~/.kube/config" : "this pod's service account");
}

int cluster_open(const struct cluster_options *o, struct cluster *ret, struct error *e)
{
    struct cluster c = CLUSTER_INIT;
    struct kube_config_source source;
    (void)signal(SIGPIPE, SIG_IGN);
    kube_config_source(&source);
    source.kubeconfig = o->kubeconfig;
    source.context = o->context;
    if (kube_config_load(&source, &c.config, e) < 0)
        return -1;
    c.tried = describe(&source, c.config);
    c.ns = xstrdup(o->ns ? o->ns : c.config->ns);
    c.timeout_ms = o->request_timeout_ms;
    if (loop_new(&c.loop, e) < 0 || kube_client_new(c.loop, c.config, NULL, &c.client, e) < 0) {
        cluster_close(&c);
        return -1;
    }
    *ret = c;
    return 0;
}

void cluster_close(struct cluster *c)
{
    kube_client_free(c->client);
    if (c->loop)
        loop_free(c->loop);
    kube_config_free(c->config);
    free(c->ns);
    free(c->tried);
    *c = (struct cluster)CLUSTER_INIT;
}

/* No answer at all is another thing than an answer that says no. */
static int explain(const struct cluster *c, const struct kube_reply *reply, struct error *e)
{
    const struct error *why = reply->error;
    const char *server = strstr(why->text, c->config->server), *cause = server ? server + strlen(c->config->server) : why->text;
    cause += strspn(cause, ": ");
    if (reply->http_status == 0 && (why->kind == ERROR_IO || why->kind == ERROR_TIMEOUT))
        return error_set(e, why->kind, "no cluster answers: tried %.300s; check that it runs and that it is the one you mean (--context, "
                         "--kubeconfig): %.200s", c->tried, cause);
    if (why->kind == ERROR_NOT_FOUND && strstr(why->text, "could not find the requested resource"))
        return error_set(e, ERROR_NOT_FOUND, "the cluster %.300s does not know TrainingJobs: install Ringmaster there (docs/install.md)", c->tried);
    *e = *why;
    return -1;
}

/* ---- one request ------------------------------------------------------------------------------------------------------- */

struct waiting { struct cluster *cluster; cJSON *object; struct error e; int code; bool done; };

static void on_reply(void *ctx, struct kube_reply *reply)
{
    struct waiting *w = ctx;
    w->done = true;
    w->code = reply->error ? explain(w->cluster, reply, &w->e) : 0;
    if (!reply->error)
        w->object = TAKE(reply->object);
    loop_stop(w->cluster->loop);
}

int cluster_call(struct cluster *c, struct kube_request *r, cJSON **ret_object, struct error *e)
{
    struct waiting w = { .cluster = c, .e = ERROR_INIT };
    r->deadline_ms = c->timeout_ms;
    if (kube_client_send(c->client, r, on_reply, &w, NULL, e) < 0)
        return -1;
    while (!w.done)
        if (loop_run(c->loop, e) < 0)
            return -1;
    if (w.code < 0) {
        *e = w.e;
        return -1;
    }
    if (ret_object)
        *ret_object = w.object;
    else
        cJSON_Delete(w.object);
    return 0;
}

int cluster_list(struct cluster *c, const struct kube_resource *resource, const char *ns, const char *label_selector,
                 const char *field_selector, cJSON **ret_list, struct error *e)
{
    auto_json cJSON *all = json_array();
    auto_free char *token = NULL;
    do {
        auto_json cJSON *page = NULL;
        struct kube_request r = { .verb = KUBE_LIST, .resource = resource, .ns = ns, .label_selector = label_selector,
                                  .field_selector = field_selector, .continue_token = token, .limit = PAGE };
        if (cluster_call(c, &r, &page, e) < 0)
            return -1;
        cJSON *items = cJSON_GetObjectItemCaseSensitive(page, "items");
        while (cJSON_IsArray(items) && items->child)
            json_append(all, cJSON_DetachItemViaPointer(items, items->child));
        const char *next = json_text(page, "metadata.continue", "");
        free(TAKE(token));
        token = *next ? xstrdup(next) : NULL;
    } while (token);
    *ret_list = TAKE(all);
    return 0;
}

int cluster_job(struct cluster *c, const char *name, cJSON **ret_job, struct error *e)
{
    struct kube_request r = { .verb = KUBE_GET, .resource = &CLUSTER_JOBS, .ns = c->ns, .name = name };
    if (cluster_call(c, &r, ret_job, e) == 0)
        return 0;
    if (e->kind != ERROR_NOT_FOUND || strstr(e->text, "does not know TrainingJobs"))
        return -1;
    return error_set(e, ERROR_NOT_FOUND, "no job \"%.80s\" in namespace %.80s of %.300s; 'ringmaster status -n %.80s' lists those that are there",
                     name, c->ns, c->tried, c->ns);
}

/* ---- following --------------------------------------------------------------------------------------------------------- */

static void on_signal(void *ctx, int number)
{
    struct cluster *c = ctx;
    (void)number;
    c->interrupted = true;
    loop_stop(c->loop);
}

int cluster_run(struct cluster *c, struct error *e)
{
    static const int SIGNALS[] = { SIGINT, SIGTERM, SIGHUP };
    if (!c->signals && loop_signals(c->loop, SIGNALS, COUNT(SIGNALS), on_signal, c, e) < 0)
        return -1;
    c->signals = true;
    return c->interrupted ? 0 : loop_run(c->loop, e);
}

void cluster_stop(struct cluster *c)
{
    loop_stop(c->loop);
}

/* ---- objects ----------------------------------------------------------------------------------------------------------- */

struct object_entry { cJSON *tree; };

struct objects {
    struct cluster *cluster;
    struct objects_def def;
    struct kube_informer *informer;
    bool told_failure;
};

static bool project(void *ctx, const cJSON *object, void *ret_entry)
{
    struct object_entry *entry = ret_entry;
    (void)ctx;
    entry->tree = cJSON_Duplicate(object, true);
    return true;
}

static void release(void *ctx, void *entry)
{
    (void)ctx;
    cJSON_Delete(((struct object_entry *)entry)->tree);
}

static void back_again(struct cluster *c)
{
    if (c->lost)
        fputs("ringmaster: the cluster answers again\n", stderr);
    c->lost = false;
}

static void on_change(void *ctx, const struct kube_key *key, const void *before, const void *after)
{
    struct objects *o = ctx;
    (void)key;
    (void)before;
    (void)after;
    back_again(o->cluster);
    if (o->informer && objects_known(o))
        o->def.changed(o->def.ctx);
}

static void on_synced(void *ctx)
{
    struct objects *o = ctx;
    o->def.changed(o->def.ctx);
}

static void on_trouble(void *ctx, const struct error *why, uint32_t failures)
{
    struct objects *o = ctx;
    struct error e = ERROR_INIT;
    (void)failures;
    if (objects_known(o)) {
        if (!o->cluster->lost)
            fprintf(stderr, "ringmaster: %s; trying again\n", why->text);
        o->cluster->lost = true;
        return;
    }
    if (o->told_failure)
        return;
    o->told_failure = true;
    struct kube_reply reply = { .error = why, .http_status = why->kind == ERROR_IO || why->kind == ERROR_TIMEOUT ? 0 : 403 };
    (void)explain(o->cluster, &reply, &e);
    o->def.failed(o->def.ctx, &e);
}

int objects_new(struct cluster *c, const struct objects_def *def, struct objects **ret, struct error *e)
{
    struct objects *o = xcalloc(1, sizeof *o);
    *o = (struct objects){ .cluster = c, .def = *def };
    struct kube_informer_def informer = {
        .resource = def->resource, .ns = def->ns, .label_selector = def->label_selector, .field_selector = def->field_selector,
        .cache = { .entry_size = sizeof(struct object_entry), .project = project, .release = release, .changed = on_change, .ctx = o },
        .synced = on_synced, .trouble = on_trouble, .ctx = o,
    };
    if (kube_informer_new(c->loop, c->client, &informer, &o->informer, e) < 0) {
        free(o);
        return -1;
    }
    *ret = o;
    return 0;
}

bool objects_known(const struct objects *o)
{
    return kube_cache_synced(kube_informer_cache(o->informer));
}

static int by_name(const void *a, const void *b)
{
    const cJSON *x = *(const cJSON *const *)a, *y = *(const cJSON *const *)b;
    int by_ns = strcmp(kube_namespace(x), kube_namespace(y));
    return by_ns ? by_ns : strcmp(kube_name(x), kube_name(y));
}

const cJSON **objects_all(const struct objects *o, size_t *ret_count)
{
    const struct kube_cache *cache = kube_informer_cache(o->informer);
    const cJSON **list = xcalloc(kube_cache_count(cache) + 1, sizeof *list);
    struct kube_cache_at at;
    size_t n = 0;
    for (const struct object_entry *entry = kube_cache_first(cache, &at); entry; entry = kube_cache_next(&at))
        list[n++] = entry->tree;
    qsort(list, n, sizeof *list, by_name);
    *ret_count = n;
    return list;
}

void objects_free(struct objects *o)
{
    if (!o)
        return;
    kube_informer_free(o->informer);
    free(o);
}
