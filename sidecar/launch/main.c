/* ringmaster-launch — runs a training command on the sidecar's word; PID 1 of the user's container. */

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/opt.h"
#include "sidecar/launch/guard.h"
#include "sidecar/launch/install.h"
#include "sidecar/launch/launcher.h"

#define EXIT_USAGE 2
#define EXIT_BROKEN 125 /* as docker and timeout say: the launcher itself could not do its work */

struct options {
    const char *socket, *dir, *install, *library_dir;
    bool no_sidecar, die_with_parent, version;
    int64_t grace_ms;
    int log_level;
};

static const char *const LEVELS[] = { "debug", "info", "warn", "error", NULL };

static const struct opt_def OPTIONS[] = {
    { .flag = "socket", .env = "RINGMASTER_SOCKET", .type = OPT_TEXT, .at = OPT_AT(struct options, socket, const char *),
      .value = "PATH", .help = "the sidecar's unix socket (default: sidecar.sock in the shared directory)" },
    { .flag = "dir", .env = "RINGMASTER_DIR", .def = "/ringmaster", .type = OPT_TEXT,
      .at = OPT_AT(struct options, dir, const char *), .value = "DIR", .help = "directory shared with the sidecar" },
    { .flag = "no-sidecar", .type = OPT_BOOL, .at = OPT_AT(struct options, no_sidecar, bool),
      .help = "run the command at once and leave with its code" },
    { .flag = "die-with-parent", .type = OPT_BOOL, .at = OPT_AT(struct options, die_with_parent, bool),
      .help = "kill the command and all its descendants when the process that started this one ends" },
    { .flag = "grace", .env = "RINGMASTER_TERMINATION_GRACE", .def = "0s", .type = OPT_DURATION,
      .at = OPT_AT(struct options, grace_ms, int64_t), .min = 0, .max = 86400000, .value = "TIME",
      .help = "after SIGTERM, kill what has not ended by then; 0s leaves that to the sender" },
    { .flag = "install", .type = OPT_TEXT, .at = OPT_AT(struct options, install, const char *), .value = "DIR",
      .help = "copy this program, the client libraries and the Python package into DIR, then leave" },
    { .flag = "library-dir", .env = "RINGMASTER_LIBRARY_DIR", .type = OPT_TEXT,
      .at = OPT_AT(struct options, library_dir, const char *), .value = "DIR",
      .help = "with --install: where the client libraries are (default: beside this program)" },
    { .flag = "log-level", .env = "RINGMASTER_LOG_LEVEL", .def = "warn", .type = OPT_ENUM,
      .at = OPT_AT(struct options, log_level, int), .names = LEVELS, .value = "LEVEL", .help = "least level that is logged" },
    { .flag = "version", .type = OPT_BOOL, .at = OPT_AT(struct options, version, bool), .help = "print the version" },
};

static void usage(FILE *out)
{
    (void)fprintf(out, "Usage: ringmaster-launch [OPTIONS] -- COMMAND [ARGUMENTS]\n"
                       "Runs COMMAND when the sidecar says so, passes signals on and leaves with its exit code.\n\n");
    opt_help(OPTIONS, COUNT(OPTIONS), out);
}

static int run(const struct options *o, char **command)
{
    auto_free char *socket = o->socket != NULL ? xstrdup(o->socket) : xasprintf("%s/sidecar.sock", o->dir);
    struct launcher_options options = { .socket = socket, .no_sidecar = o->no_sidecar, .grace_ms = o->grace_ms, .command = command };
    struct error e = ERROR_INIT;
    int code = 0;

    if (getpid() != 1)
        guard_split();
    if (launcher_run(&options, &code, &e) != 0) {
        log_error_from("the launcher cannot work", &e);
        return EXIT_BROKEN;
    }
    return code;
}

int main(int argc, char **argv)
{
    struct options o = { 0 };
    struct error e = ERROR_INIT;
    int next = 0;
    bool help = false;
    pid_t parent = getppid();

    log_setup("launch", NULL, LOG_WARN, false);
    if (opt_parse(OPTIONS, COUNT(OPTIONS), argc, argv, true, &o, &next, &help, &e) != 0) {
        (void)fprintf(stderr, "ringmaster-launch: %s\n", e.text);
        return EXIT_USAGE;
    }
    log_setup("launch", NULL, (enum log_level)o.log_level, false);
    if (help) {
        usage(stdout);
        return 0;
    }
    if (o.version) {
        (void)printf("ringmaster-launch %s\n", RINGMASTER_VERSION);
        return 0;
    }
    if (o.install != NULL) {
        if (install(o.install, o.library_dir, &e) != 0) {
            log_error_from("not installed", &e, KV("dir", o.install));
            return 1;
        }
        return 0;
    }
    if (next >= argc) {
        (void)fprintf(stderr, "ringmaster-launch: no command; usage: ringmaster-launch [OPTIONS] -- COMMAND [ARGUMENTS]\n");
        return EXIT_USAGE;
    }
    if (o.die_with_parent && !guard_bind_to_parent(parent))
        return 128 + SIGKILL;
    return run(&o, argv + next);
}
