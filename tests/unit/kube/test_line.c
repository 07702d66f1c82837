#include <criterion/criterion.h>
#include <string.h>

#include "base/mem.h"
#include "kube/line.h"

struct got { char text[512]; size_t lines; };

static void give(void *ctx, const char *line, size_t len)
{
    struct got *g = ctx;

    cr_assert_eq(strlen(line), len);
    size_t used = strlen(g->text);
    cr_assert_lt(used + len + 2, sizeof g->text);
    memcpy(g->text + used, line, len);
    memcpy(g->text + used + len, "|", 2);
    g->lines++;
}

static const struct { const char *name, *in, *out; } STREAMS[] = {
    { "one line", "alpha\n", "alpha|" },
    { "several", "a\nbb\nccc\n", "a|bb|ccc|" },
    { "carriage returns go", "a\r\nb\r\n", "a|b|" },
    { "empty lines are not given", "\n\na\n\r\n\nb\n", "a|b|" },
    { "what has no end is given at the end", "a\nrest", "a|rest|" },
    { "a carriage return within stays", "a\rb\n", "a\rb|" },
    { "nothing", "", "" },
};

Test(line, is_the_same_however_the_bytes_are_cut)
{
    for (size_t i = 0; i < COUNT(STREAMS); i++) {
        size_t len = strlen(STREAMS[i].in);
        for (size_t first = 0; first <= len; first++)
            for (size_t second = first; second <= len; second++) {
                struct kube_lines l;
                struct got g = { .text = "" };
                struct error e = ERROR_INIT;
                kube_lines_init(&l, 64, false);
                cr_assert_eq(kube_lines_feed(&l, STREAMS[i].in, first, give, &g, &e), 0);
                cr_assert_eq(kube_lines_feed(&l, STREAMS[i].in + first, second - first, give, &g, &e), 0);
                cr_assert_eq(kube_lines_feed(&l, STREAMS[i].in + second, len - second, give, &g, &e), 0);
                kube_lines_end(&l, give, &g);
                kube_lines_release(&l);
                cr_expect_str_eq(g.text, STREAMS[i].out, "case %s cut at %zu and %zu: %s", STREAMS[i].name, first, second, g.text);
            }
    }
}

Test(line, one_that_is_too_long_is_an_error_for_ever)
{
    struct kube_lines l;
    struct got g = { .text = "" };
    struct error e = ERROR_INIT;

    kube_lines_init(&l, 8, false);
    cr_expect_eq(kube_lines_feed(&l, "12345678\n", 9, give, &g, &e), 0, "as long as allowed");
    cr_expect_eq(kube_lines_feed(&l, "ok\n123456789", 12, give, &g, &e), -1);
    cr_expect_eq(e.kind, ERROR_LIMIT);
    cr_expect_eq(kube_lines_feed(&l, "\nshort\n", 7, give, &g, &e), -1, "nothing is given after a gap");
    kube_lines_end(&l, give, &g);
    cr_expect_str_eq(g.text, "12345678|ok|");
    kube_lines_release(&l);
}

Test(line, of_a_log_are_cut_instead)
{
    struct kube_lines l;
    struct got g = { .text = "" };
    struct error e = ERROR_INIT;

    kube_lines_init(&l, 4, true);
    cr_expect_eq(kube_lines_feed(&l, "abcdefghij\nk\n", 13, give, &g, &e), 0);
    cr_expect_str_eq(g.text, "abcd|efgh|ij|k|");
    kube_lines_release(&l);
}
