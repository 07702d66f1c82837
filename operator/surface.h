/*
 * surface.h — what the operator serves: GET /healthz, /readyz, /metrics, and the coordinators' WebSockets (job/control.h). All of
 * libwebsockets is behind this header, on a thread of its own.
 *
 * The thread answers from a snapshot that surface_tell leaves; what a coordinator says is posted to the loop, where it is checked
 * and handed to the controller. A coordinator that cannot prove its job is closed; one whose job's key is not known yet, too: it
 * comes again. /healthz fails when the loop was silent for half a minute.
 *
 * The channel is at the plain port, or, when there is a control port, at that one alone and with TLS; it opens with the first
 * certificate. A process that does not lead answers 503: behind the Service is another one that does, and the coordinator comes
 * again until it has found it. A process that loses the lead ends, and its connections with it.
 */
#ifndef OPERATOR_SURFACE_H
#define OPERATOR_SURFACE_H

#include "base/certificate.h"
#include "base/loop.h"
#include "operator/controller.h"

struct surface;

struct surface_options { /* addresses are copied; "" = all */
    const char *address; int port;
    const char *control_address; int control_port; /* 0: the channel is at `port`, without TLS */
};

/* Called on the loop's thread, as the others. */
MUST_CHECK int surface_new(struct loop *l, const struct surface_options *options, struct controller *c, struct surface **ret, struct error *e);
void surface_free(struct surface *s); /* NULL is fine; closes all connections, waits for the thread */
/* What is answered from now on. metrics: the text for Prometheus; taken. */
void surface_tell(struct surface *s, bool leading, bool ready, struct buf *metrics);
void surface_show_certificate(struct surface *s, const struct certificate *c); /* from now on; copied */
/* To the job's coordinator. False: it is not connected. */
bool surface_say(struct surface *s, const struct kube_key *job, const char *text);
size_t surface_coordinators(const struct surface *s); /* connected and checked */

#endif
