/*
 * jobdir.h — the directory in which a local job lives, and the lock on it. The layout is in docs/cli.md:
 *
 *   job.json            the manifest with its defaults, as it runs; metadata.uid is the job's identity
 *   status.json         the job's status as the CRD has it; old or new, never half
 *   lock                held (flock) by the runner as long as it lives
 *   key                 the job's key, mode 0600
 *   scale               the number of workers that is wanted, until the runner has taken it
 *   coordinator.json    the coordinator's last report
 *   history.jsonl       steps and failures, a line each
 *   pods/MEMBER/        pod.json (as built), state.json (phase and process ids)
 *   logs/MEMBER/        ATTEMPT.log (the command's output), sidecar.log
 *   checkpoints/        the volume, unless spec.checkpoint.path is a directory that exists
 *   report.json, report.html
 *
 * Sockets and checkpoint slots are in a directory of tmpfs, /dev/shm/ringmaster-UID: socket names have to be short, and not
 * every file system can hold sockets. It is removed when the job ends; what slots it has are kept for --resume when
 * it was interrupted.
 */
#ifndef CLI_JOBDIR_H
#define CLI_JOBDIR_H

#include "cli/jobfile.h"

#define JOBDIR_PARENT "ringmaster-jobs"

struct jobdir {
    char *path;                /* absolute */
    char *runtime;             /* /dev/shm/ringmaster-UID; NULL until jobdir_runtime */
    int lock_fd;
};

#define JOBDIR_INIT { .path = NULL, .runtime = NULL, .lock_fd = -1 }

/* Makes or opens the directory and takes its lock; ERROR_BUSY names the process that holds it. */
MUST_CHECK int jobdir_open(const char *path, struct jobdir *ret, struct error *e);
/* For status and logs: no lock, and it must be there. */
MUST_CHECK int jobdir_look(const char *path, struct jobdir *ret, struct error *e);
/* True while a runner is at work in it. */
bool jobdir_busy(const struct jobdir *d);
/* True when a job has been started here before. */
bool jobdir_used(const struct jobdir *d);
/* True when the path is a directory with a job in it; NULL is none. */
bool jobdir_holds_job(const char *path);
/* Removes what a job left here, and only that. */
MUST_CHECK int jobdir_clear(const struct jobdir *d, struct error *e);
void jobdir_release(struct jobdir *d); /* lets go of the lock; removes nothing */

MUST_CHECK int jobdir_runtime(struct jobdir *d, const char *uid, struct error *e); /* makes it, mode 0700 */
void jobdir_runtime_remove(struct jobdir *d);
void jobdir_runtime_trim(struct jobdir *d); /* keeps checkpoint slots for --resume, and itself only when there are any */

MUST_CHECK int jobdir_save_job(const struct jobdir *d, const cJSON *tree, struct error *e);
MUST_CHECK int jobdir_load_job(const struct jobdir *d, struct jobfile *ret, char **ret_report, struct error *e);
MUST_CHECK int jobdir_save_status(const struct jobdir *d, const struct training_job *job, const struct job_status *status,
                                  struct error *e);
MUST_CHECK int jobdir_load_status(const struct jobdir *d, struct job_status *ret_status, struct error *e); /* absent: fresh */
MUST_CHECK int jobdir_make_key(const struct jobdir *d, struct error *e); /* keeps one that is there */

/* DIR/name, name with the members' directories filled in: jobdir_path(d, "pods/%s/state.json", member). Owned. */
char *jobdir_path(const struct jobdir *d, const char *fmt, ...) FORMAT(2, 3);
/* Writes a small file that may be lost with the machine: renamed into place but not synced. */
MUST_CHECK int jobdir_put(const char *path, const char *text, struct error *e);

/* The default place of a job called `name`; `fresh` picks the first NAME, NAME-2, NAME-3, ... that does not exist. Owned. */
char *jobdir_default(const char *name, bool fresh);

#endif
