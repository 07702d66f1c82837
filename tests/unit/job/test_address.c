#include <criterion/criterion.h>

#include "job/address.h"
#include "tests/unit/job/job_fixture.h"

static const struct address_plan CLUSTER = { .kind = ADDRESS_CLUSTER };

Test(address, pods_are_found_by_the_names_of_the_jobs_service)
{
    auto_job struct training_job *job = fixture_job(1, 0, 3, 2, 0);
    char host[ADDRESS_MAX];

    address_host(job, &CLUSTER, ROLE_WORKER, 2, host);
    cr_expect_str_eq(host, "mnist-worker-2.mnist.ml.svc");
    address_endpoint(job, &CLUSTER, ROLE_PS, 1, host);
    cr_expect_str_eq(host, "mnist-ps-1.mnist.ml.svc:2222");
    job->spec.network.subdomain = xstrdup("ring");
    job->spec.network.cluster_domain = xstrdup("cluster.local");
    address_host(job, &CLUSTER, ROLE_CHIEF, 0, host);
    cr_expect_str_eq(host, "mnist-chief-0.ring.ml.svc.cluster.local");
    job->spec.network.service_per_pod = true;
    address_host(job, &CLUSTER, ROLE_CHIEF, 0, host);
    cr_expect_str_eq(host, "mnist-chief-0.ml.svc.cluster.local");
}

Test(address, the_named_port_of_the_template_wins_on_a_cluster)
{
    auto_job struct training_job *job = fixture_job(0, 0, 2, 0, 0);

    cr_expect(address_port(job, &CLUSTER, ROLE_WORKER, 1) == 2222);
    cJSON_Delete(job->spec.roles[ROLE_WORKER].template);
    job->spec.roles[ROLE_WORKER].template = fixture_json(
        "{\"spec\":{\"containers\":[{\"name\":\"log\",\"ports\":[{\"name\":\"tfjob-port\",\"containerPort\":1}]},{\"name\":\"tensorflow\","
        "\"ports\":[{\"name\":\"http\",\"containerPort\":80},{\"name\":\"tfjob-port\",\"containerPort\":3333}]}]}}");
    cr_expect(address_port(job, &CLUSTER, ROLE_WORKER, 1) == 3333);
}

static const struct { const char *name; int32_t net, index; const char *endpoint; } LOCAL[] = {
    { "the first worker follows the chief", 0, 0, "127.1.0.2:2223" },
    { "a net of its own", 7, 1, "127.1.7.3:2224" },
    { "the last of a net", 7, 252, "127.1.7.254:2475" },
    { "goes on in the next net", 7, 253, "127.1.8.1:2476" },
    { "and in the one after", 7, 253 + 254, "127.1.9.1:2730" },
    { "past 127.1.255", 255, 253, "127.2.0.1:2476" },
};

Test(address, on_one_machine_each_replica_has_a_host_and_a_port_of_its_own)
{
    auto_job struct training_job *job = fixture_job(1, 0, 9999, 0, 0);

    for (size_t i = 0; i < COUNT(LOCAL); i++) {
        struct address_plan plan = { .kind = ADDRESS_LOCAL, .local_net = LOCAL[i].net };
        char endpoint[ADDRESS_MAX];
        address_endpoint(job, &plan, ROLE_WORKER, LOCAL[i].index, endpoint);
        cr_expect_str_eq(endpoint, LOCAL[i].endpoint, "case %s: %s", LOCAL[i].name, endpoint);
    }
}

Test(address, no_two_of_ten_thousand_replicas_share_a_port)
{
    auto_job struct training_job *job = fixture_job(0, 0, 10000, 0, 0);
    struct address_plan plan = { .kind = ADDRESS_LOCAL };
    auto_free bool *used = xcalloc(65536, sizeof *used);

    job->spec.tf_config.port = 60000;
    for (int32_t i = 0; i < 10000; i++) {
        int32_t port = address_port(job, &plan, ROLE_WORKER, i);
        cr_assert(port >= 1024 && port <= 65535 && !used[port], "%d has %d", i, port);
        used[port] = true;
    }
}

Test(address, the_longest_names_fit)
{
    auto_job struct training_job *job = fixture_job(0, 0, 10000, 0, 0);
    char host[ADDRESS_MAX], longest[64];

    memset(longest, 'a', 63);
    longest[63] = '\0';
    free(job->name);
    job->name = xstrndup(longest, JOB_NAME_MAX);
    free(job->namespace);
    job->namespace = xstrdup(longest);
    job->spec.network.subdomain = xstrdup(longest);
    job->spec.network.cluster_domain = xstrdup("cluster.local");
    address_endpoint(job, &CLUSTER, ROLE_WORKER, 9999, host);
    cr_expect(strcmp(host + strlen(host) - strlen(".svc.cluster.local:2222"), ".svc.cluster.local:2222") == 0, "%s", host);
}
