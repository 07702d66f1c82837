#include "sidecar/supervise/coordinator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sidecar/supervise/step.h"
#include "sidecar/supervise/trainer.h"

#define POISON_CRASHES 3
#define SKIPPED_SHOWN_MS 10000 /* at least: whoever drives the job is to see it, however soon the next step is committed */
#define FORM_BACKOFF_FIRST_MS 200
#define FORM_BACKOFF_MAX_MS 10000

static const char *const PHASE_NAMES[] = {
    [COORDINATOR_GATHER] = "gather", [COORDINATOR_CLAIM] = "claim",     [COORDINATOR_FORM] = "form",
    [COORDINATOR_RUN] = "run",       [COORDINATOR_SETTLE] = "settle",   [COORDINATOR_SAVE] = "save",
    [COORDINATOR_OVER] = "over",     [COORDINATOR_GAVE_UP] = "gave-up", [COORDINATOR_HANDED] = "handed",
    [COORDINATOR_STOPPED] = "stopped", [COORDINATOR_STALE] = "stale",
};

const char *coordinator_phase_name(enum coordinator_phase phase)
{
    return PHASE_NAMES[phase];
}

struct coordinator_output *step_emit(struct step *s, enum coordinator_output_kind kind, int32_t member)
{
    struct coordinator_outputs *o = s->out;

    if (o->count == o->cap) {
        o->cap = o->cap > 0 ? 2 * o->cap : 8;
        o->items = xrealloc(o->items, o->cap, sizeof *o->items);
    }
    o->items[o->count] = (struct coordinator_output){ .kind = kind, .member = member };
    return &o->items[o->count++];
}

void outputs_release(struct coordinator_outputs *o)
{
    free(o->items);
    *o = (struct coordinator_outputs){ .items = NULL };
}

void step_enter(struct step *s, enum coordinator_phase phase, int64_t limit_ms)
{
    s->c->phase = phase;
    s->c->deadline_ms = limit_ms > 0 ? s->now->mono_ms + limit_ms : 0;
    (void)step_emit(s, OUTPUT_REPORT, -1);
}

static bool in_ring(const struct coordinator *c, int32_t member)
{
    return member < c->world;
}

/* Members that must be there for a round: all but those which the job has gone on without. */
static bool is_needed(const struct coordinator_member *m)
{
    return !m->ignored && !m->released && !m->outside;
}

void step_abort(struct step *s, int32_t member, const char *text)
{
    struct coordinator_output *o = step_emit(s, OUTPUT_ABORT, member);

    o->grace_ms = STOP_GRACE_MS;
    (void)snprintf(o->text, sizeof o->text, "%s", text);
}

void step_regroup(struct step *s, int32_t member, const char *text)
{
    step_abort(s, member, text);
    s->out->items[s->out->count - 1].stay = s->c->policy->spec.elastic && s->c->group;
}

/* ---- gather, claim, form, run ---- */

/* Every rank's process of one and the same round has ended well. */
bool step_all_done(const struct coordinator *c)
{
    uint64_t fence = 0;

    for (int32_t i = 0; i < c->world; i++) {
        const struct trainer_view *t = &c->members[i].trainer;
        if (c->members[i].ignored)
            continue;
        if (t->state != PROCESS_DONE || (fence != 0 && t->fence != fence))
            return false;
        fence = t->fence;
    }
    return fence != 0;
}

bool step_is_ready(const struct coordinator_member *m)
{
    return m->joined && m->trainer.state != PROCESS_LOST && !trainer_is_busy(&m->trainer) && !m->trainer.terminating;
}

static bool all_ready(const struct coordinator *c)
{
    for (int32_t i = 0; i < c->count; i++) {
        if (is_needed(&c->members[i]) && !step_is_ready(&c->members[i]))
            return false;
    }
    return true;
}

static void go_save(struct step *s)
{
    step_enter(s, COORDINATOR_SAVE, SAVE_LIMIT_MS);
}

/* After so many crashes in a row right after a start the newest checkpoint is suspected; after as many more the one before it. */
static bool is_poisoned(const struct coordinator *c)
{
    int32_t crashes = c->history.counters.crashes;
    bool restored = c->restore.found || c->formed_wall_ms == 0; /* or it was another coordinator that knows */

    return restored && crashes > 0 && crashes % POISON_CRASHES == 0 && c->skipped_at != crashes;
}

static void begin_claim(struct step *s)
{
    struct coordinator *c = s->c;
    int32_t highest = c->history.round > c->seen_round ? c->history.round : c->seen_round;

    c->history.round = highest + 1;
    c->fence = FENCE(c->attempt, c->history.round);
    for (int32_t i = 0; i < c->count; i++)
        c->members[i].formed = false;
    c->claiming = true;
    c->skips_newest = is_poisoned(c);
    c->stalled[0] = '\0';
    step_enter(s, COORDINATOR_CLAIM, 0);
    (void)step_emit(s, OUTPUT_CLAIM, -1);
}

static void start_alone(struct step *s, int32_t member)
{
    (void)step_emit(s, OUTPUT_FORM, member);
    (void)step_emit(s, OUTPUT_START, member);
}

/* A job whose members run independently goes on when its coordinator comes back and finds them at work. */
static bool adopt(struct step *s)
{
    struct coordinator *c = s->c;
    uint64_t fence = 0;

    if (c->group)
        return false;
    for (int32_t i = 0; i < c->count; i++) {
        if (trainer_is_active(&c->members[i].trainer) && c->members[i].trainer.fence > fence)
            fence = c->members[i].trainer.fence;
    }
    if (fence == 0 || FENCE_ATTEMPT(fence) != (uint32_t)c->attempt)
        return false;
    c->fence = fence;
    step_enter(s, COORDINATOR_RUN, 0);
    vigil_begin(s);
    for (int32_t i = 0; i < c->count; i++) {
        struct coordinator_member *m = &c->members[i];
        if (!is_needed(m))
            continue;
        if (trainer_is_active(&m->trainer))
            (void)step_emit(s, OUTPUT_FORM, i);
        else if (m->trainer.state == PROCESS_DONE)
            (void)step_emit(s, OUTPUT_RELEASE, i);
        else
            start_alone(s, i);
    }
    return true;
}

static void try_gather(struct step *s)
{
    struct coordinator *c = s->c;

    if (c->phase != COORDINATOR_GATHER)
        return;
    for (int32_t i = 0; i < c->count; i++) {
        if (is_needed(&c->members[i]) && !c->members[i].joined)
            return;
    }
    if (c->fence == 0 && adopt(s))
        return;
    if (c->fence != 0 && c->group && step_all_done(c)) {
        go_save(s);
        return;
    }
    if (all_ready(c) && s->now->mono_ms >= c->gather_from_ms && !c->claiming)
        begin_claim(s);
}

void step_gather(struct step *s, int64_t delay_ms)
{
    (void)resize_apply(s);
    s->c->gather_from_ms = s->now->mono_ms + delay_ms;
    step_enter(s, COORDINATOR_GATHER, 0);
    try_gather(s);
}

/* A forming that came to nothing is no failure of the job: it is tried again, ever more slowly. */
static void form_failed(struct step *s, const char *text)
{
    struct coordinator *c = s->c;

    step_regroup(s, -1, text);
    c->form_backoff_ms = c->form_backoff_ms > 0 ? 2 * c->form_backoff_ms : FORM_BACKOFF_FIRST_MS;
    if (c->form_backoff_ms > FORM_BACKOFF_MAX_MS)
        c->form_backoff_ms = FORM_BACKOFF_MAX_MS;
    step_gather(s, c->form_backoff_ms);
}

void step_leave(struct step *s, int32_t member)
{
    struct coordinator_member *m = &s->c->members[member];
    struct coordinator_output *o = step_emit(s, OUTPUT_LEAVE, member);

    o->exit_code = m->trainer.has_exit && m->trainer.code != 0 ? -1 : 1;
}

/* Now it is known from where the job goes on, and so what the last failure really cost. */
static void count_lost_steps(struct coordinator *c)
{
    int64_t from = c->restore.found ? c->restore.step : 0;

    if (c->failed_at_step < 0 || c->history.round_count == 0)
        return;
    c->history.rounds[c->history.round_count - 1].cause.lost_steps =
        (struct optional_int){ .set = true, .value = c->failed_at_step > from ? c->failed_at_step - from : 0 };
    c->failed_at_step = -1;
}

static void on_claimed(struct step *s, const struct coordinator_event *ev)
{
    struct coordinator *c = s->c;

    c->claiming = false;
    if (c->phase != COORDINATOR_CLAIM) { /* a member was lost meanwhile */
        try_gather(s);
        return;
    }
    if (ev->why == NULL && !all_ready(c)) { /* a launcher ended, or was told to end, meanwhile; nobody has been told of the round */
        step_gather(s, 0);
        return;
    }
    if (ev->why == NULL) {
        c->restore = *ev->restore;
        if (c->skips_newest)
            c->skipped_at = c->history.counters.crashes;
        if (c->restore.skipped)
            c->skipped_step = c->restore.skipped_step;
        count_lost_steps(c);
        step_enter(s, COORDINATOR_FORM, c->form_timeout_ms);
        (void)step_emit(s, OUTPUT_FORM, -1);
        return;
    }
    if (ev->why->kind == ERROR_CONFLICT) {
        int32_t newest = (int32_t)FENCE_ROUND(ev->newest_epoch);
        if (FENCE_ATTEMPT(ev->newest_epoch) == (uint32_t)c->attempt && newest > c->seen_round)
            c->seen_round = newest;
        step_gather(s, 0);
    } else if (ev->why->kind == ERROR_GONE) {
        step_enter(s, COORDINATOR_STALE, 0);
    } else if (ev->why->kind == ERROR_INVALID) {
        c->culprit = 0;
        verdict_give_up(s, "CheckpointUnusable", ev->why->text);
        step_leave(s, 0);
    } else {
        form_failed(s, ev->why->text);
    }
}

static void try_run(struct step *s)
{
    struct coordinator *c = s->c;

    for (int32_t i = 0; i < c->world; i++) {
        if (is_needed(&c->members[i]) && !c->members[i].formed)
            return;
    }
    if (!all_ready(c)) { /* a launcher that was told to end starts nothing any more: the others would wait for its rank for ever */
        form_failed(s, "a launcher was told to end while the round was forming");
        return;
    }
    c->form_backoff_ms = 0;
    c->hosts = 0;
    if (c->group && step_all_done(c)) { /* this coordinator is new: it had to claim, to commit what its predecessor left undecided */
        go_save(s);
        return;
    }
    c->self_test_ok = true;
    c->formed_wall_ms = s->now->wall_ms;
    c->cause = (struct cause){ .kind = CAUSE_NONE };
    step_enter(s, COORDINATOR_RUN, 0);
    vigil_begin(s);
    (void)step_emit(s, OUTPUT_START, -1);
}

/* ---- events ---- */

static void learn(struct step *s, const struct join *j)
{
    struct coordinator *c = s->c;
    uint64_t fence = j->fence > j->trainer.fence ? j->fence : j->trainer.fence;

    if (FENCE_ATTEMPT(fence) == (uint32_t)c->attempt && (int64_t)FENCE_ROUND(fence) > c->seen_round)
        c->seen_round = (int32_t)FENCE_ROUND(fence);
    if (c->fence == 0 && history_is_newer(&j->history, &c->history)) {
        c->history = j->history;
        resize_want(c, c->history.workers);
        (void)resize_apply(s);
    }
}

static bool all_joined(const struct coordinator *c)
{
    for (int32_t i = 0; i < c->count; i++) {
        if (is_needed(&c->members[i]) && !c->members[i].joined)
            return false;
    }
    return true;
}

static void join_running(struct step *s, int32_t member)
{
    struct coordinator *c = s->c;
    struct coordinator_member *m = &c->members[member];

    (void)step_emit(s, OUTPUT_FORM, member);
    if (m->trainer.state == PROCESS_WAITING || (m->start_wanted && step_is_ready(m))) {
        m->start_wanted = false;
        vigil_started(s, member);
        (void)step_emit(s, OUTPUT_START, member);
    } else if (m->trainer.state == PROCESS_FAILED && m->trainer.fence == c->fence && m->restart_at_ms == 0) {
        struct cause cause = verdict_exit_cause(s, member);
        verdict_alone(s, &cause);
    }
}

/* The job ends, or waits for new pods: nothing runs on, and who is to blame leaves with its code. */
static void join_ended(struct step *s, int32_t member)
{
    struct coordinator *c = s->c;
    const struct trainer_view *t = &c->members[member].trainer;
    bool blamed = c->culprit >= 0 ? member == c->culprit : t->state == PROCESS_FAILED && !t->after_loss;

    if (blamed && c->phase == COORDINATOR_GAVE_UP)
        step_leave(s, member);
    else if (trainer_is_active(t))
        step_abort(s, member, c->phase == COORDINATOR_GAVE_UP ? c->history.give_up_message : "the group has ended");
}

static void on_lost(struct step *s, const struct coordinator_event *ev);

static void take_join(struct coordinator_member *m, struct join *j)
{
    int32_t restarts = m->trainer.restarts;

    m->joined = true;
    (void)snprintf(m->host, sizeof m->host, "%s", j->host);
    m->port = j->port;
    m->trainer = j->trainer;
    m->trainer.restarts = m->trainer.restarts > restarts ? m->trainer.restarts : restarts;
    cJSON_Delete(m->holdings);
    m->holdings = TAKE(j->holdings);
}

/* A worker that waits for a place: there is none any more when all is over. */
static void join_outside(struct step *s, int32_t member)
{
    if (s->c->phase == COORDINATOR_OVER)
        step_emit(s, OUTPUT_LEAVE, member)->exit_code = 0;
    else if (s->c->phase == COORDINATOR_GATHER && resize_apply(s))
        try_gather(s);
}

static void on_join(struct step *s, const struct coordinator_event *ev)
{
    struct coordinator *c = s->c;
    int32_t member = ev->member;

    if (c->members[member].joined) {
        struct coordinator_event lost = { .kind = EVENT_LOST, .member = member, .text = "it joined again" };
        on_lost(s, &lost);
    }
    learn(s, ev->join);
    member = coordinator_find(c, ev->join->member); /* places may have changed */
    if (member < 0)
        return;
    struct coordinator_member *m = &c->members[member];
    take_join(m, ev->join);
    (void)step_emit(s, OUTPUT_REPORT, -1);
    if (m->outside) {
        join_outside(s, member);
        return;
    }

    if (c->phase == COORDINATOR_GATHER && c->history.gave_up)
        step_enter(s, COORDINATOR_GAVE_UP, 0);
    switch (c->phase) {
    case COORDINATOR_GATHER:
        if (c->group && trainer_is_busy(&m->trainer))
            step_regroup(s, member, "a new round is about to form");
        if (all_joined(c))
            verdict_explain_restart(s);
        try_gather(s);
        break;
    case COORDINATOR_RUN:
        join_running(s, member);
        break;
    case COORDINATOR_OVER:
        (void)step_emit(s, in_ring(c, member) ? OUTPUT_RELEASE : OUTPUT_FORM, member);
        break;
    case COORDINATOR_STOPPED:
        step_emit(s, OUTPUT_COMMAND, member)->grace_ms = STOP_GRACE_MS;
        break;
    case COORDINATOR_GAVE_UP: case COORDINATOR_HANDED:
        join_ended(s, member);
        break;
    case COORDINATOR_CLAIM: case COORDINATOR_FORM: case COORDINATOR_SETTLE: case COORDINATOR_SAVE: case COORDINATOR_STALE:
        break;
    }
}

static void on_lost(struct step *s, const struct coordinator_event *ev)
{
    struct coordinator *c = s->c;
    struct coordinator_member *m = &c->members[ev->member];
    bool was_lost = !m->joined;

    m->joined = false;
    if (was_lost)
        return;
    (void)step_emit(s, OUTPUT_REPORT, -1);
    if (m->released || m->outside)
        return;
    if (c->phase == COORDINATOR_CLAIM) {
        step_gather(s, 0); /* nobody has been told of the round */
    } else if (c->phase == COORDINATOR_FORM) {
        form_failed(s, ev->text);
    } else if ((c->phase == COORDINATOR_RUN || c->phase == COORDINATOR_SETTLE) && c->group && in_ring(c, ev->member)) {
        struct cause cause = { .kind = CAUSE_MEMBER_LOST, .member = ev->member, .direct = true, .at_ms = s->now->mono_ms };
        (void)snprintf(cause.text, sizeof cause.text, "the sidecar of %.60s (%.50s) is gone: %.100s", m->name, m->host,
                       ev->text);
        verdict_consider(s, &cause);
    }
}

static void check_done(struct step *s, int32_t member)
{
    struct coordinator *c = s->c;

    if (c->group && in_ring(c, member)) {
        if (step_all_done(c))
            go_save(s);
        return;
    }
    c->members[member].released = true;
    (void)step_emit(s, OUTPUT_RELEASE, member);
    for (int32_t i = 0; i < c->world; i++) {
        if (is_needed(&c->members[i]))
            return;
    }
    step_enter(s, COORDINATOR_OVER, 0);
}

/* A process of a job whose members run independently; others are not touched. */
static void start_again(struct step *s, int32_t member)
{
    s->c->members[member].start_wanted = false;
    vigil_started(s, member);
    (void)step_emit(s, OUTPUT_START, member);
}

static void on_trainer(struct step *s, const struct coordinator_event *ev)
{
    struct coordinator *c = s->c;
    struct coordinator_member *m = &c->members[ev->member];
    struct trainer_view before = m->trainer;

    m->trainer = *ev->trainer;
    m->trainer.restarts = before.restarts > m->trainer.restarts ? before.restarts : m->trainer.restarts;
    (void)step_emit(s, OUTPUT_REPORT, -1);
    if (c->phase == COORDINATOR_GATHER) {
        (void)resize_apply(s);
        try_gather(s);
        return;
    }
    if (c->phase == COORDINATOR_FORM && m->trainer.state == PROCESS_LOST && is_needed(m)) {
        form_failed(s, "a launcher ended while the round was forming");
        return;
    }
    if ((c->phase != COORDINATOR_RUN && c->phase != COORDINATOR_SETTLE) || m->trainer.fence != c->fence || !is_needed(m))
        return;
    if (c->phase == COORDINATOR_RUN && m->start_wanted && step_is_ready(m) && m->trainer.stopped) {
        start_again(s, ev->member);
        return;
    }
    bool failed = m->trainer.state == PROCESS_FAILED || (m->trainer.state == PROCESS_LOST && trainer_is_active(&before));
    if (failed) {
        struct cause cause = verdict_exit_cause(s, ev->member);
        if (c->group && in_ring(c, ev->member))
            verdict_consider(s, &cause);
        else
            verdict_alone(s, &cause);
    } else if (m->trainer.state == PROCESS_DONE && before.state != PROCESS_DONE) {
        check_done(s, ev->member);
    }
}

static void on_ring(struct step *s, const struct coordinator_event *ev)
{
    struct coordinator *c = s->c;
    struct coordinator_member *m = &c->members[ev->member];
    const struct ring_view *r = ev->ring;

    if (r->fence != c->fence)
        return;
    if (c->phase == COORDINATOR_FORM) {
        if (!r->formed || !r->ok) {
            form_failed(s, r->text[0] != '\0' ? r->text : "the ring's self-test gave a wrong result");
            return;
        }
        m->formed = true;
        c->form_seconds = r->seconds > c->form_seconds || ev->member == 0 ? r->seconds : c->form_seconds;
        try_run(s);
    } else if ((c->phase == COORDINATOR_RUN || c->phase == COORDINATOR_SETTLE) && c->group && !r->formed) {
        struct cause cause = { .kind = CAUSE_RING_LOST, .member = ev->member, .direct = false, .at_ms = s->now->mono_ms };
        if (r->lost_rank >= 0 && r->lost_rank < c->world)
            cause.member = r->lost_rank;
        cause.left = strstr(r->text, ENGINE_PROCESS_LEFT) != NULL;
        (void)snprintf(cause.text, sizeof cause.text, "%s", r->text);
        verdict_consider(s, &cause);
    }
}

static void on_command(struct step *s, const struct coordinator_event *ev)
{
    if (ev->command == COMMAND_RESIZE) {
        resize_want(s->c, (int32_t)ev->number);
        if (s->c->phase == COORDINATOR_GATHER && resize_apply(s))
            try_gather(s);
        (void)step_emit(s, OUTPUT_REPORT, -1);
        return;
    }
    struct coordinator_output *o = step_emit(s, OUTPUT_COMMAND, -1);

    o->command = ev->command;
    o->grace_ms = ev->number;
    if (ev->command == COMMAND_STOP && s->c->phase != COORDINATOR_OVER && s->c->phase != COORDINATOR_GAVE_UP)
        step_enter(s, COORDINATOR_STOPPED, 0);
}

static bool all_saved(const struct coordinator *c)
{
    for (int32_t i = 0; i < c->world; i++) {
        if (c->members[i].joined && !c->members[i].progress.saved)
            return false;
    }
    return true;
}

static void try_release(struct step *s)
{
    struct coordinator *c = s->c;

    if (c->phase != COORDINATOR_SAVE || (!all_saved(c) && s->now->mono_ms < c->deadline_ms))
        return;
    for (int32_t i = 0; i < c->world; i++) {
        c->members[i].released = true;
        if (c->members[i].joined)
            (void)step_emit(s, OUTPUT_RELEASE, i);
    }
    for (int32_t i = c->world; i < c->count; i++) {
        if (c->members[i].outside && c->members[i].joined)
            step_emit(s, OUTPUT_LEAVE, i)->exit_code = 0;
    }
    step_enter(s, COORDINATOR_OVER, 0);
}

static void on_tick(struct step *s)
{
    struct coordinator *c = s->c;
    bool late = c->deadline_ms > 0 && s->now->mono_ms >= c->deadline_ms;

    if (c->phase == COORDINATOR_SETTLE && late)
        verdict_conclude(s);
    else if (c->phase == COORDINATOR_FORM && late)
        form_failed(s, "the ring did not form in time");
    if (s->now->mono_ms >= c->gather_from_ms)
        c->gather_from_ms = 0;
    try_gather(s);
    vigil_tick(s);
    for (int32_t i = 0; i < c->count; i++) {
        struct coordinator_member *m = &c->members[i];
        if (m->restart_at_ms == 0 || s->now->mono_ms < m->restart_at_ms)
            continue;
        m->restart_at_ms = 0;
        m->start_wanted = c->phase == COORDINATOR_RUN && !step_is_ready(m); /* then when it joins again */
        if (c->phase == COORDINATOR_RUN && step_is_ready(m))
            start_again(s, i);
    }
}

void coordinator_step(struct coordinator *c, const struct coordinator_event *event, const struct coordinator_now *now,
                      struct coordinator_outputs *outputs)
{
    struct step s = { .c = c, .now = now, .out = outputs };

    c->wall_ms = now->wall_ms;
    switch (event->kind) {
    case EVENT_JOIN:
        on_join(&s, event);
        break;
    case EVENT_LOST:
        on_lost(&s, event);
        break;
    case EVENT_TRAINER:
        on_trainer(&s, event);
        break;
    case EVENT_RING:
        on_ring(&s, event);
        break;
    case EVENT_PROGRESS:
        c->members[event->member].progress = *event->progress;
        vigil_note(&s, event->member);
        break;
    case EVENT_CLAIMED:
        on_claimed(&s, event);
        break;
    case EVENT_COMMITTED:
        c->progressed |= event->step > c->committed_step;
        c->committed_step = event->step;
        c->committed_wall_ms = now->wall_ms;
        vigil_committed(&s);
        c->skipped_at = 0;
        if (now->wall_ms - c->formed_wall_ms >= SKIPPED_SHOWN_MS)
            c->skipped_step = -1;
        (void)snprintf(c->committed_uri, sizeof c->committed_uri, "%s", event->text);
        (void)step_emit(&s, OUTPUT_REPORT, -1);
        break;
    case EVENT_STALLED:
        if (c->phase == COORDINATOR_RUN || event->text[0] == '\0')
            (void)snprintf(c->stalled, sizeof c->stalled, "%s", event->text);
        c->lacking = c->stalled[0] != '\0' ? event->member : -1;
        (void)step_emit(&s, OUTPUT_REPORT, -1);
        break;
    case EVENT_DUMPED:
        vigil_dumped(&s, event->member);
        break;
    case EVENT_COMMAND:
        on_command(&s, event);
        break;
    case EVENT_TICK:
        on_tick(&s);
        break;
    }
    resize_look(&s);
    try_release(&s);
}
