/*
 * coordinator.h — what rank 0's sidecar decides for the whole job: when a round forms, starts and ends, what was the first
 * cause of its end, and what follows. The order of things is in docs/internals/processes.md.
 *
 * Pure: coordinator_step(state, event, now) → outputs that hub.c carries out. No clock, no I/O; tests run on virtual time.
 * The same events in the same order give the same outputs.
 */
#ifndef SUPERVISE_COORDINATOR_H
#define SUPERVISE_COORDINATOR_H

#include "base/buf.h"
#include "sidecar/supervise/hang.h"
#include "sidecar/supervise/message.h"

#define SETTLE_DIRECT_MS 30     /* after an end that explains itself: others that ended at the same moment may have been first */
#define SETTLE_INDIRECT_MS 300  /* after the sign of a loss alone: its cause may be on its way */
#define SETTLE_LEFT_MS 3000    /* after the loss of a training process: how it ended is on its way */
#define STOP_GRACE_MS 2000      /* SIGTERM to SIGKILL, at ABORT */
#define SAVE_LIMIT_MS 60000     /* longest wait for the last checkpoint before RELEASE */
#define GROW_WAIT_MS 10000      /* for the rest of several newcomers, once the first is there */

enum coordinator_phase {
    COORDINATOR_GATHER,   /* until every member is there and none runs a process */
    COORDINATOR_CLAIM,    /* the checkpoint engine agrees on the step to restore */
    COORDINATOR_FORM,     /* until every ring member's engine has formed */
    COORDINATOR_RUN,
    COORDINATOR_SETTLE,   /* the round has ended; looking for the first cause */
    COORDINATOR_SAVE,     /* all are done; the last checkpoint is being committed */
    COORDINATOR_OVER,     /* released */
    COORDINATOR_GAVE_UP,  /* the member whose process failed leaves with its code; the reconciler ends the job */
    COORDINATOR_HANDED,   /* a pod has to be made anew: the reconciler does it */
    COORDINATOR_STOPPED,  /* by command */
    COORDINATOR_STALE,    /* a newer attempt is at work */
};
const char *coordinator_phase_name(enum coordinator_phase phase);

struct coordinator_member {
    char name[PEER_MEMBER_MAX], host[256];
    enum job_role role;
    int32_t index, rank, port;
    bool joined, formed, released, ignored; /* ignored: failed, and the job goes on without it */
    bool outside;                     /* a worker that has no place in the ring: about to come, or to go; behind the ring, rank -1 */
    cJSON *holdings;
    struct trainer_view trainer;
    struct progress_view progress;
    struct hang_signs signs;
    bool dumping;                     /* it was asked to write down what its process does, and has not yet */
    int64_t restart_at_ms;            /* alone; 0 = not wanted */
    bool start_wanted;                /* its time had come while it was not there */
};

enum cause_kind { CAUSE_NONE, CAUSE_EXIT, CAUSE_LAUNCHER_LOST, CAUSE_MEMBER_LOST, CAUSE_RING_LOST, CAUSE_HANG };

struct cause {
    enum cause_kind kind;
    int32_t member;
    bool direct;                      /* explains itself; else a consequence is likely */
    bool left;                        /* RING_LOST: by the member's process: its end will explain it */
    int64_t at_ms;
    char text[256];
};

struct dump { int32_t member; /* that hangs; -1 = none is under way */ int64_t until_ms; char name[64]; struct cause cause; };

struct coordinator {
    const struct training_job *policy; /* kept */
    char job[JOB_NAME_MAX + 1], job_uid[PEER_UID_MAX];
    int32_t attempt, world, count;
    bool group;                       /* job_restarts_as_group */
    int64_t form_timeout_ms;
    struct coordinator_member *members; /* by rank, then those outside the ring */
    uint32_t roster;                  /* changes whenever members get other places */
    int32_t workers;                  /* that the ring has or is to have */
    uint32_t hosts;                   /* what the programs of this round were told of that: bits of wire/local.h */
    int64_t grow_at_ms;               /* until when more newcomers are waited for; 0 = none are */

    enum coordinator_phase phase;
    uint64_t fence;                   /* of the round that forms, runs or ran last; 0 = none in this process's life */
    struct history history;
    int32_t seen_round;               /* highest that any member has seen */
    struct cause cause;
    bool end_is_due;                  /* SETTLE: a process has left the ring, and its end was not told yet */
    int32_t culprit;                  /* GAVE_UP, HANDED: whose pod ends; -1 = none */
    bool skips_newest;                /* of the claim under way: the job dies of its newest checkpoint */
    int32_t skipped_at;               /* history.counters.crashes when that was done last */
    int64_t skipped_step;             /* passed over, and nothing was committed since; -1 = none */
    bool claiming;                    /* a claim is under way; one at a time */
    int64_t deadline_ms;              /* of the phase; 0 = none */
    int64_t gather_from_ms;           /* back-off before the next round */
    int64_t form_backoff_ms;
    struct checkpoint_restore restore;
    bool self_test_ok; double form_seconds; int64_t formed_wall_ms;
    int64_t committed_step, committed_wall_ms; char committed_uri[512];
    struct hang_rule hang_rule;
    int32_t lacking;                  /* the rank that the stalled collective waits for; -1 = none */
    int64_t looked_ms, look_at_ms;    /* for signs of training; 0 = never */
    struct dump dump;
    char suspected[256];               /* a standstill that does not end the round; "" = none */
    char evidence_dir[192];           /* where members write what their processes do; "" = nowhere */
    char evidence[256];               /* the newest of it */
    bool has_handed; struct failure handed; /* why a pod that ends is ended: its exit code does not say that it hung */
    char stalled[REPORT_STALLED_MAX]; /* of the round that runs; "" = nothing is */
    int64_t wall_ms;                  /* of the newest event */
    bool progressed;                  /* a step was committed since the last failure */
    int64_t failed_at_step;           /* highest step before the last failure, -1 = none: for lost_steps */
};

enum coordinator_event_kind {
    EVENT_JOIN, EVENT_LOST, EVENT_TRAINER, EVENT_RING, EVENT_PROGRESS, EVENT_CLAIMED, EVENT_COMMITTED, EVENT_STALLED, EVENT_DUMPED,
    EVENT_COMMAND, EVENT_TICK,
};

struct coordinator_event {
    enum coordinator_event_kind kind;
    int32_t member;
    struct join *join;                /* holdings are taken */
    const struct trainer_view *trainer;
    const struct ring_view *ring;
    const struct progress_view *progress;
    const char *text;                 /* LOST: why; COMMITTED: uri; STALLED: what waits for `member` (a rank, -1: unknown), "": nothing any more */
    int64_t step;                     /* COMMITTED */
    const struct checkpoint_restore *restore; /* CLAIMED */
    const struct error *why;          /* CLAIMED: NULL = well */
    uint64_t newest_epoch;            /* CLAIMED */
    enum report_command command;
    int64_t number;                   /* COMMAND: report.h */
};

struct coordinator_now { int64_t mono_ms, wall_ms; };

enum coordinator_output_kind {
    OUTPUT_CLAIM,    /* checkpoint_claim(fence) with the ring members' holdings */
    OUTPUT_FORM,     /* to one member (alone), or to all (member -1) */
    OUTPUT_START, OUTPUT_ABORT, OUTPUT_RELEASE, OUTPUT_LEAVE, OUTPUT_COMMAND, /* to one member, or to all */
    OUTPUT_HOSTS,    /* to all of the ring: the programs are to come to another round */
    OUTPUT_DUMP,     /* to one member: write down what your process does, in a directory named by `text` */
    OUTPUT_HISTORY,  /* to all: it has changed outside a forming */
    OUTPUT_REPORT,   /* something of weight changed: report at once */
};

struct coordinator_output {
    enum coordinator_output_kind kind;
    int32_t member;      /* -1: all that have joined */
    int32_t exit_code;   /* LEAVE */
    int64_t grace_ms;    /* ABORT, COMMAND */
    bool stay;           /* ABORT: another round follows, and processes that can may go on in it */
    enum report_command command;
    uint32_t hosts;      /* HOSTS: bits of wire/local.h */
    char text[256];      /* ABORT: why, for the people who read the trainers' errors; DUMP */
};

struct coordinator_outputs { struct coordinator_output *items; size_t count, cap; };

/* `members` are the names in the order of RINGMASTER_MEMBERS; those of chief, master and worker form the ring. */
MUST_CHECK int coordinator_init(struct coordinator *c, const struct training_job *policy, const char *job, const char *job_uid,
                                int32_t attempt, const char *const *members, size_t count,
                                const struct restart_counters *counters, struct error *e);
void coordinator_release(struct coordinator *c);
int32_t coordinator_find(const struct coordinator *c, const char *member); /* -1: not of this job */

/* Appends to *outputs. */
void coordinator_step(struct coordinator *c, const struct coordinator_event *event, const struct coordinator_now *now,
                      struct coordinator_outputs *outputs);
int64_t coordinator_deadline(const struct coordinator *c); /* when to send the next TICK, monotonic; INT64_MAX = never */
void outputs_release(struct coordinator_outputs *o);

/* The whole state as the reconciler reads it. Its lists are owned by the caller (report_release). */
void coordinator_report(const struct coordinator *c, const struct coordinator_now *now, struct coordinator_report *ret);

/* Who waits for whom: a table for a person, while a dump is under way. */
void coordinator_describe_ring(const struct coordinator *c, const struct coordinator_now *now, struct buf *out);

/* "worker-3" → role and index. */
bool member_parse(const char *name, enum job_role *ret_role, int32_t *ret_index);

/* cause.c: which sign was first, and what it means for restart_decide. */
bool cause_is_better(const struct cause *a, const struct cause *b, const struct coordinator *c); /* a rather than b */
void cause_event(const struct coordinator *c, const struct cause *cause, struct failure_event *ret_event, char ret_text[1024]);
void cause_failure(const struct coordinator *c, const struct cause *cause, const struct restart_decision *decision,
                   int64_t wall_ms, struct failure *ret_failure);

#endif
