#include "checkpoint/volume.h"

#include <string.h>

#include "base/fs.h"
#include "base/mem.h"
#include "checkpoint/layout.h"
#include "checkpoint/volume_posix.h"
#include "checkpoint/volume_s3.h"

int volume_open(const char *place, const char *job_uid, const struct volume_options *options, struct volume **ret_volume, struct error *e)
{
    static const struct volume_options NONE = { .scratch = NULL };
    if (!layout_uid_ok(job_uid))
        return error_set(e, ERROR_INVALID, "job UID \"%.80s\" cannot name a directory: expected at most 63 of [A-Za-z0-9_.-]", job_uid);
    if (strncmp(place, VOLUME_S3, strlen(VOLUME_S3)) == 0)
        return volume_s3_new(place, job_uid, options != NULL ? options : &NONE, ret_volume, e);
    auto_free char *name = fs_join(place, job_uid);
    *ret_volume = volume_posix_new(name);
    return 0;
}

int volume_jobs(const char *place, const struct volume_options *options, volume_name_fn *fn, void *ctx, struct error *e)
{
    struct volume *v;
    if (volume_s3_new(place, NULL, options, &v, e) != 0)
        return -1;
    int result = v->ops->list(v, "", fn, ctx, e);
    volume_close(v);
    return result;
}

void volume_close(struct volume *v)
{
    if (v != NULL)
        v->ops->close(v);
}

char *volume_uri(const struct volume *v, const char *dir)
{
    return xasprintf("%s%s%s%s", strncmp(v->name, VOLUME_S3, strlen(VOLUME_S3)) == 0 ? "" : "file://", v->name, dir[0] != '\0' ? "/" : "", dir);
}
