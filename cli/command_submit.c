#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crypto.h"
#include "base/mem.h"
#include "base/text.h"
#include "base/yaml.h"
#include "cli/command.h"
#include "cli/jobfile.h"
#include "cli/logs_cluster.h"
#include "cli/np.h"
#include "cli/outcome.h"
#include "cli/submit_manifest.h"
#include "cli/waiting.h"
#include "job/manifest.h"

struct submit_options {
    const char *file, *name;
    bool wait, follow, dry_run, force_conflicts;
    int64_t timeout_ms;
    struct submit_pod pod;
    struct cluster_options cluster;
};

#define AT(field, type) OPT_AT(struct submit_options, field, type)

static const struct opt_def OPTIONS[] = {
    { .flag = "file", .letter = 'f', .type = OPT_TEXT, .at = AT(file, const char *), .value = "FILE",
      .help = "manifest of a TrainingJob, YAML or JSON; - reads standard input" },
    { .flag = "wait", .letter = 'w', .type = OPT_BOOL, .at = AT(wait, bool), .help = "wait for the job's end; the exit code tells it" },
    { .flag = "follow", .type = OPT_BOOL, .at = AT(follow, bool), .help = "show what its members write until its end; the exit code tells it" },
    { .flag = "timeout", .def = "0", .type = OPT_DURATION, .at = AT(timeout_ms, int64_t), .min = 0, .max = 366LL * 86400000, .value = "TIME",
      .help = "with --wait: stop waiting after so long (0: never); the job goes on" },
    { .flag = "dry-run", .type = OPT_BOOL, .at = AT(dry_run, bool), .help = "check it and print the manifest; ask no cluster" },
    { .flag = "force-conflicts", .type = OPT_BOOL, .at = AT(force_conflicts, bool),
      .help = "take over fields of a job that is there from those who set them" },
    { .flag = "name", .type = OPT_TEXT, .at = AT(name, const char *), .value = "NAME",
      .help = "with a command: the job's name (default: the script's, with five letters behind it)" },
    { .flag = "image", .type = OPT_TEXT, .at = AT(pod.image, const char *), .value = "IMAGE", .help = "with a command: container image" },
    { .flag = "gpus", .type = OPT_INT, .at = AT(pod.gpus, int64_t), .min = 0, .max = 1024, .value = "N", .help = "with a command: GPUs of each process" },
    { .flag = "gpu-resource", .def = "nvidia.com/gpu", .type = OPT_TEXT, .at = AT(pod.gpu_resource, const char *), .value = "NAME",
      .help = "with a command: what a GPU is called on the nodes" },
    { .flag = "cpu", .type = OPT_TEXT, .at = AT(pod.cpu, const char *), .value = "QUANTITY", .help = "with a command: CPUs of each process, 4 or 500m" },
    { .flag = "memory", .type = OPT_TEXT, .at = AT(pod.memory, const char *), .value = "QUANTITY",
      .help = "with a command: memory of each process, requested and its limit, 16Gi" },
    { .flag = "env", .letter = 'e', .type = OPT_LIST, .at = AT(pod.env, struct opt_list), .value = "NAME=VALUE",
      .help = "with a command: an environment variable; may be repeated" },
    { .flag = "label", .letter = 'l', .type = OPT_LIST, .at = AT(pod.labels, struct opt_list), .value = "NAME=VALUE",
      .help = "with a command: a label of job and pods; may be repeated" },
    { .flag = "node-selector", .type = OPT_LIST, .at = AT(pod.node_selector, struct opt_list), .value = "NAME=VALUE",
      .help = "with a command: only nodes with this label; may be repeated" },
    { .flag = "working-dir", .type = OPT_TEXT, .at = AT(pod.working_dir, const char *), .value = "DIR",
      .help = "with a command: where in the container it runs" },
    { .flag = "service-account", .type = OPT_TEXT, .at = AT(pod.service_account, const char *), .value = "NAME",
      .help = "with a command: service account of the pods" },
    { .flag = "image-pull-secret", .type = OPT_TEXT, .at = AT(pod.pull_secret, const char *), .value = "NAME",
      .help = "with a command: Secret with the registry's credentials" },
    { .flag = "queue", .type = OPT_TEXT, .at = AT(pod.queue, const char *), .value = "NAME", .help = "with a command: queue of the gang scheduler" },
    { .flag = "priority-class", .type = OPT_TEXT, .at = AT(pod.priority_class, const char *), .value = "NAME",
      .help = "with a command: PriorityClass of the gang" },
    { .flag = "checkpoint", .type = OPT_TEXT, .at = AT(pod.checkpoint, const char *), .value = "DIR|s3://...",
      .help = "with a command: where checkpoints go, in the container" },
    { .flag = "checkpoint-claim", .type = OPT_TEXT, .at = AT(pod.checkpoint_claim, const char *), .value = "CLAIM",
      .help = "with a command: PersistentVolumeClaim that is mounted at --checkpoint" },
    { .flag = "checkpoint-every", .type = OPT_INT, .at = AT(pod.checkpoint_every, int64_t), .min = 1, .max = 1000000000000, .value = "STEPS",
      .help = "with a command: a checkpoint after so many steps" },
    CLUSTER_OPTIONS(struct submit_options, cluster),
};

/* ---- the manifest ------------------------------------------------------------------------------------------------------ */

static int from_file(const struct submit_options *o, cJSON **ret_tree, char **ret_report, struct error *e)
{
    auto_yaml struct yaml_doc *doc = NULL;
    auto_free struct problems *problems = xcalloc(1, sizeof *problems);
    auto_job struct training_job *job = NULL;
    const cJSON *tree;
    if (manifest_open(o->file, &doc, &tree, e) < 0)
        return -1;
    if (job_decode(tree, doc, problems, &job, e) < 0) {
        *ret_report = problems->count ? problems_format(problems, yaml_name(doc)) : NULL;
        return -1;
    }
    const char *ns = json_text(tree, "metadata.namespace", NULL);
    if (ns && o->cluster.ns && strcmp(ns, o->cluster.ns) != 0)
        return error_set(e, ERROR_INVALID, "-n %.80s, but %.200s says metadata.namespace: %.80s; leave one of them out", o->cluster.ns, o->file, ns);
    *ret_tree = cJSON_Duplicate(tree, true);
    submit_strip(*ret_tree);
    return 0;
}

static int from_command(const struct submit_options *o, const struct np_options *np, char **command, size_t count, cJSON **ret_tree,
                        char **ret_report, struct error *e)
{
    char base[52], name[60];
    uint64_t seed = 0;
    auto_free struct problems *problems = xcalloc(1, sizeof *problems);
    auto_job struct training_job *job = NULL;
    int64_t processes = np->processes ? np->processes : np->min_processes;
    np_name(command, count, base);
    if (crypto_random(&seed, sizeof seed, e) < 0 || np_check_counts(np, processes, e) < 0)
        return -1;
    submit_name(base, seed, name);
    fputs(np->notes, stderr);
    auto_json cJSON *tree = np_manifest(np, o->name ? o->name : name, processes, command, count);
    if (submit_complete(&o->pod, tree, e) < 0)
        return -1;
    if (job_decode(tree, NULL, problems, &job, e) < 0) {
        *ret_report = problems->count ? problems_format(problems, "the command line") : NULL;
        return -1;
    }
    if (o->cluster.ns)
        json_put_text(cJSON_GetObjectItemCaseSensitive(tree, "metadata"), "namespace", o->cluster.ns);
    *ret_tree = TAKE(tree);
    return 0;
}

static void print_manifest(const cJSON *tree)
{
    auto_free char *text = yaml_print(tree);
    fputs(text, stdout);
}

/* ---- the cluster ------------------------------------------------------------------------------------------------------- */

/* A job that has ended does not start again because its manifest is sent again. */
static int check_ended(struct cluster *c, const char *name, const cJSON *before, struct error *e)
{
    if (outcome_of(before) == OUTCOME_NONE)
        return 0;
    return error_set(e, ERROR_CONFLICT, "job %s in namespace %s has ended (%s) and does not run again; remove it first: ringmaster delete %s -n %s",
                     name, c->ns, json_text(before, "status.phase", ""), name, c->ns);
}

static int apply(struct cluster *c, const struct submit_options *o, cJSON *tree, struct error *e)
{
    const char *name = json_text(tree, "metadata.name", "");
    auto_json cJSON *before = NULL, *after = NULL;
    struct kube_request get = { .verb = KUBE_GET, .resource = &CLUSTER_JOBS, .ns = c->ns, .name = name };
    if (cluster_call(c, &get, &before, e) < 0) {
        if (e->kind != ERROR_NOT_FOUND || strstr(e->text, "does not know TrainingJobs"))
            return -1;
        *e = (struct error)ERROR_INIT;
    }
    if (before && check_ended(c, name, before, e) < 0)
        return -1;
    struct kube_request r = { .verb = KUBE_APPLY, .resource = &CLUSTER_JOBS, .ns = c->ns, .name = name, .body = tree, .strict = true,
                              .field_manager = CLUSTER_FIELD_MANAGER, .force = o->force_conflicts };
    if (cluster_call(c, &r, &after, e) < 0)
        return e->kind == ERROR_CONFLICT && !o->force_conflicts ? error_wrap(e, "others have set fields of this job (--force-conflicts takes "
                                                                             "them over)") : -1;
    bool same = before && strcmp(kube_version(before), kube_version(after)) == 0;
    printf("trainingjob/%s %s in namespace %s\n", name, !before ? "created" : same ? "unchanged" : "changed", c->ns);
    fflush(stdout);
    return 0;
}

static int outcome_code(const cJSON *job, const char *name)
{
    char text[700];
    struct error e = ERROR_INIT;
    if (job && outcome_of(job) == OUTCOME_SUCCEEDED) {
        fprintf(stderr, "trainingjob/%s succeeded\n", name);
        return COMMAND_OK;
    }
    (void)error_set(&e, ERROR_INVALID, "job %s: %.400s", name, job ? outcome_text(job, text, sizeof text) : "was deleted");
    return command_fail("submit", job ? COMMAND_JOB_FAILED : COMMAND_CANNOT_RUN, &e);
}

static int after_apply(struct cluster *c, const struct submit_options *o, const char *name)
{
    auto_json cJSON *job = NULL;
    int code = COMMAND_OK;
    if (o->follow) {
        struct logs_options logs = { .follow = true, .prefix = true, .rank = -1, .tail = -1 };
        code = logs_follow(c, "submit", &logs, name, NULL, 0, &job);
        if (code == COMMAND_OK)
            return outcome_code(job, name);
    } else if (o->wait) {
        code = wait_for_job(c, "submit", name, "succeeded", o->timeout_ms, true);
    } else {
        fprintf(stderr, "follow it with: ringmaster logs %s -n %s -f\n", name, c->ns);
    }
    if (code == COMMAND_INTERRUPTED)
        fprintf(stderr, "ringmaster submit: the job goes on; ringmaster logs %s -n %s -f follows it, ringmaster delete ends it\n", name, c->ns);
    return code;
}

static int submit(const struct submit_options *o, cJSON *tree)
{
    struct error e = ERROR_INIT;
    struct cluster c = CLUSTER_INIT;
    const char *ns = json_text(tree, "metadata.namespace", NULL);
    struct cluster_options options = o->cluster;
    int code;
    options.ns = ns ? ns : options.ns;
    if (cluster_open(&options, &c, &e) < 0)
        return command_fail("submit", COMMAND_CANNOT_RUN, &e);
    if (apply(&c, o, tree, &e) < 0)
        code = command_fail("submit", command_code(&e), &e);
    else
        code = after_apply(&c, o, json_text(tree, "metadata.name", ""));
    cluster_close(&c);
    return code;
}

/* ---- the command line -------------------------------------------------------------------------------------------------- */

static bool of_a_command(const struct submit_options *o)
{
    const struct submit_pod *p = &o->pod;
    return o->name || p->image || p->gpus || p->cpu || p->memory || p->env.count || p->labels.count || p->node_selector.count || p->working_dir ||
           p->service_account || p->pull_secret || p->queue || p->priority_class || p->checkpoint || p->checkpoint_claim || p->checkpoint_every;
}

static int check_usage(const struct submit_options *o, const struct np_options *np, size_t words, struct error *e)
{
    if (o->file && (words || np->used || of_a_command(o)))
        return error_set(e, ERROR_INVALID, "-f %.200s and %s: image, replicas and the rest stand in the manifest", o->file,
                         words ? "a command" : "an option of a command");
    if (!o->file && !words)
        return error_set(e, ERROR_INVALID, "what is to be run? give a manifest with -f FILE, or -np N --image IMAGE and a command");
    if (o->file)
        return 0;
    if (np->hosts || np->hostfile)
        return error_set(e, ERROR_INVALID, "-H and --hostfile: on a cluster the scheduler chooses the nodes; give -np, and --node-selector where "
                         "they must be certain ones");
    if (np->output_filename || np->log_timestamps)
        return error_set(e, ERROR_INVALID, "%s: on a cluster read the output with 'ringmaster logs'%s",
                         np->output_filename ? "--output-filename" : "-prefix-timestamp", np->output_filename ? "" : " --timestamps");
    if (!np->processes && !np->min_processes)
        return error_set(e, ERROR_INVALID, "how many processes? give -np N before the command");
    if (!o->pod.image)
        return error_set(e, ERROR_INVALID, "which image? give it with --image");
    if (o->name && (!text_is_dns1035_label(o->name) || strlen(o->name) > JOB_NAME_MAX))
        return error_set(e, ERROR_INVALID, "--name %.80s: at most %d lower case letters, digits and '-', beginning with a letter", o->name,
                         JOB_NAME_MAX);
    return 0;
}

static int run_submit(const struct submit_options *o, const struct np_options *np, char **command, size_t count)
{
    struct error e = ERROR_INIT;
    auto_free char *report = NULL;
    auto_json cJSON *tree = NULL;
    if (check_usage(o, np, count, &e) < 0)
        return command_usage("submit", &e);
    if ((o->file ? from_file(o, &tree, &report, &e) : from_command(o, np, command, count, &tree, &report, &e)) < 0)
        return command_bad_manifest("submit", &e, report);
    if (!o->dry_run)
        return submit(o, tree);
    print_manifest(tree);
    return COMMAND_OK;
}

static int submit_command(int argc, char **argv)
{
    struct submit_options o = { .file = NULL };
    struct np_options np = { .reset_limit = -1 };
    struct error e = ERROR_INIT;
    int next, code;
    if (np_extract(&argc, argv, OPTIONS, COUNT(OPTIONS), &np, &e) < 0)
        return command_usage("submit", &e);
    if (!command_parse(&COMMAND_SUBMIT, argc, argv, true, &o, &next, &code)) {
        np_release(&np);
        return code;
    }
    code = run_submit(&o, &np, argv + next, (size_t)(argc - next));
    opt_release(OPTIONS, COUNT(OPTIONS), &o);
    np_release(&np);
    return code;
}

const struct command COMMAND_SUBMIT = {
    .name = "submit", .summary = "run a job on a cluster", .run = submit_command, .takes = WORDS_COMMAND,
    .usage = "submit -f FILE [-n NAMESPACE] [--wait|--follow]\nsubmit -np N --image IMAGE [OPTIONS] [--] COMMAND...",
    .about = "Checks a TrainingJob here, as 'ringmaster validate' does, and gives it to the cluster by server-side apply. From a command\n"
             "it makes the job that 'ringmaster run -np' would run here, with an image.",
    .options = OPTIONS, .option_count = COUNT(OPTIONS),
    .more = np_help, .more_flags = np_flag_names,
    .examples = "ringmaster submit -f job.yaml --follow\n"
                "ringmaster submit -np 4 --image registry.example/train:3 --gpus 1 --memory 32Gi -- python train.py\n"
                "ringmaster submit -np 4 --image registry.example/train:3 --dry-run -- python train.py > job.yaml",
    .notes = "Exit codes: 0 submitted (with --wait or --follow: it succeeded), 1 with these: it failed, 2 bad usage or manifest,\n"
             "3 no cluster answers or it said no, 4 timeout, 130 interrupted (the job goes on).",
};
