/*
 * timeline.h — records what the engine does, as a file that Chrome shows (trace.h). A thread of its own writes; the engine puts
 * events into a queue of fixed size and never waits: what does not fit is counted, and the count stands in the trace.
 *
 * The file ends with "]" after each write, a few times a second. While it grows it is read under a shared lock (flock), which never
 * meets a write that is under way; once the recording has ended, or the process is gone, as any other file.
 *
 * Threads: timeline_add is for one thread, the engine's; the others for any.
 */
#ifndef SIDECAR_RING_TIMELINE_H
#define SIDECAR_RING_TIMELINE_H

#include "sidecar/ring/trace.h"

struct timeline;

/* How far the clock is off, from pulse.h. */
typedef bool timeline_clock_fn(void *ctx, int64_t *ret_offset_ns, int64_t *ret_error_ns);

struct timeline *timeline_new(timeline_clock_fn *clock, void *ctx); /* no thread until something is recorded */
void timeline_free(struct timeline *t);                            /* writes what is left; NULL is fine */

/* path: absolute; a file that is there is replaced. Rank 0 writes to it, rank R to the same with ".rank-R" before the suffix.
 * One that is being recorded ends. Fails when the file cannot be made. */
MUST_CHECK int timeline_start(struct timeline *t, const char *path, const char *member, const char *job_uid, int32_t rank, int32_t size,
                              bool mark_cycles, struct error *e);
void timeline_stop(struct timeline *t); /* soon */

bool timeline_is_on(const struct timeline *t);
bool timeline_marks_cycles(const struct timeline *t);
void timeline_add(struct timeline *t, enum trace_kind kind, const char *phase, const char *tensor, int32_t rank);

/* "/d/run.json", 2 → "/d/run.rank-2.json". Owned by the caller. */
char *timeline_path(const char *path, int32_t rank);

#endif
