/*
 * job.h — what a TrainingJob is: the C picture of crd/trainingjob.yaml, group ringmaster.dev, version v1alpha1.
 *
 * A struct training_job is made by decode.h from a manifest that has passed schema.h and validate.h; its values are then in
 * range and its defaults filled in, so that the pure code behind it (reconcile, pod, tfconfig) cannot fail. Pod templates
 * stay JSON trees (they are Kubernetes' own type, checked by the CRD's schema). Optional integers use OPTIONAL_INT's
 * `set`, never a magic value. Times are Unix milliseconds, durations end in their unit.
 *
 * Ownership: a job owns everything it points to; training_job_free releases it. Status is a value of its own
 * (struct job_status) because the reconciler writes a new one at each pass.
 */
#ifndef JOB_JOB_H
#define JOB_JOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"

#define JOB_API_VERSION "ringmaster.dev/v1alpha1"
#define JOB_KIND "TrainingJob"
#define JOB_MANAGED_BY "ringmaster.dev/operator"
#define JOB_NAME_MAX 51        /* "-worker-9999" and the like must fit a DNS label behind it */
#define JOB_MAX_REPLICAS 10000
#define JOB_FAILURES_KEPT 10
#define JOB_AVOID_NODES_MAX 64
#define JOB_RULES_MAX 20

struct optional_int { bool set; int64_t value; };

enum job_role { ROLE_CHIEF, ROLE_MASTER, ROLE_WORKER, ROLE_PS, ROLE_EVALUATOR, ROLE_COUNT };
const char *role_key(enum job_role role);  /* "Chief", "Master", "Worker", "PS", "Evaluator": keys of replicaSpecs */
const char *role_name(enum job_role role); /* "chief", ...: in pod names and TF_CONFIG */
bool role_parse(const char *text, enum job_role *ret_role); /* either form */

enum restart_policy { RESTART_ALWAYS, RESTART_ON_FAILURE, RESTART_NEVER, RESTART_EXIT_CODE };
enum clean_pod_policy { CLEAN_ALL, CLEAN_RUNNING, CLEAN_NONE };
enum success_policy { SUCCESS_CHIEF /* "": the chief, else worker 0 */, SUCCESS_ALL_WORKERS };
enum restart_strategy { STRATEGY_IN_PLACE, STRATEGY_RECREATE_FAILED, STRATEGY_RECREATE_PODS };
enum framework { FRAMEWORK_TENSORFLOW, FRAMEWORK_PYTORCH, FRAMEWORK_JAX, FRAMEWORK_HOROVOD, FRAMEWORK_MPI, FRAMEWORK_COUNT };
enum gang_kind { GANG_AUTO, GANG_NATIVE, GANG_VOLCANO, GANG_COSCHEDULING, GANG_SCHEDULING_GATES, GANG_NONE };
enum oom_action { OOM_FAIL, OOM_RESTART, OOM_RESTART_WITH_MORE_MEMORY };
enum rule_action {
    RULE_FAIL_JOB, RULE_RESTART_JOB, RULE_RESTART_JOB_FREE, /* ...AndIgnoreMaxRestarts */
    RULE_RESTART_POD, RULE_RESTART_POD_FREE, RULE_IGNORE,
};

struct replica_spec {
    bool present;
    int32_t replicas;
    enum restart_policy restart_policy;
    cJSON *template; /* PodTemplateSpec */
};

struct failure_rule {
    char *name;
    enum rule_action action;
    char *container;            /* onExitCodes.containerName or NULL: the main container */
    bool has_exit_codes, exit_codes_in; /* operator In, else NotIn */
    int32_t *exit_codes; size_t exit_code_count;
    char **condition_types; char **condition_statuses; size_t condition_count; /* onPodConditions, any */
    char **reasons; size_t reason_count;                                       /* onReasons, any */
    char *message_pattern;                                                     /* POSIX ERE or NULL */
    bool roles[ROLE_COUNT]; bool any_role;                                     /* targetRoles */
};

struct failure_policy {
    enum restart_strategy strategy;
    struct optional_int max_restarts, max_disruptions;
    int64_t restart_window_s;               /* 0 = whole life */
    int64_t backoff_base_s, backoff_max_s;
    enum oom_action oom_action; double oom_factor; int64_t oom_max_bytes;
    struct optional_int force_delete_after_s;
    bool avoid_nodes; int64_t avoid_nodes_ttl_s; int32_t avoid_nodes_max_percent;
    struct failure_rule *rules; size_t rule_count;
};

struct job_spec {
    bool suspend;
    char *managed_by;
    bool frameworks[FRAMEWORK_COUNT];
    enum success_policy success_policy;
    bool enable_dynamic_worker;
    bool elastic; /* has an elasticPolicy: after a loss processes that can may stay, see docs/internals/clients.md */

    enum clean_pod_policy clean_pod_policy;
    struct optional_int ttl_after_finished_s, active_deadline_s;
    int32_t backoff_limit;                  /* -1 = unlimited */
    struct {
        enum gang_kind gang;
        struct optional_int min_available;
        char *queue, *priority_class;
        cJSON *min_resources;
        struct optional_int schedule_timeout_s, start_timeout_s;
        char *topology_required, *topology_preferred;
    } scheduling;

    struct replica_spec roles[ROLE_COUNT];
    struct optional_int min_replicas, max_replicas;
    struct failure_policy failure;
    struct {
        char *subdomain;                    /* "" = job name */
        bool publish_not_ready, service_per_pod, network_policy;
        char *cluster_domain;
    } network;
    struct { bool set; enum job_role role; int32_t index; } coordinator;
    struct { bool master_as_chief, evaluator_in_cluster; char *container; int32_t port; } tf_config;
    struct {
        struct optional_int progress_timeout_s; /* absent: 1800, and programs that use nothing of ours are not ended */
        int64_t first_step_timeout_s;
        int node_check; /* 0 Off 1 BeforeStart 2 AfterFailure */
        int32_t straggler_percent, peer_timeout_ms, stall_warning_s, stall_shutdown_s;
    } health;
    struct {
        bool enabled;
        char *path;                         /* directory in the container, or s3:// */
        struct optional_int every_steps, every_seconds;
        int32_t keep_last;
        bool on_termination, memory_tier;
    } checkpoint;
    struct {
        int mode;                           /* 0 Auto 1 Native 2 Container 3 None */
        char *image; int32_t ring_port;
        cJSON *resources; int64_t shm_size_bytes; bool tls, checksums;
        int wire;                           /* 0 Plain 1 Float16 2 BFloat16 3 Int8 4 Exact */
    } sidecar;
    cJSON *volume_claim_policies;
};

enum job_phase {
    PHASE_PENDING, PHASE_QUEUED, PHASE_STARTING, PHASE_RUNNING, PHASE_RESTARTING, PHASE_SUSPENDED, PHASE_SUCCEEDED,
    PHASE_FAILED, JOB_PHASES
};
const char *phase_name(enum job_phase phase); /* "Running" */
bool phase_is_final(enum job_phase phase);

enum condition_type {
    CONDITION_CREATED, CONDITION_QUEUED, CONDITION_GANG_SCHEDULED, CONDITION_RUNNING, CONDITION_PODS_READY,
    CONDITION_RESTARTING, CONDITION_SUSPENDED, CONDITION_DEGRADED, CONDITION_COOPERATING, CONDITION_INVALID,
    CONDITION_FAILURE_TARGET, CONDITION_SUCCEEDED, CONDITION_FAILED, CONDITION_COUNT,
};
const char *condition_name(enum condition_type type);

struct condition {
    bool present;            /* listed in status.conditions */
    bool is_true;
    char reason[64];         /* CamelCase */
    char message[512];
    int64_t transition_ms;   /* when is_true last changed */
    int64_t observed_generation;
};

enum failure_class { FAILURE_USER, FAILURE_INFRASTRUCTURE, FAILURE_HANG, FAILURE_OOM, FAILURE_HARDWARE };
const char *failure_class_name(enum failure_class c);

struct failure {
    int32_t attempt, round;
    enum job_role role; int32_t index;
    char pod[128], pod_uid[64], node[128], container[64]; /* pod_uid: "" when the coordinator told of a process in a pod that lives on */
    bool has_exit; int32_t exit_code;  /* as the shell sees it: 128+signal when a signal ended it */
    int32_t signal;                    /* 0 = none */
    char reason[64];                   /* "Error", "OOMKilled", "NodeLost", "SidecarLost", "CommandNotFound", ... */
    enum failure_class class;
    char message[1024];                /* tail of the log or what the system said */
    int64_t time_ms;
    struct optional_int lost_steps;
    struct optional_int rank;          /* in the ring */
    char evidence[256];                /* directory with the stacks of every rank and the state of the ring; "" = none were taken */
};

enum checkpoint_wish { WISH_ANNOTATION, WISH_SUSPEND, WISH_SCALE };
enum checkpoint_answer { ANSWER_PENDING, ANSWER_COMMITTED, ANSWER_MISSED /* the time for it was over */ };
#define JOB_CHECKPOINT_NOW "ringmaster.dev/checkpoint-now" /* annotation: any new value asks for a checkpoint */

struct role_status {
    int32_t replicas, active, ready, succeeded, failed;
    int32_t oom_kills;                /* decisions about a container that ran out of memory, in the job's whole life */
    char completed[256];              /* indexes that ended well in this attempt, "0-2,5": their pods may be gone; cut when too long */
};

/* When the restarts of the last failurePolicy.restartWindowSeconds were, oldest first. Up to RESTART_WINDOW_PARTS restarts are
 * told apart; of more, those that lie closest together are taken for one time, the later. Unused parts are zero. */
#define RESTART_WINDOW_PARTS 16
struct restart_window { struct { int64_t at_ms, restarts; } parts[RESTART_WINDOW_PARTS]; int64_t part_count; };

struct job_status {
    int64_t observed_generation;
    enum job_phase phase;
    struct condition conditions[CONDITION_COUNT];
    struct role_status roles[ROLE_COUNT];
    int32_t attempt;                  /* fencing epoch: raised write-ahead for each group restart and resume; first is 1 */
    int32_t round;                    /* newest in-place round of this attempt that was reported */
    int32_t restarts, restarts_counted, disruptions;
    int32_t streak;                   /* failures since the last progress: drives the back-off */
    int32_t crashes, repeats, last_end; /* see restart_counters */
    struct restart_window window;     /* counted restarts; empty without restartWindowSeconds */
    int64_t next_restart_ms;          /* 0 = none pending */
    int64_t start_ms, completion_ms;  /* 0 = unset */
    int64_t suspended_ms;
    struct { bool set; int64_t step, total_steps, eta_s, update_ms; double percent, steps_per_second; double loss; bool has_loss; } progress;
    struct { bool set; int64_t step, time_ms; int32_t attempt; bool verified; char uri[512]; } checkpoint;
    /* The newest wish for a checkpoint beyond those of spec.checkpoint: what was asked for, and what came of it. `value` is that of the
     * annotation that was answered last, whatever came after it. */
    struct {
        bool set; char value[128];
        enum checkpoint_wish reason; enum checkpoint_answer state;
        int64_t time_ms, from_step, step; /* asked for; a step from which on it counts; the committed one, -1 = none yet */
    } checkpoint_request;
    struct { bool set; char name[64], workload[128]; int32_t position; int64_t admitted_ms; } queue;
    struct { bool set; enum gang_kind kind; char group[128], phase[32]; } gang;
    struct {
        bool set; int32_t size; bool self_test_ok; int64_t bytes_reduced, operations; double busbw_gbps; /* GB/s */
        int64_t formed_ms; int32_t straggler_rank; /* -1 = none */
        double step_ms, slowest_step_ms; /* a rank's own time for a step, without waiting for others: median and longest; 0 = unknown */
        char members[2048];           /* "chief-0,worker-0,..." in ring order, cut with ",..." */
    } ring;
    struct failure failures[JOB_FAILURES_KEPT]; size_t failure_count; /* oldest first */
    struct avoided_node { char name[128], reason[64]; int64_t until_ms; } avoid_nodes[JOB_AVOID_NODES_MAX]; size_t avoid_count;
};

struct training_job {
    char *name, *namespace, *uid;
    int64_t generation, created_ms;
    bool deleting;
    cJSON *labels, *annotations;       /* objects, never NULL */
    struct job_spec spec;
};

void training_job_free(struct training_job *job); /* NULL is fine */
#define auto_job __attribute__((cleanup(cleanup_training_job)))
void cleanup_training_job(struct training_job **job);

/* Facts that follow from the spec. */
int32_t job_replicas(const struct training_job *job);              /* of all roles */
int32_t job_world_size(const struct training_job *job);            /* ranks in the ring: chief|master, then workers */
int64_t job_grace_s(const struct training_job *job, enum job_role role); /* terminationGracePeriodSeconds of its pods */
int32_t job_rank(const struct training_job *job, enum job_role role, int32_t index); /* -1 for ps and evaluator */
void job_member_name(enum job_role role, int32_t index, char ret_name[80]);          /* "worker-3" */
void job_pod_name(const struct training_job *job, enum job_role role, int32_t index, char ret_name[128]);
int32_t job_ordinal(const struct training_job *job, enum job_role role, int32_t index); /* from 0: chief, master, worker, ps, evaluator */
/* A job with ps runs its workers independently: one that fails is restarted alone. Else the group restarts as one. */
bool job_restarts_as_group(const struct training_job *job);
const char *job_main_container(const struct training_job *job, enum job_role role); /* tfConfig.containerName, "tensorflow", or the first */

#endif
