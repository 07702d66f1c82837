/*
 * tracemerge.h — the time lines of all ranks (sidecar/ring/trace.h) as one: a rank is a process of the trace, a tensor a thread of
 * it, and all stand on rank 0's clock.
 *
 * Files are read line by line and may be large, and may still be written to. What is no time line of ours is an error.
 */
#ifndef CLI_TRACEMERGE_H
#define CLI_TRACEMERGE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"

struct trace_file {
    char *path;                      /* owned */
    int32_t rank, size;
    char member[80], job_uid[64];
    int64_t start_us;                /* Unix epoch, by its own clock */
    int64_t offset_ns, error_ns;     /* to rank 0's clock; error -1: not measured */
};

/* What stands in its head and the best of its clock lines. The caller frees ret->path. */
MUST_CHECK int trace_file_read(const char *path, struct trace_file *ret, struct error *e);
/* Different ranks of one job? The error says what does not belong together. */
MUST_CHECK int trace_files_check(const struct trace_file *files, size_t count, struct error *e);
/* Writes all of them; *ret_events: how many there were. */
MUST_CHECK int trace_merge(const struct trace_file *files, size_t count, FILE *out, int64_t *ret_events, struct error *e);

#endif
