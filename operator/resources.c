#include "operator/resources.h"

#include <stddef.h>

const struct kube_resource RESOURCE_JOB = { .group = "ringmaster.dev", .version = "v1alpha1", .plural = "trainingjobs", .kind = JOB_KIND };
const struct kube_resource RESOURCE_POD = { .group = "", .version = "v1", .plural = "pods", .kind = "Pod" };
const struct kube_resource RESOURCE_SERVICE = { .group = "", .version = "v1", .plural = "services", .kind = "Service" };
const struct kube_resource RESOURCE_SECRET = { .group = "", .version = "v1", .plural = "secrets", .kind = "Secret" };
const struct kube_resource RESOURCE_NODE = { .group = "", .version = "v1", .plural = "nodes", .kind = "Node", .cluster_scoped = true };
