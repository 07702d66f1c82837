/*
 * transfer.h — a request as the options of one of curl's handles: where it goes, who asks, by which TLS. Internal to client.c.
 */
#ifndef KUBE_TRANSFER_H
#define KUBE_TRANSFER_H

#include <curl/curl.h>

#include "kube/credentials.h"
#include "kube/request.h"

struct kube_endpoint {
    const struct kube_config *config;
    char *user_agent;
    char *base;                    /* the URL in front of every target */
    char *host_header;             /* with a tls_server_name; so the next one; else NULL */
    struct curl_slist *connect_to;
};

/* A failed init is released too. */
MUST_CHECK int kube_endpoint_init(struct kube_endpoint *at, const struct kube_config *config, const char *user_agent, struct error *e);
void kube_endpoint_release(struct kube_endpoint *at);

/* Sets everything but the callbacks and the deadline. The headers are the caller's, and live as long as the transfer; so do
 * `http` and `at`. */
struct curl_slist *kube_transfer_set(CURL *easy, const struct kube_endpoint *at, const struct kube_credentials *who, const struct kube_http *http);

#endif
