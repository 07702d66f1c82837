/* Credential plugins: what they print, and how they are run (KEP-541). */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base64.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/crypto.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/mem.h"
#include "kube/config.h"

#define DEADLINE_MS 30000
#define DEADLINE_ASKING_MS (5 * 60 * 1000)

/* ---- what it printed --------------------------------------------------------------------------------------------------- */

static void wipe_free(char *secret)
{
    if (secret != NULL)
        crypto_wipe(secret, strlen(secret));
    free(secret);
}

void kube_credential_release(struct kube_credential *c)
{
    wipe_free(c->token);
    free(c->cert_pem);
    wipe_free(c->key_pem);
    *c = (struct kube_credential){ .token = NULL };
}

static char *text_or_null(const cJSON *tree, const char *path)
{
    const char *text = json_text(tree, path, "");

    return text[0] != '\0' ? xstrdup(text) : NULL;
}

int kube_credential_parse(const char *text, size_t len, const char *api_version, struct kube_credential *ret, struct error *e)
{
    auto_json cJSON *tree = NULL;

    if (json_parse(text, len, &tree, e) < 0)
        return error_wrap(e, "what it printed is no ExecCredential");
    if (strcmp(json_text(tree, "kind", ""), "ExecCredential") != 0)
        return error_set(e, ERROR_INVALID, "what it printed is no ExecCredential but a \"%.40s\"", json_text(tree, "kind", ""));
    if (strcmp(json_text(tree, "apiVersion", ""), api_version) != 0)
        return error_set(e, ERROR_INVALID, "it printed apiVersion \"%.60s\", the kubeconfig says %s", json_text(tree, "apiVersion", ""),
                         api_version);
    struct kube_credential c = { .token = text_or_null(tree, "status.token"), .cert_pem = text_or_null(tree, "status.clientCertificateData"),
                                 .key_pem = text_or_null(tree, "status.clientKeyData"), .expires_wall_ms = 0 };
    const char *expires = json_text(tree, "status.expirationTimestamp", NULL);
    int code = 0;
    if (c.token == NULL && c.cert_pem == NULL)
        code = error_set(e, ERROR_INVALID, "it printed neither a token nor a client certificate");
    else if ((c.cert_pem == NULL) != (c.key_pem == NULL))
        code = error_set(e, ERROR_INVALID, "it printed a client certificate without its key, or a key without certificate");
    else if (expires != NULL && clock_parse(expires, &c.expires_wall_ms) < 0)
        code = error_set(e, ERROR_INVALID, "its expirationTimestamp \"%.60s\" is no RFC 3339 time", expires);
    if (code == 0)
        *ret = c;
    else
        kube_credential_release(&c);
    return code;
}

/* ---- how it is run ----------------------------------------------------------------------------------------------------- */

static char *exec_info(const struct kube_config *config, bool interactive)
{
    auto_json cJSON *info = json_object();
    cJSON *spec = json_object();

    json_put_text(info, "apiVersion", config->exec->api_version);
    json_put_text(info, "kind", "ExecCredential");
    json_put(info, "spec", spec);
    json_put_bool(spec, "interactive", interactive);
    if (config->exec->cluster_info) {
        cJSON *cluster = json_object();
        json_put(spec, "cluster", cluster);
        json_put_text(cluster, "server", config->server);
        json_put_text(cluster, "tls-server-name", config->tls_server_name);
        if (config->insecure)
            json_put_bool(cluster, "insecure-skip-tls-verify", true);
        auto_free char *read = NULL;
        size_t len = config->ca_pem != NULL ? strlen(config->ca_pem) : 0;
        struct error unread;
        if (config->ca_file != NULL && fs_read(config->ca_file, KUBE_CONFIG_MAX_BYTES, &read, &len, &unread) < 0)
            len = 0;
        auto_free char *data = base64_encode(read != NULL ? read : config->ca_pem, len);
        if (len > 0)
            json_put_text(cluster, "certificate-authority-data", data);
    }
    return json_print(info, false);
}

static bool sets(const struct kube_exec *x, const char *entry)
{
    size_t len = strcspn(entry, "=");

    for (size_t i = 0; i < x->env_count; i++)
        if (strlen(x->env[i].name) == len && strncmp(x->env[i].name, entry, len) == 0)
            return true;
    return len == strlen("KUBERNETES_EXEC_INFO") && strncmp(entry, "KUBERNETES_EXEC_INFO", len) == 0;
}

/* Our environment, the plugin's additions, and what it is asked for. */
static char **environment_of(const struct kube_config *config, bool interactive)
{
    const struct kube_exec *x = config->exec;
    size_t count = 0, used = 0;

    while (environ[count] != NULL)
        count++;
    char **env = xcalloc(count + x->env_count + 2, sizeof(char *));
    for (size_t i = 0; i < count; i++)
        if (!sets(x, environ[i]))
            env[used++] = xstrdup(environ[i]);
    for (size_t i = 0; i < x->env_count; i++)
        env[used++] = xasprintf("%s=%s", x->env[i].name, x->env[i].value);
    auto_free char *info = exec_info(config, interactive);
    env[used] = xasprintf("KUBERNETES_EXEC_INFO=%s", info);
    return env;
}

static int start(const struct kube_config *config, bool interactive, int out_fd, pid_t *ret_pid, struct error *e)
{
    const struct kube_exec *x = config->exec;
    posix_spawn_file_actions_t actions;
    char **argv = xcalloc(x->arg_count + 2, sizeof(char *));
    char **env = environment_of(config, interactive);

    argv[0] = x->command;
    for (size_t i = 0; i < x->arg_count; i++)
        argv[i + 1] = x->args[i];
    (void)posix_spawn_file_actions_init(&actions);
    if (!interactive)
        (void)posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    (void)posix_spawn_file_actions_adddup2(&actions, out_fd, STDOUT_FILENO);
    /* Our signals may be blocked for the loop; the plugin's are not. */
    posix_spawnattr_t attributes;
    sigset_t none;
    (void)sigemptyset(&none);
    (void)posix_spawnattr_init(&attributes);
    (void)posix_spawnattr_setsigmask(&attributes, &none);
    (void)posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    int code = posix_spawnp(ret_pid, x->command, &actions, &attributes, argv, env);
    (void)posix_spawnattr_destroy(&attributes);
    (void)posix_spawn_file_actions_destroy(&actions);
    for (char **at = env; *at != NULL; at++)
        wipe_free(*at);
    free(env);
    free(argv);
    if (code == 0)
        return 0;
    errno = code;
    (void)error_errno(e, "start %s", x->command);
    return code == ENOENT && x->install_hint != NULL ? error_wrap(e, "%.160s", x->install_hint) : -1;
}

static int read_output(int fd, int64_t deadline_ms, struct buf *out, struct error *e)
{
    char piece[4096];

    for (;;) {
        int64_t left = deadline_ms - clock_mono_ms();
        struct pollfd wait = { .fd = fd, .events = POLLIN };
        int n = left > 0 ? poll(&wait, 1, (int)left) : 0;
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return error_set(e, ERROR_TIMEOUT, "it did not end in time");
        ssize_t got = read(fd, piece, sizeof piece);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return error_errno(e, "read what it prints");
        if (got == 0)
            return 0;
        buf_add_bytes(out, piece, (size_t)got);
        if (!buf_ok(out))
            return error_set(e, ERROR_LIMIT, "it printed more than %u bytes", KUBE_CONFIG_MAX_BYTES);
    }
}

static int run(const struct kube_config *config, struct buf *out, struct error *e)
{
    bool interactive = config->exec->interactive && isatty(STDIN_FILENO);
    int fds[2];
    pid_t pid;

    if (pipe2(fds, O_CLOEXEC) != 0)
        return error_errno(e, "make a pipe");
    auto_close int read_fd = fds[0];
    auto_close int write_fd = fds[1];
    if (start(config, interactive, write_fd, &pid, e) < 0)
        return -1;
    (void)close(TAKE_FD(write_fd));
    int code = read_output(read_fd, clock_mono_ms() + (interactive ? DEADLINE_ASKING_MS : DEADLINE_MS), out, e);
    if (code < 0)
        (void)kill(pid, SIGKILL);
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (code == 0 && (!WIFEXITED(status) || WEXITSTATUS(status) != 0))
        return error_set(e, ERROR_DENIED, WIFEXITED(status) ? "it ended with code %d; what it said stands above" : "it was ended by signal %d",
                         WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    return code;
}

int kube_exec_run(const struct kube_config *config, struct kube_credential *ret, struct error *e)
{
    auto_buf struct buf out = BUF_INIT(KUBE_CONFIG_MAX_BYTES);

    if (run(config, &out, e) < 0 || kube_credential_parse(buf_text(&out), out.len, config->exec->api_version, ret, e) < 0)
        return error_wrap(e, "credential plugin %s of user \"%s\"", config->exec->command, config->user);
    crypto_wipe(out.text, out.len);
    return 0;
}
