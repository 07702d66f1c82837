#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "client/c/src/report.h"
#include "client/c/src/text.h"
#include "ringmaster.h"

static struct report r;

static void expect_taken(const char *expected)
{
    char text[REPORT_TEXT_MAX];
    size_t n = report_take(&r, text);
    cr_expect_eq(n, strlen(expected));
    cr_expect_str_eq(n > 0 ? text : "", expected);
}

Test(report, the_newest_value_of_each_field_is_kept)
{
    cr_expect_eq(report_merge(&r, "{\"step\":1,\"loss\":0.5}"), RM_OK);
    cr_expect_eq(report_merge(&r, " { \"step\" : 2 , \"metrics\" : { \"a\" : 1, \"b\":\"x\\\"y\" } } "), RM_OK);
    cr_expect_eq(report_merge(&r, "{\"metrics\":{\"a\":-2.5e-3,\"c\":null},\"total_steps\":10,\"step_ms\":1.25}"), RM_OK);
    expect_taken("{\"step\":2,\"total_steps\":10,\"loss\":0.5,\"step_ms\":1.25,\"metrics\":{\"a\":-2.5e-3,\"b\":\"x\\\"y\",\"c\":null}}");
    expect_taken("");
    cr_expect_eq(report_merge(&r, "{}"), RM_OK);
    expect_taken("{}");
}

Test(report, what_is_no_report_is_refused_and_changes_nothing)
{
    static const struct { const char *name, *text, *words; } rows[] = {
        { "nothing", "", "expected an object" },
        { "array", "[1]", "expected an object" },
        { "open", "{", "name in double quotes" },
        { "no colon", "{\"step\" 1}", "expected ':'" },
        { "no value", "{\"step\":}", "must be a number" },
        { "comma at the end", "{\"step\":1,}", "name in double quotes" },
        { "no comma", "{\"step\":1 \"loss\":2}", "expected ',' or '}'" },
        { "text behind", "{\"step\":1} {}", "text after the object" },
        { "unknown", "{\"speed\":1}", "unknown field \"speed\"" },
        { "text for a number", "{\"step\":\"1\"}", "must be a number" },
        { "nan", "{\"loss\":NaN}", "must be a number" },
        { "leading zero", "{\"step\":01}", "must be a number" },
        { "bare minus", "{\"step\":-}", "must be a number" },
        { "bare point", "{\"step\":1.}", "must be a number" },
        { "bare exponent", "{\"step\":1e}", "must be a number" },
        { "metrics no object", "{\"metrics\":1}", "expected an object" },
        { "nested", "{\"metrics\":{\"a\":{}}}", "is not a number, string" },
        { "bad escape", "{\"metrics\":{\"a\":\"\\q\"}}", "is not a number, string" },
        { "bad unicode", "{\"metrics\":{\"a\":\"\\u12g4\"}}", "is not a number, string" },
        { "control character", "{\"metrics\":{\"a\":\"\n\"}}", "is not a number, string" },
        { "open string", "{\"metrics\":{\"a\":\"x", "is not a number, string" },
    };

    cr_assert_eq(report_merge(&r, "{\"step\":7}"), RM_OK);
    for (size_t i = 0; i < COUNT(rows); i++) {
        cr_expect_eq(report_merge(&r, rows[i].text), RM_INVALID, "case %s", rows[i].name);
        cr_expect_not_null(strstr(text_last(), rows[i].words), "case %s: %s", rows[i].name, text_last());
    }
    cr_expect_eq(report_merge(&r, NULL), RM_INVALID);
    expect_taken("{\"step\":7}");
}

Test(report, names_values_and_their_number_have_limits)
{
    char text[600];

    for (int i = 0; i < REPORT_METRICS; i++) {
        snprintf(text, sizeof(text), "{\"metrics\":{\"m%d\":%d}}", i, i);
        cr_expect_eq(report_merge(&r, text), RM_OK);
    }
    cr_expect_eq(report_merge(&r, "{\"metrics\":{\"one more\":1}}"), RM_INVALID);
    cr_expect_eq(report_merge(&r, "{\"metrics\":{\"m3\":4}}"), RM_OK, "a name that is there is no more");
    snprintf(text, sizeof(text), "{\"metrics\":{\"m1\":\"%0*d\"}}", REPORT_VALUE_MAX - 3, 0);
    cr_expect_eq(report_merge(&r, text), RM_OK);
    snprintf(text, sizeof(text), "{\"metrics\":{\"m1\":\"%0*d\"}}", REPORT_VALUE_MAX - 2, 0);
    cr_expect_eq(report_merge(&r, text), RM_INVALID);
    snprintf(text, sizeof(text), "{\"metrics\":{\"%0*d\":1}}", REPORT_KEY_MAX, 0);
    cr_expect_eq(report_merge(&r, text), RM_INVALID);
}

/* The largest report there can be fits into the text, and is one that the merge itself can read. */
Test(report, a_full_report_fits)
{
    struct report again = { 0 };
    char text[REPORT_TEXT_MAX], one[600];

    for (int i = 0; i < REPORT_METRICS; i++) {
        snprintf(one, sizeof(one), "{\"metrics\":{\"%0*d\":\"%0*d\"}}", REPORT_KEY_MAX - 1, i, REPORT_VALUE_MAX - 3, i);
        cr_assert_eq(report_merge(&r, one), RM_OK, "%s", text_last());
    }
    static const char *const fields[] = { "step", "total_steps", "loss", "step_ms" };
    for (size_t i = 0; i < COUNT(fields); i++) {
        snprintf(one, sizeof(one), "{\"%s\":1%0*d}", fields[i], REPORT_VALUE_MAX - 2, 0);
        cr_assert_eq(report_merge(&r, one), RM_OK, "%s", text_last());
    }
    size_t n = report_take(&r, text);
    cr_assert(n > 0 && n < sizeof(text) - 1 && text[n] == '\0');
    cr_expect_eq(report_merge(&again, text), RM_OK, "%s", text_last());
    cr_expect_eq(again.metric_count, REPORT_METRICS);
}
