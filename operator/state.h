/*
 * state.h — what the operator remembers of a job between two looks at it. Nothing here is needed to be right: it is lost with the
 * process, and all of it is found again or asked for again. It saves requests and bridges the moment between a write and the
 * watch event that tells of it.
 */
#ifndef OPERATOR_STATE_H
#define OPERATOR_STATE_H

#include "base/crypto.h"
#include "job/report.h"
#include "kube/object.h"

/* A write of ours that the cache does not show yet; forgotten when it does, or after a while. */
struct own_pod {
    char uid[KUBE_UID_MAX];
    uint8_t role;
    bool deleted;               /* else: created */
    int32_t index, attempt;
    int64_t wall_ms, until_ms;  /* when it was written; monotonic: when it is no longer believed */
};

#define STATE_OLDER_MAX 8

struct job_state {
    struct kube_key key;
    char uid[KUBE_UID_MAX];     /* of the job that this is about; another one under the name begins anew */
    bool in_work;

    /* The job as our last status write left it, or as the API server told it when asked, while the cache still shows what was
     * before; since when. `older`: the versions that were replaced, for servers whose versions are no numbers. */
    char *fresh_text, fresh_version[KUBE_VERSION_MAX];
    int64_t fresh_ms;
    char older[STATE_OLDER_MAX][KUBE_VERSION_MAX];
    size_t older_next;
    char seen[KUBE_VERSION_MAX];/* what the cache showed while it was in work; "" = nothing new */
    int64_t stored_ms;          /* monotonic: when its status was last written; 0 = not by this process */
    uint8_t shown;              /* status writes in a row that only showed how far pods have come */
    bool must_read;             /* what we know may be old (a write was refused, a pod has vanished): ask the API server */

    struct own_pod *own;
    size_t own_count, own_cap;

    bool secret_known, key_known;
    int32_t secret_attempt;     /* it is looked for once in an attempt */
    uint8_t job_key[CRYPTO_KEY_BYTES];
    bool key_asked;             /* its Secret is being read */
    uint64_t authority_seen;    /* generation of the authority that its Secret is known to hold; 0 = unknown */

    /* What was looked for or made in this attempt and at this size: again with the next, somebody may have deleted it. */
    bool network_policy_known, claims_known, trimmed, pods_checked;
    int32_t children_attempt; int64_t children_generation;
    char pod_refused[512];      /* by the dry run; "" = not */
    int64_t group_until_ms;     /* monotonic: our group is on its way into the cache until then */

    int64_t service_until_ms;   /* monotonic: our Services are on their way into the cache until then */

    char create_error[512];     /* of the last refused creation; "" = none */
    int64_t hold_until_ms;      /* monotonic: no creation before this */
    int64_t hold_ms;            /* how long the last hold was; doubles */

    struct coordinator_report *report; /* newest; NULL = none */
    int64_t asked_ms;           /* monotonic: when its coordinator was last told to save; 0 = not since it connected */
    struct job_state *next;     /* in its bucket */
};

struct state_table;
struct state_table *state_table_new(void);
void state_table_free(struct state_table *t); /* NULL is fine */
struct job_state *state_get(struct state_table *t, const struct kube_key *key, const char *uid); /* made when it is not there */
struct job_state *state_find(const struct state_table *t, const struct kube_key *key);            /* or NULL */
void state_drop(struct state_table *t, const struct kube_key *key);                               /* not while it is in work */
size_t state_count(const struct state_table *t);
void state_each(const struct state_table *t, void (*each)(void *ctx, const struct job_state *s), void *ctx); /* the table must not change meanwhile */

/* What is newer than `old_version`, which our write replaced or the cache showed; `text` is that of `new_version`. */
void state_set_fresh(struct job_state *s, const char *old_version, const char *new_version, char *text /* taken */, int64_t now_ms);
void state_clear_fresh(struct job_state *s);
/* True when `fresh_text` is newer than the cache's version, however far the watch is behind. */
bool state_is_newer(const struct job_state *s, const char *cache_version);
/* True when it has been so for long: the watch hangs, or the cluster was restored from a backup and its versions went back. */
bool state_is_stale(const struct job_state *s, int64_t now_ms);

void state_own_add(struct job_state *s, const struct own_pod *pod);
void state_own_forget(struct job_state *s, const char *uid, bool deleted);
const struct own_pod *state_own_find(const struct job_state *s, const char *uid, bool deleted);
void state_own_expire(struct job_state *s, int64_t now_ms);
void state_take_report(struct job_state *s, struct coordinator_report *report /* taken; NULL: forget it */);

#endif
