#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "cli/logmerge.h"

/* What may be given out now, as "a1 b2 ". */
static void take(struct logmerge *m, int64_t now_ms, struct buf *out)
{
    struct logmerge_line line;
    while (logmerge_next(m, now_ms, &line))
        buf_addf(out, "%s%.*s ", (const char *)line.of, (int)line.len, line.text);
}

static void expect(struct logmerge *m, int64_t now_ms, const char *text)
{
    auto_buf struct buf out = BUF_INIT(4096);
    take(m, now_ms, &out);
    cr_expect_str_eq(buf_text(&out), text, "\"%s\" in place of \"%s\"", buf_text(&out), text);
}

static void add(struct logmerge *m, size_t log, int64_t time_ns, const char *text, int64_t now_ms)
{
    logmerge_add(m, log, time_ns, text, strlen(text), now_ms);
}

Test(logmerge, the_oldest_first_when_every_log_has_a_line)
{
    struct logmerge *m = logmerge_new(-1, 1 << 20);
    size_t a = logmerge_open(m, "a"), b = logmerge_open(m, "b");
    add(m, a, 1, "1", 0);
    add(m, a, 5, "5", 0);
    expect(m, 1000, "");
    add(m, b, 3, "3", 0);
    expect(m, 0, "a1 b3 ");
    logmerge_rest(m, b);
    expect(m, 0, "a5 ");
    logmerge_rest(m, a);
    expect(m, 0, "");
    logmerge_free(m);
}

Test(logmerge, a_line_waits_no_longer_than_its_patience)
{
    struct logmerge *m = logmerge_new(250, 1 << 20);
    size_t a = logmerge_open(m, "a"), b = logmerge_open(m, "b");
    cr_expect_eq(logmerge_wake_ms(m), -1);
    add(m, a, 10, "10", 1000);
    cr_expect_eq(logmerge_wake_ms(m), 1250);
    expect(m, 1249, "");
    expect(m, 1250, "a10 ");
    add(m, b, 4, "4", 1300);
    add(m, a, 20, "20", 1300);
    expect(m, 1300, "b4 ");
    expect(m, 1550, "a20 ");
    logmerge_free(m);
}

Test(logmerge, a_log_keeps_its_order_whatever_its_times_say)
{
    struct logmerge *m = logmerge_new(-1, 1 << 20);
    size_t a = logmerge_open(m, "a"), b = logmerge_open(m, "b");
    add(m, a, 9, "first", 0);
    add(m, a, 2, "second", 0);
    add(m, b, 5, "other", 0);
    logmerge_rest(m, b);
    logmerge_rest(m, a);
    expect(m, 0, "bother afirst asecond ");
    logmerge_free(m);
}

Test(logmerge, a_log_that_rests_holds_nobody_up_until_it_goes_on)
{
    struct logmerge *m = logmerge_new(-1, 1 << 20);
    size_t a = logmerge_open(m, "a"), b = logmerge_open(m, "b");
    logmerge_rest(m, b);
    add(m, a, 1, "1", 0);
    expect(m, 0, "a1 ");
    logmerge_wait(m, b);
    add(m, a, 2, "2", 0);
    expect(m, 0, "");
    add(m, b, 3, "3", 0);
    expect(m, 0, "a2 ");
    logmerge_rest(m, a);
    logmerge_rest(m, a); /* twice is once */
    expect(m, 0, "b3 ");
    logmerge_free(m);
}

Test(logmerge, what_waits_is_bounded)
{
    struct logmerge *m = logmerge_new(-1, 10000);
    size_t a = logmerge_open(m, "a");
    (void)logmerge_open(m, "b"); /* says nothing */
    char text[100];
    memset(text, 'x', sizeof text);
    size_t given = 0;
    for (int i = 0; i < 1000; i++) {
        struct logmerge_line line;
        logmerge_add(m, a, i, text, sizeof text, 0);
        while (logmerge_next(m, 0, &line))
            given++;
    }
    cr_expect_gt(given, 900);
    logmerge_free(m);
}

static int by_time(const void *x, const void *y)
{
    int64_t a = *(const int64_t *)x, b = *(const int64_t *)y;
    return (a > b) - (a < b);
}

/* Many logs, each in order: the result is the sorted whole. */
Test(logmerge, many_logs_are_sorted)
{
    enum { LOGS = 37, EACH = 53 };
    static int64_t times[LOGS * EACH], out[LOGS * EACH];
    struct logmerge *m = logmerge_new(-1, 1u << 30);
    uint32_t seed = 7;
    size_t n = 0, got = 0;
    struct logmerge_line line;
    for (size_t log = 0; log < LOGS; log++) {
        int64_t t = 0;
        size_t id = logmerge_open(m, "");
        for (int i = 0; i < EACH; i++) {
            seed = seed * 1664525 + 1013904223;
            t += seed >> 22;
            times[n++] = t;
            logmerge_add(m, id, t, "", 0, 0);
        }
        logmerge_rest(m, id);
    }
    while (got < n && logmerge_next(m, 0, &line))
        out[got++] = line.time_ns;
    qsort(times, n, sizeof *times, by_time);
    cr_expect_eq(got, n);
    cr_expect_eq(memcmp(times, out, sizeof times), 0);
    cr_expect_not(logmerge_next(m, 0, &line));
    logmerge_free(m);
}
