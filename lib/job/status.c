#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "job/decode.h"
#include "job/field.h"
#include "job/names.h"
#include "job/pod.h"
#include "job/schema.h"

/* ---- rows --------------------------------------------------------------------------------------------------------------- */

static const struct field STATUS[] = {
    ROW_INT64("observedGeneration", job_status, observed_generation),
    ROW_NAME("phase", job_status, phase, PHASE_NAMES),
    ROW_INT32("attempt", job_status, attempt),
    ROW_INT32("round", job_status, round),
    ROW_INT32("restarts", job_status, restarts),
    ROW_INT32("restartsCountTowardsMax", job_status, restarts_counted),
    ROW_INT32("disruptions", job_status, disruptions),
    ROW_INT32("streak", job_status, streak),
    { .path = "crashes", .type = FIELD_INT32, .at = FIELD_AT(job_status, crashes, int32_t), .omit_zero = true },
    { .path = "repeats", .type = FIELD_INT32, .at = FIELD_AT(job_status, repeats, int32_t), .omit_zero = true },
    { .path = "lastEnd", .type = FIELD_INT32, .at = FIELD_AT(job_status, last_end, int32_t), .omit_zero = true },
    ROW_TIME("nextRestartTime", job_status, next_restart_ms),
    ROW_TIME("startTime", job_status, start_ms),
    ROW_TIME("completionTime", job_status, completion_ms),
    ROW_TIME("suspendedTime", job_status, suspended_ms),
    /* Made from other members, for kubectl and scale; never read back. */
    ROW_BY_HAND("replicas"),
    ROW_BY_HAND("selector"),
    ROW_BY_HAND("ready"),
};

static const struct field CONDITION[] = {
    ROW_BY_HAND("type"),
    ROW_BY_HAND("status"),
    /* The API server requires these three, whatever the struct holds. */
    ROW_BY_HAND("reason"),
    ROW_BY_HAND("message"),
    ROW_BY_HAND("lastTransitionTime"),
    ROW_INT64("observedGeneration", condition, observed_generation),
};

static const struct field ROLE[] = {
    ROW_INT32("replicas", role_status, replicas), ROW_INT32("active", role_status, active),
    ROW_INT32("ready", role_status, ready),       ROW_INT32("succeeded", role_status, succeeded),
    ROW_INT32("failed", role_status, failed),
    ROW_CHARS("completedIndexes", role_status, completed),
    { .path = "oomKills", .type = FIELD_INT32, .at = FIELD_AT(role_status, oom_kills, int32_t), .omit_zero = true },
};

static const struct field WINDOW[] = {
    ROW_BY_HAND("time"),
    ROW_BY_HAND("restarts"),
};

static const struct field QUEUE[] = {
    ROW_CHARS("name", job_status, queue.name),
    ROW_INT32("position", job_status, queue.position),
    ROW_TIME("admittedTime", job_status, queue.admitted_ms),
    ROW_CHARS("workload", job_status, queue.workload),
};

static const struct field GANG[] = {
    ROW_NAME("kind", job_status, gang.kind, GANG_NAMES),
    ROW_CHARS("group", job_status, gang.group),
    ROW_CHARS("phase", job_status, gang.phase),
};

static const struct field PROGRESS[] = {
    ROW_INT64("step", job_status, progress.step),
    ROW_INT64("totalSteps", job_status, progress.total_steps),
    ROW_DOUBLE("percent", job_status, progress.percent),
    ROW_DOUBLE("stepsPerSecond", job_status, progress.steps_per_second),
    ROW_INT64("etaSeconds", job_status, progress.eta_s),
    { .path = "loss", .type = FIELD_DOUBLE, .at = FIELD_AT(job_status, progress.loss, double),
      .has = FIELD_HAS(job_status, progress.has_loss) },
    ROW_TIME("updateTime", job_status, progress.update_ms),
};

static const struct field CHECKPOINT[] = {
    ROW_INT64("step", job_status, checkpoint.step),
    ROW_TIME("time", job_status, checkpoint.time_ms),
    ROW_INT32("attempt", job_status, checkpoint.attempt),
    ROW_BOOL("verified", job_status, checkpoint.verified),
    ROW_CHARS("uri", job_status, checkpoint.uri),
};

static const char *const WISHES[] = { [WISH_ANNOTATION] = "Annotation", [WISH_SUSPEND] = "Suspend", [WISH_SCALE] = "Scale", NULL };
static const char *const ANSWERS[] = { [ANSWER_PENDING] = "Pending", [ANSWER_COMMITTED] = "Committed", [ANSWER_MISSED] = "Missed", NULL };

static const struct field CHECKPOINT_REQUEST[] = {
    ROW_CHARS("value", job_status, checkpoint_request.value),
    ROW_NAME("reason", job_status, checkpoint_request.reason, WISHES),
    ROW_NAME("state", job_status, checkpoint_request.state, ANSWERS),
    ROW_TIME("time", job_status, checkpoint_request.time_ms),
    ROW_INT64("fromStep", job_status, checkpoint_request.from_step),
    ROW_INT64("step", job_status, checkpoint_request.step),
};

static const struct field RING[] = {
    ROW_INT32("size", job_status, ring.size),
    ROW_BOOL("selfTestPassed", job_status, ring.self_test_ok),
    ROW_INT64("bytesReduced", job_status, ring.bytes_reduced),
    ROW_INT64("operations", job_status, ring.operations),
    ROW_DOUBLE("busBandwidth", job_status, ring.busbw_gbps),
    ROW_TIME("formedTime", job_status, ring.formed_ms),
    ROW_INT32("stragglerRank", job_status, ring.straggler_rank),
    ROW_DOUBLE("stepMilliseconds", job_status, ring.step_ms),
    ROW_DOUBLE("slowestStepMilliseconds", job_status, ring.slowest_step_ms),
    ROW_CHARS("members", job_status, ring.members),
};

static const struct field FAILURE[] = {
    ROW_INT32("attempt", failure, attempt),
    ROW_INT32("round", failure, round),
    ROW_NAME("role", failure, role, ROLE_KEYS),
    ROW_INT32("index", failure, index),
    ROW_CHARS("pod", failure, pod),
    ROW_CHARS("podUID", failure, pod_uid),
    ROW_CHARS("node", failure, node),
    ROW_CHARS("container", failure, container),
    { .path = "exitCode", .type = FIELD_INT32, .at = FIELD_AT(failure, exit_code, int32_t), .has = FIELD_HAS(failure, has_exit) },
    { .path = "signal", .type = FIELD_INT32, .at = FIELD_AT(failure, signal, int32_t), .omit_zero = true },
    ROW_CHARS("reason", failure, reason),
    ROW_NAME("class", failure, class, FAILURE_CLASS_NAMES),
    ROW_CHARS("message", failure, message),
    ROW_TIME("time", failure, time_ms),
    ROW_OPTIONAL("lostSteps", failure, lost_steps),
    ROW_OPTIONAL("rank", failure, rank),
    ROW_CHARS("evidence", failure, evidence),
};

static const struct field AVOID[] = {
    ROW_CHARS("name", avoided_node, name),
    ROW_CHARS("reason", avoided_node, reason),
    ROW_TIME("until", avoided_node, until_ms),
};

const struct field_table status_tables[] = {
    { "status", STATUS, COUNT(STATUS) },
    { "status.conditions[]", CONDITION, COUNT(CONDITION) },
    { "status.replicaStatuses.*", ROLE, COUNT(ROLE) },
    { "status.restartWindow[]", WINDOW, COUNT(WINDOW) },
    { "status.queue", QUEUE, COUNT(QUEUE) },
    { "status.gang", GANG, COUNT(GANG) },
    { "status.progress", PROGRESS, COUNT(PROGRESS) },
    { "status.checkpoint", CHECKPOINT, COUNT(CHECKPOINT) },
    { "status.checkpointRequest", CHECKPOINT_REQUEST, COUNT(CHECKPOINT_REQUEST) },
    { "status.ring", RING, COUNT(RING) },
    { "status.avoidNodes[]", AVOID, COUNT(AVOID) },
    { "status.failures[]", FAILURE, COUNT(FAILURE) },
    { NULL, NULL, 0 },
};

void status_init(struct job_status *status)
{
    memset(status, 0, sizeof *status);
    status->ring.straggler_rank = -1;
    status->checkpoint_request.step = -1;
}

/* ---- struct → JSON ------------------------------------------------------------------------------------------------------- */

static cJSON *encode_conditions(const struct job_status *status)
{
    cJSON *list = json_array();

    for (enum condition_type t = 0; t < CONDITION_COUNT; t++) {
        const struct condition *c = &status->conditions[t];
        if (!c->present)
            continue;
        cJSON *o = json_object();
        json_put_text(o, "type", CONDITION_NAMES[t]);
        json_put_text(o, "status", c->is_true ? "True" : "False");
        json_put_text(o, "reason", c->reason[0] != '\0' ? c->reason : CONDITION_NAMES[t]);
        json_put_text(o, "message", c->message);
        field_put_time(o, "lastTransitionTime", c->transition_ms);
        if (c->transition_ms == 0) /* the API server requires one */
            json_put_text(o, "lastTransitionTime", "1970-01-01T00:00:00Z");
        fields_write(CONDITION, COUNT(CONDITION), c, o);
        json_append(list, o);
    }
    return list;
}

static void encode_roles(const struct training_job *job, const struct job_status *status, cJSON *object)
{
    cJSON *roles = json_object();
    int32_t ready = 0, all = 0;
    char text[32];

    for (enum job_role r = 0; r < ROLE_COUNT; r++) {
        if (!job->spec.roles[r].present)
            continue;
        cJSON *o = json_object();
        fields_write(ROLE, COUNT(ROLE), &status->roles[r], o);
        json_put(roles, ROLE_KEYS[r], o);
        ready += status->roles[r].ready;
        all += job->spec.roles[r].replicas;
    }
    json_put(object, "replicaStatuses", roles);
    json_put_int(object, "replicas", status->roles[ROLE_WORKER].replicas);
    auto_free char *selector = xasprintf(POD_LABEL "job-name=%s," POD_LABEL "replica-type=%s", job->name, role_name(ROLE_WORKER));
    json_put_text(object, "selector", selector);
    (void)snprintf(text, sizeof text, "%d/%d", (int)ready, (int)all);
    json_put_text(object, "ready", text);
}

static void encode_section(cJSON *object, const char *key, bool set, const struct field *fields, size_t count,
                           const struct job_status *status)
{
    if (!set)
        return;
    cJSON *section = json_object();
    fields_write(fields, count, status, section);
    json_put(object, key, section);
}

static cJSON *encode_avoid_nodes(const struct job_status *status)
{
    cJSON *list = json_array();

    for (size_t i = 0; i < status->avoid_count; i++) {
        cJSON *o = json_object();
        fields_write(AVOID, COUNT(AVOID), &status->avoid_nodes[i], o);
        json_append(list, o);
    }
    return list;
}

static cJSON *encode_failures(const struct job_status *status)
{
    cJSON *list = json_array();

    for (size_t i = 0; i < status->failure_count; i++) {
        cJSON *o = json_object();
        fields_write(FAILURE, COUNT(FAILURE), &status->failures[i], o);
        json_append(list, o);
    }
    return list;
}

static cJSON *encode_window(const struct restart_window *w)
{
    cJSON *list = json_array();

    for (int64_t i = 0; i < w->part_count; i++) {
        cJSON *o = json_object();
        field_put_time(o, "time", w->parts[i].at_ms);
        json_put_int(o, "restarts", w->parts[i].restarts);
        json_append(list, o);
    }
    return list;
}

cJSON *status_encode(const struct training_job *job, const struct job_status *status)
{
    cJSON *object = json_object();

    fields_write(STATUS, COUNT(STATUS), status, object);
    json_put(object, "conditions", encode_conditions(status));
    encode_roles(job, status, object);
    encode_section(object, "queue", status->queue.set, QUEUE, COUNT(QUEUE), status);
    encode_section(object, "gang", status->gang.set, GANG, COUNT(GANG), status);
    encode_section(object, "progress", status->progress.set, PROGRESS, COUNT(PROGRESS), status);
    encode_section(object, "checkpoint", status->checkpoint.set, CHECKPOINT, COUNT(CHECKPOINT), status);
    encode_section(object, "checkpointRequest", status->checkpoint_request.set, CHECKPOINT_REQUEST, COUNT(CHECKPOINT_REQUEST), status);
    encode_section(object, "ring", status->ring.set, RING, COUNT(RING), status);
    if (status->window.part_count > 0)
        json_put(object, "restartWindow", encode_window(&status->window));
    if (status->avoid_count > 0)
        json_put(object, "avoidNodes", encode_avoid_nodes(status));
    if (status->failure_count > 0)
        json_put(object, "failures", encode_failures(status));
    return object;
}

/* ---- JSON → struct ------------------------------------------------------------------------------------------------------- */

static void decode_conditions(const cJSON *list, struct job_status *status)
{
    static const struct field TEXTS[] = {
        ROW_CHARS("reason", condition, reason),
        ROW_CHARS("message", condition, message),
        ROW_TIME("lastTransitionTime", condition, transition_ms),
    };
    const cJSON *item;

    cJSON_ArrayForEach(item, list) {
        int type = field_name_index(CONDITION_NAMES, json_text(item, "type", ""));
        if (type < 0)
            continue;
        struct condition *c = &status->conditions[type];
        c->present = true;
        c->is_true = strcmp(json_text(item, "status", ""), "True") == 0;
        fields_read(TEXTS, COUNT(TEXTS), item, c);
        fields_read(CONDITION, COUNT(CONDITION), item, c);
    }
}

static void decode_roles(const cJSON *roles, struct job_status *status)
{
    const cJSON *item;
    enum job_role role;

    cJSON_ArrayForEach(item, roles) {
        if (role_parse(item->string, &role))
            fields_read(ROLE, COUNT(ROLE), item, &status->roles[role]);
    }
}

static void decode_window(const cJSON *list, struct restart_window *w)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, list) {
        int64_t at_ms, restarts = json_int(item, "restarts", 0);
        if (w->part_count == RESTART_WINDOW_PARTS || restarts <= 0 || restarts > INT32_MAX || clock_parse(json_text(item, "time", ""), &at_ms) != 0)
            continue;
        w->parts[w->part_count].at_ms = at_ms;
        w->parts[w->part_count++].restarts = restarts;
    }
}

static void decode_section(const cJSON *tree, const char *key, bool *set, const struct field *fields, size_t count,
                           struct job_status *status)
{
    const cJSON *section = json_at(tree, key);

    *set = section != NULL;
    fields_read(fields, count, section, status);
}

int status_decode(const cJSON *tree, struct job_status *ret_status, struct error *e)
{
    const cJSON *schema = json_at(schema_of_kind(JOB_KIND), "properties.status");
    auto_free struct problems *problems = xcalloc(1, sizeof *problems);
    auto_free struct job_status *status = xcalloc(1, sizeof *status);
    const cJSON *item;

    if (tree != NULL && !cJSON_IsNull(tree))
        schema_check(schema, tree, NULL, problems);
    if (problems->count > 0)
        return error_set(e, ERROR_INVALID, "status.%.120s: %.160s", problems->items[0].path, problems->items[0].text);

    status_init(status);
    fields_read(STATUS, COUNT(STATUS), tree, status);
    decode_conditions(json_at(tree, "conditions"), status);
    decode_roles(json_at(tree, "replicaStatuses"), status);
    decode_section(tree, "queue", &status->queue.set, QUEUE, COUNT(QUEUE), status);
    decode_section(tree, "gang", &status->gang.set, GANG, COUNT(GANG), status);
    decode_section(tree, "progress", &status->progress.set, PROGRESS, COUNT(PROGRESS), status);
    decode_section(tree, "checkpoint", &status->checkpoint.set, CHECKPOINT, COUNT(CHECKPOINT), status);
    decode_section(tree, "checkpointRequest", &status->checkpoint_request.set, CHECKPOINT_REQUEST, COUNT(CHECKPOINT_REQUEST), status);
    decode_section(tree, "ring", &status->ring.set, RING, COUNT(RING), status);
    decode_window(json_at(tree, "restartWindow"), &status->window);
    cJSON_ArrayForEach(item, json_at(tree, "avoidNodes")) {
        if (status->avoid_count < JOB_AVOID_NODES_MAX)
            fields_read(AVOID, COUNT(AVOID), item, &status->avoid_nodes[status->avoid_count++]);
    }
    cJSON_ArrayForEach(item, json_at(tree, "failures")) {
        if (status->failure_count < JOB_FAILURES_KEPT)
            fields_read(FAILURE, COUNT(FAILURE), item, &status->failures[status->failure_count++]);
    }
    *ret_status = *status;
    return 0;
}
