/*
 * control.h — the coordinator's channel to whoever drives the job: JSON texts (job/report.h). To the local runner one a line over a
 * unix stream socket, to the operator one a WebSocket message (job/control.h), through TLS when the address says wss. When it is down
 * training goes on; it reconnects for ever and the newest whole state is sent then. An operator that does not lead says so (503):
 * the next one behind the Service is tried soon. One that is silent for 25 s, pings included, is left.
 */
#ifndef SUPERVISE_CONTROL_H
#define SUPERVISE_CONTROL_H

#include "base/loop.h"
#include "job/report.h"

struct control;

typedef void control_command_fn(void *ctx, enum report_command command, int64_t number /* report.h */);
typedef void control_connected_fn(void *ctx); /* the reader is new: send the whole state */

struct control_options {
    const char *address;        /* "unix:PATH", "ws://HOST[:PORT]/PATH" or "wss://..."; copied */
    const char *token;          /* shown to the operator (control_token); copied, "" for none */
    const char *authority_file; /* wss: PEM file of the operator's authority, read at each try: it is renewed; copied, may be NULL */
};

MUST_CHECK int control_new(struct loop *l, const struct control_options *options, control_command_fn *on_command,
                           control_connected_fn *on_connected, void *ctx, struct control **ret, struct error *e);
/* A report that was not sent yet is replaced: each is the whole state. */
void control_send(struct control *c, char *text /* taken */);
bool control_flushed(const struct control *c); /* nothing waits that could be sent */
void control_free(struct control *c);

#endif
