/*
 * message.h — what members and the coordinator say to each other on the CONTROL channel (wire/peer.h), as structs and as the
 * JSON that travels. Pure. Decoders trust nothing: numbers are checked, texts are cut to their fields, lists are bounded.
 *
 *   JOIN      member → coordinator   struct join          who I am, what my launcher told me, what I can restore
 *   TRAINER   member → coordinator   struct trainer_view  the state of my process, whenever it changes
 *   RING      member → coordinator   struct ring_view     my engine's group has formed, or is lost
 *   PROGRESS  member → coordinator   struct progress_view
 *   FORM      coordinator → member   struct form          the round: who, where, from which step
 *   START     coordinator → member   struct start_word    run the command
 *   ABORT     coordinator → member   struct abort_word    the round is over: stop the process
 *   RELEASE   coordinator → member   {}                   all are done: leave
 *   LEAVE     coordinator → member   {"exit_code":n}      leave with this code; -1: the process's own
 *   COMMAND   coordinator → member   report.h's command
 *   HOSTS     coordinator → member   {"bits":n}           workers come or go: the program is asked to come to another round
 *   DUMP      coordinator → member   struct dump_word     write down what your process does
 *   DUMPED    member → coordinator   {}                   it is written, or cannot be
 *   BEAT      either way             {} or {"history":{...}} when the coordinator's history has changed outside a forming
 *
 * Fences travel as decimal strings: JSON numbers are doubles.
 */
#ifndef SUPERVISE_MESSAGE_H
#define SUPERVISE_MESSAGE_H

#include "base/json.h"
#include "job/report.h"
#include "sidecar/checkpoint/checkpoint.h"
#include "sidecar/ring/engine.h"
#include "wire/local.h"

#define ROUNDS_KEPT 16

struct trainer_view {
    enum process_state state;  /* LOST: no launcher is connected */
    uint64_t fence;            /* of the process that runs or ran last; 0 = none yet */
    int32_t pid, restarts;
    bool has_exit;             /* it has ended and somebody saw how */
    int32_t code, signal;      /* code as a shell says it */
    bool oom, not_started;
    bool stopped;              /* it ended because it was told to */
    bool after_loss;           /* its ring was lost before it ended: likely a victim */
    bool parked;               /* it runs, has left a round that was lost and waits for the next (elastic jobs) */
    bool terminating;          /* its launcher got SIGTERM: the pod is going away */
    int64_t age_ms;            /* how long ago it ended, by the sender's clock */
    int64_t started_ms;        /* Unix epoch */
    char reason[LOCAL_REASON_MAX];
    char tail[LOCAL_TAIL_MAX]; /* the last lines of its log */
};

struct progress_view {
    bool attached;
    bool listens;              /* the program goes into another round when the number of workers changes */
    bool saved;                /* nothing staged here is left to persist or commit */
    int64_t step, total_steps; /* -1 = unknown */
    bool has_loss; double loss;
    double step_ms;
    int64_t bytes_reduced, operations; double busbw_gbps, wait_ms;
    int64_t first_step_ms;
    int64_t reports;           /* that its clients made */
    int32_t cpu_percent;       /* of one core, by all its processes lately */
    int64_t written;           /* bytes to stderr */
    bool traced;               /* a debugger holds it */
    char metrics[1024];        /* a JSON object, or "" */
};

struct ring_view { uint64_t fence; bool formed, ok; double seconds; int32_t lost_rank; char text[256]; };

/* What must outlive the coordinator's process: every member keeps a copy and brings it back at JOIN. */
struct history {
    int32_t round;             /* highest number given out in this attempt */
    struct restart_counters counters;
    struct round_view rounds[ROUNDS_KEPT]; size_t round_count; /* that have ended; oldest first */
    int32_t workers;           /* that the ring is to have, by command; 0: as many as this sidecar's environment says */
    bool gave_up; char give_up_reason[64], give_up_message[256];
};

struct join {
    char member[PEER_MEMBER_MAX], host[256];
    int32_t port;
    uint64_t fence;            /* highest seen */
    struct trainer_view trainer;
    cJSON *holdings;           /* checkpoint_holdings; owned */
    struct history history;
};

struct form {
    uint64_t fence;
    bool alone;                /* the round is under way already: take the fence, form no ring */
    struct ring_member *members; int32_t size; /* by rank; owned */
    struct checkpoint_restore restore;
    struct history history;
};

struct dump_word { uint64_t fence; char name[64]; /* of the directory for it */ };

struct start_word { uint64_t fence; int32_t restarts; };
struct abort_word { uint64_t fence; int64_t grace_ms; bool stay; /* a process that can go on in the next round may */ char text[256]; };

void history_add(struct history *h, const struct round_view *round); /* the oldest falls out */
bool history_is_newer(const struct history *a, const struct history *b);

cJSON *trainer_encode(const struct trainer_view *t);
MUST_CHECK int trainer_decode(const cJSON *o, struct trainer_view *ret, struct error *e);
cJSON *progress_encode(const struct progress_view *p);
MUST_CHECK int progress_decode(const cJSON *o, struct progress_view *ret, struct error *e);
cJSON *ring_encode(const struct ring_view *r);
MUST_CHECK int ring_decode(const cJSON *o, struct ring_view *ret, struct error *e);
cJSON *history_encode(const struct history *h);
MUST_CHECK int history_decode(const cJSON *o, struct history *ret, struct error *e); /* absent: an empty one */
cJSON *join_encode(const struct join *j);
MUST_CHECK int join_decode(const cJSON *o, struct join *ret, struct error *e);
void join_release(struct join *j);
cJSON *form_encode(const struct form *f);
MUST_CHECK int form_decode(const cJSON *o, struct form *ret, struct error *e);
void form_release(struct form *f);
cJSON *dump_encode(const struct dump_word *w);
MUST_CHECK int dump_decode(const cJSON *o, struct dump_word *ret, struct error *e); /* its name is one that a directory can have */
cJSON *start_encode(const struct start_word *w);
MUST_CHECK int start_decode(const cJSON *o, struct start_word *ret, struct error *e);
cJSON *abort_encode(const struct abort_word *w);
MUST_CHECK int abort_decode(const cJSON *o, struct abort_word *ret, struct error *e);

#endif
