#include "sidecar/supervise/hub.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "sidecar/supervise/channel.h"
#include "sidecar/supervise/control.h"
#include "sidecar/supervise/coordinator.h"
#include "sidecar/supervise/evidence.h"
#include "sidecar/supervise/trainer.h"

struct guest { /* the connection of one member */
    struct hub *hub;
    struct channel *channel; /* NULL: none */
    int32_t member;
    char name[PEER_MEMBER_MAX];
    bool joined;
};

struct hub {
    struct loop *loop;
    struct member *member;
    struct coordinator core;
    struct guest **guests; size_t guest_count; /* by member; each stays where it is as long as there is a member of its name */
    uint32_t roster;       /* of the core, that guests were seated by */
    int64_t peer_timeout_ms;
    struct control *control; /* NULL: nobody wants reports */
    const char *last_word;   /* NULL: nobody reads it */
    char dumped[64];         /* name of the newest dump */
    struct loop_timer *tick, *deadline, *report;
    int64_t ticked_ms, reported_ms;
};

static void feed(struct hub *h, const struct coordinator_event *event);

static struct coordinator_now now_of(void)
{
    return (struct coordinator_now){ .mono_ms = clock_mono_ms(), .wall_ms = clock_wall_ms() };
}

/* ---- reports ---- */

static void report(void *ctx)
{
    struct hub *h = ctx;
    struct coordinator_report r;
    struct coordinator_now now = now_of();

    if (h->control == NULL)
        return;
    coordinator_report(&h->core, &now, &r);
    control_send(h->control, report_encode(&r));
    report_release(&r);
    h->reported_ms = now.mono_ms;
}

static void report_soon(struct hub *h, bool urgent)
{
    int64_t now = clock_mono_ms(), at = h->reported_ms + REPORT_MIN_INTERVAL_MS;

    if (urgent || at < now)
        at = now;
    if (urgent || !loop_timer_armed(h->report))
        loop_timer_at(h->report, at);
}

/* Written whenever it changes, and not at the end: a sidecar that is killed leaves it, too. The file is the kubelet's, mounted where
 * it lies: it is written over and cannot be renamed. */
static void leave_last_word(struct hub *h)
{
    struct coordinator_report r;
    struct coordinator_now now = now_of();
    struct error e = ERROR_INIT;

    if (h->last_word == NULL)
        return;
    coordinator_report(&h->core, &now, &r);
    auto_free char *text = report_last_word(&r);
    report_release(&r);
    if (text == NULL)
        return;
    int fd = open(h->last_word, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    ssize_t n = fd >= 0 ? write(fd, text, strlen(text)) : -1;
    if (n != (ssize_t)strlen(text)) {
        (void)error_errno(&e, "write %s", h->last_word);
        log_warn_from("an operator that does not hear this coordinator will not know of its restarts", &e);
    }
    if (fd >= 0)
        (void)close(fd);
}

static void on_command(void *ctx, enum report_command command, int64_t number)
{
    struct coordinator_event event = { .kind = EVENT_COMMAND, .command = command, .number = number };

    log_info("command", KV("command", report_command_name(command)), KVI("number", number));
    feed(ctx, &event);
}

static void on_reader(void *ctx)
{
    report_soon(ctx, true);
}

/* ---- what the core wants ---- */

static void send_to(struct hub *h, int32_t member, enum peer_type type, const cJSON *body)
{
    struct guest *g = h->guests[member];

    if (g->channel != NULL && g->joined)
        channel_send(g->channel, type, h->core.fence, body != NULL ? cJSON_Duplicate(body, true) : NULL);
}

/* To one member, or to all that `wanted` (may be NULL) takes. */
static void send_out(struct hub *h, int32_t member, enum peer_type type, const cJSON *body, bool (*wanted)(const struct coordinator_member *))
{
    for (int32_t i = 0; i < h->core.count; i++) {
        if ((member == -1 && (wanted == NULL || wanted(&h->core.members[i]))) || member == i)
            send_to(h, i, type, body);
    }
}

static bool takes_part(const struct coordinator_member *m)
{
    return !m->ignored && !m->released && !m->outside;
}

static bool is_inside(const struct coordinator_member *m)
{
    return !m->outside;
}

static void on_claimed(void *ctx, const struct checkpoint_restore *restore, const struct error *why)
{
    struct hub *h = ctx;
    struct coordinator_event event = { .kind = EVENT_CLAIMED, .restore = restore, .why = why,
                                       .newest_epoch = checkpoint_newest_epoch(member_checkpoint(h->member)) };

    if (why != NULL)
        log_warn_from("no agreement on a checkpoint to go on from", why);
    feed(h, &event);
}

static void claim(struct hub *h)
{
    const struct coordinator *c = &h->core;
    const cJSON **holdings = xcalloc((size_t)c->world, sizeof *holdings);
    auto_json cJSON *none = json_object();

    for (int32_t i = 0; i < c->world; i++)
        holdings[i] = c->members[i].holdings != NULL ? c->members[i].holdings : none;
    checkpoint_claim(member_checkpoint(h->member), c->fence, c->world, holdings, c->skips_newest, on_claimed, h);
    free(holdings);
}

static void send_form(struct hub *h, int32_t member)
{
    const struct coordinator *c = &h->core;
    struct form f = { .fence = c->fence, .alone = member != -1, .size = c->world, .restore = c->restore, .history = c->history };

    f.members = xcalloc((size_t)c->world, sizeof *f.members);
    for (int32_t i = 0; i < c->world; i++) {
        (void)snprintf(f.members[i].member, sizeof f.members[i].member, "%s", c->members[i].name);
        (void)snprintf(f.members[i].host, sizeof f.members[i].host, "%s", c->members[i].host[0] != '\0' ? c->members[i].host : "-");
        f.members[i].port = c->members[i].port > 0 ? c->members[i].port : 1; /* one that the job goes on without */
    }
    auto_json cJSON *body = form_encode(&f);
    send_out(h, member, PEER_FORM, body, takes_part);
    form_release(&f);
}

static void send_start(struct hub *h, int32_t member)
{
    for (int32_t i = 0; i < h->core.count; i++) {
        struct start_word w = { .fence = h->core.fence, .restarts = h->core.members[i].trainer.restarts };
        if ((member != -1 && member != i) || !takes_part(&h->core.members[i]))
            continue;
        auto_json cJSON *body = start_encode(&w);
        send_to(h, i, PEER_START, body);
    }
}

static void send_abort(struct hub *h, const struct coordinator_output *o)
{
    struct abort_word w = { .fence = h->core.fence, .grace_ms = o->grace_ms, .stay = o->stay };

    (void)snprintf(w.text, sizeof w.text, "%s", o->text);
    auto_json cJSON *body = abort_encode(&w);
    send_out(h, o->member, PEER_ABORT, body, NULL);
}

/* With the first of them the state of the ring is written down. */
static void send_dump(struct hub *h, const struct coordinator_output *o)
{
    struct dump_word w = { .fence = h->core.fence };
    struct coordinator_now now = now_of();
    auto_buf struct buf ring = BUF_INIT(1u << 20);

    (void)snprintf(w.name, sizeof w.name, "%.63s", o->text);
    auto_json cJSON *body = dump_encode(&w);
    send_out(h, o->member, PEER_DUMP, body, NULL);
    if (strcmp(h->dumped, w.name) == 0)
        return;
    (void)snprintf(h->dumped, sizeof h->dumped, "%s", w.name);
    log_warn("the training stands still: what every rank does is written down", KV("text", h->core.dump.cause.text), KV("dir", h->core.evidence));
    coordinator_describe_ring(&h->core, &now, &ring);
    evidence_write(member_evidence(h->member), w.name, "ring.txt", buf_take(&ring), NULL, NULL);
}

static void carry_out(struct hub *h, const struct coordinator_output *o)
{
    auto_json cJSON *body = json_object();
    auto_free char *command = NULL;

    switch (o->kind) {
    case OUTPUT_CLAIM:
        claim(h);
        break;
    case OUTPUT_FORM:
        send_form(h, o->member);
        break;
    case OUTPUT_START:
        send_start(h, o->member);
        break;
    case OUTPUT_ABORT:
        send_abort(h, o);
        break;
    case OUTPUT_RELEASE:
        send_out(h, o->member, PEER_RELEASE, NULL, NULL);
        break;
    case OUTPUT_LEAVE:
        json_put_int(body, "exit_code", o->exit_code);
        send_out(h, o->member, PEER_LEAVE, body, NULL);
        break;
    case OUTPUT_COMMAND:
        command = report_command_encode(o->command, o->grace_ms);
        cleanup_json(&body);
        body = cJSON_Parse(command);
        send_out(h, o->member, PEER_COMMAND, body, NULL);
        break;
    case OUTPUT_HOSTS:
        json_put_int(body, "bits", o->hosts);
        send_out(h, -1, PEER_HOSTS, body, takes_part);
        break;
    case OUTPUT_DUMP:
        send_dump(h, o);
        break;
    case OUTPUT_HISTORY:
        json_put(body, "history", history_encode(&h->core.history));
        send_out(h, -1, PEER_BEAT, body, NULL);
        break;
    case OUTPUT_REPORT:
        report_soon(h, true);
        break;
    }
}

static void free_guests(struct hub *h)
{
    for (size_t i = 0; i < h->guest_count; i++) {
        if (h->guests[i] != NULL)
            channel_free(h->guests[i]->channel);
        free(h->guests[i]);
    }
    free(h->guests);
    h->guests = NULL;
    h->guest_count = 0;
}

static void log_phase(const struct hub *h, enum coordinator_phase before)
{
    const struct coordinator *c = &h->core;

    if (c->phase == before)
        return;
    if (c->phase == COORDINATOR_GAVE_UP)
        log_error("the job has failed", KV("reason", c->history.give_up_reason), KV("message", c->history.give_up_message));
    else if (c->phase == COORDINATOR_STALE)
        log_error("a newer attempt of the job is at work: this coordinator takes no part any more");
    else
        log_info("round", KV("phase", coordinator_phase_name(c->phase)), KVI("round", c->history.round),
                 KVI("restarts", c->history.counters.restarts));
}

static void log_failure(const struct hub *h, int32_t restarts_before)
{
    const struct history *past = &h->core.history;

    if (past->counters.restarts == restarts_before || past->round_count == 0)
        return;
    const struct failure *f = &past->rounds[past->round_count - 1].cause;
    log_warn("first cause", KV("role", role_name(f->role)), KVI("index", f->index), KV("reason", f->reason),
             KV("class", failure_class_name(f->class)), KV("text", f->message), KVI("round", f->round),
             KVI("restarts", past->counters.restarts), KVI("counted", past->counters.restarts_counted));
}

/* Members have got other places: their connections follow. Of those that are no members any more they end. */
static void seat_guests(struct hub *h)
{
    struct guest **seats;

    if (h->roster == h->core.roster)
        return;
    h->roster = h->core.roster;
    seats = xcalloc((size_t)h->core.count, sizeof *seats);
    for (int32_t i = 0; i < h->core.count; i++) {
        const char *name = h->core.members[i].name;
        for (size_t k = 0; k < h->guest_count && seats[i] == NULL; k++) {
            if (h->guests[k] != NULL && strcmp(h->guests[k]->name, name) == 0)
                seats[i] = TAKE(h->guests[k]);
        }
        if (seats[i] == NULL) {
            seats[i] = xcalloc(1, sizeof *seats[i]);
            seats[i]->hub = h;
            (void)snprintf(seats[i]->name, sizeof seats[i]->name, "%s", name);
        }
        seats[i]->member = i;
    }
    free_guests(h);
    h->guests = seats;
    h->guest_count = (size_t)h->core.count;
    log_info("members", KVI("ranks", h->core.world), KVI("others", h->core.count - h->core.world), KVI("workers_wanted", h->core.workers));
}

static void feed(struct hub *h, const struct coordinator_event *event)
{
    struct coordinator_outputs outputs = { .items = NULL };
    struct coordinator_now now = now_of();
    enum coordinator_phase before = h->core.phase;
    int32_t restarts = h->core.history.counters.restarts;

    coordinator_step(&h->core, event, &now, &outputs);
    seat_guests(h);
    log_failure(h, restarts);
    log_phase(h, before);
    if (h->core.phase != before || h->core.history.counters.restarts != restarts)
        leave_last_word(h);
    for (size_t i = 0; i < outputs.count; i++)
        carry_out(h, &outputs.items[i]);
    outputs_release(&outputs);
    int64_t at = coordinator_deadline(&h->core);
    if (at < INT64_MAX)
        loop_timer_at(h->deadline, at);
    else
        loop_timer_cancel(h->deadline);
}

static void on_deadline(void *ctx)
{
    struct coordinator_event event = { .kind = EVENT_TICK };

    feed(ctx, &event);
}

/* ---- members ---- */

static void lose(struct guest *g, const char *why)
{
    struct hub *h = g->hub;
    struct coordinator_event event = { .kind = EVENT_LOST, .member = g->member, .text = why };
    bool joined = g->joined;

    channel_free(g->channel);
    g->channel = NULL;
    g->joined = false;
    if (!joined)
        return;
    log_warn("member lost", KV("member", h->core.members[g->member].name), KV("why", why));
    feed(h, &event);
}

static int on_join(struct guest *g, const cJSON *body, struct error *e)
{
    struct hub *h = g->hub;
    struct join j;
    struct coordinator_event event = { .kind = EVENT_JOIN, .member = g->member, .join = &j };
    const char *name = h->core.members[g->member].name;

    if (join_decode(body, &j, e) != 0)
        return -1;
    if (strcmp(j.member, name) != 0 || FENCE_ATTEMPT(j.fence) > (uint32_t)h->core.attempt) {
        join_release(&j);
        return error_set(e, ERROR_INVALID, "it joins as %.60s of attempt %u, expected %s of attempt %d", j.member, FENCE_ATTEMPT(j.fence),
                         name, h->core.attempt);
    }
    g->joined = true;
    log_info("member joined", KV("member", name), KV("host", j.host), KV("process", process_state_name(j.trainer.state)));
    feed(h, &event);
    join_release(&j);
    return 0;
}

static int on_message(struct guest *g, const struct peer_frame *frame, const cJSON *body, struct error *e)
{
    struct hub *h = g->hub;
    struct coordinator_event event = { .member = g->member };
    struct trainer_view trainer;
    struct ring_view ring;
    struct progress_view progress;

    if (frame->type == PEER_BEAT)
        return 0;
    if (frame->type == PEER_JOIN && !g->joined)
        return on_join(g, body, e);
    if (!g->joined)
        return error_set(e, ERROR_INVALID, "frame type %u before it has joined", frame->type);
    switch (frame->type) {
    case PEER_TRAINER:
        event.kind = EVENT_TRAINER;
        event.trainer = &trainer;
        if (trainer_decode(body, &trainer, e) != 0)
            return -1;
        break;
    case PEER_RING:
        event.kind = EVENT_RING;
        event.ring = &ring;
        if (ring_decode(body, &ring, e) != 0)
            return -1;
        break;
    case PEER_PROGRESS:
        event.kind = EVENT_PROGRESS;
        event.progress = &progress;
        if (progress_decode(body, &progress, e) != 0)
            return -1;
        report_soon(h, false);
        break;
    case PEER_DUMPED:
        event.kind = EVENT_DUMPED;
        break;
    case PEER_CHECKPOINT:
        checkpoint_message(member_checkpoint(h->member), h->core.members[g->member].rank, body);
        return 0;
    default:
        return error_set(e, ERROR_INVALID, "frame type %u is not known here", frame->type);
    }
    feed(h, &event);
    return 0;
}

static void on_frame(void *ctx, struct channel *c, const struct peer_frame *frame, const cJSON *body, const struct error *why)
{
    struct guest *g = ctx;
    struct error e = ERROR_INIT;

    (void)c;
    if (body != NULL && on_message(g, frame, body, &e) == 0)
        return;
    if (body == NULL)
        e = *why;
    lose(g, e.kind != ERROR_NONE ? e.text : "the connection was closed");
}

void hub_accept(struct hub *h, int fd, const struct peer_hello *hello)
{
    int32_t member = coordinator_find(&h->core, hello->member);
    struct error e = ERROR_INIT;

    if (member < 0) {
        log_warn("a sidecar that is no member of this job was refused", KV("member", hello->member));
        (void)close(fd);
        return;
    }
    if (h->guests[member]->channel != NULL)
        lose(h->guests[member], "it connected anew");
    member = coordinator_find(&h->core, hello->member); /* places may have changed */
    if (member < 0) {
        (void)close(fd);
        return;
    }
    struct guest *g = h->guests[member];
    if (channel_new(h->loop, fd, on_frame, g, &g->channel, &e) != 0) {
        log_warn_from("member's connection not taken", &e, KV("member", hello->member));
        (void)close(fd);
    }
}

static void tick(void *ctx)
{
    struct hub *h = ctx;
    int64_t now = clock_mono_ms(), pause = now - h->ticked_ms;

    h->ticked_ms = now;
    loop_timer_at(h->tick, now + BEAT_MS);
    for (int32_t i = 0; i < h->core.count; i++) {
        struct guest *g = h->guests[i];
        char why[64];
        if (g->channel == NULL)
            continue;
        if (pause > 3 * BEAT_MS) /* we did not run: the silence may be ours */
            channel_excuse(g->channel, pause - BEAT_MS);
        int64_t silent = now - channel_heard_ms(g->channel);
        if (silent > h->peer_timeout_ms) {
            (void)snprintf(why, sizeof why, "silent for %lld ms", (long long)silent);
            lose(g, why);
        } else {
            channel_send(g->channel, PEER_BEAT, h->core.fence, NULL);
        }
    }
}

/* ---- the checkpoint engine's side ---- */

static void broadcast(void *ctx, cJSON *message)
{
    send_out(ctx, -1, PEER_CHECKPOINT, message, is_inside);
    cJSON_Delete(message);
}

static void committed(void *ctx, int64_t step, const char *uri)
{
    struct coordinator_event event = { .kind = EVENT_COMMITTED, .step = step, .text = uri != NULL ? uri : "" };

    feed(ctx, &event);
}

static void stalled(void *ctx, int32_t rank, const char *text)
{
    struct coordinator_event event = { .kind = EVENT_STALLED, .member = rank, .text = text };

    feed(ctx, &event);
}

/* ---- life ---- */

bool hub_idle(const struct hub *h)
{
    for (int32_t i = 1; i < h->core.count; i++) {
        const struct coordinator_member *m = &h->core.members[i];
        if (m->joined && (trainer_is_active(&m->trainer) || !m->progress.saved))
            return false;
    }
    return h->control == NULL || (control_flushed(h->control) && !loop_timer_armed(h->report));
}

int hub_new(struct loop *l, const struct hub_options *options, struct member *member, struct hub **ret, struct error *e)
{
    struct hub *h = xcalloc(1, sizeof *h);

    *h = (struct hub){ .loop = l, .member = member, .peer_timeout_ms = options->peer_timeout_ms,
                       .last_word = options->last_word };
    h->tick = loop_timer_new(l, tick, h);
    h->deadline = loop_timer_new(l, on_deadline, h);
    h->report = loop_timer_new(l, report, h);
    if (coordinator_init(&h->core, options->policy, options->job, options->job_uid, options->attempt, options->members,
                         options->count, options->counters, e) != 0 ||
        (options->control.address != NULL && control_new(l, &options->control, on_command, on_reader, h, &h->control, e) != 0)) {
        hub_free(h);
        return -1;
    }
    seat_guests(h);
    if (strlen(evidence_dir(member_evidence(member))) < sizeof h->core.evidence_dir) /* a path that is cut leads nowhere */
        (void)snprintf(h->core.evidence_dir, sizeof h->core.evidence_dir, "%s", evidence_dir(member_evidence(member)));
    struct member_hub hub = { .broadcast = broadcast, .committed = committed, .stalled = stalled, .ctx = h };
    member_set_hub(member, &hub);
    h->ticked_ms = clock_mono_ms();
    loop_timer_at(h->tick, h->ticked_ms + BEAT_MS);
    *ret = h;
    return 0;
}

void hub_free(struct hub *h)
{
    if (h == NULL)
        return;
    struct member_hub none = { .broadcast = NULL };
    member_set_hub(h->member, &none);
    free_guests(h);
    coordinator_release(&h->core);
    control_free(h->control);
    loop_timer_free(h->tick);
    loop_timer_free(h->deadline);
    loop_timer_free(h->report);
    free(h);
}
