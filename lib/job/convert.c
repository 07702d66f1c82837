#include "job/convert.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "job/convert_parts.h"
#include "job/decode.h"

static const char API_VERSION[] = "kubeflow.org/v1";

static const struct convert_kind KINDS[] = {
    { .kind = "TFJob",
      .roles_key = "tfReplicaSpecs",
      .restart_policy = "Never",
      .container = "tensorflow",
      .port_name = "tfjob-port",
      .port = 2222 },
    { .kind = "PyTorchJob",
      .roles_key = "pytorchReplicaSpecs",
      .restart_policy = "OnFailure",
      .container = "pytorch",
      .port_name = "pytorchjob-port",
      .port = 23456,
      .pytorch = true },
};

static const struct convert_kind *kind_of(const cJSON *manifest)
{
    const char *kind = json_text(manifest, "kind", "");

    for (size_t i = 0; i < COUNT(KINDS); i++) {
        if (strcmp(KINDS[i].kind, kind) == 0)
            return &KINDS[i];
    }
    return NULL;
}

bool convert_takes(const cJSON *manifest)
{
    return kind_of(manifest) != NULL;
}

/* ---- tools ------------------------------------------------------------------------------------------------------- */

void convert_note(struct conversion *c, const cJSON *value, const char *path, const char *fmt, ...)
{
    char text[320];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    problems_add(c->notes, c->doc, value != NULL ? value : c->from, path, "%s", text);
}

static bool listed(const char *const *names, const char *name)
{
    for (; *names != NULL; names++) {
        if (strcmp(*names, name) == 0)
            return true;
    }
    return false;
}

void convert_note_unknown(struct conversion *c, const cJSON *object, const char *path, const char *const *known)
{
    const cJSON *item;
    char where[256];

    cJSON_ArrayForEach(item, object)
    {
        if (!cJSON_IsObject(object) || cJSON_IsNull(item) || listed(known, item->string))
            continue;
        (void)snprintf(where, sizeof where, "%s.%.60s", path, item->string);
        convert_note(c, item, where, "left out: a %s has no such field", c->kind->kind);
    }
}

cJSON *convert_child(cJSON *object, const char *key)
{
    cJSON *child = cJSON_GetObjectItemCaseSensitive(object, key);

    if (child == NULL) {
        child = json_object();
        json_put(object, key, child);
    }
    return child;
}

void convert_copy(const cJSON *from, const char *key, cJSON *to, const char *to_key)
{
    const cJSON *value = json_at(from, key);

    if (value != NULL)
        json_put(to, to_key, cJSON_Duplicate(value, true));
}

/* ---- metadata ---------------------------------------------------------------------------------------------------- */

/* Labels that others act upon: they stay, but those others look for a TFJob. */
static void note_labels(struct conversion *c, const cJSON *labels)
{
    const cJSON *queue = cJSON_GetObjectItemCaseSensitive(labels, "kueue.x-k8s.io/queue-name");

    if (queue != NULL)
        convert_note(
            c, queue, "metadata.labels.kueue.x-k8s.io/queue-name",
            "kept, but Kueue watches %ss and not TrainingJobs: the job starts without waiting for its queue; keep it "
            "with spec.suspend: true where it must wait",
            c->kind->kind);
}

static cJSON *metadata(struct conversion *c)
{
    static const char *const known[] = {
        /* from uid on they belong to the object that exists */
        "name",
        "generateName",
        "namespace",
        "labels",
        "annotations",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "managedFields",
        "selfLink",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "ownerReferences",
        "finalizers",
        NULL,
    };
    static const char *const bound[] = { "ownerReferences", "finalizers" };
    const cJSON *from = json_at(c->from, "metadata");
    cJSON *o = json_object();

    convert_copy(from, "name", o, "name");
    if (json_at(from, "name") == NULL)
        convert_copy(from, "generateName", o, "generateName");
    convert_copy(from, "namespace", o, "namespace");
    convert_copy(from, "labels", o, "labels");
    convert_copy(from, "annotations", o, "annotations");
    cJSON *annotations = cJSON_GetObjectItemCaseSensitive(o, "annotations");
    cJSON_DeleteItemFromObjectCaseSensitive(annotations, "kubectl.kubernetes.io/last-applied-configuration");
    if (cJSON_IsObject(annotations) && annotations->child == NULL)
        cJSON_DeleteItemFromObjectCaseSensitive(o, "annotations");
    note_labels(c, json_at(from, "labels"));
    for (size_t i = 0; i < COUNT(bound); i++) {
        auto_free char *where = xasprintf("metadata.%s", bound[i]);
        if (cJSON_GetArraySize(json_at(from, bound[i])) > 0)
            convert_note(c, json_at(from, bound[i]), where,
                         "left out: it binds the %s that exists; set it anew where the "
                         "TrainingJob is made by the same owner",
                         c->kind->kind);
    }
    convert_note_unknown(c, from, "metadata", known);
    return o;
}

/* ---- policies ---------------------------------------------------------------------------------------------------- */

static const char *const RUN_POLICY[] = { "cleanPodPolicy", "ttlSecondsAfterFinished", "activeDeadlineSeconds",
                                          "backoffLimit",   "schedulingPolicy",        NULL };

static void managed_by(struct conversion *c, const cJSON *policy)
{
    const char *value = json_text(policy, "managedBy", NULL);

    if (value == NULL || strcmp(value, "kubeflow.org/training-operator") == 0)
        return;
    if (strcmp(value, "kueue.x-k8s.io/multikueue") == 0)
        json_put_text(c->spec, "managedBy", value);
    else
        convert_note(c, json_at(policy, "managedBy"), "spec.runPolicy.managedBy",
                     "left out: \"%.60s\" is a controller of %ss; set spec.managedBy when it takes TrainingJobs too",
                     value, c->kind->kind);
}

static cJSON *scheduling(struct conversion *c, const cJSON *from, const char *path)
{
    static const char *const known[] = { "minAvailable",           "queue", "minResources", "priorityClass",
                                         "scheduleTimeoutSeconds", NULL };
    cJSON *o = json_object();

    for (size_t i = 0; known[i] != NULL; i++)
        convert_copy(from, known[i], o, known[i]);
    convert_note_unknown(c, from, path, known);
    return o;
}

/* `from` is spec.runPolicy, or spec itself for manifests older than runPolicy. What is there already stays. */
static void run_policy_fields(struct conversion *c, const cJSON *from, const char *path, cJSON *policy)
{
    char where[256];

    for (size_t i = 0; RUN_POLICY[i] != NULL; i++) {
        const cJSON *value = json_at(from, RUN_POLICY[i]);
        if (value == NULL || cJSON_GetObjectItemCaseSensitive(policy, RUN_POLICY[i]) != NULL)
            continue;
        (void)snprintf(where, sizeof where, "%s.%s", path, RUN_POLICY[i]);
        bool is_tree = strcmp(RUN_POLICY[i], "schedulingPolicy") == 0;
        json_put(policy, RUN_POLICY[i], is_tree ? scheduling(c, value, where) : cJSON_Duplicate(value, true));
        if (from == c->from_spec)
            convert_note(c, value, where, "taken as spec.runPolicy.%s, its place since Kubeflow 1.3", RUN_POLICY[i]);
    }
}

static bool has_role(const struct conversion *c, const char *key)
{
    return cJSON_GetObjectItem(json_at(c->from_spec, c->kind->roles_key), key) != NULL;
}

/* What is absent means something else there than here. */
static void run_policy_defaults(struct conversion *c, cJSON *policy)
{
    const cJSON *role;
    bool restarts = false;

    cJSON_ArrayForEach(role, json_at(c->spec, "replicaSpecs")) restarts |=
        strcmp(json_text(role, "restartPolicy", "Never"), "Never") != 0;
    if (cJSON_GetObjectItemCaseSensitive(policy, "cleanPodPolicy") == NULL) {
        json_put_text(policy, "cleanPodPolicy", "None");
        if (has_role(c, "PS") || has_role(c, "Evaluator"))
            convert_note(
                c, c->from_spec, "spec.runPolicy.cleanPodPolicy",
                "absent, which means None: replicas of PS and Evaluator go on running, and holding their nodes, when "
                "the job has ended; Running ends them");
    }
    if (cJSON_GetObjectItemCaseSensitive(policy, "backoffLimit") == NULL && restarts) {
        json_put_int(policy, "backoffLimit", -1);
        convert_note(
            c, c->from_spec, "spec.runPolicy.backoffLimit",
            "absent, which means that failures are retried for ever, and so it is written (-1); a number, such as 6, "
            "ends a job that crashes at each start");
    }
}

static void run_policy(struct conversion *c)
{
    static const char *const known[] = { "cleanPodPolicy",
                                         "ttlSecondsAfterFinished",
                                         "activeDeadlineSeconds",
                                         "backoffLimit",
                                         "schedulingPolicy",
                                         "suspend",
                                         "managedBy",
                                         NULL };
    const cJSON *from = json_at(c->from_spec, "runPolicy");
    cJSON *policy = json_object();

    convert_copy(from, "suspend", c->spec, "suspend");
    managed_by(c, from);
    run_policy_fields(c, from, "spec.runPolicy", policy);
    run_policy_fields(c, c->from_spec, "spec", policy);
    convert_note_unknown(c, from, "spec.runPolicy", known);
    run_policy_defaults(c, policy);
    json_put(c->spec, "runPolicy", policy);
}

/* ---- TensorFlow -------------------------------------------------------------------------------------------------- */

static void tensorflow(struct conversion *c)
{
    convert_copy(c->from_spec, "successPolicy", c->spec, "successPolicy");
    convert_copy(c->from_spec, "enableDynamicWorker", c->spec, "enableDynamicWorker");
    if (has_role(c, "Master"))
        convert_note(c, cJSON_GetObjectItem(json_at(c->from_spec, c->kind->roles_key), "Master"),
                     "spec.tfReplicaSpecs.Master",
                     "is \"chief\" in TF_CONFIG, as TensorFlow 2 wants it; spec.tfConfig.masterAsChief: false keeps "
                     "\"master\" for "
                     "programs of TensorFlow 1");
    if (has_role(c, "Evaluator"))
        convert_note(
            c, cJSON_GetObjectItem(json_at(c->from_spec, c->kind->roles_key), "Evaluator"),
            "spec.tfReplicaSpecs.Evaluator",
            "is not in the cluster of TF_CONFIG, as TensorFlow wants it; spec.tfConfig.evaluatorInCluster: true puts "
            "it there, as Kubeflow did");
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static void unknown_fields(struct conversion *c)
{
    static const char *const tensorflow_keys[] = {
        "runPolicy",
        "successPolicy",
        "enableDynamicWorker",
        "tfReplicaSpecs",
        "cleanPodPolicy",
        "ttlSecondsAfterFinished",
        "activeDeadlineSeconds",
        "backoffLimit",
        "schedulingPolicy",
        NULL,
    };
    static const char *const pytorch_keys[] = {
        "runPolicy",
        "elasticPolicy",
        "nprocPerNode",
        "pytorchReplicaSpecs",
        "cleanPodPolicy",
        "ttlSecondsAfterFinished",
        "activeDeadlineSeconds",
        "backoffLimit",
        "schedulingPolicy",
        NULL,
    };
    static const char *const top[] = { "apiVersion", "kind", "metadata", "spec", "status", NULL };
    const cJSON *item;

    convert_note_unknown(c, c->from_spec, "spec", c->kind->pytorch ? pytorch_keys : tensorflow_keys);
    cJSON_ArrayForEach(item, c->from)
    {
        if (!listed(top, item->string))
            convert_note(c, item, item->string, "left out: a %s has no such field", c->kind->kind);
    }
}

static int check_head(const cJSON *manifest, const struct convert_kind *kind, struct error *e)
{
    static const char *const maps[] = { "metadata",           "spec.runPolicy",      "spec.runPolicy.schedulingPolicy",
                                        "spec.elasticPolicy", "spec.tfReplicaSpecs", "spec.pytorchReplicaSpecs" };
    const char *version = json_text(manifest, "apiVersion", "");

    if (kind == NULL)
        return error_set(e, ERROR_INVALID, "kind: found \"%.60s\", expected TFJob or PyTorchJob",
                         json_text(manifest, "kind", ""));
    if (strcmp(version, API_VERSION) != 0)
        return error_set(e, ERROR_INVALID, "apiVersion: found \"%.60s\", expected %s; bring the manifest to %s first",
                         version, API_VERSION, API_VERSION);
    if (!cJSON_IsObject(json_at(manifest, "spec")))
        return error_set(e, ERROR_INVALID, "spec: missing, expected the spec of a %s", kind->kind);
    for (size_t i = 0; i < COUNT(maps); i++) {
        const cJSON *map = json_at(manifest, maps[i]);
        if (map != NULL && !cJSON_IsObject(map))
            return error_set(e, ERROR_INVALID, "%s: found no mapping, expected one of fields", maps[i]);
    }
    return 0;
}

/* The fields of spec as the documentation has them. */
static void in_order(cJSON *spec)
{
    static const char *const keys[] = {
        "suspend",       "managedBy", "frameworks", "successPolicy", "enableDynamicWorker", "runPolicy",
        "elasticPolicy", "network",   "tfConfig",   "sidecar",       "replicaSpecs"
    };

    for (size_t i = 0; i < COUNT(keys); i++) {
        cJSON *value = cJSON_DetachItemFromObjectCaseSensitive(spec, keys[i]);
        if (value != NULL)
            json_put(spec, keys[i], value);
    }
}

int convert_job(const cJSON *manifest, const struct yaml_doc *doc, struct problems *notes, struct problems *problems,
                cJSON **ret_tree, struct error *e)
{
    const struct convert_kind *kind = kind_of(manifest);
    auto_job struct training_job *job = NULL;

    if (check_head(manifest, kind, e) < 0)
        return -1;
    struct conversion c = {
        .kind = kind, .from = manifest, .from_spec = json_at(manifest, "spec"), .doc = doc, .notes = notes
    };
    auto_json cJSON *tree = json_object();
    json_put_text(tree, "apiVersion", JOB_API_VERSION);
    json_put_text(tree, "kind", JOB_KIND);
    json_put(tree, "metadata", metadata(&c));
    c.spec = json_object();
    json_put(tree, "spec", c.spec);
    convert_roles(&c);
    run_policy(&c);
    if (kind->pytorch)
        convert_pytorch(&c);
    else
        tensorflow(&c);
    unknown_fields(&c);
    in_order(c.spec);
    problems_sort(notes);
    if (job_decode(tree, NULL, problems, &job, e) < 0)
        return error_wrap(e, "the TrainingJob that this %s comes to", kind->kind);
    *ret_tree = TAKE(tree);
    return 0;
}
