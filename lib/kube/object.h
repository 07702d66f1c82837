/*
 * object.h — what every Kubernetes object has: a resource it belongs to, a key, metadata. Pure.
 *
 * Objects are cJSON trees as the API server sent them. Lookups borrow from the tree and give "" or NULL for what is absent
 * or of another type: an object from the network is never trusted to have a shape. A resourceVersion is opaque text; which of two
 * is the newer one only kube_version_order says.
 */
#ifndef KUBE_OBJECT_H
#define KUBE_OBJECT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/json.h"

#define KUBE_NS_MAX 64    /* a DNS label and its NUL */
#define KUBE_NAME_MAX 254 /* a DNS subdomain and its NUL */
#define KUBE_UID_MAX 64   /* a UUID has 36; longer ones are cut off by nobody, they are refused */
#define KUBE_VERSION_MAX 64

/* A row of a program's table of resources: static. */
struct kube_resource {
    const char *group;   /* "" = core */
    const char *version; /* "v1" */
    const char *plural;  /* "pods" */
    const char *kind;    /* "Pod" */
    bool cluster_scoped;
};

struct kube_key { char ns[KUBE_NS_MAX]; char name[KUBE_NAME_MAX]; }; /* ns "" = cluster-scoped */

/* False, and an empty key, when a part does not fit or the name is empty. NULL ns is "". */
bool kube_key_set(struct kube_key *key, const char *ns, const char *name);
bool kube_key_equal(const struct kube_key *a, const struct kube_key *b);
bool kube_object_key(const cJSON *object, struct kube_key *ret_key); /* false when it has no usable metadata */

const char *kube_name(const cJSON *object);             /* metadata.name, "" when absent; so the next ones */
const char *kube_namespace(const cJSON *object);
const char *kube_uid(const cJSON *object);
const char *kube_version(const cJSON *object);          /* metadata.resourceVersion */
/* *ret_order below, equal to or above 0 when `a` is older than, the same as or newer than `b`: versions of one resource are decimal
 * numbers that grow (Kubernetes promises it since 1.35, etcd gave no others before). False: nothing can be said. */
bool kube_version_order(const char *a, const char *b, int *ret_order);
bool kube_deleting(const cJSON *object);                /* has a deletionTimestamp */
const char *kube_label(const cJSON *object, const char *name);      /* NULL when absent; so the next one */
const char *kube_annotation(const cJSON *object, const char *name);
const cJSON *kube_controller(const cJSON *object);      /* the ownerReference with controller true, or NULL */
const char *kube_controller_uid(const cJSON *object);   /* "" when it has none */
bool kube_has_finalizer(const cJSON *object, const char *name);
const cJSON *kube_condition(const cJSON *object, const char *type); /* of status.conditions; NULL when absent */

/* apiVersion of a resource, "apps/v1" or "v1". */
#define KUBE_API_VERSION_MAX 128
void kube_api_version(const struct kube_resource *resource, char ret_text[KUBE_API_VERSION_MAX]);

/* A new ownerReference with controller and blockOwnerDeletion set; owned by the caller. */
cJSON *kube_owner_reference(const struct kube_resource *resource, const char *name, const char *uid);

/* JSON Patch (RFC 6902): an operation appended to the array `patch`. `value` is taken; NULL for "remove". */
void kube_patch_add(cJSON *patch, const char *op, const char *path, cJSON *value);
/* A patch that adds or removes one finalizer and leaves the others alone, however the list changed since `object` was read: it
 * fails with ERROR_INVALID (a `test` that does not hold) when the list is no longer what the object shows. NULL when there is
 * nothing to do. Owned by the caller. */
cJSON *kube_finalizer_patch(const cJSON *object, const char *name, bool present);

#endif
