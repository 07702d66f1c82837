#include "cli/target.h"

#include <string.h>

int target_choose(const struct target_words *words, struct target *ret, struct error *e)
{
    bool is_path = words->name && strchr(words->name, '/');
    if (words->job_dir && words->cluster_named)
        return error_set(e, ERROR_INVALID, "--job-dir %.200s and an option of a cluster: one is a job of this machine, the other of the cluster; give "
                         "one of them", words->job_dir);
    if (words->cluster_named && is_path)
        return error_set(e, ERROR_INVALID, "%.200s is a directory of this machine, but an option says that a cluster is meant; give one of them",
                         words->name);
    const char *dir = words->job_dir ? words->job_dir : !words->cluster_named && !words->name ? words->default_dir : NULL;
    if (dir)
        *ret = (struct target){ .local = true, .job_dir = dir };
    else if (!words->cluster_named && (is_path || (words->name && words->name_holds_job)))
        *ret = (struct target){ .local = true, .job_dir = words->name, .name_used = true };
    else
        *ret = (struct target){ .name = words->name, .name_used = words->name != NULL };
    return 0;
}
