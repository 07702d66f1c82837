#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/yaml.h"

/* Parses one document and prints it as JSON, or gives the error's text. Owned. */
static char *as_json(const char *text)
{
    struct error e = ERROR_INIT;
    auto_yaml struct yaml_doc *doc = NULL;

    if (yaml_parse("job.yaml", text, strlen(text), &doc, &e) < 0)
        return xstrdup(e.text);
    return yaml_count(doc) == 1 ? json_print(yaml_tree(doc, 0), false) : xasprintf("%zu documents", yaml_count(doc));
}

Test(yaml, values_are_typed_as_kubectl_does)
{
    static const struct { const char *yaml, *json; } rows[] = {
        { "a: 1", "{\"a\":1}" },
        { "[~, null, Null, NULL, ]", "[null,null,null,null]" },
        { "a:", "{\"a\":null}" },
        { "[true, True, TRUE, false, False, FALSE]", "[true,true,true,false,false,false]" },
        { "[yes, no, on, off, y, n]", "[\"yes\",\"no\",\"on\",\"off\",\"y\",\"n\"]" },
        { "[0, -0, 12, -7, +3, 0x1F, 0o17, 0400, 089]", "[0,0,12,-7,3,31,15,256,89]" },
        { "[1.5, .5, 1., 1e3, -2E-2]", "[1.5,0.5,1,1000,-0.02]" },
        { "[1_000, 1:30, 0x, 1e, ., -, 64Mi, 2026-02-03]", "[\"1_000\",\"1:30\",\"0x\",\"1e\",\".\",\"-\",\"64Mi\",\"2026-02-03\"]" },
        { "['1', \"true\", '', \"~\"]", "[\"1\",\"true\",\"\",\"~\"]" },
        { "[!!str 5, !!int 5, !!float 5, !!bool true, !!null ~, ! 7]", "[\"5\",5,5,true,null,\"7\"]" },
        { "a: |\n  x\n  y\nb: >-\n  x\n  y\n", "{\"a\":\"x\\ny\\n\",\"b\":\"x y\"}" },
        { "{\"a\": [1, {\"b\": null}]}", "{\"a\":[1,{\"b\":null}]}" },
        { "a: \"\\u00e4\\n\"", "{\"a\":\"\xc3\xa4\\n\"}" },
        { "[999999999999999]", "[999999999999999]" },
        { "!!map {a: !!seq [1]}", "{\"a\":[1]}" },
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        auto_free char *json = as_json(rows[i].yaml);
        cr_expect_str_eq(json, rows[i].json, "case %s: %s", rows[i].yaml, json);
    }
}

Test(yaml, anchors_and_merge_keys_are_expanded)
{
    static const struct { const char *yaml, *json; } rows[] = {
        { "a: &x {b: 1}\nc: *x", "{\"a\":{\"b\":1},\"c\":{\"b\":1}}" },
        { "a: &x 1\nb: &x 2\nc: *x", "{\"a\":1,\"b\":2,\"c\":2}" },
        { "&k a: 1\nb: *k", "{\"a\":1,\"b\":\"a\"}" },
        { "a: &x {b: 1, c: 2}\nd: {<<: *x, c: 3}", "{\"a\":{\"b\":1,\"c\":2},\"d\":{\"c\":3,\"b\":1}}" },
        { "a: &x {b: 1}\nc: &y {b: 2, d: 3}\ne: {<<: [*x, *y]}", "{\"a\":{\"b\":1},\"c\":{\"b\":2,\"d\":3},\"e\":{\"b\":1,\"d\":3}}" },
        { "a: {<<: &x {b: 1}}\nc: *x", "{\"a\":{\"b\":1},\"c\":{\"b\":1}}" },
        { "\"<<\": 1", "{\"<<\":1}" },
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        auto_free char *json = as_json(rows[i].yaml);
        cr_expect_str_eq(json, rows[i].json, "case %s: %s", rows[i].yaml, json);
    }
}

Test(yaml, errors_say_where_and_what_to_do)
{
    static const struct { const char *yaml, *error; } rows[] = {
        { "a:\n\tb: 1", "job.yaml:2:1: found a tab where indentation was expected; indent with spaces" },
        { "a: 1\nb: 2\na: 3", "job.yaml:3:1: key \"a\" stands here a second time; the first is at line 1" },
        { "a: b: c", "job.yaml:1:5: mapping values are not allowed in this context; check the indentation, or put a text that holds "
                     "\": \" in quotes" },
        { "a: @x", "job.yaml:1:4: found character that cannot start any token; put the text in quotes" },
        { "1: a", "job.yaml:1:1: a key must be text; put it in quotes" },
        { "? [a]\n: b", "job.yaml:1:3: a key must be text, not a list or a mapping" },
        { "a: !!binary aGk=", "job.yaml:1:4: the tag tag:yaml.org,2002:binary is not known here; remove it" },
        { "a: !thing {}", "job.yaml:1:4: the tag !thing is not known here; remove it" },
        { "a: !!int x", "job.yaml:1:4: \"x\" is no int, which its tag says" },
        { "a: .inf", "job.yaml:1:4: .inf is no number that JSON has; put it in quotes when it is text" },
        { "a: 1e999", "job.yaml:1:4: 1e999 is a number too large to be kept; put it in quotes when it is text" },
        { "a: 9007199254740993000", "job.yaml:1:4: 9007199254740993000 is an integer too large to be kept exactly; put it in quotes when it is text" },
        { "a: *x", "job.yaml:1:4: alias *x has no anchor &x before it" },
        { "a: &x [*x]", "job.yaml:1:8: alias *x stands inside its own anchor" },
        { "<<: 1", "job.yaml:1:1: << takes a mapping or a list of mappings" },
        { "a: \"\\0\"", "job.yaml:1:4: the text holds a NUL character" },
        { "a: [1", "job.yaml:2:1: did not find expected ',' or ']' while parsing a flow sequence that begins at line 1; check the indentation" },
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        auto_free char *text = as_json(rows[i].yaml);
        cr_expect_str_eq(text, rows[i].error, "case %s: %s", rows[i].yaml, text);
    }
}

Test(yaml, documents_without_content_are_passed_over)
{
    static const struct { const char *yaml; size_t count; } rows[] = {
        { "", 0 }, { "# nothing\n", 0 }, { "---\n---\n", 0 }, { "a: 1\n---\n# x\n---\nb: 2\n", 2 }, { "null", 1 }, { "''", 1 },
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct error e = ERROR_INIT;
        auto_yaml struct yaml_doc *doc = NULL;
        cr_assert_eq(yaml_parse("x", rows[i].yaml, strlen(rows[i].yaml), &doc, &e), 0, "case %zu: %s", i, e.text);
        cr_expect_eq(yaml_count(doc), rows[i].count, "case %zu", i);
        cr_expect_null(yaml_tree(doc, rows[i].count), "case %zu", i);
    }
}

Test(yaml, every_value_remembers_its_place)
{
    static const char text[] = "a: 1\nb:\n  - x\n  - c: 2\n    d: 3\n---\ne: &k {f: 1}\ng: *k\n";
    struct error e = ERROR_INIT;
    auto_yaml struct yaml_doc *doc = NULL;

    cr_assert_eq(yaml_parse("x.yaml", text, strlen(text), &doc, &e), 0, "%s", e.text);
    cr_expect_str_eq(yaml_name(doc), "x.yaml");
    const cJSON *first = yaml_tree(doc, 0), *second = yaml_tree(doc, 1), *list = json_at(first, "b");
    const struct { const cJSON *value; int line, column; } rows[] = {
        { first, 1, 1 },
        { json_at(first, "a"), 1, 1 }, /* of its key */
        { list, 2, 1 },
        { cJSON_GetArrayItem(list, 0), 3, 5 },
        { json_at(cJSON_GetArrayItem(list, 1), "d"), 5, 5 },
        { json_at(second, "e.f"), 7, 8 },
        { json_at(second, "g"), 8, 1 },
        { json_at(second, "g.f"), 8, 4 }, /* where the alias stands */
        { NULL, 0, 0 },
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct yaml_place place = yaml_place_of(doc, rows[i].value);
        cr_expect(place.line == rows[i].line && place.column == rows[i].column, "case %zu: %d:%d", i, place.line, place.column);
    }
}

/* Ten levels of ten aliases each would be ten thousand million values. */
Test(yaml, aliases_cannot_blow_up)
{
    auto_buf struct buf text = BUF_INIT(4096);
    struct error e = ERROR_INIT;
    struct yaml_doc *doc = NULL;

    buf_add(&text, "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
    for (int i = 1; i < 10; i++) {
        buf_addf(&text, "a%d: &a%d [", i, i);
        for (int j = 0; j < 10; j++)
            buf_addf(&text, "%s*a%d", j > 0 ? "," : "", i - 1);
        buf_add(&text, "]\n");
    }
    cr_expect_eq(yaml_parse("bomb", buf_text(&text), text.len, &doc, &e), -1);
    cr_expect_eq(e.kind, ERROR_LIMIT);
    cr_expect_null(doc);
}

Test(yaml, long_text_cannot_be_multiplied_by_aliases)
{
    auto_buf struct buf text = BUF_INIT(YAML_MAX_BYTES);
    struct error e = ERROR_INIT;
    struct yaml_doc *doc = NULL;

    buf_add(&text, "a: &a ");
    for (int i = 0; i < 100000; i++)
        buf_add(&text, "abcdefghij");
    buf_add(&text, "\nb: [");
    for (int i = 0; i < 20; i++)
        buf_add(&text, "*a, ");
    buf_add(&text, "]\n");
    cr_expect_eq(yaml_parse("bomb", buf_text(&text), text.len, &doc, &e), -1);
    cr_expect_eq(e.kind, ERROR_LIMIT);
}

Test(yaml, nesting_and_size_are_bounded)
{
    size_t size = YAML_MAX_BYTES + 1;
    auto_free char *text = xcalloc(1, size);
    struct error e = ERROR_INIT;
    struct yaml_doc *doc = NULL;

    memset(text, '[', 100000);
    cr_expect_eq(yaml_parse("deep", text, 100000, &doc, &e), -1);
    cr_expect_str_eq(e.text, "deep:1:101: nested deeper than 100 levels");
    memset(text, ' ', size);
    cr_expect_eq(yaml_parse("long", text, size, &doc, &e), -1);
    cr_expect_eq(e.kind, ERROR_LIMIT);
}

Test(yaml, printing_is_block_style_in_the_trees_order)
{
    static const char json[] = "{\"b\":{\"list\":[{\"name\":\"x\",\"env\":[]},[1,[2]],\"s\"],\"none\":null},\"a\":\"two\\nlines\\n\","
                               "\"n\":1.5,\"t\":true,\"e\":{},\"q\":\"yes\",\"r\":\"8080\",\"i\":\"reg.io/a/b:1\",\"c\":\"a: b\",\"arg\":\"--epochs=3\"}";
    static const char yaml[] = "b:\n"
                               "  list:\n"
                               "  - name: x\n"
                               "    env: []\n"
                               "  - - 1\n"
                               "    - - 2\n"
                               "  - s\n"
                               "  none: null\n"
                               "a: |\n"
                               "  two\n"
                               "  lines\n"
                               "\"n\": 1.5\n"
                               "t: true\n"
                               "e: {}\n"
                               "q: \"yes\"\n"
                               "r: \"8080\"\n"
                               "i: reg.io/a/b:1\n"
                               "c: \"a: b\"\n"
                               "arg: --epochs=3\n";
    struct error e = ERROR_INIT;
    auto_json cJSON *tree = NULL;

    cr_assert_eq(json_parse(json, strlen(json), &tree, &e), 0);
    auto_free char *text = yaml_print(tree);
    cr_expect_str_eq(text, yaml, "%s", text);
}

Test(yaml, what_is_printed_reads_back_as_the_same_tree)
{
    static const char *const texts[] = {
        "", " ", "a", " a", "a ", "a\n", "\n", "\n\n", "a\n\n", "a\n\nb", "\na", " a\nb", "a\n b", "a\tb", "a\n\tb", "- a", "-", "--", "---", "...",
        "# a", "a # b", "a#b", "a: b", "a:", ":a", "?", "? a", "!a", "&a", "*a", "|", ">", "%a", "@a", "`a`", "{a}", "[a]", "a,b", "'a'", "\"a\"",
        "null", "~", "true", "NO", "On", "y", "1", "-1", "1.5", "1e3", "0x1F", "0o7", "0400", ".inf", ".nan", "1_000", "12:30:45", "2026-02-03",
        "<<", "=", "\\", "\x01", "\x7f", "\xc3\xa4", "\xe2\x80\xa8", "\xef\xbb\xbf" "a", "a\r\nb", "a\rb", "$(PS_HOSTS)", "/x", "a: |\n  b", "\xf0\x9f\x98\x80",
    };
    auto_json cJSON *tree = json_object();
    cJSON *list = json_array();
    struct error e = ERROR_INIT;
    auto_yaml struct yaml_doc *doc = NULL;

    for (size_t i = 0; i < COUNT(texts); i++) {
        json_append(list, cJSON_CreateString(texts[i]));
        if (strcmp(texts[i], "<<") != 0)
            json_put(tree, texts[i], cJSON_CreateString(texts[i]));
    }
    json_put(tree, "all of them", list);
    auto_free char *long_key = xcalloc(1, 3000);
    memset(long_key, 'k', 2999);
    json_put(tree, long_key, cJSON_CreateIntArray((const int[]){ 1, 2 }, 2));
    json_put_double(tree, "pi", 3.141592653589793);
    json_put_double(tree, "large", 1e300);
    json_put_double(tree, "small", -1.5e-300);
    json_put_int(tree, "exact", 9007199254740992);

    auto_free char *text = yaml_print(tree);
    cr_assert_eq(yaml_parse("printed", text, strlen(text), &doc, &e), 0, "%s\n%s", e.text, text);
    cr_assert_eq(yaml_count(doc), 1);
    auto_free char *before = json_print(tree, false), *after = json_print(yaml_tree(doc, 0), false);
    cr_expect_str_eq(after, before);
}

Test(yaml, broken_utf8_is_printed_as_replacement_characters)
{
    auto_json cJSON *tree = cJSON_CreateString("a\xff\xc3(\xed\xa0\x80");
    auto_free char *text = yaml_print(tree);

    cr_expect_str_eq(text, "\"a\\ufffd\\ufffd(\\ufffd\\ufffd\\ufffd\"\n", "%s", text);
}
