/*
 * view.h — how a running job looks on a terminal and in plain lines. Pure: text from a struct, no terminal, no clock.
 *
 * A struct view is a snapshot that view_build (or a test) fills; it borrows every text. Widths are terminal columns; one
 * column is one character of the few that are written here (no wide characters).
 */
#ifndef CLI_VIEW_H
#define CLI_VIEW_H

#include "base/buf.h"
#include "job/report.h"

struct view_member {
    char member[80];
    int32_t rank;               /* -1: not in the ring */
    const char *phase;          /* static: "pending", "starting", "running", "stopping", "done", "failed", "lost",
                                 * "restarting", "ended" */
    int64_t step, total_steps;  /* -1 = unknown */
    bool has_loss;
    double loss, step_ms;       /* step_ms 0 = unknown */
    int64_t bytes_reduced;
    int32_t restarts;
};

struct view {
    const char *job;
    enum job_phase phase;
    int32_t attempt, round, restarts;
    int32_t ring_size;          /* 0 = no ring formed now */
    double busbw_gbps;          /* GB/s, 0 = unknown */
    int64_t step, total_steps;  /* of the slowest ring member, -1 = unknown */
    double steps_per_second;    /* 0 = unknown */
    bool has_loss;
    double loss;                /* of the lowest rank that reports one */
    int64_t eta_s;              /* -1 = unknown */
    int64_t elapsed_ms;
    int64_t checkpoint_step;    /* committed, -1 = none */
    const char *note;           /* what the runner is doing just now, or NULL */
    struct view_member *members;
    size_t member_count;
};

struct view_style {
    int width;                  /* columns; lines are cut to it */
    int max_rows;               /* lines for members; the others are counted in one line; 0 = all */
    bool color, unicode;
};

/* What the runner knows of one replica's pod, for view_build. */
struct view_pod { enum job_role role; int32_t index; enum pod_phase phase; bool deleting; };

/* Puts a snapshot together. `report` may be NULL (nothing heard yet). members are owned by the view: view_release. */
void view_build(const struct training_job *job, const struct job_status *status, const struct coordinator_report *report,
                const struct view_pod *pods, size_t pod_count, int64_t now_wall_ms, struct view *ret_view);
void view_release(struct view *v);

/* The whole picture: header, one line a member, progress bar. Every line ends in \n. Returns the number of lines. */
int view_format(const struct view *v, const struct view_style *style, struct buf *out);
/* The members as a table only, with its heading. Returns the number of lines. */
int view_table(const struct view *v, const struct view_style *style, struct buf *out);
/* Its parts: the line with phase, ring and time; the line with the bar. */
void view_header(const struct view *v, const struct view_style *style, struct buf *out);
void view_bar(const struct view *v, const struct view_style *style, struct buf *out);
/* One line without a newline: "step 120/600 (20 %)  loss 0.4321  41.2 steps/s  eta 12 s". Empty when nothing is known. */
void view_progress_line(const struct view *v, struct buf *out);

/* What changed from `before` to `now`, a line each, for an output that is no terminal: phases, rounds, restarts. */
void view_changes(const struct view *before, const struct view *now, struct buf *out);

/* Rows that printed text takes on a terminal of this width, escape sequences not counted. */
int view_rows(const char *text, int width);

/* Of a job's phase ("Running") or a member's ("running"); an escape sequence, static. */
const char *view_phase_color(const char *phase);

/* "1 h 02 min", "3 min 20 s", "12 s", "0.8 s". */
#define VIEW_DURATION_MAX 32
const char *view_duration(int64_t ms, char ret[VIEW_DURATION_MAX]);

/* "35s", "12m", "3h", "5d", as kubectl writes ages; "-" when unknown (0). */
#define VIEW_AGE_MAX 24
const char *view_age(int64_t since_ms, int64_t now_ms, char ret[VIEW_AGE_MAX]);

/* What stands before a line of a member's log, "[worker-1] " padded to `width` columns of name; coloured by rank. */
void view_log_prefix(const char *member, int width, bool color, struct buf *out);

#endif
