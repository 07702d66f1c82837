/*
 * step.h — what the parts of the coordinator's core (coordinator.c, verdict.c) share while they work on one event. Not for
 * anybody else.
 */
#ifndef SUPERVISE_STEP_H
#define SUPERVISE_STEP_H

#include "sidecar/supervise/coordinator.h"

struct step {
    struct coordinator *c;
    const struct coordinator_now *now;
    struct coordinator_outputs *out;
};

/* coordinator.c */
struct coordinator_output *step_emit(struct step *s, enum coordinator_output_kind kind, int32_t member);
void step_enter(struct step *s, enum coordinator_phase phase, int64_t limit_ms);
void step_abort(struct step *s, int32_t member, const char *text); /* its process ends */
void step_regroup(struct step *s, int32_t member, const char *text); /* its process ends, or in an elastic job waits for the next round */
void step_leave(struct step *s, int32_t member);
void step_gather(struct step *s, int64_t delay_ms);
bool step_all_done(const struct coordinator *c);
bool step_is_ready(const struct coordinator_member *m); /* it is there, and nothing keeps it from the next round */

/* resize.c */
bool resize_is_possible(const struct coordinator *c);  /* else the number of workers is that of the pods */
void resize_want(struct coordinator *c, int32_t workers); /* changes places behind the ring alone */
bool resize_drops(const struct coordinator *c, int32_t member); /* it has no place in the next round */
bool resize_apply(struct step *s);                     /* between two rounds: the places of members change. True when they did */
void resize_look(struct step *s);                      /* after every event */

/* verdict.c */
void verdict_consider(struct step *s, const struct cause *cause);  /* a sign that the round is over */
void verdict_conclude(struct step *s);                             /* the first cause is known */
void verdict_alone(struct step *s, const struct cause *cause);     /* no other member is touched: nothing has to settle */
struct cause verdict_exit_cause(struct step *s, int32_t member);   /* what its trainer's end looks like */
void verdict_give_up(struct step *s, const char *reason, const char *message);
void verdict_explain_restart(struct step *s);                      /* once all have joined a coordinator that has just begun */

/* vigil.c */
void vigil_begin(struct step *s);                                  /* the round's processes start */
void vigil_started(struct step *s, int32_t member);                /* one is started alone */
void vigil_note(struct step *s, int32_t member);                   /* its progress was told */
void vigil_committed(struct step *s);
void vigil_dumped(struct step *s, int32_t member);
void vigil_tick(struct step *s);
int64_t vigil_deadline(const struct coordinator *c);
void vigil_init(struct coordinator *c);

#endif
