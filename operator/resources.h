/*
 * resources.h — the kinds of objects that the operator reads or writes, and the labels by which it finds its own.
 */
#ifndef OPERATOR_RESOURCES_H
#define OPERATOR_RESOURCES_H

#include "job/pod.h"
#include "kube/object.h"

#define LABEL_JOB_NAME POD_LABEL "job-name"
#define LABEL_JOB_UID POD_LABEL "job-uid"
#define LABEL_ROLE POD_LABEL "replica-type"
#define LABEL_INDEX POD_LABEL "replica-index"
#define LABEL_ATTEMPT POD_LABEL "attempt"
#define FIELD_MANAGER "ringmaster-operator"

extern const struct kube_resource RESOURCE_JOB, RESOURCE_POD, RESOURCE_SERVICE, RESOURCE_SECRET, RESOURCE_NODE, RESOURCE_CLAIM,
    RESOURCE_NETWORK_POLICY;

/* The groups of gang schedulers, the newest version of a kind first. */
#define GROUP_RESOURCES 4
struct group_resource { enum gang_kind kind; struct kube_resource resource; const char *api_version; };
extern const struct group_resource GROUPS[GROUP_RESOURCES];

#endif
