#include "checkpoint/safetensors.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static const struct { const char *name; unsigned bits; } DTYPES[] = {
    { "BOOL", 8 }, { "F4", 4 }, { "F6_E2M3", 6 }, { "F6_E3M2", 6 }, { "U8", 8 }, { "I8", 8 }, { "F8_E5M2", 8 }, { "F8_E4M3", 8 },
    { "F8_E8M0", 8 }, { "F8_E4M3FNUZ", 8 }, { "F8_E5M2FNUZ", 8 }, { "I16", 16 }, { "U16", 16 }, { "F16", 16 }, { "BF16", 16 },
    { "I32", 32 }, { "U32", 32 }, { "F32", 32 }, { "C64", 64 }, { "F64", 64 }, { "I64", 64 }, { "U64", 64 },
};

unsigned safetensors_dtype_bits(const char *dtype)
{
    for (size_t i = 0; i < COUNT(DTYPES); i++)
        if (strcmp(DTYPES[i].name, dtype) == 0)
            return DTYPES[i].bits;
    return 0;
}

/* A reader of the one JSON shape that a header has. It decodes strings in place into its own copy of the text: a decoded
 * string is never longer than its source. */
struct reader {
    char *at, *start;
    struct error *e;
};

static int bad(const struct reader *r, const char *what)
{
    return error_set(r->e, ERROR_INVALID, "safetensors header, byte %zu: %s", (size_t)(r->at - r->start), what);
}

static void skip_space(struct reader *r)
{
    while (*r->at == ' ' || *r->at == '\t' || *r->at == '\n' || *r->at == '\r')
        r->at++;
}

static bool take(struct reader *r, char c)
{
    skip_space(r);
    if (*r->at != c)
        return false;
    r->at++;
    return true;
}

static int expect(struct reader *r, char c, const char *what)
{
    return take(r, c) ? 0 : bad(r, what);
}

static bool take_hex4(struct reader *r, uint32_t *ret_unit)
{
    uint32_t unit = 0;
    for (int i = 0; i < 4; i++, r->at++) {
        char c = *r->at;
        if (c >= '0' && c <= '9')
            unit = unit << 4 | (uint32_t)(c - '0');
        else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'))
            unit = unit << 4 | (uint32_t)((c | 0x20) - 'a' + 10);
        else
            return false;
    }
    *ret_unit = unit;
    return true;
}

static char *put_utf8(char *to, uint32_t code)
{
    if (code < 0x80) {
        *to++ = (char)code;
    } else if (code < 0x800) {
        *to++ = (char)(0xc0 | code >> 6);
        *to++ = (char)(0x80 | (code & 0x3f));
    } else if (code < 0x10000) {
        *to++ = (char)(0xe0 | code >> 12);
        *to++ = (char)(0x80 | (code >> 6 & 0x3f));
        *to++ = (char)(0x80 | (code & 0x3f));
    } else {
        *to++ = (char)(0xf0 | code >> 18);
        *to++ = (char)(0x80 | (code >> 12 & 0x3f));
        *to++ = (char)(0x80 | (code >> 6 & 0x3f));
        *to++ = (char)(0x80 | (code & 0x3f));
    }
    return to;
}

/* Behind a backslash. */
static int take_escape(struct reader *r, char **to)
{
    static const char from[] = "\"\\/bfnrt", into[] = "\"\\/\b\f\n\r\t";
    char c = *r->at;
    const char *simple = c != '\0' ? strchr(from, c) : NULL;
    if (simple != NULL) {
        r->at++;
        *(*to)++ = into[simple - from];
        return 0;
    }
    uint32_t code, low;
    if (c != 'u')
        return bad(r, "no such escape in a string");
    r->at++;
    if (!take_hex4(r, &code))
        return bad(r, "expected four hex digits behind \\u");
    if (code >= 0xd800 && code < 0xdc00) {
        if (r->at[0] != '\\' || r->at[1] != 'u')
            return bad(r, "a surrogate stands alone");
        r->at += 2;
        if (!take_hex4(r, &low) || low < 0xdc00 || low > 0xdfff)
            return bad(r, "a surrogate stands alone");
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    } else if (code >= 0xdc00 && code < 0xe000) {
        return bad(r, "a surrogate stands alone");
    }
    if (code == 0)
        return bad(r, "a string holds a NUL");
    *to = put_utf8(*to, code);
    return 0;
}

static int take_string(struct reader *r, char **ret_text)
{
    if (!take(r, '"'))
        return bad(r, "expected a string");
    char *text = r->at, *to = r->at;
    while (*r->at != '"') {
        if ((unsigned char)*r->at < 0x20)
            return bad(r, "a string is not closed or holds a control character");
        if (*r->at != '\\') {
            *to++ = *r->at++;
            continue;
        }
        r->at++;
        if (take_escape(r, &to) != 0)
            return -1;
    }
    r->at++;
    *to = '\0'; /* at or before the closing quote, which has been read */
    *ret_text = text;
    return 0;
}

static int take_u64(struct reader *r, uint64_t *ret_value)
{
    skip_space(r);
    const char *digits = r->at;
    uint64_t value = 0;
    for (; *r->at >= '0' && *r->at <= '9'; r->at++) {
        if (__builtin_mul_overflow(value, 10u, &value) || __builtin_add_overflow(value, (uint64_t)(*r->at - '0'), &value))
            return bad(r, "a number does not fit 64 bits");
    }
    if (r->at == digits)
        return bad(r, "expected a whole number");
    if (*digits == '0' && r->at - digits > 1)
        return bad(r, "a number begins with 0");
    *ret_value = value;
    return 0;
}

static int take_array(struct reader *r, uint64_t *values, uint32_t max, uint32_t *ret_count)
{
    uint32_t count = 0;
    if (expect(r, '[', "expected an array") != 0)
        return -1;
    if (!take(r, ']')) {
        do {
            if (count == max)
                return bad(r, "an array has too many numbers");
            if (take_u64(r, &values[count++]) != 0)
                return -1;
        } while (take(r, ','));
        if (expect(r, ']', "expected , or ] in an array") != 0)
            return -1;
    }
    *ret_count = count;
    return 0;
}

static int take_dtype(struct reader *r, struct safetensors_tensor *t, unsigned *ret_bits)
{
    char *name;
    if (take_string(r, &name) != 0)
        return -1;
    for (size_t i = 0; i < COUNT(DTYPES); i++)
        if (strcmp(DTYPES[i].name, name) == 0) {
            t->dtype = DTYPES[i].name;
            *ret_bits = DTYPES[i].bits;
            return 0;
        }
    return error_set(r->e, ERROR_INVALID, "safetensors header: tensor %.80s has the unknown dtype %.40s", t->name, name);
}

static int check_size(const struct safetensors_tensor *t, unsigned bits, struct error *e)
{
    uint64_t size = bits;
    for (uint32_t i = 0; i < t->dims; i++)
        if (__builtin_mul_overflow(size, t->shape[i], &size))
            return error_set(e, ERROR_INVALID, "safetensors header: tensor %.80s has a shape that does not fit 64 bits", t->name);
    if (size % 8 != 0)
        return error_set(e, ERROR_INVALID, "safetensors header: tensor %.80s does not fill whole bytes", t->name);
    if (t->begin > t->end || t->end - t->begin != size / 8)
        return error_set(e, ERROR_INVALID, "safetensors header: tensor %.80s has offsets %" PRIu64 " to %" PRIu64
                         ", expected %" PRIu64 " bytes by its shape and dtype", t->name, t->begin, t->end, size / 8);
    return 0;
}

/* {"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}, keys in any order, each once. */
static int take_tensor(struct reader *r, struct safetensors_tensor *t)
{
    enum { DTYPE = 1, SHAPE = 2, OFFSETS = 4 };
    unsigned seen = 0, bits = 0;
    if (expect(r, '{', "expected the object of a tensor") != 0)
        return -1;
    do {
        char *key;
        if (take_string(r, &key) != 0 || expect(r, ':', "expected :") != 0)
            return -1;
        unsigned which = strcmp(key, "dtype") == 0 ? DTYPE : strcmp(key, "shape") == 0 ? SHAPE : strcmp(key, "data_offsets") == 0 ? OFFSETS : 0;
        if (which == 0 || (seen & which) != 0)
            return error_set(r->e, ERROR_INVALID, "safetensors header: tensor %.80s has the %s key %.40s", t->name,
                             which == 0 ? "unknown" : "double", key);
        seen |= which;
        uint64_t offsets[2];
        uint32_t count = 2;
        int result = which == DTYPE ? take_dtype(r, t, &bits)
                   : which == SHAPE ? take_array(r, t->shape, SAFETENSORS_MAX_DIMS, &t->dims) : take_array(r, offsets, 2, &count);
        if (result != 0)
            return -1;
        if (count != 2)
            return bad(r, "data_offsets needs two numbers");
        if (which == OFFSETS) {
            t->begin = offsets[0];
            t->end = offsets[1];
        }
    } while (take(r, ','));
    if (expect(r, '}', "expected , or } in a tensor") != 0)
        return -1;
    if (seen != (DTYPE | SHAPE | OFFSETS))
        return error_set(r->e, ERROR_INVALID, "safetensors header: tensor %.80s needs dtype, shape and data_offsets", t->name);
    return check_size(t, bits, r->e);
}

static int take_metadata(struct reader *r, struct safetensors *s)
{
    size_t cap = 0;
    if (expect(r, '{', "expected the object of __metadata__") != 0)
        return -1;
    if (take(r, '}'))
        return 0;
    do {
        char *key, *value;
        if (take_string(r, &key) != 0 || expect(r, ':', "expected :") != 0 || take_string(r, &value) != 0)
            return -1;
        if (s->metadata_count == cap) {
            cap = cap > 0 ? cap * 2 : 16;
            s->metadata = xrealloc(s->metadata, cap, sizeof(*s->metadata));
        }
        s->metadata[s->metadata_count++] = (struct safetensors_pair){ key, value };
    } while (take(r, ','));
    return expect(r, '}', "expected , or } in __metadata__");
}

static int take_header(struct reader *r, struct safetensors *s)
{
    size_t cap = 0;
    bool has_metadata = false;
    if (expect(r, '{', "expected {") != 0)
        return -1;
    if (!take(r, '}')) {
        do {
            char *name;
            if (take_string(r, &name) != 0 || expect(r, ':', "expected :") != 0)
                return -1;
            if (strcmp(name, "__metadata__") == 0) {
                if (has_metadata)
                    return bad(r, "__metadata__ stands twice");
                has_metadata = true;
                if (take_metadata(r, s) != 0)
                    return -1;
                continue;
            }
            if (s->tensor_count == cap) {
                cap = cap > 0 ? cap * 2 : 16;
                s->tensors = xrealloc(s->tensors, cap, sizeof(*s->tensors));
            }
            struct safetensors_tensor *t = &s->tensors[s->tensor_count++];
            *t = (struct safetensors_tensor){ .name = name };
            if (take_tensor(r, t) != 0)
                return -1;
        } while (take(r, ','));
        if (expect(r, '}', "expected , or } behind a tensor") != 0)
            return -1;
    }
    skip_space(r);
    return *r->at == '\0' ? 0 : bad(r, "something follows the header's object");
}

static int by_offset(const void *a, const void *b)
{
    const struct safetensors_tensor *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int by_key(const void *a, const void *b)
{
    return strcmp(((const struct safetensors_pair *)a)->key, ((const struct safetensors_pair *)b)->key);
}

static int check_names(const struct safetensors *s, struct error *e)
{
    auto_free const char **names = xcalloc(s->tensor_count + 1, sizeof(*names));
    for (size_t i = 0; i < s->tensor_count; i++)
        names[i] = s->tensors[i].name;
    qsort(names, s->tensor_count, sizeof(*names), by_name);
    for (size_t i = 1; i < s->tensor_count; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            return error_set(e, ERROR_INVALID, "safetensors header: tensor %.80s stands twice", names[i]);
    if (s->metadata_count > 1)
        qsort(s->metadata, s->metadata_count, sizeof(*s->metadata), by_key);
    for (size_t i = 1; i < s->metadata_count; i++)
        if (strcmp(s->metadata[i - 1].key, s->metadata[i].key) == 0)
            return error_set(e, ERROR_INVALID, "safetensors header: __metadata__ has the key %.80s twice", s->metadata[i].key);
    return 0;
}

static int check_offsets(struct safetensors *s, uint64_t image_bytes, struct error *e)
{
    if (s->tensor_count > 1)
        qsort(s->tensors, s->tensor_count, sizeof(*s->tensors), by_offset);
    uint64_t end = 0;
    for (size_t i = 0; i < s->tensor_count; i++) {
        if (s->tensors[i].begin != end)
            return error_set(e, ERROR_INVALID, "safetensors header: tensor %.80s begins at %" PRIu64 ", expected %" PRIu64
                             " (no holes, no overlap)", s->tensors[i].name, s->tensors[i].begin, end);
        end = s->tensors[i].end;
    }
    if (image_bytes - s->header_bytes != end)
        return error_set(e, ERROR_INVALID, "safetensors image of %" PRIu64 " bytes holds %" PRIu64 " bytes behind its header, its "
                         "tensors need %" PRIu64, image_bytes, image_bytes - s->header_bytes, end);
    return 0;
}

/* RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF. */
static bool is_utf8(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint8_t c = p[i++];
        if (c < 0x80)
            continue;
        unsigned more = c >= 0xc2 && c <= 0xdf ? 1 : (c & 0xf0) == 0xe0 ? 2 : c >= 0xf0 && c <= 0xf4 ? 3 : 0;
        if (more == 0 || n - i < more)
            return false;
        uint8_t least = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80, most = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
        if (p[i] < least || p[i] > most)
            return false;
        for (i++; more > 1; more--, i++)
            if ((p[i] & 0xc0) != 0x80)
                return false;
    }
    return true;
}

int safetensors_header_bytes(const void *bytes, size_t len, uint64_t image_bytes, uint64_t *ret_header_bytes, struct error *e)
{
    const uint8_t *p = bytes;
    if (len < 8 || image_bytes < 8)
        return error_set(e, ERROR_INVALID, "safetensors image of %" PRIu64 " bytes is too short for a header", image_bytes);
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--)
        n = n << 8 | p[i];
    if (n > SAFETENSORS_MAX_HEADER)
        return error_set(e, ERROR_LIMIT, "safetensors header of %" PRIu64 " bytes is over the limit of %u", n, SAFETENSORS_MAX_HEADER);
    if (n < 2 || n > image_bytes - 8)
        return error_set(e, ERROR_INVALID, "safetensors header of %" PRIu64 " bytes does not fit an image of %" PRIu64, n, image_bytes);
    *ret_header_bytes = 8 + n;
    return 0;
}

int safetensors_parse(const void *bytes, size_t len, uint64_t image_bytes, struct safetensors *ret_header, struct error *e)
{
    struct safetensors s = { .header_bytes = 0 };
    if (safetensors_header_bytes(bytes, len, image_bytes, &s.header_bytes, e) != 0)
        return -1;
    if (len < s.header_bytes)
        return error_set(e, ERROR_INVALID, "safetensors header of %" PRIu64 " bytes is cut at %zu", s.header_bytes, len);
    size_t n = (size_t)s.header_bytes - 8;
    const char *json = (const char *)bytes + 8;
    if (json[0] != '{')
        return error_set(e, ERROR_INVALID, "safetensors header does not begin with {");
    if (memchr(json, '\0', n) != NULL)
        return error_set(e, ERROR_INVALID, "safetensors header holds a NUL byte");
    if (!is_utf8((const uint8_t *)json, n))
        return error_set(e, ERROR_INVALID, "safetensors header is not UTF-8");
    s.text = xstrndup(json, n);
    struct reader r = { .at = s.text, .start = s.text, .e = e };
    if (take_header(&r, &s) != 0 || check_names(&s, e) != 0 || check_offsets(&s, image_bytes, e) != 0) {
        safetensors_release(&s);
        return -1;
    }
    *ret_header = s;
    return 0;
}

void safetensors_release(struct safetensors *s)
{
    free(s->tensors);
    free(s->metadata);
    free(s->text);
    *s = (struct safetensors){ .header_bytes = 0 };
}

const char *safetensors_metadata(const struct safetensors *s, const char *key)
{
    for (size_t i = 0; i < s->metadata_count; i++)
        if (strcmp(s->metadata[i].key, key) == 0)
            return s->metadata[i].value;
    return NULL;
}
