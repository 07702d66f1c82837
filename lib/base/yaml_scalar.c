#include "base/yaml_scalar.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static bool is_one_of(const char *text, const char *const *words)
{
    for (; *words != NULL; words++)
        if (strcmp(text, *words) == 0)
            return true;
    return false;
}

static const char *skip_digits(const char *p)
{
    return p + strspn(p, "0123456789");
}

/* The core schema's integers; a leading 0 makes it octal as it does for kubectl ("defaultMode: 0400"). */
static bool read_int(const char *text, double *ret)
{
    const char *p = text;
    bool negative = *p == '-';
    int base = 10;

    p += *p == '-' || *p == '+';
    if (p == text && (strncmp(p, "0x", 2) == 0 || strncmp(p, "0o", 2) == 0)) {
        base = p[1] == 'x' ? 16 : 8;
        p += 2;
    } else if (p[0] == '0' && p[1] != '\0' && p[strspn(p, "01234567")] == '\0') {
        base = 8;
    }
    if (*p == '\0' || p[strspn(p, base == 16 ? "0123456789abcdefABCDEF" : base == 8 ? "01234567" : "0123456789")] != '\0')
        return false;

    double value = 0;
    for (; *p != '\0'; p++) {
        int digit = *p <= '9' ? *p - '0' : (*p | 0x20) - 'a' + 10;
        value = value * base + digit;
    }
    *ret = negative && value != 0 ? -value : value;
    return true;
}

static bool is_float(const char *text)
{
    const char *p = text + (*text == '-' || *text == '+');
    const char *digits = p;

    p = skip_digits(p);
    bool any = p > digits;
    if (*p == '.') {
        const char *fraction = ++p;
        p = skip_digits(p);
        any = any || p > fraction;
    }
    if (!any)
        return false;
    if (*p == 'e' || *p == 'E') {
        p++;
        p += *p == '-' || *p == '+';
        if (*p < '0' || *p > '9')
            return false;
        p = skip_digits(p);
    }
    return *p == '\0';
}

static cJSON *have(cJSON *value)
{
    if (value == NULL)
        abort();
    return value;
}

const char *yaml_resolve(const char *text, cJSON **ret_value)
{
    static const char *const nulls[] = { "", "~", "null", "Null", "NULL", NULL };
    static const char *const trues[] = { "true", "True", "TRUE", NULL }, *const falses[] = { "false", "False", "FALSE", NULL };
    static const char *const not_numbers[] = {
        ".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF", "-.inf", "-.Inf", "-.INF", ".nan", ".NaN", ".NAN", NULL,
    };
    double number;

    *ret_value = NULL;
    if (is_one_of(text, nulls)) {
        *ret_value = have(cJSON_CreateNull());
    } else if (is_one_of(text, trues) || is_one_of(text, falses)) {
        *ret_value = have(cJSON_CreateBool(is_one_of(text, trues)));
    } else if (is_one_of(text, not_numbers)) {
        return "is no number that JSON has";
    } else if (read_int(text, &number)) {
        if (fabs(number) > 9007199254740992.0) /* 2^53 */
            return "is an integer too large to be kept exactly";
        *ret_value = have(cJSON_CreateNumber(number));
    } else if (is_float(text)) {
        number = strtod(text, NULL);
        if (!isfinite(number))
            return "is a number too large to be kept";
        *ret_value = have(cJSON_CreateNumber(number == 0 ? 0 : number)); /* no -0, as for integers */
    }
    return NULL;
}
