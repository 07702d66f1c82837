#include "cli/command.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"

static void indented(const char *text, const char *first, const char *rest, FILE *out)
{
    const char *indent = first;
    for (const char *p = text; *p;) {
        size_t len = strcspn(p, "\n");
        if (len)
            fprintf(out, "%s%.*s", indent, (int)len, p);
        fputc('\n', out);
        p += len + (p[len] == '\n');
        indent = rest;
    }
}

void command_help(const struct command_page *page, FILE *out)
{
    fputs("Usage: ", out);
    indented(page->usage, "ringmaster ", "       ringmaster ", out);
    if (page->about) {
        fputc('\n', out);
        indented(page->about, "", "", out);
    }
    if (page->option_count) {
        fputs("\nOptions:\n", out);
        opt_help(page->options, page->option_count, out);
    }
    if (page->more)
        page->more(out);
    if (page->examples) {
        fputs("\nExamples:\n", out);
        indented(page->examples, "  ", "  ", out);
    }
    if (page->notes) {
        fputc('\n', out);
        indented(page->notes, "", "", out);
    }
}

int command_fail(const char *name, enum command_exit code, const struct error *e)
{
    fprintf(stderr, "ringmaster %s: %s\n", name, e->text);
    return (int)code;
}

int command_usage(const char *name, const struct error *e)
{
    fprintf(stderr, "ringmaster %s: %s\nSee 'ringmaster %s --help'.\n", name, e->text, name);
    return COMMAND_USAGE;
}

int command_bad_manifest(const char *name, const struct error *e, const char *report)
{
    if (!report)
        return command_fail(name, COMMAND_USAGE, e);
    size_t lines = 0; /* e repeats the first of them */
    for (const char *at = report; (at = strchr(at, '\n')); at++)
        lines++;
    fprintf(stderr, "%sringmaster %s: the manifest cannot be used: %zu problem%s\n", report, name, lines, lines == 1 ? "" : "s");
    return COMMAND_USAGE;
}

enum command_exit command_code(const struct error *e)
{
    return e->kind == ERROR_INVALID ? COMMAND_USAGE : COMMAND_CANNOT_RUN;
}

static void overview(const struct command *commands, size_t count, FILE *out)
{
    fputs("Ringmaster runs multi-worker training jobs: on this machine with 'ringmaster run', on Kubernetes as a TrainingJob.\n\n"
          "Usage: ringmaster COMMAND [OPTIONS]\n\nCommands:\n", out);
    for (size_t i = 0; i < count; i++)
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].summary);
    fputs("  help       show this page, or the page of a command\n"
          "\nExamples:\n"
          "  ringmaster run -f job.yaml                run the job in a manifest\n"
          "  ringmaster run -np 4 -- python train.py   run a script on 4 ranks, as with horovodrun\n"
          "  ringmaster validate -f job.yaml           find every mistake in a manifest\n"
          "  ringmaster render -f job.yaml             show the exact pods\n"
          "\nExit codes: 0 job succeeded, 1 job failed, 2 bad usage or manifest, 3 could not run here, 130 interrupted.\n"
          "'ringmaster COMMAND --help' has the options of a command; the manual is ringmaster(1).\n", out);
}

static const struct command *find(const struct command *commands, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    return NULL;
}

static int unknown(const struct command *commands, size_t count, const char *word)
{
    auto_free const char **names = xcalloc(count + 2, sizeof *names);
    for (size_t i = 0; i < count; i++)
        names[i] = commands[i].name;
    names[count] = "help";
    const char *near = text_nearest(word, names);
    fprintf(stderr, "ringmaster: unknown command \"%.60s\"", word);
    if (near)
        fprintf(stderr, "; did you mean \"%s\"?\n", near);
    else
        fprintf(stderr, "; 'ringmaster help' lists the commands\n");
    return COMMAND_USAGE;
}

int command_main(const struct command *commands, size_t count, int argc, char **argv)
{
    if (argc < 2) {
        overview(commands, count, stderr);
        return COMMAND_USAGE;
    }
    const char *word = argv[1];
    if (strcmp(word, "--version") == 0 || strcmp(word, "-V") == 0)
        word = "version";
    bool wants_help = strcmp(word, "help") == 0 || strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
    if (wants_help && argc < 3) {
        overview(commands, count, stdout);
        return COMMAND_OK;
    }
    const struct command *c = find(commands, count, wants_help ? argv[2] : word);
    if (!c)
        return unknown(commands, count, wants_help ? argv[2] : word);
    if (wants_help) {
        char *args[] = { argv[2], (char[]){ "--help" }, NULL };
        return c->run(2, args);
    }
    return c->run(argc - 1, argv + 1);
}

int command_version(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    puts("ringmaster " RINGMASTER_VERSION);
    return COMMAND_OK;
}
