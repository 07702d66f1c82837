#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "operator/observe.h"

#define META(more)                                                                                                            \
    "\"metadata\":{\"name\":\"mnist-worker-1\",\"namespace\":\"ml\",\"uid\":\"u-1\",\"creationTimestamp\":\"2026-01-01T00:00:00Z\"," \
    "\"labels\":{\"ringmaster.dev/replica-type\":\"worker\",\"ringmaster.dev/replica-index\":\"1\",\"ringmaster.dev/attempt\":\"2\"},"  \
    "\"annotations\":{\"ringmaster.dev/main-container\":\"train\"}," more                                                        \
    "\"ownerReferences\":[{\"apiVersion\":\"ringmaster.dev/v1alpha1\",\"kind\":\"TrainingJob\",\"name\":\"mnist\",\"uid\":\"j-1\","        \
    "\"controller\":true}]}"
#define SPEC ",\"spec\":{\"nodeName\":\"n1\",\"containers\":[{\"name\":\"proxy\"},{\"name\":\"train\"}]}"
#define POD(status) "{" META("") SPEC ",\"status\":" status "}"
#define DYING(status) "{" META("\"deletionTimestamp\":\"2026-01-01T01:00:00Z\",") SPEC ",\"status\":" status "}"
#define UNBOUND(status) "{" META("") ",\"spec\":{\"containers\":[{\"name\":\"train\"}]},\"status\":" status "}"
#define TRAIN_ENDED(code, reason, message)                                                                                    \
    "{\"name\":\"train\",\"state\":{\"terminated\":{\"exitCode\":" #code ",\"reason\":\"" reason "\",\"message\":\"" message "\","        \
    "\"startedAt\":\"2026-01-01T00:00:05Z\",\"finishedAt\":\"2026-01-01T00:00:09Z\"}}}"
#define PROXY_RUNS "{\"name\":\"proxy\",\"state\":{\"running\":{\"startedAt\":\"2026-01-01T00:00:04Z\"}}}"
#define SCHEDULED "{\"type\":\"PodScheduled\",\"status\":\"True\"}"

#define MILLISECONDS(seconds) (INT64_C(1767225600000) + (seconds) * 1000) /* from 2026-01-01 on */

struct row {
    const char *name, *json;
    bool job_is_over;
    enum pod_phase phase;
    bool scheduled, ready, deleting;
    int32_t exit_code, signal; /* -1: no exit */
    const char *reason, *message_holds;
};

static const struct row ROWS[] = {
    { .name = "just created", .json = UNBOUND("{\"phase\":\"Pending\"}"), .phase = POD_PENDING, .exit_code = -1, .reason = "" },
    { .name = "no room",
      .json = UNBOUND("{\"phase\":\"Pending\",\"conditions\":[{\"type\":\"PodScheduled\",\"status\":\"False\",\"reason\":\"Unschedulable\","
                      "\"message\":\"0/3 nodes are available: 3 Insufficient cpu.\"}]}"),
      .phase = POD_PENDING, .exit_code = -1, .reason = "Unschedulable", .message_holds = "Insufficient cpu" },
    { .name = "the image is not there",
      .json = POD("{\"phase\":\"Pending\",\"conditions\":[" SCHEDULED "],\"containerStatuses\":[{\"name\":\"train\",\"state\":{\"waiting\":"
                  "{\"reason\":\"ImagePullBackOff\",\"message\":\"Back-off pulling image \\\"x:1\\\"\"}}}]}"),
      .phase = POD_PENDING, .scheduled = true, .exit_code = -1, .reason = "ImagePullBackOff", .message_holds = "x:1" },
    { .name = "an init container's image is not there, the others wait for it",
      .json = POD("{\"phase\":\"Pending\",\"conditions\":[" SCHEDULED "],\"initContainerStatuses\":[{\"name\":\"get\",\"state\":{\"waiting\":"
                  "{\"reason\":\"ErrImagePull\",\"message\":\"not found\"}}}],\"containerStatuses\":[{\"name\":\"train\",\"state\":"
                  "{\"waiting\":{\"reason\":\"PodInitializing\"}}}]}"),
      .phase = POD_PENDING, .scheduled = true, .exit_code = -1, .reason = "ErrImagePull", .message_holds = "not found" },
    { .name = "being created",
      .json = POD("{\"phase\":\"Pending\",\"containerStatuses\":[{\"name\":\"train\",\"state\":{\"waiting\":{\"reason\":\"ContainerCreating\"}}}]}"),
      .phase = POD_PENDING, .scheduled = true, .exit_code = -1, .reason = "" },
    { .name = "runs",
      .json = POD("{\"phase\":\"Running\",\"conditions\":[" SCHEDULED ",{\"type\":\"Ready\",\"status\":\"True\"}],\"containerStatuses\":["
                  PROXY_RUNS ",{\"name\":\"train\",\"state\":{\"running\":{\"startedAt\":\"2026-01-01T00:00:05Z\"}}}]}"),
      .phase = POD_RUNNING, .scheduled = true, .ready = true, .exit_code = -1, .reason = "" },
    { .name = "failed, the log's end tells why",
      .json = POD("{\"phase\":\"Failed\",\"containerStatuses\":[" TRAIN_ENDED(3, "Error", "loss is NaN") "]}"),
      .phase = POD_FAILED, .scheduled = true, .exit_code = 3, .reason = "Error", .message_holds = "loss is NaN" },
    { .name = "killed by a signal", .json = POD("{\"phase\":\"Failed\",\"containerStatuses\":[" TRAIN_ENDED(139, "Error", "") "]}"),
      .phase = POD_FAILED, .scheduled = true, .exit_code = 139, .signal = 11, .reason = "Error" },
    { .name = "out of memory", .json = POD("{\"phase\":\"Failed\",\"containerStatuses\":[" TRAIN_ENDED(137, "OOMKilled", "") "]}"),
      .phase = POD_FAILED, .scheduled = true, .exit_code = 137, .signal = 9, .reason = "OOMKilled" },
    { .name = "the program is not in the image",
      .json = POD("{\"phase\":\"Failed\",\"containerStatuses\":[" TRAIN_ENDED(128, "StartError", "exec: no such file") "]}"),
      .phase = POD_FAILED, .scheduled = true, .exit_code = 128, .reason = "StartError", .message_holds = "no such file" },
    { .name = "the main container failed while another runs on",
      .json = POD("{\"phase\":\"Running\",\"containerStatuses\":[" PROXY_RUNS "," TRAIN_ENDED(1, "Error", "") "]}"),
      .phase = POD_FAILED, .scheduled = true, .exit_code = 1, .reason = "Error" },
    { .name = "the main container is done while another runs on",
      .json = POD("{\"phase\":\"Running\",\"containerStatuses\":[" PROXY_RUNS "," TRAIN_ENDED(0, "Completed", "") "]}"),
      .phase = POD_SUCCEEDED, .scheduled = true, .exit_code = 0, .reason = "Completed" },
    { .name = "the same in a job that is over: something still runs", .job_is_over = true,
      .json = POD("{\"phase\":\"Running\",\"containerStatuses\":[" PROXY_RUNS "," TRAIN_ENDED(0, "Completed", "") "]}"),
      .phase = POD_RUNNING, .scheduled = true, .exit_code = 0, .reason = "Completed" },
    { .name = "a job that is over, every container has ended and the pod not yet", .job_is_over = true,
      .json = POD("{\"phase\":\"Running\",\"containerStatuses\":[{\"name\":\"proxy\",\"state\":{\"terminated\":{\"exitCode\":0}}},"
                  TRAIN_ENDED(0, "Completed", "") "]}"),
      .phase = POD_SUCCEEDED, .scheduled = true, .exit_code = 0, .reason = "Completed" },
    { .name = "another container failed, the main one did its work",
      .json = POD("{\"phase\":\"Failed\",\"containerStatuses\":[{\"name\":\"proxy\",\"state\":{\"terminated\":{\"exitCode\":1,\"reason\":\"Error\"}}},"
                  TRAIN_ENDED(0, "Completed", "") "]}"),
      .phase = POD_SUCCEEDED, .scheduled = true, .exit_code = 0, .reason = "Completed" },
    { .name = "an init container failed",
      .json = POD("{\"phase\":\"Failed\",\"initContainerStatuses\":[{\"name\":\"get\",\"state\":{\"terminated\":{\"exitCode\":2,\"reason\":"
                  "\"Error\",\"message\":\"no data\"}}}],\"containerStatuses\":[{\"name\":\"train\",\"state\":{\"waiting\":{\"reason\":\"PodInitializing\"}}}]}"),
      .phase = POD_FAILED, .scheduled = true, .exit_code = 2, .reason = "Error", .message_holds = "init container get: no data" },
    { .name = "evicted",
      .json = POD("{\"phase\":\"Failed\",\"reason\":\"Evicted\",\"message\":\"The node was low on resource: memory.\",\"conditions\":["
                  "{\"type\":\"DisruptionTarget\",\"status\":\"True\",\"reason\":\"TerminationByKubelet\",\"message\":\"low on memory\"}],"
                  "\"containerStatuses\":[" TRAIN_ENDED(137, "Error", "") "]}"),
      .phase = POD_FAILED, .scheduled = true, .exit_code = 137, .signal = 9, .reason = "TerminationByKubelet", .message_holds = "low on memory" },
    { .name = "evicted before it was bound to anything",
      .json = UNBOUND("{\"phase\":\"Failed\",\"reason\":\"UnexpectedAdmissionError\",\"message\":\"Allocate failed\"}"),
      .phase = POD_FAILED, .exit_code = -1, .reason = "UnexpectedAdmissionError", .message_holds = "Allocate" },
    { .name = "told to go, ended with 0: its work is not done",
      .json = POD("{\"phase\":\"Failed\",\"conditions\":[{\"type\":\"DisruptionTarget\",\"status\":\"True\",\"reason\":\"PreemptionByScheduler\"}],"
                  "\"containerStatuses\":[" TRAIN_ENDED(0, "Completed", "") "]}"),
      .phase = POD_FAILED, .scheduled = true, .exit_code = -1, .reason = "PreemptionByScheduler" },
    { .name = "nobody saw it end",
      .json = POD("{\"phase\":\"Failed\",\"containerStatuses\":[" TRAIN_ENDED(137, "ContainerStatusUnknown", "could not be located") "]}"),
      .phase = POD_FAILED, .scheduled = true, .exit_code = -1, .reason = "ContainerStatusUnknown" },
    { .name = "its node was lost and is back",
      .json = POD("{\"phase\":\"Failed\",\"containerStatuses\":[" TRAIN_ENDED(255, "Unknown", "") "]}"),
      .phase = POD_FAILED, .scheduled = true, .exit_code = -1, .reason = "ContainerStatusUnknown" },
    { .name = "on its way out", .json = DYING("{\"phase\":\"Running\"}"), .phase = POD_RUNNING, .scheduled = true, .deleting = true,
      .exit_code = -1, .reason = "" },
    { .name = "a phase that nobody knows", .json = POD("{\"phase\":\"Dreaming\"}"), .phase = POD_UNKNOWN, .scheduled = true, .exit_code = -1, .reason = "" },
    { .name = "texts and numbers where objects belong",
      .json = POD("{\"phase\":7,\"conditions\":\"x\",\"containerStatuses\":[1,{\"name\":\"train\",\"state\":{\"terminated\":\"x\"}}]}"),
      .phase = POD_PENDING, .scheduled = true, .exit_code = -1, .reason = "" },
};

static bool entry_of(const char *json, struct pod_entry *entry)
{
    auto_json cJSON *object = NULL;
    struct error e = ERROR_INIT;

    cr_assert(json_parse(json, strlen(json), &object, &e) == 0, "%s", e.text);
    memset(entry, 0, sizeof *entry);
    return pod_entry_project(NULL, object, entry);
}

Test(observe, pods_as_the_api_server_shows_them)
{
    for (size_t i = 0; i < COUNT(ROWS); i++) {
        const struct row *r = &ROWS[i];
        struct pod_entry entry;
        struct pod_view v;
        cr_expect(entry_of(r->json, &entry), "case %s", r->name);
        observe_pod(&entry, false, r->job_is_over, MILLISECONDS(0), &v);
        cr_expect_eq(v.phase, r->phase, "case %s: phase %d", r->name, (int)v.phase);
        cr_expect(v.scheduled == r->scheduled && v.ready == r->ready && v.deleting == r->deleting, "case %s", r->name);
        cr_expect_eq(v.has_exit, r->exit_code >= 0, "case %s", r->name);
        cr_expect(!v.has_exit || (v.exit_code == r->exit_code && v.signal == r->signal), "case %s: %d %d", r->name, v.exit_code, v.signal);
        cr_expect_str_eq(v.reason, r->reason, "case %s: %s", r->name, v.reason);
        cr_expect(r->message_holds == NULL || strstr(v.message, r->message_holds) != NULL, "case %s: %s", r->name, v.message);
        cr_expect(v.role == ROLE_WORKER && v.index == 1 && v.attempt == 2 && strcmp(v.uid, "u-1") == 0, "case %s", r->name);
        cr_expect(strcmp(entry.job, "mnist") == 0 && v.created_ms == MILLISECONDS(0), "case %s", r->name);
        pod_entry_release(NULL, &entry);
    }
}

Test(observe, times_of_the_main_container)
{
    struct pod_entry entry;

    cr_assert(entry_of(POD("{\"phase\":\"Failed\",\"containerStatuses\":[" TRAIN_ENDED(1, "Error", "") "]}"), &entry));
    cr_expect_eq(entry.started_ms, MILLISECONDS(5));
    cr_expect_eq(entry.finished_ms, MILLISECONDS(9));
    pod_entry_release(NULL, &entry);
}

Test(observe, objects_that_are_no_pods_of_ours)
{
    static const struct { const char *name, *json; } STRANGERS[] = {
        { "nothing", "{}" },
        { "no labels", "{\"metadata\":{\"name\":\"x\",\"uid\":\"u\"}}" },
        { "no owner", "{\"metadata\":{\"name\":\"x\",\"uid\":\"u\",\"labels\":{\"ringmaster.dev/replica-type\":\"worker\","
                      "\"ringmaster.dev/replica-index\":\"0\",\"ringmaster.dev/attempt\":\"1\"}}}" },
        { "an index that is none", "{\"metadata\":{\"name\":\"x\",\"uid\":\"u\",\"labels\":{\"ringmaster.dev/replica-type\":\"worker\","
                                   "\"ringmaster.dev/replica-index\":\"-1\",\"ringmaster.dev/attempt\":\"1\"},\"ownerReferences\":[{\"kind\":"
                                   "\"TrainingJob\",\"name\":\"j\",\"uid\":\"k\",\"controller\":true}]}}" },
        { "owned by another kind", "{\"metadata\":{\"name\":\"x\",\"uid\":\"u\",\"labels\":{\"ringmaster.dev/replica-type\":\"worker\","
                                   "\"ringmaster.dev/replica-index\":\"0\",\"ringmaster.dev/attempt\":\"1\"},\"ownerReferences\":[{\"kind\":"
                                   "\"Job\",\"name\":\"j\",\"uid\":\"k\",\"controller\":true}]}}" },
    };

    for (size_t i = 0; i < COUNT(STRANGERS); i++) {
        struct pod_entry entry;
        cr_expect(!entry_of(STRANGERS[i].json, &entry), "case %s", STRANGERS[i].name);
        pod_entry_release(NULL, &entry);
    }
}

Test(observe, a_pod_that_a_lost_node_holds)
{
    struct pod_entry entry;
    struct pod_view v;

    cr_assert(entry_of(DYING("{\"phase\":\"Running\",\"conditions\":[{\"type\":\"DisruptionTarget\",\"status\":\"True\",\"reason\":"
                             "\"DeletionByTaintManager\"}]}"), &entry));
    observe_pod(&entry, false, false, MILLISECONDS(3605), &v);
    cr_expect(!v.node_lost, "it may still end by itself");
    observe_pod(&entry, false, false, MILLISECONDS(3620), &v);
    cr_expect(v.node_lost, "long after its time, and nodes are not watched");
    observe_pod(&entry, true, false, MILLISECONDS(0), &v);
    cr_expect(v.node_lost);
    pod_entry_release(NULL, &entry);
}

#define SIDECAR(list, state) "{\"phase\":\"Running\",\"" list "\":[{\"name\":\"ringmaster\",\"state\":" state "}]}"
#define ENDED(word) "{\"terminated\":{\"exitCode\":0,\"message\":\"" word "\"}}"

Test(observe, sidecars_that_run_and_what_they_leave)
{
    static const struct { const char *name, *json, *word; bool runs; } SIDECARS[] = {
        { "none", POD("{\"phase\":\"Running\"}"), NULL, false },
        { "native", POD(SIDECAR("initContainerStatuses", "{\"running\":{}}")), NULL, true },
        { "a container as any other", POD(SIDECAR("containerStatuses", "{\"running\":{}}")), NULL, true },
        { "it waits", POD(SIDECAR("initContainerStatuses", "{\"waiting\":{}}")), NULL, false },
        { "it has ended", POD(SIDECAR("initContainerStatuses", ENDED("{}"))), "{}", false },
        { "it has ended with what is no word", POD(SIDECAR("initContainerStatuses", ENDED("panic"))), NULL, false },
        { "in a pod that is over",
          POD("{\"phase\":\"Succeeded\",\"initContainerStatuses\":[{\"name\":\"ringmaster\",\"state\":{\"running\":{}}}]}"), NULL, false },
        { "another one", POD("{\"phase\":\"Running\",\"initContainerStatuses\":[{\"name\":\"x\",\"state\":{\"running\":{}}}]}"), NULL, false },
    };

    for (size_t i = 0; i < COUNT(SIDECARS); i++) {
        struct pod_entry entry;
        struct pod_view v;
        cr_assert(entry_of(SIDECARS[i].json, &entry), "case %s", SIDECARS[i].name);
        cr_expect_eq(entry.sidecar_runs, SIDECARS[i].runs, "case %s", SIDECARS[i].name);
        cr_expect((entry.last_word == NULL) == (SIDECARS[i].word == NULL), "case %s", SIDECARS[i].name);
        observe_pod(&entry, false, false, MILLISECONDS(0), &v);
        cr_expect_eq(v.speaks, SIDECARS[i].runs, "case %s", SIDECARS[i].name);
        observe_pod(&entry, true, false, MILLISECONDS(0), &v);
        cr_expect(!v.speaks, "case %s: nobody hears what a lost node holds", SIDECARS[i].name);
        pod_entry_release(NULL, &entry);
    }
}

Test(observe, nodes)
{
    static const struct { const char *name, *json; bool lost, takes_pods; } NODES[] = {
        { "ready", "{\"status\":{\"conditions\":[{\"type\":\"Ready\",\"status\":\"True\"}]}}", false, true },
        { "cordoned", "{\"spec\":{\"unschedulable\":true},\"status\":{\"conditions\":[{\"type\":\"Ready\",\"status\":\"True\"}]}}", false, false },
        { "silent", "{\"status\":{\"conditions\":[{\"type\":\"Ready\",\"status\":\"Unknown\"}]}}", true, false },
        { "says itself that it is not ready", "{\"status\":{\"conditions\":[{\"type\":\"Ready\",\"status\":\"False\"}]}}", false, false },
        { "declared dead", "{\"spec\":{\"taints\":[{\"key\":\"node.kubernetes.io/out-of-service\"}]},\"status\":{\"conditions\":"
                           "[{\"type\":\"Ready\",\"status\":\"False\"}]}}", true, false },
    };

    for (size_t i = 0; i < COUNT(NODES); i++) {
        struct node_entry n = { .lost = false };
        struct error e = ERROR_INIT;
        auto_json cJSON *object = NULL;
        cr_assert(json_parse(NODES[i].json, strlen(NODES[i].json), &object, &e) == 0);
        cr_expect(node_entry_project(NULL, object, &n), "case %s", NODES[i].name);
        cr_expect(n.lost == NODES[i].lost && n.takes_pods == NODES[i].takes_pods, "case %s", NODES[i].name);
    }
}

Test(observe, a_job_that_is_over_keeps_no_text)
{
    static const char TEXT[] = "{\"metadata\":{\"name\":\"j\",\"uid\":\"u\",\"resourceVersion\":\"7\",\"managedFields\":[{}],\"annotations\":"
                               "{\"kubectl.kubernetes.io/last-applied-configuration\":\"{}\",\"a\":\"b\"}},\"spec\":{\"runPolicy\":"
                               "{\"ttlSecondsAfterFinished\":60}},\"status\":{\"phase\":\"%s\",\"completionTime\":\"2026-01-01T00:00:00Z\"}}";

    for (int over = 0; over < 2; over++) {
        struct job_entry j = { .is_over = false };
        struct error e = ERROR_INIT;
        auto_json cJSON *object = NULL;
        auto_free char *text = xasprintf(TEXT, over ? "Succeeded" : "Running");
        cr_assert(json_parse(text, strlen(text), &object, &e) == 0, "%s", e.text);
        cr_assert(job_entry_project(NULL, object, &j));
        cr_expect_eq(j.is_over, over == 1);
        cr_expect_eq(j.ttl_at_ms, over ? MILLISECONDS(60) : 0);
        cr_expect_eq(j.text == NULL, over == 1);
        if (j.text != NULL) {
            cr_expect(strstr(j.text, "managedFields") == NULL && strstr(j.text, "last-applied") == NULL, "%s", j.text);
            cr_expect(strstr(j.text, "\"a\":\"b\"") != NULL && strstr(j.text, "\"kind\":\"TrainingJob\"") != NULL, "%s", j.text);
        }
        job_entry_release(NULL, &j);
    }
}
