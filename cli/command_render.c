#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/jobfile.h"
#include "job/pod.h"
#include "job/tfconfig.h"

enum render_output { RENDER_YAML, RENDER_JSON };
static const char *const OUTPUTS[] = { "yaml", "json", NULL };

struct render_options { const char *file, *tf_config, *image, *uid; bool local; int output; int64_t attempt; };

#define AT(field, type) OPT_AT(struct render_options, field, type)

static const struct opt_def OPTIONS[] = {
    { .flag = "file", .letter = 'f', .type = OPT_TEXT, .at = AT(file, const char *), .value = "FILE",
      .help = "manifest; - reads standard input" },
    { .flag = "output", .letter = 'o', .def = "yaml", .type = OPT_ENUM, .at = AT(output, int), .names = OUTPUTS, .value = "FORMAT",
      .help = "yaml (documents) or json (a List)" },
    { .flag = "local", .type = OPT_BOOL, .at = AT(local, bool), .help = "with the addresses of 'ringmaster run' in place of a cluster's" },
    { .flag = "tf-config", .type = OPT_TEXT, .at = AT(tf_config, const char *), .value = "ROLE:INDEX",
      .help = "print the TF_CONFIG of one replica only, as worker:0" },
    { .flag = "attempt", .def = "1", .type = OPT_INT, .at = AT(attempt, int64_t), .min = 1, .max = 1000000, .value = "N",
      .help = "attempt that the pods are of" },
    { .flag = "sidecar-image", .env = "RINGMASTER_SIDECAR_IMAGE", .def = "ringmaster/sidecar:" RINGMASTER_VERSION, .type = OPT_TEXT,
      .at = AT(image, const char *), .value = "IMAGE", .help = "sidecar image where the manifest names none" },
    { .flag = "uid", .def = "00000000-0000-4000-8000-000000000000", .type = OPT_TEXT, .at = AT(uid, const char *), .value = "UID",
      .help = "the job's UID where the manifest has none" },
};

static int parse_replica(const struct training_job *job, const char *text, enum job_role *ret_role, int32_t *ret_index, struct error *e)
{
    const char *colon = strchr(text, ':');
    auto_free char *role = xstrndup(text, colon ? (size_t)(colon - text) : strlen(text));
    int64_t index = 0;
    if (!role_parse(role, ret_role) || (colon && !text_int(colon + 1, &index)))
        return error_set(e, ERROR_INVALID, "--tf-config: found \"%.60s\", expected ROLE:INDEX as in worker:0", text);
    const struct replica_spec *spec = &job->spec.roles[*ret_role];
    if (!spec->present || index < 0 || index >= spec->replicas)
        return error_set(e, ERROR_INVALID, "--tf-config %.60s: the job has %d replicas of %s", text, spec->present ? spec->replicas : 0,
                         role_key(*ret_role));
    *ret_index = (int32_t)index;
    return 0;
}

static int print_tf_config(const struct training_job *job, const struct render_options *o, const struct address_plan *plan,
                           struct error *e)
{
    enum job_role role = ROLE_WORKER;
    int32_t index = 0;
    if (parse_replica(job, o->tf_config, &role, &index, e) < 0)
        return -1;
    auto_free char *text = tfconfig_format(job, plan, role, index);
    if (text)
        puts(text);
    else
        fputs("a job of one replica has no TF_CONFIG\n", stderr);
    return 0;
}

static cJSON *objects(const struct training_job *job, const struct render_options *o, const struct address_plan *plan)
{
    cJSON *list = json_array();
    auto_free struct job_status *status = xcalloc(1, sizeof *status);
    status_init(status);
    struct pod_context context = { .addresses = plan, .attempt = (int32_t)o->attempt, .status = status, .sidecar_image = o->image };
    json_append(list, service_build(job));
    for (int role = 0; role < ROLE_COUNT; role++) {
        for (int32_t i = 0; job->spec.roles[role].present && i < job->spec.roles[role].replicas; i++) {
            if (job->spec.network.service_per_pod)
                json_append(list, service_build_replica(job, (enum job_role)role, i));
            json_append(list, pod_build(job, (enum job_role)role, i, &context));
        }
    }
    return list;
}

static int render(const struct render_options *o)
{
    struct error e = ERROR_INIT;
    auto_free char *report = NULL;
    auto_jobfile struct jobfile file = { .tree = NULL };
    struct address_plan plan = { .kind = o->local ? ADDRESS_LOCAL : ADDRESS_CLUSTER };
    if (jobfile_read(o->file, NULL, &file, &report, &e) < 0)
        return command_bad_manifest("render", &e, report);
    if (!file.job->uid || !*file.job->uid) {
        free(file.job->uid);
        file.job->uid = xstrdup(o->uid);
    }
    if (o->tf_config)
        return print_tf_config(file.job, o, &plan, &e) < 0 ? command_usage("render", &e) : COMMAND_OK;
    auto_json cJSON *list = objects(file.job, o, &plan);
    if (o->output == RENDER_JSON)
        command_print_json(list, true);
    else
        command_print_yaml(list);
    return COMMAND_OK;
}

static int render_command(int argc, char **argv)
{
    struct render_options o = { .file = NULL };
    int next, code;
    if (!command_parse(&COMMAND_RENDER, argc, argv, false, &o, &next, &code) ||
        !command_file(&COMMAND_RENDER, &o.file, argc, argv, next, &code))
        return code;
    return render(&o);
}

const struct command COMMAND_RENDER = {
    .name = "render", .summary = "print the pods, Service and TF_CONFIG of a manifest", .run = render_command, .takes = WORDS_FILES,
    .usage = "render -f FILE [--local] [-o yaml|json]\nrender -f FILE --tf-config ROLE:INDEX",
    .about = "Prints the Service and the exact pods that the operator would create for a manifest, without a cluster.",
    .options = OPTIONS, .option_count = COUNT(OPTIONS),
    .examples = "ringmaster render -f job.yaml | kubectl diff -f -\nringmaster render -f job.yaml --tf-config worker:0",
    .notes = "Exit codes: 0 printed, 2 the manifest or the usage is wrong.",
};
