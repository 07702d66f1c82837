#include <criterion/criterion.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "wire/shm.h"

#define AREA (1u << 20)

static struct shm_header layout_of(void)
{
    struct shm_header h;

    cr_assert(shm_layout(&h, 7, 1024, 2048, AREA, AREA) != 0);
    return h;
}

Test(shm, areas_lie_behind_each_other_and_do_not_overlap)
{
    struct shm_header h;
    uint64_t bytes = shm_layout(&h, 7, 1024, 2048, 100000, 5000);

    cr_expect(h.magic == SHM_MAGIC && h.version == SHM_VERSION && h.fence == 7 && h.sq_entries == 1024 && h.cq_entries == 2048);
    cr_expect(h.sq_offset >= sizeof h);
    cr_expect(h.cq_offset >= h.sq_offset + 1024 * sizeof(struct shm_request));
    cr_expect(h.arena_offset >= h.cq_offset + 2048 * sizeof(struct shm_reply));
    cr_expect(h.arena_bytes >= 100000 && h.results_offset == h.arena_offset + h.arena_bytes && h.results_bytes >= 5000);
    cr_expect(bytes == h.results_offset + h.results_bytes && bytes % 4096 == 0);
    cr_expect(h.arena_offset % SHM_ALIGN == 0 && h.results_offset % SHM_ALIGN == 0);
}

static const struct { const char *name; uint32_t sq, cq; uint64_t arena, results; } IMPOSSIBLE[] = {
    { "no entries", 0, 1024, AREA, AREA },          { "no power of two", 1024, 1000, AREA, AREA },
    { "too many entries", 1u << 20, 1024, AREA, AREA }, { "arena that wraps around", 1024, 1024, UINT64_MAX, AREA },
    { "results that wrap around", 1024, 1024, AREA, UINT64_MAX - 5000 },
};

Test(shm, impossible_layouts_are_refused)
{
    for (size_t i = 0; i < COUNT(IMPOSSIBLE); i++) {
        struct shm_header h;
        cr_expect(shm_layout(&h, 1, IMPOSSIBLE[i].sq, IMPOSSIBLE[i].cq, IMPOSSIBLE[i].arena, IMPOSSIBLE[i].results) == 0, "case %s",
                  IMPOSSIBLE[i].name);
    }
}

/* Offsets are relative to: 0 nothing, 'a' the arena's begin, 'A' its end, 'r' the results' begin, 'R' their end. */
static const struct { const char *name; char in_of; int64_t in; char out_of; int64_t out; uint64_t count; bool good; } PLACES[] = {
    { "whole arena", 'a', 0, 'a', 0, AREA / 4, true },
    { "one element too many", 'a', 0, 'a', 0, AREA / 4 + 1, false },
    { "last element", 'A', -4, 'A', -4, 1, true },
    { "over the end of the input", 'A', -4, 'a', 0, 2, false },
    { "over the end of the output", 'a', 0, 'A', -4, 2, false },
    { "before the arena", 'a', -4, 'a', 0, 2, false },
    { "output before the arena", 'a', 0, 'a', -4, 2, false },
    { "input from the results", 'r', 0, 'a', 0, 10, true },
    { "from the arena into the results", 'A', -4, 'a', 0, 2, false },
    { "output into the results", 'a', 0, 'r', 0, 10, false },
    { "behind everything", 'R', 0, 'a', 0, 1, false },
    { "misaligned input", 'a', 2, 'a', 0, 1, false },
    { "misaligned output", 'a', 0, 'a', 1, 1, false },
    { "offset near 2^64", 0, -4, 'a', 0, 2, false },
    { "count near 2^64", 'a', 0, 'a', 0, UINT64_MAX, false },
    { "bytes near 2^64", 'a', 0, 'a', 0, UINT64_MAX / 4, false },
    { "nothing, nowhere", 0, -4, 0, -4, 0, true },
};

static uint64_t place(const struct shm_header *h, char of, int64_t at)
{
    uint64_t base = of == 'a' ? h->arena_offset : of == 'A' ? h->arena_offset + h->arena_bytes
                  : of == 'r' ? h->results_offset : of == 'R' ? h->results_offset + h->results_bytes : 0;

    return base + (uint64_t)at;
}

Test(shm, tensors_must_lie_where_they_may)
{
    struct shm_header h = layout_of();

    for (size_t i = 0; i < COUNT(PLACES); i++) {
        struct shm_request r = { .op = SHM_OP_ALLREDUCE, .dtype = SHM_F32, .redop = SHM_SUM, .count = PLACES[i].count, .prescale = 1,
                                 .postscale = 1, .in_offset = place(&h, PLACES[i].in_of, PLACES[i].in),
                                 .out_offset = place(&h, PLACES[i].out_of, PLACES[i].out), .name = "x" };
        struct error e = ERROR_INIT;
        cr_expect((shm_request_check(&h, &r, 4, &e) == 0) == PLACES[i].good, "case %s: %s", PLACES[i].name, e.text);
        cr_expect(PLACES[i].good || (e.kind == ERROR_INVALID && strstr(e.text, "\"x\"") != NULL), "case %s: %s", PLACES[i].name, e.text);
    }
}

Test(shm, roots_are_checked_when_the_size_is_known)
{
    static const struct { int32_t root, size; bool good; } rows[] = {
        { 0, 4, true }, { 3, 4, true }, { 4, 4, false }, { -1, 4, false }, { -1, 0, false }, { 4000, 0, true },
    };
    struct shm_header h = layout_of();

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct shm_request r = { .op = SHM_OP_BROADCAST, .dtype = SHM_U8, .root = rows[i].root, .name = "x" };
        struct error e = ERROR_INIT;
        cr_expect((shm_request_check(&h, &r, rows[i].size, &e) == 0) == rows[i].good, "root %d of %d: %s", rows[i].root, rows[i].size, e.text);
    }
}

Test(shm, every_dtype_and_reduction_has_a_name_and_nothing_else_has)
{
    for (unsigned d = 0; d < 12; d++)
        cr_expect((strcmp(shm_dtype_name(d), "unknown dtype") != 0) == (shm_dtype_size(d) != 0), "dtype %u", d);
    cr_expect_str_eq(shm_redop_name(SHM_PRODUCT), "product");
    cr_expect_str_eq(shm_redop_name(0), "unknown reduction");
    cr_expect_str_eq(shm_op_name(SHM_OP_FREE), "free");
    cr_expect_str_eq(shm_op_name(99), "unknown operation");
}

/* What goes with what: the table in shm.h. */
Test(shm, reductions_fit_the_dtype)
{
    static const struct { uint16_t dtype; const char *sum_product, *average, *min_max, *adasum, *scaled; } rows[] = {
        { SHM_U8, "y", "y", "y", "n", "y" },   { SHM_I8, "y", "y", "y", "n", "y" },   { SHM_I32, "y", "y", "y", "n", "y" },
        { SHM_I64, "y", "y", "y", "n", "y" },  { SHM_F16, "y", "y", "y", "y", "y" },  { SHM_BF16, "y", "y", "y", "y", "y" },
        { SHM_F32, "y", "y", "y", "y", "y" },  { SHM_F64, "y", "y", "y", "y", "y" },  { SHM_BOOL, "n", "n", "y", "n", "n" },
        { SHM_U16, "n", "n", "n", "n", "n" },  { SHM_I16, "n", "n", "n", "n", "n" },
    };
    struct shm_header h = layout_of();

    for (size_t i = 0; i < COUNT(rows); i++) {
        for (uint16_t redop = SHM_SUM; redop <= SHM_ADASUM; redop++) {
            const char *want = redop == SHM_SUM || redop == SHM_PRODUCT ? rows[i].sum_product
                             : redop == SHM_AVERAGE ? rows[i].average : redop == SHM_ADASUM ? rows[i].adasum : rows[i].min_max;
            struct shm_request r = { .op = SHM_OP_ALLREDUCE, .dtype = rows[i].dtype, .redop = redop, .prescale = 1, .postscale = 1,
                                     .name = "x" };
            struct error e = ERROR_INIT;
            cr_expect((shm_request_check(&h, &r, 4, &e) == 0) == (want[0] == 'y'), "%s of %s: %s", shm_redop_name(redop),
                      shm_dtype_name(rows[i].dtype), e.text);
            r.prescale = 2;
            bool scaled = want[0] == 'y' && rows[i].scaled[0] == 'y';
            cr_expect((shm_request_check(&h, &r, 4, &e) == 0) == scaled, "scaled %s of %s", shm_redop_name(redop),
                      shm_dtype_name(rows[i].dtype));
        }
    }
}

static const struct { const char *name; struct shm_request r; uint64_t splits[3]; int32_t size; const char *says; } SPLITS[] = {
    { "all of it", { .op = SHM_OP_REDUCESCATTER, .splits = 3, .count = 10 }, { 4, 3, 3 }, 3, NULL },
    { "nothing", { .op = SHM_OP_REDUCESCATTER, .splits = 3, .count = 0 }, { 0, 0, 0 }, 3, NULL },
    { "too little", { .op = SHM_OP_REDUCESCATTER, .splits = 3, .count = 10 }, { 4, 3, 2 }, 3, "sum up to 9 of the tensor's 10" },
    { "too much", { .op = SHM_OP_ALLTOALL, .splits = 2, .count = 10, .row_elements = 1 }, { 4, 7 }, 2, "more than the tensor's 10" },
    { "around the end", { .op = SHM_OP_ALLTOALL, .splits = 2, .count = 10, .row_elements = 1 }, { UINT64_MAX, 11 }, 2, "more than" },
    { "half a row", { .op = SHM_OP_ALLTOALL, .splits = 2, .count = 6, .row_elements = 3 }, { 2, 4 }, 2, "whole number of rows of 3" },
    { "rows of nothing", { .op = SHM_OP_ALLTOALL, .splits = 2, .count = 0, .row_elements = 0 }, { 0, 0 }, 2, NULL },
    { "a set", { .op = SHM_OP_SET_ADD, .splits = 3 }, { 0, 2, 3 }, 4, NULL },
    { "a set before the size is known", { .op = SHM_OP_SET_ADD, .splits = 2 }, { 7, 9 }, 0, NULL },
    { "a rank that is not there", { .op = SHM_OP_SET_ADD, .splits = 2 }, { 0, 4 }, 4, "rank 4 at place 1" },
    { "a rank twice", { .op = SHM_OP_SET_ADD, .splits = 2 }, { 1, 1 }, 4, "each once" },
    { "backwards", { .op = SHM_OP_SET_ADD, .splits = 2 }, { 1, 0 }, 4, "ascending" },
    { "a rank beyond all", { .op = SHM_OP_SET_ADD, .splits = 1 }, { UINT64_MAX }, 0, "rank 18446744073709551615" },
};

Test(shm, splits_are_held_against_the_tensor)
{
    for (size_t i = 0; i < COUNT(SPLITS); i++) {
        struct error e = ERROR_INIT;
        int got = shm_splits_check(&SPLITS[i].r, SPLITS[i].splits, SPLITS[i].size, &e);
        cr_expect((got == 0) == (SPLITS[i].says == NULL), "case %s: %s", SPLITS[i].name, e.text);
        cr_expect(SPLITS[i].says == NULL || strstr(e.text, SPLITS[i].says) != NULL, "case %s: %s", SPLITS[i].name, e.text);
    }
}

Test(shm, lists_of_splits_must_lie_in_the_arena)
{
    static const struct { const char *name; uint16_t op; uint32_t splits; int64_t at; bool good; } rows[] = {
        { "at its begin", SHM_OP_REDUCESCATTER, 4, 0, true },
        { "at its end", SHM_OP_ALLTOALL, 4, AREA - 32, true },
        { "over its end", SHM_OP_ALLTOALL, 4, AREA - 24, false },
        { "before it", SHM_OP_ALLTOALL, 4, -8, false },
        { "misaligned", SHM_OP_ALLTOALL, 4, 4, false },
        { "none", SHM_OP_ALLTOALL, 0, 0, false },
        { "too many", SHM_OP_SET_ADD, SHM_RANKS_MAX + 1, 0, false },
        { "where none belong", SHM_OP_ALLREDUCE, 4, 0, false },
    };
    struct shm_header h = layout_of();

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct shm_request r = { .op = rows[i].op, .dtype = SHM_F32, .redop = SHM_SUM, .prescale = 1, .postscale = 1, .name = "x",
                                 .splits = rows[i].splits, .splits_offset = h.arena_offset + (uint64_t)rows[i].at };
        struct error e = ERROR_INIT;
        cr_expect((shm_request_check(&h, &r, 4, &e) == 0) == rows[i].good, "case %s: %s", rows[i].name, e.text);
    }
}

Test(shm, what_concerns_all_ranks_is_of_no_process_set)
{
    static const uint16_t ops[] = { SHM_OP_JOIN, SHM_OP_SET_ADD, SHM_OP_SET_REMOVE };
    struct shm_header h = layout_of();

    for (size_t i = 0; i < COUNT(ops); i++) {
        struct shm_request r = { .op = ops[i], .set = 1, .name = "x", .splits = ops[i] == SHM_OP_SET_ADD,
                                 .splits_offset = h.arena_offset };
        struct error e = ERROR_INIT;
        cr_expect(shm_request_check(&h, &r, 4, &e) < 0 && strstr(e.text, "all ranks have to take part"), "%s", e.text);
        r.set = 0;
        cr_expect(shm_request_check(&h, &r, 4, &e) == 0, "%s", e.text);
    }
}
