/*
 * history.h — what happened while a job ran: steps of every member, failures, and how the job came back from each.
 *
 * Fed with the coordinator's reports and with the failures of the job's status; read by the summary and the reports. It is
 * bounded: each member keeps HISTORY_SAMPLES_MAX samples; when they are full every second one is dropped and from then on
 * only every second new one is kept, so that a long job keeps its whole curve at a coarser grain. Times are Unix
 * milliseconds. Pure but for history_line/history_read, which are text in and out.
 */
#ifndef CLI_HISTORY_H
#define CLI_HISTORY_H

#include "base/buf.h"
#include "job/report.h"

#define HISTORY_SAMPLES_MAX 4096
#define HISTORY_FAILURES_MAX 64
#define HISTORY_FENCES_MAX 256

struct history_sample {
    int64_t time_ms, step;
    bool has_loss;
    double loss, step_ms;       /* step_ms 0 = unknown */
};

struct history_series {
    char member[80];
    int32_t rank;
    struct history_sample *samples;
    size_t count, stride, skipped; /* stride: one sample in `stride` is kept */
    int64_t last_step;          /* newest seen, kept or not; -1 = none */
};

/* A failure and the way back. 0 = not (yet) known; steps: -1 = not known. */
struct history_failure {
    struct failure cause;
    int64_t step_before;        /* highest step that any rank had reached in the round that failed */
    int64_t resume_step;        /* of the round after; valid when resume_known */
    bool resume_known;
    int64_t started_ms;         /* when the last process of the round after was started */
    int64_t recovered_ms;       /* first new step of the slowest rank */
};

struct history_fence { int32_t attempt, round; int64_t formed_ms, resume_step, peak_step; bool self_test_ok; double form_seconds; };

struct history {
    struct history_series *series;
    size_t series_count;
    struct history_failure failures[HISTORY_FAILURES_MAX];
    size_t failure_count;
    bool failures_dropped;      /* more than fit: the oldest are gone */
    struct history_fence fences[HISTORY_FENCES_MAX];
    size_t fence_count;
};

void history_init(struct history *h);
void history_release(struct history *h);

/* Folds in one report. New samples are appended as lines of history.jsonl to `lines` (may be NULL). */
void history_report(struct history *h, const struct coordinator_report *r, int64_t now_wall_ms, struct buf *lines);
/* Folds in the failures that status lists; those that are known already are passed over. */
void history_failures(struct history *h, const struct job_status *status, struct buf *lines);
/* One line of history.jsonl back into the history (for --resume). Lines that are no such lines are passed over. */
void history_read(struct history *h, const char *line, size_t len);

/* Steps lost to a failure: -1 when not known. In a job that tells its steps, a round that told none has lost none. */
int64_t history_steps_lost(const struct history *h, const struct history_failure *f);

#endif
