#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/yaml.h"
#include "cli/command.h"
#include "job/convert.h"
#include "job/manifest.h"

enum convert_output { CONVERT_YAML, CONVERT_JSON };
static const char *const OUTPUTS[] = { "yaml", "json", NULL };

struct convert_options {
    const char *file;
    int output;
    bool quiet;
};

static const struct opt_def OPTIONS[] = {
    { .flag = "file",
      .letter = 'f',
      .type = OPT_TEXT,
      .at = OPT_AT(struct convert_options, file, const char *),
      .value = "FILE",
      .help = "manifest; - reads standard input" },
    { .flag = "output",
      .letter = 'o',
      .def = "yaml",
      .type = OPT_ENUM,
      .at = OPT_AT(struct convert_options, output, int),
      .names = OUTPUTS,
      .value = "FORMAT",
      .help = "yaml (documents) or json (a List where there are several)" },
    { .flag = "quiet",
      .letter = 'q',
      .type = OPT_BOOL,
      .at = OPT_AT(struct convert_options, quiet, bool),
      .help = "leave out the notes about what was changed" },
};

struct conversions {
    const char *name; /* of the file */
    const struct yaml_doc *doc;
    cJSON *list;       /* what is printed */
    const char *other; /* a kind that is not converted; borrowed from doc */
    size_t converted;
    bool quiet;
};

static int convert_one(struct conversions *c, const cJSON *object)
{
    auto_free struct problems *notes = xcalloc(1, sizeof *notes), *problems = xcalloc(1, sizeof *problems);
    struct error e = ERROR_INIT;
    cJSON *tree = NULL;

    if (convert_job(object, c->doc, notes, problems, &tree, &e) < 0) {
        auto_free char *report = problems->count ? problems_format(problems, c->name) : NULL;
        error_wrap(&e, "%s:%d", c->name, yaml_place_of(c->doc, object).line);
        return command_bad_manifest("convert", &e, report);
    }
    auto_free char *text = problems_format(notes, c->name);
    if (!c->quiet)
        fputs(text, stderr);
    json_append(c->list, tree);
    c->converted++;
    return COMMAND_OK;
}

/* An object of the file, or a List of them as `kubectl get` prints it. */
static int take(struct conversions *c, const cJSON *object)
{
    const char *kind = json_text(object, "kind", "");
    const cJSON *item;
    int code = COMMAND_OK;

    if (convert_takes(object))
        return convert_one(c, object);
    if (strcmp(kind, "List") == 0 || strcmp(kind, "TFJobList") == 0 || strcmp(kind, "PyTorchJobList") == 0) {
        cJSON_ArrayForEach(item, json_at(object, "items"))
        {
            if (code == COMMAND_OK)
                code = take(c, item);
        }
        return code;
    }
    if (object == NULL || cJSON_IsNull(object))
        return COMMAND_OK;
    c->other = *kind ? kind : c->other;
    if (strncmp(json_text(object, "apiVersion", ""), "kubeflow.org/", strlen("kubeflow.org/")) == 0 && !c->quiet)
        fprintf(stderr, "%s:%d: kind: a %.60s is printed as it is; TFJob and PyTorchJob are converted\n", c->name,
                yaml_place_of(c->doc, object).line, kind);
    json_append(c->list, cJSON_Duplicate(object, true));
    return COMMAND_OK;
}

/* An MPIJob's ranks are started by mpirun in a launcher of its own: what becomes of that is for a person to say. */
static int nothing_converted(const struct conversions *c)
{
    struct error e = ERROR_INIT;

    if (c->other == NULL)
        (void)error_set(&e, ERROR_INVALID, "%s has no object in it; expected a TFJob or a PyTorchJob", c->name);
    else if (strcmp(c->other, "MPIJob") == 0)
        (void)error_set(&e, ERROR_INVALID,
                        "%s has an MPIJob, which is not converted; take what stands behind mpirun in its Launcher: ringmaster submit -np N "
                        "--image IMAGE --dry-run -- COMMAND...",
                        c->name);
    else
        (void)error_set(&e, ERROR_INVALID, "%s has no TFJob or PyTorchJob; its kind is %.60s", c->name, c->other);
    return command_fail("convert", COMMAND_USAGE, &e);
}

static int convert(const struct convert_options *o)
{
    auto_yaml struct yaml_doc *doc = NULL;
    struct error e = ERROR_INIT;

    if (manifest_read(o->file, &doc, &e) < 0)
        return command_fail("convert", command_code(&e), &e);
    auto_json cJSON *list = json_array();
    struct conversions c = { .name = yaml_name(doc), .doc = doc, .list = list, .quiet = o->quiet };
    for (size_t i = 0; i < yaml_count(doc); i++) {
        int code = take(&c, yaml_tree(doc, i));
        if (code != COMMAND_OK)
            return code;
    }
    if (c.converted == 0)
        return nothing_converted(&c);
    if (o->output == CONVERT_JSON)
        command_print_json(list, false);
    else
        command_print_yaml(list);
    return COMMAND_OK;
}

static int convert_command(int argc, char **argv)
{
    struct convert_options o = { .file = NULL };
    int next, code;
    if (!command_parse(&COMMAND_CONVERT, argc, argv, false, &o, &next, &code) ||
        !command_file(&COMMAND_CONVERT, &o.file, argc, argv, next, &code))
        return code;
    return convert(&o);
}

const struct command COMMAND_CONVERT = {
    .name = "convert",
    .summary = "turn a TFJob or PyTorchJob of Kubeflow into a TrainingJob",
    .run = convert_command,
    .takes = WORDS_FILES,
    .usage = "convert -f FILE [-o yaml|json]",
    .about = "Turns each TFJob and PyTorchJob (kubeflow.org/v1) of a file into a TrainingJob on standard output. What "
             "could not be\n"
             "carried over is said on standard error, as file:line:column: field: why, and what to do. Other objects "
             "of the file\n"
             "are printed as they are, so that the output can take its place.",
    .options = OPTIONS,
    .option_count = COUNT(OPTIONS),
    .examples =
        "ringmaster convert -f tfjob.yaml > job.yaml\nkubectl get pytorchjob mnist -o yaml | ringmaster convert -f -",
    .notes = "Exit codes: 0 converted, notes or not; 2 the manifest or the usage is wrong.",
};
