#include "sidecar/launch/guard.h"

#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "sidecar/launch/descend.h"
#include "sidecar/launch/spawn.h"

#define END_LIMIT_MS 10000

const int GUARD_FORWARDED[] = { SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH, SIGCONT };
const size_t GUARD_FORWARDED_COUNT = COUNT(GUARD_FORWARDED);

struct guard {
    pid_t launcher;
    bool over;
    int wait_status;
};

bool guard_bind_to_parent(int parent_pid)
{
    (void)prctl(PR_SET_PDEATHSIG, GUARD_PARENT_GONE);
    return getppid() == parent_pid;
}

static void on_reaped(void *ctx, pid_t pid, int wait_status)
{
    struct guard *g = ctx;

    if (pid == g->launcher) {
        g->over = true;
        g->wait_status = wait_status;
    }
}

static _Noreturn void watch(struct guard *g, const sigset_t *set)
{
    while (!g->over) {
        int n = sigwaitinfo(set, NULL);
        if (n == SIGCHLD) {
            (void)descend_reap(on_reaped, g);
        } else if (n == GUARD_PARENT_GONE) {
            descend_end(END_LIMIT_MS);
            _exit(128 + SIGKILL);
        } else if (n > 0) {
            (void)kill(g->launcher, n);
        }
    }
    descend_end(END_LIMIT_MS); /* nothing, unless the launcher was killed */
    _exit(spawn_code(g->wait_status));
}

void guard_split(void)
{
    struct guard g = { .launcher = 0, .over = false, .wait_status = 0 };
    sigset_t set;
    pid_t self = getpid();

    (void)sigemptyset(&set);
    for (size_t i = 0; i < GUARD_FORWARDED_COUNT; i++)
        (void)sigaddset(&set, GUARD_FORWARDED[i]);
    (void)sigaddset(&set, SIGCHLD);
    (void)sigaddset(&set, GUARD_PARENT_GONE);
    (void)sigprocmask(SIG_BLOCK, &set, NULL);
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1);

    g.launcher = fork();
    if (g.launcher < 0) {
        log_warn("no guard process: helpers of the training process may outlive a launcher that is killed");
        return;
    }
    if (g.launcher > 0)
        watch(&g, &set);

    (void)setsid(); /* a terminal's Ctrl-C reaches the guard alone, which passes it on once */
    if (!guard_bind_to_parent(self))
        _exit(128 + SIGKILL);
}
