/*
 * control.h — the socket at which the coordinator reports: lines of JSON (job/report.h) up, commands down.
 *
 * One coordinator at a time: a new connection takes the place of the old one. What is not a report of this job is dropped
 * with a note; a line over CONTROL_LINE_MAX closes the connection.
 */
#ifndef CLI_CONTROL_H
#define CLI_CONTROL_H

#include "base/loop.h"
#include "job/report.h"

#define CONTROL_LINE_MAX (8u << 20)

struct control;
typedef void control_report_fn(void *ctx, const struct coordinator_report *report, const char *text, size_t len);
typedef void control_note_fn(void *ctx, const char *text);

MUST_CHECK int control_new(struct loop *loop, const char *path, const char *job_uid /* kept */, control_report_fn *report,
                           control_note_fn *note, void *ctx, struct control **ret, struct error *e);
/* False when no coordinator is connected. */
bool control_command(struct control *c, enum report_command command, int64_t number /* report.h */);
void control_free(struct control *c); /* NULL is fine */

#endif
