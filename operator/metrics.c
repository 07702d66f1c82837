#include "operator/metrics.h"

#include "base/mem.h"

static const double SECONDS[HISTOGRAM_BOUNDS] = { 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5, 30 };

void metrics_observe_pass(struct metrics *m, int64_t ms)
{
    histogram_observe(&m->passes, SECONDS, (double)ms / 1000.0);
}

static void add(struct buf *out, const char *type, const char *name, const char *help, double value)
{
    buf_addf(out, "# HELP ringmaster_%s %s\n# TYPE ringmaster_%s %s\nringmaster_%s %.17g\n", name, help, name, type, name, value);
}

static void add_phases(const struct metrics *m, struct buf *out)
{
    buf_add(out, "# HELP ringmaster_jobs Jobs that there are.\n# TYPE ringmaster_jobs gauge\n");
    for (enum job_phase p = 0; p < JOB_PHASES; p++)
        buf_addf(out, "ringmaster_jobs{phase=\"%s\"} %zu\n", phase_name(p), m->phases[p]);
}

void metrics_format(const struct metrics *m, struct buf *out)
{
    const struct { const char *type, *name, *help; double value; } rows[] = {
        { "counter", "pods_created_total", "Pods that were created.", (double)m->pods_created },
        { "counter", "pods_deleted_total", "Pods whose deletion was asked for.", (double)m->pods_deleted },
        { "counter", "pod_create_errors_total", "Creations of pods that were refused.", (double)m->pod_create_errors },
        { "counter", "status_writes_total", "Writes of a job's status.", (double)m->status_writes },
        { "counter", "status_conflicts_total", "Writes of a status that came too late.", (double)m->status_conflicts },
        { "counter", "api_requests_total", "Answers of the API server.", (double)m->client.requests },
        { "counter", "api_errors_total", "Answers with an error among them.", (double)m->client.errors },
        { "counter", "api_throttled_total", "Answers that asked for fewer requests (429, 503).", (double)m->client.throttled },
        { "counter", "api_received_bytes_total", "Bytes received from the API server.", (double)m->client.bytes_in },
        { "gauge", "api_requests_in_flight", "Requests on their way.", (double)m->client.in_flight },
        { "gauge", "api_requests_waiting", "Requests that wait for the others.", (double)m->client.waiting },
        { "gauge", "pods", "Pods in the cache.", (double)m->pods },
        { "gauge", "nodes", "Nodes that take pods.", (double)m->nodes },
        { "gauge", "cache_bytes", "Memory of the caches' tables.", (double)m->cache_bytes },
        { "gauge", "heap_bytes", "Memory that the program has asked malloc for and holds.", (double)m->heap_bytes },
        { "gauge", "heap_free_bytes", "Memory that malloc keeps beside it.", (double)m->heap_free_bytes },
        { "gauge", "jobs_remembered", "Jobs that something is known of beside the caches.", (double)m->states },
        { "gauge", "queue_depth", "Jobs that wait for a look, due or not.", (double)m->queue_length },
        { "gauge", "jobs_in_work", "Jobs that are being looked at.", (double)m->jobs_in_work },
        { "gauge", "coordinators", "Coordinators that are connected.", (double)m->coordinators },
        { "gauge", "job_metrics_left_out", "1 while the figures of single jobs are too many to be shown.", m->job_metrics_left_out ? 1 : 0 },
        { "gauge", "leader", "1 while this process leads.", m->leading ? 1 : 0 },
        { "gauge", "synced", "1 once the caches hold what the API server has.", m->synced ? 1 : 0 },
    };

    for (size_t i = 0; i < COUNT(rows); i++)
        add(out, rows[i].type, rows[i].name, rows[i].help, rows[i].value);
    add_phases(m, out);
    buf_add(out, "# HELP ringmaster_reconcile_duration_seconds From the queue to the last reply, for one look at a job.\n"
                 "# TYPE ringmaster_reconcile_duration_seconds histogram\n");
    histogram_format(&m->passes, SECONDS, "ringmaster_reconcile_duration_seconds", "", out);
}
