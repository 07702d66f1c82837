/*
 * command_checkpoint.h — what the sub-commands of `ringmaster checkpoint` share. Each is a row with a page of its own.
 */
#ifndef CLI_COMMAND_CHECKPOINT_H
#define CLI_COMMAND_CHECKPOINT_H

#include "checkpoint/inspect.h"
#include "cli/checkpoint_where.h"
#include "cli/command.h"

extern const struct command CHECKPOINT_SAVE /* command_change.c */, CHECKPOINT_LS, CHECKPOINT_SHOW, CHECKPOINT_VERIFY, CHECKPOINT_EXPORT,
    CHECKPOINT_PRUNE, CHECKPOINT_PUSH, CHECKPOINT_PULL;

struct checkpoint_words {
    const char *job, *default_dir;
    const char *scratch; /* for images from S3 that become files; NULL: the system's; no option */
    struct s3_config s3;
};

/* Rows for a sub-command's option table. */
#define CHECKPOINT_OPTIONS(s, field) \
    { .flag = "job", .type = OPT_TEXT, .at = OPT_AT(s, field.job, const char *), .value = "UID", \
      .help = "whose checkpoints, where WHERE holds those of several jobs" }, \
    S3_OPTIONS(s, field.s3), \
    { .flag = "default-job-dir", .env = "RINGMASTER_JOB_DIR", .type = OPT_TEXT, .at = OPT_AT(s, field.default_dir, const char *), .hidden = true }

/* The store that is meant, and what it holds. */
struct opened { struct store store; struct where where; struct inspections all; };
#define OPENED_INIT { .store = { .volume = NULL }, .where = WHERE_INIT, .all = { .items = NULL } }

/* `words` are borrowed as long as what is opened. */
MUST_CHECK int opened_init(const char *word, const struct checkpoint_words *words, struct opened *ret, struct error *e);
void opened_release(struct opened *o);
#define auto_opened __attribute__((cleanup(opened_release)))

/* `word`, or the step of a step's directory, or the newest committed one. */
MUST_CHECK int opened_find(const struct opened *o, const char *word, const struct inspection **ret, struct error *e);

#endif
