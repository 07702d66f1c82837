#include "job/restart.h"

#include <regex.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "job/counters.h"
#include "job/restart_class.h"
#include "job/restart_text.h"

enum { PATTERN_COPIES_MAX = 1000, PATTERN_BYTES_MAX = 1024 };

bool restart_is_user_code(int32_t exit_code)
{
    return exit_code >= 1 && exit_code <= 127;
}

/* ---- rules ------------------------------------------------------------------------------------------------------- */

static bool matches_codes(const struct training_job *job, const struct failure_rule *rule,
                          const struct failure_event *event)
{
    if (!event->has_exit || event->exit_code == 0)
        return false;
    const char *main_container = job_main_container(job, event->role);
    const char *container = event->container != NULL ? event->container : main_container;
    bool named = rule->container != NULL && rule->container[0] != '\0';
    if (strcmp(named ? rule->container : main_container, container) != 0)
        return false;
    bool listed = false;
    for (size_t i = 0; i < rule->exit_code_count; i++)
        listed |= rule->exit_codes[i] == event->exit_code;
    return listed == rule->exit_codes_in;
}

static bool matches_conditions(const struct failure_rule *rule, const struct failure_event *event)
{
    for (size_t i = 0; i < rule->condition_count; i++) {
        if (restart_has_condition(event, rule->condition_types[i], rule->condition_statuses[i]))
            return true;
    }
    return false;
}

/* regcomp writes repetitions out: "((a{999}){999}){999}" would take all memory there is. And regexec tries everything for a reference
 * back, "(.*)(.*)(.*)\3\2\1b", which glibc knows and POSIX does not. */
bool restart_pattern_is_bearable(const char *pattern)
{
    uint64_t copies = 1;

    for (const char *p = pattern; (p = strchr(p, '\\')) != NULL && p[1] != '\0'; p += 2) {
        if (p[1] >= '1' && p[1] <= '9')
            return false;
    }
    for (const char *p = pattern; (p = strchr(p, '{')) != NULL; p++) {
        uint64_t most = 0, number = 0;
        for (const char *q = p + 1; *q == ',' || (*q >= '0' && *q <= '9'); q++) {
            number = *q == ',' ? 0 : number * 10 + (uint64_t)(*q - '0');
            most = number > most ? number : most;
            if (most > PATTERN_COPIES_MAX)
                return false;
        }
        copies *= most > 1 ? most : 1;
        if (copies > PATTERN_COPIES_MAX)
            return false;
    }
    return strlen(pattern) <= PATTERN_BYTES_MAX;
}

static bool matches_message(const struct failure_rule *rule, const struct failure_event *event)
{
    regex_t pattern;

    if (event->message == NULL || !restart_pattern_is_bearable(rule->message_pattern) ||
        regcomp(&pattern, rule->message_pattern, REG_EXTENDED | REG_NOSUB) != 0)
        return false;
    bool found = regexec(&pattern, event->message, 0, NULL, 0) == 0;
    regfree(&pattern);
    return found;
}

/* Every criterion that a rule has must hold; a rule without one holds for its roles. */
static bool rule_holds(const struct training_job *job, const struct failure_rule *rule,
                       const struct failure_event *event)
{
    if (!rule->any_role && !rule->roles[event->role])
        return false;
    if (rule->has_exit_codes && !matches_codes(job, rule, event))
        return false;
    if (rule->condition_count > 0 && !matches_conditions(rule, event))
        return false;
    if (rule->reason_count > 0 && !restart_is_one_of(event->reason, (const char *const *)rule->reasons, rule->reason_count))
        return false;
    return rule->message_pattern == NULL || rule->message_pattern[0] == '\0' || matches_message(rule, event);
}

static const struct failure_rule *find_rule(const struct training_job *job, const struct failure_event *event)
{
    for (size_t i = 0; i < job->spec.failure.rule_count; i++) {
        if (rule_holds(job, &job->spec.failure.rules[i], event))
            return &job->spec.failure.rules[i];
    }
    return NULL;
}

bool restart_rule_matches(const struct training_job *job, const struct failure_event *event)
{
    return find_rule(job, event) != NULL;
}

/* ---- budgets and back-off ---------------------------------------------------------------------------------------- */

/* FNV-1a over the UID and the count: the same for whoever computes it, another one for each job and restart. */
static uint32_t jitter_seed(const char *uid, int32_t count)
{
    uint32_t h = 2166136261u;

    for (const char *p = uid != NULL ? uid : ""; *p != '\0'; p++)
        h = (h ^ (uint8_t)*p) * 16777619u;
    for (int i = 0; i < 4; i++)
        h = (h ^ (uint8_t)((uint32_t)count >> (8 * i))) * 16777619u;
    return h ^ h >> 15;
}

static int64_t backoff_ms(const struct training_job *job, const struct restart_counters *after)
{
    const struct failure_policy *policy = &job->spec.failure;

    if (after->streak <= 1)
        return 0;
    int64_t delay_s = policy->backoff_base_s;
    for (int32_t i = 2; i < after->streak && delay_s < policy->backoff_max_s; i++)
        delay_s *= 2;
    if (delay_s > policy->backoff_max_s)
        delay_s = policy->backoff_max_s;
    int64_t tenth = delay_s * 1000 / 10;
    int64_t jitter = (int64_t)(jitter_seed(job->uid, after->restarts) % (uint64_t)(2 * tenth + 1)) - tenth;
    int64_t delay = delay_s * 1000 + jitter;
    int64_t most = policy->backoff_max_s * 1000;
    return delay < most ? delay : most;
}

/* How often in a row the same thing happened. What the infrastructure did says nothing about the program. */
static void count_repeats(const struct failure_event *event, enum failure_class class, struct restart_counters *after)
{
    bool ran_long = event->ran_ms >= RESTART_LONG_RUN_MS;
    bool alive = ran_long || (event->steps_done.set && event->steps_done.value >= RESTART_STEPS_ALIVE);
    int32_t end = restart_end_of(event, class);

    if (event->made_progress)
        after->crashes = after->repeats = after->last_end = 0;
    if (class == FAILURE_INFRASTRUCTURE)
        return;
    after->repeats = end == after->last_end && !ran_long ? after->repeats + 1 : 1;
    after->last_end = end;
    if (class == FAILURE_USER || class == FAILURE_HANG)
        after->crashes = alive || event->made_progress ? 0 : after->crashes + 1;
}

static void count_restart(const struct training_job *job, const struct restart_counters *before, bool counted,
                          const struct failure_event *event, enum failure_class class, int64_t now_ms,
                          struct restart_counters *ret_after)
{
    struct restart_counters after = *before;
    int64_t window_ms = job->spec.failure.restart_window_s * 1000;

    after.restarts++;
    after.streak = event->made_progress ? 1 : after.streak + 1;
    count_repeats(event, class, &after);
    if (counted) {
        after.restarts_counted++;
        if (window_ms > 0)
            restart_window_add(&after.window, now_ms, window_ms);
    } else {
        after.disruptions++;
    }
    *ret_after = after;
}

/* The first budget that a restart would overdraw, or NULL. */
static const char *overdrawn(const struct training_job *job, const struct restart_counters *after, bool counted,
                             bool past_max_restarts)
{
    const struct failure_policy *policy = &job->spec.failure;
    int32_t charged = policy->restart_window_s > 0 ? restart_window_count(&after->window) : after->restarts_counted;

    if (counted && job->spec.backoff_limit >= 0 && charged > job->spec.backoff_limit)
        return "BackoffLimitExceeded";
    if (policy->max_restarts.set && !past_max_restarts && after->restarts > policy->max_restarts.value)
        return "MaxRestartsExceeded";
    if (!counted && policy->max_disruptions.set && after->disruptions > policy->max_disruptions.value)
        return "MaxDisruptionsExceeded";
    return NULL;
}

/* ---- the decision ------------------------------------------------------------------------------------------------ */

struct wish { /* before budgets */
    enum { WISH_FAIL, WISH_IGNORE, WISH_RESTART } what;
    bool by_rule, alone, free, past_max_restarts;
    bool bounded;       /* an end that comes again and again is not restarted for ever */
    const char *reason; /* of a WISH_FAIL */
};

static struct wish wish_of_rule(const struct failure_rule *rule)
{
    struct wish w = { .what = WISH_RESTART, .by_rule = true, .reason = "FailurePolicy" };

    switch (rule->action) {
    case RULE_FAIL_JOB: w.what = WISH_FAIL; break;
    case RULE_IGNORE: w.what = WISH_IGNORE; break;
    case RULE_RESTART_JOB: break;
    case RULE_RESTART_JOB_FREE: w.free = w.past_max_restarts = true; break;
    case RULE_RESTART_POD: w.alone = true; break;
    case RULE_RESTART_POD_FREE: w.alone = w.free = w.past_max_restarts = true; break;
    }
    return w;
}

static struct wish wish_of_policy(const struct training_job *job, const struct failure_event *event,
                                  enum failure_class class)
{
    static const char *const role_failed[ROLE_COUNT] = {
        [ROLE_CHIEF] = "ChiefFailed", [ROLE_MASTER] = "MasterFailed", [ROLE_WORKER] = "WorkerFailed",
        [ROLE_PS] = "PSFailed",       [ROLE_EVALUATOR] = "EvaluatorFailed",
    };
    struct wish fail = { .what = WISH_FAIL, .reason = role_failed[event->role] };
    struct wish restart = { .what = WISH_RESTART };
    enum restart_policy policy = job->spec.roles[event->role].restart_policy;

    if (class == FAILURE_INFRASTRUCTURE) {
        restart.free = true;
        return restart;
    }
    restart.bounded = true;
    if (restart_is_start_problem(event)) {
        fail.reason = "StartTimeout";
        return fail;
    }
    if (policy == RESTART_NEVER)
        return fail;
    if (class == FAILURE_OOM) {
        fail.reason = "OOMKilled";
        return job->spec.failure.oom_action == OOM_FAIL ? fail : restart;
    }
    if (class == FAILURE_HARDWARE && restart_blames_hardware(event->message))
        return restart;
    if (policy == RESTART_EXIT_CODE && class != FAILURE_HANG && restart_is_user_code(event->exit_code)) {
        fail.reason = "PermanentExitCode";
        return fail;
    }
    return restart;
}

/* A worker that the end of the job does not hang on: with enableDynamicWorker the others go on without it. */
static bool is_dispensable(const struct training_job *job, const struct failure_event *event)
{
    const struct job_spec *spec = &job->spec;
    bool decides = spec->success_policy == SUCCESS_ALL_WORKERS ||
                   (event->index == 0 && !spec->roles[ROLE_CHIEF].present && !spec->roles[ROLE_MASTER].present);

    return spec->enable_dynamic_worker && event->role == ROLE_WORKER && !decides;
}

static bool restarts_alone(const struct training_job *job, const struct failure_event *event, const struct wish *wish)
{
    if (!job_restarts_as_group(job))
        return wish->alone || !wish->by_rule;
    return job_rank(job, event->role, event->index) < 0 && (wish->alone || !wish->by_rule);
}

static const char *restart_reason(const struct failure_event *event, enum failure_class class)
{
    static const char *const names[ROLE_COUNT] = {
        [ROLE_CHIEF] = "ChiefRestarting", [ROLE_MASTER] = "MasterRestarting", [ROLE_WORKER] = "WorkerRestarting",
        [ROLE_PS] = "PSRestarting",       [ROLE_EVALUATOR] = "EvaluatorRestarting",
    };

    if (class == FAILURE_OOM)
        return "OOMKilled";
    if ((class == FAILURE_INFRASTRUCTURE || class == FAILURE_HANG) && event->reason != NULL && event->reason[0] != '\0')
        return event->reason;
    return class == FAILURE_INFRASTRUCTURE ? "PodLost" : names[event->role];
}

static bool gets_more_memory(const struct training_job *job, enum failure_class class)
{
    return class == FAILURE_OOM && job->spec.failure.oom_action == OOM_RESTART_WITH_MORE_MEMORY;
}

/* NULL: worth another try. Else the reason to fail with. */
static const char *hopeless(const struct training_job *job, const struct failure_event *event, const struct wish *wish,
                            enum failure_class class, const struct restart_counters *after)
{
    const struct restart_tries *tries = restart_tries_of(event, class);

    if (!wish->bounded || gets_more_memory(job, class) || (int64_t)after->repeats <= (int64_t)tries->in_place + tries->elsewhere)
        return NULL;
    if (class == FAILURE_OOM)
        return "OOMKilled";
    return tries->in_place + tries->elsewhere == 0 ? "PermanentExitCode" : "RepeatedCrash";
}

static void decide_restart(const struct training_job *job, const struct failure_event *event, const struct wish *wish,
                           struct restart_decision *d)
{
    bool in_place_is_over = wish->bounded && d->counters.repeats > restart_tries_of(event, d->class)->in_place;

    d->verdict = restarts_alone(job, event, wish) ? VERDICT_RESTART_ALONE : VERDICT_RESTART_GROUP;
    d->counted = !wish->free;
    d->node_suspect = d->class == FAILURE_HARDWARE || (in_place_is_over && d->class != FAILURE_OOM);
    d->needs_new_pod = job->spec.failure.strategy != STRATEGY_IN_PLACE || d->node_suspect || gets_more_memory(job, d->class);
    d->delay_ms = backoff_ms(job, &d->counters);
    (void)snprintf(d->reason, sizeof d->reason, "%s", restart_reason(event, d->class));
}

void restart_decide(const struct training_job *job, const struct restart_counters *before,
                    const struct failure_event *event, int64_t now_ms, struct restart_decision *ret_decision)
{
    struct restart_decision d = { .verdict = VERDICT_FAIL_JOB, .class = restart_classify(event), .counters = *before };
    const struct failure_rule *rule = find_rule(job, event);
    bool no_failure = event->has_exit && event->exit_code == 0 && d.class == FAILURE_USER;
    struct wish wish = rule != NULL ? wish_of_rule(rule)
                       : no_failure ? (struct wish){ .what = WISH_IGNORE }
                                    : wish_of_policy(job, event, d.class);
    const char *fail_reason = wish.what == WISH_FAIL ? wish.reason : NULL;
    struct restart_counters after = *before;

    if (wish.what == WISH_RESTART) {
        count_restart(job, before, !wish.free, event, d.class, now_ms, &after);
        fail_reason = hopeless(job, event, &wish, d.class, &after);
        d.hopeless = fail_reason != NULL;
        if (d.hopeless)
            wish.what = WISH_FAIL;
        else
            fail_reason = overdrawn(job, &after, !wish.free, wish.past_max_restarts);
    }
    if (fail_reason != NULL && wish.what == WISH_FAIL && !wish.by_rule && is_dispensable(job, event)) {
        wish.what = WISH_IGNORE;
        fail_reason = NULL;
    }

    if (wish.what == WISH_IGNORE) {
        d.verdict = VERDICT_IGNORE;
        (void)snprintf(d.reason, sizeof d.reason, "%s",
                       no_failure     ? "Completed"
                       : rule != NULL ? "FailurePolicy"
                                      : "FailureTolerated");
    } else if (fail_reason != NULL) {
        (void)snprintf(d.reason, sizeof d.reason, "%s", fail_reason);
    } else {
        d.counters = after;
        decide_restart(job, event, &wish, &d);
    }
    restart_explain(job, event, rule, &d);
    *ret_decision = d;
}
