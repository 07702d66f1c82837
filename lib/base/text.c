#include "base/text.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_lower_or_digit(char c)
{
    return (c >= 'a' && c <= 'z') || is_digit(c);
}

/*
 * A decimal number with an optional fraction, as digits × 10^-scale. Trailing zeros of the fraction do not count against
 * the 18 digits that fit.
 */
struct decimal { int64_t digits; int scale; };

static bool read_decimal(const char **at, struct decimal *ret)
{
    const char *p = *at;
    struct decimal d = { .digits = 0, .scale = 0 };
    bool any = false, fraction = false;
    int held_zeros = 0;

    for (;; p++) {
        if (*p == '.' && !fraction) {
            fraction = true;
            continue;
        }
        if (!is_digit(*p))
            break;
        any = true;
        if (fraction && *p == '0') {
            held_zeros++;
            continue;
        }
        for (int i = 0; i <= held_zeros; i++) {
            int digit = i == held_zeros ? *p - '0' : 0;
            if (__builtin_mul_overflow(d.digits, (int64_t)10, &d.digits) ||
                __builtin_add_overflow(d.digits, (int64_t)digit, &d.digits))
                return false;
            if (fraction)
                d.scale++;
        }
        held_zeros = 0;
    }
    if (!any)
        return false;
    *at = p;
    *ret = d;
    return true;
}

/* digits × 10^-scale × unit, rounded up; false when it does not fit. */
static bool scale_decimal(struct decimal d, int64_t unit, int64_t *ret)
{
    __int128 value = (__int128)d.digits * unit; /* below 2^123 < 10^38 */
    __int128 divisor = 1;

    for (int i = 0; i < d.scale && i < 38; i++)
        divisor *= 10;
    value = value / divisor + (value % divisor != 0);
    if (value > INT64_MAX)
        return false;
    *ret = (int64_t)value;
    return true;
}

bool text_duration(const char *text, int64_t *ret_ms)
{
    static const struct { const char *name; int64_t ms; } units[] = {
        { "ms", 1 }, { "s", 1000 }, { "m", 60000 }, { "h", 3600000 },
    };
    const char *p = text;
    int64_t total = 0, part;
    struct decimal number;
    bool first = true;

    do {
        if (!read_decimal(&p, &number))
            return false;
        int64_t unit = 0;
        if (*p == '\0' && first)
            unit = 1000; /* a bare number: seconds */
        for (size_t i = 0; unit == 0 && i < COUNT(units); i++) {
            size_t n = strlen(units[i].name);
            if (strncmp(p, units[i].name, n) == 0) {
                unit = units[i].ms;
                p += n;
            }
        }
        if (unit == 0 || !scale_decimal(number, unit, &part) || __builtin_add_overflow(total, part, &total))
            return false;
        first = false;
    } while (*p != '\0');
    *ret_ms = total;
    return true;
}

/* "e3", "E-2": Kubernetes reads an exponent only when a number follows; a lone E is exa. */
static bool read_exponent(const char *p, int *ret_exponent)
{
    int value = 0;
    bool negative = false;

    if (*p != 'e' && *p != 'E')
        return false;
    p++;
    if (*p == '+' || *p == '-')
        negative = *p++ == '-';
    if (!is_digit(*p))
        return false;
    for (; is_digit(*p); p++)
        value = value < 1000 ? value * 10 + (*p - '0') : value;
    *ret_exponent = negative ? -value : value;
    return *p == '\0';
}

bool text_quantity(const char *text, int64_t *ret_units)
{
    static const struct { const char *suffix; int64_t unit; int down; } suffixes[] = {
        { "", 1, 0 },           { "n", 1, 9 },          { "u", 1, 6 },           { "m", 1, 3 },
        { "k", 1000, 0 },       { "M", 1000000, 0 },    { "G", 1000000000, 0 },  { "T", 1000000000000, 0 },
        { "P", 1000000000000000, 0 },                   { "E", 1000000000000000000, 0 },
        { "Ki", 1LL << 10, 0 }, { "Mi", 1LL << 20, 0 }, { "Gi", 1LL << 30, 0 },  { "Ti", 1LL << 40, 0 },
        { "Pi", 1LL << 50, 0 }, { "Ei", 1LL << 60, 0 },
    };
    const char *p = text;
    bool negative = false;
    struct decimal number;
    int exponent;

    if (*p == '+' || *p == '-')
        negative = *p++ == '-';
    if (!read_decimal(&p, &number))
        return false;
    if (negative && number.digits != 0)
        return false; /* no quantity of ours may be below zero */
    if (read_exponent(p, &exponent)) {
        number.scale -= exponent;
        for (; number.scale < 0 && number.digits != 0; number.scale++)
            if (__builtin_mul_overflow(number.digits, (int64_t)10, &number.digits))
                return false;
        return scale_decimal(number, 1, ret_units);
    }
    for (size_t i = 0; i < COUNT(suffixes); i++) {
        if (strcmp(p, suffixes[i].suffix) != 0)
            continue;
        number.scale += suffixes[i].down;
        return scale_decimal(number, suffixes[i].unit, ret_units);
    }
    return false;
}

bool text_int(const char *text, int64_t *ret_value)
{
    const char *p = text;
    bool negative = *p == '-';
    int64_t value = 0;

    p += negative ? 1 : 0;
    if (*p == '\0')
        return false;
    for (; *p != '\0'; p++) {
        if (!is_digit(*p) || __builtin_mul_overflow(value, (int64_t)10, &value) ||
            __builtin_sub_overflow(value, (int64_t)(*p - '0'), &value)) /* downwards, so that INT64_MIN fits */
            return false;
    }
    if (!negative && value == INT64_MIN)
        return false;
    *ret_value = negative ? value : -value;
    return true;
}

static bool is_label(const char *text, size_t len, size_t max)
{
    if (len == 0 || len > max || !is_lower_or_digit(text[0]) || !is_lower_or_digit(text[len - 1]))
        return false;
    for (size_t i = 0; i < len; i++)
        if (!is_lower_or_digit(text[i]) && text[i] != '-')
            return false;
    return true;
}

bool text_is_dns1123_label(const char *text)
{
    return is_label(text, strlen(text), 63);
}

bool text_is_dns1035_label(const char *text)
{
    return is_label(text, strlen(text), 63) && !is_digit(text[0]);
}

bool text_is_dns1123_subdomain(const char *text)
{
    size_t len = strlen(text);

    if (len == 0 || len > 253)
        return false;
    for (const char *p = text;; p++) {
        size_t n = strcspn(p, ".");
        if (!is_label(p, n, 253)) /* Kubernetes bounds the whole here, not each label */
            return false;
        p += n;
        if (*p == '\0')
            return true;
    }
}

bool text_is_env_name(const char *text)
{
    if (*text == '\0' || is_digit(*text))
        return false;
    for (const char *p = text; *p != '\0'; p++)
        if (!is_lower_or_digit(*p) && !(*p >= 'A' && *p <= 'Z') && strchr("_-.", *p) == NULL)
            return false;
    return true;
}

enum { NEAREST_MAX = 64 }; /* names of fields and flags are shorter; longer ones have no near miss */

/* Edit distance with swaps of neighbours (optimal string alignment), case-insensitive. */
static size_t distance(const char *a, size_t a_len, const char *b, size_t b_len)
{
    size_t rows[3][NEAREST_MAX + 1];
    size_t *before = rows[0], *above = rows[1], *row = rows[2];

    for (size_t j = 0; j <= b_len; j++)
        above[j] = j;
    memcpy(before, above, sizeof rows[0]);
    for (size_t i = 1; i <= a_len; i++) {
        row[0] = i;
        for (size_t j = 1; j <= b_len; j++) {
            int x = tolower((unsigned char)a[i - 1]), y = tolower((unsigned char)b[j - 1]);
            size_t best = above[j - 1] + (x != y);
            if (above[j] + 1 < best)
                best = above[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            if (i > 1 && j > 1 && x == tolower((unsigned char)b[j - 2]) && y == tolower((unsigned char)a[i - 2]) &&
                before[j - 2] + 1 < best)
                best = before[j - 2] + 1;
            row[j] = best;
        }
        size_t *spare = before;
        before = above;
        above = row;
        row = spare;
    }
    return above[b_len];
}

const char *text_nearest(const char *text, const char *const *names)
{
    size_t len = strlen(text), best = SIZE_MAX;
    const char *nearest = NULL;

    if (len == 0 || len > NEAREST_MAX)
        return NULL;
    for (; *names != NULL; names++) {
        size_t name_len = strlen(*names);
        if (name_len == 0 || name_len > NEAREST_MAX)
            continue;
        size_t longest = len > name_len ? len : name_len;
        size_t d = distance(text, len, *names, name_len);
        if (d <= (longest + 2) / 3 && d < name_len && d < best) {
            best = d;
            nearest = *names;
        }
    }
    return nearest;
}

const char *text_bytes(uint64_t bytes, char ret[TEXT_SIZE_MAX])
{
    static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
    double value = (double)bytes;
    size_t unit = 0;

    while (value >= 1023.5 && unit + 1 < COUNT(units)) {
        value /= 1024;
        unit++;
    }
    if (unit == 0 || value >= 99.95)
        (void)snprintf(ret, TEXT_SIZE_MAX, "%.0f %s", value, units[unit]);
    else
        (void)snprintf(ret, TEXT_SIZE_MAX, "%.1f %s", value, units[unit]);
    return ret;
}

/* Length of the UTF-8 character at p; 0: it is none. */
static size_t character(const unsigned char *p)
{
    size_t n = p[0] < 0x80 ? 1 : p[0] >= 0xc2 && p[0] < 0xe0 ? 2 : (p[0] & 0xf0) == 0xe0 ? 3 : p[0] >= 0xf0 && p[0] < 0xf5 ? 4 : 0;

    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    }
    return n;
}

void text_make_plain(char *text)
{
    for (unsigned char *p = (unsigned char *)text; *p != '\0';) {
        size_t n = character(p);
        if (n == 0 || (*p < 0x20 && *p != '\n' && *p != '\t'))
            *p = n == 0 ? '?' : ' ';
        p += n > 0 ? n : 1;
    }
}

void text_tail(const char *bytes, size_t len, bool cut, char *ret_text, size_t size)
{
    while (len > 0 && (bytes[len - 1] == '\n' || bytes[len - 1] == '\r'))
        len--;
    size_t from = len > size - 1 ? len - (size - 1) : 0;
    const char *newline = from > 0 || cut ? memchr(bytes + from, '\n', len - from) : NULL;
    if (newline != NULL)
        from = (size_t)(newline + 1 - bytes);
    for (size_t i = from; i < len; i++)
        ret_text[i - from] = bytes[i] != '\0' ? bytes[i] : ' ';
    ret_text[len - from] = '\0';
    text_make_plain(ret_text);
}
