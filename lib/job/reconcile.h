/*
 * reconcile.h — everything that the operator and the local runner decide, in one function without I/O.
 *
 * plan = reconcile(job, status, observed, now). Same inputs, same plan. It cannot fail: a spec that cannot run gives a plan
 * whose status says so. After a plan has been carried out, the next plan for what is then observed is empty.
 *
 * A failed pod is decided about once: either attempt is raised, which makes every pod of before stale, or the pod's uid is in
 * status.failures and the pod alone is replaced. All pods of an attempt that were once there are expected to stay (condition
 * PodsReady, which falls only by a decision): one that vanishes after that is a failure, before that it is simply created.
 *
 * Decide, record, then act: a decision that spends budget or ends the job appears in plan.status with no action that
 * touches pods in the same plan ("write-ahead": plan.record_first); the shell stores the status, then calls again.
 * Terminal states are final: no pod is ever created for a job whose phase is Succeeded or Failed.
 */
#ifndef JOB_RECONCILE_H
#define JOB_RECONCILE_H

#include "job/gang.h"
#include "job/job.h"
#include "job/restart.h"

enum pod_phase { POD_PENDING, POD_RUNNING, POD_SUCCEEDED, POD_FAILED, POD_UNKNOWN };

/* ready: what has to be up before the group can start is (containers ready; with the local runner: both processes live).
 * deleting: its end was asked for, by whomever. uid is never empty and never used twice. */
struct pod_view {
    enum job_role role; int32_t index, attempt;
    enum pod_phase phase;
    bool scheduled, ready, deleting, node_lost;
    bool speaks;                               /* its sidecar runs: what it has to tell may still come */
    bool gated;                                /* our scheduling gate still holds it back */
    bool has_exit; int32_t exit_code, signal;  /* of the main container */
    char reason[64], message[1024];            /* "OOMKilled", "ImagePullBackOff", ...; log tail or system message */
    char node[128], uid[64];
    int64_t created_ms, started_ms, finished_ms;
};

/* A round that has ended, by an in-place restart that the coordinator carried out; counters (after this failure) are already
 * decided there by restart_decide and are folded into status by the reconciler, once per (attempt, round). A give-up is not
 * listed: the pod fails then and the reconciler comes to the same verdict. `round` is the one that ended. */
struct round_view { int32_t attempt, round; struct failure cause; struct restart_counters counters; };

struct coordinator_view {
    bool known;                        /* some coordinator has reported for this job */
    int32_t attempt, round;
    const struct round_view *rounds; size_t round_count; /* oldest first */
    int32_t members_ready;             /* processes that run */
    int32_t clients;                   /* ranks whose process has the client library attached: they can be asked to save */
    bool group_formed;                 /* ring formed, self-test right, processes started */
    char stalled[320];                 /* a collective that waits for ranks that have not sent it; "" = none */
    int32_t workers;                   /* in the ring, or the last one; 0 = not known */
    int32_t workers_wanted;            /* that the coordinator makes the ring of next; 0 = it cannot change their number */
    bool listens;                      /* the program of every rank goes into another round when their number changes */
    bool skipped; int64_t skipped_step, resume_step; /* a checkpoint was passed over for an older one, and that one */
    const char *suspected;             /* who stands still, so that it may hang; "" or NULL = nobody */
    const struct failure *handed;      /* why the coordinator ended a pod that hung; NULL: it did not */
    bool over;                         /* it has told the end of those whose end is the job's, and so everything before that */
    /* Newest values of status's sections of the same name. */
    struct job_status latest;          /* only progress, checkpoint and ring are read */
};

struct observed {
    const struct pod_view *pods; size_t pod_count;
    struct coordinator_view coordinator;
    bool has_service, has_secret;      /* the local runner has both at all times */
    /* What a cluster alone has; zero: nothing is missing. */
    struct {
        bool network_policy, claims;   /* not there yet, or not known to be */
        bool trim;                     /* claims of replicas that are no more were not looked for since the last change of size */
        bool pod_check;                /* no pod of this attempt was shown to the API server yet */
    } lacks;
    char pod_refused[512];             /* what the API server found wrong with the pod it was shown: it will never take it; "" = nothing */
    struct gang_view gang;
    char create_error[512];            /* what the last refused creation of a pod said ("exceeded quota: ..."); "" = none */
    int64_t listens_from_ms;           /* since when coordinators can be heard here; 0 = always, or there is no channel */
    int32_t node_count;                /* nodes that could take a pod, for avoidNodes.maxPercent; 0 = unknown */
};

enum action_kind {
    ACTION_CREATE_SECRET, ACTION_CREATE_SERVICE, ACTION_CREATE_POD, ACTION_DELETE_POD, ACTION_FORCE_DELETE_POD, ACTION_DELETE_JOB,
    ACTION_CREATE_NETWORK_POLICY,
    ACTION_CREATE_CLAIMS,              /* those that are wanted and not there, of every replica */
    ACTION_TRIM_CLAIMS,                /* delete those of replicas that are no more */
    ACTION_CHECK_PODS,                 /* dry run: one pod of each role; no pod is created when one is refused */
    ACTION_CREATE_GROUP, ACTION_UPDATE_GROUP, ACTION_DELETE_GROUP, /* of status.gang's kind */
    ACTION_UNGATE_POD,
    ACTION_DELETE_PODS,                /* all of an attempt at once: made by plan_join_deletions alone */
};
const char *action_name(enum action_kind kind);

struct action {
    enum action_kind kind;
    enum job_role role; int32_t index, attempt; /* pods */
    char uid[64];                               /* of the pod to delete */
    const char *reason;                         /* static: why, for events and logs */
};

struct event { bool warning; const char *reason; char message[512]; }; /* told to the user after the status is stored */

struct plan {
    struct action *actions; size_t action_count, action_cap;
    struct event *events; size_t event_count, event_cap;
    struct job_status status;     /* to be stored when status_changed */
    bool status_changed;
    bool record_first;            /* store status, do nothing else, call again at once */
    int64_t requeue_at_ms;        /* 0 = wait for a change */
};

void reconcile(const struct training_job *job, const struct job_status *status, const struct observed *seen, int64_t now_ms,
               struct plan *ret_plan);
/* Where a plan deletes every pod there is of an attempt, from `least` to `most` of them, one action takes their place: only for
 * attempts of which no pod is ever created again, so that no other pod can be met. */
void plan_join_deletions(struct plan *p, const struct observed *seen, size_t least, size_t most);
void plan_release(struct plan *p);
/* How many workers the coordinator is to be told to make the ring of; 0: nothing has to be told. */
int32_t resize_is_wanted(const struct training_job *job, const struct job_status *status, const struct coordinator_view *coordinator);
/* The coordinator is to be told to save, until the status says otherwise. */
bool checkpoint_is_wanted(const struct training_job *job, const struct job_status *status);
char *plan_format(const struct plan *p); /* one action per line, then "status ..." and "requeue ..."; owned; what tests compare */

#endif
