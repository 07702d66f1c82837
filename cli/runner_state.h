/*
 * runner_state.h — the runner's inside, shared by runner.c (loop and decisions), runner_prepare.c (before the start) and
 * runner_close.c (summary and reports). Nobody else includes it.
 */
#ifndef CLI_RUNNER_STATE_H
#define CLI_RUNNER_STATE_H

#include <stdio.h>

#include "base/loop.h"
#include "cli/control.h"
#include "cli/history.h"
#include "cli/pods.h"
#include "cli/ports.h"
#include "cli/runner.h"

enum runner_end {
    RUNNER_GOES_ON,
    RUNNER_ENDING,       /* the job is over: what is left of its pods is being ended */
    RUNNER_INTERRUPTED,  /* Ctrl-C: the job is suspended and the pods end in their time */
    RUNNER_BROKEN,       /* cannot go on here; `why` says so */
};

struct runner {
    struct runner_options options;
    struct jobdir dir;
    struct jobfile file;
    struct training_job *job;           /* file.job */
    struct install install;
    struct ports ports;
    char *control_path, *checkpoint_dir;

    struct loop *loop;
    struct loop_timer *tick, *again;    /* every 100 ms; reconcile now or at the plan's time */
    struct pods *pods;
    struct control *control;
    struct screen *screen;
    FILE *history_file;

    struct job_status *status, *stored; /* newest; as status.json has it */
    int64_t stored_ms;                  /* monotonic */
    struct coordinator_report *report;  /* newest, owned; NULL = none yet */
    char *report_text;                  /* its JSON, for coordinator.json; NULL when it is written */
    int64_t report_saved_ms;
    int64_t told_size_ms;               /* when the coordinator was last told how many workers there are to be */
    struct history history;
    struct view shown;                  /* what the last plain lines said */
    int64_t drawn_ms, progress_ms, progress_step;

    enum runner_end end;
    int interrupts;
    int64_t give_up_ms;                 /* when what still lives is killed; 0 = not ending */
    int64_t quiet_ms;                   /* since when nothing lives; 0 = something does */
    bool plan_empty;                    /* the last plan had no action */
    struct error why;
};

/* runner_prepare.c */
MUST_CHECK int runner_prepare(struct runner *r, struct error *e);
/* runner_close.c: writes reports, prints the summary; returns the exit code. */
int runner_close(struct runner *r);
/* runner.c */
void runner_note(struct runner *r, const char *text);
void runner_break(struct runner *r, const struct error *why);
MUST_CHECK int runner_store(struct runner *r, struct error *e);

#endif
