#include <criterion/criterion.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/fs.h"
#include "base/mem.h"
#include "base/yaml.h"
#include "job/convert.h"
#include "job/decode.h"
#include "job/pod.h"
#include "tests/unit/job/golden.h"

struct outcome {
    cJSON *tree;
    struct problems notes, problems;
    struct error e;
    int result;
};

static void release(struct outcome *o)
{
    cJSON_Delete(o->tree);
    free(o);
}

static struct outcome *convert_text(const char *name, const char *text, size_t len)
{
    struct outcome *o = xcalloc(1, sizeof *o);
    auto_yaml struct yaml_doc *doc = NULL;

    cr_assert_eq(yaml_parse(name, text, len, &doc, &o->e), 0, "%s", o->e.text);
    auto_free char *before = json_print(yaml_tree(doc, 0), false);
    o->result = convert_job(yaml_tree(doc, 0), doc, &o->notes, &o->problems, &o->tree, &o->e);
    auto_free char *after = json_print(yaml_tree(doc, 0), false);
    cr_expect_str_eq(after, before, "%s: convert_job changed the manifest", name);
    return o;
}

static const char *base_name(const char *path)
{
    return strrchr(path, '/') + 1;
}

Test(convert, real_manifests_become_what_the_golden_files_say)
{
    glob_t files;
    auto_free char *pattern = xasprintf("%s/unit/job/convert/*.yaml", TEST_DIR);

    cr_assert_eq(glob(pattern, 0, NULL, &files), 0);
    cr_expect_geq(files.gl_pathc, 12);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        auto_free char *text = NULL;
        struct error e = ERROR_INIT;
        size_t len = 0;
        const char *name = base_name(files.gl_pathv[i]);
        cr_assert_eq(fs_read(files.gl_pathv[i], 1 << 20, &text, &len, &e), 0, "%s", e.text);
        struct outcome *o = convert_text(name, text, len);
        if (o->result < 0) {
            auto_free char *report = problems_format(&o->problems, name);
            cr_assert_fail("%s: %s\n%s", name, o->e.text, report);
        }
        auto_free char *notes = problems_format(&o->notes, name), *yaml = yaml_print(o->tree);
        auto_free char *golden = xasprintf("convert/%.*s.txt", (int)strcspn(name, "."), name);
        auto_free char *all = xasprintf("%s---\n%s", notes, yaml);
        expect_golden(golden, all);
        release(o);
    }
    globfree(&files);
}

/* A TFJob that docs/migrate.md's two lines turn into a TrainingJob has the very pods of the converted one. */
Test(convert, a_tfjob_comes_to_the_same_pods_by_two_lines)
{
    static const char head[] =
        "apiVersion: %s\nkind: %s\nmetadata: {name: mnist, namespace: vision}\nspec:\n"
        "  runPolicy: {cleanPodPolicy: Running, backoffLimit: 3}\n  tfReplicaSpecs:\n"
        "    Chief: {template: {spec: {containers: [{name: tensorflow, image: a, command: [b]}]}}}\n"
        "    Worker: {replicas: 3, restartPolicy: ExitCode, template: {spec: {containers: "
        "[{name: tensorflow, image: a, command: [b], ports: [{name: tfjob-port, containerPort: 3000}]}]}}}\n";
    static const struct address_plan cluster = { .kind = ADDRESS_CLUSTER };
    static const struct pod_context context = { .addresses = &cluster, .attempt = 1, .sidecar_image = "ringmaster" };
    auto_free char *before = xasprintf(head, "kubeflow.org/v1", "TFJob");
    auto_free char *changed = xasprintf(head, JOB_API_VERSION, JOB_KIND);
    auto_free struct problems *problems = xcalloc(1, sizeof *problems);
    auto_yaml struct yaml_doc *doc = NULL;
    auto_job struct training_job *a = NULL, *b = NULL;
    struct error e = ERROR_INIT;

    struct outcome *o = convert_text("tfjob.yaml", before, strlen(before));
    cr_assert_eq(o->result, 0, "%s", o->e.text);
    cr_assert_eq(yaml_parse("job.yaml", changed, strlen(changed), &doc, &e), 0, "%s", e.text);
    cr_assert_eq(job_decode(o->tree, NULL, problems, &a, &e), 0, "%s", e.text);
    cr_assert_eq(job_decode(yaml_tree(doc, 0), doc, problems, &b, &e), 0, "%s", e.text);
    cr_expect_eq(job_replicas(a), 4);
    for (enum job_role r = 0; r < ROLE_COUNT; r++) {
        for (int32_t i = 0; a->spec.roles[r].present && i < a->spec.roles[r].replicas; i++) {
            auto_json cJSON *pod_a = pod_build(a, r, i, &context), *pod_b = pod_build(b, r, i, &context);
            auto_free char *text_a = json_print(pod_a, true), *text_b = json_print(pod_b, true);
            cr_expect_str_eq(text_a, text_b, "%s %d", role_name(r), (int)i);
        }
    }
    release(o);
}

Test(convert, what_cannot_be_converted_is_refused_with_the_reason)
{
#define WORKER                                                                                                         \
    "tfReplicaSpecs: {Worker: {template: {spec: {containers: [{name: tensorflow, image: a, command: [b]}]}}}}"
    static const struct {
        const char *name, *text, *error, *problem;
    } rows[] = {
        { "another kind", "{apiVersion: kubeflow.org/v1, kind: MPIJob, spec: {}}",
          "kind: found \"MPIJob\", expected TFJob or PyTorchJob", NULL },
        { "no kind", "{spec: {}}", "kind: found \"\"", NULL },
        { "an old version", "{apiVersion: kubeflow.org/v1beta2, kind: TFJob, spec: {}}",
          "apiVersion: found \"kubeflow.org/v1beta2\", expected kubeflow.org/v1", NULL },
        { "no spec", "{apiVersion: kubeflow.org/v1, kind: TFJob, metadata: {name: a}}", "spec: missing", NULL },
        { "spec is a text", "{apiVersion: kubeflow.org/v1, kind: TFJob, spec: a}", "spec: missing", NULL },
        { "policy is a list",
          "{apiVersion: kubeflow.org/v1, kind: TFJob, metadata: {name: a}, spec: {runPolicy: [], " WORKER "}}",
          "spec.runPolicy: found no mapping", NULL },
        { "roles are a list",
          "{apiVersion: kubeflow.org/v1, kind: TFJob, metadata: {name: a}, spec: {tfReplicaSpecs: []}}",
          "spec.tfReplicaSpecs: found no mapping", NULL },
        { "no roles", "{apiVersion: kubeflow.org/v1, kind: PyTorchJob, metadata: {name: a}, spec: {" WORKER "}}",
          "the TrainingJob that this PyTorchJob comes to: ",
          "at least one replica of Chief, Master or Worker is needed" },
        { "a name too long",
          "{apiVersion: kubeflow.org/v1, kind: TFJob, metadata: {name: "
          "a23456789-123456789-123456789-123456789-123456789-12}, spec: {" WORKER "}}",
          "the TrainingJob that this TFJob comes to: ", "must be at most 51 characters" },
        { "a text for a number",
          "{apiVersion: kubeflow.org/v1, kind: TFJob, metadata: {name: a}, spec: {runPolicy: {backoffLimit: "
          "\"3\"}, " WORKER "}}",
          "the TrainingJob that this TFJob comes to: ", "spec.runPolicy.backoffLimit" },
        { "a role without template",
          "{apiVersion: kubeflow.org/v1, kind: TFJob, metadata: {name: a}, spec: {tfReplicaSpecs: "
          "{Worker: {replicas: 2}}}}",
          "the TrainingJob that this TFJob comes to: ", "spec.replicaSpecs.Worker.template" },
        { "an unknown role",
          "{apiVersion: kubeflow.org/v1, kind: TFJob, metadata: {name: a}, spec: {tfReplicaSpecs: "
          "{Wrker: {template: {spec: {containers: [{name: a}]}}}}}}",
          "the TrainingJob that this TFJob comes to: ",
          "roles are Chief, Master, Worker, PS and Evaluator; did you mean \"Worker\"?" },
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct outcome *o = convert_text(rows[i].name, rows[i].text, strlen(rows[i].text));
        auto_free char *report = problems_format(&o->problems, "a.yaml");
        cr_expect_eq(o->result, -1, "case %s", rows[i].name);
        cr_expect_eq(o->e.kind, ERROR_INVALID, "case %s", rows[i].name);
        cr_expect_not_null(strstr(o->e.text, rows[i].error), "case %s: %s", rows[i].name, o->e.text);
        if (rows[i].problem != NULL)
            cr_expect_not_null(strstr(report, rows[i].problem), "case %s: %s", rows[i].name, report);
        release(o);
    }
}

/* Each value of a good manifest replaced by one of another type: no crash, and an answer either way. */
static void disturb(cJSON *tree, cJSON *root, size_t *ret_count, size_t *ret_bad)
{
    static const char *const others[] = {
        "null", "5", "\"x\"", "[]", "{}", "[[{}]]", "true", "{\"a\":[1,{\"name\":7}]}"
    };
    cJSON *item;

    cJSON_ArrayForEach(item, tree)
    {
        disturb(item, root, ret_count, ret_bad);
        for (size_t i = 0; i < COUNT(others); i++) {
            auto_free struct problems *notes = xcalloc(1, sizeof *notes), *problems = xcalloc(1, sizeof *problems);
            struct error e = ERROR_INIT;
            cJSON *result = NULL, kept = *item;
            auto_json cJSON *other = cJSON_Parse(others[i]);
            item->type = other->type;
            item->child = other->child;
            item->valuestring = other->valuestring;
            item->valueint = other->valueint;
            item->valuedouble = other->valuedouble;
            int answer = convert_job(root, NULL, notes, problems, &result, &e);
            *ret_bad += (answer == 0) != (result != NULL) || (answer != 0 && e.text[0] == '\0');
            cJSON_Delete(result);
            item->type = kept.type;
            item->child = kept.child;
            item->valuestring = kept.valuestring;
            item->valueint = kept.valueint;
            item->valuedouble = kept.valuedouble;
            ++*ret_count;
        }
    }
}

Test(convert, nothing_in_a_manifest_is_trusted)
{
    static const char *const files[] = { "tf-kueue.yaml", "tf-addresses.yaml", "pytorch-elastic.yaml",
                                         "pytorch-gpus.yaml" };
    size_t count = 0, bad = 0;

    for (size_t i = 0; i < COUNT(files); i++) {
        auto_free char *path = xasprintf("%s/unit/job/convert/%s", TEST_DIR, files[i]), *text = NULL;
        auto_yaml struct yaml_doc *doc = NULL;
        struct error e = ERROR_INIT;
        size_t len = 0;
        cr_assert_eq(fs_read(path, 1 << 20, &text, &len, &e), 0, "%s", e.text);
        cr_assert_eq(yaml_parse(files[i], text, len, &doc, &e), 0, "%s", e.text);
        auto_json cJSON *tree = cJSON_Duplicate(yaml_tree(doc, 0), true);
        disturb(tree, tree, &count, &bad);
    }
    cr_expect_gt(count, 1000);
    cr_expect_eq(bad, 0, "%zu of %zu", bad, count);
}
