#include "job/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "job/names.h"

const char *const ROLE_KEYS[] = { "Chief", "Master", "Worker", "PS", "Evaluator", NULL };
static const char *const ROLE_NAMES[] = { "chief", "master", "worker", "ps", "evaluator", NULL };
const char *const PHASE_NAMES[] = {
    "Pending", "Queued", "Starting", "Running", "Restarting", "Suspended", "Succeeded", "Failed", NULL,
};
const char *const CONDITION_NAMES[] = {
    "Created",   "Queued",   "GangScheduled", "Running",       "PodsReady", "Restarting",
    "Suspended", "Degraded", "Cooperating",   "Invalid",       "FailureTarget", "Succeeded", "Failed", NULL,
};
const char *const FAILURE_CLASS_NAMES[] = { "User", "Infrastructure", "Hang", "OOM", "Hardware", NULL };

_Static_assert(COUNT(ROLE_KEYS) == ROLE_COUNT + 1 && COUNT(ROLE_NAMES) == ROLE_COUNT + 1 && COUNT(PHASE_NAMES) == PHASE_FAILED + 2 &&
               COUNT(CONDITION_NAMES) == CONDITION_COUNT + 1 && COUNT(FAILURE_CLASS_NAMES) == FAILURE_HARDWARE + 2,
               "a name per value");

const char *role_key(enum job_role role)
{
    return ROLE_KEYS[role];
}

const char *role_name(enum job_role role)
{
    return ROLE_NAMES[role];
}

bool role_parse(const char *text, enum job_role *ret_role)
{
    for (enum job_role r = 0; r < ROLE_COUNT; r++) {
        if (strcmp(text, ROLE_KEYS[r]) == 0 || strcmp(text, ROLE_NAMES[r]) == 0) {
            *ret_role = r;
            return true;
        }
    }
    return false;
}

const char *phase_name(enum job_phase phase)
{
    return PHASE_NAMES[phase];
}

bool phase_is_final(enum job_phase phase)
{
    return phase == PHASE_SUCCEEDED || phase == PHASE_FAILED;
}

const char *condition_name(enum condition_type type)
{
    return CONDITION_NAMES[type];
}

const char *failure_class_name(enum failure_class c)
{
    return FAILURE_CLASS_NAMES[c];
}

static void free_texts(char **texts, size_t count)
{
    for (size_t i = 0; texts != NULL && i < count; i++)
        free(texts[i]);
    free(texts);
}

static void rule_release(struct failure_rule *rule)
{
    free(rule->name);
    free(rule->container);
    free(rule->exit_codes);
    free_texts(rule->condition_types, rule->condition_count);
    free_texts(rule->condition_statuses, rule->condition_count);
    free_texts(rule->reasons, rule->reason_count);
    free(rule->message_pattern);
}

static void spec_release(struct job_spec *spec)
{
    free(spec->managed_by);
    free(spec->scheduling.queue);
    free(spec->scheduling.priority_class);
    cJSON_Delete(spec->scheduling.min_resources);
    free(spec->scheduling.topology_required);
    free(spec->scheduling.topology_preferred);
    for (enum job_role r = 0; r < ROLE_COUNT; r++)
        cJSON_Delete(spec->roles[r].template);
    for (size_t i = 0; i < spec->failure.rule_count; i++)
        rule_release(&spec->failure.rules[i]);
    free(spec->failure.rules);
    free(spec->network.subdomain);
    free(spec->network.cluster_domain);
    free(spec->tf_config.container);
    free(spec->checkpoint.path);
    free(spec->sidecar.image);
    cJSON_Delete(spec->sidecar.resources);
    cJSON_Delete(spec->volume_claim_policies);
}

void training_job_free(struct training_job *job)
{
    if (job == NULL)
        return;
    free(job->name);
    free(job->namespace);
    free(job->uid);
    cJSON_Delete(job->labels);
    cJSON_Delete(job->annotations);
    spec_release(&job->spec);
    free(job);
}

void cleanup_training_job(struct training_job **job)
{
    training_job_free(*job);
}

static int32_t role_replicas(const struct training_job *job, enum job_role role)
{
    return job->spec.roles[role].present ? job->spec.roles[role].replicas : 0;
}

int32_t job_replicas(const struct training_job *job)
{
    int32_t sum = 0;

    for (enum job_role r = 0; r < ROLE_COUNT; r++)
        sum += role_replicas(job, r);
    return sum;
}

static bool role_has_rank(enum job_role role)
{
    return role == ROLE_CHIEF || role == ROLE_MASTER || role == ROLE_WORKER;
}

int32_t job_world_size(const struct training_job *job)
{
    int32_t sum = 0;

    for (enum job_role r = 0; r < ROLE_COUNT; r++)
        sum += role_has_rank(r) ? role_replicas(job, r) : 0;
    return sum;
}

/* Roles are declared in the order of ordinals, and those with a rank come first: a rank is the ordinal. */
_Static_assert(ROLE_CHIEF < ROLE_MASTER && ROLE_MASTER < ROLE_WORKER && ROLE_WORKER < ROLE_PS && ROLE_PS < ROLE_EVALUATOR,
               "ranks and ordinals follow the order of enum job_role");

int32_t job_ordinal(const struct training_job *job, enum job_role role, int32_t index)
{
    int32_t before = 0;

    for (enum job_role r = 0; r < role; r++)
        before += role_replicas(job, r);
    return before + index;
}

int64_t job_grace_s(const struct training_job *job, enum job_role role)
{
    return json_int(json_at(job->spec.roles[role].template, "spec"), "terminationGracePeriodSeconds", 30);
}

int32_t job_rank(const struct training_job *job, enum job_role role, int32_t index)
{
    return role_has_rank(role) ? job_ordinal(job, role, index) : -1;
}

void job_member_name(enum job_role role, int32_t index, char ret_name[80])
{
    (void)snprintf(ret_name, 80, "%s-%d", role_name(role), (int)index);
}

void job_pod_name(const struct training_job *job, enum job_role role, int32_t index, char ret_name[128])
{
    (void)snprintf(ret_name, 128, "%s-%s-%d", job->name, role_name(role), (int)index);
}

bool job_restarts_as_group(const struct training_job *job)
{
    return role_replicas(job, ROLE_PS) == 0;
}

const char *job_main_container(const struct training_job *job, enum job_role role)
{
    const cJSON *containers = json_at(job->spec.roles[role].template, "spec.containers");
    const char *wanted = job->spec.tf_config.container;
    const cJSON *container;

    if (wanted == NULL || wanted[0] == '\0')
        wanted = "tensorflow";
    cJSON_ArrayForEach(container, containers) {
        if (strcmp(json_text(container, "name", ""), wanted) == 0)
            return json_text(container, "name", "");
    }
    return json_text(cJSON_GetArrayItem(containers, 0), "name", "");
}
