#include <criterion/criterion.h>
#include <string.h>

#include "base/mem.h"
#include "cli/logline.h"

Test(logline, timestamps_are_split_off)
{
    static const struct { const char *line; bool has; int64_t ns; const char *text; } ROWS[] = {
        { "1970-01-01T00:00:01.000000002Z hello", true, 1000000002, "hello" },
        { "1970-01-01T00:00:01Z hello", true, 1000000000, "hello" },
        { "1970-01-01T01:00:00.5+01:00 x", true, 500000000, "x" },
        { "1969-12-31T23:30:00-00:30 before", false, 0, "1969-12-31T23:30:00-00:30 before" },
        { "1970-01-01T00:00:00-00:30 later", true, 1800000000000, "later" },
        { "2026-02-03T04:05:06.123456789Z ", true, 1770091506123456789, "" },
        { "2026-02-03T04:05:06.123456789Z", true, 1770091506123456789, "" },
        { "2026-02-03T04:05:06.1Z  two blanks", true, 1770091506100000000, " two blanks" },
        { "2026-02-03T04:05:06", false, 0, "2026-02-03T04:05:06" },
        { "2026-02-03T04:05:06.Z x", false, 0, "2026-02-03T04:05:06.Z x" },
        { "2026-13-03T04:05:06Z x", false, 0, "2026-13-03T04:05:06Z x" },
        { "2026-02-03T04:05:06.1234567890Z x", false, 0, "2026-02-03T04:05:06.1234567890Z x" },
        { "2026-02-03T04:05:06Zx", false, 0, "2026-02-03T04:05:06Zx" },
        { "", false, 0, "" }, { "plain text that is long enough", false, 0, "plain text that is long enough" },
    };
    for (size_t i = 0; i < COUNT(ROWS); i++) {
        int64_t ns = -1;
        size_t at = 99;
        cr_expect_eq(logline_split(ROWS[i].line, strlen(ROWS[i].line), &ns, &at), ROWS[i].has, "%s", ROWS[i].line);
        cr_expect_eq(ns, ROWS[i].ns, "%s: %lld", ROWS[i].line, (long long)ns);
        cr_expect_str_eq(ROWS[i].line + at, ROWS[i].text, "%s", ROWS[i].line);
    }
}

/* Lines as "time:length"; a stream that is opened again repeats from the whole second. */
Test(logline, a_stream_that_broke_repeats_no_line)
{
    static const struct { int64_t ns; size_t len; } LINES[] = {
        { 1000000000, 5 }, { 1500000000, 5 }, { 1500000000, 7 }, { 2000000001, 5 }, { 2000000001, 5 }, { 2000000001, 6 }, { 2900000000, 5 },
    };
    for (size_t broke = 0; broke <= COUNT(LINES); broke++) {
        struct logline_place p = { .last_ns = 0 };
        size_t given = 0, from = 0;
        for (size_t i = 0; i < broke; i++)
            given += logline_is_new(&p, true, LINES[i].ns, LINES[i].len);
        cr_expect_eq(given, broke);
        int64_t since_ns = logline_again(&p) * 1000000000;
        while (from < COUNT(LINES) && LINES[from].ns < since_ns)
            from++;
        for (size_t i = from; i < COUNT(LINES); i++) {
            bool is_new = logline_is_new(&p, true, LINES[i].ns, LINES[i].len);
            cr_expect_eq(is_new, i >= broke, "broke after %zu, line %zu", broke, i);
        }
    }
}

Test(logline, a_line_that_was_cut_comes_again_whole)
{
    struct logline_place p = { .last_ns = 0 };
    cr_expect(logline_is_new(&p, true, 1000000000, 10));
    cr_expect(logline_is_new(&p, true, 1200000000, 4)); /* half of it */
    cr_expect_eq(logline_again(&p), 1);
    cr_expect_not(logline_is_new(&p, true, 1000000000, 10));
    cr_expect(logline_is_new(&p, true, 1200000000, 9));
    cr_expect(logline_is_new(&p, true, 1200000000, 3), "another line of the same time");
}

Test(logline, pieces_without_a_time_follow_their_line)
{
    struct logline_place p = { .last_ns = 0 };
    cr_expect(logline_is_new(&p, false, 0, 3));
    cr_expect_eq(logline_again(&p), 0, "nothing to go on from");
    cr_expect(logline_is_new(&p, true, 1000000000, 3));
    cr_expect(logline_is_new(&p, false, 0, 3));
    (void)logline_again(&p);
    cr_expect_not(logline_is_new(&p, false, 0, 3));
    cr_expect_not(logline_is_new(&p, true, 1000000000, 3));
    cr_expect(logline_is_new(&p, true, 1000000001, 3));
}
