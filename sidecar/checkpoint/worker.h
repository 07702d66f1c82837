/*
 * worker.h — a thread that does blocking work for a loop, one job after the other.
 *
 * A job embeds struct worker_job. worker_run hands it over: work() runs on the thread, then done() on the loop, then
 * release() frees it. worker_free waits for the job in work; it and those behind it are released without done().
 */
#ifndef SIDECAR_CHECKPOINT_WORKER_H
#define SIDECAR_CHECKPOINT_WORKER_H

#include "base/loop.h"

struct worker;
struct worker_job {
    void (*work)(struct worker_job *job);
    void (*done)(struct worker_job *job);
    void (*release)(struct worker_job *job);
    struct worker_job *next;
};

MUST_CHECK int worker_new(struct loop *loop, const char *name /* at most 15 characters; kept */, struct worker **ret_worker, struct error *e);
void worker_run(struct worker *w, struct worker_job *job);
void worker_free(struct worker *w); /* NULL is fine */

#endif
