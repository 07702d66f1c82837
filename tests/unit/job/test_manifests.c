/*
 * Whole manifests through the whole room: read, planned, rendered, run to their end on the model cluster.
 */
#include <criterion/criterion.h>
#include <glob.h>

#include "base/buf.h"
#include "base/mem.h"
#include "job/decode.h"
#include "job/manifest.h"
#include "job/pod.h"
#include "job/tfconfig.h"
#include "tests/unit/job/golden.h"
#include "tests/unit/job/world.h"

static struct training_job *read_manifest(const char *path)
{
    auto_free struct problems *problems = xcalloc(1, sizeof *problems);
    auto_yaml struct yaml_doc *doc = NULL;
    const cJSON *tree = NULL;
    struct training_job *job = NULL;
    struct error e = ERROR_INIT;

    cr_assert_eq(manifest_open(path, &doc, &tree, &e), 0, "%s: %s", path, e.text);
    cr_assert_eq(job_decode(tree, doc, problems, &job, &e), 0, "%s: %s", path, e.text);
    return job;
}

static const cJSON *main_env(const struct training_job *job, enum job_role role, const cJSON *pod)
{
    const cJSON *container;

    cJSON_ArrayForEach(container, json_at(pod, "spec.containers")) {
        if (strcmp(json_text(container, "name", ""), job_main_container(job, role)) == 0)
            return json_at(container, "env");
    }
    return NULL;
}

static const char *value(const cJSON *env, const char *name)
{
    const cJSON *variable;

    cJSON_ArrayForEach(variable, env) {
        if (strcmp(json_text(variable, "name", ""), name) == 0)
            return json_text(variable, "value", "");
    }
    return "";
}

Test(manifests, a_tfjob_gets_the_names_and_variables_that_it_had)
{
    static const struct address_plan cluster = { .kind = ADDRESS_CLUSTER };
    static const struct pod_context context = { .addresses = &cluster, .attempt = 1, .sidecar_image = "ringmaster" };
    auto_free char *path = xasprintf("%s/unit/job/manifests/tfjob.yaml", TEST_DIR);
    auto_job struct training_job *job = read_manifest(path);
    auto_buf struct buf b = BUF_INIT(1 << 20);

    for (enum job_role r = 0; r < ROLE_COUNT; r++) {
        for (int32_t i = 0; job->spec.roles[r].present && i < job->spec.roles[r].replicas; i++) {
            auto_json cJSON *pod = pod_build(job, r, i, &context);
            const cJSON *env = main_env(job, r, pod);
            buf_addf(&b, "%s\n  TF_CONFIG=%s\n  PS_HOSTS=%s\n  JOB_NAME=%s TASK_INDEX=%s\n",
                     json_text(pod, "metadata.name", ""), value(env, "TF_CONFIG"), value(env, "PS_HOSTS"),
                     value(env, "JOB_NAME"), value(env, "TASK_INDEX"));
        }
    }
    expect_golden("manifest-tfjob.txt", buf_text(&b));
}

/* The examples that a reader starts with have to be jobs that run. */
Test(manifests, every_example_renders_runs_and_ends)
{
    auto_free char *pattern = xasprintf("%s/../examples/*/trainingjob.yaml", TEST_DIR);
    glob_t found;

    cr_assert(glob(pattern, 0, NULL, &found) == 0 && found.gl_pathc >= 3, "%s", pattern);
    for (size_t k = 0; k < found.gl_pathc; k++) {
        struct world *w = world_running(read_manifest(found.gl_pathv[k]));
        struct address_plan local = { .kind = ADDRESS_LOCAL };
        struct pod_context context = { .addresses = &local, .attempt = 1, .status = w->status };
        for (size_t i = 0; i < w->pod_count; i++) {
            const struct pod_view *view = &w->pods[i];
            auto_json cJSON *pod = pod_build(w->job, view->role, view->index, &context);
            const char *config = value(main_env(w->job, view->role, pod), "TF_CONFIG");
            struct tfconfig_task task;
            struct error e = ERROR_INIT;
            cr_expect(pod_command_is_known(w->job, view->role), "%s", found.gl_pathv[k]);
            cr_expect(config[0] == '\0' ||
                          (tfconfig_parse(config, strlen(config), &task, &e) == 0 && task.index == view->index),
                      "%s: %s", found.gl_pathv[k], e.text);
        }
        for (size_t i = 0; i < w->pod_count; i++) {
            if (job_rank(w->job, w->pods[i].role, w->pods[i].index) >= 0)
                world_exit(w, w->pods[i].role, w->pods[i].index, 0);
        }
        (void)world_settle(w);
        cr_expect(w->status->phase == PHASE_SUCCEEDED, "%s: %s", found.gl_pathv[k], phase_name(w->status->phase));
        world_free(w);
    }
    globfree(&found);
}
