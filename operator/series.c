#include "operator/series.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/mem.h"

void series_add(struct series *s, const char *ns, const char *name, const struct coordinator_report *report)
{
    if (s->count == s->cap) {
        s->cap = s->cap > 0 ? 2 * s->cap : 64;
        s->jobs = xrealloc(s->jobs, s->cap, sizeof *s->jobs);
    }
    s->jobs[s->count++] = (struct series_job){ .ns = ns, .name = name, .report = report };
}

void series_release(struct series *s)
{
    free(s->jobs);
    *s = (struct series)SERIES_INIT;
}

/* ---- figures; false: not known ---- */

typedef bool job_figure(const struct coordinator_report *r, double *ret);
typedef bool rank_figure(const struct member_report *m, double *ret);

static bool job_step(const struct coordinator_report *r, double *ret)
{
    int64_t step = -1;

    for (size_t i = 0; i < r->member_count; i++)
        step = r->members[i].rank >= 0 && r->members[i].step > step ? r->members[i].step : step;
    *ret = (double)step;
    return step >= 0;
}

static bool job_ring_size(const struct coordinator_report *r, double *ret)
{
    size_t ranks = 0;

    for (size_t i = 0; i < r->member_count; i++)
        ranks += r->members[i].rank >= 0;
    *ret = r->formed && r->self_test_ok ? (double)ranks : 0;
    return true;
}

static bool job_round(const struct coordinator_report *r, double *ret)
{
    *ret = r->round;
    return true;
}

static bool job_checkpoint_step(const struct coordinator_report *r, double *ret)
{
    *ret = (double)r->checkpoint_step;
    return r->checkpoint_step >= 0;
}

static bool job_checkpoint_time(const struct coordinator_report *r, double *ret)
{
    *ret = (double)r->checkpoint_ms / 1000.0;
    return r->checkpoint_step >= 0 && r->checkpoint_ms > 0;
}

static bool job_stalled(const struct coordinator_report *r, double *ret)
{
    *ret = r->stalled[0] != '\0';
    return true;
}

static bool rank_step_time(const struct member_report *m, double *ret)
{
    *ret = m->step_ms / 1000.0;
    return m->step_ms > 0;
}

static bool rank_wait_time(const struct member_report *m, double *ret)
{
    *ret = m->wait_ms / 1000.0;
    return true;
}

static bool rank_bytes(const struct member_report *m, double *ret)
{
    *ret = (double)m->bytes_reduced;
    return true;
}

static bool rank_operations(const struct member_report *m, double *ret)
{
    *ret = (double)m->operations;
    return true;
}

static bool rank_bus_bandwidth(const struct member_report *m, double *ret)
{
    *ret = m->busbw_gbps * 1e9;
    return m->busbw_gbps > 0;
}

static bool rank_restarts(const struct member_report *m, double *ret)
{
    *ret = m->restarts;
    return true;
}

static const struct { const char *type, *name, *help; job_figure *figure; } JOB_FIGURES[] = {
    { "gauge", "job_step", "The farthest step of its ranks.", job_step },
    { "gauge", "job_ring_size", "Ranks in the ring; 0 while it is not whole or has not passed its self-test.", job_ring_size },
    { "gauge", "job_round", "The round of this attempt; it rises with each restart in place.", job_round },
    { "gauge", "job_checkpoint_step", "The newest committed step.", job_checkpoint_step },
    { "gauge", "job_checkpoint_timestamp_seconds", "When that was committed, Unix time.", job_checkpoint_time },
    { "gauge", "job_stalled", "1 while a collective waits too long for some ranks.", job_stalled },
};

static const struct { const char *type, *name, *help; rank_figure *figure; } RANK_FIGURES[] = {
    { "gauge", "rank_step_seconds", "Median time of its last steps.", rank_step_time },
    { "counter", "rank_wait_seconds_total", "Time in collectives spent on waiting for other ranks, since its sidecar began.", rank_wait_time },
    { "counter", "rank_reduced_bytes_total", "Bytes of tensors that were reduced, since its sidecar began.", rank_bytes },
    { "counter", "rank_operations_total", "Collectives that were done, since its sidecar began.", rank_operations },
    { "gauge", "rank_bus_bandwidth_bytes_per_second", "Bus bandwidth of the all-reduces, as nccl-tests defines it.", rank_bus_bandwidth },
    { "counter", "rank_restarts_total", "Times that its process was started again in place.", rank_restarts },
};

static void add_ranks(const struct series_job *j, const char *name, rank_figure *figure, struct buf *out)
{
    double value;

    for (size_t i = 0; i < j->report->member_count; i++) {
        const struct member_report *m = &j->report->members[i];
        if (m->rank >= 0 && figure(m, &value))
            buf_addf(out, "ringmaster_%s{namespace=\"%s\",job=\"%s\",rank=\"%" PRId32 "\"} %.17g\n", name, j->ns, j->name, m->rank, value);
    }
}

void series_format(const struct series *s, struct buf *out)
{
    double value;

    for (size_t f = 0; f < COUNT(JOB_FIGURES); f++) {
        const char *name = JOB_FIGURES[f].name;
        buf_addf(out, "# HELP ringmaster_%s %s\n# TYPE ringmaster_%s %s\n", name, JOB_FIGURES[f].help, name, JOB_FIGURES[f].type);
        for (size_t i = 0; i < s->count; i++) {
            if (JOB_FIGURES[f].figure(s->jobs[i].report, &value))
                buf_addf(out, "ringmaster_%s{namespace=\"%s\",job=\"%s\"} %.17g\n", name, s->jobs[i].ns, s->jobs[i].name, value);
        }
    }
    for (size_t f = 0; f < COUNT(RANK_FIGURES); f++) {
        const char *name = RANK_FIGURES[f].name;
        buf_addf(out, "# HELP ringmaster_%s %s\n# TYPE ringmaster_%s %s\n", name, RANK_FIGURES[f].help, name, RANK_FIGURES[f].type);
        for (size_t i = 0; i < s->count; i++)
            add_ranks(&s->jobs[i], name, RANK_FIGURES[f].figure, out);
    }
}
