#include "cli/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/mem.h"

/* In the child: only calls that are safe after fork. What failed goes to the parent as an errno. */
static void child_become(const struct process_spec *spec, pid_t parent, int error_fd)
{
    struct sigaction defaults = { .sa_handler = SIG_DFL };
    sigset_t none;
    sigemptyset(&none);
    for (int n = 1; n < NSIG; n++)
        sigaction(n, &defaults, NULL);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setsid();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(127);
    int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null_fd >= 0 && dup2(null_fd, 0) == 0 && dup2(spec->output_fd, 1) == 1 && dup2(spec->output_fd, 2) == 2 &&
        (!spec->directory || chdir(spec->directory) == 0))
        execve(spec->argv[0], spec->argv, spec->environment);
    int code = errno;
    ssize_t n = write(error_fd, &code, sizeof code);
    (void)n;
    _exit(127);
}

int process_start(const struct process_spec *spec, pid_t *ret_pid, struct error *e)
{
    int pipe_fds[2];
    if (pipe2(pipe_fds, O_CLOEXEC) < 0)
        return error_errno(e, "make a pipe");
    auto_close int read_fd = pipe_fds[0], write_fd = pipe_fds[1];
    pid_t parent = getpid(), pid = fork();
    if (pid < 0)
        return error_errno(e, "start %s", spec->argv[0]);
    if (pid == 0)
        child_become(spec, parent, write_fd);
    close(TAKE_FD(write_fd));
    int code = 0;
    ssize_t n = TEMP_FAILURE_RETRY(read(read_fd, &code, sizeof code)); /* ends when exec closes the other side */
    if (n == (ssize_t)sizeof code) {
        (void)waitpid(pid, NULL, 0);
        errno = code;
        return error_errno(e, "start %s%s%s", spec->argv[0], spec->directory ? " in " : "", spec->directory ? spec->directory : "");
    }
    *ret_pid = pid;
    return 0;
}

uint64_t process_ticks(pid_t pid)
{
    struct error e = ERROR_INIT;
    char path[48];
    auto_free char *text = NULL;
    size_t len;
    unsigned long long ticks = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    if (pid <= 0 || fs_read(path, 4096, &text, &len, &e) < 0)
        return 0;
    const char *p = strrchr(text, ')'); /* the name before may hold anything */
    if (!p || sscanf(p + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &ticks) != 1)
        return 0;
    return ticks;
}

bool process_kill(pid_t pid, uint64_t ticks, int signal_number)
{
    return ticks != 0 && process_ticks(pid) == ticks && kill(pid, signal_number) == 0;
}

int32_t process_exit_code(int wait_status)
{
    return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

/* ---- environment ---- */

static size_t name_len(const char *item)
{
    return strcspn(item, "=");
}

static char **find(const struct process_environment *env, const char *name, size_t len)
{
    for (size_t i = 0; i < env->count; i++)
        if (name_len(env->items[i]) == len && strncmp(env->items[i], name, len) == 0)
            return &env->items[i];
    return NULL;
}

static void put(struct process_environment *env, char *item)
{
    char **have = find(env, item, name_len(item));
    if (have) {
        free(*have);
        *have = item;
        return;
    }
    env->items = xrealloc(env->items, env->count + 2, sizeof *env->items);
    env->items[env->count++] = item;
    env->items[env->count] = NULL;
}

void process_environment_inherit(struct process_environment *env)
{
    *env = (struct process_environment){ .items = xcalloc(1, sizeof *env->items) };
    for (char **item = environ; *item; item++)
        if (strncmp(*item, "RINGMASTER_", 11) != 0 && strncmp(*item, "TF_CONFIG=", 10) != 0)
            put(env, xstrdup(*item));
}

void process_environment_set(struct process_environment *env, const char *name, const char *value)
{
    put(env, xasprintf("%s=%s", name, value));
}

const char *process_environment_get(const struct process_environment *env, const char *name)
{
    char **have = find(env, name, strlen(name));
    return have ? *have + strlen(name) + 1 : NULL;
}

void process_environment_release(struct process_environment *env)
{
    for (size_t i = 0; i < env->count; i++)
        free(env->items[i]);
    free(env->items);
    *env = (struct process_environment){ .items = NULL };
}
