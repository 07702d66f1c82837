#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/fs.h"
#include "base/mem.h"
#include "cli/command.h"
#include "cli/tracemerge.h"

#define FILES_MAX 4096

struct timeline_options { const char *output; };

static const struct opt_def OPTIONS[] = {
    { .flag = "output", .letter = 'o', .def = "timeline.json", .type = OPT_TEXT, .at = OPT_AT(struct timeline_options, output, const char *),
      .value = "FILE", .help = "where the trace goes; - is standard output" },
};

struct found { struct trace_file *files; size_t count; };

static void found_release(struct found *f)
{
    for (size_t i = 0; i < f->count; i++)
        free(f->files[i].path);
    free(f->files);
}

static int add_file(struct found *f, const char *path, struct error *e)
{
    struct trace_file file;

    if (f->count == FILES_MAX)
        return error_set(e, ERROR_LIMIT, "more than %d time lines", FILES_MAX);
    if (trace_file_read(path, &file, e) < 0)
        return -1;
    f->files = xrealloc(f->files, f->count + 1, sizeof *f->files);
    f->files[f->count++] = file;
    return 0;
}

/* Of a directory those of its .json files that are time lines. */
static int add_dir(struct found *f, const char *path, struct error *e)
{
    DIR *dir = opendir(path);
    size_t before = f->count;

    if (dir == NULL)
        return error_errno(e, "open %s", path);
    for (const struct dirent *d; (d = readdir(dir)) != NULL;) {
        size_t len = strlen(d->d_name);
        struct error ignored = ERROR_INIT;
        auto_free char *file = fs_join(path, d->d_name);
        if (len > 5 && strcmp(d->d_name + len - 5, ".json") == 0)
            (void)!add_file(f, file, &ignored);
    }
    (void)closedir(dir);
    return f->count > before ? 0 : error_set(e, ERROR_NOT_FOUND, "there is no time line of Ringmaster in %s", path);
}

/* The files of the other ranks lie beside rank 0's. */
static int add_siblings(struct found *f, const char *path, struct error *e)
{
    const char *slash = strrchr(path, '/'), *dot = strrchr(slash != NULL ? slash : path, '.');
    size_t stem = dot != NULL ? (size_t)(dot - path) : strlen(path);

    for (int32_t rank = 1; rank < f->files[0].size; rank++) {
        struct stat st;
        auto_free char *file = xasprintf("%.*s.rank-%d%s", (int)stem, path, rank, path + stem);
        if (stat(file, &st) == 0 && add_file(f, file, e) < 0)
            return -1;
    }
    return 0;
}

static int find(struct found *f, char **words, int count, struct error *e)
{
    struct stat st;

    for (int i = 0; i < count; i++) {
        if (stat(words[i], &st) != 0)
            return error_errno(e, "%s", words[i]);
        if ((S_ISDIR(st.st_mode) ? add_dir(f, words[i], e) : add_file(f, words[i], e)) < 0)
            return -1;
    }
    if (count == 1 && f->count == 1 && f->files[0].rank == 0 && add_siblings(f, f->files[0].path, e) < 0)
        return -1;
    return trace_files_check(f->files, f->count, e);
}

static int write_out(const struct found *f, const char *output, struct error *e)
{
    bool to_stdout = strcmp(output, "-") == 0;
    auto_free char *half = xasprintf("%s.new", output);
    FILE *out = to_stdout ? stdout : fopen(half, "we");
    int64_t events = 0;

    if (out == NULL)
        return error_errno(e, "write %s", half);
    int result = trace_merge(f->files, f->count, out, &events, e);
    if (to_stdout)
        return result;
    if (fclose(out) != 0 && result == 0)
        result = error_errno(e, "write %s", half);
    if (result == 0 && rename(half, output) != 0)
        result = error_errno(e, "rename %s", half);
    if (result < 0) {
        (void)remove(half);
        return -1;
    }
    (void)fprintf(stderr, "%s: %lld events of %zu ranks; open it in chrome://tracing or ui.perfetto.dev\n", output, (long long)events,
                  f->count);
    for (size_t i = 0; i < f->count; i++) {
        if (f->files[i].error_ns < 0)
            (void)fprintf(stderr, "%s: its clock was not measured; its times may be off\n", f->files[i].path);
    }
    return 0;
}

static int timeline_command(int argc, char **argv)
{
    struct timeline_options o = { .output = NULL };
    struct error e = ERROR_INIT;
    struct found f = { .files = NULL };
    int next, code;

    if (!command_parse(&COMMAND_TIMELINE, argc, argv, false, &o, &next, &code))
        return code;
    if (next == argc) {
        (void)error_set(&e, ERROR_INVALID, "of what? give a directory with time lines, or the files");
        return command_usage("timeline", &e);
    }
    int result = find(&f, argv + next, argc - next, &e);
    if (result == 0)
        result = write_out(&f, o.output, &e);
    found_release(&f);
    return result == 0 ? COMMAND_OK : command_fail("timeline", COMMAND_CANNOT_RUN, &e);
}

const struct command COMMAND_TIMELINE = {
    .name = "timeline",
    .summary = "put the time lines of all ranks together",
    .run = timeline_command,
    .usage = "timeline [-o FILE] DIR|FILE...",
    .about = "Makes one Chrome trace of what the ranks of a job have recorded (RINGMASTER_TIMELINE=FILE in their\n"
             "environment, or start_timeline): a row for each rank and tensor, all on the clock of rank 0. Of one FILE\n"
             "that is rank 0's the others beside it are taken, too.",
    .options = OPTIONS,
    .option_count = COUNT(OPTIONS),
    .notes = "Exit codes: 0 written, 2 bad usage, 3 nothing recorded there, or it cannot be read or written.",
    .examples = "record, then look\n"
                "ringmaster run -np 4 --timeline-filename /tmp/t/run.json python train.py\n"
                "ringmaster timeline /tmp/t -o merged.json",
    .takes = WORDS_FILES,
};
