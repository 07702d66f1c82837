#include "operator/resources.h"

#include <stddef.h>

const struct kube_resource RESOURCE_JOB = { .group = "ringmaster.dev", .version = "v1alpha1", .plural = "trainingjobs", .kind = JOB_KIND };
const struct kube_resource RESOURCE_POD = { .group = "", .version = "v1", .plural = "pods", .kind = "Pod" };
const struct kube_resource RESOURCE_SERVICE = { .group = "", .version = "v1", .plural = "services", .kind = "Service" };
const struct kube_resource RESOURCE_SECRET = { .group = "", .version = "v1", .plural = "secrets", .kind = "Secret" };
const struct kube_resource RESOURCE_CLAIM = { .group = "", .version = "v1", .plural = "persistentvolumeclaims", .kind = "PersistentVolumeClaim" };
const struct kube_resource RESOURCE_NETWORK_POLICY = { .group = "networking.k8s.io", .version = "v1", .plural = "networkpolicies",
                                                       .kind = "NetworkPolicy" };

const struct group_resource GROUPS[GROUP_RESOURCES] = {
    { GANG_NATIVE, { .group = "scheduling.k8s.io", .version = "v1beta1", .plural = "podgroups", .kind = "PodGroup" }, "scheduling.k8s.io/v1beta1" },
    { GANG_NATIVE, { .group = "scheduling.k8s.io", .version = "v1alpha2", .plural = "podgroups", .kind = "PodGroup" }, "scheduling.k8s.io/v1alpha2" },
    { GANG_VOLCANO, { .group = "scheduling.volcano.sh", .version = "v1beta1", .plural = "podgroups", .kind = "PodGroup" }, "scheduling.volcano.sh/v1beta1" },
    { GANG_COSCHEDULING, { .group = "scheduling.x-k8s.io", .version = "v1alpha1", .plural = "podgroups", .kind = "PodGroup" }, "scheduling.x-k8s.io/v1alpha1" },
};
const struct kube_resource RESOURCE_NODE = { .group = "", .version = "v1", .plural = "nodes", .kind = "Node", .cluster_scoped = true };
