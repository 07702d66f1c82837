#include "job/spec.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "job/field.h"
#include "job/names.h"

/* ---- names, in the order of the enums of job.h -------------------------------------------------------------------------- */

const char *const GANG_NAMES[] = { "Auto", "Native", "Volcano", "Coscheduling", "SchedulingGates", "None", NULL };
static const char *const SUCCESS_NAMES[] = { "", "AllWorkers", NULL };
static const char *const CLEAN_NAMES[] = { "All", "Running", "None", NULL };
static const char *const STRATEGY_NAMES[] = { "InPlace", "RecreateFailed", "RecreatePods", NULL };
static const char *const OOM_NAMES[] = { "Fail", "Restart", "RestartWithMoreMemory", NULL };
static const char *const RESTART_NAMES[] = { "Always", "OnFailure", "Never", "ExitCode", NULL };
static const char *const FRAMEWORK_NAMES[] = { "TensorFlow", "PyTorch", "JAX", "Horovod", "MPI", NULL };
static const char *const NODE_CHECK_NAMES[] = { "Off", "BeforeStart", "AfterFailure", NULL };
static const char *const WIRE_NAMES[] = { "Plain", "Float16", "BFloat16", "Int8", "Exact", NULL };
static const char *const MODE_NAMES[] = { "Auto", "Native", "Container", "None", NULL };
static const char *const OPERATOR_NAMES[] = { "NotIn", "In", NULL };
static const char *const ACTION_NAMES[] = {
    "FailJob", "RestartJob", "RestartJobAndIgnoreMaxRestarts", "RestartPod", "RestartPodAndIgnoreMaxRestarts", "Ignore", NULL,
};
_Static_assert(COUNT(FRAMEWORK_NAMES) == FRAMEWORK_COUNT + 1, "a name per framework");
_Static_assert(COUNT(GANG_NAMES) == GANG_NONE + 2 && COUNT(ACTION_NAMES) == RULE_IGNORE + 2 && COUNT(OOM_NAMES) == OOM_RESTART_WITH_MORE_MEMORY + 2 &&
               COUNT(RESTART_NAMES) == RESTART_EXIT_CODE + 2 && COUNT(STRATEGY_NAMES) == STRATEGY_RECREATE_PODS + 2 &&
               COUNT(CLEAN_NAMES) == CLEAN_NONE + 2 && COUNT(SUCCESS_NAMES) == SUCCESS_ALL_WORKERS + 2, "a name per value");

/* ---- rows --------------------------------------------------------------------------------------------------------------- */

/* Where the same member has two rows, the later one wins. */
static const struct field SPEC[] = {
    ROW_BOOL("runPolicy.suspend", job_spec, suspend),
    ROW_BOOL("suspend", job_spec, suspend),
    ROW_TEXT("runPolicy.managedBy", job_spec, managed_by),
    ROW_TEXT("managedBy", job_spec, managed_by),
    ROW_BY_HAND("frameworks"),
    ROW_NAME("successPolicy", job_spec, success_policy, SUCCESS_NAMES),
    ROW_BOOL("enableDynamicWorker", job_spec, enable_dynamic_worker),

    ROW_NAME("runPolicy.cleanPodPolicy", job_spec, clean_pod_policy, CLEAN_NAMES),
    ROW_OPTIONAL("runPolicy.ttlSecondsAfterFinished", job_spec, ttl_after_finished_s),
    ROW_OPTIONAL("runPolicy.activeDeadlineSeconds", job_spec, active_deadline_s),
    ROW_INT32("runPolicy.backoffLimit", job_spec, backoff_limit),
    ROW_NAME("runPolicy.schedulingPolicy.gang", job_spec, scheduling.gang, GANG_NAMES),
    ROW_OPTIONAL("runPolicy.schedulingPolicy.minAvailable", job_spec, scheduling.min_available),
    ROW_TEXT("runPolicy.schedulingPolicy.queue", job_spec, scheduling.queue),
    ROW_TREE("runPolicy.schedulingPolicy.minResources", job_spec, scheduling.min_resources),
    ROW_TEXT("runPolicy.schedulingPolicy.priorityClass", job_spec, scheduling.priority_class),
    ROW_OPTIONAL("runPolicy.schedulingPolicy.scheduleTimeoutSeconds", job_spec, scheduling.schedule_timeout_s),
    ROW_OPTIONAL("runPolicy.schedulingPolicy.startTimeoutSeconds", job_spec, scheduling.start_timeout_s),
    ROW_TEXT("runPolicy.schedulingPolicy.topology.required", job_spec, scheduling.topology_required),
    ROW_TEXT("runPolicy.schedulingPolicy.topology.preferred", job_spec, scheduling.topology_preferred),

    ROW_OPTIONAL("elasticPolicy.minReplicas", job_spec, min_replicas),
    ROW_OPTIONAL("elasticPolicy.maxReplicas", job_spec, max_replicas),

    ROW_NAME("failurePolicy.restartStrategy", job_spec, failure.strategy, STRATEGY_NAMES),
    ROW_OPTIONAL("failurePolicy.maxRestarts", job_spec, failure.max_restarts),
    ROW_OPTIONAL("failurePolicy.maxDisruptions", job_spec, failure.max_disruptions),
    ROW_INT64("failurePolicy.restartWindowSeconds", job_spec, failure.restart_window_s),
    ROW_INT64("failurePolicy.backoffBaseSeconds", job_spec, failure.backoff_base_s),
    ROW_INT64("failurePolicy.backoffMaxSeconds", job_spec, failure.backoff_max_s),
    ROW_NAME("failurePolicy.oomPolicy.action", job_spec, failure.oom_action, OOM_NAMES),
    ROW_DOUBLE("failurePolicy.oomPolicy.factor", job_spec, failure.oom_factor),
    ROW_QUANTITY("failurePolicy.oomPolicy.maxBytes", job_spec, failure.oom_max_bytes),
    ROW_OPTIONAL("failurePolicy.nodeLost.forceDeleteAfterSeconds", job_spec, failure.force_delete_after_s),
    ROW_BOOL("failurePolicy.avoidNodes.enabled", job_spec, failure.avoid_nodes),
    ROW_INT64("failurePolicy.avoidNodes.ttlSeconds", job_spec, failure.avoid_nodes_ttl_s),
    ROW_INT32("failurePolicy.avoidNodes.maxPercent", job_spec, failure.avoid_nodes_max_percent),

    ROW_TEXT("network.subdomain", job_spec, network.subdomain),
    ROW_BOOL("network.publishNotReadyAddresses", job_spec, network.publish_not_ready),
    ROW_BOOL("network.servicePerPod", job_spec, network.service_per_pod),
    ROW_TEXT("network.clusterDomain", job_spec, network.cluster_domain),
    ROW_BOOL("network.networkPolicy", job_spec, network.network_policy),

    ROW_BY_HAND("coordinator.role"),
    ROW_INT32("coordinator.index", job_spec, coordinator.index),

    ROW_BOOL("tfConfig.masterAsChief", job_spec, tf_config.master_as_chief),
    ROW_BOOL("tfConfig.evaluatorInCluster", job_spec, tf_config.evaluator_in_cluster),
    ROW_TEXT("tfConfig.containerName", job_spec, tf_config.container),
    ROW_INT32("tfConfig.port", job_spec, tf_config.port),

    ROW_OPTIONAL("health.progressTimeoutSeconds", job_spec, health.progress_timeout_s),
    ROW_INT64("health.firstStepTimeoutSeconds", job_spec, health.first_step_timeout_s),
    ROW_INT32("health.peerTimeoutMilliseconds", job_spec, health.peer_timeout_ms),
    ROW_INT32("health.stallWarningSeconds", job_spec, health.stall_warning_s),
    ROW_INT32("health.stallShutdownSeconds", job_spec, health.stall_shutdown_s),
    ROW_NAME("health.nodeCheck", job_spec, health.node_check, NODE_CHECK_NAMES),
    ROW_INT32("health.stragglerThresholdPercent", job_spec, health.straggler_percent),

    ROW_BOOL("checkpoint.enabled", job_spec, checkpoint.enabled),
    ROW_TEXT("checkpoint.path", job_spec, checkpoint.path),
    ROW_OPTIONAL("checkpoint.everySteps", job_spec, checkpoint.every_steps),
    ROW_OPTIONAL("checkpoint.everySeconds", job_spec, checkpoint.every_seconds),
    ROW_INT32("checkpoint.keepLast", job_spec, checkpoint.keep_last),
    ROW_BOOL("checkpoint.onTermination", job_spec, checkpoint.on_termination),
    ROW_BOOL("checkpoint.memoryTier", job_spec, checkpoint.memory_tier),

    ROW_NAME("sidecar.mode", job_spec, sidecar.mode, MODE_NAMES),
    ROW_TEXT("sidecar.image", job_spec, sidecar.image),
    ROW_INT32("sidecar.ringPort", job_spec, sidecar.ring_port),
    ROW_TREE("sidecar.resources", job_spec, sidecar.resources),
    ROW_QUANTITY("sidecar.shmSizeLimit", job_spec, sidecar.shm_size_bytes),
    ROW_BOOL("sidecar.checksums", job_spec, sidecar.checksums),
    ROW_BOOL("sidecar.tls", job_spec, sidecar.tls),
    ROW_NAME("sidecar.wireFormat", job_spec, sidecar.wire, WIRE_NAMES),

    ROW_TREE("volumeClaimPolicies", job_spec, volume_claim_policies),
};

static const struct field REPLICA[] = {
    ROW_INT32("replicas", replica_spec, replicas),
    ROW_NAME("restartPolicy", replica_spec, restart_policy, RESTART_NAMES),
    ROW_TREE("template", replica_spec, template),
};

static const struct field RULE[] = {
    ROW_TEXT("name", failure_rule, name),
    ROW_NAME("action", failure_rule, action, ACTION_NAMES),
    ROW_TEXT("onExitCodes.containerName", failure_rule, container),
    ROW_BY_HAND("onExitCodes.operator"),
    ROW_BY_HAND("onExitCodes.values"),
    ROW_BY_HAND("onPodConditions[].type"),
    ROW_BY_HAND("onPodConditions[].status"),
    ROW_BY_HAND("onReasons"),
    ROW_TEXT("onMessagePattern", failure_rule, message_pattern),
    ROW_BY_HAND("targetRoles"),
};

const struct field_table spec_tables[] = {
    { "spec", SPEC, COUNT(SPEC) },
    { "spec.replicaSpecs.*", REPLICA, COUNT(REPLICA) },
    { "spec.tfReplicaSpecs.*", REPLICA, COUNT(REPLICA) },
    { "spec.failurePolicy.rules[]", RULE, COUNT(RULE) },
    { NULL, NULL, 0 },
};

/* ---- what is read by hand ------------------------------------------------------------------------------------------------ */

static size_t read_texts(const cJSON *list, char ***ret)
{
    size_t count = (size_t)cJSON_GetArraySize(list), n = 0;
    const cJSON *item;

    if (count == 0)
        return 0;
    *ret = xcalloc(count, sizeof **ret);
    cJSON_ArrayForEach(item, list)
        (*ret)[n++] = xstrdup(cJSON_IsString(item) ? item->valuestring : "");
    return count;
}

static void read_exit_codes(const cJSON *on, struct failure_rule *rule)
{
    const cJSON *values = json_at(on, "values"), *value;

    rule->has_exit_codes = on != NULL;
    rule->exit_codes_in = field_name_index(OPERATOR_NAMES, json_text(on, "operator", "")) == 1;
    rule->exit_codes = xcalloc((size_t)cJSON_GetArraySize(values), sizeof rule->exit_codes[0]);
    cJSON_ArrayForEach(value, values)
        rule->exit_codes[rule->exit_code_count++] = (int32_t)value->valueint;
}

static void read_pod_conditions(const cJSON *list, struct failure_rule *rule)
{
    size_t count = (size_t)cJSON_GetArraySize(list);
    const cJSON *item;

    if (count == 0)
        return;
    rule->condition_types = xcalloc(count, sizeof rule->condition_types[0]);
    rule->condition_statuses = xcalloc(count, sizeof rule->condition_statuses[0]);
    cJSON_ArrayForEach(item, list) {
        rule->condition_types[rule->condition_count] = xstrdup(json_text(item, "type", ""));
        rule->condition_statuses[rule->condition_count++] = xstrdup(json_text(item, "status", "True"));
    }
}

static void read_rule(const cJSON *tree, size_t number, struct failure_rule *rule)
{
    const cJSON *role_text;
    enum job_role role;

    fields_read(RULE, COUNT(RULE), tree, rule);
    if (rule->name == NULL)
        rule->name = xasprintf("rules[%zu]", number);
    read_exit_codes(json_at(tree, "onExitCodes"), rule);
    read_pod_conditions(json_at(tree, "onPodConditions"), rule);
    rule->reason_count = read_texts(json_at(tree, "onReasons"), &rule->reasons);
    rule->any_role = true;
    cJSON_ArrayForEach(role_text, json_at(tree, "targetRoles")) {
        if (cJSON_IsString(role_text) && role_parse(role_text->valuestring, &role)) {
            rule->roles[role] = true;
            rule->any_role = false;
        }
    }
}

static void read_rules(const cJSON *list, struct failure_policy *policy)
{
    const cJSON *item;

    policy->rules = xcalloc((size_t)cJSON_GetArraySize(list), sizeof policy->rules[0]);
    cJSON_ArrayForEach(item, list) {
        read_rule(item, policy->rule_count, &policy->rules[policy->rule_count]);
        policy->rule_count++;
    }
}

static void read_frameworks(const cJSON *list, bool frameworks[FRAMEWORK_COUNT])
{
    const cJSON *item;

    cJSON_ArrayForEach(item, list) {
        int index = cJSON_IsString(item) ? field_name_index(FRAMEWORK_NAMES, item->valuestring) : -1;
        if (index >= 0) /* "None" is no framework */
            frameworks[index] = true;
    }
}

const cJSON *spec_roles(const cJSON *spec)
{
    const cJSON *roles = json_at(spec, "replicaSpecs");

    return roles != NULL ? roles : json_at(spec, "tfReplicaSpecs");
}

void spec_read(const cJSON *tree, struct job_spec *spec)
{
    const cJSON *item;
    enum job_role role;

    fields_read(SPEC, COUNT(SPEC), tree, spec);
    if (spec->managed_by == NULL)
        spec->managed_by = xstrdup(JOB_MANAGED_BY);
    read_frameworks(json_at(tree, "frameworks"), spec->frameworks);
    spec->elastic = cJSON_IsObject(json_at(tree, "elasticPolicy"));
    read_rules(json_at(tree, "failurePolicy.rules"), &spec->failure);
    spec->coordinator.set = role_parse(json_text(tree, "coordinator.role", ""), &spec->coordinator.role);
    cJSON_ArrayForEach(item, spec_roles(tree)) {
        if (!role_parse(item->string, &role))
            continue;
        spec->roles[role].present = true;
        fields_read(REPLICA, COUNT(REPLICA), item, &spec->roles[role]);
    }
}
