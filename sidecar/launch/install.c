#include "sidecar/launch/install.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"

#define DEPTH_MAX 16
#define CHUNK_BYTES (1u << 20)

static int make_dir(const char *path, struct error *e)
{
    if (mkdir(path, 0755) == 0 || errno == EEXIST)
        return 0;
    return error_errno(e, "make directory %s", path);
}

static int copy_bytes(int in, int out, const char *path, struct error *e)
{
    for (;;) {
        ssize_t n = sendfile(out, in, NULL, CHUNK_BYTES);
        if (n == 0)
            return 0;
        if (n < 0 && errno != EINTR)
            return error_errno(e, "copy to %s", path);
    }
}

static int copy_file(const char *from, const char *to, struct error *e)
{
    struct stat st;
    auto_close int in = open(from, O_RDONLY | O_CLOEXEC);
    if (in < 0 || fstat(in, &st) != 0)
        return error_errno(e, "open %s", from);

    auto_free char *beside = xasprintf("%s.%ld.new", to, (long)getpid());
    auto_close int out = open(beside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (out < 0)
        return error_errno(e, "create %s", beside);
    int result = copy_bytes(in, out, beside, e);
    if (result == 0 && fchmod(out, (st.st_mode & 0111) | 0644) != 0)
        result = error_errno(e, "set the mode of %s", beside);
    if (result == 0 && rename(beside, to) != 0)
        result = error_errno(e, "rename %s to %s", beside, to);
    if (result != 0)
        (void)unlink(beside);
    return result;
}

static int copy_tree(const char *from, const char *to, int depth, struct error *e);

static int copy_entry(const char *from, const char *to, int depth, struct error *e)
{
    struct stat st;

    if (stat(from, &st) != 0)
        return error_errno(e, "look at %s", from);
    if (S_ISDIR(st.st_mode))
        return copy_tree(from, to, depth + 1, e);
    return S_ISREG(st.st_mode) ? copy_file(from, to, e) : 0;
}

static int copy_tree(const char *from, const char *to, int depth, struct error *e)
{
    int result = 0;

    if (depth > DEPTH_MAX)
        return error_set(e, ERROR_LIMIT, "%s is nested deeper than %d directories", from, DEPTH_MAX);
    if (make_dir(to, e) != 0)
        return -1;
    DIR *dir = opendir(from);
    if (dir == NULL)
        return error_errno(e, "open directory %s", from);
    for (struct dirent *entry = readdir(dir); entry != NULL && result == 0; entry = readdir(dir)) {
        if (entry->d_name[0] == '.' || strcmp(entry->d_name, "__pycache__") == 0)
            continue;
        auto_free char *source = xasprintf("%s/%s", from, entry->d_name);
        auto_free char *target = xasprintf("%s/%s", to, entry->d_name);
        result = copy_entry(source, target, depth, e);
    }
    (void)closedir(dir);
    return result;
}

static bool is_dir(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* The first of base/names that is a directory. Owned; NULL: none. */
static char *first_dir(const char *base, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        auto_free char *path = xasprintf("%s/%s", base, names[i]);
        if (is_dir(path))
            return TAKE(path);
    }
    return NULL;
}

static int copy_launcher(const char *program, const char *dir, struct error *e)
{
    auto_free char *bin = xasprintf("%s/bin", dir);
    auto_free char *to = xasprintf("%s/ringmaster-launch", bin);

    if (make_dir(dir, e) != 0 || make_dir(bin, e) != 0)
        return -1;
    return copy_file(program, to, e);
}

int install(const char *dir, const char *library_dir, struct error *e)
{
    static const char *const libraries[] = { "../client/lib", "../lib/ringmaster" };
    static const char *const packages[] = { "../python", "../../share/ringmaster/python" };
    char program[PATH_MAX];

    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n < 0)
        return error_errno(e, "find this program's own file");
    program[n] = '\0';
    if (copy_launcher(program, dir, e) != 0)
        return -1;

    *strrchr(program, '/') = '\0';
    auto_free char *from = library_dir != NULL ? xstrdup(library_dir) : first_dir(program, libraries, COUNT(libraries));
    if (from == NULL) {
        log_warn("no client libraries beside this program: training processes run without them", KV("program", program));
        return 0;
    }
    auto_free char *to_libraries = xasprintf("%s/lib", dir);
    if (copy_tree(from, to_libraries, 0, e) != 0)
        return -1;
    auto_free char *python = first_dir(from, packages, COUNT(packages));
    if (python == NULL)
        return 0;
    auto_free char *to_python = xasprintf("%s/python", dir);
    return copy_tree(python, to_python, 0, e);
}
