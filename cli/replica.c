#include "cli/replica.h"

#include <string.h>

#include "base/clock.h"
#include "base/text.h"
#include "job/pod.h"
#include "kube/object.h"

static const cJSON *status_of(const cJSON *pod, const char *container)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, json_at(pod, "status.containerStatuses"))
        if (strcmp(json_text(item, "name", ""), container) == 0)
            return item;
    return NULL;
}

/* An init container that does not get on holds the main one back: its words are the ones to show. */
static const char *waiting_reason(const cJSON *pod, const cJSON *status)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, json_at(pod, "status.initContainerStatuses")) {
        const char *reason = json_text(item, "state.waiting.reason", "");
        if (*reason && strcmp(reason, "PodInitializing") != 0)
            return reason;
    }
    const char *reason = json_text(status, "state.waiting.reason", "");
    if (*reason)
        return strcmp(reason, "PodInitializing") == 0 || strcmp(reason, "ContainerCreating") == 0 ? "" : reason;
    const cJSON *scheduled = kube_condition(pod, "PodScheduled");
    return strcmp(json_text(scheduled, "status", ""), "False") == 0 ? json_text(scheduled, "reason", "") : "";
}

static const char *phase_of(const cJSON *pod, const struct replica *r)
{
    const char *phase = json_text(pod, "status.phase", "");
    if (strcmp(phase, "Succeeded") == 0 || (r->ended && r->has_exit && r->exit_code == 0))
        return "done";
    if (strcmp(phase, "Failed") == 0 || (r->ended && r->has_exit))
        return "failed";
    if (kube_deleting(pod))
        return "stopping";
    if (r->started)
        return "running";
    return *r->node ? "starting" : "pending";
}

bool replica_of(const cJSON *pod, struct replica *ret)
{
    const char *role = kube_label(pod, POD_LABEL "replica-type"), *index = kube_label(pod, POD_LABEL "replica-index");
    const char *attempt = kube_label(pod, POD_LABEL "attempt"), *container = kube_annotation(pod, POD_MAIN_CONTAINER);
    struct replica r = { .pod = kube_name(pod), .uid = kube_uid(pod), .node = json_text(pod, "spec.nodeName", "") };
    int64_t number;
    if (!role || !index || !role_parse(role, &r.role) || !text_int(index, &number) || number < 0 || number >= JOB_MAX_REPLICAS)
        return false;
    r.index = (int32_t)number;
    job_member_name(r.role, r.index, r.member);
    r.attempt = attempt && text_int(attempt, &number) && number > 0 && number < INT32_MAX ? (int32_t)number : 0;
    const cJSON *first = json_at(pod, "spec.containers");
    r.container = container ? container : json_text(cJSON_IsArray(first) ? first->child : NULL, "name", "");
    const cJSON *status = status_of(pod, r.container), *exited = json_at(status, "state.terminated");
    r.ended = exited != NULL;
    r.started = r.ended || json_at(status, "state.running") != NULL;
    r.has_exit = exited != NULL && json_at(exited, "exitCode") != NULL;
    r.exit_code = (int32_t)json_int(exited, "exitCode", 0);
    r.restarts = (int32_t)json_int(status, "restartCount", 0);
    r.reason = json_text(exited, "reason", "");
    if (!*r.reason || strcmp(r.reason, "Completed") == 0)
        r.reason = json_text(pod, "status.reason", "");
    if (!*r.reason && !r.started)
        r.reason = waiting_reason(pod, status);
    if (clock_parse(json_text(pod, "metadata.creationTimestamp", ""), &r.created_ms) < 0)
        r.created_ms = 0;
    r.phase = phase_of(pod, &r);
    *ret = r;
    return true;
}
