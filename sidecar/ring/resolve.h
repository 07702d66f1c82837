/*
 * resolve.h — names to addresses without blocking the loop. An address literal is read at once; a name is looked up on a thread
 * of its own, because getaddrinfo may take many seconds. A cancelled look-up's thread ends by itself.
 */
#ifndef SIDECAR_RING_RESOLVE_H
#define SIDECAR_RING_RESOLVE_H

#include <netdb.h>

#include "base/loop.h"

/* addresses: owned by the callee (freeaddrinfo); NULL: why says what is wrong. Called from the loop, never from resolve_start. */
typedef void resolve_done_fn(void *ctx, struct addrinfo *addresses, const struct error *why);

struct resolve;

/* host may stand in brackets ("[::1]"). */
MUST_CHECK int resolve_start(struct loop *l, const char *host, int32_t port, resolve_done_fn *done, void *ctx,
                             struct resolve **ret, struct error *e);
void resolve_cancel(struct resolve *r); /* before done; NULL is fine */
/* 1: it was an address literal and *ret_addresses is filled; 0: it is a name. Never blocks. */
int resolve_literal(const char *host, int32_t port, struct addrinfo **ret_addresses);

/* "10.0.0.7:7777", "[::1]:7777". */
#define RESOLVE_TEXT_MAX 80
const char *resolve_text(const struct sockaddr *address, socklen_t len, char ret_text[RESOLVE_TEXT_MAX]);

#endif
