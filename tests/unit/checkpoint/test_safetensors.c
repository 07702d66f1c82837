#include <criterion/criterion.h>
#include <string.h>

#include "base/mem.h"
#include "checkpoint/safetensors.h"

static int parse(const char *json, uint64_t data_bytes, struct safetensors *ret, struct error *e)
{
    size_t n = strlen(json);
    auto_free uint8_t *image = xcalloc(1, 8 + n);
    for (int i = 0; i < 8; i++)
        image[i] = (uint8_t)(n >> (8 * i));
    memcpy(image + 8, json, n);
    return safetensors_parse(image, 8 + n, 8 + n + data_bytes, ret, e);
}

#define T(name, dtype, shape, offsets) "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static const struct { const char *name, *json; uint64_t data; size_t tensors; } GOOD[] = {
    { "nothing", "{}", 0, 0 },
    { "padded", "{}          ", 0, 0 },
    { "one", "{" T("w", "F32", "[2,3]", "[0,24]") "}", 24, 1 },
    { "a scalar", "{" T("w", "F64", "[]", "[0,8]") "}", 8, 1 },
    { "empty tensors", "{" T("a", "F32", "[0]", "[0,0]") "," T("b", "I8", "[3,0,7]", "[0,0]") "," T("c", "U8", "[1]", "[0,1]") "}", 1, 3 },
    { "out of order", "{" T("b", "I16", "[2]", "[4,8]") "," T("a", "I32", "[1]", "[0,4]") "}", 8, 2 },
    { "keys in another order", "{\"w\":{\"shape\":[4],\"data_offsets\":[0,4],\"dtype\":\"BOOL\"}}", 4, 1 },
    { "white space", "{ \"w\" :\n{\t\"dtype\" : \"U16\" , \"shape\" : [ 1 , 2 ] , \"data_offsets\" : [ 0 , 4 ] } }", 4, 1 },
    { "bits that fill bytes", "{" T("w", "F4", "[2]", "[0,1]") "}", 1, 1 },
    { "metadata", "{\"__metadata__\":{\"format\":\"pt\",\"a\":\"\"}," T("w", "U8", "[1]", "[0,1]") "}", 1, 1 },
    { "empty metadata", "{\"__metadata__\":{}}", 0, 0 },
    { "an escaped name", "{" T("a\\\"\\u00e9\\ud83d\\ude00\\n", "U8", "[1]", "[0,1]") "}", 1, 1 },
    { "a name in UTF-8", "{" T("caf\xc3\xa9", "U8", "[1]", "[0,1]") "}", 1, 1 },
};

Test(safetensors, reads_what_the_stock_reader_reads)
{
    for (size_t i = 0; i < COUNT(GOOD); i++) {
        struct safetensors s;
        struct error e = ERROR_INIT;
        cr_assert(parse(GOOD[i].json, GOOD[i].data, &s, &e) == 0, "case %s: %s", GOOD[i].name, e.text);
        cr_expect(s.tensor_count == GOOD[i].tensors, "case %s", GOOD[i].name);
        cr_expect(s.header_bytes == 8 + strlen(GOOD[i].json), "case %s", GOOD[i].name);
        safetensors_release(&s);
    }
}

Test(safetensors, says_what_a_tensor_is)
{
    struct safetensors s;
    struct error e = ERROR_INIT;
    cr_assert(parse("{\"__metadata__\":{\"step\":\"7\",\"format\":\"pt\"}," T("later \\u00e9", "F16", "[3,1]", "[8,14]") ","
                    T("first", "I64", "[1]", "[0,8]") "}", 14, &s, &e) == 0, "%s", e.text);
    cr_expect_str_eq(s.tensors[0].name, "first");
    cr_expect_str_eq(s.tensors[1].name, "later \xc3\xa9");
    cr_expect_str_eq(s.tensors[1].dtype, "F16");
    cr_expect(s.tensors[1].dims == 2 && s.tensors[1].shape[0] == 3 && s.tensors[1].shape[1] == 1);
    cr_expect(s.tensors[1].begin == 8 && s.tensors[1].end == 14);
    cr_expect_str_eq(safetensors_metadata(&s, "format"), "pt");
    cr_expect_str_eq(safetensors_metadata(&s, "step"), "7");
    cr_expect(safetensors_metadata(&s, "nothing") == NULL);
    safetensors_release(&s);
}

static const struct { const char *name, *json; uint64_t data; const char *says; } BAD[] = {
    { "no object", "[]", 0, "does not begin with {" },
    { "space first", " {}", 0, "does not begin with {" },
    { "not closed", "{\"w\":", 0, "expected the object" },
    { "something behind", "{}x", 0, "something follows" },
    { "trailing comma", "{" T("w", "U8", "[1]", "[0,1]") ",}", 1, "expected a string" },
    { "a hole", "{" T("a", "U8", "[1]", "[0,1]") "," T("b", "U8", "[1]", "[2,3]") "}", 3, "no holes" },
    { "an overlap", "{" T("a", "U8", "[2]", "[0,2]") "," T("b", "U8", "[2]", "[1,3]") "}", 3, "no holes" },
    { "not from 0", "{" T("a", "U8", "[1]", "[1,2]") "}", 2, "begins at 1, expected 0" },
    { "data missing", "{" T("a", "U8", "[2]", "[0,2]") "}", 1, "its tensors need 2" },
    { "data left over", "{" T("a", "U8", "[2]", "[0,2]") "}", 3, "its tensors need 2" },
    { "size and shape differ", "{" T("a", "F32", "[2]", "[0,4]") "}", 4, "expected 8 bytes" },
    { "end before begin", "{" T("a", "U8", "[0]", "[1,0]") "}", 0, "offsets 1 to 0" },
    { "shape overflows", "{" T("a", "U8", "[4294967296,4294967296,2]", "[0,0]") "}", 0, "does not fit 64 bits" },
    { "a number overflows", "{" T("a", "U8", "[18446744073709551616]", "[0,0]") "}", 0, "does not fit 64 bits" },
    { "half bytes", "{" T("a", "F4", "[3]", "[0,1]") "}", 1, "whole bytes" },
    { "unknown dtype", "{" T("a", "F31", "[1]", "[0,4]") "}", 4, "unknown dtype F31" },
    { "a float in a shape", "{" T("a", "U8", "[1.0]", "[0,1]") "}", 1, "expected , or ]" },
    { "a negative number", "{" T("a", "U8", "[-1]", "[0,1]") "}", 1, "expected a whole number" },
    { "a leading 0", "{" T("a", "U8", "[01]", "[0,1]") "}", 1, "begins with 0" },
    { "an exponent", "{" T("a", "U8", "[1e0]", "[0,1]") "}", 1, "expected , or ]" },
    { "one offset", "{" T("a", "U8", "[1]", "[0]") "}", 1, "needs two" },
    { "three offsets", "{" T("a", "U8", "[1]", "[0,1,2]") "}", 1, "too many" },
    { "no dtype", "{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "needs dtype, shape and data_offsets" },
    { "double key", "{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "double key dtype" },
    { "unknown key", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"x\":1}}", 1, "unknown key x" },
    { "double tensor", "{" T("a", "U8", "[0]", "[0,0]") "," T("a", "U8", "[1]", "[0,1]") "}", 1, "stands twice" },
    { "double tensor, written differently", "{" T("a", "U8", "[0]", "[0,0]") "," T("\\u0061", "U8", "[1]", "[0,1]") "}", 1, "stands twice" },
    { "double metadata", "{\"__metadata__\":{},\"__metadata__\":{}}", 0, "twice" },
    { "double metadata key", "{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0, "twice" },
    { "metadata that is no text", "{\"__metadata__\":{\"a\":1}}", 0, "expected a string" },
    { "metadata that is no object", "{\"__metadata__\":null}", 0, "__metadata__" },
    { "a lone surrogate", "{" T("\\ud800", "U8", "[0]", "[0,0]") "}", 0, "surrogate" },
    { "a low surrogate first", "{" T("\\udc00\\ud800", "U8", "[0]", "[0,0]") "}", 0, "surrogate" },
    { "a NUL in a name", "{" T("a\\u0000b", "U8", "[0]", "[0,0]") "}", 0, "NUL" },
    { "a control character", "{" T("a\nb", "U8", "[0]", "[0,0]") "}", 0, "control character" },
    { "a bad escape", "{" T("\\x41", "U8", "[0]", "[0,0]") "}", 0, "escape" },
    { "overlong UTF-8", "{" T("\xc0\x80", "U8", "[0]", "[0,0]") "}", 0, "not UTF-8" },
    { "a surrogate in UTF-8", "{" T("\xed\xa0\x80", "U8", "[0]", "[0,0]") "}", 0, "not UTF-8" },
    { "cut UTF-8", "{\"\xe2\x82", 0, "not UTF-8" },
    { "33 dimensions", "{" T("a", "U8", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "[0,1]") "}", 1, "too many" },
};

Test(safetensors, refuses_everything_else_and_says_why)
{
    for (size_t i = 0; i < COUNT(BAD); i++) {
        struct safetensors s;
        struct error e = ERROR_INIT;
        cr_expect(parse(BAD[i].json, BAD[i].data, &s, &e) != 0, "case %s", BAD[i].name);
        cr_expect(strstr(e.text, BAD[i].says) != NULL, "case %s: %s", BAD[i].name, e.text);
    }
}

Test(safetensors, trusts_no_length)
{
    static const struct { const char *name; uint64_t n, image; size_t have; } LENGTHS[] = {
        { "shorter than a length", 2, 7, 7 }, { "beyond the image", 100, 50, 50 }, { "beyond the ceiling", SAFETENSORS_MAX_HEADER + 1ull, 1ull << 40, 64 },
        { "beyond everything", UINT64_MAX, UINT64_MAX, 64 }, { "nothing", 0, 8, 8 }, { "cut", 30, 64, 20 },
    };
    for (size_t i = 0; i < COUNT(LENGTHS); i++) {
        struct safetensors s;
        struct error e = ERROR_INIT;
        auto_free uint8_t *image = xcalloc(1, LENGTHS[i].have + 8);
        for (int b = 0; b < 8; b++)
            image[b] = (uint8_t)(LENGTHS[i].n >> (8 * b));
        image[8 < LENGTHS[i].have ? 8 : 0] = '{';
        cr_expect(safetensors_parse(image, LENGTHS[i].have, LENGTHS[i].image, &s, &e) != 0, "case %s", LENGTHS[i].name);
    }
}
