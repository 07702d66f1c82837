/*
 * queue.h — which objects to look at next. Pure, on virtual time. Not thread-safe. Cannot fail.
 *
 * A key is queued once however often it is added, the earliest time wins, and it is never handed out twice at the same time:
 * added while in work, it comes back after kube_queue_done(). Namespaces take turns, so that one with ten thousand objects does
 * not keep another's single one waiting; within a namespace first come, first served.
 */
#ifndef KUBE_QUEUE_H
#define KUBE_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kube/object.h"

struct kube_queue;

struct kube_queue_options {
    int64_t retry_base_ms; /* first retry after this; 0 = 200 */
    int64_t retry_max_ms;  /* 0 = 5 min */
    int64_t spacing_ms;    /* a key is handed out at most once in this time, so that bursts of events become one look */
    uint64_t seed;         /* jitter of retries: up to a fifth is taken off */
};

struct kube_queue *kube_queue_new(const struct kube_queue_options *options);
void kube_queue_free(struct kube_queue *q); /* NULL is fine */

/* `reason` is a static word for the log; that of the time which won is handed out. at_ms at or before now: at once. */
void kube_queue_add(struct kube_queue *q, const struct kube_key *key, const char *reason, int64_t at_ms);
bool kube_queue_take(struct kube_queue *q, int64_t now_ms, struct kube_key *ret_key, const char **ret_reason /* may be NULL */);
void kube_queue_done(struct kube_queue *q, const struct kube_key *key);                      /* of a key that was taken */
void kube_queue_retry(struct kube_queue *q, const struct kube_key *key, int64_t now_ms, int64_t at_least_ms); /* done + add later */
void kube_queue_forget(struct kube_queue *q, const struct kube_key *key);                    /* its failures are no longer counted */
uint32_t kube_queue_failures(const struct kube_queue *q, const struct kube_key *key);
int64_t kube_queue_next_due(const struct kube_queue *q); /* INT64_MAX when nothing waits; due already = a time in the past */
size_t kube_queue_length(const struct kube_queue *q);    /* waiting, ready or not */
size_t kube_queue_ready(const struct kube_queue *q);     /* those of them that were due at the last take */
size_t kube_queue_in_work(const struct kube_queue *q);

#endif
