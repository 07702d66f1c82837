#include "kube/credentials.h"

#include <stdlib.h>
#include <string.h>

#include "base/crypto.h"
#include "base/fs.h"
#include "base/mem.h"

#define TOKEN_AGE_MS 60000     /* the kubelet rotates a token long before it expires */
#define REREAD_AT_MOST_MS 1000
#define PLUGIN_AT_MOST_MS 10000
#define EXPIRES_EARLY_MS 10000

static void set_token(struct kube_credentials *c, char *token /* taken */)
{
    if (c->token != NULL)
        crypto_wipe(c->token, strlen(c->token));
    free(c->token);
    c->token = token;
}

/* It goes into a header: what would end the header there is no token. */
static int check_token(const char *token, const char *where, struct error *e)
{
    for (const char *p = token; *p != '\0'; p++)
        if ((unsigned char)*p <= 0x20 || (unsigned char)*p >= 0x7f)
            return error_set(e, ERROR_INVALID, "%s holds no token: a token has no blanks, line ends or other such characters", where);
    return token[0] != '\0' ? 0 : error_set(e, ERROR_INVALID, "%s holds no token: it is empty", where);
}

static int read_token_file(struct kube_credentials *c, struct error *e)
{
    auto_free char *token = NULL;
    size_t len;

    if (fs_read(c->config->token_file, KUBE_TOKEN_MAX_BYTES, &token, &len, e) < 0)
        return error_wrap(e, "token");
    while (len > 0 && strchr(" \t\r\n", token[len - 1]) != NULL)
        token[--len] = '\0';
    if (check_token(token, c->config->token_file, e) < 0)
        return -1;
    set_token(c, TAKE(token));
    return 0;
}

static int run_plugin(struct kube_credentials *c, struct error *e)
{
    struct kube_credential fresh;

    if (kube_exec_run(c->config, &fresh, e) < 0)
        return -1;
    if (fresh.token != NULL && check_token(fresh.token, c->config->exec->command, e) < 0) {
        kube_credential_release(&fresh);
        return -1;
    }
    kube_credential_release(&c->plugin);
    c->plugin = fresh;
    set_token(c, xstrdup(fresh.token));
    return 0;
}

int kube_credentials_init(struct kube_credentials *c, const struct kube_config *config, int64_t now_ms, int64_t wall_ms, struct error *e)
{
    (void)wall_ms;
    *c = (struct kube_credentials){ .config = config, .token = NULL, .read_ms = now_ms };
    if (config->token_file != NULL)
        return read_token_file(c, e);
    if (config->token != NULL) {
        if (check_token(config->token, "the user's token in the kubeconfig", e) < 0)
            return -1;
        set_token(c, xstrdup(config->token));
        return 0;
    }
    /* A plugin is asked only where there is nothing else, as kubectl does. */
    return config->exec != NULL && config->cert_file == NULL && config->cert_pem == NULL ? run_plugin(c, e) : 0;
}

void kube_credentials_refresh(struct kube_credentials *c, int64_t now_ms, int64_t wall_ms)
{
    int64_t age = now_ms - c->read_ms;
    struct error unread;

    if (c->config->token_file != NULL) {
        if (age < (c->stale ? REREAD_AT_MOST_MS : TOKEN_AGE_MS))
            return;
        (void)read_token_file(c, &unread);
    } else if (c->plugin.token != NULL || c->plugin.cert_pem != NULL) {
        bool expired = c->plugin.expires_wall_ms != 0 && wall_ms + EXPIRES_EARLY_MS >= c->plugin.expires_wall_ms;
        if (age < PLUGIN_AT_MOST_MS || (!expired && !c->stale))
            return;
        (void)run_plugin(c, &unread);
    }
    c->read_ms = now_ms;
    c->stale = false;
}

void kube_credentials_release(struct kube_credentials *c)
{
    set_token(c, NULL);
    kube_credential_release(&c->plugin);
}
