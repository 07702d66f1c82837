/*
 * cluster.h — the API server as the commands see it: which one, requests that are waited for, and objects kept current.
 *
 * One thread, one loop. cluster_call and its kin run the loop until the answer is there; cluster_run runs it until cluster_stop
 * and is for commands that follow something: Ctrl-C then ends it in order (`interrupted`). When no server answers, the error
 * names the address, the context and the file that were tried and what to do.
 */
#ifndef CLI_CLUSTER_H
#define CLI_CLUSTER_H

#include "base/opt.h"
#include "kube/client.h"

#define CLUSTER_FIELD_MANAGER "ringmaster"

struct cluster_options { const char *context, *kubeconfig, *ns; int64_t request_timeout_ms; };

/* Rows for a command's option table: CLUSTER_OPTIONS(struct status_options, cluster). */
#define CLUSTER_OPTIONS(s, f) \
    { .flag = "namespace", .letter = 'n', .type = OPT_TEXT, .at = OPT_AT(s, f.ns, const char *), .value = "NAMESPACE", \
      .help = "namespace on the cluster (default: the context's)" }, \
    { .flag = "context", .type = OPT_TEXT, .at = OPT_AT(s, f.context, const char *), .value = "NAME", \
      .help = "context of the kubeconfig (default: its current one)" }, \
    { .flag = "kubeconfig", .type = OPT_TEXT, .at = OPT_AT(s, f.kubeconfig, const char *), .value = "FILE", \
      .help = "how to reach the cluster (default: the files in KUBECONFIG, else the pod's service account, else ~/.kube/config)" }, \
    { .flag = "request-timeout", .def = "30s", .type = OPT_DURATION, .at = OPT_AT(s, f.request_timeout_ms, int64_t), .min = 100, \
      .max = 3600000, .value = "TIME", .help = "how long one request to the cluster may take" }

extern const struct kube_resource CLUSTER_JOBS, CLUSTER_PODS, CLUSTER_EVENTS;

struct cluster {
    struct loop *loop;
    struct kube_config *config;
    struct kube_client *client;
    char *ns;              /* where the command works */
    char *tried;           /* "https://10.0.0.1:6443 (context \"lab\" of /home/me/.kube/config)": for messages */
    int64_t timeout_ms;
    bool interrupted;      /* by SIGINT, SIGTERM or SIGHUP, while cluster_run ran */
    bool signals;          /* are taken by the loop */
    bool lost;             /* the API server did not answer lately; said once on stderr */
};
#define CLUSTER_INIT { .loop = NULL }

/* True when an option says which cluster or namespace is meant. */
bool cluster_is_named(const struct cluster_options *o);

/* No connection is tried yet. On failure nothing has to be closed. */
MUST_CHECK int cluster_open(const struct cluster_options *o, struct cluster *ret, struct error *e);
void cluster_close(struct cluster *c); /* also of CLUSTER_INIT */

/* Sends it and waits. ret_object may be NULL; else it is the caller's. 404 is ERROR_NOT_FOUND. */
MUST_CHECK int cluster_call(struct cluster *c, struct kube_request *r, cJSON **ret_object, struct error *e);
/* All objects, page by page, as an array. ns NULL: of all namespaces. */
MUST_CHECK int cluster_list(struct cluster *c, const struct kube_resource *resource, const char *ns, const char *label_selector,
                            const char *field_selector, cJSON **ret_list, struct error *e);
/* The TrainingJob, or ERROR_NOT_FOUND in words for a person. */
MUST_CHECK int cluster_job(struct cluster *c, const char *name, cJSON **ret_job, struct error *e);

/* Runs the loop until cluster_stop or a signal. */
MUST_CHECK int cluster_run(struct cluster *c, struct error *e);
void cluster_stop(struct cluster *c);

/* ---- objects kept current ---------------------------------------------------------------------------------------------- */

struct objects;

struct objects_def {
    const struct kube_resource *resource;
    const char *ns, *label_selector, *field_selector; /* as in cluster_list */
    void (*changed)(void *ctx);                       /* something changed, or everything is known for the first time */
    void (*failed)(void *ctx, const struct error *e); /* the first look failed: nothing will be known; stop. Later failures are
                                                         said on stderr and tried again */
    void *ctx;
};

MUST_CHECK int objects_new(struct cluster *c, const struct objects_def *def, struct objects **ret, struct error *e);
bool objects_known(const struct objects *o);  /* looked once */
/* By namespace and name. The array is the caller's; the objects are borrowed until the loop runs on. */
const cJSON **objects_all(const struct objects *o, size_t *ret_count);
void objects_free(struct objects *o);         /* NULL is fine; before its cluster */

#endif
