/*
 * progress.h — how far the training process of this pod is, merged from what its clients report. Pure.
 */
#ifndef SUPERVISE_PROGRESS_H
#define SUPERVISE_PROGRESS_H

#include "sidecar/supervise/message.h"

#define PROGRESS_STEPS 32          /* step times of which the median is told */
#define PROGRESS_REPORT_MAX 65536  /* bytes of one report */

struct progress {
    struct progress_view view;
    double step_ms[PROGRESS_STEPS]; /* newest at (count - 1) mod PROGRESS_STEPS */
    size_t count;
    int64_t at_ms, at_step;         /* of the report before, for clients that do not measure; -1 = none */
    int64_t resume_step;            /* 0: from scratch */
};

/* A new process begins. Its first step is the first beyond resume_step (-1: from scratch): that it has read the checkpoint and
 * says so is no training yet. */
void progress_reset(struct progress *p, int64_t resume_step);

/* LOCAL_REPORT's JSON: {"step":n,"total_steps":n,"loss":x,"step_ms":x,"metrics":{...}}, any subset; metrics are merged by key.
 * What cannot be right is refused as a whole and changes nothing. */
MUST_CHECK int progress_merge(struct progress *p, const char *text, size_t len, int64_t mono_ms, int64_t wall_ms, struct error *e);

double progress_median(const double *values, size_t count); /* 0 when there are none */

#endif
