/*
 * logs_cluster.h — the logs of a TrainingJob's pods, all at once, merged and prefixed, as `ringmaster logs` shows them.
 *
 * A stream to each pod over the one connection. While following, pods that are made anew get a stream of their own, a stream that
 * broke goes on where it was, and the end is there when the job has ended and every log was read to its end.
 */
#ifndef CLI_LOGS_CLUSTER_H
#define CLI_LOGS_CLUSTER_H

#include "cli/cluster.h"

struct logs_options {
    const char *job_dir, *default_dir, *role;
    bool follow, sidecar, prefix, timestamps, previous;
    int64_t attempt, rank, since_ms, tail; /* rank and tail -1 = not given, since_ms and attempt 0 */
    struct cluster_options cluster;
};

/* `members` are names of members, none = by --rank and --role, or all. Returns the exit code. */
int logs_cluster(const struct logs_options *o, const char *name, char *const *members, size_t count);

/* The same on a cluster that is open, for a job whose outcome is of interest: `says` is the command's name in messages; *ret_job
 * (owned, or NULL when it was deleted meanwhile) is the job as it was at the end. ns is the cluster's. */
int logs_follow(struct cluster *c, const char *says, const struct logs_options *o, const char *name, char *const *members, size_t count,
                cJSON **ret_job);

#endif
