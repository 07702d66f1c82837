#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "sidecar/ring/negotiate.h"
#include "tests/unit/sidecar/announcements.h"

static const char *const MEMBERS[] = { "chief-0", "worker-0", "worker-1", "worker-2" };

static void announce(struct negotiation *n, int32_t rank, const char *name, struct signature sig)
{
    struct announcement a = announcement_of(name, sig);
    struct error e = ERROR_INIT;

    cr_assert(negotiation_announce(n, rank, &a, 0, &e) == 0, "%s", e.text);
}

static struct process_sets *sets; /* of the negotiation at work: one a test */

static struct negotiation *negotiation_of(int32_t size)
{
    sets = process_sets_new(size);
    return negotiation_new(size, MEMBERS, sets);
}

static void end(struct negotiation *n)
{
    negotiation_free(n);
    process_sets_free(sets);
}

/* ---- rank 0 ---- */

Test(negotiation, a_name_goes_when_all_have_announced_it_in_the_order_of_completion)
{
    struct negotiation *n = negotiation_of(3);
    struct go_list l;

    announce(n, 2, "b", sum_of(1 << 20));
    announce(n, 0, "a", sum_of(1 << 20));
    announce(n, 1, "b", sum_of(1 << 20));
    announce(n, 1, "a", sum_of(1 << 20));
    cr_expect(!negotiation_next(n, &l) && negotiation_waiting(n) == 2);
    announce(n, 0, "b", sum_of(1 << 20));
    announce(n, 2, "a", sum_of(1 << 20));
    static const struct { const char *name; int32_t last; } want[] = { { "b", 0 }, { "a", 2 } };
    for (size_t i = 0; i < 2; i++) {
        cr_assert(negotiation_next(n, &l));
        cr_expect(l.count == 1 && l.sequence == i + 1 && l.last_rank == want[i].last && strcmp(l.entries[0].name, want[i].name) == 0,
                  "list %zu", i);
        go_list_release(&l);
    }
    cr_expect(!negotiation_next(n, &l) && negotiation_waiting(n) == 0);
    announce(n, 0, "a", sum_of(3)); /* the name is free again, for anything */
    cr_expect(negotiation_waiting(n) == 1);
    end(n);
}

Test(negotiation, small_all_reduces_of_one_kind_are_fused)
{
    struct negotiation *n = negotiation_of(1);
    struct go_list l;
    struct signature max = sum_of(10), other_scale = sum_of(10), big = sum_of(NEGOTIATE_FUSE_ENTRY_BYTES / 4 + 1);

    max.redop = SHM_MAX;
    other_scale.postscale = 0.5;
    announce(n, 0, "a", sum_of(10));
    announce(n, 0, "max", max);
    announce(n, 0, "b", sum_of(0));
    announce(n, 0, "big", big);
    announce(n, 0, "scaled", other_scale);
    announce(n, 0, "barrier", (struct signature){ .op = SHM_OP_BARRIER });
    announce(n, 0, "c", sum_of(30));
    static const char *const want[] = { "a,b,c", "max", "big", "scaled", "barrier" };
    for (size_t i = 0; i < COUNT(want); i++) {
        auto_buf struct buf names = BUF_INIT(1024);
        cr_assert(negotiation_next(n, &l));
        for (size_t k = 0; k < l.count; k++)
            buf_addf(&names, "%s%s", k ? "," : "", l.entries[k].name);
        cr_expect_str_eq(buf_text(&names), want[i]);
        go_list_release(&l);
    }
    announce(n, 0, "after", sum_of(1)); /* the queue's end is still right */
    cr_expect(negotiation_next(n, &l) && strcmp(l.entries[0].name, "after") == 0);
    go_list_release(&l);
    end(n);
}

Test(negotiation, a_fused_list_is_bounded_in_bytes_and_entries)
{
    struct negotiation *n = negotiation_of(1);
    struct go_list l;
    size_t lists = 0, entries = 0;
    char name[32];

    for (int i = 0; i < 2000; i++) {
        (void)snprintf(name, sizeof name, "t%d", i);
        announce(n, 0, name, sum_of(i % 2 ? 1 : 30000));
    }
    while (negotiation_next(n, &l)) {
        uint64_t bytes = 0;
        for (size_t i = 0; i < l.count; i++)
            bytes += l.entries[i].sig.count * 4;
        cr_expect(l.count <= NEGOTIATE_FUSE_ENTRIES && bytes <= NEGOTIATE_FUSE_BYTES, "%zu entries, %llu bytes", l.count,
                  (unsigned long long)bytes);
        lists++;
        entries += l.count;
        go_list_release(&l);
    }
    cr_expect(entries == 2000 && lists < 100, "%zu entries in %zu lists", entries, lists);
    end(n);
}

static const struct { const char *name; struct signature first, second; const char *says[3]; } MISMATCHES[] = {
    { "count", { .op = 1, .dtype = SHM_F32, .redop = 1, .count = 10, .prescale = 1, .postscale = 1 },
      { .op = 1, .dtype = SHM_F32, .redop = 1, .count = 12, .prescale = 1, .postscale = 1 },
      { "\"w\": rank 1 (worker-0) sent all-reduce sum of 10 x float32", "rank 2 (worker-1) sent all-reduce sum of 12 x float32", "" } },
    { "dtype", { .op = 1, .dtype = SHM_F32, .redop = 1, .count = 10, .prescale = 1, .postscale = 1 },
      { .op = 1, .dtype = SHM_BF16, .redop = 1, .count = 10, .prescale = 1, .postscale = 1 }, { "float32", "bfloat16", "" } },
    { "reduction", { .op = 1, .dtype = SHM_F32, .redop = SHM_MIN, .count = 10, .prescale = 1, .postscale = 1 },
      { .op = 1, .dtype = SHM_F32, .redop = SHM_MAX, .count = 10, .prescale = 1, .postscale = 1 }, { "min", "max", "" } },
    { "scale", { .op = 1, .dtype = SHM_F32, .redop = 1, .count = 10, .prescale = 1, .postscale = 1 },
      { .op = 1, .dtype = SHM_F32, .redop = 1, .count = 10, .prescale = 1, .postscale = 0.25 }, { "scaled by 1 and 0.25", "", "" } },
    { "operation", { .op = SHM_OP_BARRIER }, { .op = SHM_OP_BROADCAST, .dtype = SHM_I64, .count = 3, .root = 1 },
      { "barrier", "broadcast of 3 x int64 from rank 1", "" } },
    { "root", { .op = SHM_OP_BROADCAST, .dtype = SHM_I64, .count = 3, .root = 0 },
      { .op = SHM_OP_BROADCAST, .dtype = SHM_I64, .count = 3, .root = 2 }, { "from rank 0", "from rank 2", "" } },
    { "rows", { .op = SHM_OP_ALLGATHER, .dtype = SHM_F64, .count = 4, .row_elements = 2 },
      { .op = SHM_OP_ALLGATHER, .dtype = SHM_F64, .count = 4, .row_elements = 4 }, { "rows of 2", "rows of 4", "" } },
};

Test(negotiation, a_mismatch_says_who_sent_what)
{
    for (size_t i = 0; i < COUNT(MISMATCHES); i++) {
        struct negotiation *n = negotiation_of(3);
        struct go_list l;
        announce(n, 1, "w", MISMATCHES[i].first);
        announce(n, 2, "w", MISMATCHES[i].second);
        cr_expect(!negotiation_next(n, &l), "case %s: before all have spoken", MISMATCHES[i].name);
        announce(n, 0, "w", MISMATCHES[i].first);
        cr_assert(negotiation_next(n, &l), "case %s", MISMATCHES[i].name);
        cr_expect(l.status == SHM_MISMATCH && l.count == 1, "case %s", MISMATCHES[i].name);
        for (int k = 0; k < 3; k++)
            cr_expect(strstr(l.text, MISMATCHES[i].says[k]) != NULL, "case %s: %s", MISMATCHES[i].name, l.text);
        go_list_release(&l);
        /* It takes no sequence number: nothing is executed. */
        for (int32_t r = 0; r < 3; r++)
            announce(n, r, "next", sum_of(1));
        cr_expect(negotiation_next(n, &l) && l.sequence == 1, "case %s", MISMATCHES[i].name);
        go_list_release(&l);
        end(n);
    }
}

Test(negotiation, an_engine_that_announces_twice_or_nonsense_is_broken)
{
    struct negotiation *n = negotiation_of(2);
    struct announcement a = announcement_of("x", sum_of(1));
    struct announcement far = announcement_of("y", (struct signature){ .op = SHM_OP_BROADCAST, .dtype = SHM_U8, .root = 2 });
    struct error e = ERROR_INIT;

    cr_expect(negotiation_announce(n, 1, &a, 0, &e) == 0);
    cr_expect(negotiation_announce(n, 1, &a, 0, &e) == -1 && strstr(e.text, "worker-0") && strstr(e.text, "twice"), "%s", e.text);
    cr_expect(negotiation_announce(n, 1, &far, 0, &e) == -1 && strstr(e.text, "root 2"), "%s", e.text);
    end(n);
}

Test(negotiation, an_all_gather_that_cannot_fit_into_memory_is_refused)
{
    struct negotiation *n = negotiation_of(2);
    struct go_list l;

    for (int32_t r = 0; r < 2; r++)
        announce(n, r, "g", (struct signature){ .op = SHM_OP_ALLGATHER, .dtype = SHM_U8, .count = INT64_MAX, .row_elements = 1 });
    cr_expect(negotiation_next(n, &l) && l.status == SHM_INVALID, "%s", l.text);
    go_list_release(&l);
    end(n);
}

/* ---- process sets ---- */

static void announce_in(struct negotiation *n, uint32_t set, int32_t rank, const char *name, struct signature sig)
{
    struct announcement a = announcement_of(name, sig);
    struct error e = ERROR_INIT;

    a.set = set;
    cr_assert(negotiation_announce(n, rank, &a, 0, &e) == 0, "%s", e.text);
}

Test(process_sets, a_name_lives_in_its_set_and_only_its_ranks_are_waited_for)
{
    struct negotiation *n = negotiation_of(4);
    uint32_t even = process_sets_add(sets, (int32_t[]){ 0, 2 }, 2)->id, odd = process_sets_add(sets, (int32_t[]){ 1, 3 }, 2)->id;
    struct go_list l;

    announce_in(n, even, 0, "x", sum_of(10));
    announce_in(n, odd, 3, "x", sum_of(20));
    announce_in(n, 0, 1, "x", sum_of(30));
    cr_expect(!negotiation_next(n, &l) && negotiation_waiting(n) == 3);
    announce_in(n, odd, 1, "x", sum_of(20));
    cr_assert(negotiation_next(n, &l));
    cr_expect(l.set == odd && l.whole && l.member_count == 2 && l.members[0] == 1 && l.members[1] == 3 && l.last_rank == 1);
    cr_expect(go_list_place(&l, 3) == 1 && go_list_place(&l, 0) == -1);
    go_list_release(&l);
    announce_in(n, even, 2, "x", sum_of(11));
    cr_assert(negotiation_next(n, &l));
    cr_expect(l.status == SHM_MISMATCH && l.member_count == 2 && strstr(l.text, "rank 2 (worker-1)"), "%s", l.text);
    go_list_release(&l);
    cr_expect(negotiation_waiting(n) == 1);
    end(n);
}

Test(process_sets, sets_are_not_fused_with_each_other)
{
    struct negotiation *n = negotiation_of(2);
    uint32_t mine = process_sets_add(sets, (int32_t[]){ 0 }, 1)->id;
    struct go_list l;

    announce_in(n, mine, 0, "a", sum_of(1));
    announce_in(n, 0, 0, "b", sum_of(1));
    announce_in(n, 0, 1, "b", sum_of(1));
    announce_in(n, mine, 0, "c", sum_of(1));
    cr_assert(negotiation_next(n, &l));
    cr_expect(l.set == mine && l.count == 2);
    go_list_release(&l);
    cr_assert(negotiation_next(n, &l));
    cr_expect(l.set == 0 && l.count == 1);
    go_list_release(&l);
    end(n);
}

Test(process_sets, strangers_and_foreign_roots_break_the_group)
{
    static const struct { const char *name; int32_t rank; struct signature sig; const char *says; } rows[] = {
        { "stranger", 1, { .op = SHM_OP_BARRIER }, "to which it does not belong" },
        { "root", 0, { .op = SHM_OP_BROADCAST, .dtype = SHM_U8, .root = 1 }, "root 1" },
        { "join", 0, { .op = SHM_OP_JOIN }, "a join, in process set 1" },
    };
    struct negotiation *n = negotiation_of(3);
    uint32_t even = process_sets_add(sets, (int32_t[]){ 0, 2 }, 2)->id;

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct announcement a = announcement_of("x", rows[i].sig);
        struct error e = ERROR_INIT;
        a.set = even;
        cr_expect(negotiation_announce(n, rows[i].rank, &a, 0, &e) == -1 && strstr(e.text, rows[i].says), "case %s: %s", rows[i].name,
                  e.text);
    }
    end(n);
}

Test(process_sets, what_waits_in_a_set_goes_with_it)
{
    struct negotiation *n = negotiation_of(2);
    uint32_t both = process_sets_add(sets, (int32_t[]){ 0, 1 }, 2)->id;
    struct go_list l;

    announce_in(n, both, 0, "waiting", sum_of(1));
    announce_in(n, both, 0, "ready", sum_of(1 << 20));
    announce_in(n, both, 1, "ready", sum_of(1 << 20));
    negotiation_forget_set(n, both);
    cr_expect(process_sets_remove(sets, both));
    announce_in(n, both, 1, "late", sum_of(1)); /* sent before the rank heard of it */
    cr_expect(!negotiation_next(n, &l) && negotiation_waiting(n) == 0);
    announce(n, 0, "next", sum_of(1));
    announce(n, 1, "next", sum_of(1));
    cr_expect(negotiation_next(n, &l) && l.sequence == 1);
    go_list_release(&l);
    end(n);
}

/* ---- join, leave, stall ---- */

Test(join, lists_go_without_those_that_have_joined)
{
    struct negotiation *n = negotiation_of(3);
    struct signature join = { .op = SHM_OP_JOIN };
    struct go_list l;

    announce(n, 0, "early", sum_of(1)); /* rank 1 is waited for in vain, until it joins */
    announce(n, 2, "early", sum_of(1));
    announce(n, 1, "join", join);
    cr_assert(negotiation_next(n, &l));
    cr_expect(!l.whole && l.member_count == 2 && l.members[0] == 0 && l.members[1] == 2 && strcmp(l.entries[0].name, "early") == 0);
    go_list_release(&l);
    uint64_t rows[] = { 5, 7 };
    for (int32_t r = 0; r < 3; r += 2)
        announce(n, r, "g", (struct signature){ .op = SHM_OP_ALLGATHER, .dtype = SHM_U8, .count = rows[r / 2], .row_elements = 1 });
    cr_assert(negotiation_next(n, &l));
    cr_expect(l.member_count == 2 && l.entries[0].counts[0] == 5 && l.entries[0].counts[1] == 7);
    go_list_release(&l);
    announce(n, 2, "join", join);
    announce(n, 0, "b", (struct signature){ .op = SHM_OP_BROADCAST, .dtype = SHM_U8, .count = 1, .root = 2 });
    cr_assert(negotiation_next(n, &l));
    cr_expect(l.status == SHM_INVALID && strstr(l.text, "rank 2 (worker-1), has joined"), "%s", l.text);
    go_list_release(&l);
    announce(n, 0, "join", join);
    cr_assert(negotiation_next(n, &l));
    cr_expect(l.whole && l.last_rank == 0 && l.entries[0].sig.op == SHM_OP_JOIN);
    go_list_release(&l);
    announce(n, 0, "after", sum_of(1)); /* all are waited for again */
    cr_expect(!negotiation_next(n, &l) && negotiation_waiting(n) == 1);
    end(n);
}

Test(join, what_a_rank_sent_before_it_joined_goes_before_the_join)
{
    struct negotiation *n = negotiation_of(2);
    struct go_list l;
    static const char *const want[] = { "x", "join" };

    announce(n, 0, "x", sum_of(1));
    announce(n, 0, "join", (struct signature){ .op = SHM_OP_JOIN });
    announce(n, 1, "join", (struct signature){ .op = SHM_OP_JOIN });
    for (size_t i = 0; i < COUNT(want); i++) {
        cr_assert(negotiation_next(n, &l), "list %zu", i);
        cr_expect_str_eq(l.entries[0].name, want[i]);
        go_list_release(&l);
    }
    end(n);
}

Test(left, what_waits_for_a_rank_that_has_left_fails_and_names_it)
{
    struct negotiation *n = negotiation_of(3);
    struct go_list l;

    announce(n, 0, "before", sum_of(1));
    negotiation_left(n, 2, true);
    cr_assert(negotiation_next(n, &l));
    cr_expect(l.status == SHM_LEFT && l.member_count == 1 && l.members[0] == 0 && strstr(l.text, "rank 2 (worker-1)"), "%s", l.text);
    go_list_release(&l);
    announce(n, 1, "after", sum_of(1));
    cr_assert(negotiation_next(n, &l));
    cr_expect(l.status == SHM_LEFT && l.members[0] == 1 && strstr(l.text, "\"after\""), "%s", l.text);
    go_list_release(&l);
    negotiation_left(n, 2, false); /* another process is there */
    announce(n, 1, "again", sum_of(1));
    cr_expect(!negotiation_next(n, &l) && negotiation_waiting(n) == 1);
    end(n);
}

static void note_stall(void *ctx, const struct stall *s)
{
    (void)snprintf(ctx, 512, "%s|%d|%d", s->text, s->missing_count, s->missing[0]);
}

Test(stall, is_told_once_and_names_who_is_missing)
{
    struct negotiation *n = negotiation_of(4);
    struct announcement a = announcement_of("w", sum_of(10));
    struct error e = ERROR_INIT;
    char text[512] = "";

    cr_assert(negotiation_announce(n, 0, &a, 1000, &e) == 0);
    cr_assert(negotiation_announce(n, 2, &a, 5000, &e) == 0);
    cr_expect(negotiation_stalls(n, 60999, 60000, false, note_stall, text) == 0);
    cr_expect(negotiation_stalls(n, 62000, 60000, false, note_stall, text) == 1);
    static const char *const says[] = { "\"w\" has waited 61 s for rank 1 (worker-0), rank 3 (worker-2)", "2 of 4 ranks have sent it",
                                        "rank 0 (chief-0) first: all-reduce sum of 10 x float32", "|2|1" };
    for (size_t i = 0; i < COUNT(says); i++)
        cr_expect(strstr(text, says[i]) != NULL, "%s", text);
    cr_expect(negotiation_stalls(n, 99000, 60000, false, note_stall, text) == 0, "told of already");
    cr_expect(negotiation_stalls(n, 99000, 60000, true, note_stall, text) == 1);
    end(n);
}

Test(negotiation, sixty_thousand_names_can_wait_at_once)
{
    struct negotiation *n = negotiation_of(2);
    struct go_list l;
    char name[SHM_NAME_MAX];
    size_t entries = 0;

    for (int32_t r = 0; r < 2; r++) {
        for (int i = 0; i < 65536; i++) {
            (void)snprintf(name, sizeof name, "%0126d", r == 0 ? i : 65535 - i); /* as long as a name can be */
            struct announcement a = announcement_of(name, sum_of(0));
            struct error e = ERROR_INIT;
            if (negotiation_announce(n, r, &a, 0, &e) != 0)
                cr_assert_fail("%s", e.text);
        }
    }
    while (negotiation_next(n, &l)) {
        entries += l.count;
        go_list_release(&l);
    }
    cr_expect(entries == 65536, "%zu", entries);
    end(n);
}
