#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "kube/strip.h"
#include "tests/unit/quietly.h"

static const char *const PATHS[] = { "metadata.managedFields", "spec.containers.env", "spec.volumes", NULL };

static const struct { const char *name, *under, *in, *out; } ROWS[] = {
    { "nothing to leave out", NULL, "{\"a\":1}", "{\"a\":1}" },
    { "a member", NULL, "{\"metadata\":{\"name\":\"x\",\"managedFields\":[{\"a\":{}}],\"uid\":\"u\"}}",
      "{\"metadata\":{\"name\":\"x\",\"managedFields\":null,\"uid\":\"u\"}}" },
    { "in every element of an array", NULL, "{\"spec\":{\"containers\":[{\"name\":\"a\",\"env\":[1,[2]]},{\"env\":{},\"name\":\"b\"}]}}",
      "{\"spec\":{\"containers\":[{\"name\":\"a\",\"env\":null},{\"env\":null,\"name\":\"b\"}]}}" },
    { "only at its place", NULL, "{\"managedFields\":1,\"spec\":{\"managedFields\":2,\"env\":3},\"volumes\":4}",
      "{\"managedFields\":1,\"spec\":{\"managedFields\":2,\"env\":3},\"volumes\":4}" },
    { "a key that begins alike stays", NULL, "{\"spec\":{\"volume\":1,\"volumesX\":2,\"volumes\":3}}", "{\"spec\":{\"volume\":1,\"volumesX\":2,\"volumes\":null}}" },
    { "a key with a dot is one key", NULL, "{\"spec.volumes\":1,\"spec\":{\"containers.env\":2}}", "{\"spec.volumes\":1,\"spec\":{\"containers.env\":2}}" },
    { "brackets and quotes in texts", NULL, "{\"spec\":{\"volumes\":\"]}\\\"[{\",\"x\":\"\\\\\",\"volumes\":\"\\\\\"}}", "{\"spec\":{\"volumes\":null,\"x\":\"\\\\\",\"volumes\":null}}" },
    { "numbers and words", NULL, "{\"spec\":{\"volumes\":-1.5e3,\"a\":true,\"volumes\":null}}", "{\"spec\":{\"volumes\":null,\"a\":true,\"volumes\":null}}" },
    { "space stays where it is", NULL, " { \"spec\" : { \"volumes\" : [ 1 , 2 ] , \"a\" : 1 } } ", " { \"spec\" : { \"volumes\" : null , \"a\" : 1 } } " },
    { "under a member", "object", "{\"type\":\"ADDED\",\"object\":{\"spec\":{\"volumes\":[1]}},\"spec\":{\"volumes\":[2]}}",
      "{\"type\":\"ADDED\",\"object\":{\"spec\":{\"volumes\":null}},\"spec\":{\"volumes\":[2]}}" },
    { "under a list", "items", "{\"items\":[{\"spec\":{\"volumes\":[1]}},{\"spec\":{\"volumes\":2}}],\"kind\":\"L\"}",
      "{\"items\":[{\"spec\":{\"volumes\":null}},{\"spec\":{\"volumes\":null}}],\"kind\":\"L\"}" },
    { "no object", NULL, "[1,2]", "[1,2]" },
    { "nothing", NULL, "", "" },
    { "no JSON", NULL, "{\"spec\":{volumes:1}}", "{\"spec\":{volumes:1}}" },
    { "no value", NULL, "{\"spec\":{\"volumes\"}}", "{\"spec\":{\"volumes\"}}" },
    { "no JSON under a member", "object", "{\"type\":,\"object\"", "{\"type\":,\"object\"" },
    { "it ends within what is left out", NULL, "{\"spec\":{\"volumes\":[{\"a\":\"b", "{\"spec\":{\"volumes\":null" },
};

static char *strip(const char *text, size_t len, const char *under)
{
    struct buf out = BUF_INIT(1u << 20);

    kube_strip(text, len, under, PATHS, &out);
    return buf_take(&out);
}

Test(strip, leaves_out_what_is_named_and_nothing_else)
{
    for (size_t i = 0; i < COUNT(ROWS); i++) {
        auto_free char *got = strip(ROWS[i].in, strlen(ROWS[i].in), ROWS[i].under);
        cr_expect_str_eq(got != NULL ? got : "", ROWS[i].out, "case %s: %s", ROWS[i].name, got);
    }
}

/* The text has no NUL behind it: a step too far is seen by the sanitizer. */
Test(strip, keeps_within_its_bytes_wherever_the_text_ends)
{
    for (size_t i = 0; i < COUNT(ROWS); i++) {
        for (size_t len = 0; len <= strlen(ROWS[i].in); len++) {
            char *exact = malloc(len + (len == 0));
            memcpy(exact, ROWS[i].in, len);
            auto_free char *got = strip(exact, len, ROWS[i].under);
            QUIETLY(got == NULL || strlen(got) <= len + 3 * strlen("null"), "case %s, cut at %zu: %s", ROWS[i].name, len, got);
            free(exact);
        }
    }
}

Test(strip, goes_no_deeper_than_it_has_to)
{
    enum { DEEP = 200000 };
    auto_free char *text = xcalloc(2 * DEEP + 64, 1);
    size_t len = (size_t)sprintf(text, "{\"spec\":");

    memset(text + len, '[', DEEP);
    memset(text + len + DEEP, ']', DEEP);
    len += 2 * DEEP;
    text[len++] = '}';
    auto_free char *got = strip(text, len, NULL);
    cr_assert_eq(strlen(got), len);
    cr_assert(memcmp(got, text, len) == 0);
}
