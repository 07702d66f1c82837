#include "kube/config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/crypto.h"
#include "base/fs.h"
#include "base/mem.h"

#define SERVICE_ACCOUNT_DIR "/var/run/secrets/kubernetes.io/serviceaccount"
#define FILES_MAX 32

/* ---- life -------------------------------------------------------------------------------------------------------------- */

static void wipe_free(char *secret)
{
    if (secret != NULL)
        crypto_wipe(secret, strlen(secret));
    free(secret);
}

static void exec_free(struct kube_exec *exec)
{
    if (exec == NULL)
        return;
    for (size_t i = 0; i < exec->arg_count; i++)
        free(exec->args[i]);
    for (size_t i = 0; i < exec->env_count; i++) {
        free(exec->env[i].name);
        wipe_free(exec->env[i].value);
    }
    free(exec->args);
    free(exec->env);
    free(exec->command);
    free(exec->api_version);
    free(exec->install_hint);
    free(exec);
}

void kube_config_free(struct kube_config *c)
{
    if (c == NULL)
        return;
    free(c->context);
    free(c->cluster);
    free(c->user);
    free(c->server);
    free(c->ns);
    free(c->tls_server_name);
    wipe_free(c->proxy_url); /* may hold a password */
    free(c->ca_file);
    free(c->ca_pem);
    free(c->cert_file);
    free(c->cert_pem);
    free(c->key_file);
    wipe_free(c->key_pem);
    free(c->token_file);
    wipe_free(c->token);
    free(c->username);
    wipe_free(c->password);
    free(c->impersonate);
    exec_free(c->exec);
    free(c);
}

void cleanup_kube_config(struct kube_config **config)
{
    kube_config_free(*config);
}

/* ---- in a pod ---------------------------------------------------------------------------------------------------------- */

static char *trimmed(char *text)
{
    size_t len = strlen(text);

    while (len > 0 && strchr(" \t\r\n", text[len - 1]) != NULL)
        text[--len] = '\0';
    return text;
}

static int load_service_account(const struct kube_config_source *source, struct kube_config **ret, struct error *e)
{
    const char *dir = source->service_account_dir != NULL ? source->service_account_dir : SERVICE_ACCOUNT_DIR;
    const char *port = source->service_port != NULL ? source->service_port : "443";
    bool v6 = strchr(source->service_host, ':') != NULL;
    auto_kube_config struct kube_config *c = xcalloc(1, sizeof *c);

    c->context = xstrdup("");
    c->cluster = xstrdup("");
    c->user = xstrdup("");
    c->server = xasprintf(v6 ? "https://[%s]:%s" : "https://%s:%s", source->service_host, port);
    c->token_file = fs_join(dir, "token");
    if (access(c->token_file, R_OK) != 0)
        return error_errno(e, "this is a pod (KUBERNETES_SERVICE_HOST is set) but its service account token %s cannot be read; set "
                           "automountServiceAccountToken, or give a kubeconfig", c->token_file);
    c->ca_file = fs_join(dir, "ca.crt");
    if (access(c->ca_file, R_OK) != 0)
        return error_errno(e, "read the cluster's certificate authority %s", c->ca_file);

    auto_free char *ns_file = fs_join(dir, "namespace");
    auto_free char *ns = NULL;
    size_t len;
    struct error unread;
    c->ns = fs_read(ns_file, 4096, &ns, &len, &unread) == 0 && trimmed(ns)[0] != '\0' ? xstrdup(ns) : xstrdup("default");
    *ret = TAKE(c);
    return 0;
}

/* ---- files ------------------------------------------------------------------------------------------------------------- */

struct files {
    struct kube_config_text texts[FILES_MAX];
    char *paths[FILES_MAX], *contents[FILES_MAX];
    size_t count;
};

static void files_release(struct files *f)
{
    for (size_t i = 0; i < f->count; i++) {
        wipe_free(f->contents[i]);
        free(f->paths[i]);
    }
}

static int files_add(struct files *f, char *path /* taken */, bool must_exist, struct error *e)
{
    auto_free char *own = path;
    char *content = NULL;
    size_t len = 0;

    if (f->count == FILES_MAX)
        return error_set(e, ERROR_LIMIT, "KUBECONFIG names more than %d files", FILES_MAX);
    if (!must_exist && access(path, F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR))
        return 0;
    if (fs_read(path, KUBE_CONFIG_MAX_BYTES, &content, &len, e) < 0)
        return error_wrap(e, "kubeconfig");
    f->paths[f->count] = TAKE(own);
    f->contents[f->count] = content;
    f->texts[f->count] = (struct kube_config_text){ .path = f->paths[f->count], .text = content, .len = len };
    f->count++;
    return 0;
}

static int files_of_list(struct files *f, const char *list, struct error *e)
{
    for (const char *p = list; *p != '\0';) {
        size_t n = strcspn(p, ":");
        if (n > 0 && files_add(f, xstrndup(p, n), false, e) < 0)
            return -1;
        p += n + (p[n] == ':');
    }
    if (f->count == 0)
        return error_set(e, ERROR_NOT_FOUND, "none of the files that KUBECONFIG names exists: %s", list);
    return 0;
}

static int load_files(const struct kube_config_source *source, struct files *f, struct kube_config **ret, struct error *e)
{
    if (source->kubeconfig != NULL) {
        if (files_add(f, xstrdup(source->kubeconfig), true, e) < 0)
            return -1;
    } else if (source->paths != NULL) {
        if (files_of_list(f, source->paths, e) < 0)
            return -1;
    } else if (source->home != NULL && files_add(f, xasprintf("%s/.kube/config", source->home), false, e) < 0) {
        return -1;
    }
    if (f->count == 0)
        return error_set(e, ERROR_NOT_FOUND, "no cluster is configured: there is no ~/.kube/config; give --kubeconfig FILE, set "
                         "KUBECONFIG, or run in a pod");
    return kube_config_parse(f->texts, f->count, source->context, ret, e);
}

int kube_config_load(const struct kube_config_source *source, struct kube_config **ret, struct error *e)
{
    if (source->kubeconfig == NULL && source->paths == NULL && source->context == NULL && source->service_host != NULL)
        return load_service_account(source, ret, e);
    struct files files = { .count = 0 };
    int code = load_files(source, &files, ret, e);
    files_release(&files);
    return code;
}
