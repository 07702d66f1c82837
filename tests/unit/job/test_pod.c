#include <criterion/criterion.h>

#include "job/pod.h"
#include "tests/unit/job/golden.h"
#include "tests/unit/job/job_fixture.h"

static const struct address_plan CLUSTER = { .kind = ADDRESS_CLUSTER };
static const struct pod_context CONTEXT = { .addresses = &CLUSTER, .attempt = 2, .sidecar_image = "ringmaster:1" };

static const char RICH_TEMPLATE[] =
    "{\"metadata\":{\"labels\":{\"team\":\"a\",\"ringmaster.dev/attempt\":\"99\"},\"annotations\":{\"note\":\"kept\"}},\"spec\":{"
    "\"initContainers\":[{\"name\":\"fetch\",\"image\":\"fetch\",\"command\":[\"fetch\"]}],"
    "\"containers\":[{\"name\":\"log\",\"image\":\"log\",\"command\":[\"log\"]},"
    "{\"name\":\"tensorflow\",\"image\":\"trainer\",\"command\":[\"python\",\"train.py\"],\"args\":[\"--ps_hosts=$(PS_HOSTS)\"],"
    "\"env\":[{\"name\":\"MINE\",\"value\":\"$(RINGMASTER_RANK)\"},{\"name\":\"PYTHONPATH\",\"value\":\"/src\"}],"
    "\"resources\":{\"limits\":{\"memory\":\"1Gi\"},\"requests\":{\"memory\":\"512Mi\"}},"
    "\"securityContext\":{\"runAsUser\":1000},"
    "\"volumeMounts\":[{\"name\":\"data\",\"mountPath\":\"/data\"},{\"name\":\"ckpt\",\"mountPath\":\"/ckpt/\",\"subPath\":\"mnist\"}]}],"
    "\"restartPolicy\":\"Always\",\"volumes\":[{\"name\":\"data\",\"emptyDir\":{}},{\"name\":\"ckpt\",\"persistentVolumeClaim\":{\"claimName\":\"c\"}}]}}";

static void set_template(struct training_job *job, enum job_role role, const char *text)
{
    cJSON_Delete(job->spec.roles[role].template);
    job->spec.roles[role].template = fixture_json(text);
}

static const cJSON *named(const cJSON *list, const char *name)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, list) {
        if (strcmp(json_text(item, "name", ""), name) == 0)
            return item;
    }
    return NULL;
}

static char *compact(const cJSON *tree)
{
    return tree != NULL ? json_print(tree, false) : xstrdup("absent");
}

static void expect_json(const cJSON *tree, const char *wanted, const char *what)
{
    auto_free char *have = compact(tree);

    cr_expect_str_eq(have, wanted, "%s: %s", what, have);
}

Test(pod, whole_pods_are_those_of_the_golden_files)
{
    auto_job struct training_job *job = fixture_job(1, 0, 2, 0, 0);

    set_template(job, ROLE_WORKER, RICH_TEMPLATE);
    auto_json cJSON *plain = pod_build(job, ROLE_CHIEF, 0, &CONTEXT), *rich = pod_build(job, ROLE_WORKER, 1, &CONTEXT), *service = service_build(job);
    auto_free char *plain_text = json_print(plain, true), *rich_text = json_print(rich, true), *service_text = json_print(service, true);
    expect_golden("pod-plain.json", plain_text);
    expect_golden("pod-rich.json", rich_text);
    expect_golden("service.json", service_text);
}

Test(pod, the_job_that_is_rendered_stays_as_it_was)
{
    auto_job struct training_job *job = fixture_job(0, 0, 2, 0, 0);

    set_template(job, ROLE_WORKER, RICH_TEMPLATE);
    auto_free char *before = json_print(job->spec.roles[ROLE_WORKER].template, false);
    cJSON_Delete(pod_build(job, ROLE_WORKER, 0, &CONTEXT));
    auto_free char *after = json_print(job->spec.roles[ROLE_WORKER].template, false);
    cr_expect_str_eq(before, after);
}

Test(pod, our_marks_win_over_the_templates)
{
    auto_job struct training_job *job = fixture_job(0, 0, 2, 0, 0);

    set_template(job, ROLE_WORKER, RICH_TEMPLATE);
    auto_json cJSON *pod = pod_build(job, ROLE_WORKER, 1, &CONTEXT);
    const cJSON *labels = json_at(pod, "metadata.labels");
    cr_expect_str_eq(cJSON_GetObjectItemCaseSensitive(labels, "ringmaster.dev/attempt")->valuestring, "2");
    cr_expect_str_eq(cJSON_GetObjectItemCaseSensitive(labels, "training.kubeflow.org/replica-index")->valuestring, "1");
    cr_expect_str_eq(json_text(labels, "team", ""), "a");
    cr_expect_str_eq(json_text(pod, "metadata.annotations.note", ""), "kept");
    cr_expect_str_eq(json_text(pod, "spec.restartPolicy", ""), "Never");
    cr_expect_str_eq(json_text(pod, "spec.hostname", ""), "mnist-worker-1");
    cr_expect_str_eq(json_text(pod, "spec.subdomain", ""), "mnist");
}

Test(pod, the_launcher_stands_before_the_main_command_alone)
{
    auto_job struct training_job *job = fixture_job(0, 0, 2, 0, 0);

    set_template(job, ROLE_WORKER, RICH_TEMPLATE);
    auto_json cJSON *pod = pod_build(job, ROLE_WORKER, 0, &CONTEXT);
    const cJSON *containers = json_at(pod, "spec.containers");
    expect_json(json_at(named(containers, "tensorflow"), "command"), "[\"/ringmaster/bin/ringmaster-launch\",\"--\",\"python\",\"train.py\"]", "main");
    expect_json(json_at(named(containers, "tensorflow"), "args"), "[\"--ps_hosts=$(PS_HOSTS)\"]", "arguments");
    expect_json(json_at(named(containers, "log"), "command"), "[\"log\"]", "another container");
}

Test(pod, a_command_that_is_not_known_is_not_guessed)
{
    auto_job struct training_job *job = fixture_job(0, 0, 2, 0, 0);

    set_template(job, ROLE_WORKER, "{\"spec\":{\"containers\":[{\"name\":\"tensorflow\",\"image\":\"i\",\"args\":[\"--steps=3\"]}]}}");
    cr_expect(!pod_command_is_known(job, ROLE_WORKER));
    auto_json cJSON *pod = pod_build(job, ROLE_WORKER, 0, &CONTEXT);
    const cJSON *main_container = named(json_at(pod, "spec.containers"), "tensorflow");
    cr_expect(json_at(main_container, "command") == NULL);
    expect_json(json_at(main_container, "args"), "[\"--steps=3\"]", "arguments");
    cr_expect(cJSON_GetObjectItemCaseSensitive(json_at(pod, "metadata.annotations"), "ringmaster.dev/launcher") != NULL, "and the pod says so");
}

Test(pod, the_sidecar_starts_first_and_holds_key_slots_and_checkpoints)
{
    auto_job struct training_job *job = fixture_job(0, 0, 2, 0, 0);

    set_template(job, ROLE_WORKER, RICH_TEMPLATE);
    auto_json cJSON *pod = pod_build(job, ROLE_WORKER, 0, &CONTEXT);
    const cJSON *inits = json_at(pod, "spec.initContainers"), *sidecar = named(inits, POD_SIDECAR_CONTAINER);
    cr_expect_str_eq(json_text(cJSON_GetArrayItem(inits, 0), "name", ""), "ringmaster-install");
    cr_expect(cJSON_GetArrayItem(inits, 1) == sidecar && cJSON_GetArraySize(inits) == 3);
    cr_expect_str_eq(json_text(sidecar, "restartPolicy", ""), "Always");
    cr_expect(json_int(sidecar, "startupProbe.tcpSocket.port", 0) == 7700);
    cr_expect(json_int(sidecar, "securityContext.runAsUser", -1) == 1000, "it shares a socket with the main container");
    const cJSON *mounts = json_at(sidecar, "volumeMounts");
    cr_expect(named(mounts, "ringmaster") && named(mounts, "ringmaster-shm") && named(mounts, "ringmaster-key") && named(mounts, "ckpt"));
    cr_expect_str_eq(json_text(named(mounts, "ckpt"), "subPath", ""), "mnist");
    const cJSON *theirs = json_at(named(json_at(pod, "spec.containers"), "tensorflow"), "volumeMounts");
    cr_expect(named(theirs, "ringmaster") && !named(theirs, "ringmaster-key"), "the key is the sidecar's alone");
    cr_expect_str_eq(json_text(named(json_at(pod, "spec.volumes"), "ringmaster-key"), "secret.secretName", ""), "mnist-ringmaster");
}

static const char CLOUD_TEMPLATE[] =
    "{\"spec\":{\"containers\":[{\"name\":\"tensorflow\",\"image\":\"i\",\"command\":[\"c\"],\"envFrom\":[{\"secretRef\":{\"name\":\"keys\"}}],\"env\":["
    "{\"name\":\"AWS_ROLE_ARN\",\"value\":\"arn:x\"},{\"name\":\"AWS_WEB_IDENTITY_TOKEN_FILE\",\"value\":\"/var/run/aws/token\"},"
    "{\"name\":\"AWS_SECRET_ACCESS_KEY\",\"valueFrom\":{\"secretKeyRef\":{\"name\":\"s\",\"key\":\"k\"}}},{\"name\":\"MINE\",\"value\":\"x\"}],"
    "\"volumeMounts\":[{\"name\":\"token\",\"mountPath\":\"/var/run/aws\"},{\"name\":\"data\",\"mountPath\":\"/data\"}]}]}}";

Test(pod, with_checkpoints_on_s3_the_sidecar_is_there_who_the_main_container_is)
{
    auto_job struct training_job *job = fixture_job(0, 0, 2, 0, 0);
    set_template(job, ROLE_WORKER, CLOUD_TEMPLATE);
    for (int on_s3 = 0; on_s3 < 2; on_s3++) {
        free(job->spec.checkpoint.path);
        job->spec.checkpoint.path = xstrdup(on_s3 ? "s3://bucket/x" : "/data/x");
        auto_json cJSON *pod = pod_build(job, ROLE_WORKER, 0, &CONTEXT);
        const cJSON *sidecar = named(json_at(pod, "spec.initContainers"), POD_SIDECAR_CONTAINER), *env = json_at(sidecar, "env");
        bool role = named(env, "AWS_ROLE_ARN") != NULL, secret = json_at(named(env, "AWS_SECRET_ACCESS_KEY"), "valueFrom.secretKeyRef") != NULL;
        cr_expect(role == on_s3 && secret == on_s3 && named(env, "MINE") == NULL, "case %d", on_s3);
        cr_expect((json_at(sidecar, "envFrom") != NULL) == on_s3, "case %d", on_s3);
        cr_expect((named(json_at(sidecar, "volumeMounts"), "token") != NULL) == on_s3, "case %d", on_s3);
        cr_expect((named(json_at(sidecar, "volumeMounts"), "data") != NULL) == !on_s3, "case %d", on_s3);
        cr_expect_str_eq(json_text(named(env, "RINGMASTER_CHECKPOINT_DIR"), "value", ""), job->spec.checkpoint.path);
    }
}

Test(pod, the_sidecar_runs_under_the_restricted_standard)
{
    auto_job struct training_job *job = fixture_job(0, 0, 2, 0, 0);
    auto_json cJSON *pod = pod_build(job, ROLE_WORKER, 0, &CONTEXT);

    for (int i = 0; i < 2; i++)
        expect_json(json_at(cJSON_GetArrayItem(json_at(pod, "spec.initContainers"), i), "securityContext"),
                    "{\"allowPrivilegeEscalation\":false,\"capabilities\":{\"drop\":[\"ALL\"]},\"readOnlyRootFilesystem\":true,"
                    "\"seccompProfile\":{\"type\":\"RuntimeDefault\"}}", "security");
    cr_expect(json_at(pod, "spec.automountServiceAccountToken") == NULL, "the user's own choice");
}

Test(pod, the_environment_stands_before_the_users_and_wins_nothing)
{
    auto_job struct training_job *job = fixture_job(0, 0, 2, 0, 0);

    set_template(job, ROLE_WORKER, RICH_TEMPLATE);
    auto_json cJSON *pod = pod_build(job, ROLE_WORKER, 0, &CONTEXT);
    const cJSON *env = json_at(named(json_at(pod, "spec.containers"), "tensorflow"), "env"), *variable;
    int paths = 0;
    cJSON_ArrayForEach(variable, env)
        paths += strcmp(json_text(variable, "name", ""), "PYTHONPATH") == 0;
    cr_expect(paths == 1);
    cr_expect_str_eq(json_text(named(env, "PYTHONPATH"), "value", ""), "/ringmaster/python:/src");
    cr_expect_str_eq(json_text(cJSON_GetArrayItem(env, cJSON_GetArraySize(env) - 1), "name", ""), "MINE", "it may refer to ours");
    cr_expect(named(json_at(named(json_at(pod, "spec.containers"), "log"), "env"), "TF_CONFIG") != NULL, "every container sees it");
    cr_expect(named(json_at(named(json_at(pod, "spec.initContainers"), "fetch"), "env"), "TF_CONFIG") != NULL);
    cr_expect(named(json_at(named(json_at(pod, "spec.containers"), "log"), "env"), "RINGMASTER_SOCKET") == NULL, "it has no such directory");
    job->spec.tf_config.container = xstrdup("tensorflow");
    auto_json cJSON *only = pod_build(job, ROLE_WORKER, 0, &CONTEXT);
    cr_expect(json_at(named(json_at(only, "spec.containers"), "log"), "env") == NULL, "unless one is named");
}

Test(pod, without_sidecar_the_template_is_left_alone)
{
    auto_job struct training_job *job = fixture_job(0, 0, 2, 0, 0);

    job->spec.sidecar.mode = 3;
    auto_json cJSON *pod = pod_build(job, ROLE_WORKER, 0, &CONTEXT);
    cr_expect(json_at(pod, "spec.initContainers") == NULL && json_at(pod, "spec.volumes") == NULL);
    expect_json(json_at(named(json_at(pod, "spec.containers"), "tensorflow"), "command"), "[\"python\",\"train.py\"]", "command");
}

Test(pod, an_ordinary_container_is_used_where_asked_for)
{
    auto_job struct training_job *job = fixture_job(0, 0, 2, 0, 0);

    job->spec.sidecar.mode = 2;
    auto_json cJSON *pod = pod_build(job, ROLE_WORKER, 0, &CONTEXT);
    const cJSON *sidecar = named(json_at(pod, "spec.containers"), POD_SIDECAR_CONTAINER);
    cr_expect(sidecar != NULL && json_at(sidecar, "restartPolicy") == NULL);
    cr_expect(cJSON_GetArraySize(json_at(pod, "spec.initContainers")) == 1);
}

static const struct { const char *name; enum gang_kind spec, found; const char *path, *value; } GANGS[] = {
    { "volcano's scheduler", GANG_VOLCANO, GANG_AUTO, "spec.schedulerName", "\"volcano\"" },
    { "coscheduling's scheduler", GANG_COSCHEDULING, GANG_AUTO, "spec.schedulerName", "\"scheduler-plugins-scheduler\"" },
    { "the native group", GANG_NATIVE, GANG_AUTO, "spec.schedulingGroup", "{\"podGroupName\":\"mnist\"}" },
    { "gates", GANG_SCHEDULING_GATES, GANG_AUTO, "spec.schedulingGates", "[{\"name\":\"ringmaster.dev/gang\"}]" },
    { "what was found when the user leaves it open", GANG_AUTO, GANG_NATIVE, "spec.schedulingGroup", "{\"podGroupName\":\"mnist\"}" },
    { "nothing found", GANG_AUTO, GANG_AUTO, "spec.schedulerName", "absent" },
    { "the user's word over what was found", GANG_NONE, GANG_VOLCANO, "spec.schedulerName", "absent" },
};

Test(pod, gangs_are_marked_for_the_scheduler_that_is_there)
{
    for (size_t i = 0; i < COUNT(GANGS); i++) {
        auto_job struct training_job *job = fixture_job(0, 0, 2, 0, 0);
        struct pod_context context = CONTEXT;
        context.gang = GANGS[i].found;
        job->spec.scheduling.gang = GANGS[i].spec;
        auto_json cJSON *pod = pod_build(job, ROLE_WORKER, 0, &context);
        expect_json(json_at(pod, GANGS[i].path), GANGS[i].value, GANGS[i].name);
    }
    auto_job struct training_job *job = fixture_job(0, 0, 2, 0, 0);
    job->spec.scheduling.gang = GANG_VOLCANO;
    job->spec.scheduling.queue = xstrdup("team-a");
    auto_json cJSON *pod = pod_build(job, ROLE_WORKER, 0, &CONTEXT);
    const cJSON *annotations = json_at(pod, "metadata.annotations");
    cr_expect_str_eq(cJSON_GetObjectItemCaseSensitive(annotations, "scheduling.k8s.io/group-name")->valuestring, "mnist");
    cr_expect_str_eq(cJSON_GetObjectItemCaseSensitive(annotations, "volcano.sh/task-spec")->valuestring, "worker");
    cr_expect_str_eq(cJSON_GetObjectItemCaseSensitive(annotations, "volcano.sh/queue-name")->valuestring, "team-a");
}

Test(pod, bad_nodes_are_excluded_from_every_alternative_that_the_user_gave)
{
    auto_job struct training_job *job = fixture_job(0, 0, 2, 0, 0);
    auto_free struct job_status *status = xcalloc(1, sizeof *status);
    struct pod_context context = CONTEXT;

    context.status = status;
    status->avoid_count = 2;
    (void)snprintf(status->avoid_nodes[0].name, 8, "n1");
    (void)snprintf(status->avoid_nodes[1].name, 8, "n2");
    auto_json cJSON *pod = pod_build(job, ROLE_WORKER, 0, &context);
    expect_json(json_at(pod, "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"),
                "[{\"matchExpressions\":[{\"key\":\"kubernetes.io/hostname\",\"operator\":\"NotIn\",\"values\":[\"n1\",\"n2\"]}]}]", "affinity");
    set_template(job, ROLE_WORKER, "{\"spec\":{\"containers\":[{\"name\":\"tensorflow\",\"command\":[\"x\"]}],\"affinity\":{\"nodeAffinity\":{"
                                   "\"requiredDuringSchedulingIgnoredDuringExecution\":{\"nodeSelectorTerms\":[{\"matchExpressions\":[{\"key\":\"a\",\"operator\":\"Exists\"}]},"
                                   "{\"matchFields\":[]}]}}}}}");
    auto_json cJSON *both = pod_build(job, ROLE_WORKER, 0, &context);
    const cJSON *term;
    cJSON_ArrayForEach(term, json_at(both, "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms")) {
        const cJSON *expressions = json_at(term, "matchExpressions");
        cr_expect_str_eq(json_text(cJSON_GetArrayItem(expressions, cJSON_GetArraySize(expressions) - 1), "operator", ""), "NotIn");
    }
}

Test(pod, memory_grows_with_each_time_that_it_ran_out)
{
    auto_job struct training_job *job = fixture_job(0, 0, 2, 0, 0);
    auto_free struct job_status *status = xcalloc(1, sizeof *status);
    struct pod_context context = CONTEXT;

    set_template(job, ROLE_WORKER, RICH_TEMPLATE);
    context.status = status;
    status->failure_count = 3;
    status->roles[ROLE_WORKER].oom_kills = 2;
    status->roles[ROLE_CHIEF].oom_kills = 1;
    auto_json cJSON *same = pod_build(job, ROLE_WORKER, 0, &context);
    expect_json(json_at(named(json_at(same, "spec.containers"), "tensorflow"), "resources.limits"), "{\"memory\":\"1Gi\"}", "policy Restart");
    job->spec.failure.oom_action = OOM_RESTART_WITH_MORE_MEMORY;
    auto_json cJSON *more = pod_build(job, ROLE_WORKER, 0, &context);
    expect_json(json_at(named(json_at(more, "spec.containers"), "tensorflow"), "resources"),
                "{\"limits\":{\"memory\":\"4294967296\"},\"requests\":{\"memory\":\"2147483648\"}}", "twice doubled");
    job->spec.failure.oom_max_bytes = 3LL << 30;
    auto_json cJSON *bounded = pod_build(job, ROLE_WORKER, 0, &context);
    expect_json(json_at(named(json_at(bounded, "spec.containers"), "tensorflow"), "resources.limits"), "{\"memory\":\"3221225472\"}", "bounded");
}

Test(pod, topology_and_priority_are_handed_on)
{
    auto_job struct training_job *job = fixture_job(0, 0, 2, 0, 0);

    job->spec.scheduling.priority_class = xstrdup("high");
    job->spec.scheduling.topology_required = xstrdup("topology.kubernetes.io/rack");
    auto_json cJSON *pod = pod_build(job, ROLE_WORKER, 0, &CONTEXT);
    cr_expect_str_eq(json_text(pod, "spec.priorityClassName", ""), "high");
    expect_json(json_at(pod, "spec.affinity.podAffinity"),
                "{\"requiredDuringSchedulingIgnoredDuringExecution\":[{\"labelSelector\":{\"matchLabels\":{\"ringmaster.dev/job-uid\":\"0b1e8a3c\"}},"
                "\"topologyKey\":\"topology.kubernetes.io/rack\"}]}", "affinity");
}

Test(pod, the_hash_knows_contents_not_order)
{
    auto_json cJSON *a = fixture_json("{\"b\":[1,2],\"a\":{\"x\":\"1\",\"y\":true}}"), *b = fixture_json("{\"a\":{\"y\":true,\"x\":\"1\"},\"b\":[1,2]}"),
                    *c = fixture_json("{\"a\":{\"y\":true,\"x\":1},\"b\":[1,2]}");
    auto_free char *ha = pod_hash(a), *hb = pod_hash(b), *hc = pod_hash(c);

    cr_expect_str_eq(ha, hb);
    cr_expect(strcmp(ha, hc) != 0 && strlen(ha) == 32);
}

Test(pod, a_service_per_replica_bears_the_pods_name)
{
    auto_job struct training_job *job = fixture_job(0, 0, 2, 1, 0);
    auto_json cJSON *service = service_build_replica(job, ROLE_PS, 0);

    cr_expect_str_eq(json_text(service, "metadata.name", ""), "mnist-ps-0");
    expect_json(json_at(service, "spec.selector"), "{\"ringmaster.dev/job-name\":\"mnist\",\"ringmaster.dev/replica-type\":\"ps\","
                "\"ringmaster.dev/replica-index\":\"0\"}", "selector");
}

Test(pod, mpirun_finds_the_hosts_of_all_ranks)
{
    static const struct address_plan LOCAL = { .kind = ADDRESS_LOCAL };
    struct pod_context context = { .addresses = &CLUSTER, .attempt = 1, .sidecar_image = "s" };
    auto_job struct training_job *job = fixture_job(1, 0, 1, 1, 0);

    job->spec.frameworks[FRAMEWORK_MPI] = true;
    auto_json cJSON *worker = pod_build(job, ROLE_WORKER, 0, &context), *ps = pod_build(job, ROLE_PS, 0, &context);
    cr_expect_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(json_at(worker, "metadata.annotations"), POD_HOSTFILE)),
                     "mnist-chief-0.mnist.ml.svc slots=1\nmnist-worker-0.mnist.ml.svc slots=1\n");
    cr_expect_null(cJSON_GetObjectItem(json_at(ps, "metadata.annotations"), POD_HOSTFILE), "it is no rank");
    const cJSON *mount;
    bool mounted = false;
    cJSON_ArrayForEach(mount, json_at(cJSON_GetArrayItem(json_at(worker, "spec.containers"), 0), "volumeMounts"))
        mounted |= strcmp(json_text(mount, "mountPath", ""), POD_HOSTFILE_DIR) == 0;
    cr_expect(mounted);
    context.addresses = &LOCAL;
    auto_json cJSON *here = pod_build(job, ROLE_WORKER, 0, &context);
    cr_expect_null(cJSON_GetObjectItem(json_at(here, "metadata.annotations"), POD_HOSTFILE));
}
