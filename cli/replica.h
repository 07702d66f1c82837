/*
 * replica.h — a pod of a TrainingJob as people see it: which member it is, how it stands, and why not better. Pure.
 *
 * Texts are borrowed from the pod's tree, which comes from the network: what has no usable labels is no replica.
 */
#ifndef CLI_REPLICA_H
#define CLI_REPLICA_H

#include "job/job.h"

struct replica {
    enum job_role role;
    int32_t index;
    char member[80];
    const char *pod, *uid, *node; /* node "" = not placed */
    const char *container;        /* the one whose output is the member's */
    const char *phase;            /* static, as in view.h: "pending", "starting", "running", "stopping", "done", "failed" */
    const char *reason;           /* of a container or the scheduler: "ImagePullBackOff", "Unschedulable", "OOMKilled"; or "" */
    bool has_exit; int32_t exit_code;
    bool started;                 /* its container runs or ran: there is a log */
    bool ended;                   /* its container runs no more */
    int32_t restarts;             /* of the container, by the kubelet */
    int32_t attempt;
    int64_t created_ms;
};

bool replica_of(const cJSON *pod, struct replica *ret);

#define REPLICA_SELECTOR "ringmaster.dev/job-name=" /* + the job's name: its pods */

#endif
