/*
 * channel.h — CONTROL frames with JSON payloads over a connection that link.h has authenticated.
 *
 * Non-blocking; what the peer does not read waits, up to a ceiling. Any frame is a sign of life. Not thread-safe.
 */
#ifndef SUPERVISE_CHANNEL_H
#define SUPERVISE_CHANNEL_H

#include "base/json.h"
#include "base/loop.h"
#include "wire/peer.h"

struct channel;

/* For each frame: body is its object, borrowed. body NULL: the connection is over (why: ERROR_NONE for a clean end); the
 * handler must call channel_free then. */
typedef void channel_fn(void *ctx, struct channel *c, const struct peer_frame *frame, const cJSON *body, const struct error *why);

MUST_CHECK int channel_new(struct loop *l, int fd /* taken on success */, channel_fn *fn, void *ctx, struct channel **ret,
                           struct error *e);
/* What cannot be sent is reported by the handler as the end of the connection, never from inside this call. */
void channel_send(struct channel *c, enum peer_type type, uint64_t fence, cJSON *body /* taken; NULL: {} */);
int64_t channel_heard_ms(const struct channel *c); /* monotonic time of the last sign of life */
void channel_excuse(struct channel *c, int64_t ms); /* this process itself did not run for so long: it is not the peer's silence */
void channel_free(struct channel *c); /* NULL is fine; may be called from the handler */

#endif
