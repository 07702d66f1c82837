#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/mem.h"
#include "base/text.h"
#include "checkpoint/export.h"
#include "cli/command_checkpoint.h"
#include "cli/progress.h"

struct options {
    struct checkpoint_words words;
    const char *to, *match, *strip;
    int64_t max_file_bytes;
    bool overwrite;
};

#define AT(field, type) OPT_AT(struct options, field, type)

static const struct opt_def OPTIONS[] = {
    { .flag = "to", .type = OPT_TEXT, .at = AT(to, const char *), .value = "PATH",
      .help = "a file whose name ends in .safetensors, or a directory: model.safetensors, or as many files as it takes with their index" },
    { .flag = "max-shard-size", .def = "5G", .type = OPT_SIZE, .at = AT(max_file_bytes, int64_t), .min = 1, .max = INT64_MAX / 2, .value = "SIZE",
      .help = "of a file in a directory; a tensor is never cut" },
    { .flag = "match", .type = OPT_TEXT, .at = AT(match, const char *), .value = "PATTERN",
      .help = "only tensors with such names, as in a shell: 'model/*'" },
    { .flag = "strip-prefix", .type = OPT_TEXT, .at = AT(strip, const char *), .value = "TEXT", .help = "taken off the beginning of names" },
    { .flag = "overwrite", .type = OPT_BOOL, .at = AT(overwrite, bool), .help = "replace what is there" },
    CHECKPOINT_OPTIONS(struct options, words),
};

static bool is_file_name(const char *path)
{
    size_t n = strlen(path), tail = strlen(".safetensors");
    return n > tail && strcmp(path + n - tail, ".safetensors") == 0;
}

/* Where the files go, and the name of the one file or NULL. */
static void split(const char *to, char **ret_dir, char **ret_file)
{
    const char *slash = strrchr(to, '/');
    bool file = is_file_name(to);
    *ret_file = file ? xstrdup(slash ? slash + 1 : to) : NULL;
    *ret_dir = !file ? xstrdup(to) : !slash ? xstrdup(".") : slash == to ? xstrdup("/") : xstrndup(to, (size_t)(slash - to));
}

static int check_free(const struct export_plan *plan, const char *dir, struct error *e)
{
    for (size_t i = 0; i < plan->file_count; i++) {
        auto_free char *path = fs_join(dir, plan->files[i].name);
        if (access(path, F_OK) == 0)
            return error_set(e, ERROR_CONFLICT, "%s is there already; choose another place, or --overwrite", path);
    }
    return 0;
}

static int export(const struct opened *at, const struct inspection *i, const struct options *o, struct error *e)
{
    struct step_key key;
    auto_free struct manifest_entry *entries = NULL;
    auto_tensors struct tensors t = { .items = NULL };
    auto_export_plan struct export_plan plan = { .files = NULL };
    auto_free char *dir = NULL, *file = NULL;
    char size[TEXT_SIZE_MAX];
    split(o->to, &dir, &file);
    struct export_options options = { .file = file, .max_file_bytes = (uint64_t)o->max_file_bytes, .match = o->match, .strip = o->strip,
                                      .step = i->generation.id.step };
    if (i->state != INSPECT_COMMITTED)
        return error_set(e, ERROR_NOT_FOUND, "step %" PRId64 " is not committed and whole (%s)%s%s", i->generation.id.step,
                         inspect_state_name(i->state), i->note[0] ? ": " : "", i->note);
    if (store_check(&at->store, &i->generation, &key, &entries, e) != 0 || tensors_read(&at->store, &key, entries, &t, e) != 0 ||
        export_plan_make(&t, &options, &plan, e) != 0 || (!o->overwrite && check_free(&plan, dir, e) != 0))
        return -1;
    struct progress *progress = progress_new("export", i->bytes);
    int result = export_run(&at->store, &key, entries, &t, &plan, dir, progress_add, progress, e);
    progress_free(progress);
    if (result == 0)
        printf("step %" PRId64 ": %zu tensor%s, %s in %zu file%s: %s\n", i->generation.id.step, plan.tensor_count,
               plan.tensor_count == 1 ? "" : "s", text_bytes(plan.bytes, size), plan.file_count, plan.file_count == 1 ? "" : "s", o->to);
    return result;
}

static int export_command(int argc, char **argv)
{
    struct options o = { .to = NULL };
    struct error e = ERROR_INIT;
    auto_opened struct opened at = OPENED_INIT;
    const struct inspection *i;
    int next, code;
    if (!command_parse(&CHECKPOINT_EXPORT, argc, argv, false, &o, &next, &code))
        return code;
    if (argc - next > 2)
        (void)error_set(&e, ERROR_INVALID, "one step at a time: \"%.80s\" is too much", argv[next + 2]);
    else if (!o.to || !*o.to)
        (void)error_set(&e, ERROR_INVALID, "where to? give a file or a directory with --to");
    if (e.kind != ERROR_NONE)
        return command_usage(CHECKPOINT_EXPORT.name, &e);
    if (opened_init(next < argc ? argv[next] : NULL, &o.words, &at, &e) != 0)
        return command_fail(CHECKPOINT_EXPORT.name, command_code(&e), &e);
    if (opened_find(&at, argc - next > 1 ? argv[next + 1] : NULL, &i, &e) != 0)
        return command_fail(CHECKPOINT_EXPORT.name, COMMAND_CANNOT_RUN, &e);
    if (export(&at, i, &o, &e) == 0)
        return COMMAND_OK;
    return command_fail(CHECKPOINT_EXPORT.name, e.kind == ERROR_INVALID ? COMMAND_JOB_FAILED : COMMAND_CANNOT_RUN, &e);
}

const struct command CHECKPOINT_EXPORT = {
    .name = "checkpoint export", .summary = "write a step as safetensors for other programs: one file, or the hub's sharded layout",
    .run = export_command, .takes = WORDS_JOB,
    .usage = "checkpoint export [WHERE [STEP]] --to PATH [--max-shard-size SIZE] [--match PATTERN]",
    .about = "Puts the parts of all ranks together: every tensor is whole. Every byte is read against its checksums; files get their names\n"
             "when all of them are complete. The stock safetensors package reads them, transformers and torch's HuggingFaceStorageReader do.\n\n"
             WHERE_RULE,
    .options = OPTIONS, .option_count = COUNT(OPTIONS),
    .examples = "ringmaster checkpoint export mnist --to mnist.safetensors\n"
                "ringmaster checkpoint export gpt 120000 --to gpt-hub --match 'model/*' --strip-prefix model/ --max-shard-size 2G",
    .notes = "Exit codes: 0 written, 1 the step is damaged or cannot be written as was asked, 2 bad usage, 3 there is no such step, the disk\n"
             "is full, or something is there already.",
};
