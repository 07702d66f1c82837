#include "job/plan.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"

const char *action_name(enum action_kind kind)
{
    static const char *const names[] = {
        [ACTION_CREATE_SECRET] = "create-secret", [ACTION_CREATE_SERVICE] = "create-service",
        [ACTION_CREATE_POD] = "create-pod",       [ACTION_DELETE_POD] = "delete-pod",
        [ACTION_FORCE_DELETE_POD] = "force-delete-pod", [ACTION_DELETE_JOB] = "delete-job",
        [ACTION_CREATE_NETWORK_POLICY] = "create-network-policy", [ACTION_CREATE_CLAIMS] = "create-claims",
        [ACTION_TRIM_CLAIMS] = "trim-claims",     [ACTION_CHECK_PODS] = "check-pods",
        [ACTION_CREATE_GROUP] = "create-group",   [ACTION_UPDATE_GROUP] = "update-group",
        [ACTION_DELETE_GROUP] = "delete-group",   [ACTION_UNGATE_POD] = "ungate-pod",
        [ACTION_DELETE_PODS] = "delete-pods",
    };

    return names[kind];
}

static struct action *next_action(struct plan *p)
{
    if (p->action_count == p->action_cap) {
        p->action_cap = p->action_cap > 0 ? 2 * p->action_cap : 16;
        p->actions = xrealloc(p->actions, p->action_cap, sizeof *p->actions);
    }
    struct action *a = &p->actions[p->action_count++];
    memset(a, 0, sizeof *a);
    return a;
}

void plan_action(struct plan *p, enum action_kind kind, const char *reason)
{
    struct action *a = next_action(p);

    a->kind = kind;
    a->reason = reason;
}

void plan_pod_action(struct plan *p, enum action_kind kind, enum job_role role, int32_t index, int32_t attempt,
                     const char *uid, const char *reason)
{
    struct action *a = next_action(p);

    a->kind = kind;
    a->role = role;
    a->index = index;
    a->attempt = attempt;
    a->reason = reason;
    text_set(a->uid, sizeof a->uid, uid);
}

void plan_event(struct plan *p, bool warning, const char *reason, const char *fmt, ...)
{
    char message[1024];
    va_list args;

    if (p->event_count == p->event_cap) {
        p->event_cap = p->event_cap > 0 ? 2 * p->event_cap : 8;
        p->events = xrealloc(p->events, p->event_cap, sizeof *p->events);
    }
    struct event *v = &p->events[p->event_count++];
    memset(v, 0, sizeof *v);
    v->warning = warning;
    v->reason = reason;
    va_start(args, fmt);
    (void)vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    text_set(v->message, sizeof v->message, message);
}

void plan_requeue(struct plan *p, int64_t at_ms)
{
    if (p->requeue_at_ms == 0 || at_ms < p->requeue_at_ms)
        p->requeue_at_ms = at_ms;
}

/* ---- many deletions as one ------------------------------------------------------------------------------------------ */

static size_t deletions_of(const struct plan *p, int32_t attempt)
{
    size_t count = 0;

    for (size_t i = 0; i < p->action_count; i++)
        count += p->actions[i].kind == ACTION_DELETE_POD && p->actions[i].attempt == attempt;
    return count;
}

static size_t pods_that_stay(const struct observed *seen, int32_t attempt)
{
    size_t count = 0;

    for (size_t i = 0; i < seen->pod_count; i++)
        count += seen->pods[i].attempt == attempt && !seen->pods[i].deleting;
    return count;
}

static void join(struct plan *p, int32_t attempt)
{
    size_t kept = 0;
    bool joined = false;

    for (size_t i = 0; i < p->action_count; i++) {
        struct action a = p->actions[i];
        bool one_of_them = a.kind == ACTION_DELETE_POD && a.attempt == attempt;
        if (one_of_them && joined)
            continue;
        if (one_of_them) {
            a = (struct action){ .kind = ACTION_DELETE_PODS, .attempt = attempt, .reason = a.reason };
            joined = true;
        }
        p->actions[kept++] = a;
    }
    p->action_count = kept;
}

void plan_join_deletions(struct plan *p, const struct observed *seen, size_t least, size_t most)
{
    bool is_last = phase_is_final(p->status.phase) || p->status.phase == PHASE_SUSPENDED;
    int32_t looked_at = -1;

    for (size_t i = 0; i < p->action_count; i++) {
        int32_t attempt = p->actions[i].attempt;
        if (p->actions[i].kind != ACTION_DELETE_POD || attempt == looked_at || (attempt >= p->status.attempt && !is_last))
            continue;
        looked_at = attempt;
        size_t count = deletions_of(p, attempt);
        if (count >= least && count <= most && count == pods_that_stay(seen, attempt))
            join(p, attempt);
    }
}

void plan_release(struct plan *p)
{
    free(p->actions);
    free(p->events);
    p->actions = NULL;
    p->events = NULL;
    p->action_count = p->action_cap = p->event_count = p->event_cap = 0;
}

/* ---- for tests and debug logs ------------------------------------------------------------------------------------ */

static void format_status(const struct plan *p, struct buf *b)
{
    const struct job_status *s = &p->status;

    buf_addf(b, "status %s%s phase=%s attempt=%d round=%d restarts=%d/%d disruptions=%d",
             p->status_changed ? "changed" : "same", p->record_first ? " record-first" : "", phase_name(s->phase),
             (int)s->attempt, (int)s->round, (int)s->restarts_counted, (int)s->restarts, (int)s->disruptions);
    if (s->next_restart_ms != 0)
        buf_addf(b, " next=%lld", (long long)s->next_restart_ms);
    buf_add(b, "\n");
    for (size_t i = 0; i < CONDITION_COUNT; i++) {
        const struct condition *c = &s->conditions[i];
        if (c->present)
            buf_addf(b, "condition %s=%s %s: %s\n", condition_name((enum condition_type)i),
                     c->is_true ? "True" : "False", c->reason, c->message);
    }
}

char *plan_format(const struct plan *p)
{
    auto_buf struct buf b = BUF_INIT(64u << 20);

    for (size_t i = 0; i < p->action_count; i++) {
        const struct action *a = &p->actions[i];
        bool pod = a->kind == ACTION_CREATE_POD || a->kind == ACTION_DELETE_POD || a->kind == ACTION_FORCE_DELETE_POD ||
                   a->kind == ACTION_UNGATE_POD;
        buf_add(&b, action_name(a->kind));
        if (pod)
            buf_addf(&b, " %s-%d attempt=%d%s%s", role_name(a->role), (int)a->index, (int)a->attempt,
                     a->uid[0] != '\0' ? " uid=" : "", a->uid);
        else if (a->kind == ACTION_DELETE_PODS)
            buf_addf(&b, " attempt=%d", (int)a->attempt);
        buf_addf(&b, " (%s)\n", a->reason);
    }
    format_status(p, &b);
    for (size_t i = 0; i < p->event_count; i++)
        buf_addf(&b, "event %s %s: %s\n", p->events[i].warning ? "Warning" : "Normal", p->events[i].reason,
                 p->events[i].message);
    if (p->requeue_at_ms == 0)
        buf_add(&b, "requeue never\n");
    else
        buf_addf(&b, "requeue %lld\n", (long long)p->requeue_at_ms);
    return buf_take(&b);
}
