#include "cli/runner.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cli/command.h"
#include "cli/observe.h"
#include "cli/runner_scale.h"
#include "cli/runner_state.h"
#include "cli/view.h"
#include "job/coordinate.h"

#define TICK_MS 100
#define STATUS_EVERY_MS 2000     /* of a status that changed in its progress alone */
#define REPORT_EVERY_MS 1000     /* of coordinator.json */
#define PROGRESS_EVERY_MS 5000   /* of a plain progress line */
#define PASSES_MAX 64            /* of reconcile at one moment; more is a fault in it */
#define END_SLACK_MS 10000       /* beyond the grace period until what lives is killed */
#define QUIET_MS 150             /* after the last process, for what it still had in its pipes */

void runner_note(struct runner *r, const char *text)
{
    if (r->screen)
        screen_line(r->screen, text);
}

static void step(struct runner *r);

/* ---- ending early ---- */

static int64_t longest_grace_ms(const struct runner *r)
{
    int64_t longest = 0;
    for (int role = 0; role < ROLE_COUNT; role++) {
        if (!r->job->spec.roles[role].present)
            continue;
        int64_t grace = json_int(r->job->spec.roles[role].template, "spec.terminationGracePeriodSeconds", 30) * 1000;
        longest = grace > longest ? grace : longest;
    }
    return longest;
}

void runner_break(struct runner *r, const struct error *why)
{
    if (r->end == RUNNER_BROKEN)
        return;
    r->end = RUNNER_BROKEN;
    r->why = *why;
    r->give_up_ms = clock_mono_ms() + longest_grace_ms(r) + END_SLACK_MS;
    if (r->pods)
        pods_interrupt(r->pods);
}

/* Ctrl-C suspends the job, by the same decisions as spec.suspend on a cluster: pods end in their grace period with a last
 * checkpoint, the status says Suspended, and --resume is the way back. The second one kills. */
static void interrupt(struct runner *r)
{
    if (++r->interrupts > 1 || r->end == RUNNER_BROKEN) {
        pods_kill(r->pods);
        return;
    }
    if (r->end == RUNNER_ENDING)
        return;
    r->end = RUNNER_INTERRUPTED;
    r->give_up_ms = clock_mono_ms() + longest_grace_ms(r) + END_SLACK_MS;
    runner_note(r, "stopping: processes get SIGTERM and their grace period; once more to kill them now");
    (void)control_command(r->control, COMMAND_STOP, longest_grace_ms(r)); /* nobody to tell: SIGTERM does it alone */
    r->job->spec.suspend = true;
    step(r);
}

static void on_signal(void *ctx, int signal_number)
{
    struct runner *r = ctx;
    if (signal_number == SIGCHLD)
        pods_reap(r->pods);
    else if (signal_number == SIGWINCH)
        r->drawn_ms = 0;
    else
        interrupt(r);
}

/* ---- storing ---- */

int runner_store(struct runner *r, struct error *e)
{
    if (jobdir_save_status(&r->dir, r->job, r->status, e) < 0)
        return error_wrap(e, "the job's status cannot be stored, so the job was stopped; make room and continue with --resume");
    *r->stored = *r->status;
    r->stored_ms = clock_mono_ms();
    return 0;
}

static void store_or_break(struct runner *r)
{
    struct error e = ERROR_INIT;
    if (runner_store(r, &e) < 0)
        runner_break(r, &e);
}

static void history_write(struct runner *r, struct buf *lines)
{
    if (lines->len == 0 || !buf_ok(lines) || r->end == RUNNER_BROKEN)
        return;
    if (fwrite(lines->text, 1, lines->len, r->history_file) != lines->len || fflush(r->history_file) != 0) {
        struct error e = ERROR_INIT;
        error_errno(&e, "write %s/history.jsonl", r->dir.path);
        runner_break(r, &e);
    }
}

/* ---- observe, decide, record, act ---- */

static void observe(struct runner *r, struct observed *seen)
{
    size_t count;
    struct pod_view *pods = pods_view(r->pods, &count);
    memset(seen, 0, sizeof *seen);
    coordinate_give_up(r->report, pods, count);
    coordinate_view(r->job, r->report, clock_wall_ms(), &seen->coordinator);
    seen->pods = pods;
    seen->pod_count = count;
    seen->has_service = seen->has_secret = true;
    seen->node_count = 1;
}

static void act(struct runner *r, const struct plan *plan)
{
    for (size_t i = 0; i < plan->action_count && r->end != RUNNER_BROKEN; i++) {
        const struct action *a = &plan->actions[i];
        struct error e = ERROR_INIT;
        switch (a->kind) {
        case ACTION_CREATE_POD:
            if (pods_create(r->pods, a->role, a->index, a->attempt, r->status, &e) < 0)
                runner_break(r, &e);
            break;
        case ACTION_DELETE_POD: pods_delete(r->pods, a->uid, false); break;
        case ACTION_FORCE_DELETE_POD: pods_delete(r->pods, a->uid, true); break;
        default: /* what a cluster alone has, and there is no TTL here */
            break;
        }
    }
}

static void tell_events(struct runner *r, const struct plan *plan)
{
    for (size_t i = 0; i < plan->event_count; i++) {
        auto_free char *text = xasprintf("%s: %s%s: %s", r->job->name, plan->events[i].warning ? "warning: " : "",
                                         plan->events[i].reason, plan->events[i].message);
        runner_note(r, text);
    }
}

/* One pass; true when another has to follow at once. */
static bool pass(struct runner *r)
{
    struct plan plan;
    struct observed *seen = xcalloc(1, sizeof *seen);
    observe(r, seen);
    reconcile(r->job, r->status, seen, clock_wall_ms(), &plan);
    free((void *)seen->pods);
    free(seen);

    if (plan.status_changed) {
        *r->status = plan.status;
        if (plan.record_first || plan.action_count > 0 || observe_weighty(r->stored, r->status))
            store_or_break(r);
        auto_buf struct buf lines = BUF_INIT(1u << 20);
        history_failures(&r->history, r->status, &lines);
        history_write(r, &lines);
    }
    tell_events(r, &plan);
    if (!plan.record_first)
        act(r, &plan);
    r->plan_empty = !plan.record_first && plan.action_count == 0;
    bool again = plan.record_first && r->end != RUNNER_BROKEN;
    if (plan.requeue_at_ms)
        loop_timer_at(r->again, clock_mono_ms() + (plan.requeue_at_ms > clock_wall_ms() ? plan.requeue_at_ms - clock_wall_ms() : 0));
    plan_release(&plan);
    return again;
}

static void step(struct runner *r)
{
    struct error e = ERROR_INIT;
    loop_timer_cancel(r->again);
    for (int i = 0; r->end != RUNNER_BROKEN; i++) {
        if (i == PASSES_MAX) {
            error_set(&e, ERROR_BUG, "reconcile does not come to rest");
            runner_break(r, &e);
        } else if (!pass(r)) {
            break;
        }
    }
}

static void on_again(void *ctx)
{
    step(ctx);
}

/* ---- what the pods and the coordinator say ---- */

static void on_changed(void *ctx)
{
    struct runner *r = ctx;
    loop_timer_at(r->again, clock_mono_ms()); /* several changes of one turn are looked at together */
}

static void on_line(void *ctx, const char *member, const char *text, size_t len)
{
    struct runner *r = ctx;
    if (r->options.show_logs)
        screen_log(r->screen, member, text, len, clock_wall_ms());
}

static void on_note(void *ctx, const char *text)
{
    struct runner *r = ctx;
    auto_free char *line = xasprintf("%s: %s", r->job->name, text);
    runner_note(r, line);
}

static void on_broken(void *ctx, const struct error *why)
{
    runner_break(ctx, why);
}

static void on_report(void *ctx, const struct coordinator_report *report, const char *text, size_t len)
{
    struct runner *r = ctx;
    struct error e = ERROR_INIT;
    struct coordinator_report *own = xcalloc(1, sizeof *own);
    if (report_decode(text, len, own, &e) < 0) { /* it was read a moment ago */
        free(own);
        return;
    }
    if (r->report) {
        report_release(r->report);
        free(r->report);
    }
    r->report = own;
    free(r->report_text);
    r->report_text = xstrndup(text, len);

    auto_buf struct buf lines = BUF_INIT(4u << 20);
    history_report(&r->history, report, clock_wall_ms(), &lines);
    history_write(r, &lines);
    for (size_t i = 0; i < report->member_count; i++)
        pods_trainer_pid(r->pods, report->members[i].member, report->members[i].pid);
    loop_timer_at(r->again, clock_mono_ms());
}

/* ---- the picture ---- */

static void picture(struct runner *r, struct view *ret)
{
    size_t count;
    auto_free struct pod_view *pods = pods_view(r->pods, &count);
    auto_free struct view_pod *shown = observe_view_pods(pods, count);
    view_build(r->job, r->status, r->report, shown, count, clock_wall_ms(), ret);
    if (r->end == RUNNER_INTERRUPTED)
        ret->note = "stopping; Ctrl-C once more kills at once";
}

static void plain_lines(struct runner *r, const struct view *v, int64_t now_ms)
{
    auto_buf struct buf text = BUF_INIT(1u << 20);
    if (r->shown.members)
        view_changes(&r->shown, v, &text);
    if (v->step >= 0 && v->step != r->progress_step && now_ms - r->progress_ms >= PROGRESS_EVERY_MS) {
        buf_addf(&text, "%s: ", v->job);
        view_progress_line(v, &text);
        buf_add(&text, "\n");
        r->progress_ms = now_ms;
        r->progress_step = v->step;
    }
    for (char *line, *rest = text.len ? text.text : NULL; rest && (line = strsep(&rest, "\n")) != NULL;)
        if (*line)
            screen_line(r->screen, line);
}

static void show(struct runner *r, int64_t now_ms)
{
    struct view v;
    if (now_ms - r->drawn_ms < SCREEN_INTERVAL_MS)
        return;
    r->drawn_ms = now_ms;
    picture(r, &v);
    if (screen_live(r->screen))
        screen_draw(r->screen, &v);
    else
        plain_lines(r, &v, now_ms);
    view_release(&r->shown);
    r->shown = v;
}

/* ---- the clock ---- */

static void save_report(struct runner *r, int64_t now_ms)
{
    struct error e = ERROR_INIT;
    if (!r->report_text || now_ms - r->report_saved_ms < REPORT_EVERY_MS || r->end == RUNNER_BROKEN)
        return;
    auto_free char *path = jobdir_path(&r->dir, "coordinator.json"), *text = TAKE(r->report_text);
    r->report_saved_ms = now_ms;
    if (jobdir_put(path, text, &e) < 0)
        runner_break(r, &e);
}

/* A job that is over ends here once its plan is done: what cleanPodPolicy lets stand on a cluster has no place to stand on. */
static void look_for_end(struct runner *r, int64_t now_ms)
{
    if (r->end == RUNNER_GOES_ON && phase_is_final(r->status->phase) && r->plan_empty) {
        r->end = RUNNER_ENDING;
        r->give_up_ms = now_ms + longest_grace_ms(r) + END_SLACK_MS;
        pods_interrupt(r->pods);
    }
    if (r->end == RUNNER_GOES_ON)
        return;
    if (pods_alive(r->pods)) {
        r->quiet_ms = 0;
        if (now_ms >= r->give_up_ms)
            pods_kill(r->pods);
        return;
    }
    if (!r->quiet_ms)
        r->quiet_ms = now_ms;
    if (now_ms - r->quiet_ms >= QUIET_MS)
        loop_stop(r->loop);
}

static void on_tick(void *ctx)
{
    struct runner *r = ctx;
    int64_t now_ms = clock_mono_ms();
    pods_tick(r->pods, now_ms);
    runner_scale(r, now_ms);
    if (r->end != RUNNER_BROKEN && now_ms - r->stored_ms >= STATUS_EVERY_MS && memcmp(r->stored, r->status, sizeof *r->status) != 0)
        store_or_break(r);
    save_report(r, now_ms);
    show(r, now_ms);
    look_for_end(r, now_ms);
    loop_timer_at(r->tick, now_ms + TICK_MS);
}

/* ---- life ---- */

void runner_free(struct runner *r)
{
    if (!r)
        return;
    pods_free(r->pods);
    control_free(r->control);
    if (r->tick)
        loop_timer_free(r->tick);
    if (r->again)
        loop_timer_free(r->again);
    screen_free(r->screen);
    if (r->history_file)
        fclose(r->history_file);
    if (r->report)
        report_release(r->report);
    free(r->report);
    free(r->report_text);
    history_release(&r->history);
    view_release(&r->shown);
    free(r->status);
    free(r->stored);
    ports_release(&r->ports);
    install_release(&r->install);
    free(r->control_path);
    free(r->checkpoint_dir);
    jobfile_release(&r->file);
    jobdir_release(&r->dir);
    if (r->loop)
        loop_free(r->loop);
    free(r);
}

static int wire(struct runner *r, struct error *e)
{
    static const int SIGNALS[] = { SIGINT, SIGTERM, SIGHUP, SIGCHLD, SIGWINCH };
    struct pods_options pods = { .loop = r->loop, .dir = &r->dir, .install = &r->install, .job = r->job, .addresses = &r->ports.plan,
                                 .control = r->control_path, .checkpoint_dir = r->checkpoint_dir, .verbose = r->options.verbose,
                                 .output_dir = r->options.output_dir };
    struct pods_events events = { .changed = on_changed, .line = on_line, .note = on_note, .broken = on_broken, .ctx = r };
    signal(SIGPIPE, SIG_IGN); /* a reader that went away ends neither the job nor a write to a dead process */
    if (control_new(r->loop, r->control_path, r->job->uid, on_report, on_note, r, &r->control, e) < 0)
        return -1;
    r->pods = pods_new(&pods, &events);
    r->tick = loop_timer_new(r->loop, on_tick, r);
    r->again = loop_timer_new(r->loop, on_again, r);
    return loop_signals(r->loop, SIGNALS, COUNT(SIGNALS), on_signal, r, e);
}

int runner_start(const struct runner_options *options, struct jobdir *dir, struct jobfile *file, struct runner **ret, struct error *e)
{
    struct runner *r = xcalloc(1, sizeof *r);
    r->options = *options;
    r->dir = *dir;
    r->file = *file;
    *dir = (struct jobdir)JOBDIR_INIT;
    *file = (struct jobfile){ .tree = NULL };
    r->job = r->file.job;
    r->ports = (struct ports)PORTS_INIT;
    r->progress_step = -1;
    if (loop_new(&r->loop, e) < 0 || runner_prepare(r, e) < 0 || wire(r, e) < 0) {
        if (!options->resume)
            jobdir_runtime_remove(&r->dir);
        runner_free(r);
        return -1;
    }
    *ret = r;
    return 0;
}

int runner_run(struct runner *r)
{
    struct error e = ERROR_INIT;
    loop_timer_at(r->tick, clock_mono_ms());
    step(r);
    if (loop_run(r->loop, &e) < 0)
        runner_break(r, &e);
    return runner_close(r);
}
