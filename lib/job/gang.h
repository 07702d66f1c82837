/*
 * gang.h — which gang scheduler places the pods of a job, and the group object that it wants. Pure.
 *
 * Decided for each job by what the API server has, and recorded in status.gang before the first pod: the pods of a job never
 * belong to two schedulers. "Auto" takes the first of Native, Volcano and Coscheduling that is served and proves itself: Native by a
 * pod that comes back from a dry run with its group still in it, the others by a scheduler that answers (gives the new group a phase)
 * within GANG_SILENCE_MS. Without one of them pods are placed one by one, and scheduleTimeoutSeconds gives back those of a gang that
 * did not all find a place. SchedulingGates is never taken by Auto: it holds every pod back until all are there.
 */
#ifndef JOB_GANG_H
#define JOB_GANG_H

#include "job/job.h"

#define GANG_SILENCE_MS 30000

/* What the shell knows of gang schedulers. Zero: nothing is to be considered (the local runner). */
struct gang_view {
    bool looked;                       /* the API server was asked */
    bool served[GANG_NONE + 1];        /* by kind: it has the group objects of */
    bool native_checked, native_works; /* a pod with a schedulingGroup was tried, and kept it */
    /* The group of the kind in status.gang. */
    bool has_group;
    char phase[32], message[256];      /* what its scheduler says; "" = nothing yet */
    int32_t min_member;
    int64_t created_ms;
};

const char *gang_name(enum gang_kind kind); /* "Volcano" */
bool gang_has_group(enum gang_kind kind);   /* has a group object of its own */
/* False: what is asked for cannot be known yet. `after`: a kind that did not prove itself, GANG_AUTO at first. */
bool gang_choose(const struct training_job *job, const struct gang_view *seen, enum gang_kind after, enum gang_kind *ret_kind);
/* The scheduler has taken the group in, as far as its kind and the job's trust ask for that: pods may be created. */
bool gang_is_admitted(const struct training_job *job, enum gang_kind kind, const struct gang_view *seen);
/* minAvailable, else all replicas, with an elasticPolicy no more than its least number of workers. */
int32_t gang_min_member(const struct training_job *job);
/* `api_version`: of the group, where its kind is served in several. Owned. */
cJSON *gang_group_build(const struct training_job *job, enum gang_kind kind, const char *api_version);
cJSON *gang_group_patch(const struct training_job *job, enum gang_kind kind); /* to the present size, as a merge patch; owned */

/* Any gang scheduler's group, as the API server gave it. */
void gang_group_read(const cJSON *group, char ret_phase[32], char ret_message[256], int32_t *ret_min_member);

#endif
