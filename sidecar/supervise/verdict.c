/* The end of a round: signs are gathered for a moment, the first cause is chosen, restart_decide says what follows. */

#include <stdio.h>
#include <string.h>

#include "sidecar/supervise/step.h"
#include "sidecar/supervise/trainer.h"

void verdict_consider(struct step *s, const struct cause *cause)
{
    struct coordinator *c = s->c;
    bool is_due = cause->left && trainer_is_active(&c->members[cause->member].trainer);
    int64_t wait = cause->direct ? SETTLE_DIRECT_MS : is_due ? SETTLE_LEFT_MS : SETTLE_INDIRECT_MS;

    if (c->phase == COORDINATOR_RUN) {
        c->end_is_due = is_due;
        step_enter(s, COORDINATOR_SETTLE, wait);
    } else if (c->phase != COORDINATOR_SETTLE) {
        return;
    } else if (is_due && !c->end_is_due && !c->cause.direct) {
        /* Who is killed leaves the ring at once; on a busy machine it may be long until somebody can reap it. */
        c->end_is_due = true;
        c->deadline_ms = s->now->mono_ms + wait;
    } else if (c->deadline_ms > s->now->mono_ms + wait && (cause->direct || !c->end_is_due)) {
        c->deadline_ms = s->now->mono_ms + wait;
    }
    if (cause_is_better(cause, &c->cause, c))
        c->cause = *cause;
}

static void describe_exit(const struct coordinator_member *m, char *ret, size_t size)
{
    const struct trainer_view *t = &m->trainer;

    if (t->reason[0] != '\0')
        (void)snprintf(ret, size, "%s", t->reason);
    else if (t->oom)
        (void)snprintf(ret, size, "%s was killed because its memory limit was reached", m->name);
    else if (t->signal != 0)
        (void)snprintf(ret, size, "%s was ended by signal %d (%s)", m->name, t->signal, strsignal(t->signal));
    else
        (void)snprintf(ret, size, "%s exited with code %d", m->name, t->code);
}

struct cause verdict_exit_cause(struct step *s, int32_t member)
{
    const struct coordinator_member *m = &s->c->members[member];
    struct cause cause = { .kind = CAUSE_EXIT, .member = member, .direct = !m->trainer.after_loss || m->trainer.oom,
                           .at_ms = s->now->mono_ms - m->trainer.age_ms };

    if (m->trainer.state == PROCESS_LOST) {
        cause.kind = CAUSE_LAUNCHER_LOST;
        (void)snprintf(cause.text, sizeof cause.text, "the launcher of %s ended, and its processes with it", m->name);
    } else {
        describe_exit(m, cause.text, sizeof cause.text);
    }
    return cause;
}

static void record(struct step *s, const struct cause *cause, const struct restart_decision *d)
{
    struct coordinator *c = s->c;
    struct round_view round = { .attempt = c->attempt, .round = c->history.round, .counters = d->counters };

    cause_failure(c, cause, d, s->now->wall_ms, &round.cause);
    c->history.counters = d->counters;
    history_add(&c->history, &round);
    c->progressed = false;
    c->failed_at_step = -1;
    for (int32_t i = 0; i < c->world; i++) {
        if (c->members[i].progress.step > c->failed_at_step)
            c->failed_at_step = c->members[i].progress.step;
    }
}

static struct restart_decision decide(struct step *s, const struct cause *cause)
{
    struct restart_decision d = { .verdict = VERDICT_FAIL_JOB };
    struct failure_event event;
    char text[1024];

    cause_event(s->c, cause, &event, text);
    restart_decide(s->c->policy, &s->c->history.counters, &event, s->now->wall_ms, &d);
    return d;
}

void verdict_give_up(struct step *s, const char *reason, const char *message)
{
    struct history *h = &s->c->history;

    h->gave_up = true;
    (void)snprintf(h->give_up_reason, sizeof h->give_up_reason, "%s", reason);
    (void)snprintf(h->give_up_message, sizeof h->give_up_message, "%s", message);
    (void)step_emit(s, OUTPUT_HISTORY, -1);
    step_enter(s, COORDINATOR_GAVE_UP, 0);
}

static void abort_text(const struct coordinator *c, const struct cause *cause, char ret_text[256])
{
    const struct coordinator_member *m = &c->members[cause->member];

    if (m->rank >= 0)
        (void)snprintf(ret_text, 256, "peer lost: rank %d (%.60s): %.150s", m->rank, m->name, cause->text);
    else
        (void)snprintf(ret_text, 256, "%.60s: %.180s", m->name, cause->text);
}

static void abort_others(struct step *s, int32_t culprit, const char *text)
{
    for (int32_t i = 0; i < s->c->count; i++) {
        if (i != culprit && s->c->members[i].joined)
            step_abort(s, i, text);
    }
}

/* Its code will be that of a process that was told to leave. */
static void tell_hang(struct step *s, const struct cause *cause, const struct restart_decision *d)
{
    s->c->has_handed = cause->kind == CAUSE_HANG;
    if (s->c->has_handed)
        cause_failure(s->c, cause, d, s->now->wall_ms, &s->c->handed);
}

/* The culprit's pod ends, with its code; the reconciler sees that and does the rest. */
static void hand_over(struct step *s, const struct cause *cause, const struct restart_decision *d, const char *text)
{
    struct coordinator *c = s->c;

    c->culprit = cause->member;
    tell_hang(s, cause, d);
    abort_others(s, cause->member, text);
    if (d->verdict == VERDICT_FAIL_JOB)
        verdict_give_up(s, d->reason, d->message);
    else
        step_enter(s, COORDINATOR_HANDED, 0);
    if (c->members[cause->member].joined)
        step_leave(s, cause->member);
}

static void restart_group(struct step *s, const struct cause *cause, const struct restart_decision *d, const char *text)
{
    struct coordinator *c = s->c;

    record(s, cause, d);
    for (int32_t i = 0; i < c->count; i++)
        c->members[i].trainer.restarts++;
    if (cause->kind == CAUSE_HANG) /* it would not ask for the next round */
        step_abort(s, cause->member, text);
    step_regroup(s, -1, text);
    step_gather(s, d->delay_ms > 0 ? d->delay_ms : 0);
}

static void restart_alone(struct step *s, const struct cause *cause, const struct restart_decision *d)
{
    struct coordinator *c = s->c;
    struct coordinator_member *m = &c->members[cause->member];

    record(s, cause, d);
    /* The fence stays, yet the restart gets a number of its own: the reconciler takes in each (attempt, round) once. */
    c->history.round++;
    m->trainer.restarts++;
    m->restart_at_ms = s->now->mono_ms + (d->delay_ms > 0 ? d->delay_ms : 0);
    (void)step_emit(s, OUTPUT_HISTORY, -1);
    (void)step_emit(s, OUTPUT_REPORT, -1);
}

/* The container itself has ended or is about to (its launcher is gone or got SIGTERM): there is nothing here to restart in
 * place. The reconciler sees the same in the pod and decides and counts there. */
static bool is_reconcilers(const struct coordinator *c, const struct cause *cause)
{
    return cause->kind == CAUSE_LAUNCHER_LOST || (cause->kind == CAUSE_EXIT && c->members[cause->member].trainer.terminating);
}

/* The pod of a worker is gone or about to be, and programs can stay: they wait for its successor, or without one for each other. The loss is
 * told as what it is for the reconciler, who sees it in the pod and counts it once. False: the job does not go on. */
static bool go_on_without(struct step *s, const struct cause *cause, const char *text)
{
    struct coordinator *c = s->c;
    struct cause loss = *cause;

    if (cause->member == 0)
        return false;
    if (!resize_drops(c, cause->member)) {
        loss.kind = CAUSE_LAUNCHER_LOST;
        struct restart_decision d = decide(s, &loss);
        if (d.verdict == VERDICT_FAIL_JOB)
            return false;
        restart_group(s, &loss, &d, text);
        return true;
    }
    step_regroup(s, -1, text); /* it was to go anyway */
    step_gather(s, 0);
    return true;
}

static void carry_out(struct step *s, const struct cause *cause)
{
    struct coordinator *c = s->c;
    char text[256];

    abort_text(c, cause, text);
    if (is_reconcilers(c, cause) && resize_is_possible(c) && go_on_without(s, cause, text))
        return;
    if (is_reconcilers(c, cause)) {
        if (c->group && cause->member < c->world) {
            c->culprit = cause->member;
            abort_others(s, cause->member, text);
            step_enter(s, COORDINATOR_HANDED, 0);
        }
        return;
    }
    struct restart_decision d = decide(s, cause);
    if (d.verdict == VERDICT_IGNORE) {
        c->members[cause->member].ignored = true;
        step_leave(s, cause->member);
    } else if (d.verdict == VERDICT_RESTART_ALONE && !d.needs_new_pod) {
        restart_alone(s, cause, &d);
    } else if (d.verdict == VERDICT_RESTART_ALONE) {
        tell_hang(s, cause, &d);
        step_leave(s, cause->member);
    } else if (d.verdict == VERDICT_FAIL_JOB || d.needs_new_pod) {
        hand_over(s, cause, &d, text);
    } else {
        restart_group(s, cause, &d, text);
    }
}

void verdict_conclude(struct step *s)
{
    struct cause cause = s->c->cause;

    s->c->cause = (struct cause){ .kind = CAUSE_NONE };
    step_enter(s, COORDINATOR_RUN, 0);
    carry_out(s, &cause);
}

void verdict_alone(struct step *s, const struct cause *cause)
{
    carry_out(s, cause);
    (void)step_emit(s, OUTPUT_REPORT, -1);
}

/* A coordinator that has just begun and finds a group that was at work, while no ended round explains why it is not now: the
 * sidecar that coordinated it was lost. */
void verdict_explain_restart(struct step *s)
{
    struct coordinator *c = s->c;
    const struct history *h = &c->history;
    bool was_at_work = false;

    if (c->fence != 0 || !c->group || h->gave_up || step_all_done(c))
        return;
    for (int32_t i = 0; i < c->world; i++) {
        const struct trainer_view *t = &c->members[i].trainer;
        was_at_work |= t->fence != 0 && t->fence == FENCE(c->attempt, h->round) && !t->stopped;
    }
    const struct round_view *last = h->round_count > 0 ? &h->rounds[h->round_count - 1] : NULL;
    if (!was_at_work || (last != NULL && last->attempt == c->attempt && last->round == h->round))
        return;

    struct cause cause = { .kind = CAUSE_MEMBER_LOST, .member = 0, .direct = true, .at_ms = s->now->mono_ms };
    char text[256];
    (void)snprintf(cause.text, sizeof cause.text, "the sidecar of %s, which coordinates the job, ended and was started again",
                   c->members[0].name);
    abort_text(c, &cause, text);
    struct restart_decision d = decide(s, &cause);
    if (d.verdict == VERDICT_FAIL_JOB || d.needs_new_pod)
        hand_over(s, &cause, &d, text);
    else
        restart_group(s, &cause, &d, text);
}
