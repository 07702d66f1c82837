#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/base64.h"
#include "base/mem.h"

static const struct { const char *plain, *text; } PAIRS[] = { /* RFC 4648, 10 */
    { "", "" }, { "f", "Zg==" }, { "fo", "Zm8=" }, { "foo", "Zm9v" }, { "foob", "Zm9vYg==" }, { "fooba", "Zm9vYmE=" }, { "foobar", "Zm9vYmFy" },
};

Test(base64, both_ways)
{
    for (size_t i = 0; i < COUNT(PAIRS); i++) {
        auto_free char *text = base64_encode(PAIRS[i].plain, strlen(PAIRS[i].plain));
        auto_free char *plain = NULL;
        size_t len;
        cr_expect_str_eq(text, PAIRS[i].text);
        cr_assert(base64_decode(PAIRS[i].text, strlen(PAIRS[i].text), &plain, &len), "%s", PAIRS[i].text);
        cr_expect(len == strlen(PAIRS[i].plain) && memcmp(plain, PAIRS[i].plain, len + 1) == 0, "%s", PAIRS[i].text);
    }
}

Test(base64, every_byte_survives)
{
    unsigned char bytes[256];
    auto_free char *plain = NULL;
    size_t len;

    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)i;
    auto_free char *text = base64_encode(bytes, sizeof bytes);
    cr_assert(base64_decode(text, strlen(text), &plain, &len));
    cr_expect(len == sizeof bytes && memcmp(plain, bytes, len) == 0);
}

Test(base64, folded_lines_are_read_and_what_does_not_belong_is_refused)
{
    static const char *const BAD[] = { "Zg", "Zg=", "Zg===", "Z===", "Zg==Zg==", "Zm9v!", "Zm9-", "=", "Zm=v" };
    auto_free char *plain = NULL;
    size_t len;

    cr_assert(base64_decode(" Zm9v\r\nYmFy\n\t", 12, &plain, &len));
    cr_expect_str_eq(plain, "foobar");
    for (size_t i = 0; i < COUNT(BAD); i++) {
        auto_free char *none = NULL;
        cr_expect_not(base64_decode(BAD[i], strlen(BAD[i]), &none, &len), "%s", BAD[i]);
    }
}
