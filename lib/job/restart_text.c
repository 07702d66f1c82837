#include "job/restart_text.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "job/counters.h"
#include "job/restart_class.h"

/* Exit codes as shells and runtimes use them; 128+n is a signal. */
static const struct { int32_t code; const char *what; } CODES[] = {
    { 2, "wrong usage" },
    { 126, "command not executable" },
    { 127, "command not found" },
    { 129, "SIGHUP" }, { 130, "SIGINT" }, { 132, "SIGILL" }, { 134, "SIGABRT" }, { 135, "SIGBUS" }, { 136, "SIGFPE" },
    { 137, "SIGKILL" }, { 138, "SIGUSR1" }, { 139, "SIGSEGV" }, { 141, "SIGPIPE" }, { 143, "SIGTERM" },
    { 152, "SIGXCPU" }, { 153, "SIGXFSZ" },
    { 201, "GPU driver error" }, { 202, "GPU residue" },
};

static const char *code_text(int32_t code)
{
    for (size_t i = 0; i < COUNT(CODES); i++) {
        if (CODES[i].code == code)
            return CODES[i].what;
    }
    return NULL;
}

/* Why a command could not be run, out of what the launcher or the container runtime said: both name the call. False: it ran. */
static bool start_error(const struct failure_event *event, char ret_text[112])
{
    static const char *const REASONS[] = { "StartError", "ContainerCannotRun", "RunContainerError", "CommandNotFound", "CommandNotExecutable" };
    const char *message = event->message != NULL ? event->message : "", *reason = event->reason != NULL ? event->reason : "";
    bool is_one = event->exit_code == 126 || event->exit_code == 127;

    for (size_t i = 0; i < COUNT(REASONS); i++)
        is_one |= strcmp(reason, REASONS[i]) == 0;
    const char *from = strstr(message, "exec"); /* "exec /app/train: ...", "exec: \"train\": ..." */
    if (!is_one || from == NULL)
        return false;
    bool quoted = from > message && from[-1] == '"'; /* in a line of the launcher's log */
    size_t len = strcspn(from, quoted ? "\"\n" : "\n");
    (void)snprintf(ret_text, 112, "%.*s", (int)(len < 110 ? len : 110), from);
    return true;
}

void restart_describe(const struct failure_event *event, char ret_text[160])
{
    const char *reason = event->reason != NULL ? event->reason : "";
    const char *what = code_text(event->exit_code);
    char who[80], why[112];

    job_member_name(event->role, event->index, who);
    enum failure_class class = restart_classify(event);
    if (class == FAILURE_OOM)
        (void)snprintf(ret_text, 160, "%s was killed because it ran out of memory (code %d)", who,
                       (int)event->exit_code);
    else if (class == FAILURE_HANG)
        (void)snprintf(ret_text, 160, "%s made no progress and was stopped", who);
    else if (class == FAILURE_INFRASTRUCTURE)
        (void)snprintf(ret_text, 160, "%s was lost: %.60s", who, reason[0] != '\0' ? reason : "its end was not seen");
    else if (!event->has_exit)
        (void)snprintf(ret_text, 160, "%s could not start: %.60s", who, reason);
    else if (start_error(event, why))
        (void)snprintf(ret_text, 160, "%s could not start (code %d): %s", who, (int)event->exit_code, why);
    else if (event->signal != 0)
        (void)snprintf(ret_text, 160, "%s was ended by signal %d (%s)", who, (int)event->signal,
                       what != NULL ? what : "code 128 and more");
    else if (what != NULL)
        (void)snprintf(ret_text, 160, "%s exited with code %d (%s)", who, (int)event->exit_code, what);
    else
        (void)snprintf(ret_text, 160, "%s exited with code %d", who, (int)event->exit_code);
}

static int main_container_at(const struct training_job *job, enum job_role role)
{
    const cJSON *containers = json_at(job->spec.roles[role].template, "spec.containers");
    const char *name = job_main_container(job, role);
    int at = 0;
    const cJSON *container;

    cJSON_ArrayForEach(container, containers) {
        if (name != NULL && strcmp(json_text(container, "name", ""), name) == 0)
            return at;
        at++;
    }
    return 0;
}

/* What a person can do about the failure itself; nothing when that is not known. */
static void add_hint(const struct training_job *job, const struct failure_event *event, enum failure_class class,
                     struct buf *b)
{
    const char *key = role_key(event->role);
    int at = main_container_at(job, event->role);

    if (class == FAILURE_OOM)
        buf_addf(b, ": raise spec.replicaSpecs.%s.template.spec.containers[%d].resources.limits.memory", key, at);
    else if (class == FAILURE_USER && event->has_exit && (event->exit_code == 126 || event->exit_code == 127))
        buf_addf(b, ": check spec.replicaSpecs.%s.template.spec.containers[%d].command", key, at);
    else if (class == FAILURE_USER && !event->has_exit)
        buf_addf(b, ": check spec.replicaSpecs.%s.template.spec.containers[%d].image and what it mounts", key, at);
    else if (class == FAILURE_USER && event->exit_code == 135)
        buf_add(b, ": is /dev/shm of the container full?");
    else if (class == FAILURE_USER && event->exit_code == 132)
        buf_add(b, ": was the program built for another processor?");
    else if (class == FAILURE_USER && event->has_exit && event->exit_code != 0)
        buf_addf(b, ": see the log of %s-%d", role_name(event->role), (int)event->index);
}

static void add_hopeless(const struct failure_event *event, const struct restart_decision *d, struct buf *b)
{
    const struct restart_tries *tries = restart_tries_of(event, d->class);

    if (tries->in_place + tries->elsewhere > 0)
        buf_addf(b, "; %d times in a row without progress: %s; a rule of spec.failurePolicy can say otherwise",
                 (int)(tries->in_place + tries->elsewhere + 1), tries->why);
    else
        buf_addf(b, "; %s", tries->why);
}

static void add_cause_of_end(const struct training_job *job, const struct failure_event *event,
                             const struct failure_rule *rule, const struct restart_decision *d, struct buf *b)
{
    const struct job_spec *spec = &job->spec;

    if (strcmp(d->reason, "BackoffLimitExceeded") == 0)
        buf_addf(b, "; %d restarts were charged, spec.runPolicy.backoffLimit is %d",
                 (int)(spec->failure.restart_window_s > 0 ? restart_window_count(&d->counters.window) : d->counters.restarts_counted),
                 (int)spec->backoff_limit);
    else if (strcmp(d->reason, "MaxRestartsExceeded") == 0)
        buf_addf(b, "; there were %d restarts, spec.failurePolicy.maxRestarts is %lld", (int)d->counters.restarts,
                 (long long)spec->failure.max_restarts.value);
    else if (strcmp(d->reason, "MaxDisruptionsExceeded") == 0)
        buf_addf(b, "; there were %d disruptions, spec.failurePolicy.maxDisruptions is %lld",
                 (int)d->counters.disruptions, (long long)spec->failure.max_disruptions.value);
    else if (strcmp(d->reason, "FailurePolicy") == 0)
        buf_addf(b, "; rule \"%.40s\" of spec.failurePolicy says so",
                 rule != NULL && rule->name != NULL ? rule->name : "");
    else if (d->hopeless)
        add_hopeless(event, d, b);
    else if (strcmp(d->reason, "PermanentExitCode") == 0)
        buf_add(b, "; restartPolicy ExitCode does not retry codes 1 to 127");
    else if (spec->roles[event->role].restart_policy == RESTART_NEVER)
        buf_add(b, "; restartPolicy is Never");
}

static void add_restart(const struct training_job *job, const struct restart_decision *d, struct buf *b)
{
    buf_addf(b, "; restarting %s", d->verdict == VERDICT_RESTART_ALONE ? "it" : "the group");
    if (d->node_suspect)
        buf_add(b, " with a new pod on another node");
    if (d->delay_ms > 0)
        buf_addf(b, " in %lld.%lld s", (long long)(d->delay_ms / 1000), (long long)(d->delay_ms % 1000 / 100));
    if (!d->counted)
        buf_add(b, ", not charged to backoffLimit");
    else if (job->spec.backoff_limit >= 0)
        buf_addf(
            b, ", %d of %d restarts charged",
            (int)(job->spec.failure.restart_window_s > 0 ? restart_window_count(&d->counters.window) : d->counters.restarts_counted),
            (int)job->spec.backoff_limit);
}

void restart_explain(const struct training_job *job, const struct failure_event *event, const struct failure_rule *rule,
                     struct restart_decision *d)
{
    char what[160];
    auto_buf struct buf b = BUF_INIT(4096);

    restart_describe(event, what);
    buf_add(&b, what);
    switch (d->verdict) {
    case VERDICT_FAIL_JOB:
        add_hint(job, event, d->class, &b);
        add_cause_of_end(job, event, rule, d, &b);
        break;
    case VERDICT_RESTART_GROUP:
    case VERDICT_RESTART_ALONE:
        add_restart(job, d, &b);
        break;
    case VERDICT_IGNORE:
        buf_add(&b, strcmp(d->reason, "Completed") == 0 ? "" : "; the job goes on without it");
        break;
    }
    (void)snprintf(d->message, sizeof d->message, "%s", buf_text(&b));
}
