/*
 * dial.h — one outgoing stream that never blocks the loop: to a unix socket, or to HOST:PORT with TLS or without; the name is
 * looked up, the connection made and the server checked on the way. Runs on the loop's thread.
 */
#ifndef SUPERVISE_DIAL_H
#define SUPERVISE_DIAL_H

#include <sys/types.h>

#include "base/loop.h"

struct dial;

struct dial_options { /* texts are kept */
    const char *path;                /* of a unix socket; NULL: host and port */
    const char *host; int32_t port;  /* the host may stand in brackets */
    const char *authority_file;      /* TLS: PEM of those who may have issued the server's certificate, read now; NULL: none */
};

/* Called when it is open (once), and then whenever something may be read or written; with `why` when it could not be opened. The
 * handler may free the dial. Never from inside dial_new. */
typedef void dial_fn(void *ctx, const struct error *why);

MUST_CHECK int dial_new(struct loop *l, const struct dial_options *options, dial_fn *fn, void *ctx, struct dial **ret, struct error *e);
bool dial_is_open(const struct dial *d);
/* Bytes; -1 with e->kind ERROR_BUSY: later; else it is over (ERROR_GONE: the other side ended it in order). Receive until ERROR_BUSY:
 * what is left is not announced again. A send that was told "later" is repeated with the same bytes in front. */
ssize_t dial_receive(struct dial *d, void *bytes, size_t len, struct error *e);
ssize_t dial_send(struct dial *d, const void *bytes, size_t len, struct error *e);
void dial_free(struct dial *d); /* NULL is fine */

#endif
