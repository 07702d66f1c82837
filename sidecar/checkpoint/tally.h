/*
 * tally.h — who has staged and who has voted for one step, by identity. Pure.
 *
 * A step is complete when each of the ranks 0..world-1 has spoken, not when `world` messages have come: a repeated word counts
 * once, a word that contradicts an earlier one of the same rank spoils the step, a word for another nonce is a stranger's.
 */
#ifndef SIDECAR_CHECKPOINT_TALLY_H
#define SIDECAR_CHECKPOINT_TALLY_H

#include "base/buf.h"
#include "checkpoint/layout.h"

enum tally_state {
    TALLY_STAGING,    /* not all ranks hold it */
    TALLY_PREPARING,  /* all do; its directory is being made */
    TALLY_VOTING,     /* ranks persist */
    TALLY_COMMITTING,
};

struct tally_rank { bool staged, voted; uint64_t bytes, crc64nvme; };
struct tally {
    struct generation generation; /* nonce "" until the directory is there */
    int32_t world, staged, voted;
    enum tally_state state;
    int64_t deadline_ms;          /* monotonic; kept here for the shell */
    struct tally_rank *ranks;
    struct tally *next;
};

enum tally_result {
    TALLY_NEWS,     /* counted, not all yet */
    TALLY_COMPLETE, /* counted, and it was the last one */
    TALLY_REPEATED, /* said before, alike */
    TALLY_CONFLICT, /* said before, differently: the step cannot be trusted */
    TALLY_STRANGER, /* no rank of this world, or another nonce */
};

struct tally *tally_new(struct checkpoint_id id, int32_t world);
void tally_free(struct tally *t);
enum tally_result tally_stage(struct tally *t, int32_t rank, uint64_t bytes);
enum tally_result tally_vote(struct tally *t, int32_t rank, const char *nonce, uint64_t bytes, uint64_t crc64nvme);
/* Ranks that have not staged (state STAGING) or not voted, "1,2,5". */
void tally_missing(const struct tally *t, struct buf *ret_text);
/* `rank` has staged `id`: it never will stage an older step of the same epoch that it has not staged yet. */
bool tally_is_dead(const struct tally *t, int32_t rank, struct checkpoint_id id);

#endif
