#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "sidecar/supervise/progress.h"

static int merge(struct progress *p, const char *text, int64_t mono_ms, struct error *e)
{
    return progress_merge(p, text, strlen(text), mono_ms, 1700000000000 + mono_ms, e);
}

Test(progress, reports_are_merged)
{
    struct progress p;
    struct error e = ERROR_INIT;

    progress_reset(&p, -1);
    cr_expect_eq(p.view.step, -1);
    cr_assert_eq(merge(&p, "{\"step\":3,\"total_steps\":100}", 10, &e), 0, "%s", e.text);
    cr_assert_eq(merge(&p, "{\"loss\":0.5,\"metrics\":{\"accuracy\":0.25,\"lr\":1}}", 20, &e), 0, "%s", e.text);
    cr_assert_eq(merge(&p, "{\"metrics\":{\"accuracy\":0.5,\"hash\":\"abc\"}}", 30, &e), 0, "%s", e.text);
    cr_expect_eq(p.view.step, 3);
    cr_expect_eq(p.view.total_steps, 100);
    cr_expect(p.view.has_loss);
    cr_expect_float_eq(p.view.loss, 0.5, 1e-12);
    cr_expect_str_eq(p.view.metrics, "{\"lr\":1,\"accuracy\":0.5,\"hash\":\"abc\"}");
    cr_expect_eq(p.view.first_step_ms, 1700000000010);
    cr_assert_eq(merge(&p, "{\"step\":0}", 40, &e), 0);
    cr_expect_eq(p.view.first_step_ms, 1700000000010, "the first stays the first");
    cr_expect_eq(p.view.step, 0, "a script may count anew at each epoch");
}

Test(progress, step_times_are_a_median)
{
    static const struct { const char *name; double values[5]; size_t count; double median; } rows[] = {
        { "none", { 0 }, 0, 0 },
        { "one", { 7 }, 1, 7 },
        { "two", { 1, 3 }, 2, 2 },
        { "an outlier", { 10, 1000, 11 }, 3, 11 },
        { "unsorted", { 5, 1, 4, 2, 3 }, 5, 3 },
    };
    struct progress p;
    struct error e = ERROR_INIT;
    char text[64];

    for (size_t i = 0; i < COUNT(rows); i++)
        cr_expect_float_eq(progress_median(rows[i].values, rows[i].count), rows[i].median, 1e-12, "case %s", rows[i].name);

    progress_reset(&p, -1);
    for (int i = 0; i < 100; i++) { /* the first 68 are forgotten */
        (void)snprintf(text, sizeof text, "{\"step_ms\":%d}", i < 68 ? 1000 : 10);
        cr_assert_eq(merge(&p, text, i, &e), 0);
    }
    cr_expect_float_eq(p.view.step_ms, 10, 1e-12);

    progress_reset(&p, -1); /* a client that does not measure */
    (void)merge(&p, "{\"step\":10}", 1000, &e);
    (void)merge(&p, "{\"step\":12}", 1050, &e);
    cr_expect_float_eq(p.view.step_ms, 25, 1e-12);
}

Test(progress, what_cannot_be_right_is_refused_and_changes_nothing)
{
    static const struct { const char *name, *text, *words; } rows[] = {
        { "no JSON", "{", "report" },
        { "no object", "[1]", "expected a JSON object" },
        { "a negative step", "{\"step\":-1}", "\"step\"" },
        { "a step in words", "{\"step\":\"3\"}", "\"step\"" },
        { "a step beyond counting", "{\"step\":1e300}", "\"step\"" },
        { "a total below zero", "{\"step\":9,\"total_steps\":-5}", "\"total_steps\"" },
        { "a loss that is no number", "{\"step\":9,\"loss\":\"nan\"}", "\"loss\"" },
        { "a negative time", "{\"step\":9,\"step_ms\":-1}", "\"step_ms\"" },
        { "metrics that are a list", "{\"step\":9,\"metrics\":[1]}", "\"metrics\"" },
    };
    struct progress p;

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct error e = ERROR_INIT;
        progress_reset(&p, -1);
        cr_assert_eq(merge(&p, "{\"step\":5,\"metrics\":{\"a\":1}}", 10, &e), 0);
        struct progress before = p;
        cr_expect_eq(merge(&p, rows[i].text, 20, &e), -1, "case %s", rows[i].name);
        cr_expect(strstr(e.text, rows[i].words) != NULL, "case %s: %s", rows[i].name, e.text);
        cr_expect_eq(p.view.step, before.view.step, "case %s", rows[i].name);
        cr_expect_str_eq(p.view.metrics, before.view.metrics, "case %s", rows[i].name);
    }
}

Test(progress, metrics_have_a_ceiling)
{
    struct progress p;
    struct error e = ERROR_INIT;
    char text[2048];

    progress_reset(&p, -1);
    (void)snprintf(text, sizeof text, "{\"metrics\":{\"long\":\"%01200d\"}}", 0);
    cr_expect_eq(merge(&p, text, 1, &e), -1);
    cr_expect_eq(e.kind, ERROR_LIMIT);
    cr_expect_str_eq(p.view.metrics, "");
    auto_free char *big = xcalloc(1, PROGRESS_REPORT_MAX + 2);
    memset(big, ' ', PROGRESS_REPORT_MAX + 1);
    cr_expect_eq(merge(&p, big, 1, &e), -1);
    cr_expect_eq(e.kind, ERROR_LIMIT);
}

Test(progress, the_first_step_is_the_first_beyond_the_checkpoint)
{
    struct progress p;
    struct error e = ERROR_INIT;

    progress_reset(&p, 60);
    cr_assert_eq(merge(&p, "{\"step\":60}", 10, &e), 0);
    cr_expect_eq(p.view.first_step_ms, 0, "the checkpoint was read, nothing was trained");
    cr_expect_eq(p.view.step, 60);
    cr_assert_eq(merge(&p, "{\"step\":61}", 30, &e), 0);
    cr_expect_eq(p.view.first_step_ms, 1700000000030);

    progress_reset(&p, -1);
    cr_assert_eq(merge(&p, "{\"step\":0}", 10, &e), 0);
    cr_expect_eq(p.view.first_step_ms, 0);
}
