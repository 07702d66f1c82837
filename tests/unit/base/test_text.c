#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"

Test(text, durations)
{
    static const struct { const char *text; bool ok; int64_t ms; } rows[] = {
        { "250ms", true, 250 },
        { "5s", true, 5000 },
        { "2m", true, 120000 },
        { "1h", true, 3600000 },
        { "1h30m", true, 5400000 },
        { "1m30s500ms", true, 90500 },
        { "7", true, 7000 },
        { "0", true, 0 },
        { "0.5", true, 500 },
        { "1.5h", true, 5400000 },
        { "0.0001s", true, 1 }, /* rounds up: a wait is never shorter than asked for */
        { "9223372036854775s", true, 9223372036854775000 },
        { "9223372036854776s", false, 0 },
        { "9223372036854775807h", false, 0 },
        { "", false, 0 },
        { "s", false, 0 },
        { "-5s", false, 0 },
        { "5 s", false, 0 },
        { "5d", false, 0 },
        { "1h30", false, 0 }, /* a bare number stands alone */
        { "1..5s", false, 0 },
        { ".", false, 0 },
        { "5s ", false, 0 },
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        int64_t ms = -1;
        bool ok = text_duration(rows[i].text, &ms);
        cr_expect_eq(ok, rows[i].ok, "case \"%s\"", rows[i].text);
        cr_expect_eq(ms, rows[i].ok ? rows[i].ms : -1, "case \"%s\": %lld", rows[i].text, (long long)ms);
    }
}

Test(text, quantities)
{
    static const struct { const char *text; bool ok; int64_t units; } rows[] = {
        { "0", true, 0 },
        { "4096", true, 4096 },
        { "64Mi", true, 67108864 },
        { "1Ki", true, 1024 },
        { "1.5Gi", true, 1610612736 },
        { "1G", true, 1000000000 },
        { "1k", true, 1000 },
        { "100m", true, 1 },  /* a tenth of a core is rounded up to a whole one */
        { "1500m", true, 2 },
        { "1n", true, 1 },
        { "0n", true, 0 },
        { "1e3", true, 1000 },
        { "1E3", true, 1000 },
        { "1E", true, 1000000000000000000 }, /* exa, not an exponent */
        { "1.25e2", true, 125 },
        { "1234e-3", true, 2 },
        { "1e-400", true, 1 },
        { "0e400", true, 0 },
        { "+5", true, 5 },
        { ".5Ki", true, 512 },
        { "7Ei", true, 8070450532247928832 },
        { "8Ei", false, 0 },
        { "1e19", false, 0 },
        { "-1", false, 0 },
        { "-0", true, 0 },
        { "", false, 0 },
        { "Mi", false, 0 },
        { "64MI", false, 0 },
        { "64mi", false, 0 },
        { "1 Gi", false, 0 },
        { "1e", false, 0 },
        { "0x10", false, 0 },
        { "99999999999999999999", false, 0 },
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        int64_t units = -1;
        bool ok = text_quantity(rows[i].text, &units);
        cr_expect_eq(ok, rows[i].ok, "case \"%s\"", rows[i].text);
        cr_expect_eq(units, rows[i].ok ? rows[i].units : -1, "case \"%s\": %lld", rows[i].text, (long long)units);
    }
}

Test(text, integers)
{
    static const struct { const char *text; bool ok; int64_t value; } rows[] = {
        { "0", true, 0 },
        { "-0", true, 0 },
        { "42", true, 42 },
        { "-42", true, -42 },
        { "007", true, 7 },
        { "9223372036854775807", true, INT64_MAX },
        { "-9223372036854775808", true, INT64_MIN },
        { "9223372036854775808", false, 0 },
        { "-9223372036854775809", false, 0 },
        { "", false, 0 },
        { "-", false, 0 },
        { "+1", false, 0 },
        { "1x", false, 0 },
        { " 1", false, 0 },
        { "1.0", false, 0 },
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        int64_t value = -77;
        bool ok = text_int(rows[i].text, &value);
        cr_expect_eq(ok, rows[i].ok, "case \"%s\"", rows[i].text);
        cr_expect_eq(value, rows[i].ok ? rows[i].value : -77, "case \"%s\"", rows[i].text);
    }
}

Test(text, names_as_kubernetes_checks_them)
{
    static const char long63[] = "a23456789012345678901234567890123456789012345678901234567890123";
    static const char long64[] = "a234567890123456789012345678901234567890123456789012345678901234";
    static const struct { const char *text; bool label, label1035, subdomain, env; } rows[] = {
        { "mnist", true, true, true, true },
        { "mnist-2", true, true, true, true },
        { "2mnist", true, false, true, false },
        { "a", true, true, true, true },
        { "", false, false, false, false },
        { "-a", false, false, false, true },
        { "a-", false, false, false, true },
        { "A", false, false, false, true },
        { "a_b", false, false, false, true },
        { "a.b", false, false, true, true },
        { "a..b", false, false, false, true },
        { ".a", false, false, false, true },
        { "a.", false, false, false, true },
        { "a b", false, false, false, false },
        { "a=b", false, false, false, false },
        { "\xc3\xa4", false, false, false, false },
        { long63, true, true, true, true },
        { long64, false, false, true, true },
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        cr_expect_eq(text_is_dns1123_label(rows[i].text), rows[i].label, "label \"%s\"", rows[i].text);
        cr_expect_eq(text_is_dns1035_label(rows[i].text), rows[i].label1035, "1035 label \"%s\"", rows[i].text);
        cr_expect_eq(text_is_dns1123_subdomain(rows[i].text), rows[i].subdomain, "subdomain \"%s\"", rows[i].text);
        cr_expect_eq(text_is_env_name(rows[i].text), rows[i].env, "variable \"%s\"", rows[i].text);
    }
}

Test(text, a_subdomain_has_at_most_253_characters)
{
    char text[255];

    memset(text, 'a', sizeof text);
    text[253] = '\0';
    cr_expect(text_is_dns1123_subdomain(text));
    text[253] = 'a';
    text[254] = '\0';
    cr_expect_not(text_is_dns1123_subdomain(text));
}

Test(text, the_nearest_name)
{
    static const char *const names[] = { "runPolicy", "replicaSpecs", "suspend", "failurePolicy", "np", NULL };
    static const struct { const char *text, *nearest; } rows[] = {
        { "runPolcy", "runPolicy" },
        { "runpolicy", "runPolicy" },
        { "runPloicy", "runPolicy" }, /* neighbours swapped: one mistake, not two */
        { "replicaSpec", "replicaSpecs" },
        { "suspended", "suspend" },
        { "failPolicy", "failurePolicy" },
        { "pn", "np" },
        { "xyzzy", NULL },
        { "q", NULL },
        { "", NULL },
        { "an extremely long word that no name is near to, longer than sixty-four characters", NULL },
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        const char *nearest = text_nearest(rows[i].text, names);
        if (rows[i].nearest == NULL)
            cr_expect_null(nearest, "case \"%s\": %s", rows[i].text, nearest);
        else
            cr_expect_str_eq(nearest != NULL ? nearest : "(none)", rows[i].nearest, "case \"%s\"", rows[i].text);
    }
}

Test(text, bytes_for_a_person)
{
    static const struct { uint64_t bytes; const char *text; } rows[] = {
        { 0, "0 B" },
        { 17, "17 B" },
        { 1023, "1023 B" },
        { 1024, "1.0 KiB" },
        { 319488, "312 KiB" },
        { 1048575, "1.0 MiB" },
        { 1610612736, "1.5 GiB" },
        { UINT64_MAX, "16.0 EiB" },
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        char text[TEXT_SIZE_MAX];
        cr_expect_str_eq(text_bytes(rows[i].bytes, text), rows[i].text, "case %s", rows[i].text);
    }
}

Test(text, what_is_no_text_is_replaced)
{
    static const struct { const char *raw, *text; } rows[] = {
        { "größe 🙂", "größe 🙂" }, { "a\xff" "b", "a?b" }, { "\xc3", "?" }, { "\xe2\x82", "??" }, { "a\x01\n", "a \n" },
        { "\xc0\xaf", "??" }, { "\xf5\x80\x80\x80", "????" },
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        char text[64];
        (void)snprintf(text, sizeof text, "%s", rows[i].raw);
        text_make_plain(text);
        cr_expect_str_eq(text, rows[i].text, "case %zu: %s", i, text);
    }
}

Test(text, a_tail_begins_with_a_whole_line_where_there_is_one)
{
    static const struct { const char *name, *bytes; size_t len; bool cut; size_t size; const char *text; } rows[] = {
        { "all of it", "one\ntwo\n", 8, false, 64, "one\ntwo" },
        { "line ends go", "one\r\n\n", 6, false, 64, "one" },
        { "what does not fit is cut at a line", "one\ntwo\nthree\n", 14, false, 10, "three" },
        { "one long line is cut anywhere", "abcdefghij", 10, false, 5, "ghij" },
        { "cut before: the first line is half a line", "lf\nwhole", 8, true, 64, "whole" },
        { "cut before and only one line", "lf", 2, true, 64, "lf" },
        { "nothing", "", 0, false, 64, "" },
        { "line ends alone", "\n\n", 2, true, 64, "" },
        { "a NUL is a blank", "a\0b", 3, false, 64, "a b" },
        { "half a character", "x\xc3", 2, false, 64, "x?" },
        { "no room", "abc", 3, false, 1, "" },
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        char text[64];
        text_tail(rows[i].bytes, rows[i].len, rows[i].cut, text, rows[i].size);
        cr_expect_str_eq(text, rows[i].text, "case %s: \"%s\"", rows[i].name, text);
    }
}
