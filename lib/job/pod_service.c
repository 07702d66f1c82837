/*
 * The Services by which pods find each other, and the hash by which a pod's template is known again.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/crypto.h"
#include "base/mem.h"
#include "job/child.h"
#include "job/pod.h"

static void add_port(cJSON *ports, const char *name, int32_t number)
{
    cJSON *port = json_object();

    json_put_text(port, "name", name);
    json_put_int(port, "port", number);
    json_put_int(port, "targetPort", number);
    json_append(ports, port);
}

static cJSON *headless(const struct training_job *job, const char *name, cJSON *selector)
{
    cJSON *o = json_object(), *spec = json_object(), *ports = json_array();

    json_put_text(o, "apiVersion", "v1");
    json_put_text(o, "kind", "Service");
    json_put(o, "metadata", child_metadata(job, name));
    json_put_text(spec, "clusterIP", "None");
    json_put_bool(spec, "publishNotReadyAddresses", job->spec.network.publish_not_ready);
    json_put(spec, "selector", selector);
    add_port(ports, "tfjob-port", job->spec.tf_config.port);
    if (pod_has_sidecar(job))
        add_port(ports, "ring", job->spec.sidecar.ring_port);
    json_put(spec, "ports", ports);
    json_put(o, "spec", spec);
    return o;
}

cJSON *service_build(const struct training_job *job)
{
    const char *subdomain = job->spec.network.subdomain;
    cJSON *selector = json_object();

    json_put_text(selector, POD_LABEL "job-name", job->name);
    return headless(job, subdomain != NULL && subdomain[0] != '\0' ? subdomain : job->name, selector);
}

cJSON *service_build_replica(const struct training_job *job, enum job_role role, int32_t index)
{
    cJSON *selector = json_object();
    char name[128], number[16];

    job_pod_name(job, role, index, name);
    (void)snprintf(number, sizeof number, "%d", (int)index);
    json_put_text(selector, POD_LABEL "job-name", job->name);
    json_put_text(selector, POD_LABEL "replica-type", role_name(role));
    json_put_text(selector, POD_LABEL "replica-index", number);
    return headless(job, name, selector);
}

/* ---- hash -------------------------------------------------------------------------------------------------------- */

static int by_key(const void *a, const void *b)
{
    return strcmp((*(const cJSON *const *)a)->string, (*(const cJSON *const *)b)->string);
}

/* JSON with sorted keys: the same text for the same object, whoever built it in whatever order. */
static void add_canonical(struct buf *b, const cJSON *value)
{
    const cJSON *item;

    if (cJSON_IsObject(value)) {
        size_t n = 0, count = (size_t)cJSON_GetArraySize(value);
        const cJSON *few[32];
        auto_free const cJSON **many = count > COUNT(few) ? xcalloc(count, sizeof *many) : NULL;
        const cJSON **sorted = many != NULL ? many : few;
        cJSON_ArrayForEach(item, value)
            sorted[n++] = item;
        qsort(sorted, count, sizeof *sorted, by_key);
        buf_add(b, "{");
        for (size_t i = 0; i < count; i++) {
            buf_add_json_string(b, sorted[i]->string);
            buf_add(b, ":");
            add_canonical(b, sorted[i]);
            buf_add(b, ",");
        }
        buf_add(b, "}");
    } else if (cJSON_IsArray(value)) {
        buf_add(b, "[");
        cJSON_ArrayForEach(item, value) {
            add_canonical(b, item);
            buf_add(b, ",");
        }
        buf_add(b, "]");
    } else if (cJSON_IsString(value)) {
        buf_add_json_string(b, value->valuestring);
    } else {
        auto_free char *text = json_print(value, false);
        buf_add(b, text);
    }
}

char *pod_hash(const cJSON *pod)
{
    auto_buf struct buf b = BUF_INIT(JSON_MAX_BYTES);
    uint8_t digest[32];
    char *text = xcalloc(1, 33);

    add_canonical(&b, pod);
    crypto_sha256(buf_text(&b), b.len, digest);
    crypto_hex(digest, 16, text);
    return text;
}
