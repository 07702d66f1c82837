/* The texts of kubeconfig files, merged and resolved. Pure but for the check that files which they name can be read. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base64.h"
#include "base/buf.h"
#include "base/crypto.h"
#include "base/fs.h"
#include "base/mem.h"
#include "base/yaml.h"
#include "kube/config.h"

#define ARGS_MAX 256

struct docs { const struct kube_config_text *files; struct yaml_doc **docs; size_t count; };

/* A mapping of a kubeconfig and how to name it: "kubeconfig:12: users[admin].user". */
struct part {
    const char *path;             /* of the file */
    const struct yaml_doc *doc;
    const cJSON *map;             /* NULL = there is none */
    const char *list, *name, *what;
};

static int complain(const struct part *p, const cJSON *at, const char *key, const char *problem, struct error *e)
{
    struct yaml_place place = yaml_place_of(p->doc, at != NULL ? at : p->map);

    return error_set(e, ERROR_INVALID, "%s:%d: %s \"%s\": %s %s", p->path, place.line, p->what, p->name, key, problem);
}

/* ---- values ------------------------------------------------------------------------------------------------------------ */

/* *ret stays NULL when it is absent, null or "". */
static int text_of(const struct part *p, const char *key, char **ret, struct error *e)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(p->map, key);

    if (value == NULL || cJSON_IsNull(value))
        return 0;
    if (!cJSON_IsString(value))
        return complain(p, value, key, "must be text; put it in quotes", e);
    if (value->valuestring[0] != '\0')
        *ret = xstrdup(value->valuestring);
    return 0;
}

static int bool_of(const struct part *p, const char *key, bool *ret, struct error *e)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(p->map, key);

    if (value == NULL || cJSON_IsNull(value))
        return 0;
    if (!cJSON_IsBool(value))
        return complain(p, value, key, "must be true or false", e);
    *ret = cJSON_IsTrue(value);
    return 0;
}

/* A path, made absolute or relative to where the kubeconfig is. */
static char *resolved(const struct part *p, const char *path)
{
    const char *slash = strrchr(p->path, '/');

    if (path[0] == '/' || slash == NULL)
        return xstrdup(path);
    return xasprintf("%.*s/%s", (int)(slash - p->path), p->path, path);
}

static int path_of(const struct part *p, const char *key, char **ret, struct error *e)
{
    auto_free char *given = NULL;

    if (text_of(p, key, &given, e) < 0)
        return -1;
    if (given == NULL)
        return 0;
    auto_free char *path = resolved(p, given);
    if (access(path, R_OK) != 0) {
        (void)error_errno(e, "%s", path);
        return error_wrap(e, "%s: %s \"%s\": %s", p->path, p->what, p->name, key);
    }
    *ret = TAKE(path);
    return 0;
}

/* "x" is a file, "x-data" the same as base64 in place; the latter wins. */
static int pem_of(const struct part *p, const char *key, const char *data_key, char **ret_file, char **ret_pem, struct error *e)
{
    auto_free char *data = NULL;
    auto_free char *pem = NULL;
    size_t len = 0;

    if (text_of(p, data_key, &data, e) < 0)
        return -1;
    if (data == NULL)
        return path_of(p, key, ret_file, e);
    if (!base64_decode(data, strlen(data), &pem, &len))
        return complain(p, cJSON_GetObjectItemCaseSensitive(p->map, data_key), data_key, "is not base64", e);
    if (strlen(pem) != len || strstr(pem, "-----BEGIN ") == NULL)
        return complain(p, cJSON_GetObjectItemCaseSensitive(p->map, data_key), data_key,
                        "holds no PEM text; it must be the base64 of a file that has -----BEGIN in it", e);
    *ret_pem = TAKE(pem);
    return 0;
}

/* ---- named entries ----------------------------------------------------------------------------------------------------- */

/* The first file that has the name wins as a whole, as with kubectl. */
static bool find(const struct docs *d, const char *list, const char *inner, const char *name, struct part *ret)
{
    for (size_t i = 0; i < d->count; i++) {
        const cJSON *entry, *entries = cJSON_GetObjectItemCaseSensitive(yaml_tree(d->docs[i], 0), list);
        cJSON_ArrayForEach(entry, entries) {
            const cJSON *its = cJSON_GetObjectItemCaseSensitive(entry, "name");
            if (!cJSON_IsString(its) || strcmp(its->valuestring, name) != 0)
                continue;
            const cJSON *map = cJSON_GetObjectItemCaseSensitive(entry, inner);
            *ret = (struct part){ .path = d->files[i].path, .doc = d->docs[i], .map = cJSON_IsObject(map) ? map : NULL,
                                  .list = list, .name = name, .what = inner };
            return true;
        }
    }
    return false;
}

static void add_names(const struct docs *d, const char *list, struct buf *text)
{
    for (size_t i = 0; i < d->count; i++) {
        const cJSON *entry, *entries = cJSON_GetObjectItemCaseSensitive(yaml_tree(d->docs[i], 0), list);
        cJSON_ArrayForEach(entry, entries)
            buf_addf(text, "%s%s", text->len > 0 ? ", " : "", json_text(entry, "name", "(no name)"));
    }
}

static int find_or_fail(const struct docs *d, const char *list, const char *inner, const char *name, const char *wanted_by,
                        struct part *ret, struct error *e)
{
    if (find(d, list, inner, name, ret)) {
        if (ret->map == NULL && strcmp(inner, "user") != 0)
            return error_set(e, ERROR_INVALID, "%s: %s[name=%s] has no \"%s\" with its settings", ret->path, list, name, inner);
        return 0;
    }
    auto_buf struct buf names = BUF_INIT(120);
    add_names(d, list, &names);
    return error_set(e, ERROR_NOT_FOUND, "%s: %s wants %s \"%s\", which is not in `%s`; there is: %s", d->files[0].path, wanted_by, inner,
                     name, list, names.len > 0 ? buf_text(&names) : buf_ok(&names) ? "none" : "(many)");
}

/* ---- cluster, user, exec ----------------------------------------------------------------------------------------------- */

static int check_server(const struct part *p, char *server, struct error *e)
{
    size_t len = strlen(server);

    if (strncmp(server, "https://", 8) != 0 && strncmp(server, "http://", 7) != 0)
        return complain(p, NULL, "server", "must begin with https:// (or http://)", e);
    if (len > 1024 || server[strcspn(server, " \t\r\n\"<>\\^`{|}?#@")] != '\0')
        return complain(p, NULL, "server", "must be a scheme, a host, a port and perhaps a path, and nothing else", e);
    for (const char *c = server; *c != '\0'; c++)
        if ((unsigned char)*c < 0x20 || (unsigned char)*c >= 0x7f)
            return complain(p, NULL, "server", "must be plain ASCII", e);
    const char *host = strstr(server, "://") + 3;
    if (*host == '\0' || *host == '/' || *host == ':')
        return complain(p, NULL, "server", "has no host", e);
    while (server[len - 1] == '/')
        server[--len] = '\0';
    return 0;
}

static int read_cluster(const struct part *p, struct kube_config *c, struct error *e)
{
    if (text_of(p, "server", &c->server, e) < 0 || text_of(p, "tls-server-name", &c->tls_server_name, e) < 0 ||
        text_of(p, "proxy-url", &c->proxy_url, e) < 0 || bool_of(p, "insecure-skip-tls-verify", &c->insecure, e) < 0 ||
        pem_of(p, "certificate-authority", "certificate-authority-data", &c->ca_file, &c->ca_pem, e) < 0)
        return -1;
    if (c->server == NULL)
        return complain(p, NULL, "server", "is missing: where is the API server?", e);
    if (c->insecure && (c->ca_file != NULL || c->ca_pem != NULL))
        return complain(p, NULL, "insecure-skip-tls-verify", "and a certificate-authority exclude each other", e);
    return check_server(p, c->server, e);
}

static int read_exec_lists(const struct part *p, struct kube_exec *x, struct error *e)
{
    const cJSON *args = cJSON_GetObjectItemCaseSensitive(p->map, "args"), *env = cJSON_GetObjectItemCaseSensitive(p->map, "env"), *item;

    if ((args != NULL && !cJSON_IsNull(args) && !cJSON_IsArray(args)) || cJSON_GetArraySize(args) > ARGS_MAX)
        return complain(p, args, "args", "must be a list of text, not too long", e);
    if ((env != NULL && !cJSON_IsNull(env) && !cJSON_IsArray(env)) || cJSON_GetArraySize(env) > ARGS_MAX)
        return complain(p, env, "env", "must be a list of name and value, not too long", e);
    x->args = xcalloc((size_t)cJSON_GetArraySize(args) + 1, sizeof *x->args);
    x->env = xcalloc((size_t)cJSON_GetArraySize(env) + 1, sizeof *x->env);
    cJSON_ArrayForEach(item, args) {
        if (!cJSON_IsString(item))
            return complain(p, item, "args", "must be a list of text; put numbers in quotes", e);
        x->args[x->arg_count++] = xstrdup(item->valuestring);
    }
    cJSON_ArrayForEach(item, env) {
        const char *name = json_text(item, "name", ""), *value = json_text(item, "value", "");
        if (name[0] == '\0' || strchr(name, '=') != NULL)
            return complain(p, item, "env", "needs a name without '=' for each entry", e);
        x->env[x->env_count++] = (struct kube_exec_env){ .name = xstrdup(name), .value = xstrdup(value) };
    }
    return 0;
}

static int read_exec(const struct part *user, const cJSON *map, struct kube_config *c, struct error *e)
{
    struct part p = *user;
    auto_free char *command = NULL;
    auto_free char *mode = NULL;

    p.map = map;
    c->exec = xcalloc(1, sizeof *c->exec);
    struct kube_exec *x = c->exec;
    if (text_of(&p, "command", &command, e) < 0 || text_of(&p, "apiVersion", &x->api_version, e) < 0 ||
        text_of(&p, "interactiveMode", &mode, e) < 0 || text_of(&p, "installHint", &x->install_hint, e) < 0 ||
        bool_of(&p, "provideClusterInfo", &x->cluster_info, e) < 0)
        return -1;
    if (command == NULL)
        return complain(&p, NULL, "exec.command", "is missing", e);
    if (x->api_version == NULL || (strcmp(x->api_version, "client.authentication.k8s.io/v1") != 0 &&
                                   strcmp(x->api_version, "client.authentication.k8s.io/v1beta1") != 0))
        return complain(&p, NULL, "exec.apiVersion", "must be client.authentication.k8s.io/v1 or /v1beta1", e);
    x->command = strchr(command, '/') != NULL ? resolved(&p, command) : xstrdup(command);
    x->interactive = mode != NULL && strcmp(mode, "Never") != 0;
    return read_exec_lists(&p, x, e);
}

static int read_user(const struct part *p, struct kube_config *c, struct error *e)
{
    static const char *const UNKNOWN[] = { "auth-provider", "as-groups", "as-uid", "as-user-extra" };
    const cJSON *exec = cJSON_GetObjectItemCaseSensitive(p->map, "exec");

    if (p->map == NULL)
        return 0; /* a user without anything: no credentials */
    for (size_t i = 0; i < COUNT(UNKNOWN); i++)
        if (json_at(p->map, UNKNOWN[i]) != NULL)
            return complain(p, json_at(p->map, UNKNOWN[i]), UNKNOWN[i],
                            i == 0 ? "is a way of old that Kubernetes 1.26 removed; use an exec plugin" : "is not supported", e);
    if (pem_of(p, "client-certificate", "client-certificate-data", &c->cert_file, &c->cert_pem, e) < 0 ||
        pem_of(p, "client-key", "client-key-data", &c->key_file, &c->key_pem, e) < 0 || text_of(p, "token", &c->token, e) < 0 ||
        path_of(p, "tokenFile", &c->token_file, e) < 0 || text_of(p, "username", &c->username, e) < 0 ||
        text_of(p, "password", &c->password, e) < 0 || text_of(p, "as", &c->impersonate, e) < 0)
        return -1;
    if ((c->cert_file != NULL || c->cert_pem != NULL) != (c->key_file != NULL || c->key_pem != NULL))
        return complain(p, NULL, c->cert_file != NULL || c->cert_pem != NULL ? "client-key" : "client-certificate",
                        "is missing: a certificate and its key go together", e);
    if (exec == NULL || cJSON_IsNull(exec))
        return 0;
    if (!cJSON_IsObject(exec))
        return complain(p, exec, "exec", "must be a mapping", e);
    return read_exec(p, exec, c, e);
}

/* ---- all of it --------------------------------------------------------------------------------------------------------- */

static int choose_context(const struct docs *d, const char *context, char **ret_name, struct error *e)
{
    if (context != NULL && context[0] != '\0') {
        *ret_name = xstrdup(context);
        return 0;
    }
    for (size_t i = 0; i < d->count && *ret_name == NULL; i++) {
        struct part p = { .path = d->files[i].path, .doc = d->docs[i], .map = yaml_tree(d->docs[i], 0), .what = "file", .name = "" };
        if (text_of(&p, "current-context", ret_name, e) < 0)
            return -1;
    }
    if (*ret_name != NULL)
        return 0;
    auto_buf struct buf names = BUF_INIT(120);
    add_names(d, "contexts", &names);
    return error_set(e, ERROR_INVALID, "%s: no current-context is set; choose one with --context: %s", d->files[0].path,
                     names.len > 0 ? buf_text(&names) : "there is none");
}

static int resolve(const struct docs *d, const char *context, struct kube_config *c, struct error *e)
{
    struct part in_context, in_cluster, in_user;

    if (choose_context(d, context, &c->context, e) < 0 ||
        find_or_fail(d, "contexts", "context", c->context, context != NULL ? "--context" : "current-context", &in_context, e) < 0 ||
        text_of(&in_context, "cluster", &c->cluster, e) < 0 || text_of(&in_context, "user", &c->user, e) < 0 ||
        text_of(&in_context, "namespace", &c->ns, e) < 0)
        return -1;
    if (c->cluster == NULL)
        return complain(&in_context, NULL, "cluster", "is missing: which cluster?", e);
    if (c->ns == NULL)
        c->ns = xstrdup("default");
    if (find_or_fail(d, "clusters", "cluster", c->cluster, "the context", &in_cluster, e) < 0 || read_cluster(&in_cluster, c, e) < 0)
        return -1;
    if (c->user == NULL) {
        c->user = xstrdup("");
        return 0;
    }
    return find_or_fail(d, "users", "user", c->user, "the context", &in_user, e) < 0 ? -1 : read_user(&in_user, c, e);
}

static int parse_docs(struct docs *d, const struct kube_config_text *files, size_t count, struct error *e)
{
    for (size_t i = 0; i < count; i++) {
        if (files[i].len > KUBE_CONFIG_MAX_BYTES)
            return error_set(e, ERROR_LIMIT, "%s: a kubeconfig of more than %u bytes", files[i].path, KUBE_CONFIG_MAX_BYTES);
        if (yaml_parse(files[i].path, files[i].text, files[i].len, &d->docs[i], e) < 0)
            return -1;
        d->count = i + 1;
        size_t n = yaml_count(d->docs[i]);
        if (n > 1 || (n == 1 && !cJSON_IsObject(yaml_tree(d->docs[i], 0)) && !cJSON_IsNull(yaml_tree(d->docs[i], 0))))
            return error_set(e, ERROR_INVALID, "%s: not a kubeconfig: it must be one YAML mapping", files[i].path);
    }
    return 0;
}

int kube_config_parse(const struct kube_config_text *files, size_t count, const char *context, struct kube_config **ret, struct error *e)
{
    auto_kube_config struct kube_config *c = xcalloc(1, sizeof *c);
    struct docs d = { .files = files, .docs = xcalloc(count + 1, sizeof(struct yaml_doc *)), .count = 0 };

    int code = count == 0 ? error_set(e, ERROR_INVALID, "no kubeconfig is given") : parse_docs(&d, files, count, e);
    if (code == 0)
        code = resolve(&d, context, c, e);
    for (size_t i = 0; i < d.count; i++)
        yaml_doc_free(d.docs[i]);
    free(d.docs);
    if (code == 0)
        *ret = TAKE(c);
    return code;
}
