/*
 * Another number of workers while the job runs: who is to come, who is to go, and when a round begins for it.
 *
 * Ranks keep their numbers: the ring grows and shrinks at its end. Members that have no part in the ring yet or any more stand behind it,
 * `outside`. Programs that listen are asked to come to another round; whoever has come is parked, and when all have, the round begins. A
 * round that ends for another reason takes the change along.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sidecar/supervise/step.h"
#include "sidecar/supervise/trainer.h"
#include "wire/local.h"

bool resize_is_possible(const struct coordinator *c)
{
    if (!c->policy->spec.elastic || !c->group)
        return false;
    for (int32_t i = 0; i < c->count; i++) { /* a member behind the workers would change its place, and with it its address */
        if (c->members[i].role > ROLE_WORKER)
            return false;
    }
    return true;
}

static bool is_wanted(const struct coordinator *c, const struct coordinator_member *m)
{
    return m->role != ROLE_WORKER || m->index < c->workers;
}

bool resize_drops(const struct coordinator *c, int32_t member)
{
    return resize_is_possible(c) && !is_wanted(c, &c->members[member]);
}

static const struct coordinator_member *worker_of(const struct coordinator *c, int32_t index)
{
    for (int32_t i = 0; i < c->count; i++) {
        if (c->members[i].role == ROLE_WORKER && c->members[i].index == index)
            return &c->members[i];
    }
    return NULL;
}

/* ---- the list of members ---- */

static void forget_gone(struct coordinator *c)
{
    int32_t kept = 0;

    for (int32_t i = 0; i < c->count; i++) {
        struct coordinator_member *m = &c->members[i];
        if (m->outside && !m->joined && !is_wanted(c, m))
            cJSON_Delete(m->holdings);
        else
            c->members[kept++] = *m;
    }
    c->count = kept;
}

static void expect(struct coordinator *c, int32_t index)
{
    c->members = xrealloc(c->members, (size_t)c->count + 1, sizeof *c->members);
    struct coordinator_member *m = &c->members[c->count++];
    *m = (struct coordinator_member){ .role = ROLE_WORKER, .index = index, .rank = -1, .outside = true, .trainer.state = PROCESS_LOST,
                                      .progress = { .saved = true, .step = -1, .total_steps = -1 } };
    job_member_name(ROLE_WORKER, index, m->name);
}

void resize_want(struct coordinator *c, int32_t workers)
{
    if (!resize_is_possible(c) || workers < 1 || workers >= REPORT_MAX_MEMBERS)
        return;
    c->workers = c->history.workers = workers;
    forget_gone(c);
    for (int32_t i = 0; i < workers; i++) {
        if (worker_of(c, i) == NULL)
            expect(c, i);
    }
    c->roster++;
}

static int by_place(const void *a, const void *b)
{
    const struct coordinator_member *x = a, *y = b;

    if (x->outside != y->outside)
        return x->outside ? 1 : -1;
    if (x->role != y->role)
        return x->role < y->role ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

/* How many workers the ring can have: no number is left out. A wanted one that was in the ring keeps its place while it is away. */
static int32_t workers_at_hand(const struct coordinator *c)
{
    int32_t n = 0;

    for (; n < c->workers; n++) {
        const struct coordinator_member *m = worker_of(c, n);
        if (m == NULL || (m->outside && !step_is_ready(m)))
            break;
    }
    return n;
}

bool resize_apply(struct step *s)
{
    struct coordinator *c = s->c;
    int32_t workers = resize_is_possible(c) ? workers_at_hand(c) : c->workers, world = 0;
    bool changed = false;

    for (int32_t i = 0; i < c->count; i++) {
        struct coordinator_member *m = &c->members[i];
        bool outside = m->role == ROLE_WORKER && m->index >= workers;
        changed |= outside != m->outside;
        m->outside = outside;
    }
    c->grow_at_ms = 0;
    if (!changed)
        return false;
    qsort(c->members, (size_t)c->count, sizeof *c->members, by_place);
    for (int32_t i = 0; i < c->count; i++) {
        struct coordinator_member *m = &c->members[i];
        m->rank = m->outside ? -1 : world++;
        if (m->outside && m->joined && trainer_is_active(&m->trainer))
            step_abort(s, i, "the job has fewer workers now");
    }
    c->world = world;
    c->roster++;
    (void)step_emit(s, OUTPUT_REPORT, -1);
    return true;
}

/* ---- when ---- */

/* What the programs are to be told now: bits of wire/local.h. Of several newcomers those that take long are not waited for. */
static uint32_t pending(struct step *s)
{
    struct coordinator *c = s->c;
    int32_t in_ring = 0, at_hand = workers_at_hand(c);

    for (int32_t i = 0; i < c->world; i++)
        in_ring += c->members[i].role == ROLE_WORKER;
    if (at_hand < in_ring)
        return LOCAL_HOSTS_REMOVED;
    if (at_hand == in_ring) {
        c->grow_at_ms = 0;
        return 0;
    }
    if (at_hand < c->workers && c->grow_at_ms == 0)
        c->grow_at_ms = s->now->mono_ms + GROW_WAIT_MS;
    return at_hand == c->workers || s->now->mono_ms >= c->grow_at_ms ? LOCAL_HOSTS_ADDED : 0;
}

/* Every process of the ring has come to the end of this round by itself: parked, or over. */
static bool all_have_come(const struct coordinator *c)
{
    bool one_is_parked = false;

    for (int32_t i = 0; i < c->world; i++) {
        const struct coordinator_member *m = &c->members[i];
        if (m->ignored || (m->joined && m->trainer.state == PROCESS_DONE))
            continue;
        if (!m->joined || m->trainer.state != PROCESS_RUNNING || !m->trainer.parked)
            return false;
        one_is_parked = true;
    }
    return one_is_parked;
}

void resize_look(struct step *s)
{
    struct coordinator *c = s->c;

    if (c->phase != COORDINATOR_RUN || !resize_is_possible(c))
        return;
    uint32_t bits = pending(s);
    if (bits != 0 && bits != c->hosts) {
        c->hosts = bits;
        step_emit(s, OUTPUT_HOSTS, -1)->hosts = bits;
    }
    if (c->hosts == 0 || !all_have_come(c))
        return;
    step_regroup(s, -1, "the number of workers changes");
    step_gather(s, 0);
}
