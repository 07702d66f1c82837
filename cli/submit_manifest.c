#include "cli/submit_manifest.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/text.h"

static cJSON *child(cJSON *object, const char *key, bool array)
{
    cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (!item) {
        item = array ? json_array() : json_object();
        json_put(object, key, item);
    }
    return item;
}

/* "NAME=VALUE"; the name is checked by the API server or as an environment variable's. */
static int split(const char *flag, const char *text, bool is_env, char **ret_name, const char **ret_value, struct error *e)
{
    const char *equals = strchr(text, '=');
    if (!equals || equals == text)
        return error_set(e, ERROR_INVALID, "%s: found \"%.80s\", expected NAME=VALUE", flag, text);
    auto_free char *name = xstrndup(text, (size_t)(equals - text));
    if (is_env && !text_is_env_name(name))
        return error_set(e, ERROR_INVALID, "%s: \"%.80s\" is no name of a variable", flag, name);
    *ret_name = TAKE(name);
    *ret_value = equals + 1;
    return 0;
}

static int put_pairs(const char *flag, const struct opt_list *list, cJSON *object, struct error *e)
{
    for (size_t i = 0; i < list->count; i++) {
        auto_free char *name = NULL;
        const char *value;
        if (split(flag, list->items[i], false, &name, &value, e) < 0)
            return -1;
        cJSON_DeleteItemFromObjectCaseSensitive(object, name);
        json_put_text(object, name, value);
    }
    return 0;
}

/* "$" is literal, as it is in the command: the shell has been there. */
static cJSON *variable(const char *name, const char *value)
{
    auto_buf struct buf text = BUF_INIT(2 * strlen(value) + 1);
    cJSON *row = json_object();
    for (const char *p = value; *p; p++)
        buf_addf(&text, *p == '$' ? "$%c" : "%c", *p);
    json_put_text(row, "name", name);
    json_put_text(row, "value", buf_text(&text));
    return row;
}

static int put_env(const struct submit_pod *p, cJSON *container, struct error *e)
{
    for (size_t i = 0; i < p->env.count; i++) {
        auto_free char *name = NULL;
        const char *value;
        if (split("--env", p->env.items[i], true, &name, &value, e) < 0)
            return -1;
        json_append(child(container, "env", true), variable(name, value));
    }
    return 0;
}

static int put_quantity(const char *flag, const char *text, const char *name, cJSON *object, struct error *e)
{
    int64_t units;
    if (!text)
        return 0;
    if (!text_quantity(text, &units) || units <= 0)
        return error_set(e, ERROR_INVALID, "%s: found \"%.60s\", expected a quantity such as %s", flag, text,
                         strcmp(name, "cpu") == 0 ? "4 or 500m" : "16Gi");
    json_put_text(object, name, text);
    return 0;
}

static int put_resources(const struct submit_pod *p, cJSON *container, struct error *e)
{
    auto_json cJSON *requests = json_object(), *limits = json_object();
    char gpus[24];
    if (put_quantity("--cpu", p->cpu, "cpu", requests, e) < 0 || put_quantity("--memory", p->memory, "memory", requests, e) < 0 ||
        put_quantity("--memory", p->memory, "memory", limits, e) < 0)
        return -1;
    if (p->gpus > 0) { /* an extended resource: its request follows from its limit */
        snprintf(gpus, sizeof gpus, "%lld", (long long)p->gpus);
        json_put_text(limits, p->gpu_resource, gpus);
    }
    if (requests->child)
        json_put(child(container, "resources", false), "requests", TAKE(requests));
    if (limits->child)
        json_put(child(container, "resources", false), "limits", TAKE(limits));
    return 0;
}

static int put_checkpoint(const struct submit_pod *p, cJSON *spec, cJSON *pod, cJSON *container, struct error *e)
{
    if (p->checkpoint_claim && (!p->checkpoint || p->checkpoint[0] != '/'))
        return error_set(e, ERROR_INVALID, "--checkpoint-claim %.80s: at which directory? give it with --checkpoint DIR", p->checkpoint_claim);
    if (p->checkpoint && p->checkpoint[0] != '/' && strncmp(p->checkpoint, "s3://", 5) != 0)
        return error_set(e, ERROR_INVALID, "--checkpoint: found \"%.120s\", expected an absolute directory or s3://BUCKET/PREFIX", p->checkpoint);
    if (p->checkpoint)
        json_put_text(child(spec, "checkpoint", false), "path", p->checkpoint);
    if (p->checkpoint_every > 0)
        json_put_int(child(spec, "checkpoint", false), "everySteps", p->checkpoint_every);
    if (p->checkpoint_claim) {
        cJSON *volume = json_object(), *mount = json_object();
        json_put_text(volume, "name", "checkpoints");
        json_put_text(child(volume, "persistentVolumeClaim", false), "claimName", p->checkpoint_claim);
        json_append(child(pod, "volumes", true), volume);
        json_put_text(mount, "name", "checkpoints");
        json_put_text(mount, "mountPath", p->checkpoint);
        json_append(child(container, "volumeMounts", true), mount);
    }
    return 0;
}

static void put_text(cJSON *object, const char *key, const char *text)
{
    if (!text)
        return;
    cJSON_DeleteItemFromObjectCaseSensitive(object, key);
    json_put_text(object, key, text);
}

int submit_complete(const struct submit_pod *p, cJSON *manifest, struct error *e)
{
    cJSON *spec = child(manifest, "spec", false), *template = child(child(child(spec, "replicaSpecs", false), "Worker", false), "template", false);
    cJSON *pod = child(template, "spec", false), *container = cJSON_GetArrayItem(child(pod, "containers", true), 0);
    put_text(container, "image", p->image);
    put_text(container, "workingDir", p->working_dir);
    put_text(pod, "serviceAccountName", p->service_account);
    if (p->pull_secret) {
        cJSON *secret = json_object();
        json_put_text(secret, "name", p->pull_secret);
        json_append(child(pod, "imagePullSecrets", true), secret);
    }
    if (p->queue || p->priority_class) {
        cJSON *scheduling = child(child(spec, "runPolicy", false), "schedulingPolicy", false);
        put_text(scheduling, "queue", p->queue);
        put_text(scheduling, "priorityClass", p->priority_class);
    }
    if (p->labels.count && (put_pairs("--label", &p->labels, child(child(manifest, "metadata", false), "labels", false), e) < 0 ||
                            put_pairs("--label", &p->labels, child(child(template, "metadata", false), "labels", false), e) < 0))
        return -1;
    if (p->node_selector.count && put_pairs("--node-selector", &p->node_selector, child(pod, "nodeSelector", false), e) < 0)
        return -1;
    return put_env(p, container, e) < 0 || put_resources(p, container, e) < 0 || put_checkpoint(p, spec, pod, container, e) < 0 ? -1 : 0;
}

void submit_name(const char *base, uint64_t seed, char ret_name[60])
{
    static const char LETTERS[] = "bcdfghjklmnpqrstvwxz2456789"; /* no words */
    size_t len = (size_t)snprintf(ret_name, 60, "%.45s-", base);
    for (int i = 0; i < 5; i++, seed /= sizeof LETTERS - 1)
        ret_name[len++] = LETTERS[seed % (sizeof LETTERS - 1)];
    ret_name[len] = '\0';
}

void submit_strip(cJSON *manifest)
{
    static const char *const OF_AN_OBJECT[] = { "uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink",
                                                "deletionTimestamp", "deletionGracePeriodSeconds" };
    cJSON *metadata = cJSON_GetObjectItemCaseSensitive(manifest, "metadata");
    cJSON_DeleteItemFromObjectCaseSensitive(manifest, "status");
    for (size_t i = 0; i < COUNT(OF_AN_OBJECT); i++)
        cJSON_DeleteItemFromObjectCaseSensitive(metadata, OF_AN_OBJECT[i]);
}
