/*
 * image.h — an image on its way to a volume: read from a descriptor, its checksums taken as it passes.
 */
#ifndef CHECKPOINT_IMAGE_H
#define CHECKPOINT_IMAGE_H

#include "base/error.h"
#include "checkpoint/checksum.h"

struct image_sum {
    struct checksum sum;
    uint64_t header_bytes;  /* of the safetensors header */
    uint32_t header_crc32c; /* of the header alone, so that a manifest vouches for the description of the tensors without their bytes */
};

#define IMAGE_SUM_INIT { .sum = CHECKSUM_INIT, .header_bytes = 0, .header_crc32c = 0 }

/* The next bytes of an image of `image_bytes`. The first piece holds at least 8 bytes. INVALID: no safetensors file begins so. */
MUST_CHECK int image_sum_add(struct image_sum *s, const void *bytes, size_t len, uint64_t image_bytes, struct error *e);
void image_sum_release(struct image_sum *s);
#define auto_image_sum __attribute__((cleanup(image_sum_release)))

/* All of `len` bytes. A slot is read, not mapped: a trainer that cuts the file short must not end the reader. */
MUST_CHECK int image_read(int fd, uint64_t offset, void *bytes, size_t len, struct error *e);

#endif
