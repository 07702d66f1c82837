#include "checkpoint/volume_s3_parts.h"

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base64.h"
#include "base/buf.h"
#include "base/mem.h"
#include "checkpoint/io.h"
#include "checkpoint/layout.h"
#include "s3/xml.h"

#define PART_LEAST (8ull << 20)
#define PARTS_MOST 10000ull
#define AT_A_TIME 4
#define PIECE (1u << 20)

void volume_s3_crc(uint64_t crc, char ret_text[VOLUME_S3_CRC_MAX])
{
    uint8_t bytes[8];
    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(crc >> (56 - 8 * i));
    auto_free char *text = base64_encode(bytes, sizeof(bytes));
    (void)snprintf(ret_text, VOLUME_S3_CRC_MAX, "%s", text);
}

uint64_t volume_s3_part_bytes(uint64_t image_bytes)
{
    uint64_t least = (image_bytes + PARTS_MOST - 1) / PARTS_MOST, whole = (least + PIECE - 1) / PIECE * PIECE;
    return whole > PART_LEAST ? whole : PART_LEAST;
}

/* ---- several at a time ------------------------------------------------------------------------------------------------ */

/* Numbers 0 to count - 1, each done once by one of a few threads; the first error stops the rest. */
struct crew {
    int (*work)(void *ctx, size_t index, struct error *e);
    void *ctx;
    size_t count;
    atomic_size_t next;
    atomic_bool failed;
    pthread_mutex_t lock;
    struct error error; /* under lock */
};

static void *crew_main(void *arg)
{
    struct crew *c = arg;
    for (size_t i; !c->failed && (i = atomic_fetch_add(&c->next, 1)) < c->count;) {
        struct error e = ERROR_INIT;
        if (c->work(c->ctx, i, &e) == 0)
            continue;
        (void)pthread_mutex_lock(&c->lock);
        if (!c->failed)
            c->error = e;
        c->failed = true;
        (void)pthread_mutex_unlock(&c->lock);
    }
    return NULL;
}

static int crew_run(size_t count, int (*work)(void *ctx, size_t index, struct error *e), void *ctx, struct error *e)
{
    struct crew c = { .work = work, .ctx = ctx, .count = count, .error = ERROR_INIT };
    pthread_t threads[AT_A_TIME];
    size_t started = 0;
    (void)pthread_mutex_init(&c.lock, NULL);
    while (started + 1 < AT_A_TIME && started + 1 < count && pthread_create(&threads[started], NULL, crew_main, &c) == 0)
        started++;
    (void)crew_main(&c); /* this thread takes part: it goes on when no other can be had */
    for (size_t i = 0; i < started; i++)
        (void)pthread_join(threads[i], NULL);
    (void)pthread_mutex_destroy(&c.lock);
    if (!c.failed)
        return 0;
    *e = c.error;
    return -1;
}

/* ---- up --------------------------------------------------------------------------------------------------------------- */

struct upload {
    struct volume_s3 *s;
    const char *key;
    char *id;
    int fd;
    uint64_t offset, bytes, part_bytes;
    size_t parts;
    uint64_t *crcs;
    char (*etags)[80];
};

static uint64_t part_size(const struct upload *u, size_t index)
{
    uint64_t begin = index * u->part_bytes;
    return u->bytes - begin < u->part_bytes ? u->bytes - begin : u->part_bytes;
}

/* All checksums before the first byte goes out: the whole's has to be told at the end, each part's with it. Memory is read twice. */
static int sum_parts(struct upload *u, struct image_sum *sum, struct error *e)
{
    auto_free uint8_t *piece = xcalloc(1, PIECE);
    for (uint64_t at = 0; at < u->bytes;) {
        size_t n = u->bytes - at < PIECE ? (size_t)(u->bytes - at) : PIECE;
        if (image_read(u->fd, u->offset + at, piece, n, e) != 0 || image_sum_add(sum, piece, n, u->bytes, e) != 0)
            return -1;
        u->crcs[at / u->part_bytes] = crc64nvme(u->crcs[at / u->part_bytes], piece, n); /* parts are whole pieces */
        at += n;
    }
    return 0;
}

static int put_whole(struct upload *u, struct error *e)
{
    char crc[VOLUME_S3_CRC_MAX];
    volume_s3_crc(u->crcs[0], crc);
    struct s3_request r = { .method = "PUT", .key = u->key, .fd = u->fd, .offset = u->offset, .bytes = u->bytes,
                            .headers = { { "x-amz-checksum-crc64nvme", crc } }, .header_count = 1 };
    return s3_call(u->s->client, &r, NULL, e);
}

static int begin_upload(struct upload *u, struct error *e)
{
    auto_s3_answer struct s3_answer a = { .body = NULL };
    struct s3_request r = { .method = "POST", .key = u->key, .query = { { "uploads", "" } }, .query_count = 1, .header_count = 2,
                            .headers = { { "x-amz-checksum-algorithm", "CRC64NVME" }, { "x-amz-checksum-type", "FULL_OBJECT" } } };
    if (s3_call(u->s->client, &r, &a, e) != 0)
        return -1;
    u->id = xml_text((struct xml){ a.body, a.len }, "UploadId");
    return u->id != NULL ? 0 : error_set(e, ERROR_IO, "%s: the answer to a new upload has no id in it", u->s->volume.name);
}

static int put_part(void *ctx, size_t index, struct error *e)
{
    struct upload *u = ctx;
    char number[12], crc[VOLUME_S3_CRC_MAX];
    auto_s3_answer struct s3_answer a = { .body = NULL };
    (void)snprintf(number, sizeof(number), "%zu", index + 1);
    volume_s3_crc(u->crcs[index], crc);
    struct s3_request r = { .method = "PUT", .key = u->key, .query = { { "partNumber", number }, { "uploadId", u->id } }, .query_count = 2,
                            .fd = u->fd, .offset = u->offset + index * u->part_bytes, .bytes = part_size(u, index),
                            .headers = { { "x-amz-checksum-crc64nvme", crc } }, .header_count = 1 };
    if (s3_call(u->s->client, &r, &a, e) != 0)
        return -1;
    (void)snprintf(u->etags[index], sizeof(u->etags[index]), "%s", a.etag);
    return 0;
}

/* A reply that was lost leaves an object and no upload: what is there is looked at. */
static bool is_there(const struct upload *u, uint64_t crc)
{
    struct error ignored = ERROR_INIT;
    char expected[VOLUME_S3_CRC_MAX];
    auto_s3_answer struct s3_answer a = { .body = NULL };
    struct s3_request r = { .method = "HEAD", .key = u->key, .headers = { { "x-amz-checksum-mode", "ENABLED" } }, .header_count = 1 };
    volume_s3_crc(crc, expected);
    return s3_call(u->s->client, &r, &a, &ignored) == 0 && a.length == u->bytes && strcmp(a.crc64nvme, expected) == 0;
}

static int complete(struct upload *u, uint64_t crc, struct error *e)
{
    char sum[VOLUME_S3_CRC_MAX], size[24];
    auto_buf struct buf body = BUF_INIT(4u << 20);
    volume_s3_crc(crc, sum);
    (void)snprintf(size, sizeof(size), "%" PRIu64, u->bytes);
    buf_add(&body, "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
    for (size_t i = 0; i < u->parts; i++) {
        char part[VOLUME_S3_CRC_MAX];
        volume_s3_crc(u->crcs[i], part);
        buf_addf(&body, "<Part><PartNumber>%zu</PartNumber><ETag>%s</ETag><ChecksumCRC64NVME>%s</ChecksumCRC64NVME></Part>", i + 1, u->etags[i], part);
    }
    buf_add(&body, "</CompleteMultipartUpload>");
    struct s3_request r = { .method = "POST", .key = u->key, .query = { { "uploadId", u->id } }, .query_count = 1, .body = buf_text(&body),
                            .body_len = body.len, .header_count = 3,
                            .headers = { { "x-amz-checksum-crc64nvme", sum }, { "x-amz-checksum-type", "FULL_OBJECT" }, { "x-amz-mp-object-size", size } } };
    if (s3_call(u->s->client, &r, NULL, e) == 0)
        return 0;
    return is_there(u, crc) ? 0 : -1;
}

static void abort_upload(struct volume_s3 *s, const char *key, const char *id)
{
    struct error ignored = ERROR_INIT; /* whoever sweeps finds it again */
    struct s3_request r = { .method = "DELETE", .key = key, .query = { { "uploadId", id } }, .query_count = 1 };
    (void)(s3_call(s->client, &r, NULL, &ignored) == 0);
}

static int put_parts(struct upload *u, uint64_t crc, struct error *e)
{
    if (begin_upload(u, e) != 0)
        return -1;
    if (crew_run(u->parts, put_part, u, e) == 0 && complete(u, crc, e) == 0)
        return 0;
    abort_upload(u->s, u->key, u->id);
    return -1;
}

int volume_s3_write_image(struct volume *v, const char *path, int fd, uint64_t offset, uint64_t bytes, struct image_sum *ret_sum, struct error *e)
{
    struct volume_s3 *s = (struct volume_s3 *)v;
    auto_free char *key = volume_s3_key(s, path);
    auto_image_sum struct image_sum sum = IMAGE_SUM_INIT;
    struct upload u = { .s = s, .key = key, .fd = fd, .offset = offset, .bytes = bytes, .part_bytes = volume_s3_part_bytes(bytes) };
    u.parts = (size_t)((bytes + u.part_bytes - 1) / u.part_bytes);
    u.crcs = xcalloc(u.parts + 1, sizeof(*u.crcs));
    u.etags = xcalloc(u.parts + 1, sizeof(*u.etags));
    int result = sum_parts(&u, &sum, e);
    if (result == 0)
        result = u.parts <= 1 ? put_whole(&u, e) : put_parts(&u, sum.sum.crc64nvme, e);
    free(u.id);
    free(u.crcs);
    free(u.etags);
    if (result != 0)
        return -1;
    *ret_sum = sum;
    sum.sum = (struct checksum)CHECKSUM_INIT;
    return 0;
}

/* ---- down ------------------------------------------------------------------------------------------------------------- */

int volume_s3_get_range(struct volume_s3 *s, const char *key, uint64_t offset, void *bytes, size_t len, struct error *e)
{
    char range[64];
    if (len == 0)
        return 0;
    (void)snprintf(range, sizeof(range), "bytes=%" PRIu64 "-%" PRIu64, offset, offset + len - 1);
    struct s3_request r = { .method = "GET", .key = key, .headers = { { "range", range } }, .header_count = 1, .into = bytes, .into_len = len,
                            .is_data = true };
    return s3_call(s->client, &r, NULL, e);
}

struct download { struct volume_s3 *s; const char *key; uint64_t offset, bytes; uint8_t *window; };

static int get_piece(void *ctx, size_t index, struct error *e)
{
    struct download *d = ctx;
    uint64_t begin = index * PART_LEAST;
    size_t n = d->bytes - begin < PART_LEAST ? (size_t)(d->bytes - begin) : PART_LEAST;
    return volume_s3_get_range(d->s, d->key, d->offset + begin, d->window + begin, n, e);
}

/* A file without a name: it goes with its descriptor. */
static int open_scratch(const struct volume_s3 *s, uint64_t bytes, int *ret_fd, struct error *e)
{
    auto_close int fd = open(s->scratch, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0)
        return error_errno(e, "make a file in %s for an image of %" PRIu64 " bytes", s->scratch, bytes);
    if (io_reserve(fd, s->scratch, bytes, e) != 0)
        return -1;
    *ret_fd = TAKE_FD(fd);
    return 0;
}

int volume_s3_read_image(struct volume *v, const char *path, uint64_t bytes, volume_bytes_fn *fn, void *ctx, int *ret_fd, struct error *e)
{
    struct volume_s3 *s = (struct volume_s3 *)v;
    auto_free char *key = volume_s3_key(s, path);
    uint64_t window = bytes < AT_A_TIME * PART_LEAST ? bytes : AT_A_TIME * PART_LEAST;
    auto_free uint8_t *memory = xcalloc(1, window + 1);
    auto_close int fd = -1;
    if (ret_fd != NULL && open_scratch(s, bytes, &fd, e) != 0)
        return -1;
    for (uint64_t at = 0; at < bytes;) {
        uint64_t n = bytes - at < window ? bytes - at : window;
        struct download d = { .s = s, .key = key, .offset = at, .bytes = n, .window = memory };
        if (crew_run((size_t)((n + PART_LEAST - 1) / PART_LEAST), get_piece, &d, e) != 0)
            return -1;
        if (fd >= 0 && io_write(fd, s->scratch, memory, (size_t)n, e) != 0)
            return -1;
        for (uint64_t k = 0; k < n; k += PIECE)
            if (fn(ctx, at + k, memory + k, n - k < PIECE ? (size_t)(n - k) : PIECE, e) != 0)
                return -1;
        at += n;
    }
    if (ret_fd != NULL) {
        if (lseek(fd, 0, SEEK_SET) != 0)
            return error_errno(e, "rewind an image");
        *ret_fd = TAKE_FD(fd);
    }
    return 0;
}

/* ---- what was never completed ------------------------------------------------------------------------------------------ */

/* The epoch of "<prefix>s000000000050-e…-…/shard-…"; false: the key is none of ours. */
static bool epoch_of(const struct volume_s3 *s, const char *key, uint64_t *ret_epoch)
{
    size_t n = strlen(s->root);
    struct generation g;
    if (strncmp(key, s->root, n) != 0 || key[n] != '/')
        return false;
    auto_free char *dir = xstrndup(key + n + 1, strcspn(key + n + 1, "/"));
    if (!layout_generation_parse(dir, &g))
        return false;
    *ret_epoch = g.id.epoch;
    return true;
}

int volume_s3_abort_uploads(struct volume_s3 *s, const char *prefix, uint64_t epoch, struct error *e)
{
    auto_free char *key_marker = NULL, *id_marker = NULL;
    for (bool more = true; more;) {
        struct s3_request r = { .method = "GET", .key = "", .query = { { "uploads", "" }, { "prefix", prefix } }, .query_count = 2 };
        auto_s3_answer struct s3_answer a = { .body = NULL };
        struct xml upload;
        if (key_marker != NULL && id_marker != NULL) {
            r.query[r.query_count++] = (struct sign_pair){ "key-marker", key_marker };
            r.query[r.query_count++] = (struct sign_pair){ "upload-id-marker", id_marker };
        }
        if (s3_call(s->client, &r, &a, e) != 0)
            return -1;
        struct xml answer = { a.body, a.len }, at = answer;
        while (xml_next(&at, "Upload", &upload)) {
            auto_free char *key = xml_text(upload, "Key"), *id = xml_text(upload, "UploadId");
            uint64_t of;
            if (key != NULL && id != NULL && strncmp(key, prefix, strlen(prefix)) == 0 && epoch_of(s, key, &of) && of < epoch)
                abort_upload(s, key, id);
        }
        auto_free char *truncated = xml_text(answer, "IsTruncated");
        free(key_marker);
        free(id_marker);
        key_marker = xml_text(answer, "NextKeyMarker");
        id_marker = xml_text(answer, "NextUploadIdMarker");
        more = truncated != NULL && strcmp(truncated, "true") == 0 && key_marker != NULL && id_marker != NULL;
    }
    return 0;
}
