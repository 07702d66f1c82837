/*
 * serve.h — a sidecar at work: the listening port, the member, and on rank 0 the hub, on one loop, until SIGTERM.
 */
#ifndef SIDECAR_SERVE_H
#define SIDECAR_SERVE_H

#include "sidecar/options.h"

/* Runs until SIGTERM or SIGINT and everything that is staged is committed, or until the grace time is over. */
MUST_CHECK int serve(const struct options *options, struct error *e);

/* Asks the sidecar that listens on `socket` whether it is up. */
MUST_CHECK int serve_probe(const char *socket, struct error *e);

#endif
