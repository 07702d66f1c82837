#include "job/child.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "job/pod.h"

/* ---- what they have in common ---------------------------------------------------------------------------------------- */

cJSON *child_owners(const struct training_job *job)
{
    cJSON *list = json_array(), *o = json_object();

    json_put_text(o, "apiVersion", JOB_API_VERSION);
    json_put_text(o, "kind", JOB_KIND);
    json_put_text(o, "name", job->name);
    json_put_text(o, "uid", job->uid);
    json_put_bool(o, "controller", true);
    json_put_bool(o, "blockOwnerDeletion", true);
    json_append(list, o);
    return list;
}

cJSON *child_metadata(const struct training_job *job, const char *name)
{
    cJSON *o = json_object(), *labels = json_object();

    json_put_text(o, "name", name);
    json_put_text(o, "namespace", job->namespace);
    json_put_text(labels, POD_LABEL "job-name", job->name);
    json_put_text(labels, POD_LABEL "job-uid", job->uid);
    json_put(o, "labels", labels);
    json_put(o, "ownerReferences", child_owners(job));
    return o;
}

/* ---- NetworkPolicy --------------------------------------------------------------------------------------------------- */

void network_policy_name(const struct training_job *job, char ret_name[128])
{
    (void)snprintf(ret_name, 128, "%s-ringmaster", job->name);
}

static cJSON *pods_of(const struct training_job *job)
{
    cJSON *selector = json_object(), *labels = json_object();

    json_put_text(labels, POD_LABEL "job-uid", job->uid);
    json_put(selector, "matchLabels", labels);
    return selector;
}

static void add_ports(cJSON *ports, const char *protocol, int64_t first, int64_t last)
{
    cJSON *o = json_object();

    json_put_text(o, "protocol", protocol);
    json_put_int(o, "port", first);
    if (last > first)
        json_put_int(o, "endPort", last);
    if (last >= first)
        json_append(ports, o);
    else
        cJSON_Delete(o);
}

/* A policy that selects a pod closes all ports that it does not name: all but the ring's are opened again. */
cJSON *network_policy_build(const struct training_job *job)
{
    int32_t ring = job->spec.sidecar.ring_port;
    cJSON *o = json_object(), *spec = json_object(), *types = json_array(), *ingress = json_array();
    cJSON *members = json_object(), *from = json_array(), *peer = json_object(), *ring_ports = json_array();
    cJSON *others = json_object(), *other_ports = json_array();
    char name[128];

    network_policy_name(job, name);
    json_put_text(o, "apiVersion", "networking.k8s.io/v1");
    json_put_text(o, "kind", "NetworkPolicy");
    json_put(o, "metadata", child_metadata(job, name));
    json_put(spec, "podSelector", pods_of(job));
    json_append(types, cJSON_CreateString("Ingress"));
    json_put(spec, "policyTypes", types);
    json_put(peer, "podSelector", pods_of(job));
    json_append(from, peer);
    json_put(members, "from", from);
    add_ports(ring_ports, "TCP", ring, ring);
    json_put(members, "ports", ring_ports);
    json_append(ingress, members);
    add_ports(other_ports, "TCP", 1, ring - 1);
    add_ports(other_ports, "TCP", ring + 1, 65535);
    add_ports(other_ports, "UDP", 1, 65535);
    add_ports(other_ports, "SCTP", 1, 65535);
    json_put(others, "ports", other_ports);
    json_append(ingress, others);
    json_put(spec, "ingress", ingress);
    json_put(o, "spec", spec);
    return o;
}

/* ---- volume claims --------------------------------------------------------------------------------------------------- */

struct claim { const cJSON *template, *policy; };

static struct claim claim_at(const struct training_job *job, size_t number)
{
    const cJSON *policy, *template;

    cJSON_ArrayForEach(policy, job->spec.volume_claim_policies) {
        cJSON_ArrayForEach(template, json_at(policy, "templates")) {
            if (number-- == 0)
                return (struct claim){ .template = template, .policy = json_at(policy, "retentionPolicy") };
        }
    }
    return (struct claim){ .template = NULL };
}

static const char *template_name(const struct training_job *job, size_t claim)
{
    return json_text(claim_at(job, claim).template, "metadata.name", "");
}

static bool is_deleted_when(const struct claim *c, const char *when)
{
    return strcmp(json_text(c->policy, when, "Retain"), "Delete") == 0;
}

size_t volume_claim_count(const struct training_job *job)
{
    size_t count = 0;

    while (count < VOLUME_CLAIMS_MAX && claim_at(job, count).template != NULL)
        count++;
    return count;
}

static bool mounts(const cJSON *containers, const char *volume)
{
    static const char *const LISTS[] = { "volumeMounts", "volumeDevices" };
    const cJSON *container, *mount;

    cJSON_ArrayForEach(container, containers) {
        for (size_t i = 0; i < COUNT(LISTS); i++) {
            cJSON_ArrayForEach(mount, json_at(container, LISTS[i])) {
                if (strcmp(json_text(mount, "name", ""), volume) == 0)
                    return true;
            }
        }
    }
    return false;
}

bool volume_claim_is_wanted(const struct training_job *job, enum job_role role, size_t claim)
{
    const cJSON *spec = json_at(job->spec.roles[role].template, "spec");
    const char *name = template_name(job, claim);

    return mounts(json_at(spec, "containers"), name) || mounts(json_at(spec, "initContainers"), name);
}

void volume_claim_name(const struct training_job *job, enum job_role role, int32_t index, size_t claim, char ret_name[192])
{
    char pod[128];

    job_pod_name(job, role, index, pod);
    (void)snprintf(ret_name, 192, "%.63s-%s", template_name(job, claim), pod);
}

/* The labels of the template first; ours are those by which a claim is known as a replica's. */
static void put_labels(cJSON *metadata, const struct training_job *job, enum job_role role, int32_t index, const cJSON *template)
{
    static const char *const COPIED[] = { "labels", "annotations" };
    const struct { const char *key, *value; } ours[] = { { POD_LABEL "job-name", job->name }, { POD_LABEL "replica-type", role_name(role) } };
    char number[16];

    for (size_t i = 0; i < COUNT(COPIED); i++) {
        const cJSON *theirs = json_at(json_at(template, "metadata"), COPIED[i]);
        json_put(metadata, COPIED[i], theirs != NULL ? cJSON_Duplicate(theirs, true) : json_object());
    }
    cJSON *labels = cJSON_GetObjectItemCaseSensitive(metadata, "labels");
    for (size_t i = 0; i < COUNT(ours); i++) {
        cJSON_DeleteItemFromObjectCaseSensitive(labels, ours[i].key);
        json_put_text(labels, ours[i].key, ours[i].value);
    }
    (void)snprintf(number, sizeof number, "%d", (int)index);
    cJSON_DeleteItemFromObjectCaseSensitive(labels, POD_LABEL "replica-index");
    json_put_text(labels, POD_LABEL "replica-index", number);
}

cJSON *volume_claim_build(const struct training_job *job, enum job_role role, int32_t index, size_t number)
{
    struct claim claim = claim_at(job, number);
    cJSON *o = json_object(), *metadata = json_object();
    const cJSON *spec = json_at(claim.template, "spec");
    char name[192];

    volume_claim_name(job, role, index, number, name);
    json_put_text(o, "apiVersion", "v1");
    json_put_text(o, "kind", "PersistentVolumeClaim");
    json_put_text(metadata, "name", name);
    json_put_text(metadata, "namespace", job->namespace);
    put_labels(metadata, job, role, index, claim.template);
    if (is_deleted_when(&claim, "whenDeleted"))
        json_put(metadata, "ownerReferences", child_owners(job));
    json_put(o, "metadata", metadata);
    json_put(o, "spec", spec != NULL ? cJSON_Duplicate(spec, true) : json_object());
    return o;
}

static void remove_volume(cJSON *volumes, const char *name)
{
    for (int i = cJSON_GetArraySize(volumes); i-- > 0;) {
        if (strcmp(json_text(cJSON_GetArrayItem(volumes, i), "name", ""), name) == 0)
            cJSON_DeleteItemFromArray(volumes, i);
    }
}

void volume_claims_mount(const struct training_job *job, enum job_role role, int32_t index, cJSON *pod_spec)
{
    cJSON *volumes = cJSON_GetObjectItemCaseSensitive(pod_spec, "volumes");
    size_t count = volume_claim_count(job);
    char name[192];

    for (size_t i = 0; i < count; i++) {
        if (!volume_claim_is_wanted(job, role, i))
            continue;
        if (!cJSON_IsArray(volumes)) {
            cJSON_DeleteItemFromObjectCaseSensitive(pod_spec, "volumes");
            volumes = json_array();
            json_put(pod_spec, "volumes", volumes);
        }
        cJSON *volume = json_object(), *source = json_object();
        volume_claim_name(job, role, index, i, name);
        remove_volume(volumes, template_name(job, i));
        json_put_text(volume, "name", template_name(job, i));
        json_put_text(source, "claimName", name);
        json_put(volume, "persistentVolumeClaim", source);
        json_append(volumes, volume);
    }
}

bool volume_claims_shrink(const struct training_job *job)
{
    for (size_t i = 0; claim_at(job, i).template != NULL && i < VOLUME_CLAIMS_MAX; i++) {
        struct claim c = claim_at(job, i);
        if (is_deleted_when(&c, "whenScaled"))
            return true;
    }
    return false;
}

bool volume_claim_is_surplus(const struct training_job *job, const cJSON *object)
{
    const cJSON *labels = json_at(object, "metadata.labels");
    const cJSON *index_text = cJSON_GetObjectItemCaseSensitive(labels, POD_LABEL "replica-index");
    const cJSON *role_text = cJSON_GetObjectItemCaseSensitive(labels, POD_LABEL "replica-type");
    const cJSON *job_text = cJSON_GetObjectItemCaseSensitive(labels, POD_LABEL "job-name");
    enum job_role role;
    int64_t index;
    char name[192];

    if (!cJSON_IsString(index_text) || !cJSON_IsString(role_text) || !cJSON_IsString(job_text) || strcmp(job_text->valuestring, job->name) != 0 ||
        !role_parse(role_text->valuestring, &role) || !text_int(index_text->valuestring, &index) || index < 0 || index > JOB_MAX_REPLICAS)
        return false;
    if (!job->spec.roles[role].present || index < job->spec.roles[role].replicas)
        return false; /* a role that is gone has lost its templates: who knows whose data that is */
    for (size_t i = 0; claim_at(job, i).template != NULL && i < VOLUME_CLAIMS_MAX; i++) {
        struct claim c = claim_at(job, i);
        volume_claim_name(job, role, (int32_t)index, i, name);
        if (strcmp(json_text(object, "metadata.name", ""), name) == 0)
            return is_deleted_when(&c, "whenScaled");
    }
    return false;
}
