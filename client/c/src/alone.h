/*
 * alone.h — collectives in a world of one: what the operation gives when this rank is the only one. Pure.
 */
#ifndef CLIENT_ALONE_H
#define CLIENT_ALONE_H

#include <stdint.h>

/* out[i] = in[i] * scale, rounded to dtype (integers of at most 64 bits: computed in double, the fraction is dropped, what does not
 * fit becomes the nearest that does; bool and 16-bit integers are copied). out may equal in. */
void alone_scale(const void *in, void *out, uint64_t count, unsigned dtype /* enum shm_dtype */, double scale);

#endif
