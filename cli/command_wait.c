#include "base/mem.h"
#include "cli/command.h"
#include "cli/outcome.h"
#include "cli/waiting.h"

struct wait_options { const char *goal; int64_t timeout_ms; bool verbose; struct cluster_options cluster; };

static const struct opt_def OPTIONS[] = {
    { .flag = "for", .def = "succeeded", .type = OPT_TEXT, .at = OPT_AT(struct wait_options, goal, const char *), .value = "WHAT",
      .help = "succeeded, failed, finished (either), running, suspended, deleted, or condition=NAME" },
    { .flag = "timeout", .def = "0", .type = OPT_DURATION, .at = OPT_AT(struct wait_options, timeout_ms, int64_t), .min = 0,
      .max = 366LL * 86400000, .value = "TIME", .help = "give up after so long (0: never)" },
    { .flag = "verbose", .letter = 'v', .type = OPT_BOOL, .at = OPT_AT(struct wait_options, verbose, bool),
      .help = "say on standard error how the job stands meanwhile" },
    CLUSTER_OPTIONS(struct wait_options, cluster),
};

static int wait_command(int argc, char **argv)
{
    struct wait_options o = { .goal = NULL };
    struct error e = ERROR_INIT;
    struct cluster c = CLUSTER_INIT;
    int next, code;
    if (!command_parse(&COMMAND_WAIT, argc, argv, false, &o, &next, &code))
        return code;
    if (next + 1 != argc)
        (void)error_set(&e, ERROR_INVALID, next == argc ? "which job? give its name" : "one job at a time");
    else if (!wait_goal_known(o.goal))
        (void)error_set(&e, ERROR_INVALID, "--for: found \"%.60s\", expected succeeded, failed, finished, running, suspended, deleted or "
                        "condition=NAME", o.goal);
    if (e.kind != ERROR_NONE)
        return command_usage("wait", &e);
    if (cluster_open(&o.cluster, &c, &e) < 0)
        return command_fail("wait", COMMAND_CANNOT_RUN, &e);
    code = wait_for_job(&c, "wait", argv[next], o.goal, o.timeout_ms, o.verbose);
    cluster_close(&c);
    return code;
}

const struct command COMMAND_WAIT = {
    .name = "wait", .summary = "wait until a job of a cluster has succeeded, runs, is gone, ...", .run = wait_command, .takes = WORDS_JOB,
    .usage = "wait NAME [-n NAMESPACE] [--for WHAT] [--timeout TIME]",
    .about = "Waits until the job is as it is wanted. When it has ended and cannot come to that any more, the waiting ends, too.",
    .options = OPTIONS, .option_count = COUNT(OPTIONS),
    .examples = "ringmaster wait mnist --for succeeded --timeout 2h\nringmaster wait mnist --for condition=Cooperating",
    .notes = "Exit codes: 0 it is so, 1 the job ended and is not, 2 bad usage, 3 there is no such job or no cluster answers,\n"
             "4 timeout, 130 interrupted.",
};
