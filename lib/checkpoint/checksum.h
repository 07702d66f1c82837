/*
 * checksum.h — the checksums of an image, all in one pass over its bytes: CRC32C of every chunk of 4 MiB (names the place of
 * a damage, and S3's parts can use it) and CRC64NVME of the whole (no file is accepted with another). Not thread-safe.
 */
#ifndef CHECKPOINT_CHECKSUM_H
#define CHECKPOINT_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

#define CHECKSUM_CHUNK_BYTES (4u << 20)

struct checksum {
    uint64_t bytes;      /* seen so far */
    uint64_t crc64nvme;
    uint32_t *chunks;    /* CRC32C each; the last one may be of a part */
    size_t chunk_count, chunk_cap;
};

#define CHECKSUM_INIT { .bytes = 0, .crc64nvme = 0, .chunks = NULL, .chunk_count = 0, .chunk_cap = 0 }

void checksum_add(struct checksum *c, const void *bytes, size_t len);
void checksum_release(struct checksum *c);
#define auto_checksum __attribute__((cleanup(checksum_release)))

#endif
