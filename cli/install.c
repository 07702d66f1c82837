#include "cli/install.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/mem.h"

void install_release(struct install *i)
{
    free(i->launcher);
    free(i->sidecar);
    free(i->library_dir);
    free(i->python_dir);
    *i = (struct install){ .launcher = NULL };
}

/* The directory above bin/. */
static int own_prefix(char **ret, struct error *e)
{
    char path[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n < 0)
        return error_errno(e, "read /proc/self/exe; give the place of the programs with --install-dir");
    path[n] = '\0';
    for (int up = 0; up < 2; up++) {
        char *slash = strrchr(path, '/');
        if (slash)
            *slash = '\0';
    }
    *ret = xstrdup(path);
    return 0;
}

static int program(const char *prefix, const char *name, char **ret, struct error *e)
{
    auto_free char *path = xasprintf("%s/bin/%s", prefix, name);
    if (access(path, X_OK) < 0)
        return error_set(e, ERROR_NOT_FOUND, "%s is missing; build it with 'make programs', install with 'make install', or give its "
                         "prefix with --install-dir", path);
    *ret = TAKE(path);
    return 0;
}

/* The first of the places that exists, else the first. A variant's build directory lies one below the one with client/. */
static char *first_of(const char *prefix, const char *const *places, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        auto_free char *path = fs_join(prefix, places[i]);
        char *real = realpath(path, NULL);
        if (real)
            return real;
    }
    return fs_join(prefix, places[0]);
}

int install_find(const char *dir, struct install *ret, struct error *e)
{
    static const char *const LIBRARIES[] = { "lib/ringmaster", "client/lib", "../client/lib" };
    static const char *const PYTHON[] = { "share/ringmaster/python", "client/python", "../client/python" };
    struct install i = { .launcher = NULL };
    auto_free char *prefix = dir ? realpath(dir, NULL) : NULL;
    if (dir && !prefix)
        return error_errno(e, "--install-dir %s", dir);
    if (!prefix && own_prefix(&prefix, e) < 0)
        return -1;
    if (program(prefix, "ringmaster-launch", &i.launcher, e) < 0 || program(prefix, "ringmaster-sidecar", &i.sidecar, e) < 0) {
        install_release(&i);
        return -1;
    }
    i.library_dir = first_of(prefix, LIBRARIES, COUNT(LIBRARIES));
    i.python_dir = first_of(prefix, PYTHON, COUNT(PYTHON));
    *ret = i;
    return 0;
}
