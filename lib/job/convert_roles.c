/*
 * The replica specs of a TFJob or PyTorchJob.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "base/text.h"
#include "job/convert_parts.h"
#include "job/job.h"
#include "job/names.h"

/* ---- templates --------------------------------------------------------------------------------------------------- */

static cJSON *containers_of(const cJSON *template)
{
    return cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(template, "spec"), "containers");
}

cJSON *convert_main_container(const struct conversion *c, const cJSON *template)
{
    cJSON *container;

    cJSON_ArrayForEach(container, containers_of(template))
    {
        if (strcmp(json_text(container, "name", ""), c->kind->container) == 0)
            return container;
    }
    return cJSON_GetArrayItem(containers_of(template), 0);
}

static bool has_variable(const cJSON *env, const char *name)
{
    const cJSON *variable;

    cJSON_ArrayForEach(variable, env)
    {
        if (strcmp(json_text(variable, "name", ""), name) == 0)
            return true;
    }
    return false;
}

void convert_put_env(const struct conversion *c, cJSON *roles, const char *name, const char *value)
{
    const cJSON *role;

    cJSON_ArrayForEach(role, roles)
    {
        cJSON *container = convert_main_container(c, json_at(role, "template"));
        if (!cJSON_IsObject(container) || has_variable(json_at(container, "env"), name))
            continue;
        cJSON *env = cJSON_GetObjectItemCaseSensitive(container, "env"), *variable = json_object();
        if (!cJSON_IsArray(env)) {
            cJSON_DeleteItemFromObjectCaseSensitive(container, "env");
            env = json_array();
            json_put(container, "env", env);
        }
        json_put_text(variable, "name", name);
        json_put_text(variable, "value", value);
        json_append(env, variable);
    }
}

static void template_metadata(struct conversion *c, const cJSON *original, cJSON *metadata, const char *path)
{
    static const char *const kept[] = { "annotations", "finalizers", "labels", "name", "namespace", NULL };
    char where[256];

    for (cJSON *item = cJSON_IsObject(metadata) ? metadata->child : NULL, *next; item != NULL; item = next) {
        bool known = false;
        next = item->next;
        for (size_t i = 0; kept[i] != NULL; i++)
            known |= strcmp(kept[i], item->string) == 0;
        if (known)
            continue;
        if (!cJSON_IsNull(item)) {
            (void)snprintf(where, sizeof where, "%s.metadata.%.60s", path, item->string);
            convert_note(c, cJSON_GetObjectItemCaseSensitive(original, item->string), where,
                         "left out: it has no effect in a template");
        }
        cJSON_Delete(cJSON_DetachItemViaPointer(metadata, item));
    }
}

/* What both operators write themselves. */
static void template_overwritten(struct conversion *c, const cJSON *original, cJSON *spec, const char *path)
{
    static const char *const keys[] = { "hostname", "subdomain" };
    char where[256];

    cJSON_DeleteItemFromObjectCaseSensitive(spec, "restartPolicy"); /* the replica spec's counts, there as here */
    for (size_t i = 0; i < COUNT(keys); i++) {
        if (json_at(spec, keys[i]) == NULL)
            continue;
        (void)snprintf(where, sizeof where, "%s.spec.%s", path, keys[i]);
        convert_note(c, json_at(original, keys[i]), where,
                     "left out: a pod's host name is its name, its subdomain spec.network.subdomain");
        cJSON_DeleteItemFromObjectCaseSensitive(spec, keys[i]);
    }
}

/* True when a text somewhere in tree has `word` in it. */
static bool mentions(const cJSON *tree, const char *word)
{
    const cJSON *item;

    if (cJSON_IsString(tree) && strstr(tree->valuestring, word) != NULL)
        return true;
    cJSON_ArrayForEach(item, tree)
    {
        if (mentions(item, word))
            return true;
    }
    return false;
}

/* Programs that name another replica by its address under Kubeflow, where each pod has a Service of its own name. */
static void keep_addresses(struct conversion *c, const cJSON *from)
{
    const char *name = json_text(c->from, "metadata.name", "");
    const cJSON *role;
    char word[160], where[256];

    cJSON_ArrayForEach(role, from)
    {
        for (enum job_role other = 0; other < ROLE_COUNT && name[0] != '\0'; other++) {
            (void)snprintf(word, sizeof word, "%.100s-%s-", name, role_name(other));
            if (!mentions(json_at(role, "template.spec"), word))
                continue;
            json_put_bool(convert_child(c->spec, "network"), "servicePerPod", true);
            (void)snprintf(where, sizeof where, "spec.%s.%.60s.template.spec", c->kind->roles_key, role->string);
            convert_note(
                c, json_at(role, "template.spec"), where,
                "has the address of a replica in it (%s...): network.servicePerPod gives each pod a Service of its own "
                "name, as Kubeflow does; TF_CONFIG and RINGMASTER_COORDINATOR say addresses without one",
                word);
            return;
        }
    }
}

/* ---- roles ------------------------------------------------------------------------------------------------------- */

/* Kubeflow reads the names of roles in any case. A name of none is left as it is, to be complained of. */
static const char *right_name(const char *key)
{
    for (size_t i = 0; ROLE_KEYS[i] != NULL; i++) {
        if (strcasecmp(ROLE_KEYS[i], key) == 0)
            return ROLE_KEYS[i];
    }
    return key;
}

static cJSON *role_spec(struct conversion *c, const cJSON *from, const char *path)
{
    static const char *const known[] = { "replicas", "restartPolicy", "template", NULL };
    cJSON *o = json_object();
    char template_path[256];

    convert_copy(from, "replicas", o, "replicas");
    convert_copy(from, "restartPolicy", o, "restartPolicy");
    if (json_text(o, "restartPolicy", "")[0] == '\0') {
        cJSON_DeleteItemFromObjectCaseSensitive(o, "restartPolicy");
        json_put_text(o, "restartPolicy", c->kind->restart_policy);
    }
    convert_copy(from, "template", o, "template");
    convert_note_unknown(c, from, path, known);
    (void)snprintf(template_path, sizeof template_path, "%.200s.template", path);
    cJSON *template = cJSON_GetObjectItemCaseSensitive(o, "template");
    template_metadata(c, json_at(from, "template.metadata"), cJSON_GetObjectItemCaseSensitive(template, "metadata"),
                      template_path);
    template_overwritten(c, json_at(from, "template.spec"), cJSON_GetObjectItemCaseSensitive(template, "spec"),
                         template_path);
    return o;
}

/* Without a command the launcher has nothing to start: the image's own entrypoint runs then, and no sidecar. */
static void sidecars(struct conversion *c, const cJSON *from)
{
    const cJSON *role, *item;
    char where[256];

    cJSON_ArrayForEach(role, from)
    {
        const cJSON *container = convert_main_container(c, json_at(role, "template"));
        int index = 0;
        if (container == NULL || cJSON_GetArraySize(json_at(container, "command")) > 0)
            continue;
        cJSON_ArrayForEach(item, containers_of(json_at(role, "template")))
        {
            if (item == container)
                break;
            index++;
        }
        (void)snprintf(where, sizeof where, "spec.%s.%.60s.template.spec.containers[%d].command", c->kind->roles_key,
                       role->string, index);
        convert_note(
            c, container, where,
            "absent: the image's entrypoint is not known here, so spec.sidecar.mode is None and a restart makes new "
            "pods; write the entrypoint as command and remove the mode to get restarts in place, progress and the "
            "ring");
        json_put_text(convert_child(c->spec, "sidecar"), "mode", "None");
        return;
    }
}

/* The container that Kubeflow would have taken, where the first or "tensorflow" is another one. */
static void main_container_name(struct conversion *c, const cJSON *roles)
{
    const cJSON *role;
    bool differs = false;

    cJSON_ArrayForEach(role, roles)
    {
        const cJSON *main_container = convert_main_container(c, json_at(role, "template")), *container;
        if (main_container == NULL || strcmp(json_text(main_container, "name", ""), c->kind->container) != 0)
            return; /* not everywhere: the first it is */
        differs |= main_container != cJSON_GetArrayItem(containers_of(json_at(role, "template")), 0);
        cJSON_ArrayForEach(container, containers_of(json_at(role, "template"))) differs |=
            c->kind->pytorch && strcmp(json_text(container, "name", ""), "tensorflow") == 0;
    }
    if (differs && c->kind->pytorch)
        json_put_text(convert_child(c->spec, "tfConfig"), "containerName", c->kind->container);
}

void convert_roles(struct conversion *c)
{
    const cJSON *from = json_at(c->from_spec, c->kind->roles_key), *role;
    cJSON *roles = json_object();
    char path[256];

    if (c->kind->pytorch) {
        cJSON *frameworks = json_array();
        json_append(frameworks, cJSON_CreateString("PyTorch"));
        json_put(c->spec, "frameworks", frameworks);
    }
    cJSON_ArrayForEach(role, from)
    {
        if (!cJSON_IsObject(from) || cJSON_IsNull(role))
            continue;
        const char *key = right_name(role->string);
        (void)snprintf(path, sizeof path, "spec.%s.%.60s", c->kind->roles_key, role->string);
        if (cJSON_GetObjectItemCaseSensitive(roles, key) != NULL)
            convert_note(c, role, path, "left out: %s is there already, in another spelling", key);
        else
            json_put(roles, key, cJSON_IsObject(role) ? role_spec(c, role, path) : cJSON_Duplicate(role, true));
    }
    if (cJSON_IsObject(from)) {
        sidecars(c, from);
        keep_addresses(c, from);
    }
    main_container_name(c, roles);
    json_put(c->spec, "replicaSpecs", roles);
}
