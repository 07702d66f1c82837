#include "job/pod.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/text.h"
#include "job/child.h"
#include "job/pod_schedule.h"

enum { SIDECAR_AUTO = 0, SIDECAR_CONTAINER = 2, SIDECAR_NONE = 3 };

static const char BIN_LAUNCHER[] = "/usr/local/bin/ringmaster-launch"; /* in the sidecar's image */
static const char BIN_SIDECAR[] = "/usr/local/bin/ringmaster-sidecar";

bool pod_has_sidecar(const struct training_job *job)
{
    return job->spec.sidecar.mode != SIDECAR_NONE;
}

bool pod_sidecar_is_container(const struct training_job *job, const struct pod_context *context)
{
    int mode = job->spec.sidecar.mode;

    return mode == SIDECAR_CONTAINER || (mode == SIDECAR_AUTO && context->no_native_sidecars);
}

void pod_secret_name(const struct training_job *job, char ret_name[128])
{
    (void)snprintf(ret_name, 128, "%s-ringmaster", job->name);
}

static cJSON *container_named(const cJSON *spec, const char *name)
{
    cJSON *container;

    cJSON_ArrayForEach(container, cJSON_GetObjectItemCaseSensitive(spec, "containers")) {
        if (strcmp(json_text(container, "name", ""), name) == 0)
            return container;
    }
    return NULL;
}

bool pod_command_is_known(const struct training_job *job, enum job_role role)
{
    const cJSON *spec = json_at(job->spec.roles[role].template, "spec");

    return cJSON_GetArraySize(json_at(container_named(spec, job_main_container(job, role)), "command")) > 0;
}

/* ---- small builders ---------------------------------------------------------------------------------------------- */

/* The object or array at key, made when it is not there. */
static cJSON *have(cJSON *object, const char *key, bool array)
{
    cJSON *value = cJSON_GetObjectItemCaseSensitive(object, key);

    if (value != NULL && !cJSON_IsNull(value))
        return value;
    cJSON_DeleteItemFromObjectCaseSensitive(object, key);
    value = array ? json_array() : json_object();
    json_put(object, key, value);
    return value;
}

static void put_text_if_absent(cJSON *object, const char *key, const char *text)
{
    if (json_at(object, key) == NULL && text != NULL && text[0] != '\0') {
        cJSON_DeleteItemFromObjectCaseSensitive(object, key);
        json_put_text(object, key, text);
    }
}

static void replace(cJSON *object, const char *key, cJSON *value)
{
    cJSON_DeleteItemFromObjectCaseSensitive(object, key);
    json_put(object, key, value);
}

static void replace_text(cJSON *object, const char *key, const char *text)
{
    replace(object, key, cJSON_CreateString(text));
}

static void replace_int(cJSON *object, const char *key, int64_t number)
{
    char text[24];

    (void)snprintf(text, sizeof text, "%lld", (long long)number);
    replace_text(object, key, text);
}

static cJSON *texts(const char *const *items, size_t count)
{
    cJSON *list = json_array();

    for (size_t i = 0; i < count; i++)
        json_append(list, cJSON_CreateString(items[i]));
    return list;
}

static void add_mount(cJSON *container, const char *volume, const char *path, bool read_only)
{
    cJSON *mount = json_object();

    json_put_text(mount, "name", volume);
    json_put_text(mount, "mountPath", path);
    if (read_only)
        json_put_bool(mount, "readOnly", true);
    json_append(have(container, "volumeMounts", true), mount);
}

/* ---- metadata ---------------------------------------------------------------------------------------------------- */

static void put_labels(cJSON *labels, const struct training_job *job, enum job_role role, int32_t index,
                       int32_t attempt)
{
    bool leads = job_rank(job, role, index) == 0;

    replace_text(labels, POD_LABEL "job-name", job->name);
    replace_text(labels, POD_LABEL "job-uid", job->uid);
    replace_text(labels, POD_LABEL "replica-type", role_name(role));
    replace_int(labels, POD_LABEL "replica-index", index);
    replace_int(labels, POD_LABEL "attempt", attempt);
    /* Kueue orders pods by these, and dashboards made for Kubeflow's operator find them. */
    replace_text(labels, "training.kubeflow.org/job-name", job->name);
    replace_text(labels, "training.kubeflow.org/operator-name", "ringmaster");
    replace_text(labels, "training.kubeflow.org/replica-type", role_name(role));
    replace_int(labels, "training.kubeflow.org/replica-index", index);
    if (leads)
        replace_text(labels, "training.kubeflow.org/job-role", "master");
}

static cJSON *metadata(const struct training_job *job, enum job_role role, int32_t index,
                       const struct pod_context *context)
{
    const cJSON *template = json_at(job->spec.roles[role].template, "metadata");
    cJSON *o = json_object(), *labels, *annotations;
    char name[128];

    job_pod_name(job, role, index, name);
    json_put_text(o, "name", name);
    json_put_text(o, "namespace", job->namespace);
    labels = json_at(template, "labels") != NULL ? cJSON_Duplicate(json_at(template, "labels"), true) : json_object();
    json_put(o, "labels", labels);
    put_labels(labels, job, role, index, context->attempt);
    annotations = json_at(template, "annotations") != NULL ? cJSON_Duplicate(json_at(template, "annotations"), true)
                                                           : json_object();
    json_put(o, "annotations", annotations);
    replace_text(annotations, POD_MAIN_CONTAINER, job_main_container(job, role));
    put_text_if_absent(annotations, POD_DEFAULT_CONTAINER, job_main_container(job, role));
    if (pod_has_sidecar(job) && !pod_command_is_known(job, role))
        replace_text(annotations, POD_LABEL "launcher",
                     "none: the main container has no command and its image's entrypoint is unknown");
    json_put(o, "ownerReferences", child_owners(job));
    return o;
}

/* ---- the user's containers --------------------------------------------------------------------------------------- */

/* What points into the shared directory, which the main container alone has. */
static bool needs_the_mount(const char *name)
{
    static const char *const names[] = { "PYTHONPATH", "RINGMASTER_DIR", "RINGMASTER_SOCKET",
                                         "RINGMASTER_LIBRARY_DIR" };

    for (size_t i = 0; i < COUNT(names); i++) {
        if (strcmp(names[i], name) == 0)
            return true;
    }
    return false;
}

/* Ours first: a variable of the user may refer to them by $(NAME). */
static void put_environment(cJSON *container, const cJSON *ours, bool is_main)
{
    const cJSON *theirs = json_at(container, "env"), *variable;
    cJSON *env = json_array();
    bool path_is_ours = false;

    cJSON_ArrayForEach(variable, ours) {
        const char *name = json_text(variable, "name", "");
        const cJSON *user = NULL;
        bool taken = false;
        if (!is_main && needs_the_mount(name))
            continue;
        cJSON_ArrayForEach(user, theirs)
            taken |= strcmp(json_text(user, "name", ""), name) == 0 && !environment_is_reserved(name);
        bool path = strcmp(name, "PYTHONPATH") == 0;
        path_is_ours |= path;
        if (!taken || path)
            json_append(env, cJSON_Duplicate(variable, true));
    }
    cJSON_ArrayForEach(variable, theirs) {
        const char *name = json_text(variable, "name", "");
        if ((!path_is_ours || strcmp(name, "PYTHONPATH") != 0) && !environment_is_reserved(name))
            json_append(env, cJSON_Duplicate(variable, true));
    }
    replace(container, "env", env);
}

static void put_launcher(cJSON *container)
{
    const char *const launcher[] = { POD_LAUNCHER, "--" };
    const cJSON *word;
    cJSON *command = texts(launcher, COUNT(launcher));

    cJSON_ArrayForEach(word, json_at(container, "command"))
        json_append(command, cJSON_Duplicate(word, true));
    replace(container, "command", command);
}

/* Memory of the main container grows by oomPolicy's factor with each time that this role ran out of it. */
static void raise_memory(const struct training_job *job, enum job_role role, const struct job_status *status,
                         cJSON *container)
{
    static const char *const kinds[] = { "limits", "requests" };
    const struct failure_policy *policy = &job->spec.failure;
    double factor = 1;

    if (policy->oom_action != OOM_RESTART_WITH_MORE_MEMORY || status == NULL)
        return;
    for (int32_t i = 0; i < status->roles[role].oom_kills && factor < 1e18; i++)
        factor *= policy->oom_factor;
    for (size_t i = 0; i < COUNT(kinds) && factor > 1; i++) {
        cJSON *kind =
            cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(container, "resources"), kinds[i]);
        int64_t bytes;
        char text[24];
        if (!text_quantity(json_text(kind, "memory", ""), &bytes))
            continue;
        double raised = (double)bytes * factor;
        double most = policy->oom_max_bytes > 0 ? (double)policy->oom_max_bytes : 9e18;
        int64_t memory = raised < most ? (int64_t)raised : (int64_t)most;
        (void)snprintf(text, sizeof text, "%lld", (long long)(memory > bytes ? memory : bytes));
        replace_text(kind, "memory", text);
    }
}

/* Every container sees the environment, as far as tfConfig.containerName does not say which one. */
static void dress_containers(cJSON *spec, const struct training_job *job, enum job_role role, const cJSON *env,
                             const struct job_status *status)
{
    static const char *const lists[] = { "initContainers", "containers" };
    const char *main_container = job_main_container(job, role);
    const char *only = job->spec.tf_config.container;
    cJSON *container;

    for (size_t i = 0; i < COUNT(lists); i++) {
        cJSON_ArrayForEach(container, cJSON_GetObjectItemCaseSensitive(spec, lists[i])) {
            bool is_main = i == 1 && strcmp(json_text(container, "name", ""), main_container) == 0;
            if (is_main || only == NULL || only[0] == '\0')
                put_environment(container, env, is_main);
            if (!is_main)
                continue;
            raise_memory(job, role, status, container);
            put_text_if_absent(container, "terminationMessagePolicy", "FallbackToLogsOnError"); /* status.failures tells the log's end */
            if (pod_has_sidecar(job)) {
                add_mount(container, "ringmaster", POD_DIR, false);
                if (pod_command_is_known(job, role))
                    put_launcher(container);
            }
        }
    }
}

/* ---- ours -------------------------------------------------------------------------------------------------------- */

/* Runs under the "restricted" Pod Security Standard and under OpenShift's restricted-v2: no fixed user of our own. The
 * user of the main container is taken over where the template says it, because both write to the checkpoints' volume. The
 * socket is for all users of the pod (RINGMASTER_SOCKET_ACCESS): an image may have a user that no template tells. */
static cJSON *security(const cJSON *main_container)
{
    cJSON *o = json_object(), *drop = json_array(), *capabilities = json_object(), *seccomp = json_object();
    int64_t user = json_int(main_container, "securityContext.runAsUser", -1);
    int64_t group = json_int(main_container, "securityContext.runAsGroup", -1);

    json_put_bool(o, "allowPrivilegeEscalation", false);
    json_append(drop, cJSON_CreateString("ALL"));
    json_put(capabilities, "drop", drop);
    json_put(o, "capabilities", capabilities);
    json_put_bool(o, "readOnlyRootFilesystem", true);
    if (user >= 0)
        json_put_int(o, "runAsUser", user);
    if (group >= 0)
        json_put_int(o, "runAsGroup", group);
    json_put_text(seccomp, "type", "RuntimeDefault");
    json_put(o, "seccompProfile", seccomp);
    return o;
}

static cJSON *own_container(const struct training_job *job, const struct pod_context *context, const char *name,
                            const char *const *command, size_t words, const cJSON *main_container)
{
    const char *image = job->spec.sidecar.image;
    cJSON *o = json_object();

    json_put_text(o, "name", name);
    json_put_text(o, "image", image != NULL && image[0] != '\0' ? image : context->sidecar_image);
    json_put(o, "command", texts(command, words));
    json_put(o, "securityContext", security(main_container));
    add_mount(o, "ringmaster", POD_DIR, false);
    return o;
}

/* The volume under a path of the main container, mounted in the sidecar as it is there; once. */
static void mount_of(const char *path, const cJSON *main_container, cJSON *sidecar)
{
    const cJSON *mount, *best = NULL;
    size_t longest = 0;

    cJSON_ArrayForEach(mount, json_at(main_container, "volumeMounts")) {
        const char *at = json_text(mount, "mountPath", "");
        size_t len = strlen(at);
        while (len > 1 && at[len - 1] == '/')
            len--;
        bool covers = len > 0 && strncmp(path, at, len) == 0 && (path[len] == '\0' || path[len] == '/' || len == 1);
        if (covers && len > longest) {
            best = mount;
            longest = len;
        }
    }
    cJSON_ArrayForEach(mount, json_at(sidecar, "volumeMounts"))
        if (best != NULL && strcmp(json_text(mount, "mountPath", ""), json_text(best, "mountPath", "")) == 0)
            return;
    if (best != NULL)
        json_append(have(sidecar, "volumeMounts", true), cJSON_Duplicate(best, true));
}

/* Checkpoints on S3: the sidecar is there who the main container is, by its variables and the files that they name. */
static void share_identity(const cJSON *main_container, cJSON *sidecar)
{
    static const char *const FILES[] = { "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CA_BUNDLE" };
    const cJSON *variable, *from = json_at(main_container, "envFrom");

    cJSON_ArrayForEach(variable, json_at(main_container, "env")) {
        const char *name = json_text(variable, "name", "");
        if (strncmp(name, "AWS_", 4) != 0)
            continue;
        json_append(have(sidecar, "env", true), cJSON_Duplicate(variable, true));
        for (size_t i = 0; i < COUNT(FILES); i++)
            if (strcmp(name, FILES[i]) == 0)
                mount_of(json_text(variable, "value", ""), main_container, sidecar);
    }
    if (from != NULL)
        json_put(sidecar, "envFrom", cJSON_Duplicate(from, true));
}

static void share_checkpoints(const struct training_job *job, const cJSON *main_container, cJSON *sidecar)
{
    const char *path = job->spec.checkpoint.enabled && job->spec.checkpoint.path != NULL ? job->spec.checkpoint.path : "";

    if (strncmp(path, "s3://", 5) == 0)
        share_identity(main_container, sidecar);
    else
        mount_of(path, main_container, sidecar);
}

static cJSON *sidecar(const struct training_job *job, enum job_role role, int32_t index,
                      const struct pod_context *context, const cJSON *main_container)
{
    const char *const command[] = { BIN_SIDECAR };
    cJSON *o = own_container(job, context, POD_SIDECAR_CONTAINER, command, COUNT(command), main_container);
    cJSON *port = json_object(), *probe = json_object(), *socket = json_object();

    json_put(o, "env", environment_sidecar(job, role, index, context));
    if (cJSON_GetArraySize(job->spec.sidecar.resources) > 0)
        json_put(o, "resources", cJSON_Duplicate(job->spec.sidecar.resources, true));
    json_put_text(port, "name", "ring");
    json_put_int(port, "containerPort", job->spec.sidecar.ring_port);
    json_append(have(o, "ports", true), port);
    json_put_int(socket, "port", job->spec.sidecar.ring_port);
    json_put(probe, "tcpSocket", socket);
    json_put_int(probe, "periodSeconds", 1);
    json_put_int(probe, "failureThreshold", 120);
    json_put(o, "startupProbe", probe);
    if (!pod_sidecar_is_container(job, context))
        json_put_text(o, "restartPolicy",
                      "Always"); /* a native sidecar: starts first, ends last, is restarted by itself */
    add_mount(o, "ringmaster-shm", POD_SHM_DIR, false);
    add_mount(o, "ringmaster-key", POD_KEY_DIR, true);
    share_checkpoints(job, main_container, o);
    return o;
}

static void add_volumes(cJSON *spec, const struct training_job *job)
{
    cJSON *volumes = have(spec, "volumes", true), *shared = json_object(), *shm = json_object(), *key = json_object();
    cJSON *memory = json_object(), *secret = json_object();
    char name[128];

    json_put_text(shared, "name", "ringmaster");
    json_put(shared, "emptyDir", json_object());
    json_append(volumes, shared);
    json_put_text(shm, "name", "ringmaster-shm");
    json_put_text(memory, "medium", "Memory");
    if (job->spec.sidecar.shm_size_bytes > 0) {
        (void)snprintf(name, sizeof name, "%lld", (long long)job->spec.sidecar.shm_size_bytes);
        json_put_text(memory, "sizeLimit", name);
    }
    json_put(shm, "emptyDir", memory);
    json_append(volumes, shm);
    pod_secret_name(job, name);
    json_put_text(key, "name", "ringmaster-key");
    json_put_text(secret, "secretName", name);
    json_put_int(secret, "defaultMode", 0444); /* whoever the sidecar runs as; no other container mounts it */
    json_put(key, "secret", secret);
    json_append(volumes, key);
}

/* First what copies launcher and libraries into the shared directory, then the sidecar, then the user's init
 * containers: these may use the ring directory too, and the order of the list is the order of starts. */
static void add_sidecar(cJSON *spec, const struct training_job *job, enum job_role role, int32_t index,
                        const struct pod_context *context)
{
    const char *const copy[] = { BIN_LAUNCHER, "--install", POD_DIR };
    const cJSON *main_container =
        container_named(json_at(job->spec.roles[role].template, "spec"), job_main_container(job, role));
    cJSON *inits = json_array();
    cJSON *built = sidecar(job, role, index, context, main_container);
    const cJSON *theirs;

    json_append(inits, own_container(job, context, "ringmaster-install", copy, COUNT(copy), main_container));
    json_append(pod_sidecar_is_container(job, context) ? have(spec, "containers", true) : inits, built);
    cJSON_ArrayForEach(theirs, json_at(spec, "initContainers"))
        json_append(inits, cJSON_Duplicate(theirs, true));
    replace(spec, "initContainers", inits);
    add_volumes(spec, job);
}

/* ---- the list of hosts for mpirun ------------------------------------------------------------------------------------ */

/* Annotations have 256 KiB in all. */
enum { HOSTFILE_MAX = 192 << 10 };

static bool has_hostfile(const struct training_job *job, enum job_role role, const struct pod_context *context)
{
    return job->spec.frameworks[FRAMEWORK_MPI] && job_rank(job, role, 0) >= 0 && context->addresses->kind == ADDRESS_CLUSTER;
}

static void put_hosts(const struct training_job *job, const struct pod_context *context, cJSON *annotations)
{
    auto_buf struct buf b = BUF_INIT(HOSTFILE_MAX);
    char host[ADDRESS_MAX];

    for (enum job_role r = 0; r < ROLE_COUNT; r++) {
        for (int32_t i = 0; job->spec.roles[r].present && i < job->spec.roles[r].replicas && job_rank(job, r, i) >= 0; i++) {
            address_host(job, context->addresses, r, i, host);
            buf_addf(&b, "%s slots=1\n", host);
        }
    }
    if (buf_ok(&b))
        replace_text(annotations, POD_HOSTFILE, buf_text(&b));
}

/* The list is in an annotation of the pod, so that it is there with the pod and needs no object of its own. */
static void mount_hosts(cJSON *spec, cJSON *main_container)
{
    cJSON *volume = json_object(), *downward = json_object(), *items = json_array(), *item = json_object(), *field = json_object();
    const cJSON *mount;

    json_put_text(volume, "name", "ringmaster-hostfile");
    json_put_text(field, "fieldPath", "metadata.annotations['" POD_HOSTFILE "']");
    json_put_text(item, "path", "hostfile");
    json_put(item, "fieldRef", field);
    json_append(items, item);
    json_put(downward, "items", items);
    json_put(volume, "downwardAPI", downward);
    json_append(have(spec, "volumes", true), volume);
    cJSON_ArrayForEach(mount, json_at(main_container, "volumeMounts")) {
        if (strcmp(json_text(mount, "mountPath", ""), POD_HOSTFILE_DIR) == 0)
            return; /* the user's own */
    }
    add_mount(main_container, "ringmaster-hostfile", POD_HOSTFILE_DIR, true);
}

cJSON *pod_build(const struct training_job *job, enum job_role role, int32_t index, const struct pod_context *context)
{
    const cJSON *template = json_at(job->spec.roles[role].template, "spec");
    auto_json cJSON *env = environment_build(job, role, index, context);
    const char *subdomain = job->spec.network.subdomain;
    cJSON *pod = json_object(), *meta = metadata(job, role, index, context);
    cJSON *spec = template != NULL ? cJSON_Duplicate(template, true) : json_object();

    json_put_text(pod, "apiVersion", "v1");
    json_put_text(pod, "kind", "Pod");
    json_put(pod, "metadata", meta);
    json_put(pod, "spec", spec);
    volume_claims_mount(job, role, index, spec);
    dress_containers(spec, job, role, env, context->status);
    if (pod_has_sidecar(job))
        add_sidecar(spec, job, role, index, context);
    if (has_hostfile(job, role, context)) {
        put_hosts(job, context, have(meta, "annotations", false));
        mount_hosts(spec, container_named(spec, job_main_container(job, role)));
    }
    replace_text(spec, "hostname", json_text(meta, "name", ""));
    replace_text(spec, "subdomain", subdomain != NULL && subdomain[0] != '\0' ? subdomain : job->name);
    replace_text(spec, "restartPolicy",
                 "Never"); /* restarts are decided here, not by the kubelet and its CrashLoopBackOff */
    put_text_if_absent(spec, "priorityClassName", job->spec.scheduling.priority_class);
    pod_schedule(job, role, context, meta, spec);

    auto_free char *hash = pod_hash(pod);
    replace_text(have(meta, "annotations", false), POD_LABEL "template-hash", hash);
    return pod;
}
