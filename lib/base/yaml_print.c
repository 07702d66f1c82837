#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/buf.h"
#include "base/yaml.h"

/* Far above what a tree of JSON_MAX_BYTES can become; only a tree that was not read from input could pass it. */
#define PRINT_MAX ((size_t)1 << 30)

/* Takes one character off UTF-8 text. What is no UTF-8 comes out as U+FFFD, one byte at a time. */
static uint32_t next_character(const char **at)
{
    static const uint32_t least[] = { 0, 0x80, 0x800, 0x10000 };
    const unsigned char *p = (const unsigned char *)*at;
    size_t more = p[0] < 0x80 ? 0 : (p[0] & 0xe0) == 0xc0 ? 1 : (p[0] & 0xf0) == 0xe0 ? 2 : (p[0] & 0xf8) == 0xf0 ? 3 : 4;
    uint32_t c = more == 0 ? p[0] : more < 4 ? p[0] & (0x3fu >> more) : 0xfffd;
    size_t i = 1;

    for (; more < 4 && i <= more && (p[i] & 0xc0) == 0x80; i++)
        c = c << 6 | (p[i] & 0x3f);
    if (more == 4 || i <= more || c < least[more] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff)) {
        *at += 1;
        return 0xfffd;
    }
    *at += more + 1;
    return c;
}

/* Characters that may stand in YAML as they are, on one line. U+FFFD is not among them: it may stand for a broken byte. */
static bool is_printable(uint32_t c)
{
    return c == '\t' || (c >= 0x20 && c <= 0x7e) || (c >= 0xa0 && c <= 0xd7ff && c != 0x2028 && c != 0x2029) ||
           (c >= 0xe000 && c < 0xfffd && c != 0xfeff) || c >= 0x10000;
}

/* Text that every YAML reader takes for the same text without quotes. Deliberately narrow. */
static bool is_plain(const char *text)
{
    static const char *const words[] = { "y", "n", "yes", "no", "on", "off", "true", "false", "null", NULL };
    const char *first = text + strspn(text, "-");
    size_t dashes = (size_t)(first - text), len = strlen(text);

    if (dashes > 2 || !((*first >= 'a' && *first <= 'z') || (*first >= 'A' && *first <= 'Z') || (*first == '/' && dashes == 0) ||
                        (*first == '_' && dashes == 0) || (*first == '$' && dashes == 0)))
        return false;
    for (const char *const *w = words; *w != NULL; w++)
        if (strcasecmp(text, *w) == 0)
            return false;
    for (const char *p = text; *p != '\0'; p++) {
        bool letter = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9');
        if (!letter && strchr("_./@%+=-$(),;~^<>*&!?'\" :", *p) == NULL)
            return false;
        if (*p == ':' && (p[1] == ' ' || p[1] == '\0'))
            return false;
    }
    return text[len - 1] != ' ';
}

/* Text of several lines that a literal block ("|") holds unchanged. */
static bool is_block(const char *text)
{
    if (strchr(text, '\n') == NULL || text[0] == '\n')
        return false;
    for (const char *p = text; *p != '\0';) {
        bool line_start = p == text || p[-1] == '\n';
        if (line_start && (*p == ' ' || *p == '\t'))
            return false;
        uint32_t c = next_character(&p);
        if (c != '\n' && !is_printable(c))
            return false;
    }
    return true;
}

static void add_quoted(struct buf *out, const char *text)
{
    buf_add(out, "\"");
    for (const char *p = text; *p != '\0';) {
        const char *start = p;
        uint32_t c = next_character(&p);
        if (c == '"' || c == '\\')
            buf_addf(out, "\\%c", (char)c);
        else if (c == '\n' || c == '\t')
            buf_add(out, c == '\n' ? "\\n" : "\\t");
        else if (is_printable(c))
            buf_add_bytes(out, start, (size_t)(p - start));
        else
            buf_addf(out, "\\u%04x", (unsigned)c);
    }
    buf_add(out, "\"");
}

static void add_indent(struct buf *out, size_t indent)
{
    for (size_t i = 0; i < indent; i++)
        buf_add_bytes(out, " ", 1);
}

/* Lines of a block stand two deeper than the key or the dash that they belong to. */
static void add_block(struct buf *out, const char *text, size_t indent)
{
    size_t len = strlen(text);
    bool ends = text[len - 1] == '\n', ends_twice = ends && len > 1 && text[len - 2] == '\n';

    buf_add(out, ends_twice ? "|+" : ends ? "|" : "|-");
    for (const char *line = text; *line != '\0';) {
        size_t n = strcspn(line, "\n");
        buf_add(out, "\n");
        if (n > 0)
            add_indent(out, indent);
        buf_add_bytes(out, line, n);
        line += n;
        line += *line == '\n';
    }
}

static void add_number(struct buf *out, double number)
{
    char text[40];

    if (!isfinite(number)) {
        buf_add(out, "null");
        return;
    }
    if (number == floor(number) && fabs(number) < 1e15) {
        buf_addf(out, "%.0f", number == 0 ? 0.0 : number);
        return;
    }
    for (int digits = 15; digits <= 17; digits++) { /* the shortest that reads back as the same number */
        (void)snprintf(text, sizeof text, "%.*g", digits, number);
        if (strtod(text, NULL) == number)
            break;
    }
    buf_add(out, text);
}

static void add_text(struct buf *out, const char *text, size_t indent)
{
    if (is_plain(text))
        buf_add(out, text);
    else if (is_block(text))
        add_block(out, text, indent);
    else
        add_quoted(out, text);
}

static void add_scalar(struct buf *out, const cJSON *value, size_t indent)
{
    if (cJSON_IsString(value))
        add_text(out, value->valuestring, indent);
    else if (cJSON_IsNumber(value))
        add_number(out, value->valuedouble);
    else if (cJSON_IsBool(value))
        buf_add(out, cJSON_IsTrue(value) ? "true" : "false");
    else
        buf_add(out, cJSON_IsObject(value) ? "{}" : cJSON_IsArray(value) ? "[]" : "null");
}

static bool has_children(const cJSON *value)
{
    return (cJSON_IsObject(value) || cJSON_IsArray(value)) && value->child != NULL;
}

/* A key that is longer than a reader looks ahead for its colon is written as "? key". */
static void add_key(struct buf *out, const char *key, size_t indent)
{
    auto_buf struct buf written = BUF_INIT(PRINT_MAX);

    if (is_plain(key))
        buf_add(&written, key);
    else
        add_quoted(&written, key);
    if (written.len <= 1000) {
        buf_addf(out, "%s:", buf_text(&written));
        return;
    }
    buf_addf(out, "? %s\n", buf_text(&written));
    add_indent(out, indent);
    buf_add(out, ":");
}

/* The cursor stands at column `indent`, behind what belongs before it ("- "). Ends without a newline. */
static void add_collection(struct buf *out, const cJSON *value, size_t indent)
{
    bool object = cJSON_IsObject(value);
    const cJSON *child;

    cJSON_ArrayForEach(child, value) {
        if (child != value->child) {
            buf_add(out, "\n");
            add_indent(out, indent);
        }
        if (object)
            add_key(out, child->string, indent);
        else
            buf_add(out, "-");
        if (!has_children(child)) {
            buf_add(out, " ");
            add_scalar(out, child, indent + 2);
        } else if (object) {
            size_t deeper = cJSON_IsArray(child) ? indent : indent + 2; /* lists stand under their key, as kubectl writes them */
            buf_add(out, "\n");
            add_indent(out, deeper);
            add_collection(out, child, deeper);
        } else {
            buf_add(out, " ");
            add_collection(out, child, indent + 2);
        }
    }
}

char *yaml_print(const cJSON *tree)
{
    auto_buf struct buf out = BUF_INIT(PRINT_MAX);

    if (has_children(tree))
        add_collection(&out, tree, 0);
    else
        add_scalar(&out, tree, 2);
    buf_add(&out, "\n");
    if (!buf_ok(&out))
        abort();
    return buf_take(&out);
}
