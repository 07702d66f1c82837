/*
 * report.h — the progress that a training process reports, merged until it is sent. Pure; no heap.
 *
 * Reports come faster than anyone looks at them. What is not sent yet is kept here: the newest value of each field and of
 * each metric. Values are kept as the JSON text that the caller gave; the sidecar decides what they mean.
 */
#ifndef CLIENT_REPORT_H
#define CLIENT_REPORT_H

#include <stdbool.h>
#include <stddef.h>

#define REPORT_METRICS 32
#define REPORT_KEY_MAX 64
#define REPORT_VALUE_MAX 160
#define REPORT_TEXT_MAX 8192 /* of what report_take gives */

enum report_field { REPORT_STEP, REPORT_TOTAL_STEPS, REPORT_LOSS, REPORT_STEP_MS, REPORT_FIELDS };

struct report_metric { char key[REPORT_KEY_MAX], value[REPORT_VALUE_MAX]; };

struct report {
    bool pending;
    char fields[REPORT_FIELDS][REPORT_VALUE_MAX]; /* "" = not there */
    struct report_metric metrics[REPORT_METRICS];
    size_t metric_count;
};

/* Takes in one JSON object. RM_OK, or RM_INVALID with the reason and nothing changed. */
int report_merge(struct report *r, const char *json);
/* The pending report as one JSON object; empties it. The length, 0 when nothing is pending. */
size_t report_take(struct report *r, char ret_text[REPORT_TEXT_MAX]);

#endif
