#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fs.h"
#include "base/mem.h"
#include "kube/config.h"
#include "kube/credentials.h"

#define PEM "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCmFiYwotLS0tLUVORCBDRVJUSUZJQ0FURS0tLS0tCg==" /* -----BEGIN CERTIFICATE... */

#define FILE_OF(cluster, user) \
    "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts:\n- name: c\n  context: {cluster: k, user: u, namespace: team}\n" \
    "clusters:\n- name: k\n  cluster: " cluster "\nusers:\n- name: u\n  user: " user "\n"

static int parse(const char *text, const char *context, struct kube_config **ret, struct error *e)
{
    struct kube_config_text file = { .path = "kubeconfig", .text = text, .len = strlen(text) };

    return kube_config_parse(&file, 1, context, ret, e);
}

Test(config, holds_what_a_kubeconfig_says)
{
    auto_kube_config struct kube_config *c = NULL;
    struct error e = ERROR_INIT;

    cr_assert_eq(parse(FILE_OF("{server: 'https://10.0.0.1:6443/', certificate-authority-data: " PEM ", tls-server-name: kubernetes}",
                               "{client-certificate-data: " PEM ", client-key-data: " PEM ", as: admin}"), NULL, &c, &e), 0, "%s", e.text);
    cr_expect_str_eq(c->server, "https://10.0.0.1:6443", "without a slash at the end");
    cr_expect_str_eq(c->ns, "team");
    cr_expect_str_eq(c->tls_server_name, "kubernetes");
    cr_expect_str_eq(c->impersonate, "admin");
    cr_expect(strncmp(c->ca_pem, "-----BEGIN", 10) == 0 && strncmp(c->key_pem, "-----BEGIN", 10) == 0);
    cr_expect_null(c->token);
}

Test(config, the_first_file_that_has_a_name_wins)
{
    static const char ONE[] = "current-context: b\nclusters:\n- name: k\n  cluster: {server: 'https://first'}\n";
    static const char TWO[] = "current-context: a\nclusters:\n- name: k\n  cluster: {server: 'https://second'}\n"
                              "contexts:\n- name: a\n  context: {cluster: k}\n- name: b\n  context: {cluster: k, namespace: x}\n";
    struct kube_config_text files[] = { { "one", ONE, sizeof ONE - 1 }, { "empty", "", 0 }, { "two", TWO, sizeof TWO - 1 } };
    auto_kube_config struct kube_config *c = NULL;
    auto_kube_config struct kube_config *other = NULL;
    struct error e = ERROR_INIT;

    cr_assert_eq(kube_config_parse(files, COUNT(files), NULL, &c, &e), 0, "%s", e.text);
    cr_expect_str_eq(c->server, "https://first");
    cr_expect_str_eq(c->ns, "x");
    cr_expect_str_eq(c->user, "");
    cr_assert_eq(kube_config_parse(files, COUNT(files), "a", &other, &e), 0, "%s", e.text);
    cr_expect_str_eq(other->ns, "default");
}

#define SERVER "{server: 'https://h'}"
static const struct { const char *name, *text, *context; const char *says; } BAD[] = {
    { "no context chosen", "contexts:\n- name: a\n  context: {cluster: k}\n- name: b\n", NULL, "no current-context is set; choose one with --context: a, b" },
    { "a context that is not there", FILE_OF(SERVER, "{}"), "prod", "--context wants context \"prod\", which is not in `contexts`; there is: c" },
    { "a cluster that is not there", "current-context: c\ncontexts:\n- name: c\n  context: {cluster: k}\n", NULL, "wants cluster \"k\"" },
    { "a user that is not there", "current-context: c\ncontexts:\n- name: c\n  context: {cluster: k, user: me}\nclusters:\n- name: k\n  cluster: " SERVER,
      NULL, "wants user \"me\", which is not in `users`; there is: none" },
    { "no server", FILE_OF("{}", "{}"), NULL, "kubeconfig:9: cluster \"k\": server is missing" },
    { "a server without scheme", FILE_OF("{server: 'localhost:8080'}", "{}"), NULL, "must begin with https://" },
    { "a server with a password", FILE_OF("{server: 'https://a:b@h'}", "{}"), NULL, "nothing else" },
    { "a server with a line end", FILE_OF("{server: \"https://h\\r\\nX: y\"}", "{}"), NULL, "nothing else" },
    { "no host", FILE_OF("{server: 'https:///'}", "{}"), NULL, "server has no host" },
    { "a number for a name", FILE_OF("{server: 7}", "{}"), NULL, "server must be text" },
    { "not base64", FILE_OF("{server: 'https://h', certificate-authority-data: '###'}", "{}"), NULL, "is not base64" },
    { "base64 of nothing useful", FILE_OF("{server: 'https://h', certificate-authority-data: aGVsbG8=}", "{}"), NULL, "holds no PEM" },
    { "a file that is not there", FILE_OF("{server: 'https://h', certificate-authority: /no/such/file}", "{}"), NULL,
      "certificate-authority: /no/such/file: No such file" },
    { "insecure with an authority", FILE_OF("{server: 'https://h', insecure-skip-tls-verify: true, certificate-authority-data: " PEM "}", "{}"), NULL,
      "exclude each other" },
    { "a certificate without key", FILE_OF(SERVER, "{client-certificate-data: " PEM "}"), NULL, "client-key is missing" },
    { "a way of old", FILE_OF(SERVER, "{auth-provider: {name: gcp}}"), NULL, "use an exec plugin" },
    { "exec without command", FILE_OF(SERVER, "{exec: {apiVersion: client.authentication.k8s.io/v1}}"), NULL, "exec.command is missing" },
    { "exec of an old version", FILE_OF(SERVER, "{exec: {command: x, apiVersion: client.authentication.k8s.io/v1alpha1}}"), NULL, "exec.apiVersion" },
    { "exec with a number", FILE_OF(SERVER, "{exec: {command: x, apiVersion: client.authentication.k8s.io/v1, args: [7]}}"), NULL, "put numbers in quotes" },
    { "two documents", "a: b\n---\nc: d\n", NULL, "must be one YAML mapping" },
    { "a list", "- a\n", NULL, "must be one YAML mapping" },
    { "no YAML", "a: [", NULL, "kubeconfig:" },
    { "empty", "", NULL, "no current-context" },
};

Test(config, what_is_wrong_is_said_with_its_place_and_name)
{
    for (size_t i = 0; i < COUNT(BAD); i++) {
        struct kube_config *c = NULL;
        struct error e = ERROR_INIT;
        cr_expect_eq(parse(BAD[i].text, BAD[i].context, &c, &e), -1, "case %s", BAD[i].name);
        cr_expect(strstr(e.text, BAD[i].says) != NULL, "case %s: %s", BAD[i].name, e.text);
        kube_config_free(c);
    }
}

/* ---- files, environment, pods ---- */

static char dir[64];

static void make_dir(void)
{
    snprintf(dir, sizeof dir, "/tmp/kubeconfig-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
}

static void remove_dir(void)
{
    struct error e;

    cr_assert_eq(fs_remove_tree(dir, &e), 0);
}

TestSuite(files, .init = make_dir, .fini = remove_dir);

static char *put(const char *name, const char *text, mode_t mode)
{
    char *path = fs_join(dir, name);
    struct error e = ERROR_INIT;

    cr_assert_eq(fs_write_atomic(path, text, strlen(text), mode, &e), 0, "%s", e.text);
    return path;
}

Test(files, in_a_pod_it_is_the_service_account)
{
    auto_free char *token = put("token", "abc\n", 0600);
    auto_free char *ca = put("ca.crt", "x", 0600);
    auto_free char *ns = put("namespace", "ml\n", 0600);
    struct kube_config_source source = { .service_host = "fd00::1", .service_port = "443", .service_account_dir = dir };
    auto_kube_config struct kube_config *c = NULL;
    struct error e = ERROR_INIT;

    cr_assert_eq(kube_config_load(&source, &c, &e), 0, "%s", e.text);
    cr_expect_str_eq(c->server, "https://[fd00::1]:443");
    cr_expect_str_eq(c->ns, "ml");
    cr_expect_str_eq(c->token_file, token);
    cr_expect_str_eq(c->ca_file, ca);
    (void)unlink(token);
    struct kube_config *none = NULL;
    cr_expect_eq(kube_config_load(&source, &none, &e), -1);
    cr_expect(strstr(e.text, "automountServiceAccountToken") != NULL, "%s", e.text);
}

Test(files, paths_are_relative_to_the_file_that_names_them)
{
    auto_free char *ca = put("ca.pem", "x", 0600);
    auto_free char *config = put("config", FILE_OF("{server: 'https://h', certificate-authority: ca.pem}", "{}"), 0600);
    auto_free char *list = xasprintf("/no/such/file::%s", config);
    struct kube_config_source source = { .paths = list, .service_host = "ignored" };
    auto_kube_config struct kube_config *c = NULL;
    struct error e = ERROR_INIT;

    cr_assert_eq(kube_config_load(&source, &c, &e), 0, "%s", e.text);
    cr_expect_str_eq(c->ca_file, ca);
}

Test(files, none_is_said_with_what_to_do)
{
    struct kube_config *c = NULL;
    struct error e = ERROR_INIT;

    cr_expect_eq(kube_config_load(&(struct kube_config_source){ .home = dir }, &c, &e), -1);
    cr_expect(e.kind == ERROR_NOT_FOUND && strstr(e.text, "--kubeconfig") != NULL, "%s", e.text);
    cr_expect_eq(kube_config_load(&(struct kube_config_source){ .paths = "/no/a:/no/b" }, &c, &e), -1);
    cr_expect(strstr(e.text, "/no/a:/no/b") != NULL, "%s", e.text);
    cr_expect_eq(kube_config_load(&(struct kube_config_source){ .kubeconfig = "/no/a" }, &c, &e), -1);
    cr_expect(strstr(e.text, "/no/a") != NULL, "%s", e.text);
}

/* ---- credentials ---- */

Test(files, a_token_file_is_read_again_when_it_is_old_or_was_refused)
{
    auto_free char *token = put("token", "one\n", 0600);
    struct kube_config config = { .token_file = token };
    struct kube_credentials c;
    struct error e = ERROR_INIT;

    cr_assert_eq(kube_credentials_init(&c, &config, 1000, 0, &e), 0, "%s", e.text);
    free(put("token", "two", 0600));
    kube_credentials_refresh(&c, 30000, 0);
    cr_expect_str_eq(c.token, "one");
    kube_credentials_refresh(&c, 61000, 0);
    cr_expect_str_eq(c.token, "two");
    free(put("token", "three", 0600));
    c.stale = true;
    kube_credentials_refresh(&c, 61500, 0);
    cr_expect_str_eq(c.token, "two", "at most once a second");
    kube_credentials_refresh(&c, 62000, 0);
    cr_expect_str_eq(c.token, "three");
    free(put("token", "a\nX-Evil: 1", 0600));
    kube_credentials_refresh(&c, 200000, 0);
    cr_expect_str_eq(c.token, "three", "what is no token does not become one");
    (void)unlink(token);
    kube_credentials_refresh(&c, 400000, 0);
    cr_expect_str_eq(c.token, "three");
    kube_credentials_release(&c);
    cr_expect_eq(kube_credentials_init(&c, &config, 0, 0, &e), -1);
    kube_credentials_release(&c);
}

#define CREDENTIAL(status) "{\"kind\":\"ExecCredential\",\"apiVersion\":\"client.authentication.k8s.io/v1\",\"status\":" status "}"

static const struct { const char *name, *text, *says; } CREDENTIALS[] = {
    { "a token", CREDENTIAL("{\"token\":\"t\",\"expirationTimestamp\":\"2026-01-01T00:00:00Z\"}"), NULL },
    { "a certificate", CREDENTIAL("{\"clientCertificateData\":\"c\",\"clientKeyData\":\"k\"}"), NULL },
    { "nothing", CREDENTIAL("{}"), "neither a token nor" },
    { "half", CREDENTIAL("{\"clientCertificateData\":\"c\"}"), "without its key" },
    { "a strange time", CREDENTIAL("{\"token\":\"t\",\"expirationTimestamp\":\"soon\"}"), "RFC 3339" },
    { "another version", "{\"kind\":\"ExecCredential\",\"apiVersion\":\"client.authentication.k8s.io/v1beta1\"}", "the kubeconfig says" },
    { "another kind", "{\"kind\":\"Pod\"}", "but a \"Pod\"" },
    { "no JSON", "Please log in", "no ExecCredential" },
};

Test(config, credentials_of_plugins_are_checked)
{
    for (size_t i = 0; i < COUNT(CREDENTIALS); i++) {
        struct kube_credential c = { .token = NULL };
        struct error e = ERROR_INIT;
        int code = kube_credential_parse(CREDENTIALS[i].text, strlen(CREDENTIALS[i].text), "client.authentication.k8s.io/v1", &c, &e);
        cr_expect_eq(code == 0, CREDENTIALS[i].says == NULL, "case %s: %s", CREDENTIALS[i].name, e.text);
        cr_expect(CREDENTIALS[i].says == NULL || strstr(e.text, CREDENTIALS[i].says) != NULL, "case %s: %s", CREDENTIALS[i].name, e.text);
        kube_credential_release(&c);
    }
}

static int run_plugin(const char *script, struct kube_credential *ret, struct error *e)
{
    auto_free char *path = put("plugin", script, 0700);
    auto_free char *text = xasprintf(FILE_OF("{server: 'https://h'}", "{exec: {command: '%s', args: [give, it], env: [{name: WHO, value: me}], "
                                             "apiVersion: client.authentication.k8s.io/v1, provideClusterInfo: true, interactiveMode: Never}}"), path);
    auto_kube_config struct kube_config *c = NULL;

    cr_assert_eq(parse(text, NULL, &c, e), 0, "%s", e->text);
    return kube_exec_run(c, ret, e);
}

Test(files, a_plugin_is_run_with_its_arguments_environment_and_what_it_is_asked_for)
{
    struct kube_credential c;
    struct error e = ERROR_INIT;

    cr_assert_eq(run_plugin("#!/bin/sh\ncase \"$KUBERNETES_EXEC_INFO\" in *'\"server\":\"https://h\"'*) ;; *) exit 3;; esac\n"
                            "echo '{\"kind\":\"ExecCredential\",\"apiVersion\":\"client.authentication.k8s.io/v1\",\"status\":{\"token\":\"'$WHO-$1-$2'\"}}'\n",
                            &c, &e), 0, "%s", e.text);
    cr_expect_str_eq(c.token, "me-give-it");
    kube_credential_release(&c);
    cr_expect_eq(run_plugin("#!/bin/sh\nexit 7\n", &c, &e), -1);
    cr_expect(strstr(e.text, "code 7") != NULL && strstr(e.text, "of user \"u\"") != NULL, "%s", e.text);
    cr_expect_eq(run_plugin("#!/bin/sh\nyes\n", &c, &e), -1);
    cr_expect(e.kind == ERROR_LIMIT, "%s", e.text);
    cr_expect_eq(run_plugin("#!/no/such/interpreter\n", &c, &e), -1);
}
