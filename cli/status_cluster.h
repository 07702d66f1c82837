/*
 * status_cluster.h — `ringmaster status` on a cluster: the jobs of a namespace, or one in full, once or as they change.
 */
#ifndef CLI_STATUS_CLUSTER_H
#define CLI_STATUS_CLUSTER_H

#include "cli/cluster.h"

enum status_output { STATUS_TEXT, STATUS_JSON, STATUS_YAML, STATUS_NAME };

struct status_options {
    const char *job_dir, *default_dir;
    bool watch, all_namespaces;
    int output;                 /* enum status_output */
    struct cluster_options cluster;
};

/* name NULL: all jobs. Returns the exit code. */
int status_cluster(const struct status_options *o, const char *name);

#endif
