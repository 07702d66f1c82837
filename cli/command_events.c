#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cli/cluster.h"
#include "cli/command.h"
#include "cli/jobview.h"
#include "cli/screen.h"
#include "job/job.h"

struct events_options { bool pods; struct cluster_options cluster; };

static const struct opt_def OPTIONS[] = {
    { .flag = "pods", .def = "true", .type = OPT_BOOL, .at = OPT_AT(struct events_options, pods, bool),
      .help = "those of its pods, too; --no-pods leaves them out" },
    CLUSTER_OPTIONS(struct events_options, cluster),
};

/* "mnist-worker-3" is a pod of mnist, also when it is gone. */
static bool is_pod_of(const char *pod, const char *job)
{
    size_t len = strlen(job);
    if (strncmp(pod, job, len) != 0 || pod[len] != '-')
        return false;
    const char *role = pod + len + 1, *dash = strrchr(role, '-');
    auto_free char *name = dash ? xstrndup(role, (size_t)(dash - role)) : NULL;
    enum job_role parsed;
    return name && role_parse(name, &parsed) && dash[1] && dash[1 + strspn(dash + 1, "0123456789")] == '\0';
}

static bool concerns(const cJSON *event, const char *job, bool pods)
{
    const char *kind = json_text(event, "involvedObject.kind", ""), *name = json_text(event, "involvedObject.name", "");
    return (strcmp(kind, CLUSTER_JOBS.kind) == 0 && strcmp(name, job) == 0) || (pods && strcmp(kind, CLUSTER_PODS.kind) == 0 && is_pod_of(name, job));
}

static int show(struct cluster *c, const char *name, bool pods)
{
    struct error e = ERROR_INIT;
    auto_json cJSON *list = NULL, *job = NULL;
    const cJSON *event;
    auto_free char *about = xasprintf("involvedObject.kind=%s,involvedObject.name=%s", CLUSTER_JOBS.kind, name);
    if (cluster_list(c, &CLUSTER_EVENTS, c->ns, NULL, pods ? NULL : about, &list, &e) < 0)
        return command_fail("events", COMMAND_CANNOT_RUN, &e);
    auto_free const cJSON **events = xcalloc((size_t)cJSON_GetArraySize(list) + 1, sizeof *events);
    size_t count = 0;
    cJSON_ArrayForEach(event, list)
        if (concerns(event, name, pods))
            events[count++] = event;
    if (count == 0) { /* events are kept for an hour; a name that is wrong should be told */
        if (cluster_job(c, name, &job, &e) < 0)
            return command_fail("events", COMMAND_CANNOT_RUN, &e);
        fprintf(stderr, "no events of job %s are kept any more\n", name);
        return COMMAND_OK;
    }
    struct view_style style = screen_stdout_style();
    auto_buf struct buf text = BUF_INIT(64u << 20);
    jobview_events(events, count, name, &style, clock_wall_ms(), &text);
    fputs(buf_text(&text), stdout);
    return COMMAND_OK;
}

static int events_command(int argc, char **argv)
{
    struct events_options o = { .pods = true };
    struct error e = ERROR_INIT;
    struct cluster c = CLUSTER_INIT;
    int next, code;
    if (!command_parse(&COMMAND_EVENTS, argc, argv, false, &o, &next, &code))
        return code;
    if (next + 1 != argc) {
        (void)error_set(&e, ERROR_INVALID, next == argc ? "which job? give its name" : "one job at a time");
        return command_usage("events", &e);
    }
    if (cluster_open(&o.cluster, &c, &e) < 0)
        return command_fail("events", COMMAND_CANNOT_RUN, &e);
    code = show(&c, argv[next], o.pods);
    cluster_close(&c);
    return code;
}

const struct command COMMAND_EVENTS = {
    .name = "events", .summary = "show what happened to a job of a cluster and its pods", .run = events_command, .takes = WORDS_JOB,
    .usage = "events NAME [-n NAMESPACE] [--no-pods]",
    .about = "Prints the Kubernetes events of a job and of its pods, the oldest first.",
    .options = OPTIONS, .option_count = COUNT(OPTIONS),
    .examples = "ringmaster events mnist",
    .notes = "Exit codes: 0 shown, 2 bad usage, 3 there is no such job or no cluster answers.",
};
