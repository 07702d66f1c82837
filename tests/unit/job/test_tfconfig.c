#include <criterion/criterion.h>

#include "base/fs.h"
#include "job/tfconfig.h"
#include "tests/unit/job/job_fixture.h"

static const struct address_plan CLUSTER = { .kind = ADDRESS_CLUSTER };

enum { DEFAULT = 0, SPARSE = 1, EVALUATOR_INSIDE = 2, MASTER_AS_MASTER = 4, LOCAL = 8 };

static const struct { const char *file; int32_t counts[ROLE_COUNT]; unsigned how; enum job_role role; int32_t index; } GOLDEN[] = {
    { "tfconfig-chief-of-ps-job", { 1, 0, 2, 1, 0 }, DEFAULT, ROLE_CHIEF, 0 },
    { "tfconfig-worker-of-ps-job", { 1, 0, 2, 1, 0 }, DEFAULT, ROLE_WORKER, 1 },
    { "tfconfig-ps", { 1, 0, 2, 1, 0 }, DEFAULT, ROLE_PS, 0 },
    { "tfconfig-workers-only", { 0, 0, 3, 0, 0 }, DEFAULT, ROLE_WORKER, 2 },
    { "tfconfig-master-is-chief", { 0, 1, 2, 0, 0 }, DEFAULT, ROLE_MASTER, 0 },
    { "tfconfig-master-is-master", { 0, 1, 2, 0, 1 }, MASTER_AS_MASTER | EVALUATOR_INSIDE, ROLE_MASTER, 0 },
    { "tfconfig-evaluator-outside", { 1, 0, 2, 0, 1 }, DEFAULT, ROLE_EVALUATOR, 0 },
    { "tfconfig-evaluator-inside", { 1, 0, 2, 0, 1 }, EVALUATOR_INSIDE, ROLE_EVALUATOR, 0 },
    { "tfconfig-sparse-worker", { 1, 0, 3, 2, 1 }, SPARSE, ROLE_WORKER, 2 },
    { "tfconfig-sparse-ps", { 1, 0, 3, 2, 1 }, SPARSE, ROLE_PS, 1 },
    { "tfconfig-sparse-chief", { 1, 0, 3, 2, 1 }, SPARSE, ROLE_CHIEF, 0 },
    { "tfconfig-sparse-evaluator", { 1, 0, 3, 2, 1 }, SPARSE, ROLE_EVALUATOR, 0 },
    { "tfconfig-sparse-without-ps", { 0, 0, 3, 0, 0 }, SPARSE, ROLE_WORKER, 1 },
    { "tfconfig-local", { 1, 0, 2, 0, 0 }, LOCAL, ROLE_WORKER, 0 },
};

static char *format(size_t i)
{
    const int32_t *n = GOLDEN[i].counts;
    auto_job struct training_job *job = fixture_job(n[0], n[1], n[2], n[3], n[4]);
    struct address_plan plan = CLUSTER;

    job->spec.enable_dynamic_worker = (GOLDEN[i].how & SPARSE) != 0;
    job->spec.tf_config.evaluator_in_cluster = (GOLDEN[i].how & EVALUATOR_INSIDE) != 0;
    job->spec.tf_config.master_as_chief = (GOLDEN[i].how & MASTER_AS_MASTER) == 0;
    if ((GOLDEN[i].how & LOCAL) != 0)
        plan.kind = ADDRESS_LOCAL;
    return tfconfig_format(job, &plan, GOLDEN[i].role, GOLDEN[i].index);
}

/* RINGMASTER_WRITE_GOLDEN=1 writes the files anew: look at the difference before it is committed. */
Test(tfconfig, bytes_are_those_of_the_golden_files)
{
    for (size_t i = 0; i < COUNT(GOLDEN); i++) {
        auto_free char *text = format(i), *path = xasprintf("%s/unit/job/golden/%s.json", TEST_DIR, GOLDEN[i].file), *golden = NULL;
        struct error e = ERROR_INIT;
        size_t len = 0;
        if (getenv("RINGMASTER_WRITE_GOLDEN") != NULL) {
            auto_free char *line = xasprintf("%s\n", text);
            cr_assert(fs_write_atomic(path, line, strlen(line), 0644, &e) == 0, "%s", e.text);
        }
        cr_assert(fs_read(path, 1 << 20, &golden, &len, &e) == 0, "%s", e.text);
        cr_expect(len == strlen(text) + 1 && memcmp(golden, text, len - 1) == 0, "case %s:\n%s\nexpected\n%s", GOLDEN[i].file, text, golden);
    }
}

Test(tfconfig, kubeflow_writes_the_same_bytes)
{
    auto_job struct training_job *job = fixture_job(1, 0, 2, 1, 0);

    job->spec.network.service_per_pod = true;
    auto_free char *text = tfconfig_format(job, &CLUSTER, ROLE_WORKER, 0);
    cr_expect_str_eq(text, "{\"cluster\":{\"chief\":[\"mnist-chief-0.ml.svc:2222\"],\"ps\":[\"mnist-ps-0.ml.svc:2222\"],\"worker\":["
                           "\"mnist-worker-0.ml.svc:2222\",\"mnist-worker-1.ml.svc:2222\"]},\"task\":{\"type\":\"worker\",\"index\":0},"
                           "\"environment\":\"cloud\"}");
}

Test(tfconfig, a_job_of_one_replica_has_none)
{
    auto_job struct training_job *alone = fixture_job(0, 0, 1, 0, 0), *pair = fixture_job(1, 0, 0, 0, 1);

    cr_expect(tfconfig_format(alone, &CLUSTER, ROLE_WORKER, 0) == NULL);
    auto_free char *text = tfconfig_format(pair, &CLUSTER, ROLE_CHIEF, 0);
    cr_expect(text != NULL, "an evaluator beside it has to find its chief");
}

Test(tfconfig, what_is_written_can_be_read)
{
    for (size_t i = 0; i < COUNT(GOLDEN); i++) {
        auto_free char *text = format(i);
        struct tfconfig_task task;
        struct error e = ERROR_INIT;
        cr_assert(tfconfig_parse(text, strlen(text), &task, &e) == 0, "case %s: %s", GOLDEN[i].file, e.text);
        cr_expect(task.index == GOLDEN[i].index && task.cluster_size > 0, "case %s", GOLDEN[i].file);
        cr_expect(strstr(text, task.type) != NULL, "case %s", GOLDEN[i].file);
    }
}

static const struct { const char *name, *text, *error; } BAD[] = {
    { "nothing", "", "TF_CONFIG" },
    { "no JSON", "{", "not valid JSON" },
    { "no cluster", "{\"task\":{\"type\":\"worker\",\"index\":0}}", "cluster is missing" },
    { "no type", "{\"cluster\":{},\"task\":{\"index\":0}}", "task.type" },
    { "a type without end", "{\"cluster\":{},\"task\":{\"type\":\"wwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwww\",\"index\":0}}", "task.type" },
    { "no index", "{\"cluster\":{},\"task\":{\"type\":\"worker\"}}", "task.index" },
    { "a negative index", "{\"cluster\":{},\"task\":{\"type\":\"worker\",\"index\":-1}}", "task.index" },
    { "half an index", "{\"cluster\":{},\"task\":{\"type\":\"worker\",\"index\":0.5}}", "task.index" },
    { "an endless index", "{\"cluster\":{},\"task\":{\"type\":\"worker\",\"index\":1e99}}", "task.index" },
    { "a word as index", "{\"cluster\":{},\"task\":{\"type\":\"worker\",\"index\":\"one\"}}", "task.index" },
    { "a number as tasks", "{\"cluster\":{\"ps\":3},\"task\":{\"type\":\"worker\",\"index\":0}}", "cluster.ps" },
    { "a host without port", "{\"cluster\":{\"ps\":[\"host\"]},\"task\":{\"type\":\"worker\",\"index\":0}}", "host:port" },
};

Test(tfconfig, what_is_none_is_refused_in_words)
{
    struct tfconfig_task task = { .index = 77 };

    for (size_t i = 0; i < COUNT(BAD); i++) {
        struct error e = ERROR_INIT;
        cr_expect(tfconfig_parse(BAD[i].text, strlen(BAD[i].text), &task, &e) < 0, "case %s", BAD[i].name);
        cr_expect(strstr(e.text, BAD[i].error) != NULL, "case %s: %s", BAD[i].name, e.text);
    }
    cr_expect(task.index == 77, "nothing is written on failure");
    const char *quoted = "{\"cluster\":{\"ps\":{\"2\":\"h:1\"}},\"task\":{\"type\":\"ps\",\"index\":\"2\"}}";
    struct error e = ERROR_INIT;
    cr_expect(tfconfig_parse(quoted, strlen(quoted), &task, &e) == 0 && task.index == 2 && task.cluster_size == 1, "\"2\" is an index, too");
}
