#include "base/json.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

Test(json, a_broken_document_is_located)
{
    static const struct { const char *name, *text, *expected; } rows[] = {
        { "missing value", "{\n  \"a\": }", "line 2, column 8: not valid JSON" },
        { "text behind", "{}\nx", "line 2, column 1: text after the end of the JSON document" },
        { "empty", "", "line 1, column 1: not valid JSON" },
        { "cut", "{\"a\":[1,2", "line 1, column 9: not valid JSON" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cJSON *tree = NULL;
        struct error e = ERROR_INIT;
        cr_expect_eq(json_parse(rows[i].text, strlen(rows[i].text), &tree, &e), -1, "case %s", rows[i].name);
        cr_expect_eq(e.kind, ERROR_INVALID, "case %s", rows[i].name);
        cr_expect_str_eq(e.text, rows[i].expected, "case %s: %s", rows[i].name, e.text);
    }
}

Test(json, deep_nesting_does_not_crash)
{
    size_t n = 1u << 20;
    char *text = malloc(n);
    memset(text, '[', n);
    cJSON *tree = NULL;
    struct error e = ERROR_INIT;
    cr_expect_eq(json_parse(text, n, &tree, &e), -1);
    free(text);
}

Test(json, lookups_have_a_fallback_for_what_is_absent_or_of_another_type)
{
    auto_json cJSON *tree = NULL;
    struct error e = ERROR_INIT;
    const char *text = "{\"a\":{\"b\":5,\"s\":\"x\",\"t\":true,\"n\":null,\"big\":1e300,\"f\":2.5}}";

    cr_assert_eq(json_parse(text, strlen(text), &tree, &e), 0);
    cr_expect_eq(json_int(tree, "a.b", -1), 5);
    cr_expect_eq(json_int(tree, "a.s", -1), -1);
    cr_expect_eq(json_int(tree, "a.b.c", -1), -1);
    cr_expect_eq(json_int(tree, "a.big", -1), INT64_MAX);
    cr_expect_float_eq(json_double(tree, "a.f", 0), 2.5, 1e-12);
    cr_expect_str_eq(json_text(tree, "a.s", "none"), "x");
    cr_expect_str_eq(json_text(tree, "a.n", "none"), "none");
    cr_expect(json_bool(tree, "a.t", false));
    cr_expect_null(json_at(tree, "a.n"));
    cr_expect_null(json_at(tree, "x.y"));
}

Test(json, builders_and_printing_agree)
{
    auto_json cJSON *tree = json_object();
    cJSON *list = json_array();

    json_put_text(tree, "t", "x");
    json_put_text(tree, "absent", NULL);
    json_put_int(tree, "i", 999999999999999);
    json_put_bool(tree, "b", true);
    json_append(list, cJSON_CreateNumber(1));
    json_put(tree, "l", list);
    char *text = json_print(tree, false);
    cr_expect_str_eq(text, "{\"t\":\"x\",\"i\":999999999999999,\"b\":true,\"l\":[1]}");
    free(text);
}
