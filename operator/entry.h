/*
 * entry.h — what the operator keeps of an object of the cluster: a few hundred bytes in place of a tree of ten thousand. Pure.
 *
 * The project functions are those of a kube_cache (kube/cache.h): they fill a zeroed entry from an object whose shape nobody
 * vouches for, and say false for what is none of ours. Texts that are NULL are absent.
 */
#ifndef OPERATOR_ENTRY_H
#define OPERATOR_ENTRY_H

#include "job/reconcile.h"
#include "kube/cache.h"
#include "operator/resources.h"

/* A pod of a TrainingJob. */
struct pod_entry {
    char job[JOB_NAME_MAX + 1]; /* name of the owner; its UID is the index */
    char uid[KUBE_UID_MAX];
    uint8_t role;               /* enum job_role */
    uint8_t phase;              /* enum pod_phase, as the kubelet says */
    bool scheduled, ready, deleting, disrupted, tainted;
    int8_t gate_index;          /* of our scheduling gate among the pod's gates; -1 = none */
    bool sidecar_runs;
    bool all_ended;             /* every container has, though the kubelet may not have said so of the pod yet */
    bool has_exit;              /* of the main container */
    int32_t index, attempt, exit_code, signal;
    int64_t created_ms, started_ms, finished_ms, gone_by_ms; /* gone_by: when the pod was to be gone at the latest; 0 = not deleting */
    char *node, *reason, *message;
    char *last_word;            /* of a coordinator that has ended (report_last_word) */
};

extern const char *const POD_ENTRY_DROPS[]; /* what the projection does not read (kube/strip.h); so JOB_ENTRY_DROPS */
bool pod_entry_project(void *ctx, const cJSON *object, void *ret_entry);
void pod_entry_release(void *ctx, void *entry);

/* Of nodes only what tells whether their pods can be believed. */
struct node_entry { bool lost, takes_pods; };
bool node_entry_project(void *ctx, const cJSON *object, void *ret_entry);

/* A gang scheduler's group of a job. */
struct group_entry {
    char job[JOB_NAME_MAX + 1];
    char uid[KUBE_UID_MAX], owner_uid[KUBE_UID_MAX];
    char phase[32], message[256];
    int32_t min_member;
    int64_t created_ms;
};
bool group_entry_project(void *ctx, const cJSON *object, void *ret_entry);

/* A Service or any other child: whose it is. */
struct child_entry { char job[JOB_NAME_MAX + 1]; };
bool child_entry_project(void *ctx, const cJSON *object, void *ret_entry);

/* A job, as the text of what matters in it. One that is over and needs nothing but its TTL has no text: it is read again
 * when the time has come. */
struct job_entry {
    char uid[KUBE_UID_MAX], version[KUBE_VERSION_MAX];
    uint8_t phase;              /* enum job_phase; Pending when there is no status yet */
    bool is_over;
    int64_t ttl_at_ms;          /* when it is over and has a TTL; else 0 */
    char *text;                 /* NULL: is_over */
};
extern const char *const JOB_ENTRY_DROPS[];
bool job_entry_project(void *ctx, const cJSON *object, void *ret_entry);
void job_entry_release(void *ctx, void *entry);
const char *job_entry_index(void *ctx, const cJSON *object); /* none: jobs are found by name */

/* The text of a job without what nobody here reads (managedFields, the manifest that kubectl leaves there). Owned. */
char *job_text(const cJSON *object);

#endif
