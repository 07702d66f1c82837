/*
 * controller.h — jobs, pods, Services and nodes in caches; keys in a queue; for each key a look at the job by reconcile, whose
 * plan is recorded and carried out. One thread, the loop's.
 *
 * A key comes into the queue by every change of its job, its pods, its Services, the node of one of its pods, or its coordinator's
 * report, and at the time a plan asked for. One look at a job at a time. Nothing is written without the lease.
 */
#ifndef OPERATOR_CONTROLLER_H
#define OPERATOR_CONTROLLER_H

#include "base/loop.h"
#include "job/report.h"
#include "kube/client.h"
#include "kube/elector.h"
#include "operator/authority.h"
#include "operator/metrics.h"
#include "operator/options.h"
#include "operator/outcomes.h"

struct controller;

struct controller_def {
    const struct options *options;
    struct kube_client *client;
    struct kube_elector *const *elector; /* *elector NULL: no election, always leading */
    const char *instance;               /* for Events: this process */
    const struct authority *authority;  /* for the jobs' Secrets; NULL: the channel is in clear */
    struct metrics *metrics;
    struct outcomes *outcomes;
    void (*synced)(void *ctx);          /* controller_synced from now on; not from within controller_new; may be NULL */
    void *ctx;
};

MUST_CHECK int controller_new(struct loop *l, const struct controller_def *def, struct controller **ret, struct error *e);
void controller_free(struct controller *c); /* NULL is fine; before its client */
void controller_lead(struct controller *c); /* the lease was acquired: start working */
void controller_rest(struct controller *c); /* no further look at any job is begun: for an orderly end */
bool controller_idle(const struct controller *c); /* nothing is under way */
bool controller_synced(const struct controller *c); /* every cache holds what the API server has */
void controller_measure(const struct controller *c, struct metrics *ret); /* gauges */
void controller_describe_jobs(const struct controller *c, struct buf *out); /* what the coordinators tell of each job (series.h) */

/* ---- coordinators (channel.h) ---- */

enum caller { CALLER_RIGHT, CALLER_WRONG, CALLER_LATER /* the job's key is not known yet; it is being asked for */ };
/* Is the one who shows this token (job/control.h) a sidecar of the job? */
enum caller controller_check_caller(struct controller *c, const char *ns, const char *name, const char *token);
/* A checked coordinator's newest report. False: there is no such job. */
bool controller_take_report(struct controller *c, const char *ns, const char *name, struct coordinator_report *report /* taken */);
/* A coordinator that was right is connected: what it is to be told is told (again). */
void controller_greet(struct controller *c, const struct kube_key *job);
/* How words reach a job's coordinator; false: it is not connected. */
typedef bool controller_say_fn(void *ctx, const struct kube_key *job, const char *text);
void controller_set_say(struct controller *c, controller_say_fn *say, void *ctx);

void controller_authority_changed(struct controller *c); /* the jobs' Secrets are looked at, and mended */

#endif
