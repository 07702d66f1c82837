/*
 * report.h — what the coordinator tells the operator or the local runner, and what it is told. JSON texts; on a cluster they
 * are WebSocket messages, on one machine lines on a unix socket. Pure encode/decode, bounded, fuzzed.
 *
 * Up, {"type":"state",...}: everything, at most REPORT_MIN_INTERVAL_MS apart unless something of weight changed (a process
 * ended, a round formed, a step was committed, the job's processes are done).
 * Down, {"type":"command","command":"stop","grace_ms":n}, {...,"command":"checkpoint"} or {...,"command":"resize","workers":n}.
 */
#ifndef JOB_REPORT_H
#define JOB_REPORT_H

#include "job/reconcile.h"

#define REPORT_MAX_MEMBERS 1024
#define REPORT_MIN_INTERVAL_MS 200
#define REPORT_STALLED_MAX 320

enum process_state { PROCESS_WAITING, PROCESS_STARTING, PROCESS_RUNNING, PROCESS_STOPPING, PROCESS_DONE /* code 0, held */, PROCESS_FAILED, PROCESS_LOST };
const char *process_state_name(enum process_state s);

struct member_report {
    char member[80];              /* "worker-1" */
    int32_t rank;                 /* -1: not in the ring */
    enum process_state state;
    int32_t pid;                  /* of the training process in its own namespace; 0 = none */
    int32_t restarts;             /* of this process, in place */
    bool attached;                /* a client library is connected */
    bool listens;                 /* ... and its program goes into another round when the number of workers changes */
    int64_t step, total_steps;    /* -1 = unknown */
    bool has_loss; double loss;
    double step_ms;               /* median of the last steps; 0 = unknown */
    int64_t bytes_reduced, operations; double busbw_gbps, wait_ms;
    char metrics[1024];           /* JSON object text as the client reported: "accuracy", "weights_hash", ... */
    int64_t started_ms, first_step_ms; /* of the running process, Unix epoch; 0 = not yet */
};

struct coordinator_report {
    char job_uid[64], coordinator[80];
    int32_t attempt, round;
    bool formed, self_test_ok; int64_t formed_ms; double form_seconds;
    struct restart_counters counters;
    struct round_view *rounds; size_t round_count;
    struct member_report *members; size_t member_count;
    int64_t checkpoint_step, checkpoint_ms; char checkpoint_uri[512]; /* committed; step -1 = none */
    int64_t resume_step;                                              /* of this round; -1 = from scratch */
    char stalled[REPORT_STALLED_MAX]; /* a collective that waits too long, for which ranks; "" = none */
    int32_t workers;              /* that the ring has, or is to have when its members come to it; 0 = not told */
    bool skipped; int64_t skipped_step; /* a checkpoint that the job died of again and again was passed over for an older one */
    char suspected[256];          /* a rank that stands still, of a program that is not ended for it; "" = none */
    bool has_handed; struct failure handed; /* why a pod ends that the coordinator has told to: its exit code does not say that it hung */
    bool over;                    /* every rank is done and released: no round will end any more */
    bool gave_up; char give_up_reason[64]; char give_up_message[256];
    int64_t sent_ms;
};

char *report_encode(const struct coordinator_report *r);
MUST_CHECK int report_decode(const char *text, size_t len, struct coordinator_report *ret_report, struct error *e);
void report_release(struct coordinator_report *r);

/* What a coordinator leaves behind in its container's termination message, for an operator that could not hear it: rounds and
 * counters, without members, in about REPORT_LAST_WORD_BYTES (a kubelet gives the containers of a pod 12 KiB together); of more
 * rounds the newest, whose counters say how many there were. report_decode reads it. NULL: nothing has happened. Owned. */
#define REPORT_LAST_WORD_BYTES 2000
char *report_last_word(const struct coordinator_report *r);
/* `a` tells of something that `b` (may be NULL) does not know. */
bool report_is_ahead(const struct coordinator_report *a, const struct coordinator_report *b);

/* `number`: grace_ms of STOP, workers of RESIZE; else 0. RESIZE: the ring of an elastic job is to have so many workers. It takes effect
 * in a round of its own, as soon as the newcomers are there and the others' programs come to it. */
enum report_command { COMMAND_STOP, COMMAND_CHECKPOINT, COMMAND_RESIZE };
const char *report_command_name(enum report_command command);
char *report_command_encode(enum report_command command, int64_t number);
MUST_CHECK int report_command_decode(const char *text, size_t len, enum report_command *ret_command, int64_t *ret_number, struct error *e);

#endif
