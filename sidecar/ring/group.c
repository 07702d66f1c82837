/* Connections to the other ranks: forming a group, and losing it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "sidecar/ring/engine_private.h"

#define RULING_MS 60 /* rank 0 hears of a loss within a round trip, or is gone itself */

static int32_t rank_of(const struct group *p, const char *member)
{
    for (int32_t r = 0; r < p->size; r++) {
        if (strcmp(p->names[r], member) == 0)
            return r;
    }
    return -1;
}

bool group_is_ready(const struct engine *g, uint64_t client_fence)
{
    return g->group != NULL && g->group->state == GROUP_FORMED && g->group->fence == client_fence;
}

/* ---- the end of a group ---- */

static void notify_lost(struct engine *g, uint64_t fence, int32_t rank, const char *text)
{
    struct notice n = { .kind = NOTICE_LOST, .fence = fence, .rank = rank };

    (void)snprintf(n.text, sizeof n.text, "%s", text);
    engine_notify(g, &n);
}

static void end_clients(struct engine *g, uint64_t fence, const char *text)
{
    if (fence > g->over_fence) { /* the first reason is the one that later requests of that round hear */
        g->over_fence = fence;
        (void)snprintf(g->over_text, sizeof g->over_text, "%s", text);
    }
    requests_fail(g, fence, SHM_PEER_LOST, text);
}

/* Rank 0 hears of every loss and tells everyone, so that all ranks name the same culprit. */
static void spread(struct group *p, int32_t rank, const char *text)
{
    auto_buf struct buf b = BUF_INIT(1024);

    lost_encode(&b, rank, text);
    for (int32_t i = 0; i < p->size; i++) {
        if (p->streams[i] != NULL)
            stream_send(p->streams[i], PEER_LOST, b.text, b.len);
    }
}

/* The connections stay open until the next round forms: a rank that has not heard of the loss yet must not take us for the one
 * that is lost. */
bool group_is_alive(const struct engine *g)
{
    return g->group != NULL && g->group->state < GROUP_ASKING;
}

/* Nothing goes on in it from here on. */
static void stop(struct engine *g)
{
    struct group *p = g->group;

    loop_timer_cancel(p->deadline);
    link_cancel(TAKE(p->dial_root));
    mesh_stop(p->mesh);
    execute_drop(g);
    pulse_rest(g->pulse, p->fence);
}

void group_lost_as(struct engine *g, int32_t rank, const char *text)
{
    struct group *p = g->group;

    if (p == NULL || p->state == GROUP_LOST)
        return;
    bool asked = p->state == GROUP_ASKING;
    p->state = GROUP_LOST;
    timeline_add(g->timeline, TRACE_RESET, "PEER_LOST", "", rank);
    loop_timer_cancel(p->ruling);
    stop(g);
    if (!asked)
        spread(p, rank, text);
    end_clients(g, p->fence, text);
    log_warn("ring lost", KVI("round", FENCE_ROUND(p->fence)), KVI("rank", rank), KV("error", text));
    notify_lost(g, p->fence, rank, text);
}

/* The same end of a connection looks different to those who read and those who write. */
static const char *in_words(const char *why)
{
    return strcmp(why, strerror(ECONNRESET)) == 0 || strcmp(why, strerror(EPIPE)) == 0 ? "connection closed" : why;
}

/* Several ranks notice a loss, each in its own way. What rank 0 makes of it is what all say, so it is told first and waited for. */
static void ask_root(struct engine *g, int32_t rank, const char *text)
{
    struct group *p = g->group;

    p->state = GROUP_ASKING;
    p->lost_rank = rank;
    (void)snprintf(p->lost_text, sizeof p->lost_text, "%s", text);
    stop(g);
    spread(p, rank, text);
    loop_timer_at(p->ruling, clock_mono_ms() + RULING_MS);
}

static void on_no_ruling(void *ctx)
{
    struct engine *g = ctx;

    group_lost_as(g, g->group->lost_rank, g->group->lost_text);
}

static void take_ruling(struct engine *g, const struct peer_frame *frame, const uint8_t *payload)
{
    struct error ignored = ERROR_INIT;
    char text[SHM_TEXT_MAX];
    int32_t rank;

    if (frame->type == PEER_LOST && lost_decode(payload, frame->length, g->group->size, &rank, text, &ignored) == 0)
        group_lost_as(g, rank, text);
}

void group_lost(struct engine *g, int32_t rank, const char *why)
{
    char text[SHM_TEXT_MAX];

    if (!group_is_alive(g)) {
        if (g->group != NULL && g->group->state == GROUP_ASKING && rank <= 0)
            on_no_ruling(g); /* it cannot come any more */
        return;
    }
    if (rank >= 0)
        (void)snprintf(text, sizeof text, "peer lost: rank %d (%s): %s", rank, g->group->names[rank], in_words(why));
    else
        (void)snprintf(text, sizeof text, "%s", why);
    if (g->group->rank != 0 && rank > 0 && g->group->streams[0] != NULL)
        ask_root(g, rank, text);
    else
        group_lost_as(g, rank, text);
}

void group_abort(struct engine *g, uint64_t fence, const char *text)
{
    if (g->top_fence < fence)
        g->top_fence = fence;
    if (g->group != NULL && g->group->fence <= fence)
        group_lost_as(g, -1, text);
    end_clients(g, fence, text);
}

void group_free(struct engine *g)
{
    struct group *p = g->group;

    if (p == NULL)
        return;
    execute_drop(g);
    link_cancel(p->dial_root);
    mesh_free(p->mesh);
    for (int32_t i = 0; i < p->size; i++)
        stream_free(p->streams[i]);
    loop_timer_free(p->deadline);
    loop_timer_free(p->ruling);
    negotiation_free(p->negotiation);
    process_sets_free(p->sets);
    loop_timer_free(p->stalls);
    selftest_free(p->selftest);
    buf_release(&p->announcements);
    free(p->everyone);
    free(p->streams);
    free(p->names);
    free(p->members);
    free(p);
    g->group = NULL;
}

/* ---- forming ---- */

/* The first rank whose connection is missing, and which one; -1: all are there. */
static int32_t missing(const struct group *p, const char **ret_what)
{
    *ret_what = "data connection";
    if (mesh_missing(p->mesh) >= 0)
        return mesh_missing(p->mesh);
    *ret_what = "engine connection";
    for (int32_t i = p->rank == 0 ? 1 : 0; i < (p->rank == 0 ? p->size : 1); i++) {
        if (p->streams[i] == NULL)
            return i;
    }
    return -1;
}

static void on_deadline(void *ctx)
{
    struct engine *g = ctx;
    const char *what;
    char why[SHM_TEXT_MAX];
    int32_t rank = missing(g->group, &what);
    double seconds = (double)g->options.connect_timeout_ms / 1000;

    if (rank >= 0) {
        (void)snprintf(why, sizeof why, "its %s did not come within %.1f s", what, seconds);
        group_lost(g, rank, why);
    } else {
        (void)snprintf(why, sizeof why, "cannot form the ring: the self-test did not end within %.1f s", seconds);
        group_lost(g, -1, why);
    }
}

static void begin_test_when_complete(struct engine *g)
{
    struct group *p = g->group;
    const char *what;

    if (p->state != GROUP_FORMING || missing(p, &what) >= 0)
        return;
    p->state = GROUP_TESTING;
    p->selftest = selftest_new(g);
    execute_flush(g);
}

void group_tested(struct engine *g, bool ok)
{
    struct group *p = g->group;
    struct notice n = { .kind = NOTICE_FORMED, .fence = p->fence, .ok = ok,
                        .seconds = (double)(clock_mono_ms() - p->began_ms) / 1000 };

    p->state = GROUP_FORMED;
    loop_timer_cancel(p->deadline);
    log_info("ring formed", KVI("round", FENCE_ROUND(p->fence)), KVI("rank", p->rank), KVI("size", p->size),
             KV("self_test", ok ? "ok" : "failed"), KVI("ms", clock_mono_ms() - p->began_ms));
    engine_notify(g, &n);
    order_watch(g);
    for (struct request *q = g->requests, *next; q != NULL; q = next) {
        next = q->next; /* one that turns out to be wrong is answered, and gone */
        if (q->client != NULL && q->client->fence == p->fence && !q->announced)
            order_announce(g, q);
    }
}

/* ---- what the connections say ---- */

static void on_stream(void *ctx, struct stream *s, const struct peer_frame *frame, const uint8_t *payload, const struct error *why)
{
    struct engine *g = ctx;
    struct group *p = g->group;
    int32_t from = 0;

    for (int32_t i = 1; i < p->size; i++) {
        if (p->streams[i] == s)
            from = i;
    }
    if (frame != NULL) {
        if (p->state == GROUP_ASKING)
            take_ruling(g, frame, payload);
        else if (p->state != GROUP_LOST)
            order_frame(g, from, frame, payload);
        return;
    }
    group_lost(g, why->kind == ERROR_GONE ? -1 : from, why->text);
    p->streams[from] = NULL;
    stream_free(s);
}

static void on_mesh_ready(void *ctx)
{
    struct engine *g = ctx;

    if (g->group->state == GROUP_FORMING)
        begin_test_when_complete(g);
    else
        execute_advance(g);
}

static void on_mesh_lost(void *ctx, int32_t rank, bool gone, const char *why)
{
    group_lost(ctx, gone ? -1 : rank, why);
}

/* ---- connections that come ---- */

static void fence_off(struct engine *g, int fd, const struct peer_hello *hello)
{
    uint8_t bytes[PEER_HEADER_BYTES + 8];
    uint64_t mine = g->group != NULL ? g->group->fence : g->top_fence;
    char text[PEER_FENCE_TEXT_MAX];

    peer_frame_encode(&(struct peer_frame){ .type = PEER_FENCED, .length = 8, .fence = mine }, bytes);
    memcpy(bytes + PEER_HEADER_BYTES, &mine, sizeof mine);
    (void)!send(fd, bytes, sizeof bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)close(fd);
    log_info("refused a ring connection of an old round", KV("peer", hello->member),
             KV("theirs", peer_fence_text(hello->fence, text)));
}

/* Takes a connection of this group's fence that another rank dialled. */
static void place(struct engine *g, int fd, const struct peer_hello *hello)
{
    struct group *p = g->group;
    struct error e = ERROR_INIT;
    int32_t rank = rank_of(p, hello->member);
    int taken = -1;

    if (hello->purpose == PEER_DATA && rank > p->rank && mesh_put(p->mesh, rank, hello->lane, fd))
        taken = 0;
    else if (hello->purpose == PEER_ENGINE && p->rank == 0 && rank > 0 && p->streams[rank] == NULL)
        taken = stream_new(g->loop, fd, p->fence, on_stream, g, &p->streams[rank], &e);
    else
        (void)error_set(&e, ERROR_INVALID, "rank %d has no use for it, or has it already", p->rank);
    if (taken < 0) {
        log_warn_from("refused a ring connection", &e, KV("peer", hello->member), KVI("purpose", hello->purpose));
        (void)close(fd);
        return;
    }
    on_mesh_ready(g);
}

void group_accept(struct engine *g, int fd, const struct peer_hello *hello)
{
    struct group *p = g->group;

    if (group_is_alive(g) && hello->fence == p->fence) { /* large rounds join some pairs when they need them */
        place(g, fd, hello);
    } else if (hello->fence <= g->top_fence) {
        fence_off(g, fd, hello);
    } else if (g->pending_count == PENDING_MAX) {
        log_warn("refused a ring connection: too many wait for a round to form", KV("peer", hello->member));
        (void)close(fd);
    } else {
        struct pending *w = xcalloc(1, sizeof *w);
        *w = (struct pending){ .fd = fd, .hello = *hello, .next = g->pending };
        g->pending = w;
        g->pending_count++;
    }
}

void pending_free(struct engine *g)
{
    while (g->pending != NULL) {
        struct pending *w = g->pending;
        g->pending = w->next;
        (void)close(w->fd);
        free(w);
    }
    g->pending_count = 0;
}

/* Connections that came before the plan: those of this fence are placed, older ones sent away, later ones go on waiting. */
static void sort_pending(struct engine *g)
{
    struct pending *w = TAKE(g->pending);

    g->pending_count = 0;
    while (w != NULL) {
        struct pending *next = w->next;
        group_accept(g, w->fd, &w->hello);
        free(w);
        w = next;
    }
}

/* ---- connections that we dial ---- */

static bool is_expected(struct engine *g, int32_t rank, int fd, const struct peer_hello *peer, const struct error *why)
{
    char text[SHM_TEXT_MAX];

    if (fd >= 0 && strcmp(peer->member, g->group->names[rank]) == 0)
        return true;
    if (fd < 0) {
        (void)snprintf(text, sizeof text, "%.*s", (int)sizeof text - 1, why->text);
    } else {
        (void)snprintf(text, sizeof text, "\"%s\" answers at its address", peer->member);
        (void)close(fd);
    }
    group_lost(g, fd < 0 && why->kind == ERROR_GONE ? -1 : rank, text);
    return false;
}

static void on_dialled_root(void *ctx, int fd, const struct peer_hello *peer, const struct error *why)
{
    struct engine *g = ctx;
    struct group *p = g->group;
    struct error e = ERROR_INIT;

    p->dial_root = NULL;
    if (!is_expected(g, 0, fd, peer, why))
        return;
    if (stream_new(g->loop, fd, p->fence, on_stream, g, &p->streams[0], &e) < 0) {
        (void)close(fd);
        group_lost(g, -1, e.text);
        return;
    }
    begin_test_when_complete(g);
}

static void dial_all(struct engine *g)
{
    struct group *p = g->group;
    struct error e = ERROR_INIT;

    mesh_dial(p->mesh);
    if (p->state == GROUP_FORMING && p->rank != 0 &&
        link_dial(g->loop, &g->identity, p->members[0].host, p->members[0].port, PEER_ENGINE, 0, p->fence,
                  p->began_ms + g->options.connect_timeout_ms, on_dialled_root, g, &p->dial_root, &e) < 0)
        group_lost(g, 0, e.text);
}

/* ---- a plan ---- */

static bool plan_is_sound(struct engine *g, const struct ring_plan *plan)
{
    char text[SHM_TEXT_MAX], fence[PEER_FENCE_TEXT_MAX], top[PEER_FENCE_TEXT_MAX];

    if (plan->size < 1 || plan->size > NEGOTIATE_SIZE_MAX || plan->rank < 0 || plan->rank >= plan->size)
        (void)snprintf(text, sizeof text, "cannot form a ring of %d with this rank being %d: allowed are 1 to %d ranks", plan->size,
                       plan->rank, NEGOTIATE_SIZE_MAX);
    else if (plan->fence <= g->top_fence)
        (void)snprintf(text, sizeof text, "cannot form the ring of %s: this rank was at %s already",
                       peer_fence_text(plan->fence, fence), peer_fence_text(g->top_fence, top));
    else
        return true;
    log_warn("ring plan refused", KV("error", text));
    notify_lost(g, plan->fence, -1, text);
    return false;
}

static struct group *group_new(struct engine *g, const struct ring_plan *plan)
{
    struct group *p = xcalloc(1, sizeof *p);
    size_t size = (size_t)plan->size;

    *p = (struct group){ .engine = g, .state = GROUP_FORMING, .fence = plan->fence, .rank = plan->rank, .size = plan->size,
                         .began_ms = clock_mono_ms(), .announcements = BUF_INIT(PEER_MAX_CONTROL) };
    p->members = xcalloc(size, sizeof *p->members);
    memcpy(p->members, plan->members, size * sizeof *p->members);
    p->names = xcalloc(size, sizeof *p->names);
    p->everyone = xcalloc(size, sizeof *p->everyone);
    for (size_t r = 0; r < size; r++) {
        p->names[r] = p->members[r].member;
        p->everyone[r] = (int32_t)r;
    }
    struct mesh_shape shape = { .self = &g->identity, .members = p->members, .fence = p->fence, .rank = p->rank, .size = p->size,
                                .lanes = 1, .timeout_ms = g->options.connect_timeout_ms,
                                .pulse = g->pulse, .memory_dir = g->options.memory_dir };
    struct mesh_events events = { .on_ready = on_mesh_ready, .on_lost = on_mesh_lost, .ctx = g };
    p->mesh = mesh_new(g->loop, &shape, &events);
    p->streams = xcalloc(size, sizeof *p->streams);
    p->sets = process_sets_new(p->size);
    if (p->rank == 0)
        p->negotiation = negotiation_new(p->size, p->names, p->sets);
    p->deadline = loop_timer_new(g->loop, on_deadline, g);
    p->ruling = loop_timer_new(g->loop, on_no_ruling, g);
    return p;
}

void group_form(struct engine *g, const struct ring_plan *plan)
{
    char fence[PEER_FENCE_TEXT_MAX], text[SHM_TEXT_MAX];

    if (!plan_is_sound(g, plan))
        return;
    group_lost(g, -1, "the round has ended: a new one forms");
    group_free(g);
    (void)snprintf(text, sizeof text, "the round of this process has ended, the ring is at %s: exit and be started again",
                   peer_fence_text(plan->fence, fence));
    end_clients(g, plan->fence - 1, text);
    g->top_fence = plan->fence;
    g->waited_for = xrealloc(g->waited_for, (size_t)plan->size, sizeof *g->waited_for);
    memset(g->waited_for, 0, (size_t)plan->size * sizeof *g->waited_for);

    g->group = group_new(g, plan);
    loop_timer_at(g->group->deadline, g->group->began_ms + g->options.connect_timeout_ms);
    sort_pending(g);
    if (g->group->size > 1 && g->group->state == GROUP_FORMING)
        dial_all(g);
    if (g->group->state == GROUP_FORMING)
        begin_test_when_complete(g);
}
