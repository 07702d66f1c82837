/*
 * secure.h — TLS 1.3 on a connection whose ends have proved that they know the job's key (link.h). No certificates: the key of a
 * connection is made from the job's and the whole handshake before, so that nobody in between can take part; the exchange
 * is (EC)DHE besides, so that who learns the job's key later cannot read what was recorded.
 *
 * Afterwards the connection is a plain descriptor for everybody: the kernel's TLS where both directions have it (Linux's tls
 * module, OpenSSL from 3.2 on), else one end of a socket pair whose other end a thread of this file encrypts and decrypts.
 */
#ifndef SIDECAR_RING_SECURE_H
#define SIDECAR_RING_SECURE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/crypto.h"

struct secure; /* a TLS handshake under way */

/* fd: connected, non-blocking, stays the caller's until secure_take. secret: of this connection, the same on both ends. */
MUST_CHECK int secure_new(int fd, bool is_server, const uint8_t secret[CRYPTO_MAC_BYTES], struct secure **ret, struct error *e);
/* 1: done; 0: again when the socket is readable, or writable when *ret_wants_write; -1: ERROR_DENIED the other end has another
 * secret, else the connection. */
MUST_CHECK int secure_step(struct secure *s, bool *ret_wants_write, struct error *e);
/* After 1: takes fd and s; *ret_fd is what is read and written from now on. -1: both are still the caller's. */
MUST_CHECK int secure_take(struct secure *s, int *ret_fd, struct error *e);
void secure_free(struct secure *s); /* NULL is fine */

#endif
