#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/mem.h"
#include "cli/command.h"
#include "cli/jobdir.h"
#include "cli/screen.h"
#include "cli/view.h"
#include "job/report.h"

static const char *const OUTPUTS[] = { "text", "json", NULL };

struct status_options { const char *job_dir; int output; };

static const struct opt_def OPTIONS[] = {
    { .flag = "job-dir", .env = "RINGMASTER_JOB_DIR", .type = OPT_TEXT, .at = OPT_AT(struct status_options, job_dir, const char *),
      .value = "DIR", .help = "the job's directory" },
    { .flag = "output", .letter = 'o', .def = "text", .type = OPT_ENUM, .at = OPT_AT(struct status_options, output, int),
      .names = OUTPUTS, .value = "FORMAT", .help = "text, or json: the status as the TrainingJob has it" },
};

static const struct command_page PAGE = {
    .name = "status",
    .usage = "status --job-dir DIR [-o json]",
    .about = "Shows how a job of 'ringmaster run' stands: phase, replicas, progress, failures.",
    .options = OPTIONS, .option_count = COUNT(OPTIONS),
    .examples = "ringmaster status --job-dir ringmaster-jobs/mnist\nringmaster status --job-dir ringmaster-jobs/mnist -o json | jq .phase",
    .notes = "Exit codes: 0 shown, 3 there is no such job.",
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

static struct view_style style_here(void)
{
    struct winsize size = { .ws_col = 0 };
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) < 0 || size.ws_col == 0)
        size.ws_col = 120;
    return (struct view_style){ .width = size.ws_col, .color = screen_wants_color(STDOUT_FILENO) };
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
        printf("  %s  %s  attempt %d round %d  %s", time, member, f->attempt, f->round, f->reason);
        if (f->has_exit)
            printf("  code %d", f->exit_code);
        puts("");
    }
}

static void print_text(const struct jobdir *d, const struct training_job *job, const struct job_status *status)
{
    struct coordinator_report report;
    struct view v;
    struct view_style style = style_here();
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

static void print_json(const struct training_job *job, const struct job_status *status)
{
    auto_json cJSON *tree = status_encode(job, status);
    auto_free char *text = json_print(tree, true);
    puts(text);
}

static int show(const struct status_options *o)
{
    struct error e = ERROR_INIT;
    struct jobdir dir = JOBDIR_INIT;
    auto_jobfile struct jobfile file = { .tree = NULL };
    auto_free char *report = NULL;
    auto_free struct job_status *status = xcalloc(1, sizeof *status);
    int code = COMMAND_OK;
    if (jobdir_look(o->job_dir, &dir, &e) < 0 || jobdir_load_job(&dir, &file, &report, &e) < 0 ||
        jobdir_load_status(&dir, status, &e) < 0)
        code = command_fail("status", COMMAND_CANNOT_RUN, &e);
    else if (o->output == 1)
        print_json(file.job, status);
    else
        print_text(&dir, file.job, status);
    jobdir_release(&dir);
    return code;
}

int command_status(int argc, char **argv)
{
    struct status_options o = { .job_dir = NULL };
    struct error e = ERROR_INIT;
    int next;
    bool help = false;
    if (opt_parse(OPTIONS, COUNT(OPTIONS), argc, argv, false, &o, &next, &help, &e) < 0)
        return command_usage("status", &e);
    if (help) {
        command_help(&PAGE, stdout);
        return COMMAND_OK;
    }
    if (!o.job_dir && next < argc)
        o.job_dir = argv[next++];
    if (!o.job_dir || next < argc) {
        error_set(&e, ERROR_INVALID, "which job? give its directory with --job-dir DIR");
        return command_usage("status", &e);
    }
    return show(&o);
}
