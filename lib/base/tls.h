/*
 * tls.h — TLS 1.3 over a socket, non-blocking: the client's end with one authority that is trusted and no other; either end by a key
 * that both know; and a server's certificate put into a context of OpenSSL's that somebody else owns. All of libssl is behind this header.
 *
 * A program that uses it ignores SIGPIPE.
 */
#ifndef BASE_TLS_H
#define BASE_TLS_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/certificate.h"
#include "base/crypto.h"

struct tls;

/* `fd` is connected, non-blocking and stays the caller's. `host` (a name or an address) has to be in the server's certificate,
 * which one of the authorities in `authority_pem` has to have issued. */
MUST_CHECK int tls_client_new(int fd, const char *host, const char *authority_pem, struct tls **ret, struct error *e);
/* Either end of a connection between two that hold `key` (copied), which is for this connection alone. No certificates; (EC)DHE
 * besides, so that who learns the key later cannot read what was recorded. An end without orderly words counts as an end. */
MUST_CHECK int tls_key_new(int fd, bool is_server, const uint8_t key[CRYPTO_MAC_BYTES], struct tls **ret, struct error *e);
void tls_free(struct tls *t); /* NULL is fine */

/* 1: done. 0: call again when the socket is readable, or writable when *ret_wants_write. -1: it failed; e says what was wrong with
 * the server's certificate or the key (ERROR_DENIED), or the connection. */
MUST_CHECK int tls_handshake(struct tls *t, bool *ret_wants_write, struct error *e);

/* As recv and send on a non-blocking socket: bytes, 0 at the orderly end (receive), or -1 with errno EAGAIN: later. Any other error
 * has errno EPROTO or the system's. What was received and not read yet is not seen by epoll: receive until EAGAIN. After EAGAIN a
 * send is repeated with the same bytes, or more behind them. */
ssize_t tls_receive(struct tls *t, void *bytes, size_t len);
ssize_t tls_send(struct tls *t, const void *bytes, size_t len);

bool tls_pending(const struct tls *t); /* something was received and not read yet */
/* After the handshake: the kernel encrypts and decrypts (Linux's tls module, OpenSSL from 3.2 on), so that fd may be read and written as any
 * other, and t be freed. */
bool tls_in_kernel(const struct tls *t);

/* `openssl_context` is an SSL_CTX of a server: new connections are shown this certificate from now on. */
MUST_CHECK int tls_server_use(void *openssl_context, const struct certificate *c, struct error *e);

#endif
