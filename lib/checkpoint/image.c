#include "checkpoint/image.h"

#include <errno.h>
#include <unistd.h>

#include "base/crc.h"
#include "checkpoint/safetensors.h"

int image_sum_add(struct image_sum *s, const void *bytes, size_t len, uint64_t image_bytes, struct error *e)
{
    uint64_t offset = s->sum.bytes;
    if (offset == 0 && safetensors_header_bytes(bytes, len, image_bytes, &s->header_bytes, e) != 0)
        return -1;
    if (offset < s->header_bytes)
        s->header_crc32c = crc32c(s->header_crc32c, bytes, s->header_bytes - offset < len ? (size_t)(s->header_bytes - offset) : len);
    checksum_add(&s->sum, bytes, len);
    return 0;
}

void image_sum_release(struct image_sum *s)
{
    checksum_release(&s->sum);
}

int image_read(int fd, uint64_t offset, void *bytes, size_t len, struct error *e)
{
    char *to = bytes;
    size_t have = 0;
    while (have < len) {
        ssize_t n = pread(fd, to + have, len - have, (off_t)(offset + have));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return error_errno(e, "read image");
        if (n == 0)
            return error_set(e, ERROR_INVALID, "image ends %zu bytes early: its file was cut short", len - have);
        have += (size_t)n;
    }
    return 0;
}
