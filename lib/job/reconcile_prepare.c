/*
 * What has to be there before the first pod of an attempt: the key, the names, the claims, a pod that the API server would take,
 * and the group by which a gang scheduler knows the pods.
 */
#include <stdio.h>
#include <string.h>

#include "job/reconcile_parts.h"

enum { GANG_RETRY_MS = 10000 };

/* ---- the gang scheduler ---------------------------------------------------------------------------------------------- */

static void take_gang(struct pass *p, enum gang_kind kind)
{
    struct job_status *s = p->status;

    s->gang.set = true;
    s->gang.kind = kind;
    text_set(s->gang.group, sizeof s->gang.group, gang_has_group(kind) ? p->job->name : "");
    text_set(s->gang.phase, sizeof s->gang.phase, "");
}

void settle_gang(struct pass *p)
{
    enum gang_kind kind;

    if (!p->seen->gang.looked)
        return;
    p->status->gang.set = false;
    if (gang_choose(p->job, &p->seen->gang, GANG_AUTO, &kind))
        take_gang(p, kind);
}

bool gang_is_missing(const struct pass *p)
{
    const struct job_status *s = p->status;

    return p->seen->gang.looked && s->gang.set && gang_has_group(s->gang.kind) && !p->seen->gang.served[s->gang.kind];
}

/* True: something was decided, to be recorded. */
static bool decide_gang(struct pass *p)
{
    const struct gang_view *g = &p->seen->gang;
    enum gang_kind kind = p->before->gang.kind;

    if (!g->looked)
        return false;
    if (!p->before->gang.set) {
        settle_gang(p);
        p->plan->record_first = p->status->gang.set;
        return p->status->gang.set;
    }
    bool may_doubt = p->job->spec.scheduling.gang == GANG_AUTO && gang_has_group(kind) && kind != GANG_NATIVE;
    if (may_doubt && gang_is_missing(p) && p->seen->pod_count == 0) { /* removed from the cluster since */
        if (!gang_choose(p->job, g, GANG_AUTO, &kind))
            return false;
        plan_event(p->plan, true, "GangSchedulerMissing", "the cluster has no PodGroups of %s any more; going on with %s",
                   gang_name(p->before->gang.kind), gang_name(kind));
        take_gang(p, kind);
        p->plan->record_first = true;
        return true;
    }
    if (!may_doubt || !g->has_group || g->phase[0] != '\0')
        return false;
    if (p->now_ms < g->created_ms + GANG_SILENCE_MS) {
        plan_requeue(p->plan, g->created_ms + GANG_SILENCE_MS);
        return false;
    }
    if (!gang_choose(p->job, g, kind, &kind))
        return false;
    plan_event(p->plan, true, "GangSchedulerSilent", "%s has its PodGroups in this cluster, and its scheduler did not answer for %d s; going on with %s",
               gang_name(p->before->gang.kind), GANG_SILENCE_MS / 1000, gang_name(kind));
    take_gang(p, kind);
    p->plan->record_first = true;
    return true;
}

/* True: its scheduler has taken the job in, as far as it is asked. */
static bool prepare_group(struct pass *p)
{
    const struct gang_view *g = &p->seen->gang;
    enum gang_kind kind = p->status->gang.kind;

    if (!g->looked)
        return true;
    if (!p->status->gang.set)
        return false; /* the check of a pod tells */
    if (!gang_has_group(kind))
        return true;
    if (gang_is_missing(p)) {
        plan_requeue(p->plan, p->now_ms + GANG_RETRY_MS);
        return false;
    }
    if (!g->has_group)
        plan_action(p->plan, ACTION_CREATE_GROUP, "the gang scheduler places the pods by it");
    else if (g->min_member != gang_min_member(p->job))
        plan_action(p->plan, ACTION_UPDATE_GROUP, "the job has another size");
    return gang_is_admitted(p->job, kind, g);
}

void release_group(struct pass *p)
{
    if (p->seen->gang.has_group)
        plan_action(p->plan, ACTION_DELETE_GROUP, "the job has no pods for a scheduler to place");
}

/* ---- all of it ------------------------------------------------------------------------------------------------------- */

bool prepare_pods(struct pass *p)
{
    const struct observed *seen = p->seen;

    if (decide_gang(p))
        return false;
    if (seen->lacks.pod_check && seen->pod_count == 0 && p->before->phase == PHASE_PENDING)
        plan_action(p->plan, ACTION_CHECK_PODS, "a pod that the API server refuses is refused before anything is made");
    if (!seen->has_secret)
        plan_action(p->plan, ACTION_CREATE_SECRET, "the sidecars prove with it who they are");
    if (!seen->has_service)
        plan_action(p->plan, ACTION_CREATE_SERVICE, "the pods find each other by its names");
    if (seen->lacks.network_policy)
        plan_action(p->plan, ACTION_CREATE_NETWORK_POLICY, "the ring port is the job's alone");
    if (seen->lacks.claims)
        plan_action(p->plan, ACTION_CREATE_CLAIMS, "the pods' volumes");
    if (seen->lacks.trim)
        plan_action(p->plan, ACTION_TRIM_CLAIMS, "their replicas are no more, and whenScaled is Delete");
    return prepare_group(p);
}

/* ---- the gates ------------------------------------------------------------------------------------------------------- */

/* All or none: a gate is lifted when every pod that belongs together is there. */
void lift_gates(struct pass *p)
{
    for (int32_t i = 0; i < p->census.slot_count; i++) {
        const struct slot *s = &p->census.slots[i];
        if (!slot_is_done(s) && (s->pod == NULL || s->pod->deleting))
            return;
    }
    for (int32_t i = 0; i < p->census.slot_count; i++) {
        const struct pod_view *pod = p->census.slots[i].pod;
        if (pod != NULL && pod->gated)
            plan_pod_action(p->plan, ACTION_UNGATE_POD, pod->role, pod->index, pod->attempt, pod->uid, "all pods of the job are there");
    }
}
