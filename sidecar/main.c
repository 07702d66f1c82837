/* ringmaster-sidecar — one per pod of a TrainingJob. */

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "sidecar/options.h"
#include "sidecar/serve.h"

#define EXIT_USAGE 2

/* The launcher beside this program knows how to copy itself and the client files (sidecar/launch/install.h). */
static int install(const char *dir, const char *library_dir, struct error *e)
{
    char path[PATH_MAX];
    int status = 0;

    ssize_t n = readlink("/proc/self/exe", path, sizeof path - sizeof "ringmaster-launch");
    if (n < 0)
        return error_errno(e, "find this program's own file");
    path[n] = '\0';
    char *name = strrchr(path, '/') + 1;
    (void)snprintf(name, sizeof path - (size_t)(name - path), "ringmaster-launch");

    const char *argv[] = { path, "--install", dir, library_dir != NULL ? "--library-dir" : NULL, library_dir, NULL };
    pid_t pid = fork();
    if (pid < 0)
        return error_errno(e, "fork");
    if (pid == 0) {
        (void)execv(path, (char *const *)argv);
        (void)fprintf(stderr, "ringmaster-sidecar: exec %s: %s\n", path, strerror(errno));
        _exit(127);
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return error_set(e, ERROR_IO, "%s --install %s did not end well; what it said stands above", path, dir);
    return 0;
}

static int probe(const struct options *o)
{
    auto_free char *socket = xasprintf("%s/sidecar.sock", o->dir);
    struct error e = ERROR_INIT;

    if (serve_probe(socket, &e) == 0)
        return 0;
    (void)fprintf(stderr, "ringmaster-sidecar: not up: %s\n", e.text);
    return 1;
}

static int run(struct options *o)
{
    struct error e = ERROR_INIT;

    if (o->install != NULL && install(o->install, o->library_dir, &e) != 0) {
        log_error_from("client files not installed", &e, KV("dir", o->install));
        return 1;
    }
    if (options_check(o, &e) != 0) {
        log_error_from("the sidecar cannot start", &e);
        return EXIT_USAGE;
    }
    log_setup("sidecar", o->member, (enum log_level)o->log_level, o->log_json);
    if (serve(o, &e) != 0) {
        log_error_from("the sidecar cannot run", &e);
        return 1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct options o;
    struct error e = ERROR_INIT;
    bool help = false;
    pid_t parent = getppid();
    int code = 0;

    log_setup("sidecar", NULL, LOG_INFO, false);
    if (options_read(argc, argv, &o, &help, &e) != 0) {
        (void)fprintf(stderr, "ringmaster-sidecar: %s\n", e.text);
        return EXIT_USAGE;
    }
    log_setup("sidecar", NULL, (enum log_level)o.log_level, o.log_json);
    if (o.die_with_parent) {
        (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (getppid() != parent)
            return 128 + SIGTERM;
    }
    if (help)
        options_help(stdout);
    else if (o.version)
        (void)printf("ringmaster-sidecar %s\n", RINGMASTER_VERSION);
    else if (o.probe)
        code = probe(&o);
    else
        code = run(&o);
    options_release(&o);
    return code;
}
