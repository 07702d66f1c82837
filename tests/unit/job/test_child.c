#include <criterion/criterion.h>

#include "job/child.h"
#include "job/pod.h"
#include "tests/unit/job/job_fixture.h"
#include "tests/unit/quietly.h"

#define CLAIMS                                                                                                                \
    "[{\"templates\":[{\"metadata\":{\"name\":\"data\",\"labels\":{\"team\":\"a\",\"ringmaster.dev/job-name\":\"forged\"}},"  \
    "\"spec\":{\"accessModes\":[\"ReadWriteOnce\"],\"resources\":{\"requests\":{\"storage\":\"1Gi\"}}}}],"                    \
    "\"retentionPolicy\":{\"whenDeleted\":\"Delete\",\"whenScaled\":\"Delete\"}},"                                            \
    "{\"templates\":[{\"metadata\":{\"name\":\"kept\"},\"spec\":{}},{\"metadata\":{\"name\":\"unused\"},\"spec\":{}}]}]"
#define TEMPLATE                                                                                                              \
    "{\"spec\":{\"containers\":[{\"name\":\"tensorflow\",\"command\":[\"x\"],\"volumeMounts\":[{\"name\":\"data\",\"mountPath\":\"/data\"}]}]," \
    "\"initContainers\":[{\"name\":\"get\",\"volumeMounts\":[{\"name\":\"kept\",\"mountPath\":\"/kept\"}]}],"                 \
    "\"volumes\":[{\"name\":\"data\",\"emptyDir\":{}},{\"name\":\"other\",\"emptyDir\":{}}]}}"

static struct training_job *job_with_claims(void)
{
    struct training_job *job = fixture_job(1, 0, 2, 0, 0);

    job->spec.volume_claim_policies = fixture_json(CLAIMS);
    cJSON_Delete(job->spec.roles[ROLE_WORKER].template);
    job->spec.roles[ROLE_WORKER].template = fixture_json(TEMPLATE);
    return job;
}

Test(child, a_replica_has_the_claims_that_its_containers_mount)
{
    auto_job struct training_job *job = job_with_claims();
    char name[192];

    cr_assert_eq(volume_claim_count(job), 3);
    cr_expect(volume_claim_is_wanted(job, ROLE_WORKER, 0) && volume_claim_is_wanted(job, ROLE_WORKER, 1), "an init container counts, too");
    cr_expect(!volume_claim_is_wanted(job, ROLE_WORKER, 2) && !volume_claim_is_wanted(job, ROLE_CHIEF, 0));
    volume_claim_name(job, ROLE_WORKER, 1, 0, name);
    cr_expect_str_eq(name, "data-mnist-worker-1");
}

Test(child, who_owns_a_claim_is_said_by_its_policy)
{
    auto_job struct training_job *job = job_with_claims();
    auto_json cJSON *data = volume_claim_build(job, ROLE_WORKER, 1, 0), *kept = volume_claim_build(job, ROLE_WORKER, 0, 1);
    const cJSON *labels = json_at(data, "metadata.labels");

    cr_expect_str_eq(json_text(cJSON_GetArrayItem(json_at(data, "metadata.ownerReferences"), 0), "uid", ""), job->uid);
    cr_expect_null(json_at(kept, "metadata.ownerReferences"), "what is retained belongs to nobody");
    cr_expect_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(labels, "team")), "a");
    cr_expect_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(labels, "ringmaster.dev/job-name")), "mnist", "a template cannot claim another job's");
    cr_expect_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(labels, "ringmaster.dev/replica-index")), "1");
    cr_expect_str_eq(json_text(data, "spec.resources.requests.storage", ""), "1Gi");
    cr_expect_str_eq(json_text(kept, "metadata.name", ""), "kept-mnist-worker-0");
}

Test(child, the_volume_of_a_claim_takes_the_place_of_the_templates)
{
    auto_job struct training_job *job = job_with_claims();
    static const struct address_plan CLUSTER = { .kind = ADDRESS_CLUSTER };
    struct pod_context context = { .addresses = &CLUSTER, .attempt = 1, .sidecar_image = "s" };
    auto_json cJSON *pod = pod_build(job, ROLE_WORKER, 1, &context), *chief = pod_build(job, ROLE_CHIEF, 0, &context);
    const cJSON *volume;
    int data = 0, kept = 0, other = 0;

    cJSON_ArrayForEach(volume, json_at(pod, "spec.volumes")) {
        const char *name = json_text(volume, "name", ""), *claim = json_text(volume, "persistentVolumeClaim.claimName", "");
        data += strcmp(name, "data") == 0 && strcmp(claim, "data-mnist-worker-1") == 0 && json_at(volume, "emptyDir") == NULL;
        kept += strcmp(name, "kept") == 0 && strcmp(claim, "kept-mnist-worker-1") == 0;
        other += strcmp(name, "other") == 0;
        cr_expect_str_neq(name, "unused");
    }
    cr_expect(data == 1 && kept == 1 && other == 1, "%d %d %d", data, kept, other);
    cJSON_ArrayForEach(volume, json_at(chief, "spec.volumes"))
        cr_expect_null(json_at(volume, "persistentVolumeClaim"));
}

#define CLAIM(name, job, role, index)                                                                                         \
    "{\"metadata\":{\"name\":\"" name "\",\"labels\":{\"ringmaster.dev/job-name\":\"" job "\",\"ringmaster.dev/replica-type\":\"" role \
    "\",\"ringmaster.dev/replica-index\":\"" index "\"}}}"

static const struct { const char *name, *claim; bool surplus; } SURPLUS[] = {
    { "of a replica that is no more", CLAIM("data-mnist-worker-2", "mnist", "worker", "2"), true },
    { "of a replica that is there", CLAIM("data-mnist-worker-1", "mnist", "worker", "1"), false },
    { "retained", CLAIM("kept-mnist-worker-2", "mnist", "worker", "2"), false },
    { "of another job", CLAIM("data-mnist-worker-2", "cifar", "worker", "2"), false },
    { "of a template that is not here any more", CLAIM("old-mnist-worker-2", "mnist", "worker", "2"), false },
    { "another's name", CLAIM("data-mnist-worker-3", "mnist", "worker", "2"), false },
    { "of a role that the job does not have", CLAIM("data-mnist-ps-2", "mnist", "ps", "2"), false },
    { "an index that is none", CLAIM("data-mnist-worker-2", "mnist", "worker", "2x"), false },
    { "no labels", "{\"metadata\":{\"name\":\"data-mnist-worker-2\"}}", false },
};

Test(child, only_claims_of_replicas_that_are_no_more_are_surplus)
{
    auto_job struct training_job *job = job_with_claims(), *plain = fixture_job(0, 0, 2, 0, 0);

    cr_expect(volume_claims_shrink(job) && !volume_claims_shrink(plain) && volume_claim_count(plain) == 0);
    for (size_t i = 0; i < COUNT(SURPLUS); i++) {
        auto_json cJSON *claim = fixture_json(SURPLUS[i].claim);
        cr_expect(volume_claim_is_surplus(job, claim) == SURPLUS[i].surplus, "case %s", SURPLUS[i].name);
    }
}

static bool opens(const cJSON *rule, const char *protocol, int port)
{
    const cJSON *range;

    cJSON_ArrayForEach(range, json_at(rule, "ports")) {
        int64_t first = json_int(range, "port", 0), last = json_int(range, "endPort", first);
        if (strcmp(json_text(range, "protocol", ""), protocol) == 0 && first <= port && port <= last)
            return true;
    }
    return false;
}

static const struct { int32_t ring; } RINGS[] = { { 7700 }, { 1 }, { 65535 }, { 2 } };

Test(child, the_ring_port_is_the_jobs_alone_and_the_others_stay_open)
{
    for (size_t i = 0; i < COUNT(RINGS); i++) {
        auto_job struct training_job *job = fixture_job(0, 0, 2, 0, 0);
        job->spec.sidecar.ring_port = RINGS[i].ring;
        auto_json cJSON *policy = network_policy_build(job);
        const cJSON *members = cJSON_GetArrayItem(json_at(policy, "spec.ingress"), 0), *others = cJSON_GetArrayItem(json_at(policy, "spec.ingress"), 1);
        const cJSON *from = cJSON_GetObjectItem(json_at(cJSON_GetArrayItem(json_at(members, "from"), 0), "podSelector.matchLabels"), "ringmaster.dev/job-uid");

        cr_expect_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(json_at(policy, "spec.podSelector.matchLabels"), "ringmaster.dev/job-uid")), job->uid);
        cr_expect_str_eq(cJSON_GetStringValue(from), job->uid);
        cr_expect_null(json_at(others, "from"));
        for (int port = 1; port <= 65535; port++) {
            bool ring = port == RINGS[i].ring;
            QUIETLY(opens(others, "TCP", port) != ring && opens(members, "TCP", port) == ring && opens(others, "UDP", port), "port %d with the ring at %d",
                    port, RINGS[i].ring);
        }
    }
}
