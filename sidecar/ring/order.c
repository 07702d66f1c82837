/* From requests to GO lists: announcements, the lists that rank 0 sends, refusals, who has left, and what stalls. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "sidecar/ring/engine_private.h"

#define ANNOUNCE_FRAME_BYTES (64u << 10)   /* then a frame is sent and the next begun */
#define STALL_LOOK_MS 1000

static struct request *find_request(const struct engine *g, uint32_t set, const char *name)
{
    char key[NAME_KEY_MAX];

    return namemap_get(&g->by_name, name_key(set, name, key));
}

/* ---- announcing ---- */

static void send_announcements(struct group *p)
{
    if (p->announcements.len == 0)
        return;
    stream_send(p->streams[0], PEER_ANNOUNCE, p->announcements.text, p->announcements.len);
    buf_clear(&p->announcements);
}

/* What could not be checked before the group was there. */
static int check_with_group(const struct group *p, const struct request *q, struct error *e)
{
    const struct shm_request *r = &q->r;
    const struct process_set *set = process_sets_get(p->sets, r->set);
    char ranks[80];

    if (set == NULL)
        return error_set(e, ERROR_INVALID, "\"%s\": there is no process set %u: it was removed, or never added", r->name, r->set);
    if (process_set_index(set, p->rank) < 0)
        return error_set(e, ERROR_INVALID, "\"%s\": rank %d is not in process set %u, which has the ranks %s", r->name, p->rank,
                         r->set, process_set_text(set->ranks, set->count, ranks, sizeof ranks));
    if (r->op == SHM_OP_BROADCAST && r->set == 0 && r->root >= p->size)
        return error_set(e, ERROR_INVALID, "\"%s\": broadcast from rank %d, but ranks are 0 to %d", r->name, r->root, p->size - 1);
    if (r->op == SHM_OP_BROADCAST && process_set_index(set, r->root) < 0)
        return error_set(e, ERROR_INVALID, "\"%s\": broadcast from rank %d, which is not in process set %u; it has the ranks %s",
                         r->name, r->root, r->set, process_set_text(set->ranks, set->count, ranks, sizeof ranks));
    if ((r->op == SHM_OP_REDUCESCATTER || r->op == SHM_OP_ALLTOALL) && r->splits != (uint32_t)set->count)
        return error_set(e, ERROR_INVALID, "\"%s\": %u splits for the %d ranks of process set %u", r->name, r->splits, set->count,
                         r->set);
    if (r->op == SHM_OP_SET_ADD)
        return shm_splits_check(r, q->splits, p->size, e);
    return 0;
}

void order_announce(struct engine *g, struct request *q)
{
    struct group *p = g->group;
    struct error e = ERROR_INIT;

    if (check_with_group(p, q, &e) < 0) {
        request_end(g, q, SHM_INVALID, e.text, 0, 0);
        return;
    }
    struct announcement a = { .set = q->r.set, .set_is_known = true, .sig = q->sig };
    memcpy(a.name, q->r.name, sizeof a.name);
    if (q->r.op == SHM_OP_ALLTOALL) {
        a.splits = q->splits;
        a.split_count = (int32_t)q->r.splits;
    }
    if (signature_travels_along(&q->sig, process_sets_get(p->sets, q->r.set)->count))
        a.along = buffers_along(q);
    q->announced = true;
    if (q->client != NULL)
        timeline_add(g->timeline, TRACE_BEGIN, trace_phase_wait(q->r.op), q->r.name, p->rank);
    if (p->rank == 0) {
        if (a.splits != NULL) { /* the negotiation takes them, the request keeps its own */
            a.splits = xcalloc((size_t)a.split_count, sizeof *a.splits);
            memcpy(a.splits, q->splits, (size_t)a.split_count * sizeof *a.splits);
        }
        if (negotiation_announce(p->negotiation, 0, &a, clock_mono_ms(), &e) < 0)
            group_lost(g, 0, e.text);
        announcement_release(&a);
        return;
    }
    announce_encode(&p->announcements, process_sets_get(p->sets, q->r.set)->cache, &a);
    free(a.along);
    if (p->announcements.len > ANNOUNCE_FRAME_BYTES)
        send_announcements(p);
}

/* ---- lists ---- */

/* The set is gone from here on: what was to happen in it and was not begun ends. */
static void drop_set(struct engine *g, uint32_t set)
{
    char text[SHM_TEXT_MAX];

    for (struct request *q = g->requests, *next; q != NULL; q = next) {
        next = q->next;
        if (q->r.set != set || q->go_ns != 0)
            continue;
        (void)snprintf(text, sizeof text, "\"%s\": process set %u was removed meanwhile", q->r.name, set);
        request_end(g, q, SHM_INVALID, text, 0, 0);
    }
}

static void add_set(struct group *p, struct request *q)
{
    auto_free int32_t *ranks = xcalloc(q->r.splits, sizeof *ranks);

    for (uint32_t i = 0; i < q->r.splits; i++)
        ranks[i] = (int32_t)q->splits[i];
    struct process_set *set = process_sets_find(p->sets, ranks, (int32_t)q->r.splits);
    if (set != NULL) {
        q->verdict = SHM_EXISTS;
        q->answer = set->id;
        return;
    }
    set = process_sets_add(p->sets, ranks, (int32_t)q->r.splits);
    q->verdict = set != NULL ? SHM_OK : SHM_NO_SPACE;
    q->answer = set != NULL ? set->id : 0;
}

/* What changes for the lists that follow changes now, on every rank at the same place in the order; its turn only answers. */
static void take_effect(struct engine *g, const struct go_list *l, struct request *q)
{
    struct group *p = g->group;

    if (q->r.op == SHM_OP_JOIN) {
        q->answer = (uint64_t)l->last_rank;
    } else if (q->r.op == SHM_OP_SET_ADD) {
        add_set(p, q);
    } else if (q->r.op == SHM_OP_SET_REMOVE) {
        uint32_t set = q->r.count < SETS_MAX ? (uint32_t)q->r.count : 0;
        if (set != 0 && process_sets_get(p->sets, set) != NULL) {
            if (p->negotiation != NULL)
                negotiation_forget_set(p->negotiation, set);
            drop_set(g, set);
        }
        q->answer = process_sets_remove(p->sets, set);
    }
}

static void note_go(struct engine *g, const struct request *q)
{
    if (q->client == NULL || !timeline_is_on(g->timeline))
        return;
    timeline_add(g->timeline, TRACE_END, "", q->r.name, -1);
    timeline_add(g->timeline, TRACE_BEGIN, trace_phase(q->r.op), q->r.name, -1);
    timeline_add(g->timeline, TRACE_BEGIN, "QUEUE", q->r.name, -1);
}

/* -1: what rank 0 says does not fit what this rank has. */
static int enqueue(struct engine *g, struct go_list *l, uint32_t chunk_bytes, struct error *e)
{
    struct group *p = g->group;
    int64_t now = clock_mono_ns();
    int32_t place = go_list_place(l, p->rank);

    /* Lists of other sets have numbers of their own in between. */
    if (l->sequence <= p->last_sequence)
        return error_set(e, ERROR_INVALID, "it sent list %llu after list %llu", (unsigned long long)l->sequence,
                         (unsigned long long)p->last_sequence);
    p->last_sequence = l->sequence;
    for (size_t i = 0; i < l->count; i++) {
        const struct go_entry *entry = &l->entries[i];
        struct request *q = find_request(g, l->set, entry->name);
        if (q == NULL || !q->announced || q->go_ns != 0)
            return error_set(e, ERROR_INVALID, "it started \"%s\", which this rank has not announced", entry->name);
        if (q->r.op == SHM_OP_ALLGATHER && entry->counts[place] != q->r.count)
            return error_set(e, ERROR_INVALID, "it started \"%s\" with a wrong count for this rank", q->r.name);
        q->go_ns = now;
        q->members = l->member_count;
        q->set_size = l->set_size;
        note_go(g, q);
        if (q->client != NULL && l->last_rank != p->rank)
            engine_count_wait(g, (double)(now - q->submitted_ns) / 1e6, l->last_rank);
        take_effect(g, l, q);
    }
    if (timeline_marks_cycles(g->timeline))
        timeline_add(g->timeline, TRACE_MARK, "CYCLE_START", "", -1);
    struct go_waiting *w = xcalloc(1, sizeof *w);
    *w = (struct go_waiting){ .list = *l, .chunk_bytes = chunk_bytes };
    *l = (struct go_list){ 0 };
    *g->queue_end = w;
    g->queue_end = &w->next;
    g->queued++;
    return 0;
}

static void say_op_error(struct engine *g, const struct go_list *l)
{
    struct group *p = g->group;
    auto_buf struct buf b = BUF_INIT(1024);

    op_error_encode(&b, l->set, l->entries[0].name, l->status, l->text);
    for (int32_t m = 0; m < l->member_count; m++) {
        int32_t rank = l->members[m];
        if (rank != 0 && p->streams[rank] != NULL)
            stream_send(p->streams[rank], PEER_OP_ERROR, b.text, b.len);
    }
    struct request *q = go_list_place(l, 0) >= 0 ? find_request(g, l->set, l->entries[0].name) : NULL;
    if (q != NULL)
        request_end(g, q, l->status, l->text, 0, 0);
}

/* The frame is the same for all, but for the column of an all-to-all. */
static void say_go(struct engine *g, const struct process_set *set, const struct go_list *l, uint32_t chunk_bytes)
{
    struct group *p = g->group;
    auto_buf struct buf b = BUF_INIT(PEER_MAX_CONTROL);
    bool own_column = l->entries[0].matrix != NULL;

    for (int32_t m = 0; m < l->member_count; m++) {
        int32_t rank = l->members[m];
        if (rank == 0 || p->streams[rank] == NULL)
            continue;
        if (own_column || b.len == 0) {
            buf_clear(&b);
            go_begin(&b, l->sequence, chunk_bytes);
            go_add(&b, set, rank, l);
        }
        stream_send(p->streams[rank], PEER_GO, b.text, b.len);
    }
}

static void issue_list(struct engine *g, struct go_list *l)
{
    struct group *p = g->group;
    uint32_t chunk_bytes = (uint32_t)g->options.chunk_bytes;
    struct process_set *set = process_sets_get(p->sets, l->set);
    struct error e = ERROR_INIT;

    if (l->along)
        buffers_sum_along(l);
    say_go(g, set, l, chunk_bytes);
    go_note(set, l);
    if (go_list_place(l, 0) < 0)
        return; /* of other ranks alone */
    go_entry_for(set, 0, l, &l->entries[0]);
    if (enqueue(g, l, chunk_bytes, &e) < 0)
        group_lost(g, 0, e.text);
}

/* Rank 0: sends what all ranks are ready for, a few lists ahead of the one that is running. */
static void issue(struct engine *g)
{
    struct go_list l;

    while (g->queued < GO_WINDOW && negotiation_next(g->group->negotiation, &l)) {
        if (l.status != SHM_OK)
            say_op_error(g, &l);
        else
            issue_list(g, &l);
        go_list_release(&l);
        if (!group_is_alive(g))
            return;
    }
}

void order_flush(struct engine *g)
{
    if (g->group->rank == 0)
        issue(g);
    else
        send_announcements(g->group);
}

/* ---- frames ---- */

static const struct signature *announced_signature(void *ctx, uint32_t set, const char *name)
{
    const struct request *q = find_request(ctx, set, name);

    return q != NULL && q->announced ? &q->sig : NULL;
}

static int take_announcements(struct engine *g, int32_t from, const uint8_t *payload, size_t len, struct error *e)
{
    struct group *p = g->group;
    int64_t now = clock_mono_ms();

    for (size_t at = 0; at < len;) {
        struct announcement a;
        if (announce_decode(p->sets, payload, len, &at, &a, e) < 0)
            return -1;
        if (a.set_is_known)
            timeline_add(g->timeline, TRACE_READY, "", a.name, from);
        int result = a.set_is_known ? negotiation_announce(p->negotiation, from, &a, now, e) : 0;
        announcement_release(&a);
        if (result < 0)
            return -1;
    }
    return 0;
}

static int take_go(struct engine *g, const uint8_t *payload, size_t len, struct error *e)
{
    struct group *p = g->group;
    struct go_list *lists;
    size_t count;
    uint32_t chunk_bytes;
    int result = 0;

    if (go_decode(p->sets, p->rank, payload, len, announced_signature, g, &chunk_bytes, &lists, &count, e) < 0)
        return -1;
    for (size_t i = 0; i < count && result == 0; i++)
        result = enqueue(g, &lists[i], chunk_bytes, e);
    go_lists_free(lists, count);
    return result;
}

static int take_op_error(struct engine *g, const uint8_t *payload, size_t len, struct error *e)
{
    char name[SHM_NAME_MAX], text[SHM_TEXT_MAX];
    enum shm_status status;
    uint32_t set;

    if (op_error_decode(payload, len, &set, name, &status, text, e) < 0)
        return -1;
    struct request *q = find_request(g, set, name);
    if (q == NULL || !q->announced || q->go_ns != 0)
        return error_set(e, ERROR_INVALID, "it refused \"%s\", which this rank has not announced", name);
    request_end(g, q, status, text, 0, 0);
    return 0;
}

static int take_left(struct engine *g, int32_t from, const uint8_t *payload, size_t len, struct error *e)
{
    bool left;

    if (left_decode(payload, len, &left, e) < 0)
        return -1;
    negotiation_left(g->group->negotiation, from, left);
    return 0;
}

/* -1: the peer sent what it must not. */
static int take_frame(struct engine *g, int32_t from, const struct peer_frame *frame, const uint8_t *payload, struct error *e)
{
    bool root = g->group->rank == 0;

    switch (frame->type) {
    case PEER_ANNOUNCE:
        if (root)
            return take_announcements(g, from, payload, frame->length, e);
        break;
    case PEER_LEFT:
        if (root)
            return take_left(g, from, payload, frame->length, e);
        break;
    case PEER_GO:
        if (!root)
            return take_go(g, payload, frame->length, e);
        break;
    case PEER_OP_ERROR:
        if (!root)
            return take_op_error(g, payload, frame->length, e);
        break;
    default:
        break;
    }
    return error_set(e, ERROR_INVALID, "it sent a frame of type %u, which has no place here", frame->type);
}

void order_frame(struct engine *g, int32_t from, const struct peer_frame *frame, const uint8_t *payload)
{
    struct error e = ERROR_INIT;
    char text[SHM_TEXT_MAX];
    int32_t rank;
    int result;

    if (frame->type == PEER_LOST) {
        result = lost_decode(payload, frame->length, g->group->size, &rank, text, &e);
        if (result == 0) {
            group_lost_as(g, rank, text);
            return;
        }
    } else {
        result = take_frame(g, from, frame, payload, &e);
    }
    if (result < 0)
        group_lost(g, from, e.text);
    else
        execute_advance(g);
}

/* ---- who has left, what stalls ---- */

void order_left(struct engine *g, bool left)
{
    struct group *p = g->group;
    auto_buf struct buf b = BUF_INIT(16);

    if (!group_is_alive(g) || p->state == GROUP_FORMING || p->has_left == left)
        return;
    p->has_left = left;
    if (p->rank == 0) {
        negotiation_left(p->negotiation, 0, left);
    } else {
        send_announcements(p); /* what was announced before was announced */
        left_encode(&b, left);
        stream_send(p->streams[0], PEER_LEFT, b.text, b.len);
    }
    execute_advance(g);
}

static void tell_stall(void *ctx, const struct stall *s)
{
    struct engine *g = ctx;
    struct notice n = { .kind = NOTICE_STALL, .fence = g->group->fence, .rank = s->missing_count > 0 ? s->missing[0] : -1 };

    (void)snprintf(n.text, sizeof n.text, "%s", s->text);
    engine_notify(g, &n);
    g->group->stalled = true;
}

static void ignore_stall(void *ctx, const struct stall *s)
{
    (void)ctx;
    (void)s;
}

static void warn_of_stalls(struct engine *g, int64_t now)
{
    struct group *p = g->group;

    (void)negotiation_stalls(p->negotiation, now, g->options.stall_warning_ms, false, tell_stall, g);
    if (!p->stalled || negotiation_stalls(p->negotiation, now, g->options.stall_warning_ms, true, ignore_stall, NULL) > 0)
        return;
    p->stalled = false;
    engine_notify(g, &(struct notice){ .kind = NOTICE_STALL, .fence = p->fence, .rank = -1 });
}

struct stall_end { int32_t rank; char text[SHM_TEXT_MAX]; };

static void note_stall_end(void *ctx, const struct stall *s)
{
    struct stall_end *end = ctx;

    end->rank = s->missing_count > 0 ? s->missing[0] : -1;
    (void)snprintf(end->text, sizeof end->text, "stalled: %s", s->text);
}

static void look_for_stalls(void *ctx)
{
    struct engine *g = ctx;
    struct group *p = g->group;
    int64_t now = clock_mono_ms();
    struct stall_end end;

    if (!group_is_alive(g))
        return;
    if (g->options.stall_warning_ms > 0)
        warn_of_stalls(g, now);
    if (g->options.stall_shutdown_ms > 0 &&
        negotiation_stalls(p->negotiation, now, g->options.stall_shutdown_ms, true, note_stall_end, &end) > 0) {
        group_lost_as(g, end.rank, end.text);
        return;
    }
    loop_timer_at(p->stalls, now + STALL_LOOK_MS);
}

void order_watch(struct engine *g)
{
    struct group *p = g->group;

    if (p->rank != 0 || p->size == 1 || (g->options.stall_warning_ms <= 0 && g->options.stall_shutdown_ms <= 0))
        return;
    p->stalls = loop_timer_new(g->loop, look_for_stalls, g);
    loop_timer_at(p->stalls, clock_mono_ms() + STALL_LOOK_MS);
}
