/* suspend, resume, checkpoint save, scale and delete: one request each. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/text.h"
#include "cli/command_checkpoint.h"
#include "cli/jobdir.h"
#include "cli/outcome.h"
#include "cli/runner_scale.h"
#include "cli/target.h"
#include "cli/waiting.h"
#include "job/job.h"

struct change_options { const char *job_dir, *default_dir; bool wait; int64_t timeout_ms; struct cluster_options cluster; };

#define WAIT_ROWS(text) \
    { .flag = "wait", .letter = 'w', .type = OPT_BOOL, .at = OPT_AT(struct change_options, wait, bool), .help = text }, \
    { .flag = "timeout", .def = "0", .type = OPT_DURATION, .at = OPT_AT(struct change_options, timeout_ms, int64_t), .min = 0, \
      .max = 366LL * 86400000, .value = "TIME", .help = "with --wait: give up after so long (0: never)" }

static const struct opt_def SUSPEND_OPTIONS[] = { WAIT_ROWS("wait until the pods are gone"), CLUSTER_OPTIONS(struct change_options, cluster) };
static const struct opt_def RESUME_OPTIONS[] = { WAIT_ROWS("wait until it runs"), CLUSTER_OPTIONS(struct change_options, cluster) };
static const struct opt_def SAVE_OPTIONS[] = { WAIT_ROWS("wait until it is committed"), CLUSTER_OPTIONS(struct change_options, cluster) };
static const struct opt_def SCALE_OPTIONS[] = {
    { .flag = "job-dir", .type = OPT_TEXT, .at = OPT_AT(struct change_options, job_dir, const char *), .value = "DIR",
      .help = "directory of a job of 'ringmaster run'" },
    { .flag = "default-job-dir", .env = "RINGMASTER_JOB_DIR", .type = OPT_TEXT, .at = OPT_AT(struct change_options, default_dir, const char *),
      .hidden = true },
    CLUSTER_OPTIONS(struct change_options, cluster),
};
static const struct opt_def DELETE_OPTIONS[] = { WAIT_ROWS("wait until it is gone"), CLUSTER_OPTIONS(struct change_options, cluster) };

typedef int change_fn(struct cluster *c, const char *name, const struct change_options *o);

static int not_there(struct cluster *c, const char *says, const char *name, struct error *e)
{
    if (e->kind == ERROR_NOT_FOUND && !strstr(e->text, "does not know TrainingJobs"))
        (void)error_set(e, ERROR_NOT_FOUND, "no job \"%.80s\" in namespace %.80s of %.300s", name, c->ns, c->tried);
    return command_fail(says, command_code(e), e);
}

/* {key: value}; value is taken. */
static cJSON *patch_of(const char *key, cJSON *value)
{
    cJSON *object = json_object();
    json_put(object, key, value);
    return object;
}

/* ---- suspend, resume --------------------------------------------------------------------------------------------------- */

static int set_suspend(struct cluster *c, const char *says, const char *name, bool suspend, const struct change_options *o)
{
    struct error e = ERROR_INIT;
    auto_json cJSON *job = NULL, *patch = NULL, *after = NULL;
    if (cluster_job(c, name, &job, &e) < 0)
        return command_fail(says, COMMAND_CANNOT_RUN, &e);
    if (outcome_of(job) != OUTCOME_NONE) {
        (void)error_set(&e, ERROR_INVALID, "job %s has ended (%s)", name, json_text(job, "status.phase", ""));
        return command_fail(says, COMMAND_CANNOT_RUN, &e);
    }
    cJSON *wanted = json_object();
    json_put_bool(wanted, "suspend", suspend);
    patch = patch_of("spec", wanted);
    struct kube_request r = { .verb = KUBE_MERGE_PATCH, .resource = &CLUSTER_JOBS, .ns = c->ns, .name = name, .body = patch,
                              .field_manager = CLUSTER_FIELD_MANAGER };
    if (cluster_call(c, &r, &after, &e) < 0)
        return not_there(c, says, name, &e);
    printf("trainingjob/%s %s\n", name, strcmp(kube_version(job), kube_version(after)) == 0 ? suspend ? "is suspended already" : "is not suspended"
                                        : suspend ? "suspended" : "resumed");
    return o->wait ? wait_for_job(c, says, name, suspend ? "suspended" : "running", o->timeout_ms, false) : COMMAND_OK;
}

static int suspend(struct cluster *c, const char *name, const struct change_options *o)
{
    return set_suspend(c, "suspend", name, true, o);
}

static int resume(struct cluster *c, const char *name, const struct change_options *o)
{
    return set_suspend(c, "resume", name, false, o);
}

/* ---- checkpoint -------------------------------------------------------------------------------------------------------- */

static int save(struct cluster *c, const char *name, const struct change_options *o)
{
    struct error e = ERROR_INIT;
    auto_json cJSON *job = NULL, *patch = NULL;
    char value[48], time[CLOCK_TEXT_MAX];
    int64_t now_ms = clock_wall_ms();
    if (cluster_job(c, name, &job, &e) < 0)
        return command_fail(CHECKPOINT_SAVE.name, COMMAND_CANNOT_RUN, &e);
    if (strcmp(json_text(job, "status.phase", ""), "Running") != 0) {
        (void)error_set(&e, ERROR_INVALID, "job %s does not run (%s): there is nothing to save", name, json_text(job, "status.phase", "Pending"));
        return command_fail(CHECKPOINT_SAVE.name, COMMAND_CANNOT_RUN, &e);
    }
    clock_format(now_ms, time);
    snprintf(value, sizeof value, "%.19s.%03dZ", time, (int)(now_ms % 1000)); /* any value that was not there before */
    cJSON *annotations = json_object();
    json_put_text(annotations, JOB_CHECKPOINT_NOW, value);
    patch = patch_of("metadata", patch_of("annotations", annotations));
    struct kube_request r = { .verb = KUBE_MERGE_PATCH, .resource = &CLUSTER_JOBS, .ns = c->ns, .name = name, .body = patch,
                              .field_manager = CLUSTER_FIELD_MANAGER };
    if (cluster_call(c, &r, NULL, &e) < 0)
        return not_there(c, CHECKPOINT_SAVE.name, name, &e);
    printf("trainingjob/%s: checkpoint asked for\n", name);
    auto_free char *goal = xasprintf(WAIT_CHECKPOINT "%s", value);
    return o->wait ? wait_for_job(c, CHECKPOINT_SAVE.name, name, goal, o->timeout_ms, false) : COMMAND_OK;
}

/* ---- delete ------------------------------------------------------------------------------------------------------------ */

static int delete(struct cluster *c, const char *name, const struct change_options *o)
{
    struct error e = ERROR_INIT;
    struct kube_request r = { .verb = KUBE_DELETE, .resource = &CLUSTER_JOBS, .ns = c->ns, .name = name, .propagation = KUBE_BACKGROUND };
    if (cluster_call(c, &r, NULL, &e) < 0)
        return not_there(c, "delete", name, &e);
    printf("trainingjob/%s deleted\n", name);
    return o->wait ? wait_for_job(c, "delete", name, "deleted", o->timeout_ms, false) : COMMAND_OK;
}

/* ---- for each name ----------------------------------------------------------------------------------------------------- */

static int each(const struct command *command, int argc, char **argv, change_fn *change)
{
    struct change_options o = { .wait = false };
    struct error e = ERROR_INIT;
    struct cluster c = CLUSTER_INIT;
    int next, code, worst = COMMAND_OK;
    if (!command_parse(command, argc, argv, false, &o, &next, &code))
        return code;
    if (next == argc) {
        (void)error_set(&e, ERROR_INVALID, "which job? give its name");
        return command_usage(command->name, &e);
    }
    if (cluster_open(&o.cluster, &c, &e) < 0)
        return command_fail(command->name, COMMAND_CANNOT_RUN, &e);
    for (int i = next; i < argc; i++) {
        code = change(&c, argv[i], &o);
        worst = code > worst ? code : worst;
        if (code == COMMAND_INTERRUPTED)
            break;
    }
    cluster_close(&c);
    return worst;
}

static int suspend_command(int argc, char **argv)
{
    return each(&COMMAND_SUSPEND, argc, argv, suspend);
}

static int resume_command(int argc, char **argv)
{
    return each(&COMMAND_RESUME, argc, argv, resume);
}

static int save_command(int argc, char **argv)
{
    return each(&CHECKPOINT_SAVE, argc, argv, save);
}

static int delete_command(int argc, char **argv)
{
    return each(&COMMAND_DELETE, argc, argv, delete);
}

/* ---- scale ------------------------------------------------------------------------------------------------------------- */

static int scale(struct cluster *c, const char *name, int64_t replicas)
{
    struct error e = ERROR_INIT;
    auto_json cJSON *before = NULL, *patch = NULL;
    struct kube_request get = { .verb = KUBE_GET, .resource = &CLUSTER_JOBS, .ns = c->ns, .name = name, .subresource = "scale" };
    if (cluster_call(c, &get, &before, &e) < 0)
        return not_there(c, "scale", name, &e);
    cJSON *wanted = json_object();
    json_put_int(wanted, "replicas", replicas);
    patch = patch_of("spec", wanted);
    struct kube_request r = { .verb = KUBE_MERGE_PATCH, .resource = &CLUSTER_JOBS, .ns = c->ns, .name = name, .subresource = "scale", .body = patch,
                              .field_manager = CLUSTER_FIELD_MANAGER };
    if (cluster_call(c, &r, NULL, &e) < 0)
        return not_there(c, "scale", name, &e);
    printf("trainingjob/%s scaled from %lld to %lld workers\n", name, (long long)json_int(before, "spec.replicas", 0), (long long)replicas);
    return COMMAND_OK;
}

/* The number is left in the job's directory, where its runner finds it. */
static int scale_local(const char *path, int64_t replicas)
{
    struct error e = ERROR_INIT;
    struct jobdir dir = JOBDIR_INIT;
    auto_jobfile struct jobfile file = { .tree = NULL };
    auto_free char *report = NULL, *text = xasprintf("%lld\n", (long long)replicas);
    int code = COMMAND_CANNOT_RUN;
    if (jobdir_look(path, &dir, &e) < 0 || jobdir_load_job(&dir, &file, &report, &e) < 0)
        return command_fail("scale", code, &e);
    auto_free char *place = jobdir_path(&dir, JOBDIR_SCALE);
    int32_t before = file.job->spec.roles[ROLE_WORKER].present ? file.job->spec.roles[ROLE_WORKER].replicas : 0;
    if (scale_check(file.job, replicas, &e) < 0)
        code = COMMAND_USAGE;
    else if (!jobdir_busy(&dir))
        (void)error_set(&e, ERROR_INVALID, "no runner is at work in %.300s: continue with 'ringmaster run --resume', then scale", dir.path);
    else if (jobdir_put(place, text, &e) == 0)
        code = COMMAND_OK;
    if (code == COMMAND_OK)
        printf("%s scaled from %d to %lld workers\n", file.job->name, before, (long long)replicas);
    else
        code = command_fail("scale", code, &e);
    jobdir_release(&dir);
    return code;
}

static int scale_on_cluster(const struct change_options *o, const char *name, int64_t replicas)
{
    struct error e = ERROR_INIT;
    struct cluster c = CLUSTER_INIT;
    if (cluster_open(&o->cluster, &c, &e) < 0)
        return command_fail("scale", COMMAND_CANNOT_RUN, &e);
    int code = scale(&c, name, replicas);
    cluster_close(&c);
    return code;
}

static int scale_command(int argc, char **argv)
{
    struct change_options o = { .wait = false };
    struct error e = ERROR_INIT;
    struct target target = { .local = false };
    int64_t replicas = 0;
    int next, code;
    if (!command_parse(&COMMAND_SCALE, argc, argv, false, &o, &next, &code))
        return code;
    const char *name = argc - next == 2 ? argv[next] : NULL;
    struct target_words words = { .job_dir = o.job_dir, .default_dir = o.default_dir, .name = name, .name_holds_job = jobdir_holds_job(name),
                                  .cluster_named = cluster_is_named(&o.cluster) };
    if (target_choose(&words, &target, &e) == 0) {
        if (argc - next != (target.name_used ? 2 : 1) || (!target.local && target.name == NULL))
            (void)error_set(&e, ERROR_INVALID, "give a job and the number of its workers, as in: ringmaster scale mnist 8");
        else if (!text_int(argv[argc - 1], &replicas) || replicas < 0 || replicas > INT32_MAX)
            (void)error_set(&e, ERROR_INVALID, "found \"%.60s\", expected a number of workers", argv[argc - 1]);
    }
    if (e.kind != ERROR_NONE)
        code = command_usage("scale", &e);
    else
        code = target.local ? scale_local(target.job_dir, replicas) : scale_on_cluster(&o, target.name, replicas);
    return code;
}

/* ---- pages ------------------------------------------------------------------------------------------------------------- */

#define CODES "Exit codes: 0 done, 2 bad usage or refused by the cluster's rules, 3 there is no such job, it has ended, or no cluster answers"

const struct command COMMAND_SUSPEND = {
    .name = "suspend", .summary = "stop a job of a cluster and keep it, with its checkpoints", .run = suspend_command, .takes = WORDS_JOB,
    .usage = "suspend NAME... [-n NAMESPACE] [--wait]",
    .about = "Sets spec.suspend: the operator ends the pods, after their grace period; 'ringmaster resume' continues from the last\n"
             "committed checkpoint.",
    .options = SUSPEND_OPTIONS, .option_count = COUNT(SUSPEND_OPTIONS), .notes = CODES ",\nand with --wait those of 'ringmaster wait'.",
};

const struct command COMMAND_RESUME = {
    .name = "resume", .summary = "let a suspended job of a cluster go on", .run = resume_command, .takes = WORDS_JOB,
    .usage = "resume NAME... [-n NAMESPACE] [--wait]",
    .about = "Takes spec.suspend back. (A job of 'ringmaster run' is continued with 'ringmaster run --resume'.)",
    .options = RESUME_OPTIONS, .option_count = COUNT(RESUME_OPTIONS), .notes = CODES ",\nand with --wait those of 'ringmaster wait'.",
};

const struct command CHECKPOINT_SAVE = {
    .name = "checkpoint save", .summary = "have a running job of a cluster save a checkpoint now", .run = save_command, .takes = WORDS_JOB,
    .usage = "checkpoint save NAME... [-n NAMESPACE] [--wait]",
    .about = "Sets the annotation " JOB_CHECKPOINT_NOW " to the time. What came of it stands in status.checkpointRequest.",
    .options = SAVE_OPTIONS, .option_count = COUNT(SAVE_OPTIONS), .notes = CODES ",\nand with --wait those of 'ringmaster wait'.",
};

const struct command COMMAND_SCALE = {
    .name = "scale", .summary = "change the number of workers of a job", .run = scale_command, .takes = WORDS_JOB,
    .usage = "scale NAME N [-n NAMESPACE]\nscale --job-dir DIR N",
    .about = "Sets the number of workers, as 'kubectl scale' does; it stays within spec.elasticPolicy where there is one. In a job with an\n"
             "elasticPolicy whose program uses elastic.run the other processes stay and go on in a ring of the new size; every other job\n"
             "saves a checkpoint and starts its processes again.\n\n" TARGET_RULE,
    .options = SCALE_OPTIONS, .option_count = COUNT(SCALE_OPTIONS), .notes = CODES ".",
};

const struct command COMMAND_DELETE = {
    .name = "delete", .summary = "remove jobs of a cluster, with their pods", .run = delete_command, .takes = WORDS_JOB,
    .usage = "delete NAME... [-n NAMESPACE] [--wait]",
    .about = "Deletes the TrainingJob; its pods, Services and key go with it. Checkpoints on volumes stay.",
    .options = DELETE_OPTIONS, .option_count = COUNT(DELETE_OPTIONS), .notes = CODES ",\nand with --wait those of 'ringmaster wait'.",
};
