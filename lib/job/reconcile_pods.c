/*
 * Creating and deleting pods, once everything has been decided. Names are fixed, so that two pods of one replica cannot
 * be; a new attempt begins when the last pod of the old one is gone.
 */
#include <string.h>

#include "job/reconcile_parts.h"

/* When what led to the deletions was decided. */
static int64_t decided_ms(const struct job_status *status)
{
    static const enum condition_type causes[] = {
        CONDITION_RESTARTING, CONDITION_SUSPENDED, CONDITION_FAILURE_TARGET, CONDITION_SUCCEEDED, CONDITION_FAILED,
    };
    int64_t latest = 0;

    for (size_t i = 0; i < sizeof causes / sizeof causes[0]; i++) {
        const struct condition *c = &status->conditions[causes[i]];
        if (c->present && c->is_true && c->transition_ms > latest)
            latest = c->transition_ms;
    }
    const struct condition *ready =
        &status->conditions[CONDITION_PODS_READY]; /* falls with every decision that takes pods away */
    return ready->present && !ready->is_true && ready->transition_ms > latest ? ready->transition_ms : latest;
}

/* A pod on a node that does not answer stays "deleting" until somebody gives up on the node. The user has to have asked
 * for that. What may still run there is refused by its fence, because attempt was raised or the job does not run. */
static void force_if_due(struct pass *p, const struct pod_view *pod)
{
    const struct optional_int *after = &p->job->spec.failure.force_delete_after_s;

    if (!pod->node_lost || !after->set)
        return;
    int64_t at_ms = decided_ms(p->status) + after->value * 1000;
    if (p->now_ms >= at_ms)
        plan_pod_action(p->plan, ACTION_FORCE_DELETE_POD, pod->role, pod->index, pod->attempt, pod->uid,
                        "its node is lost and failurePolicy.nodeLost.forceDeleteAfterSeconds has passed");
    else
        plan_requeue(p->plan, at_ms);
}

size_t delete_pods(struct pass *p, unsigned which, const char *reason)
{
    size_t left = 0;

    for (size_t i = 0; i < p->seen->pod_count; i++) {
        const struct pod_view *pod = &p->seen->pods[i];
        bool wanted = (which & PODS_ALL) != 0 || ((which & PODS_LIVE) != 0 && pod_is_live(pod)) ||
                      ((which & PODS_LEFTOVER) != 0 && pod_is_leftover(p, pod));
        if (!wanted)
            continue;
        left++;
        if (pod->deleting)
            force_if_due(p, pod);
        else
            plan_pod_action(p->plan, ACTION_DELETE_POD, pod->role, pod->index, pod->attempt, pod->uid, reason);
    }
    return left;
}

/* Pods of this attempt that are replaced alone. True when a deletion was asked for: no further decision before it is
 * done, so that the record of it cannot be pushed out of the list of failures. */
bool replace_failed_pods(struct pass *p)
{
    bool acted = false;

    for (int32_t i = 0; i < p->census.slot_count; i++) {
        const struct pod_view *pod = p->census.slots[i].pod;
        if (pod == NULL || pod->deleting || !pod_is_recorded(p->before, pod))
            continue;
        plan_pod_action(p->plan, ACTION_DELETE_POD, pod->role, pod->index, pod->attempt, pod->uid,
                        "it failed and is made anew");
        acted = true;
    }
    return acted;
}

static void create_missing(struct pass *p)
{
    for (int32_t i = 0; i < p->census.slot_count; i++) {
        const struct slot *s = &p->census.slots[i];
        if (s->pod == NULL && !s->was_done)
            plan_pod_action(p->plan, ACTION_CREATE_POD, s->role, s->index, p->status->attempt, "",
                            "the job wants it and it is not there");
    }
}

void create_pods(struct pass *p)
{
    if (delete_pods(p, PODS_LEFTOVER, "it belongs to an older attempt or has no place any more") > 0)
        return;
    if (p->before->next_restart_ms > p->now_ms) {
        plan_requeue(p->plan, p->before->next_restart_ms);
        return;
    }
    p->status->next_restart_ms = 0;
    if (!prepare_pods(p))
        return;
    create_missing(p);
    lift_gates(p);
}
