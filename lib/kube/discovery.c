#include "kube/discovery.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

#define PERIOD_MS (5 * 60 * 1000)
#define AGAIN_MS 5000

/* A group version; several resources may be of one. */
struct group { const char *group, *version; };

struct kube_discovery {
    struct loop *loop;
    struct kube_client *client;
    struct kube_discovery_def def;
    bool known[KUBE_DISCOVERY_MAX], served[KUBE_DISCOVERY_MAX];
    struct group groups[KUBE_DISCOVERY_MAX];
    size_t group_count, asked;    /* one group version after the other */
    struct kube_call *call;
    struct loop_timer *timer;
    bool changed, failed;
};

bool kube_resource_list_has(const cJSON *list, const char *plural)
{
    const cJSON *resource;

    cJSON_ArrayForEach(resource, json_at(list, "resources"))
        if (strcmp(json_text(resource, "name", ""), plural) == 0)
            return true;
    return false;
}

static void ask_next(struct kube_discovery *d);

static void answered(struct kube_discovery *d, const cJSON *list /* NULL: the group version is not there */)
{
    const struct group *g = &d->groups[d->asked];

    for (size_t i = 0; i < d->def.count; i++) {
        const struct kube_resource *r = d->def.resources[i];
        if (strcmp(r->group, g->group) != 0 || strcmp(r->version, g->version) != 0)
            continue;
        bool served = list != NULL && kube_resource_list_has(list, r->plural);
        d->changed = d->changed || !d->known[i] || served != d->served[i];
        d->known[i] = true;
        d->served[i] = served;
    }
}

static void on_reply(void *ctx, struct kube_reply *reply)
{
    struct kube_discovery *d = ctx;

    d->call = NULL;
    if (reply->error == NULL)
        answered(d, reply->object);
    else if (reply->error->kind == ERROR_NOT_FOUND)
        answered(d, NULL);
    else {
        d->failed = true;
        if (reply->http_status == 401)
            kube_client_reread(d->client);
        if (d->def.trouble != NULL)
            d->def.trouble(d->def.ctx, reply->error);
    }
    d->asked++;
    ask_next(d);
}

static void end_round(struct kube_discovery *d)
{
    bool tell = d->changed && kube_discovery_known(d);

    loop_timer_at(d->timer, clock_mono_ms() + (d->failed ? AGAIN_MS : d->def.period_ms));
    if (!tell)
        return;
    d->changed = false;
    if (d->def.changed != NULL)
        d->def.changed(d->def.ctx);
}

static void ask_next(struct kube_discovery *d)
{
    char path[512];
    struct error e;

    if (d->asked >= d->group_count) {
        end_round(d);
        return;
    }
    const struct group *g = &d->groups[d->asked];
    snprintf(path, sizeof path, "%s%s%s/%s", g->group[0] != '\0' ? "/apis" : "/api", g->group[0] != '\0' ? "/" : "", g->group, g->version);
    struct kube_request r = { .verb = KUBE_GET, .path = path };
    if (kube_client_send(d->client, &r, on_reply, d, &d->call, &e) < 0) { /* not with a path that is made here */
        d->failed = true;
        end_round(d);
    }
}

static void on_timer(void *ctx)
{
    struct kube_discovery *d = ctx;

    d->asked = 0;
    d->failed = false;
    ask_next(d);
}

int kube_discovery_new(struct loop *l, struct kube_client *client, const struct kube_discovery_def *def, struct kube_discovery **ret,
                       struct error *e)
{
    if (def->count > KUBE_DISCOVERY_MAX)
        return error_set(e, ERROR_LIMIT, "discovery of %zu resources; at most %d", def->count, KUBE_DISCOVERY_MAX);
    struct kube_discovery *d = xcalloc(1, sizeof *d);
    *d = (struct kube_discovery){ .loop = l, .client = client, .def = *def };
    if (d->def.period_ms <= 0)
        d->def.period_ms = PERIOD_MS;
    for (size_t i = 0; i < def->count; i++) {
        size_t g = 0;
        while (g < d->group_count && (strcmp(d->groups[g].group, def->resources[i]->group) != 0 ||
                                      strcmp(d->groups[g].version, def->resources[i]->version) != 0))
            g++;
        if (g == d->group_count)
            d->groups[d->group_count++] = (struct group){ def->resources[i]->group, def->resources[i]->version };
    }
    d->timer = loop_timer_new(l, on_timer, d);
    loop_timer_at(d->timer, clock_mono_ms());
    *ret = d;
    return 0;
}

bool kube_discovery_known(const struct kube_discovery *d)
{
    for (size_t i = 0; i < d->def.count; i++)
        if (!d->known[i])
            return false;
    return true;
}

bool kube_discovery_served(const struct kube_discovery *d, const struct kube_resource *resource)
{
    for (size_t i = 0; i < d->def.count; i++)
        if (d->def.resources[i] == resource)
            return d->served[i];
    return false;
}

void kube_discovery_free(struct kube_discovery *d)
{
    if (d == NULL)
        return;
    kube_client_cancel(d->client, d->call);
    loop_timer_free(d->timer);
    free(d);
}
