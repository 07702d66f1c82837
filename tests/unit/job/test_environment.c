#include <criterion/criterion.h>

#include "base/buf.h"
#include "job/pod.h"
#include "job/restart.h"
#include "tests/unit/job/golden.h"
#include "tests/unit/job/job_fixture.h"

static const struct address_plan CLUSTER = { .kind = ADDRESS_CLUSTER }, LOCAL = { .kind = ADDRESS_LOCAL, .local_net = 5 };
static const struct pod_context ON_CLUSTER = { .addresses = &CLUSTER, .attempt = 3, .sidecar_image = "ringmaster" };

static const char *value(const cJSON *env, const char *name)
{
    const cJSON *variable;

    cJSON_ArrayForEach(variable, env) {
        if (strcmp(json_text(variable, "name", ""), name) == 0)
            return json_text(variable, "value", "");
    }
    return NULL;
}

static void expect(const cJSON *env, const char *name, const char *wanted)
{
    const char *have = value(env, name);

    cr_expect(wanted == NULL ? have == NULL : have != NULL && strcmp(have, wanted) == 0, "%s is %s, expected %s", name,
              have != NULL ? have : "absent", wanted != NULL ? wanted : "absent");
}

static void set_user_env(struct training_job *job, enum job_role role, const char *env)
{
    cJSON *container = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(
        cJSON_GetObjectItemCaseSensitive(job->spec.roles[role].template, "spec"), "containers"), 0);

    json_put(container, "env", fixture_json(env));
}

static char *as_text(const cJSON *env)
{
    auto_buf struct buf b = BUF_INIT(1 << 20);
    const cJSON *variable;

    cJSON_ArrayForEach(variable, env)
        buf_addf(&b, "%s=%s\n", json_text(variable, "name", ""), json_text(variable, "value", ""));
    return buf_take(&b);
}

static const struct { const char *file; int32_t counts[ROLE_COUNT]; enum framework framework; enum job_role role; int32_t index; bool local; } GOLDEN[] = {
    { "env-tensorflow-ps.txt", { 1, 0, 2, 1, 0 }, FRAMEWORK_TENSORFLOW, ROLE_PS, 0, false },
    { "env-pytorch-worker.txt", { 0, 1, 2, 0, 0 }, FRAMEWORK_PYTORCH, ROLE_WORKER, 1, false },
    { "env-pytorch-local.txt", { 0, 1, 2, 0, 0 }, FRAMEWORK_PYTORCH, ROLE_WORKER, 1, true },
    { "env-jax-worker.txt", { 0, 0, 2, 0, 0 }, FRAMEWORK_JAX, ROLE_WORKER, 1, false },
    { "env-horovod-worker.txt", { 1, 0, 3, 0, 0 }, FRAMEWORK_HOROVOD, ROLE_WORKER, 2, false },
    { "env-mpi-chief.txt", { 1, 0, 3, 0, 0 }, FRAMEWORK_MPI, ROLE_CHIEF, 0, false },
};

Test(environment, lists_are_those_of_the_golden_files)
{
    for (size_t i = 0; i < COUNT(GOLDEN); i++) {
        const int32_t *n = GOLDEN[i].counts;
        auto_job struct training_job *job = fixture_job(n[0], n[1], n[2], n[3], n[4]);
        struct pod_context context = ON_CLUSTER;
        context.addresses = GOLDEN[i].local ? &LOCAL : &CLUSTER;
        job->spec.frameworks[FRAMEWORK_TENSORFLOW] = false;
        job->spec.frameworks[GOLDEN[i].framework] = true;
        auto_json cJSON *env = environment_build(job, GOLDEN[i].role, GOLDEN[i].index, &context);
        auto_free char *text = as_text(env);
        expect_golden(GOLDEN[i].file, text);
    }
}

Test(environment, the_sidecar_is_told_what_its_option_table_reads)
{
    auto_job struct training_job *job = fixture_job(1, 0, 2, 1, 1);
    struct job_status status = { .restarts = 4, .restarts_counted = 2, .disruptions = 2, .streak = 1, .window = { .parts = { { 77000, 1 } }, .part_count = 1 } };
    struct pod_context context = ON_CLUSTER;
    context.status = &status;
    context.control = "unix:/run/control.sock";
    auto_json cJSON *env = environment_sidecar(job, ROLE_WORKER, 1, &context);
    auto_free char *text = as_text(env);

    expect_golden("env-sidecar.txt", text);
    struct training_job *policy = NULL;
    struct error e = ERROR_INIT;
    cr_expect(restart_policy_decode(value(env, "RINGMASTER_POLICY"), &policy, &e) == 0, "%s", e.text);
    training_job_free(policy);
}

Test(environment, the_sidecar_is_told_of_health_and_tls_where_they_are_not_the_defaults)
{
    static const struct { int32_t timeout_ms, warning_s, shutdown_s; bool tls; const char *timeout, *warning, *shutdown, *says_tls; } rows[] = {
        { 1000, 60, 0, false, NULL, NULL, NULL, NULL },
        { 3000, 5, 90, true, "3000ms", "5s", "90s", "true" },
        { 1000, 0, 0, false, NULL, "0s", NULL, NULL },
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        auto_job struct training_job *job = fixture_job(1, 0, 2, 0, 0);
        struct pod_context context = ON_CLUSTER;
        job->spec.health.peer_timeout_ms = rows[i].timeout_ms;
        job->spec.health.stall_warning_s = rows[i].warning_s;
        job->spec.health.stall_shutdown_s = rows[i].shutdown_s;
        job->spec.sidecar.tls = rows[i].tls;
        auto_json cJSON *env = environment_sidecar(job, ROLE_WORKER, 1, &context);
        const struct { const char *name, *expected; } said[] = {
            { "RINGMASTER_PEER_TIMEOUT", rows[i].timeout }, { "RINGMASTER_STALL_WARNING", rows[i].warning },
            { "RINGMASTER_STALL_SHUTDOWN", rows[i].shutdown }, { "RINGMASTER_TLS", rows[i].says_tls },
        };
        for (size_t k = 0; k < sizeof said / sizeof *said; k++) {
            const char *found = value(env, said[k].name);
            bool same = found == NULL || said[k].expected == NULL ? found == said[k].expected : strcmp(found, said[k].expected) == 0;
            cr_expect(same, "row %zu, %s: %s", i, said[k].name, found != NULL ? found : "absent");
        }
    }
}

Test(environment, how_data_travel_is_told_to_the_sidecar)
{
    static const struct { int wire; bool checksums; const char *says_wire, *says_checksums; } rows[] = {
        { 0, false, NULL, NULL }, { 1, false, "float16", NULL }, { 2, true, "bfloat16", "true" }, { 3, false, "int8", NULL }, { 4, true, "exact", "true" },
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        auto_job struct training_job *job = fixture_job(1, 0, 2, 0, 0);
        job->spec.sidecar.wire = rows[i].wire;
        job->spec.sidecar.checksums = rows[i].checksums;
        auto_json cJSON *env = environment_sidecar(job, ROLE_WORKER, 1, &ON_CLUSTER);
        const char *wire = value(env, "RINGMASTER_WIRE"), *checksums = value(env, "RINGMASTER_CHECKSUMS");
        cr_expect(rows[i].says_wire == NULL ? wire == NULL : wire != NULL && strcmp(wire, rows[i].says_wire) == 0, "row %zu: %s", i, wire);
        cr_expect((checksums != NULL) == (rows[i].says_checksums != NULL), "row %zu: %s", i, checksums);
    }
}

Test(environment, ranks_are_not_told_to_those_outside_the_ring)
{
    auto_job struct training_job *job = fixture_job(1, 0, 2, 1, 1);

    for (enum framework f = 0; f < FRAMEWORK_COUNT; f++)
        job->spec.frameworks[f] = true;
    auto_json cJSON *ps = environment_build(job, ROLE_PS, 0, &ON_CLUSTER), *worker = environment_build(job, ROLE_WORKER, 0, &ON_CLUSTER);
    static const char *const ranked[] = { "RANK", "HOROVOD_RANK", "PROCESS_ID", "OMPI_COMM_WORLD_RANK" };
    for (size_t i = 0; i < COUNT(ranked); i++) {
        expect(ps, ranked[i], NULL);
        expect(worker, ranked[i], "1");
    }
    expect(ps, "RINGMASTER_RANK", "-1");
    expect(ps, "RINGMASTER_SIZE", "3");
    cr_expect(value(ps, "TF_CONFIG") != NULL);
}

Test(environment, what_the_user_set_wins)
{
    auto_job struct training_job *job = fixture_job(0, 1, 1, 0, 0);

    job->spec.frameworks[FRAMEWORK_PYTORCH] = true;
    set_user_env(job, ROLE_WORKER, "[{\"name\":\"MASTER_PORT\",\"value\":\"9\"},{\"name\":\"RANK\",\"valueFrom\":{\"fieldRef\":{\"fieldPath\":\"x\"}}}]");
    auto_json cJSON *worker = environment_build(job, ROLE_WORKER, 0, &ON_CLUSTER), *master = environment_build(job, ROLE_MASTER, 0, &ON_CLUSTER);
    expect(worker, "MASTER_PORT", NULL);
    expect(worker, "RANK", NULL);
    expect(worker, "WORLD_SIZE", "2");
    expect(master, "MASTER_PORT", "23456");
    expect(master, "RANK", "0");
}

Test(environment, who_a_replica_is_cannot_be_overridden)
{
    auto_job struct training_job *job = fixture_job(0, 0, 2, 0, 0);

    set_user_env(job, ROLE_WORKER, "[{\"name\":\"RINGMASTER_RANK\",\"value\":\"7\"},{\"name\":\"RINGMASTER_SOCKET\",\"value\":\"/x\"},"
                                   "{\"name\":\"RINGMASTER_LOG_LEVEL\",\"value\":\"debug\"}]");
    auto_json cJSON *env = environment_build(job, ROLE_WORKER, 1, &ON_CLUSTER), *pod = pod_build(job, ROLE_WORKER, 1, &ON_CLUSTER);
    expect(env, "RINGMASTER_RANK", "1");
    expect(env, "RINGMASTER_SOCKET", "/ringmaster/sidecar.sock");
    const cJSON *in_pod = json_at(cJSON_GetArrayItem(json_at(pod, "spec.containers"), 0), "env"), *variable;
    int ranks = 0, levels = 0;
    cJSON_ArrayForEach(variable, in_pod) {
        ranks += strcmp(json_text(variable, "name", ""), "RINGMASTER_RANK") == 0;
        levels += strcmp(json_text(variable, "name", ""), "RINGMASTER_LOG_LEVEL") == 0;
    }
    expect(in_pod, "RINGMASTER_RANK", "1");
    cr_expect(ranks == 1 && levels == 1, "%d %d", ranks, levels);
}

Test(environment, the_injected_package_stands_before_the_users_path)
{
    auto_job struct training_job *job = fixture_job(0, 0, 2, 0, 0);

    auto_json cJSON *plain = environment_build(job, ROLE_WORKER, 0, &ON_CLUSTER);
    expect(plain, "PYTHONPATH", "/ringmaster/python");
    set_user_env(job, ROLE_WORKER, "[{\"name\":\"PYTHONPATH\",\"value\":\"/src:/lib\"}]");
    auto_json cJSON *both = environment_build(job, ROLE_WORKER, 0, &ON_CLUSTER);
    expect(both, "PYTHONPATH", "/ringmaster/python:/src:/lib");
    job->spec.frameworks[FRAMEWORK_HOROVOD] = true;
    auto_json cJSON *shim = environment_build(job, ROLE_WORKER, 0, &ON_CLUSTER);
    expect(shim, "PYTHONPATH", "/ringmaster/python:/ringmaster/python/shim:/src:/lib");
    job->spec.frameworks[FRAMEWORK_HOROVOD] = false;
    struct pod_context local = ON_CLUSTER;
    local.addresses = &LOCAL;
    local.python_dir = "/home/me/python";
    local.dir = "/run/me/worker-0";
    local.checkpoint_dir = "/home/me/ckpt";
    auto_json cJSON *here = environment_build(job, ROLE_WORKER, 0, &local);
    expect(here, "PYTHONPATH", "/home/me/python:/src:/lib");
    expect(here, "RINGMASTER_SOCKET", "/run/me/worker-0/sidecar.sock");
    expect(here, "RINGMASTER_CHECKPOINT_DIR", "/home/me/ckpt");
    expect(here, "RINGMASTER_COORDINATOR", "127.1.5.1:7700");
}

Test(environment, without_a_sidecar_nothing_points_to_one)
{
    auto_job struct training_job *job = fixture_job(0, 0, 2, 0, 0);

    job->spec.sidecar.mode = 3;
    auto_json cJSON *env = environment_build(job, ROLE_WORKER, 0, &ON_CLUSTER);
    expect(env, "RINGMASTER_SOCKET", NULL);
    expect(env, "RINGMASTER_COORDINATOR", NULL);
    expect(env, "PYTHONPATH", NULL);
    expect(env, "RINGMASTER_RANK", "0");
}

Test(environment, an_elastic_job_is_told_its_bounds)
{
    auto_job struct training_job *job = fixture_job(0, 0, 4, 0, 0);

    job->spec.frameworks[FRAMEWORK_PYTORCH] = true;
    job->spec.min_replicas = (struct optional_int){ .set = true, .value = 2 };
    job->spec.max_replicas = (struct optional_int){ .set = true, .value = 8 };
    auto_json cJSON *env = environment_build(job, ROLE_WORKER, 3, &ON_CLUSTER);
    expect(env, "PET_NNODES", "2:8");
    expect(env, "PET_RDZV_BACKEND", "c10d");
    expect(env, "PET_RDZV_ENDPOINT", "mnist-worker-0.mnist.ml.svc:23456");
    expect(env, "PET_RDZV_ID", "mnist");
}

Test(environment, no_value_is_longer_than_the_kernel_takes)
{
    auto_job struct training_job *job = fixture_job(0, 0, 10000, 0, 0);
    auto_json cJSON *env = environment_build(job, ROLE_WORKER, 0, &ON_CLUSTER), *sidecar = environment_sidecar(job, ROLE_WORKER, 0, &ON_CLUSTER);
    const cJSON *variable;

    cJSON_ArrayForEach(variable, env)
        cr_expect(strlen(json_text(variable, "value", "")) + strlen(json_text(variable, "name", "")) + 2 <= 131072, "%s", json_text(variable, "name", ""));
    cJSON_ArrayForEach(variable, sidecar)
        cr_expect(strlen(json_text(variable, "value", "")) + strlen(json_text(variable, "name", "")) + 2 <= 131072, "%s", json_text(variable, "name", ""));
    const char *members = value(sidecar, "RINGMASTER_MEMBERS");
    cr_expect(strcmp(members + strlen(members) - strlen(",worker-9999"), ",worker-9999") == 0, "all members are named");
}

static const struct { const char *name, *text, *expanded; } EXPANSIONS[] = {
    { "nothing to do", "plain text", "plain text" },
    { "a name", "--ps_hosts=$(PS)", "--ps_hosts=h:1" },
    { "twice", "$(PS)$(PS)", "h:1h:1" },
    { "an unknown name stays", "$(NOPE)/x", "$(NOPE)/x" },
    { "escaped", "$$(PS)", "$(PS)" },
    { "a dollar alone", "cost $5", "cost $5" },
    { "a shell's variable stays", "$PS ${PS}", "$PS ${PS}" },
    { "not closed", "$(PS", "$(PS" },
    { "the last of a name counts", "$(TWICE)", "second" },
    { "an empty value", "[$(EMPTY)]", "[]" },
    { "a name without name", "$()", "$()" },
    { "a dollar at the end", "x$", "x$" },
};

Test(environment, references_expand_as_kubernetes_expands_them)
{
    auto_json cJSON *env = fixture_json("[{\"name\":\"PS\",\"value\":\"h:1\"},{\"name\":\"TWICE\",\"value\":\"first\"},{\"name\":\"TWICE\",\"value\":\"second\"},"
                                        "{\"name\":\"EMPTY\",\"value\":\"\"}]");

    for (size_t i = 0; i < COUNT(EXPANSIONS); i++) {
        auto_free char *text = environment_expand(EXPANSIONS[i].text, env);
        cr_expect_str_eq(text, EXPANSIONS[i].expanded, "case %s: %s", EXPANSIONS[i].name, text);
    }
}
