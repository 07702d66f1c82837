#include <criterion/criterion.h>
#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "base/mem.h"
#include "job/decode.h"
#include "job/validate.h"

#define CASES TEST_DIR "/unit/job/cases"

static char *read_text(const char *path)
{
    struct error e = ERROR_INIT;
    char *text = NULL;
    size_t len;

    cr_assert_eq(fs_read(path, 1 << 20, &text, &len, &e), 0, "%s", e.text);
    return text;
}

/* What `ringmaster validate` says of a file, with the bare name of the file. Owned. */
static char *problems_of(const char *name, const char *text)
{
    auto_free struct problems *problems = xcalloc(1, sizeof *problems);
    auto_yaml struct yaml_doc *doc = NULL;
    auto_job struct training_job *job = NULL;
    struct error e = ERROR_INIT;

    if (yaml_parse(name, text, strlen(text), &doc, &e) < 0)
        return xasprintf("%s\n", e.text);
    int result = job_decode(yaml_tree(doc, 0), doc, problems, &job, &e);
    cr_expect_eq(result, problems->count > 0 ? -1 : 0, "%s", name);
    cr_expect_eq(job == NULL, result < 0, "%s", name);
    if (result < 0)
        cr_expect_eq(e.kind, ERROR_INVALID, "%s: %s", name, e.text);
    return problems_format(problems, name);
}

/* cases/X.yaml is a broken manifest, cases/X.txt what is said of it. */
Test(validate, broken_manifests_are_told_all_that_is_wrong_with_them)
{
    DIR *dir = opendir(CASES);
    const struct dirent *entry;
    int count = 0;

    cr_assert_not_null(dir);
    while ((entry = readdir(dir)) != NULL) {
        size_t len = strlen(entry->d_name);
        if (len < 6 || strcmp(entry->d_name + len - 5, ".yaml") != 0)
            continue;
        auto_free char *yaml_path = xasprintf(CASES "/%s", entry->d_name), *text = read_text(yaml_path);
        auto_free char *golden_path = xasprintf(CASES "/%.*s.txt", (int)len - 5, entry->d_name), *golden = read_text(golden_path);
        auto_free char *found = problems_of(entry->d_name, text);
        cr_expect_str_eq(found, golden, "%s:\n%s", entry->d_name, found);
        count++;
    }
    closedir(dir);
    cr_expect_geq(count, 17);
}

/* A sound manifest with one more line under spec. */
static char *problems_with(const char *line)
{
    auto_free char *text = xasprintf("apiVersion: ringmaster.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: m}\nspec:\n  %s\n  replicaSpecs:\n"
                                     "    Chief: {template: {spec: {containers: [{name: tensorflow}]}}}\n"
                                     "    Worker: {replicas: 3, template: {spec: {containers: [{name: side}, {name: tensorflow}]}}}\n"
                                     "    PS: {replicas: 2, template: {spec: {containers: [{name: tensorflow}]}}}\n", line);
    return problems_of("m", text);
}

Test(validate, what_is_just_right_is_accepted)
{
    static const char *const rows[] = {
        "suspend: true",
        "frameworks: [None]",
        "runPolicy: {schedulingPolicy: {minAvailable: 6}}", /* 1 + 3 + 2 */
        "elasticPolicy: {minReplicas: 3, maxReplicas: 3}",
        "coordinator: {role: Worker, index: 2}",
        "tfConfig: {containerName: tensorflow}",
        "failurePolicy: {backoffBaseSeconds: 5, backoffMaxSeconds: 5}",
        "failurePolicy: {rules: [{action: Ignore, onExitCodes: {operator: NotIn, values: [0]}, targetRoles: [PS, Worker]}]}",
        "failurePolicy: {rules: [{action: FailJob, onMessagePattern: 'CUDA error: .*(ECC|Xid)'}]}",
        "runPolicy: {backoffLimit: -1}",
        "checkpoint: {path: s3://bucket/prefix}",
        "network: {subdomain: '', clusterDomain: cluster.local}",
        "managedBy: kueue.x-k8s.io/multikueue",
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        auto_free char *problems = problems_with(rows[i]);
        cr_expect_str_eq(problems, "", "case %s: %s", rows[i], problems);
    }
}

Test(validate, what_is_just_over_is_refused)
{
    static const struct { const char *line, *problem; } rows[] = {
        { "runPolicy: {schedulingPolicy: {minAvailable: 7}}", "minAvailable must not be above" },
        { "elasticPolicy: {minReplicas: 4}", "minReplicas must not be above" },
        { "elasticPolicy: {maxReplicas: 2}", "maxReplicas must not be below" },
        { "coordinator: {role: Worker, index: 3}", "must name a replica" },
        { "coordinator: {role: Master}", "must name a replica" },
        { "coordinator: {role: PS}", "one of Chief, Master or Worker" },
        { "tfConfig: {containerName: side}", "must be a container" },
        { "failurePolicy: {rules: [{action: Ignore, targetRoles: [Evaluator]}]}", "must be roles of this job" },
        { "failurePolicy: {rules: [{action: Ignore, onExitCodes: {operator: In, values: [0]}}]}", "0 is success" },
        { "failurePolicy: {rules: [{action: FailJob, onMessagePattern: '[a'}]}", "not a POSIX extended regular expression" },
        { "failurePolicy: {rules: [{action: FailJob, onMessagePattern: '((a{200}){200}){200}'}]}", "would take too long" },
        { "failurePolicy: {rules: [{action: FailJob, onMessagePattern: 'a{1001}'}]}", "would take too long" },
        { "failurePolicy: {rules: [{action: FailJob, onMessagePattern: '(.*)(.*)(.*)\\3\\2\\1b'}]}", "would take too long" },
        { "failurePolicy: {backoffMaxSeconds: 0}", "must not be above backoffMaxSeconds" }, /* against the default of the other */
        { "managedBy: nobody", "matches" },
        { "checkpoint: {path: 's3:///x'}", "matches" },
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        auto_free char *problems = problems_with(rows[i].line);
        cr_expect_not_null(strstr(problems, rows[i].problem), "case %s: %s", rows[i].line, problems);
    }
}

Test(validate, minAvailable_is_not_bounded_in_an_elastic_job)
{
    auto_free char *problems = problems_with("runPolicy: {schedulingPolicy: {minAvailable: 7}}\n  elasticPolicy: {maxReplicas: 8}");

    cr_expect_str_eq(problems, "", "%s", problems);
}

static bool is_ours(const char *message)
{
    for (const char *const *m = validate_messages(); *m != NULL; m++)
        if (strcmp(*m, message) == 0)
            return true;
    return false;
}

static void expect_twins(const cJSON *schema, int *ret_count)
{
    const cJSON *rule, *child;

    cJSON_ArrayForEach(rule, cJSON_GetObjectItem(schema, "x-kubernetes-validations")) {
        const char *text = json_text(rule, "rule", ""), *message = json_text(rule, "message", "");
        cr_expect_str_neq(message, "", "rule %s has no message", text);
        if (strstr(text, "oldSelf") != NULL) /* about a change, which a file has not */
            continue;
        cr_expect(is_ours(message), "validate.c does not say: %s", message);
        (*ret_count)++;
    }
    cJSON_ArrayForEach(child, cJSON_GetObjectItem(schema, "properties"))
        expect_twins(child, ret_count);
    if (cJSON_GetObjectItem(schema, "additionalProperties") != NULL)
        expect_twins(cJSON_GetObjectItem(schema, "additionalProperties"), ret_count);
    if (cJSON_GetObjectItem(schema, "items") != NULL)
        expect_twins(cJSON_GetObjectItem(schema, "items"), ret_count);
}

Test(validate, every_cel_rule_of_the_crd_has_its_twin_here)
{
    int count = 0;

    expect_twins(schema_of_kind(JOB_KIND), &count);
    cr_expect_geq(count, 18, "%d", count);
}
