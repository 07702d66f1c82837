#include "sidecar/launch/oom.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"

#define FILE_MAX 4096

static char *read_small(const char *path)
{
    auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    auto_free char *text = xcalloc(1, FILE_MAX);
    ssize_t n = read(fd, text, FILE_MAX - 1);
    return n > 0 ? TAKE(text) : NULL;
}

/* "oom_kill 3" on a line of its own. */
static int64_t counter_in(const char *path)
{
    auto_free char *text = read_small(path);

    for (char *line = text; line != NULL && *line != '\0';) {
        char *end = strchr(line, '\n');
        long long value = 0;
        if (sscanf(line, "oom_kill %lld", &value) == 1)
            return value;
        line = end != NULL ? end + 1 : NULL;
    }
    return -1;
}

static int64_t counter_of(const char *mount, const char *controller, const char *group, const char *file)
{
    auto_free char *own = xasprintf("%s%s%s/%s", mount, controller, strcmp(group, "/") == 0 ? "" : group, file);
    int64_t count = counter_in(own);

    if (count < 0) {
        auto_free char *root = xasprintf("%s%s/%s", mount, controller, file);
        count = counter_in(root);
    }
    return count;
}

/* Does the comma-separated list of controllers hold "memory"? */
static int names_memory(const char *list)
{
    size_t len = strlen("memory");

    for (const char *p = strstr(list, "memory"); p != NULL; p = strstr(p + len, "memory")) {
        if ((p == list || p[-1] == ',') && (p[len] == '\0' || p[len] == ','))
            return 1;
    }
    return 0;
}

int64_t oom_count(const char *cgroup_file, const char *mount)
{
    auto_free char *text = read_small(cgroup_file);
    int64_t count = -1;
    char *rest = NULL;

    /* hierarchy-ID:controllers:path; version 2 is "0::path" */
    for (char *line = text != NULL ? strtok_r(text, "\n", &rest) : NULL; line != NULL && count < 0;
         line = strtok_r(NULL, "\n", &rest)) {
        char *controllers = strchr(line, ':');
        char *group = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
        if (group == NULL)
            continue;
        *group++ = '\0';
        controllers++;
        if (names_memory(controllers))
            count = counter_of(mount, "/memory", group, "memory.oom_control");
        else if (strncmp(line, "0:", 2) == 0 && controllers[0] == '\0')
            count = counter_of(mount, "", group, "memory.events");
    }
    return count;
}
