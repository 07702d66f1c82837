/*
 * observe.h — pods for the view, and what of a status must be stored at once. Pure.
 */
#ifndef CLI_OBSERVE_H
#define CLI_OBSERVE_H

#include "cli/view.h"
#include "job/report.h"

/* view_build's pods. Owned by the caller. */
struct view_pod *observe_view_pods(const struct pod_view *pods, size_t count);

/* True when the status differs from what was stored last in more than progress, so that it must be stored at once. */
bool observe_weighty(const struct job_status *stored, const struct job_status *now);

#endif
