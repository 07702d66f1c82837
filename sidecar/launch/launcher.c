#include "sidecar/launch/launcher.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/ipc.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/mem.h"
#include "sidecar/launch/descend.h"
#include "sidecar/launch/guard.h"
#include "sidecar/launch/look.h"
#include "sidecar/launch/oom.h"
#include "sidecar/launch/spawn.h"
#include "sidecar/launch/tail.h"
#include "wire/local.h"

#define RECONNECT_FIRST_MS 10
#define RECONNECT_MAX_MS 500
#define CLEAR_FIRST_MS 1
#define CLEAR_MAX_MS 64
#define MAX_SIGNALS 16
#define FLUSH_LIMIT_MS 10000

enum phase {
    PHASE_IDLE,     /* nothing has run yet, or the last process is gone */
    PHASE_RUNNING,
    PHASE_CLEARING, /* the process is reaped or must die now; its descendants are being ended */
};

struct launcher {
    const struct launcher_options *options;
    struct loop *loop;
    struct ipc *sidecar; /* NULL: not connected */
    struct tail *tail;   /* NULL: there is no sidecar to tell */
    struct look *look;
    struct loop_timer *reconnect, *grace, *clear;
    int64_t reconnect_ms, clear_ms;

    enum phase phase;
    pid_t child;              /* 0: none, or reaped already */
    uint64_t fence;
    int64_t oom_before;
    struct local_exited exited;
    bool has_exited;          /* `exited` tells of the process of `fence` */
    bool stop_asked, terminating;
    bool leave_asked;
    int32_t leave_code;
    int code;
};

static void tell(struct launcher *l, uint16_t type, const void *bytes, size_t len)
{
    struct error e = ERROR_INIT;

    if (l->sidecar != NULL && ipc_send(l->sidecar, type, bytes, len, NULL, 0, &e) != 0)
        log_warn_from("sidecar does not read", &e);
}

static void leave(struct launcher *l, int code)
{
    l->code = code;
    loop_stop(l->loop);
}

/* The code of the last process; without one, that of a launcher which was ended (SIGTERM) or should not have been. A process that
 * ends with 0 after SIGTERM has done as it was told, and its work is not done: nobody has said LEAVE, which is what tells that. */
static int own_code(const struct launcher *l)
{
    int code = l->has_exited ? spawn_code(l->exited.wait_status) : l->terminating ? 128 + SIGTERM : 1;
    bool unfinished = l->terminating && !l->leave_asked && !l->options->no_sidecar;

    return code == 0 && unfinished ? 128 + SIGTERM : code;
}

/* ---- the process ---- */

static void finished(struct launcher *l)
{
    loop_timer_cancel(l->grace);
    loop_timer_cancel(l->clear);
    l->phase = PHASE_IDLE;
    l->has_exited = true;
    if (l->tail != NULL) {
        tail_end(l->tail);
        tail_text(l->tail, l->exited.tail, sizeof l->exited.tail);
    }
    tell(l, LOCAL_EXITED, &l->exited, sizeof l->exited);
    if (l->leave_asked && l->leave_code >= 0)
        leave(l, l->leave_code);
    else if (l->leave_asked || l->terminating || l->options->no_sidecar)
        leave(l, own_code(l));
}

static void on_reaped(void *ctx, pid_t pid, int wait_status)
{
    struct launcher *l = ctx;

    if (pid != l->child)
        return; /* an orphan that we adopted */
    int64_t oom_now = oom_count(OOM_CGROUP_FILE, OOM_MOUNT);
    l->child = 0;
    l->exited.wait_status = wait_status;
    l->exited.oom_killed = l->oom_before >= 0 && oom_now > l->oom_before;
    l->exited.stopped = l->stop_asked;
    l->exited.wall_ms = clock_wall_ms();
}

/* Reaps what has ended; once the process itself is gone, or its time is up, ends all that is left below it. */
static void clear_descendants(void *ctx)
{
    struct launcher *l = ctx;
    bool some_left = descend_reap(on_reaped, l);

    if (l->phase == PHASE_RUNNING && l->child == 0)
        l->phase = PHASE_CLEARING;
    if (l->phase != PHASE_CLEARING)
        return;
    if (some_left) {
        (void)descend_kill(SIGKILL);
        some_left = descend_reap(on_reaped, l);
    }
    if (!some_left) {
        finished(l);
        return;
    }
    loop_timer_at(l->clear, clock_mono_ms() + l->clear_ms);
    l->clear_ms = l->clear_ms < CLEAR_MAX_MS ? 2 * l->clear_ms : CLEAR_MAX_MS;
}

static void kill_all(void *ctx)
{
    struct launcher *l = ctx;

    if (l->phase != PHASE_RUNNING)
        return;
    l->phase = PHASE_CLEARING;
    clear_descendants(l);
}

static void start(struct launcher *l, uint64_t fence, const char *overrides, size_t len)
{
    struct error e = ERROR_INIT;
    int code = 0;
    char **environment = spawn_environment(overrides, len);

    l->fence = fence;
    l->exited = (struct local_exited){ .fence = fence };
    l->has_exited = l->stop_asked = false;
    l->clear_ms = CLEAR_FIRST_MS;
    l->oom_before = oom_count(OOM_CGROUP_FILE, OOM_MOUNT);
    struct tail_ends ends = l->tail != NULL ? tail_begin(l->tail) : (struct tail_ends){ .out = -1, .err = -1 };
    int result = spawn(l->options->command, environment, ends.out, ends.err, &l->child, &code, &e);
    if (l->tail != NULL)
        tail_started(l->tail);
    spawn_environment_free(environment);
    if (result == 0) {
        struct local_started started = { .fence = fence, .child_pid = (uint32_t)l->child, .wall_ms = clock_wall_ms() };
        l->phase = PHASE_RUNNING;
        tell(l, LOCAL_STARTED, &started, sizeof started);
        return;
    }
    log_error_from("command cannot be run", &e, KVI("code", code));
    l->exited.wait_status = code << 8;
    l->exited.not_started = 1;
    l->exited.wall_ms = clock_wall_ms();
    (void)snprintf(l->exited.reason, sizeof l->exited.reason, "%s", e.text);
    finished(l);
}

/* SIGTERM to the process's group; what is left after grace_ms (0: no limit) is killed. */
static void end_process(struct launcher *l, int64_t grace_ms)
{
    if (l->phase != PHASE_RUNNING)
        return;
    (void)kill(-l->child, SIGTERM);
    if (grace_ms > 0)
        loop_timer_at(l->grace, clock_mono_ms() + grace_ms);
}

/* ---- words from the sidecar ---- */

static void on_start(struct launcher *l, const struct ipc_message *m)
{
    uint64_t fence;

    if (m->len < sizeof fence)
        return;
    memcpy(&fence, m->bytes, sizeof fence);
    if (l->phase != PHASE_IDLE) {
        log_warn("told to start while a process is running; ignored");
        return;
    }
    if (!l->terminating)
        start(l, fence, (const char *)m->bytes + sizeof fence, m->len - sizeof fence);
}

static void on_stop(struct launcher *l, const struct local_stop *stop)
{
    if (l->phase == PHASE_IDLE) {
        if (l->has_exited)
            tell(l, LOCAL_EXITED, &l->exited, sizeof l->exited);
        return;
    }
    l->stop_asked = true;
    if (stop->grace_ms == 0)
        kill_all(l);
    else
        end_process(l, stop->grace_ms);
}

static void on_leave(struct launcher *l, const struct local_leave *word)
{
    l->leave_asked = true;
    l->leave_code = word->exit_code < 0 ? -1 : word->exit_code & 0xff;
    if (l->phase == PHASE_IDLE)
        leave(l, l->leave_code >= 0 ? l->leave_code : own_code(l));
    else
        kill_all(l);
}

static void on_stacks(void *ctx, uint32_t number, const char *text, size_t len)
{
    struct launcher *l = ctx;
    auto_buf struct buf b = BUF_INIT(LOCAL_STACKS_MAX + sizeof number);

    buf_add_bytes(&b, &number, sizeof number);
    buf_add_bytes(&b, text, len);
    tell(l, LOCAL_STACKS, b.text, b.len);
}

static void on_look(struct launcher *l, const struct local_look *look)
{
    struct local_signs signs = { .number = look->number };

    if (look->what == LOCAL_LOOK_STACKS) {
        look_stacks(l->look, look->number);
        return;
    }
    look_signs(&signs);
    signs.written_bytes = l->tail != NULL ? tail_bytes(l->tail) : 0;
    tell(l, LOCAL_SIGNS, &signs, sizeof signs);
}

static void handle(struct launcher *l, const struct ipc_message *m)
{
    if (m->type == LOCAL_START) {
        on_start(l, m);
    } else if (m->type == LOCAL_STOP && m->len >= sizeof(struct local_stop)) {
        struct local_stop stop;
        memcpy(&stop, m->bytes, sizeof stop);
        on_stop(l, &stop);
    } else if (m->type == LOCAL_LEAVE && m->len >= sizeof(struct local_leave)) {
        struct local_leave word;
        memcpy(&word, m->bytes, sizeof word);
        on_leave(l, &word);
    } else if (m->type == LOCAL_LOOK && m->len >= sizeof(struct local_look)) {
        struct local_look look;
        memcpy(&look, m->bytes, sizeof look);
        on_look(l, &look);
    } else if (m->type == LOCAL_REFUSED) {
        log_error("the sidecar refused this launcher",
                  KV("why", m->len > sizeof(uint32_t) ? (const char *)m->bytes + sizeof(uint32_t) : ""));
    }
}

static void on_sidecar(void *ctx, struct ipc *c, struct ipc_message *message, const struct error *why)
{
    struct launcher *l = ctx;

    (void)why;
    if (message != NULL) {
        handle(l, message);
        return;
    }
    ipc_free(c); /* the process runs on; the sidecar's next incarnation learns of it by HELLO */
    l->sidecar = NULL;
    l->reconnect_ms = RECONNECT_FIRST_MS;
    loop_timer_at(l->reconnect, clock_mono_ms() + l->reconnect_ms);
}

static void hello(struct launcher *l)
{
    struct local_launcher_hello h = {
        .magic = LOCAL_MAGIC, .version = LOCAL_VERSION, .launcher_pid = (uint32_t)getpid(),
        .running = l->phase != PHASE_IDLE, .fence = l->fence, .child_pid = (uint32_t)l->child,
        .has_exited = l->has_exited, .wait_status = l->has_exited ? l->exited.wait_status : 0, .terminating = l->terminating,
    };

    tell(l, LOCAL_LAUNCHER_HELLO, &h, sizeof h);
    if (l->has_exited)
        tell(l, LOCAL_EXITED, &l->exited, sizeof l->exited);
}

static void connect_sidecar(void *ctx)
{
    struct launcher *l = ctx;
    struct error e = ERROR_INIT;
    int fd = -1;

    if (ipc_connect(l->options->socket, &fd, &e) == 0) {
        if (ipc_new(l->loop, fd, on_sidecar, l, &l->sidecar, &e) == 0) {
            hello(l);
            return;
        }
        (void)close(fd);
    }
    loop_timer_at(l->reconnect, clock_mono_ms() + l->reconnect_ms);
    l->reconnect_ms = l->reconnect_ms < RECONNECT_MAX_MS / 2 ? 2 * l->reconnect_ms : RECONNECT_MAX_MS;
}

static void start_alone(void *ctx)
{
    struct launcher *l = ctx;

    start(l, 0, NULL, 0);
}

/* ---- signals ---- */

static void on_terminate(struct launcher *l)
{
    struct local_signalled signalled = { .signal_number = SIGTERM };

    l->terminating = true;
    tell(l, LOCAL_SIGNALLED, &signalled, sizeof signalled);
    if (l->phase == PHASE_IDLE)
        leave(l, own_code(l));
    else
        end_process(l, l->options->grace_ms);
}

static void on_signal(void *ctx, int number)
{
    struct launcher *l = ctx;

    if (number == SIGCHLD) {
        clear_descendants(l);
    } else if (number == GUARD_PARENT_GONE) {
        descend_end(10000);
        leave(l, 128 + SIGKILL);
    } else if (number == SIGTERM) {
        on_terminate(l);
    } else if (l->phase == PHASE_RUNNING) {
        (void)kill(-l->child, number);
    }
}

static int watch_signals(struct launcher *l, struct error *e)
{
    int signals[MAX_SIGNALS] = { SIGCHLD, GUARD_PARENT_GONE };

    memcpy(signals + 2, GUARD_FORWARDED, GUARD_FORWARDED_COUNT * sizeof *signals);
    (void)signal(SIGPIPE, SIG_IGN);
    return loop_signals(l->loop, signals, 2 + GUARD_FORWARDED_COUNT, on_signal, l, e);
}

static void release(struct launcher *l)
{
    if (l->tail != NULL)
        tail_flush(l->tail, FLUSH_LIMIT_MS);
    tail_free(l->tail);
    look_free(l->look);
    ipc_free(l->sidecar);
    loop_timer_free(l->reconnect);
    loop_timer_free(l->grace);
    loop_timer_free(l->clear);
    loop_free(l->loop);
}

int launcher_run(const struct launcher_options *options, int *ret_code, struct error *e)
{
    struct launcher l = { .options = options, .phase = PHASE_IDLE, .reconnect_ms = RECONNECT_FIRST_MS, .leave_code = -1 };

    (void)prctl(PR_SET_CHILD_SUBREAPER, 1); /* not inherited from the guard */
    if (loop_new(&l.loop, e) != 0)
        return -1;
    l.reconnect = loop_timer_new(l.loop, options->no_sidecar ? start_alone : connect_sidecar, &l);
    l.grace = loop_timer_new(l.loop, kill_all, &l);
    l.clear = loop_timer_new(l.loop, clear_descendants, &l);
    l.look = look_new(l.loop, on_stacks, &l);
    l.tail = options->no_sidecar ? NULL : tail_new(l.loop);
    int result = watch_signals(&l, e);
    loop_timer_at(l.reconnect, 0);
    if (result == 0)
        result = loop_run(l.loop, e);
    *ret_code = l.code;
    release(&l);
    return result;
}
