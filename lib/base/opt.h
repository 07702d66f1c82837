/*
 * opt.h — one option table per program: flag, environment variable, default, range and help all come from a row.
 *
 * Order of precedence: flag, environment, default. The struct that the table fills is const after parsing. "auto" is an
 * enum value, never -1. An unknown flag or a value out of range is an ERROR_INVALID whose text names the flag, what was
 * found and what is allowed, with a "did you mean" for a near miss.
 */
#ifndef BASE_OPT_H
#define BASE_OPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"

enum opt_type {
    OPT_BOOL,     /* bool; --flag, --flag=false, --no-flag */
    OPT_INT,      /* int64_t, min..max */
    OPT_TEXT,     /* const char *, borrowed from argv, the environment or the table */
    OPT_ENUM,     /* int: index into `names` */
    OPT_DURATION, /* int64_t milliseconds: "250ms", "5s", "2m", "1h", or a bare number of seconds */
    OPT_SIZE,     /* int64_t bytes: Kubernetes quantity ("64Mi", "1G", "4096") */
    OPT_LIST,     /* struct opt_list: may be repeated */
};

struct opt_list { const char **items; size_t count; }; /* items owned by the list; texts borrowed */

struct opt_def {
    const char *flag;          /* "job-dir": --job-dir VALUE or --job-dir=VALUE */
    char letter;               /* 'f' for -f, or 0 */
    const char *env;           /* environment variable, or NULL */
    const char *def;           /* default as text, or NULL for zero/NULL */
    enum opt_type type;
    size_t at;                 /* OPT_AT(struct options, field, type) */
    int64_t min, max;          /* OPT_INT, OPT_DURATION, OPT_SIZE; both 0 = no bound */
    const char *const *names;  /* OPT_ENUM, NULL-terminated */
    const char *value;         /* name of the value in --help, "DIR" */
    const char *help;          /* one sentence, lower case, no full stop */
    bool hidden;               /* accepted, not listed */
};

#define OPT_AT(s, f, t) (offsetof(s, f) + 0 * sizeof(struct { \
    _Static_assert(_Generic(((s *)0)->f, t: 1, default: 0), #f " must be " #t); int x; }))

/* Fills *options from defaults, the environment and argv[1..]. Parsing stops at "--" or, if `stop_at_word`, at the first
 * word that is no flag; *ret_next is the index of the first word left. Otherwise words are collected to the end of argv
 * (argv is permuted). --help and -h set *ret_help instead of failing. */
MUST_CHECK int opt_parse(const struct opt_def *defs, size_t count, int argc, char **argv, bool stop_at_word, void *options,
                         int *ret_next, bool *ret_help, struct error *e);
void opt_help(const struct opt_def *defs, size_t count, FILE *out); /* the options as aligned rows, with defaults and env */
void opt_release(const struct opt_def *defs, size_t count, void *options);

#endif
