/*
 * What the training process and the sidecar find in their environment. The frameworks' names are those that Kubeflow's
 * operators set, so that a script written for them runs as it is.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "job/counters.h"
#include "job/pod.h"
#include "job/restart.h"
#include "job/tfconfig.h"

/* One string of an environment may have 128 KiB (Linux: MAX_ARG_STRLEN). */
enum { VALUE_MAX = 127 << 10, PYTORCH_PORT = 23456, JAX_PORT = 6666, GRACE_MOST_S = 3600 };

struct scope { /* of one replica */
    const struct training_job *job;
    const struct pod_context *context;
    enum job_role role;
    int32_t index, rank, size;
    const cJSON *user; /* env of the main container, or NULL */
    cJSON *list;
};

static const char *or_default(const char *value, const char *absent)
{
    return value != NULL ? value : absent;
}

static const cJSON *user_variable(const struct scope *s, const char *name)
{
    const cJSON *variable;

    cJSON_ArrayForEach(variable, s->user) {
        if (strcmp(json_text(variable, "name", ""), name) == 0)
            return variable;
    }
    return NULL;
}

static void append(cJSON *list, const char *name, const char *value)
{
    cJSON *variable = json_object();

    json_put_text(variable, "name", name);
    json_put_text(variable, "value", value);
    json_append(list, variable);
}

bool environment_is_reserved(const char *name)
{
    static const char *const names[] = {
        "JOB", "JOB_UID", "ROLE", "INDEX", "RANK", "SIZE", "ATTEMPT", "LOCAL_RANK", "LOCAL_SIZE", "COORDINATOR", "DIR", "SOCKET",
        "CHECKPOINT_DIR", "CHECKPOINT_EVERY_STEPS", "CHECKPOINT_EVERY_SECONDS", "LIBRARY_DIR", "FENCE", "ROUND", "RESUME_STEP",
    };
    static const char prefix[] = "RINGMASTER_";

    if (strncmp(name, prefix, sizeof prefix - 1) != 0)
        return false;
    for (size_t i = 0; i < COUNT(names); i++) {
        if (strcmp(name + sizeof prefix - 1, names[i]) == 0)
            return true;
    }
    return false;
}

/* What the user set wins. */
static void put(struct scope *s, const char *name, const char *value)
{
    if (user_variable(s, name) == NULL || environment_is_reserved(name))
        append(s->list, name, value);
}

static void put_int(struct scope *s, const char *name, int64_t value)
{
    char text[24];

    (void)snprintf(text, sizeof text, "%lld", (long long)value);
    put(s, name, text);
}

static void putf(struct scope *s, const char *name, const char *fmt, ...) FORMAT(3, 4);
static void putf(struct scope *s, const char *name, const char *fmt, ...)
{
    char text[ADDRESS_MAX + 128];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    put(s, name, text);
}

static struct scope scope_of(const struct training_job *job, enum job_role role, int32_t index,
                             const struct pod_context *context)
{
    struct scope s = {
        .job = job, .context = context, .role = role, .index = index,
        .rank = job_rank(job, role, index), .size = job_world_size(job), .list = json_array(),
    };
    const char *main_container = job_main_container(job, role);
    const cJSON *container;

    cJSON_ArrayForEach(container, json_at(job->spec.roles[role].template, "spec.containers")) {
        if (strcmp(json_text(container, "name", ""), main_container) == 0) {
            s.user = json_at(container, "env");
            break;
        }
    }
    return s;
}

/* The replica with this rank; false when there is none. */
static bool replica_of_rank(const struct training_job *job, int32_t rank, enum job_role *ret_role, int32_t *ret_index)
{
    static const enum job_role ring[] = { ROLE_CHIEF, ROLE_MASTER, ROLE_WORKER };

    for (size_t i = 0; i < COUNT(ring); i++) {
        int32_t replicas = job->spec.roles[ring[i]].present ? job->spec.roles[ring[i]].replicas : 0;
        if (rank < replicas) {
            *ret_role = ring[i];
            *ret_index = rank;
            return true;
        }
        rank -= replicas;
    }
    return false;
}

/* Where rank 0 is. A job without ranks (ps or evaluator alone) has its first replica there. */
static void leader_host(const struct scope *s, char ret_host[ADDRESS_MAX])
{
    enum job_role role = s->role;
    int32_t index = s->index;

    (void)replica_of_rank(s->job, 0, &role, &index);
    address_host(s->job, s->context->addresses, role, index, ret_host);
}

/* A port that rank 0 alone listens on. Each job of a machine has its own: frameworks listen on every interface. */
static int32_t leader_port(const struct scope *s, int32_t base)
{
    return s->context->addresses->kind == ADDRESS_LOCAL ? base + s->context->addresses->local_net : base;
}

/* "host:port,host:port" of a role; a list that no environment can hold is left out. */
static void put_hosts(struct scope *s, const char *name, enum job_role role, enum job_role also)
{
    auto_buf struct buf b = BUF_INIT(VALUE_MAX);
    const enum job_role roles[] = { role, also };
    char endpoint[ADDRESS_MAX];

    for (size_t k = 0; k < (role == also ? 1 : 2); k++) {
        for (int32_t i = 0; buf_ok(&b) && s->job->spec.roles[roles[k]].present && i < s->job->spec.roles[roles[k]].replicas; i++) {
            address_endpoint(s->job, s->context->addresses, roles[k], i, endpoint);
            buf_addf(&b, "%s%s", b.len > 0 ? "," : "", endpoint);
        }
    }
    if (buf_ok(&b))
        put(s, name, buf_text(&b));
}

/* ---- the frameworks ---------------------------------------------------------------------------------------------- */

static void put_tensorflow(struct scope *s)
{
    auto_free char *config = tfconfig_format(s->job, s->context->addresses, s->role, s->index);

    if (config != NULL && strlen(config) <= VALUE_MAX)
        put(s, "TF_CONFIG", config);
}

static void put_pytorch(struct scope *s)
{
    const struct job_spec *spec = &s->job->spec;
    char host[ADDRESS_MAX];
    int32_t port = leader_port(s, PYTORCH_PORT);

    leader_host(s, host);
    put(s, "MASTER_ADDR", host);
    put_int(s, "MASTER_PORT", port);
    put_int(s, "WORLD_SIZE", s->size);
    put_int(s, "RANK", s->rank);
    put_int(s, "LOCAL_RANK", 0);
    put_int(s, "LOCAL_WORLD_SIZE", 1);
    put_int(s, "GROUP_RANK", s->rank);
    put(s, "PET_MASTER_ADDR", host);
    put_int(s, "PET_MASTER_PORT", port);
    put_int(s, "PET_NODE_RANK", s->rank);
    put_int(s, "PET_NPROC_PER_NODE", 1);
    if (spec->min_replicas.set && spec->max_replicas.set) {
        putf(s, "PET_NNODES", "%lld:%lld", (long long)spec->min_replicas.value, (long long)spec->max_replicas.value);
        put(s, "PET_RDZV_BACKEND", "c10d");
        putf(s, "PET_RDZV_ENDPOINT", "%s:%d", host, (int)port);
        put(s, "PET_RDZV_ID", s->job->name);
    } else {
        put_int(s, "PET_NNODES", s->size);
    }
    put_int(s, "PET_MAX_RESTARTS", 0); /* restarts are Ringmaster's: all ranks at once, within backoffLimit */
}

static void put_jax(struct scope *s)
{
    char host[ADDRESS_MAX];
    int32_t port = leader_port(s, JAX_PORT);

    leader_host(s, host);
    put(s, "COORDINATOR_ADDRESS", host);
    put_int(s, "COORDINATOR_PORT", port);
    put_int(s, "NUM_PROCESSES", s->size);
    put_int(s, "PROCESS_ID", s->rank);
    putf(s, "JAX_COORDINATOR_ADDRESS", "%s:%d", host, (int)port);
    put_int(s, "JAX_NUM_PROCESSES", s->size);
    put_int(s, "JAX_PROCESS_ID", s->rank);
}

static void put_horovod(struct scope *s)
{
    char host[ADDRESS_MAX];

    address_host(s->job, s->context->addresses, s->role, s->index, host);
    put(s, "HOROVOD_HOSTNAME", host);
    put_int(s, "HOROVOD_RANK", s->rank);
    put_int(s, "HOROVOD_SIZE", s->size);
    put_int(s, "HOROVOD_LOCAL_RANK", 0);
    put_int(s, "HOROVOD_LOCAL_SIZE", 1);
    put_int(s, "HOROVOD_CROSS_RANK", s->rank);
    put_int(s, "HOROVOD_CROSS_SIZE", s->size);
    put(s, "HOROVOD_CONTROLLER", "gloo");
    put(s, "HOROVOD_CPU_OPERATIONS", "gloo");
}

/* What mpirun gives each process, for scripts that read their rank there. */
static void put_mpi(struct scope *s)
{
    put_int(s, "OMPI_COMM_WORLD_RANK", s->rank);
    put_int(s, "OMPI_COMM_WORLD_SIZE", s->size);
    put_int(s, "OMPI_COMM_WORLD_LOCAL_RANK", 0);
    put_int(s, "OMPI_COMM_WORLD_LOCAL_SIZE", 1);
    put_int(s, "OMPI_COMM_WORLD_NODE_RANK", 0);
    put_int(s, "OMPI_UNIVERSE_SIZE", s->size);
    if (s->context->addresses->kind == ADDRESS_LOCAL)
        return; /* one machine: mpirun needs no list of others */
    put(s, "OMPI_MCA_orte_default_hostfile", POD_HOSTFILE_DIR "/hostfile");
    put(s, "PRTE_MCA_prte_default_hostfile", POD_HOSTFILE_DIR "/hostfile");
    put(s, "I_MPI_HYDRA_HOST_FILE", POD_HOSTFILE_DIR "/hostfile");
    put(s, "HYDRA_HOST_FILE", POD_HOSTFILE_DIR "/hostfile");
}

static void put_frameworks(struct scope *s)
{
    static const struct { bool ranks_only; void (*put)(struct scope *s); } frameworks[FRAMEWORK_COUNT] = {
        [FRAMEWORK_TENSORFLOW] = { false, put_tensorflow }, [FRAMEWORK_PYTORCH] = { true, put_pytorch },
        [FRAMEWORK_JAX] = { true, put_jax },                [FRAMEWORK_HOROVOD] = { true, put_horovod },
        [FRAMEWORK_MPI] = { true, put_mpi },
    };

    for (size_t i = 0; i < FRAMEWORK_COUNT; i++) {
        if (s->job->spec.frameworks[i] && (s->rank >= 0 || !frameworks[i].ranks_only))
            frameworks[i].put(s);
    }
}

/* ---- ours -------------------------------------------------------------------------------------------------------- */

static const char *checkpoint_dir(const struct scope *s)
{
    if (!s->job->spec.checkpoint.enabled)
        return "";
    return or_default(s->context->checkpoint_dir, or_default(s->job->spec.checkpoint.path, ""));
}

/* The coordinator is the sidecar of rank 0, at its ring port. */
static void coordinator_endpoint(const struct scope *s, char ret_endpoint[ADDRESS_MAX])
{
    char host[ADDRESS_MAX];

    leader_host(s, host);
    (void)snprintf(ret_endpoint, ADDRESS_MAX, "%.300s:%d", host, (int)s->job->spec.sidecar.ring_port);
}

/* What both processes of a replica are told about who they are. */
static void put_identity(struct scope *s)
{
    put(s, "RINGMASTER_JOB", s->job->name);
    put(s, "RINGMASTER_JOB_UID", s->job->uid);
    put(s, "RINGMASTER_ROLE", role_name(s->role));
    put_int(s, "RINGMASTER_INDEX", s->index);
    put_int(s, "RINGMASTER_RANK", s->rank);
    put_int(s, "RINGMASTER_SIZE", s->size);
    put_int(s, "RINGMASTER_ATTEMPT", s->context->attempt);
}

static void put_ours(struct scope *s)
{
    const struct job_spec *spec = &s->job->spec;
    char coordinator[ADDRESS_MAX];

    put_identity(s);
    put_int(s, "RINGMASTER_LOCAL_RANK", 0);
    put_int(s, "RINGMASTER_LOCAL_SIZE", 1);
    if (!pod_has_sidecar(s->job))
        return;
    coordinator_endpoint(s, coordinator);
    put(s, "RINGMASTER_COORDINATOR", coordinator);
    put(s, "RINGMASTER_DIR", or_default(s->context->dir, POD_DIR));
    putf(s, "RINGMASTER_SOCKET", "%.400s/sidecar.sock", or_default(s->context->dir, POD_DIR));
    put(s, "RINGMASTER_CHECKPOINT_DIR", checkpoint_dir(s));
    if (spec->checkpoint.enabled && spec->checkpoint.every_steps.set)
        put_int(s, "RINGMASTER_CHECKPOINT_EVERY_STEPS", spec->checkpoint.every_steps.value);
    if (spec->checkpoint.enabled && spec->checkpoint.every_seconds.set)
        put_int(s, "RINGMASTER_CHECKPOINT_EVERY_SECONDS", spec->checkpoint.every_seconds.value);
    put(s, "RINGMASTER_LIBRARY_DIR", or_default(s->context->library_dir, POD_LIBRARY_DIR));
}

/* The injected package comes first, for Horovod's scripts then the packages of Horovod's name, what the user has behind them. A
 * value from elsewhere (valueFrom) is left alone. */
static void put_pythonpath(struct scope *s)
{
    const char *dir = or_default(s->context->python_dir, POD_PYTHON_DIR);
    auto_free char *ours = s->job->spec.frameworks[FRAMEWORK_HOROVOD] ? xasprintf("%s:%s/" POD_SHIM, dir, dir) : xstrdup(dir);
    const cJSON *theirs = user_variable(s, "PYTHONPATH");
    const char *value = json_text(theirs, "value", "");

    if (json_at(theirs, "valueFrom") != NULL || !pod_has_sidecar(s->job))
        return;
    auto_free char *path = value[0] != '\0' ? xasprintf("%s:%s", ours, value) : xstrdup(ours);
    append(s->list, "PYTHONPATH", path);
}

static cJSON *environment_of(const struct training_job *job, enum job_role role, int32_t index, const struct pod_context *context,
                             bool user_wins)
{
    struct scope s = scope_of(job, role, index, context);
    enum job_role task = role == ROLE_MASTER && job->spec.tf_config.master_as_chief ? ROLE_CHIEF : role;

    if (!user_wins)
        s.user = NULL;
    put_ours(&s);
    put_pythonpath(&s);
    put(&s, "PYTHONUNBUFFERED", "1");
    put_hosts(&s, "PS_HOSTS", ROLE_PS, ROLE_PS);
    put_hosts(&s, "WORKER_HOSTS", ROLE_WORKER, ROLE_WORKER);
    put_hosts(&s, "CHIEF_HOSTS", ROLE_CHIEF, ROLE_MASTER);
    put(&s, "JOB_NAME", role_name(task));
    put_int(&s, "TASK_INDEX", index);
    put_frameworks(&s);
    return s.list;
}

cJSON *environment_build(const struct training_job *job, enum job_role role, int32_t index, const struct pod_context *context)
{
    return environment_of(job, role, index, context, true);
}

static const char *value_of(const cJSON *env, const char *name, size_t len)
{
    const cJSON *variable;
    const char *value = NULL;

    cJSON_ArrayForEach(variable, env) {
        const char *have = json_text(variable, "name", "");
        if (strlen(have) == len && strncmp(have, name, len) == 0)
            value = json_text(variable, "value", NULL); /* the last of a name counts */
    }
    return value;
}

void environment_conflicts(const struct training_job *job, enum job_role role, struct buf *kept, struct buf *dropped)
{
    static const struct address_plan addresses = { .kind = ADDRESS_CLUSTER };
    struct pod_context context = { .addresses = &addresses, .attempt = 1 };
    struct scope s = scope_of(job, role, 0, &context);
    const cJSON *theirs = s.user, *variable;

    cJSON_Delete(s.list);
    if (cJSON_GetArraySize(theirs) == 0)
        return;
    auto_json cJSON *without = environment_of(job, role, 0, &context, false);
    cJSON_ArrayForEach(variable, theirs) {
        const char *name = json_text(variable, "name", "");
        bool reserved = environment_is_reserved(name);
        if (strcmp(name, "PYTHONPATH") == 0 || (!reserved && value_of(without, name, strlen(name)) == NULL))
            continue; /* the path has both */
        struct buf *to = reserved ? dropped : kept;
        buf_addf(to, "%s%.100s", to->len > 0 ? ", " : "", name);
    }
}

/* ---- the sidecar's ----------------------------------------------------------------------------------------------- */

/* All members by rank and then by ordinal, which is the order of the roles. */
static void put_members(struct scope *s)
{
    auto_buf struct buf b = BUF_INIT(VALUE_MAX);
    char name[80];

    for (enum job_role r = 0; r < ROLE_COUNT; r++) {
        for (int32_t i = 0; s->job->spec.roles[r].present && i < s->job->spec.roles[r].replicas; i++) {
            job_member_name(r, i, name);
            buf_addf(&b, "%s%s", b.len > 0 ? "," : "", name);
        }
    }
    put(s, "RINGMASTER_MEMBERS", buf_text(&b));
}

static void put_counters(struct scope *s)
{
    const struct job_status *status = s->context->status;
    struct restart_counters counters;

    memset(&counters, 0, sizeof counters);
    if (status != NULL)
        restart_counters_of(status, &counters);
    auto_json cJSON *o = restart_counters_encode(&counters);
    auto_free char *text = json_print(o, false);
    put(s, "RINGMASTER_COUNTERS", text);
}

/* What holds in a pod and not beside other processes of one machine. */
static void put_cluster(struct scope *s)
{
    int64_t grace_s = job_grace_s(s->job, s->role);

    put(s, "RINGMASTER_SOCKET_ACCESS", "pod"); /* the shared directory is an emptyDir */
    if (pod_sidecar_is_container(s->job, s->context))
        put(s, "RINGMASTER_LEAVE_WITH_LAUNCHER", "true");
    if (s->rank == 0)
        put(s, "RINGMASTER_LAST_WORD", "/dev/termination-log"); /* the pod keeps it when the container has ended */
    /* The kubelet kills what has not ended by then: less would give up what can still be committed. */
    putf(s, "RINGMASTER_GRACE", "%llds", (long long)(grace_s < GRACE_MOST_S ? grace_s : GRACE_MOST_S));
}

/* The sidecar has the schema's defaults; a job that was made in code has zeros. */
static void put_health(struct scope *s)
{
    int32_t timeout_ms = s->job->spec.health.peer_timeout_ms, warning_s = s->job->spec.health.stall_warning_s;

    if (timeout_ms != 0 && timeout_ms != 1000)
        putf(s, "RINGMASTER_PEER_TIMEOUT", "%dms", timeout_ms);
    if (timeout_ms != 0 && warning_s != 60)
        putf(s, "RINGMASTER_STALL_WARNING", "%ds", warning_s);
    if (s->job->spec.health.stall_shutdown_s != 0)
        putf(s, "RINGMASTER_STALL_SHUTDOWN", "%ds", s->job->spec.health.stall_shutdown_s);
}

/* spec.sidecar.wireFormat as the sidecar's option has it. */
static const char *const WIRES[] = { "plain", "float16", "bfloat16", "int8", "exact" };

cJSON *environment_sidecar(const struct training_job *job, enum job_role role, int32_t index,
                           const struct pod_context *context)
{
    struct scope s = scope_of(job, role, index, context);
    auto_free char *policy = restart_policy_encode(job);
    char text[ADDRESS_MAX];

    s.user = NULL; /* the user's variables are the training process's */
    put_identity(&s);
    put_members(&s);
    coordinator_endpoint(&s, text);
    put(&s, "RINGMASTER_COORDINATOR", text);
    address_host(job, context->addresses, role, index, text);
    put(&s, "RINGMASTER_ADDRESS", text);
    put_int(&s, "RINGMASTER_PORT", job->spec.sidecar.ring_port);
    if (job->spec.sidecar.tls)
        put(&s, "RINGMASTER_TLS", "true");
    if (job->spec.sidecar.checksums)
        put(&s, "RINGMASTER_CHECKSUMS", "true");
    if (job->spec.sidecar.wire > 0)
        put(&s, "RINGMASTER_WIRE", WIRES[job->spec.sidecar.wire]);
    put_health(&s);
    put(&s, "RINGMASTER_DIR", or_default(context->dir, POD_DIR));
    put(&s, "RINGMASTER_SHM_DIR", or_default(context->shm_dir, POD_SHM_DIR));
    put(&s, "RINGMASTER_CHECKPOINT_DIR", checkpoint_dir(&s));
    put_int(&s, "RINGMASTER_CHECKPOINT_KEEP", job->spec.checkpoint.keep_last);
    put(&s, "RINGMASTER_KEY_FILE", or_default(context->key_file, POD_KEY_DIR "/key"));
    put(&s, "RINGMASTER_POLICY", policy);
    put_counters(&s);
    put(&s, "RINGMASTER_CONTROL", or_default(context->control, ""));
    if (context->control != NULL && strncmp(context->control, "wss:", 4) == 0)
        put(&s, "RINGMASTER_CONTROL_CA", POD_KEY_DIR "/" POD_SECRET_AUTHORITY);
    if (context->dir == NULL)
        put_cluster(&s);
    return s.list;
}

/* ---- expansion --------------------------------------------------------------------------------------------------- */

char *environment_expand(const char *text, const cJSON *env)
{
    auto_buf struct buf b = BUF_INIT(4u << 20);

    for (const char *p = text; *p != '\0';) {
        const char *end;
        if (p[0] == '$' && p[1] == '$') {
            buf_add(&b, "$");
            p += 2;
        } else if (p[0] == '$' && p[1] == '(' && (end = strchr(p, ')')) != NULL) {
            const char *value = value_of(env, p + 2, (size_t)(end - p - 2));
            if (value != NULL)
                buf_add(&b, value);
            else
                buf_add_bytes(&b, p, (size_t)(end - p + 1));
            p = end + 1;
        } else {
            buf_add_bytes(&b, p++, 1);
        }
    }
    return buf_take(&b);
}
