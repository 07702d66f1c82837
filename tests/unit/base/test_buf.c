#include "base/buf.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

Test(buf, text_is_always_a_c_string)
{
    auto_buf struct buf b = BUF_INIT(1000);

    cr_expect_str_eq(buf_text(&b), "");
    buf_add(&b, "a");
    buf_addf(&b, "%d-%s", 7, "x");
    buf_add_bytes(&b, "yz", 2);
    cr_expect_str_eq(buf_text(&b), "a7-xyz");
    cr_expect_eq(b.len, 6);
    buf_consume(&b, 2);
    cr_expect_str_eq(buf_text(&b), "-xyz");
    buf_consume(&b, 99);
    cr_expect_str_eq(buf_text(&b), "");
}

Test(buf, overflow_is_sticky_and_adds_nothing)
{
    auto_buf struct buf b = BUF_INIT(5);

    buf_add(&b, "12345");
    cr_expect(buf_ok(&b));
    buf_add(&b, "6");
    cr_expect_not(buf_ok(&b));
    buf_clear(&b);
    buf_addf(&b, "%s", "123456");
    cr_expect_not(buf_ok(&b));
    cr_expect_eq(b.len, 0);
    buf_add(&b, "1");
    cr_expect_eq(b.len, 0, "after an overflow nothing is added until it is cleared");
}

Test(buf, json_strings_are_escaped)
{
    static const struct { const char *name, *text, *expected; } rows[] = {
        { "plain", "abc", "\"abc\"" },
        { "quote and backslash", "a\"b\\c", "\"a\\\"b\\\\c\"" },
        { "line ends and tab", "\n\r\t", "\"\\n\\r\\t\"" },
        { "control character", "\x01", "\"\\u0001\"" },
        { "UTF-8 stays", "ä", "\"ä\"" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        auto_buf struct buf b = BUF_INIT(100);
        buf_add_json_string(&b, rows[i].text);
        cr_expect_str_eq(buf_text(&b), rows[i].expected, "case %s: %s", rows[i].name, buf_text(&b));
    }
}

Test(buf, take_gives_the_text_away)
{
    struct buf b = BUF_INIT(100);

    buf_add(&b, "mine");
    char *text = buf_take(&b);
    cr_expect_str_eq(text, "mine");
    cr_expect_eq(b.len, 0);
    free(text);
    text = buf_take(&b);
    cr_expect_str_eq(text, "");
    free(text);
}
