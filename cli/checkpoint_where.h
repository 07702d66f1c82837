/*
 * checkpoint_where.h — which checkpoints a command means: those of a job of this machine, or a place where some are.
 *
 * The rule, which `--help` and docs/checkpoints.md state in the same words (WHERE_RULE).
 */
#ifndef CLI_CHECKPOINT_WHERE_H
#define CLI_CHECKPOINT_WHERE_H

#include "checkpoint/store.h"

#define WHERE_RULE \
    "WHERE is a job's directory (of 'ringmaster run'), or NAME for ringmaster-jobs/NAME; a directory of checkpoints\n" \
    "(spec.checkpoint.path) or s3://BUCKET/PREFIX, with --job UID where several jobs have some in it; or one step's directory. Without\n" \
    "WHERE it is the job in RINGMASTER_JOB_DIR."

struct where {
    char *place, *job;   /* for store_init */
    char *step;          /* of a step's directory: its name; NULL where none was given */
};

#define WHERE_INIT { .place = NULL, .job = NULL, .step = NULL }

/* `word` may be NULL: `default_dir` then, or an error. `job`: a UID, or NULL. Looks at directories, and reads job.json. */
MUST_CHECK int where_find(const char *word, const char *default_dir, const char *job, const struct s3_config *s3,
                          struct where *ret_where, struct error *e);
void where_release(struct where *w);
#define auto_where __attribute__((cleanup(where_release)))

#endif
