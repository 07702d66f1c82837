/*
 * summary.h — what a run came to: the figures of the last page on the terminal, of report.json and of report.html. Pure.
 */
#ifndef CLI_SUMMARY_H
#define CLI_SUMMARY_H

#include "cli/history.h"

enum weights_verdict { WEIGHTS_UNKNOWN /* not every rank reported a hash */, WEIGHTS_EQUAL, WEIGHTS_DIFFER };

struct summary_rank { int32_t rank; char member[80], weights_hash[130]; };

struct summary {
    const char *job;                  /* borrowed */
    enum job_phase phase;
    char reason[64], message[512];    /* of the condition that ended the job, or "" */
    int32_t ranks, restarts, attempt, round;
    int64_t elapsed_ms;

    enum weights_verdict weights;
    struct summary_rank *hashes; size_t hash_count; /* ranks that reported one, by rank */
    bool has_accuracy; double accuracy;
    bool has_loss; double loss;

    int64_t failures;
    bool has_recovery; double recovery_s;         /* longest over the failures: end of the process → first new step of the slowest rank */
    bool has_started; double started_s;           /* of the same failure: end of the process → all processes started again */
    bool has_steps_lost; int64_t steps_lost;      /* sum over the failures */

    int64_t last_committed_step, checkpoint_every_steps; /* -1 = none, not set */
    int32_t ring_size;
    bool self_test_ok;
    double busbw_gbps;
    int64_t bytes_reduced, operations;            /* of the rank that did the most */
};

void summary_build(const struct training_job *job, const struct job_status *status, const struct coordinator_report *report,
                   const struct history *history, struct summary *ret_summary);
void summary_release(struct summary *s);

/* The page at the end of a run. `paths` are lines of their own under "report" etc., NULL-terminated pairs of label and path. */
void summary_format(const struct summary *s, const char *const *paths, bool color, struct buf *out);

/* report.json. Owned by the caller. report may be NULL. */
cJSON *report_json_build(const struct training_job *job, const struct job_status *status,
                         const struct coordinator_report *report, const struct history *history, const struct summary *s);
/* report.html around a report.json: one file with everything in it. Owned by the caller; NULL when it would be over 64 MiB. */
char *report_html_build(const cJSON *report);

#endif
