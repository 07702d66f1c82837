#include "base/clock.h"

#include <criterion/criterion.h>

Test(clock, kubernetes_times_round_trip)
{
    static const struct { const char *text; int64_t ms; } rows[] = {
        { "1970-01-01T00:00:00Z", 0 },
        { "2024-02-29T23:59:59Z", 1709251199000 },
        { "1969-12-31T23:59:59Z", -1000 },
        { "2100-03-01T00:00:00Z", 4107542400000 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[CLOCK_TEXT_MAX];
        int64_t ms = 1;
        cr_expect_eq(clock_parse(rows[i].text, &ms), 0, "case %s", rows[i].text);
        cr_expect_eq(ms, rows[i].ms, "case %s: %lld", rows[i].text, (long long)ms);
        clock_format(rows[i].ms, text);
        cr_expect_str_eq(text, rows[i].text);
    }
}

Test(clock, fractions_are_read)
{
    int64_t ms;

    cr_expect_eq(clock_parse("2024-01-01T00:00:00.5Z", &ms), 0);
    cr_expect_eq(ms % 1000, 500);
    cr_expect_eq(clock_parse("2024-01-01T00:00:00.123456Z", &ms), 0);
    cr_expect_eq(ms % 1000, 123);
}

Test(clock, what_is_no_time_is_refused)
{
    static const char *const rows[] = { "", "2024", "2024-01-01", "2024-01-01T00:00:00", "2024-13-01T00:00:00Z",
                                        "2024-01-01T24:00:00Z", "2024-01-01T00:00:00.Z", "2024-01-01T00:00:00Zx",
                                        "2024-01-01T00:00:00+01:00" };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int64_t ms;
        cr_expect_eq(clock_parse(rows[i], &ms), -1, "case %s", rows[i]);
    }
}

Test(clock, monotonic_time_does_not_go_back)
{
    int64_t before = clock_mono_ns();

    cr_expect_geq(clock_mono_ns(), before);
    cr_expect_leq(before / 1000000, clock_mono_ms());
}
