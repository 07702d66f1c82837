/*
 * checkpoint_group.h — a job of a few ranks in one process: their checkpoints on one loop, a bus for their messages, trainers that stage
 * images, and a coordinator's round. For tests of the whole engine.
 */
#ifndef TEST_CHECKPOINT_GROUP_H
#define TEST_CHECKPOINT_GROUP_H

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/mem.h"
#include "sidecar/checkpoint/checkpoint.h"
#include "sidecar/checkpoint/writer.h"
#include "wire/shm.h"

#define GROUP_MAX 8
#define GROUP_UID "5f1c7e0a-test"
#define IMAGE_HEADER 4096u

#define MUST(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
            abort(); \
        } \
    } while (0)

struct group;
struct member_of_group {
    struct group *group;
    int32_t rank;
    struct checkpoint *checkpoint; /* NULL: its sidecar is dead */
    int64_t committed, failed;     /* newest step heard of, -1 = none */
    int committed_count, failed_count, ready_count;
    char uri[512];
    struct error why;
};

struct letter { struct group *group; int32_t to, from; cJSON *message; };

struct group {
    struct loop *loop;
    int32_t world;
    char dir[64];
    char *volume; /* NULL: memory only */
    int32_t keep;
    struct member_of_group members[GROUP_MAX];
    uint64_t fence;
    struct checkpoint_restore restore;
    bool skip_newest; /* at the next claim */
    bool claimed, claim_failed;
    struct error claim_error;
    /* What the bus does to a letter: true drops it. */
    bool (*drop)(struct group *g, int32_t from, int32_t to, const cJSON *message);
    int letters; /* under way */
};

static inline void group_deliver(void *ctx)
{
    struct letter *l = ctx;
    struct checkpoint *to = l->group->members[l->to].checkpoint;
    l->group->letters--;
    if (to != NULL)
        checkpoint_message(to, l->from, l->message);
    cJSON_Delete(l->message);
    free(l);
}

static inline void group_post(struct group *g, int32_t from, int32_t to, cJSON *message)
{
    if (g->drop != NULL && g->drop(g, from, to, message)) {
        cJSON_Delete(message);
        return;
    }
    struct letter *l = xcalloc(1, sizeof(*l));
    *l = (struct letter){ .group = g, .to = to, .from = from, .message = message };
    g->letters++;
    loop_post(g->loop, group_deliver, l);
}

static inline void group_send(void *ctx, cJSON *message)
{
    struct member_of_group *m = ctx;
    group_post(m->group, m->rank, 0, message);
}

static inline void group_broadcast(void *ctx, cJSON *message)
{
    struct member_of_group *m = ctx;
    for (int32_t rank = 0; rank < m->group->world; rank++)
        group_post(m->group, m->rank, rank, cJSON_Duplicate(message, true));
    cJSON_Delete(message);
}

static inline void group_committed(void *ctx, int64_t step, const char *uri)
{
    struct member_of_group *m = ctx;
    m->committed = step;
    m->committed_count++;
    (void)snprintf(m->uri, sizeof(m->uri), "%s", uri);
}

static inline void group_failed(void *ctx, int64_t step, const struct error *why)
{
    struct member_of_group *m = ctx;
    m->failed = step;
    m->failed_count++;
    m->why = *why;
}

static inline void group_ready(void *ctx)
{
    ((struct member_of_group *)ctx)->ready_count++;
}

static inline void group_start(struct group *g, int32_t rank)
{
    struct member_of_group *m = &g->members[rank];
    struct error e = ERROR_INIT;
    auto_free char *memory = xasprintf("%s/shm-%d", g->dir, (int)rank), *name = xasprintf("worker-%d", (int)rank);
    *m = (struct member_of_group){ .group = g, .rank = rank, .committed = -1, .failed = -1 };
    struct checkpoint_options options = { .volume = g->volume, .memory = memory, .job_uid = GROUP_UID, .member = name, .rank = rank,
                                          .keep_last = g->keep };
    struct checkpoint_events events = { .send = group_send, .broadcast = group_broadcast, .committed = group_committed,
                                        .failed = group_failed, .ready = group_ready, .ctx = m };
    if (checkpoint_new(g->loop, &options, &events, &m->checkpoint, &e) != 0) {
        fprintf(stderr, "checkpoint_new: %s\n", e.text);
        abort();
    }
}

static inline void group_kill(struct group *g, int32_t rank) /* the sidecar; its slots stay */
{
    checkpoint_free(g->members[rank].checkpoint);
    g->members[rank].checkpoint = NULL;
}

static inline void group_init(struct group *g, int32_t world, bool has_volume)
{
    struct error e = ERROR_INIT;
    log_setup("test", NULL, getenv("GROUP_LOG") != NULL ? LOG_DEBUG : LOG_ERROR + 1, false);
    *g = (struct group){ .world = world, .keep = 3 };
    (void)snprintf(g->dir, sizeof(g->dir), "/dev/shm/rm-checkpoint-XXXXXX");
    MUST(mkdtemp(g->dir) != NULL);
    g->volume = has_volume ? xasprintf("%s/volume", g->dir) : NULL;
    MUST(loop_new(&g->loop, &e) == 0);
    for (int32_t rank = 0; rank < world; rank++)
        group_start(g, rank);
}

static inline void group_release(struct group *g)
{
    struct error e = ERROR_INIT;
    for (int32_t rank = 0; rank < g->world; rank++)
        group_kill(g, rank);
    /* Letters that are still under way are posted calls: let them arrive at nobody. */
    loop_post(g->loop, (loop_post_fn *)loop_stop, g->loop);
    MUST(loop_run(g->loop, &e) == 0);
    loop_free(g->loop);
    MUST(fs_remove_tree(g->dir, &e) == 0);
    free(g->volume);
}

/* ---- turning the loop until something is so ---------------------------------------------------------------------------- */

typedef bool group_until_fn(struct group *g, int64_t argument);
struct group_wait { struct group *g; group_until_fn *fn; int64_t argument, deadline_ms; struct loop_timer *timer; bool came; };

static inline void group_look(void *ctx)
{
    struct group_wait *w = ctx;
    w->came = w->fn(w->g, w->argument);
    if (w->came || clock_mono_ms() >= w->deadline_ms)
        loop_stop(w->g->loop);
    else
        loop_timer_at(w->timer, clock_mono_ms() + 1);
}

static inline bool group_wait(struct group *g, group_until_fn *fn, int64_t argument, int64_t timeout_ms)
{
    struct error e = ERROR_INIT;
    struct group_wait w = { .g = g, .fn = fn, .argument = argument, .deadline_ms = clock_mono_ms() + timeout_ms };
    w.timer = loop_timer_new(g->loop, group_look, &w);
    loop_timer_at(w.timer, clock_mono_ms());
    MUST(loop_run(g->loop, &e) == 0);
    loop_timer_free(w.timer);
    return w.came;
}

static inline bool group_until_committed(struct group *g, int64_t step)
{
    for (int32_t rank = 0; rank < g->world; rank++)
        if (g->members[rank].checkpoint != NULL && g->members[rank].committed < step)
            return false;
    return true;
}

static inline bool group_until_idle(struct group *g, int64_t ignored)
{
    (void)ignored;
    for (int32_t rank = 0; rank < g->world; rank++)
        if (g->members[rank].checkpoint != NULL && !checkpoint_idle(g->members[rank].checkpoint))
            return false;
    return g->letters == 0;
}

static inline bool group_never(struct group *g, int64_t ignored)
{
    (void)g;
    (void)ignored;
    return false;
}

static inline bool group_until_claimed(struct group *g, int64_t ignored)
{
    (void)ignored;
    return g->claimed || g->claim_failed;
}

/* ---- a round ------------------------------------------------------------------------------------------------------------ */

static inline void group_on_claimed(void *ctx, const struct checkpoint_restore *restore, const struct error *why)
{
    struct group *g = ctx;
    g->claimed = why == NULL;
    g->claim_failed = why != NULL;
    if (why != NULL)
        g->claim_error = *why;
    else
        g->restore = *restore;
}

/* GATHER and CLAIM. false: the claim failed, with g->claim_error. */
static inline bool group_claim(struct group *g, uint64_t fence)
{
    cJSON *holdings[GROUP_MAX] = { NULL };
    for (int32_t rank = 0; rank < g->world; rank++)
        holdings[rank] = checkpoint_holdings(g->members[rank].checkpoint);
    g->claimed = g->claim_failed = false;
    checkpoint_claim(g->members[0].checkpoint, fence, g->world, (const cJSON *const *)holdings, g->skip_newest, group_on_claimed, g);
    for (int32_t rank = 0; rank < g->world; rank++)
        cJSON_Delete(holdings[rank]);
    MUST(group_wait(g, group_until_claimed, 0, 20000));
    return g->claimed;
}

/* FORM. */
static inline bool group_form(struct group *g, uint64_t fence)
{
    if (!group_claim(g, fence))
        return false;
    g->fence = fence;
    for (int32_t rank = 0; rank < g->world; rank++)
        checkpoint_enter(g->members[rank].checkpoint, fence, g->world, &g->restore);
    return true;
}

/* ---- trainers ----------------------------------------------------------------------------------------------------------- */

/* The value of byte i of rank's image of a step. */
static inline uint8_t image_byte(int32_t rank, int64_t step, uint64_t i)
{
    return (uint8_t)((uint64_t)rank * 131 + (uint64_t)step * 7 + i * 13 + i / 255);
}

static inline void image_fill(uint8_t *image, int32_t rank, int64_t step, uint64_t data_bytes)
{
    uint64_t n = IMAGE_HEADER - 8;
    memset(image + 8, ' ', n);
    int len = snprintf((char *)image + 8, n, "{\"__metadata__\":{\"format\":\"pt\",\"step\":\"%" PRId64 "\"},\"w\":{\"dtype\":\"U8\",\"shape\":[%" PRIu64
                       "],\"data_offsets\":[0,%" PRIu64 "]}}", step, data_bytes, data_bytes);
    image[8 + len] = ' ';
    for (int i = 0; i < 8; i++)
        image[i] = (uint8_t)(n >> (8 * i));
    for (uint64_t i = 0; i < data_bytes; i++)
        image[IMAGE_HEADER + i] = image_byte(rank, step, i);
}

enum stage_result { STAGE_DONE, STAGE_SKIPPED, STAGE_REFUSED };

static inline int trainer_slots(struct group *g, int32_t rank, uint64_t image_bytes, int fds[2], uint64_t *slot_bytes, struct error *e)
{
    for (;;) {
        *e = (struct error)ERROR_INIT;
        if (checkpoint_slots(g->members[rank].checkpoint, image_bytes, fds, slot_bytes, e) == 0)
            return 0;
        if (e->kind != ERROR_BUSY)
            return -1;
        (void)group_wait(g, group_never, 0, 5);
    }
}

/* As the client library does: takes a slot that is free, or skips. half: dies in the middle of writing it. */
static inline enum stage_result trainer_stage_as(struct group *g, int32_t rank, int64_t step, uint64_t data_bytes, uint64_t fence, bool half,
                                                 struct error *e)
{
    int fds[2];
    uint64_t slot_bytes, image_bytes = IMAGE_HEADER + data_bytes;
    if (trainer_slots(g, rank, image_bytes, fds, &slot_bytes, e) != 0)
        return STAGE_REFUSED;
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t slot = 0; slot < 2; slot++) {
            struct slot_control *c = mmap(NULL, SLOT_CONTROL_BYTES + slot_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fds[slot], 0);
            MUST(c != MAP_FAILED);
            uint32_t free_state = pass == 0 ? SLOT_EMPTY : SLOT_COMMITTED;
            bool taken = atomic_compare_exchange_strong(&c->state, &free_state, SLOT_WRITING);
            if (taken) {
                c->step = (uint64_t)step;
                c->fence = fence;
                c->image_bytes = image_bytes;
                image_fill((uint8_t *)c + SLOT_CONTROL_BYTES, rank, step, half ? data_bytes / 2 : data_bytes);
                if (!half)
                    c->state = SLOT_STAGED;
            }
            MUST(munmap(c, SLOT_CONTROL_BYTES + slot_bytes) == 0);
            if (taken && half)
                return STAGE_DONE;
            if (taken)
                return checkpoint_staged(g->members[rank].checkpoint, slot, step, image_bytes, e) == 0 ? STAGE_DONE : STAGE_REFUSED;
        }
    return STAGE_SKIPPED;
}

static inline enum stage_result trainer_stage(struct group *g, int32_t rank, int64_t step, uint64_t data_bytes)
{
    struct error e = ERROR_INIT;
    return trainer_stage_as(g, rank, step, data_bytes, g->fence, false, &e);
}

static inline void group_stage(struct group *g, int64_t step, uint64_t data_bytes)
{
    for (int32_t rank = 0; rank < g->world; rank++)
        MUST(trainer_stage(g, rank, step, data_bytes) == STAGE_DONE);
}

static inline bool group_save(struct group *g, int64_t step, uint64_t data_bytes)
{
    group_stage(g, step, data_bytes);
    return group_wait(g, group_until_committed, step, 20000) && group_wait(g, group_until_idle, 0, 5000);
}

/* Opens an image at a rank and compares every byte with what the step had. Waits while it is checked. */
static inline bool trainer_reads(struct group *g, int32_t rank, int32_t number, int64_t step, bool from_memory, struct error *e)
{
    struct checkpoint_restore restore;
    uint64_t offset, bytes;
    bool memory;
    auto_close int fd = -1;
    for (int64_t deadline = clock_mono_ms() + 10000; clock_mono_ms() < deadline;) {
        *e = (struct error)ERROR_INIT;
        if (checkpoint_open_restore(g->members[rank].checkpoint, number, &restore, &fd, &offset, &bytes, &memory, e) == 0)
            break;
        if (e->kind != ERROR_BUSY)
            return false;
        (void)group_wait(g, group_never, 0, 5);
    }
    if (e->kind == ERROR_BUSY)
        return false;
    if (step < 0)
        return !restore.found;
    if (!restore.found || restore.step != step || memory != from_memory)
        return error_set(e, ERROR_BUG, "found %d step %" PRId64 " memory %d", restore.found, restore.step, memory) == 0;
    auto_free uint8_t *image = xcalloc(1, bytes), *expected = xcalloc(1, bytes);
    image_fill(expected, number, step, bytes - IMAGE_HEADER);
    if (pread(fd, image, bytes, (off_t)offset) != (ssize_t)bytes)
        return error_errno(e, "read image") == 0;
    if (memcmp(image, expected, bytes) != 0)
        return error_set(e, ERROR_BUG, "the bytes differ") == 0;
    return true;
}

static inline bool trainer_restores(struct group *g, int32_t rank, int64_t step, bool from_memory, struct error *e)
{
    return trainer_reads(g, rank, rank, step, from_memory, e);
}

static inline bool group_restores(struct group *g, int64_t step, bool from_memory)
{
    bool all = true;
    for (int32_t rank = 0; rank < g->world; rank++) {
        struct error e = ERROR_INIT;
        if (!trainer_restores(g, rank, step, from_memory, &e)) {
            fprintf(stderr, "rank %d: %s\n", (int)rank, e.text);
            all = false;
        }
    }
    return all;
}

/* The node of a rank is lost: its sidecar and its slots. */
static inline void group_lose_node(struct group *g, int32_t rank)
{
    struct error e = ERROR_INIT;
    auto_free char *memory = xasprintf("%s/shm-%d", g->dir, (int)rank);
    group_kill(g, rank);
    MUST(fs_remove_tree(memory, &e) == 0);
    group_start(g, rank);
}

/* ---- what the volume holds -------------------------------------------------------------------------------------------- */

static inline bool group_drop_votes(struct group *g, int32_t from, int32_t to, const cJSON *message)
{
    (void)g;
    (void)from;
    (void)to;
    return strcmp(json_text(message, "op", ""), "vote") == 0;
}

static inline struct store group_store_of(struct group *g)
{
    struct store s;
    struct error e = ERROR_INIT;
    MUST(store_init(&s, g->volume, GROUP_UID, NULL, &e) == 0);
    return s;
}

static inline bool group_until_all_voted(struct group *g, int64_t step)
{
    struct store s = group_store_of(g);
    struct store_scan scan;
    struct error e = ERROR_INIT;
    bool all = false;
    MUST(store_scan(&s, &scan, &e) == 0);
    for (size_t i = 0; i < scan.count; i++) {
        if (scan.generations[i].generation.id.step != step)
            continue;
        auto_free char *dir = NULL;
        store_generation_path(&s, &scan.generations[i].generation, &dir);
        all = true;
        for (int32_t rank = 0; rank < g->world; rank++) {
            char name[LAYOUT_NAME_MAX];
            layout_vote(rank, name);
            auto_free char *path = fs_join(dir, name);
            all = all && access(path, F_OK) == 0;
        }
    }
    store_scan_release(&scan);
    store_release(&s);
    return all;
}

/* All ranks have a step on the volume with their votes, and no coordinator has heard of it: it stays uncommitted until g->drop is NULL. */
static inline bool group_vote_unheard(struct group *g, int64_t step, uint64_t data_bytes)
{
    g->drop = group_drop_votes;
    group_stage(g, step, data_bytes);
    return group_wait(g, group_until_all_voted, step, 5000);
}

static inline char *group_path_of_step(struct group *g, int64_t step, const char *name)
{
    struct store s = group_store_of(g);
    struct store_scan scan;
    struct error e = ERROR_INIT;
    char *path = NULL;
    MUST(store_scan(&s, &scan, &e) == 0);
    for (size_t i = 0; i < scan.count && path == NULL; i++)
        if (scan.generations[i].generation.id.step == step) {
            auto_free char *dir = NULL;
            store_generation_path(&s, &scan.generations[i].generation, &dir);
            path = fs_join(dir, name);
        }
    store_scan_release(&scan);
    store_release(&s);
    return path;
}

static inline bool group_until_failed(struct group *g, int64_t step)
{
    for (int32_t rank = 0; rank < g->world; rank++)
        if (g->members[rank].failed != step)
            return false;
    return true;
}

#endif
