#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/command.h"
#include "cli/jobfile.h"

struct validate_options { struct opt_list files; bool quiet; };

static const struct opt_def OPTIONS[] = {
    { .flag = "file", .letter = 'f', .type = OPT_LIST, .at = OPT_AT(struct validate_options, files, struct opt_list), .value = "FILE",
      .help = "manifest to check; may be repeated; - reads standard input" },
    { .flag = "quiet", .letter = 'q', .type = OPT_BOOL, .at = OPT_AT(struct validate_options, quiet, bool),
      .help = "say nothing about files that are right" },
};

static int check(const char *path, bool quiet)
{
    struct error e = ERROR_INIT;
    auto_free char *report = NULL;
    auto_jobfile struct jobfile file = { .tree = NULL };
    if (jobfile_read(path, NULL, &file, &report, &e) == 0) {
        if (!quiet)
            printf("%s: TrainingJob %s is valid: %d replicas, ring of %d\n", path, file.job->name, job_replicas(file.job),
                   job_world_size(file.job));
        return COMMAND_OK;
    }
    return command_bad_manifest("validate", &e, report);
}

static int validate(int argc, char **argv)
{
    struct validate_options o = { .quiet = false };
    struct error e = ERROR_INIT;
    int next, code = COMMAND_OK;
    if (!command_parse(&COMMAND_VALIDATE, argc, argv, false, &o, &next, &code))
        return code;
    if (o.files.count == 0 && next == argc) {
        (void)error_set(&e, ERROR_INVALID, "which manifest? give it with -f FILE");
        code = command_usage("validate", &e);
    }
    for (size_t i = 0; i < o.files.count; i++) {
        int rc = check(o.files.items[i], o.quiet);
        code = rc > code ? rc : code;
    }
    for (int i = next; i < argc; i++) {
        int rc = check(argv[i], o.quiet);
        code = rc > code ? rc : code;
    }
    opt_release(OPTIONS, COUNT(OPTIONS), &o);
    return code;
}

const struct command COMMAND_VALIDATE = {
    .name = "validate", .summary = "check manifests; report every problem with its place", .run = validate, .takes = WORDS_FILES,
    .usage = "validate -f FILE [-f FILE...]\nvalidate FILE...",
    .about = "Checks manifests against the TrainingJob schema and its rules, as the API server and the operator would, and reports every\n"
             "problem as file:line:column: field: what is wrong.",
    .options = OPTIONS, .option_count = COUNT(OPTIONS),
    .examples = "ringmaster validate -f job.yaml\nringmaster validate jobs/*.yaml\nkubectl get tj mnist -o yaml | ringmaster validate -f -",
    .notes = "Exit codes: 0 all are right, 2 some are not.",
};
