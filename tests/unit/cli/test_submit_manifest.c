#include <criterion/criterion.h>
#include <string.h>

#include "base/mem.h"
#include "cli/np.h"
#include "cli/submit_manifest.h"
#include "job/decode.h"

static cJSON *manifest(void)
{
    struct np_options np = { .reset_limit = -1 };
    char *command[] = { (char *)"python", (char *)"train.py" };
    return np_manifest(&np, "train", 2, command, 2);
}

static const cJSON *container_of(const cJSON *tree)
{
    return json_at(tree, "spec.replicaSpecs.Worker.template.spec.containers")->child;
}

Test(submit_manifest, everything_has_its_place_and_the_result_is_valid)
{
    const char *env[] = { "A=1", "PRICE=$5=x" }, *labels[] = { "team=a" }, *nodes[] = { "kind=gpu" };
    struct submit_pod p = { .image = "img:1", .gpus = 2, .gpu_resource = "nvidia.com/gpu", .cpu = "500m", .memory = "4Gi", .env = { env, 2 },
                            .labels = { labels, 1 }, .node_selector = { nodes, 1 }, .working_dir = "/src", .service_account = "sa",
                            .pull_secret = "pull", .queue = "q", .priority_class = "high", .checkpoint = "/ckpt", .checkpoint_claim = "disk",
                            .checkpoint_every = 50 };
    auto_json cJSON *tree = manifest();
    auto_free struct problems *problems = xcalloc(1, sizeof *problems);
    auto_job struct training_job *job = NULL;
    struct error e = ERROR_INIT;
    cr_assert_eq(submit_complete(&p, tree, &e), 0, "%s", e.text);
    cr_assert_eq(job_decode(tree, NULL, problems, &job, &e), 0, "%s: %s", e.text, problems->items[0].text);
    auto_free char *container = json_print(container_of(tree), false);
    cr_expect_str_eq(container,
                     "{\"name\":\"main\",\"command\":[\"python\",\"train.py\"],\"image\":\"img:1\",\"workingDir\":\"/src\","
                     "\"env\":[{\"name\":\"A\",\"value\":\"1\"},{\"name\":\"PRICE\",\"value\":\"$$5=x\"}],"
                     "\"resources\":{\"requests\":{\"cpu\":\"500m\",\"memory\":\"4Gi\"},\"limits\":{\"memory\":\"4Gi\",\"nvidia.com/gpu\":\"2\"}},"
                     "\"volumeMounts\":[{\"name\":\"checkpoints\",\"mountPath\":\"/ckpt\"}]}", "%s", container);
    cr_expect_str_eq(json_text(tree, "spec.runPolicy.schedulingPolicy.queue", ""), "q");
    cr_expect_str_eq(json_text(tree, "spec.checkpoint.path", ""), "/ckpt");
    cr_expect_eq(json_int(tree, "spec.checkpoint.everySteps", 0), 50);
    cr_expect_str_eq(json_text(tree, "metadata.labels.team", ""), "a");
    cr_expect_str_eq(json_text(tree, "spec.replicaSpecs.Worker.template.spec.nodeSelector.kind", ""), "gpu");
}

Test(submit_manifest, what_is_wrong_names_its_option)
{
    static const char *const NO_VALUE[] = { "A" }, *const NO_NAME[] = { "=x" }, *const BAD_NAME[] = { "a b=x" };
    static const struct { const char *what; struct submit_pod pod; const char *wrong; } ROWS[] = {
        { "env without a value", { .env = { (const char **)NO_VALUE, 1 } }, "--env: found \"A\", expected NAME=VALUE" },
        { "env without a name", { .env = { (const char **)NO_NAME, 1 } }, "--env: found \"=x\"" },
        { "env with a bad name", { .env = { (const char **)BAD_NAME, 1 } }, "--env: \"a b\" is no name of a variable" },
        { "label", { .labels = { (const char **)NO_VALUE, 1 } }, "--label: found \"A\"" },
        { "selector", { .node_selector = { (const char **)NO_VALUE, 1 } }, "--node-selector: found \"A\"" },
        { "cpu", { .cpu = "many" }, "--cpu: found \"many\", expected a quantity such as 4 or 500m" },
        { "memory", { .memory = "0" }, "--memory: found \"0\"" },
        { "checkpoint", { .checkpoint = "here" }, "--checkpoint: found \"here\", expected an absolute directory" },
        { "claim without a place", { .checkpoint_claim = "c" }, "--checkpoint-claim c: at which directory?" },
        { "claim at S3", { .checkpoint_claim = "c", .checkpoint = "s3://b" }, "--checkpoint-claim c: at which directory?" },
    };
    for (size_t i = 0; i < COUNT(ROWS); i++) {
        auto_json cJSON *tree = manifest();
        struct error e = ERROR_INIT;
        cr_expect_eq(submit_complete(&ROWS[i].pod, tree, &e), -1, "case %s", ROWS[i].what);
        cr_expect(strstr(e.text, ROWS[i].wrong) == e.text, "case %s: %s", ROWS[i].what, e.text);
        cr_expect_eq(e.kind, ERROR_INVALID);
    }
}

Test(submit_manifest, names_differ_and_fit)
{
    char a[60], b[60];
    submit_name("train", 1, a);
    submit_name("train", 2, b);
    cr_expect_str_neq(a, b);
    cr_expect_eq(strlen(a), strlen("train-") + 5);
    submit_name("a-very-long-name-that-goes-on-and-on-and-on-and-on-and-on", UINT64_MAX, a);
    cr_expect_leq(strlen(a), (size_t)JOB_NAME_MAX);
}

Test(submit_manifest, what_belongs_to_an_object_goes)
{
    struct error e = ERROR_INIT;
    cJSON *tree = NULL;
    static const char TEXT[] = "{\"metadata\":{\"name\":\"x\",\"uid\":\"u\",\"resourceVersion\":\"7\",\"managedFields\":[]},\"spec\":{},\"status\":{}}";
    cr_assert_eq(json_parse(TEXT, strlen(TEXT), &tree, &e), 0);
    submit_strip(tree);
    auto_free char *text = json_print(tree, false);
    cr_expect_str_eq(text, "{\"metadata\":{\"name\":\"x\"},\"spec\":{}}");
    cJSON_Delete(tree);
}
