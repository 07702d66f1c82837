/*
 * pause.c — the process that holds a pod's namespaces in the test cluster: sleeps, reaps what is orphaned, ends on SIGTERM.
 */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void leave(int number)
{
    (void)number;
    _exit(0);
}

static void reap(int number)
{
    (void)number;
    while (waitpid(-1, NULL, WNOHANG) > 0)
        continue;
}

int main(void)
{
    (void)signal(SIGTERM, leave);
    (void)signal(SIGINT, leave);
    (void)signal(SIGCHLD, reap);
    for (;;)
        (void)pause();
}
