#include "cli/pods.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/mem.h"
#include "cli/container.h"
#include "cli/output.h"
#include "cli/process.h"
#include "job/pod.h"

#define GRACE_DEFAULT_S 30
#define SIDECAR_GRACE_MS 5000        /* it persists what is staged before it leaves */
#define BACKOFF_BASE_MS 200
#define BACKOFF_MAX_MS 10000
#define SIDECAR_STEADY_MS 30000      /* a sidecar that ran so long starts anew with the shortest pause */
#define SIDECAR_TRIES 8              /* deaths in a row before the job is given up here */

struct child {
    pid_t pid;                       /* 0 = none lives */
    uint64_t ticks;
    int64_t started_ms, kill_at_ms;  /* kill_at 0 = not asked to end */
    int wait_status;
};

struct replica {
    struct pods *pods;
    enum job_role role;
    int32_t index, attempt;
    char member[80], uid[37], address[ADDRESS_MAX];
    cJSON *pod;
    struct child launcher, sidecar;
    bool has_sidecar, launcher_ended, deleting, over;
    int sidecar_deaths;              /* in a row */
    int64_t sidecar_start_at_ms;     /* 0 = not waiting */
    int64_t grace_ms;
    int64_t created_wall_ms, started_wall_ms, finished_wall_ms;
    int32_t trainer_pid;
    struct output *output;
};

struct pods {
    struct pods_options options;
    struct pods_events events;
    struct replica **items;
    size_t count;
};

struct pods *pods_new(const struct pods_options *options, const struct pods_events *events)
{
    struct pods *p = xcalloc(1, sizeof *p);
    p->options = *options;
    p->events = *events;
    return p;
}

static void replica_free(struct replica *r)
{
    output_free(r->output);
    cJSON_Delete(r->pod);
    free(r);
}

static void broken(struct pods *p, const struct error *why)
{
    p->events.broken(p->events.ctx, why);
}

/* ---- state.json ---- */

static const char *replica_phase(const struct replica *r)
{
    if (r->over)
        return process_exit_code(r->launcher.wait_status) == 0 ? "Succeeded" : "Failed";
    return r->deleting ? "Terminating" : r->launcher.pid ? "Running" : "Ending";
}

static cJSON *child_json(const struct child *c)
{
    cJSON *o = json_object();
    json_put_int(o, "pid", c->pid);
    json_put_int(o, "start_ticks", (int64_t)c->ticks);
    return o;
}

static void state_save(const struct replica *r)
{
    struct error e = ERROR_INIT;
    auto_free char *path = jobdir_path(r->pods->options.dir, "pods/%s/state.json", r->member);
    auto_json cJSON *o = json_object();
    json_put_text(o, "member", r->member);
    json_put_text(o, "uid", r->uid);
    json_put_int(o, "attempt", r->attempt);
    json_put_text(o, "phase", replica_phase(r));
    json_put(o, "launcher", child_json(&r->launcher));
    json_put(o, "sidecar", child_json(&r->sidecar));
    json_put_int(o, "trainer_pid", r->trainer_pid);
    if (r->launcher_ended)
        json_put_int(o, "exit_code", process_exit_code(r->launcher.wait_status));
    auto_free char *text = json_print(o, true);
    if (jobdir_put(path, text, &e) < 0)
        broken(r->pods, &e);
}

void pods_trainer_pid(struct pods *p, const char *member, int32_t pid)
{
    for (size_t i = 0; i < p->count; i++) {
        struct replica *r = p->items[i];
        if (strcmp(r->member, member) == 0 && r->trainer_pid != pid) {
            r->trainer_pid = pid;
            state_save(r);
        }
    }
}

static size_t kill_recorded(const cJSON *state, const char *which)
{
    const cJSON *child = json_at(state, which);
    return process_kill((pid_t)json_int(child, "pid", 0), (uint64_t)json_int(child, "start_ticks", 0), SIGKILL) ? 1 : 0;
}

size_t pods_kill_left_over(const struct jobdir *d)
{
    auto_free char *path = jobdir_path(d, "pods");
    DIR *dir = opendir(path);
    size_t killed = 0;
    for (const struct dirent *item; dir && (item = readdir(dir));) {
        struct error e = ERROR_INIT;
        auto_free char *name = jobdir_path(d, "pods/%s/state.json", item->d_name), *text = NULL;
        auto_json cJSON *state = NULL;
        size_t len;
        if (item->d_name[0] == '.' || fs_read(name, 65536, &text, &len, &e) < 0 || json_parse(text, len, &state, &e) < 0)
            continue;
        killed += kill_recorded(state, "launcher") + kill_recorded(state, "sidecar");
    }
    if (dir)
        closedir(dir);
    return killed;
}

/* ---- starting ---- */

cJSON *pods_build(const struct pods_options *o, enum job_role role, int32_t index, int32_t attempt, const struct job_status *status)
{
    char member[80];
    job_member_name(role, index, member);
    auto_free char *dir = xasprintf("%s/run/%s", o->dir->runtime, member), *shm = xasprintf("%s/%s", o->dir->runtime, member);
    auto_free char *key = jobdir_path(o->dir, "key"), *control = xasprintf("unix:%s", o->control);
    struct pod_context context = {
        .addresses = o->addresses, .attempt = attempt, .status = status, .sidecar_image = "local", .gang = GANG_AUTO,
        .control = control, .dir = dir, .shm_dir = shm, .library_dir = o->install ? o->install->library_dir : NULL,
        .python_dir = o->install ? o->install->python_dir : NULL, .key_file = key, .checkpoint_dir = o->checkpoint_dir,
    };
    return pod_build(o->job, role, index, &context);
}

static int start_child(struct child *child, const struct container_process *c, int output_fd, struct error *e)
{
    struct process_spec spec = { .argv = c->argv, .environment = c->environment.items, .directory = c->directory,
                                 .output_fd = output_fd };
    *child = (struct child){ .pid = 0 };
    if (process_start(&spec, &child->pid, e) < 0)
        return -1;
    child->ticks = process_ticks(child->pid);
    child->started_ms = clock_mono_ms();
    return 0;
}

static int sidecar_start(struct replica *r, struct error *e)
{
    const struct pods_options *o = &r->pods->options;
    struct container_facts facts = { .pod = r->member, .namespace = o->job->namespace, .uid = r->uid, .address = r->address };
    struct container_process c;
    auto_free char *path = jobdir_path(o->dir, "logs/%s/sidecar.log", r->member);
    auto_close int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0)
        return error_errno(e, "open %s", path);
    if (container_read(r->pod, POD_SIDECAR_CONTAINER, NULL, o->install->sidecar, &facts, &c, e) < 0)
        return -1;
    if (o->verbose)
        process_environment_set(&c.environment, "RINGMASTER_LOG_LEVEL", "debug");
    auto_free char *run = fs_join(o->dir->runtime, "run");
    if (!o->ring_over_tcp)
        process_environment_set(&c.environment, "RINGMASTER_RING_MEMORY", run);
    int rc = start_child(&r->sidecar, &c, fd, e);
    container_release(&c);
    r->sidecar_start_at_ms = 0;
    return rc;
}

static void on_line(void *ctx, const char *text, size_t len)
{
    struct replica *r = ctx;
    r->pods->events.line(r->pods->events.ctx, r->member, text, len);
}

static void on_output_error(void *ctx, const struct error *why)
{
    struct replica *r = ctx;
    broken(r->pods, why);
}

/* As horovodrun's --output-filename: the rank with as many digits as the largest has. */
static int copy_output(struct replica *r, const char *dir, struct error *e)
{
    int32_t rank = job_rank(r->pods->options.job, r->role, r->index);
    int width = snprintf(NULL, 0, "%d", job_world_size(r->pods->options.job) - 1);
    auto_free char *own = rank < 0 ? xasprintf("%s/%s", dir, r->member) : xasprintf("%s/rank.%0*d", dir, width, rank);
    auto_free char *path = xasprintf("%s/stdout", own);
    return fs_mkdirs(own, 0755, e) < 0 || output_copy(r->output, path, e) < 0 ? -1 : 0;
}

static int launcher_start(struct replica *r, struct error *e)
{
    const struct pods_options *o = &r->pods->options;
    struct container_facts facts = { .pod = r->member, .namespace = o->job->namespace, .uid = r->uid, .address = r->address };
    struct container_process c;
    auto_free char *path = jobdir_path(o->dir, "logs/%s/%d.log", r->member, r->attempt);
    auto_close int write_fd = -1;
    if (output_new(o->loop, path, on_line, on_output_error, r, &r->output, &write_fd, e) < 0)
        return -1;
    if (o->output_dir && copy_output(r, o->output_dir, e) < 0)
        return -1;
    if (container_read(r->pod, job_main_container(o->job, r->role), o->install->launcher, NULL, &facts, &c, e) < 0)
        return -1;
    int rc = start_child(&r->launcher, &c, write_fd, e);
    container_release(&c);
    return rc;
}

static int directories(const struct replica *r, struct error *e)
{
    const struct jobdir *d = r->pods->options.dir;
    auto_free char *pods = jobdir_path(d, "pods/%s", r->member), *logs = jobdir_path(d, "logs/%s", r->member);
    auto_free char *run = xasprintf("%s/run/%s", d->runtime, r->member), *shm = xasprintf("%s/%s", d->runtime, r->member);
    if (fs_mkdirs(pods, 0755, e) < 0 || fs_mkdirs(logs, 0755, e) < 0)
        return -1;
    return fs_mkdirs(run, 0700, e) < 0 || fs_mkdirs(shm, 0700, e) < 0 ? -1 : 0;
}

static int pod_save(const struct replica *r, struct error *e)
{
    auto_free char *path = jobdir_path(r->pods->options.dir, "pods/%s/pod.json", r->member), *text = json_print(r->pod, true);
    return jobdir_put(path, text, e);
}

static struct replica *replica_new(struct pods *p, enum job_role role, int32_t index, int32_t attempt,
                                   const struct job_status *status)
{
    struct replica *r = xcalloc(1, sizeof *r);
    r->pods = p;
    r->role = role;
    r->index = index;
    r->attempt = attempt;
    job_member_name(role, index, r->member);
    address_host(p->options.job, p->options.addresses, role, index, r->address);
    r->pod = pods_build(&p->options, role, index, attempt, status);
    r->has_sidecar = pod_has_sidecar(p->options.job);
    r->grace_ms = json_int(r->pod, "spec.terminationGracePeriodSeconds", GRACE_DEFAULT_S) * 1000;
    r->created_wall_ms = clock_wall_ms();
    return r;
}

/* A pod that could not be started whole must not leave its first process behind. */
static void start_undo(struct replica *r)
{
    if (r->sidecar.pid) {
        (void)kill(r->sidecar.pid, SIGKILL);
        (void)waitpid(r->sidecar.pid, NULL, 0);
    }
    replica_free(r);
}

int pods_create(struct pods *p, enum job_role role, int32_t index, int32_t attempt, const struct job_status *status, struct error *e)
{
    struct replica *r = replica_new(p, role, index, attempt, status);
    if (jobfile_new_uid(r->uid, e) < 0 || directories(r, e) < 0 || pod_save(r, e) < 0 ||
        (r->has_sidecar && sidecar_start(r, e) < 0) || launcher_start(r, e) < 0) {
        error_wrap(e, "%s", r->member);
        start_undo(r);
        return -1;
    }
    r->started_wall_ms = clock_wall_ms();
    p->items = xrealloc(p->items, p->count + 1, sizeof *p->items);
    p->items[p->count++] = r;
    state_save(r);
    p->events.changed(p->events.ctx);
    return 0;
}

/* ---- ending ---- */

static void child_end(struct child *c, int64_t grace_ms)
{
    if (!c->pid || (c->kill_at_ms && grace_ms > 0)) /* asked once already; only a kill can add to that */
        return;
    c->kill_at_ms = clock_mono_ms() + grace_ms;
    (void)kill(c->pid, grace_ms > 0 ? SIGTERM : SIGKILL);
}

/* The launcher first; a sidecar that went before would be taken for a lost member. */
static void replica_end(struct replica *r, int64_t grace_ms)
{
    r->sidecar_start_at_ms = 0;
    if (r->launcher.pid)
        child_end(&r->launcher, grace_ms);
    else
        child_end(&r->sidecar, grace_ms < SIDECAR_GRACE_MS ? grace_ms : SIDECAR_GRACE_MS);
}

void pods_delete(struct pods *p, const char *uid, bool force)
{
    for (size_t i = 0; i < p->count; i++) {
        struct replica *r = p->items[i];
        if (strcmp(r->uid, uid) != 0)
            continue;
        r->deleting = true;
        replica_end(r, force ? 0 : r->grace_ms);
        state_save(r);
    }
    pods_tick(p, clock_mono_ms()); /* one that is over already goes at once */
}

void pods_interrupt(struct pods *p)
{
    for (size_t i = 0; i < p->count; i++) {
        if (p->items[i]->over) /* nothing to end; how it ended stays to be seen */
            continue;
        p->items[i]->deleting = true;
        replica_end(p->items[i], p->items[i]->grace_ms);
    }
}

void pods_kill(struct pods *p)
{
    for (size_t i = 0; i < p->count; i++) {
        struct replica *r = p->items[i];
        r->deleting |= !r->over;
        r->sidecar_start_at_ms = 0;
        if (r->launcher.pid)
            (void)kill(r->launcher.pid, SIGKILL);
        if (r->sidecar.pid)
            (void)kill(r->sidecar.pid, SIGKILL);
    }
}

static void sidecar_died(struct replica *r)
{
    struct pods *p = r->pods;
    int64_t now = clock_mono_ms();
    char text[256];
    if (r->launcher_ended || r->launcher.kill_at_ms || r->deleting)
        return;
    if (now - r->sidecar.started_ms >= SIDECAR_STEADY_MS)
        r->sidecar_deaths = 0;
    if (++r->sidecar_deaths > SIDECAR_TRIES) {
        struct error e = ERROR_INIT;
        error_set(&e, ERROR_IO, "the sidecar of %s ended %d times in a row, last with code %d; its reason is in %s/logs/%s/sidecar.log",
                  r->member, r->sidecar_deaths, process_exit_code(r->sidecar.wait_status), p->options.dir->path, r->member);
        broken(p, &e);
        return;
    }
    int64_t pause = BACKOFF_BASE_MS << (r->sidecar_deaths - 1);
    pause = r->sidecar_deaths == 1 ? 0 : pause < BACKOFF_MAX_MS ? pause : BACKOFF_MAX_MS;
    r->sidecar_start_at_ms = now + pause + 1;
    snprintf(text, sizeof text, "the sidecar of %s ended (code %d); starting it again%s", r->member,
             process_exit_code(r->sidecar.wait_status), pause ? " after a pause" : "");
    p->events.note(p->events.ctx, text);
}

static bool child_reap(struct child *c)
{
    if (!c->pid || waitpid(c->pid, &c->wait_status, WNOHANG) != c->pid)
        return false;
    c->pid = 0;
    c->ticks = 0;
    return true;
}

static void replica_over(struct replica *r)
{
    r->over = true;
    r->finished_wall_ms = clock_wall_ms();
}

static bool replica_reap(struct replica *r)
{
    bool changed = false;
    if (child_reap(&r->launcher)) {
        r->launcher_ended = changed = true;
        r->trainer_pid = 0;
        output_drain(r->output);
        r->sidecar_start_at_ms = 0;
        child_end(&r->sidecar, SIDECAR_GRACE_MS);
    }
    if (child_reap(&r->sidecar)) {
        changed = true;
        sidecar_died(r);
    }
    if (r->launcher_ended && !r->sidecar.pid && !r->over)
        replica_over(r);
    return changed;
}

static bool remove_gone(struct pods *p)
{
    size_t kept = 0;
    for (size_t i = 0; i < p->count; i++) {
        struct replica *r = p->items[i];
        if (r->deleting && !r->launcher.pid && !r->sidecar.pid) {
            r->over = true;
            state_save(r);
            replica_free(r);
        } else {
            p->items[kept++] = r;
        }
    }
    bool changed = kept != p->count;
    p->count = kept;
    return changed;
}

void pods_reap(struct pods *p)
{
    bool changed = false;
    for (size_t i = 0; i < p->count; i++) {
        if (!replica_reap(p->items[i]))
            continue;
        changed = true;
        state_save(p->items[i]);
    }
    changed |= remove_gone(p);
    if (changed)
        p->events.changed(p->events.ctx);
}

static void deadline(struct child *c, int64_t now_ms)
{
    if (c->pid && c->kill_at_ms && now_ms >= c->kill_at_ms)
        (void)kill(c->pid, SIGKILL);
}

void pods_tick(struct pods *p, int64_t now_ms)
{
    for (size_t i = 0; i < p->count; i++) {
        struct replica *r = p->items[i];
        deadline(&r->launcher, now_ms);
        deadline(&r->sidecar, now_ms);
        if (r->sidecar_start_at_ms && now_ms >= r->sidecar_start_at_ms) {
            struct error e = ERROR_INIT;
            if (sidecar_start(r, &e) < 0)
                broken(p, &e);
            state_save(r);
        }
    }
    if (remove_gone(p))
        p->events.changed(p->events.ctx);
}

bool pods_alive(const struct pods *p)
{
    for (size_t i = 0; i < p->count; i++)
        if (p->items[i]->launcher.pid || p->items[i]->sidecar.pid)
            return true;
    return false;
}

size_t pods_count(const struct pods *p)
{
    return p->count;
}

void pods_free(struct pods *p)
{
    if (!p)
        return;
    pods_kill(p);
    for (size_t i = 0; i < p->count; i++) {
        struct replica *r = p->items[i];
        if (r->launcher.pid)
            (void)waitpid(r->launcher.pid, NULL, 0);
        if (r->sidecar.pid)
            (void)waitpid(r->sidecar.pid, NULL, 0);
        r->launcher.pid = r->sidecar.pid = 0;
        state_save(r);
        replica_free(r);
    }
    free(p->items);
    free(p);
}

/* ---- for reconcile ---- */

static void view_exit(const struct replica *r, struct pod_view *v)
{
    if (!r->launcher_ended)
        return;
    v->has_exit = true;
    v->exit_code = process_exit_code(r->launcher.wait_status);
    v->signal = v->exit_code > 128 ? v->exit_code - 128 : 0;
    snprintf(v->reason, sizeof v->reason, "%s", v->exit_code == 0 ? "Completed" : "Error");
    if (v->exit_code != 0)
        output_tail(r->output, v->message, sizeof v->message);
}

struct pod_view *pods_view(const struct pods *p, size_t *ret_count)
{
    struct pod_view *list = xcalloc(p->count + 1, sizeof *list);
    for (size_t i = 0; i < p->count; i++) {
        const struct replica *r = p->items[i];
        struct pod_view *v = &list[i];
        v->role = r->role;
        v->index = r->index;
        v->attempt = r->attempt;
        v->scheduled = true;
        v->deleting = r->deleting;
        v->ready = r->launcher.pid && (!r->has_sidecar || r->sidecar.pid);
        v->phase = !r->over ? POD_RUNNING : process_exit_code(r->launcher.wait_status) == 0 ? POD_SUCCEEDED : POD_FAILED;
        snprintf(v->node, sizeof v->node, "localhost");
        snprintf(v->uid, sizeof v->uid, "%s", r->uid);
        v->created_ms = r->created_wall_ms;
        v->started_ms = r->started_wall_ms;
        v->finished_ms = r->finished_wall_ms;
        view_exit(r, v);
    }
    *ret_count = p->count;
    return list;
}
