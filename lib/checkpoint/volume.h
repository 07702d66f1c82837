/*
 * volume.h — where one job's checkpoints are: a directory, or a prefix of an S3 bucket. The same protocol runs on both.
 *
 * Paths are relative to the job's place and have one '/' at the most: "LATEST", "epochs/e….claim", "s…-e…-…/COMMIT". What a call has
 * done when it returns is durable. Every call blocks; calls from several threads at once are fine. Errors name the whole path;
 * NOT_FOUND and CONFLICT mean what they say, INVALID that the content is not what it should be, IO that it is not known.
 */
#ifndef CHECKPOINT_VOLUME_H
#define CHECKPOINT_VOLUME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "checkpoint/image.h"
#include "s3/config.h"

struct volume;
struct volume_stat { uint64_t bytes; int64_t modified_wall_ms; };

typedef int volume_name_fn(void *ctx, const char *name, struct error *e);
/* Pieces of an image in their order. */
typedef int volume_bytes_fn(void *ctx, uint64_t offset, const uint8_t *bytes, size_t len, struct error *e);

struct volume_ops {
    void (*close)(struct volume *v);
    /* Names in "" or in a directory, in no order; one that is not there has none. */
    int (*list)(struct volume *v, const char *dir, volume_name_fn *fn, void *ctx, struct error *e);
    /* Which of these are in a generation's directory. Names are capitals: they come before all others. */
    int (*has)(struct volume *v, const char *dir, const char *const *names, size_t count, bool *ret_there, struct error *e);
    int (*stat)(struct volume *v, const char *path, struct volume_stat *ret_stat, struct error *e);
    int (*read)(struct volume *v, const char *path, size_t max, char **ret_text /* owned, NUL after */, size_t *ret_len, struct error *e);
    /* Exactly these bytes of a file. */
    int (*read_range)(struct volume *v, const char *path, uint64_t offset, void *bytes, size_t len, struct error *e);
    int (*replace)(struct volume *v, const char *path, const char *text, struct error *e); /* old or new, never half */
    /* Only if there is none: CONFLICT, somebody was first. `unique` tells two writers apart; doing it twice with one text is fine. */
    int (*create)(struct volume *v, const char *path, const char *unique, const char *text, struct error *e);
    int (*make_dir)(struct volume *v, const char *dir, struct error *e); /* there already is fine */
    int (*move)(struct volume *v, const char *dir, const char *from, const char *to, struct error *e); /* a small file */
    int (*remove)(struct volume *v, const char *path, struct error *e);     /* absent is fine */
    int (*remove_dir)(struct volume *v, const char *dir, struct error *e);  /* in one step out of readers' sight, then all of it */
    /* `bytes` at `offset` of fd, summed up in ret_sum. Nothing is left when it fails. */
    int (*write_image)(struct volume *v, const char *path, int fd, uint64_t offset, uint64_t bytes, struct image_sum *ret_sum, struct error *e);
    /* Every byte through fn; then, if ret_fd is not NULL, a descriptor at 0 of what fn was given. Owned. */
    int (*read_image)(struct volume *v, const char *path, uint64_t bytes, volume_bytes_fn *fn, void *ctx, int *ret_fd, struct error *e);
    /* Whether a name of `list` is what a crashed writer has left. */
    bool (*is_leftover)(const char *name);
    /* What a writer of an epoch before this one has left that `list` does not show; NULL: there is no such thing. */
    int (*sweep)(struct volume *v, uint64_t epoch, struct error *e);
};

struct volume {
    const struct volume_ops *ops;
    char *name; /* for messages and reports: "/ckpt/<uid>", "s3://bucket/prefix/<uid>" */
};

struct volume_options {
    const char *scratch;        /* directory for images that are read from S3 into a descriptor; NULL: the system's */
    const struct s3_config *s3; /* borrowed as long as the volume; NULL: what needs no words, that is nothing on most machines */
};

#define VOLUME_S3 "s3://"

/* `place` is a directory or s3://BUCKET[/PREFIX]; the job's place is below it. Nothing is made or looked at yet. */
MUST_CHECK int volume_open(const char *place, const char *job_uid, const struct volume_options *options /* NULL: none */,
                           struct volume **ret_volume, struct error *e);
/* Names below an S3 place: the jobs that have checkpoints there, and whatever else is. */
MUST_CHECK int volume_jobs(const char *place, const struct volume_options *options, volume_name_fn *fn, void *ctx, struct error *e);
void volume_close(struct volume *v); /* NULL is fine */

/* "file:///ckpt/<uid>/dir" or "s3://…"; owned. */
char *volume_uri(const struct volume *v, const char *dir);

#endif
