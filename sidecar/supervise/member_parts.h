/*
 * member_parts.h — what member.c (connection, process, engine, checkpoints) and member_word.c (what the coordinator says) share. Not for
 * anybody else.
 */
#ifndef SUPERVISE_MEMBER_PARTS_H
#define SUPERVISE_MEMBER_PARTS_H

#include "sidecar/ring/link.h"
#include "sidecar/supervise/attach.h"
#include "sidecar/supervise/channel.h"
#include "sidecar/supervise/evidence.h"
#include "sidecar/supervise/member.h"
#include "sidecar/supervise/progress.h"
#include "sidecar/supervise/trainer.h"
#include "sidecar/supervise/watch.h"

struct member {
    struct loop *loop;
    struct member_options options;
    struct link_identity identity;
    struct engine *engine;
    struct checkpoint *checkpoint;
    struct attach *attach;
    struct evidence *evidence;
    struct watch *watch;
    struct member_hub hub;

    struct link *dial;          /* NULL: not dialling */
    struct channel *channel;    /* NULL: not connected */
    bool joined;                /* JOIN was sent on this channel */
    bool stale;                 /* a newer attempt is at work: this sidecar takes no part any more */
    struct loop_timer *tick, *redial, *stay;
    int64_t ticked_ms, complained_ms, found_ms;

    uint64_t fence;             /* of the newest FORM */
    int32_t size;               /* ranks of the newest FORM, before it as the environment says */
    uint64_t formed;            /* fence that the engine has formed; 0 = none */
    struct checkpoint_restore restore;
    struct history history;
    struct trainer trainer;
    bool had_client;            /* the process has used the library, as far as this sidecar knows: it may stay after a loss */
    struct progress progress;
    struct progress_view told;  /* what the coordinator knows */
    int64_t told_ms;
};

/* member.c */
void member_drive(struct member *m, const struct trainer_event *event);
void member_stop(struct member *m, int64_t grace_ms); /* the process, if one runs */

/* member_word.c */
MUST_CHECK int member_word(struct member *m, const struct peer_frame *frame, const cJSON *body, struct error *e);
void member_become_stale(struct member *m, const char *why);

#endif
