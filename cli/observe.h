/*
 * observe.h — what the coordinator reports and what the processes show, as reconcile wants to see it. Pure.
 */
#ifndef CLI_OBSERVE_H
#define CLI_OBSERVE_H

#include "cli/view.h"
#include "job/report.h"

/* `report` NULL: no coordinator has been heard. `round_views` of the result is borrowed from the report. */
void observe_coordinator(const struct training_job *job, const struct coordinator_report *report, int64_t now_wall_ms,
                         struct coordinator_view *ret_view);

/* A pod that failed learns from the coordinator what the exit code alone does not tell (the reason of a give-up). */
void observe_give_up(const struct coordinator_report *report, struct pod_view *pods, size_t count);

/* view_build's pods. Owned by the caller. */
struct view_pod *observe_view_pods(const struct pod_view *pods, size_t count);

/* True when the status differs from what was stored last in more than progress, so that it must be stored at once. */
bool observe_weighty(const struct job_status *stored, const struct job_status *now);

#endif
