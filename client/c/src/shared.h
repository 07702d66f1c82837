/*
 * shared.h — the client's side of wire/shm.h: the mapping and its two queues.
 *
 * The header's offsets and sizes are read once, checked against the mapping and kept here; later changes by the other side
 * have no effect. Submitting needs the client's lock (one producer); only the completion thread takes replies.
 */
#ifndef CLIENT_SHARED_H
#define CLIENT_SHARED_H

#include <stdbool.h>

#include "wire/shm.h"

struct shared {
    uint8_t *base;              /* of the mapping; NULL: none */
    uint64_t bytes;
    int ring_engine, ring_us;   /* eventfds: client → engine, engine → client */
    uint32_t sq_entries, cq_entries;
    struct shm_request *sq;
    struct shm_reply *cq;
    uint64_t arena_offset, arena_bytes, results_offset, results_bytes;
};

/* Maps `memory` and checks its header. Takes the eventfds on success; memory stays the caller's. RM_OK or RM_PEER_LOST. */
int shared_map(struct shared *s, int memory, int ring_engine, int ring_us, uint64_t bytes, uint64_t fence);
void shared_unmap(struct shared *s);
void shared_abandon(struct shared *s); /* the same, but the mapping stays: a device may still write to it */

static inline struct shm_header *shared_header(const struct shared *s)
{
    return (struct shm_header *)(void *)s->base;
}

/* False: the queue is full. */
bool shared_submit(struct shared *s, const struct shm_request *r);
/* False: no reply is there. The reply is a copy; its text ends with a NUL. */
bool shared_take(struct shared *s, struct shm_reply *ret_reply);
bool shared_has_reply(const struct shared *s);
void shared_stay_awake(struct shared *s); /* the engine need not ring: somebody looks at the queue */
/* Says that the completion thread is about to sleep. False: a reply came meanwhile, do not. */
bool shared_before_sleep(struct shared *s);
void shared_after_sleep(struct shared *s);
void shared_wake_us(struct shared *s); /* from another thread of this process */

/* Whether [offset, offset + bytes) lies in the results area. */
bool shared_in_results(const struct shared *s, uint64_t offset, uint64_t bytes);

#endif
