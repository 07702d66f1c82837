/*
 * link.h — TCP connections between sidecars that have proved who they are.
 *
 * Both sides know the job's key; the handshake of wire/peer.h runs on the loop without blocking; until it is complete
 * nothing but its fixed-size structs is read. With `tls` what follows is encrypted (secure.h); both ends must want it. Used by the
 * engine and by the coordinator channel.
 */
#ifndef SIDECAR_RING_LINK_H
#define SIDECAR_RING_LINK_H

#include "base/loop.h"
#include "wire/peer.h"

struct link_identity { const uint8_t *key; const char *job_uid, *member; bool tls; }; /* copied by link_dial and link_accept */

/* fd >= 0: taken by the callee, non-blocking, handshake complete; peer is the other side's hello (acceptor) or who answered
 * (initiator: member and fence filled). fd -1: it failed, why says how. Called exactly once, on the loop's thread, never from
 * inside link_dial. Kinds: ERROR_GONE this side's (acceptor: the other side's) fence is old, ERROR_DENIED the other end could not
 * prove that it knows the key or belongs to another job, ERROR_TIMEOUT nothing came of it in time, ERROR_INVALID it speaks another
 * protocol. */
typedef void link_done_fn(void *ctx, int fd, const struct peer_hello *peer, const struct error *why);

struct link; /* a handshake under way */

/* Dials host:port (IPv4, IPv6, names; resolving is done off the loop), retrying with jitter until deadline_ms (monotonic). Only an
 * old fence ends it earlier: everything else (refused, no such name yet, another job's pod at a recycled address) may pass. */
MUST_CHECK int link_dial(struct loop *l, const struct link_identity *self, const char *host, int32_t port,
                         enum peer_purpose purpose, uint32_t lane, uint64_t fence, int64_t deadline_ms, link_done_fn *done,
                         void *ctx, struct link **ret_link, struct error *e);
/* Takes a connection that was just accepted. fence_now is what this side holds: an older hello (peer_fence_is_old) is refused.
 * What is returned serves link_cancel and may be ignored; NULL: it failed at once and done was called. */
struct link *link_accept(struct loop *l, const struct link_identity *self, int fd, uint64_t fence_now, int64_t timeout_ms,
                         link_done_fn *done, void *ctx);
void link_cancel(struct link *k); /* before done was called; done is not called then. NULL is fine */

/* Listening socket with SO_REUSEADDR, dual stack when host is NULL. "address in use" names the address and what to do. port 0:
 * the kernel chooses. Non-blocking. A host that is a name and no address is how others reach this machine; where to listen it does
 * not say, and the name of a pod is in DNS only some time after the pod has started: all addresses then, and no look-up. */
MUST_CHECK int link_listen(const char *host, int32_t port, int *ret_fd, struct error *e);

/* What every connection between sidecars wants: no delay, keepalive, a bound on unacknowledged data. Best effort. */
void link_tune(int fd);
/* And what can be said once both ends are known: where they are on one machine there is no path to share, and a congestion control
 * that paces (bbr) would only cost: half of the processor time of a large all-reduce over loopback. Best effort. */
void link_tune_connected(int fd);

#endif
