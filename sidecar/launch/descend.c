#include "sidecar/launch/descend.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"

struct tree {
    pid_t *pids, *parents;
    size_t count, cap;
};

bool descend_parse_stat(const char *text, pid_t *ret_pid, pid_t *ret_parent)
{
    char *end = NULL;
    long pid = strtol(text, &end, 10);
    const char *after = strrchr(text, ')');
    char state = 0;
    long parent = 0;

    if (end == text || pid <= 0 || after == NULL || sscanf(after + 1, " %c %ld", &state, &parent) != 2)
        return false;
    *ret_pid = (pid_t)pid;
    *ret_parent = (pid_t)parent;
    return true;
}

void descend_mark(pid_t root, const pid_t *pids, const pid_t *parents, bool *ret_below, size_t count)
{
    bool changed = true;

    memset(ret_below, 0, count * sizeof *ret_below);
    while (changed) { /* once per generation */
        changed = false;
        for (size_t i = 0; i < count; i++) {
            bool below = parents[i] == root;
            for (size_t k = 0; !below && k < count; k++)
                below = ret_below[k] && pids[k] == parents[i];
            if (below && !ret_below[i] && pids[i] != root) {
                ret_below[i] = true;
                changed = true;
            }
        }
    }
}

static void add_process(struct tree *t, const char *name)
{
    char path[64], text[512];
    pid_t pid = 0, parent = 0;

    (void)snprintf(path, sizeof path, "/proc/%.20s/stat", name);
    auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return; /* it ended meanwhile */
    ssize_t n = read(fd, text, sizeof text - 1);
    if (n <= 0)
        return;
    text[n] = '\0';
    if (!descend_parse_stat(text, &pid, &parent))
        return;
    if (t->count == t->cap) {
        t->cap = t->cap > 0 ? 2 * t->cap : 256;
        t->pids = xrealloc(t->pids, t->cap, sizeof *t->pids);
        t->parents = xrealloc(t->parents, t->cap, sizeof *t->parents);
    }
    t->pids[t->count] = pid;
    t->parents[t->count] = parent;
    t->count++;
}

size_t descend_list(pid_t **ret_pids)
{
    struct tree t = { .pids = NULL };
    size_t count = 0;
    DIR *dir = opendir("/proc");

    *ret_pids = NULL;
    if (dir == NULL)
        return 0;
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        if (isdigit((unsigned char)entry->d_name[0]))
            add_process(&t, entry->d_name);
    }
    (void)closedir(dir);

    auto_free bool *below = xcalloc(t.count + 1, sizeof *below);
    descend_mark(getpid(), t.pids, t.parents, below, t.count);
    for (size_t i = 0; i < t.count; i++) {
        if (below[i])
            t.pids[count++] = t.pids[i];
    }
    free(t.parents);
    *ret_pids = t.pids;
    return count;
}

size_t descend_kill(int signal_number)
{
    auto_free pid_t *pids = NULL;
    size_t count = descend_list(&pids), signalled = 0;

    for (size_t i = 0; i < count; i++)
        signalled += kill(pids[i], signal_number) == 0;
    return signalled;
}

bool descend_reap(descend_reaped_fn *fn, void *ctx)
{
    for (;;) {
        int status = 0;
        pid_t pid = waitpid(-1, &status, WNOHANG);
        if (pid == 0)
            return true;
        if (pid < 0 && errno == EINTR)
            continue;
        if (pid < 0)
            return false;
        if (fn != NULL)
            fn(ctx, pid, status);
    }
}

void descend_end(int limit_ms)
{
    int64_t until = clock_mono_ms() + limit_ms;
    struct timespec pause = { .tv_sec = 0, .tv_nsec = 1000000 };

    while (descend_reap(NULL, NULL) && clock_mono_ms() < until) {
        (void)descend_kill(SIGKILL);
        (void)nanosleep(&pause, NULL);
        if (pause.tv_nsec < 32000000)
            pause.tv_nsec *= 2;
    }
}
