#include "sidecar/supervise/member_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#define DIAL_MS 2000          /* one attempt; link_dial retries within it */
#define DIAL_PAUSE_MS 200
#define COMPLAIN_EVERY_MS 30000
#define PROGRESS_EVERY_MS 200
#define STALE_GRACE_MS 2000
#define STAY_LIMIT_MS 30000   /* after a loss, until a process that may stay has asked for the next round */

/* ---- to the coordinator ---- */

static void tell_progress(struct member *m, int64_t now)
{
    struct progress_view *v = &m->progress.view;
    struct engine_stats stats = { .slowest_rank = -1 };

    if (!m->joined)
        return;
    engine_stats_read(m->engine, &stats);
    v->bytes_reduced = (int64_t)stats.bytes_reduced;
    v->operations = (int64_t)stats.operations;
    v->busbw_gbps = stats.busbw_gbps;
    v->wait_ms = stats.wait_ms;
    v->saved = checkpoint_idle(m->checkpoint);
    if (memcmp(v, &m->told, sizeof *v) == 0)
        return;
    m->told = *v;
    m->told_ms = now;
    channel_send(m->channel, PEER_PROGRESS, m->fence, progress_encode(v));
}

static void send_progress(struct member *m, int64_t now)
{
    if (now - m->told_ms >= PROGRESS_EVERY_MS)
        tell_progress(m, now);
}

/* Progress first, held back or not: what a process reported last (its step, its final metrics) belongs to it, not to the next. */
static void send_view(struct member *m)
{
    int64_t now = clock_mono_ms();
    struct trainer_view view = trainer_view_at(&m->trainer, now);

    tell_progress(m, now);
    if (m->joined)
        channel_send(m->channel, PEER_TRAINER, m->fence, trainer_encode(&view));
}

/* Only with what the launcher told: the coordinator has to know at once whether a process runs here. */
static void try_join(struct member *m)
{
    struct join j = { .port = m->options.port, .fence = m->fence != 0 ? m->fence : FENCE(m->options.attempt, 0) };

    if (m->channel == NULL || m->joined || m->trainer.view.state == PROCESS_LOST)
        return;
    (void)snprintf(j.member, sizeof j.member, "%s", m->options.name);
    (void)snprintf(j.host, sizeof j.host, "%s", m->options.address);
    j.trainer = trainer_view_at(&m->trainer, clock_mono_ms());
    j.holdings = checkpoint_holdings(m->checkpoint);
    j.history = m->history;
    channel_send(m->channel, PEER_JOIN, m->fence, join_encode(&j));
    join_release(&j);
    m->joined = true;
    m->told = (struct progress_view){ .step = -2 }; /* differs from everything: sent at the next tick */
}

static void send_ring(struct member *m, const struct ring_view *r)
{
    if (m->joined)
        channel_send(m->channel, PEER_RING, m->fence, ring_encode(r));
}

/* ---- the trainer ---- */

static void start_process(struct member *m, uint64_t fence)
{
    auto_buf struct buf b = BUF_INIT(4096);
    const char nul = '\0';

    buf_addf(&b, "RINGMASTER_FENCE=%llu", (unsigned long long)fence);
    buf_add_bytes(&b, &nul, 1);
    buf_addf(&b, "RINGMASTER_ROUND=%u", FENCE_ROUND(fence));
    buf_add_bytes(&b, &nul, 1);
    buf_addf(&b, "RINGMASTER_RESUME_STEP=%lld", m->restore.found ? (long long)m->restore.step : -1LL);
    buf_add_bytes(&b, &nul, 1);
    if (m->options.rank >= 0 && m->size != m->options.size) { /* the pod's says how many there were when it was made */
        buf_addf(&b, "RINGMASTER_SIZE=%d", m->size);
        buf_add_bytes(&b, &nul, 1);
    }
    progress_reset(&m->progress, m->restore.found ? m->restore.step : -1);
    m->had_client = false;
    attach_start(m->attach, fence, b.text, b.len);
}

/* The process of the round before goes on in this one. */
static void admit(struct member *m)
{
    loop_timer_cancel(m->stay);
    progress_reset(&m->progress, m->restore.found ? m->restore.step : -1);
    log_info("training process stays for the round", KVI("pid", m->trainer.view.pid), KVI("round", FENCE_ROUND(m->fence)));
    attach_admit(m->attach);
}

static void log_state(const struct member *m, enum process_state before)
{
    const struct trainer_view *v = &m->trainer.view;

    if (v->state == before)
        return;
    if (v->state == PROCESS_FAILED)
        log_warn("training process failed", KVI("code", v->code), KVI("signal", v->signal), KV("reason", v->reason));
    else
        log_info("training process", KV("state", process_state_name(v->state)), KVI("pid", v->pid), KVI("round", FENCE_ROUND(v->fence)));
}

void member_drive(struct member *m, const struct trainer_event *event)
{
    enum process_state before = m->trainer.view.state;
    struct trainer_output out = trainer_step(&m->trainer, event, clock_mono_ms());

    if (out.word == WORD_START)
        start_process(m, out.fence);
    else if (out.word == WORD_STOP)
        attach_stop(m->attach, out.fence, out.grace_ms);
    else if (out.word == WORD_LEAVE)
        attach_leave(m->attach, out.code);
    else if (out.word == WORD_ADMIT)
        admit(m);
    log_state(m, before);
    if (out.ended || event->kind == TRAINER_PARKED)
        checkpoint_trainer_gone(m->checkpoint);
    if (out.ended)
        loop_timer_cancel(m->stay);
    if (out.ended && m->trainer.view.state == PROCESS_DONE)
        engine_left(m->engine); /* the others must not wait for it */
    watch_process(m->watch, m->trainer.view.state == PROCESS_RUNNING);
    if (out.changed) {
        if (event->kind == TRAINER_HELLO)
            try_join(m);
        send_view(m);
    }
}

static void on_launcher(void *ctx, const struct trainer_event *event)
{
    member_drive(ctx, event);
}

static void on_signs(void *ctx, const struct local_signs *signs)
{
    struct member *m = ctx;

    watch_signs(m->watch, signs, clock_mono_ms(), &m->progress.view);
}

static void on_stacks(void *ctx, const char *text, size_t len)
{
    struct member *m = ctx;

    watch_stacks(m->watch, text, len);
}

static void on_dumped(void *ctx)
{
    struct member *m = ctx;

    if (m->joined)
        channel_send(m->channel, PEER_DUMPED, m->fence, json_object());
}

static void on_report(void *ctx, const char *text, size_t len, struct error *e, bool *ret_taken)
{
    struct member *m = ctx;

    *ret_taken = progress_merge(&m->progress, text, len, clock_mono_ms(), clock_wall_ms(), e) == 0;
}

static void on_clients(void *ctx, size_t attached, const char *framework)
{
    struct member *m = ctx;

    m->progress.view.attached = attached > 0;
    m->had_client |= attached > 0;
    if (framework != NULL)
        log_info("client attached", KV("framework", framework), KVI("clients", attached));
}

static void on_listens(void *ctx)
{
    struct member *m = ctx;

    m->progress.view.listens = true;
    tell_progress(m, clock_mono_ms());
}

static void on_parked(void *ctx, bool waits)
{
    struct member *m = ctx;
    struct trainer_event event = { .kind = waits ? TRAINER_PARKED : TRAINER_UNPARKED };

    log_info(waits ? "training process waits for the next round" : "training process waits no longer",
             KVI("pid", m->trainer.view.pid));
    member_drive(m, &event);
}

/* Every rank records its own; `ringmaster timeline` puts them together. */
static bool on_timeline(void *ctx, bool on, const char *path, bool mark_cycles, struct error *e)
{
    struct member *m = ctx;
    int32_t rank = m->options.rank >= 0 ? m->options.rank : 0, size = m->options.rank >= 0 ? m->size : 1;

    if (engine_timeline(m->engine, on ? path : NULL, mark_cycles, rank, size, e) < 0)
        return false;
    log_info(on ? "time line begins" : "time line ends", KV("path", path));
    return true;
}

static bool is_member(void *ctx)
{
    const struct member *m = ctx;

    return m->joined;
}

void member_stop(struct member *m, int64_t grace_ms)
{
    struct trainer_event stop = { .kind = TRAINER_STOP, .grace_ms = (uint32_t)grace_ms };

    member_drive(m, &stop);
}

/* It was allowed to stay, but does not ask for the next round: it cannot, or it hangs. */
static void on_stay_limit(void *ctx)
{
    struct member *m = ctx;

    if (!trainer_is_busy(&m->trainer.view) || m->formed != 0)
        return;
    log_warn("training process has not asked for the next round: it is ended", KVI("pid", m->trainer.view.pid),
             KVI("limit_ms", STAY_LIMIT_MS));
    member_stop(m, STALE_GRACE_MS);
}

/* ---- engine and checkpoints ---- */

static void on_formed(void *ctx, uint64_t fence, int self_test_ok, double seconds)
{
    struct member *m = ctx;
    struct ring_view r = { .fence = fence, .formed = true, .ok = self_test_ok != 0, .seconds = seconds, .lost_rank = -1 };

    if (fence != m->fence)
        return;
    m->formed = fence;
    tell_progress(m, clock_mono_ms()); /* before: whether this round still has something to save */
    if (m->options.rank >= 0)
        send_ring(m, &r);
}

static void on_ring_lost(void *ctx, uint64_t fence, int32_t rank, const char *text)
{
    struct member *m = ctx;
    struct ring_view r = { .fence = fence, .formed = false, .lost_rank = rank };

    (void)snprintf(r.text, sizeof r.text, "%s", text);
    if (m->formed == fence)
        m->formed = 0;
    if (rank != m->options.rank || strstr(text, ENGINE_PROCESS_LEFT) == NULL) /* else its end comes from nothing that the ring does */
        trainer_ring_lost(&m->trainer, fence);
    if (m->options.rank >= 0)
        send_ring(m, &r);
}

static void on_stall(void *ctx, uint64_t fence, int32_t rank, const char *text)
{
    struct member *m = ctx;

    if (fence != m->fence)
        return;
    if (text[0] != '\0')
        log_warn("collective stalled", KVI("missing_rank", rank), KV("text", text));
    else
        log_info("collectives go on");
    if (m->hub.stalled != NULL)
        m->hub.stalled(m->hub.ctx, rank, text);
}

static void checkpoint_send(void *ctx, cJSON *message)
{
    struct member *m = ctx;

    if (m->joined)
        channel_send(m->channel, PEER_CHECKPOINT, m->fence, message);
    else
        cJSON_Delete(message); /* the coordinator asks every member anew when it is back */
}

static void checkpoint_broadcast(void *ctx, cJSON *message)
{
    struct member *m = ctx;

    if (m->hub.broadcast != NULL)
        m->hub.broadcast(m->hub.ctx, message);
    else
        cJSON_Delete(message);
}

static void on_committed(void *ctx, int64_t step, const char *uri)
{
    struct member *m = ctx;

    log_info("checkpoint committed", KVI("step", step), KV("uri", uri));
    attach_committed(m->attach, step);
    if (m->hub.committed != NULL)
        m->hub.committed(m->hub.ctx, step, uri);
}

static void on_save_failed(void *ctx, int64_t step, const struct error *why)
{
    (void)ctx;
    log_warn_from("checkpoint not committed; training goes on", why, KVI("step", step));
}

static void on_ready(void *ctx)
{
    struct member *m = ctx;

    attach_ready(m->attach);
}

/* ---- the connection ---- */

static void hang_up(struct member *m, const struct error *why)
{
    int64_t now = clock_mono_ms(), again = m->found_ms + DIAL_PAUSE_MS; /* one that turns us away does not know us yet */

    channel_free(m->channel);
    m->channel = NULL;
    m->joined = false;
    log_warn("coordinator lost; the training process is left alone until it is back", KV("error", why->text));
    if (!m->stale)
        loop_timer_at(m->redial, again > now ? again : now);
}

static void on_frame(void *ctx, struct channel *c, const struct peer_frame *frame, const cJSON *body, const struct error *why)
{
    struct member *m = ctx;
    struct error e = ERROR_INIT;

    (void)c;
    if (body != NULL && member_word(m, frame, body, &e) == 0)
        return;
    if (body == NULL && why->kind != ERROR_NONE)
        e = *why;
    if (e.kind == ERROR_NONE)
        (void)error_set(&e, ERROR_PEER_LOST, "the connection was closed");
    hang_up(m, &e);
}

static void on_dialled(void *ctx, int fd, const struct peer_hello *peer, const struct error *why)
{
    struct member *m = ctx;
    struct error e = ERROR_INIT;
    int64_t now = clock_mono_ms();

    (void)peer;
    m->dial = NULL;
    if (fd >= 0 && channel_new(m->loop, fd, on_frame, m, &m->channel, &e) == 0) {
        log_info("coordinator found", KV("host", m->options.coordinator_host));
        m->complained_ms = 0;
        m->found_ms = now;
        try_join(m);
        return;
    }
    if (fd >= 0)
        (void)close(fd);
    else
        e = *why;
    if (e.kind == ERROR_GONE) {
        member_become_stale(m, e.text);
        return;
    }
    if (m->complained_ms == 0 || now - m->complained_ms >= COMPLAIN_EVERY_MS) {
        m->complained_ms = now;
        log_warn_from("coordinator not reached; trying on", &e, KV("host", m->options.coordinator_host));
    }
    loop_timer_at(m->redial, now + DIAL_PAUSE_MS);
}

static void redial(void *ctx)
{
    struct member *m = ctx;
    struct error e = ERROR_INIT;
    uint64_t fence = m->fence != 0 ? m->fence : FENCE(m->options.attempt, 0);

    if (link_dial(m->loop, &m->identity, m->options.coordinator_host, m->options.coordinator_port, PEER_CONTROL, 0, fence,
                  clock_mono_ms() + DIAL_MS, on_dialled, m, &m->dial, &e) != 0) {
        log_warn_from("coordinator cannot be dialled", &e);
        loop_timer_at(m->redial, clock_mono_ms() + DIAL_MS);
    }
}

static void tick(void *ctx)
{
    struct member *m = ctx;
    int64_t now = clock_mono_ms(), pause = now - m->ticked_ms;

    m->ticked_ms = now;
    loop_timer_at(m->tick, now + BEAT_MS);
    if (m->channel == NULL)
        return;
    if (pause > 3 * BEAT_MS)
        channel_excuse(m->channel, pause - BEAT_MS);
    int64_t silent = now - channel_heard_ms(m->channel);
    if (silent > m->options.peer_timeout_ms) {
        struct error e = ERROR_INIT;
        (void)error_set(&e, ERROR_TIMEOUT, "silent for %lld ms", (long long)silent);
        hang_up(m, &e);
        return;
    }
    send_progress(m, now);
    channel_send(m->channel, PEER_BEAT, m->fence, NULL);
}

/* ---- life ---- */

void member_accept(struct member *m, int fd, const struct peer_hello *hello)
{
    engine_accept(m->engine, fd, hello);
}

struct checkpoint *member_checkpoint(struct member *m)
{
    return m->checkpoint;
}

struct evidence *member_evidence(struct member *m)
{
    return m->evidence;
}

uint64_t member_fence(const struct member *m)
{
    return m->fence != 0 ? m->fence : FENCE(m->options.attempt, 0);
}

bool member_idle(const struct member *m)
{
    return !trainer_is_active(&m->trainer.view) && checkpoint_idle(m->checkpoint);
}

bool member_launcher_is_gone(const struct member *m)
{
    return attach_launcher_is_gone(m->attach);
}

void member_set_hub(struct member *m, const struct member_hub *hub)
{
    m->hub = *hub;
}

void member_begin(struct member *m)
{
    m->ticked_ms = clock_mono_ms();
    loop_timer_at(m->tick, m->ticked_ms + BEAT_MS);
    redial(m);
}

static int make_parts(struct member *m, struct error *e)
{
    const struct member_options *o = &m->options;
    struct engine_options engine = { .key = o->key, .tls = o->tls, .job_uid = o->job_uid, .member = o->name, .arena_bytes = o->arena_bytes,
                                     .results_bytes = o->results_bytes, .connect_timeout_ms = o->connect_timeout_ms,
                                     .chunk_bytes = o->chunk_bytes, .checksums = o->checksums,
                                     .wire = o->wire > 0 ? (enum shm_wire)(SHM_WIRE_PLAIN + o->wire) : SHM_WIRE_JOB,
                                     .memory_dir = o->ring_memory, .stall_warning_ms = o->stall_warning_ms,
                                     .stall_shutdown_ms = o->stall_shutdown_ms, .peer_timeout_ms = o->peer_timeout_ms };
    struct engine_events engine_events = { .on_formed = on_formed, .on_lost = on_ring_lost, .on_stall = on_stall, .ctx = m };
    struct checkpoint_options checkpoint = { .volume = o->checkpoint_volume, .memory = o->checkpoint_memory, .job_uid = o->job_uid,
                                             .member = o->name, .rank = o->rank, .keep_last = o->checkpoint_keep, .s3 = o->s3 };
    struct checkpoint_events checkpoint_events = { .send = checkpoint_send, .broadcast = checkpoint_broadcast,
                                                   .committed = on_committed, .failed = on_save_failed, .ready = on_ready, .ctx = m };
    struct attach_events attach_events = { .launcher = on_launcher, .signs = on_signs, .stacks = on_stacks,
                                           .report = on_report, .clients = on_clients, .listens = on_listens,
                                           .parked = on_parked, .timeline = on_timeline, .is_member = is_member, .ctx = m };

    if (engine_new(m->loop, &engine, &engine_events, &m->engine, e) != 0 ||
        checkpoint_new(m->loop, &checkpoint, &checkpoint_events, &m->checkpoint, e) != 0)
        return -1;
    struct attach_options attach = { .path = o->socket, .access = (enum attach_access)o->socket_access, .job = o->job,
                                     .engine = m->engine, .checkpoint = m->checkpoint, .elastic = o->elastic };
    if (attach_new(m->loop, &attach, &attach_events, &m->attach, e) != 0 || evidence_new(m->loop, o->evidence_dir, &m->evidence, e) != 0)
        return -1;
    m->watch = watch_new(m->loop, m->attach, m->evidence, o->signs_interval_ms, on_dumped, m);
    return 0;
}

int member_new(struct loop *l, const struct member_options *options, struct member **ret, struct error *e)
{
    struct member *m = xcalloc(1, sizeof *m);

    *m = (struct member){ .loop = l, .options = *options, .trainer = TRAINER_INIT, .restore = { .step = -1 }, .size = options->size,
                          .identity = { .key = options->key, .job_uid = options->job_uid, .member = options->name,
                                      .tls = options->tls } };
    progress_reset(&m->progress, -1);
    m->tick = loop_timer_new(l, tick, m);
    m->redial = loop_timer_new(l, redial, m);
    m->stay = loop_timer_new(l, on_stay_limit, m);
    m->had_client = true; /* a process that ran before this sidecar: nobody knows */
    if (make_parts(m, e) != 0) {
        member_free(m);
        return -1;
    }
    *ret = m;
    return 0;
}

void member_free(struct member *m)
{
    if (m == NULL)
        return;
    loop_timer_free(m->tick);
    loop_timer_free(m->redial);
    loop_timer_free(m->stay);
    link_cancel(m->dial);
    channel_free(m->channel);
    evidence_free(m->evidence);
    watch_free(m->watch);
    attach_free(m->attach);
    if (m->checkpoint != NULL)
        checkpoint_free(m->checkpoint);
    if (m->engine != NULL)
        engine_free(m->engine);
    free(m);
}
