/*
 * Who is there: the pods that were observed, put beside the replicas that the spec asks for.
 */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "job/reconcile_parts.h"

static int32_t replicas_of(const struct training_job *job, enum job_role role)
{
    return job->spec.roles[role].present ? job->spec.roles[role].replicas : 0;
}

static bool has_a_place(const struct pass *p, const struct pod_view *pod)
{
    return pod->attempt == p->status->attempt && pod->index >= 0 && pod->index < replicas_of(p->job, pod->role);
}

static struct slot *slot_of(const struct pass *p, const struct pod_view *pod)
{
    return &p->census.slots[job_ordinal(p->job, pod->role, pod->index)];
}

/* A worker that the job has no place for any more, and the ring still has: it goes when its round is over. */
static bool is_still_in_the_ring(const struct pass *p, const struct pod_view *pod)
{
    const struct coordinator_view *c = &p->seen->coordinator;

    return p->job->spec.elastic && pod->role == ROLE_WORKER && pod->attempt == p->status->attempt && c->known && c->attempt == pod->attempt &&
           c->workers_wanted > 0 && pod->index < c->workers && pod_is_live(pod);
}

bool pod_is_leftover(const struct pass *p, const struct pod_view *pod)
{
    return has_a_place(p, pod) ? slot_of(p, pod)->pod != pod : !is_still_in_the_ring(p, pod);
}

bool pod_is_live(const struct pod_view *pod)
{
    return pod->phase != POD_SUCCEEDED && pod->phase != POD_FAILED;
}

/* Marks the slots whose index is in "0-2,5"; what is no such text marks nothing. */
static void read_completed(const char *text, struct slot *slots, int32_t count)
{
    while (*text >= '0' && *text <= '9') {
        char *end;
        long first = strtol(text, &end, 10), last = *end == '-' ? strtol(end + 1, &end, 10) : first;
        for (long i = first; i <= last && i < count; i++)
            slots[i].was_done = true;
        text = *end == ',' ? end + 1 : end;
    }
}

static void make_slots(struct pass *p)
{
    struct census *c = &p->census;

    c->slots = xcalloc((size_t)job_replicas(p->job) + 1, sizeof *c->slots);
    for (enum job_role r = 0; r < ROLE_COUNT; r++) {
        struct slot *first = &c->slots[c->slot_count];
        for (int32_t i = 0; i < replicas_of(p->job, r); i++)
            c->slots[c->slot_count++] = (struct slot){ .role = r, .index = i };
        read_completed(p->before->roles[r].completed, first, replicas_of(p->job, r));
    }
}

static void count_slot(struct census *c, const struct slot *s)
{
    struct role_status *role = &c->roles[s->role];
    const struct pod_view *pod = s->pod;

    role->replicas++;
    role->succeeded += s->was_done || (pod != NULL && pod->phase == POD_SUCCEEDED && !pod->deleting);
    if (pod == NULL)
        return;
    role->active += pod->phase == POD_RUNNING && !pod->deleting;
    role->ready += pod->phase == POD_RUNNING && pod->ready && !pod->deleting;
    role->failed += pod->phase == POD_FAILED;
}

void census_take(struct pass *p)
{
    struct census *c = &p->census;

    make_slots(p);
    for (size_t i = 0; i < p->seen->pod_count; i++) {
        const struct pod_view *pod = &p->seen->pods[i];
        c->from_the_future |= pod->attempt > p->status->attempt;
        if (!has_a_place(p, pod)) {
            c->leftover_count++;
            continue;
        }
        struct slot *s = slot_of(p, pod);
        if (s->pod != NULL)
            c->leftover_count++; /* one of two with the same name: the one that stays is not on its way out */
        if (s->pod == NULL || (s->pod->deleting && !pod->deleting))
            s->pod = pod;
    }
    for (int32_t i = 0; i < c->slot_count; i++)
        count_slot(c, &c->slots[i]);
}

void census_release(struct census *c)
{
    free(c->slots);
    c->slots = NULL;
}

bool slot_is_done(const struct slot *s)
{
    return s->was_done || (s->pod != NULL && s->pod->phase == POD_SUCCEEDED && !s->pod->deleting);
}

/* "0-2,5" of the slots of one role, which lie side by side. */
static void write_completed(const struct slot *slots, int32_t count, struct role_status *to)
{
    auto_buf struct buf b = BUF_INIT(sizeof to->completed - 1);

    for (int32_t i = 0; i < count; i++) {
        int32_t last = i;
        if (!slot_is_done(&slots[i]))
            continue;
        while (last + 1 < count && slot_is_done(&slots[last + 1]))
            last++;
        buf_addf(&b, "%s%d", b.len > 0 ? "," : "", (int)i);
        if (last > i)
            buf_addf(&b, "-%d", (int)last);
        i = last;
    }
    text_set(to->completed, sizeof to->completed, buf_text(&b));
}

void count_replicas(struct pass *p)
{
    bool over = phase_is_final(p->before->phase);

    for (enum job_role r = 0; r < ROLE_COUNT; r++) {
        struct role_status *to = &p->status->roles[r];
        const struct role_status *now = &p->census.roles[r];
        if (p->counts_are_old) {
            to->active = to->ready = to->succeeded = to->failed = 0;
            text_set(to->completed, sizeof to->completed, "");
            continue;
        }
        if (now->replicas > 0)
            write_completed(&p->census.slots[job_ordinal(p->job, r, 0)], now->replicas, to);
        to->active = now->active;
        to->ready = now->ready;
        to->succeeded = now->succeeded;
        to->failed = over && to->failed > now->failed ? to->failed : now->failed;
    }
}
