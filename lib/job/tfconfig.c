#include "job/tfconfig.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/text.h"

enum { TFCONFIG_MAX = 8 << 20, PARSE_MAX = 1 << 20, PARSE_MAX_ENDPOINTS = 100000 };

/* TensorFlow 2 knows no "master": it is written as chief unless the user wants TFJob's old form. */
static const char *task_type(const struct training_job *job, enum job_role role)
{
    return role == ROLE_MASTER && job->spec.tf_config.master_as_chief ? role_name(ROLE_CHIEF) : role_name(role);
}

static int32_t replicas_of(const struct training_job *job, enum job_role role)
{
    return job->spec.roles[role].present ? job->spec.roles[role].replicas : 0;
}

static void add_endpoint(struct buf *b, const struct training_job *job, const struct address_plan *plan,
                         enum job_role role, int32_t index)
{
    char endpoint[ADDRESS_MAX];

    address_endpoint(job, plan, role, index, endpoint);
    buf_add_json_string(b, endpoint);
}

static void add_list(struct buf *b, const struct training_job *job, const struct address_plan *plan, enum job_role role)
{
    buf_addf(b, "\"%s\":[", task_type(job, role));
    for (int32_t i = 0; i < replicas_of(job, role); i++) {
        buf_add(b, i > 0 ? "," : "");
        add_endpoint(b, job, plan, role, i);
    }
    buf_add(b, "]");
}

/* Task index as key: TensorFlow's ClusterSpec reads such maps as sparse. */
static void add_map(struct buf *b, const struct training_job *job, const struct address_plan *plan, enum job_role role,
                    int32_t first, int32_t count)
{
    buf_addf(b, "\"%s\":{", task_type(job, role));
    for (int32_t i = first; i < first + count; i++) {
        buf_addf(b, "%s\"%d\":", i > first ? "," : "", (int)i);
        add_endpoint(b, job, plan, role, i);
    }
    buf_add(b, "}");
}

static void add_dense_cluster(struct buf *b, const struct training_job *job, const struct address_plan *plan)
{
    /* In the order of the names as written: Go sorts the keys of a map, and TFJob's bytes are our bytes. */
    static const enum job_role by_name[] = { ROLE_CHIEF, ROLE_EVALUATOR, ROLE_MASTER, ROLE_PS, ROLE_WORKER };
    static const enum job_role master_first[] = { ROLE_CHIEF, ROLE_MASTER, ROLE_EVALUATOR, ROLE_PS, ROLE_WORKER };
    const enum job_role *order = job->spec.tf_config.master_as_chief ? master_first : by_name;
    const char *comma = "";

    for (size_t i = 0; i < COUNT(by_name); i++) {
        if (replicas_of(job, order[i]) == 0 ||
            (order[i] == ROLE_EVALUATOR && !job->spec.tf_config.evaluator_in_cluster))
            continue;
        buf_add(b, comma);
        add_list(b, job, plan, order[i]);
        comma = ",";
    }
}

static void add_sparse_cluster(struct buf *b, const struct training_job *job, const struct address_plan *plan,
                               enum job_role role, int32_t index)
{
    enum job_role chief = replicas_of(job, ROLE_CHIEF) > 0 ? ROLE_CHIEF : ROLE_MASTER;
    const char *comma = "";

    if (role == ROLE_PS) {
        add_map(b, job, plan, ROLE_PS, 0, replicas_of(job, ROLE_PS));
        return;
    }
    if (role == ROLE_WORKER) {
        add_map(b, job, plan, ROLE_WORKER, index, 1);
        comma = ",";
    } else if (replicas_of(job, chief) > 0) {
        add_list(b, job, plan, chief);
        comma = ",";
    }
    if (replicas_of(job, ROLE_PS) > 0) {
        buf_add(b, comma);
        add_list(b, job, plan, ROLE_PS);
    }
}

char *tfconfig_format(const struct training_job *job, const struct address_plan *plan, enum job_role role,
                      int32_t index)
{
    auto_buf struct buf b = BUF_INIT(TFCONFIG_MAX);
    bool sparse = job->spec.enable_dynamic_worker;

    if (job_replicas(job) <= 1)
        return NULL;
    buf_add(&b, "{\"cluster\":{");
    if (sparse)
        add_sparse_cluster(&b, job, plan, role, index);
    else
        add_dense_cluster(&b, job, plan);
    buf_addf(&b, "},\"task\":{\"type\":\"%s\",\"index\":%d}%s}", task_type(job, role), (int)index,
             sparse ? "" : ",\"environment\":\"cloud\"");
    return buf_take(&b);
}

/* ---- reading one back -------------------------------------------------------------------------------------------- */

static int count_endpoints(const cJSON *cluster, int32_t *ret_count, struct error *e)
{
    const cJSON *tasks, *endpoint;
    int32_t count = 0;

    cJSON_ArrayForEach(tasks, cluster) {
        if (!cJSON_IsArray(tasks) && !cJSON_IsObject(tasks))
            return error_set(e, ERROR_INVALID, "TF_CONFIG: cluster.%.40s is neither a list nor a map of host:port",
                             tasks->string);
        cJSON_ArrayForEach(endpoint, tasks) {
            if (!cJSON_IsString(endpoint) || strchr(endpoint->valuestring, ':') == NULL)
                return error_set(e, ERROR_INVALID, "TF_CONFIG: cluster.%.40s holds something that is not host:port",
                                 tasks->string);
            if (++count > PARSE_MAX_ENDPOINTS)
                return error_set(e, ERROR_LIMIT, "TF_CONFIG: more than %d tasks", PARSE_MAX_ENDPOINTS);
        }
    }
    *ret_count = count;
    return 0;
}

/* TFConfigClusterResolver takes the index through int(), so that "0" is as good as 0. */
static int read_index(const cJSON *index, int64_t *ret_index, struct error *e)
{
    int64_t value = -1;

    if (cJSON_IsNumber(index) && index->valuedouble >= 0 && index->valuedouble < INT32_MAX &&
        index->valuedouble == (double)(int64_t)index->valuedouble)
        value = (int64_t)index->valuedouble;
    if (cJSON_IsString(index) && !text_int(index->valuestring, &value))
        value = -1;
    if (value < 0 || value >= INT32_MAX)
        return error_set(e, ERROR_INVALID, "TF_CONFIG: task.index is not a whole number from 0");
    *ret_index = value;
    return 0;
}

int tfconfig_parse(const char *text, size_t len, struct tfconfig_task *ret_task, struct error *e)
{
    auto_json cJSON *o = NULL;
    struct tfconfig_task task = { .index = 0 };
    int64_t index = 0;

    if (len > PARSE_MAX)
        return error_set(e, ERROR_LIMIT, "TF_CONFIG is longer than %d bytes", PARSE_MAX);
    if (json_parse(text, len, &o, e) < 0)
        return error_wrap(e, "TF_CONFIG");
    const cJSON *cluster = json_at(o, "cluster");
    if (!cJSON_IsObject(cluster))
        return error_set(e, ERROR_INVALID, "TF_CONFIG: cluster is missing or not an object");
    const char *type = json_text(o, "task.type", NULL);
    if (type == NULL || type[0] == '\0' || strlen(type) >= sizeof task.type)
        return error_set(e, ERROR_INVALID, "TF_CONFIG: task.type is missing or no task type");
    if (read_index(json_at(o, "task.index"), &index, e) < 0 || count_endpoints(cluster, &task.cluster_size, e) < 0)
        return -1;
    task.index = (int32_t)index;
    (void)snprintf(task.type, sizeof task.type, "%s", type);
    *ret_task = task;
    return 0;
}
