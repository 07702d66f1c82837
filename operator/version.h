/*
 * version.h — what the cluster can do, by the version of its API server. Asked for once, before this process may lead.
 */
#ifndef OPERATOR_VERSION_H
#define OPERATOR_VERSION_H

#include "base/loop.h"
#include "kube/client.h"

struct version_query;

typedef void version_fn(void *ctx, bool has_native_sidecars);

/* Asks until it is answered, then calls fn once. */
struct version_query *version_ask(struct loop *l, struct kube_client *client, version_fn *fn, void *ctx);
void version_free(struct version_query *q); /* NULL is fine; before its client */

/* Pure: /version of a cluster whose kubelets keep init containers with restartPolicy Always beside the others (1.29). One that cannot
 * be read counts as new. */
bool version_has_native_sidecars(const cJSON *version);

#endif
