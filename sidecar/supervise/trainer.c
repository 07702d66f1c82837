#include "sidecar/supervise/trainer.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "base/text.h"

bool trainer_is_active(const struct trainer_view *v)
{
    return v->state == PROCESS_STARTING || v->state == PROCESS_RUNNING || v->state == PROCESS_STOPPING;
}

bool trainer_is_busy(const struct trainer_view *v)
{
    return trainer_is_active(v) && !(v->parked && v->state == PROCESS_RUNNING);
}

void trainer_ring_lost(struct trainer *t, uint64_t fence)
{
    if (fence > t->lost_fence)
        t->lost_fence = fence;
}

struct trainer_view trainer_view_at(const struct trainer *t, int64_t now_ms)
{
    struct trainer_view v = t->view;

    v.age_ms = t->ended_at_ms > 0 && now_ms > t->ended_at_ms ? now_ms - t->ended_at_ms : 0;
    v.after_loss = t->ended_after_loss;
    return v;
}

static void forget_exit(struct trainer *t)
{
    struct trainer_view *v = &t->view;

    v->has_exit = v->oom = v->not_started = v->stopped = v->parked = false;
    v->code = v->signal = 0;
    v->reason[0] = v->tail[0] = '\0';
    t->ended_at_ms = 0;
    t->ended_after_loss = false;
}

static void set_status(struct trainer_view *v, int32_t wait_status)
{
    v->has_exit = true;
    v->signal = WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : 0;
    v->code = WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

static void on_hello(struct trainer *t, const struct local_launcher_hello *h, struct trainer_output *out)
{
    struct trainer_view *v = &t->view;

    forget_exit(t);
    v->fence = t->launched = h->fence;
    v->pid = (int32_t)h->child_pid;
    v->terminating = h->terminating != 0;
    v->state = h->running ? PROCESS_RUNNING : PROCESS_WAITING;
    if (!h->running && h->has_exited) { /* an EXITED with all the rest follows */
        set_status(v, h->wait_status);
        v->state = v->code == 0 ? PROCESS_DONE : PROCESS_FAILED;
    }
    t->leaving = false;
    out->changed = true;
}

static void on_gone(struct trainer *t, int64_t now_ms, struct trainer_output *out)
{
    struct trainer_view *v = &t->view;
    bool active = trainer_is_active(v);

    if (t->leaving && !active)
        return; /* it went because it was told to: what it told last stays true */
    v->state = PROCESS_LOST;
    v->pid = 0;
    out->changed = true;
    if (!active)
        return;
    forget_exit(t);
    (void)snprintf(v->reason, sizeof v->reason, "%s", "the launcher ended, and its processes with it");
    t->ended_at_ms = now_ms;
    t->ended_after_loss = t->lost_fence >= v->fence;
    out->ended = true;
}

static void on_exited(struct trainer *t, const struct local_exited *x, int64_t now_ms, struct trainer_output *out)
{
    struct trainer_view *v = &t->view;
    struct trainer_view before = *v;
    bool was_active = trainer_is_active(v);

    if (x->fence != t->launched || v->state == PROCESS_LOST || (v->state == PROCESS_WAITING && !v->has_exit))
        return; /* told again about a process that is history here */
    forget_exit(t);
    set_status(v, x->wait_status);
    /* On one machine several trainers may share a memory cgroup: the counter alone does not say whom it struck. */
    v->oom = x->oom_killed != 0 && v->code == 128 + SIGKILL;
    v->not_started = x->not_started != 0;
    v->stopped = x->stopped != 0;
    (void)snprintf(v->reason, sizeof v->reason, "%.*s", (int)strnlen(x->reason, sizeof x->reason), x->reason);
    (void)snprintf(v->tail, sizeof v->tail, "%.*s", (int)strnlen(x->tail, sizeof x->tail), x->tail);
    text_make_plain(v->tail);
    if (x->oom_killed && !v->oom && v->code != 0 && v->reason[0] == '\0')
        (void)snprintf(v->reason, sizeof v->reason, "exited with code %d; while it ran the out-of-memory killer struck in its memory cgroup", v->code);
    v->pid = 0;
    v->state = v->stopped ? PROCESS_WAITING : v->code == 0 ? PROCESS_DONE : PROCESS_FAILED;
    t->ended_at_ms = now_ms;
    t->ended_after_loss = t->lost_fence >= v->fence && v->fence > 0;
    out->ended = was_active;
    out->changed = was_active || memcmp(&before, v, sizeof before) != 0;
}

static void on_start(struct trainer *t, const struct trainer_event *event, struct trainer_output *out)
{
    struct trainer_view *v = &t->view;

    if (v->state == PROCESS_LOST || trainer_is_busy(v) || v->terminating || t->leaving)
        return;
    bool stays = trainer_is_active(v);
    forget_exit(t);
    if (stays) {
        v->fence = event->fence;
        v->restarts = event->restarts;
        *out = (struct trainer_output){ .word = WORD_ADMIT, .fence = event->fence, .changed = true };
        return;
    }
    v->state = PROCESS_STARTING;
    v->fence = t->launched = event->fence;
    v->restarts = event->restarts;
    v->started_ms = 0;
    *out = (struct trainer_output){ .word = WORD_START, .fence = event->fence, .changed = true };
}

struct trainer_output trainer_step(struct trainer *t, const struct trainer_event *event, int64_t now_ms)
{
    struct trainer_output out = { .word = WORD_NONE };
    struct trainer_view *v = &t->view;

    switch (event->kind) {
    case TRAINER_HELLO:
        on_hello(t, event->hello, &out);
        break;
    case TRAINER_GONE:
        on_gone(t, now_ms, &out);
        break;
    case TRAINER_STARTED:
        if (v->state != PROCESS_STARTING || event->started->fence != t->launched)
            break;
        v->state = PROCESS_RUNNING;
        v->pid = (int32_t)event->started->child_pid;
        v->started_ms = event->started->wall_ms;
        out.changed = true;
        break;
    case TRAINER_EXITED:
        on_exited(t, event->exited, now_ms, &out);
        break;
    case TRAINER_PARKED: case TRAINER_UNPARKED:
        out.changed = v->parked != (event->kind == TRAINER_PARKED);
        v->parked = event->kind == TRAINER_PARKED;
        break;
    case TRAINER_SIGNALLED:
        out.changed = !v->terminating;
        v->terminating = true;
        break;
    case TRAINER_START:
        on_start(t, event, &out);
        break;
    case TRAINER_STOP:
        if (!trainer_is_active(v))
            break;
        out = (struct trainer_output){ .word = WORD_STOP, .fence = t->launched, .grace_ms = event->grace_ms,
                                       .changed = v->state != PROCESS_STOPPING };
        v->state = PROCESS_STOPPING;
        break;
    case TRAINER_LEAVE:
        if (v->state == PROCESS_LOST)
            break;
        t->leaving = true;
        out = (struct trainer_output){ .word = WORD_LEAVE, .code = event->code };
        break;
    }
    return out;
}
