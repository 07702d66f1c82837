/* checkpoint.c — the facade: makes the two halves and hands messages to the right one. */
#include "sidecar/checkpoint/checkpoint.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "sidecar/checkpoint/internal.h"

#define TEXT_MAX 1024

cJSON *checkpoint_message_new(const char *op, struct checkpoint_id id)
{
    char text[24];
    cJSON *message = json_object();
    epoch_format(id.epoch, text);
    json_put_text(message, "op", op);
    json_put_text(message, "epoch", text);
    json_put_int(message, "step", id.step);
    return message;
}

int checkpoint_new(struct loop *loop, const struct checkpoint_options *options, const struct checkpoint_events *events,
                   struct checkpoint **ret_checkpoint, struct error *e)
{
    struct checkpoint *c = xcalloc(1, sizeof(*c));
    struct volume_options volume = { .scratch = options->memory, .s3 = options->s3 };
    c->loop = loop;
    c->events = *events;
    c->memory = xstrdup(options->memory);
    c->name = xstrdup(options->member);
    c->rank = options->rank;
    c->keep_last = options->keep_last;
    c->saver.image_fd = -1;
    c->has_volume = options->volume != NULL && options->volume[0] != '\0';
    if ((c->has_volume && store_init(&c->store, options->volume, options->job_uid, &volume, e) != 0) || saver_open(c, e) != 0 ||
        committer_open(c, e) != 0) {
        checkpoint_free(c);
        return -1;
    }
    *ret_checkpoint = c;
    return 0;
}

void checkpoint_free(struct checkpoint *c)
{
    if (c == NULL)
        return;
    committer_close(c);
    saver_close(c);
    store_release(&c->store);
    free(c->memory);
    free(c->name);
    free(c);
}

cJSON *checkpoint_holdings(struct checkpoint *c)
{
    const struct saver *m = &c->saver;
    struct holdings h = { .slot_count = 0, .lineage = m->lineage };
    uint64_t bytes;
    for (uint32_t i = 0; m->has_slots && i < SLOT_COUNT; i++)
        if (slots_held(&m->slots, i, &h.slots[h.slot_count], &bytes))
            h.slot_count++;
    return holdings_encode(&h, m->committed, m->committed_count);
}

void checkpoint_enter(struct checkpoint *c, uint64_t fence, int32_t world, const struct checkpoint_restore *restore)
{
    saver_enter(c, fence, world, restore);
}

/* Whoever is not the coordinator has no business with words for it. */
static bool to_coordinator(struct checkpoint *c, int32_t from, const char *op, struct checkpoint_id id, const cJSON *message)
{
    int64_t bytes = json_int(message, "bytes", 0);
    if (strcmp(op, "staged") == 0) {
        int64_t world = json_int(message, "world", 0);
        if (c->committer.active && world > 0 && world <= MANIFEST_MAX_WORLD && bytes > 0)
            committer_staged(c, from, id, (int32_t)world, (uint64_t)bytes);
    } else if (strcmp(op, "vote") == 0) {
        uint64_t crc;
        const char *nonce = json_text(message, "nonce", "");
        if (c->committer.active && layout_nonce_ok(nonce) && bytes > 0 && crc64_parse(json_text(message, "crc64nvme", NULL), &crc))
            committer_vote(c, from, id, nonce, (uint64_t)bytes, crc);
    } else if (strcmp(op, "failed") == 0) {
        if (c->committer.active)
            committer_failed(c, from, id, json_text(message, "text", ""));
    } else {
        return false;
    }
    return true;
}

static bool to_member(struct checkpoint *c, const char *op, struct checkpoint_id id, const cJSON *message)
{
    int64_t world = json_int(message, "world", 0);
    const char *nonce = json_text(message, "nonce", "");
    if (strcmp(op, "all_staged") == 0)
        saver_all_staged(c, id);
    else if (strcmp(op, "persist") == 0 && layout_nonce_ok(nonce) && world > 0 && world <= MANIFEST_MAX_WORLD)
        saver_persist(c, id, nonce, (int32_t)world);
    else if (strcmp(op, "committed") == 0)
        saver_committed(c, id, (int32_t)world, json_text(message, "uri", ""));
    else if (strcmp(op, "aborted") == 0)
        saver_aborted(c, id, json_text(message, "text", "no reason was given"));
    else
        return false;
    return true;
}

void checkpoint_message(struct checkpoint *c, int32_t from, const cJSON *message)
{
    struct checkpoint_id id = { .epoch = 0, .step = json_int(message, "step", -1) };
    const char *op = json_text(message, "op", "");
    if (!epoch_parse(json_text(message, "epoch", NULL), &id.epoch) || id.step < 0 || strlen(json_text(message, "text", "")) > TEXT_MAX ||
        strlen(json_text(message, "uri", "")) >= URI_MAX) {
        log_warn("checkpoint message cannot be read", KVI("from", from), KV("op", op));
        return;
    }
    /* A member outside the ring holds nothing and hears only what was committed. */
    if (c->rank < 0 && strcmp(op, "committed") != 0)
        return;
    if (!to_coordinator(c, from, op, id, message) && !to_member(c, op, id, message))
        log_warn("checkpoint message of an unknown kind", KVI("from", from), KV("op", op));
}

bool checkpoint_idle(const struct checkpoint *c)
{
    return c->saver.save_count == 0 && c->saver.persisting == 0;
}

int64_t checkpoint_committed_step(const struct checkpoint *c)
{
    return c->saver.committed_step;
}
