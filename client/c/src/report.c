#include "report.h"

#include <stdio.h>
#include <string.h>

#include "ringmaster.h"
#include "text.h"

static const char *const FIELD_NAMES[REPORT_FIELDS] = { "step", "total_steps", "loss", "step_ms" };

static const char *skip_space(const char *p)
{
    return p + strspn(p, " \t\r\n");
}

/* The end of a JSON string that begins at p ('"'), or NULL. */
static const char *string_end(const char *p)
{
    for (p++; *p != '\0'; p++) {
        if (*p == '"')
            return p + 1;
        if ((unsigned char)*p < 0x20)
            return NULL;
        if (*p != '\\')
            continue;
        p++;
        if (*p == 'u') {
            if (strspn(p + 1, "0123456789abcdefABCDEF") < 4)
                return NULL;
            p += 4;
        } else if (*p == '\0' || strchr("\"\\/bfnrt", *p) == NULL) {
            return NULL;
        }
    }
    return NULL;
}

static const char *number_end(const char *p)
{
    const char *digits = "0123456789";
    if (*p == '-')
        p++;
    size_t whole = strspn(p, digits);
    if (whole == 0 || (whole > 1 && *p == '0'))
        return NULL;
    p += whole;
    if (*p == '.') {
        size_t fraction = strspn(p + 1, digits);
        if (fraction == 0)
            return NULL;
        p += 1 + fraction;
    }
    if (*p == 'e' || *p == 'E') {
        p++;
        if (*p == '+' || *p == '-')
            p++;
        size_t exponent = strspn(p, digits);
        if (exponent == 0)
            return NULL;
        p += exponent;
    }
    return p;
}

/* The end of a number, a string, true, false or null at p, or NULL. */
static const char *scalar_end(const char *p)
{
    static const char *const words[] = { "true", "false", "null" };
    if (*p == '"')
        return string_end(p);
    for (size_t i = 0; i < 3; i++)
        if (strncmp(p, words[i], strlen(words[i])) == 0)
            return p + strlen(words[i]);
    return number_end(p);
}

/* Copies [from, to) when it fits. */
static bool keep(char *ret_text, size_t size, const char *from, const char *to)
{
    size_t length = (size_t)(to - from);
    if (length >= size)
        return false;
    memcpy(ret_text, from, length);
    ret_text[length] = '\0';
    return true;
}

/* One `"key": value` pair of an object, what follows it and whether another pair follows. */
struct pair { char key[REPORT_KEY_MAX]; const char *value; };

/* p is behind '{' or ','. Gives the value's place; NULL and a reason when this is no pair. */
static const char *pair_begin(const char *p, struct pair *ret_pair)
{
    p = skip_space(p);
    const char *end = *p == '"' ? string_end(p) : NULL;
    if (end == NULL) {
        text_fail(RM_INVALID, "report: expected a name in double quotes at \"%.20s\"", p);
        return NULL;
    }
    if (!keep(ret_pair->key, sizeof(ret_pair->key), p + 1, end - 1)) {
        text_fail(RM_INVALID, "report: the name %.40s... is over %d bytes", p, REPORT_KEY_MAX - 1);
        return NULL;
    }
    p = skip_space(end);
    if (*p != ':') {
        text_fail(RM_INVALID, "report: expected ':' after \"%s\"", ret_pair->key);
        return NULL;
    }
    ret_pair->value = skip_space(p + 1);
    return ret_pair->value;
}

static const char *scalar_into(const char *p, const char *key, char ret_value[REPORT_VALUE_MAX])
{
    const char *end = scalar_end(p);
    if (end == NULL) {
        text_fail(RM_INVALID, "report: the value of \"%s\" is not a number, string, true, false or null (NaN and Infinity are not "
                              "JSON: send them as strings): \"%.20s\"", key, p);
        return NULL;
    }
    if (!keep(ret_value, REPORT_VALUE_MAX, p, end)) {
        text_fail(RM_INVALID, "report: the value of \"%s\" is over %d bytes", key, REPORT_VALUE_MAX - 1);
        return NULL;
    }
    return end;
}

static bool put_metric(struct report *r, const char *key, const char *value)
{
    size_t i = 0;
    while (i < r->metric_count && strcmp(r->metrics[i].key, key) != 0)
        i++;
    if (i == REPORT_METRICS) {
        text_fail(RM_INVALID, "report: more than %d metrics", REPORT_METRICS);
        return false;
    }
    if (i == r->metric_count)
        r->metric_count++;
    snprintf(r->metrics[i].key, sizeof(r->metrics[i].key), "%s", key);
    snprintf(r->metrics[i].value, sizeof(r->metrics[i].value), "%s", value);
    return true;
}

/* Calls `take` for each pair of the object at p. The end of the object, or NULL with a reason. */
static const char *each_pair(struct report *r, const char *p, const char *(*take)(struct report *, const struct pair *))
{
    p = skip_space(p);
    if (*p != '{') {
        text_fail(RM_INVALID, "report: expected an object at \"%.20s\"", p);
        return NULL;
    }
    p = skip_space(p + 1);
    if (*p == '}')
        return p + 1;
    for (;;) {
        struct pair pair;
        if (pair_begin(p, &pair) == NULL || (p = take(r, &pair)) == NULL)
            return NULL;
        p = skip_space(p);
        if (*p == '}')
            return p + 1;
        if (*p != ',') {
            text_fail(RM_INVALID, "report: expected ',' or '}' after \"%s\"", pair.key);
            return NULL;
        }
        p++;
    }
}

static const char *take_metric(struct report *r, const struct pair *pair)
{
    char value[REPORT_VALUE_MAX];
    const char *end = scalar_into(pair->value, pair->key, value);
    return end != NULL && put_metric(r, pair->key, value) ? end : NULL;
}

static const char *take_field(struct report *r, const struct pair *pair)
{
    if (strcmp(pair->key, "metrics") == 0)
        return each_pair(r, pair->value, take_metric);
    for (size_t i = 0; i < REPORT_FIELDS; i++)
        if (strcmp(pair->key, FIELD_NAMES[i]) == 0) {
            if (number_end(pair->value) == NULL) {
                text_fail(RM_INVALID, "report: \"%s\" must be a number, is \"%.20s\"", pair->key, pair->value);
                return NULL;
            }
            return scalar_into(pair->value, pair->key, r->fields[i]);
        }
    text_fail(RM_INVALID, "report: unknown field \"%s\"; known are step, total_steps, loss, step_ms and metrics", pair->key);
    return NULL;
}

int report_merge(struct report *r, const char *json)
{
    if (json == NULL)
        return text_fail(RM_INVALID, "report: no text");
    struct report merged = *r;
    const char *end = each_pair(&merged, json, take_field);
    if (end == NULL)
        return RM_INVALID;
    if (*skip_space(end) != '\0')
        return text_fail(RM_INVALID, "report: text after the object: \"%.20s\"", skip_space(end));
    merged.pending = true;
    *r = merged;
    return RM_OK;
}

size_t report_take(struct report *r, char ret_text[REPORT_TEXT_MAX])
{
    _Static_assert(REPORT_FIELDS * (REPORT_VALUE_MAX + 20) + REPORT_METRICS * (REPORT_KEY_MAX + REPORT_VALUE_MAX + 4) + 32
                   < REPORT_TEXT_MAX, "a full report fits");
    if (!r->pending)
        return 0;
    size_t n = 0;
    const char *comma = "";
    ret_text[n++] = '{';
    for (size_t i = 0; i < REPORT_FIELDS; i++)
        if (r->fields[i][0] != '\0') {
            n += (size_t)snprintf(ret_text + n, REPORT_TEXT_MAX - n, "%s\"%s\":%s", comma, FIELD_NAMES[i], r->fields[i]);
            comma = ",";
        }
    for (size_t i = 0; i < r->metric_count; i++) {
        n += (size_t)snprintf(ret_text + n, REPORT_TEXT_MAX - n, "%s\"%s\":%s", i == 0 ? (*comma ? ",\"metrics\":{" : "\"metrics\":{")
                              : ",", r->metrics[i].key, r->metrics[i].value);
    }
    n += (size_t)snprintf(ret_text + n, REPORT_TEXT_MAX - n, "%s", r->metric_count > 0 ? "}}" : "}");
    *r = (struct report){ 0 };
    return n;
}
