/*
 * lease.h — who leads: leader election over a coordination.k8s.io/v1 Lease, as client-go does it and compatible with it. Pure.
 *
 * The elector (elector.h) carries out what a step says. Times are monotonic milliseconds of this process: nobody's wall clock is
 * compared with anybody else's. A holder counts as such for renew_deadline (10 s) from the moment it *sent* its last successful
 * renewal; another takes over lease_duration (15 s) after it last *saw* the record change. The difference is the fence: the old
 * holder has stopped before a new one starts, however slow the network. Writes carry the resourceVersion read before.
 */
#ifndef KUBE_LEASE_H
#define KUBE_LEASE_H

#include <stdbool.h>
#include <stdint.h>

#include "kube/object.h"

struct kube_lease_options {
    const char *identity;     /* of this process, unique: pod name and a random part; copied */
    int64_t duration_ms;      /* 0 = 15000 */
    int64_t renew_deadline_ms;/* 0 = 10000; below duration */
    int64_t retry_ms;         /* 0 = 2000 */
    uint64_t seed;            /* jitter of retries */
};

#define KUBE_IDENTITY_MAX 254

struct kube_lease_record {
    char holder[KUBE_IDENTITY_MAX]; /* "" = nobody */
    int64_t duration_ms;
    int64_t acquired_wall_ms, renewed_wall_ms;
    int64_t transitions;
    char version[KUBE_VERSION_MAX]; /* resourceVersion; "" = not there */
};

struct kube_lease {
    char identity[KUBE_IDENTITY_MAX];
    int64_t duration_ms, renew_deadline_ms, retry_ms;
    uint64_t random;
    struct kube_lease_record seen;  /* as last read or written */
    int64_t seen_changed_ms;        /* when the record last changed before our eyes; 0 = never read */
    int64_t sent_ms;                /* when the request under way was sent; 0 = none is */
    int64_t renewed_ms;             /* when the last successful renewal was sent */
    bool held, writing, releasing;
};

enum kube_lease_input_kind { KUBE_LEASE_WAKE, KUBE_LEASE_READ, KUBE_LEASE_ABSENT, KUBE_LEASE_WRITTEN, KUBE_LEASE_FAILED, KUBE_LEASE_RELEASE };
struct kube_lease_input {
    enum kube_lease_input_kind kind;
    const struct kube_lease_record *record; /* READ, WRITTEN */
    enum error_kind error;                  /* FAILED: ERROR_CONFLICT = somebody else wrote */
};

enum kube_lease_action { KUBE_LEASE_WAIT, KUBE_LEASE_GET, KUBE_LEASE_CREATE, KUBE_LEASE_UPDATE };
struct kube_lease_output {
    enum kube_lease_action action;
    struct kube_lease_record write; /* CREATE, UPDATE */
    int64_t deadline_ms;            /* how long the request may take */
    int64_t wake_at_ms;             /* step with WAKE then; a reply may come before */
    bool acquired, lost;            /* happened in this step */
    /* After KUBE_LEASE_RELEASE: WAIT with wake_at_ms 0 = it is given up, or was not ours; nothing more to do. */
};

void kube_lease_init(struct kube_lease *l, const struct kube_lease_options *options);
void kube_lease_step(struct kube_lease *l, const struct kube_lease_input *in, int64_t now_ms, int64_t wall_ms,
                     struct kube_lease_output *ret);
/* The fence: to be asked before every write of a leader. False from KUBE_LEASE_RELEASE on. */
bool kube_lease_is_held(const struct kube_lease *l, int64_t now_ms);
int64_t kube_lease_held_until_ms(const struct kube_lease *l); /* 0 when it is not held */

/* Lease objects. */
bool kube_lease_read(const cJSON *object, struct kube_lease_record *ret); /* false: no lease. Absurd values are bounded */
cJSON *kube_lease_object(const struct kube_lease_record *record, const char *ns, const char *name); /* owned by the caller */

#endif
