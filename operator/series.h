/*
 * series.h — what the coordinators tell of jobs at work, as series of Prometheus with the job's name, and each rank's number.
 * Pure. So many labels cost a monitoring system memory, which is why they are asked for (--job-metrics).
 */
#ifndef OPERATOR_SERIES_H
#define OPERATOR_SERIES_H

#include "base/buf.h"
#include "job/report.h"

struct series {
    struct series_job { const char *ns, *name; const struct coordinator_report *report; } *jobs;
    size_t count, cap;
};

#define SERIES_INIT { .jobs = NULL }

void series_add(struct series *s, const char *ns, const char *name, const struct coordinator_report *report); /* all borrowed */
void series_format(const struct series *s, struct buf *out);
void series_release(struct series *s);

#endif
