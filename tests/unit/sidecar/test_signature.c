#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "sidecar/ring/signature.h"

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
