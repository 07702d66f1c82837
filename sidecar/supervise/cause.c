/* Why a round ended: which of several signs was the first cause, and what restart_decide is told about it. */

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "sidecar/supervise/coordinator.h"

#define TIE_MS 20

/* What the kernel or the driver says about an end outranks the time at which it was seen. */
static bool has_evidence(const struct cause *a, const struct coordinator *c)
{
    struct failure_event event;
    char text[1024];

    if (a->kind != CAUSE_EXIT)
        return false;
    cause_event(c, a, &event, text);
    enum failure_class class = restart_classify(&event);
    return class == FAILURE_OOM || class == FAILURE_HARDWARE;
}

/* Of two ends at the same moment, which looks more like a beginning: 2 a program does not do to itself in an orderly way, and no
 * peer's loss brings it about; 0 is how a peer's loss often shows. */
static int weight(const struct cause *a, const struct coordinator *c)
{
    int32_t n = a->kind == CAUSE_EXIT ? c->members[a->member].trainer.signal : 0;

    if (n == SIGKILL || n == SIGSEGV || n == SIGBUS || n == SIGILL || n == SIGFPE)
        return 2;
    return n == SIGPIPE || n == SIGABRT || n == SIGHUP ? 0 : 1;
}

bool cause_is_better(const struct cause *a, const struct cause *b, const struct coordinator *c)
{
    if (b->kind == CAUSE_NONE || a->kind == CAUSE_NONE)
        return b->kind == CAUSE_NONE && a->kind != CAUSE_NONE;
    if (has_evidence(a, c) != has_evidence(b, c))
        return has_evidence(a, c);
    if (a->direct != b->direct)
        return a->direct;
    if (!a->direct && (a->kind == CAUSE_RING_LOST) != (b->kind == CAUSE_RING_LOST))
        return a->kind == CAUSE_RING_LOST; /* a process that ends after its ring was lost is a victim */
    int64_t apart = a->at_ms > b->at_ms ? a->at_ms - b->at_ms : b->at_ms - a->at_ms;
    if (apart <= TIE_MS && weight(a, c) != weight(b, c))
        return weight(a, c) > weight(b, c); /* a peer sees the sockets of a dying process close before anybody can reap it */
    return a->at_ms < b->at_ms;
}

static const char *exit_reason(const struct trainer_view *t)
{
    if (t->oom)
        return "OOMKilled";
    if (t->terminating)
        return "Terminated";
    if (t->not_started)
        return t->code == 127 ? "CommandNotFound" : "CommandNotExecutable";
    return "Error";
}

/* How far its process came beyond where the round began. */
static struct optional_int steps_done(const struct coordinator *c, const struct coordinator_member *m)
{
    int64_t from = c->restore.found ? c->restore.step : 0;

    if (m->progress.step < 0)
        return (struct optional_int){ .set = false, .value = 0 };
    return (struct optional_int){ .set = true, .value = m->progress.step > from ? m->progress.step - from : 0 };
}

void cause_event(const struct coordinator *c, const struct cause *cause, struct failure_event *ret_event, char ret_text[1024])
{
    static const char *const reasons[] = {
        [CAUSE_NONE] = "", [CAUSE_EXIT] = "Error", [CAUSE_LAUNCHER_LOST] = "LauncherLost",
        [CAUSE_MEMBER_LOST] = "SidecarLost", [CAUSE_RING_LOST] = "RingLost",
        [CAUSE_HANG] = "Hang",
    };
    const struct coordinator_member *m = &c->members[cause->member];
    const struct trainer_view *t = &m->trainer;

    (void)snprintf(ret_text, 1024, "%s", cause->text);
    *ret_event = (struct failure_event){ .role = m->role, .index = m->index, .reason = reasons[cause->kind], .message = ret_text,
                                         .made_progress = c->progressed, .steps_done = steps_done(c, m),
                                         .ran_ms = t->started_ms > 0 && c->wall_ms > t->started_ms ? c->wall_ms - t->started_ms : 0 };
    if (cause->kind == CAUSE_EXIT && t->tail[0] != '\0' && !t->not_started)
        (void)snprintf(ret_text, 1024, "%.900s%s%.110s", t->tail, t->reason[0] != '\0' ? "\n" : "", t->reason);
    if (cause->kind == CAUSE_EXIT) {
        ret_event->has_exit = true;
        ret_event->exit_code = t->code;
        ret_event->signal = t->signal;
        ret_event->reason = exit_reason(t);
    }
}

/* Steps of work that the round did and the newest committed checkpoint does not hold. Refined when the next claim says from
 * where the job really goes on. */
static struct optional_int lost_steps(const struct coordinator *c)
{
    int64_t step = -1;

    for (int32_t i = 0; i < c->world; i++)
        step = c->members[i].progress.step > step ? c->members[i].progress.step : step;
    if (step < 0)
        return (struct optional_int){ .set = false, .value = 0 };
    int64_t kept = c->committed_step > 0 ? c->committed_step : 0;
    return (struct optional_int){ .set = true, .value = step > kept ? step - kept : 0 };
}

void cause_failure(const struct coordinator *c, const struct cause *cause, const struct restart_decision *decision,
                   int64_t wall_ms, struct failure *ret_failure)
{
    const struct coordinator_member *m = &c->members[cause->member];
    struct failure_event event;
    char text[1024];
    struct failure f = { .attempt = c->attempt, .round = c->history.round, .role = m->role, .index = m->index,
                         .class = decision->class, .time_ms = wall_ms, .lost_steps = lost_steps(c) };

    cause_event(c, cause, &event, text);
    f.has_exit = event.has_exit;
    f.exit_code = event.exit_code;
    f.signal = event.signal;
    (void)snprintf(f.pod, sizeof f.pod, "%s-%.70s", c->job, m->name);
    (void)snprintf(f.container, sizeof f.container, "%s", event.has_exit ? job_main_container(c->policy, m->role) : "");
    (void)snprintf(f.reason, sizeof f.reason, "%s", event.reason);
    (void)snprintf(f.message, sizeof f.message, "%s", text);
    if (cause->kind == CAUSE_HANG)
        (void)snprintf(f.evidence, sizeof f.evidence, "%s", c->evidence);
    f.rank.set = m->rank >= 0;
    f.rank.value = m->rank >= 0 ? m->rank : 0;
    *ret_failure = f;
}
