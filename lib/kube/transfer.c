#include "kube/transfer.h"

#include <assert.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/mem.h"

#define CONNECT_TIMEOUT_MS 10000L
#define DEAD_PATH_MS 30000 /* unacknowledged bytes: the kernel gives the connection up */

/* ---- where ------------------------------------------------------------------------------------------------------------- */

/* With a tls_server_name the URL names that host, so that it is the one asked for and verified, while the connection goes to the
 * server's own address and the Host header stays the server's. */
static int split_server(struct kube_endpoint *c, struct error *e)
{
    const struct kube_config *g = c->config;

    if (g->tls_server_name == NULL) {
        c->base = xstrdup(g->server);
        return 0;
    }
    CURLU *url = curl_url();
    char *host = NULL, *port = NULL, *full = NULL;
    if (url == NULL || curl_url_set(url, CURLUPART_URL, g->server, 0) != CURLUE_OK ||
        curl_url_get(url, CURLUPART_HOST, &host, 0) != CURLUE_OK || curl_url_get(url, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT) != CURLUE_OK ||
        curl_url_set(url, CURLUPART_HOST, g->tls_server_name, 0) != CURLUE_OK || curl_url_get(url, CURLUPART_URL, &full, 0) != CURLUE_OK) {
        (void)error_set(e, ERROR_INVALID, "server %s or tls-server-name %s of cluster \"%s\" is no host", g->server, g->tls_server_name,
                        g->cluster);
    } else {
        auto_free char *to = xasprintf("%s:%s:%s:%s", g->tls_server_name, port, host, port);
        c->connect_to = curl_slist_append(NULL, to);
        c->host_header = xasprintf("%s:%s", host, port);
        c->base = xstrdup(full);
        size_t len = strlen(c->base);
        while (len > 0 && c->base[len - 1] == '/')
            c->base[--len] = '\0';
    }
    curl_free(host);
    curl_free(port);
    curl_free(full);
    curl_url_cleanup(url);
    return c->base != NULL ? 0 : -1;
}

int kube_endpoint_init(struct kube_endpoint *at, const struct kube_config *config, const char *user_agent, struct error *e)
{
    *at = (struct kube_endpoint){ .config = config, .user_agent = xstrdup(user_agent) };
    return split_server(at, e);
}

void kube_endpoint_release(struct kube_endpoint *at)
{
    free(at->user_agent);
    free(at->base);
    free(at->host_header);
    curl_slist_free_all(at->connect_to);
}

/* ---- how --------------------------------------------------------------------------------------------------------------- */

static int on_socket_made(void *ctx, curl_socket_t fd, curlsocktype purpose)
{
    unsigned dead_path = DEAD_PATH_MS;

    (void)ctx;
    if (purpose == CURLSOCKTYPE_IPCXN)
        (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &dead_path, sizeof dead_path);
    return CURL_SOCKOPT_OK;
}

#define SET(easy, option, value) \
    do { \
        CURLcode set_code = curl_easy_setopt((easy), (option), (value)); \
        assert(set_code == CURLE_OK || set_code == CURLE_NOT_BUILT_IN || set_code == CURLE_UNKNOWN_OPTION); \
    } while (0)

/* `copied`: the text may go while the transfer lasts. */
static void set_blob(CURL *easy, CURLoption option, const char *pem, bool copied)
{
    struct curl_blob blob = { .data = (void *)(uintptr_t)pem, .len = strlen(pem), .flags = copied ? CURL_BLOB_COPY : CURL_BLOB_NOCOPY };

    SET(easy, option, &blob);
}

static void set_tls(CURL *easy, const struct kube_config *g, const struct kube_credentials *c)
{
    const char *cert_pem = g->cert_pem != NULL ? g->cert_pem : c->plugin.cert_pem;
    const char *key_pem = g->key_pem != NULL ? g->key_pem : c->plugin.key_pem;

    SET(easy, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    SET(easy, CURLOPT_SSL_VERIFYPEER, g->insecure ? 0L : 1L);
    SET(easy, CURLOPT_SSL_VERIFYHOST, g->insecure ? 0L : 2L);
    if (g->ca_pem != NULL || g->ca_file != NULL)
        SET(easy, CURLOPT_CAPATH, NULL);
    if (g->ca_pem != NULL) {
        SET(easy, CURLOPT_CAINFO, NULL);
        set_blob(easy, CURLOPT_CAINFO_BLOB, g->ca_pem, false);
    } else if (g->ca_file != NULL) {
        SET(easy, CURLOPT_CAINFO, g->ca_file);
        SET(easy, CURLOPT_CA_CACHE_TIMEOUT, 60L); /* a rotated file is read again */
    }
    if (g->cert_file != NULL)
        SET(easy, CURLOPT_SSLCERT, g->cert_file);
    else if (cert_pem != NULL)
        set_blob(easy, CURLOPT_SSLCERT_BLOB, cert_pem, cert_pem != g->cert_pem);
    if (g->key_file != NULL)
        SET(easy, CURLOPT_SSLKEY, g->key_file);
    else if (key_pem != NULL)
        set_blob(easy, CURLOPT_SSLKEY_BLOB, key_pem, key_pem != g->key_pem);
}

static void add_header(struct curl_slist **headers, const char *name, const char *value)
{
    auto_free char *header = value != NULL ? xasprintf("%s: %s", name, value) : xasprintf("%s:", name);
    struct curl_slist *list = curl_slist_append(*headers, header);

    assert(list != NULL);
    *headers = list;
}

static struct curl_slist *headers_of(const struct kube_endpoint *at, const struct kube_credentials *who, const struct kube_http *http)
{
    struct curl_slist *headers = NULL;

    add_header(&headers, "Accept", http->accept);
    if (http->body != NULL) {
        add_header(&headers, "Content-Type", http->content_type);
        add_header(&headers, "Expect", NULL); /* no asking before a large body */
    }
    if (who->token != NULL) {
        auto_free char *bearer = xasprintf("Bearer %s", who->token);
        add_header(&headers, "Authorization", bearer);
    }
    if (at->config->impersonate != NULL)
        add_header(&headers, "Impersonate-User", at->config->impersonate);
    if (at->host_header != NULL)
        add_header(&headers, "Host", at->host_header);
    return headers;
}

struct curl_slist *kube_transfer_set(CURL *easy, const struct kube_endpoint *at, const struct kube_credentials *who, const struct kube_http *http)
{
    auto_free char *url = xasprintf("%s%s", at->base, http->target);
    struct curl_slist *headers = headers_of(at, who, http);

    SET(easy, CURLOPT_URL, url);
    SET(easy, CURLOPT_HTTPHEADER, headers);
    SET(easy, CURLOPT_NOSIGNAL, 1L);
    SET(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    SET(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_2TLS);
    /* Without TLS there is no HTTP/2, and libcurl would let every request wait for the end of the first one: of a watch. */
    SET(easy, CURLOPT_PIPEWAIT, strncmp(at->base, "https:", 6) == 0 ? 1L : 0L);
    SET(easy, CURLOPT_CONNECTTIMEOUT_MS, CONNECT_TIMEOUT_MS);
    SET(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    SET(easy, CURLOPT_TCP_KEEPIDLE, 15L);
    SET(easy, CURLOPT_TCP_KEEPINTVL, 5L);
    SET(easy, CURLOPT_SOCKOPTFUNCTION, on_socket_made);
    SET(easy, CURLOPT_USERAGENT, at->user_agent);
    if (at->connect_to != NULL)
        SET(easy, CURLOPT_CONNECT_TO, at->connect_to);
    if (at->config->proxy_url != NULL)
        SET(easy, CURLOPT_PROXY, at->config->proxy_url);
    if (at->config->username != NULL) {
        SET(easy, CURLOPT_HTTPAUTH, CURLAUTH_BASIC);
        SET(easy, CURLOPT_USERNAME, at->config->username);
        SET(easy, CURLOPT_PASSWORD, at->config->password != NULL ? at->config->password : "");
    }
    if (http->body != NULL) {
        SET(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(http->body));
        SET(easy, CURLOPT_POSTFIELDS, http->body);
    }
    if (strcmp(http->method, "GET") != 0)
        SET(easy, CURLOPT_CUSTOMREQUEST, http->method);
    set_tls(easy, at->config, who);
    return headers;
}
