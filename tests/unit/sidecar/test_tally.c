#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sidecar/checkpoint/tally.h"

#define NONCE "0123456789abcdef0123456789abcdef"
#define OTHER "ffffffffffffffffffffffffffffffff"

enum word { STAGE, VOTE };
/* One story, in order, of a world of three. */
static const struct { const char *name; enum word word; int32_t rank; const char *nonce; uint64_t bytes, crc; enum tally_result result; } STORY[] = {
    { "rank 2 stages", STAGE, 2, NULL, 100, 0, TALLY_NEWS },
    { "and says so again", STAGE, 2, NULL, 100, 0, TALLY_REPEATED },
    { "and with another size", STAGE, 2, NULL, 101, 0, TALLY_CONFLICT },
    { "a rank that is none", STAGE, 3, NULL, 100, 0, TALLY_STRANGER },
    { "a rank below all", STAGE, -1, NULL, 100, 0, TALLY_STRANGER },
    { "rank 0 stages", STAGE, 0, NULL, 100, 0, TALLY_NEWS },
    { "rank 1 is the last", STAGE, 1, NULL, 120, 0, TALLY_COMPLETE },
    { "a vote of another nonce", VOTE, 0, OTHER, 100, 7, TALLY_STRANGER },
    { "rank 0 votes", VOTE, 0, NONCE, 100, 7, TALLY_NEWS },
    { "again", VOTE, 0, NONCE, 100, 7, TALLY_REPEATED },
    { "again", VOTE, 0, NONCE, 100, 7, TALLY_REPEATED },
    { "with another image", VOTE, 0, NONCE, 100, 8, TALLY_CONFLICT },
    { "rank 1 with another size than it staged", VOTE, 1, NONCE, 100, 9, TALLY_CONFLICT },
    { "rank 1 votes", VOTE, 1, NONCE, 120, 9, TALLY_NEWS },
    { "a rank that is none votes", VOTE, 3, NONCE, 100, 9, TALLY_STRANGER },
    { "rank 2 is the last", VOTE, 2, NONCE, 100, 5, TALLY_COMPLETE },
    { "and once more", VOTE, 2, NONCE, 100, 5, TALLY_REPEATED },
};

Test(tally, counts_identities_not_messages)
{
    struct tally *t = tally_new((struct checkpoint_id){ 4, 70 }, 3);
    cr_expect(tally_vote(t, 0, NONCE, 100, 7) == TALLY_STRANGER, "no directory yet, so no nonce can be right");
    cr_expect(tally_vote(t, 0, "", 100, 7) == TALLY_STRANGER);
    memcpy(t->generation.nonce, NONCE, sizeof(NONCE));
    for (size_t i = 0; i < COUNT(STORY); i++) {
        enum tally_result result = STORY[i].word == STAGE ? tally_stage(t, STORY[i].rank, STORY[i].bytes)
                                                          : tally_vote(t, STORY[i].rank, STORY[i].nonce, STORY[i].bytes, STORY[i].crc);
        cr_expect(result == STORY[i].result, "line %zu, %s: %d", i, STORY[i].name, (int)result);
    }
    tally_free(t);
    tally_free(NULL);
}

/* Every order in which three ranks can speak, each twice: complete exactly once, at the third identity. */
Test(tally, completes_once_in_every_order)
{
    for (int order = 0; order < 729; order++) {
        struct tally *t = tally_new((struct checkpoint_id){ 1, 1 }, 3);
        unsigned seen = 0;
        int complete = 0;
        for (int i = 0, rest = order; i < 6; i++, rest /= 3) {
            int32_t rank = rest % 3;
            bool last = (seen | 1u << rank) == 7 && seen != 7;
            enum tally_result result = tally_stage(t, rank, 1);
            cr_assert((result == TALLY_COMPLETE) == last, "order %d", order);
            complete += result == TALLY_COMPLETE;
            seen |= 1u << rank;
        }
        cr_expect(complete == (seen == 7));
        tally_free(t);
    }
}

Test(tally, names_who_is_missing)
{
    struct tally *t = tally_new((struct checkpoint_id){ 1, 1 }, 4);
    struct buf text = BUF_INIT(100);
    (void)tally_stage(t, 2, 1);
    tally_missing(t, &text);
    cr_expect_str_eq(buf_text(&text), "0,1,3");
    buf_release(&text);
    t->state = TALLY_VOTING;
    memcpy(t->generation.nonce, NONCE, sizeof(NONCE));
    for (int32_t rank = 0; rank < 3; rank++)
        (void)tally_vote(t, rank, NONCE, 1, 1);
    struct buf votes = BUF_INIT(100);
    tally_missing(t, &votes);
    cr_expect_str_eq(buf_text(&votes), "3");
    buf_release(&votes);
    tally_free(t);
}

static const struct { const char *name; int32_t rank; struct checkpoint_id staged; enum tally_state state; bool dead; } DEAD[] = {
    { "a rank that left it out went on", 1, { 4, 80 }, TALLY_STAGING, true },
    { "a rank that has it went on", 0, { 4, 80 }, TALLY_STAGING, false },
    { "the same step", 1, { 4, 70 }, TALLY_STAGING, false },
    { "an older step", 1, { 4, 60 }, TALLY_STAGING, false },
    { "another epoch", 1, { 5, 80 }, TALLY_STAGING, false },
    { "all have it already", 1, { 4, 80 }, TALLY_VOTING, false },
    { "nobody", 9, { 4, 80 }, TALLY_STAGING, false },
};

Test(tally, is_dead_when_a_rank_has_left_the_step_out)
{
    struct tally *t = tally_new((struct checkpoint_id){ 4, 70 }, 2);
    (void)tally_stage(t, 0, 1);
    for (size_t i = 0; i < COUNT(DEAD); i++) {
        t->state = DEAD[i].state;
        cr_expect(tally_is_dead(t, DEAD[i].rank, DEAD[i].staged) == DEAD[i].dead, "case %s", DEAD[i].name);
    }
    tally_free(t);
}
