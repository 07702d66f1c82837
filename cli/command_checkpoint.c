/* The command `checkpoint`: a table of commands of its own. */
#include "cli/command_checkpoint.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"

static const struct command *const COMMANDS[] = {
    &CHECKPOINT_LS, &CHECKPOINT_SHOW, &CHECKPOINT_VERIFY, &CHECKPOINT_EXPORT, &CHECKPOINT_PRUNE, &CHECKPOINT_PUSH, &CHECKPOINT_PULL,
    &CHECKPOINT_SAVE, NULL,
};

int opened_init(const char *word, const struct checkpoint_words *words, struct opened *ret, struct error *e)
{
    auto_opened struct opened o = OPENED_INIT;
    struct volume_options options = { .scratch = words->scratch, .s3 = &words->s3 };
    if (where_find(word, words->default_dir, words->job, &words->s3, &o.where, e) != 0 || store_init(&o.store, o.where.place, o.where.job, &options, e) != 0 ||
        inspect_store(&o.store, &o.all, e) != 0)
        return -1;
    *ret = o;
    o = (struct opened)OPENED_INIT;
    return 0;
}

void opened_release(struct opened *o)
{
    inspections_release(&o->all);
    store_release(&o->store);
    where_release(&o->where);
}

int opened_find(const struct opened *o, const char *word, const struct inspection **ret, struct error *e)
{
    const char *which = word ? word : o->where.step ? o->where.step : "latest";
    return inspect_find(&o->all, which, ret, e) != 0 ? error_wrap(e, "%s", o->store.volume->name) : 0;
}

/* "checkpoint ls" is called as "ls". */
static const char *word_of(const struct command *c)
{
    return strchr(c->name, ' ') + 1;
}

static const struct command *find(const char *word)
{
    for (size_t i = 0; COMMANDS[i]; i++)
        if (strcmp(word_of(COMMANDS[i]), word) == 0)
            return COMMANDS[i];
    return NULL;
}

static int unknown(const char *word)
{
    const char *names[COUNT(COMMANDS)] = { NULL };
    struct error e = ERROR_INIT;
    for (size_t i = 0; COMMANDS[i]; i++)
        names[i] = word_of(COMMANDS[i]);
    const char *near = text_nearest(word, names);
    (void)error_set(&e, ERROR_INVALID, near ? "unknown word \"%.60s\"; did you mean \"%s\"?" : "unknown word \"%.60s\"; there are ls, show, verify, "
                    "export, prune, push, pull, and 'save %.60s' has a job save one now", word, near ? near : word);
    return command_usage("checkpoint", &e);
}

static int checkpoint(int argc, char **argv)
{
    struct error e = ERROR_INIT;
    if (argc < 2) {
        (void)error_set(&e, ERROR_INVALID, "what is to be done?");
        return command_usage("checkpoint", &e);
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        command_help(&COMMAND_CHECKPOINTS, stdout);
        return COMMAND_OK;
    }
    const struct command *c = find(argv[1]);
    return c ? c->run(argc - 1, argv + 1) : unknown(argv[1]);
}

static void more(FILE *out)
{
    fputs("\nCommands:\n", out);
    for (size_t i = 0; COMMANDS[i]; i++)
        fprintf(out, "  %-8s %s\n", word_of(COMMANDS[i]), COMMANDS[i]->summary);
}

const struct command COMMAND_CHECKPOINTS = {
    .name = "checkpoint", .summary = "list, check, export, copy and prune checkpoints; have a job save one", .run = checkpoint,
    .takes = WORDS_OWN, .sub = COMMANDS,
    .usage = "checkpoint COMMAND [OPTIONS]",
    .about = "Works on what the sidecars have committed, in a directory or on S3, with or without a job that runs.",
    .more = more,
    .examples = "ringmaster checkpoint ls mnist\n"
                "ringmaster checkpoint verify ringmaster-jobs/mnist\n"
                "ringmaster checkpoint export mnist --to model.safetensors\n"
                "ringmaster checkpoint save mnist --wait                   a job of a cluster",
    .notes = "'ringmaster checkpoint COMMAND --help' has the options of each.\n"
             "Exit codes: 0 done, 1 a step is damaged, 2 bad usage, 3 there is no such step or job, or it cannot be read.",
};
