/*
 * Everything before the first process: what cannot work on this machine is found here and refused with words.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/mem.h"
#include "cli/container.h"
#include "cli/runner_state.h"
#include "job/decode.h"
#include "job/pod.h"

#define HISTORY_FILE_MAX (256u << 20)

/* A directory that is there is used as it is; what a manifest for a cluster calls /ckpt is the job directory's own. */
static int checkpoint_place(struct runner *r, struct error *e)
{
    struct stat st;
    const char *path = r->job->spec.checkpoint.path;
    if (!r->job->spec.checkpoint.enabled)
        return 0;
    if (path && strncmp(path, "s3://", 5) == 0) {
        r->checkpoint_dir = xstrdup(path);
        return 0;
    }
    if (path && path[0] == '/' && stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
        r->checkpoint_dir = xstrdup(path);
        return 0;
    }
    r->checkpoint_dir = jobdir_path(&r->dir, "checkpoints");
    return fs_mkdirs(r->checkpoint_dir, 0755, e);
}

/* The replica's pod is built and read as it will be at its start, so that a field that cannot be done is found now. */
static int check_replica(struct runner *r, const struct pods_options *pods, enum job_role role, struct error *e)
{
    struct container_facts facts = { .pod = r->job->name, .namespace = r->job->namespace, .uid = r->job->uid, .address = "127.0.0.1" };
    struct container_process c;
    const char *main_container = job_main_container(r->job, role);
    auto_json cJSON *pod = pods_build(pods, role, 0, r->status->attempt, r->status);
    if (container_read(pod, main_container, r->install.launcher, NULL, &facts, &c, e) < 0)
        return error_wrap(e, "spec.replicaSpecs.%s", role_key(role));
    container_release(&c);
    auto_buf struct buf notes = BUF_INIT(65536);
    container_notes(r->job->spec.roles[role].template, main_container, &notes);
    for (char *line = notes.len ? notes.text : NULL, *rest = line; (line = strsep(&rest, "\n")) != NULL;) {
        auto_free char *text = *line ? xasprintf("note: %s: %s", role_key(role), line) : NULL;
        if (text)
            runner_note(r, text);
    }
    return 0;
}

static void apply_options(struct runner *r)
{
    struct job_spec *spec = &r->job->spec;
    if (r->options.timeout_ms)
        spec->active_deadline_s = (struct optional_int){ .set = true, .value = (r->options.timeout_ms + 999) / 1000 };
    if (r->options.ring_port)
        spec->sidecar.ring_port = (int32_t)r->options.ring_port;
    if (r->options.framework_port)
        spec->tf_config.port = (int32_t)r->options.framework_port;
    spec->ttl_after_finished_s.set = false; /* the job directory is the user's */
    for (int role = 0; role < ROLE_COUNT; role++) {
        cJSON *pod = cJSON_GetObjectItemCaseSensitive(spec->roles[role].template, "spec");
        if (!spec->roles[role].present || !r->options.grace_ms || !pod)
            continue;
        cJSON_DeleteItemFromObjectCaseSensitive(pod, "terminationGracePeriodSeconds");
        json_put_int(pod, "terminationGracePeriodSeconds", (r->options.grace_ms + 999) / 1000);
    }
}

static int history_open(struct runner *r, struct error *e)
{
    auto_free char *path = jobdir_path(&r->dir, "history.jsonl"), *text = NULL;
    size_t len;
    history_init(&r->history);
    if (r->options.resume && fs_read(path, HISTORY_FILE_MAX, &text, &len, e) == 0)
        for (char *line = text, *rest = text; (line = strsep(&rest, "\n")) != NULL;)
            if (*line)
                history_read(&r->history, line, strlen(line));
    r->history_file = fopen(path, "ae");
    return r->history_file ? 0 : error_errno(e, "open %s", path);
}

static int status_open(struct runner *r, struct error *e)
{
    r->status = xcalloc(1, sizeof *r->status);
    r->stored = xcalloc(1, sizeof *r->stored);
    status_init(r->status);
    if (r->options.resume && jobdir_load_status(&r->dir, r->status, e) < 0)
        return -1;
    *r->stored = *r->status;
    return 0;
}

static int name_width(const struct training_job *job)
{
    char member[80];
    int width = 0;
    for (int role = 0; role < ROLE_COUNT; role++) {
        if (!job->spec.roles[role].present || job->spec.roles[role].replicas == 0)
            continue;
        job_member_name((enum job_role)role, job->spec.roles[role].replicas - 1, member);
        width = (int)strlen(member) > width ? (int)strlen(member) : width;
    }
    return width;
}

int runner_prepare(struct runner *r, struct error *e)
{
    if (r->job->spec.suspend)
        return error_set(e, ERROR_BUSY, "spec.suspend is true: the job waits until it is set to false");
    if (install_find(r->options.install_dir, &r->install, e) < 0 || status_open(r, e) < 0)
        return -1;
    if (job_check_local(r->job, e) < 0)
        return -1;
    /* Now, and not when the training is over. */
    const char *report = r->options.report_dir;
    if (report && (fs_mkdirs(report, 0755, e) < 0 || (access(report, W_OK) < 0 && error_errno(e, "write to %s", report) < 0)))
        return error_wrap(e, "--report");
    apply_options(r);
    r->screen = screen_new(STDOUT_FILENO, &r->options.screen, name_width(r->job));
    if (ports_choose(r->job, r->options.framework_port != 0, &r->ports, e) < 0)
        return -1;
    if (jobdir_runtime(&r->dir, r->job->uid, e) < 0 || checkpoint_place(r, e) < 0)
        return -1;
    auto_free char *run = fs_join(r->dir.runtime, "run");
    if (fs_mkdirs(run, 0700, e) < 0)
        return -1;
    r->control_path = fs_join(run, "control.sock");
    struct pods_options pods = { .loop = r->loop, .dir = &r->dir, .install = &r->install, .job = r->job, .addresses = &r->ports.plan,
                                 .control = r->control_path, .checkpoint_dir = r->checkpoint_dir,
                                 .ring_over_tcp = r->options.ring_over_tcp, .verbose = r->options.verbose };
    for (int role = 0; role < ROLE_COUNT; role++)
        if (r->job->spec.roles[role].present && r->job->spec.roles[role].replicas > 0 &&
            check_replica(r, &pods, (enum job_role)role, e) < 0)
            return -1;
    if (jobdir_save_job(&r->dir, r->file.tree, e) < 0 || jobdir_make_key(&r->dir, e) < 0 || history_open(r, e) < 0)
        return -1;
    size_t left = pods_kill_left_over(&r->dir);
    if (left > 0) {
        auto_free char *text = xasprintf("%zu processes of an earlier run were still alive and have been killed", left);
        runner_note(r, text);
    }
    return 0;
}
