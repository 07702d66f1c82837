/*
 * volume_s3_parts.h — images of a volume on S3: up in parts and down in ranges, several at a time. For volume_s3.c.
 */
#ifndef CHECKPOINT_VOLUME_S3_PARTS_H
#define CHECKPOINT_VOLUME_S3_PARTS_H

#include "base/crc.h"
#include "checkpoint/volume.h"
#include "s3/client.h"

struct volume_s3 {
    struct volume volume;  /* first: it is what others hold */
    struct s3_client *client;
    char *root;            /* key of the job's place, without '/' at the end */
    char *scratch;
};

#define VOLUME_S3_CRC_MAX 16
void volume_s3_crc(uint64_t crc, char ret_text[VOLUME_S3_CRC_MAX]); /* base64 of its big-endian bytes, as S3 has it */

/* How an image is cut: at most 10,000 parts of at least 8 MiB. Pure. */
uint64_t volume_s3_part_bytes(uint64_t image_bytes);

char *volume_s3_key(const struct volume_s3 *s, const char *path); /* owned */
MUST_CHECK int volume_s3_get_range(struct volume_s3 *s, const char *key, uint64_t offset, void *bytes, size_t len, struct error *e);
MUST_CHECK int volume_s3_write_image(struct volume *v, const char *path, int fd, uint64_t offset, uint64_t bytes, struct image_sum *ret_sum,
                                     struct error *e);
MUST_CHECK int volume_s3_read_image(struct volume *v, const char *path, uint64_t bytes, volume_bytes_fn *fn, void *ctx, int *ret_fd, struct error *e);
/* Uploads below a prefix that nobody will complete: of generations of an epoch before `epoch`. */
MUST_CHECK int volume_s3_abort_uploads(struct volume_s3 *s, const char *prefix, uint64_t epoch, struct error *e);

#endif
