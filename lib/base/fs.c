#include "base/fs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

char *fs_join(const char *dir, const char *name)
{
    size_t n = strlen(dir);

    return xasprintf("%s%s%s", dir, n > 0 && dir[n - 1] == '/' ? "" : "/", name);
}

int fs_sync_dir(const char *path, struct error *e)
{
    auto_close int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0)
        return error_errno(e, "open directory %s", path);
    if (fsync(fd) != 0)
        return error_errno(e, "fsync directory %s", path);
    return 0;
}

static int write_all(int fd, const char *bytes, size_t len)
{
    while (len > 0) {
        ssize_t n = write(fd, bytes, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        bytes += n;
        len -= (size_t)n;
    }
    return 0;
}

/* Writes, syncs and closes tmp; close is checked because network file systems report a full disk there. */
static int write_file(const char *tmp, const void *bytes, size_t len, mode_t mode, struct error *e)
{
    auto_close int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, mode);

    if (fd < 0)
        return error_errno(e, "create %s", tmp);
    if (write_all(fd, bytes, len) != 0)
        return error_errno(e, "write %s", tmp);
    if (fsync(fd) != 0)
        return error_errno(e, "fsync %s", tmp);
    if (close(TAKE_FD(fd)) != 0)
        return error_errno(e, "close %s", tmp);
    return 0;
}

int fs_write_atomic(const char *path, const void *bytes, size_t len, mode_t mode, struct error *e)
{
    auto_free char *tmp = xasprintf("%s.tmp.%ld", path, (long)getpid());

    if (write_file(tmp, bytes, len, mode, e) != 0) {
        (void)unlink(tmp);
        return -1;
    }
    if (rename(tmp, path) != 0) {
        (void)error_errno(e, "rename %s to %s", tmp, path);
        (void)unlink(tmp);
        return -1;
    }
    const char *slash = strrchr(path, '/');
    auto_free char *dir = slash == NULL ? xstrdup(".") : xstrndup(path, slash == path ? 1 : (size_t)(slash - path));
    return fs_sync_dir(dir, e);
}

int fs_read(const char *path, size_t max, char **ret_bytes, size_t *ret_len, struct error *e)
{
    auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return error_errno(e, "open %s", path);

    auto_free char *bytes = NULL;
    size_t len = 0, cap = 0;
    for (;;) {
        if (len + 1 >= cap) {
            cap = cap > 0 ? cap * 2 : 4096;
            bytes = xrealloc(bytes, cap, 1);
        }
        ssize_t n = read(fd, bytes + len, cap - len - 1);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return error_errno(e, "read %s", path);
        if (n == 0)
            break;
        len += (size_t)n;
        if (len > max)
            return error_set(e, ERROR_LIMIT, "%s is larger than the limit of %zu bytes", path, max);
    }
    bytes[len] = '\0';
    *ret_bytes = TAKE(bytes);
    if (ret_len != NULL)
        *ret_len = len;
    return 0;
}

int fs_mkdirs(const char *path, mode_t mode, struct error *e)
{
    auto_free char *part = xstrdup(path);

    for (char *p = part + 1;; p++) {
        if (*p != '/' && *p != '\0')
            continue;
        char kept = *p;
        *p = '\0';
        if (mkdir(part, mode) != 0 && errno != EEXIST)
            return error_errno(e, "make directory %s", part);
        if (kept == '\0')
            break;
        *p = kept;
    }
    struct stat st;
    if (stat(path, &st) != 0)
        return error_errno(e, "look at %s", path);
    if (!S_ISDIR(st.st_mode))
        return error_set(e, ERROR_CONFLICT, "%s is there and is no directory", path);
    return 0;
}

static int remove_at(int parent, const char *name, const char *path, struct error *e);

static int empty_dir(int fd, const char *path, struct error *e)
{
    DIR *dir = fdopendir(fd);
    if (dir == NULL) {
        (void)error_errno(e, "read directory %s", path);
        (void)close(fd);
        return -1;
    }
    int result = 0;
    for (struct dirent *entry; result == 0 && (entry = readdir(dir)) != NULL;) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            result = remove_at(dirfd(dir), entry->d_name, path, e);
    }
    (void)closedir(dir);
    return result;
}

static int remove_at(int parent, const char *name, const char *path, struct error *e)
{
    if (unlinkat(parent, name, 0) == 0 || errno == ENOENT)
        return 0;
    if (errno != EISDIR && errno != EPERM)
        return error_errno(e, "remove %s in %s", name, path);

    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return error_errno(e, "open directory %s in %s", name, path);
    if (empty_dir(fd, path, e) != 0)
        return -1;
    if (unlinkat(parent, name, AT_REMOVEDIR) != 0 && errno != ENOENT)
        return error_errno(e, "remove directory %s in %s", name, path);
    return 0;
}

int fs_remove_tree(const char *path, struct error *e)
{
    return remove_at(AT_FDCWD, path, path, e);
}
