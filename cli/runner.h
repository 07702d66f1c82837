/*
 * runner.h — drives one job on this machine to its end: the operator's reconcile with processes in place of pods.
 *
 * runner_start prepares (everything that can be refused is refused there, before a process exists), runner_run loops until
 * the job is over, was interrupted, or cannot go on. Single thread.
 */
#ifndef CLI_RUNNER_H
#define CLI_RUNNER_H

#include "cli/install.h"
#include "cli/jobdir.h"
#include "cli/screen.h"

struct runner_options {
    const char *install_dir;       /* NULL: next to this program */
    const char *report_dir;        /* NULL: the job directory */
    const char *output_dir;        /* NULL, or where output is copied to, by rank */
    bool resume, verbose, show_logs;
    int64_t timeout_ms, grace_ms;  /* 0 = the manifest's */
    bool ring_over_tcp;         /* else through memory that the sidecars share */
    int64_t ring_port, framework_port;
    struct screen_options screen;
};

/* Takes the directory (locked) and the job. On success the job directory holds job.json, status.json and key. */
struct runner;
MUST_CHECK int runner_start(const struct runner_options *options, struct jobdir *dir /* moved */, struct jobfile *file /* moved */,
                            struct runner **ret, struct error *e);
/* Returns the exit code (command.h). What went wrong beyond the job itself has been printed. */
int runner_run(struct runner *r);
void runner_free(struct runner *r);

#endif
