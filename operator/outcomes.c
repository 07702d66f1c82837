#include "operator/outcomes.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "operator/histogram.h"

#define CLASSES (FAILURE_HARDWARE + 1)
#define LABELS_MAX 256

static const double SECONDS[HISTOGRAM_BOUNDS] = { 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 900, 3600 };

enum strategy { IN_PLACE, RECREATE, STRATEGIES };
static const char *const STRATEGY_NAMES[STRATEGIES] = { "InPlace", "Recreate" };

struct reason_count { char reason[64]; uint64_t count; };

struct namespace_row {
    char name[64]; /* "" = all that have no row of their own */
    uint64_t created, succeeded, suspended, invalid, checkpoints, lost_steps;
    uint64_t restarted[CLASSES];
    double lost_work_s;
    struct reason_count *failed; size_t failed_count;
};

struct outcomes {
    struct namespace_row *rows; /* sorted by name */
    size_t count, cap;
    struct histogram time_to_running, restart[STRATEGIES]; /* seconds */
};

struct outcomes *outcomes_new(void)
{
    return xcalloc(1, sizeof(struct outcomes));
}

void outcomes_free(struct outcomes *o)
{
    if (o == NULL)
        return;
    for (size_t i = 0; i < o->count; i++)
        free(o->rows[i].failed);
    free(o->rows);
    free(o);
}

/* ---- rows ---- */

static struct namespace_row *row_of(struct outcomes *o, const char *ns)
{
    size_t low = 0, high = o->count;

    while (low < high) {
        size_t middle = (low + high) / 2;
        int order = strcmp(o->rows[middle].name, ns);
        if (order == 0)
            return &o->rows[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    if (ns[0] != '\0' && o->count >= OUTCOMES_NAMESPACES_MAX)
        return row_of(o, "");
    if (o->count == o->cap) {
        o->cap = o->cap > 0 ? 2 * o->cap : 8;
        o->rows = xrealloc(o->rows, o->cap, sizeof *o->rows);
    }
    memmove(&o->rows[low + 1], &o->rows[low], (o->count - low) * sizeof *o->rows);
    o->rows[low] = (struct namespace_row){ .failed = NULL };
    (void)snprintf(o->rows[low].name, sizeof o->rows[low].name, "%s", ns);
    o->count++;
    return &o->rows[low];
}

static void note_failed(struct namespace_row *n, const char *reason)
{
    const char *name = n->failed_count + 1 >= OUTCOMES_REASONS_MAX ? "Other" : reason;

    for (size_t i = 0; i < n->failed_count; i++) {
        if (strcmp(n->failed[i].reason, reason) == 0 || strcmp(n->failed[i].reason, name) == 0) {
            n->failed[i].count++;
            return;
        }
    }
    n->failed = xrealloc(n->failed, n->failed_count + 1, sizeof *n->failed);
    struct reason_count *new = &n->failed[n->failed_count++];
    *new = (struct reason_count){ .count = 1 };
    (void)snprintf(new->reason, sizeof new->reason, "%s", name);
}

/* ---- what a change says ---- */

static bool became(const struct job_status *before, const struct job_status *now, enum job_phase phase)
{
    return before->phase != phase && now->phase == phase;
}

static bool is_true(const struct job_status *s, enum condition_type type)
{
    return s->conditions[type].present && s->conditions[type].is_true;
}

static const struct failure *newest_failure(const struct job_status *s)
{
    return s->failure_count > 0 ? &s->failures[s->failure_count - 1] : NULL;
}

static void observe(struct histogram *h, int64_t from_ms, int64_t to_ms)
{
    if (from_ms > 0 && to_ms >= from_ms) /* clocks of several machines are in it */
        histogram_observe(h, SECONDS, (double)(to_ms - from_ms) / 1000.0);
}

/* From the failure to a ring that works again, whether or not a status ever said Restarting in between. */
static void note_recovery(struct outcomes *o, const struct job_status *before, const struct job_status *now)
{
    const struct condition *restarting = &before->conditions[CONDITION_RESTARTING];
    const struct failure *failure = newest_failure(now);
    bool at_once = now->restarts > before->restarts && !is_true(before, CONDITION_RESTARTING) && now->ring.set && failure != NULL &&
                   now->ring.formed_ms >= failure->time_ms;

    if (!is_true(now, CONDITION_RUNNING) || !(at_once || is_true(before, CONDITION_RESTARTING)))
        return;
    bool failed_before = failure != NULL && (at_once || failure->time_ms <= restarting->transition_ms);
    int64_t from_ms = failed_before ? failure->time_ms : restarting->transition_ms;
    int64_t to_ms = at_once ? now->ring.formed_ms : now->conditions[CONDITION_RUNNING].transition_ms;
    observe(&o->restart[failure != NULL && failure->attempt == now->attempt ? IN_PLACE : RECREATE], from_ms, to_ms);
}

static void note_restarts(struct namespace_row *n, const struct job_status *before, const struct job_status *now)
{
    const struct failure *failure = newest_failure(now);

    if (now->restarts <= before->restarts)
        return;
    n->restarted[failure != NULL && (unsigned)failure->class < CLASSES ? failure->class : FAILURE_INFRASTRUCTURE] +=
        (uint64_t)(now->restarts - before->restarts);
    if (failure != NULL && failure->lost_steps.set && failure->lost_steps.value > 0) {
        n->lost_steps += (uint64_t)failure->lost_steps.value;
        if (before->progress.set && before->progress.steps_per_second > 0)
            n->lost_work_s += (double)failure->lost_steps.value / before->progress.steps_per_second;
    }
}

void outcomes_note(struct outcomes *o, const char *ns, int64_t created_ms, const struct job_status *before, const struct job_status *now)
{
    struct namespace_row *n = row_of(o, ns);

    n->created += !before->conditions[CONDITION_CREATED].present && now->conditions[CONDITION_CREATED].present;
    n->succeeded += became(before, now, PHASE_SUCCEEDED);
    n->suspended += became(before, now, PHASE_SUSPENDED);
    if (became(before, now, PHASE_FAILED))
        note_failed(n, now->conditions[CONDITION_FAILED].reason);
    n->checkpoints += now->checkpoint.set && (!before->checkpoint.set || now->checkpoint.step != before->checkpoint.step);
    note_restarts(n, before, now);
    if (!before->conditions[CONDITION_RUNNING].present && is_true(now, CONDITION_RUNNING))
        observe(&o->time_to_running, created_ms, now->conditions[CONDITION_RUNNING].transition_ms);
    note_recovery(o, before, now);
}

void outcomes_note_invalid(struct outcomes *o, const char *ns)
{
    row_of(o, ns)->invalid++;
}

/* ---- text ---- */

static void head(struct buf *out, const char *type, const char *name, const char *help)
{
    buf_addf(out, "# HELP ringmaster_%s %s\n# TYPE ringmaster_%s %s\n", name, help, name, type);
}

static void add_counts(const struct outcomes *o, const char *name, const char *help, size_t offset, struct buf *out)
{
    head(out, "counter", name, help);
    for (size_t i = 0; i < o->count; i++) {
        uint64_t value;
        memcpy(&value, (const char *)&o->rows[i] + offset, sizeof value);
        buf_addf(out, "ringmaster_%s{namespace=\"%s\"} %" PRIu64 "\n", name, o->rows[i].name, value);
    }
}

void outcomes_format(const struct outcomes *o, struct buf *out)
{
    static const struct { const char *name, *help; size_t offset; } COUNTERS[] = {
        { "jobs_created_total", "Jobs that were accepted.", offsetof(struct namespace_row, created) },
        { "jobs_succeeded_total", "Jobs that ended well.", offsetof(struct namespace_row, succeeded) },
        { "jobs_suspended_total", "Times that a job was suspended.", offsetof(struct namespace_row, suspended) },
        { "jobs_invalid_total", "Jobs whose manifest passed the schema and cannot run.", offsetof(struct namespace_row, invalid) },
        { "checkpoints_committed_total", "Checkpoints that a status told of.", offsetof(struct namespace_row, checkpoints) },
        { "lost_steps_total", "Steps that were done again after a restart.", offsetof(struct namespace_row, lost_steps) },
    };

    for (size_t i = 0; i < COUNT(COUNTERS); i++)
        add_counts(o, COUNTERS[i].name, COUNTERS[i].help, COUNTERS[i].offset, out);

    head(out, "counter", "lost_work_seconds_total", "Time that those steps had taken.");
    for (size_t i = 0; i < o->count; i++)
        buf_addf(out, "ringmaster_lost_work_seconds_total{namespace=\"%s\"} %.17g\n", o->rows[i].name, o->rows[i].lost_work_s);

    head(out, "counter", "jobs_failed_total", "Jobs that failed, by the reason of their condition.");
    for (size_t i = 0; i < o->count; i++) {
        for (size_t k = 0; k < o->rows[i].failed_count; k++)
            buf_addf(out, "ringmaster_jobs_failed_total{namespace=\"%s\",reason=\"%s\"} %" PRIu64 "\n", o->rows[i].name,
                     o->rows[i].failed[k].reason, o->rows[i].failed[k].count);
    }
    head(out, "counter", "jobs_restarted_total", "Restarts of jobs, in place or with new pods, by the class of the failure.");
    for (size_t i = 0; i < o->count; i++) {
        for (enum failure_class c = 0; c < CLASSES; c++)
            buf_addf(out, "ringmaster_jobs_restarted_total{namespace=\"%s\",class=\"%s\"} %" PRIu64 "\n", o->rows[i].name,
                     failure_class_name(c), o->rows[i].restarted[c]);
    }

    head(out, "histogram", "job_time_to_running_seconds", "From the creation of a job until all of its replicas run.");
    histogram_format(&o->time_to_running, SECONDS, "ringmaster_job_time_to_running_seconds", "", out);
    head(out, "histogram", "restart_duration_seconds", "From a failure until all replicas run again.");
    for (enum strategy s = 0; s < STRATEGIES; s++) {
        char labels[LABELS_MAX];
        (void)snprintf(labels, sizeof labels, "strategy=\"%s\"", STRATEGY_NAMES[s]);
        histogram_format(&o->restart[s], SECONDS, "ringmaster_restart_duration_seconds", labels, out);
    }
}
