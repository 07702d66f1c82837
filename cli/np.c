#include "cli/np.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/text.h"
#include "job/job.h"

enum np_kind {
    NP_COUNT, NP_MIN, NP_MAX, NP_HOSTS, NP_HOSTFILE, NP_START_TIMEOUT, NP_RESET_LIMIT, NP_TIMESTAMPS,
    NP_OUTPUT, NP_LEFT, /* NP_LEFT: a flag of ours, too; it stays in argv */
    NP_ENV,     /* the value goes to the trainers as `detail` */
    NP_ENV_MB,  /* the same, given in MiB */
    NP_ENV_ON,  /* no value; `detail` is NAME=VALUE */
    NP_IGNORED, /* accepted; `detail` says why it has nothing to do */
    NP_REFUSED, /* `detail` says what to do */
};

struct np_flag {
    const char *flag, *other;  /* other spelling, or NULL */
    int values;                /* words that follow */
    enum np_kind kind;
    const char *detail;
};

#define RING "the ring engine in the sidecar does this itself"
#define ELASTIC "ranks are not discovered; give their number with -np, and its bounds with --min-np and --max-np"
#define NO_SSH "nothing is started over ssh"

static const struct np_flag NP_FLAGS[] = {
    { "-np", "--num-proc", 1, NP_COUNT, NULL },
    { "--min-np", "--min-num-proc", 1, NP_MIN, NULL },
    { "--max-np", "--max-num-proc", 1, NP_MAX, NULL },
    { "--output-filename", NULL, 1, NP_OUTPUT, NULL },
    { "--verbose", NULL, 0, NP_LEFT, NULL },
    { "-H", "--hosts", 1, NP_HOSTS, NULL },
    { "-hostfile", "--hostfile", 1, NP_HOSTFILE, NULL },
    { "--start-timeout", NULL, 1, NP_START_TIMEOUT, NULL },
    { "--reset-limit", NULL, 1, NP_RESET_LIMIT, NULL },
    { "-prefix-timestamp", "--prefix-output-with-timestamp", 0, NP_TIMESTAMPS, NULL },

    { "--log-level", NULL, 1, NP_ENV, "HOROVOD_LOG_LEVEL" },
    { "--timeline-filename", NULL, 1, NP_ENV, "RINGMASTER_TIMELINE" },
    { "--timeline-mark-cycles", NULL, 0, NP_ENV_ON, "HOROVOD_TIMELINE_MARK_CYCLES=1" },
    { "--no-timeline-mark-cycles", NULL, 0, NP_ENV_ON, "HOROVOD_TIMELINE_MARK_CYCLES=0" },
    { "--fusion-threshold-mb", NULL, 1, NP_ENV_MB, "HOROVOD_FUSION_THRESHOLD" },
    { "--cache-capacity", NULL, 1, NP_ENV, "HOROVOD_CACHE_CAPACITY" },
    { "--cycle-time-ms", NULL, 1, NP_ENV, "HOROVOD_CYCLE_TIME" },
    { "--stall-check", NULL, 0, NP_ENV_ON, "HOROVOD_STALL_CHECK_DISABLE=0" },
    { "--no-stall-check", NULL, 0, NP_ENV_ON, "HOROVOD_STALL_CHECK_DISABLE=1" },
    { "--stall-check-warning-time-seconds", NULL, 1, NP_ENV, "HOROVOD_STALL_CHECK_TIME_SECONDS" },
    { "--stall-check-shutdown-time-seconds", NULL, 1, NP_ENV, "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS" },
    { "--thread-affinity", NULL, 1, NP_ENV, "HOROVOD_THREAD_AFFINITY" },
    { "--num-nccl-streams", NULL, 1, NP_ENV, "HOROVOD_NUM_NCCL_STREAMS" },
    { "--gloo-timeout-seconds", NULL, 1, NP_ENV, "HOROVOD_GLOO_TIMEOUT_SECONDS" },
    { "--log-with-timestamp", NULL, 0, NP_ENV_ON, "HOROVOD_LOG_HIDE_TIME=0" },
    { "--log-without-timestamp", NULL, 0, NP_ENV_ON, "HOROVOD_LOG_HIDE_TIME=1" },
    { "--log-hide-timestamp", NULL, 0, NP_ENV_ON, "HOROVOD_LOG_HIDE_TIME=1" },
    { "--no-log-hide-timestamp", NULL, 0, NP_ENV_ON, "HOROVOD_LOG_HIDE_TIME=0" },

    { "-p", "--ssh-port", 1, NP_IGNORED, NO_SSH },
    { "-i", "--ssh-identity-file", 1, NP_IGNORED, NO_SSH },
    { "--disable-cache", NULL, 0, NP_IGNORED, "there is no cache of host checks" },
    { "--network-interfaces", "--network-interface", 1, NP_IGNORED, "the ring uses the address of each member: loopback here, the pod's on a cluster" },
    { "--gloo", NULL, 0, NP_IGNORED, RING },
    { "--mpi", NULL, 0, NP_IGNORED, RING },
    { "--hierarchical-allreduce", "--no-hierarchical-allreduce", 0, NP_IGNORED, RING },
    { "--hierarchical-allgather", "--no-hierarchical-allgather", 0, NP_IGNORED, RING },
    { "--torus-allreduce", "--no-torus-allreduce", 0, NP_IGNORED, RING },
    { "--autotune", "--no-autotune", 0, NP_IGNORED, RING },
    { "--autotune-log-file", NULL, 1, NP_IGNORED, RING },
    { "--autotune-warmup-samples", NULL, 1, NP_IGNORED, RING },
    { "--autotune-steps-per-sample", NULL, 1, NP_IGNORED, RING },
    { "--autotune-bayes-opt-max-samples", NULL, 1, NP_IGNORED, RING },
    { "--autotune-gaussian-process-noise", NULL, 1, NP_IGNORED, RING },
    { "--mpi-threads-disable", "--no-mpi-threads-disable", 0, NP_IGNORED, "MPI is not used" },
    { "--tcp", NULL, 0, NP_IGNORED, "the ring is TCP anyway" },

    { "--jsrun", NULL, 0, NP_REFUSED, "LSF clusters are not supported; on Kubernetes apply a TrainingJob" },
    { "--mpi-args", NULL, 1, NP_REFUSED, "MPI is not used; leave it out" },
    { "--binding-args", NULL, 1, NP_REFUSED, "MPI is not used; bind with --thread-affinity or taskset in the command" },
    { "--slots-per-host", NULL, 1, NP_REFUSED, ELASTIC },
    { "--elastic-timeout", NULL, 1, NP_REFUSED, ELASTIC },
    { "--blacklist-cooldown-range", NULL, 2, NP_REFUSED, "there is one host only; leave it out" },
    { "--host-discovery-script", NULL, 1, NP_REFUSED, "there is one host only; leave it out" },
    { "--config-file", NULL, 1, NP_REFUSED, "give the options as flags, or write a TrainingJob and use -f" },
    { "-cb", "--check-build", 0, NP_REFUSED, "there is nothing to build in; 'ringmaster version' says what is installed" },
};

void np_release(struct np_options *np)
{
    cJSON_Delete(np->env);
    *np = (struct np_options){ .reset_limit = -1 };
}

/* "--flag=value" matches "--flag". */
static bool flag_is(const char *flag, const char *word, size_t len)
{
    return flag && strlen(flag) == len && strncmp(flag, word, len) == 0;
}

static const struct np_flag *flag_find(const char *word)
{
    size_t len = strncmp(word, "--", 2) == 0 ? strcspn(word, "=") : strlen(word);
    for (size_t i = 0; i < COUNT(NP_FLAGS); i++)
        if (flag_is(NP_FLAGS[i].flag, word, len) || flag_is(NP_FLAGS[i].other, word, len))
            return &NP_FLAGS[i];
    return NULL;
}

/* How many words after this one belong to one of opt_parse's own flags. */
static int own_values(const char *word, const struct opt_def *defs, size_t count)
{
    if (strchr(word, '='))
        return 0;
    for (size_t i = 0; i < count; i++) {
        bool is_long = strncmp(word, "--", 2) == 0 && strcmp(defs[i].flag, word + 2) == 0;
        bool is_short = word[0] == '-' && defs[i].letter && word[1] == defs[i].letter && !word[2];
        if (is_long || is_short)
            return defs[i].type == OPT_BOOL ? 0 : 1;
    }
    return 0;
}

static void add_env(struct np_options *np, const char *name, const char *value)
{
    if (!np->env)
        np->env = json_array();
    cJSON *row = json_object();
    json_put_text(row, "name", name);
    json_put_text(row, "value", value);
    json_append(np->env, row);
}

static void add_note(struct np_options *np, const char *word, const char *why)
{
    size_t len = strlen(np->notes);
    snprintf(np->notes + len, sizeof np->notes - len, "%s has no effect: %s\n", word, why);
}

static int number(const char *word, const char *value, int64_t min, int64_t max, int64_t *ret, struct error *e)
{
    int64_t n;
    if (!text_int(value, &n) || n < min || n > max)
        return error_set(e, ERROR_INVALID, "%s: found \"%.60s\", expected an integer from %lld to %lld", word, value, (long long)min,
                         (long long)max);
    *ret = n;
    return 0;
}

static int flag_apply(struct np_options *np, const struct np_flag *f, const char *word, const char *value, struct error *e)
{
    char text[128];
    int64_t n = 0;
    np->used |= f->kind != NP_TIMESTAMPS && f->kind != NP_LEFT;
    switch (f->kind) {
    case NP_COUNT: return number(word, value, 1, JOB_MAX_REPLICAS, &np->processes, e);
    case NP_MIN: return number(word, value, 1, JOB_MAX_REPLICAS, &np->min_processes, e);
    case NP_MAX: return number(word, value, 1, JOB_MAX_REPLICAS, &np->max_processes, e);
    case NP_OUTPUT: np->output_filename = value; return 0;
    case NP_LEFT: return 0;
    case NP_HOSTS: np->hosts = value; return 0;
    case NP_HOSTFILE: np->hostfile = value; return 0;
    case NP_START_TIMEOUT: return number(word, value, 1, 7 * 86400, &np->start_timeout_s, e);
    case NP_RESET_LIMIT: return number(word, value, 0, 1000000, &np->reset_limit, e);
    case NP_TIMESTAMPS: np->log_timestamps = true; return 0;
    case NP_ENV: add_env(np, f->detail, value); return 0;
    case NP_ENV_MB:
        if (number(word, value, 0, 1 << 20, &n, e) < 0)
            return -1;
        snprintf(text, sizeof text, "%lld", (long long)n << 20);
        add_env(np, f->detail, text);
        return 0;
    case NP_ENV_ON:
        snprintf(text, sizeof text, "%.*s", (int)strcspn(f->detail, "="), f->detail);
        add_env(np, text, strchr(f->detail, '=') + 1);
        return 0;
    case NP_IGNORED: add_note(np, word, f->detail); return 0;
    case NP_REFUSED: return error_set(e, ERROR_INVALID, "%s is not supported: %s", word, f->detail);
    }
    return error_set(e, ERROR_BUG, "%s: no such kind", word);
}

int np_extract(int *argc, char **argv, const struct opt_def *defs, size_t def_count, struct np_options *ret, struct error *e)
{
    struct np_options np = { .reset_limit = -1 };
    int kept = 1, i = 1;
    while (i < *argc && argv[i][0] == '-' && argv[i][1] && strcmp(argv[i], "--") != 0) {
        const struct np_flag *f = flag_find(argv[i]);
        if (!f || f->kind == NP_LEFT) {
            int values = own_values(argv[i], defs, def_count);
            argv[kept++] = argv[i++];
            while (values-- > 0 && i < *argc)
                argv[kept++] = argv[i++];
            continue;
        }
        char *word = argv[i++], *value = strncmp(word, "--", 2) == 0 ? strchr(word, '=') : NULL;
        auto_free char *name = xstrndup(word, value ? (size_t)(value - word) : strlen(word));
        int missing = f->values - (value ? 1 : 0);
        if (value && f->values == 0) {
            np_release(&np);
            return error_set(e, ERROR_INVALID, "%s takes no value", name);
        }
        if (i + missing > *argc) {
            np_release(&np);
            return error_set(e, ERROR_INVALID, "%s needs a value", name);
        }
        value = value ? value + 1 : missing ? argv[i] : NULL;
        i += missing;
        if (flag_apply(&np, f, name, value, e) < 0) {
            np_release(&np);
            return -1;
        }
    }
    while (i < *argc)
        argv[kept++] = argv[i++];
    argv[kept] = NULL;
    *argc = kept;
    *ret = np;
    return 0;
}

int np_check_counts(const struct np_options *np, int64_t processes, struct error *e)
{
    if (np->min_processes && np->max_processes && np->min_processes > np->max_processes)
        return error_set(e, ERROR_INVALID, "--min-np %lld is more than --max-np %lld", (long long)np->min_processes,
                         (long long)np->max_processes);
    if (np->min_processes > processes)
        return error_set(e, ERROR_INVALID, "--min-np %lld is more than the %lld processes", (long long)np->min_processes, (long long)processes);
    if (np->max_processes && np->max_processes < processes)
        return error_set(e, ERROR_INVALID, "--max-np %lld is less than the %lld processes", (long long)np->max_processes, (long long)processes);
    return 0;
}

const char *const *np_flag_names(void)
{
    static const char *names[2 * COUNT(NP_FLAGS) + 1];
    size_t n = 0;
    for (size_t i = 0; i < COUNT(NP_FLAGS); i++) {
        if (NP_FLAGS[i].kind == NP_LEFT || NP_FLAGS[i].kind == NP_REFUSED)
            continue;
        names[n++] = NP_FLAGS[i].flag;
        if (NP_FLAGS[i].other)
            names[n++] = NP_FLAGS[i].other;
    }
    names[n] = NULL;
    return names;
}

/* ---- hosts ---- */

static bool host_is_here(const char *host, const char *own_name)
{
    return strcmp(host, "localhost") == 0 || strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0 ||
           (own_name && *own_name && strcmp(host, own_name) == 0);
}

static int add_slots(const char *host, const char *slots, const char *own_name, int64_t *sum, struct error *e)
{
    int64_t n = 1;
    if (!host_is_here(host, own_name))
        return error_set(e, ERROR_INVALID, "host \"%.80s\" is another machine: 'ringmaster run' starts processes here only; for "
                         "several machines apply a TrainingJob on Kubernetes", host);
    if (slots && number("slots of a host", slots, 1, JOB_MAX_REPLICAS, &n, e) < 0)
        return -1;
    *sum += n;
    return 0;
}

int np_slots(const char *hosts, const char *own_name, int64_t *ret_slots, struct error *e)
{
    auto_free char *copy = xstrdup(hosts);
    int64_t sum = 0;
    char *rest = copy;
    for (char *item; (item = strsep(&rest, ",")) != NULL;) {
        char *slots = strrchr(item, ':');
        if (slots && strcmp(item, "::1") != 0)
            *slots++ = '\0';
        else
            slots = NULL;
        if (!*item)
            return error_set(e, ERROR_INVALID, "-H \"%.80s\": a host's name is missing; expected host:slots,host:slots", hosts);
        if (add_slots(item, slots, own_name, &sum, e) < 0)
            return -1;
    }
    *ret_slots = sum;
    return 0;
}

int np_hostfile_slots(const char *text, const char *own_name, int64_t *ret_slots, struct error *e)
{
    auto_free char *copy = xstrdup(text);
    int64_t sum = 0;
    char *rest = copy;
    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
        line[strcspn(line, "#\r")] = '\0';
        line += strspn(line, " \t");
        if (!*line)
            continue;
        char *after = line + strcspn(line, " \t");
        char *slots = strstr(after, "slots=");
        if (*after)
            *after++ = '\0';
        if (slots) {
            slots += strlen("slots=");
            slots[strcspn(slots, " \t")] = '\0';
        }
        if (add_slots(line, slots, own_name, &sum, e) < 0)
            return -1;
    }
    if (sum == 0)
        return error_set(e, ERROR_INVALID, "the host file names no host; expected lines such as \"localhost slots=4\"");
    *ret_slots = sum;
    return 0;
}

/* ---- the job ---- */

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n > m && strcmp(text + n - m, end) == 0;
}

void np_name(char *const *command, size_t count, char ret_name[52])
{
    const char *word = count ? base_name(command[0]) : "job";
    for (size_t i = 0; i < count; i++) {
        if (ends_with(command[i], ".py") || ends_with(command[i], ".sh")) {
            word = base_name(command[i]);
            break;
        }
        if (strcmp(command[i], "-m") == 0 && i + 1 < count) {
            word = command[i + 1];
            break;
        }
    }
    size_t len = 0, end = strlen(word);
    if (ends_with(word, ".py") || ends_with(word, ".sh"))
        end -= 3;
    if (!isalpha((unsigned char)word[0]))
        len = (size_t)snprintf(ret_name, 52, "job-");
    for (size_t i = 0; i < end && len < 40; i++) {
        unsigned char c = (unsigned char)word[i];
        if (isalnum(c) && c < 128)
            ret_name[len++] = (char)tolower(c);
        else if (len > 0 && ret_name[len - 1] != '-')
            ret_name[len++] = '-';
    }
    while (len > 0 && ret_name[len - 1] == '-')
        len--;
    ret_name[len] = '\0';
    if (len == 0)
        snprintf(ret_name, 52, "job");
}

/* In a manifest "$$" means "$" and "$(NAME)" a variable; a command line has been through a shell and means what it says. */
static cJSON *literal(const char *word)
{
    struct buf b = BUF_INIT(2 * strlen(word) + 1);
    for (const char *p = word; *p; p++)
        buf_addf(&b, *p == '$' ? "$%c" : "%c", *p);
    cJSON *text = cJSON_CreateString(buf_text(&b));
    buf_release(&b);
    return text;
}

static cJSON *container(const struct np_options *np, char *const *command, size_t count)
{
    cJSON *c = json_object(), *words = json_array();
    for (size_t i = 0; i < count; i++)
        json_append(words, literal(command[i]));
    json_put_text(c, "name", "main");
    json_put_text(c, "image", "local");
    json_put(c, "command", words);
    if (np->env)
        json_put(c, "env", cJSON_Duplicate(np->env, true));
    return c;
}

cJSON *np_manifest(const struct np_options *np, const char *name, int64_t processes, char *const *command, size_t count)
{
    cJSON *job = json_object(), *metadata = json_object(), *spec = json_object(), *roles = json_object(), *worker = json_object();
    cJSON *template = json_object(), *pod = json_object(), *containers = json_array(), *frameworks = json_array();
    json_append(frameworks, cJSON_CreateString("TensorFlow"));
    json_append(frameworks, cJSON_CreateString("PyTorch"));
    json_append(frameworks, cJSON_CreateString("Horovod"));
    json_append(containers, container(np, command, count));
    json_put(pod, "containers", containers);
    json_put(template, "spec", pod);
    json_put_int(worker, "replicas", processes);
    json_put(worker, "template", template);
    json_put(roles, "Worker", worker);
    json_put(spec, "frameworks", frameworks);
    if (np->start_timeout_s || np->reset_limit >= 0) {
        cJSON *policy = json_object(), *scheduling = json_object();
        if (np->reset_limit >= 0)
            json_put_int(policy, "backoffLimit", np->reset_limit);
        if (np->start_timeout_s)
            json_put_int(scheduling, "startTimeoutSeconds", np->start_timeout_s);
        json_put(policy, "schedulingPolicy", scheduling);
        json_put(spec, "runPolicy", policy);
    }
    if (np->min_processes || np->max_processes) {
        cJSON *elastic = json_object();
        json_put_int(elastic, "minReplicas", np->min_processes ? np->min_processes : processes);
        json_put_int(elastic, "maxReplicas", np->max_processes ? np->max_processes : processes);
        json_put(spec, "elasticPolicy", elastic);
    }
    json_put(spec, "replicaSpecs", roles);
    json_put_text(metadata, "name", name);
    json_put_text(job, "apiVersion", JOB_API_VERSION);
    json_put_text(job, "kind", JOB_KIND);
    json_put(job, "metadata", metadata);
    json_put(job, "spec", spec);
    return job;
}

static void help_row(FILE *out, const struct np_flag *f, const char *text)
{
    char left[80];
    snprintf(left, sizeof left, "%s%s%s%s", f->flag, f->other ? ", " : "", f->other ? f->other : "", f->values ? " VALUE" : "");
    fprintf(out, "  %-50s %s\n", left, text);
}

void np_help(FILE *out)
{
    static const struct { enum np_kind kind; const char *text; } USED[] = {
        { NP_COUNT, "number of processes; each is one rank" },
        { NP_MIN, "fewest ranks that go on training; spec.elasticPolicy.minReplicas" },
        { NP_MAX, "most ranks; spec.elasticPolicy.maxReplicas" },
        { NP_OUTPUT, "directory for the output: rank.N/stdout" },
        { NP_HOSTS, "slots on this machine, as in localhost:4; other machines are refused" },
        { NP_HOSTFILE, "the same from a file, a line \"localhost slots=4\"" },
        { NP_START_TIMEOUT, "seconds in which every process must have started" },
        { NP_RESET_LIMIT, "restarts before the job fails" },
        { NP_TIMESTAMPS, "put the time before each line of output" },
    };
    fputs("\nhorovodrun's options, with a command in place of -f:\n", out);
    for (size_t i = 0; i < COUNT(NP_FLAGS); i++)
        for (size_t k = 0; k < COUNT(USED); k++)
            if (NP_FLAGS[i].kind == USED[k].kind)
                help_row(out, &NP_FLAGS[i], USED[k].text);
    fputs("  Its other options are accepted (those of the timeline, logging, fusion and stall check reach the script as HOROVOD_*)\n"
          "  or refused with the reason.\n", out);
}
