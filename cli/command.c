#include "cli/command.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "base/yaml.h"

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

void command_help(const struct command *page, FILE *out)
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

bool command_parse(const struct command *c, int argc, char **argv, bool stop_at_word, void *options, int *ret_next, int *ret_code)
{
    struct error e = ERROR_INIT;
    bool help = false;
    if (opt_parse(c->options, c->option_count, argc, argv, stop_at_word, options, ret_next, &help, &e) < 0) {
        *ret_code = command_usage(c->name, &e);
        return false;
    }
    if (!help)
        return true;
    opt_release(c->options, c->option_count, options);
    command_help(c, stdout);
    *ret_code = COMMAND_OK;
    return false;
}

bool command_file(const struct command *c, const char **file, int argc, char **argv, int next, int *ret_code)
{
    struct error e = ERROR_INIT;
    if (!*file && next < argc)
        *file = argv[next++];
    if (*file && next == argc)
        return true;
    (void)error_set(&e, ERROR_INVALID, *file ? "one manifest at a time" : "which manifest? give it with -f FILE");
    *ret_code = command_usage(c->name, &e);
    return false;
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

void command_print_yaml(const cJSON *list)
{
    const cJSON *object;
    bool first = true;
    cJSON_ArrayForEach(object, list) {
        auto_free char *text = yaml_print(object);
        printf("%s%s", first ? "" : "---\n", text);
        first = false;
    }
}

void command_print_json(const cJSON *list, bool always_list)
{
    auto_json cJSON *o = json_object();
    json_put_text(o, "apiVersion", "v1");
    json_put_text(o, "kind", "List");
    json_put(o, "items", cJSON_Duplicate(list, true));
    auto_free char *text = json_print(!always_list && cJSON_GetArraySize(list) == 1 ? list->child : o, true);
    puts(text);
}

const struct command *const *command_list(size_t *ret_count)
{
    static const struct command *const COMMANDS[] = {
        &COMMAND_RUN, &COMMAND_SUBMIT, &COMMAND_STATUS, &COMMAND_LOGS, &COMMAND_EVENTS, &COMMAND_WAIT, &COMMAND_SUSPEND, &COMMAND_RESUME,
        &COMMAND_CHECKPOINTS, &COMMAND_SCALE, &COMMAND_DELETE, &COMMAND_VALIDATE, &COMMAND_RENDER, &COMMAND_CONVERT, &COMMAND_BENCH,
        &COMMAND_TIMELINE, &COMMAND_COMPLETION, &COMMAND_VERSION,
    };
    *ret_count = COUNT(COMMANDS);
    return COMMANDS;
}

static void overview(const struct command *const *commands, size_t count, FILE *out)
{
    fputs("Ringmaster runs multi-worker training jobs: on this machine with 'ringmaster run', on Kubernetes as a TrainingJob.\n\n"
          "Usage: ringmaster COMMAND [OPTIONS]\n\nCommands:\n", out);
    for (size_t i = 0; i < count; i++)
        fprintf(out, "  %-10s %s\n", commands[i]->name, commands[i]->summary);
    fputs("  help       show this page, or the page of a command\n"
          "\nExamples:\n"
          "  ringmaster run -f job.yaml                     run the job in a manifest here\n"
          "  ringmaster run -np 4 -- python train.py        run a script on 4 ranks here, as with horovodrun\n"
          "  ringmaster submit -f job.yaml --follow         run it on the cluster and show what it writes\n"
          "  ringmaster status mnist                        show how it stands there\n"
          "  ringmaster validate -f job.yaml                find every mistake in a manifest\n"
          "\nExit codes: 0 job succeeded, 1 job failed, 2 bad usage or manifest, 3 could not be done now, 4 timed out,\n"
          "130 interrupted.\n"
          "'ringmaster COMMAND --help' has the options of a command; the manual is ringmaster(1).\n", out);
}

static const struct command *find(const struct command *const *commands, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(commands[i]->name, name) == 0)
            return commands[i];
    return NULL;
}

static int unknown(const struct command *const *commands, size_t count, const char *word)
{
    auto_free const char **names = xcalloc(count + 2, sizeof *names);
    for (size_t i = 0; i < count; i++)
        names[i] = commands[i]->name;
    names[count] = "help";
    const char *near = text_nearest(word, names);
    fprintf(stderr, "ringmaster: unknown command \"%.60s\"", word);
    if (near)
        fprintf(stderr, "; did you mean \"%s\"?\n", near);
    else
        fprintf(stderr, "; 'ringmaster help' lists the commands\n");
    return COMMAND_USAGE;
}

int command_main(const struct command *const *commands, size_t count, int argc, char **argv)
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
        char *args[] = { argv[2], (char[]){ "--help" }, NULL, NULL };
        if (c->sub && argc > 3) { /* help checkpoint ls */
            args[2] = args[1];
            args[1] = argv[3];
        }
        return c->run(args[2] ? 3 : 2, args);
    }
    return c->run(argc - 1, argv + 1);
}

static int version(int argc, char **argv)
{
    int next, code;
    char none;
    if (!command_parse(&COMMAND_VERSION, argc, argv, false, &none, &next, &code))
        return code;
    puts("ringmaster " RINGMASTER_VERSION);
    return COMMAND_OK;
}

const struct command COMMAND_VERSION = { .name = "version", .summary = "print the version", .run = version, .usage = "version" };
