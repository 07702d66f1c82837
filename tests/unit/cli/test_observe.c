#include <criterion/criterion.h>

#include "base/mem.h"
#include "cli/observe.h"

Test(observe, progress_alone_is_not_weighty)
{
    auto_free struct job_status *a = xcalloc(1, sizeof *a), *b = xcalloc(1, sizeof *b);
    b->progress.set = true;
    b->progress.step = 7;
    b->ring.bytes_reduced = 9;
    cr_expect(!observe_weighty(a, b));
    b->restarts = 1;
    cr_expect(observe_weighty(a, b));
    b->restarts = 0;
    b->conditions[CONDITION_RUNNING].is_true = true;
    cr_expect(observe_weighty(a, b));
    b->conditions[CONDITION_RUNNING].is_true = false;
    b->roles[ROLE_WORKER].active = 1;
    cr_expect(observe_weighty(a, b));
    b->roles[ROLE_WORKER].active = 0;
    b->checkpoint.step = 10;
    cr_expect(observe_weighty(a, b));
}
