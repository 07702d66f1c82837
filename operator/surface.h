/*
 * surface.h — what the operator serves: GET /healthz, /readyz, /metrics, and the coordinators' WebSockets (job/control.h). All of
 * libwebsockets is behind this header, on a thread of its own.
 *
 * The thread answers from a snapshot that surface_tell leaves; what a coordinator says is posted to the loop, where it is checked
 * and handed to the controller. A coordinator that cannot prove its job is closed; one whose job's key is not known yet, too: it
 * comes again. /healthz fails when the loop was silent for half a minute.
 */
#ifndef OPERATOR_SURFACE_H
#define OPERATOR_SURFACE_H

#include "base/loop.h"
#include "operator/controller.h"

struct surface;

/* `address` "" = all. Called on the loop's thread, as the others. */
MUST_CHECK int surface_new(struct loop *l, const char *address, int port, struct controller *c, struct surface **ret, struct error *e);
void surface_free(struct surface *s); /* NULL is fine; closes all connections, waits for the thread */
void surface_tell(struct surface *s, const struct metrics *m);
size_t surface_coordinators(const struct surface *s); /* connected and checked */

#endif
