/*
 * pods.h — pods as processes: what the kubelet does for a replica, done here with two children each.
 *
 * A pod is the launcher (its main container) and the sidecar. A sidecar that dies while the launcher lives is started again,
 * at once and then with a growing pause; when the launcher has ended the sidecar is told to end, and only then is the pod
 * over, as with native sidecars. Deleting sends SIGTERM to the launcher, SIGKILL after the grace period, then ends the
 * sidecar; the pod is gone when both are. All on the loop's thread; times are monotonic unless named _wall_.
 */
#ifndef CLI_PODS_H
#define CLI_PODS_H

#include "base/loop.h"
#include "cli/install.h"
#include "cli/jobdir.h"
#include "job/address.h"
#include "job/reconcile.h"

struct pods;

struct pods_events {
    void (*changed)(void *ctx);                                       /* a pod was made, ended, or is gone */
    void (*line)(void *ctx, const char *member, const char *text, size_t len); /* output, a line without its newline */
    void (*note)(void *ctx, const char *text);                        /* told to the user: a sidecar was started again, ... */
    void (*broken)(void *ctx, const struct error *why);               /* the job cannot go on here (disk full, sidecar does not start) */
    void *ctx;
};

struct pods_options {
    struct loop *loop;
    const struct jobdir *dir;
    const struct install *install;
    const struct training_job *job;
    const struct address_plan *addresses;
    const char *control;        /* path of the control socket */
    const char *checkpoint_dir;
    bool ring_over_tcp;         /* else the sidecars move tensors through memory in the runtime directory */
    bool verbose;               /* sidecars log what they do */
    const char *output_dir;     /* output goes to rank.N/stdout in it, too; NULL = not */
};

struct pods *pods_new(const struct pods_options *options /* kept */, const struct pods_events *events);
void pods_free(struct pods *p); /* kills what is left and waits for it */

MUST_CHECK int pods_create(struct pods *p, enum job_role role, int32_t index, int32_t attempt, const struct job_status *status,
                           struct error *e);
void pods_delete(struct pods *p, const char *uid, bool force);
void pods_interrupt(struct pods *p);      /* every launcher gets SIGTERM with its grace period, sidecars after it */
void pods_kill(struct pods *p);           /* SIGKILL to all, now */
void pods_reap(struct pods *p);           /* on SIGCHLD */
void pods_tick(struct pods *p, int64_t now_ms); /* deadlines; at least every 200 ms */
bool pods_alive(const struct pods *p);    /* some process lives */
size_t pods_count(const struct pods *p);

/* What there is, for reconcile; owned by the caller. */
struct pod_view *pods_view(const struct pods *p, size_t *ret_count);
void pods_trainer_pid(struct pods *p, const char *member, int32_t pid); /* for state.json; 0 = none */

/* Looks at pods/MEMBER/state.json of an earlier runner and kills what still lives of it. Returns how many were killed. */
size_t pods_kill_left_over(const struct jobdir *d);

/* The exact pod of a member on this machine, for run and for render --local. Owned. `install` may be NULL. */
cJSON *pods_build(const struct pods_options *options, enum job_role role, int32_t index, int32_t attempt,
                  const struct job_status *status);

#endif
