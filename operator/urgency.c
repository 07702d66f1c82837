#include "operator/urgency.h"

#include <string.h>

bool pod_may_wait(const struct pod_entry *was, const struct pod_entry *is)
{
    bool rises = is != NULL && (is->phase == POD_PENDING || is->phase == POD_RUNNING) && !is->deleting && !is->disrupted &&
                 !is->has_exit && !is->all_ended && is->reason == NULL;

    return rises && (was == NULL || (strcmp(was->uid, is->uid) == 0 && was->phase <= is->phase && was->ready <= is->ready));
}

bool status_may_wait(const struct job_status *before, const struct plan *plan)
{
    const struct job_status *now = &plan->status;
    struct job_status same;

    if (plan->record_first || plan->event_count > 0 ||
        (now->phase != before->phase && (before->phase != PHASE_PENDING || now->phase != PHASE_STARTING)))
        return false;
    for (enum job_role r = 0; r < ROLE_COUNT; r++) {
        if (now->roles[r].active < before->roles[r].active || now->roles[r].ready < before->roles[r].ready ||
            now->roles[r].succeeded != before->roles[r].succeeded || now->roles[r].failed != before->roles[r].failed)
            return false;
    }
    memcpy(&same, now, sizeof same);
    same.phase = before->phase;
    memcpy(same.roles, before->roles, sizeof same.roles);
    memcpy(&same.conditions[CONDITION_GANG_SCHEDULED], &before->conditions[CONDITION_GANG_SCHEDULED], sizeof same.conditions[0]);
    return memcmp(&same, before, sizeof same) == 0;
}
