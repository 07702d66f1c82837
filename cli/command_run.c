#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/np.h"
#include "cli/runner.h"

#define HOSTFILE_MAX (1u << 20)

struct run_options {
    const char *file, *job_dir, *report, *install_dir, *name;
    bool resume, overwrite, plain, color, quiet, logs, log_prefix, log_timestamps, verbose;
    int64_t timeout_ms, grace_ms, ring_port, framework_port;
    int ring_transport;
};

static const char *const TRANSPORTS[] = { "memory", "tcp", NULL };

#define AT(field, type) OPT_AT(struct run_options, field, type)

static const struct opt_def OPTIONS[] = {
    { .flag = "file", .letter = 'f', .type = OPT_TEXT, .at = AT(file, const char *), .value = "FILE",
      .help = "manifest of a TrainingJob, YAML or JSON; - reads standard input" },
    { .flag = "job-dir", .env = "RINGMASTER_JOB_DIR", .type = OPT_TEXT, .at = AT(job_dir, const char *), .value = "DIR",
      .help = "where the job keeps its state, logs and checkpoints (default: ./ringmaster-jobs/NAME)" },
    { .flag = "resume", .type = OPT_BOOL, .at = AT(resume, bool),
      .help = "go on with the job in the job directory, from its last committed checkpoint" },
    { .flag = "overwrite", .type = OPT_BOOL, .at = AT(overwrite, bool),
      .help = "remove what an earlier job left in the job directory and start anew" },
    { .flag = "report", .type = OPT_TEXT, .at = AT(report, const char *), .value = "DIR",
      .help = "where report.json and report.html go (default: the job directory)" },
    { .flag = "timeout", .type = OPT_DURATION, .at = AT(timeout_ms, int64_t), .min = 0, .max = 366LL * 86400000, .value = "TIME",
      .help = "fail the job when it has run for so long; in place of activeDeadlineSeconds" },
    { .flag = "grace", .type = OPT_DURATION, .at = AT(grace_ms, int64_t), .min = 0, .max = 86400000, .value = "TIME",
      .help = "from SIGTERM to SIGKILL; in place of terminationGracePeriodSeconds (30s)" },
    { .flag = "logs", .def = "true", .type = OPT_BOOL, .at = AT(logs, bool),
      .help = "show what the members write; with --no-logs it is in the log files alone" },
    { .flag = "log-prefix", .def = "true", .type = OPT_BOOL, .at = AT(log_prefix, bool),
      .help = "put [member] before each of these lines" },
    { .flag = "log-timestamps", .type = OPT_BOOL, .at = AT(log_timestamps, bool), .help = "put the time before each of them" },
    { .flag = "plain", .type = OPT_BOOL, .at = AT(plain, bool), .help = "no live view: lines when something changes" },
    { .flag = "color", .def = "true", .type = OPT_BOOL, .at = AT(color, bool),
      .help = "colours on a terminal; off with --no-color or when NO_COLOR is set" },
    { .flag = "quiet", .letter = 'q', .type = OPT_BOOL, .at = AT(quiet, bool), .help = "print the summary and errors only" },
    { .flag = "verbose", .letter = 'v', .type = OPT_BOOL, .at = AT(verbose, bool), .help = "sidecars log all that they do" },
    { .flag = "name", .type = OPT_TEXT, .at = AT(name, const char *), .value = "NAME",
      .help = "with a command: the job's name (default: from the script's)" },
    { .flag = "ring-port", .type = OPT_INT, .at = AT(ring_port, int64_t), .min = 1, .max = 65535, .value = "PORT",
      .help = "port of the sidecars, in place of spec.sidecar.ringPort" },
    { .flag = "ring-transport", .def = "memory", .type = OPT_ENUM, .at = AT(ring_transport, int), .names = TRANSPORTS,
      .help = "how sidecars move tensors: through shared memory, or TCP as on a cluster" },
    { .flag = "framework-port", .type = OPT_INT, .at = AT(framework_port, int64_t), .min = 1, .max = 65535, .value = "PORT",
      .help = "first port in TF_CONFIG, in place of spec.tfConfig.port; without it the next free range is taken" },
    { .flag = "install-dir", .env = "RINGMASTER_INSTALL_DIR", .type = OPT_TEXT, .at = AT(install_dir, const char *), .value = "DIR",
      .help = "prefix or build directory of launcher, sidecar and libraries (default: where this program is)" },
};

/* ---- horovodrun's form ---- */

static int np_count(const struct np_options *np, int64_t *ret_processes, struct error *e)
{
    char own_name[256] = "";
    int64_t slots = 0;
    (void)gethostname(own_name, sizeof own_name - 1);
    if (np->hosts && np_slots(np->hosts, own_name, &slots, e) < 0)
        return -1;
    if (np->hostfile && !np->hosts) {
        auto_free char *text = NULL;
        size_t len;
        if (fs_read(np->hostfile, HOSTFILE_MAX, &text, &len, e) < 0 || np_hostfile_slots(text, own_name, &slots, e) < 0)
            return error_wrap(e, "--hostfile");
    }
    if (!np->processes && !slots)
        slots = np->min_processes;
    if (!np->processes && !slots)
        return error_set(e, ERROR_INVALID, "how many processes? give -np N before the command, or a manifest with -f");
    if (np->processes && slots && slots < np->processes)
        return error_set(e, ERROR_INVALID, "-np %lld is more than the %lld slots of the hosts; raise the slots or lower -np",
                         (long long)np->processes, (long long)slots);
    *ret_processes = np->processes ? np->processes : slots;
    return np_check_counts(np, *ret_processes, e);
}

static int np_job(const struct run_options *o, const struct np_options *np, char **command, size_t count, const char *uid,
                  struct jobfile *ret, char **ret_report, struct error *e)
{
    char name[52];
    int64_t processes = 0;
    if (np_count(np, &processes, e) < 0)
        return -1;
    np_name(command, count, name);
    fputs(np->notes, stderr);
    return jobfile_from_tree("the command line", np_manifest(np, o->name ? o->name : name, processes, command, count), uid, ret,
                             ret_report, e);
}

/* ---- the directory ---- */

static int directory(const struct run_options *o, const char *name, bool from_command, struct jobdir *ret, struct error *e)
{
    auto_free char *path = o->job_dir ? xstrdup(o->job_dir) : jobdir_default(name, from_command && !o->resume && !o->overwrite);
    if (o->resume && access(path, F_OK) < 0)
        return error_set(e, ERROR_INVALID, "nothing to resume: %s is not there; give the job's directory with --job-dir", path);
    return jobdir_open(path, ret, e);
}

/* What lies in the directory decides what may be done with it. */
static int allowed(const struct run_options *o, struct jobdir *d, struct error *e)
{
    auto_free struct job_status *status = xcalloc(1, sizeof *status);
    bool used = jobdir_used(d);
    if (o->resume && !used)
        return error_set(e, ERROR_INVALID, "nothing to resume: %s has no job in it", d->path);
    if (!used || o->overwrite)
        return 0;
    if (jobdir_load_status(d, status, e) < 0)
        return -1;
    if (!o->resume)
        return error_set(e, ERROR_INVALID, "%s has a job already (%s); continue it with --resume, start anew with --overwrite, or "
                         "choose another directory with --job-dir", d->path, phase_name(status->phase));
    if (phase_is_final(status->phase))
        return error_set(e, ERROR_INVALID, "the job in %s has ended (%s): there is nothing to resume; start anew with --overwrite or "
                         "in another --job-dir", d->path, phase_name(status->phase));
    return 0;
}

static int overwrite(struct jobdir *d, struct error *e)
{
    struct error ignored = ERROR_INIT; /* a job.json that cannot be read names no slots to give back */
    struct jobfile old = { .tree = NULL };
    auto_free char *report = NULL;
    if (jobdir_used(d) && jobdir_load_job(d, &old, &report, &ignored) == 0 && jobdir_runtime(d, old.job->uid, &ignored) == 0) {
        jobdir_runtime_remove(d);
        free(TAKE(d->runtime));
    }
    jobfile_release(&old);
    return jobdir_clear(d, e);
}

/* ---- the job ---- */

/* --resume takes the job of the directory; a manifest given with it replaces its spec and keeps its identity. */
static int resumed_job(const struct run_options *o, struct jobdir *d, struct jobfile *ret, char **ret_report, struct error *e)
{
    auto_jobfile struct jobfile old = { .tree = NULL };
    if (jobdir_load_job(d, &old, ret_report, e) < 0)
        return -1;
    if (!o->file) {
        *ret = old;
        old = (struct jobfile){ .tree = NULL };
        return 0;
    }
    if (jobfile_read(o->file, old.job->uid, ret, ret_report, e) < 0)
        return -1;
    if (strcmp(ret->job->name, old.job->name) == 0)
        return 0;
    error_set(e, ERROR_INVALID, "%s is of job %s, but %s holds job %s", o->file, ret->job->name, d->path, old.job->name);
    jobfile_release(ret);
    return -1;
}

static int new_job(const struct run_options *o, const struct np_options *np, char **command, size_t count, struct jobfile *ret,
                   char **ret_report, struct error *e)
{
    char uid[37];
    if (jobfile_new_uid(uid, e) < 0)
        return -1;
    return o->file ? jobfile_read(o->file, uid, ret, ret_report, e) : np_job(o, np, command, count, uid, ret, ret_report, e);
}

static int drive(const struct run_options *o, const struct np_options *np, struct jobdir *dir, struct jobfile *file)
{
    struct error e = ERROR_INIT;
    struct runner *runner;
    struct runner_options options = {
        .install_dir = o->install_dir, .report_dir = o->report, .output_dir = np->output_filename, .resume = o->resume,
        .verbose = o->verbose, .show_logs = o->logs, .timeout_ms = o->timeout_ms, .grace_ms = o->grace_ms,
        .ring_port = o->ring_port, .framework_port = o->framework_port, .ring_over_tcp = o->ring_transport == 1,
        .screen = { .plain = o->plain, .no_color = !o->color, .quiet = o->quiet, .log_prefix = o->log_prefix,
                    .log_timestamps = o->log_timestamps || np->log_timestamps },
    };
    if (runner_start(&options, dir, file, &runner, &e) < 0)
        return command_fail("run", command_code(&e), &e);
    int code = runner_run(runner);
    runner_free(runner);
    return code;
}

static int run(const struct run_options *o, const struct np_options *np, char **command, size_t count)
{
    struct error e = ERROR_INIT;
    struct jobfile file = { .tree = NULL };
    struct jobdir dir = JOBDIR_INIT;
    auto_free char *report = NULL;
    int code;

    if (np->output_filename && fs_mkdirs(np->output_filename, 0755, &e) < 0) {
        (void)error_wrap(&e, "--output-filename");
        return command_fail("run", COMMAND_CANNOT_RUN, &e);
    }
    /* A manifest is read before its directory is made; with --resume it is read again for the identity that is there. */
    bool has_job = o->file || !o->resume;
    if (has_job && new_job(o, np, command, count, &file, &report, &e) < 0)
        return command_bad_manifest("run", &e, report);
    if (directory(o, has_job ? file.job->name : "", count > 0, &dir, &e) < 0 || allowed(o, &dir, &e) < 0 ||
        (o->overwrite && overwrite(&dir, &e) < 0)) {
        code = command_fail("run", command_code(&e), &e);
    } else if (o->resume) {
        jobfile_release(&file);
        code = resumed_job(o, &dir, &file, &report, &e) < 0 ? command_bad_manifest("run", &e, report) : drive(o, np, &dir, &file);
    } else {
        code = drive(o, np, &dir, &file);
    }
    jobfile_release(&file);
    jobdir_release(&dir);
    return code;
}

static int check_usage(const struct run_options *o, const struct np_options *np, size_t words, struct error *e)
{
    if (o->file && words)
        return error_set(e, ERROR_INVALID, "-f %s and a command: give one of them", o->file);
    if (o->file && np->used)
        return error_set(e, ERROR_INVALID, "-f %s with horovodrun's options: replicas and the rest stand in the manifest", o->file);
    if (np->used && !words)
        return error_set(e, ERROR_INVALID, "which command? put it after the options: ringmaster run -np 4 -- python train.py");
    if (o->name && o->file)
        return error_set(e, ERROR_INVALID, "-f %s and --name: the job's name stands in the manifest", o->file);
    if (o->name && (!text_is_dns1035_label(o->name) || strlen(o->name) > JOB_NAME_MAX))
        return error_set(e, ERROR_INVALID, "--name %.80s: at most %d lower case letters, digits and '-', beginning with a letter",
                         o->name, JOB_NAME_MAX);
    if (o->resume && words)
        return error_set(e, ERROR_INVALID, "--resume takes the command from the job directory: leave it out here");
    if (o->resume && o->overwrite)
        return error_set(e, ERROR_INVALID, "--resume and --overwrite: give one of them");
    if (o->resume && !o->job_dir && !o->file)
        return error_set(e, ERROR_INVALID, "resume which job? give its directory with --job-dir, or its manifest with -f");
    if (!o->file && !words && !o->resume)
        return error_set(e, ERROR_INVALID, "what is to be run? give a manifest with -f FILE, or -np N and a command");
    return 0;
}

static int run_command(int argc, char **argv)
{
    struct run_options o = { .file = NULL };
    struct np_options np = { .reset_limit = -1 };
    struct error e = ERROR_INIT;
    int next, code;
    log_setup("run", NULL, LOG_WARN, false);
    if (np_extract(&argc, argv, OPTIONS, COUNT(OPTIONS), &np, &e) < 0)
        return command_usage("run", &e);
    if (!command_parse(&COMMAND_RUN, argc, argv, true, &o, &next, &code)) {
        np_release(&np);
        return code;
    }
    size_t words = (size_t)(argc - next);
    code = check_usage(&o, &np, words, &e) < 0 ? command_usage("run", &e) : run(&o, &np, argv + next, words);
    opt_release(OPTIONS, COUNT(OPTIONS), &o);
    np_release(&np);
    return code;
}

const struct command COMMAND_RUN = {
    .name = "run", .summary = "run a job on this machine and watch it", .run = run_command, .takes = WORDS_COMMAND,
    .usage = "run -f FILE [OPTIONS]\nrun -np N [OPTIONS] [--] COMMAND...\nrun --resume --job-dir DIR [OPTIONS]",
    .about = "Runs a TrainingJob on this machine: every replica is a process with its own sidecar, address and log, and the job is\n"
             "restarted, resumed and ended by the rules that the operator follows on a cluster.",
    .options = OPTIONS, .option_count = COUNT(OPTIONS),
    .more = np_help, .more_flags = np_flag_names,
    .examples = "ringmaster run -f job.yaml\n"
                "ringmaster run -f job.yaml --job-dir /scratch/mnist --report build/report\n"
                "ringmaster run --resume --job-dir /scratch/mnist       go on after Ctrl-C, a crash or a reboot\n"
                "ringmaster run -np 4 -- python train.py --epochs 3     as with horovodrun",
    .notes = "Ctrl-C stops the job so that it can be resumed; a second one kills it at once.\n"
             "Exit codes: 0 job succeeded, 1 job failed, 2 bad usage or manifest, 3 could not run here, 130 interrupted.",
};
