#include "cli/outcome.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "kube/object.h"

#define CONDITION "condition="

static const struct { const char *goal, *phase; } GOALS[] = {
    { "succeeded", "Succeeded" }, { "failed", "Failed" }, { "running", "Running" }, { "suspended", "Suspended" },
    { "finished", NULL }, { "deleted", NULL },
};

enum outcome outcome_of(const cJSON *job)
{
    const char *phase = json_text(job, "status.phase", "");
    return strcmp(phase, "Succeeded") == 0 ? OUTCOME_SUCCEEDED : strcmp(phase, "Failed") == 0 ? OUTCOME_FAILED : OUTCOME_NONE;
}

const char *outcome_text(const cJSON *job, char *ret, size_t size)
{
    const char *phase = json_text(job, "status.phase", "Pending");
    const cJSON *condition = kube_condition(job, phase);
    const char *reason = json_text(condition, "reason", ""), *message = json_text(condition, "message", "");
    snprintf(ret, size, "%s%s%s%s%s", phase, *reason ? ": " : "", reason, *message ? ": " : "", message);
    for (char *p = ret; *p; p++)
        if ((unsigned char)*p < 0x20)
            *p = ' ';
    return ret;
}

bool wait_goal_known(const char *text)
{
    if (strncmp(text, CONDITION, strlen(CONDITION)) == 0)
        return text[strlen(CONDITION)] != '\0';
    for (size_t i = 0; i < COUNT(GOALS); i++)
        if (strcasecmp(GOALS[i].goal, text) == 0)
            return true;
    return false;
}

static bool condition_holds(const cJSON *job, const char *name)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, json_at(job, "status.conditions"))
        if (strcasecmp(json_text(item, "type", ""), name) == 0)
            return strcmp(json_text(item, "status", ""), "True") == 0;
    return false;
}

enum wait_verdict wait_verdict_of(const char *goal, const cJSON *job)
{
    bool over = outcome_of(job) != OUTCOME_NONE, reached = false;
    if (strcasecmp(goal, "deleted") == 0)
        return job ? WAIT_ON : WAIT_REACHED;
    if (!job)
        return WAIT_NEVER;
    if (strncmp(goal, WAIT_CHECKPOINT, strlen(WAIT_CHECKPOINT)) == 0) {
        const char *state = json_text(job, "status.checkpointRequest.state", "");
        bool is_ours = strcmp(json_text(job, "status.checkpointRequest.value", ""), goal + strlen(WAIT_CHECKPOINT)) == 0;
        reached = is_ours && strcmp(state, "Committed") == 0;
        over |= is_ours && strcmp(state, "Missed") == 0;
    }
    if (strncmp(goal, CONDITION, strlen(CONDITION)) == 0)
        reached = condition_holds(job, goal + strlen(CONDITION));
    else if (strcasecmp(goal, "finished") == 0)
        reached = over;
    for (size_t i = 0; i < COUNT(GOALS); i++)
        if (GOALS[i].phase && strcasecmp(GOALS[i].goal, goal) == 0)
            reached = strcmp(GOALS[i].phase, json_text(job, "status.phase", "")) == 0;
    return reached ? WAIT_REACHED : over ? WAIT_NEVER : WAIT_ON;
}
