#include "job/pod_schedule.h"

#include <string.h>

#include "base/mem.h"

static bool is_set(const char *text)
{
    return text != NULL && text[0] != '\0';
}

static cJSON *member(cJSON *object, const char *key, bool array)
{
    cJSON *value = cJSON_GetObjectItemCaseSensitive(object, key);

    if (value == NULL || cJSON_IsNull(value)) {
        cJSON_DeleteItemFromObjectCaseSensitive(object, key);
        value = array ? json_array() : json_object();
        json_put(object, key, value);
    }
    return value;
}

static void put_once(cJSON *object, const char *key, const char *text)
{
    if (cJSON_GetObjectItemCaseSensitive(object, key) == NULL)
        json_put_text(object, key, text);
}

/* The marks by which the gang scheduler knows which pods belong together; the group object is the operator's. */
static void put_gang(const struct training_job *job, enum job_role role, enum gang_kind kind, cJSON *metadata,
                     cJSON *spec)
{
    cJSON *annotations = member(metadata, "annotations", false);

    switch (kind) {
    case GANG_VOLCANO:
        put_once(annotations, "scheduling.k8s.io/group-name", job->name);
        put_once(annotations, "volcano.sh/task-spec", role_name(role));
        if (is_set(job->spec.scheduling.queue))
            put_once(annotations, "volcano.sh/queue-name", job->spec.scheduling.queue);
        put_once(spec, "schedulerName", "volcano");
        break;
    case GANG_COSCHEDULING:
        put_once(member(metadata, "labels", false), "scheduling.x-k8s.io/pod-group", job->name);
        put_once(spec, "schedulerName", "scheduler-plugins-scheduler");
        break;
    case GANG_NATIVE:
        put_once(member(spec, "schedulingGroup", false), "podGroupName", job->name);
        break;
    case GANG_SCHEDULING_GATES: {
        cJSON *gate = json_object();
        json_put_text(gate, "name", POD_GATE);
        json_append(member(spec, "schedulingGates", true), gate);
        break;
    }
    case GANG_AUTO:
    case GANG_NONE:
        break;
    }
}

/* One domain for the whole job: Kueue reads the annotation; the plain scheduler goes by affinity to the job's own pods.
 */
static void put_topology(const struct training_job *job, cJSON *metadata, cJSON *spec)
{
    const char *required = job->spec.scheduling.topology_required, *preferred = job->spec.scheduling.topology_preferred;
    bool hard = is_set(required);

    if (!hard && !is_set(preferred))
        return;
    put_once(member(metadata, "annotations", false),
             hard ? "kueue.x-k8s.io/podset-required-topology" : "kueue.x-k8s.io/podset-preferred-topology",
             hard ? required : preferred);

    cJSON *term = json_object(), *selector = json_object(), *labels = json_object();
    json_put_text(labels, POD_LABEL "job-uid", job->uid);
    json_put(selector, "matchLabels", labels);
    json_put(term, "labelSelector", selector);
    json_put_text(term, "topologyKey", hard ? required : preferred);
    cJSON *affinity = member(member(spec, "affinity", false), "podAffinity", false);
    if (hard) {
        json_append(member(affinity, "requiredDuringSchedulingIgnoredDuringExecution", true), term);
        return;
    }
    cJSON *weighted = json_object();
    json_put_int(weighted, "weight", 100);
    json_put(weighted, "podAffinityTerm", term);
    json_append(member(affinity, "preferredDuringSchedulingIgnoredDuringExecution", true), weighted);
}

static cJSON *not_these_nodes(const struct job_status *status)
{
    cJSON *expression = json_object(), *names = json_array();

    for (size_t i = 0; i < status->avoid_count; i++)
        json_append(names, cJSON_CreateString(status->avoid_nodes[i].name));
    json_put_text(expression, "key", "kubernetes.io/hostname");
    json_put_text(expression, "operator", "NotIn");
    json_put(expression, "values", names);
    return expression;
}

/* Terms are alternatives (OR), so that each one needs the expression. */
static void put_avoided_nodes(const struct training_job *job, const struct job_status *status, cJSON *spec)
{
    if (status == NULL || status->avoid_count == 0 || !job->spec.failure.avoid_nodes)
        return;
    cJSON *affinity = member(member(spec, "affinity", false), "nodeAffinity", false);
    cJSON *terms = member(member(affinity, "requiredDuringSchedulingIgnoredDuringExecution", false),
                          "nodeSelectorTerms", true),
          *term;
    if (cJSON_GetArraySize(terms) == 0)
        json_append(terms, json_object());
    cJSON_ArrayForEach(term, terms)
        json_append(member(term, "matchExpressions", true), not_these_nodes(status));
}

void pod_schedule(const struct training_job *job, enum job_role role, const struct pod_context *context,
                  cJSON *metadata, cJSON *spec)
{
    enum gang_kind kind = job->spec.scheduling.gang == GANG_AUTO ? context->gang : job->spec.scheduling.gang;

    put_gang(job, role, kind, metadata, spec);
    put_topology(job, metadata, spec);
    put_avoided_nodes(job, context->status, spec);
}
