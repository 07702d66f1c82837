#include "sidecar/launch/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"

#define DEFAULT_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

/* ---- environment ---- */

static size_t count_of(char **list)
{
    size_t n = 0;

    while (list[n] != NULL)
        n++;
    return n;
}

static void environment_put(char **list, const char *pair)
{
    size_t name = (size_t)(strchr(pair, '=') - pair) + 1, i = 0;

    while (list[i] != NULL && strncmp(list[i], pair, name) != 0)
        i++;
    free(list[i]);
    list[i] = xstrdup(pair);
}

char **spawn_environment(const char *overrides, size_t len)
{
    size_t most = count_of(environ) + 1;

    for (size_t i = 0; i < len; i++)
        most += overrides[i] == '\0';
    char **list = xcalloc(most + 1, sizeof *list);
    for (size_t i = 0; environ[i] != NULL; i++)
        list[i] = xstrdup(environ[i]);
    for (size_t i = 0; i < len;) {
        size_t room = len - i, n = strnlen(overrides + i, room);
        if (n < room && memchr(overrides + i, '=', n) != NULL && overrides[i] != '=')
            environment_put(list, overrides + i);
        i += n + 1;
    }
    return list;
}

void spawn_environment_free(char **environment)
{
    for (size_t i = 0; environment != NULL && environment[i] != NULL; i++)
        free(environment[i]);
    free(environment);
}

static const char *environment_get(char *const environment[], const char *name, const char *absent)
{
    size_t len = strlen(name);

    for (size_t i = 0; environment[i] != NULL; i++) {
        if (strncmp(environment[i], name, len) == 0 && environment[i][len] == '=')
            return environment[i] + len + 1;
    }
    return absent;
}

/* ---- which file ---- */

static int explain(int code, int number, const char *path, int *ret_code, struct error *e)
{
    auto_free char *here = path[0] == '/' ? NULL : getcwd(NULL, 0);

    *ret_code = code;
    errno = number;
    return here != NULL ? error_errno(e, "exec %s in %.160s", path, here) : error_errno(e, "exec %s", path);
}

/* A file that is there and yet "not found" has an interpreter (#! line, or the ELF loader) that is not. */
static int explain_exec(int number, const char *path, int *ret_code, struct error *e)
{
    struct stat st;

    if (number == ENOENT && stat(path, &st) == 0) {
        *ret_code = SPAWN_NOT_FOUND;
        return error_set(e, ERROR_NOT_FOUND, "exec %s: the interpreter that its first line or its ELF header names is not there",
                         path);
    }
    if (number == ENOEXEC) {
        *ret_code = SPAWN_NOT_EXECUTABLE;
        return error_set(e, ERROR_INVALID, "exec %s: no program for this machine, and no #! line that names an interpreter", path);
    }
    return explain(number == ENOENT || number == ENOTDIR ? SPAWN_NOT_FOUND : SPAWN_NOT_EXECUTABLE, number, path, ret_code, e);
}

static bool is_program(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

static int find_program(const char *name, char *const environment[], char **ret_path, int *ret_code, struct error *e)
{
    const char *path = environment_get(environment, "PATH", DEFAULT_PATH);
    auto_free char *refused = NULL;

    if (name[0] == '\0') {
        *ret_code = SPAWN_NOT_FOUND;
        return error_set(e, ERROR_INVALID, "exec: the command is empty");
    }
    if (strchr(name, '/') != NULL) {
        *ret_path = xstrdup(name);
        return 0;
    }
    for (const char *at = path;;) {
        size_t len = strcspn(at, ":");
        auto_free char *candidate = len > 0 ? xasprintf("%.*s/%s", (int)len, at, name) : xasprintf("./%s", name);
        if (is_program(candidate)) {
            *ret_path = TAKE(candidate);
            return 0;
        }
        if (refused == NULL && access(candidate, F_OK) == 0)
            refused = TAKE(candidate);
        if (at[len] == '\0')
            break;
        at += len + 1;
    }
    if (refused != NULL)
        return explain(SPAWN_NOT_EXECUTABLE, EACCES, refused, ret_code, e);
    *ret_code = SPAWN_NOT_FOUND;
    return error_set(e, ERROR_NOT_FOUND, "exec %.80s: not found in PATH (%.120s%s)%s", name, path, strlen(path) > 120 ? "..." : "",
                     strchr(name, ' ') != NULL ? "; this is one word with a space: the program and each argument are words of their own" : "");
}

/* ---- the process ---- */

struct plan { const char *path; char *const *argv, *const *environment; int out_fd, err_fd; };

static _Noreturn void become(const struct plan *plan, pid_t parent, int report_fd)
{
    sigset_t none;

    (void)setsid();
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(128 + SIGKILL); /* the launcher ended before prctl */

    for (int n = 1; n < NSIG; n++)
        (void)signal(n, SIG_DFL);
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);

    bool ready = (plan->out_fd < 0 || dup2(plan->out_fd, STDOUT_FILENO) >= 0) && (plan->err_fd < 0 || dup2(plan->err_fd, STDERR_FILENO) >= 0);
    if (ready)
        (void)execve(plan->path, plan->argv, plan->environment);
    int number = errno;
    (void)!write(report_fd, &number, sizeof number);
    _exit(SPAWN_NOT_FOUND);
}

static void reap(pid_t pid)
{
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        continue;
}

int spawn(char *const argv[], char *const environment[], int out_fd, int err_fd, pid_t *ret_pid, int *ret_code, struct error *e)
{
    auto_free char *path = NULL;
    int report[2], number = 0;
    pid_t parent = getpid();

    *ret_code = SPAWN_NOT_EXECUTABLE;
    if (find_program(argv[0], environment, &path, ret_code, e) != 0)
        return -1;
    struct plan plan = { .path = path, .argv = argv, .environment = environment, .out_fd = out_fd, .err_fd = err_fd };
    if (pipe2(report, O_CLOEXEC) != 0)
        return error_errno(e, "start %s: make a pipe", path);
    auto_close int report_in = report[0], report_out = report[1];

    pid_t pid = fork();
    if (pid < 0)
        return error_errno(e, "start %s: fork", path);
    if (pid == 0)
        become(&plan, parent, report_out);

    cleanup_close(&report_out);
    report_out = -1;
    ssize_t n;
    do
        n = read(report_in, &number, sizeof number); /* ends without a byte when exec closed the pipe */
    while (n < 0 && errno == EINTR);
    if (n == sizeof number) {
        reap(pid);
        return explain_exec(number, path, ret_code, e);
    }
    *ret_pid = pid;
    return 0;
}

int spawn_code(int wait_status)
{
    return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}
