#include "job/validate.h"

#include <regex.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/text.h"
#include "job/job.h"
#include "job/names.h"
#include "job/restart.h"
#include "job/spec.h"

struct validator {
    const cJSON *tree, *original;
    const cJSON *spec, *roles;  /* of tree; may be NULL */
    const char *roles_key;      /* "replicaSpecs" or "tfReplicaSpecs" */
    const struct yaml_doc *doc;
    struct problems *problems;
    const char *message;        /* of the rule that is being looked at */
};

/* The value at a path such as "spec.failurePolicy.rules[2].onMessagePattern" in the original, or the nearest above it. */
static const cJSON *nearest(const cJSON *tree, const char *path)
{
    char key[128];

    for (const char *p = path; *p != '\0';) {
        const cJSON *below;
        if (*p == '[') {
            below = cJSON_GetArrayItem(tree, (int)strtol(p + 1, NULL, 10));
            p += strcspn(p, "]") + 1;
        } else {
            size_t n = strcspn(p, ".[");
            if (n >= sizeof key)
                return tree;
            memcpy(key, p, n);
            key[n] = '\0';
            below = cJSON_GetObjectItemCaseSensitive(tree, key);
            p += n;
        }
        p += *p == '.';
        if (below == NULL)
            return tree;
        tree = below;
    }
    return tree;
}

static void broken(struct validator *v, const char *fmt, ...) FORMAT(2, 3);
static void broken(struct validator *v, const char *fmt, ...)
{
    char path[256];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(path, sizeof path, fmt, args);
    va_end(args);
    problems_add(v->problems, v->doc, nearest(v->original, path), path, "%s", v->message);
}

static const cJSON *role_of(const struct validator *v, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(v->roles, key);
}

/* -1 when the role is not there or its replicas are no number. */
static int64_t replicas_of(const struct validator *v, const char *key)
{
    return json_int(role_of(v, key), "replicas", -1);
}

/* ---- metadata ----------------------------------------------------------------------------------------------------------- */

static void name_length(struct validator *v)
{
    if (strlen(json_text(v->tree, "metadata.name", "")) > JOB_NAME_MAX)
        broken(v, "metadata.name");
}

static void name_form(struct validator *v)
{
    const char *name = json_text(v->tree, "metadata.name", NULL);

    if (name != NULL && strlen(name) <= 63 && !text_is_dns1035_label(name))
        broken(v, "metadata.name");
}

static void name_missing(struct validator *v)
{
    const cJSON *name = json_at(v->tree, "metadata.name");

    if (name == NULL)
        broken(v, "metadata.name");
}

/* ---- roles -------------------------------------------------------------------------------------------------------------- */

static void one_replica_map(struct validator *v)
{
    if ((json_at(v->spec, "replicaSpecs") != NULL) == (json_at(v->spec, "tfReplicaSpecs") != NULL))
        broken(v, json_at(v->spec, "replicaSpecs") != NULL ? "spec.tfReplicaSpecs" : "spec");
}

/* As it is written in a manifest; role_parse takes any case. */
static bool is_role_key(const char *key)
{
    const char *near = text_nearest(key, ROLE_KEYS);

    return near != NULL && strcmp(near, key) == 0;
}

static void known_roles(struct validator *v)
{
    const cJSON *item;
    const char *general = v->message;
    char exact[160];

    cJSON_ArrayForEach(item, v->roles) {
        const char *near = text_nearest(item->string, ROLE_KEYS);
        if (is_role_key(item->string))
            continue;
        (void)snprintf(exact, sizeof exact, "%s%s%s%s", general, near != NULL ? "; did you mean \"" : "", near != NULL ? near : "",
                       near != NULL ? "\"?" : "");
        v->message = exact;
        broken(v, "spec.%s.%.60s", v->roles_key, item->string);
        v->message = general;
    }
}

/* The API server drops a key without a value; whoever wrote it meant something else. */
static void empty_role(struct validator *v)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, json_at(json_at(v->original, "spec"), v->roles_key)) {
        if (cJSON_IsNull(item))
            broken(v, "spec.%s.%.60s", v->roles_key, item->string);
    }
}

static void one_leader(struct validator *v)
{
    if (role_of(v, "Chief") != NULL && role_of(v, "Master") != NULL)
        broken(v, "spec.%s.Master", v->roles_key);
}

static void leader_is_single(struct validator *v)
{
    static const char *const keys[] = { "Chief", "Master" };

    for (size_t i = 0; i < COUNT(keys); i++) {
        int64_t replicas = replicas_of(v, keys[i]);
        if (replicas >= 0 && replicas != 1)
            broken(v, "spec.%s.%s.replicas", v->roles_key, keys[i]);
    }
}

static void evaluator_is_single(struct validator *v)
{
    if (replicas_of(v, "Evaluator") > 1)
        broken(v, "spec.%s.Evaluator.replicas", v->roles_key);
}

static void somebody_trains(struct validator *v)
{
    static const char *const keys[] = { "Chief", "Master", "Worker" };
    const cJSON *item;

    cJSON_ArrayForEach(item, v->roles) {
        if (!is_role_key(item->string)) /* most likely a misspelt one of them, which is complained of */
            return;
    }
    for (size_t i = 0; i < COUNT(keys); i++) {
        const cJSON *role = role_of(v, keys[i]);
        if (role != NULL && json_int(role, "replicas", 1) != 0)
            return;
    }
    if (v->roles != NULL)
        broken(v, "spec.%s", v->roles_key);
}

static bool has_container(const cJSON *role, const char *name)
{
    const cJSON *container;

    cJSON_ArrayForEach(container, json_at(role, "template.spec.containers")) {
        if (strcmp(json_text(container, "name", ""), name) == 0)
            return true;
    }
    return false;
}

static void main_container_exists(struct validator *v)
{
    const char *name = json_text(v->spec, "tfConfig.containerName", "");
    const cJSON *role;

    if (name[0] == '\0')
        return;
    cJSON_ArrayForEach(role, v->roles) {
        if (!has_container(role, name))
            broken(v, "spec.%s.%.60s.template.spec.containers", v->roles_key, role->string);
    }
}

/* ---- policies ----------------------------------------------------------------------------------------------------------- */

static void elastic_needs_workers(struct validator *v)
{
    if (json_at(v->spec, "elasticPolicy") != NULL && v->roles != NULL && role_of(v, "Worker") == NULL)
        broken(v, "spec.elasticPolicy");
}

static void elastic_least(struct validator *v)
{
    int64_t workers = replicas_of(v, "Worker");

    if (workers >= 0 && json_int(v->spec, "elasticPolicy.minReplicas", 0) > workers)
        broken(v, "spec.elasticPolicy.minReplicas");
}

static void elastic_most(struct validator *v)
{
    int64_t workers = replicas_of(v, "Worker");

    if (workers >= 0 && json_int(v->spec, "elasticPolicy.maxReplicas", INT64_MAX) < workers)
        broken(v, "spec.elasticPolicy.maxReplicas");
}

static void gang_fits(struct validator *v)
{
    const cJSON *role;
    int64_t sum = 0;

    if (v->roles == NULL || json_at(v->spec, "elasticPolicy") != NULL)
        return;
    cJSON_ArrayForEach(role, v->roles) {
        int64_t replicas = json_int(role, "replicas", 0);
        sum += replicas > 0 && replicas <= JOB_MAX_REPLICAS ? replicas : 0;
    }
    if (json_int(v->spec, "runPolicy.schedulingPolicy.minAvailable", 0) > sum)
        broken(v, "spec.runPolicy.schedulingPolicy.minAvailable");
}

static void coordinator_exists(struct validator *v)
{
    const char *role = json_text(v->spec, "coordinator.role", NULL);

    if (role != NULL && v->roles != NULL && json_int(v->spec, "coordinator.index", 0) >= replicas_of(v, role))
        broken(v, "spec.coordinator");
}

static void frameworks_make_sense(struct validator *v)
{
    const cJSON *list = json_at(v->spec, "frameworks"), *item;

    cJSON_ArrayForEach(item, list) {
        if (cJSON_IsString(item) && strcmp(item->valuestring, "None") == 0 && cJSON_GetArraySize(list) > 1) {
            broken(v, "spec.frameworks");
            return;
        }
    }
}

static void backoff_is_ordered(struct validator *v)
{
    if (json_int(v->spec, "failurePolicy.backoffBaseSeconds", 0) > json_int(v->spec, "failurePolicy.backoffMaxSeconds", INT64_MAX))
        broken(v, "spec.failurePolicy.backoffBaseSeconds");
}

static void rule_targets_exist(struct validator *v)
{
    const cJSON *rule, *target;
    int number = 0;

    if (v->roles == NULL)
        return;
    cJSON_ArrayForEach(rule, json_at(v->spec, "failurePolicy.rules")) {
        cJSON_ArrayForEach(target, json_at(rule, "targetRoles")) {
            if (cJSON_IsString(target) && role_of(v, target->valuestring) == NULL)
                broken(v, "spec.failurePolicy.rules[%d].targetRoles", number);
        }
        number++;
    }
}

static void rule_codes_exclude_success(struct validator *v)
{
    const cJSON *rule, *code;
    int number = 0;

    cJSON_ArrayForEach(rule, json_at(v->spec, "failurePolicy.rules")) {
        bool in = strcmp(json_text(rule, "onExitCodes.operator", ""), "In") == 0;
        cJSON_ArrayForEach(code, json_at(rule, "onExitCodes.values")) {
            if (in && cJSON_IsNumber(code) && code->valuedouble == 0)
                broken(v, "spec.failurePolicy.rules[%d].onExitCodes.values", number);
        }
        number++;
    }
}

static void rule_patterns_are_bearable(struct validator *v)
{
    const cJSON *rule;
    int number = 0;

    cJSON_ArrayForEach(rule, json_at(v->spec, "failurePolicy.rules")) {
        const char *pattern = json_text(rule, "onMessagePattern", NULL);
        if (pattern != NULL && !restart_pattern_is_bearable(pattern))
            broken(v, "spec.failurePolicy.rules[%d].onMessagePattern", number);
        number++;
    }
}

static void rule_patterns_compile(struct validator *v)
{
    const char *general = v->message;
    const cJSON *rule;
    int number = 0;

    cJSON_ArrayForEach(rule, json_at(v->spec, "failurePolicy.rules")) {
        const char *pattern = json_text(rule, "onMessagePattern", NULL);
        regex_t regex;
        bool is_tried = pattern != NULL && restart_pattern_is_bearable(pattern);
        int result = is_tried ? regcomp(&regex, pattern, REG_EXTENDED | REG_NOSUB) : 0;
        if (is_tried && result == 0) {
            regfree(&regex);
        } else if (result != 0) {
            char why[96], exact[256];
            (void)regerror(result, &regex, why, sizeof why);
            (void)snprintf(exact, sizeof exact, "%s: %s", general, why);
            v->message = exact;
            broken(v, "spec.failurePolicy.rules[%d].onMessagePattern", number);
            v->message = general;
        }
        number++;
    }
}

static bool is_volume_before(const struct validator *v, const cJSON *template, const char *name)
{
    const cJSON *policy, *other;

    cJSON_ArrayForEach(policy, json_at(v->spec, "volumeClaimPolicies")) {
        cJSON_ArrayForEach(other, json_at(policy, "templates")) {
            if (other == template)
                return false;
            if (strcmp(json_text(other, "metadata.name", ""), name) == 0)
                return true;
        }
    }
    return false;
}

static void claims_have_names(struct validator *v)
{
    const cJSON *policy, *template;
    int p = 0;

    cJSON_ArrayForEach(policy, json_at(v->spec, "volumeClaimPolicies")) {
        int t = 0;
        cJSON_ArrayForEach(template, json_at(policy, "templates")) {
            const char *name = json_text(template, "metadata.name", "");
            if (!text_is_dns1123_label(name) || is_volume_before(v, template, name))
                broken(v, "spec.volumeClaimPolicies[%d].templates[%d]", p, t);
            t++;
        }
        p++;
    }
}

/* ---- all of them -------------------------------------------------------------------------------------------------------- */

static const struct { const char *message; void (*look)(struct validator *v); } RULES[] = {
    { "missing, expected the job's name", name_missing },
    { "must be at most 51 characters, so that pod names behind it are DNS labels", name_length },
    { "must be a DNS-1035 label, lower case letters, digits and '-', beginning with a letter", name_form },
    { "exactly one of replicaSpecs and its alias tfReplicaSpecs must be given", one_replica_map },
    { "roles are Chief, Master, Worker, PS and Evaluator", known_roles },
    { "empty, expected a template; or remove it", empty_role },
    { "a job has a Chief or a Master, not both", one_leader },
    { "Chief and Master have exactly 1 replica", leader_is_single },
    { "Evaluator has at most 1 replica", evaluator_is_single },
    { "at least one replica of Chief, Master or Worker is needed", somebody_trains },
    { "tfConfig.containerName must be a container of each role's template", main_container_exists },
    { "elasticPolicy needs the role Worker", elastic_needs_workers },
    { "elasticPolicy.minReplicas must not be above the replicas of Worker", elastic_least },
    { "elasticPolicy.maxReplicas must not be below the replicas of Worker", elastic_most },
    { "runPolicy.schedulingPolicy.minAvailable must not be above the sum of all replicas", gang_fits },
    { "coordinator must name a replica of this job", coordinator_exists },
    { "None stands alone in frameworks", frameworks_make_sense },
    { "failurePolicy.backoffBaseSeconds must not be above backoffMaxSeconds", backoff_is_ordered },
    { "targetRoles of failurePolicy.rules must be roles of this job", rule_targets_exist },
    { "0 is success and cannot be among the values of operator In", rule_codes_exclude_success },
    { "would take too long: the numbers in braces, multiplied, must not be above 1000, and \\1 to \\9 cannot be used", rule_patterns_are_bearable },
    { "metadata.name must be a DNS label that no other claim of the job has: it is the name of a volume", claims_have_names },
    { "not a POSIX extended regular expression", rule_patterns_compile },
};

const char *const *validate_messages(void)
{
    static const char *messages[COUNT(RULES) + 1];

    for (size_t i = 0; i < COUNT(RULES); i++)
        messages[i] = RULES[i].message;
    return messages;
}

void job_validate(const cJSON *tree, const cJSON *original, const struct yaml_doc *doc, struct problems *problems)
{
    const cJSON *spec = json_at(tree, "spec");
    struct validator v = {
        .tree = tree, .original = original, .spec = spec, .doc = doc, .problems = problems, .roles = spec_roles(spec),
        .roles_key = json_at(spec, "replicaSpecs") != NULL ? "replicaSpecs" : "tfReplicaSpecs",
    };

    for (size_t i = 0; i < COUNT(RULES) && spec != NULL; i++) {
        v.message = RULES[i].message;
        RULES[i].look(&v);
    }
}
