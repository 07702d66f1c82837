/*
 * observe.h — the cluster as reconcile wants to see it. Pure.
 */
#ifndef OPERATOR_OBSERVE_H
#define OPERATOR_OBSERVE_H

#include "operator/entry.h"
#include "operator/state.h"

/* One pod. `job_is_over`: what counts then is whether anything of the pod still runs; before that the end of its main
 * container decides, whatever other containers the user put beside it. */
void observe_pod(const struct pod_entry *pod, bool node_lost, bool job_is_over, int64_t now_wall_ms, struct pod_view *ret_view);

struct observe_input {
    const struct training_job *job;
    bool job_is_over;
    const struct kube_cache *pods, *services, *nodes; /* nodes may be NULL: not watched */
    int32_t node_count;                               /* that take pods; 0 = unknown */
    const struct gang_view *gang;                     /* what the cluster has; NULL: not looked */
    const struct kube_cache *groups;                  /* of the job's gang scheduler; NULL: none */
    struct job_state *state;                          /* own pods that the cache has seen are forgotten; a last word that says more becomes the report */
    int64_t now_wall_ms, now_mono_ms;
    int64_t listens_from_ms;                          /* wall clock: since when coordinators can connect here; 0: they cannot */
};

/* Fills *ret_seen; its pods are owned by the caller (observe_release). */
void observe_job(const struct observe_input *in, struct observed *ret_seen);
void observe_release(struct observed *seen);

#endif
