#include "base/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static void line_and_column(const char *text, const char *at, int *ret_line, int *ret_column)
{
    *ret_line = 1;
    *ret_column = 1;
    for (const char *p = text; p < at; p++) {
        if (*p == '\n') {
            (*ret_line)++;
            *ret_column = 1;
        } else {
            (*ret_column)++;
        }
    }
}

int json_parse(const char *text, size_t len, cJSON **ret_tree, struct error *e)
{
    if (len > JSON_MAX_BYTES)
        return error_set(e, ERROR_LIMIT, "JSON of %zu bytes is over the limit of %u", len, JSON_MAX_BYTES);

    const char *end = NULL;
    cJSON *tree = cJSON_ParseWithLengthOpts(text, len, &end, 0);
    if (tree == NULL) {
        int line, column;
        if (end == NULL || end < text || end > text + len)
            end = text;
        line_and_column(text, end, &line, &column);
        return error_set(e, ERROR_INVALID, "line %d, column %d: not valid JSON", line, column);
    }
    for (; end < text + len; end++) {
        if (strchr(" \t\r\n", *end) == NULL || *end == '\0') {
            int line, column;
            line_and_column(text, end, &line, &column);
            cJSON_Delete(tree);
            return error_set(e, ERROR_INVALID, "line %d, column %d: text after the end of the JSON document", line, column);
        }
    }
    *ret_tree = tree;
    return 0;
}

const cJSON *json_at(const cJSON *tree, const char *path)
{
    char key[128];

    for (const char *p = path; tree != NULL;) {
        size_t n = strcspn(p, ".");
        if (n >= sizeof key || !cJSON_IsObject(tree))
            return NULL;
        memcpy(key, p, n);
        key[n] = '\0';
        tree = cJSON_GetObjectItemCaseSensitive(tree, key);
        if (p[n] == '\0')
            break;
        p += n + 1;
    }
    return cJSON_IsNull(tree) ? NULL : tree;
}

const char *json_text(const cJSON *tree, const char *path, const char *absent)
{
    const cJSON *value = json_at(tree, path);

    return cJSON_IsString(value) ? value->valuestring : absent;
}

int64_t json_int(const cJSON *tree, const char *path, int64_t absent)
{
    const cJSON *value = json_at(tree, path);

    if (!cJSON_IsNumber(value) || isnan(value->valuedouble))
        return absent;
    if (value->valuedouble >= 9223372036854775807.0)
        return INT64_MAX;
    if (value->valuedouble <= -9223372036854775808.0)
        return INT64_MIN;
    return (int64_t)value->valuedouble;
}

double json_double(const cJSON *tree, const char *path, double absent)
{
    const cJSON *value = json_at(tree, path);

    return cJSON_IsNumber(value) ? value->valuedouble : absent;
}

bool json_bool(const cJSON *tree, const char *path, bool absent)
{
    const cJSON *value = json_at(tree, path);

    return cJSON_IsBool(value) ? cJSON_IsTrue(value) : absent;
}

static void *have(void *p)
{
    if (p == NULL)
        abort();
    return p;
}

cJSON *json_object(void)
{
    return have(cJSON_CreateObject());
}

cJSON *json_array(void)
{
    return have(cJSON_CreateArray());
}

void json_put(cJSON *object, const char *key, cJSON *value)
{
    if (!cJSON_AddItemToObject(object, key, have(value)))
        abort();
}

void json_put_text(cJSON *object, const char *key, const char *text)
{
    if (text != NULL)
        json_put(object, key, cJSON_CreateString(text));
}

void json_put_int(cJSON *object, const char *key, int64_t number)
{
    json_put(object, key, cJSON_CreateNumber((double)number));
}

void json_put_double(cJSON *object, const char *key, double number)
{
    json_put(object, key, cJSON_CreateNumber(number));
}

void json_put_bool(cJSON *object, const char *key, bool value)
{
    json_put(object, key, cJSON_CreateBool(value));
}

void json_append(cJSON *array, cJSON *value)
{
    if (!cJSON_AddItemToArray(array, have(value)))
        abort();
}

char *json_print(const cJSON *tree, bool pretty)
{
    return have(pretty ? cJSON_Print(tree) : cJSON_PrintUnformatted(tree));
}

void cleanup_json(cJSON **tree)
{
    cJSON_Delete(*tree);
}
