/*
 * jobview.h — how jobs of a cluster look: a table of all, and one of them in full. Pure: text from objects as the API server
 * gives them; nothing in them is trusted, what is no text or would steer a terminal is replaced.
 */
#ifndef CLI_JOBVIEW_H
#define CLI_JOBVIEW_H

#include "cli/view.h"

/* NAME PHASE READY RESTARTS STEP AGE, a job a line; with `namespaces` the namespace first. */
void jobview_table(const cJSON *const *jobs, size_t count, bool namespaces, const struct view_style *style, int64_t now_wall_ms,
                   struct buf *out);

struct jobview {
    const cJSON *job;                              /* TrainingJob */
    const cJSON *const *pods; size_t pod_count;    /* by any order */
    const cJSON *const *events; size_t event_count;
    size_t events_shown;                           /* the last so many */
    int64_t now_wall_ms;
};

/* Header, ranks, progress; then conditions, ring, checkpoint, failures, events, each where there is something to say. */
void jobview_format(const struct jobview *v, const struct view_style *style, struct buf *out);
/* One line without a newline, for an output that is no terminal: "mnist Running attempt 1 round 0, 4/4 ready, step 12/60 (20 %)". */
void jobview_line(const cJSON *job, bool progress, struct buf *out);

/* Events by their time, oldest first, a line each: age (count), type, reason, object where it is not the job, message. */
void jobview_events(const cJSON *const *events, size_t count, const char *job, const struct view_style *style, int64_t now_wall_ms,
                    struct buf *out);
/* When an event was last seen; Unix milliseconds, 0 = it does not say. */
int64_t jobview_event_ms(const cJSON *event);

#endif
