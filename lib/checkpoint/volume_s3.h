/*
 * volume_s3.h — a volume that is a prefix of an S3 bucket.
 *
 * What makes the protocol right there: a PUT is seen whole or not at all, and by every reader after its answer; `create` is a PUT with
 * If-None-Match, read back, so that a lost answer and a server that ignores the condition are both found out. Images go up in parts,
 * each with its CRC64NVME, and are completed with that of the whole; an upload that is not completed is aborted, by its writer or by
 * whoever sweeps after it. There are no temporary names.
 */
#ifndef CHECKPOINT_VOLUME_S3_H
#define CHECKPOINT_VOLUME_S3_H

#include "checkpoint/volume.h"

/* `place`: "s3://BUCKET[/PREFIX]". job_uid NULL: the place itself. */
MUST_CHECK int volume_s3_new(const char *place, const char *job_uid, const struct volume_options *options, struct volume **ret_volume,
                             struct error *e);

#endif
