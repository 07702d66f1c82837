#include "sidecar/ring/trace.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"

struct row { int32_t pid, open; };

#define PHASE_NAMES(word) { "NEGOTIATE_" word, word, "RING_" word }
static const char *const PHASES[][3] = {
    [SHM_OP_ALLREDUCE] = PHASE_NAMES("ALLREDUCE"),         [SHM_OP_ALLGATHER] = PHASE_NAMES("ALLGATHER"),
    [SHM_OP_BROADCAST] = PHASE_NAMES("BROADCAST"),         [SHM_OP_BARRIER] = PHASE_NAMES("BARRIER"),
    [SHM_OP_REDUCESCATTER] = PHASE_NAMES("REDUCESCATTER"), [SHM_OP_ALLTOALL] = PHASE_NAMES("ALLTOALL"),
    [SHM_OP_JOIN] = PHASE_NAMES("JOIN"),                   [SHM_OP_SET_ADD] = PHASE_NAMES("PROCESS_SET_ADD"),
    [SHM_OP_SET_REMOVE] = PHASE_NAMES("PROCESS_SET_REMOVE"),
};

static const char *phase(unsigned op, int which)
{
    static const char *const unknown[] = PHASE_NAMES("OPERATION");

    return op < COUNT(PHASES) && PHASES[op][which] != NULL ? PHASES[op][which] : unknown[which];
}

const char *trace_phase_wait(unsigned op)
{
    return phase(op, 0);
}

const char *trace_phase(unsigned op)
{
    return phase(op, 1);
}

const char *trace_phase_ring(unsigned op)
{
    return phase(op, 2);
}

static double micros(const struct trace *t, int64_t at_ns)
{
    return (double)(at_ns - t->about.start_mono_ns) / 1000;
}

void trace_begin(struct trace *t, const struct trace_about *about, struct buf *out)
{
    *t = (struct trace){ .about = *about };
    buf_addf(out, "[\n{\"name\":\"start_time_since_epoch_in_micros\",\"ph\":\"M\",\"pid\":0,\"args\":{\"start_time_since_epoch_in_micros\":%lld}}",
             (long long)about->start_wall_us);
    buf_addf(out, ",\n{\"name\":\"ringmaster\",\"ph\":\"M\",\"pid\":0,\"args\":{\"rank\":%d,\"size\":%d,\"member\":", about->rank, about->size);
    buf_add_json_string(out, about->member);
    buf_add(out, ",\"job_uid\":");
    buf_add_json_string(out, about->job_uid);
    buf_add(out, "}}\n]");
}

static struct row *find_row(struct trace *t, const char *tensor, struct buf *out)
{
    struct row *row = namemap_get(&t->rows, tensor);

    if (row != NULL)
        return row;
    row = xcalloc(1, sizeof *row);
    row->pid = ++t->row_count;
    namemap_put(&t->rows, tensor, row);
    buf_addf(out, ",\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":", row->pid);
    buf_add_json_string(out, tensor);
    buf_add(out, "}}");
    return row;
}

static void end_all(struct trace *t, int64_t at_ns, struct buf *out)
{
    size_t at = 0;

    for (struct row *row; (row = namemap_each(&t->rows, &at)) != NULL;) {
        for (; row->open > 0; row->open--)
            buf_addf(out, ",\n{\"ph\":\"E\",\"ts\":%.3f,\"pid\":%d,\"tid\":0}", micros(t, at_ns), row->pid);
    }
}

static void add_mark(const struct trace *t, const char *name, int64_t at_ns, struct buf *out)
{
    buf_add(out, ",\n{\"name\":");
    buf_add_json_string(out, name);
    buf_addf(out, ",\"ph\":\"i\",\"s\":\"g\",\"ts\":%.3f,\"pid\":0,\"tid\":0}", micros(t, at_ns));
}

void trace_add(struct trace *t, const struct trace_event *event, struct buf *out)
{
    if (event->at_ns < t->about.start_mono_ns) /* of the recording before */
        return;
    if (event->kind == TRACE_MARK || event->kind == TRACE_RESET) {
        if (event->kind == TRACE_RESET)
            end_all(t, event->at_ns, out);
        add_mark(t, event->phase, event->at_ns, out);
        return;
    }
    struct row *row = find_row(t, event->tensor, out);
    double ts = micros(t, event->at_ns);
    if (event->kind == TRACE_BEGIN) {
        row->open++;
        buf_add(out, ",\n{\"name\":");
        buf_add_json_string(out, event->phase);
        buf_addf(out, ",\"ph\":\"B\",\"ts\":%.3f,\"pid\":%d,\"tid\":0}", ts, row->pid);
    } else if (event->kind == TRACE_READY) {
        buf_addf(out, ",\n{\"name\":\"%d\",\"ph\":\"i\",\"s\":\"p\",\"ts\":%.3f,\"pid\":%d,\"tid\":0}", event->rank, ts, row->pid);
    } else if (row->open > 0) { /* else it began before the recording */
        row->open--;
        buf_addf(out, ",\n{\"ph\":\"E\",\"ts\":%.3f,\"pid\":%d,\"tid\":0}", ts, row->pid);
    }
}

void trace_clock(const struct trace *t, int64_t offset_ns, int64_t error_ns, struct buf *out)
{
    (void)t;
    buf_addf(out, ",\n{\"name\":\"clock\",\"ph\":\"M\",\"pid\":0,\"args\":{\"offset_ns\":%lld,\"error_ns\":%lld}}", (long long)offset_ns,
             (long long)error_ns);
}

void trace_dropped(const struct trace *t, uint64_t count, int64_t at_ns, struct buf *out)
{
    char text[64];

    (void)snprintf(text, sizeof text, "%llu EVENTS DROPPED", (unsigned long long)count);
    add_mark(t, text, at_ns, out);
}

void trace_release(struct trace *t)
{
    size_t at = 0;

    for (struct row *row; (row = namemap_each(&t->rows, &at)) != NULL;)
        free(row);
    namemap_release(&t->rows);
}
