/* committer.c — the commit: who has staged, who has voted, and what follows. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "base/log.h"
#include "base/mem.h"
#include "sidecar/checkpoint/internal.h"

#define STAGING_TIMEOUT_MS 60000   /* from the first rank that staged a step to the last one */
#define VOTING_TIMEOUT_MS 600000   /* to persist it everywhere */

static void abort_step(struct checkpoint *c, struct tally *t, const char *text);

/* ---- tallies ---------------------------------------------------------------------------------------------------------- */

static struct tally *find(struct checkpoint *c, struct checkpoint_id id)
{
    for (struct tally *t = c->committer.tallies; t != NULL; t = t->next)
        if (checkpoint_id_equal(t->generation.id, id))
            return t;
    return NULL;
}

static void forget(struct checkpoint *c, struct tally *t)
{
    for (struct tally **at = &c->committer.tallies; *at != NULL; at = &(*at)->next)
        if (*at == t) {
            *at = t->next;
            tally_free(t);
            return;
        }
}

static void set_timer(struct checkpoint *c)
{
    int64_t next = INT64_MAX;
    for (const struct tally *t = c->committer.tallies; t != NULL; t = t->next)
        if (t->deadline_ms < next)
            next = t->deadline_ms;
    if (next == INT64_MAX)
        loop_timer_cancel(c->committer.timer);
    else
        loop_timer_at(c->committer.timer, next);
}

static void set_state(struct checkpoint *c, struct tally *t, enum tally_state state)
{
    t->state = state;
    t->deadline_ms = state == TALLY_STAGING ? loop_now(c->loop) + STAGING_TIMEOUT_MS
                   : state == TALLY_COMMITTING ? INT64_MAX /* it may count at any moment: there is no way back */
                   : loop_now(c->loop) + VOTING_TIMEOUT_MS;
    set_timer(c);
}

static void on_timer(void *ctx)
{
    struct checkpoint *c = ctx;
    for (struct tally *t = c->committer.tallies, *next; t != NULL; t = next) {
        next = t->next;
        if (t->deadline_ms > loop_now(c->loop))
            continue;
        struct buf ranks = BUF_INIT(200);
        tally_missing(t, &ranks);
        auto_free char *text = t->state == TALLY_STAGING
            ? xasprintf("rank %s did not save this step within %d s (every rank must save the same steps)", buf_text(&ranks),
                        STAGING_TIMEOUT_MS / 1000)
            : t->state == TALLY_PREPARING
            ? xasprintf("its directory was not made within %d s (is the volume hanging?)", VOTING_TIMEOUT_MS / 1000)
            : xasprintf("rank %s did not write its image within %d s (is the volume hanging?)", buf_text(&ranks),
                        VOTING_TIMEOUT_MS / 1000);
        buf_release(&ranks);
        abort_step(c, t, text);
    }
    set_timer(c);
}

/* ---- words to the members --------------------------------------------------------------------------------------------- */

static void tell(struct checkpoint *c, const char *op, struct checkpoint_id id)
{
    c->events.broadcast(c->events.ctx, checkpoint_message_new(op, id));
}

static void tell_text(struct checkpoint *c, const char *op, struct checkpoint_id id, int32_t world, const char *key, const char *text)
{
    cJSON *message = checkpoint_message_new(op, id);
    json_put_int(message, "world", world);
    json_put_text(message, key, text);
    c->events.broadcast(c->events.ctx, message);
}

static const struct decided *decided(const struct checkpoint *c, struct checkpoint_id id)
{
    for (size_t i = 0; i < c->committer.decided_count; i++)
        if (checkpoint_id_equal(c->committer.decided[i].what.id, id))
            return &c->committer.decided[i];
    return NULL;
}

static const struct decided *decide(struct checkpoint *c, struct checkpoint_id id, int32_t world, const char *uri)
{
    struct committer *k = &c->committer;
    if (k->decided_count == COMMITTED_MAX)
        memmove(&k->decided[0], &k->decided[1], --k->decided_count * sizeof(k->decided[0]));
    struct decided *d = &k->decided[k->decided_count++];
    *d = (struct decided){ .what = { .id = id, .world = world } };
    (void)snprintf(d->uri, sizeof(d->uri), "%s", uri);
    return d;
}

static char *memory_uri(struct checkpoint_id id)
{
    return xasprintf("memory:step-%" PRId64, id.step);
}

static char *step_uri(const struct checkpoint *c, const struct generation *g)
{
    char name[LAYOUT_NAME_MAX];
    layout_generation(g, name);
    return volume_uri(c->store.volume, name);
}

/* ---- work on the volume, on the coordinator's thread -------------------------------------------------------------------- */

/* One job type for all: it owns copies of what it needs and reads nothing of the loop's. */
struct volume_job {
    struct worker_job job;
    struct checkpoint *c; /* on the thread: the store, the options, claimed_*; on the loop: all */
    struct step_key key;
    int32_t world;        /* of the epoch */
    struct lineage lineage;
    struct checkpoint_id busy[TALLIES_MAX];
    size_t busy_count;
    bool committed;       /* prepare: it is there already */
    int result;
    struct error error;
};

static void job_release(struct worker_job *job)
{
    free(job);
}

static void run_job(struct checkpoint *c, const struct tally *t, void (*work)(struct worker_job *), void (*done)(struct worker_job *))
{
    struct volume_job *v = xcalloc(1, sizeof(*v));
    v->job = (struct worker_job){ .work = work, .done = done, .release = job_release };
    v->c = c;
    v->lineage = c->committer.lineage;
    v->world = c->committer.world;
    memcpy(v->key.job, c->store.job, sizeof(v->key.job));
    if (t != NULL) {
        v->key.generation = t->generation;
        v->key.world = t->world;
    }
    for (t = c->committer.tallies; t != NULL && v->busy_count < TALLIES_MAX; t = t->next)
        v->busy[v->busy_count++] = t->generation.id;
    worker_run(c->committer.worker, &v->job);
}

static bool is_busy(void *ctx, struct checkpoint_id id)
{
    const struct volume_job *v = ctx;
    for (size_t i = 0; i < v->busy_count; i++)
        if (checkpoint_id_equal(v->busy[i], id))
            return true;
    /* Members that hold the base go on saving it: what they have voted is kept for them. */
    return lineage_head(&v->lineage) > 0 && v->lineage.links[0].has_base && checkpoint_id_equal(v->lineage.links[0].base, id);
}

static void nothing_done(struct worker_job *job)
{
    (void)job;
}

static void tidy_work(struct worker_job *job)
{
    struct volume_job *v = (struct volume_job *)job;
    if (v->c->committer.claimed_epoch != lineage_head(&v->lineage))
        return; /* the epoch is not ours, or the job is older than the claim */
    if (store_tidy(&v->c->store, &v->lineage, v->c->keep_last, is_busy, v, &v->error) != 0)
        log_warn_from("old checkpoints not removed", &v->error, KV("dir", v->c->store.volume->name));
}

static void tidy(struct checkpoint *c)
{
    if (c->has_volume)
        run_job(c, NULL, tidy_work, nothing_done);
}

/* What was written of an aborted step makes room at once. Not after a newer claim: a coordinator that was stopped for a while
 * wakes up to deadlines long past, and its successor may have taken the very same directory over and committed it. */
static void remove_work(struct worker_job *job)
{
    struct volume_job *v = (struct volume_job *)job;
    auto_free char *dir = NULL;
    store_generation_path(&v->c->store, &v->key.generation, &dir);
    if (store_check_own(&v->c->store, v->c->committer.claimed_epoch, &v->error) != 0) {
        log_warn_from("aborted checkpoint left to the coordinator of today", &v->error, KV("dir", dir));
        return;
    }
    if (store_mark(&v->c->store, &v->key.generation, LAYOUT_ABORTED, "its save was given up", &v->error) != 0)
        log_debug("aborted checkpoint not marked", KV("error", v->error.text));
    if (store_remove(&v->c->store, &v->key.generation, &v->error) != 0)
        log_warn_from("aborted checkpoint not removed", &v->error, KV("dir", dir));
}

static void abort_step(struct checkpoint *c, struct tally *t, const char *text)
{
    struct checkpoint_id id = t->generation.id;
    log_warn("checkpoint not committed", KVI("step", id.step), KV("reason", text));
    if (t->generation.nonce[0] != '\0' && c->has_volume)
        run_job(c, t, remove_work, nothing_done);
    tell_text(c, "aborted", id, t->world, "text", text);
    forget(c, find(c, id)); /* by id: the broadcast may have come back to us and changed the list */
    set_timer(c);
}

static void committed(struct checkpoint *c, struct tally *t, char *uri /* taken */)
{
    auto_free char *held = uri;
    const struct decided *d = decide(c, t->generation.id, t->world, held);
    log_info("checkpoint committed", KVI("step", d->what.id.step), KV("uri", d->uri));
    forget(c, t);
    set_timer(c);
    tell_text(c, "committed", d->what.id, d->what.world, "uri", held);
}

/* ---- commit ----------------------------------------------------------------------------------------------------------- */

static void commit_work(struct worker_job *job)
{
    struct volume_job *v = (struct volume_job *)job;
    v->result = store_commit(&v->c->store, &v->key, v->c->committer.claimed_epoch, &v->error);
}

static void commit_done(struct worker_job *job)
{
    struct volume_job *v = (struct volume_job *)job;
    struct checkpoint *c = v->c;
    struct tally *t = find(c, v->key.generation.id);
    if (v->result == 0 && t == NULL) { /* a claim has dropped it meanwhile; it counts all the same */
        log_info("checkpoint committed after its round", KVI("step", v->key.generation.id.step));
        return;
    }
    if (t == NULL)
        return;
    if (v->result == 0)
        committed(c, t, step_uri(c, &v->key.generation));
    else
        abort_step(c, t, v->error.text);
    tidy(c);
}

static void prepare_work(struct worker_job *job)
{
    struct volume_job *v = (struct volume_job *)job;
    struct committer *k = &v->c->committer;
    struct checkpoint_id id = v->key.generation.id;
    if (k->claimed_epoch == 0 &&
        claim_late(&v->c->store, v->c->name, v->world, &v->lineage, &k->claimed_epoch, k->claimed_nonce, &v->error) != 0)
        v->result = -1;
    else
        v->result = store_prepare(&v->c->store, id, &v->key.generation, &v->committed, &v->error);
}

static void prepare_done(struct worker_job *job)
{
    struct volume_job *v = (struct volume_job *)job;
    struct checkpoint *c = v->c;
    struct tally *t = find(c, v->key.generation.id);
    if (t == NULL || t->state != TALLY_PREPARING)
        return;
    if (v->result != 0) {
        abort_step(c, t, v->error.text);
        return;
    }
    t->generation = v->key.generation;
    if (v->committed) {
        committed(c, t, step_uri(c, &v->key.generation));
        return;
    }
    set_state(c, t, TALLY_VOTING);
    tell_text(c, "persist", t->generation.id, t->world, "nonce", v->key.generation.nonce);
}

static void all_staged(struct checkpoint *c, struct tally *t)
{
    struct checkpoint_id id = t->generation.id;
    set_state(c, t, TALLY_PREPARING);
    tell(c, "all_staged", id);
    if ((t = find(c, id)) == NULL)
        return;
    if (c->has_volume)
        run_job(c, t, prepare_work, prepare_done);
    else
        committed(c, t, memory_uri(id));
}

/* ---- words from the members ------------------------------------------------------------------------------------------- */

/* A rank that has staged this step has left out older ones: those are dead. With two slots the ranks that do hold them had no
 * room for this one, so it is as good as dead too; giving up all of them puts every rank in the same state for the next. */
static bool clear_dead(struct checkpoint *c, int32_t from, struct checkpoint_id id)
{
    bool dead = false;
    for (const struct tally *t = c->committer.tallies; t != NULL; t = t->next)
        dead = dead || tally_is_dead(t, from, id);
    if (!dead)
        return false;
    auto_free char *text = xasprintf("rank %" PRId32 " has skipped a step that others saved: its slots were busy (save less often, or "
                                     "give the volume more speed)", from);
    c->committer.dead = id;
    for (struct tally *t = c->committer.tallies, *next; t != NULL; t = next) {
        next = t->next;
        if (t->state == TALLY_STAGING && t->generation.id.epoch == id.epoch && t->generation.id.step <= id.step)
            abort_step(c, t, text);
    }
    return true;
}

static const char *refuse(const struct checkpoint *c, struct checkpoint_id id, int32_t world)
{
    const struct committer *k = &c->committer;
    if (!lineage_visible(&k->lineage, id))
        return "it belongs to a round that was left";
    if (world != (checkpoint_id_equal(id, k->base) ? k->base_world : k->world))
        return "it is of another world size";
    if (k->dead.epoch == id.epoch && id.step <= k->dead.step)
        return "another rank has skipped it";
    return NULL;
}

void committer_staged(struct checkpoint *c, int32_t from, struct checkpoint_id id, int32_t world, uint64_t bytes)
{
    struct committer *k = &c->committer;
    const struct decided *d = decided(c, id);
    if (d != NULL) {
        tell_text(c, "committed", id, d->what.world, "uri", d->uri);
        return;
    }
    struct tally *t = find(c, id);
    const char *no = t != NULL ? NULL : refuse(c, id, world);
    if (no != NULL) {
        tell_text(c, "aborted", id, world, "text", no);
        return;
    }
    if (t == NULL) {
        t = tally_new(id, world);
        t->next = k->tallies;
        k->tallies = t;
        set_state(c, t, TALLY_STAGING);
    }
    switch (tally_stage(t, from, bytes)) {
    case TALLY_COMPLETE:
        all_staged(c, t);
        return;
    case TALLY_CONFLICT: {
        auto_free char *text = xasprintf("rank %" PRId32 " has staged it twice with different sizes", from);
        if (t->state != TALLY_COMMITTING)
            abort_step(c, t, text);
        return;
    }
    case TALLY_REPEATED: /* its sidecar or its link is new: it may not have heard */
        if (t->state != TALLY_STAGING)
            tell(c, "all_staged", id);
        if (t->state == TALLY_VOTING)
            tell_text(c, "persist", id, t->world, "nonce", t->generation.nonce);
        return;
    case TALLY_STRANGER:
        log_warn("staged by a rank that this world does not have", KVI("rank", from), KVI("step", id.step));
        return;
    case TALLY_NEWS:
        break;
    }
    (void)clear_dead(c, from, id);
}

void committer_vote(struct checkpoint *c, int32_t from, struct checkpoint_id id, const char *nonce, uint64_t bytes, uint64_t crc64nvme)
{
    struct tally *t = find(c, id);
    if (t == NULL || (t->state != TALLY_VOTING && t->state != TALLY_COMMITTING))
        return; /* decided already, or it will be asked again */
    switch (tally_vote(t, from, nonce, bytes, crc64nvme)) {
    case TALLY_COMPLETE:
        set_state(c, t, TALLY_COMMITTING);
        run_job(c, t, commit_work, commit_done);
        return;
    case TALLY_CONFLICT: {
        auto_free char *text = xasprintf("two different images were written for rank %" PRId32 ": is it running twice?", from);
        log_error("checkpoint votes contradict each other", KVI("rank", from), KVI("step", id.step));
        if (t->state == TALLY_VOTING)
            abort_step(c, t, text);
        return;
    }
    case TALLY_STRANGER:
        log_warn("checkpoint vote of a stranger is not counted", KVI("rank", from), KVI("step", id.step), KV("nonce", nonce));
        return;
    case TALLY_NEWS:
    case TALLY_REPEATED:
        return;
    }
}

void committer_failed(struct checkpoint *c, int32_t from, struct checkpoint_id id, const char *text)
{
    struct tally *t = find(c, id);
    if (t == NULL || t->state == TALLY_COMMITTING)
        return; /* all have voted: what one of them says later does not take its durable image back */
    auto_free char *why = xasprintf("rank %" PRId32 ": %.240s", from, text);
    abort_step(c, t, why);
    tidy(c);
}

/* ---- claim ------------------------------------------------------------------------------------------------------------ */

struct claim_job {
    struct worker_job job;
    struct checkpoint *c;
    struct claim claim;
    checkpoint_claimed_fn *done;
    void *ctx;
    bool started;
    int result;
    struct error error;
};

static void claim_release(struct worker_job *job)
{
    struct claim_job *j = (struct claim_job *)job;
    free(j->claim.by_rank);
    free(j);
}

static void claim_work(struct worker_job *job)
{
    struct claim_job *j = (struct claim_job *)job;
    struct checkpoint *c = j->c;
    if (!j->started)
        j->result = -1; /* refused before it began: the reason is there */
    else
        j->result = claim_run(c->has_volume ? &c->store : NULL, &j->claim, &c->committer.claimed_epoch, c->committer.claimed_nonce,
                              &j->error);
}

/* Only the base is still worth committing: what is older is superseded, what is newer is not in the new history. */
static void drop_tallies(struct checkpoint *c, const struct checkpoint_restore *base)
{
    struct checkpoint_id id = { base->epoch, base->step };
    for (struct tally *t = c->committer.tallies, *next; t != NULL; t = next) {
        next = t->next;
        if (!base->found || !checkpoint_id_equal(t->generation.id, id))
            forget(c, t);
    }
    set_timer(c);
}

static void claim_done(struct worker_job *job)
{
    struct claim_job *j = (struct claim_job *)job;
    struct checkpoint *c = j->c;
    struct committer *k = &c->committer;
    const struct checkpoint_restore *base = &j->claim.ret_restore;
    if (j->started)
        k->claiming = false;
    if (j->claim.ret_newest_epoch > k->newest_epoch)
        k->newest_epoch = j->claim.ret_newest_epoch;
    if (j->result == 0) {
        struct checkpoint_id id = { base->epoch, base->step };
        k->active = true;
        k->epoch = j->claim.fence;
        k->world = j->claim.world;
        k->base = (struct checkpoint_id){ base->epoch, base->found ? base->step : -1 };
        k->base_world = base->world;
        k->lineage = j->claim.known;
        k->dead = (struct checkpoint_id){ 0, 0 };
        if (base->found && j->claim.ret_on_volume && decided(c, id) == NULL) {
            auto_free char *uri = volume_uri(c->store.volume, "");
            (void)decide(c, id, base->world, uri);
        }
        drop_tallies(c, base);
        tidy(c);
    }
    j->done(j->ctx, base, j->result == 0 ? NULL : &j->error);
}

void checkpoint_claim(struct checkpoint *c, uint64_t fence, int32_t world, const cJSON *const *holdings, bool skip_newest,
                      checkpoint_claimed_fn *done, void *ctx)
{
    struct claim_job *j = xcalloc(1, sizeof(*j));
    j->job = (struct worker_job){ .work = claim_work, .done = claim_done, .release = claim_release };
    j->c = c;
    j->done = done;
    j->ctx = ctx;
    j->claim = (struct claim){ .fence = fence, .world = world, .member = c->name, .skip_newest = skip_newest, .known = c->saver.lineage };
    lineage_adopt(&j->claim.known, &c->committer.lineage);
    if (c->committer.claiming)
        (void)error_set(&j->error, ERROR_BUSY, "a claim of the checkpoints is under way");
    else if (world < 1 || world > MANIFEST_MAX_WORLD)
        (void)error_set(&j->error, ERROR_INVALID, "claim of the checkpoints for %" PRId32 " ranks", world);
    else
        j->claim.by_rank = xcalloc((size_t)world, sizeof(*j->claim.by_rank));
    for (int32_t rank = 0; j->error.kind == ERROR_NONE && rank < world; rank++)
        if (holdings_decode(holdings[rank], &j->claim.by_rank[rank], &j->error) != 0)
            (void)error_wrap(&j->error, "rank %" PRId32, rank);
    j->started = j->error.kind == ERROR_NONE;
    if (j->started)
        c->committer.claiming = true;
    worker_run(c->committer.worker, &j->job);
}

uint64_t checkpoint_newest_epoch(const struct checkpoint *c)
{
    return c->committer.newest_epoch > c->saver.epoch ? c->committer.newest_epoch : c->saver.epoch;
}

int committer_open(struct checkpoint *c, struct error *e)
{
    c->committer.timer = loop_timer_new(c->loop, on_timer, c);
    return worker_new(c->loop, "ckpt-commit", &c->committer.worker, e);
}

void committer_close(struct checkpoint *c)
{
    worker_free(c->committer.worker);
    loop_timer_free(c->committer.timer);
    while (c->committer.tallies != NULL)
        forget(c, c->committer.tallies);
}
