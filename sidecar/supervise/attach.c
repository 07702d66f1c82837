#include "sidecar/supervise/attach.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/ipc.h"
#include "base/log.h"
#include "base/mem.h"

#define CLIENTS_MAX 256
#define FLUSH_LOOK_MS 20
#define FLUSH_MAX_MS 3600000
#define ENVIRONMENT_MAX 65536

enum guest_kind { GUEST_UNKNOWN /* no HELLO yet */, GUEST_LAUNCHER, GUEST_CLIENT, GUEST_PARKED /* waits for a round */ };

struct guest {
    struct attach *attach;
    struct ipc *ipc;
    enum guest_kind kind;
    uint64_t fence;         /* client */
    uint64_t engine_client; /* client */
    int64_t flush_until_ms; /* 0: no flush is waited for */
    bool wants_restore;     /* the image is still being looked at */
    int32_t restore_image;
    uint64_t wants_slots;   /* bytes; the slots are still being made */
    char framework[33];     /* client */
    struct guest *next;
};

struct attach {
    struct loop *loop;
    struct attach_options options;
    struct attach_events events;
    char *path;
    int fd;
    struct loop_source *source;
    struct loop_timer *flush;
    struct guest *guests;
    struct guest *launcher; /* one of guests; NULL: none */
    bool had_launcher;
    size_t count, clients;
    uint64_t fence;
    uint32_t rank, size;
    int64_t resume_step;
    uint32_t hosts;         /* what the session's clients are told of workers that come and go; 0 = none do */
    bool admits;            /* the session's process runs: who waited for the round may enter */
};

/* ---- sending ---- */

static void say(struct guest *g, enum local_type type, const void *bytes, size_t len, const int *fds, size_t fd_count)
{
    struct error e = ERROR_INIT;

    if (ipc_send(g->ipc, (uint16_t)type, bytes, len, fds, fd_count, &e) != 0)
        log_warn_from("a process of the pod does not read", &e, KVI("pid", ipc_peer_pid(g->ipc)));
}

static void refuse(struct guest *g, uint32_t request, const char *text)
{
    auto_buf struct buf b = BUF_INIT(1024);

    buf_add_bytes(&b, &request, sizeof request);
    buf_addf(&b, "%.900s", text);
    say(g, LOCAL_REFUSED, b.text, b.len + 1, NULL, 0); /* with its NUL */
}

/* ---- the client's requests ---- */

static void flush_look(void *ctx)
{
    struct attach *a = ctx;
    bool idle = checkpoint_idle(a->options.checkpoint), waiting = false;
    int64_t now = clock_mono_ms();

    for (struct guest *g = a->guests; g != NULL; g = g->next) {
        if (g->flush_until_ms == 0)
            continue;
        if (!idle && now < g->flush_until_ms) {
            waiting = true;
            continue;
        }
        struct local_flushed flushed = { .committed_step = (uint64_t)checkpoint_committed_step(a->options.checkpoint), .ok = idle };
        g->flush_until_ms = 0;
        say(g, LOCAL_FLUSHED, &flushed, sizeof flushed, NULL, 0);
    }
    if (waiting)
        loop_timer_at(a->flush, now + FLUSH_LOOK_MS);
}

static void on_slots(struct guest *g, uint64_t image_bytes)
{
    struct error e = ERROR_INIT;
    int fds[2];
    uint64_t slot_bytes = 0;

    g->wants_slots = 0;
    if (checkpoint_slots(g->attach->options.checkpoint, image_bytes, fds, &slot_bytes, &e) != 0) {
        if (e.kind == ERROR_BUSY)
            g->wants_slots = image_bytes;
        else
            refuse(g, LOCAL_SLOTS, e.text);
        return;
    }
    struct local_slots_ready ready = { .count = 2, .slot_bytes = slot_bytes };
    say(g, LOCAL_SLOTS_READY, &ready, sizeof ready, fds, 2);
}

static void on_staged(struct guest *g, const struct local_staged *staged)
{
    struct error e = ERROR_INIT;

    if (staged->step > INT64_MAX || checkpoint_staged(g->attach->options.checkpoint, staged->slot, (int64_t)staged->step,
                                                      staged->image_bytes, &e) != 0) {
        log_warn("checkpoint not taken over", KVI("step", staged->step), KV("error", e.text));
        refuse(g, LOCAL_STAGED, e.kind != ERROR_NONE ? e.text : "the step is out of range");
    }
}

static void on_restore(struct guest *g, int32_t image)
{
    struct checkpoint_restore restore = { .found = false };
    struct local_restore_ready ready = { .found = 0 };
    struct error e = ERROR_INIT;
    uint64_t offset = 0, bytes = 0;
    bool from_memory = false;
    auto_close int fd = -1;

    g->wants_restore = false;
    if (checkpoint_open_restore(g->attach->options.checkpoint, image, &restore, &fd, &offset, &bytes, &from_memory, &e) != 0) {
        if (e.kind == ERROR_BUSY) {
            g->wants_restore = true;
            g->restore_image = image;
        } else {
            log_warn_from("checkpoint cannot be restored", &e);
            refuse(g, LOCAL_RESTORE, e.text);
        }
        return;
    }
    if (restore.found) {
        ready = (struct local_restore_ready){ .found = 1, .world = (uint32_t)restore.world, .step = (uint64_t)restore.step,
                                              .image_offset = offset, .image_bytes = bytes, .from_memory = from_memory };
    }
    say(g, LOCAL_RESTORE_READY, &ready, sizeof ready, &fd, fd >= 0 ? 1 : 0);
}

static void on_flush(struct guest *g, const struct local_flush *flush)
{
    int64_t wait = flush->timeout_ms < FLUSH_MAX_MS ? flush->timeout_ms : FLUSH_MAX_MS;

    g->flush_until_ms = clock_mono_ms() + wait;
    flush_look(g->attach);
}

static void on_timeline(struct guest *g, const struct local_timeline *t)
{
    struct attach *a = g->attach;
    struct error e = ERROR_INIT;
    char path[sizeof t->path + 1];

    (void)snprintf(path, sizeof path, "%.*s", (int)strnlen(t->path, sizeof t->path), t->path);
    if (a->events.timeline == NULL)
        refuse(g, LOCAL_TIMELINE, "this sidecar records no time line");
    else if (!a->events.timeline(a->events.ctx, t->on != 0, path, t->mark_cycles != 0, &e))
        refuse(g, LOCAL_TIMELINE, e.text);
}

static void on_report(struct guest *g, const struct ipc_message *m)
{
    struct attach *a = g->attach;
    struct error e = ERROR_INIT;
    bool taken = false;

    /* The text may carry the NUL that a C program sends with it. */
    size_t len = m->len > 0 && m->bytes[m->len - 1] == '\0' ? m->len - 1 : m->len;
    a->events.report(a->events.ctx, (const char *)m->bytes, len, &e, &taken);
    if (!taken)
        refuse(g, LOCAL_REPORT, e.text);
}

/* ---- hello ---- */

static int check_hello(uint32_t magic, uint32_t version, struct error *e)
{
    if (magic != LOCAL_MAGIC)
        return error_set(e, ERROR_INVALID, "the first message is no hello of this protocol");
    if (version != LOCAL_VERSION)
        return error_set(e, ERROR_INVALID, "it speaks version %u of the local protocol, this sidecar version %u: use one release",
                         version, LOCAL_VERSION);
    return 0;
}

static void tell_launcher(struct attach *a, const struct trainer_event *event)
{
    a->events.launcher(a->events.ctx, event);
}

static int launcher_hello(struct guest *g, const struct ipc_message *m, struct error *e)
{
    struct attach *a = g->attach;
    struct local_launcher_hello h;

    memcpy(&h, m->bytes, sizeof h);
    if (check_hello(h.magic, h.version, e) != 0)
        return -1;
    if (a->launcher != NULL) {
        refuse(g, LOCAL_LAUNCHER_HELLO, "another launcher is connected to this sidecar: a pod has one");
        return error_set(e, ERROR_CONFLICT, "a second launcher came while one is connected");
    }
    g->kind = GUEST_LAUNCHER;
    a->launcher = g;
    a->had_launcher = true;
    struct trainer_event event = { .kind = TRAINER_HELLO, .hello = &h };
    tell_launcher(a, &event);
    return 0;
}

static void say_hosts(struct guest *g)
{
    struct local_hosts hosts = { .bits = g->attach->hosts };

    say(g, LOCAL_HOSTS, &hosts, sizeof hosts, NULL, 0);
}

/* Makes a guest a client of the current session. */
static void enter(struct guest *g)
{
    struct attach *a = g->attach;
    struct local_client_ready ready = { .fence = a->fence, .rank = a->rank, .size = a->size, .local_rank = 0, .local_size = 1,
                                        .resume_step = a->resume_step };
    struct error why = ERROR_INIT;
    int fds[3];

    if (engine_attach(a->options.engine, a->fence, &g->engine_client, fds, &ready.shm_bytes, &why) != 0) {
        log_warn_from("client not attached", &why, KVI("pid", ipc_peer_pid(g->ipc)));
        refuse(g, LOCAL_CLIENT_HELLO, why.text);
        return;
    }
    g->kind = GUEST_CLIENT;
    g->fence = a->fence;
    (void)snprintf(ready.job, sizeof ready.job, "%s", a->options.job);
    say(g, LOCAL_CLIENT_READY, &ready, sizeof ready, fds, 3);
    a->clients++;
    if (a->hosts != 0)
        say_hosts(g);
    a->events.clients(a->events.ctx, a->clients, g->framework);
}

static bool somebody_is_parked(const struct attach *a)
{
    for (const struct guest *g = a->guests; g != NULL; g = g->next) {
        if (g->kind == GUEST_PARKED)
            return true;
    }
    return false;
}

static void tell_parked(struct attach *a, bool waits)
{
    if (a->events.parked != NULL)
        a->events.parked(a->events.ctx, waits);
}

/* Its round was lost, and it has stayed: it enters the next one, now or when it begins. */
static void wait_for_round(struct guest *g, uint64_t lost)
{
    struct attach *a = g->attach;

    g->fence = lost;
    if (a->fence > lost && a->admits) {
        enter(g);
        return;
    }
    bool first = !somebody_is_parked(a);
    g->kind = GUEST_PARKED;
    if (first)
        tell_parked(a, true);
}

void attach_admit(struct attach *a)
{
    a->admits = true;
    for (struct guest *g = a->guests; g != NULL; g = g->next) {
        if (g->kind == GUEST_PARKED)
            enter(g);
    }
}

static int client_hello(struct guest *g, const struct ipc_message *m, struct error *e)
{
    struct attach *a = g->attach;
    struct local_client_hello h;
    char text[256];

    memcpy(&h, m->bytes, sizeof h);
    if (check_hello(h.magic, h.version, e) != 0)
        return -1;
    (void)snprintf(g->framework, sizeof g->framework, "%.*s", (int)strnlen(h.framework, sizeof h.framework), h.framework);
    if (h.next_round != 0 && a->options.elastic && a->options.engine != NULL) {
        wait_for_round(g, h.fence);
        return 0;
    }
    if (h.next_round != 0) {
        refuse(g, LOCAL_CLIENT_HELLO, "the job has no elasticPolicy: after a loss its processes have to end, and are started again");
        return 0;
    }
    if (h.fence != a->fence || a->fence == 0 || a->options.engine == NULL) {
        char theirs[PEER_FENCE_TEXT_MAX], ours[PEER_FENCE_TEXT_MAX];
        (void)snprintf(text, sizeof text, "this process belongs to %s, the job is at %s: it has to end", peer_fence_text(h.fence, theirs),
                       peer_fence_text(a->fence, ours));
        refuse(g, LOCAL_CLIENT_HELLO, text);
        return 0; /* it may read the answer, then it closes */
    }
    enter(g);
    return 0;
}

static void probe(struct guest *g)
{
    struct attach *a = g->attach;
    struct local_probed probed = { .launcher = a->launcher != NULL, .member = a->events.is_member(a->events.ctx) };

    say(g, LOCAL_PROBED, &probed, sizeof probed, NULL, 0);
}

/* ---- messages ---- */

/* The size that a message must at least have (fields are only ever appended); SIZE_MAX: not allowed from this guest. */
static size_t least_size(enum guest_kind kind, uint16_t type)
{
    static const struct { uint16_t type; enum guest_kind from; size_t size; } table[] = {
        { LOCAL_LAUNCHER_HELLO, GUEST_UNKNOWN, sizeof(struct local_launcher_hello) },
        { LOCAL_CLIENT_HELLO, GUEST_UNKNOWN, sizeof(struct local_client_hello) },
        { LOCAL_PROBE, GUEST_UNKNOWN, 0 },
        { LOCAL_STARTED, GUEST_LAUNCHER, sizeof(struct local_started) },
        { LOCAL_EXITED, GUEST_LAUNCHER, sizeof(struct local_exited) },
        { LOCAL_SIGNALLED, GUEST_LAUNCHER, sizeof(struct local_signalled) },
        { LOCAL_SIGNS, GUEST_LAUNCHER, sizeof(struct local_signs) },
        { LOCAL_STACKS, GUEST_LAUNCHER, sizeof(uint32_t) },
        { LOCAL_REPORT, GUEST_CLIENT, 1 },
        { LOCAL_SLOTS, GUEST_CLIENT, sizeof(struct local_slots) },
        { LOCAL_STAGED, GUEST_CLIENT, sizeof(struct local_staged) },
        { LOCAL_RESTORE, GUEST_CLIENT, 0 },
        { LOCAL_FLUSH, GUEST_CLIENT, sizeof(struct local_flush) },
        { LOCAL_FINISHED, GUEST_CLIENT, sizeof(struct local_finished) },
        { LOCAL_TIMELINE, GUEST_CLIENT, sizeof(struct local_timeline) },
        { LOCAL_LISTEN, GUEST_CLIENT, 0 },
    };

    for (size_t i = 0; i < COUNT(table); i++) {
        if (table[i].type == type && table[i].from == kind)
            return table[i].size;
    }
    return SIZE_MAX;
}

/* What the processes said before they ended is on other sockets: it counts before their end does, or a last report and a
 * staged checkpoint would be lost to the order of two descriptors. */
static void hear_clients(struct attach *a)
{
    for (struct guest *g = a->guests, *next; g != NULL; g = next) {
        next = g->next; /* only g itself can go away in it */
        if (g->kind == GUEST_CLIENT)
            ipc_drain(g->ipc);
    }
}

static void launcher_looked(const struct attach_events *events, const struct ipc_message *m)
{
    struct local_signs signs = { .number = 0 };

    memcpy(&signs, m->bytes, m->type == LOCAL_SIGNS ? sizeof signs : sizeof signs.number);
    if (m->type == LOCAL_SIGNS && events->signs != NULL)
        events->signs(events->ctx, &signs);
    else if (m->type == LOCAL_STACKS && events->stacks != NULL)
        events->stacks(events->ctx, (const char *)m->bytes + sizeof signs.number, m->len - sizeof signs.number);
}

static void launcher_message(struct guest *g, const struct ipc_message *m)
{
    struct local_started started;
    struct local_exited exited;
    struct trainer_event event = { .kind = TRAINER_SIGNALLED };

    if (m->type == LOCAL_SIGNS || m->type == LOCAL_STACKS) {
        launcher_looked(&g->attach->events, m);
        return;
    } else if (m->type == LOCAL_STARTED) {
        memcpy(&started, m->bytes, sizeof started);
        event = (struct trainer_event){ .kind = TRAINER_STARTED, .started = &started };
    } else if (m->type == LOCAL_EXITED) {
        hear_clients(g->attach);
        memcpy(&exited, m->bytes, sizeof exited);
        event = (struct trainer_event){ .kind = TRAINER_EXITED, .exited = &exited };
    }
    tell_launcher(g->attach, &event);
}

static void client_message(struct guest *g, const struct ipc_message *m)
{
    union { struct local_slots slots; struct local_staged staged; struct local_flush flush; struct local_finished finished;
            struct local_timeline timeline; struct local_restore restore; } u;

    if (g->fence != g->attach->fence && m->type != LOCAL_REPORT) {
        refuse(g, m->type, "the round of this process is over: it has to end");
        return;
    }
    memset(&u, 0, sizeof u);
    memcpy(&u, m->bytes, m->len < sizeof u ? m->len : sizeof u);
    switch (m->type) {
    case LOCAL_REPORT:
        on_report(g, m);
        break;
    case LOCAL_SLOTS:
        on_slots(g, u.slots.image_bytes);
        break;
    case LOCAL_STAGED:
        on_staged(g, &u.staged);
        break;
    case LOCAL_RESTORE:
        if (m->len < sizeof u.restore)
            u.restore.image = g->attach->rank;
        on_restore(g, u.restore.image <= INT32_MAX ? (int32_t)u.restore.image : -1);
        break;
    case LOCAL_FLUSH:
        on_flush(g, &u.flush);
        break;
    case LOCAL_TIMELINE:
        on_timeline(g, &u.timeline);
        break;
    case LOCAL_LISTEN:
        if (g->attach->events.listens != NULL)
            g->attach->events.listens(g->attach->events.ctx);
        break;
    case LOCAL_FINISHED:
        log_info("training loop finished", KVI("step", u.finished.step));
        break;
    default:
        break;
    }
}

static int handle(struct guest *g, const struct ipc_message *m, struct error *e)
{
    size_t least = least_size(g->kind, m->type);

    if (least == SIZE_MAX)
        return error_set(e, ERROR_INVALID, "message type %u is not allowed here", m->type);
    if (m->len < least)
        return error_set(e, ERROR_INVALID, "message type %u has %zu bytes, at least %zu are needed", m->type, m->len, least);
    if (m->type == LOCAL_LAUNCHER_HELLO)
        return launcher_hello(g, m, e);
    if (m->type == LOCAL_CLIENT_HELLO)
        return client_hello(g, m, e);
    if (m->type == LOCAL_PROBE)
        probe(g);
    else if (g->kind == GUEST_LAUNCHER)
        launcher_message(g, m);
    else
        client_message(g, m);
    return 0;
}

/* ---- connections ---- */

static void drop(struct guest *g)
{
    struct attach *a = g->attach;
    struct guest **at = &a->guests;
    enum guest_kind kind = g->kind;

    while (*at != g)
        at = &(*at)->next;
    *at = g->next;
    a->count--;
    if (kind == GUEST_CLIENT)
        engine_detach(a->options.engine, g->engine_client);
    if (a->launcher == g)
        a->launcher = NULL;
    ipc_free(g->ipc);
    free(g);
    if (kind == GUEST_PARKED && !somebody_is_parked(a)) {
        tell_parked(a, false);
    } else if (kind == GUEST_CLIENT) {
        a->clients--;
        a->events.clients(a->events.ctx, a->clients, NULL);
    } else if (kind == GUEST_LAUNCHER) {
        struct trainer_event event = { .kind = TRAINER_GONE };
        tell_launcher(a, &event);
    }
}

static void on_guest(void *ctx, struct ipc *c, struct ipc_message *message, const struct error *why)
{
    struct guest *g = ctx;
    struct error e = ERROR_INIT;

    (void)c;
    if (message != NULL && handle(g, message, &e) == 0)
        return;
    if (message == NULL)
        e = *why;
    if (e.kind != ERROR_NONE)
        log_warn_from("connection of a local process closed", &e, KVI("pid", ipc_peer_pid(g->ipc)));
    drop(g);
}

static int may_attach(const struct attach *a, int fd, struct error *e)
{
    struct ucred cred = { .uid = (uid_t)-1 };
    socklen_t len = sizeof cred;

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) != 0)
        return error_errno(e, "ask who connects");
    if (a->options.access == ATTACH_POD)
        return 0;
    if (cred.uid != geteuid() && cred.uid != 0)
        return error_set(e, ERROR_DENIED, "process %d of user %u connects to the sidecar of user %u: run both as one user",
                         (int)cred.pid, (unsigned)cred.uid, (unsigned)geteuid());
    return 0;
}

static void on_accept(void *ctx, int listening, unsigned events)
{
    struct attach *a = ctx;
    struct error e = ERROR_INIT;

    (void)events;
    int fd = accept4(listening, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0)
        return;
    if (a->count >= CLIENTS_MAX || may_attach(a, fd, &e) != 0) {
        if (e.kind == ERROR_NONE)
            (void)error_set(&e, ERROR_LIMIT, "more than %d local connections", CLIENTS_MAX);
        log_warn_from("local process refused", &e);
        (void)close(fd);
        return;
    }
    struct guest *g = xcalloc(1, sizeof *g);
    g->attach = a;
    if (ipc_new(a->loop, fd, on_guest, g, &g->ipc, &e) != 0) {
        log_warn_from("local connection not taken", &e);
        (void)close(fd);
        free(g);
        return;
    }
    g->next = a->guests;
    a->guests = g;
    a->count++;
}

/* ---- words ---- */

void attach_session(struct attach *a, uint64_t fence, uint32_t rank, uint32_t size, int64_t resume_step)
{
    a->fence = fence;
    a->rank = rank;
    a->size = size;
    a->resume_step = resume_step;
    a->hosts = 0;
    a->admits = false; /* not before its process is to run */
}

void attach_start(struct attach *a, uint64_t fence, const char *environment, size_t len)
{
    auto_buf struct buf b = BUF_INIT(ENVIRONMENT_MAX);

    if (a->launcher == NULL)
        return;
    buf_add_bytes(&b, &fence, sizeof fence);
    buf_add_bytes(&b, environment, len);
    if (buf_ok(&b))
        say(a->launcher, LOCAL_START, b.text, b.len, NULL, 0);
}

void attach_stop(struct attach *a, uint64_t fence, uint32_t grace_ms)
{
    struct local_stop stop = { .fence = fence, .grace_ms = grace_ms };

    if (a->launcher != NULL)
        say(a->launcher, LOCAL_STOP, &stop, sizeof stop, NULL, 0);
}

void attach_leave(struct attach *a, int32_t code)
{
    struct local_leave word = { .exit_code = code };

    if (a->launcher != NULL)
        say(a->launcher, LOCAL_LEAVE, &word, sizeof word, NULL, 0);
}

void attach_hosts(struct attach *a, uint32_t bits)
{
    a->hosts = bits;
    for (struct guest *g = a->guests; g != NULL; g = g->next) {
        if (g->kind == GUEST_CLIENT && g->fence == a->fence)
            say_hosts(g);
    }
}

bool attach_look(struct attach *a, uint32_t what)
{
    struct local_look look = { .what = what };

    if (a->launcher != NULL)
        say(a->launcher, LOCAL_LOOK, &look, sizeof look, NULL, 0);
    return a->launcher != NULL;
}

void attach_committed(struct attach *a, int64_t step)
{
    struct local_committed committed = { .step = (uint64_t)step };

    for (struct guest *g = a->guests; g != NULL; g = g->next) {
        if (g->kind == GUEST_CLIENT)
            say(g, LOCAL_COMMITTED, &committed, sizeof committed, NULL, 0);
    }
    flush_look(a);
}

void attach_ready(struct attach *a)
{
    for (struct guest *g = a->guests; g != NULL; g = g->next) {
        if (g->wants_restore)
            on_restore(g, g->restore_image);
        if (g->wants_slots > 0)
            on_slots(g, g->wants_slots);
    }
}

void attach_save(struct attach *a)
{
    for (struct guest *g = a->guests; g != NULL; g = g->next) {
        if (g->kind == GUEST_CLIENT)
            say(g, LOCAL_SAVE, NULL, 0, NULL, 0);
    }
}

/* Who connects before that is refused by the kernel and tries again. */
static int open_to_pod(const struct attach *a, struct error *e)
{
    if (a->options.access == ATTACH_POD && chmod(a->path, 0666) != 0)
        return error_errno(e, "let the pod's users connect to %s", a->path);
    return 0;
}

int attach_new(struct loop *l, const struct attach_options *options, const struct attach_events *events, struct attach **ret,
               struct error *e)
{
    struct attach *a = xcalloc(1, sizeof *a);

    *a = (struct attach){ .loop = l, .options = *options, .events = *events, .path = xstrdup(options->path), .fd = -1, .resume_step = -1 };
    a->flush = loop_timer_new(l, flush_look, a);
    if (ipc_listen(options->path, &a->fd, e) != 0 || open_to_pod(a, e) != 0 || loop_add(l, a->fd, LOOP_READ, on_accept, a, &a->source, e) != 0) {
        if (a->fd < 0) { /* the socket file is somebody else's */
            free(a->path);
            a->path = NULL;
        }
        attach_free(a);
        return -1;
    }
    *ret = a;
    return 0;
}

bool attach_launcher_is_gone(const struct attach *a)
{
    return a->had_launcher && a->launcher == NULL;
}

void attach_free(struct attach *a)
{
    if (a == NULL)
        return;
    while (a->guests != NULL) {
        struct guest *g = a->guests;
        a->guests = g->next;
        if (g->kind == GUEST_CLIENT)
            engine_detach(a->options.engine, g->engine_client);
        ipc_free(g->ipc);
        free(g);
    }
    loop_timer_free(a->flush);
    loop_remove(a->source);
    if (a->fd >= 0)
        (void)close(a->fd);
    if (a->path != NULL)
        (void)unlink(a->path);
    free(a->path);
    free(a);
}
