#include <criterion/criterion.h>

#include "job/counters.h"
#include "tests/unit/job/job_fixture.h"
#include "tests/unit/quietly.h"

#define HOUR_MS INT64_C(3600000)

/* Restarts at these minutes, in a window of an hour: how many of them count after the last. */
static const struct { const char *name; int count; int minutes[8]; int32_t expected; } ROWS[] = {
    { "one", 1, { 0 }, 1 },
    { "within an hour", 4, { 0, 10, 20, 59 }, 4 },
    { "the first is exactly an hour old", 2, { 0, 60 }, 1 },
    { "the window slides over them one by one", 5, { 0, 30, 50, 70, 100 }, 3 },
    { "two bursts at the border of an hour are one burst", 6, { 58, 59, 59, 61, 62, 62 }, 6 },
    { "a fault every two hours", 3, { 0, 120, 240 }, 1 },
    { "a clock that was set back forgets nothing", 3, { 100, 40, 50 }, 3 },
};

Test(counters, the_window_slides)
{
    for (size_t i = 0; i < COUNT(ROWS); i++) {
        struct restart_window w = { .part_count = 0 };
        for (int k = 0; k < ROWS[i].count; k++)
            restart_window_add(&w, ROWS[i].minutes[k] * INT64_C(60000), HOUR_MS);
        cr_expect_eq(restart_window_count(&w), ROWS[i].expected, "case %s: %d", ROWS[i].name, restart_window_count(&w));
    }
}

/* Against a list that forgets nothing: exact up to RESTART_WINDOW_PARTS, and never less beyond that. */
Test(counters, more_restarts_than_parts_are_never_undercounted)
{
    uint64_t random = 88172645463325252u;
    int64_t times[400], now = 1700000000000;
    struct restart_window w = { .part_count = 0 };

    for (int n = 0; n < 400; n++) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        times[n] = now += (int64_t)(random % 400000);
        restart_window_add(&w, now, HOUR_MS);
        int exact = 0;
        for (int k = 0; k <= n; k++)
            exact += now - times[k] < HOUR_MS;
        int32_t counted = restart_window_count(&w);
        QUIETLY(counted >= exact && (exact > RESTART_WINDOW_PARTS || counted <= exact + 2), "after %d: %d, really %d", n, counted, exact);
        for (int64_t k = 1; k < w.part_count; k++)
            QUIETLY(w.parts[k].at_ms >= w.parts[k - 1].at_ms, "in order");
    }
}

Test(counters, what_is_written_is_read_back)
{
    struct restart_counters c = { .restarts = 9, .restarts_counted = 5, .disruptions = 4, .streak = 2,
                                  .window = { .parts = { { 1700000000123, 2 }, { 1700000060000, 3 } }, .part_count = 2 } }, back;
    auto_json cJSON *o = restart_counters_encode(&c);

    cr_expect(restart_counters_decode(o, &back) && memcmp(&c, &back, sizeof c) == 0);
    cr_expect(restart_counters_decode(NULL, &back) && back.restarts == 0 && back.window.part_count == 0, "absent: none");
}

static const struct { const char *name, *text; } BAD[] = {
    { "a list", "[]" },
    { "a text", "{\"restarts\":\"3\"}" },
    { "below zero", "{\"streak\":-1}" },
    { "too large", "{\"disruptions\":4294967296}" },
    { "a window that is none", "{\"window\":7}" },
    { "a part without restarts", "{\"window\":[{\"at_ms\":5}]}" },
    { "parts in disorder", "{\"window\":[{\"at_ms\":5,\"restarts\":1},{\"at_ms\":4,\"restarts\":1}]}" },
    { "a sum that overflows", "{\"window\":[{\"at_ms\":5,\"restarts\":2147483647},{\"at_ms\":6,\"restarts\":2147483647}]}" },
    { "too many parts", "{\"window\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}" },
};

Test(counters, what_nobody_wrote_is_refused)
{
    for (size_t i = 0; i < COUNT(BAD); i++) {
        struct restart_counters c = { .restarts = 77 };
        auto_json cJSON *o = fixture_json(BAD[i].text);
        cr_expect(!restart_counters_decode(o, &c) && c.restarts == 77, "case %s", BAD[i].name);
    }
}
