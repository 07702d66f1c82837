#include <criterion/criterion.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "job/schema.h"

static cJSON *tree_of(const char *text)
{
    struct error e = ERROR_INIT;
    cJSON *tree = NULL;

    cr_assert_eq(json_parse(text, strlen(text), &tree, &e), 0, "%s: %s", text, e.text);
    return tree;
}

/* All problems of a value, without places. Owned. */
static char *check(const char *schema_text, const char *value_text)
{
    auto_json cJSON *schema = tree_of(schema_text), *value = tree_of(value_text);
    auto_free struct problems *problems = xcalloc(1, sizeof *problems);

    schema_check(schema, value, NULL, problems);
    return problems_format(problems, "f");
}

Test(schema, values_are_held_against_their_type)
{
    static const struct { const char *schema, *value, *problems; } rows[] = {
        { "{\"type\":\"integer\"}", "5", "" },
        { "{\"type\":\"integer\"}", "5.5", "f: found 5.5, expected an integer\n" },
        { "{\"type\":\"integer\"}", "\"5\"", "f: found \"5\", expected an integer; remove the quotes\n" },
        { "{\"type\":\"integer\",\"format\":\"int32\"}", "2147483647", "" },
        { "{\"type\":\"integer\",\"format\":\"int32\"}", "2147483648", "f: found 2147483648, expected an integer\n" },
        { "{\"type\":\"integer\",\"minimum\":1}", "0", "f: found 0, expected an integer of at least 1\n" },
        { "{\"type\":\"integer\",\"maximum\":1}", "2", "f: found 2, expected an integer of at most 1\n" },
        { "{\"type\":\"integer\"}", "1e300", "f: found 1e+300, expected an integer\n" },
        { "{\"type\":\"number\",\"minimum\":1,\"maximum\":2}", "2.5", "f: found 2.5, expected a number from 1 to 2\n" },
        { "{\"type\":\"boolean\"}", "true", "" },
        { "{\"type\":\"boolean\"}", "\"yes\"", "f: found \"yes\", expected true or false\n" },
        { "{\"type\":\"string\"}", "true", "f: found true, expected text; put it in quotes\n" },
        { "{\"type\":\"string\",\"maxLength\":2}", "\"\\u00e4\\u00f6\"", "" }, /* characters, not bytes */
        { "{\"type\":\"string\",\"maxLength\":2}", "\"abc\"", "f: found \"abc\", expected text of at most 2 characters\n" },
        { "{\"type\":\"string\",\"minLength\":1}", "\"\"", "f: found \"\", expected text of at least 1 characters\n" },
        { "{\"type\":\"string\",\"pattern\":\"^a+$\"}", "\"aa\"", "" },
        { "{\"type\":\"string\",\"pattern\":\"^a+$\"}", "\"b\"", "f: found \"b\", expected text that matches ^a+$\n" },
        { "{\"type\":\"string\",\"format\":\"date-time\"}", "\"2026-02-03T04:05:06Z\"", "" },
        { "{\"type\":\"string\",\"format\":\"date-time\"}", "\"today\"", "f: found \"today\", expected a time such as 2026-02-03T04:05:06Z\n" },
        { "{\"type\":\"string\",\"enum\":[\"All\",\"None\"]}", "\"none\"",
          "f: found \"none\", expected one of All or None; did you mean \"None\"?\n" },
        { "{\"type\":\"object\"}", "{\"anything\":[1]}", "" },
        { "{\"type\":\"object\"}", "[]", "f: found a list, expected a mapping\n" },
        { "{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}", "[1,\"x\",null]",
          "f: [1]: found \"x\", expected an integer\nf: [2]: found nothing, expected an integer\n" },
        { "{\"type\":\"array\",\"maxItems\":1,\"items\":{\"type\":\"integer\"}}", "[1,2]", "f: found 2 items, expected a list of at most 1 items\n" },
        { "{\"x-kubernetes-int-or-string\":true}", "\"80%\"", "" },
        { "{\"x-kubernetes-int-or-string\":true}", "80", "" },
        { "{\"x-kubernetes-int-or-string\":true}", "true", "f: found true, expected an integer or text\n" },
        { "{\"type\":\"string\",\"nullable\":true}", "null", "" },
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        auto_free char *problems = check(rows[i].schema, rows[i].value);
        cr_expect_str_eq(problems, rows[i].problems, "case %s of %s: %s", rows[i].value, rows[i].schema, problems);
    }
}

Test(schema, properties_are_known_required_and_counted)
{
    static const char schema[] =
        "{\"type\":\"object\",\"required\":[\"a\",\"d\"],\"properties\":{\"a\":{\"type\":\"integer\"},\"other\":{\"type\":\"string\"},"
        "\"d\":{\"type\":\"integer\",\"default\":1},"
        "\"deep\":{\"type\":\"object\",\"properties\":{\"target\":{\"type\":\"string\"}}},"
        "\"map\":{\"type\":\"object\",\"maxProperties\":1,\"additionalProperties\":{\"type\":\"integer\"}},"
        "\"open\":{\"type\":\"object\",\"x-kubernetes-preserve-unknown-fields\":true,\"properties\":{\"k\":{\"type\":\"integer\"}}}}}";
    static const struct { const char *value, *problems; } rows[] = {
        { "{\"a\":1}", "" },
        { "{}", "f: a: missing, expected an integer\n" },
        { "{\"a\":null}", "f: a: missing, expected an integer\n" },
        { "{\"a\":1,\"other\":null}", "" }, /* as the API server drops it */
        { "{\"a\":1,\"oter\":\"\"}", "f: oter: unknown field; did you mean \"other\"?\n" },
        { "{\"a\":1,\"target\":\"\"}", "f: target: unknown field; did you mean \"deep.target\" below it?\n" },
        { "{\"a\":1,\"deep\":{\"map\":{}}}", "f: deep.map: unknown field here; it belongs to map\n" },
        { "{\"a\":1,\"deep\":{\"xyzzy\":1}}", "f: deep.xyzzy: unknown field; known here are target\n" },
        { "{\"a\":1,\"map\":{\"x\":\"y\"}}", "f: map.x: found \"y\", expected an integer\n" },
        { "{\"a\":1,\"map\":{\"x\":1,\"y\":null}}", "" },
        { "{\"a\":1,\"map\":{\"x\":1,\"y\":2}}", "f: map: found a mapping, expected a mapping of at most 1 keys\n" },
        { "{\"a\":1,\"open\":{\"x\":1,\"k\":\"\"}}", "f: open.k: found \"\", expected an integer\n" },
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        auto_free char *problems = check(schema, rows[i].value);
        cr_expect_str_eq(problems, rows[i].problems, "case %s: %s", rows[i].value, problems);
    }
}

Test(schema, sets_and_keyed_lists_hold_nothing_twice)
{
    static const char set[] = "{\"type\":\"array\",\"x-kubernetes-list-type\":\"set\",\"items\":{\"type\":\"string\"}}";
    static const char map[] = "{\"type\":\"array\",\"x-kubernetes-list-type\":\"map\",\"x-kubernetes-list-map-keys\":[\"n\",\"p\"],"
                              "\"items\":{\"type\":\"object\",\"properties\":{\"n\":{\"type\":\"integer\"},"
                              "\"p\":{\"type\":\"string\",\"default\":\"TCP\"},\"v\":{\"type\":\"integer\"}}}}";
    static const struct { const char *schema, *value, *problems; } rows[] = {
        { set, "[\"a\",\"b\"]", "" },
        { set, "[\"b\",\"a\",\"b\"]", "f: [2]: \"b\" stands here a second time; the first is [0]\n" },
        { map, "[{\"n\":1},{\"n\":1,\"p\":\"UDP\"},{\"n\":2}]", "" },
        { map, "[{\"n\":1,\"p\":\"TCP\"},{\"n\":1,\"v\":3}]", "f: [1]: n 1, p \"TCP\" stands here a second time; the first is [0]\n" },
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        auto_free char *problems = check(rows[i].schema, rows[i].value);
        cr_expect_str_eq(problems, rows[i].problems, "case %s: %s", rows[i].value, problems);
    }
}

Test(schema, defaults_are_filled_in_as_the_api_server_does)
{
    static const char schema[] =
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\",\"default\":7},"
        "\"n\":{\"type\":\"integer\",\"nullable\":true,\"default\":1},\"p\":{\"type\":\"integer\"},"
        "\"o\":{\"type\":\"object\",\"default\":{},\"properties\":{\"b\":{\"type\":\"string\",\"default\":\"x\"}}},"
        "\"q\":{\"type\":\"object\",\"properties\":{\"c\":{\"type\":\"integer\",\"default\":2}}},"
        "\"m\":{\"type\":\"object\",\"additionalProperties\":{\"type\":\"object\",\"properties\":{\"d\":{\"type\":\"integer\",\"default\":3}}}},"
        "\"l\":{\"type\":\"array\",\"items\":{\"type\":\"object\",\"properties\":{\"e\":{\"type\":\"integer\",\"default\":4}}}}}}";
    static const struct { const char *before, *after; } rows[] = {
        { "{}", "{\"a\":7,\"n\":1,\"o\":{\"b\":\"x\"}}" },
        { "{\"a\":1,\"n\":2,\"o\":{\"b\":\"y\"}}", "{\"a\":1,\"n\":2,\"o\":{\"b\":\"y\"}}" },
        { "{\"a\":null,\"n\":null,\"p\":null}", "{\"n\":null,\"a\":7,\"o\":{\"b\":\"x\"}}" }, /* null is absent unless it is allowed */
        { "{\"q\":{}}", "{\"q\":{\"c\":2},\"a\":7,\"n\":1,\"o\":{\"b\":\"x\"}}" },
        { "{\"m\":{\"x\":null,\"k\":{\"d\":1},\"y\":null}}", "{\"m\":{\"k\":{\"d\":1}},\"a\":7,\"n\":1,\"o\":{\"b\":\"x\"}}" },
        { "{\"m\":{\"k\":{}},\"l\":[{},{\"e\":9},5]}",
          "{\"m\":{\"k\":{\"d\":3}},\"l\":[{\"e\":4},{\"e\":9},5],\"a\":7,\"n\":1,\"o\":{\"b\":\"x\"}}" },
    };
    auto_json cJSON *tree = tree_of(schema);

    for (size_t i = 0; i < COUNT(rows); i++) {
        auto_json cJSON *value = tree_of(rows[i].before);
        schema_default(tree, value);
        auto_free char *text = json_print(value, false);
        cr_expect_str_eq(text, rows[i].after, "case %s: %s", rows[i].before, text);
    }
}

Test(schema, only_the_first_fifty_problems_are_listed)
{
    auto_json cJSON *schema = tree_of("{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}"), *value = json_array();
    auto_free struct problems *problems = xcalloc(1, sizeof *problems);

    for (int i = 0; i < 60; i++)
        json_append(value, cJSON_CreateString("x"));
    schema_check(schema, value, NULL, problems);
    cr_expect_eq(problems->count, SCHEMA_ERRORS_MAX);
    cr_expect(problems->more);
    auto_free char *text = problems_format(problems, "f");
    cr_expect_not_null(strstr(text, "f: and more problems; the first 50 are listed\n"));
}

Test(schema, the_embedded_crd_is_there)
{
    cr_assert_not_null(schema_of_kind("TrainingJob"));
    cr_expect_null(schema_of_kind("TFJob"));
    cr_expect_str_eq(json_text(schema_of_kind("TrainingJob"), "properties.spec.type", ""), "object");
}

/* What the CRD must be for the API server and for our own checker. */
static void walk(const cJSON *schema, const char *path, int *ret_count)
{
    static const char *const scalars[] = { "string", "integer", "number", "boolean", NULL };
    const cJSON *child, *type = cJSON_GetObjectItem(schema, "type"), *pattern = cJSON_GetObjectItem(schema, "pattern");
    bool int_or_string = cJSON_IsTrue(cJSON_GetObjectItem(schema, "x-kubernetes-int-or-string"));
    bool known = int_or_string || (type != NULL && (strcmp(type->valuestring, "object") == 0 || strcmp(type->valuestring, "array") == 0));

    (*ret_count)++;
    for (size_t i = 0; scalars[i] != NULL; i++)
        known = known || strcmp(type->valuestring, scalars[i]) == 0;
    cr_expect(known, "%s has no type", path);
    cr_expect_null(cJSON_GetObjectItem(schema, "$ref"), "%s", path);
    if (pattern != NULL) {
        regex_t regex;
        int result = regcomp(&regex, pattern->valuestring, REG_EXTENDED | REG_NOSUB);
        cr_expect_eq(result, 0, "%s: %s", path, pattern->valuestring);
        regfree(&regex);
    }
    cJSON_ArrayForEach(child, cJSON_GetObjectItem(schema, "properties")) {
        auto_free char *below = xasprintf("%s.%s", path, child->string);
        walk(child, below, ret_count);
    }
    const cJSON *others = cJSON_GetObjectItem(schema, "additionalProperties"), *items = cJSON_GetObjectItem(schema, "items");
    auto_free char *any = xasprintf("%s.*", path), *item = xasprintf("%s[]", path);
    if (others != NULL)
        walk(others, any, ret_count);
    if (items != NULL)
        walk(items, item, ret_count);
    else
        cr_expect(type == NULL || strcmp(type->valuestring, "array") != 0, "%s has no items", path);
}

Test(schema, every_type_and_pattern_of_the_crd_is_one_that_the_checker_knows)
{
    int count = 0;

    walk(schema_of_kind("TrainingJob"), "", &count);
    cr_expect_gt(count, 1500, "%d properties: the pod template is missing", count);
}

Test(schema, the_crd_can_be_applied_with_kubectl)
{
    struct error e = ERROR_INIT;
    auto_file FILE *file = fopen(TEST_DIR "/../crd/trainingjob.yaml", "r");
    auto_free char *text = xcalloc(1, 300000);
    auto_yaml struct yaml_doc *doc = NULL;

    cr_assert_not_null(file);
    size_t len = fread(text, 1, 300000, file);
    cr_expect_leq(len, 262144);
    cr_assert_eq(yaml_parse("crd", text, len, &doc, &e), 0, "%s", e.text);
    auto_free char *json = json_print(yaml_tree(doc, 0), false);
    /* kubectl apply keeps the manifest as an annotation of at most this size. */
    cr_expect_leq(strlen(json), 262144);
}

Test(schema, what_a_newer_crd_has_is_taken_away)
{
    static const struct { const char *name, *schema, *value, *left; } ROWS[] = {
        { "unknown fields, at each depth",
          "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"object\",\"properties\":{\"b\":{\"type\":\"integer\"}}}}}",
          "{\"new\":1,\"a\":{\"b\":2,\"new\":{\"c\":3}}}", "{\"a\":{\"b\":2}}" },
        { "in lists and maps",
          "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"array\",\"items\":{\"type\":\"object\",\"properties\":{\"b\":{\"type\":\"string\"}}}}}",
          "{\"x\":[{\"b\":\"1\",\"new\":2},{\"new\":3}]}", "{\"x\":[{\"b\":\"1\"},{}]}" },
        { "what may hold anything stays", "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"object\"}}}", "{\"a\":{\"x\":1}}", "{\"a\":{\"x\":1}}" },
        { "what is to be preserved stays",
          "{\"type\":\"object\",\"x-kubernetes-preserve-unknown-fields\":true,\"properties\":{\"a\":{\"type\":\"string\"}}}", "{\"x\":1}", "{\"x\":1}" },
        { "a value of the wrong type is not walked", "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"object\",\"properties\":{\"b\":{\"type\":\"string\"}}}}}",
          "{\"a\":[1]}", "{\"a\":[1]}" },
    };

    for (size_t i = 0; i < COUNT(ROWS); i++) {
        auto_json cJSON *schema = tree_of(ROWS[i].schema), *value = tree_of(ROWS[i].value);
        schema_prune(schema, value);
        auto_free char *left = json_print(value, false);
        cr_expect_str_eq(left, ROWS[i].left, "case %s: %s", ROWS[i].name, left);
    }
}
