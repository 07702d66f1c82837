#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/jobdir.h"
#include "cli/logs_cluster.h"
#include "cli/members.h"
#include "cli/output.h"
#include "cli/screen.h"
#include "cli/target.h"
#include "cli/view.h"

#define FOLLOW_EVERY_MS 200
#define PARTIAL_MAX 65536

#define AT(field, type) OPT_AT(struct logs_options, field, type)

static const struct opt_def OPTIONS[] = {
    { .flag = "job-dir", .type = OPT_TEXT, .at = AT(job_dir, const char *), .value = "DIR",
      .help = "directory of a job of 'ringmaster run' (env RINGMASTER_JOB_DIR)" },
    { .flag = "default-job-dir", .env = "RINGMASTER_JOB_DIR", .type = OPT_TEXT, .at = AT(default_dir, const char *), .hidden = true },
    { .flag = "follow", .letter = 'f', .type = OPT_BOOL, .at = AT(follow, bool), .help = "go on until the job ends" },
    { .flag = "rank", .def = "-1", .type = OPT_INT, .at = AT(rank, int64_t), .min = -1, .max = JOB_MAX_REPLICAS, .value = "N",
      .help = "of the member with this rank (-1: any)" },
    { .flag = "role", .type = OPT_TEXT, .at = AT(role, const char *), .value = "ROLE", .help = "of the members of a role, as worker" },
    { .flag = "sidecar", .type = OPT_BOOL, .at = AT(sidecar, bool), .help = "the sidecar's log in place of the command's" },
    { .flag = "prefix", .def = "true", .type = OPT_BOOL, .at = AT(prefix, bool),
      .help = "with several members: put [member] before each line" },
    { .flag = "timestamps", .type = OPT_BOOL, .at = AT(timestamps, bool), .help = "on a cluster: put the time before each line" },
    { .flag = "previous", .letter = 'p', .type = OPT_BOOL, .at = AT(previous, bool),
      .help = "on a cluster: of the container that ran before in the same pod" },
    { .flag = "since", .type = OPT_DURATION, .at = AT(since_ms, int64_t), .min = 0, .max = 366LL * 86400000, .value = "TIME",
      .help = "on a cluster: what was written in the last 5m, 1h, ..." },
    { .flag = "tail", .def = "-1", .type = OPT_INT, .at = AT(tail, int64_t), .min = -1, .max = 1000000000, .value = "N",
      .help = "on a cluster: begin with the last N lines of each member (-1: all)" },
    { .flag = "attempt", .type = OPT_INT, .at = AT(attempt, int64_t), .min = 0, .max = 1000000, .value = "N",
      .help = "of a job directory: of this attempt (0: all, in order)" },
    CLUSTER_OPTIONS(struct logs_options, cluster),
};

/* One log file; lines are put out whole so that members do not mix. */
struct source { char *member, *path; int fd; struct buf partial; };
struct sources { struct source *items; size_t count; };

static void sources_release(struct sources *s)
{
    for (size_t i = 0; i < s->count; i++) {
        free(s->items[i].member);
        free(s->items[i].path);
        if (s->items[i].fd >= 0)
            close(s->items[i].fd);
        buf_release(&s->items[i].partial);
    }
    free(s->items);
}

static void source_add(struct sources *s, const char *member, char *path /* taken */)
{
    for (size_t i = 0; i < s->count; i++) {
        if (strcmp(s->items[i].path, path) == 0) {
            free(path);
            return;
        }
    }
    s->items = xrealloc(s->items, s->count + 1, sizeof *s->items);
    s->items[s->count++] = (struct source){ .member = xstrdup(member), .path = path, .fd = -1,
                                            .partial = BUF_INIT(PARTIAL_MAX + 1) };
}

/* "12.log" is attempt 12; -1: another name. */
static int64_t attempt_of(const char *name)
{
    int64_t attempt;
    auto_free char *digits = xstrndup(name, strspn(name, "0123456789"));
    return text_int(digits, &attempt) && strcmp(name + strlen(digits), ".log") == 0 ? attempt : -1;
}

static int by_attempt(const struct dirent **a, const struct dirent **b)
{
    int64_t x = attempt_of((*a)->d_name), y = attempt_of((*b)->d_name);
    return (x > y) - (x < y);
}

static int is_attempt(const struct dirent *d)
{
    return attempt_of(d->d_name) >= 0;
}

static void member_sources(const struct jobdir *d, const struct logs_options *o, const char *member, struct sources *s)
{
    struct dirent **names = NULL;
    if (o->sidecar) {
        source_add(s, member, jobdir_path(d, "logs/%s/sidecar.log", member));
        return;
    }
    auto_free char *path = jobdir_path(d, "logs/%s", member);
    int count = scandir(path, &names, is_attempt, by_attempt);
    for (int i = 0; i < count; i++) {
        if (!o->attempt || attempt_of(names[i]->d_name) == o->attempt)
            source_add(s, member, jobdir_path(d, "logs/%s/%s", member, names[i]->d_name));
        free(names[i]);
    }
    free(names);
}

static void put_line(const struct source *s, const char *text, size_t len, int width, bool color)
{
    auto_buf struct buf line = BUF_INIT(2 * PARTIAL_MAX);
    if (width > 0) {
        view_log_prefix(s->member, width, color, &line);
        output_clean(text, len, &line);
    } else {
        buf_add_bytes(&line, text, len);
    }
    buf_add(&line, "\n");
    fwrite(buf_text(&line), 1, line.len, stdout);
}

/* Puts out what is new; true when there was something. */
static bool pump(struct source *s, int width, bool color)
{
    char bytes[65536];
    bool any = false;
    if (s->fd < 0)
        s->fd = open(s->path, O_RDONLY | O_CLOEXEC);
    for (ssize_t n; s->fd >= 0 && (n = TEMP_FAILURE_RETRY(read(s->fd, bytes, sizeof bytes))) > 0;) {
        any = true;
        for (const char *p = bytes, *end = bytes + n; p < end;) {
            const char *newline = memchr(p, '\n', (size_t)(end - p));
            size_t len = (size_t)((newline ? newline : end) - p), room = PARTIAL_MAX - s->partial.len;
            size_t part = len < room ? len : room;
            bool whole = newline && part == len;
            buf_add_bytes(&s->partial, p, part);
            if (whole || s->partial.len == PARTIAL_MAX) {
                put_line(s, buf_text(&s->partial), s->partial.len, width, color);
                buf_clear(&s->partial);
            }
            p += part + whole;
        }
    }
    return any;
}

static void follow(const struct jobdir *d, const struct logs_options *o, const struct members *members, int width, bool color)
{
    struct sources s = { .items = NULL };
    for (;;) {
        bool last = !o->follow || !jobdir_busy(d); /* asked before reading: what it wrote last is then there */
        for (size_t i = 0; i < members->count; i++)
            member_sources(d, o, members->names[i], &s);
        for (size_t i = 0; i < s.count; i++)
            (void)pump(&s.items[i], width, color);
        fflush(stdout);
        if (last || ferror(stdout))
            break;
        (void)poll(NULL, 0, FOLLOW_EVERY_MS);
    }
    for (size_t i = 0; i < s.count; i++)
        if (s.items[i].partial.len)
            put_line(&s.items[i], buf_text(&s.items[i].partial), s.items[i].partial.len, width, color);
    sources_release(&s);
}

static int show_local(const struct logs_options *o, const char *path, char **words, size_t word_count)
{
    struct error e = ERROR_INIT;
    struct jobdir dir = JOBDIR_INIT;
    auto_jobfile struct jobfile file = { .tree = NULL };
    auto_free char *report = NULL;
    struct members members = { .names = NULL };
    struct members_wish wish = { .words = words, .count = word_count, .role = o->role, .rank = o->rank };
    int code = COMMAND_OK;
    if (jobdir_look(path, &dir, &e) < 0 || jobdir_load_job(&dir, &file, &report, &e) < 0)
        code = command_fail("logs", COMMAND_CANNOT_RUN, &e);
    else if (members_choose(file.job, &wish, &members, &e) < 0)
        code = command_usage("logs", &e);
    else
        follow(&dir, o, &members, members.count > 1 && o->prefix ? members_width(&members) : 0, screen_wants_color(STDOUT_FILENO));
    members_release(&members);
    jobdir_release(&dir);
    return code;
}

static int check_usage(const struct logs_options *o, const struct target *target, struct error *e)
{
    if (target->local && (o->previous || o->timestamps || o->since_ms || o->tail >= 0))
        return error_set(e, ERROR_INVALID, "--%s is for jobs of a cluster; %.200s is a directory of this machine",
                         o->previous ? "previous" : o->timestamps ? "timestamps" : o->since_ms ? "since" : "tail", target->job_dir);
    if (!target->local && o->attempt)
        return error_set(e, ERROR_INVALID, "--attempt is for job directories; on a cluster the log of an earlier attempt goes with its pod");
    if (o->previous && o->follow)
        return error_set(e, ERROR_INVALID, "--previous and -f: what ran before writes no more; give one of them");
    if (!target->local && !target->name)
        return error_set(e, ERROR_INVALID, "which job? give its name on the cluster, or its directory with --job-dir DIR");
    return 0;
}

static int logs_command(int argc, char **argv)
{
    struct logs_options o = { .job_dir = NULL };
    struct error e = ERROR_INIT;
    struct target target;
    int next, code;
    if (!command_parse(&COMMAND_LOGS, argc, argv, false, &o, &next, &code))
        return code;
    const char *name = next < argc ? argv[next] : NULL;
    struct target_words words = { .job_dir = o.job_dir, .default_dir = o.default_dir, .name = name, .name_holds_job = jobdir_holds_job(name),
                                  .cluster_named = cluster_is_named(&o.cluster) };
    if (target_choose(&words, &target, &e) < 0 || check_usage(&o, &target, &e) < 0)
        return command_usage("logs", &e);
    next += target.name_used;
    char **members = argv + next;
    size_t count = (size_t)(argc - next);
    return target.local ? show_local(&o, target.job_dir, members, count) : logs_cluster(&o, target.name, members, count);
}

const struct command COMMAND_LOGS = {
    .name = "logs", .summary = "show what the members of a job wrote", .run = logs_command, .takes = WORDS_JOB,
    .usage = "logs NAME [MEMBER...] [-n NAMESPACE] [-f] [--rank N] [--role ROLE]\nlogs DIR | --job-dir DIR [MEMBER...] [-f]",
    .about = "Prints what the members of a job wrote to their standard output and error, in the order of time and with the member's\n"
             "name before each line; all members where none is chosen. With -f on a cluster pods that are made anew are followed,\n"
             "and a connection that breaks is made again without a line lost or repeated.\n\n"
             TARGET_RULE,
    .options = OPTIONS, .option_count = COUNT(OPTIONS),
    .examples = "ringmaster logs mnist -f                              of all ranks, on the cluster\n"
                "ringmaster logs mnist --rank 0 --tail 100\n"
                "ringmaster logs --job-dir ringmaster-jobs/mnist worker-1",
    .notes = "Exit codes: 0 printed (with -f: to the job's end, however it ended), 2 bad usage or no such member,\n"
             "3 there is no such job, no cluster answers, or a log could not be read, 130 interrupted.",
};
