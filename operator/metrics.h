/*
 * metrics.h — what the operator counts, and its text for Prometheus. Pure.
 */
#ifndef OPERATOR_METRICS_H
#define OPERATOR_METRICS_H

#include "base/buf.h"
#include "job/job.h"
#include "kube/client.h"

#define METRICS_BUCKETS 12

struct metrics {
    /* counters; after the write that they tell of */
    uint64_t jobs_created, jobs_succeeded, jobs_failed, jobs_restarted, jobs_suspended;
    uint64_t pods_created, pods_deleted, pod_create_errors, status_writes, status_conflicts, passes, invalid_jobs;
    uint64_t pass_buckets[METRICS_BUCKETS]; /* of a look at a job, from the queue to the last reply; not cumulative */
    double pass_seconds;
    /* gauges */
    size_t jobs, pods, services, nodes, cache_bytes, queue_length, jobs_in_work, coordinators, states;
    size_t heap_bytes, heap_free_bytes; /* what the program holds of malloc's memory, and what lies free between that */
    bool leading, synced;
    struct kube_client_stats client;
};

void metrics_observe_pass(struct metrics *m, int64_t ms);
void metrics_format(const struct metrics *m, struct buf *out);

#endif
