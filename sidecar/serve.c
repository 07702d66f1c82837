#include "sidecar/serve.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/ipc.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/mem.h"
#include "job/control.h"
#include "sidecar/ring/link.h"
#include "sidecar/supervise/hang.h"
#include "sidecar/supervise/hub.h"
#include "sidecar/supervise/member.h"
#include "wire/local.h"

#define IDLE_LOOK_MS 20
#define LAUNCHER_LOOK_MS 100
#define LAUNCHER_PATIENCE_MS 1000 /* twice what a launcher waits between two tries to connect */
#define PROBE_LIMIT_MS 2000
#define ACCEPTS_PER_TURN 64
/* Strangers may connect to the port: they hold a descriptor each until they have failed to prove who they are. */
#define HANDSHAKES_MAX 512
#define HANDSHAKE_LIMIT_MS 5000
#define ACCEPT_PAUSE_MS 100

struct server {
    const struct options *options;
    struct loop *loop;
    struct link_identity identity;
    struct member *member;
    struct hub *hub; /* NULL: another sidecar coordinates */
    int fd;
    struct loop_source *source;
    int handshakes;            /* under way */
    struct loop_timer *resume; /* accepting is paused */
    struct loop_timer *leave, *watch;
    int64_t leave_by_ms; /* 0: not asked to leave */
    int64_t gone_ms;     /* with --leave-with-launcher: since when it is gone; 0 = it is not */
};

/* ---- connections from other sidecars ---- */

static void on_greeted(void *ctx, int fd, const struct peer_hello *peer, const struct error *why)
{
    struct server *s = ctx;

    s->handshakes--;
    if (fd < 0) {
        log_warn_from("connection refused", why);
        return;
    }
    if (peer->purpose != PEER_CONTROL) {
        member_accept(s->member, fd, peer);
    } else if (s->hub != NULL) {
        hub_accept(s->hub, fd, peer);
    } else {
        log_warn("a member takes this sidecar for the coordinator", KV("member", peer->member));
        (void)close(fd);
    }
}

static void resume_accepting(void *ctx)
{
    struct server *s = ctx;

    loop_set(s->source, LOOP_READ);
}

/* Who waits in the backlog waits a little longer; without a pause a full table of descriptors would spin the loop. */
static void pause_accepting(struct server *s)
{
    loop_set(s->source, 0);
    loop_timer_at(s->resume, clock_mono_ms() + ACCEPT_PAUSE_MS);
}

static void on_accept(void *ctx, int listening, unsigned events)
{
    struct server *s = ctx;
    int64_t limit_ms = s->options->connect_timeout_ms < HANDSHAKE_LIMIT_MS ? s->options->connect_timeout_ms : HANDSHAKE_LIMIT_MS;

    (void)events;
    for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
        if (s->handshakes >= HANDSHAKES_MAX) {
            pause_accepting(s);
            return;
        }
        int fd = accept4(listening, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
                pause_accepting(s);
            return;
        }
        s->handshakes++;
        (void)link_accept(s->loop, &s->identity, fd, member_fence(s->member), limit_ms, on_greeted, s);
    }
}

/* ---- the end ---- */

static void try_leave(void *ctx)
{
    struct server *s = ctx;
    bool idle = member_idle(s->member) && (s->hub == NULL || hub_idle(s->hub));

    if (idle || clock_mono_ms() >= s->leave_by_ms) {
        log_info("leaving", KV("left", idle ? "nothing to do" : "work, but the grace time is over"));
        loop_stop(s->loop);
        return;
    }
    loop_timer_at(s->leave, clock_mono_ms() + IDLE_LOOK_MS);
}

static void begin_to_leave(struct server *s)
{
    s->leave_by_ms = clock_mono_ms() + s->options->grace_ms;
    try_leave(s);
}

static void on_signal(void *ctx, int number)
{
    struct server *s = ctx;

    if (s->leave_by_ms != 0)
        return;
    log_info("asked to end", KVI("signal", number));
    begin_to_leave(s);
}

/* A sidecar that is a container as any other is told by nobody that the pod's work is over, and the pod is not over while it runs. The
 * launcher is process 1 of the main container: once it is gone it does not come back. One that only lost its connection does. */
static void watch_launcher(void *ctx)
{
    struct server *s = ctx;
    int64_t now_ms = clock_mono_ms();

    if (s->leave_by_ms != 0)
        return;
    if (!member_launcher_is_gone(s->member))
        s->gone_ms = 0;
    else if (s->gone_ms == 0)
        s->gone_ms = now_ms;
    if (s->gone_ms != 0 && now_ms - s->gone_ms >= LAUNCHER_PATIENCE_MS) {
        log_info("the main container has ended");
        begin_to_leave(s);
        return;
    }
    loop_timer_at(s->watch, now_ms + LAUNCHER_LOOK_MS);
}

/* ---- life ---- */

static int make_member(struct server *s, struct error *e)
{
    const struct options *o = s->options;
    struct member_options options = {
        .job = o->job, .job_uid = o->job_uid, .name = o->member, .rank = (int32_t)o->rank, .size = (int32_t)o->size,
        .attempt = (int32_t)o->attempt, .coordinator_host = o->coordinator_host, .coordinator_port = o->coordinator_port,
        .address = o->address, .port = (int32_t)o->port, .key = o->key, .tls = o->tls, .peer_timeout_ms = o->peer_timeout_ms, .socket = o->socket,
        .socket_access = o->socket_access,
        .checkpoint_volume = o->checkpoint_dir, .checkpoint_memory = o->shm_dir, .checkpoint_keep = (int32_t)o->checkpoint_keep,
        .s3 = &o->s3,
        .arena_bytes = o->arena_bytes, .results_bytes = o->results_bytes, .connect_timeout_ms = o->connect_timeout_ms,
        .ring_memory = o->ring_memory != NULL && o->ring_memory[0] != '\0' ? o->ring_memory : NULL,
        .chunk_bytes = (int32_t)o->chunk_bytes, .wire = o->wire, .checksums = o->checksums,
        .stall_warning_ms = o->stall_warning_ms, .stall_shutdown_ms = o->stall_shutdown_ms,
        .elastic = o->policy_job->spec.elastic, .evidence_dir = o->evidence,
    };
    struct hang_rule rule = hang_rule_of(o->policy_job);

    options.signs_interval_ms = hang_interval_ms(&rule);
    if (rule.quiet_ms > 0 && options.stall_warning_ms > rule.quiet_ms / 2) /* a hang is known only by its stall */
        options.stall_warning_ms = rule.quiet_ms / 2;

    return member_new(s->loop, &options, &s->member, e);
}

static int make_hub(struct server *s, struct error *e)
{
    const struct options *o = s->options;
    char token[CONTROL_TOKEN_MAX];
    struct hub_options options = {
        .policy = o->policy_job, .job = o->job, .job_uid = o->job_uid, .attempt = (int32_t)o->attempt,
        .members = (const char *const *)o->names, .count = o->name_count, .counters = &o->restart_counters,
        .peer_timeout_ms = o->peer_timeout_ms, .control = { .address = o->control, .token = token, .authority_file = o->control_ca },
        .last_word = o->last_word,
    };

    if (o->rank != 0)
        return 0;
    control_token(o->key, o->job_uid, token);
    int result = hub_new(s->loop, &options, s->member, &s->hub, e);
    crypto_wipe(token, sizeof token);
    return result;
}

static int open_all(struct server *s, struct error *e)
{
    static const int signals[] = { SIGTERM, SIGINT };
    const struct options *o = s->options;

    (void)signal(SIGPIPE, SIG_IGN);
    if (fs_mkdirs(o->dir, 0755, e) != 0 || fs_mkdirs(o->shm_dir, 0755, e) != 0)
        return -1;
    if (loop_new(&s->loop, e) != 0 || loop_signals(s->loop, signals, COUNT(signals), on_signal, s, e) != 0)
        return -1;
    s->leave = loop_timer_new(s->loop, try_leave, s);
    s->resume = loop_timer_new(s->loop, resume_accepting, s);
    s->watch = loop_timer_new(s->loop, watch_launcher, s);
    if (link_listen(o->address, (int32_t)o->port, &s->fd, e) != 0 || make_member(s, e) != 0 || make_hub(s, e) != 0)
        return -1;
    return loop_add(s->loop, s->fd, LOOP_READ, on_accept, s, &s->source, e);
}

static void close_all(struct server *s)
{
    if (s->loop == NULL)
        return;
    hub_free(s->hub);
    member_free(s->member);
    loop_remove(s->source);
    if (s->fd >= 0)
        (void)close(s->fd);
    loop_timer_free(s->leave);
    loop_timer_free(s->resume);
    loop_timer_free(s->watch);
    loop_free(s->loop);
}

int serve(const struct options *options, struct error *e)
{
    struct server s = { .options = options, .fd = -1,
                        .identity = { .key = options->key, .job_uid = options->job_uid, .member = options->member,
                                     .tls = options->tls } };

    int result = open_all(&s, e);
    if (result == 0) {
        log_info("sidecar up", KV("address", options->address), KVI("port", options->port), KVI("rank", options->rank),
                 KVI("attempt", options->attempt), KV("coordinator", options->coordinator));
        member_begin(s.member);
        if (options->leave_with_launcher)
            loop_timer_at(s.watch, clock_mono_ms());
        result = loop_run(s.loop, e);
    }
    close_all(&s);
    return result;
}

/* ---- probe ---- */

struct probe { struct loop *loop; struct ipc *ipc; bool answered; };

static void on_answer(void *ctx, struct ipc *c, struct ipc_message *message, const struct error *why)
{
    struct probe *p = ctx;

    (void)c;
    (void)why;
    p->answered = message != NULL && message->type == LOCAL_PROBED;
    loop_stop(p->loop);
}

static void on_probe_late(void *ctx)
{
    struct probe *p = ctx;

    loop_stop(p->loop);
}

int serve_probe(const char *socket, struct error *e)
{
    struct probe p = { .loop = NULL };
    int fd = -1;

    if (ipc_connect(socket, &fd, e) != 0)
        return -1;
    if (loop_new(&p.loop, e) != 0 || ipc_new(p.loop, fd, on_answer, &p, &p.ipc, e) != 0) {
        (void)close(fd);
        loop_free(p.loop);
        return -1;
    }
    struct loop_timer *late = loop_timer_new(p.loop, on_probe_late, &p);
    loop_timer_at(late, clock_mono_ms() + PROBE_LIMIT_MS);
    int result = ipc_send(p.ipc, LOCAL_PROBE, NULL, 0, NULL, 0, e);
    if (result == 0)
        result = loop_run(p.loop, e);
    if (result == 0 && !p.answered)
        result = error_set(e, ERROR_TIMEOUT, "the sidecar at %s did not answer within %d ms", socket, PROBE_LIMIT_MS);
    ipc_free(p.ipc);
    loop_timer_free(late);
    loop_free(p.loop);
    return result;
}
