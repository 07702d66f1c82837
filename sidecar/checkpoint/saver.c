/* saver.c — one rank's part: slots, and saves that are not decided yet. The image to resume from is in resume.c. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/log.h"
#include "base/mem.h"
#include "sidecar/checkpoint/internal.h"
#include "checkpoint/manifest.h"

#define LINEAGE_FILE "lineage.json"
#define ALLOCATE_AT_ONCE (64u << 20) /* about 30 ms; more is done on the thread */

/* ---- saves and slots -------------------------------------------------------------------------------------------------- */

static struct save *find_save(struct saver *m, struct checkpoint_id id)
{
    for (size_t i = 0; i < m->save_count; i++)
        if (checkpoint_id_equal(m->saves[i].id, id))
            return &m->saves[i];
    return NULL;
}

static void drop_save(struct saver *m, const struct save *save)
{
    size_t at = (size_t)(save - m->saves);
    memmove(&m->saves[at], &m->saves[at + 1], (--m->save_count - at) * sizeof(m->saves[0]));
}

bool saver_slot_of(const struct saver *m, struct checkpoint_id id, uint32_t *ret_slot, struct holding *ret_holding, uint64_t *ret_bytes)
{
    for (uint32_t i = 0; m->has_slots && i < SLOT_COUNT; i++)
        if (slots_held(&m->slots, i, ret_holding, ret_bytes) && checkpoint_id_equal(ret_holding->id, id)) {
            *ret_slot = i;
            return true;
        }
    return false;
}

/* Gives every slot the state that follows from what is known of its step. */
static void settle_slots(struct checkpoint *c)
{
    struct saver *m = &c->saver;
    for (uint32_t i = 0; m->has_slots && i < SLOT_COUNT; i++) {
        struct holding held = { .world = 0 };
        uint64_t bytes;
        struct slot_facts facts = { .held = slots_held(&m->slots, i, &held, &bytes), .busy = m->slot_busy[i] };
        if (!facts.held)
            continue; /* the trainer's, or empty */
        facts.is_newest = m->has_newest && checkpoint_id_equal(held.id, m->newest);
        facts.undecided = find_save(m, held.id) != NULL;
        facts.committed = checkpoint_id_equal(m->slot_committed[i], held.id);
        slots_set(&m->slots, i, slot_rest_state(&facts));
    }
}

static void send_staged(struct checkpoint *c, const struct save *save)
{
    cJSON *message = checkpoint_message_new("staged", save->id);
    json_put_int(message, "world", save->world);
    json_put_int(message, "bytes", (int64_t)save->bytes);
    c->events.send(c->events.ctx, message);
}

static void send_vote(struct checkpoint *c, const struct save *save)
{
    char crc[20];
    cJSON *message = checkpoint_message_new("vote", save->id);
    crc64_format(save->crc64nvme, crc);
    json_put_text(message, "nonce", save->nonce);
    json_put_int(message, "bytes", (int64_t)save->bytes);
    json_put_text(message, "crc64nvme", crc);
    c->events.send(c->events.ctx, message);
}

static void send_failed(struct checkpoint *c, struct checkpoint_id id, const char *text)
{
    cJSON *message = checkpoint_message_new("failed", id);
    json_put_text(message, "text", text);
    c->events.send(c->events.ctx, message);
}

/* ---- persist ---------------------------------------------------------------------------------------------------------- */

struct persist_job {
    struct worker_job job;
    struct checkpoint *c; /* on the thread: its store alone */
    struct step_key key;
    int32_t rank;
    uint32_t slot;
    int fd;
    uint64_t bytes;
    struct vote vote;
    int result;
    struct error error;
};

static void persist_work(struct worker_job *job)
{
    struct persist_job *p = (struct persist_job *)job;
    p->result = store_persist(&p->c->store, &p->key, p->rank, p->fd, SLOT_CONTROL_BYTES, p->bytes, &p->vote, &p->error);
}

static void persist_done(struct worker_job *job)
{
    struct persist_job *p = (struct persist_job *)job;
    struct checkpoint *c = p->c;
    struct saver *m = &c->saver;
    struct save *save = find_save(m, p->key.generation.id);
    m->persisting--;
    m->slot_busy[p->slot] = false;
    if (p->result != 0)
        log_warn_from("checkpoint image not written", &p->error, KVI("step", p->key.generation.id.step));
    if (save != NULL && save->phase == SAVE_PERSISTING && strcmp(save->nonce, p->key.generation.nonce) == 0) {
        if (p->result == 0) {
            save->phase = SAVE_VOTED;
            save->crc64nvme = p->vote.crc64nvme;
            send_vote(c, save);
        } else {
            save->phase = SAVE_STAGED;
            send_failed(c, save->id, p->error.text);
        }
    }
    settle_slots(c);
}

static void persist_release(struct worker_job *job)
{
    struct persist_job *p = (struct persist_job *)job;
    vote_release(&p->vote);
    free(p);
}

void saver_persist(struct checkpoint *c, struct checkpoint_id id, const char *nonce, int32_t world)
{
    struct saver *m = &c->saver;
    struct save *save = find_save(m, id);
    if (c->rank >= world)
        return; /* the base, saved by fewer ranks than there are now */
    if (save != NULL && save->phase != SAVE_STAGED && strcmp(save->nonce, nonce) == 0) {
        if (save->phase == SAVE_VOTED)
            send_vote(c, save); /* asked again: the coordinator is new */
        return;
    }
    uint32_t slot;
    struct holding held;
    uint64_t bytes;
    if (save == NULL || !saver_slot_of(m, id, &slot, &held, &bytes) || m->slot_busy[slot] || !c->has_volume || held.world != world) {
        send_failed(c, id, "its image is not in a slot any more");
        return;
    }
    struct persist_job *p = xcalloc(1, sizeof(*p));
    p->job = (struct worker_job){ .work = persist_work, .done = persist_done, .release = persist_release };
    p->c = c;
    p->key = (struct step_key){ .generation = { .id = id }, .world = world };
    memcpy(p->key.job, c->store.job, sizeof(p->key.job));
    (void)snprintf(p->key.generation.nonce, sizeof(p->key.generation.nonce), "%s", nonce);
    p->rank = c->rank;
    p->slot = slot;
    p->fd = m->slots.slot[slot].fd;
    p->bytes = bytes;
    save->phase = SAVE_PERSISTING;
    (void)snprintf(save->nonce, sizeof(save->nonce), "%s", nonce);
    m->slot_busy[slot] = true;
    m->persisting++;
    settle_slots(c);
    worker_run(m->worker, &p->job);
}

/* ---- words from the coordinator --------------------------------------------------------------------------------------- */

void saver_all_staged(struct checkpoint *c, struct checkpoint_id id)
{
    struct saver *m = &c->saver;
    if (!lineage_visible(&m->lineage, id) || (m->has_newest && checkpoint_id_compare(id, m->newest) <= 0))
        return;
    m->has_newest = true;
    m->newest = id;
    settle_slots(c);
}

static void remember_committed(struct saver *m, struct holding what)
{
    for (size_t i = 0; i < m->committed_count; i++)
        if (checkpoint_id_equal(m->committed[i].id, what.id))
            return;
    if (m->committed_count == COMMITTED_MAX)
        memmove(&m->committed[0], &m->committed[1], --m->committed_count * sizeof(m->committed[0]));
    m->committed[m->committed_count++] = what;
    if (what.id.step > m->committed_step)
        m->committed_step = what.id.step;
}

void saver_committed(struct checkpoint *c, struct checkpoint_id id, int32_t world, const char *uri)
{
    struct saver *m = &c->saver;
    struct save *save = find_save(m, id);
    struct holding held;
    uint64_t bytes;
    uint32_t slot;
    if (!lineage_visible(&m->lineage, id))
        return;
    if (saver_slot_of(m, id, &slot, &held, &bytes))
        m->slot_committed[slot] = id;
    if (save != NULL)
        drop_save(m, save);
    bool news = save != NULL || id.step > m->committed_step;
    remember_committed(m, (struct holding){ .id = id, .world = world });
    settle_slots(c);
    if (news)
        c->events.committed(c->events.ctx, id.step, uri);
}

void saver_aborted(struct checkpoint *c, struct checkpoint_id id, const char *text)
{
    struct save *save = find_save(&c->saver, id);
    if (save == NULL)
        return;
    drop_save(&c->saver, save);
    settle_slots(c);
    struct error why = ERROR_INIT;
    (void)error_set(&why, ERROR_IO, "checkpoint of step %" PRId64 " was not committed: %s", id.step, text);
    c->events.failed(c->events.ctx, id.step, &why);
}

/* ---- rounds ----------------------------------------------------------------------------------------------------------- */

/* The history has to outlive this process: without it a slot could not be told from one of a history that was left. */
static void keep_lineage(const struct checkpoint *c)
{
    struct error e = ERROR_INIT;
    auto_json cJSON *array = lineage_encode(&c->saver.lineage);
    auto_free char *text = json_print(array, false), *path = fs_join(c->memory, LINEAGE_FILE);
    if (fs_write_atomic(path, text, strlen(text), 0600, &e) != 0)
        log_warn_from("history of the checkpoints not kept in memory", &e, KV("path", path));
}

static void read_lineage(struct checkpoint *c)
{
    struct error e = ERROR_INIT;
    auto_free char *text = NULL, *path = fs_join(c->memory, LINEAGE_FILE);
    auto_json cJSON *array = NULL;
    size_t len;
    if (fs_read(path, 1u << 20, &text, &len, &e) == 0 && json_parse(text, len, &array, &e) == 0 &&
        lineage_decode(array, &c->saver.lineage, &e) == 0)
        return;
    if (e.kind != ERROR_NOT_FOUND)
        log_warn_from("history of the checkpoints in memory is not used", &e, KV("path", path));
}

/* Only the base is carried over: what is older is superseded, what is newer is not in the new history. */
static void carry_over(struct checkpoint *c)
{
    struct saver *m = &c->saver;
    struct checkpoint_id base = { m->restore.epoch, m->restore.step };
    struct holding held;
    uint64_t bytes;
    uint32_t slot;
    for (size_t i = m->save_count; i-- > 0;)
        if (!m->restore.found || !checkpoint_id_equal(m->saves[i].id, base)) {
            log_info("checkpoint that was being saved is left behind", KVI("step", m->saves[i].id.step));
            drop_save(m, &m->saves[i]);
        }
    m->has_newest = m->restore.found;
    m->newest = base;
    bool held_here = m->restore.found && saver_slot_of(m, base, &slot, &held, &bytes);
    bool known = false;
    for (size_t i = 0; i < m->committed_count; i++)
        known = known || checkpoint_id_equal(m->committed[i].id, base);
    if (held_here && !known && find_save(m, base) == NULL)
        m->saves[m->save_count++] = (struct save){ .id = base, .world = held.world, .phase = SAVE_STAGED, .bytes = bytes };
    settle_slots(c);
    if (m->save_count > 0)
        send_staged(c, &m->saves[0]);
    if (m->restore.found && !held_here && c->has_volume && c->rank < m->restore.world)
        saver_check_image(c, c->rank);
}

/* What fell out of the history (damaged, or of ranks that were ahead) is not to be reported as committed. */
static void forget_committed(struct saver *m)
{
    size_t kept = 0;
    m->committed_step = -1;
    for (size_t i = 0; i < m->committed_count; i++)
        if (lineage_visible(&m->lineage, m->committed[i].id)) {
            m->committed[kept++] = m->committed[i];
            if (m->committed[i].id.step > m->committed_step)
                m->committed_step = m->committed[i].id.step;
        }
    m->committed_count = kept;
}

void saver_enter(struct checkpoint *c, uint64_t fence, int32_t world, const struct checkpoint_restore *restore)
{
    struct saver *m = &c->saver;
    struct checkpoint_id base = { restore->epoch, restore->step };
    m->epoch = fence;
    m->world = world;
    m->restore = *restore;
    m->last_staged = -1;
    if (lineage_head(&m->lineage) != fence) {
        lineage_push(&m->lineage, fence, restore->found ? &base : NULL);
        if (c->rank >= 0)
            keep_lineage(c);
    }
    forget_committed(m);
    saver_drop_image(m);
    if (c->rank >= 0)
        carry_over(c);
}

/* ---- the local trainer ------------------------------------------------------------------------------------------------ */

static int check_in_ring(const struct checkpoint *c, struct error *e)
{
    if (c->rank >= 0)
        return 0;
    return error_set(e, ERROR_INVALID, "%s is outside the ring: the group's checkpoints are saved by ranks 0 and up; save from a ring member, "
                     "or with the framework's own means", c->name);
}

struct allocate_job {
    struct worker_job job;
    struct checkpoint *c; /* not touched on the thread */
    int fds[SLOT_COUNT];
    char *paths[SLOT_COUNT];
    uint64_t image_bytes;
    int result;
    struct error error;
};

static void allocate_work(struct worker_job *job)
{
    struct allocate_job *a = (struct allocate_job *)job;
    for (uint32_t i = 0; i < SLOT_COUNT && a->result == 0; i++)
        a->result = slot_allocate(a->fds[i], a->paths[i], a->image_bytes, &a->error);
}

static void allocate_done(struct worker_job *job)
{
    struct allocate_job *a = (struct allocate_job *)job;
    struct checkpoint *c = a->c;
    c->saver.allocating = false;
    c->saver.allocation_failed = a->result != 0;
    c->saver.allocation_error = a->error;
    if (c->events.ready != NULL)
        c->events.ready(c->events.ctx);
}

static void allocate_release(struct worker_job *job)
{
    struct allocate_job *a = (struct allocate_job *)job;
    for (uint32_t i = 0; i < SLOT_COUNT; i++)
        free(a->paths[i]);
    free(a);
}

static void allocate(struct checkpoint *c, uint64_t image_bytes)
{
    struct allocate_job *a = xcalloc(1, sizeof(*a));
    a->job = (struct worker_job){ .work = allocate_work, .done = allocate_done, .release = allocate_release };
    a->c = c;
    a->image_bytes = image_bytes;
    for (uint32_t i = 0; i < SLOT_COUNT; i++) {
        a->fds[i] = c->saver.slots.slot[i].fd;
        a->paths[i] = xstrdup(c->saver.slots.slot[i].path);
    }
    c->saver.allocating = true;
    worker_run(c->saver.worker, &a->job);
}

int checkpoint_slots(struct checkpoint *c, uint64_t image_bytes, int ret_fds[2], uint64_t *ret_slot_bytes, struct error *e)
{
    struct saver *m = &c->saver;
    uint64_t missing;
    if (check_in_ring(c, e) != 0)
        return -1;
    if (m->allocating)
        return error_set(e, ERROR_BUSY, "memory for the checkpoint slots is being allocated");
    if (m->allocation_failed) {
        m->allocation_failed = false; /* told once; asked again it is tried again */
        *e = m->allocation_error;
        return -1;
    }
    if (slots_prepare(&m->slots, image_bytes, &missing, e) != 0)
        return -1;
    if (missing > ALLOCATE_AT_ONCE) {
        allocate(c, image_bytes);
        return error_set(e, ERROR_BUSY, "memory for the checkpoint slots is being allocated");
    }
    if (slots_ensure(&m->slots, image_bytes, ret_slot_bytes, e) != 0)
        return -1;
    for (uint32_t i = 0; i < SLOT_COUNT; i++)
        ret_fds[i] = m->slots.slot[i].fd;
    return 0;
}

static int check_step(const struct saver *m, int64_t step, struct error *e)
{
    if (m->epoch == 0)
        return error_set(e, ERROR_BUSY, "step %" PRId64 " is not saved: the group has not formed yet", step);
    if (m->restore.found && step < m->restore.step)
        return error_set(e, ERROR_INVALID, "step %" PRId64 " is not saved: this round resumes from step %" PRId64 ", an older one would never "
                         "be restored (does the script begin from scratch? it must restore the checkpoint)", step, m->restore.step);
    if (step <= m->last_staged)
        return error_set(e, ERROR_INVALID, "step %" PRId64 " is not saved: step %" PRId64 " was staged before it in this round, and steps "
                         "must rise", step, m->last_staged);
    if (m->save_count == SAVES_MAX)
        return error_set(e, ERROR_BUSY, "step %" PRId64 " is not saved: %d steps wait to be committed", step, SAVES_MAX);
    return 0;
}

int checkpoint_staged(struct checkpoint *c, uint32_t slot, int64_t step, uint64_t image_bytes, struct error *e)
{
    struct saver *m = &c->saver;
    struct checkpoint_id id = { m->epoch, step };
    if (check_in_ring(c, e) != 0)
        return -1;
    if (check_step(m, step, e) != 0 || slots_accept(&m->slots, slot, id, image_bytes, m->world, c->rank, e) != 0) {
        slots_reject(&m->slots, slot);
        settle_slots(c);
        return -1;
    }
    m->last_staged = step;
    m->slot_committed[slot] = (struct checkpoint_id){ 0, -1 };
    struct save *save = &m->saves[m->save_count++];
    *save = (struct save){ .id = id, .world = m->world, .phase = SAVE_STAGED, .bytes = image_bytes };
    send_staged(c, save);
    return 0;
}

void checkpoint_trainer_gone(struct checkpoint *c)
{
    if (c->saver.has_slots)
        slots_drop_unfinished(&c->saver.slots);
}

/* ---- beginning and end ------------------------------------------------------------------------------------------------ */

/* What is committed already, for the member's JOIN: only a report, the claim reads for itself. */
struct look_job {
    struct worker_job job;
    struct checkpoint *c; /* on the thread: its store alone */
    struct holding committed[COMMITTED_MAX];
    size_t count;
};

static void look_work(struct worker_job *job)
{
    struct look_job *j = (struct look_job *)job;
    auto_scan struct store_scan scan = { .generations = NULL };
    struct error e = ERROR_INIT;
    if (store_scan(&j->c->store, &scan, &e) != 0) {
        log_warn_from("checkpoint volume cannot be read", &e, KV("dir", j->c->store.volume->name));
        return;
    }
    for (size_t i = 0; i < scan.count && j->count < COMMITTED_MAX / 2; i++) {
        const struct store_generation *g = &scan.generations[i];
        struct step_key key;
        auto_free struct manifest_entry *entries = NULL;
        if (g->state == GENERATION_COMMITTED && !g->bad && lineage_visible(&scan.lineage, g->generation.id) &&
            store_check(&j->c->store, &g->generation, &key, &entries, &e) == 0)
            j->committed[j->count++] = (struct holding){ .id = g->generation.id, .world = key.world };
    }
}

static void look_done(struct worker_job *job)
{
    struct look_job *j = (struct look_job *)job;
    for (size_t i = j->count; i-- > 0;)
        remember_committed(&j->c->saver, j->committed[i]);
    if (j->c->saver.epoch != 0)
        forget_committed(&j->c->saver); /* a round was entered meanwhile */
}

static void look_release(struct worker_job *job)
{
    free(job);
}

int saver_open(struct checkpoint *c, struct error *e)
{
    struct saver *m = &c->saver;
    m->image_fd = -1;
    m->committed_step = m->last_staged = -1;
    for (uint32_t i = 0; i < SLOT_COUNT; i++)
        m->slot_committed[i].step = -1;
    if (worker_new(c->loop, "ckpt-persist", &m->worker, e) != 0)
        return -1;
    if (c->rank < 0)
        return 0;
    if (fs_mkdirs(c->memory, 0700, e) != 0 || slots_open(&m->slots, c->memory, c->rank, e) != 0)
        return -1;
    m->has_slots = true;
    read_lineage(c);
    if (!c->has_volume)
        return 0;
    struct look_job *j = xcalloc(1, sizeof(*j));
    j->job = (struct worker_job){ .work = look_work, .done = look_done, .release = look_release };
    j->c = c;
    worker_run(m->worker, &j->job);
    return 0;
}

void saver_close(struct checkpoint *c)
{
    worker_free(c->saver.worker);
    saver_drop_image(&c->saver);
    if (c->saver.has_slots)
        slots_close(&c->saver.slots);
}
