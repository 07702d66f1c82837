/*
 * trainer.h — the training process of this pod as its sidecar knows it: a state machine fed by the launcher's messages and by
 * the coordinator's wishes. Pure.
 *
 *   LOST ──hello──► WAITING ──start──► STARTING ──started──► RUNNING ──exit 0──► DONE
 *                      ▲                                        │  └──exit n──► FAILED
 *                      └──────── exit ──── STOPPING ◄──stop─────┘
 *   RUNNING ──parked──► RUNNING, waits for a round ──start──► RUNNING in the new one: no other process is needed
 *   any ──launcher gone──► LOST; a hello with a running process leads straight to RUNNING.
 */
#ifndef SUPERVISE_TRAINER_H
#define SUPERVISE_TRAINER_H

#include "sidecar/supervise/message.h"

enum trainer_event_kind {
    TRAINER_HELLO, TRAINER_GONE, TRAINER_STARTED, TRAINER_EXITED, TRAINER_SIGNALLED, /* from the launcher */
    TRAINER_START, TRAINER_STOP, TRAINER_LEAVE,                                      /* wanted */
    TRAINER_PARKED, TRAINER_UNPARKED,                                                /* its client waits for a round, or has gone */
};

struct trainer_event {
    enum trainer_event_kind kind;
    uint64_t fence;                               /* START */
    int32_t restarts;                             /* START */
    uint32_t grace_ms;                            /* STOP */
    int32_t code;                                 /* LEAVE */
    const struct local_launcher_hello *hello;
    const struct local_started *started;
    const struct local_exited *exited;
};

enum trainer_word { WORD_NONE, WORD_START, WORD_STOP, WORD_LEAVE, /* to be sent to the launcher */ WORD_ADMIT /* to the client that waits */ };

struct trainer_output {
    enum trainer_word word;
    uint64_t fence;
    uint32_t grace_ms;
    int32_t code;
    bool changed; /* the coordinator has to hear the view */
    bool ended;   /* a process has ended just now */
};

struct trainer {
    struct trainer_view view; /* age_ms and after_loss are filled in by trainer_view_at */
    bool leaving;
    uint64_t launched;        /* fence that the launcher knows the process by; view.fence is the round that it takes part in */
    int64_t ended_at_ms;      /* monotonic; of the last process */
    uint64_t lost_fence;      /* the ring of this fence is lost; set by the member */
    bool ended_after_loss;
};

#define TRAINER_INIT { .view = { .state = PROCESS_LOST } }

struct trainer_output trainer_step(struct trainer *t, const struct trainer_event *event, int64_t now_ms);
void trainer_ring_lost(struct trainer *t, uint64_t fence);
struct trainer_view trainer_view_at(const struct trainer *t, int64_t now_ms);
bool trainer_is_active(const struct trainer_view *v); /* a process runs or is about to */
bool trainer_is_busy(const struct trainer_view *v);   /* ... and is not one that waits for the next round */

#endif
