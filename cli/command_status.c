#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/mem.h"
#include "base/yaml.h"
#include "cli/command.h"
#include "cli/jobdir.h"
#include "cli/screen.h"
#include "cli/status_cluster.h"
#include "cli/target.h"
#include "cli/view.h"
#include "job/report.h"

#define WATCH_LOCAL_MS 1000

static const char *const OUTPUTS[] = { "text", "json", "yaml", "name", NULL };

#define AT(field, type) OPT_AT(struct status_options, field, type)

static const struct opt_def OPTIONS[] = {
    { .flag = "job-dir", .type = OPT_TEXT, .at = AT(job_dir, const char *), .value = "DIR",
      .help = "directory of a job of 'ringmaster run' (env RINGMASTER_JOB_DIR)" },
    { .flag = "default-job-dir", .env = "RINGMASTER_JOB_DIR", .type = OPT_TEXT, .at = AT(default_dir, const char *), .hidden = true },
    { .flag = "watch", .letter = 'w', .type = OPT_BOOL, .at = AT(watch, bool),
      .help = "go on showing it as it changes; of one job, until it ends" },
    { .flag = "output", .letter = 'o', .def = "text", .type = OPT_ENUM, .at = AT(output, int), .names = OUTPUTS, .value = "FORMAT",
      .help = "json, yaml: the status as the TrainingJob has it; name: names alone" },
    { .flag = "all-namespaces", .letter = 'A', .type = OPT_BOOL, .at = AT(all_namespaces, bool), .help = "jobs of every namespace" },
    CLUSTER_OPTIONS(struct status_options, cluster),
};

static enum pod_phase phase_of(const char *text)
{
    return strcmp(text, "Succeeded") == 0 ? POD_SUCCEEDED : strcmp(text, "Failed") == 0 ? POD_FAILED : POD_RUNNING;
}

/* Pods as the runner wrote them down. Without a runner none still goes on, and one that was ended with the runner has not
 * failed: it begins again when the job is resumed. */
static struct view_pod *pods_read(const struct jobdir *d, const struct training_job *job, bool lives, bool over, size_t *ret_count)
{
    struct view_pod *list = xcalloc((size_t)job_replicas(job) + 1, sizeof *list);
    size_t count = 0;
    for (int role = 0; role < ROLE_COUNT; role++) {
        for (int32_t i = 0; job->spec.roles[role].present && i < job->spec.roles[role].replicas; i++) {
            struct error e = ERROR_INIT;
            char member[80];
            size_t len;
            auto_json cJSON *state = NULL;
            job_member_name((enum job_role)role, i, member);
            auto_free char *path = jobdir_path(d, "pods/%s/state.json", member), *text = NULL;
            if (fs_read(path, 65536, &text, &len, &e) < 0 || json_parse(text, len, &state, &e) < 0)
                continue;
            const char *phase = json_text(state, "phase", "");
            if (lives || phase_of(phase) == POD_SUCCEEDED || (over && phase_of(phase) == POD_FAILED))
                list[count++] = (struct view_pod){ .role = (enum job_role)role, .index = i, .phase = phase_of(phase),
                                                   .deleting = strcmp(phase, "Terminating") == 0 };
        }
    }
    *ret_count = count;
    return list;
}

static bool report_read(const struct jobdir *d, struct coordinator_report *ret)
{
    struct error e = ERROR_INIT;
    auto_free char *path = jobdir_path(d, "coordinator.json"), *text = NULL;
    size_t len;
    return fs_read(path, JSON_MAX_BYTES, &text, &len, &e) == 0 && report_decode(text, len, ret, &e) == 0;
}

static void print_failures(const struct job_status *status)
{
    if (status->failure_count)
        puts("\nFailures:");
    for (size_t i = 0; i < status->failure_count; i++) {
        const struct failure *f = &status->failures[i];
        char member[80], time[CLOCK_TEXT_MAX];
        job_member_name(f->role, f->index, member);
        clock_format(f->time_ms, time);
        printf("  %s  %s", time, member);
        if (f->rank.set)
            printf(" (rank %lld)", (long long)f->rank.value);
        printf("  attempt %d round %d  %s (%s)", f->attempt, f->round, f->reason, failure_class_name(f->class));
        if (f->has_exit)
            printf("  code %d", f->exit_code);
        puts("");
        if (f->evidence[0])
            printf("      evidence in %s\n", f->evidence);
    }
}

static void print_text(const struct jobdir *d, const struct training_job *job, const struct job_status *status)
{
    struct coordinator_report report;
    struct view v;
    struct view_style style = screen_stdout_style();
    bool lives = jobdir_busy(d), over = phase_is_final(status->phase), heard = report_read(d, &report);
    size_t pod_count;
    auto_free struct view_pod *pods = pods_read(d, job, lives, over, &pod_count);
    auto_buf struct buf text = BUF_INIT(1u << 20);
    view_build(job, status, heard ? &report : NULL, pods, pod_count, clock_wall_ms(), &v);
    (void)view_format(&v, &style, &text);
    fputs(buf_text(&text), stdout);
    if (!lives && !over) /* not the view's note: that is cut at the width of the terminal */
        printf("no runner is at work here; continue with: ringmaster run --resume --job-dir %s\n", d->path);
    print_failures(status);
    view_release(&v);
    if (heard)
        report_release(&report);
}

static void print_tree(const struct training_job *job, const struct job_status *status, enum status_output output)
{
    auto_json cJSON *tree = status_encode(job, status);
    auto_free char *text = output == STATUS_JSON ? json_print(tree, true) : yaml_print(tree);
    fputs(text, stdout);
    if (output == STATUS_JSON)
        puts("");
}

/* Shows the job of a directory; the exit code. *ret_goes_on: a runner is at work on it. */
static int show_local(const char *path, enum status_output output, bool *ret_goes_on)
{
    struct error e = ERROR_INIT;
    struct jobdir dir = JOBDIR_INIT;
    auto_jobfile struct jobfile file = { .tree = NULL };
    auto_free char *report = NULL;
    auto_free struct job_status *status = xcalloc(1, sizeof *status);
    int code = COMMAND_OK;
    *ret_goes_on = false;
    if (jobdir_look(path, &dir, &e) < 0 || jobdir_load_job(&dir, &file, &report, &e) < 0 || jobdir_load_status(&dir, status, &e) < 0) {
        code = command_fail("status", COMMAND_CANNOT_RUN, &e);
    } else {
        *ret_goes_on = jobdir_busy(&dir);
        if (output == STATUS_NAME)
            puts(file.job->name);
        else if (output == STATUS_TEXT)
            print_text(&dir, file.job, status);
        else
            print_tree(file.job, status, output);
    }
    jobdir_release(&dir);
    return code;
}

/* The picture of a directory is small: it is printed again, with a line between, as long as a runner is at work. */
static int watch_local(const char *path, const struct status_options *o)
{
    bool goes_on = true;
    int code = COMMAND_OK;
    while (goes_on && code == COMMAND_OK) {
        if (screen_is_terminal(STDOUT_FILENO))
            fputs("\033[H\033[2J", stdout);
        code = show_local(path, (enum status_output)o->output, &goes_on);
        fflush(stdout);
        if (ferror(stdout))
            break;
        if (goes_on)
            (void)poll(NULL, 0, WATCH_LOCAL_MS);
    }
    return code;
}

static int status_command(int argc, char **argv)
{
    struct status_options o = { .job_dir = NULL };
    struct error e = ERROR_INIT;
    struct target target;
    int next, code;
    bool goes_on;
    if (!command_parse(&COMMAND_STATUS, argc, argv, false, &o, &next, &code))
        return code;
    const char *name = next < argc ? argv[next] : NULL;
    struct target_words words = { .job_dir = o.job_dir, .default_dir = o.default_dir, .name = name, .name_holds_job = jobdir_holds_job(name),
                                  .cluster_named = cluster_is_named(&o.cluster) || o.all_namespaces };
    if (target_choose(&words, &target, &e) < 0)
        return command_usage("status", &e);
    if (argc - next > (target.name_used ? 1 : 0)) {
        (void)error_set(&e, ERROR_INVALID, "one job at a time: \"%.80s\" is too much", argv[next + (target.name_used ? 1 : 0)]);
        return command_usage("status", &e);
    }
    if (o.all_namespaces && target.name) {
        (void)error_set(&e, ERROR_INVALID, "-A lists the jobs of all namespaces; leave out \"%.80s\", or say its namespace with -n", target.name);
        return command_usage("status", &e);
    }
    if (!target.local)
        return status_cluster(&o, target.name);
    return o.watch ? watch_local(target.job_dir, &o) : show_local(target.job_dir, (enum status_output)o.output, &goes_on);
}

const struct command COMMAND_STATUS = {
    .name = "status", .summary = "show how jobs stand", .run = status_command, .takes = WORDS_JOB,
    .usage = "status [NAME] [-n NAMESPACE] [-w] [-o json|yaml|name]\nstatus DIR | --job-dir DIR [-w] [-o json|yaml]",
    .about = "Shows the jobs of a namespace, or one of them: phase, ranks, progress, conditions, ring, checkpoint, failures, events.\n\n"
             TARGET_RULE,
    .options = OPTIONS, .option_count = COUNT(OPTIONS),
    .examples = "ringmaster status                                          the jobs of the context's namespace\n"
                "ringmaster status mnist -n team-a -w                       one of them, until it ends\n"
                "ringmaster status --job-dir ringmaster-jobs/mnist -o json | jq .phase",
    .notes = "Exit codes: 0 shown (with -w and a job of a cluster: it succeeded), 1 with -w: the job failed, 2 bad usage,\n"
             "3 there is no such job or no cluster answers, 130 interrupted.",
};
