#include "sidecar/checkpoint/tally.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct tally *tally_new(struct checkpoint_id id, int32_t world)
{
    struct tally *t = xcalloc(1, sizeof(*t));
    t->generation.id = id;
    t->world = world;
    t->ranks = xcalloc((size_t)world, sizeof(*t->ranks));
    return t;
}

void tally_free(struct tally *t)
{
    if (t == NULL)
        return;
    free(t->ranks);
    free(t);
}

enum tally_result tally_stage(struct tally *t, int32_t rank, uint64_t bytes)
{
    if (rank < 0 || rank >= t->world)
        return TALLY_STRANGER;
    struct tally_rank *r = &t->ranks[rank];
    if (r->staged)
        return r->bytes == bytes ? TALLY_REPEATED : TALLY_CONFLICT;
    r->staged = true;
    r->bytes = bytes;
    return ++t->staged == t->world ? TALLY_COMPLETE : TALLY_NEWS;
}

enum tally_result tally_vote(struct tally *t, int32_t rank, const char *nonce, uint64_t bytes, uint64_t crc64nvme)
{
    if (rank < 0 || rank >= t->world || t->generation.nonce[0] == '\0' || strcmp(nonce, t->generation.nonce) != 0)
        return TALLY_STRANGER;
    struct tally_rank *r = &t->ranks[rank];
    if (r->staged && r->bytes != bytes)
        return TALLY_CONFLICT;
    if (r->voted)
        return r->crc64nvme == crc64nvme ? TALLY_REPEATED : TALLY_CONFLICT;
    r->voted = true;
    r->bytes = bytes;
    r->crc64nvme = crc64nvme;
    return ++t->voted == t->world ? TALLY_COMPLETE : TALLY_NEWS;
}

void tally_missing(const struct tally *t, struct buf *ret_text)
{
    const char *comma = "";
    for (int32_t rank = 0; rank < t->world; rank++)
        if (t->state == TALLY_STAGING ? !t->ranks[rank].staged : !t->ranks[rank].voted) {
            buf_addf(ret_text, "%s%" PRId32, comma, rank);
            comma = ",";
        }
}

bool tally_is_dead(const struct tally *t, int32_t rank, struct checkpoint_id id)
{
    return t->state == TALLY_STAGING && t->generation.id.epoch == id.epoch && t->generation.id.step < id.step && rank >= 0 &&
           rank < t->world && !t->ranks[rank].staged;
}
