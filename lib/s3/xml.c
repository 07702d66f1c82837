#include "s3/xml.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* Behind the '>' of "<name ...>", or NULL. */
static const char *open_tag(const char *p, const char *end, const char *name, bool *ret_empty)
{
    size_t n = strlen(name);
    while ((p = memchr(p, '<', (size_t)(end - p))) != NULL) {
        p++;
        if ((size_t)(end - p) <= n || memcmp(p, name, n) != 0 || strchr(" />\t\r\n", p[n]) == NULL)
            continue;
        const char *close = memchr(p, '>', (size_t)(end - p));
        if (close == NULL)
            return NULL;
        *ret_empty = close[-1] == '/';
        return close + 1;
    }
    return NULL;
}

bool xml_next(struct xml *at, const char *name, struct xml *ret_content)
{
    const char *end = at->text + at->len;
    bool empty;
    const char *begin = open_tag(at->text, end, name, &empty);
    if (begin == NULL)
        return false;
    const char *stop = begin, *rest = begin;
    size_t n = strlen(name);
    while (!empty) {
        stop = memchr(stop, '<', (size_t)(end - stop));
        if (stop == NULL || (size_t)(end - stop) < n + 3)
            return false;
        if (stop[1] == '/' && memcmp(stop + 2, name, n) == 0 && stop[2 + n] == '>') {
            rest = stop + n + 3;
            break;
        }
        stop++;
    }
    *ret_content = (struct xml){ begin, (size_t)(stop - begin) };
    *at = (struct xml){ rest, (size_t)(end - rest) };
    return true;
}

static char entity(const char *p, const char *end, size_t *ret_len)
{
    static const struct { const char *text; char c; } ENTITIES[] = {
        { "&amp;", '&' }, { "&lt;", '<' }, { "&gt;", '>' }, { "&quot;", '"' }, { "&apos;", '\'' },
    };
    for (size_t i = 0; i < COUNT(ENTITIES); i++) {
        *ret_len = strlen(ENTITIES[i].text);
        if ((size_t)(end - p) >= *ret_len && memcmp(p, ENTITIES[i].text, *ret_len) == 0)
            return ENTITIES[i].c;
    }
    if (end - p > 3 && p[1] == '#') { /* of one byte: quotes of an ETag are written so */
        char *stop;
        long code = p[2] == 'x' ? strtol(p + 3, &stop, 16) : strtol(p + 2, &stop, 10);
        if (stop < end && *stop == ';' && code > 0 && code < 128) {
            *ret_len = (size_t)(stop + 1 - p);
            return (char)code;
        }
    }
    *ret_len = 1;
    return *p;
}

char *xml_text(struct xml whole, const char *name)
{
    struct xml content;
    if (!xml_next(&whole, name, &content))
        return NULL;
    auto_free char *raw = xstrndup(content.text, content.len);
    char *text = xcalloc(1, content.len + 1), *to = text;
    const char *end = raw + strlen(raw);
    for (const char *p = raw; p < end;) {
        size_t len = 1;
        *to++ = *p == '&' ? entity(p, end, &len) : *p;
        p += len;
    }
    return text;
}
