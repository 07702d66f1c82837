#include "kube/strip.h"

#include <stdint.h>
#include <string.h>

#define DEPTH_MAX 16 /* of what paths can name; deeper values are copied as they are */

struct strip {
    const char *end;
    const char *const *paths;
    struct buf *out;
};

static const char *skip_space(const struct strip *s, const char *p)
{
    while (p < s->end && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t'))
        p++;
    return p;
}

/* `p` is at the opening quote; the place behind the closing one. */
static const char *skip_string(const struct strip *s, const char *p)
{
    for (p++; p < s->end; p++) {
        const char *quote = memchr(p, '"', (size_t)(s->end - p));
        if (quote == NULL)
            return s->end;
        size_t slashes = 0;
        while (quote - slashes > p && quote[-1 - (ptrdiff_t)slashes] == '\\')
            slashes++;
        p = quote;
        if (slashes % 2 == 0)
            return quote + 1;
    }
    return s->end;
}

static const char *skip_value(const struct strip *s, const char *p)
{
    size_t open = 0;

    if (p < s->end && *p != '"' && *p != '{' && *p != '[') { /* a number or a word */
        while (p < s->end && strchr(",}] \n\r\t", *p) == NULL)
            p++;
        return p;
    }
    while (p < s->end) {
        if (*p == '"') {
            p = skip_string(s, p);
        } else {
            open += *p == '{' || *p == '[';
            open -= *p == '}' || *p == ']';
            p++;
        }
        if (open == 0)
            break;
    }
    return p;
}

/* The paths of `mask` whose part at `depth` is this key; *ret_drop when one of them ends there. */
static uint32_t narrow(const struct strip *s, uint32_t mask, size_t depth, const char *key, size_t len, bool *ret_drop)
{
    uint32_t left = 0;

    *ret_drop = false;
    if (memchr(key, '.', len) != NULL)
        return 0; /* one key, not several */
    for (size_t i = 0; i < KUBE_STRIP_MAX && mask >> i != 0; i++) {
        if ((mask >> i & 1) == 0)
            continue;
        const char *part = s->paths[i];
        for (size_t d = 0; d < depth && part != NULL; d++) {
            part = strchr(part, '.');
            part = part != NULL ? part + 1 : NULL;
        }
        if (part == NULL || strncmp(part, key, len) != 0 || (part[len] != '.' && part[len] != '\0'))
            continue;
        if (part[len] == '\0')
            *ret_drop = true;
        else
            left |= (uint32_t)1 << i;
    }
    return left;
}

static const char *copy_value(const struct strip *s, const char *p, uint32_t mask, size_t depth, size_t nested);

static const char *copy_to(const struct strip *s, const char *from, const char *to)
{
    buf_add_bytes(s->out, from, (size_t)(to - from));
    return to;
}

/* One member from its key on; the place behind its value. */
static const char *copy_member(const struct strip *s, const char *p, uint32_t mask, size_t depth, size_t nested)
{
    const char *key_end = skip_string(s, p), *value = skip_space(s, key_end);
    bool drop;

    if (key_end - p < 2 || value == s->end || *value != ':')
        return copy_to(s, p, s->end); /* no JSON */
    value = skip_space(s, value + 1);
    (void)copy_to(s, p, value);
    uint32_t left = narrow(s, mask, depth, p + 1, (size_t)(key_end - p) - 2, &drop);
    if (!drop)
        return copy_value(s, value, left, depth + 1, nested);
    buf_add(s->out, "null");
    return skip_value(s, value);
}

static const char *copy_value(const struct strip *s, const char *p, uint32_t mask, size_t depth, size_t nested)
{
    if (p == s->end || mask == 0 || nested == DEPTH_MAX || (*p != '{' && *p != '['))
        return copy_to(s, p, skip_value(s, p));
    bool is_object = *p == '{';
    p = copy_to(s, p, p + 1);
    while (p < s->end && *p != '}' && *p != ']') {
        const char *before = p;
        p = skip_space(s, p);
        if (p < s->end && *p == ',')
            p++;
        p = copy_to(s, before, skip_space(s, p));
        if (p == s->end || *p == '}' || *p == ']')
            break;
        before = p;
        if (!is_object)
            p = copy_value(s, p, mask, depth, nested + 1);
        else if (*p == '"')
            p = copy_member(s, p, mask, depth, nested + 1);
        if (p == before)
            return copy_to(s, p, s->end); /* no JSON */
    }
    return p < s->end ? copy_to(s, p, p + 1) : p;
}

/* An object's member `under` is where the paths begin; the others are copied. */
static const char *copy_under(const struct strip *s, const char *p, const char *under, uint32_t all)
{
    size_t len = strlen(under);

    p = copy_to(s, p, p + 1);
    while (p < s->end && *p != '}') {
        const char *before = p;
        p = skip_space(s, p);
        if (p < s->end && *p == ',')
            p++;
        p = copy_to(s, before, skip_space(s, p));
        if (p == s->end || *p != '"')
            break;
        const char *key_end = skip_string(s, p), *value = skip_space(s, key_end);
        if (value == s->end || *value != ':')
            break;
        bool is_it = (size_t)(key_end - p) == len + 2 && memcmp(p + 1, under, len) == 0;
        value = copy_to(s, p, skip_space(s, value + 1));
        p = copy_value(s, value, is_it ? all : 0, 0, 0);
    }
    return p;
}

void kube_strip(const char *text, size_t len, const char *under, const char *const *paths, struct buf *out)
{
    struct strip s = { .end = text + len, .paths = paths, .out = out };
    uint32_t all = 0;
    const char *p = text;

    for (size_t i = 0; i < KUBE_STRIP_MAX && paths[i] != NULL; i++)
        all |= (uint32_t)1 << i;
    p = copy_to(&s, p, skip_space(&s, p));
    if (under == NULL)
        p = copy_value(&s, p, all, 0, 0);
    else if (p < s.end && *p == '{')
        p = copy_under(&s, p, under, all);
    (void)copy_to(&s, p, s.end);
}
