/*
 * The part of a spec that restart_decide reads, as JSON: the sidecar of rank 0 has no manifest, only its environment.
 * Names are the CRD's, so that a person who looks into a pod can read it.
 */
#include <limits.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "job/restart.h"

#define POLICY_MAX_BYTES (256u << 10)
#define POLICY_MAX_LIST 255
#define FIRST_STEP_TIMEOUT_S 1800 /* the schema's default */

static const char *const POLICIES[] = { "Always", "OnFailure", "Never", "ExitCode", NULL };
static const char *const STRATEGIES[] = { "InPlace", "RecreateFailed", "RecreatePods", NULL };
static const char *const OOM_ACTIONS[] = { "Fail", "Restart", "RestartWithMoreMemory", NULL };
static const char *const RULE_ACTIONS[] = { "FailJob", "RestartJob", "RestartJobAndIgnoreMaxRestarts", "RestartPod",
                                            "RestartPodAndIgnoreMaxRestarts", "Ignore", NULL };
static const char *const SUCCESS_POLICIES[] = { "", "AllWorkers", NULL };

/* ---- encode ------------------------------------------------------------------------------------------------------ */

static void put_texts(cJSON *object, const char *key, char *const *texts, size_t count)
{
    cJSON *list = json_array();

    for (size_t i = 0; i < count; i++)
        json_append(list, cJSON_CreateString(texts[i]));
    json_put(object, key, list);
}

static cJSON *encode_rule(const struct failure_rule *rule)
{
    cJSON *o = json_object();

    json_put_text(o, "name", rule->name);
    json_put_text(o, "action", RULE_ACTIONS[rule->action]);
    json_put_text(o, "container", rule->container);
    if (rule->has_exit_codes) {
        cJSON *codes = json_array();
        for (size_t i = 0; i < rule->exit_code_count; i++)
            json_append(codes, cJSON_CreateNumber(rule->exit_codes[i]));
        json_put(o, rule->exit_codes_in ? "exitCodesIn" : "exitCodesNotIn", codes);
    }
    if (rule->condition_count > 0) {
        put_texts(o, "conditionTypes", rule->condition_types, rule->condition_count);
        put_texts(o, "conditionStatuses", rule->condition_statuses, rule->condition_count);
    }
    if (rule->reason_count > 0)
        put_texts(o, "reasons", rule->reasons, rule->reason_count);
    json_put_text(o, "messagePattern", rule->message_pattern);
    if (!rule->any_role) {
        cJSON *roles = json_array();
        for (enum job_role r = 0; r < ROLE_COUNT; r++) {
            if (rule->roles[r])
                json_append(roles, cJSON_CreateString(role_key(r)));
        }
        json_put(o, "roles", roles);
    }
    return o;
}

static cJSON *encode_role(const struct training_job *job, enum job_role role)
{
    const struct replica_spec *spec = &job->spec.roles[role];
    cJSON *o = json_object(), *containers = json_array();
    const cJSON *container;

    cJSON_ArrayForEach(container, json_at(spec->template, "spec.containers"))
        json_append(containers, cJSON_CreateString(json_text(container, "name", "")));
    json_put_int(o, "replicas", spec->replicas);
    json_put_text(o, "restartPolicy", POLICIES[spec->restart_policy]);
    json_put(o, "containers", containers);
    return o;
}

/* The text becomes a variable of a pod, where the kubelet would take "$(x" of a pattern for a reference. */
static char *without_dollars(const char *text)
{
    auto_buf struct buf b = BUF_INIT(JSON_MAX_BYTES);

    for (const char *p = text; *p != '\0'; p++) {
        if (*p == '$')
            buf_add(&b, "\\u0024");
        else
            buf_add_bytes(&b, p, 1);
    }
    return buf_take(&b);
}

char *restart_policy_encode(const struct training_job *job)
{
    const struct failure_policy *failure = &job->spec.failure;
    auto_json cJSON *o = json_object();
    cJSON *roles = json_object(), *rules = json_array();

    json_put_text(o, "uid", job->uid);
    json_put_int(o, "backoffLimit", job->spec.backoff_limit);
    if (failure->max_restarts.set)
        json_put_int(o, "maxRestarts", failure->max_restarts.value);
    if (failure->max_disruptions.set)
        json_put_int(o, "maxDisruptions", failure->max_disruptions.value);
    json_put_int(o, "restartWindowSeconds", failure->restart_window_s);
    json_put_int(o, "backoffBaseSeconds", failure->backoff_base_s);
    json_put_int(o, "backoffMaxSeconds", failure->backoff_max_s);
    json_put_text(o, "restartStrategy", STRATEGIES[failure->strategy]);
    json_put_text(o, "oomPolicy", OOM_ACTIONS[failure->oom_action]);
    json_put_text(o, "successPolicy", SUCCESS_POLICIES[job->spec.success_policy]);
    json_put_bool(o, "enableDynamicWorker", job->spec.enable_dynamic_worker);
    if (job->spec.elastic)
        json_put_bool(o, "elastic", true);
    if (job->spec.health.progress_timeout_s.set)
        json_put_int(o, "progressTimeoutSeconds", job->spec.health.progress_timeout_s.value);
    if (job->spec.health.first_step_timeout_s != 0 && job->spec.health.first_step_timeout_s != FIRST_STEP_TIMEOUT_S)
        json_put_int(o, "firstStepTimeoutSeconds", job->spec.health.first_step_timeout_s);
    json_put_text(o, "containerName", job->spec.tf_config.container);
    for (enum job_role r = 0; r < ROLE_COUNT; r++) {
        if (job->spec.roles[r].present)
            json_put(roles, role_key(r), encode_role(job, r));
    }
    json_put(o, "roles", roles);
    for (size_t i = 0; i < failure->rule_count; i++)
        json_append(rules, encode_rule(&failure->rules[i]));
    json_put(o, "rules", rules);
    auto_free char *text = json_print(o, false);
    return without_dollars(text);
}

/* ---- decode ------------------------------------------------------------------------------------------------------ */

static int read_enum(const cJSON *o, const char *key, const char *const *names, const char *absent, int *ret_value,
                     struct error *e)
{
    const char *text = json_text(o, key, absent);

    for (int i = 0; text != NULL && names[i] != NULL; i++) {
        if (strcmp(text, names[i]) == 0) {
            *ret_value = i;
            return 0;
        }
    }
    return error_set(e, ERROR_INVALID, "restart policy: %s is \"%.60s\", which is none of its values", key,
                     text != NULL ? text : "");
}

static int read_int(const cJSON *o, const char *key, int64_t absent, int64_t least, int64_t most, int64_t *ret_value,
                    struct error *e)
{
    int64_t value = json_int(o, key, absent);

    if (value < least || value > most)
        return error_set(e, ERROR_INVALID, "restart policy: %s is %lld, expected %lld to %lld", key, (long long)value,
                         (long long)least, (long long)most);
    *ret_value = value;
    return 0;
}

static int read_optional(const cJSON *o, const char *key, struct optional_int *ret_value, struct error *e)
{
    if (json_at(o, key) == NULL)
        return 0;
    if (read_int(o, key, -1, 0, INT32_MAX, &ret_value->value, e) < 0)
        return -1;
    ret_value->set = true;
    return 0;
}

static int read_texts(const cJSON *o, const char *key, char ***ret_texts, size_t *ret_count, struct error *e)
{
    const cJSON *list = json_at(o, key), *item;
    size_t count = list != NULL ? (size_t)cJSON_GetArraySize(list) : 0;

    if (list != NULL && (!cJSON_IsArray(list) || count > POLICY_MAX_LIST))
        return error_set(e, ERROR_INVALID, "restart policy: %s is not a list of at most %d texts", key,
                         POLICY_MAX_LIST);
    cJSON_ArrayForEach(item, list) {
        if (!cJSON_IsString(item))
            return error_set(e, ERROR_INVALID, "restart policy: %s holds something that is not a text", key);
    }
    *ret_texts = xcalloc(count + 1, sizeof **ret_texts);
    *ret_count = 0;
    cJSON_ArrayForEach(item, list)
        (*ret_texts)[(*ret_count)++] = xstrdup(item->valuestring);
    return 0;
}

static int read_codes(const cJSON *o, struct failure_rule *rule, struct error *e)
{
    const cJSON *in = json_at(o, "exitCodesIn"), *list = in != NULL ? in : json_at(o, "exitCodesNotIn"), *item;

    if (list == NULL)
        return 0;
    int count = cJSON_GetArraySize(list);
    if (!cJSON_IsArray(list) || count > POLICY_MAX_LIST)
        return error_set(e, ERROR_INVALID, "restart policy: exit codes are not a list of at most %d numbers",
                         POLICY_MAX_LIST);
    rule->has_exit_codes = true;
    rule->exit_codes_in = in != NULL;
    rule->exit_codes = xcalloc((size_t)count + 1, sizeof *rule->exit_codes);
    cJSON_ArrayForEach(item, list) {
        if (!cJSON_IsNumber(item) || item->valuedouble < 0 || item->valuedouble > 255)
            return error_set(e, ERROR_INVALID, "restart policy: an exit code is not a number from 0 to 255");
        rule->exit_codes[rule->exit_code_count++] = (int32_t)item->valuedouble;
    }
    return 0;
}

static int read_rule(const cJSON *o, struct failure_rule *rule, struct error *e)
{
    size_t statuses = 0, roles = 0;
    char **role_names = NULL;
    int action = 0;

    if (read_enum(o, "action", RULE_ACTIONS, NULL, &action, e) < 0 || read_codes(o, rule, e) < 0)
        return -1;
    rule->action = (enum rule_action)action;
    rule->name = xstrdup(json_text(o, "name", NULL));
    rule->container = xstrdup(json_text(o, "container", NULL));
    rule->message_pattern = xstrdup(json_text(o, "messagePattern", NULL));
    if (read_texts(o, "reasons", &rule->reasons, &rule->reason_count, e) < 0 ||
        read_texts(o, "conditionTypes", &rule->condition_types, &rule->condition_count, e) < 0)
        return -1;
    if (read_texts(o, "conditionStatuses", &rule->condition_statuses, &statuses, e) < 0)
        return -1;
    if (statuses != rule->condition_count) {
        for (size_t i = rule->condition_count; i < statuses; i++)
            free(rule->condition_statuses[i]); /* the job's release goes by condition_count */
        if (statuses < rule->condition_count) {
            for (size_t i = statuses; i < rule->condition_count; i++)
                free(rule->condition_types[i]);
            rule->condition_count = statuses;
        }
        return error_set(e, ERROR_INVALID, "restart policy: conditionTypes and conditionStatuses differ in length");
    }
    rule->any_role = json_at(o, "roles") == NULL;
    if (read_texts(o, "roles", &role_names, &roles, e) < 0)
        return -1;
    for (size_t i = 0; i < roles; i++) {
        enum job_role role;
        if (role_parse(role_names[i], &role))
            rule->roles[role] = true;
        free(role_names[i]);
    }
    free(role_names);
    return 0;
}

static int read_role(const cJSON *o, struct replica_spec *spec, struct error *e)
{
    const cJSON *name;
    int64_t replicas = 0;
    int policy = 0;

    if (read_int(o, "replicas", 0, 0, JOB_MAX_REPLICAS, &replicas, e) < 0 ||
        read_enum(o, "restartPolicy", POLICIES, NULL, &policy, e) < 0)
        return -1;
    spec->present = true;
    spec->replicas = (int32_t)replicas;
    spec->restart_policy = (enum restart_policy)policy;
    spec->template = json_object();
    cJSON *pod = json_object(), *containers = json_array();
    json_put(spec->template, "spec", pod);
    json_put(pod, "containers", containers);
    cJSON_ArrayForEach(name, json_at(o, "containers")) {
        if (!cJSON_IsString(name))
            return error_set(e, ERROR_INVALID, "restart policy: a container's name is not a text");
        cJSON *container = json_object();
        json_put_text(container, "name", name->valuestring);
        json_append(containers, container);
    }
    return 0;
}

static int read_limits(const cJSON *o, struct job_spec *spec, struct error *e)
{
    struct failure_policy *failure = &spec->failure;
    int64_t limit = 0;
    int strategy = 0, oom = 0, success = 0;

    if (read_int(o, "backoffLimit", 6, -1, INT32_MAX, &limit, e) < 0 ||
        read_optional(o, "maxRestarts", &failure->max_restarts, e) < 0 ||
        read_optional(o, "maxDisruptions", &failure->max_disruptions, e) < 0 ||
        read_int(o, "restartWindowSeconds", 0, 0, INT32_MAX, &failure->restart_window_s, e) < 0 ||
        read_int(o, "backoffBaseSeconds", 1, 0, INT32_MAX, &failure->backoff_base_s, e) < 0 ||
        read_optional(o, "progressTimeoutSeconds", &spec->health.progress_timeout_s, e) < 0 ||
        read_int(o, "firstStepTimeoutSeconds", FIRST_STEP_TIMEOUT_S, 0, INT32_MAX, &spec->health.first_step_timeout_s, e) < 0 ||
        read_int(o, "backoffMaxSeconds", 300, 0, INT32_MAX, &failure->backoff_max_s, e) < 0 ||
        read_enum(o, "restartStrategy", STRATEGIES, "InPlace", &strategy, e) < 0 ||
        read_enum(o, "oomPolicy", OOM_ACTIONS, "Restart", &oom, e) < 0 ||
        read_enum(o, "successPolicy", SUCCESS_POLICIES, "", &success, e) < 0)
        return -1;
    spec->backoff_limit = (int32_t)limit;
    failure->strategy = (enum restart_strategy)strategy;
    failure->oom_action = (enum oom_action)oom;
    spec->success_policy = (enum success_policy)success;
    spec->enable_dynamic_worker = json_bool(o, "enableDynamicWorker", false);
    spec->elastic = json_bool(o, "elastic", false);
    spec->tf_config.container = xstrdup(json_text(o, "containerName", NULL));
    return 0;
}

int restart_policy_decode(const char *text, struct training_job **ret_job, struct error *e)
{
    auto_json cJSON *o = NULL;
    auto_job struct training_job *job = NULL;
    size_t len = strnlen(text, POLICY_MAX_BYTES + 1);
    const cJSON *item;

    if (len > POLICY_MAX_BYTES)
        return error_set(e, ERROR_LIMIT, "restart policy is longer than %u bytes", POLICY_MAX_BYTES);
    if (json_parse(text, len, &o, e) < 0)
        return error_wrap(e, "restart policy");
    if (!cJSON_IsObject(o))
        return error_set(e, ERROR_INVALID, "restart policy is not a JSON object");

    job = xcalloc(1, sizeof *job);
    job->uid = xstrdup(json_text(o, "uid", ""));
    job->name = xstrdup("");
    job->namespace = xstrdup("");
    job->labels = json_object();
    job->annotations = json_object();
    if (read_limits(o, &job->spec, e) < 0)
        return -1;
    cJSON_ArrayForEach(item, json_at(o, "roles")) {
        enum job_role role;
        if (item->string == NULL || !role_parse(item->string, &role) || job->spec.roles[role].present)
            return error_set(e, ERROR_INVALID, "restart policy: \"%.60s\" is no role",
                             item->string != NULL ? item->string : "");
        if (read_role(item, &job->spec.roles[role], e) < 0)
            return -1;
    }
    const cJSON *rules = json_at(o, "rules");
    if (cJSON_GetArraySize(rules) > JOB_RULES_MAX)
        return error_set(e, ERROR_LIMIT, "restart policy has more than %d rules", JOB_RULES_MAX);
    job->spec.failure.rules = xcalloc(JOB_RULES_MAX, sizeof *job->spec.failure.rules);
    cJSON_ArrayForEach(item, rules) {
        if (read_rule(item, &job->spec.failure.rules[job->spec.failure.rule_count++], e) < 0)
            return -1;
    }
    *ret_job = TAKE(job);
    return 0;
}
