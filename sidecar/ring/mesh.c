#include "sidecar/ring/mesh.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "sidecar/ring/engine.h"
#include "sidecar/ring/pipe.h"
#include "sidecar/ring/pulse.h"

struct mesh {
    struct loop *loop;
    struct mesh_shape shape;
    struct mesh_events events;
    struct mesh_lane *lanes;   /* [rank * shape.lanes + lane] */
    bool stopped;
    bool asleep;               /* the others were told to wake us */
};

/* ---- life ---- */

struct mesh *mesh_new(struct loop *loop, const struct mesh_shape *shape, const struct mesh_events *events)
{
    struct mesh *m = xcalloc(1, sizeof *m);
    size_t count = (size_t)shape->size * (size_t)shape->lanes;

    m->loop = loop;
    m->shape = *shape;
    if (events != NULL)
        m->events = *events;
    m->lanes = xcalloc(count, sizeof *m->lanes);
    for (size_t i = 0; i < count; i++)
        m->lanes[i] = (struct mesh_lane){ .fd = -1, .rank = (int32_t)(i / (size_t)shape->lanes), .mesh = m };
    return m;
}

static size_t lane_count(const struct mesh *m)
{
    return (size_t)m->shape.size * (size_t)m->shape.lanes;
}

void mesh_stop(struct mesh *m)
{
    m->stopped = true;
    for (size_t i = 0; i < lane_count(m); i++) {
        link_cancel(TAKE(m->lanes[i].dialling));
        loop_remove(TAKE(m->lanes[i].source));
    }
}

void mesh_free(struct mesh *m)
{
    if (m == NULL)
        return;
    mesh_stop(m);
    for (size_t i = 0; i < lane_count(m); i++) {
        if (m->lanes[i].fd >= 0)
            (void)close(m->lanes[i].fd);
        pipe_free(m->lanes[i].pipe);
    }
    free(m->lanes);
    free(m);
}

int32_t mesh_lanes(const struct mesh *m)
{
    return m->shape.lanes;
}

struct mesh_lane *mesh_lane(struct mesh *m, int32_t rank, int32_t lane)
{
    return &m->lanes[(size_t)rank * (size_t)m->shape.lanes + (size_t)lane];
}

static void lost(struct mesh *m, int32_t rank, bool gone, const char *why)
{
    if (!m->stopped)
        m->events.on_lost(m->events.ctx, rank, gone, why);
}

/* ---- what the kernel says ---- */

/* The other end has closed. What it sent before that is still to be read, perhaps by a collective that has not begun. */
static void look_at_end(struct mesh_lane *l)
{
    uint8_t bytes[PEER_HEADER_BYTES];
    struct peer_frame frame;
    struct error ignored = ERROR_INIT;

    ssize_t n = recv(l->fd, bytes, sizeof bytes, MSG_PEEK | MSG_DONTWAIT);
    if (n == 0)
        lost(l->mesh, l->rank, false, "connection closed");
    else if (n < 0 && errno != EAGAIN && errno != EINTR)
        lost(l->mesh, l->rank, false, strerror(errno));
    else if (n == PEER_HEADER_BYTES && peer_frame_decode(bytes, PEER_MAX_CONTROL, &frame, &ignored) == 0 &&
             frame.type == PEER_FENCED)
        lost(l->mesh, l->rank, true, "this rank is behind: the group has gone on without it");
}

/* The connection of a pipe: a byte wakes us, the end is the other's end. */
static void on_pipe_io(struct mesh_lane *l)
{
    uint8_t bytes[PEER_HEADER_BYTES];
    struct peer_frame frame;
    struct error ignored = ERROR_INIT;
    struct mesh *m = l->mesh;
    ssize_t n;

    while ((n = recv(l->fd, bytes, sizeof bytes, MSG_DONTWAIT)) > 0) {
        if (n == PEER_HEADER_BYTES && peer_frame_decode(bytes, PEER_MAX_CONTROL, &frame, &ignored) == 0 && frame.type == PEER_FENCED) {
            lost(m, l->rank, true, "this rank is behind: the group has gone on without it");
            return;
        }
    }
    int code = errno;
    l->closed = n == 0 || (code != EAGAIN && code != EINTR);
    l->readable = l->writable = true;
    m->events.on_ready(m->events.ctx);
    if (l->closed && !m->stopped && !pipe_can_read(l->pipe))
        lost(m, l->rank, false, n == 0 ? "connection closed" : strerror(code));
}

/* Edges: the flags stay up until a call finds nothing to do. */
static void on_io(void *ctx, int fd, unsigned events)
{
    struct mesh_lane *l = ctx;
    struct mesh *m = l->mesh;

    (void)fd;
    if (l->pipe != NULL) {
        if (events & (LOOP_READ | LOOP_HANGUP))
            on_pipe_io(l);
        return;
    }
    if (events & (LOOP_READ | LOOP_HANGUP))
        l->readable = true;
    if (events & (LOOP_WRITE | LOOP_HANGUP))
        l->writable = true;
    m->events.on_ready(m->events.ctx);
    if ((events & LOOP_HANGUP) && !m->stopped)
        look_at_end(l);
}

/* The name is the same on both ends: the round, the lower and the higher rank, the lane. */
static void pipe_path(const struct mesh_lane *l, char *ret_path, size_t size)
{
    const struct mesh *m = l->mesh;
    int32_t low = l->rank < m->shape.rank ? l->rank : m->shape.rank, high = l->rank < m->shape.rank ? m->shape.rank : l->rank;

    (void)snprintf(ret_path, size, "%s/ring-%llx-%d-%d-%d", m->shape.memory_dir, (unsigned long long)m->shape.fence, low, high,
                   (int)((l - m->lanes) % m->shape.lanes));
}

static int place(struct mesh_lane *l, int fd, struct error *e)
{
    char path[4200];

    if (l->mesh->shape.memory_dir != NULL && l->pipe == NULL) { /* who dialled has made it */
        pipe_path(l, path, sizeof path);
        if (pipe_open(path, &l->pipe, e) < 0)
            return -1;
    }
    if (l->pipe != NULL)
        pipe_sleeps(l->pipe, l->mesh->asleep);
    if (l->mesh->loop != NULL &&
        loop_add(l->mesh->loop, fd, LOOP_READ | LOOP_WRITE | LOOP_EDGE, on_io, l, &l->source, e) < 0)
        return -1;
    l->fd = fd;
    l->readable = l->writable = true;
    return 0;
}

bool mesh_put(struct mesh *m, int32_t rank, uint32_t lane, int fd)
{
    struct error e = ERROR_INIT;

    if (m->stopped || rank < 0 || rank >= m->shape.size || rank == m->shape.rank || lane >= (uint32_t)m->shape.lanes)
        return false;
    struct mesh_lane *l = mesh_lane(m, rank, (int32_t)lane);
    if (l->fd >= 0 || l->dialling != NULL)
        return false;
    if (place(l, fd, &e) == 0)
        return true;
    log_warn_from("a data connection cannot be used", &e, KVI("rank", rank));
    return false;
}

/* ---- dialling ---- */

static void on_dialled(void *ctx, int fd, const struct peer_hello *peer, const struct error *why)
{
    struct mesh_lane *l = ctx;
    struct mesh *m = l->mesh;
    struct error e = ERROR_INIT;

    l->dialling = NULL;
    if (fd < 0) {
        lost(m, l->rank, why->kind == ERROR_GONE, why->text);
        return;
    }
    if (strcmp(peer->member, m->shape.members[l->rank].member) != 0)
        (void)error_set(&e, ERROR_DENIED, "\"%s\" answers at its address", peer->member);
    if (e.kind != ERROR_NONE || place(l, fd, &e) < 0) {
        (void)close(fd);
        lost(m, l->rank, false, e.text);
        return;
    }
    m->events.on_ready(m->events.ctx);
}

static void dial(struct mesh *m, int32_t rank)
{
    const struct ring_member *to = &m->shape.members[rank];
    struct error e = ERROR_INIT;

    for (int32_t i = 0; i < m->shape.lanes && !m->stopped; i++) {
        struct mesh_lane *l = mesh_lane(m, rank, i);
        if (l->fd >= 0 || l->dialling != NULL)
            continue;
        char path[4200];
        pipe_path(l, path, sizeof path);
        if ((m->shape.memory_dir != NULL && l->pipe == NULL && pipe_create(path, &l->pipe, &e) < 0) ||
            link_dial(m->loop, m->shape.self, to->host, to->port, PEER_DATA, (uint32_t)i, m->shape.fence,
                      clock_mono_ms() + m->shape.timeout_ms, on_dialled, l, &l->dialling, &e) < 0)
            lost(m, rank, false, e.text);
    }
}

/* Joined at forming? */
static bool is_joined(const struct mesh *m, int32_t rank)
{
    int32_t apart = abs(rank - m->shape.rank);

    return apart > 0 && (m->shape.size <= MESH_FULL || apart == 1 || apart == m->shape.size - 1);
}

void mesh_dial(struct mesh *m)
{
    for (int32_t r = 0; r < m->shape.rank && !m->stopped; r++) {
        if (is_joined(m, r))
            dial(m, r);
    }
}

static bool is_there(const struct mesh *m, int32_t rank)
{
    for (int32_t i = 0; i < m->shape.lanes; i++) {
        if (m->lanes[(size_t)rank * (size_t)m->shape.lanes + (size_t)i].fd < 0)
            return false;
    }
    return true;
}

int32_t mesh_missing(const struct mesh *m)
{
    for (int32_t r = 0; r < m->shape.size; r++) {
        if (is_joined(m, r) && !is_there(m, r))
            return r;
    }
    return -1;
}

bool mesh_need(struct mesh *m, int32_t rank)
{
    if (is_there(m, rank))
        return true;
    if (rank < m->shape.rank)
        dial(m, rank);
    return false;
}

/* ---- bytes ---- */

static ssize_t failed(struct error *e, ssize_t n)
{
    if (n == 0) {
        (void)error_set(e, ERROR_PEER_LOST, "connection closed");
        return -1;
    }
    int code = errno;
    (void)error_set(e, ERROR_PEER_LOST, "%s", strerror(code));
    e->os_errno = code;
    return -1;
}

/* ---- pipes ---- */

static void wake_other(const struct mesh_lane *l)
{
    uint8_t one = 1;

    (void)!send(l->fd, &one, sizeof one, MSG_DONTWAIT | MSG_NOSIGNAL); /* full: it has not read the earlier ones yet */
}

static ssize_t pipe_moved(struct mesh_lane *l, ssize_t n, bool wake, bool *flag, struct error *e)
{
    if (wake)
        wake_other(l);
    if (n < 0)
        return error_set(e, ERROR_INVALID, "it broke the memory that both share");
    if (n == 0 && l->closed)
        return failed(e, 0);
    if (n == 0)
        *flag = false;
    return n;
}

static ssize_t pipe_send(struct mesh_lane *l, const struct iovec *parts, size_t count, struct error *e)
{
    bool wake;
    ssize_t n = pipe_write(l->pipe, parts, count, &wake);

    return pipe_moved(l, n, wake, &l->writable, e);
}

static ssize_t pipe_receive(struct mesh_lane *l, const struct iovec *parts, size_t count, struct error *e)
{
    bool wake;
    ssize_t n = pipe_read(l->pipe, parts, count, &wake);

    if (n > 0)
        pulse_heard(l->mesh->shape.pulse, l->rank);
    return pipe_moved(l, n, wake, &l->readable, e);
}

bool mesh_look(struct mesh *m)
{
    bool some = false;

    for (size_t i = 0; m->shape.memory_dir != NULL && !m->stopped && i < lane_count(m); i++) {
        struct mesh_lane *l = &m->lanes[i];
        if (l->pipe == NULL || l->fd < 0)
            continue;
        if ((!l->readable && pipe_can_read(l->pipe)) || (!l->writable && pipe_can_write(l->pipe)))
            some = l->readable = l->writable = true;
    }
    if (some)
        m->events.on_ready(m->events.ctx);
    return some;
}

static void tell_sleep(struct mesh *m, bool sleeps)
{
    m->asleep = sleeps;
    for (size_t i = 0; i < lane_count(m); i++) {
        if (m->lanes[i].pipe != NULL)
            pipe_sleeps(m->lanes[i].pipe, sleeps);
    }
}

bool mesh_sleep(struct mesh *m)
{
    if (m->shape.memory_dir == NULL || m->stopped)
        return true;
    tell_sleep(m, true);
    if (!mesh_look(m))
        return true;
    tell_sleep(m, false);
    return false;
}

void mesh_wake(struct mesh *m)
{
    if (m->asleep)
        tell_sleep(m, false);
}

ssize_t mesh_send(struct mesh_lane *l, const struct iovec *parts, size_t count, struct error *e)
{
    /* msghdr is not const-correct; nothing is written through it. */
    struct msghdr message = { .msg_iov = (struct iovec *)(uintptr_t)parts, .msg_iovlen = count };
    if (l->pipe != NULL)
        return pipe_send(l, parts, count, e);
    ssize_t n = sendmsg(l->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);

    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        l->writable = errno != EAGAIN;
        return 0;
    }
    return n < 0 ? failed(e, n) : n;
}

ssize_t mesh_receive(struct mesh_lane *l, const struct iovec *parts, size_t count, struct error *e)
{
    struct msghdr message = { .msg_iov = (struct iovec *)(uintptr_t)parts, .msg_iovlen = count };
    if (l->pipe != NULL)
        return pipe_receive(l, parts, count, e);
    ssize_t n = recvmsg(l->fd, &message, MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        l->readable = errno != EAGAIN;
        return 0;
    }
    if (n <= 0)
        return failed(e, n);
    pulse_heard(l->mesh->shape.pulse, l->rank);
    return n;
}
