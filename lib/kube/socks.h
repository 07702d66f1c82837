/*
 * socks.h — the sockets of libcurl's multi interface on the loop, and when each was last heard of. One thread, the loop's.
 */
#ifndef KUBE_SOCKS_H
#define KUBE_SOCKS_H

#include <curl/curl.h>
#include <stdint.h>

#include "base/loop.h"

struct kube_sock;

struct kube_socks {
    struct loop *loop;
    struct kube_sock *first;
    /* Something came, or may go: mask is for curl_multi_socket_action. May end in kube_socks_watch for the same socket. */
    void (*ready)(void *ctx, int fd, int mask);
    void *ctx;
};

/* What CURLMOPT_SOCKETFUNCTION is told: `what` is CURL_POLL_*, `known` what was assigned to the socket before, or NULL. */
void kube_socks_watch(struct kube_socks *s, CURLM *multi, curl_socket_t fd, int what, void *known);
/* Shuts those down that have said nothing since then: libcurl takes a new connection for what comes next. */
void kube_socks_cut_silent(struct kube_socks *s, int64_t since_ms);
void kube_socks_release(struct kube_socks *s);

#endif
