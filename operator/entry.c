#include "operator/entry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/text.h"

#define MESSAGE_MAX 1023 /* of pod_view.message */
#define LAST_WORD_MAX 12288 /* of all termination messages of a pod */
#define LAST_APPLIED "kubectl.kubernetes.io/last-applied-configuration"

static int64_t read_time(const cJSON *tree, const char *path)
{
    int64_t wall_ms;

    return clock_parse(json_text(tree, path, ""), &wall_ms) == 0 ? wall_ms : 0;
}

static bool read_number(const cJSON *object, const char *label, int32_t most, int32_t *ret_value)
{
    const char *text = kube_label(object, label);
    int64_t value;

    if (text == NULL || !text_int(text, &value) || value < 0 || value > most)
        return false;
    *ret_value = (int32_t)value;
    return true;
}

/* The last bytes of a longer text: logs say at their end what went wrong. Cut at a whole character. */
static char *tail(const char *text)
{
    size_t len = strlen(text);
    const char *from = len > MESSAGE_MAX ? text + len - MESSAGE_MAX : text;

    while (from != text && ((unsigned char)*from & 0xc0) == 0x80)
        from++;
    return *from != '\0' ? xstrdup(from) : NULL;
}

static void take_text(char **to, const char *text)
{
    if (text == NULL || text[0] == '\0')
        return;
    free(*to);
    *to = tail(text);
}

static bool owner_name(const cJSON *object, char ret_name[JOB_NAME_MAX + 1])
{
    const cJSON *owner = kube_controller(object);
    const char *name = json_text(owner, "name", "");

    if (strcmp(json_text(owner, "kind", ""), JOB_KIND) != 0 || name[0] == '\0' || strlen(name) > JOB_NAME_MAX)
        return false;
    (void)snprintf(ret_name, JOB_NAME_MAX + 1, "%s", name);
    return true;
}

/* ---- pods ------------------------------------------------------------------------------------------------------------- */

static enum pod_phase read_phase(const cJSON *pod)
{
    static const char *const NAMES[] = { "Pending", "Running", "Succeeded", "Failed" }; /* as enum pod_phase */
    const char *text = json_text(pod, "status.phase", "Pending");

    for (size_t i = 0; i < COUNT(NAMES); i++) {
        if (strcmp(NAMES[i], text) == 0)
            return (enum pod_phase)i;
    }
    return POD_UNKNOWN;
}

static bool condition_is_true(const cJSON *pod, const char *type)
{
    return strcmp(json_text(kube_condition(pod, type), "status", ""), "True") == 0;
}

/* pod_build writes down which container it took for the main one; a pod without that has it first. */
static const char *main_container(const cJSON *pod)
{
    const char *named = kube_annotation(pod, POD_MAIN_CONTAINER);
    const cJSON *first = cJSON_GetArrayItem(json_at(pod, "spec.containers"), 0);

    return named != NULL ? named : json_text(first, "name", "");
}

static const cJSON *status_of(const cJSON *pod, const char *list, const char *container)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, json_at(pod, list)) {
        if (strcmp(json_text(item, "name", ""), container) == 0)
            return item;
    }
    return NULL;
}

/* "Unknown" is containerd's word for a container that was gone when it came back itself: its node had been lost. */
static bool nobody_saw_it_end(const char *reason)
{
    return strcmp(reason, "ContainerStatusUnknown") == 0 || strcmp(reason, "Unknown") == 0;
}

static void read_end(const cJSON *terminated, struct pod_entry *p)
{
    const char *reason = json_text(terminated, "reason", "");
    int64_t code = json_int(terminated, "exitCode", -1), signal_number = json_int(terminated, "signal", 0);

    p->finished_ms = read_time(terminated, "finishedAt");
    take_text(&p->reason, nobody_saw_it_end(reason) ? "ContainerStatusUnknown" : reason);
    take_text(&p->message, json_text(terminated, "message", ""));
    if (code < 0 || code > 255 || nobody_saw_it_end(reason))
        return; /* 137 or 255 stands there for want of a better number */
    p->has_exit = true;
    p->exit_code = (int32_t)code;
    p->signal = signal_number > 0 && signal_number < 65 ? (int32_t)signal_number : code > 128 && code < 128 + 32 ? (int32_t)code - 128 : 0;
}

/* A pod that does not start: the first container that says why it waits, init containers before the others. */
static void read_waiting(const cJSON *pod, struct pod_entry *p)
{
    static const char *const LISTS[] = { "status.initContainerStatuses", "status.containerStatuses" };
    static const char *const ORDINARY[] = { "PodInitializing", "ContainerCreating" };
    const cJSON *item;

    for (size_t i = 0; i < COUNT(LISTS); i++) {
        cJSON_ArrayForEach(item, json_at(pod, LISTS[i])) {
            const char *reason = json_text(item, "state.waiting.reason", "");
            if (reason[0] == '\0' || strcmp(reason, ORDINARY[0]) == 0 || strcmp(reason, ORDINARY[1]) == 0)
                continue;
            take_text(&p->reason, reason);
            take_text(&p->message, json_text(item, "state.waiting.message", json_text(item, "lastState.terminated.message", "")));
            return;
        }
    }
}

/* An init container that failed ends the pod before the main container ever ran. */
static void read_init_end(const cJSON *pod, struct pod_entry *p)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, json_at(pod, "status.initContainerStatuses")) {
        const cJSON *terminated = json_at(item, "state.terminated");
        if (terminated == NULL || json_int(terminated, "exitCode", 0) == 0)
            continue;
        read_end(terminated, p);
        auto_free char *said = TAKE(p->message);
        p->message = xasprintf("init container %.63s: %.800s", json_text(item, "name", ""), said != NULL ? said : json_text(terminated, "reason", ""));
        return;
    }
}

static bool all_ended(const cJSON *pod)
{
    const cJSON *item;
    int ended = 0;

    cJSON_ArrayForEach(item, json_at(pod, "status.containerStatuses"))
        ended += json_at(item, "state.terminated") != NULL;
    return ended > 0 && ended >= cJSON_GetArraySize(json_at(pod, "spec.containers"));
}

/* A native sidecar stands among the init containers. */
static void read_sidecar(const cJSON *pod, struct pod_entry *p)
{
    const cJSON *status = status_of(pod, "status.initContainerStatuses", POD_SIDECAR_CONTAINER);

    if (status == NULL)
        status = status_of(pod, "status.containerStatuses", POD_SIDECAR_CONTAINER);
    p->sidecar_runs = json_at(status, "state.running") != NULL && p->phase == POD_RUNNING;
    const char *word = json_text(status, "state.terminated.message", "");
    if (word[0] == '{' && strlen(word) <= LAST_WORD_MAX)
        p->last_word = xstrdup(word);
}

static void read_containers(const cJSON *pod, struct pod_entry *p)
{
    const cJSON *main_status = status_of(pod, "status.containerStatuses", main_container(pod)), *terminated = json_at(main_status, "state.terminated");

    p->all_ended = all_ended(pod);
    read_sidecar(pod, p);
    p->started_ms = read_time(main_status, "state.running.startedAt");
    if (terminated != NULL) {
        p->started_ms = read_time(terminated, "startedAt");
        read_end(terminated, p);
    } else if (p->phase == POD_PENDING) {
        read_waiting(pod, p);
    }
    if (p->phase == POD_FAILED && !p->has_exit)
        read_init_end(pod, p);
}

/* What the system did to the pod outranks what its containers said about it. */
static void read_system(const cJSON *pod, struct pod_entry *p)
{
    const cJSON *scheduled = kube_condition(pod, "PodScheduled"), *target = kube_condition(pod, "DisruptionTarget");
    const char *reason = json_text(pod, "status.reason", "");

    p->scheduled = condition_is_true(pod, "PodScheduled") || p->node != NULL;
    p->ready = condition_is_true(pod, "Ready");
    if (!p->scheduled && scheduled != NULL) {
        take_text(&p->reason, json_text(scheduled, "reason", ""));
        take_text(&p->message, json_text(scheduled, "message", ""));
    }
    if (condition_is_true(pod, "DisruptionTarget")) {
        p->disrupted = true;
        p->tainted = strcmp(json_text(target, "reason", ""), "DeletionByTaintManager") == 0;
        take_text(&p->reason, json_text(target, "reason", ""));
        take_text(&p->message, json_text(target, "message", ""));
    } else if (reason[0] != '\0' && (p->phase == POD_FAILED || p->phase == POD_UNKNOWN)) {
        p->disrupted = true;
        take_text(&p->reason, reason);
        take_text(&p->message, json_text(pod, "status.message", ""));
    }
    if (p->phase == POD_FAILED && p->finished_ms == 0)
        p->finished_ms = read_time(kube_condition(pod, "Ready"), "lastTransitionTime");
}

const char *const POD_ENTRY_DROPS[] = {
    "metadata.managedFields", "spec.volumes", "spec.initContainers", "spec.tolerations", "spec.affinity", "spec.securityContext",
    "spec.imagePullSecrets", "spec.topologySpreadConstraints", "spec.containers.env", "spec.containers.envFrom",
    "spec.containers.command", "spec.containers.args", "spec.containers.volumeMounts", "spec.containers.resources",
    "spec.containers.ports", "spec.containers.securityContext", "spec.containers.livenessProbe", "spec.containers.readinessProbe",
    "spec.containers.startupProbe", "spec.containers.lifecycle", "status.containerStatuses.volumeMounts",
    "status.containerStatuses.resources", "status.containerStatuses.allocatedResources", NULL,
};

static int8_t gate_index(const cJSON *pod)
{
    const cJSON *gate;
    int8_t at = 0;

    cJSON_ArrayForEach(gate, json_at(pod, "spec.schedulingGates")) {
        if (strcmp(json_text(gate, "name", ""), POD_GATE) == 0)
            return at;
        if (at++ == INT8_MAX - 1)
            break; /* more gates than anybody has */
    }
    return -1;
}

bool pod_entry_project(void *ctx, const cJSON *object, void *ret_entry)
{
    struct pod_entry *p = ret_entry;
    const char *role_text = kube_label(object, LABEL_ROLE), *uid = kube_uid(object);
    enum job_role role;

    (void)ctx;
    if (role_text == NULL || !role_parse(role_text, &role) || uid[0] == '\0' || strlen(uid) >= sizeof p->uid)
        return false;
    if (!owner_name(object, p->job) || !read_number(object, LABEL_INDEX, JOB_MAX_REPLICAS, &p->index) ||
        !read_number(object, LABEL_ATTEMPT, INT32_MAX, &p->attempt))
        return false;
    (void)snprintf(p->uid, sizeof p->uid, "%s", uid);
    p->role = (uint8_t)role;
    p->phase = (uint8_t)read_phase(object);
    p->deleting = kube_deleting(object);
    p->gate_index = gate_index(object);
    p->gone_by_ms = read_time(object, "metadata.deletionTimestamp");
    p->created_ms = read_time(object, "metadata.creationTimestamp");
    take_text(&p->node, json_text(object, "spec.nodeName", ""));
    read_containers(object, p);
    read_system(object, p);
    return true;
}

void pod_entry_release(void *ctx, void *entry)
{
    struct pod_entry *p = entry;

    (void)ctx;
    free(p->node);
    free(p->reason);
    free(p->message);
    free(p->last_word);
}

/* ---- nodes ------------------------------------------------------------------------------------------------------------ */

static bool has_taint(const cJSON *node, const char *key)
{
    const cJSON *taint;

    cJSON_ArrayForEach(taint, json_at(node, "spec.taints")) {
        if (strcmp(json_text(taint, "key", ""), key) == 0)
            return true;
    }
    return false;
}

bool node_entry_project(void *ctx, const cJSON *object, void *ret_entry)
{
    struct node_entry *n = ret_entry;
    const char *ready = json_text(kube_condition(object, "Ready"), "status", "");

    (void)ctx;
    /* Unknown: its kubelet has been silent for the cluster's grace period. False is the kubelet's own word: it lives. */
    n->lost = strcmp(ready, "Unknown") == 0 || has_taint(object, "node.kubernetes.io/out-of-service");
    n->takes_pods = strcmp(ready, "True") == 0 && !json_bool(object, "spec.unschedulable", false);
    return true;
}

bool group_entry_project(void *ctx, const cJSON *object, void *ret_entry)
{
    struct group_entry *g = ret_entry;

    (void)ctx;
    if (!owner_name(object, g->job) || kube_deleting(object))
        return false;
    (void)snprintf(g->uid, sizeof g->uid, "%s", kube_uid(object));
    (void)snprintf(g->owner_uid, sizeof g->owner_uid, "%s", kube_controller_uid(object));
    gang_group_read(object, g->phase, g->message, &g->min_member);
    g->created_ms = read_time(object, "metadata.creationTimestamp");
    return true;
}

bool child_entry_project(void *ctx, const cJSON *object, void *ret_entry)
{
    struct child_entry *c = ret_entry;

    (void)ctx;
    return owner_name(object, c->job) && !kube_deleting(object);
}

/* ---- jobs ------------------------------------------------------------------------------------------------------------- */

static void copy_key(cJSON *to, const cJSON *from, const char *key)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(from, key);

    if (value != NULL)
        json_put(to, key, cJSON_Duplicate(value, true));
}

const char *const JOB_ENTRY_DROPS[] = { "metadata.managedFields", NULL };

/* The value stays the other's. */
static void lend_key(cJSON *to, const cJSON *from, const char *key)
{
    cJSON *value = cJSON_GetObjectItemCaseSensitive(from, key);

    if (value != NULL)
        (void)cJSON_AddItemReferenceToObject(to, key, value);
}

char *job_text(const cJSON *object)
{
    static const char *const KEPT[] = { "name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp",
                                        "deletionTimestamp", "labels" };
    const cJSON *from = cJSON_GetObjectItemCaseSensitive(object, "metadata");
    auto_json cJSON *o = json_object();
    cJSON *metadata = json_object();

    json_put_text(o, "apiVersion", JOB_API_VERSION); /* items of a list may come without */
    json_put_text(o, "kind", JOB_KIND);
    for (size_t i = 0; i < COUNT(KEPT); i++)
        lend_key(metadata, from, KEPT[i]);
    copy_key(metadata, from, "annotations");
    cJSON_DeleteItemFromObjectCaseSensitive(cJSON_GetObjectItemCaseSensitive(metadata, "annotations"), LAST_APPLIED);
    json_put(o, "metadata", metadata);
    lend_key(o, object, "spec");
    lend_key(o, object, "status");
    return json_print(o, false);
}

bool job_entry_project(void *ctx, const cJSON *object, void *ret_entry)
{
    struct job_entry *j = ret_entry;
    const char *uid = kube_uid(object), *version = kube_version(object), *phase = json_text(object, "status.phase", "");
    int64_t ttl_s = json_int(object, "spec.runPolicy.ttlSecondsAfterFinished", -1);

    (void)ctx;
    if (uid[0] == '\0' || strlen(uid) >= sizeof j->uid || version[0] == '\0' || strlen(version) >= sizeof j->version)
        return false;
    (void)snprintf(j->uid, sizeof j->uid, "%s", uid);
    (void)snprintf(j->version, sizeof j->version, "%s", version);
    for (enum job_phase p = 0; p < JOB_PHASES; p++)
        j->phase = strcmp(phase, phase_name(p)) == 0 ? p : j->phase;
    j->is_over = phase_is_final(j->phase);
    if (!j->is_over)
        j->text = job_text(object);
    else if (ttl_s >= 0)
        j->ttl_at_ms = read_time(object, "status.completionTime") + ttl_s * 1000;
    return true;
}

void job_entry_release(void *ctx, void *entry)
{
    (void)ctx;
    free(((struct job_entry *)entry)->text);
}

const char *job_entry_index(void *ctx, const cJSON *object)
{
    (void)ctx;
    (void)object;
    return "";
}
