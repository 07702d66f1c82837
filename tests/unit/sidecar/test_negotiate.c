#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "sidecar/ring/negotiate.h"

static const char *const MEMBERS[] = { "chief-0", "worker-0", "worker-1", "worker-2" };

static struct signature sum_of(uint64_t count)
{
    return (struct signature){ .op = SHM_OP_ALLREDUCE, .dtype = SHM_F32, .redop = SHM_SUM, .count = count, .prescale = 1, .postscale = 1 };
}

static struct announcement announcement_of(const char *name, struct signature sig)
{
    struct announcement a = { .sig = sig };

    (void)snprintf(a.name, sizeof a.name, "%s", name);
    return a;
}

static void announce(struct negotiation *n, int32_t rank, const char *name, struct signature sig)
{
    struct announcement a = announcement_of(name, sig);
    struct error e = ERROR_INIT;

    cr_assert(negotiation_announce(n, rank, &a, &e) == 0, "%s", e.text);
}

/* ---- signatures ---- */

static struct shm_request good_request(void)
{
    return (struct shm_request){ .op = SHM_OP_ALLREDUCE, .dtype = SHM_F32, .redop = SHM_SUM, .root = 3, .count = 7,
                                 .row_elements = 9, .prescale = 2, .postscale = 3 };
}

Test(signature, fields_without_meaning_do_not_count)
{
    static const struct { const char *name; uint16_t op; bool redop, root, row, scale, count; } rows[] = {
        { "all-reduce", SHM_OP_ALLREDUCE, true, false, false, true, true },
        { "all-gather", SHM_OP_ALLGATHER, false, false, true, false, true },
        { "broadcast", SHM_OP_BROADCAST, false, true, false, false, true },
        { "barrier", SHM_OP_BARRIER, false, false, false, false, false },
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct shm_request r = good_request();
        r.op = rows[i].op;
        struct signature s = signature_of(&r);
        cr_expect((s.redop != 0) == rows[i].redop && (s.root != 0) == rows[i].root && (s.row_elements != 0) == rows[i].row &&
                      (s.prescale != 0) == rows[i].scale && (s.count != 0) == rows[i].count, "case %s", rows[i].name);
    }
}

static const struct { const char *name; struct signature a, b; bool equal; } PAIRS[] = {
    { "same", { .op = 1, .dtype = 7, .count = 5 }, { .op = 1, .dtype = 7, .count = 5 }, true },
    { "count", { .op = 1, .dtype = 7, .count = 5 }, { .op = 1, .dtype = 7, .count = 6 }, false },
    { "dtype", { .op = 1, .dtype = 7 }, { .op = 1, .dtype = 8 }, false },
    { "operation", { .op = 1 }, { .op = 3 }, false },
    { "root", { .op = 3, .root = 0 }, { .op = 3, .root = 1 }, false },
    { "scale", { .op = 1, .prescale = 1 }, { .op = 1, .prescale = 2 }, false },
    { "the same NaN", { .op = 1, .prescale = NAN }, { .op = 1, .prescale = NAN }, true },
    { "all-gather's count is free", { .op = SHM_OP_ALLGATHER, .count = 5 }, { .op = SHM_OP_ALLGATHER, .count = 6 }, true },
    { "all-gather's row is not", { .op = SHM_OP_ALLGATHER, .row_elements = 5 }, { .op = SHM_OP_ALLGATHER, .row_elements = 6 }, false },
};

Test(signature, what_ranks_must_agree_on)
{
    for (size_t i = 0; i < COUNT(PAIRS); i++)
        cr_expect(signature_equal(&PAIRS[i].a, &PAIRS[i].b) == PAIRS[i].equal, "case %s", PAIRS[i].name);
}

/* ---- rank 0 ---- */

Test(negotiation, a_name_goes_when_all_have_announced_it_in_the_order_of_completion)
{
    struct negotiation *n = negotiation_new(3, MEMBERS);
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
    negotiation_free(n);
}

Test(negotiation, small_all_reduces_of_one_kind_are_fused)
{
    struct negotiation *n = negotiation_new(1, MEMBERS);
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
    negotiation_free(n);
}

Test(negotiation, a_fused_list_is_bounded_in_bytes_and_entries)
{
    struct negotiation *n = negotiation_new(1, MEMBERS);
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
    negotiation_free(n);
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
        struct negotiation *n = negotiation_new(3, MEMBERS);
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
        negotiation_free(n);
    }
}

Test(negotiation, an_engine_that_announces_twice_or_nonsense_is_broken)
{
    struct negotiation *n = negotiation_new(2, MEMBERS);
    struct announcement a = announcement_of("x", sum_of(1));
    struct announcement far = announcement_of("y", (struct signature){ .op = SHM_OP_BROADCAST, .dtype = SHM_U8, .root = 2 });
    struct error e = ERROR_INIT;

    cr_expect(negotiation_announce(n, 1, &a, &e) == 0);
    cr_expect(negotiation_announce(n, 1, &a, &e) == -1 && strstr(e.text, "worker-0") && strstr(e.text, "twice"), "%s", e.text);
    cr_expect(negotiation_announce(n, 1, &far, &e) == -1 && strstr(e.text, "root 2"), "%s", e.text);
    negotiation_free(n);
}

Test(negotiation, an_all_gather_that_cannot_fit_into_memory_is_refused)
{
    struct negotiation *n = negotiation_new(2, MEMBERS);
    struct go_list l;

    for (int32_t r = 0; r < 2; r++)
        announce(n, r, "g", (struct signature){ .op = SHM_OP_ALLGATHER, .dtype = SHM_U8, .count = INT64_MAX, .row_elements = 1 });
    cr_expect(negotiation_next(n, &l) && l.status == SHM_INVALID, "%s", l.text);
    go_list_release(&l);
    negotiation_free(n);
}

/* ---- the wire ---- */

static const struct signature *lookup_sum(void *ctx, const char *name)
{
    static struct signature sig;
    const char *const *known = ctx;

    for (; *known != NULL; known++) {
        if (strcmp(*known, name) != 0)
            continue;
        sig = name[0] == 'g' ? (struct signature){ .op = SHM_OP_ALLGATHER, .dtype = SHM_I32, .count = 5, .row_elements = 1 } : sum_of(10);
        return &sig;
    }
    return NULL;
}

Test(wire, announcements_come_back_in_full_and_as_numbers)
{
    struct name_cache *ours = name_cache_new(), *theirs = name_cache_new();
    struct signature sig = sum_of(10), gather = { .op = SHM_OP_ALLGATHER, .dtype = SHM_I32, .count = 6, .row_elements = 3 };
    size_t full = 0;

    sig.prescale = 0.125;
    for (int turn = 0; turn < 2; turn++) {
        auto_buf struct buf b = BUF_INIT(4096);
        struct announcement a;
        struct error e = ERROR_INIT;
        size_t at = 0;
        gather.count += 3; /* may change without a word */
        announce_encode(&b, ours, "layer/weights", &sig);
        announce_encode(&b, ours, "ids", &gather);
        cr_assert(announce_decode(theirs, (uint8_t *)b.text, b.len, &at, &a, &e) == 0, "%s", e.text);
        cr_expect(strcmp(a.name, "layer/weights") == 0 && signature_equal(&a.sig, &sig), "turn %d", turn);
        cr_assert(announce_decode(theirs, (uint8_t *)b.text, b.len, &at, &a, &e) == 0, "%s", e.text);
        cr_expect(strcmp(a.name, "ids") == 0 && signature_equal(&a.sig, &gather) && a.sig.count == gather.count, "turn %d", turn);
        cr_expect(at == b.len);
        if (turn == 0)
            full = b.len;
        else
            cr_expect(b.len == 26 && b.len < full, "%zu bytes", b.len);
        name_cache_note(ours, "layer/weights", &sig);
        name_cache_note(theirs, "layer/weights", &sig);
        name_cache_note(ours, "ids", &gather);
        name_cache_note(theirs, "ids", &gather);
    }
    sig.count = 11; /* a changed tensor is said in full again */
    auto_buf struct buf b = BUF_INIT(4096);
    announce_encode(&b, ours, "layer/weights", &sig);
    cr_expect(b.len > 26);
    name_cache_free(ours);
    name_cache_free(theirs);
}

Test(wire, the_cache_is_bounded_and_names_beyond_it_still_travel)
{
    struct name_cache *c = name_cache_new();
    struct signature sig = sum_of(1);
    char name[32];

    for (int i = 0; i <= NEGOTIATE_CACHE_MAX; i++) {
        (void)snprintf(name, sizeof name, "n%d", i);
        name_cache_note(c, name, &sig);
    }
    auto_buf struct buf b = BUF_INIT(4096);
    announce_encode(&b, c, "n0", &sig);
    cr_expect(b.len == 13);
    buf_clear(&b);
    announce_encode(&b, c, name, &sig);
    cr_expect(b.len > 13, "the last one has no number");
    name_cache_free(c);
}

static void make_go(struct buf *b, struct name_cache *c)
{
    struct go_entry fused[2] = { { .name = "a", .sig = sum_of(10) }, { .name = "b", .sig = sum_of(10) } };
    uint64_t counts[3] = { 5, 0, 7 };
    struct go_entry gather = { .name = "g", .sig = { .op = SHM_OP_ALLGATHER, .dtype = SHM_I32, .row_elements = 1 }, .counts = counts };

    go_begin(b, 41, 65536);
    go_add(b, c, 3, &(struct go_list){ .last_rank = 2, .entries = fused, .count = 2 });
    go_add(b, c, 3, &(struct go_list){ .last_rank = 1, .entries = &gather, .count = 1 });
}

Test(wire, go_lists_come_back_and_fill_both_caches_alike)
{
    struct name_cache *root = name_cache_new(), *rank = name_cache_new();
    const char *known[] = { "a", "b", "g", NULL };

    for (int turn = 0; turn < 2; turn++) {
        auto_buf struct buf b = BUF_INIT(4096);
        struct go_list *lists;
        struct error e = ERROR_INIT;
        size_t count;
        uint32_t chunk;
        make_go(&b, root);
        cr_assert(go_decode(rank, 3, (uint8_t *)b.text, b.len, lookup_sum, known, &chunk, &lists, &count, &e) == 0, "%s", e.text);
        cr_assert(count == 2 && chunk == 65536 && lists[0].count == 2 && lists[1].count == 1);
        cr_expect(lists[0].sequence == 41 && lists[1].sequence == 42 && lists[0].last_rank == 2 && lists[1].last_rank == 1);
        cr_expect_str_eq(lists[0].entries[1].name, "b");
        cr_expect(lists[1].entries[0].counts[0] == 5 && lists[1].entries[0].counts[2] == 7);
        go_lists_free(lists, count);
    }
    name_cache_free(root);
    name_cache_free(rank);
}

Test(wire, a_go_for_something_that_was_not_announced_is_an_error)
{
    struct name_cache *root = name_cache_new(), *rank = name_cache_new();
    const char *known[] = { "a", "g", NULL };
    auto_buf struct buf b = BUF_INIT(4096);
    struct go_list *lists;
    struct error e = ERROR_INIT;
    size_t count;
    uint32_t chunk;

    make_go(&b, root);
    cr_expect(go_decode(rank, 3, (uint8_t *)b.text, b.len, lookup_sum, known, &chunk, &lists, &count, &e) == -1 &&
                  strstr(e.text, "\"b\"") != NULL, "%s", e.text);
    name_cache_free(root);
    name_cache_free(rank);
}

Test(wire, frames_that_end_early_are_errors_at_every_length)
{
    const char *known[] = { "a", "b", "g", NULL };
    auto_buf struct buf go = BUF_INIT(4096), announcement = BUF_INIT(4096), failed = BUF_INIT(4096), lost = BUF_INIT(4096);
    struct name_cache *root = name_cache_new();
    struct signature sig = sum_of(1);
    struct error e = ERROR_INIT;
    char name[SHM_NAME_MAX], text[SHM_TEXT_MAX];
    enum shm_status status;
    int32_t rank;

    make_go(&go, root);
    announce_encode(&announcement, root, "new", &sig);
    op_error_encode(&failed, "x", SHM_MISMATCH, "because");
    lost_encode(&lost, 2, "peer lost");
    size_t whole = 0;
    for (size_t len = 0; len < go.len; len++) { /* a cut between two lists is a frame of one list */
        struct name_cache *c = name_cache_new();
        struct go_list *lists;
        size_t count;
        uint32_t chunk;
        if (go_decode(c, 3, (uint8_t *)go.text, len, lookup_sum, known, &chunk, &lists, &count, &e) == 0) {
            cr_expect(count == 1, "cut at %zu", len);
            whole++;
            go_lists_free(lists, count);
        }
        name_cache_free(c);
    }
    cr_expect(whole == 1);
    for (size_t len = 0; len < announcement.len; len++) {
        struct announcement a;
        size_t at = 0;
        cr_expect(announce_decode(root, (uint8_t *)announcement.text, len, &at, &a, &e) == -1, "cut at %zu", len);
    }
    for (size_t len = 0; len < failed.len; len++)
        cr_expect(op_error_decode((uint8_t *)failed.text, len, name, &status, text, &e) == -1, "cut at %zu", len);
    for (size_t len = 0; len < lost.len; len++)
        cr_expect(lost_decode((uint8_t *)lost.text, len, 4, &rank, text, &e) == -1, "cut at %zu", len);
    cr_assert(op_error_decode((uint8_t *)failed.text, failed.len, name, &status, text, &e) == 0);
    cr_expect(strcmp(name, "x") == 0 && status == SHM_MISMATCH && strcmp(text, "because") == 0);
    cr_assert(lost_decode((uint8_t *)lost.text, lost.len, 4, &rank, text, &e) == 0);
    cr_expect(rank == 2 && strcmp(text, "peer lost") == 0);
    cr_expect(lost_decode((uint8_t *)lost.text, lost.len, 2, &rank, text, &e) == -1, "a rank beyond the group");
    name_cache_free(root);
}

static const struct { const char *name; struct signature sig; } UNSOUND[] = {
    { "unknown operation", { .op = 9, .dtype = SHM_F32 } },
    { "free", { .op = SHM_OP_FREE } },
    { "unknown dtype", { .op = SHM_OP_BROADCAST, .dtype = 10 } },
    { "count that does not fit", { .op = SHM_OP_BROADCAST, .dtype = SHM_F64, .count = UINT64_MAX / 8 } },
    { "unknown reduction", { .op = SHM_OP_ALLREDUCE, .dtype = SHM_F32, .redop = 6 } },
    { "average of integers", { .op = SHM_OP_ALLREDUCE, .dtype = SHM_I32, .redop = SHM_AVERAGE, .prescale = 1, .postscale = 1 } },
    { "scaled integers", { .op = SHM_OP_ALLREDUCE, .dtype = SHM_I32, .redop = SHM_SUM, .prescale = 1, .postscale = 2 } },
    { "sum of bool", { .op = SHM_OP_ALLREDUCE, .dtype = SHM_BOOL, .redop = SHM_SUM, .prescale = 1, .postscale = 1 } },
    { "negative root", { .op = SHM_OP_BROADCAST, .dtype = SHM_F32, .root = -1 } },
    { "half a row", { .op = SHM_OP_ALLGATHER, .dtype = SHM_F32, .count = 3, .row_elements = 2 } },
    { "barrier with data", { .op = SHM_OP_BARRIER, .dtype = SHM_F32, .count = 3 } },
};

Test(wire, what_a_client_may_not_ask_a_peer_may_not_announce)
{
    struct name_cache *c = name_cache_new();

    for (size_t i = 0; i < COUNT(UNSOUND); i++) {
        auto_buf struct buf b = BUF_INIT(4096);
        struct announcement a;
        struct error e = ERROR_INIT;
        size_t at = 0;
        announce_encode(&b, c, "x", &UNSOUND[i].sig);
        cr_expect(announce_decode(c, (uint8_t *)b.text, b.len, &at, &a, &e) == -1, "case %s", UNSOUND[i].name);
    }
    name_cache_free(c);
}
