#include "checkpoint/volume.h"

#include <string.h>

#include "base/fs.h"
#include "base/mem.h"
#include "checkpoint/layout.h"
#include "checkpoint/volume_posix.h"

int volume_open(const char *place, const char *job_uid, const char *scratch, struct volume **ret_volume, struct error *e)
{
    (void)scratch;
    if (!layout_uid_ok(job_uid))
        return error_set(e, ERROR_INVALID, "job UID \"%.80s\" cannot name a directory: expected at most 63 of [A-Za-z0-9_.-]", job_uid);
    auto_free char *name = fs_join(place, job_uid);
    *ret_volume = volume_posix_new(name);
    return 0;
}

void volume_close(struct volume *v)
{
    if (v != NULL)
        v->ops->close(v);
}

char *volume_uri(const struct volume *v, const char *dir)
{
    return xasprintf("%s%s%s%s", strncmp(v->name, "s3://", 5) == 0 ? "" : "file://", v->name, dir[0] != '\0' ? "/" : "", dir);
}
