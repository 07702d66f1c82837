#include "cli/checkpoint_where.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/fs.h"
#include "base/mem.h"
#include "checkpoint/io.h"
#include "cli/jobdir.h"

void where_release(struct where *w)
{
    free(w->place);
    free(w->job);
    free(w->step);
    *w = (struct where)WHERE_INIT;
}

static bool is_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static bool holds_epochs(const char *path)
{
    auto_free char *epochs = fs_join(path, LAYOUT_EPOCHS);
    return is_dir(epochs);
}

/* dir/name as its two halves. */
static void halves(const char *path, char **ret_dir, char **ret_name)
{
    const char *slash = strrchr(path, '/');
    *ret_dir = slash == path ? xstrdup("/") : xstrndup(path, (size_t)(slash - path));
    *ret_name = xstrdup(slash + 1);
}

static int of_job(const char *dir, struct where *ret_where, struct error *e)
{
    struct jobdir d = JOBDIR_INIT;
    auto_jobfile struct jobfile file = { .tree = NULL };
    auto_free char *report = NULL;
    if (jobdir_look(dir, &d, e) < 0)
        return -1;
    if (jobdir_load_job(&d, &file, &report, e) < 0) {
        jobdir_release(&d);
        return -1;
    }
    const char *path = file.job->spec.checkpoint.path;
    *ret_where = (struct where){ .job = xstrdup(file.job->uid) };
    bool as_it_is = path && (strncmp(path, VOLUME_S3, strlen(VOLUME_S3)) == 0 || (path[0] == '/' && is_dir(path)));
    ret_where->place = as_it_is ? xstrdup(path) : jobdir_path(&d, "checkpoints");
    jobdir_release(&d);
    return 0;
}

struct jobs { const char *dir, *only; char *found; size_t count; struct buf list; };

static int take_job(void *ctx, const char *name, struct error *e)
{
    struct jobs *j = ctx;
    auto_free char *path = fs_join(j->dir, name);
    (void)e;
    if (!layout_uid_ok(name) || !holds_epochs(path) || (j->only && strcmp(j->only, name) != 0))
        return 0;
    if (j->count++ == 0)
        j->found = xstrdup(name);
    buf_addf(&j->list, "%s%s", j->list.len ? ", " : "", name);
    return 0;
}

/* One job, or the one that was named. `listed`: how the listing ended. */
static int choose_job(const char *dir, struct jobs *j, int listed, struct where *ret_where, struct error *e)
{
    int result = listed;
    if (result == 0 && j->count == 0)
        result = j->only ? error_set(e, ERROR_NOT_FOUND, "%s holds no checkpoints of a job \"%.80s\"", dir, j->only)
                         : error_set(e, ERROR_NOT_FOUND, "%s holds no checkpoints: it is no job's directory and no directory of checkpoints", dir);
    else if (result == 0 && j->count > 1)
        result = error_set(e, ERROR_INVALID, "%s holds checkpoints of %zu jobs; choose one with --job: %s%s", dir, j->count, buf_text(&j->list),
                           buf_ok(&j->list) ? "" : "...");
    if (result == 0)
        *ret_where = (struct where){ .place = xstrdup(dir), .job = TAKE(j->found) };
    free(j->found);
    buf_release(&j->list);
    return result;
}

static int of_place(const char *dir, const char *job, struct where *ret_where, struct error *e)
{
    struct jobs j = { .dir = dir, .only = job, .list = BUF_INIT(200) };
    return choose_job(dir, &j, io_each_entry(dir, take_job, &j, e), ret_where, e);
}

static int take_prefix(void *ctx, const char *name, struct error *e)
{
    struct jobs *j = ctx;
    (void)e;
    if (!layout_uid_ok(name) || (j->only && strcmp(j->only, name) != 0))
        return 0;
    if (j->count++ == 0)
        j->found = xstrdup(name);
    buf_addf(&j->list, "%s%s", j->list.len ? ", " : "", name);
    return 0;
}

static int of_bucket(const char *place, const char *job, const struct volume_options *options, struct where *ret_where, struct error *e)
{
    struct jobs j = { .dir = place, .only = job, .list = BUF_INIT(200) };
    auto_free char *bare = xstrndup(place, strlen(place) - (place[strlen(place) - 1] == '/'));
    return choose_job(bare, &j, volume_jobs(bare, options, take_prefix, &j, e), ret_where, e);
}

/* path is absolute, without links. */
static int of_directory(const char *path, const char *job, struct where *ret_where, struct error *e)
{
    struct generation g;
    auto_free char *parent = NULL, *name = NULL;
    if (jobdir_holds_job(path))
        return of_job(path, ret_where, e);
    halves(path, &parent, &name);
    if (layout_generation_parse(name, &g)) {
        *ret_where = (struct where){ .step = TAKE(name) };
        halves(parent, &ret_where->place, &ret_where->job);
        return 0;
    }
    if (holds_epochs(path) && layout_uid_ok(name)) {
        *ret_where = (struct where){ .place = TAKE(parent), .job = TAKE(name) };
        return 0;
    }
    return of_place(path, job, ret_where, e);
}

int where_find(const char *word, const char *default_dir, const char *job, const struct s3_config *s3, struct where *ret_where, struct error *e)
{
    char path[PATH_MAX];
    const char *given = word ? word : default_dir;
    struct volume_options options = { .s3 = s3 };
    if (!given)
        return error_set(e, ERROR_INVALID, "where are the checkpoints? give a job's directory or a directory of checkpoints");
    if (strncmp(given, VOLUME_S3, strlen(VOLUME_S3)) == 0)
        return of_bucket(given, job, &options, ret_where, e);
    auto_free char *named = jobdir_default(given, false);
    if (!is_dir(given) && !strchr(given, '/') && jobdir_holds_job(named))
        given = named;
    if (!realpath(given, path))
        return errno == ENOENT ? error_set(e, ERROR_NOT_FOUND, "there is no directory %s%s", given, strchr(given, '/') ? "" : ", here or in " JOBDIR_PARENT)
                               : error_errno(e, "%s", given);
    if (!is_dir(path))
        return error_set(e, ERROR_INVALID, "%s is no directory", path);
    return of_directory(path, job, ret_where, e);
}
