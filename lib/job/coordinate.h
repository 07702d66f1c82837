/*
 * coordinate.h — what the coordinator reports, as reconcile wants to see it. Pure; used by the operator and by the local runner.
 */
#ifndef JOB_COORDINATE_H
#define JOB_COORDINATE_H

#include "job/report.h"

/* Progress of a job: that of its slowest rank, its loss that of the lowest one. */
struct job_progress {
    int64_t step, total_steps;  /* -1 = unknown */
    int64_t eta_s;              /* -1 = unknown */
    double steps_per_second;    /* 0 = unknown */
    bool has_loss;
    double loss;
};
void coordinate_progress(const struct coordinator_report *report, struct job_progress *ret_progress);

/* Which rank holds the others up: the one that takes longest for a step by itself, when that is so much above the median. */
struct job_stragglers { int32_t rank; /* -1: none stands out */ double median_ms, slowest_ms; /* 0 = unknown */ };
void coordinate_stragglers(const struct coordinator_report *report, int32_t threshold_percent, struct job_stragglers *ret);

/* `report` NULL: no coordinator has been heard. `rounds` of the result are borrowed from the report. */
void coordinate_view(const struct training_job *job, const struct coordinator_report *report, int64_t now_wall_ms,
                     struct coordinator_view *ret_view);

/* A pod that failed learns from the coordinator what the exit code alone does not tell (the reason of a give-up). */
void coordinate_give_up(const struct coordinator_report *report, struct pod_view *pods, size_t count);

#endif
