/*
 * crc.h — checksums of frames and files.
 *
 * Both are chainable: start with 0, feed the result of one piece into the next. CRC32C (Castagnoli; iSCSI, and
 * x-amz-checksum-crc32c) uses the processor's instruction where it has one, CRC64NVME (S3's full-object checksum) carry-less
 * multiplication; the portable paths give the same values. Pure, thread-safe.
 */
#ifndef BASE_CRC_H
#define BASE_CRC_H

#include <stddef.h>
#include <stdint.h>

uint32_t crc32c(uint32_t crc, const void *bytes, size_t len);
uint64_t crc64nvme(uint64_t crc, const void *bytes, size_t len);

/* The portable paths, for the test that holds both against each other. */
uint32_t crc32c_portable(uint32_t crc, const void *bytes, size_t len);
uint64_t crc64nvme_portable(uint64_t crc, const void *bytes, size_t len);

#endif
