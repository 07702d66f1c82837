#include "checkpoint/io.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/fs.h"
#include "base/mem.h"
#include "checkpoint/layout.h"

/* For `if (failed("rename", path) || rename(...) != 0)`. */
static bool failed(const char *operation, const char *path)
{
    int error = fault(operation, path);
    if (error != 0)
        errno = error;
    return error != 0;
}

int io_create(const char *path, int *ret_fd, struct error *e)
{
    if (failed("create", path) || (unlink(path) != 0 && errno != ENOENT))
        return error_errno(e, "create %s", path);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0)
        return error_errno(e, "create %s", path);
    *ret_fd = fd;
    return 0;
}

int io_reserve(int fd, const char *path, uint64_t bytes, struct error *e)
{
    if (bytes == 0)
        return 0;
    if (failed("fallocate", path) || fallocate(fd, 0, 0, (off_t)bytes) != 0) {
        if (errno == EOPNOTSUPP || errno == ENOSYS || errno == EINTR)
            return 0;
        return error_errno(e, "reserve %llu bytes for %s", (unsigned long long)bytes, path);
    }
    return 0;
}

int io_write(int fd, const char *path, const void *bytes, size_t len, struct error *e)
{
    const char *p = bytes;
    while (len > 0) {
        if (failed("write", path))
            return error_errno(e, "write %s", path);
        ssize_t n = write(fd, p, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return error_errno(e, "write %s", path);
        p += n;
        len -= (size_t)n;
    }
    return 0;
}

int io_finish(int fd, const char *path, struct error *e)
{
    auto_close int held = fd;
    if (failed("fsync", path) || fdatasync(held) != 0)
        return error_errno(e, "fsync %s", path);
    if (failed("close", path) || close(TAKE_FD(held)) != 0)
        return error_errno(e, "close %s", path);
    return 0;
}

int io_rename(const char *from, const char *to, struct error *e)
{
    if (failed("rename", to) || rename(from, to) != 0)
        return error_errno(e, "rename to %s", to);
    return 0;
}

int io_sync_dir(const char *path, struct error *e)
{
    if (failed("fsync", path))
        return error_errno(e, "fsync directory %s", path);
    return fs_sync_dir(path, e);
}

int io_remove(const char *path, struct error *e)
{
    if (failed("unlink", path) || (unlink(path) != 0 && errno != ENOENT))
        return error_errno(e, "remove %s", path);
    return 0;
}

static int write_tmp(const char *tmp, const char *text, struct error *e)
{
    int fd;
    if (io_create(tmp, &fd, e) != 0)
        return -1;
    if (io_write(fd, tmp, text, strlen(text), e) != 0) {
        (void)close(fd);
        (void)unlink(tmp);
        return -1;
    }
    if (io_finish(fd, tmp, e) != 0) {
        (void)unlink(tmp);
        return -1;
    }
    return 0;
}

int io_write_file(const char *dir, const char *name, const char *text, struct error *e)
{
    auto_free char *path = fs_join(dir, name);
    auto_free char *tmp = xasprintf("%s" LAYOUT_TMP, path);
    if (write_tmp(tmp, text, e) != 0)
        return -1;
    if (io_rename(tmp, path, e) != 0) {
        (void)unlink(tmp);
        return -1;
    }
    return io_sync_dir(dir, e);
}

/* A network file system may carry out a link, lose the answer and refuse the repetition: then ours has two names. */
static bool was_ours(const char *tmp, const char *path)
{
    struct stat a, b;
    return stat(tmp, &a) == 0 && stat(path, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

int io_link_file(const char *dir, const char *name, const char *unique, const char *text, struct error *e)
{
    auto_free char *path = fs_join(dir, name);
    auto_free char *tmp = xasprintf("%s-%s" LAYOUT_TMP, path, unique);
    if (write_tmp(tmp, text, e) != 0)
        return -1;
    if (failed("link", path) || link(tmp, path) != 0) {
        bool exists = errno == EEXIST;
        (void)error_errno(e, "link %s", path);
        if (!exists || !was_ours(tmp, path)) {
            (void)unlink(tmp);
            return exists ? error_set(e, ERROR_CONFLICT, "%s exists already: somebody else was first", path) : -1;
        }
    }
    if (io_remove(tmp, e) != 0)
        return -1;
    return io_sync_dir(dir, e);
}

int io_each_entry(const char *path, io_entry_fn *fn, void *ctx, struct error *e)
{
    DIR *dir = opendir(path);
    if (dir == NULL)
        return errno == ENOENT ? 0 : error_errno(e, "read directory %s", path);
    int result = 0;
    for (;;) {
        errno = 0;
        const struct dirent *entry = readdir(dir);
        if (entry == NULL) {
            if (errno != 0)
                result = error_errno(e, "read directory %s", path);
            break;
        }
        if (entry->d_name[0] != '.' && (result = fn(ctx, entry->d_name, e)) != 0)
            break;
    }
    (void)closedir(dir);
    return result;
}
