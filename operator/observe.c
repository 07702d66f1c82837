#include "operator/observe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "job/child.h"
#include "job/coordinate.h"
#include "job/gang.h"

/* A pod that the taint manager gave up on and that is still there this long after its time belongs to a node that is gone;
 * for operators that may not read nodes. */
#define TAINTED_PATIENCE_MS 10000

static void take_end(const struct pod_entry *pod, bool job_is_over, struct pod_view *v)
{
    bool well = pod->has_exit && pod->exit_code == 0;

    v->has_exit = pod->has_exit;
    v->exit_code = pod->exit_code;
    v->signal = pod->signal;
    if (well && pod->disrupted && pod->phase != POD_SUCCEEDED) {
        v->has_exit = false; /* a program that ends in order because it was told to has not finished its work */
        v->phase = pod->phase == POD_RUNNING ? POD_RUNNING : POD_FAILED;
    } else if (pod->has_exit && (!job_is_over || pod->all_ended) && pod->phase != POD_SUCCEEDED) {
        v->phase = well ? POD_SUCCEEDED : POD_FAILED;
    }
}

void observe_pod(const struct pod_entry *pod, bool node_lost, bool job_is_over, int64_t now_wall_ms, struct pod_view *v)
{
    bool overdue = pod->tainted && pod->deleting && now_wall_ms > pod->gone_by_ms + TAINTED_PATIENCE_MS;

    *v = (struct pod_view){ .role = (enum job_role)pod->role, .index = pod->index, .attempt = pod->attempt,
                            .phase = (enum pod_phase)pod->phase, .scheduled = pod->scheduled, .ready = pod->ready,
                            .gated = pod->gate_index >= 0 && !pod->scheduled, .deleting = pod->deleting,
                            .node_lost = node_lost || overdue, .created_ms = pod->created_ms, .started_ms = pod->started_ms, .finished_ms = pod->finished_ms };
    v->speaks = pod->sidecar_runs && !v->node_lost;
    take_end(pod, job_is_over, v);
    (void)snprintf(v->reason, sizeof v->reason, "%s", pod->reason != NULL ? pod->reason : "");
    (void)snprintf(v->message, sizeof v->message, "%s", pod->message != NULL ? pod->message : "");
    (void)snprintf(v->node, sizeof v->node, "%s", pod->node != NULL ? pod->node : "");
    (void)snprintf(v->uid, sizeof v->uid, "%s", pod->uid);
}

static bool node_is_lost(const struct kube_cache *nodes, const char *name)
{
    struct kube_key key;

    if (nodes == NULL || !kube_cache_synced(nodes) || name == NULL || !kube_key_set(&key, "", name))
        return false;
    const struct node_entry *node = kube_cache_get(nodes, &key);
    return node == NULL || node->lost;
}

/* Pods that we created a moment ago and the watch has not told of. */
static size_t add_own_pods(const struct job_state *s, struct pod_view *pods, size_t count)
{
    size_t known = count;

    for (size_t i = 0; i < s->own_count; i++) {
        const struct own_pod *own = &s->own[i];
        bool there = own->deleted;
        for (size_t k = 0; k < known && !there; k++)
            there = pods[k].role == (enum job_role)own->role && pods[k].index == own->index && pods[k].attempt == own->attempt;
        if (there)
            continue;
        pods[count] = (struct pod_view){ .role = (enum job_role)own->role, .index = own->index, .attempt = own->attempt,
                                         .phase = POD_PENDING, .created_ms = own->wall_ms };
        (void)snprintf(pods[count++].uid, sizeof pods[0].uid, "%s", own->uid);
    }
    return count;
}

static bool has_services(const struct observe_input *in)
{
    size_t wanted = 1 + (in->job->spec.network.service_per_pod ? (size_t)job_replicas(in->job) : 0);

    return in->now_mono_ms < in->state->service_until_ms || kube_cache_count_of(in->services, in->job->uid) >= wanted;
}

/* A coordinator that ended unheard has left its last word in its pod. */
static void take_last_word(const struct observe_input *in, const struct pod_entry *pod)
{
    struct error e = ERROR_INIT;
    struct coordinator_report r;

    if (pod->last_word == NULL || job_rank(in->job, (enum job_role)pod->role, pod->index) != 0 ||
        report_decode(pod->last_word, strlen(pod->last_word), &r, &e) < 0)
        return; /* cut by the kubelet, or whatever the container of a stranger's image says */
    if (strcmp(r.job_uid, in->job->uid) != 0 || r.attempt != pod->attempt || !report_is_ahead(&r, in->state->report)) {
        report_release(&r);
        return;
    }
    struct coordinator_report *report = xcalloc(1, sizeof *report);
    *report = r;
    state_take_report(in->state, report);
}

static void observe_children(const struct observe_input *in, struct observed *seen)
{
    const struct job_state *s = in->state;

    seen->lacks.network_policy = in->job->spec.network.network_policy && pod_has_sidecar(in->job) && !s->network_policy_known;
    seen->lacks.claims = !s->claims_known && volume_claim_count(in->job) > 0;
    seen->lacks.trim = !s->trimmed && volume_claims_shrink(in->job);
    seen->lacks.pod_check = !s->pods_checked;
    (void)snprintf(seen->pod_refused, sizeof seen->pod_refused, "%s", s->pod_refused);
}

static void observe_gang(const struct observe_input *in, struct gang_view *g)
{
    struct kube_key key;
    const struct group_entry *group = NULL;

    if (in->gang == NULL)
        return;
    *g = *in->gang;
    if (in->groups != NULL && kube_key_set(&key, in->job->namespace, in->job->name))
        group = kube_cache_get(in->groups, &key);
    if (group != NULL && strcmp(group->owner_uid, in->job->uid) != 0)
        group = NULL; /* of a former job of this name */
    g->has_group = group != NULL || in->now_mono_ms < in->state->group_until_ms;
    g->min_member = group != NULL ? group->min_member : gang_min_member(in->job); /* of one that is on its way: just made */
    g->created_ms = group != NULL ? group->created_ms : in->now_wall_ms;
    if (group == NULL)
        return;
    (void)snprintf(g->phase, sizeof g->phase, "%s", group->phase);
    (void)snprintf(g->message, sizeof g->message, "%s", group->message);
}

void observe_job(const struct observe_input *in, struct observed *seen)
{
    struct job_state *s = in->state;
    size_t most = kube_cache_count_of(in->pods, in->job->uid) + s->own_count, count = 0;
    struct pod_view *pods = xcalloc(most + 1, sizeof *pods);
    struct kube_cache_at at;

    for (const struct pod_entry *p = kube_cache_first_of(in->pods, in->job->uid, &at); p != NULL && count < most; p = kube_cache_next(&at)) {
        observe_pod(p, node_is_lost(in->nodes, p->node), in->job_is_over, in->now_wall_ms, &pods[count]);
        pods[count].deleting |= state_own_find(s, p->uid, true) != NULL;
        pods[count].speaks &= in->listens_from_ms > 0;
        take_last_word(in, p);
        count++;
    }
    count = add_own_pods(s, pods, count);
    memset(seen, 0, sizeof *seen);
    coordinate_give_up(s->report, pods, count);
    coordinate_view(in->job, s->report, in->now_wall_ms, &seen->coordinator);
    seen->pods = pods;
    seen->pod_count = count;
    seen->has_service = has_services(in);
    seen->has_secret = !pod_has_sidecar(in->job) || s->secret_known;
    seen->node_count = in->node_count;
    seen->listens_from_ms = in->listens_from_ms;
    observe_children(in, seen);
    observe_gang(in, &seen->gang);
    (void)snprintf(seen->create_error, sizeof seen->create_error, "%s", s->create_error);
}

void observe_release(struct observed *seen)
{
    free((void *)seen->pods);
    seen->pods = NULL;
}
