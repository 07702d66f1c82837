#include "job/gang.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "job/child.h"
#include "job/names.h"

#define RESOURCES_MAX 64

const char *gang_name(enum gang_kind kind)
{
    return GANG_NAMES[kind];
}

bool gang_has_group(enum gang_kind kind)
{
    return kind == GANG_NATIVE || kind == GANG_VOLCANO || kind == GANG_COSCHEDULING;
}

bool gang_choose(const struct training_job *job, const struct gang_view *seen, enum gang_kind after, enum gang_kind *ret_kind)
{
    static const enum gang_kind ORDER[] = { GANG_NATIVE, GANG_VOLCANO, GANG_COSCHEDULING };
    bool passed = after == GANG_AUTO;

    *ret_kind = job->spec.scheduling.gang;
    if (*ret_kind != GANG_AUTO)
        return true;
    *ret_kind = GANG_NONE;
    for (size_t i = 0; i < COUNT(ORDER); i++) {
        bool next = passed;
        passed |= ORDER[i] == after;
        if (!next || !seen->served[ORDER[i]])
            continue;
        if (ORDER[i] == GANG_NATIVE && !seen->native_checked)
            return false;
        if (ORDER[i] == GANG_NATIVE && !seen->native_works)
            continue;
        *ret_kind = ORDER[i];
        return true;
    }
    return true;
}

bool gang_is_admitted(const struct training_job *job, enum gang_kind kind, const struct gang_view *seen)
{
    if (!gang_has_group(kind))
        return true;
    if (!seen->has_group)
        return false;
    if (kind == GANG_VOLCANO) /* "Pending" is before its queue: pods would only stand in the way of others */
        return seen->phase[0] != '\0' && strcmp(seen->phase, "Pending") != 0;
    return kind == GANG_NATIVE || job->spec.scheduling.gang != GANG_AUTO || seen->phase[0] != '\0';
}

int32_t gang_min_member(const struct training_job *job)
{
    const struct job_spec *spec = &job->spec;
    int64_t all = job_replicas(job);

    if (spec->scheduling.min_available.set && spec->scheduling.min_available.value < all)
        return (int32_t)spec->scheduling.min_available.value;
    if (!spec->scheduling.min_available.set && spec->min_replicas.set && spec->min_replicas.value < spec->roles[ROLE_WORKER].replicas)
        return (int32_t)(all - spec->roles[ROLE_WORKER].replicas + spec->min_replicas.value);
    return (int32_t)all;
}

/* ---- resources ------------------------------------------------------------------------------------------------------- */

struct sum { struct { const char *name; double milli; } items[RESOURCES_MAX]; size_t count; };

/* In thousandths: processors are asked for in them. */
static bool milli_of(const char *text, double *ret)
{
    size_t len = strlen(text);
    char scaled[64];
    int64_t units;
    bool is_milli = len > 0 && text[len - 1] == 'm', is_plain = len > 0 && strspn(text, "0123456789.") == len;

    if (len > 40)
        return false;
    (void)snprintf(scaled, sizeof scaled, "%.*s%s", (int)(is_milli ? len - 1 : len), text, is_plain ? "e3" : "");
    if (!text_quantity(scaled, &units))
        return false;
    *ret = is_milli || is_plain ? (double)units : (double)units * 1000;
    return true;
}

static void add_resource(struct sum *s, const char *name, double milli)
{
    for (size_t i = 0; i < s->count; i++) {
        if (strcmp(s->items[i].name, name) == 0) {
            s->items[i].milli += milli;
            return;
        }
    }
    if (s->count == RESOURCES_MAX)
        return;
    s->items[s->count].name = name;
    s->items[s->count++].milli = milli;
}

/* What is asked for, else what is the limit: the API server fills in requests so. */
static void add_resources(struct sum *s, const cJSON *resources, int32_t times)
{
    const cJSON *requests = json_at(resources, "requests"), *limits = json_at(resources, "limits"), *item;
    double milli;

    cJSON_ArrayForEach(item, requests) {
        if (cJSON_IsString(item) && milli_of(item->valuestring, &milli))
            add_resource(s, item->string, milli * times);
    }
    cJSON_ArrayForEach(item, limits) {
        bool asked = cJSON_GetObjectItemCaseSensitive(requests, item->string) != NULL;
        if (!asked && cJSON_IsString(item) && milli_of(item->valuestring, &milli))
            add_resource(s, item->string, milli * times);
    }
}

/* Of the first replicas, in the order of ranks. */
static cJSON *min_resources(const struct training_job *job, int32_t members)
{
    struct sum sum = { .count = 0 };
    cJSON *o = json_object();
    const cJSON *container;
    char text[32];

    for (enum job_role r = 0; r < ROLE_COUNT && members > 0; r++) {
        int32_t replicas = job->spec.roles[r].present ? job->spec.roles[r].replicas : 0, n = replicas < members ? replicas : members;
        cJSON_ArrayForEach(container, json_at(job->spec.roles[r].template, "spec.containers"))
            add_resources(&sum, json_at(container, "resources"), n);
        add_resources(&sum, job->spec.sidecar.resources, n);
        members -= n;
    }
    for (size_t i = 0; i < sum.count; i++) {
        double units = sum.items[i].milli / 1000;
        bool whole = units < 9e15 && (double)(int64_t)units == units;
        (void)snprintf(text, sizeof text, whole ? "%.0f" : "%.0fm", whole ? units : sum.items[i].milli);
        json_put_text(o, sum.items[i].name, text);
    }
    return o;
}

/* ---- groups ---------------------------------------------------------------------------------------------------------- */

static bool is_set(const char *text)
{
    return text != NULL && text[0] != '\0';
}

static cJSON *native_spec(const struct training_job *job)
{
    cJSON *spec = json_object(), *policy = json_object(), *gang = json_object();
    const char *topology = job->spec.scheduling.topology_required;

    json_put_int(gang, "minCount", gang_min_member(job));
    json_put(policy, "gang", gang);
    json_put(spec, "schedulingPolicy", policy);
    if (is_set(topology)) {
        cJSON *constraints = json_object(), *list = json_array(), *one = json_object();
        json_put_text(one, "key", topology);
        json_append(list, one);
        json_put(constraints, "topology", list);
        json_put(spec, "schedulingConstraints", constraints);
    }
    return spec;
}

/* What Volcano's and the scheduler plugins' groups have in common, and what one of them has alone. */
static cJSON *group_spec(const struct training_job *job, enum gang_kind kind)
{
    const char *queue = job->spec.scheduling.queue, *priority = job->spec.scheduling.priority_class;
    const struct optional_int *timeout = &job->spec.scheduling.schedule_timeout_s;
    const cJSON *least = job->spec.scheduling.min_resources;
    cJSON *spec = json_object();

    json_put_int(spec, "minMember", gang_min_member(job));
    cJSON *resources = cJSON_GetArraySize(least) > 0 ? cJSON_Duplicate(least, true) : min_resources(job, gang_min_member(job));
    if (cJSON_GetArraySize(resources) > 0)
        json_put(spec, "minResources", resources);
    else
        cJSON_Delete(resources);
    if (kind == GANG_VOLCANO && is_set(queue))
        json_put_text(spec, "queue", queue);
    if (kind == GANG_VOLCANO && is_set(priority))
        json_put_text(spec, "priorityClassName", priority);
    if (kind == GANG_COSCHEDULING && timeout->set)
        json_put_int(spec, "scheduleTimeoutSeconds", timeout->value);
    return spec;
}

cJSON *gang_group_build(const struct training_job *job, enum gang_kind kind, const char *api_version)
{
    cJSON *o = json_object();

    json_put_text(o, "apiVersion", api_version);
    json_put_text(o, "kind", "PodGroup");
    json_put(o, "metadata", child_metadata(job, job->name));
    json_put(o, "spec", kind == GANG_NATIVE ? native_spec(job) : group_spec(job, kind));
    return o;
}

cJSON *gang_group_patch(const struct training_job *job, enum gang_kind kind)
{
    cJSON *o = json_object();

    json_put(o, "spec", kind == GANG_NATIVE ? native_spec(job) : group_spec(job, kind));
    return o;
}

static const cJSON *condition_of(const cJSON *group, const char *type)
{
    const cJSON *condition;

    cJSON_ArrayForEach(condition, json_at(group, "status.conditions")) {
        if (strcmp(json_text(condition, "type", ""), type) == 0)
            return condition;
    }
    return NULL;
}

void gang_group_read(const cJSON *group, char ret_phase[32], char ret_message[256], int32_t *ret_min_member)
{
    const cJSON *native = condition_of(group, "PodGroupInitiallyScheduled"), *wrong = condition_of(group, "Unschedulable");
    bool placed = strcmp(json_text(native, "status", ""), "True") == 0;
    const char *native_phase = native == NULL ? "" : placed ? "Scheduled" : json_text(native, "reason", "Unschedulable");
    int64_t least = json_int(group, "spec.minMember", json_int(group, "spec.schedulingPolicy.gang.minCount", 0));

    (void)snprintf(ret_phase, 32, "%s", json_text(group, "status.phase", native_phase));
    bool stuck = wrong != NULL && strcmp(json_text(wrong, "status", ""), "True") == 0;
    (void)snprintf(ret_message, 256, "%s", stuck ? json_text(wrong, "message", "") : placed ? "" : json_text(native, "message", ""));
    *ret_min_member = least >= 0 && least <= JOB_MAX_REPLICAS ? (int32_t)least : 0;
}
