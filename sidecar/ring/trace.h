/*
 * trace.h — events of the ring as lines of a Chrome trace (chrome://tracing, Perfetto). Pure: events in, text out.
 *
 * Names and phases are Horovod's. Each tensor is a process of the trace ("pid") with its name in the metadata; the spans of a
 * tensor nest. One event a line, so that tools can read line by line; the first line is "[", the last one "]".
 */
#ifndef SIDECAR_RING_TRACE_H
#define SIDECAR_RING_TRACE_H

#include "base/buf.h"
#include "sidecar/ring/namemap.h"
#include "wire/shm.h"

enum trace_kind {
    TRACE_BEGIN, TRACE_END, /* a span; END ends the newest that is open */
    TRACE_READY,            /* rank `rank` is ready, an instant in the tensor's row */
    TRACE_MARK,             /* an instant of the whole trace */
    TRACE_RESET,            /* the round is over: open spans end here */
};

struct trace_event {
    enum trace_kind kind;
    int64_t at_ns;          /* monotonic */
    int32_t rank;
    char phase[40], tensor[SHM_NAME_MAX];
};

struct trace_about {
    int64_t start_mono_ns, start_wall_us; /* the same moment */
    int32_t rank, size;
    char member[80], job_uid[64];
};

struct trace { struct trace_about about; struct namemap rows; int32_t row_count; };
#define TRACE_END_BYTES 2 /* "\n]", which the text always ends with */

/* Everything that is added begins with ",\n" and goes before the "\n]"; trace_begin writes that, too. */
void trace_begin(struct trace *t, const struct trace_about *about, struct buf *out);
void trace_add(struct trace *t, const struct trace_event *event, struct buf *out);
void trace_clock(const struct trace *t, int64_t offset_ns, int64_t error_ns, struct buf *out);
void trace_dropped(const struct trace *t, uint64_t count, int64_t at_ns, struct buf *out);
/* Phases of an operation (enum shm_op): "NEGOTIATE_ALLREDUCE", "ALLREDUCE", "RING_ALLREDUCE". */
const char *trace_phase_wait(unsigned op);
const char *trace_phase(unsigned op);
const char *trace_phase_ring(unsigned op);
void trace_release(struct trace *t);

#endif
