#include <criterion/criterion.h>

#include "base/mem.h"
#include "cli/bench.h"

static const struct { const char *name; int64_t asked, bytes, want; } ITERATIONS[] = {
    { "small sizes are bounded", 0, 4, 1000 },
    { "as many as move a gibibyte", 0, 16 << 20, 64 },
    { "large sizes have a few", 0, 1ll << 32, 5 },
    { "nothing at all", 0, 0, 1000 },
    { "as asked for", 7, 4, 7 },
};

Test(bench, iterations_of_a_size)
{
    for (size_t i = 0; i < COUNT(ITERATIONS); i++) {
        struct bench_options o = { .iterations = ITERATIONS[i].asked };
        cr_expect(bench_iterations(&o, ITERATIONS[i].bytes) == ITERATIONS[i].want, "case %s", ITERATIONS[i].name);
    }
}

Test(bench, without_the_library_it_says_so)
{
    struct bench_options o = { .iterations = 1, .library_dir = "/nonexistent" };
    struct error e = ERROR_INIT;
    int64_t wrong;

    cr_expect(bench_allreduce(&o, &wrong, &e) < 0 && e.kind == ERROR_NOT_FOUND, "%s", e.text);
}
