#include "checkpoint/checksum.h"

#include <stdlib.h>

#include "base/crc.h"
#include "base/mem.h"

#define BLOCK (256u << 10) /* stays in the second-level cache between the two sums */

void checksum_add(struct checksum *c, const void *bytes, size_t len)
{
    const uint8_t *p = bytes;
    while (len > 0) {
        uint64_t in_chunk = c->bytes % CHECKSUM_CHUNK_BYTES;
        size_t n = len < BLOCK ? len : BLOCK;
        if (n > CHECKSUM_CHUNK_BYTES - in_chunk)
            n = (size_t)(CHECKSUM_CHUNK_BYTES - in_chunk);
        if (in_chunk == 0) {
            if (c->chunk_count == c->chunk_cap) {
                c->chunk_cap = c->chunk_cap > 0 ? c->chunk_cap * 2 : 16;
                c->chunks = xrealloc(c->chunks, c->chunk_cap, sizeof(*c->chunks));
            }
            c->chunks[c->chunk_count++] = 0;
        }
        uint32_t *chunk = &c->chunks[c->chunk_count - 1];
        *chunk = crc32c(*chunk, p, n);
        c->crc64nvme = crc64nvme(c->crc64nvme, p, n);
        c->bytes += n;
        p += n;
        len -= n;
    }
}

void checksum_release(struct checksum *c)
{
    free(c->chunks);
    *c = (struct checksum)CHECKSUM_INIT;
}
