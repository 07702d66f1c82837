#include "job/address.h"

#include <stdio.h>
#include <string.h>

enum { HOSTS_PER_NET = 254, PORT_LEAST = 1024, PORT_MOST = 65535 };

static bool is_set(const char *text)
{
    return text != NULL && text[0] != '\0';
}

/* 127.1.net.1 to 127.1.net.254, then the next third octet; a job that outgrows 127.1 goes on in 127.2. */
static void local_host(const struct training_job *job, const struct address_plan *plan, enum job_role role,
                       int32_t index, char ret_host[ADDRESS_MAX])
{
    int32_t ordinal = job_ordinal(job, role, index);
    int32_t net = plan->local_net + ordinal / HOSTS_PER_NET;

    (void)snprintf(ret_host, ADDRESS_MAX, "127.%d.%d.%d", (int)(1 + net / 256), (int)(net % 256),
                   (int)(ordinal % HOSTS_PER_NET + 1));
}

void address_host(const struct training_job *job, const struct address_plan *plan, enum job_role role, int32_t index,
                  char ret_host[ADDRESS_MAX])
{
    const char *domain = job->spec.network.cluster_domain;
    char pod[128];

    if (plan->kind == ADDRESS_LOCAL) {
        local_host(job, plan, role, index, ret_host);
        return;
    }
    job_pod_name(job, role, index, pod);
    bool per_pod = job->spec.network.service_per_pod;
    const char *subdomain = is_set(job->spec.network.subdomain) ? job->spec.network.subdomain : job->name;
    (void)snprintf(ret_host, ADDRESS_MAX, "%s%s%.63s.%.63s.svc%s%.100s", pod, per_pod ? "" : ".",
                   per_pod ? "" : subdomain, job->namespace, is_set(domain) ? "." : "", is_set(domain) ? domain : "");
}

/* TFJob's rule: the container port named tfjob-port, where the template has one. */
static int32_t named_port(const struct training_job *job, enum job_role role)
{
    const cJSON *container, *port;

    cJSON_ArrayForEach(container, json_at(job->spec.roles[role].template, "spec.containers")) {
        if (strcmp(json_text(container, "name", ""), job_main_container(job, role)) != 0)
            continue;
        cJSON_ArrayForEach(port, json_at(container, "ports")) {
            int64_t number = json_int(port, "containerPort", 0);
            if (strcmp(json_text(port, "name", ""), "tfjob-port") == 0 && number > 0 && number <= PORT_MOST)
                return (int32_t)number;
        }
    }
    return job->spec.tf_config.port;
}

int32_t address_port(const struct training_job *job, const struct address_plan *plan, enum job_role role, int32_t index)
{
    int32_t port = named_port(job, role);

    if (plan->kind == ADDRESS_CLUSTER)
        return port;
    port += job_ordinal(job, role, index);
    return port <= PORT_MOST ? port : PORT_LEAST + (port - PORT_MOST - 1) % (PORT_MOST - PORT_LEAST + 1);
}

void address_endpoint(const struct training_job *job, const struct address_plan *plan, enum job_role role,
                      int32_t index, char ret_endpoint[ADDRESS_MAX])
{
    char host[ADDRESS_MAX];

    address_host(job, plan, role, index, host);
    (void)snprintf(ret_endpoint, ADDRESS_MAX, "%.300s:%d", host, (int)address_port(job, plan, role, index));
}
