#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "sidecar/ring/negotiate.h"
#include "tests/unit/sidecar/announcements.h"

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

    for (int i = 0; i <= NAME_CACHE_MAX; i++) {
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
