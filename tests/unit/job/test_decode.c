#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"
#include "job/decode.h"
#include "job/manifest.h"

static struct training_job *decode(const char *text)
{
    auto_free struct problems *problems = xcalloc(1, sizeof *problems);
    auto_yaml struct yaml_doc *doc = NULL;
    struct training_job *job = NULL;
    struct error e = ERROR_INIT;

    cr_assert_eq(yaml_parse("job.yaml", text, strlen(text), &doc, &e), 0, "%s", e.text);
    auto_free char *before = json_print(yaml_tree(doc, 0), false);
    if (job_decode(yaml_tree(doc, 0), doc, problems, &job, &e) < 0) {
        auto_free char *report = problems_format(problems, "job.yaml");
        cr_assert_fail("%s\n%s", e.text, report);
    }
    auto_free char *after = json_print(yaml_tree(doc, 0), false);
    cr_expect_str_eq(after, before, "job_decode changed the manifest");
    return job;
}

#define HEAD "apiVersion: ringmaster.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: mnist}\n"
#define TEMPLATE "template: {spec: {containers: [{name: tensorflow, command: [python, train.py]}]}}"

Test(decode, a_short_manifest_gets_every_default)
{
    auto_job struct training_job *job = decode(HEAD "spec: {replicaSpecs: {Worker: {" TEMPLATE "}}}");
    const struct job_spec *s = &job->spec;

    cr_expect_str_eq(job->name, "mnist");
    cr_expect_str_eq(job->namespace, "default");
    cr_expect_str_eq(job->uid, "");
    cr_expect_not(job->deleting);
    cr_expect(cJSON_IsObject(job->labels) && cJSON_IsObject(job->annotations));
    cr_expect_not(s->suspend);
    cr_expect_str_eq(s->managed_by, JOB_MANAGED_BY);
    cr_expect(s->frameworks[FRAMEWORK_TENSORFLOW] && !s->frameworks[FRAMEWORK_PYTORCH] && !s->frameworks[FRAMEWORK_MPI]);
    cr_expect_eq(s->success_policy, SUCCESS_CHIEF);
    cr_expect_eq(s->clean_pod_policy, CLEAN_RUNNING);
    cr_expect_not(s->ttl_after_finished_s.set);
    cr_expect_not(s->active_deadline_s.set);
    cr_expect_eq(s->backoff_limit, 6);
    cr_expect_eq(s->scheduling.gang, GANG_AUTO);
    cr_expect_null(s->scheduling.queue);
    cr_expect_not(s->min_replicas.set || s->max_replicas.set);
    cr_expect(s->roles[ROLE_WORKER].present && !s->roles[ROLE_CHIEF].present);
    cr_expect_eq(s->roles[ROLE_WORKER].replicas, 1);
    cr_expect_eq(s->roles[ROLE_WORKER].restart_policy, RESTART_EXIT_CODE);
    cr_expect_eq(s->failure.strategy, STRATEGY_IN_PLACE);
    cr_expect_not(s->failure.max_restarts.set || s->failure.max_disruptions.set || s->failure.force_delete_after_s.set);
    cr_expect_eq(s->failure.backoff_base_s, 1);
    cr_expect_eq(s->failure.backoff_max_s, 300);
    cr_expect_eq(s->failure.oom_action, OOM_RESTART);
    cr_expect_float_eq(s->failure.oom_factor, 2.0, 0);
    cr_expect(s->failure.avoid_nodes);
    cr_expect_eq(s->failure.avoid_nodes_ttl_s, 86400);
    cr_expect_eq(s->failure.avoid_nodes_max_percent, 10);
    cr_expect_eq(s->failure.rule_count, 0);
    cr_expect_str_eq(s->network.subdomain, "");
    cr_expect(s->network.publish_not_ready && !s->network.service_per_pod && !s->network.network_policy);
    cr_expect_not(s->coordinator.set);
    cr_expect(s->tf_config.master_as_chief && !s->tf_config.evaluator_in_cluster);
    cr_expect_str_eq(s->tf_config.container, "");
    cr_expect_eq(s->tf_config.port, 2222);
    cr_expect_eq(s->health.straggler_percent, 30);
    cr_expect(s->health.peer_timeout_ms == 1000 && s->health.stall_warning_s == 60 && s->health.stall_shutdown_s == 0);
    cr_expect(s->checkpoint.enabled && s->checkpoint.on_termination && s->checkpoint.memory_tier);
    cr_expect_str_eq(s->checkpoint.path, "");
    cr_expect_eq(s->checkpoint.keep_last, 3);
    cr_expect_not(s->checkpoint.every_steps.set || s->checkpoint.every_seconds.set);
    cr_expect_eq(s->sidecar.ring_port, 7700);
    cr_expect_not(s->sidecar.tls);
}

static const char FULL[] =
    "apiVersion: ringmaster.dev/v1alpha1\n"
    "kind: TrainingJob\n"
    "metadata:\n"
    "  name: mnist\n"
    "  namespace: team-a\n"
    "  uid: u-0123\n"
    "  generation: 4\n"
    "  creationTimestamp: 2026-02-03T04:05:06Z\n"
    "  labels: {kueue.x-k8s.io/queue-name: team-a}\n"
    "spec:\n"
    "  suspend: true\n"
    "  managedBy: kueue.x-k8s.io/multikueue\n"
    "  frameworks: [PyTorch, JAX]\n"
    "  successPolicy: AllWorkers\n"
    "  enableDynamicWorker: true\n"
    "  runPolicy:\n"
    "    cleanPodPolicy: None\n"
    "    ttlSecondsAfterFinished: 0\n"
    "    activeDeadlineSeconds: 604800\n"
    "    backoffLimit: -1\n"
    "    suspend: false\n"
    "    managedBy: example.com/x\n"
    "    schedulingPolicy:\n"
    "      gang: SchedulingGates\n"
    "      minAvailable: 3\n"
    "      queue: team-a\n"
    "      minResources: {nvidia.com/gpu: '8', cpu: 2}\n"
    "      priorityClass: high\n"
    "      scheduleTimeoutSeconds: 600\n"
    "      startTimeoutSeconds: 900\n"
    "      topology: {required: rack, preferred: zone}\n"
    "  replicaSpecs:\n"
    "    Master: {restartPolicy: OnFailure, " TEMPLATE "}\n"
    "    Worker: {replicas: 4, restartPolicy: Always, " TEMPLATE "}\n"
    "    PS: {replicas: 2, restartPolicy: Never, " TEMPLATE "}\n"
    "    Evaluator: {" TEMPLATE "}\n"
    "  elasticPolicy: {minReplicas: 2, maxReplicas: 8}\n"
    "  failurePolicy:\n"
    "    restartStrategy: RecreatePods\n"
    "    maxRestarts: 20\n"
    "    maxDisruptions: 0\n"
    "    restartWindowSeconds: 3600\n"
    "    backoffBaseSeconds: 2\n"
    "    backoffMaxSeconds: 60\n"
    "    oomPolicy: {action: RestartWithMoreMemory, factor: 1.5, maxBytes: 64Gi}\n"
    "    nodeLost: {forceDeleteAfterSeconds: 120}\n"
    "    avoidNodes: {enabled: false, ttlSeconds: 60, maxPercent: 50}\n"
    "    rules:\n"
    "    - name: bad-config\n"
    "      action: FailJob\n"
    "      onExitCodes: {containerName: tensorflow, operator: In, values: [2, 64]}\n"
    "    - action: RestartJobAndIgnoreMaxRestarts\n"
    "      onPodConditions: [{type: DisruptionTarget}, {type: Ready, status: 'False'}]\n"
    "      onReasons: [Evicted, NodeLost]\n"
    "      onMessagePattern: 'ECC|Xid'\n"
    "      targetRoles: [Worker, PS]\n"
    "  network: {subdomain: ring, publishNotReadyAddresses: false, servicePerPod: true, clusterDomain: cluster.local, networkPolicy: true}\n"
    "  coordinator: {role: Worker, index: 1}\n"
    "  tfConfig: {masterAsChief: false, evaluatorInCluster: true, containerName: tensorflow, port: 3333}\n"
    "  health: {progressTimeoutSeconds: 1800, peerTimeoutMilliseconds: 3000, stallWarningSeconds: 5, stallShutdownSeconds: 90, nodeCheck: AfterFailure, stragglerThresholdPercent: 0}\n"
    "  checkpoint: {enabled: false, path: /ckpt, everySteps: 500, everySeconds: 600, keepLast: 5, onTermination: false, memoryTier: false}\n"
    "  sidecar: {mode: Container, image: img, ringPort: 7701, resources: {limits: {cpu: 500m}}, shmSizeLimit: 8Gi, tls: true, checksums: true, wireFormat: Int8}\n"
    "  volumeClaimPolicies:\n"
    "  - templates: [{metadata: {name: data}, spec: {accessModes: [ReadWriteMany], resources: {requests: {storage: 1Gi}}}}]\n";

Test(decode, every_field_arrives)
{
    auto_job struct training_job *job = decode(FULL);
    const struct job_spec *s = &job->spec;

    cr_expect_str_eq(job->namespace, "team-a");
    cr_expect_str_eq(job->uid, "u-0123");
    cr_expect_eq(job->generation, 4);
    cr_expect_eq(job->created_ms, 1770091506000);
    cr_expect_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(job->labels, "kueue.x-k8s.io/queue-name")), "team-a");
    cr_expect(s->suspend, "spec wins over runPolicy");
    cr_expect_str_eq(s->managed_by, "kueue.x-k8s.io/multikueue");
    cr_expect(!s->frameworks[FRAMEWORK_TENSORFLOW] && s->frameworks[FRAMEWORK_PYTORCH] && s->frameworks[FRAMEWORK_JAX]);
    cr_expect_eq(s->success_policy, SUCCESS_ALL_WORKERS);
    cr_expect(s->enable_dynamic_worker);
    cr_expect_eq(s->clean_pod_policy, CLEAN_NONE);
    cr_expect(s->ttl_after_finished_s.set && s->ttl_after_finished_s.value == 0);
    cr_expect(s->active_deadline_s.set && s->active_deadline_s.value == 604800);
    cr_expect_eq(s->backoff_limit, -1);
    cr_expect_eq(s->scheduling.gang, GANG_SCHEDULING_GATES);
    cr_expect(s->scheduling.min_available.set && s->scheduling.min_available.value == 3);
    cr_expect_str_eq(s->scheduling.queue, "team-a");
    cr_expect_eq(cJSON_GetArraySize(s->scheduling.min_resources), 2);
    cr_expect_str_eq(s->scheduling.priority_class, "high");
    cr_expect_eq(s->scheduling.schedule_timeout_s.value, 600);
    cr_expect_eq(s->scheduling.start_timeout_s.value, 900);
    cr_expect_str_eq(s->scheduling.topology_required, "rack");
    cr_expect_str_eq(s->scheduling.topology_preferred, "zone");
    cr_expect_eq(s->roles[ROLE_MASTER].restart_policy, RESTART_ON_FAILURE);
    cr_expect_eq(s->roles[ROLE_WORKER].restart_policy, RESTART_ALWAYS);
    cr_expect_eq(s->roles[ROLE_WORKER].replicas, 4);
    cr_expect_eq(s->roles[ROLE_PS].restart_policy, RESTART_NEVER);
    cr_expect_str_eq(json_text(s->roles[ROLE_EVALUATOR].template, "spec.containers", "a list"), "a list");
    cr_expect(s->min_replicas.value == 2 && s->max_replicas.value == 8);
    cr_expect_eq(s->failure.strategy, STRATEGY_RECREATE_PODS);
    cr_expect_eq(s->failure.max_restarts.value, 20);
    cr_expect(s->failure.max_disruptions.set && s->failure.max_disruptions.value == 0);
    cr_expect_eq(s->failure.restart_window_s, 3600);
    cr_expect(s->failure.backoff_base_s == 2 && s->failure.backoff_max_s == 60);
    cr_expect_eq(s->failure.oom_action, OOM_RESTART_WITH_MORE_MEMORY);
    cr_expect_float_eq(s->failure.oom_factor, 1.5, 0);
    cr_expect_eq(s->failure.oom_max_bytes, 64LL << 30);
    cr_expect_eq(s->failure.force_delete_after_s.value, 120);
    cr_expect(!s->failure.avoid_nodes && s->failure.avoid_nodes_ttl_s == 60 && s->failure.avoid_nodes_max_percent == 50);
    cr_expect_str_eq(s->network.subdomain, "ring");
    cr_expect(!s->network.publish_not_ready && s->network.service_per_pod && s->network.network_policy);
    cr_expect_str_eq(s->network.cluster_domain, "cluster.local");
    cr_expect(s->coordinator.set && s->coordinator.role == ROLE_WORKER && s->coordinator.index == 1);
    cr_expect(!s->tf_config.master_as_chief && s->tf_config.evaluator_in_cluster && s->tf_config.port == 3333);
    cr_expect(s->health.progress_timeout_s.set && s->health.progress_timeout_s.value == 1800 && s->health.first_step_timeout_s == 1800 && s->health.node_check == 2 && s->health.straggler_percent == 0);
    cr_expect(s->health.peer_timeout_ms == 3000 && s->health.stall_warning_s == 5 && s->health.stall_shutdown_s == 90);
    cr_expect(!s->checkpoint.enabled && !s->checkpoint.on_termination && !s->checkpoint.memory_tier);
    cr_expect_str_eq(s->checkpoint.path, "/ckpt");
    cr_expect(s->checkpoint.every_steps.value == 500 && s->checkpoint.every_seconds.value == 600 && s->checkpoint.keep_last == 5);
    cr_expect(s->sidecar.mode == 2 && s->sidecar.ring_port == 7701 && s->sidecar.tls && s->sidecar.checksums && s->sidecar.wire == 3);
    cr_expect_str_eq(s->sidecar.image, "img");
    cr_expect_str_eq(json_text(s->sidecar.resources, "limits.cpu", ""), "500m");
    cr_expect_eq(s->sidecar.shm_size_bytes, 8LL << 30);
    cr_expect_eq(cJSON_GetArraySize(s->volume_claim_policies), 1);
}

Test(decode, rules_arrive)
{
    auto_job struct training_job *job = decode(FULL);
    const struct failure_rule *a = &job->spec.failure.rules[0], *b = &job->spec.failure.rules[1];

    cr_assert_eq(job->spec.failure.rule_count, 2);
    cr_expect_str_eq(a->name, "bad-config");
    cr_expect_eq(a->action, RULE_FAIL_JOB);
    cr_expect(a->has_exit_codes && a->exit_codes_in && a->exit_code_count == 2 && a->exit_codes[1] == 64);
    cr_expect_str_eq(a->container, "tensorflow");
    cr_expect(a->any_role && a->condition_count == 0 && a->reason_count == 0 && a->message_pattern == NULL);

    cr_expect_str_eq(b->name, "rules[1]");
    cr_expect_eq(b->action, RULE_RESTART_JOB_FREE);
    cr_expect(!b->has_exit_codes && b->container == NULL);
    cr_assert_eq(b->condition_count, 2);
    cr_expect_str_eq(b->condition_types[0], "DisruptionTarget");
    cr_expect_str_eq(b->condition_statuses[0], "True");
    cr_expect_str_eq(b->condition_statuses[1], "False");
    cr_assert_eq(b->reason_count, 2);
    cr_expect_str_eq(b->reasons[1], "NodeLost");
    cr_expect_str_eq(b->message_pattern, "ECC|Xid");
    cr_expect(!b->any_role && b->roles[ROLE_WORKER] && b->roles[ROLE_PS] && !b->roles[ROLE_MASTER]);
}

Test(decode, tfjobs_names_are_accepted_with_tfjobs_default)
{
    auto_job struct training_job *job = decode(HEAD "spec:\n  runPolicy: {suspend: true, managedBy: example.com/x}\n"
                                                    "  tfReplicaSpecs:\n    Worker: {replicas: 2, " TEMPLATE "}\n"
                                                    "    PS: {restartPolicy: ExitCode, " TEMPLATE "}\n");

    cr_expect(job->spec.suspend);
    cr_expect_str_eq(job->spec.managed_by, "example.com/x");
    cr_expect_eq(job->spec.roles[ROLE_WORKER].replicas, 2);
    cr_expect_eq(job->spec.roles[ROLE_WORKER].restart_policy, RESTART_NEVER);
    cr_expect_eq(job->spec.roles[ROLE_PS].restart_policy, RESTART_EXIT_CODE);
}

Test(decode, facts_that_follow_from_the_spec)
{
    auto_job struct training_job *job = decode(FULL);
    char name[128];

    cr_expect_eq(job_replicas(job), 8);
    cr_expect_eq(job_world_size(job), 5);
    static const struct { enum job_role role; int32_t index, rank, ordinal; } rows[] = {
        { ROLE_MASTER, 0, 0, 0 }, { ROLE_WORKER, 0, 1, 1 }, { ROLE_WORKER, 3, 4, 4 },
        { ROLE_PS, 0, -1, 5 },    { ROLE_PS, 1, -1, 6 },    { ROLE_EVALUATOR, 0, -1, 7 },
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        cr_expect_eq(job_rank(job, rows[i].role, rows[i].index), rows[i].rank, "case %zu", i);
        cr_expect_eq(job_ordinal(job, rows[i].role, rows[i].index), rows[i].ordinal, "case %zu", i);
    }
    job_pod_name(job, ROLE_WORKER, 3, name);
    cr_expect_str_eq(name, "mnist-worker-3");
    job_member_name(ROLE_PS, 1, name);
    cr_expect_str_eq(name, "ps-1");
    cr_expect_not(job_restarts_as_group(job));
}

Test(decode, the_main_container)
{
    static const struct { const char *config, *containers, *main; } rows[] = {
        { "{}", "[{name: a}, {name: tensorflow}]", "tensorflow" },
        { "{}", "[{name: a}, {name: b}]", "a" },
        { "{containerName: b}", "[{name: a}, {name: b}, {name: tensorflow}]", "b" },
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        auto_free char *text = xasprintf(HEAD "spec: {tfConfig: %s, replicaSpecs: {Chief: {template: {spec: {containers: %s}}}}}", rows[i].config,
                                         rows[i].containers);
        auto_job struct training_job *job = decode(text);
        cr_expect_str_eq(job_main_container(job, ROLE_CHIEF), rows[i].main, "case %zu", i);
        cr_expect(job_restarts_as_group(job), "case %zu", i);
    }
}

Test(decode, roles_have_two_forms)
{
    for (enum job_role r = 0; r < ROLE_COUNT; r++) {
        enum job_role found = ROLE_COUNT;
        cr_expect(role_parse(role_key(r), &found) && found == r);
        found = ROLE_COUNT;
        cr_expect(role_parse(role_name(r), &found) && found == r);
    }
    enum job_role role;
    cr_expect_not(role_parse("WORKER", &role));
    cr_expect_not(role_parse("", &role));
}

Test(decode, a_local_run_needs_a_command)
{
    struct error e = ERROR_INIT;
    auto_job struct training_job *good = decode(FULL);
    auto_job struct training_job *bad = decode(HEAD "spec: {replicaSpecs: {Chief: {" TEMPLATE "}, PS: {replicas: 0, template: {spec: {containers: "
                                                    "[{name: x}]}}}, Worker: {template: {spec: {containers: [{name: side, command: [x]}, "
                                                    "{name: tensorflow, args: [y]}]}}}}}");

    cr_expect_eq(job_check_local(good, &e), 0, "%s", e.text);
    cr_expect_eq(job_check_local(bad, &e), -1);
    cr_expect_eq(e.kind, ERROR_INVALID);
    cr_expect_str_eq(e.text, "spec.replicaSpecs.Worker.template.spec.containers[1].command: missing; a run on this machine has no image whose "
                             "entrypoint it could start: add command: [python, train.py]");
}

/* ---- files ---------------------------------------------------------------------------------------------------------------- */

static int read_path(const char *path, struct training_job **ret_job, char **ret_report, struct error *e)
{
    auto_free struct problems *problems = xcalloc(1, sizeof *problems);
    auto_yaml struct yaml_doc *doc = NULL;
    const cJSON *tree = NULL;

    if (manifest_open(path, &doc, &tree, e) < 0)
        return -1;
    int result = job_decode(tree, doc, problems, ret_job, e);
    *ret_report = problems->count > 0 ? problems_format(problems, path) : NULL;
    return result;
}

static int read_file(const char *text, struct training_job **ret_job, char **ret_report, struct error *e)
{
    char path[] = "/tmp/test_decode.XXXXXX";
    int fd = mkstemp(path);

    cr_assert(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
    int result = read_path(path, ret_job, ret_report, e);
    unlink(path);
    return result;
}

Test(decode, the_one_job_of_a_file_is_read)
{
    static const char *const bad[][2] = {
        { "", "is empty; expected a TrainingJob" },
        { "# nothing\n---\n", "is empty; expected a TrainingJob" },
        { "kind: Service\n", "kind: found \"Service\", expected TrainingJob" },
        { "kind: A\n---\nkind: B\n", "none of its 2 documents is of kind TrainingJob" },
        { "kind: TrainingJob\n---\nkind: TrainingJob\n", "a second TrainingJob; give each a file of its own" },
        { "a: [\n", "did not find expected" },
    };

    for (size_t i = 0; i < COUNT(bad); i++) {
        struct error e = ERROR_INIT;
        struct training_job *job = NULL;
        auto_free char *report = NULL;
        cr_expect_eq(read_file(bad[i][0], &job, &report, &e), -1, "case %zu", i);
        const char *said = report != NULL ? report : e.text;
        cr_expect_not_null(strstr(said, bad[i][1]), "case %zu: %s", i, said);
        cr_expect_null(job, "case %zu", i);
    }

    struct error e = ERROR_INIT;
    auto_job struct training_job *job = NULL;
    auto_free char *report = NULL;
    cr_expect_eq(read_file("kind: Service\n---\n" HEAD "spec: {replicaSpecs: {Worker: {" TEMPLATE "}}}\n", &job, &report, &e), 0, "%s", e.text);
    cr_expect_null(report);
    cr_expect_eq(read_path("/nonexistent/job.yaml", &job, &report, &e), -1);
    cr_expect_eq(e.kind, ERROR_NOT_FOUND);
}

/* ---- CRD and decoder ------------------------------------------------------------------------------------------------------ */

static bool decoder_knows(const char *path)
{
    size_t count;
    const char *const *known = decode_known_paths(&count);

    for (size_t i = 0; i < count; i++)
        if (strcmp(known[i], path) == 0)
            return true;
    return false;
}

static void expect_known(const cJSON *schema, const char *path)
{
    const cJSON *properties = cJSON_GetObjectItem(schema, "properties"), *items = cJSON_GetObjectItem(schema, "items"), *child;
    const cJSON *others = cJSON_GetObjectItem(schema, "additionalProperties");

    if (decoder_knows(path))
        return;
    cr_expect(properties != NULL || others != NULL || cJSON_GetObjectItem(items, "properties") != NULL,
              "the CRD has %s, the decoder does not read it", path);
    cJSON_ArrayForEach(child, properties) {
        auto_free char *below = xasprintf("%s%s%s", path, path[0] != '\0' ? "." : "", child->string);
        expect_known(child, below);
    }
    auto_free char *any = xasprintf("%s.*", path), *item = xasprintf("%s[]", path);
    if (others != NULL)
        expect_known(others, any);
    if (cJSON_GetObjectItem(items, "properties") != NULL)
        expect_known(items, item);
}

static const cJSON *find_in_crd(const cJSON *schema, const char *path)
{
    char key[128];

    while (*path != '\0' && schema != NULL) {
        size_t n = strcspn(path, ".[");
        (void)snprintf(key, sizeof key, "%.*s", (int)n, path);
        schema = strcmp(key, "*") == 0 ? cJSON_GetObjectItem(schema, "additionalProperties")
                                       : cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItem(schema, "properties"), key);
        path += n;
        if (strncmp(path, "[]", 2) == 0) {
            schema = cJSON_GetObjectItem(schema, "items");
            path += 2;
        }
        path += *path == '.';
    }
    return schema;
}

Test(decode, crd_and_decoder_know_the_same_properties)
{
    const cJSON *schema = schema_of_kind(JOB_KIND);
    size_t count;
    const char *const *known = decode_known_paths(&count);

    expect_known(json_at(schema, "properties.spec"), "spec");
    expect_known(json_at(schema, "properties.status"), "status");
    cr_expect_gt(count, 100);
    for (size_t i = 0; i < count; i++)
        cr_expect_not_null(find_in_crd(schema, known[i]), "the decoder reads %s, the CRD does not have it", known[i]);
}

Test(decode, the_defaults_pass_the_schema)
{
    auto_free struct problems *problems = xcalloc(1, sizeof *problems);
    static const char text[] = HEAD "spec: {replicaSpecs: {Worker: {" TEMPLATE "}}}";
    struct error e = ERROR_INIT;
    auto_yaml struct yaml_doc *doc = NULL;

    cr_assert_eq(yaml_parse("x", text, strlen(text), &doc, &e), 0);
    auto_json cJSON *tree = cJSON_Duplicate(yaml_tree(doc, 0), true);
    schema_default(schema_of_kind(JOB_KIND), tree);
    schema_check(schema_of_kind(JOB_KIND), tree, NULL, problems);
    auto_free char *report = problems_format(problems, "defaults");
    cr_expect_eq(problems->count, 0, "%s", report);
}
