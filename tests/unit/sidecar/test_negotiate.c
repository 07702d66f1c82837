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
        struct signature s = signature_of(&r, NULL);
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

/* ---- the wire ---- */

static const struct signature *lookup_sum(void *ctx, uint32_t set, const char *name)
{
    static struct signature sig;
    const char *const *known = ctx;

    for (; *known != NULL && set == 0; known++) {
        if (strcmp(*known, name) != 0)
            continue;
        sig = name[0] == 'g' ? (struct signature){ .op = SHM_OP_ALLGATHER, .dtype = SHM_I32, .count = 5, .row_elements = 1 }
            : name[0] == 'e' ? (struct signature){ .op = SHM_OP_ALLTOALL, .dtype = SHM_I32, .count = 6, .row_elements = 1 }
                             : sum_of(10);
        return &sig;
    }
    return NULL;
}

static void encode(struct buf *b, const struct process_sets *of, const char *name, struct signature sig)
{
    struct announcement a = announcement_of(name, sig);

    announce_encode(b, process_sets_get(of, 0)->cache, &a);
}

static int decode(const struct process_sets *of, const struct buf *b, size_t len, size_t *at, struct announcement *ret)
{
    struct error e = ERROR_INIT;

    return announce_decode(of, (const uint8_t *)b->text, len, at, ret, &e);
}

Test(wire, announcements_come_back_in_full_and_as_numbers)
{
    struct process_sets *ours = process_sets_new(3), *theirs = process_sets_new(3);
    struct signature sig = sum_of(10), gather = { .op = SHM_OP_ALLGATHER, .dtype = SHM_I32, .count = 6, .row_elements = 3 };
    size_t full = 0;

    sig.prescale = 0.125;
    sig.shape_hash = 77;
    (void)snprintf(sig.shape, sizeof sig.shape, "[2, 5]");
    for (int turn = 0; turn < 2; turn++) {
        auto_buf struct buf b = BUF_INIT(4096);
        struct announcement a;
        size_t at = 0;
        gather.count += 3; /* may change without a word */
        encode(&b, ours, "layer/weights", sig);
        encode(&b, ours, "ids", gather);
        cr_assert(decode(theirs, &b, b.len, &at, &a) == 0);
        cr_expect(strcmp(a.name, "layer/weights") == 0 && signature_equal(&a.sig, &sig) && strcmp(a.sig.shape, "[2, 5]") == 0,
                  "turn %d", turn);
        cr_assert(decode(theirs, &b, b.len, &at, &a) == 0);
        cr_expect(strcmp(a.name, "ids") == 0 && signature_equal(&a.sig, &gather) && a.sig.count == gather.count, "turn %d", turn);
        cr_expect(at == b.len);
        if (turn == 0)
            full = b.len;
        else
            cr_expect(b.len == 34 && b.len < full, "%zu bytes", b.len);
        struct name_cache *caches[] = { process_sets_get(ours, 0)->cache, process_sets_get(theirs, 0)->cache };
        for (int i = 0; i < 2; i++) {
            name_cache_note(caches[i], "layer/weights", &sig);
            name_cache_note(caches[i], "ids", &gather);
        }
    }
    auto_buf struct buf b = BUF_INIT(4096);
    sig.shape_hash = 78; /* a changed tensor is said in full again, also one with as many elements */
    encode(&b, ours, "layer/weights", sig);
    cr_expect(b.len > 34);
    process_sets_free(ours);
    process_sets_free(theirs);
}

Test(wire, the_cache_is_bounded_and_names_beyond_it_still_travel)
{
    struct process_sets *s = process_sets_new(1);
    struct signature sig = sum_of(1);
    char name[32];

    for (int i = 0; i <= NEGOTIATE_CACHE_MAX; i++) {
        (void)snprintf(name, sizeof name, "n%d", i);
        name_cache_note(process_sets_get(s, 0)->cache, name, &sig);
    }
    auto_buf struct buf b = BUF_INIT(4096);
    encode(&b, s, "n0", sig);
    cr_expect(b.len == 17);
    buf_clear(&b);
    encode(&b, s, name, sig);
    cr_expect(b.len > 17, "the last one has no number");
    process_sets_free(s);
}

Test(wire, splits_travel_with_every_all_to_all_and_a_set_that_is_gone_is_stepped_over)
{
    struct process_sets *ours = process_sets_new(3), *theirs = process_sets_new(3);
    uint64_t splits[2] = { 4, 2 };
    int32_t pair[] = { 0, 2 };
    struct process_set *set = process_sets_add(ours, pair, 2);
    struct announcement sent = announcement_of("e", (struct signature){ .op = SHM_OP_ALLTOALL, .dtype = SHM_I32, .count = 6,
                                                                        .row_elements = 1 });
    sent.set = set->id;
    sent.splits = splits;
    sent.split_count = 2;
    cr_assert(process_sets_add(theirs, pair, 2)->id == set->id);
    for (int turn = 0; turn < 2; turn++) {
        auto_buf struct buf b = BUF_INIT(4096);
        struct announcement a;
        size_t at = 0;
        announce_encode(&b, set->cache, &sent);
        encode(&b, ours, "after", sum_of(1));
        cr_assert(decode(theirs, &b, b.len, &at, &a) == 0);
        cr_expect(a.set_is_known && a.set == set->id && a.split_count == 2 && a.splits[0] == 4 && a.splits[1] == 2, "turn %d", turn);
        announcement_release(&a);
        struct process_sets *bare = process_sets_new(3); /* there the set was removed meanwhile */
        at = 0;
        cr_assert(decode(bare, &b, b.len, &at, &a) == 0);
        cr_expect(!a.set_is_known, "turn %d", turn);
        cr_expect(decode(bare, &b, b.len, &at, &a) == 0 && strcmp(a.name, "after") == 0, "turn %d", turn);
        process_sets_free(bare);
        name_cache_note(set->cache, "e", &sent.sig);
        name_cache_note(process_sets_get(theirs, set->id)->cache, "e", &sent.sig);
    }
    static const struct { const char *name; uint64_t splits[2]; } wrong[] = {
        { "less than there is", { 4, 1 } }, { "more than there is", { 4, 3 } }, { "around the end", { UINT64_MAX, 7 } },
    };
    for (size_t i = 0; i < COUNT(wrong); i++) {
        auto_buf struct buf b = BUF_INIT(4096);
        struct announcement a;
        size_t at = 0;
        memcpy(splits, wrong[i].splits, sizeof splits);
        announce_encode(&b, set->cache, &sent);
        cr_expect(decode(theirs, &b, b.len, &at, &a) == -1, "case %s", wrong[i].name);
    }
    process_sets_free(ours);
    process_sets_free(theirs);
}

static void add_list(struct buf *b, struct process_sets *of, struct go_list l)
{
    struct process_set *set = process_sets_get(of, l.set);

    go_add(b, set, 1, &l);
    go_note(set, &l);
}

static void make_go(struct buf *b, struct process_sets *of)
{
    struct go_entry fused[2] = { { .name = "a", .sig = sum_of(10) }, { .name = "b", .sig = sum_of(10) } };
    uint64_t counts[3] = { 5, 0, 7 }, rows[2][3] = { { 1, 2, 3 }, { 4, 5, 6 } }, *matrix[2] = { rows[0], rows[1] };
    int32_t all[3] = { 0, 1, 2 }, some[2] = { 0, 1 };
    struct go_entry gather = { .name = "g", .sig = { .op = SHM_OP_ALLGATHER, .dtype = SHM_I32, .row_elements = 1 }, .counts = counts };
    struct go_entry exchange = { .name = "e", .sig = { .op = SHM_OP_ALLTOALL, .dtype = SHM_I32, .row_elements = 1 }, .matrix = matrix };

    go_begin(b, 41, 65536);
    add_list(b, of, (struct go_list){ .last_rank = 2, .whole = true, .members = all, .member_count = 3, .entries = fused, .count = 2 });
    add_list(b, of, (struct go_list){ .last_rank = 1, .whole = true, .members = all, .member_count = 3, .entries = &gather, .count = 1 });
    add_list(b, of, (struct go_list){ .last_rank = 1, .members = some, .member_count = 2, .entries = &exchange, .count = 1 });
}

static int decode_go(struct process_sets *of, const struct buf *b, size_t len, const char **known, struct go_list **ret_lists,
                     size_t *ret_count, struct error *e)
{
    uint32_t chunk = 0;
    int result = go_decode(of, 1, (const uint8_t *)b->text, len, lookup_sum, known, &chunk, ret_lists, ret_count, e);

    cr_expect(result < 0 || chunk == 65536);
    return result;
}

Test(wire, go_lists_come_back_and_fill_both_caches_alike)
{
    struct process_sets *root = process_sets_new(3), *rank = process_sets_new(3);
    const char *known[] = { "a", "b", "g", "e", NULL };

    for (int turn = 0; turn < 2; turn++) {
        auto_buf struct buf b = BUF_INIT(4096);
        struct go_list *lists;
        struct error e = ERROR_INIT;
        size_t count;
        make_go(&b, root);
        cr_assert(decode_go(rank, &b, b.len, known, &lists, &count, &e) == 0, "%s", e.text);
        cr_assert(count == 3 && lists[0].count == 2 && lists[1].count == 1);
        cr_expect(lists[0].sequence == 41 && lists[1].sequence == 42 && lists[0].last_rank == 2 && lists[1].last_rank == 1);
        cr_expect(lists[0].whole && lists[0].member_count == 3);
        cr_expect_str_eq(lists[0].entries[1].name, "b");
        cr_expect(lists[1].entries[0].counts[0] == 5 && lists[1].entries[0].counts[2] == 7);
        cr_expect(!lists[2].whole && lists[2].member_count == 2 && lists[2].members[1] == 1);
        cr_expect(lists[2].entries[0].counts[0] == 2 && lists[2].entries[0].counts[1] == 5, "the column of rank 1");
        go_lists_free(lists, count);
    }
    process_sets_free(root);
    process_sets_free(rank);
}

Test(wire, a_go_for_something_that_was_not_announced_is_an_error)
{
    struct process_sets *root = process_sets_new(3), *rank = process_sets_new(3);
    const char *known[] = { "a", "g", "e", NULL };
    auto_buf struct buf b = BUF_INIT(4096);
    struct go_list *lists;
    struct error e = ERROR_INIT;
    size_t count;

    make_go(&b, root);
    cr_expect(decode_go(rank, &b, b.len, known, &lists, &count, &e) == -1 && strstr(e.text, "\"b\"") != NULL, "%s", e.text);
    process_sets_free(root);
    process_sets_free(rank);
}

Test(wire, go_frames_that_end_early_are_errors_but_between_two_lists)
{
    const char *known[] = { "a", "b", "g", "e", NULL };
    struct process_sets *root = process_sets_new(3);
    auto_buf struct buf go = BUF_INIT(4096);
    size_t whole = 0;

    make_go(&go, root);
    for (size_t len = 0; len < go.len; len++) {
        struct process_sets *rank = process_sets_new(3);
        struct error e = ERROR_INIT;
        struct go_list *lists;
        size_t count;
        if (decode_go(rank, &go, len, known, &lists, &count, &e) == 0) {
            cr_expect(count == whole + 1, "cut at %zu", len);
            whole++;
            go_lists_free(lists, count);
        }
        process_sets_free(rank);
    }
    cr_expect(whole == 2);
    process_sets_free(root);
}

Test(wire, frames_that_end_early_are_errors_at_every_length)
{
    auto_buf struct buf announcement = BUF_INIT(4096), failed = BUF_INIT(4096), lost = BUF_INIT(4096), left = BUF_INIT(16);
    struct process_sets *root = process_sets_new(3);
    struct error e = ERROR_INIT;
    char name[SHM_NAME_MAX], text[SHM_TEXT_MAX];
    enum shm_status status;
    uint32_t set;
    int32_t rank;
    bool has_left = false;

    encode(&announcement, root, "new", sum_of(1));
    op_error_encode(&failed, 3, "x", SHM_MISMATCH, "because");
    lost_encode(&lost, 2, "peer lost");
    left_encode(&left, true);
    for (size_t len = 0; len < announcement.len; len++) {
        struct announcement a;
        size_t at = 0;
        cr_expect(decode(root, &announcement, len, &at, &a) == -1, "cut at %zu", len);
    }
    for (size_t len = 0; len < failed.len; len++)
        cr_expect(op_error_decode((uint8_t *)failed.text, len, &set, name, &status, text, &e) == -1, "cut at %zu", len);
    for (size_t len = 0; len < lost.len; len++)
        cr_expect(lost_decode((uint8_t *)lost.text, len, 4, &rank, text, &e) == -1, "cut at %zu", len);
    cr_assert(op_error_decode((uint8_t *)failed.text, failed.len, &set, name, &status, text, &e) == 0);
    cr_expect(set == 3 && strcmp(name, "x") == 0 && status == SHM_MISMATCH && strcmp(text, "because") == 0);
    cr_assert(lost_decode((uint8_t *)lost.text, lost.len, 4, &rank, text, &e) == 0);
    cr_expect(rank == 2 && strcmp(text, "peer lost") == 0);
    cr_expect(lost_decode((uint8_t *)lost.text, lost.len, 2, &rank, text, &e) == -1, "a rank beyond the group");
    cr_expect(left_decode((uint8_t *)left.text, 0, &has_left, &e) == -1);
    cr_expect(left_decode((uint8_t *)left.text, 1, &has_left, &e) == 0 && has_left);
    process_sets_free(root);
}

static const struct { const char *name; struct signature sig; } UNSOUND[] = {
    { "unknown operation", { .op = SHM_OP_SET_REMOVE + 1, .dtype = SHM_F32 } },
    { "free", { .op = SHM_OP_FREE } },
    { "unknown dtype", { .op = SHM_OP_BROADCAST, .dtype = SHM_DTYPE_LAST + 1 } },
    { "count that does not fit", { .op = SHM_OP_BROADCAST, .dtype = SHM_F64, .count = UINT64_MAX / 8 } },
    { "unknown reduction", { .op = SHM_OP_ALLREDUCE, .dtype = SHM_F32, .redop = SHM_ADASUM + 1 } },
    { "adasum of integers", { .op = SHM_OP_ALLREDUCE, .dtype = SHM_I32, .redop = SHM_ADASUM, .prescale = 1, .postscale = 1 } },
    { "adasum that is scattered", { .op = SHM_OP_REDUCESCATTER, .dtype = SHM_F32, .redop = SHM_ADASUM, .prescale = 1, .postscale = 1 } },
    { "sum of int16", { .op = SHM_OP_ALLREDUCE, .dtype = SHM_I16, .redop = SHM_SUM, .prescale = 1, .postscale = 1 } },
    { "scaled bool", { .op = SHM_OP_ALLREDUCE, .dtype = SHM_BOOL, .redop = SHM_MAX, .prescale = 1, .postscale = 2 } },
    { "all-to-all without splits", { .op = SHM_OP_ALLTOALL, .dtype = SHM_F32, .count = 4, .row_elements = 2 } },
    { "join with data", { .op = SHM_OP_JOIN, .dtype = SHM_F32 } },
    { "set of nobody", { .op = SHM_OP_SET_ADD } },
    { "set of too many", { .op = SHM_OP_SET_ADD, .count = SHM_RANKS_MAX + 1 } },
    { "sum of bool", { .op = SHM_OP_ALLREDUCE, .dtype = SHM_BOOL, .redop = SHM_SUM, .prescale = 1, .postscale = 1 } },
    { "negative root", { .op = SHM_OP_BROADCAST, .dtype = SHM_F32, .root = -1 } },
    { "half a row", { .op = SHM_OP_ALLGATHER, .dtype = SHM_F32, .count = 3, .row_elements = 2 } },
    { "barrier with data", { .op = SHM_OP_BARRIER, .dtype = SHM_F32, .count = 3 } },
};

Test(wire, what_a_client_may_not_ask_a_peer_may_not_announce)
{
    struct process_sets *s = process_sets_new(3);

    for (size_t i = 0; i < COUNT(UNSOUND); i++) {
        auto_buf struct buf b = BUF_INIT(4096);
        struct announcement a;
        size_t at = 0;
        encode(&b, s, "x", UNSOUND[i].sig);
        cr_expect(decode(s, &b, b.len, &at, &a) == -1, "case %s", UNSOUND[i].name);
    }
    process_sets_free(s);
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
