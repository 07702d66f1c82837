/*
 * command.h — what the sub-commands of `ringmaster` share: exit codes, the table, help, messages.
 */
#ifndef CLI_COMMAND_H
#define CLI_COMMAND_H

#include "base/error.h"
#include "base/opt.h"

/* Documented in docs/cli.md and ringmaster(1); scripts rely on them. */
enum command_exit {
    COMMAND_OK = 0,            /* the job succeeded; the command did what it was asked to do */
    COMMAND_JOB_FAILED = 1,
    COMMAND_USAGE = 2,         /* the command line or the manifest is wrong */
    COMMAND_CANNOT_RUN = 3,    /* right, but not on this machine now: port in use, disk full, programs missing */
    COMMAND_INTERRUPTED = 130,
};

struct command {
    const char *name, *summary;
    int (*run)(int argc, char **argv); /* argv[0] is the command's name; returns the exit code */
};

int command_run(int argc, char **argv);
int command_render(int argc, char **argv);
int command_validate(int argc, char **argv);
int command_convert(int argc, char **argv);
int command_status(int argc, char **argv);
int command_logs(int argc, char **argv);
int command_version(int argc, char **argv);

/* A command's own page. Texts are ready lines without indentation; NULL where there is none. */
struct command_page {
    const char *name;
    const char *usage;         /* one form a line, without "ringmaster" */
    const char *about;
    const struct opt_def *options; size_t option_count;
    void (*more)(FILE *out);   /* prints what else there is to say between options and examples */
    const char *examples;      /* "comment\ncommand\n\n..." */
    const char *notes;         /* last paragraph */
};
void command_help(const struct command_page *page, FILE *out);

/* "ringmaster run: text" on stderr. The second also says where help is. Both return the code. */
int command_fail(const char *name, enum command_exit code, const struct error *e);
int command_usage(const char *name, const struct error *e);

/* A manifest that cannot be used: all its problems and their number; the error where report is NULL. Returns COMMAND_USAGE. */
int command_bad_manifest(const char *name, const struct error *e, const char *report);

/* Finds and runs a word of the table; an unknown word gets a "did you mean". */
int command_main(const struct command *commands, size_t count, int argc, char **argv);

/* Exit code for an error, by kind: what to mend in the input is 2, the rest 3. */
enum command_exit command_code(const struct error *e);

#endif
