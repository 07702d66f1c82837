#include "kube/strip.h"

#include <stdint.h>
#include <string.h>

#define DEPTH_MAX 16 /* of what paths can name; deeper values are copied as they are */

struct strip {
    const char *from; /* what is before it is in `out` or dropped: long pieces are copied, not single members */
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
        while (p < s->end && *p != ',' && *p != '}' && *p != ']' && *p != ' ' && *p != '\n' && *p != '\r' && *p != '\t' && *p != '\0')
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
    if (len == 0 || memchr(key, '.', len) != NULL)
        return 0; /* a dot in it: one key, not several */
    for (size_t i = 0; i < KUBE_STRIP_MAX && mask >> i != 0; i++) {
        if ((mask >> i & 1) == 0)
            continue;
        const char *part = s->paths[i];
        for (size_t d = 0; d < depth && part != NULL; d++) {
            part = strchr(part, '.');
            part = part != NULL ? part + 1 : NULL;
        }
        if (part == NULL || part[0] != key[0] || strncmp(part, key, len) != 0 || (part[len] != '.' && part[len] != '\0'))
            continue;
        if (part[len] == '\0')
            *ret_drop = true;
        else
            left |= (uint32_t)1 << i;
    }
    return left;
}

static void drop(struct strip *s, const char *from, const char *to)
{
    buf_add_bytes(s->out, s->from, (size_t)(from - s->from));
    buf_add_bytes(s->out, "null", 4);
    s->from = to;
}

static const char *walk_value(struct strip *s, const char *p, uint32_t mask, size_t depth, size_t nested);

/* One member from its key on; the place behind its value. */
static const char *walk_member(struct strip *s, const char *p, uint32_t mask, size_t depth, size_t nested)
{
    const char *key_end = skip_string(s, p), *value = skip_space(s, key_end);
    bool is_dropped;

    if (key_end - p < 2 || value == s->end || *value != ':')
        return s->end; /* no JSON */
    value = skip_space(s, value + 1);
    uint32_t left = narrow(s, mask, depth, p + 1, (size_t)(key_end - p) - 2, &is_dropped);
    if (!is_dropped)
        return walk_value(s, value, left, depth + 1, nested);
    const char *after = skip_value(s, value);
    drop(s, value, after);
    return after;
}

static const char *walk_value(struct strip *s, const char *p, uint32_t mask, size_t depth, size_t nested)
{
    if (p == s->end || mask == 0 || nested == DEPTH_MAX || (*p != '{' && *p != '['))
        return skip_value(s, p);
    bool is_object = *p == '{';
    p++;
    while (p < s->end && *p != '}' && *p != ']') {
        p = skip_space(s, p);
        if (p < s->end && *p == ',')
            p++;
        p = skip_space(s, p);
        if (p == s->end || *p == '}' || *p == ']')
            break;
        const char *before = p;
        if (!is_object)
            p = walk_value(s, p, mask, depth, nested + 1);
        else if (*p == '"')
            p = walk_member(s, p, mask, depth, nested + 1);
        if (p == before)
            return s->end; /* no JSON */
    }
    return p < s->end ? p + 1 : p;
}

/* An object's member `under` is where the paths begin; the others stay as they are. */
static void walk_under(struct strip *s, const char *p, const char *under, uint32_t all)
{
    size_t len = strlen(under);

    p++;
    while (p < s->end && *p != '}') {
        p = skip_space(s, p);
        if (p < s->end && *p == ',')
            p++;
        p = skip_space(s, p);
        if (p == s->end || *p != '"')
            break;
        const char *key_end = skip_string(s, p), *value = skip_space(s, key_end);
        if (value == s->end || *value != ':')
            break;
        bool is_it = (size_t)(key_end - p) == len + 2 && memcmp(p + 1, under, len) == 0;
        p = walk_value(s, skip_space(s, value + 1), is_it ? all : 0, 0, 0);
    }
}

void kube_strip(const char *text, size_t len, const char *under, const char *const *paths, struct buf *out)
{
    struct strip s = { .from = text, .end = text + len, .paths = paths, .out = out };
    uint32_t all = 0;
    const char *p = skip_space(&s, text);

    for (size_t i = 0; i < KUBE_STRIP_MAX && paths[i] != NULL; i++)
        all |= (uint32_t)1 << i;
    if (under == NULL)
        (void)walk_value(&s, p, all, 0, 0);
    else if (p < s.end && *p == '{')
        walk_under(&s, p, under, all);
    buf_add_bytes(out, s.from, (size_t)(s.end - s.from));
}
