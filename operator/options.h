/*
 * options.h — how ringmaster-operator is told what to do: flags, or RINGMASTER_* variables. Const after options_read.
 */
#ifndef OPERATOR_OPTIONS_H
#define OPERATOR_OPTIONS_H

#include <stdio.h>

#include "base/opt.h"

struct options {
    const char *kubeconfig, *context, *namespaces, *sidecar_image;
    const char *control_url, *listen, *listen_control, *tls_secret;
    const char *identity, *lease_name, *lease_namespace;
    int64_t max_jobs, max_requests, certificate_ms, lease_duration_ms, lease_renew_ms, lease_retry_ms;
    bool leader_elect, watch_nodes, job_metrics, log_json, version;
    int log_level;

    /* made from that by options_read */
    char **namespace_list; size_t namespace_count; /* none: all */
    char *listen_address; int64_t listen_port;     /* port 0: no HTTP */
    char *control_address; int64_t control_port;   /* of the channel with TLS; port 0: it is at listen_port, in clear */
    char *control_host;                            /* of control_url, where that says wss; else NULL */
    bool no_native_sidecars;                       /* the cluster's; found out when the program starts */
};

MUST_CHECK int options_read(int argc, char **argv, struct options *o, bool *ret_help, struct error *e);
void options_help(FILE *out);
void options_release(struct options *o);

#endif
