/* What the coordinator says, carried out with the engine, the checkpoints and the launcher of this sidecar. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "sidecar/supervise/member_parts.h"

#define STALE_GRACE_MS 2000
#define STAY_LIMIT_MS 30000   /* after a loss, until a process that may stay has asked for the next round */

static void form_ring(struct member *m, const struct form *f)
{
    struct ring_plan plan = { .fence = f->fence, .rank = m->options.rank, .size = f->size, .members = f->members };
    struct ring_member self = { .port = m->options.port };

    if (m->options.rank < 0) { /* outside the ring its clients have a world of their own */
        (void)snprintf(self.member, sizeof self.member, "%s", m->options.name);
        (void)snprintf(self.host, sizeof self.host, "%s", m->options.address);
        plan = (struct ring_plan){ .fence = f->fence, .rank = 0, .size = 1, .members = &self };
    }
    engine_form(m->engine, &plan);
}

static int on_form(struct member *m, const cJSON *body, struct error *e)
{
    struct form f;

    if (form_decode(body, &f, e) != 0)
        return -1;
    if (m->options.rank >= 0 && (m->options.rank >= f.size || strcmp(f.members[m->options.rank].member, m->options.name) != 0)) {
        form_release(&f);
        return error_set(e, ERROR_INVALID, "the coordinator's list of members does not have %s at rank %d: the pods of this job "
                         "do not belong together", m->options.name, m->options.rank);
    }
    m->history = f.history;
    if (f.fence > m->fence) {
        uint32_t rank = m->options.rank >= 0 ? (uint32_t)m->options.rank : 0, size = m->options.rank >= 0 ? (uint32_t)f.size : 1;
        m->fence = f.fence;
        m->size = f.size;
        m->restore = f.restore;
        checkpoint_enter(m->checkpoint, f.fence, f.size, &f.restore);
        attach_session(m->attach, f.fence, rank, size, f.restore.found ? f.restore.step : -1);
        if (!f.alone || m->options.rank < 0)
            form_ring(m, &f);
        log_info("round forming", KVI("attempt", FENCE_ATTEMPT(f.fence)), KVI("round", FENCE_ROUND(f.fence)),
                 KVI("ranks", f.size), KVI("resume_step", f.restore.found ? f.restore.step : -1));
    }
    form_release(&f);
    return 0;
}

static int on_start(struct member *m, const cJSON *body, struct error *e)
{
    struct start_word w;
    struct trainer_event event = { .kind = TRAINER_START };

    if (start_decode(body, &w, e) != 0)
        return -1;
    if (w.fence != m->fence)
        return 0;
    event.fence = w.fence;
    event.restarts = w.restarts;
    member_drive(m, &event);
    return 0;
}

static int on_abort(struct member *m, const cJSON *body, struct error *e)
{
    struct abort_word w;

    if (abort_decode(body, &w, e) != 0)
        return -1;
    if (w.fence != 0 && w.fence < m->fence)
        return 0;
    log_warn("round over", KV("text", w.text));
    m->formed = 0;
    trainer_ring_lost(&m->trainer, m->fence);
    engine_abort(m->engine, m->fence, w.text);
    if (!w.stay || !trainer_is_active(&m->trainer.view) || !(m->had_client || m->trainer.view.parked))
        member_stop(m, w.grace_ms);
    else if (!m->trainer.view.parked)
        loop_timer_at(m->stay, clock_mono_ms() + STAY_LIMIT_MS);
    return 0;
}

static int on_command(struct member *m, const cJSON *body, struct error *e)
{
    enum report_command command;
    int64_t number = 0;
    auto_free char *text = json_print(body, false);

    if (report_command_decode(text, strlen(text), &command, &number, e) != 0)
        return -1;
    if (command == COMMAND_STOP)
        member_stop(m, number < 86400000 ? number : 86400000);
    else if (command == COMMAND_CHECKPOINT)
        attach_save(m->attach);
    return 0;
}

static void on_hosts(struct member *m, const cJSON *body)
{
    int64_t bits = json_int(body, "bits", 0);

    log_info("another number of workers waits for this process", KVI("added", (bits & LOCAL_HOSTS_ADDED) != 0),
             KVI("removed", (bits & LOCAL_HOSTS_REMOVED) != 0));
    attach_hosts(m->attach, (uint32_t)bits & (LOCAL_HOSTS_ADDED | LOCAL_HOSTS_REMOVED));
}

static int on_dump(struct member *m, const cJSON *body, struct error *e)
{
    auto_buf struct buf b = BUF_INIT(4096);
    const struct progress_view *p = &m->progress.view;
    struct dump_word w;

    if (dump_decode(body, &w, e) != 0)
        return -1;
    if (w.fence != m->fence)
        return 0;
    buf_addf(&b, "%s, rank %d, attempt %u round %u, process %s (pid %d)\n", m->options.name, (int)m->options.rank, FENCE_ATTEMPT(m->fence),
             FENCE_ROUND(m->fence), process_state_name(m->trainer.view.state), (int)m->trainer.view.pid);
    buf_addf(&b, "step %lld, %lld operations of the ring ended, %.1f s waited for other ranks, %d %% of a CPU lately, %s\n", (long long)p->step,
             (long long)p->operations, p->wait_ms / 1000, (int)p->cpu_percent, p->attached ? "client attached" : "no client attached");
    watch_dump(m->watch, w.name, m->options.name, buf_take(&b));
    return 0;
}

void member_become_stale(struct member *m, const char *why)
{
    if (m->stale)
        return;
    m->stale = true;
    log_error("this pod belongs to an attempt that is over: its process is ended", KV("why", why));
    engine_abort(m->engine, m->fence, "a newer attempt of the job is at work");
    member_stop(m, STALE_GRACE_MS);
}

int member_word(struct member *m, const struct peer_frame *frame, const cJSON *body, struct error *e)
{
    struct trainer_event leave = { .kind = TRAINER_LEAVE, .code = -1 };
    const cJSON *history = json_at(body, "history");

    switch (frame->type) {
    case PEER_BEAT:
        return history != NULL ? history_decode(history, &m->history, e) : 0;
    case PEER_FORM:
        return on_form(m, body, e);
    case PEER_START:
        return on_start(m, body, e);
    case PEER_ABORT:
        return on_abort(m, body, e);
    case PEER_LEAVE:
        leave.code = (int32_t)json_int(body, "exit_code", -1);
        member_drive(m, &leave);
        return 0;
    case PEER_RELEASE:
        member_drive(m, &leave);
        return 0;
    case PEER_COMMAND:
        return on_command(m, body, e);
    case PEER_HOSTS:
        on_hosts(m, body);
        return 0;
    case PEER_DUMP:
        return on_dump(m, body, e);
    case PEER_CHECKPOINT:
        checkpoint_message(m->checkpoint, 0, body);
        return 0;
    case PEER_FENCED:
        member_become_stale(m, "the coordinator refused it");
        return 0;
    default:
        return error_set(e, ERROR_INVALID, "frame type %u from the coordinator is not known here", frame->type);
    }
}
