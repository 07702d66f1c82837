/* claim.c — a coordinator takes an epoch on the volume, settles what its predecessors left, and agrees on the base. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crypto.h"
#include "base/log.h"
#include "base/mem.h"
#include "sidecar/checkpoint/internal.h"
#include "wire/peer.h"

/* A full disk must not keep a job from forming; anything else that is wrong with the volume must be told. */
static bool is_full(const struct error *e)
{
    return e->os_errno == ENOSPC || e->os_errno == EDQUOT;
}

static int check_fence(uint64_t fence, uint64_t newest, struct error *e)
{
    if (newest < fence)
        return 0;
    if (FENCE_ATTEMPT(newest) > FENCE_ATTEMPT(fence))
        return error_set(e, ERROR_GONE, "attempt %" PRIu32 " of this job has claimed the checkpoints; this is attempt %" PRIu32
                         " and must stop", FENCE_ATTEMPT(newest), FENCE_ATTEMPT(fence));
    return error_set(e, ERROR_CONFLICT, "round %" PRIu32 " of attempt %" PRIu32 " has claimed the checkpoints; round %" PRIu32
                     " is too low", FENCE_ROUND(newest), FENCE_ATTEMPT(newest), FENCE_ROUND(fence));
}

static int take_epoch(const struct store *s, const char *member, uint64_t fence, int32_t world, char ret_nonce[LAYOUT_NONCE_MAX],
                      struct error *e)
{
    uint8_t nonce[(LAYOUT_NONCE_MAX - 1) / 2];
    if (crypto_random(nonce, sizeof(nonce), e) != 0)
        return -1;
    crypto_hex(nonce, sizeof(nonce), ret_nonce);
    return store_claim(s, fence, member, ret_nonce, world, e);
}

/* A generation of the history to which only COMMIT is missing gets it: its coordinator died between the last vote and there. */
static void finish(const struct store *s, struct store_generation *g, const struct lineage *l, uint64_t fence)
{
    struct error e = ERROR_INIT;
    struct step_key key = { .generation = g->generation, .world = 0 /* as many ranks as it was saved by */ };
    if (g->state != GENERATION_OPEN || g->bad || !lineage_visible(l, g->generation.id))
        return;
    memcpy(key.job, s->job, sizeof(key.job));
    if (store_commit(s, &key, fence, &e) == 0) {
        g->state = GENERATION_COMMITTED;
        log_info("checkpoint committed that a coordinator before this one had left", KVI("step", g->generation.id.step));
    } else {
        log_debug("checkpoint left by a coordinator before this one is not complete", KVI("step", g->generation.id.step),
                  KV("reason", e.text));
    }
}

/* The newest committed one of the history (and older than `below`, which may be NULL) that the reader's rule accepts; those before it
 * that are damaged are marked. */
static int newest_good(const struct store *s, const struct store_scan *scan, const struct lineage *l, const struct checkpoint_id *below,
                       struct holding *ret_holding, bool *ret_found, struct error *e)
{
    *ret_found = false;
    for (size_t i = 0; i < scan->count && !*ret_found; i++) {
        const struct store_generation *g = &scan->generations[i];
        struct step_key key;
        auto_free struct manifest_entry *entries = NULL;
        struct error why = ERROR_INIT;
        if (g->state != GENERATION_COMMITTED || g->bad || !lineage_visible(l, g->generation.id) ||
            (below != NULL && checkpoint_id_compare(g->generation.id, *below) >= 0))
            continue;
        if (store_check(s, &g->generation, &key, &entries, &why) == 0) {
            *ret_holding = (struct holding){ .id = g->generation.id, .world = key.world };
            *ret_found = true;
        } else if (why.kind == ERROR_INVALID) {
            log_error_from("checkpoint is damaged, an older one is used", &why, KVI("step", g->generation.id.step));
            if (store_mark(s, &g->generation, LAYOUT_BAD, why.text, &why) != 0)
                log_warn_from("damaged checkpoint not marked", &why, KVI("step", g->generation.id.step));
        } else if (why.kind != ERROR_NOT_FOUND) {
            *e = why; /* a volume that cannot be read: going back in history because of it would lose steps */
            return -1;
        }
    }
    return 0;
}

/* The history is the newer of what the members remember and what the volume says; what it lacks is finished, then read. */
static int settle(const struct store *s, struct claim *claim, bool claimed, const struct checkpoint_id *below, struct holding *ret_volume,
                  size_t *ret_count, struct error *e)
{
    auto_scan struct store_scan scan = { .generations = NULL };
    bool found;
    if (store_scan(s, &scan, e) != 0)
        return -1;
    if (scan.damage.kind != ERROR_NONE)
        log_warn_from("base of an epoch cannot be read, its checkpoints are not used", &scan.damage, KV("dir", s->volume->name));
    lineage_adopt(&claim->known, &scan.lineage);
    if (claimed)
        for (size_t i = 0; i < scan.count; i++)
            finish(s, &scan.generations[i], &claim->known, claim->fence);
    if (newest_good(s, &scan, &claim->known, below, ret_volume, &found, e) != 0)
        return -1;
    *ret_count = found;
    return 0;
}

/* What is there is looked at only once the epoch is claimed: who claims later sees what we do, who claimed before sees that we did. */
static int look(const struct store *s, struct claim *claim, bool claimed, const struct checkpoint_id *below, struct holding *ret_base,
                bool *ret_found, struct error *e)
{
    struct holding volume = { .world = 0 };
    size_t volume_count = 0;
    if (s != NULL && settle(s, claim, claimed, below, &volume, &volume_count, e) != 0)
        return -1;
    *ret_found = agree(&volume, volume_count, claim->by_rank, claim->world, &claim->known, below, ret_base);
    if (*ret_found)
        claim->ret_on_volume = volume_count > 0 && checkpoint_id_equal(volume.id, ret_base->id);
    return 0;
}

static int choose(const struct store *s, struct claim *claim, bool claimed, struct error *e)
{
    struct holding base, older;
    bool found, skips = false;
    if (look(s, claim, claimed, NULL, &base, &found, e) != 0)
        return -1;
    claim->ret_restore = (struct checkpoint_restore){ .found = found };
    if (found && claim->skip_newest) {
        bool on_volume = claim->ret_on_volume;
        if (look(s, claim, claimed, &base.id, &older, &skips, e) != 0)
            return -1;
        claim->ret_restore.skipped = skips;
        claim->ret_restore.skipped_step = base.id.step;
        base = skips ? older : base;
        claim->ret_on_volume = skips ? claim->ret_on_volume : on_volume;
        log_warn(skips ? "the job dies of its newest checkpoint again and again: an older one is used" :
                 "the job dies of its newest checkpoint again and again, and there is no older one", KVI("newest", claim->ret_restore.skipped_step),
                 KVI("step", base.id.step));
    }
    if (found) {
        claim->ret_restore.step = base.id.step;
        claim->ret_restore.epoch = base.id.epoch;
        claim->ret_restore.world = base.world;
    }
    if (found && base.world != claim->world)
        log_info("checkpoint of another number of ranks is dealt out anew", KVI("step", base.id.step), KVI("saved_by", base.world),
                 KVI("ranks", claim->world));
    lineage_push(&claim->known, claim->fence, found ? &base.id : NULL);
    return 0;
}

int claim_run(const struct store *s, struct claim *claim, uint64_t *claimed_epoch, char claimed_nonce[LAYOUT_NONCE_MAX], struct error *e)
{
    char nonce[LAYOUT_NONCE_MAX];
    bool claimed = false;
    for (int32_t rank = 0; rank < claim->world; rank++)
        lineage_adopt(&claim->known, &claim->by_rank[rank].lineage);
    claim->ret_newest_epoch = lineage_head(&claim->known);
    if (s != NULL) {
        uint64_t newest;
        if (store_newest_claim(s, &newest, e) != 0)
            return -1;
        if (newest > claim->ret_newest_epoch)
            claim->ret_newest_epoch = newest;
    }
    if (check_fence(claim->fence, claim->ret_newest_epoch, e) != 0)
        return -1;
    if (s != NULL) {
        *claimed_epoch = 0;
        claimed = take_epoch(s, claim->member, claim->fence, claim->world, nonce, e) == 0;
        if (!claimed && !is_full(e))
            return -1;
    }
    if (choose(s, claim, claimed, e) != 0)
        return -1;
    claim->ret_newest_epoch = claim->fence;
    if (claimed)
        memcpy(claimed_nonce, nonce, LAYOUT_NONCE_MAX);
    if (claimed && store_base(s, nonce, claim->world, &claim->known, e) != 0) {
        if (!is_full(e))
            return -1;
        claimed = false;
    }
    if (s != NULL && !claimed)
        log_warn_from("checkpoint volume is full: this round saves in memory only until there is room", e, KV("dir", s->volume->name));
    if (claimed)
        *claimed_epoch = claim->fence;
    return 0;
}

int claim_late(const struct store *s, const char *member, int32_t world, const struct lineage *l, uint64_t *claimed_epoch,
               char claimed_nonce[LAYOUT_NONCE_MAX], struct error *e)
{
    uint64_t newest, fence = lineage_head(l);
    char nonce[LAYOUT_NONCE_MAX];
    if (store_newest_claim(s, &newest, e) != 0)
        return -1;
    /* The claim itself may have been written before the disk was full at the base. */
    if (newest > fence)
        return check_fence(fence, newest, e);
    if (newest < fence && take_epoch(s, member, fence, world, nonce, e) != 0)
        return error_wrap(e, "epoch not claimed");
    if (newest == fence)
        memcpy(nonce, claimed_nonce, sizeof(nonce));
    if (store_base(s, nonce, world, l, e) != 0)
        return error_wrap(e, "base of the epoch not written");
    *claimed_epoch = fence;
    memcpy(claimed_nonce, nonce, LAYOUT_NONCE_MAX);
    return 0;
}
