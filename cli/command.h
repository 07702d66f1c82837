/*
 * command.h — what the sub-commands of `ringmaster` share: exit codes, the table, help, messages, what is printed.
 */
#ifndef CLI_COMMAND_H
#define CLI_COMMAND_H

#include "base/json.h"
#include "base/opt.h"

/* Documented in docs/cli.md and ringmaster(1); scripts rely on them. */
enum command_exit {
    COMMAND_OK = 0,            /* the job succeeded; the command did what it was asked to do */
    COMMAND_JOB_FAILED = 1,
    COMMAND_USAGE = 2,         /* the command line or the manifest is wrong */
    COMMAND_CANNOT_RUN = 3,    /* right, but it cannot be done now: port in use, disk full, no cluster answers, no such job */
    COMMAND_TIMED_OUT = 4,     /* what was waited for did not come in time */
    COMMAND_INTERRUPTED = 130,
};

/* What the words of a command are, flags aside; completion asks. */
enum command_words { WORDS_NONE, WORDS_FILES, WORDS_JOB, WORDS_COMMAND, WORDS_OWN /* those in `words` */ };

/* One row of the list of commands and its page. Texts are ready lines without indentation; NULL where there is none. */
struct command {
    const char *name, *summary;
    int (*run)(int argc, char **argv); /* argv[0] is the command's name; returns the exit code */
    const char *usage;         /* one form a line, without "ringmaster" */
    const char *about;
    const struct opt_def *options; size_t option_count;
    void (*more)(FILE *out);   /* prints what else there is to say between options and examples */
    const char *const *(*more_flags)(void); /* flags beyond `options`, "-np" and "--hosts", NULL-terminated; for completion */
    const char *examples;      /* "comment\ncommand\n\n..." */
    const char *notes;         /* last paragraph */
    enum command_words takes;
    const char *const *words;  /* NULL-terminated, with WORDS_OWN */
    const struct command *const *sub; /* commands of its own, NULL-terminated; their names are "checkpoint ls" */
};

/* Each lives in command_<name>.c; suspend, resume, scale and delete in command_change.c. */
extern const struct command COMMAND_RUN, COMMAND_SUBMIT, COMMAND_STATUS, COMMAND_LOGS, COMMAND_EVENTS, COMMAND_WAIT, COMMAND_SUSPEND,
    COMMAND_RESUME, COMMAND_CHECKPOINTS, COMMAND_SCALE, COMMAND_DELETE, COMMAND_VALIDATE, COMMAND_RENDER, COMMAND_CONVERT, COMMAND_BENCH,
    COMMAND_TIMELINE, COMMAND_COMPLETION, COMMAND_VERSION;

/* All of them in the order of the overview. */
const struct command *const *command_list(size_t *ret_count);

void command_help(const struct command *c, FILE *out);

/* Reads argv by the command's table. False: there is nothing more to do, *ret_code is the exit code (help was asked for, or the
 * usage is wrong). True: *ret_next is the first word that is no flag; opt_release is the caller's. */
MUST_CHECK bool command_parse(const struct command *c, int argc, char **argv, bool stop_at_word, void *options, int *ret_next,
                              int *ret_code);
/* The one file of a command that takes one: -f FILE or a word. False: *ret_code, as above. */
MUST_CHECK bool command_file(const struct command *c, const char **file, int argc, char **argv, int next, int *ret_code);

/* "ringmaster run: text" on stderr. The second also says where help is. Both return the code. */
int command_fail(const char *name, enum command_exit code, const struct error *e);
int command_usage(const char *name, const struct error *e);

/* A manifest that cannot be used: all its problems and their number; the error where report is NULL. Returns COMMAND_USAGE. */
int command_bad_manifest(const char *name, const struct error *e, const char *report);

/* Objects on stdout: YAML documents, or JSON, several of them as a List. */
void command_print_yaml(const cJSON *list);
void command_print_json(const cJSON *list, bool always_list);

/* Finds and runs a word of the table; an unknown word gets a "did you mean". */
int command_main(const struct command *const *commands, size_t count, int argc, char **argv);

/* Exit code for an error, by kind: what to mend in the input is 2, the rest 3. */
enum command_exit command_code(const struct error *e);

#endif
