/*
 * config.h — how to reach an API server and who we are there: in a pod from the service account, elsewhere from kubeconfig
 * files (kubectl's rules: KUBECONFIG is a list, the first file that sets a value wins, relative paths start at the file that
 * names them).
 *
 * Every error names the file, the context, cluster or user, and what to do. Nothing of a configuration but server and names is
 * ever logged: it holds keys. Certificates and tokens that are files stay file names here, so that rotated ones are read again.
 */
#ifndef KUBE_CONFIG_H
#define KUBE_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define KUBE_CONFIG_MAX_BYTES (1u << 20) /* a kubeconfig, a certificate, what an exec plugin prints */
#define KUBE_TOKEN_MAX_BYTES (64u << 10)

struct kube_exec_env { char *name, *value; };

/* A credential plugin (client.authentication.k8s.io). */
struct kube_exec {
    char *command;          /* a path, or a name looked up in PATH; one with a slash is relative to its kubeconfig */
    char **args;
    size_t arg_count;
    struct kube_exec_env *env; /* added to ours */
    size_t env_count;
    char *api_version;      /* client.authentication.k8s.io/v1 or v1beta1 */
    char *install_hint;     /* or NULL: said when the command is not there */
    bool cluster_info;      /* provideClusterInfo */
    bool interactive;       /* may read our standard input */
};

struct kube_config {
    char *context, *cluster, *user; /* names, for messages; "" in a pod */
    char *server;                   /* https://host:port, perhaps with a path; no slash at the end */
    char *ns;                       /* default namespace, never NULL */
    char *tls_server_name;          /* or NULL: the host of `server` */
    char *proxy_url;                /* or NULL */
    bool insecure;                  /* insecure-skip-tls-verify */
    /* Each as a file or as PEM text, or neither. Neither CA: the system's. */
    char *ca_file, *ca_pem;
    char *cert_file, *cert_pem, *key_file, *key_pem;
    char *token_file, *token;       /* the file wins */
    char *username, *password;
    char *impersonate;              /* "as", or NULL */
    struct kube_exec *exec;         /* or NULL */
};

/* Where to look. kube_config_source() fills it from the environment; tests and options set what they like. */
struct kube_config_source {
    const char *kubeconfig;   /* --kubeconfig: this file alone, and it must exist; NULL = not given */
    const char *paths;        /* KUBECONFIG: list separated by ':'; files that do not exist are skipped; NULL = not set */
    const char *home;         /* for ~/.kube/config; NULL = unknown */
    const char *context;      /* --context; NULL = current-context */
    const char *service_host, *service_port; /* KUBERNETES_SERVICE_*; NULL = not in a pod */
    const char *service_account_dir; /* NULL = where the kubelet mounts it */
};
void kube_config_source(struct kube_config_source *ret_source);

/* An explicit kubeconfig, else KUBECONFIG, else the pod's service account, else ~/.kube/config. */
MUST_CHECK int kube_config_load(const struct kube_config_source *source, struct kube_config **ret, struct error *e);
void kube_config_free(struct kube_config *config); /* NULL is fine; keys are wiped */

/* The pure part: kubeconfig texts in the order of precedence. */
struct kube_config_text { const char *path; const char *text; size_t len; };
MUST_CHECK int kube_config_parse(const struct kube_config_text *files, size_t count, const char *context /* NULL: current */,
                                 struct kube_config **ret, struct error *e);

/* What a credential plugin printed. */
struct kube_credential {
    char *token, *cert_pem, *key_pem; /* each may be NULL, not all */
    int64_t expires_wall_ms;          /* 0 = never */
};
MUST_CHECK int kube_credential_parse(const char *text, size_t len, const char *api_version, struct kube_credential *ret,
                                     struct error *e);
void kube_credential_release(struct kube_credential *credential);
/* Runs the plugin and waits for it (30 s; 5 min when it may ask the user): for programs at a terminal, not for a server. */
MUST_CHECK int kube_exec_run(const struct kube_config *config, struct kube_credential *ret, struct error *e);

void cleanup_kube_config(struct kube_config **config);
#define auto_kube_config __attribute__((cleanup(cleanup_kube_config)))

#endif
