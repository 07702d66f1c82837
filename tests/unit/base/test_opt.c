#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/opt.h"

struct options {
    bool verbose, color;
    int64_t port, timeout_ms, memory;
    const char *dir, *file;
    int mode;
    struct opt_list hosts;
    int64_t np;
};

static const char *const MODES[] = { "auto", "native", "none", NULL };

static const struct opt_def DEFS[] = {
    { .flag = "verbose", .letter = 'v', .type = OPT_BOOL, .at = OPT_AT(struct options, verbose, bool), .help = "say more" },
    { .flag = "color", .type = OPT_BOOL, .def = "true", .at = OPT_AT(struct options, color, bool), .help = "use colour" },
    { .flag = "port", .letter = 'p', .env = "TEST_OPT_PORT", .def = "7700", .type = OPT_INT, .min = 1, .max = 65535,
      .at = OPT_AT(struct options, port, int64_t), .value = "PORT", .help = "listen here" },
    { .flag = "timeout", .def = "5s", .type = OPT_DURATION, .min = 100, .max = 60000,
      .at = OPT_AT(struct options, timeout_ms, int64_t), .value = "TIME", .help = "give up after this long" },
    { .flag = "memory", .def = "64Mi", .type = OPT_SIZE, .min = 1024, .max = 1 << 30,
      .at = OPT_AT(struct options, memory, int64_t), .value = "SIZE", .help = "use so much" },
    { .flag = "job-dir", .env = "TEST_OPT_DIR", .type = OPT_TEXT, .at = OPT_AT(struct options, dir, const char *), .value = "DIR",
      .help = "keep everything about the job in this directory, which is made when it is not there and is left when the job ends" },
    { .flag = "file", .letter = 'f', .type = OPT_TEXT, .at = OPT_AT(struct options, file, const char *), .value = "FILE", .help = "read this" },
    { .flag = "mode", .env = "TEST_OPT_MODE", .def = "auto", .type = OPT_ENUM, .names = MODES, .at = OPT_AT(struct options, mode, int),
      .value = "MODE", .help = "how" },
    { .flag = "host", .letter = 'H', .env = "TEST_OPT_HOST", .type = OPT_LIST, .at = OPT_AT(struct options, hosts, struct opt_list),
      .value = "HOST", .help = "may be repeated" },
    { .flag = "np", .type = OPT_INT, .at = OPT_AT(struct options, np, int64_t), .value = "N", .help = "processes", .hidden = true },
};

struct run { int result, next; bool help; struct options options; struct error e; char *argv[16]; int argc; };

/* Parses words; the last of them is NULL. */
static void parse(struct run *r, const char *const *words, bool stop_at_word)
{
    *r = (struct run){ .next = -1, .e = ERROR_INIT };
    r->argv[r->argc++] = (char *)"program";
    for (; *words != NULL; words++)
        r->argv[r->argc++] = (char *)*words;
    r->result = opt_parse(DEFS, COUNT(DEFS), r->argc, r->argv, stop_at_word, &r->options, &r->next, &r->help, &r->e);
}

#define PARSE(r, stop, ...) parse((r), (const char *const[]){ __VA_ARGS__ __VA_OPT__(,) NULL }, (stop))

static void release(struct run *r)
{
    opt_release(DEFS, COUNT(DEFS), &r->options);
}

Test(opt, defaults_fill_what_is_not_said)
{
    struct run r;

    PARSE(&r, false);
    cr_assert_eq(r.result, 0, "%s", r.e.text);
    cr_expect_not(r.options.verbose);
    cr_expect(r.options.color);
    cr_expect_eq(r.options.port, 7700);
    cr_expect_eq(r.options.timeout_ms, 5000);
    cr_expect_eq(r.options.memory, 64 << 20);
    cr_expect_null(r.options.dir);
    cr_expect_eq(r.options.mode, 0);
    cr_expect_eq(r.options.hosts.count, 0);
    cr_expect_eq(r.next, 1);
    release(&r);
}

Test(opt, every_way_to_write_a_flag)
{
    struct run r;

    PARSE(&r, false, "-v", "--no-color", "-p1", "--timeout=250ms", "--memory", "1Ki", "--job-dir=", "-f=a.yaml", "--mode", "none", "-np", "4");
    cr_assert_eq(r.result, 0, "%s", r.e.text);
    cr_expect(r.options.verbose);
    cr_expect_not(r.options.color);
    cr_expect_eq(r.options.port, 1);
    cr_expect_eq(r.options.timeout_ms, 250);
    cr_expect_eq(r.options.memory, 1024);
    cr_expect_str_eq(r.options.dir, "");
    cr_expect_str_eq(r.options.file, "a.yaml");
    cr_expect_eq(r.options.mode, 2);
    cr_expect_eq(r.options.np, 4);
    release(&r);
}

Test(opt, booleans_take_a_value_only_behind_an_equals_sign)
{
    struct run r;

    PARSE(&r, false, "--verbose=false", "--color", "false");
    cr_assert_eq(r.result, 0, "%s", r.e.text);
    cr_expect_not(r.options.verbose);
    cr_expect(r.options.color);
    cr_expect_str_eq(r.argv[r.next], "false");
    release(&r);
}

Test(opt, a_flag_wins_over_the_environment_and_that_over_the_default)
{
    struct run r;

    cr_assert_eq(setenv("TEST_OPT_PORT", "81", 1), 0);
    cr_assert_eq(setenv("TEST_OPT_MODE", "", 1), 0); /* says nothing */
    cr_assert_eq(setenv("TEST_OPT_DIR", "", 1), 0);  /* a text may be empty */
    PARSE(&r, false);
    cr_assert_eq(r.result, 0, "%s", r.e.text);
    cr_expect_eq(r.options.port, 81);
    cr_expect_eq(r.options.mode, 0);
    cr_expect_str_eq(r.options.dir, "");
    release(&r);

    PARSE(&r, false, "--port", "82");
    cr_assert_eq(r.result, 0, "%s", r.e.text);
    cr_expect_eq(r.options.port, 82);
    release(&r);
}

Test(opt, a_broken_variable_does_not_matter_when_the_flag_is_given)
{
    struct run r;

    cr_assert_eq(setenv("TEST_OPT_PORT", "many", 1), 0);
    PARSE(&r, false, "--port", "82");
    cr_expect_eq(r.result, 0, "%s", r.e.text);
    release(&r);
    PARSE(&r, false);
    cr_expect_eq(r.result, -1);
    cr_expect_str_eq(r.e.text, "environment variable TEST_OPT_PORT: found \"many\", expected an integer from 1 to 65535");
}

Test(opt, lists_collect_and_flags_replace_the_environment)
{
    struct run r;

    cr_assert_eq(setenv("TEST_OPT_HOST", "from-env", 1), 0);
    PARSE(&r, false);
    cr_assert_eq(r.options.hosts.count, 1);
    cr_expect_str_eq(r.options.hosts.items[0], "from-env");
    release(&r);
    cr_expect_eq(r.options.hosts.count, 0);

    PARSE(&r, false, "-H", "a:1", "--host=b:2", "-Hc:3");
    cr_assert_eq(r.options.hosts.count, 3);
    cr_expect_str_eq(r.options.hosts.items[0], "a:1");
    cr_expect_str_eq(r.options.hosts.items[2], "c:3");
    release(&r);
}

Test(opt, words_end_up_behind_the_flags)
{
    struct run r;

    PARSE(&r, false, "one", "-v", "two", "--port", "9", "three");
    cr_assert_eq(r.result, 0, "%s", r.e.text);
    cr_expect_eq(r.next, 4);
    cr_expect_str_eq(r.argv[4], "one");
    cr_expect_str_eq(r.argv[5], "two");
    cr_expect_str_eq(r.argv[6], "three");
    release(&r);
}

Test(opt, nothing_is_read_behind_two_dashes)
{
    struct run r;

    PARSE(&r, false, "one", "-v", "--", "--port", "x");
    cr_assert_eq(r.result, 0, "%s", r.e.text);
    cr_expect_str_eq(r.argv[r.next], "one");
    cr_expect_str_eq(r.argv[r.next + 1], "--port");
    cr_expect_eq(r.argc - r.next, 3);
    release(&r);
}

Test(opt, a_subcommand_ends_the_flags_when_asked)
{
    struct run r;

    PARSE(&r, true, "-v", "run", "--unknown");
    cr_assert_eq(r.result, 0, "%s", r.e.text);
    cr_expect_eq(r.next, 2);
    cr_expect_str_eq(r.argv[2], "run");
    release(&r);

    PARSE(&r, true, "-v", "-", "x");
    cr_expect_str_eq(r.argv[r.next], "-", "a lone dash is a word");
    release(&r);
}

Test(opt, help_is_no_error)
{
    struct run r;

    PARSE(&r, false, "-v", "--help", "--nonsense");
    cr_expect_eq(r.result, 0);
    cr_expect(r.help);
    release(&r);
    PARSE(&r, false, "-h");
    cr_expect(r.help);
    release(&r);
}

Test(opt, errors_name_the_flag_what_was_found_and_what_is_allowed)
{
    static const struct { const char *words[3], *text; } rows[] = {
        { { "--prot", "1" }, "unknown flag --prot; did you mean --port?" },
        { { "--zzzzzz" }, "unknown flag --zzzzzz; --help lists the flags" },
        { { "-x" }, "unknown flag -x; --help lists the flags" },
        { { "-vv" }, "unknown flag -vv; --help lists the flags" },
        { { "--no-port" }, "unknown flag --no-port; did you mean --port?" },
        { { "--port" }, "--port needs a value: --port PORT" },
        { { "-f" }, "-f needs a value: -f FILE" },
        { { "--port", "0" }, "--port: found \"0\", expected an integer from 1 to 65535" },
        { { "--port=ten" }, "--port: found \"ten\", expected an integer from 1 to 65535" },
        { { "-p", "" }, "-p: found \"\", expected an integer from 1 to 65535" },
        { { "--timeout", "2h" }, "--timeout: found \"2h\", expected a duration such as 250ms, 5s or 2m, from 100ms to 1m" },
        { { "--memory", "5" }, "--memory: found \"5\", expected a size such as 64Mi or 1G, from 1Ki to 1Gi" },
        { { "--mode", "nativ" }, "--mode: found \"nativ\", expected auto, native or none; did you mean \"native\"?" },
        { { "--mode", "x" }, "--mode: found \"x\", expected auto, native or none" },
        { { "--verbose=maybe" }, "--verbose: found \"maybe\", expected true or false" },
        { { "--np", "many" }, "--np: found \"many\", expected an integer" },
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct run r;
        parse(&r, rows[i].words, false);
        cr_expect_eq(r.result, -1, "case %s", rows[i].text);
        cr_expect_eq(r.e.kind, ERROR_INVALID, "case %s", rows[i].text);
        cr_expect_str_eq(r.e.text, rows[i].text, "case %s", rows[i].text);
    }
}

Test(opt, help_lists_flags_with_defaults_and_variables)
{
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);

    opt_help(DEFS, COUNT(DEFS), out);
    fclose(out);
    cr_expect_str_eq(text,
                     "  -v, --verbose       say more\n"
                     "      --color         use colour (default true)\n"
                     "  -p, --port PORT     listen here (default 7700, env TEST_OPT_PORT)\n"
                     "      --timeout TIME  give up after this long (default 5s)\n"
                     "      --memory SIZE   use so much (default 64Mi)\n"
                     "      --job-dir DIR   keep everything about the job in this directory, which is made when it is not\n"
                     "                      there and is left when the job ends (env TEST_OPT_DIR)\n"
                     "  -f, --file FILE     read this\n"
                     "      --mode MODE     how: auto, native or none (default auto, env TEST_OPT_MODE)\n"
                     "  -H, --host HOST     may be repeated (env TEST_OPT_HOST)\n"
                     "  -h, --help          show this help\n");
    free(text);
}
