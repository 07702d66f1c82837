/* checkpoint push, checkpoint pull: one thing, said from either end. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/fs.h"
#include "base/mem.h"
#include "base/text.h"
#include "checkpoint/copy.h"
#include "cli/command_checkpoint.h"
#include "cli/progress.h"

struct options { struct checkpoint_words words; const char *to; };

static const struct opt_def OPTIONS[] = {
    { .flag = "to", .type = OPT_TEXT, .at = OPT_AT(struct options, to, const char *), .value = "PLACE",
      .help = "directory of checkpoints, or s3://BUCKET/PREFIX; the job's UID is below it" },
    CHECKPOINT_OPTIONS(struct options, words),
};

static bool is_s3(const char *place)
{
    return strncmp(place, VOLUME_S3, strlen(VOLUME_S3)) == 0;
}

static int copy(const struct opened *at, const struct inspection *i, const struct options *o, struct error *e)
{
    struct store to;
    struct volume_options options = { .s3 = &o->words.s3 };
    char size[TEXT_SIZE_MAX];
    bool there;
    if (i->state != INSPECT_COMMITTED)
        return error_set(e, ERROR_NOT_FOUND, "step %" PRId64 " is not committed and whole (%s)", i->generation.id.step, inspect_state_name(i->state));
    if (store_init(&to, o->to, at->where.job, &options, e) != 0)
        return -1;
    struct progress *progress = progress_new("copy", i->bytes);
    int result = store_copy(&at->store, &to, &i->generation, progress_add, progress, &there, e);
    progress_free(progress);
    if (result == 0)
        printf("step %" PRId64 ": %s%s %s\n", i->generation.id.step, there ? "is there already, whole:" : text_bytes(i->bytes, size),
               there ? "" : " copied to", to.volume->name);
    store_release(&to);
    return result;
}

static int run(const struct command *c, bool push, int argc, char **argv)
{
    struct options o = { .to = NULL };
    struct error e = ERROR_INIT;
    auto_opened struct opened at = OPENED_INIT;
    const struct inspection *i;
    int next, code;
    if (!command_parse(c, argc, argv, false, &o, &next, &code))
        return code;
    const char *from = next < argc ? argv[next] : NULL;
    if (argc - next > 2)
        (void)error_set(&e, ERROR_INVALID, "one step at a time: \"%.80s\" is too much", argv[next + 2]);
    else if (!o.to || !*o.to)
        (void)error_set(&e, ERROR_INVALID, "where to? give %s with --to", push ? "s3://BUCKET/PREFIX" : "a directory");
    else if (push != is_s3(o.to) || (from && is_s3(from) == push))
        (void)error_set(&e, ERROR_INVALID, push ? "push copies from this machine to s3://BUCKET/PREFIX; the other way is 'checkpoint pull'"
                                                : "pull copies from s3://BUCKET/PREFIX to a directory; the other way is 'checkpoint push'");
    if (e.kind != ERROR_NONE)
        return command_usage(c->name, &e);
    if (!push && fs_mkdirs(o.to, 0755, &e) != 0)
        return command_fail(c->name, COMMAND_CANNOT_RUN, &e);
    o.words.scratch = push ? NULL : o.to; /* images are whole on disk before they are written under their names */
    if (opened_init(from, &o.words, &at, &e) != 0)
        return command_fail(c->name, command_code(&e), &e);
    if (opened_find(&at, argc - next > 1 ? argv[next + 1] : NULL, &i, &e) != 0)
        return command_fail(c->name, COMMAND_CANNOT_RUN, &e);
    if (copy(&at, i, &o, &e) == 0)
        return COMMAND_OK;
    return command_fail(c->name, e.kind == ERROR_INVALID ? COMMAND_JOB_FAILED : COMMAND_CANNOT_RUN, &e);
}

static int push(int argc, char **argv)
{
    return run(&CHECKPOINT_PUSH, true, argc, argv);
}

static int pull(int argc, char **argv)
{
    return run(&CHECKPOINT_PULL, false, argc, argv);
}

#define CODES "Exit codes: 0 it is there, 1 it is damaged, 2 bad usage, 3 there is no such step, or it could not be copied."

const struct command CHECKPOINT_PUSH = {
    .name = "checkpoint push", .summary = "copy a step to S3", .run = push, .takes = WORDS_JOB,
    .usage = "checkpoint push [WHERE [STEP]] --to s3://BUCKET/PREFIX",
    .about = "Copies a committed step and the job's history, every byte against its checksums; what is there already is not sent again.\n\n" WHERE_RULE,
    .options = OPTIONS, .option_count = COUNT(OPTIONS),
    .examples = "ringmaster checkpoint push mnist latest --to s3://models/checkpoints", .notes = CODES,
};

const struct command CHECKPOINT_PULL = {
    .name = "checkpoint pull", .summary = "copy a step from S3", .run = pull, .takes = WORDS_JOB,
    .usage = "checkpoint pull s3://BUCKET/PREFIX [STEP] --to DIR",
    .about = "Copies a committed step and the job's history, every byte against its checksums. A job of the same UID goes on from it.\n\n" WHERE_RULE,
    .options = OPTIONS, .option_count = COUNT(OPTIONS),
    .examples = "ringmaster checkpoint pull s3://models/checkpoints 12000 --to ./checkpoints", .notes = CODES,
};
