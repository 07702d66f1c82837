/*
 * metrics.h — what the operator counts of its own work, and its text for Prometheus; what became of the jobs is in outcomes.h. Pure.
 */
#ifndef OPERATOR_METRICS_H
#define OPERATOR_METRICS_H

#include "base/buf.h"
#include "job/job.h"
#include "kube/client.h"
#include "operator/histogram.h"

struct metrics {
    /* counters; after the write that they tell of */
    uint64_t pods_created, pods_deleted, pod_create_errors, status_writes, status_conflicts;
    struct histogram passes; /* of a look at a job, from the queue to the last reply */
    /* gauges */
    size_t phases[JOB_PHASES]; /* jobs in the cache, by the phase that their status tells */
    size_t pods, services, nodes, cache_bytes, queue_length, jobs_in_work, coordinators, states;
    size_t heap_bytes, heap_free_bytes; /* what the program holds of malloc's memory, and what lies free between that */
    bool leading, synced, job_metrics_left_out;
    struct kube_client_stats client;
};

void metrics_observe_pass(struct metrics *m, int64_t ms);
void metrics_format(const struct metrics *m, struct buf *out);

#endif
