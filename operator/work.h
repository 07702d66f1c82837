/*
 * work.h — the operator's inside: the controller's struct and one look at one job. controller.c has caches and queue, work.c the
 * order of a look, execute.c what a plan asks for, status.c what is written about a job, secret.c its key. Nobody else includes
 * it.
 *
 * A look: read the job, observe, reconcile; store the status if it changed; tell its events; when the plan says record_first look
 * again, else carry it out. Every step but the first waits for a reply, so that a look is a chain of callbacks that ends in
 * work_end, whatever goes wrong.
 */
#ifndef OPERATOR_WORK_H
#define OPERATOR_WORK_H

#include "kube/discovery.h"
#include "kube/event.h"
#include "kube/informer.h"
#include "kube/queue.h"
#include "operator/controller.h"
#include "operator/observe.h"

#define CHECKS_KEPT 256

/* One namespace, or all of them in one. */
struct scope {
    struct controller *controller;
    const char *ns; /* NULL: all */
    struct kube_informer *jobs, *pods, *services;
    struct kube_informer *groups[GROUP_RESOURCES]; /* NULL: not served */
};

struct controller {
    struct loop *loop;
    struct controller_def def;
    struct scope *scopes; size_t scope_count;
    struct kube_informer *nodes; /* NULL: not watched */
    struct kube_discovery *discovery;
    struct gang_view gang;       /* what the cluster has; of no job */
    struct { uint64_t hash; int64_t until_ms; } accepted[CHECKS_KEPT]; /* specs whose pods the API server took a moment ago */
    int32_t node_count;          /* that take pods; 0 = unknown */
    struct kube_queue *queue;
    struct loop_timer *timer;    /* of the queue */
    struct state_table *states;
    struct kube_recorder *recorder;
    struct work *works;          /* all that is under way */
    struct work *spares;         /* memory for the next ones: to free so large a block makes malloc tidy up each time */
    size_t spare_count;
    controller_say_fn *say; void *say_ctx; /* NULL: there is no channel */
    uint64_t authority_generation; /* counts the authorities that this process has seen */
    bool synced, leading;
    int64_t leading_from_ms;     /* wall clock */
};

/* What a plan asks for, a row a request. */
struct item {
    enum action_kind kind;
    enum job_role role;
    int32_t index, attempt;
    size_t number; /* of the claim; how many pods */
    const struct action *action;
};

struct work {
    struct controller *c;
    struct scope *scope;
    struct kube_key key;
    struct job_state *state;
    struct work *previous, *next;
    int64_t begun_ms;
    int passes;

    cJSON *object;              /* the job as it was read, or as we have written it since */
    cJSON *sent;                /* the status that is on its way */
    struct training_job *job;
    struct job_status *status;  /* as stored; points to the next one */
    struct job_status stored;
    char version[KUBE_VERSION_MAX];
    struct observed seen;
    struct plan plan; bool has_plan;

    struct item *items; size_t item_count, item_cap, item_next, checks, barrier; /* those before checks are done first, then those before the barrier */
    size_t outstanding, window, created;
    bool stopped;               /* no further request of this look */
    bool prepared;              /* what stands before the barrier is done */
    bool again;                 /* what was learnt is to be looked at at once */

    uint64_t made_generation;   /* of the authority in the Secret that is being made; 0 = none */
    char *said;                 /* why the job cannot be read; NULL = it can */
    bool retry;                 /* something went wrong on the way */
    int64_t retry_after_ms;
    int64_t requeue_at_ms;      /* wall clock; 0 = when something changes */
};

/* controller.c */
bool controller_may_write(const struct controller *c); /* the fence: asked before every write */
void controller_wake(struct controller *c);            /* looks at the queue in the loop's next turn */
struct scope *controller_scope(struct controller *c, const char *ns); /* NULL: not ours */
void controller_add(struct controller *c, const struct kube_key *key, const char *reason, int64_t delay_ms);

/* work.c */
void work_begin(struct controller *c, const struct kube_key *key, const char *reason);
void work_step(struct work *w);                        /* observe, reconcile, go on from there */
void work_end(struct work *w);
void work_free(struct work *w);
void work_free_spares(struct controller *c);
/* Notes that a request failed: the look is repeated later. */
void work_fail(struct work *w, const char *what, const struct kube_reply *reply);

/* status.c */
void status_store(struct work *w);                     /* plan.status; goes on with work_step or execute_begin */
void status_store_invalid(struct work *w, const char *why); /* of a job that cannot be read; ends the look */

/* controller.c */
const struct group_resource *controller_group(const struct controller *c, enum gang_kind kind); /* as it is served, or NULL */

/* One request of a look and what it is about. */
struct step {
    struct work *work;
    struct item item;
    const struct kube_resource *resource;
    char name[KUBE_NAME_MAX];
};
/* execute.c: for those who send requests of their own. */
struct step *step_new(struct work *w, const struct item *item, const struct kube_resource *resource, const char *name);
/* `done` gets the step. It goes with the client when that is freed before. */
MUST_CHECK int step_send(struct step *s, struct kube_request *r, kube_reply_fn *done, struct error *e);
void step_done(struct step *s, bool well); /* frees it; the look goes on, or stops */
void step_free(struct step *s);            /* of a request that was not sent */
cJSON *execute_pod(const struct work *w, const struct item *item, enum gang_kind gang); /* as it is created; owned */

/* check.c */
bool check_is_known(const struct work *w);   /* pods of just this spec were accepted in this namespace a moment ago */
void check_note_accepted(struct work *w);
/* False: the request could not be made. So the next ones. */
bool check_pod(struct work *w, const struct item *item);

/* claims.c */
bool claims_trim(struct work *w, const struct item *item);

/* execute.c */
void execute_begin(struct work *w);                    /* ends the look */
void execute_pump(struct work *w);
void execute_refused(struct work *w, const char *what, const struct kube_reply *reply); /* a creation was */

/* secret.c: sends the request for the key Secret; its reply calls execute_pump. False: it could not be sent. */
bool secret_create(struct work *w);
void secret_refresh(struct work *w);                   /* a job at work: its Secret holds the present authority, or soon will */
void secret_fetch(struct controller *c, struct job_state *s); /* reads the key of a job that was there before us */

#endif
