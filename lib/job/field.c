#include "job/field.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/text.h"

int field_name_index(const char *const *names, const char *text)
{
    for (int i = 0; names[i] != NULL; i++)
        if (strcmp(names[i], text) == 0)
            return i;
    return -1;
}

static int32_t cut_int32(int64_t number)
{
    return number < INT32_MIN ? INT32_MIN : number > INT32_MAX ? INT32_MAX : (int32_t)number;
}

static bool read_number(const struct field *f, const cJSON *value, void *at)
{
    if (!cJSON_IsNumber(value) || isnan(value->valuedouble))
        return false;
    int64_t number = value->valuedouble >= 9223372036854775807.0    ? INT64_MAX
                     : value->valuedouble <= -9223372036854775808.0 ? INT64_MIN
                                                                    : (int64_t)value->valuedouble;
    switch (f->type) {
    case FIELD_INT32:
        *(int32_t *)at = cut_int32(number);
        return true;
    case FIELD_OPTIONAL:
        *(struct optional_int *)at = (struct optional_int){ .set = true, .value = number };
        return true;
    case FIELD_DOUBLE:
        *(double *)at = value->valuedouble;
        return true;
    default:
        *(int64_t *)at = number;
        return true;
    }
}

/* Copies text and cuts it so that no UTF-8 character is cut in two. */
static void copy_cut(char *to, size_t size, const char *text)
{
    size_t len = strnlen(text, size);

    if (len >= size) {
        len = size - 1;
        while (len > 0 && ((unsigned char)text[len] & 0xc0) == 0x80)
            len--;
    }
    memcpy(to, text, len);
    to[len] = '\0';
}

static bool read_text(const struct field *f, const cJSON *value, void *at)
{
    int64_t wall_ms;
    int index;

    if (!cJSON_IsString(value))
        return false;
    switch (f->type) {
    case FIELD_TEXT:
        free(*(char **)at);
        *(char **)at = xstrdup(value->valuestring);
        return true;
    case FIELD_CHARS:
        copy_cut(at, f->size, value->valuestring);
        return true;
    case FIELD_NAME:
        index = field_name_index(f->names, value->valuestring);
        if (index >= 0)
            *(int *)at = index;
        return index >= 0;
    default:
        if (clock_parse(value->valuestring, &wall_ms) < 0)
            return false;
        *(int64_t *)at = wall_ms;
        return true;
    }
}

static bool read_quantity(const cJSON *value, void *at)
{
    int64_t units;

    if (cJSON_IsNumber(value) && value->valuedouble >= 0 && value->valuedouble < 9e18)
        units = (int64_t)value->valuedouble;
    else if (!cJSON_IsString(value) || !text_quantity(value->valuestring, &units))
        return false;
    *(int64_t *)at = units;
    return true;
}

static bool read_field(const struct field *f, const cJSON *value, void *at)
{
    switch (f->type) {
    case FIELD_BOOL:
        if (cJSON_IsBool(value))
            *(bool *)at = cJSON_IsTrue(value);
        return cJSON_IsBool(value);
    case FIELD_INT32:
    case FIELD_INT64:
    case FIELD_OPTIONAL:
    case FIELD_DOUBLE:
        return read_number(f, value, at);
    case FIELD_TEXT:
    case FIELD_CHARS:
    case FIELD_NAME:
    case FIELD_TIME:
        return read_text(f, value, at);
    case FIELD_QUANTITY:
        return read_quantity(value, at);
    case FIELD_TREE:
        cJSON_Delete(*(cJSON **)at);
        *(cJSON **)at = cJSON_Duplicate(value, true);
        return true;
    case FIELD_BY_HAND:
        return false;
    }
    return false;
}

void fields_read(const struct field *fields, size_t count, const cJSON *tree, void *to)
{
    for (size_t i = 0; i < count; i++) {
        const cJSON *value = fields[i].type == FIELD_BY_HAND ? NULL : json_at(tree, fields[i].path);
        if (value != NULL && read_field(&fields[i], value, (char *)to + fields[i].at) && fields[i].has != 0)
            *((bool *)to + fields[i].has - 1) = true;
    }
}

void field_put_time(cJSON *object, const char *key, int64_t wall_ms)
{
    char text[CLOCK_TEXT_MAX], exact[CLOCK_TEXT_MAX + 8];
    int64_t ms = ((wall_ms % 1000) + 1000) % 1000;

    if (wall_ms == 0)
        return;
    clock_format(wall_ms - ms, text);
    if (ms == 0) {
        json_put_text(object, key, text);
        return;
    }
    (void)snprintf(exact, sizeof exact, "%.*s.%03dZ", (int)strcspn(text, "Z"), text, (int)ms);
    json_put_text(object, key, exact);
}

static bool is_zero(const struct field *f, const void *at)
{
    switch (f->type) {
    case FIELD_INT32:
        return *(const int32_t *)at == 0;
    case FIELD_INT64:
    case FIELD_QUANTITY:
        return *(const int64_t *)at == 0;
    case FIELD_CHARS:
        return *(const char *)at == '\0';
    default:
        return false;
    }
}

static void write_field(const struct field *f, const void *at, cJSON *object, const char *key)
{
    switch (f->type) {
    case FIELD_BOOL:
        json_put_bool(object, key, *(const bool *)at);
        break;
    case FIELD_INT32:
        json_put_int(object, key, *(const int32_t *)at);
        break;
    case FIELD_INT64:
    case FIELD_QUANTITY:
        json_put_int(object, key, *(const int64_t *)at);
        break;
    case FIELD_OPTIONAL:
        if (((const struct optional_int *)at)->set)
            json_put_int(object, key, ((const struct optional_int *)at)->value);
        break;
    case FIELD_DOUBLE:
        if (isfinite(*(const double *)at))
            json_put_double(object, key, *(const double *)at);
        break;
    case FIELD_TEXT:
        json_put_text(object, key, *(char *const *)at);
        break;
    case FIELD_CHARS:
        if (*(const char *)at != '\0')
            json_put_text(object, key, at);
        break;
    case FIELD_NAME:
        json_put_text(object, key, f->names[*(const int *)at]);
        break;
    case FIELD_TIME:
        field_put_time(object, key, *(const int64_t *)at);
        break;
    case FIELD_TREE:
        if (*(cJSON *const *)at != NULL)
            json_put(object, key, cJSON_Duplicate(*(cJSON *const *)at, true));
        break;
    case FIELD_BY_HAND:
        break;
    }
}

void fields_write(const struct field *fields, size_t count, const void *from, cJSON *object)
{
    for (size_t i = 0; i < count; i++) {
        const struct field *f = &fields[i];
        const void *at = (const char *)from + f->at;
        bool there = f->has == 0 || *((const bool *)from + f->has - 1);
        if (there && !(f->omit_zero && is_zero(f, at)))
            write_field(f, at, object, f->path);
    }
}
