/*
 * target.h — which job a command means: one of `ringmaster run` in a directory of this machine, or one of a cluster. Pure.
 *
 * The rule, which `--help` and docs/cli.md state in the same words (TARGET_RULE):
 *   - --job-dir: the job of that directory.
 *   - --namespace, --context or --kubeconfig: NAME on that cluster.
 *   - neither: NAME is a directory when there is a '/' in it, or when a directory of that name here holds a job; otherwise it is
 *     a job of the cluster of the current context.
 *   - no NAME: the directory in RINGMASTER_JOB_DIR, where that is set; otherwise the cluster.
 */
#ifndef CLI_TARGET_H
#define CLI_TARGET_H

#include <stdbool.h>

#include "base/error.h"

#define TARGET_RULE \
    "Which job is meant: with --job-dir that of the directory, written by 'ringmaster run'; with --namespace, --context or\n" \
    "--kubeconfig NAME on that cluster. With neither, NAME is a directory when there is a '/' in it or when a directory of\n" \
    "that name here holds a job, and otherwise a job of the current context's cluster. Without NAME it is the directory in\n" \
    "RINGMASTER_JOB_DIR, where that is set, and otherwise the cluster."

struct target_words {
    const char *job_dir;      /* --job-dir, or NULL */
    const char *default_dir;  /* RINGMASTER_JOB_DIR, or NULL */
    bool cluster_named;       /* cluster_is_named() */
    const char *name;         /* the first word, or NULL */
    bool name_holds_job;      /* a directory of that name here holds a job */
};

struct target {
    bool local;
    const char *job_dir;      /* local: its directory; borrowed from the words */
    const char *name;         /* on a cluster: NULL = none was given */
    bool name_used;           /* the first word was the job, the rest are others */
};

/* ERROR_INVALID when the options contradict each other. */
MUST_CHECK int target_choose(const struct target_words *words, struct target *ret, struct error *e);

#endif
