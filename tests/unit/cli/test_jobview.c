#include <criterion/criterion.h>
#include <string.h>

#include "base/mem.h"
#include "cli/jobview.h"
#include "cli/replica.h"

#define NOW 1000000000000 /* 2001-09-09T01:46:40Z */

static cJSON *parsed(const char *text)
{
    cJSON *tree = NULL;
    struct error e = ERROR_INIT;
    cr_assert_eq(json_parse(text, strlen(text), &tree, &e), 0, "%s: %s", e.text, text);
    return tree;
}

static const char JOB[] =
    "{\"apiVersion\":\"ringmaster.dev/v1alpha1\",\"kind\":\"TrainingJob\",\"metadata\":{\"name\":\"mnist\",\"namespace\":\"team\","
    "\"creationTimestamp\":\"2001-09-09T01:36:40Z\"},"
    "\"spec\":{\"replicaSpecs\":{\"Chief\":{\"replicas\":1,\"template\":{\"spec\":{\"containers\":[{\"name\":\"main\",\"image\":\"i\",\"command\":[\"c\"]}]}}},"
    "\"Worker\":{\"replicas\":2,\"template\":{\"spec\":{\"containers\":[{\"name\":\"main\",\"image\":\"i\",\"command\":[\"c\"]}]}}}}},"
    "\"status\":{\"phase\":\"Running\",\"ready\":\"2/3\",\"attempt\":2,\"round\":1,\"restarts\":3,\"startTime\":\"2001-09-09T01:45:40Z\","
    "\"conditions\":[{\"type\":\"Running\",\"status\":\"True\",\"reason\":\"JobRunning\",\"message\":\"all run\",\"lastTransitionTime\":\"2001-09-09T01:46:00Z\"}],"
    "\"progress\":{\"step\":30,\"totalSteps\":60,\"stepsPerSecond\":2.5,\"loss\":0.25,\"etaSeconds\":12},"
    "\"checkpoint\":{\"step\":20,\"time\":\"2001-09-09T01:46:30Z\",\"attempt\":2,\"verified\":true,\"uri\":\"/ckpt/20\"},"
    "\"ring\":{\"size\":3,\"selfTestPassed\":true,\"bytesReduced\":1048576,\"operations\":7,\"busBandwidth\":1.5,"
    "\"formedTime\":\"2001-09-09T01:46:10Z\",\"stragglerRank\":2,\"stepMilliseconds\":20.25,\"slowestStepMilliseconds\":31,\"members\":\"chief-0,worker-0,worker-1\"},"
    "\"failures\":[{\"attempt\":1,\"round\":0,\"role\":\"Worker\",\"index\":1,\"exitCode\":137,\"signal\":9,\"reason\":\"Error\",\"class\":\"User\","
    "\"node\":\"node-2\",\"message\":\"first line\\nlast \\u001b[31mwords\\n\",\"time\":\"2001-09-09T01:41:40Z\",\"lostSteps\":4}]}}";

static const char POD[] =
    "{\"metadata\":{\"name\":\"mnist-%s-%d\",\"uid\":\"u\",\"creationTimestamp\":\"2001-09-09T01:43:20Z\",\"labels\":{\"ringmaster.dev/replica-type\":\"%s\","
    "\"ringmaster.dev/replica-index\":\"%d\",\"ringmaster.dev/attempt\":\"2\"},\"annotations\":{\"ringmaster.dev/main-container\":\"main\"}},"
    "\"spec\":{\"nodeName\":\"node-1\",\"containers\":[{\"name\":\"main\"}]},\"status\":{\"phase\":\"Running\",\"containerStatuses\":[{\"name\":\"main\","
    "\"restartCount\":0,\"state\":%s}]}}";

static cJSON *pod_of(const char *role, int index, const char *state)
{
    auto_free char *text = xasprintf(POD, role, index, role, index, state);
    return parsed(text);
}

static void has(const struct buf *out, const char *text)
{
    cr_expect(strstr(buf_text(out), text) != NULL, "\"%s\" is not in:\n%s", text, buf_text(out));
}

Test(jobview, one_job_in_full)
{
    auto_json cJSON *job = parsed(JOB), *chief = pod_of("chief", 0, "{\"running\":{}}"), *worker = pod_of("worker", 0, "{\"running\":{}}");
    auto_json cJSON *event = parsed("{\"involvedObject\":{\"name\":\"mnist\"},\"type\":\"Warning\",\"reason\":\"TrainingJobRestarting\",\"count\":3,"
                                    "\"message\":\"worker-1 was ended\",\"lastTimestamp\":\"2001-09-09T01:46:20Z\"}");
    const cJSON *pods[] = { worker, chief }, *events[] = { event };
    struct jobview v = { .job = job, .pods = pods, .pod_count = 2, .events = events, .event_count = 1, .events_shown = 8, .now_wall_ms = NOW };
    struct view_style style = { .width = 200 };
    auto_buf struct buf out = BUF_INIT(65536);
    jobview_format(&v, &style, &out);
    has(&out, "mnist  Running  attempt 2 round 1  ring of 3  busbw 1.50 GB/s  checkpoint at 20  restarts 3  1 min 00 s\n");
    has(&out, "RANK  MEMBER    PHASE       NODE    RESTARTS  FAILURES    AGE  POD\n");
    has(&out, "   0  chief-0   running     node-1         0         0     3m  mnist-chief-0\n");
    has(&out, "   1  worker-0  running     node-1         0         0");
    has(&out, "   2  worker-1  pending     -              0         1      -  -  slowest\n");
    has(&out, "step 30/60 (50 %)  loss 0.2500  2.5 steps/s  eta 12 s\n");
    has(&out, "\nConditions:\n  Running        True     40s  JobRunning                all run\n");
    has(&out, "\nRing:\n  3 ranks, self-test passed, formed 30s ago; 1.0 MiB reduced in 7 operations, busbw 1.50 GB/s\n"
              "  a step takes a rank 20.2 ms of its own (median), the slowest, rank 2, 31.0 ms\n  in the order chief-0,worker-0,worker-1\n");
    has(&out, "\nCheckpoint:\n  step 20, 10s ago, attempt 2, verified  /ckpt/20\n");
    has(&out, "\nFailures:\n     5m  worker-1      attempt 1 round 0  Error (User)  signal 9  on node-2  4 steps lost\n         last  [31mwords\n");
    has(&out, "\nEvents:\n    20s x3   Warning  TrainingJobRestarting   worker-1 was ended\n");
    cr_expect(strchr(buf_text(&out), '\033') == NULL, "nothing from the cluster steers the terminal");
}

Test(jobview, nothing_is_trusted)
{
    static const char *const JOBS[] = {
        "{}", "{\"metadata\":{\"name\":\"x\"},\"status\":7}", "{\"metadata\":7,\"status\":{\"phase\":\"Bogus\",\"conditions\":{\"a\":1}}}",
        "{\"metadata\":{\"name\":\"x\"},\"status\":{\"conditions\":[1,{\"type\":[]}],\"failures\":[7]}}",
    };
    static const char *const OBJECTS[] = { "{}", "[]", "7", "{\"metadata\":{\"labels\":{\"ringmaster.dev/replica-type\":\"king\",\"ringmaster.dev/replica-index\":\"0\"}}}",
                                           "{\"metadata\":{\"labels\":{\"ringmaster.dev/replica-type\":\"worker\",\"ringmaster.dev/replica-index\":\"-1\"}}}",
                                           "{\"metadata\":{\"labels\":{\"ringmaster.dev/replica-type\":\"worker\",\"ringmaster.dev/replica-index\":\"5\"}},"
                                           "\"spec\":{\"containers\":7},\"status\":{\"containerStatuses\":[7]}}" };
    for (size_t j = 0; j < COUNT(JOBS); j++) {
        auto_json cJSON *job = parsed(JOBS[j]);
        for (size_t i = 0; i < COUNT(OBJECTS); i++) {
            auto_json cJSON *object = parsed(OBJECTS[i]);
            const cJSON *list[] = { object }, *jobs[] = { job };
            struct jobview v = { .job = job, .pods = list, .pod_count = 1, .events = list, .event_count = 1, .events_shown = 8, .now_wall_ms = NOW };
            struct view_style style = { .width = 80 };
            auto_buf struct buf out = BUF_INIT(65536);
            jobview_format(&v, &style, &out);
            jobview_table(jobs, 1, true, &style, NOW, &out);
            jobview_line(job, true, &out);
            cr_expect(out.len > 0 && buf_ok(&out));
        }
    }
}

Test(jobview, the_table)
{
    auto_json cJSON *job = parsed(JOB), *fresh = parsed("{\"metadata\":{\"name\":\"a-longer-name\",\"namespace\":\"default\"}}");
    const cJSON *jobs[] = { fresh, job };
    struct view_style style = { .width = 200 };
    auto_buf struct buf out = BUF_INIT(4096), narrow = BUF_INIT(4096), line = BUF_INIT(4096);
    jobview_table(jobs, 2, true, &style, NOW, &out);
    cr_expect_str_eq(buf_text(&out), "NAMESPACE  NAME           PHASE       READY      RESTARTS             STEP    AGE\n"
                                     "default    a-longer-name  -           -                 0                -      -\n"
                                     "team       mnist          Running     2/3               3            30/60    10m\n", "%s", buf_text(&out));
    style.width = 20;
    jobview_table(jobs, 1, false, &style, NOW, &narrow);
    cr_expect_str_eq(buf_text(&narrow), "NAME           PHASE\na-longer-name  -    \n", "%s", buf_text(&narrow));
    jobview_line(job, true, &line);
    cr_expect_str_eq(buf_text(&line), "mnist: Running, attempt 2 round 1, 2/3 ready, step 30/60 (50 %)  loss 0.2500  2.5 steps/s  eta 12 s");
}

Test(replica, how_a_pod_stands)
{
    static const struct { const char *state, *pod_status, *node, *phase, *reason; bool started, ended; } ROWS[] = {
        { "{\"running\":{}}", "Running", "n", "running", "", true, false },
        { "{\"waiting\":{\"reason\":\"ContainerCreating\"}}", "Pending", "n", "starting", "", false, false },
        { "{\"waiting\":{\"reason\":\"ImagePullBackOff\"}}", "Pending", "n", "starting", "ImagePullBackOff", false, false },
        { "{\"terminated\":{\"exitCode\":0,\"reason\":\"Completed\"}}", "Running", "n", "done", "", true, true },
        { "{\"terminated\":{\"exitCode\":137,\"reason\":\"OOMKilled\"}}", "Running", "n", "failed", "OOMKilled", true, true },
        { "{}", "Failed", "n", "failed", "Evicted", false, false },
        { "{}", "Pending", "", "pending", "Unschedulable", false, false },
    };
    for (size_t i = 0; i < COUNT(ROWS); i++) {
        auto_json cJSON *pod = pod_of("worker", 3, ROWS[i].state);
        cJSON *status = cJSON_GetObjectItem(pod, "status"), *spec = cJSON_GetObjectItem(pod, "spec");
        struct replica r;
        cJSON_ReplaceItemInObject(status, "phase", cJSON_CreateString(ROWS[i].pod_status));
        cJSON_ReplaceItemInObject(spec, "nodeName", cJSON_CreateString(ROWS[i].node));
        if (strcmp(ROWS[i].pod_status, "Failed") == 0)
            json_put_text(status, "reason", "Evicted");
        if (!*ROWS[i].node)
            json_put(status, "conditions", parsed("[{\"type\":\"PodScheduled\",\"status\":\"False\",\"reason\":\"Unschedulable\"}]"));
        cr_assert(replica_of(pod, &r), "case %zu", i);
        cr_expect_str_eq(r.phase, ROWS[i].phase, "case %zu: %s", i, r.phase);
        cr_expect_str_eq(r.reason, ROWS[i].reason, "case %zu: %s", i, r.reason);
        cr_expect_eq(r.started, ROWS[i].started, "case %zu", i);
        cr_expect_eq(r.ended, ROWS[i].ended, "case %zu", i);
        cr_expect_str_eq(r.member, "worker-3");
    }
}
