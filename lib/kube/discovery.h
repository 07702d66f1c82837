/*
 * discovery.h — which resources the API server has: Kueue, Volcano and coscheduling may be there or not, today or tomorrow.
 */
#ifndef KUBE_DISCOVERY_H
#define KUBE_DISCOVERY_H

#include "kube/client.h"

struct kube_discovery;

/* Looks for group versions ("scheduling.volcano.sh", "v1beta1") of the resources given, at once and every period_ms; `changed` is
 * called after the first look and when the answer changed. A look that failed changes nothing and is repeated in a few seconds.
 * `resources` is kept. */
struct kube_discovery_def {
    const struct kube_resource *const *resources;
    size_t count;                 /* at most KUBE_DISCOVERY_MAX */
    int64_t period_ms;            /* 0 = 5 min */
    void (*changed)(void *ctx);
    void (*trouble)(void *ctx, const struct error *why); /* may be NULL */
    void *ctx;
};
#define KUBE_DISCOVERY_MAX 32

MUST_CHECK int kube_discovery_new(struct loop *l, struct kube_client *client, const struct kube_discovery_def *def,
                                  struct kube_discovery **ret, struct error *e);
bool kube_discovery_known(const struct kube_discovery *d); /* every resource was looked for at least once */
bool kube_discovery_served(const struct kube_discovery *d, const struct kube_resource *resource);
void kube_discovery_free(struct kube_discovery *d); /* NULL is fine; before its client */

/* Pure: whether an APIResourceList has the resource (and not as a subresource). */
bool kube_resource_list_has(const cJSON *list, const char *plural);

#endif
