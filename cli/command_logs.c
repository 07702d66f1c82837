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
#include "cli/output.h"
#include "cli/screen.h"
#include "cli/view.h"

#define FOLLOW_EVERY_MS 200
#define PARTIAL_MAX 65536

struct logs_options { const char *job_dir; bool follow, sidecar, prefix; int64_t attempt; };

#define AT(field, type) OPT_AT(struct logs_options, field, type)

static const struct opt_def OPTIONS[] = {
    { .flag = "job-dir", .env = "RINGMASTER_JOB_DIR", .type = OPT_TEXT, .at = AT(job_dir, const char *), .value = "DIR",
      .help = "the job's directory" },
    { .flag = "follow", .letter = 'f', .type = OPT_BOOL, .at = AT(follow, bool), .help = "go on until the runner ends" },
    { .flag = "sidecar", .type = OPT_BOOL, .at = AT(sidecar, bool), .help = "the sidecar's log in place of the command's" },
    { .flag = "attempt", .type = OPT_INT, .at = AT(attempt, int64_t), .min = 0, .max = 1000000, .value = "N",
      .help = "of this attempt (default: all, in order)" },
    { .flag = "prefix", .def = "true", .type = OPT_BOOL, .at = AT(prefix, bool),
      .help = "with several members: put [member] before each line" },
};

static const struct command_page PAGE = {
    .name = "logs",
    .usage = "logs --job-dir DIR [MEMBER...] [-f]",
    .about = "Prints what the members of a job wrote to their standard output and error; all members where none is named.",
    .options = OPTIONS, .option_count = COUNT(OPTIONS),
    .examples = "ringmaster logs --job-dir ringmaster-jobs/mnist worker-1\nringmaster logs --job-dir ringmaster-jobs/mnist -f",
    .notes = "Exit codes: 0 printed, 2 there is no such member, 3 there is no such job.",
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

static int members_of(const struct training_job *job, char **words, size_t count, char ***ret, size_t *ret_count, struct error *e)
{
    char member[80];
    size_t n = 0;
    char **list = xcalloc((size_t)job_replicas(job) + 1, sizeof *list);
    for (int role = 0; role < ROLE_COUNT; role++) {
        for (int32_t i = 0; job->spec.roles[role].present && i < job->spec.roles[role].replicas; i++) {
            job_member_name((enum job_role)role, i, member);
            list[n++] = xstrdup(member);
        }
    }
    *ret = list;
    *ret_count = n;
    for (size_t w = 0; w < count; w++) {
        bool found = false;
        for (size_t i = 0; i < n; i++)
            found |= strcmp(list[i], words[w]) == 0;
        if (found)
            continue;
        const char *near = text_nearest(words[w], (const char *const *)list);
        return error_set(e, ERROR_INVALID, "job %s has no member \"%.60s\"%s%s%s", job->name, words[w], near ? "; did you mean \"" : "",
                         near ? near : "", near ? "\"?" : "");
    }
    return 0;
}

static void follow(const struct jobdir *d, const struct logs_options *o, char **members, size_t count, int width, bool color)
{
    struct sources s = { .items = NULL };
    for (;;) {
        bool last = !o->follow || !jobdir_busy(d); /* asked before reading: what it wrote last is then there */
        for (size_t i = 0; i < count; i++)
            member_sources(d, o, members[i], &s);
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

static int show(const struct logs_options *o, char **words, size_t word_count)
{
    struct error e = ERROR_INIT;
    struct jobdir dir = JOBDIR_INIT;
    auto_jobfile struct jobfile file = { .tree = NULL };
    auto_free char *report = NULL;
    char **all = NULL;
    size_t all_count = 0;
    int code = COMMAND_OK;
    if (jobdir_look(o->job_dir, &dir, &e) < 0 || jobdir_load_job(&dir, &file, &report, &e) < 0) {
        code = command_fail("logs", COMMAND_CANNOT_RUN, &e);
    } else if (members_of(file.job, words, word_count, &all, &all_count, &e) < 0) {
        code = command_usage("logs", &e);
    } else {
        char **members = word_count ? words : all;
        size_t count = word_count ? word_count : all_count;
        int width = 0;
        for (size_t i = 0; count > 1 && o->prefix && i < count; i++)
            width = (int)strlen(members[i]) > width ? (int)strlen(members[i]) : width;
        follow(&dir, o, members, count, width, screen_wants_color(STDOUT_FILENO));
    }
    for (size_t i = 0; i < all_count; i++)
        free(all[i]);
    free(all);
    jobdir_release(&dir);
    return code;
}

int command_logs(int argc, char **argv)
{
    struct logs_options o = { .job_dir = NULL };
    struct error e = ERROR_INIT;
    int next;
    bool help = false;
    if (opt_parse(OPTIONS, COUNT(OPTIONS), argc, argv, false, &o, &next, &help, &e) < 0)
        return command_usage("logs", &e);
    if (help) {
        command_help(&PAGE, stdout);
        return COMMAND_OK;
    }
    if (!o.job_dir) {
        error_set(&e, ERROR_INVALID, "which job? give its directory with --job-dir DIR");
        return command_usage("logs", &e);
    }
    return show(&o, argv + next, (size_t)(argc - next));
}
