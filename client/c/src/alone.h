/*
 * alone.h — collectives in a world of one: what the operation gives when this rank is the only one. Pure.
 */
#ifndef CLIENT_ALONE_H
#define CLIENT_ALONE_H

#include <stdint.h>

/* out[i] = in[i] * scale, rounded to dtype; other than floating types are copied as they are. out may equal in. */
void alone_scale(const void *in, void *out, uint64_t count, unsigned dtype /* enum shm_dtype */, double scale);

#endif
