#include "checkpoint/volume_posix.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/fs.h"
#include "base/mem.h"
#include "checkpoint/io.h"
#include "checkpoint/layout.h"

#define PIECE (1u << 20)

static char *full(const struct volume *v, const char *path)
{
    return path[0] == '\0' ? xstrdup(v->name) : fs_join(v->name, path);
}

/* The directory of "dir/name", or the root; *ret_name is borrowed. */
static char *parent(const struct volume *v, const char *path, const char **ret_name)
{
    const char *slash = strrchr(path, '/');
    auto_free char *dir = xstrndup(path, slash != NULL ? (size_t)(slash - path) : 0);
    *ret_name = slash != NULL ? slash + 1 : path;
    return full(v, dir);
}

static void posix_close(struct volume *v)
{
    free(v->name);
    free(v);
}

static int posix_list(struct volume *v, const char *dir, volume_name_fn *fn, void *ctx, struct error *e)
{
    auto_free char *path = full(v, dir);
    return io_each_entry(path, fn, ctx, e);
}

static int posix_has(struct volume *v, const char *dir, const char *const *names, size_t count, bool *ret_there, struct error *e)
{
    auto_free char *path = full(v, dir);
    (void)e;
    for (size_t i = 0; i < count; i++) {
        auto_free char *file = fs_join(path, names[i]);
        ret_there[i] = access(file, F_OK) == 0;
    }
    return 0;
}

static int posix_stat(struct volume *v, const char *path, struct volume_stat *ret_stat, struct error *e)
{
    auto_free char *file = full(v, path);
    struct stat st;
    if (stat(file, &st) != 0)
        return errno == ENOENT ? error_set(e, ERROR_NOT_FOUND, "%s is missing", file) : error_errno(e, "look at %s", file);
    if (!S_ISREG(st.st_mode))
        return error_set(e, ERROR_INVALID, "%s is no file", file);
    *ret_stat = (struct volume_stat){ .bytes = (uint64_t)st.st_size,
                                      .modified_wall_ms = (int64_t)st.st_mtim.tv_sec * 1000 + st.st_mtim.tv_nsec / 1000000 };
    return 0;
}

static int posix_read(struct volume *v, const char *path, size_t max, char **ret_text, size_t *ret_len, struct error *e)
{
    auto_free char *file = full(v, path);
    return fs_read(file, max, ret_text, ret_len, e);
}

static int posix_read_range(struct volume *v, const char *path, uint64_t offset, void *bytes, size_t len, struct error *e)
{
    auto_free char *file = full(v, path);
    auto_close int fd = open(file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return error_errno(e, "open %s", file);
    return image_read(fd, offset, bytes, len, e) != 0 ? error_wrap(e, "%s", file) : 0;
}

static int posix_replace(struct volume *v, const char *path, const char *text, struct error *e)
{
    const char *name;
    auto_free char *dir = parent(v, path, &name);
    return io_write_file(dir, name, text, e);
}

static int posix_create(struct volume *v, const char *path, const char *unique, const char *text, struct error *e)
{
    const char *name;
    auto_free char *dir = parent(v, path, &name);
    return io_link_file(dir, name, unique, text, e);
}

static int posix_make_dir(struct volume *v, const char *dir, struct error *e)
{
    auto_free char *path = full(v, dir);
    if ((errno = fault("mkdir", path)) != 0)
        return error_errno(e, "make directory %s", path);
    return fs_mkdirs(path, 0755, e) != 0 ? -1 : io_sync_dir(v->name, e);
}

static int posix_move(struct volume *v, const char *dir, const char *from, const char *to, struct error *e)
{
    auto_free char *path = full(v, dir), *old = fs_join(path, from), *new = fs_join(path, to);
    return io_rename(old, new, e) != 0 ? -1 : io_sync_dir(path, e);
}

static int posix_remove(struct volume *v, const char *path, struct error *e)
{
    auto_free char *file = full(v, path);
    return io_remove(file, e);
}

/* Renamed first, so that a removal that is cut short leaves nothing that looks like a generation. */
static int posix_remove_dir(struct volume *v, const char *dir, struct error *e)
{
    auto_free char *path = full(v, dir);
    auto_free char *gone = layout_is_tmp(dir) ? xstrdup(path) : xasprintf("%s" LAYOUT_TMP, path);
    if (!layout_is_tmp(dir) && io_rename(path, gone, e) != 0)
        return -1;
    if ((errno = fault("remove", gone)) != 0)
        return error_errno(e, "remove %s", gone);
    return fs_remove_tree(gone, e);
}

static int copy_image(int from, uint64_t offset, uint64_t bytes, int to, const char *path, struct image_sum *sum, struct error *e)
{
    auto_free uint8_t *piece = xcalloc(1, PIECE);
    for (uint64_t at = 0; at < bytes;) {
        size_t n = bytes - at < PIECE ? (size_t)(bytes - at) : PIECE;
        if (image_read(from, offset + at, piece, n, e) != 0 || image_sum_add(sum, piece, n, bytes, e) != 0 ||
            io_write(to, path, piece, n, e) != 0)
            return -1;
        at += n;
    }
    return 0;
}

static int write_tmp(const char *tmp, int fd, uint64_t offset, uint64_t bytes, struct image_sum *sum, struct error *e)
{
    auto_close int to = -1;
    if (io_create(tmp, &to, e) != 0 || io_reserve(to, tmp, bytes, e) != 0 || copy_image(fd, offset, bytes, to, tmp, sum, e) != 0)
        return -1;
    return io_finish(TAKE_FD(to), tmp, e);
}

static int posix_write_image(struct volume *v, const char *path, int fd, uint64_t offset, uint64_t bytes, struct image_sum *ret_sum,
                             struct error *e)
{
    const char *name;
    auto_image_sum struct image_sum sum = IMAGE_SUM_INIT;
    auto_free char *dir = parent(v, path, &name), *file = full(v, path);
    auto_free char *tmp = xasprintf("%s" LAYOUT_TMP, file);
    if (write_tmp(tmp, fd, offset, bytes, &sum, e) != 0 || io_rename(tmp, file, e) != 0) {
        (void)unlink(tmp);
        return -1;
    }
    if (io_sync_dir(dir, e) != 0) {
        (void)unlink(file);
        return -1;
    }
    *ret_sum = sum;
    sum.sum = (struct checksum)CHECKSUM_INIT;
    return 0;
}

static int posix_read_image(struct volume *v, const char *path, uint64_t bytes, volume_bytes_fn *fn, void *ctx, int *ret_fd,
                            struct error *e)
{
    auto_free char *file = full(v, path);
    auto_free uint8_t *piece = xcalloc(1, PIECE);
    auto_close int fd = open(file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return error_errno(e, "open %s", file);
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    for (uint64_t at = 0; at < bytes;) {
        size_t n = bytes - at < PIECE ? (size_t)(bytes - at) : PIECE;
        if (image_read(fd, at, piece, n, e) != 0)
            return error_wrap(e, "%s", file);
        if (fn(ctx, at, piece, n, e) != 0)
            return -1;
        at += n;
    }
    if (ret_fd != NULL)
        *ret_fd = TAKE_FD(fd);
    return 0;
}

static const struct volume_ops OPS = {
    .close = posix_close, .list = posix_list, .has = posix_has, .stat = posix_stat, .read = posix_read, .read_range = posix_read_range,
    .replace = posix_replace,
    .create = posix_create, .make_dir = posix_make_dir, .move = posix_move, .remove = posix_remove, .remove_dir = posix_remove_dir,
    .write_image = posix_write_image, .read_image = posix_read_image, .is_leftover = layout_is_tmp,
};

struct volume *volume_posix_new(const char *root)
{
    struct volume *v = xcalloc(1, sizeof(*v));
    *v = (struct volume){ .ops = &OPS, .name = xstrdup(root) };
    return v;
}
