/*
 * hang.h — has the training come to a standstill, and who holds it up? Pure; vigil.c asks it for the coordinator.
 *
 * Two layers speak for each rank. Signs of training: a step, a report, an operation of the ring that ended, a committed checkpoint. Signs
 * of life: CPU time of its processes (more than a few per cent of one core), bytes that it wrote. The verdict needs both:
 *
 *   no sign of training for `quiet_ms`, and none of life either for half as long     → hang
 *   no sign of training for 3 times `quiet_ms`, busy as it may be (a spin)           → hang
 *
 * Until the first step of a round (or, where no steps are told, until operations have ended again and again) it is `first_ms` in place of
 * quiet_ms: imports, downloads and compilation have no steps.
 *
 * A rank that has shown no sign of training while others have is not judged: it may be one that reports nothing. Of the ranks that stand
 * still one is the culprit, whom the collective lacks or who is behind; the others wait for it, and the time of the verdict is the
 * culprit's: while it is busy (an evaluation on one rank) nothing is wrong before 3 times quiet_ms.
 *
 * A process that a debugger holds is never hung, nor are those who wait for it. Time in which the coordinator did not run itself does
 * not count (hang_excuse). Programs that use nothing of ours are told of, and ended only where the manifest sets the limit.
 */
#ifndef SUPERVISE_HANG_H
#define SUPERVISE_HANG_H

#include "sidecar/supervise/message.h"

#define HANG_BUSY_PERCENT 5  /* of one core */
#define HANG_PATIENCE 3      /* times the limit, for who is busy */
#define HANG_SMALL_MS 1000   /* a limit that is shorter is taken for this */

struct hang_rule {
    int64_t quiet_ms;   /* 0: never */
    int64_t first_ms;
    bool strict;        /* also for programs that never attached to their sidecars */
};

struct hang_signs { /* of one rank, in one round */
    bool judged;        /* a process of the round runs here */
    bool noted;         /* its sidecar has told something: what follows is counted from there */
    bool shown;         /* it has shown a sign of training */
    bool trained;       /* a first step, or several signs */
    bool attached;      /* it uses the library */
    bool traced;
    int32_t beats;      /* how often operations were seen to have ended */
    int64_t step, operations, reports, written; /* as last told */
    int64_t trained_ms; /* of its last sign of training, or when the round began */
    int64_t alive_ms;   /* of its last sign of any kind */
};

enum hang_verdict { HANG_NONE, HANG_SUSPECTED /* told of; not ended */, HANG_FOUND };

struct hang_found {
    enum hang_verdict verdict;
    int32_t rank;       /* who holds it up */
    int64_t quiet_ms;   /* for how long */
    bool started;       /* the round had come to its first step */
    bool busy;          /* it uses CPU or writes */
};

struct hang_rule hang_rule_of(const struct training_job *policy);
void hang_begin(struct hang_signs *s, int64_t now_ms);                                 /* its process starts */
void hang_note(struct hang_signs *s, const struct progress_view *p, int64_t now_ms);   /* what its sidecar tells */
void hang_trained(struct hang_signs *s, int64_t now_ms);                               /* a step of the job was committed */
void hang_excuse(struct hang_signs *s, int64_t pause_ms);
/* `lacking` is the rank that a stalled collective waits for, -1 = none is known. */
struct hang_found hang_look(const struct hang_signs *ranks, int32_t count, int32_t lacking, const struct hang_rule *rule, int64_t now_ms);
int64_t hang_interval_ms(const struct hang_rule *rule);                                /* between two looks; 0: never */

#endif
