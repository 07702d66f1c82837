#include "base/yaml.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "base/mem.h"
#include "base/yaml_scalar.h"

enum {
    MAX_DEPTH = 100,
    MAX_NODES = 400000,              /* with aliases expanded */
    MAX_TEXT = 4 * YAML_MAX_BYTES,   /* bytes of scalars and keys, with aliases expanded */
    MAX_ANCHORS = 1000,
    MAX_DOCUMENTS = 1000,
    MAX_MERGE = 1000,                /* keys of a mapping that << touches: looked up one by one */
};

struct placed { const cJSON *value; struct yaml_place place; };

struct yaml_doc {
    char *name;
    cJSON **trees;
    size_t count;
    struct placed *places; /* sorted by value once parsed */
    size_t place_count, place_cap;
    cJSON **aside;         /* values of merge keys: no part of a tree, but anchors may point into them */
    size_t aside_count;
};

struct anchor { char *name; const cJSON *value; /* NULL while it is still being read */ };

struct reader {
    yaml_parser_t parser;
    struct yaml_doc *doc;
    const char *text;
    size_t len;
    struct anchor *anchors;
    size_t anchor_count, nodes, text_bytes;
    int depth;
    struct error *e;
};

static struct yaml_place place_of_mark(yaml_mark_t mark)
{
    return (struct yaml_place){ .line = (int)mark.line + 1, .column = (int)mark.column + 1 };
}

static int fail_at(struct reader *r, struct yaml_place at, const char *fmt, ...) FORMAT(3, 4);
static int fail_at(struct reader *r, struct yaml_place at, const char *fmt, ...)
{
    char text[256];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return error_set(r->e, ERROR_INVALID, "%.100s:%d:%d: %s", r->doc->name, at.line, at.column, text);
}

/* True when the line that holds `at` has a tab in its indentation. */
static bool indented_by_tab(const struct reader *r, struct yaml_place at)
{
    const char *p = r->text, *end = r->text + r->len;

    for (int line = 1; line < at.line && p != NULL && p < end; line++) {
        p = memchr(p, '\n', (size_t)(end - p));
        p = p != NULL ? p + 1 : NULL;
    }
    for (; p != NULL && p < end && (*p == ' ' || *p == '\t'); p++)
        if (*p == '\t')
            return true;
    return false;
}

/* libyaml's words, with what to do where its words leave a person guessing. */
static int fail_parser(struct reader *r)
{
    const yaml_parser_t *p = &r->parser;
    struct yaml_place at = place_of_mark(p->problem_mark);
    const char *problem = p->problem != NULL ? p->problem : "not readable as YAML";

    if (p->error == YAML_READER_ERROR)
        return error_set(r->e, ERROR_INVALID, "%.100s: byte %zu: %s", r->doc->name, p->problem_offset, problem);
    if (p->error == YAML_MEMORY_ERROR)
        return error_set(r->e, ERROR_LIMIT, "%.100s: out of memory", r->doc->name);
    if (indented_by_tab(r, at))
        return fail_at(r, at, "found a tab where indentation was expected; indent with spaces");
    if (strstr(problem, "cannot start any token") != NULL)
        return fail_at(r, at, "%s; put the text in quotes", problem);
    if (strstr(problem, "mapping values are not allowed") != NULL)
        return fail_at(r, at, "%s; check the indentation, or put a text that holds \": \" in quotes", problem);
    if (p->context != NULL && p->context_mark.line != p->problem_mark.line)
        return fail_at(r, at, "%s %s that begins at line %zu; check the indentation", problem, p->context,
                       p->context_mark.line + 1);
    if (p->context != NULL)
        return fail_at(r, at, "%s %s", problem, p->context);
    return fail_at(r, at, "%s", problem);
}

static int next_event(struct reader *r, yaml_event_t *ret)
{
    return yaml_parser_parse(&r->parser, ret) ? 0 : fail_parser(r);
}

static void cleanup_event(yaml_event_t *event)
{
    yaml_event_delete(event);
}
#define auto_event __attribute__((cleanup(cleanup_event)))

/* ---- values and their places ---------------------------------------------------------------------------------------- */

static void remember_place(struct yaml_doc *d, const cJSON *value, struct yaml_place at)
{
    if (d->place_count == d->place_cap) {
        d->place_cap = d->place_cap > 0 ? d->place_cap * 2 : 256;
        d->places = xrealloc(d->places, d->place_cap, sizeof d->places[0]);
    }
    d->places[d->place_count++] = (struct placed){ .value = value, .place = at };
}

static int count_node(struct reader *r, struct yaml_place at, size_t text_len)
{
    if (++r->nodes > MAX_NODES || (r->text_bytes += text_len) > MAX_TEXT)
        return error_set(r->e, ERROR_LIMIT, "%.100s:%d:%d: more than %d values or %d bytes of text, aliases expanded",
                         r->doc->name, at.line, at.column, MAX_NODES, MAX_TEXT);
    return 0;
}

static cJSON *have(cJSON *value)
{
    if (value == NULL)
        abort();
    return value;
}

/* Copies a value that an alias or a merge key names. All of it gets the place where it is used. */
static int copy_value(struct reader *r, const cJSON *from, struct yaml_place at, cJSON **ret)
{
    size_t text_len = (from->valuestring != NULL ? strlen(from->valuestring) : 0) +
                      (from->string != NULL ? strlen(from->string) : 0);
    if (count_node(r, at, text_len) < 0)
        return -1;
    if (++r->depth > MAX_DEPTH)
        return fail_at(r, at, "nested deeper than %d levels", MAX_DEPTH);

    auto_json cJSON *copy = have(cJSON_Duplicate(from, false));
    const cJSON *child;
    cJSON_ArrayForEach(child, from) {
        cJSON *child_copy;
        if (copy_value(r, child, at, &child_copy) < 0)
            return -1;
        if (cJSON_IsObject(from))
            json_put(copy, child->string, child_copy);
        else
            json_append(copy, child_copy);
    }
    remember_place(r->doc, copy, at);
    r->depth--;
    *ret = TAKE(copy);
    return 0;
}

/* ---- scalars -------------------------------------------------------------------------------------------------------- */

#define CORE_TAG "tag:yaml.org,2002:"

static bool is_scalar_type(const char *type)
{
    return strcmp(type, "null") == 0 || strcmp(type, "bool") == 0 || strcmp(type, "int") == 0 || strcmp(type, "float") == 0;
}

static bool has_type(const cJSON *value, const char *type)
{
    if (strcmp(type, "null") == 0)
        return cJSON_IsNull(value);
    if (strcmp(type, "bool") == 0)
        return cJSON_IsBool(value);
    if (strcmp(type, "int") == 0)
        return cJSON_IsNumber(value) && value->valuedouble == floor(value->valuedouble);
    return strcmp(type, "float") == 0 && cJSON_IsNumber(value);
}

static int read_scalar(struct reader *r, const yaml_event_t *event, cJSON **ret)
{
    const char *text = (const char *)event->data.scalar.value, *tag = (const char *)event->data.scalar.tag;
    size_t len = event->data.scalar.length;
    struct yaml_place at = place_of_mark(event->start_mark);
    bool plain = event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;

    if (strlen(text) != len)
        return fail_at(r, at, "the text holds a NUL character");
    if (count_node(r, at, len) < 0)
        return -1;
    auto_json cJSON *value = NULL;
    const char *type = tag != NULL && strncmp(tag, CORE_TAG, strlen(CORE_TAG)) == 0 ? tag + strlen(CORE_TAG) : NULL;
    bool is_text = (tag == NULL && !plain) || (tag != NULL && strcmp(tag, "!") == 0) || (type != NULL && strcmp(type, "str") == 0);
    if (!is_text && tag != NULL && (type == NULL || !is_scalar_type(type)))
        return fail_at(r, at, "the tag %.60s is not known here; remove it", tag);
    const char *problem = is_text ? NULL : yaml_resolve(text, &value);
    if (problem != NULL)
        return fail_at(r, at, "%.40s %s; put it in quotes when it is text", text, problem);
    if (!is_text && type != NULL && (value == NULL || !has_type(value, type)))
        return fail_at(r, at, "\"%.60s\" is no %s, which its tag says", text, type);
    if (value == NULL)
        value = have(cJSON_CreateString(text));
    *ret = TAKE(value);
    return 0;
}

/* ---- anchors --------------------------------------------------------------------------------------------------------- */

/* Anchors may be set again; the last one counts. */
static struct anchor *find_anchor(struct reader *r, const char *name)
{
    for (size_t i = r->anchor_count; i > 0; i--)
        if (strcmp(r->anchors[i - 1].name, name) == 0)
            return &r->anchors[i - 1];
    return NULL;
}

static int open_anchor(struct reader *r, const yaml_char_t *name, struct yaml_place at, size_t *ret_index)
{
    *ret_index = SIZE_MAX;
    if (name == NULL)
        return 0;
    if (r->anchor_count == MAX_ANCHORS)
        return fail_at(r, at, "more than %d anchors", MAX_ANCHORS);
    r->anchors = xrealloc(r->anchors, r->anchor_count + 1, sizeof r->anchors[0]);
    r->anchors[r->anchor_count] = (struct anchor){ .name = xstrdup((const char *)name), .value = NULL };
    *ret_index = r->anchor_count++;
    return 0;
}

static void forget_anchors(struct reader *r)
{
    for (size_t i = 0; i < r->anchor_count; i++)
        free(r->anchors[i].name);
    free(r->anchors);
    r->anchors = NULL;
    r->anchor_count = 0;
}

static int read_alias(struct reader *r, const yaml_event_t *event, cJSON **ret)
{
    const char *name = (const char *)event->data.alias.anchor;
    struct yaml_place at = place_of_mark(event->start_mark);
    const struct anchor *anchor = find_anchor(r, name);

    if (anchor == NULL)
        return fail_at(r, at, "alias *%.60s has no anchor &%.60s before it", name, name);
    if (anchor->value == NULL)
        return fail_at(r, at, "alias *%.60s stands inside its own anchor", name);
    return copy_value(r, anchor->value, at, ret);
}

/* ---- collections ----------------------------------------------------------------------------------------------------- */

static int read_value(struct reader *r, const yaml_event_t *event, cJSON **ret);

static int check_collection(struct reader *r, const yaml_char_t *tag, const char *type, struct yaml_place at)
{
    const char *name = (const char *)tag;

    if (name != NULL && (strncmp(name, CORE_TAG, strlen(CORE_TAG)) != 0 || strcmp(name + strlen(CORE_TAG), type) != 0))
        return fail_at(r, at, "the tag %.60s is not known here; remove it", name);
    if (r->depth >= MAX_DEPTH)
        return fail_at(r, at, "nested deeper than %d levels", MAX_DEPTH);
    return count_node(r, at, 0);
}

static int read_sequence(struct reader *r, const yaml_event_t *start, cJSON **ret)
{
    if (check_collection(r, start->data.sequence_start.tag, "seq", place_of_mark(start->start_mark)) < 0)
        return -1;
    auto_json cJSON *array = json_array();
    r->depth++;
    for (;;) {
        auto_event yaml_event_t event = { 0 };
        cJSON *item;
        if (next_event(r, &event) < 0)
            return -1;
        if (event.type == YAML_SEQUENCE_END_EVENT)
            break;
        if (read_value(r, &event, &item) < 0)
            return -1;
        json_append(array, item);
    }
    r->depth--;
    *ret = TAKE(array);
    return 0;
}

static int compare_keys(const void *a, const void *b)
{
    return strcmp((*(const cJSON *const *)a)->string, (*(const cJSON *const *)b)->string);
}

static struct yaml_place find_place(const struct yaml_doc *d, const cJSON *value)
{
    for (size_t i = d->place_count; i > 0; i--)
        if (d->places[i - 1].value == value)
            return d->places[i - 1].place;
    return (struct yaml_place){ 0, 0 };
}

static int check_duplicates(struct reader *r, const cJSON *object)
{
    size_t count = (size_t)cJSON_GetArraySize(object), n = 0;
    if (count < 2)
        return 0;
    auto_free const cJSON **sorted = xcalloc(count, sizeof sorted[0]);
    const cJSON *child;

    cJSON_ArrayForEach(child, object)
        sorted[n++] = child;
    qsort(sorted, n, sizeof sorted[0], compare_keys);
    for (size_t i = 1; i < n; i++) {
        if (strcmp(sorted[i - 1]->string, sorted[i]->string) != 0)
            continue;
        struct yaml_place a = find_place(r->doc, sorted[i - 1]), b = find_place(r->doc, sorted[i]);
        bool a_first = a.line < b.line || (a.line == b.line && a.column < b.column);
        return fail_at(r, a_first ? b : a, "key \"%.60s\" stands here a second time; the first is at line %d", sorted[i]->string,
                       a_first ? a.line : b.line);
    }
    return 0;
}

/* "<<: *defaults": adds what the mapping does not have itself. */
static int merge_mapping(struct reader *r, cJSON *object, const cJSON *from, struct yaml_place at)
{
    const cJSON *child;

    if (!cJSON_IsObject(from))
        return fail_at(r, at, "<< takes a mapping or a list of mappings");
    if (cJSON_GetArraySize(from) > MAX_MERGE || cJSON_GetArraySize(object) > MAX_MERGE)
        return fail_at(r, at, "<< merges at most %d keys", MAX_MERGE);
    cJSON_ArrayForEach(child, from) {
        cJSON *copy;
        if (cJSON_GetObjectItemCaseSensitive(object, child->string) != NULL)
            continue;
        if (copy_value(r, child, at, &copy) < 0)
            return -1;
        json_put(object, child->string, copy);
    }
    return 0;
}

static int merge(struct reader *r, cJSON *object, const cJSON *from, struct yaml_place at)
{
    const cJSON *item;

    if (!cJSON_IsArray(from))
        return merge_mapping(r, object, from, at);
    cJSON_ArrayForEach(item, from) {
        if (merge_mapping(r, object, item, at) < 0)
            return -1;
    }
    return 0;
}

static void put_aside(struct yaml_doc *d, cJSON *value)
{
    d->aside = xrealloc(d->aside, d->aside_count + 1, sizeof d->aside[0]);
    d->aside[d->aside_count++] = value;
}

/* A key is text; a plain scalar that is no text would mean something else to kubectl than it looks like. */
static int read_key(struct reader *r, const yaml_event_t *event, char **ret_key, bool *ret_merge)
{
    struct yaml_place at = place_of_mark(event->start_mark);
    size_t place_count = r->doc->place_count;
    auto_json cJSON *key = NULL;

    if (event->type == YAML_ALIAS_EVENT) {
        if (read_alias(r, event, &key) < 0)
            return -1;
    } else if (event->type != YAML_SCALAR_EVENT) {
        return fail_at(r, at, "a key must be text, not a list or a mapping");
    } else if (read_value(r, event, &key) < 0) {
        return -1;
    }
    r->doc->place_count = place_count; /* keys have no place of their own: their nodes go away */
    if (!cJSON_IsString(key))
        return fail_at(r, at, "a key must be text; put it in quotes");
    *ret_merge = event->type == YAML_SCALAR_EVENT && event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
                 strcmp(key->valuestring, "<<") == 0;
    *ret_key = xstrdup(key->valuestring);
    if (event->type == YAML_SCALAR_EVENT && event->data.scalar.anchor != NULL)
        put_aside(r->doc, TAKE(key)); /* the anchor points to it */
    return 0;
}

static int read_mapping(struct reader *r, const yaml_event_t *start, cJSON **ret)
{
    if (check_collection(r, start->data.mapping_start.tag, "map", place_of_mark(start->start_mark)) < 0)
        return -1;
    auto_json cJSON *object = json_object();
    cJSON *merged = NULL; /* lives in doc->aside */
    struct yaml_place merge_place = { 0, 0 };
    r->depth++;
    for (;;) {
        auto_event yaml_event_t key_event = { 0 }, event = { 0 };
        auto_free char *key = NULL;
        bool is_merge = false;
        cJSON *value;
        if (next_event(r, &key_event) < 0)
            return -1;
        if (key_event.type == YAML_MAPPING_END_EVENT)
            break;
        if (read_key(r, &key_event, &key, &is_merge) < 0 || next_event(r, &event) < 0 || read_value(r, &event, &value) < 0)
            return -1;
        if (is_merge) {
            put_aside(r->doc, value);
            if (merged != NULL)
                return fail_at(r, place_of_mark(key_event.start_mark), "key \"<<\" stands here a second time; give it a list");
            merged = value;
            merge_place = place_of_mark(key_event.start_mark);
            continue;
        }
        json_put(object, key, value);
        remember_place(r->doc, value, place_of_mark(key_event.start_mark));
    }
    r->depth--;
    if (check_duplicates(r, object) < 0 || (merged != NULL && merge(r, object, merged, merge_place) < 0))
        return -1;
    *ret = TAKE(object);
    return 0;
}

static int read_value(struct reader *r, const yaml_event_t *event, cJSON **ret)
{
    struct yaml_place at = place_of_mark(event->start_mark);
    size_t anchor = SIZE_MAX;
    cJSON *value = NULL;
    int result;

    switch (event->type) {
    case YAML_ALIAS_EVENT:
        return read_alias(r, event, ret);
    case YAML_SCALAR_EVENT:
        result = open_anchor(r, event->data.scalar.anchor, at, &anchor);
        result = result < 0 ? result : read_scalar(r, event, &value);
        break;
    case YAML_SEQUENCE_START_EVENT:
        result = open_anchor(r, event->data.sequence_start.anchor, at, &anchor);
        result = result < 0 ? result : read_sequence(r, event, &value);
        break;
    case YAML_MAPPING_START_EVENT:
        result = open_anchor(r, event->data.mapping_start.anchor, at, &anchor);
        result = result < 0 ? result : read_mapping(r, event, &value);
        break;
    default:
        return error_set(r->e, ERROR_BUG, "%.100s: unexpected event %d of libyaml", r->doc->name, (int)event->type);
    }
    if (result < 0)
        return -1;
    if (anchor != SIZE_MAX)
        r->anchors[anchor].value = value;
    remember_place(r->doc, value, at);
    *ret = value;
    return 0;
}

/* ---- documents ------------------------------------------------------------------------------------------------------- */

static int compare_placed(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t)((const struct placed *)a)->value, y = (uintptr_t)((const struct placed *)b)->value;

    return x < y ? -1 : x > y;
}

/* A mapping's value was remembered twice, at itself and then at its key; the later one counts. */
static void sort_places(struct yaml_doc *d)
{
    for (size_t i = 1; i < d->place_count; i++)
        if (d->places[i - 1].value == d->places[i].value)
            d->places[i - 1].place = d->places[i].place;
    if (d->place_count > 0)
        qsort(d->places, d->place_count, sizeof d->places[0], compare_placed);
}

static int read_document(struct reader *r)
{
    struct yaml_doc *d = r->doc;
    auto_event yaml_event_t event = { 0 }, end = { 0 };
    cJSON *tree;

    if (next_event(r, &event) < 0)
        return -1;
    bool empty = event.type == YAML_SCALAR_EVENT && event.data.scalar.length == 0 && event.data.scalar.plain_implicit &&
                 event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    if (read_value(r, &event, &tree) < 0)
        return -1;
    if (empty) {
        put_aside(d, tree); /* nothing but comments between two "---" */
    } else {
        if (d->count == MAX_DOCUMENTS) {
            put_aside(d, tree);
            return fail_at(r, place_of_mark(event.start_mark), "more than %d documents", MAX_DOCUMENTS);
        }
        d->trees = xrealloc(d->trees, d->count + 1, sizeof d->trees[0]);
        d->trees[d->count++] = tree;
    }
    forget_anchors(r);
    return next_event(r, &end);
}

static int read_stream(struct reader *r)
{
    for (;;) {
        auto_event yaml_event_t event = { 0 };
        if (next_event(r, &event) < 0)
            return -1;
        if (event.type == YAML_STREAM_END_EVENT)
            return 0;
        if (event.type == YAML_DOCUMENT_START_EVENT && read_document(r) < 0)
            return -1;
    }
}

int yaml_parse(const char *name, const char *text, size_t len, struct yaml_doc **ret_doc, struct error *e)
{
    if (len > YAML_MAX_BYTES)
        return error_set(e, ERROR_LIMIT, "%.100s: %zu bytes are over the limit of %u", name, len, YAML_MAX_BYTES);

    auto_yaml struct yaml_doc *doc = xcalloc(1, sizeof *doc);
    struct reader r = { .doc = doc, .text = text, .len = len, .e = e };
    doc->name = xstrdup(name);
    if (!yaml_parser_initialize(&r.parser))
        return error_set(e, ERROR_LIMIT, "%.100s: out of memory", name);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, len);
    int result = read_stream(&r);
    forget_anchors(&r);
    yaml_parser_delete(&r.parser);
    if (result < 0)
        return -1;
    sort_places(doc);
    *ret_doc = TAKE(doc);
    return 0;
}

size_t yaml_count(const struct yaml_doc *d)
{
    return d->count;
}

const cJSON *yaml_tree(const struct yaml_doc *d, size_t index)
{
    return index < d->count ? d->trees[index] : NULL;
}

const char *yaml_name(const struct yaml_doc *d)
{
    return d->name;
}

struct yaml_place yaml_place_of(const struct yaml_doc *d, const cJSON *value)
{
    struct placed wanted = { .value = value, .place = { 0, 0 } };
    const struct placed *found = d->place_count == 0 ? NULL
                               : bsearch(&wanted, d->places, d->place_count, sizeof d->places[0], compare_placed);

    return found != NULL ? found->place : wanted.place;
}

void yaml_doc_free(struct yaml_doc *d)
{
    if (d == NULL)
        return;
    for (size_t i = 0; i < d->count; i++)
        cJSON_Delete(d->trees[i]);
    for (size_t i = 0; i < d->aside_count; i++)
        cJSON_Delete(d->aside[i]);
    free(d->trees);
    free(d->aside);
    free(d->places);
    free(d->name);
    free(d);
}

void cleanup_yaml(struct yaml_doc **d)
{
    yaml_doc_free(*d);
}
