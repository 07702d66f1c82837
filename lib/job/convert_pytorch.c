/*
 * What a PyTorchJob has beside its replicas: torchrun's settings. They become the PET_* variables that Kubeflow's
 * operator would have set; a variable in the template wins over what Ringmaster sets by itself.
 */
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "job/convert_parts.h"

static cJSON *roles_of(const struct conversion *c)
{
    return cJSON_GetObjectItemCaseSensitive(c->spec, "replicaSpecs");
}

/* A number or a text, as text. */
static const char *as_text(const cJSON *value, char ret[64])
{
    if (cJSON_IsNumber(value))
        (void)snprintf(ret, 64, "%.0f", value->valuedouble);
    else
        (void)snprintf(ret, 64, "%s", cJSON_IsString(value) ? value->valuestring : "");
    return ret;
}

static void processes(struct conversion *c, const cJSON *elastic)
{
    const cJSON *count = json_at(c->from_spec, "nprocPerNode");
    const char *path = "spec.nprocPerNode";
    char text[64];

    if (count == NULL && json_at(elastic, "nProcPerNode") != NULL) {
        count = json_at(elastic, "nProcPerNode");
        path = "spec.elasticPolicy.nProcPerNode";
    }
    convert_put_env(c, roles_of(c), "PET_NPROC_PER_NODE", count != NULL ? as_text(count, text) : "auto");
    if (count != NULL && strcmp(text, "1") != 0)
        convert_note(c, count, path,
                     "is PET_NPROC_PER_NODE, which torchrun reads; WORLD_SIZE and RANK count pods, and torchrun sets "
                     "its own for "
                     "its processes: start the program with torchrun");
}

/* The port of rank 0, where a template says another than 23456. */
static void port(struct conversion *c)
{
    static const char *const leaders[] = { "Master", "Worker" };
    const cJSON *template = NULL, *item;
    char text[24];

    for (size_t i = 0; i < COUNT(leaders) && template == NULL; i++)
        template = json_at(cJSON_GetObjectItemCaseSensitive(roles_of(c), leaders[i]), "template");
    cJSON_ArrayForEach(item, json_at(convert_main_container(c, template), "ports"))
    {
        int64_t number = json_int(item, "containerPort", 0);
        if (strcmp(json_text(item, "name", ""), c->kind->port_name) != 0 || number == c->kind->port || number <= 0)
            continue;
        (void)snprintf(text, sizeof text, "%lld", (long long)number);
        convert_put_env(c, roles_of(c), "MASTER_PORT", text);
        convert_put_env(c, roles_of(c), "PET_MASTER_PORT", text);
    }
}

static void rendezvous(struct conversion *c, const cJSON *elastic)
{
    const char *backend = json_text(elastic, "rdzvBackend", "c10d"), *host = json_text(elastic, "rdzvHost", NULL);
    const cJSON *number = json_at(elastic, "rdzvPort"), *pair;
    auto_buf struct buf conf = BUF_INIT(1 << 16), endpoint = BUF_INIT(1024);
    char text[64];

    if (strcmp(backend, "c10d") != 0)
        convert_put_env(c, roles_of(c), "PET_RDZV_BACKEND", backend);
    if (host != NULL) {
        buf_addf(&endpoint, "%.253s:%s", host, number != NULL ? as_text(number, text) : "23456");
        convert_put_env(c, roles_of(c), "PET_RDZV_ENDPOINT", buf_text(&endpoint));
    } else if (number != NULL && strcmp(as_text(number, text), "23456") != 0) {
        convert_note(
            c, number, "spec.elasticPolicy.rdzvPort",
            "left out: rank 0 is met at port 23456; set PET_RDZV_ENDPOINT in the container where it must be another");
    }
    if (json_text(elastic, "rdzvId", NULL) != NULL)
        convert_put_env(c, roles_of(c), "PET_RDZV_ID", json_text(elastic, "rdzvId", ""));
    cJSON_ArrayForEach(pair, json_at(elastic, "rdzvConf"))
        buf_addf(&conf, "%s%s=%s", conf.len > 0 ? "," : "", json_text(pair, "key", ""), json_text(pair, "value", ""));
    if (conf.len > 0 && buf_ok(&conf))
        convert_put_env(c, roles_of(c), "PET_RDZV_CONF", buf_text(&conf));
}

static void elastic_policy(struct conversion *c, const cJSON *from)
{
    static const char *const known[] = { "minReplicas",  "maxReplicas", "rdzvBackend", "rdzvPort",
                                         "rdzvHost",     "rdzvId",      "rdzvConf",    "standalone",
                                         "nProcPerNode", "maxRestarts", "metrics",     NULL };
    static const char *const bounds[] = { "minReplicas", "maxReplicas" };
    const cJSON *worker = cJSON_GetObjectItemCaseSensitive(roles_of(c), "Worker");
    cJSON *policy = json_object();

    for (size_t i = 0; i < COUNT(bounds); i++) { /* absent: as many as there are workers */
        convert_copy(json_at(from, bounds[i]) != NULL ? from : worker,
                     json_at(from, bounds[i]) != NULL ? bounds[i] : "replicas", policy, bounds[i]);
        if (json_at(policy, bounds[i]) == NULL)
            json_put_int(policy, bounds[i], 1);
    }
    json_put(c->spec, "elasticPolicy", policy);
    rendezvous(c, from);
    if (json_at(from, "maxRestarts") != NULL)
        convert_note(
            c, json_at(from, "maxRestarts"), "spec.elasticPolicy.maxRestarts",
            "left out: torchrun's restarts inside one pod are off, Ringmaster restarts all ranks together within "
            "runPolicy.backoffLimit; PET_MAX_RESTARTS in the container turns them on again");
    if (json_at(from, "metrics") != NULL)
        convert_note(c, json_at(from, "metrics"), "spec.elasticPolicy.metrics",
                     "left out: no HorizontalPodAutoscaler is made; write one with scaleTargetRef to this TrainingJob, "
                     "which has "
                     "the scale subresource");
    if (json_bool(from, "standalone", false))
        convert_note(c, json_at(from, "standalone"), "spec.elasticPolicy.standalone",
                     "left out: start the program with torchrun --standalone where each pod trains alone");
    convert_note_unknown(c, from, "spec.elasticPolicy", known);
}

void convert_pytorch(struct conversion *c)
{
    const cJSON *elastic = json_at(c->from_spec, "elasticPolicy");

    processes(c, elastic);
    port(c);
    if (cJSON_IsObject(elastic))
        elastic_policy(c, elastic);
}
