/*
 * hub.h — the coordinator at work: the members' connections, the clock and the checkpoint engine around coordinator.h's pure
 * core, and the reports to whoever drives the job. Runs in the sidecar of rank 0, on the loop's thread.
 */
#ifndef SUPERVISE_HUB_H
#define SUPERVISE_HUB_H

#include "base/loop.h"
#include "job/report.h"
#include "sidecar/supervise/control.h"
#include "sidecar/supervise/member.h"

struct hub;

struct hub_options { /* texts are kept */
    const struct training_job *policy;       /* kept */
    const char *job, *job_uid;
    int32_t attempt;
    const char *const *members; size_t count;
    const struct restart_counters *counters; /* at the beginning of this attempt */
    int64_t peer_timeout_ms;
    struct control_options control;          /* address NULL: nobody wants reports */
    const char *last_word;                   /* file for what must not be lost when nobody could be told; NULL = none */
};

/* `member` is this sidecar's own; the hub takes over its member_set_hub. */
MUST_CHECK int hub_new(struct loop *l, const struct hub_options *options, struct member *member, struct hub **ret, struct error *e);
void hub_accept(struct hub *h, int fd /* taken */, const struct peer_hello *hello); /* a CONTROL connection */
/* Every other member that is connected has nothing left to run or to save, and the last report is out. */
bool hub_idle(const struct hub *h);
void hub_free(struct hub *h);

#endif
