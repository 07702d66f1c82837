/*
 * fuzz_yaml.c — any bytes as YAML. What is read must print as YAML that reads back as the same tree, and every value must
 * have a place inside the text.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/yaml.h"

static void check_places(const struct yaml_doc *doc, const cJSON *value)
{
    struct yaml_place place = yaml_place_of(doc, value);
    const cJSON *child;

    if (place.line < 1 || place.column < 1)
        abort();
    cJSON_ArrayForEach(child, value)
        check_places(doc, child);
}

static void check_round_trip(const cJSON *tree)
{
    auto_free char *text = yaml_print(tree), *before = json_print(tree, false);
    auto_yaml struct yaml_doc *again = NULL;
    struct error e = ERROR_INIT;

    if (strlen(text) > YAML_MAX_BYTES) /* escapes can make a large text larger than we read */
        return;
    if (yaml_parse("printed", text, strlen(text), &again, &e) < 0) {
        if (e.kind == ERROR_LIMIT)
            return;
        abort();
    }
    if (yaml_count(again) != 1)
        abort();
    auto_free char *after = json_print(yaml_tree(again, 0), false);
    if (strcmp(before, after) != 0)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    auto_yaml struct yaml_doc *doc = NULL;
    struct error e = ERROR_INIT;

    if (yaml_parse("input", (const char *)data, size, &doc, &e) < 0) {
        if (e.kind == ERROR_NONE || e.kind == ERROR_BUG || e.text[0] == '\0')
            abort();
        return 0;
    }
    for (size_t i = 0; i < yaml_count(doc); i++) {
        check_places(doc, yaml_tree(doc, i));
        check_round_trip(yaml_tree(doc, i));
    }
    return 0;
}
