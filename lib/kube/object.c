#include "kube/object.h"

#include <stdio.h>
#include <string.h>

bool kube_key_set(struct kube_key *key, const char *ns, const char *name)
{
    size_t ns_len = ns != NULL ? strlen(ns) : 0, name_len = name != NULL ? strlen(name) : 0;

    *key = (struct kube_key){ .ns = "", .name = "" };
    if (ns_len >= sizeof key->ns || name_len == 0 || name_len >= sizeof key->name)
        return false;
    if (ns_len > 0)
        memcpy(key->ns, ns, ns_len);
    memcpy(key->name, name, name_len);
    return true;
}

bool kube_key_equal(const struct kube_key *a, const struct kube_key *b)
{
    return strcmp(a->name, b->name) == 0 && strcmp(a->ns, b->ns) == 0;
}

bool kube_object_key(const cJSON *object, struct kube_key *ret_key)
{
    return kube_key_set(ret_key, kube_namespace(object), kube_name(object));
}

const char *kube_name(const cJSON *object)
{
    return json_text(object, "metadata.name", "");
}

const char *kube_namespace(const cJSON *object)
{
    return json_text(object, "metadata.namespace", "");
}

const char *kube_uid(const cJSON *object)
{
    return json_text(object, "metadata.uid", "");
}

const char *kube_version(const cJSON *object)
{
    return json_text(object, "metadata.resourceVersion", "");
}

static bool is_number(const char *version)
{
    return version[0] >= '1' && version[0] <= '9' && version[strspn(version, "0123456789")] == '\0';
}

bool kube_version_order(const char *a, const char *b, int *ret_order)
{
    size_t a_len = strlen(a), b_len = strlen(b);

    if (!is_number(a) || !is_number(b))
        return false;
    *ret_order = a_len != b_len ? (a_len > b_len) - (a_len < b_len) : strcmp(a, b);
    return true;
}

bool kube_deleting(const cJSON *object)
{
    return json_text(object, "metadata.deletionTimestamp", NULL) != NULL;
}

/* Not by path: names of labels have dots. */
static const char *map_text(const cJSON *object, const char *map, const char *name)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(json_at(object, map), name);

    return cJSON_IsString(value) ? value->valuestring : NULL;
}

const char *kube_label(const cJSON *object, const char *name)
{
    return map_text(object, "metadata.labels", name);
}

const char *kube_annotation(const cJSON *object, const char *name)
{
    return map_text(object, "metadata.annotations", name);
}

const cJSON *kube_controller(const cJSON *object)
{
    const cJSON *owner;

    cJSON_ArrayForEach(owner, json_at(object, "metadata.ownerReferences"))
        if (json_bool(owner, "controller", false))
            return owner;
    return NULL;
}

const char *kube_controller_uid(const cJSON *object)
{
    const cJSON *owner = kube_controller(object);

    return owner != NULL ? json_text(owner, "uid", "") : "";
}

bool kube_has_finalizer(const cJSON *object, const char *name)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, json_at(object, "metadata.finalizers"))
        if (cJSON_IsString(item) && strcmp(item->valuestring, name) == 0)
            return true;
    return false;
}

const cJSON *kube_condition(const cJSON *object, const char *type)
{
    const cJSON *condition;

    cJSON_ArrayForEach(condition, json_at(object, "status.conditions"))
        if (strcmp(json_text(condition, "type", ""), type) == 0)
            return condition;
    return NULL;
}

void kube_api_version(const struct kube_resource *resource, char ret_text[KUBE_API_VERSION_MAX])
{
    snprintf(ret_text, KUBE_API_VERSION_MAX, "%s%s%s", resource->group, resource->group[0] != '\0' ? "/" : "", resource->version);
}

cJSON *kube_owner_reference(const struct kube_resource *resource, const char *name, const char *uid)
{
    char api_version[KUBE_API_VERSION_MAX];
    cJSON *reference = json_object();

    kube_api_version(resource, api_version);
    json_put_text(reference, "apiVersion", api_version);
    json_put_text(reference, "kind", resource->kind);
    json_put_text(reference, "name", name);
    json_put_text(reference, "uid", uid);
    json_put_bool(reference, "controller", true);
    json_put_bool(reference, "blockOwnerDeletion", true);
    return reference;
}

void kube_patch_add(cJSON *patch, const char *op, const char *path, cJSON *value)
{
    cJSON *operation = json_object();

    json_put_text(operation, "op", op);
    json_put_text(operation, "path", path);
    if (value != NULL)
        json_put(operation, "value", value);
    json_append(patch, operation);
}

static cJSON *copy_list(const cJSON *list)
{
    cJSON *copy = json_array();
    const cJSON *item;

    cJSON_ArrayForEach(item, list)
        if (cJSON_IsString(item))
            json_append(copy, cJSON_CreateString(item->valuestring));
    return copy;
}

cJSON *kube_finalizer_patch(const cJSON *object, const char *name, bool present)
{
    const cJSON *list = json_at(object, "metadata.finalizers");

    if (kube_has_finalizer(object, name) == present)
        return NULL;
    cJSON *patch = json_array();
    if (cJSON_GetArraySize(list) == 0) {
        /* No list to test. The uid keeps the patch from a later object of the same name, and the version from a list that came
         * meanwhile: "add" would replace it. */
        if (kube_uid(object)[0] != '\0')
            kube_patch_add(patch, "test", "/metadata/uid", cJSON_CreateString(kube_uid(object)));
        if (kube_version(object)[0] != '\0')
            kube_patch_add(patch, "test", "/metadata/resourceVersion", cJSON_CreateString(kube_version(object)));
        cJSON *value = json_array();
        json_append(value, cJSON_CreateString(name));
        kube_patch_add(patch, "add", "/metadata/finalizers", value);
        return patch;
    }
    kube_patch_add(patch, "test", "/metadata/finalizers", copy_list(list));
    if (present) {
        kube_patch_add(patch, "add", "/metadata/finalizers/-", cJSON_CreateString(name));
        return patch;
    }
    cJSON *rest = json_array();
    const cJSON *item;
    cJSON_ArrayForEach(item, list)
        if (cJSON_IsString(item) && strcmp(item->valuestring, name) != 0)
            json_append(rest, cJSON_CreateString(item->valuestring));
    kube_patch_add(patch, "replace", "/metadata/finalizers", rest);
    return patch;
}
