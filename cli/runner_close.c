/*
 * The end of a run: reports, summary, exit code.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "base/mem.h"
#include "cli/command.h"
#include "cli/runner_state.h"
#include "cli/summary.h"

/* Where the two reports were written; paths are NULL for what was not. */
struct reports { char *json, *html; };

static int report_write(const char *dir, const char *name, const char *text, char **ret_path, struct error *e)
{
    auto_free char *path = fs_join(dir, name);
    if (fs_write_atomic(path, text, strlen(text), 0644, e) < 0)
        return error_wrap(e, "report");
    *ret_path = TAKE(path);
    return 0;
}

static int reports_write(const struct runner *r, const struct summary *s, struct reports *ret, struct error *e)
{
    const char *dir = r->options.report_dir ? r->options.report_dir : r->dir.path;
    auto_json cJSON *tree = report_json_build(r->job, r->status, r->report, &r->history, s);
    auto_free char *json = json_print(tree, true), *html = report_html_build(tree);
    if (fs_mkdirs(dir, 0755, e) < 0 || report_write(dir, "report.json", json, &ret->json, e) < 0)
        return -1;
    return html ? report_write(dir, "report.html", html, &ret->html, e) : 0;
}

static void final_report(const struct runner *r)
{
    struct error e = ERROR_INIT;
    if (!r->report_text)
        return;
    auto_free char *path = jobdir_path(&r->dir, "coordinator.json");
    if (jobdir_put(path, r->report_text, &e) < 0)
        fprintf(stderr, "ringmaster run: %s\n", e.text);
}

static void summary_print(const struct runner *r, const struct summary *s, const struct reports *reports)
{
    auto_free char *logs = jobdir_path(&r->dir, "logs");
    const char *paths[9] = { NULL };
    size_t n = 0;
    const struct { const char *label, *path; } ROWS[] = {
        { "logs", logs }, { "report", reports->json }, { "report to look at", reports->html },
    };
    for (size_t i = 0; i < COUNT(ROWS); i++) {
        if (!ROWS[i].path)
            continue;
        paths[n++] = ROWS[i].label;
        paths[n++] = ROWS[i].path;
    }
    auto_buf struct buf text = BUF_INIT(1u << 20);
    summary_format(s, paths, screen_color(r->screen), &text);
    screen_text(r->screen, buf_text(&text));
}

static int close_finished(struct runner *r)
{
    struct error e = ERROR_INIT;
    struct summary s;
    struct reports reports = { .json = NULL };
    int code = r->status->phase == PHASE_SUCCEEDED ? COMMAND_OK : COMMAND_JOB_FAILED;
    summary_build(r->job, r->status, r->report, &r->history, &s);
    if (runner_store(r, &e) < 0 || reports_write(r, &s, &reports, &e) < 0)
        code = command_fail("run", COMMAND_CANNOT_RUN, &e);
    summary_print(r, &s, &reports);
    summary_release(&s);
    free(reports.json);
    free(reports.html);
    jobdir_runtime_remove(&r->dir);
    return code;
}

static int close_interrupted(struct runner *r)
{
    struct error e = ERROR_INIT;
    jobdir_runtime_trim(&r->dir);
    if (runner_store(r, &e) < 0)
        return command_fail("run", COMMAND_CANNOT_RUN, &e);
    auto_free char *text = xasprintf("\n%s was interrupted; continue with: ringmaster run --resume --job-dir %s\n", r->job->name,
                                     r->dir.path);
    screen_text(r->screen, text);
    return COMMAND_INTERRUPTED;
}

int runner_close(struct runner *r)
{
    if (r->end != RUNNER_BROKEN)
        final_report(r);
    switch (r->end) {
    case RUNNER_INTERRUPTED:
        /* It may have come to its end in the moment of the interrupt. */
        return phase_is_final(r->status->phase) ? close_finished(r) : close_interrupted(r);
    case RUNNER_BROKEN:
        jobdir_runtime_trim(&r->dir);
        screen_text(r->screen, "");
        (void)command_fail("run", COMMAND_CANNOT_RUN, &r->why);
        if (!phase_is_final(r->status->phase))
            fprintf(stderr, "The job was stopped. When that is mended, continue with: ringmaster run --resume --job-dir %s\n", r->dir.path);
        return COMMAND_CANNOT_RUN;
    case RUNNER_GOES_ON: case RUNNER_ENDING: break;
    }
    return close_finished(r);
}
