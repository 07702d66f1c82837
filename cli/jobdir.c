#include "cli/jobdir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crypto.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"

char *jobdir_path(const struct jobdir *d, const char *fmt, ...)
{
    char name[PATH_MAX];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(name, sizeof name, fmt, args);
    va_end(args);
    return fs_join(d->path, name);
}

char *jobdir_default(const char *name, bool fresh)
{
    char *path = xasprintf("%s/%s", JOBDIR_PARENT, name);
    for (int n = 2; fresh && n < 100000 && access(path, F_OK) == 0; n++) {
        free(path);
        path = xasprintf("%s/%s-%d", JOBDIR_PARENT, name, n);
    }
    return path;
}

void jobdir_release(struct jobdir *d)
{
    free(d->path);
    free(d->runtime);
    if (d->lock_fd >= 0)
        close(d->lock_fd);
    *d = (struct jobdir)JOBDIR_INIT;
}

/* The holder's pid stands in the lock file, for the message only: flock is what counts. */
static int take_lock(const char *path, int *ret_fd, struct error *e)
{
    auto_free char *name = fs_join(path, "lock");
    auto_close int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0)
        return error_errno(e, "open %s", name);
    char text[32] = "";
    if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK)
            return error_errno(e, "lock %s", name);
        ssize_t n = pread(fd, text, sizeof text - 1, 0);
        text[n > 0 ? strcspn(text, "\n") : 0] = '\0';
        return error_set(e, ERROR_BUSY, "%s is in use by another ringmaster run%s%s; wait for it, stop it, or choose another "
                         "directory with --job-dir", path, *text ? " with pid " : "", text);
    }
    int n = snprintf(text, sizeof text, "%d\n", (int)getpid());
    if (ftruncate(fd, 0) < 0 || pwrite(fd, text, (size_t)n, 0) != n)
        return error_errno(e, "write %s", name);
    *ret_fd = TAKE_FD(fd);
    return 0;
}

static int absolute(const char *path, char **ret, struct error *e)
{
    char *real = realpath(path, NULL);
    if (!real)
        return error_errno(e, "%s", path);
    *ret = real;
    return 0;
}

int jobdir_open(const char *path, struct jobdir *ret, struct error *e)
{
    struct jobdir d = JOBDIR_INIT;
    if (fs_mkdirs(path, 0755, e) < 0)
        return error_wrap(e, "job directory %.100s cannot be made, choose another with --job-dir", path);
    if (absolute(path, &d.path, e) < 0 || take_lock(d.path, &d.lock_fd, e) < 0) {
        jobdir_release(&d);
        return -1;
    }
    *ret = d;
    return 0;
}

int jobdir_look(const char *path, struct jobdir *ret, struct error *e)
{
    struct jobdir d = JOBDIR_INIT;
    if (absolute(path, &d.path, e) < 0)
        return error_wrap(e, "job directory");
    if (!jobdir_used(&d)) {
        error_set(e, ERROR_NOT_FOUND, "%s has no job in it (no job.json); give the directory that 'ringmaster run' named", path);
        jobdir_release(&d);
        return -1;
    }
    *ret = d;
    return 0;
}

bool jobdir_busy(const struct jobdir *d)
{
    auto_free char *path = jobdir_path(d, "lock");
    auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) < 0;
}

bool jobdir_used(const struct jobdir *d)
{
    auto_free char *name = jobdir_path(d, "job.json");
    return access(name, F_OK) == 0;
}

bool jobdir_holds_job(const char *path)
{
    if (!path || !*path)
        return false;
    auto_free char *name = fs_join(path, "job.json");
    return access(name, F_OK) == 0;
}

int jobdir_clear(const struct jobdir *d, struct error *e)
{
    static const char *const LEFT[] = { "job.json", "status.json", "key", "coordinator.json", "history.jsonl", "pods", "logs",
                                        "checkpoints", "report.json", "report.html" };
    for (size_t i = 0; i < COUNT(LEFT); i++) {
        auto_free char *name = jobdir_path(d, "%s", LEFT[i]);
        if (fs_remove_tree(name, e) < 0)
            return -1;
    }
    return 0;
}

int jobdir_runtime(struct jobdir *d, const char *uid, struct error *e)
{
    if (!text_is_dns1123_label(uid)) /* it becomes a file's name */
        return error_set(e, ERROR_INVALID, "metadata.uid \"%.70s\" in job.json is no identifier; start the job anew in another --job-dir",
                         uid);
    auto_free char *path = xasprintf("/dev/shm/ringmaster-%s", uid);
    if (fs_mkdirs(path, 0700, e) < 0)
        return error_wrap(e, "directory for sockets and checkpoint slots");
    d->runtime = TAKE(path);
    return 0;
}

void jobdir_runtime_remove(struct jobdir *d)
{
    struct error e = ERROR_INIT;
    if (d->runtime && fs_remove_tree(d->runtime, &e) < 0) /* it is tmpfs: what is left is gone at the next boot */
        log_warn_from("memory for checkpoint slots was not given back", &e, KV("directory", d->runtime));
}

void jobdir_runtime_trim(struct jobdir *d)
{
    struct error e = ERROR_INIT;
    if (!d->runtime)
        return;
    auto_free char *run = fs_join(d->runtime, "run");
    if (fs_remove_tree(run, &e) < 0)
        log_warn_from("sockets were not removed", &e, KV("directory", run));
    DIR *dir = opendir(d->runtime);
    for (const struct dirent *item; dir && (item = readdir(dir));)
        (void)unlinkat(dirfd(dir), item->d_name, AT_REMOVEDIR); /* fails where a member has slots: they stay */
    if (dir)
        closedir(dir);
    (void)rmdir(d->runtime);
}

static int save_json(const struct jobdir *d, const char *name, const cJSON *tree, struct error *e)
{
    auto_free char *path = jobdir_path(d, "%s", name), *text = json_print(tree, true);
    return fs_write_atomic(path, text, strlen(text), 0644, e);
}

static int load_json(const struct jobdir *d, const char *name, cJSON **ret_tree, struct error *e)
{
    auto_free char *path = jobdir_path(d, "%s", name), *text = NULL;
    size_t len;
    if (fs_read(path, JSON_MAX_BYTES, &text, &len, e) < 0)
        return -1;
    return json_parse(text, len, ret_tree, e) < 0 ? error_wrap(e, "%s", path) : 0;
}

int jobdir_save_job(const struct jobdir *d, const cJSON *tree, struct error *e)
{
    return save_json(d, "job.json", tree, e);
}

int jobdir_load_job(const struct jobdir *d, struct jobfile *ret, char **ret_report, struct error *e)
{
    auto_free char *path = jobdir_path(d, "job.json");
    cJSON *tree = NULL;
    *ret_report = NULL;
    if (load_json(d, "job.json", &tree, e) < 0)
        return -1;
    return jobfile_from_tree(path, tree, NULL, ret, ret_report, e);
}

int jobdir_save_status(const struct jobdir *d, const struct training_job *job, const struct job_status *status, struct error *e)
{
    auto_json cJSON *tree = status_encode(job, status);
    return save_json(d, "status.json", tree, e);
}

int jobdir_load_status(const struct jobdir *d, struct job_status *ret_status, struct error *e)
{
    auto_json cJSON *tree = NULL;
    if (load_json(d, "status.json", &tree, e) < 0) {
        if (e->kind != ERROR_NOT_FOUND)
            return -1;
        status_init(ret_status);
        return 0;
    }
    return status_decode(tree, ret_status, e) < 0 ? error_wrap(e, "%s/status.json", d->path) : 0;
}

int jobdir_make_key(const struct jobdir *d, struct error *e)
{
    auto_free char *path = jobdir_path(d, "key");
    uint8_t key[CRYPTO_KEY_BYTES];
    char text[2 * CRYPTO_KEY_BYTES + 2];
    if (access(path, F_OK) == 0)
        return 0;
    if (crypto_random(key, sizeof key, e) < 0)
        return -1;
    crypto_hex(key, sizeof key, text);
    int rc = fs_write_atomic(path, text, 2 * CRYPTO_KEY_BYTES, 0600, e);
    crypto_wipe(key, sizeof key);
    crypto_wipe(text, sizeof text);
    return rc;
}

int jobdir_put(const char *path, const char *text, struct error *e)
{
    auto_free char *temporary = xasprintf("%s.new", path);
    auto_close int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        return error_errno(e, "open %s", temporary);
    size_t len = strlen(text);
    for (size_t at = 0; at < len;) {
        ssize_t n = write(fd, text + at, len - at);
        if (n < 0)
            return error_errno(e, "write %s", temporary);
        at += (size_t)n;
    }
    return rename(temporary, path) < 0 ? error_errno(e, "rename %s", temporary) : 0;
}
