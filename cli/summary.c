#include "cli/summary.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "cli/view.h"

/* Metrics are what a client said: any JSON text. What is no object has no metrics. */
static cJSON *metrics_parse(const struct member_report *m)
{
    struct error e = ERROR_INIT;
    cJSON *tree = NULL;
    if (!m->metrics[0] || json_parse(m->metrics, strlen(m->metrics), &tree, &e) < 0)
        return NULL;
    return tree;
}

static int by_rank(const void *a, const void *b)
{
    const struct summary_rank *x = a, *y = b;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

static void weights_build(struct summary *s)
{
    qsort(s->hashes, s->hash_count, sizeof *s->hashes, by_rank);
    s->weights = WEIGHTS_UNKNOWN;
    for (size_t i = 1; i < s->hash_count; i++)
        if (strcmp(s->hashes[i].weights_hash, s->hashes[0].weights_hash) != 0)
            s->weights = WEIGHTS_DIFFER;
    if (s->weights != WEIGHTS_DIFFER && s->hash_count > 0 && s->hash_count == (size_t)s->ranks)
        s->weights = WEIGHTS_EQUAL;
}

static void member_fold(struct summary *s, const struct member_report *m, int32_t *accuracy_rank, int32_t *loss_rank)
{
    if (m->bytes_reduced > s->bytes_reduced)
        s->bytes_reduced = m->bytes_reduced;
    if (m->operations > s->operations)
        s->operations = m->operations;
    if (m->busbw_gbps > s->busbw_gbps)
        s->busbw_gbps = m->busbw_gbps;
    /* A member outside the ring (an evaluator) counts for accuracy and loss only where no rank has one. */
    int32_t place = m->rank >= 0 ? m->rank : INT32_MAX - 1;
    if (m->has_loss && place < *loss_rank) {
        *loss_rank = place;
        s->has_loss = true;
        s->loss = m->loss;
    }
    auto_json cJSON *metrics = metrics_parse(m);
    const cJSON *accuracy = json_at(metrics, "accuracy");
    if (cJSON_IsNumber(accuracy) && place < *accuracy_rank) {
        *accuracy_rank = place;
        s->has_accuracy = true;
        s->accuracy = accuracy->valuedouble;
    }
    const char *hash = json_text(metrics, "weights_hash", NULL);
    if (hash && m->rank >= 0) {
        struct summary_rank *r = &s->hashes[s->hash_count++];
        r->rank = m->rank;
        snprintf(r->member, sizeof r->member, "%s", m->member);
        snprintf(r->weights_hash, sizeof r->weights_hash, "%s", hash);
    }
}

static void failures_fold(struct summary *s, const struct history *h)
{
    int64_t longest = -1;
    for (size_t i = 0; i < h->failure_count; i++) {
        const struct history_failure *f = &h->failures[i];
        int64_t lost = history_steps_lost(h, f);
        if (lost >= 0) {
            s->has_steps_lost = true;
            s->steps_lost += lost;
        }
        int64_t end = f->recovered_ms ? f->recovered_ms : f->started_ms;
        if (!end || end - f->cause.time_ms <= longest)
            continue;
        longest = end - f->cause.time_ms;
        s->has_recovery = f->recovered_ms != 0;
        s->recovery_s = (double)(f->recovered_ms - f->cause.time_ms) / 1000.0;
        s->has_started = f->started_ms != 0;
        s->started_s = (double)(f->started_ms - f->cause.time_ms) / 1000.0;
    }
    s->failures = (int64_t)h->failure_count;
    if (s->failures == 0) {
        s->has_steps_lost = true;
        s->steps_lost = 0;
    }
}

static void ending_build(struct summary *s, const struct job_status *status)
{
    static const enum condition_type ENDINGS[] = { CONDITION_FAILED, CONDITION_SUCCEEDED, CONDITION_SUSPENDED };
    for (size_t i = 0; i < COUNT(ENDINGS); i++) {
        const struct condition *c = &status->conditions[ENDINGS[i]];
        if (!c->present || !c->is_true)
            continue;
        snprintf(s->reason, sizeof s->reason, "%s", c->reason);
        snprintf(s->message, sizeof s->message, "%s", c->message);
        return;
    }
}

void summary_build(const struct training_job *job, const struct job_status *status, const struct coordinator_report *report,
                   const struct history *history, struct summary *ret_summary)
{
    struct summary s = { .job = job->name, .phase = status->phase, .ranks = job_world_size(job), .restarts = status->restarts,
                         .attempt = status->attempt, .round = status->round, .last_committed_step = -1,
                         .checkpoint_every_steps = -1 };
    int32_t accuracy_rank = INT32_MAX, loss_rank = INT32_MAX;
    s.hashes = xcalloc((report ? report->member_count : 0) + 1, sizeof *s.hashes);
    for (size_t i = 0; report && i < report->member_count; i++)
        member_fold(&s, &report->members[i], &accuracy_rank, &loss_rank);
    weights_build(&s);
    failures_fold(&s, history);
    ending_build(&s, status);

    if (report)
        s.last_committed_step = report->checkpoint_step;
    if (status->checkpoint.set && status->checkpoint.step > s.last_committed_step)
        s.last_committed_step = status->checkpoint.step;
    if (job->spec.checkpoint.enabled && job->spec.checkpoint.every_steps.set)
        s.checkpoint_every_steps = job->spec.checkpoint.every_steps.value;
    for (size_t i = 0; i < history->fence_count; i++) {
        if (!history->fences[i].formed_ms)
            continue;
        s.ring_size = s.ranks;
        s.self_test_ok = history->fences[i].self_test_ok; /* of the newest ring */
    }
    if (status->start_ms && status->completion_ms > status->start_ms)
        s.elapsed_ms = status->completion_ms - status->start_ms;
    *ret_summary = s;
}

void summary_release(struct summary *s)
{
    free(s->hashes);
    *s = (struct summary){ .hashes = NULL };
}

/* ---- the page ---- */

static void row(struct buf *out, const char *label)
{
    buf_addf(out, "  %-20s ", label);
}

static void weights_format(const struct summary *s, bool color, struct buf *out)
{
    if (s->hash_count == 0)
        return;
    row(out, "weights");
    if (s->weights == WEIGHTS_EQUAL)
        buf_addf(out, "%sequal on all %d ranks%s\n", color ? "\033[32m" : "", s->ranks, color ? "\033[0m" : "");
    else if (s->weights == WEIGHTS_DIFFER)
        buf_addf(out, "%sDIFFER between ranks%s\n", color ? "\033[31m" : "", color ? "\033[0m" : "");
    else
        buf_addf(out, "%zu of %d ranks reported a hash\n", s->hash_count, s->ranks);
    for (size_t i = 0; i < s->hash_count; i++) {
        char label[100];
        snprintf(label, sizeof label, "  rank %d %s", s->hashes[i].rank, s->hashes[i].member);
        row(out, label);
        buf_addf(out, "%s\n", s->hashes[i].weights_hash);
    }
}

static void failures_format(const struct summary *s, struct buf *out)
{
    if (s->failures == 0)
        return;
    row(out, "failures");
    buf_addf(out, "%lld, restarts %d\n", (long long)s->failures, s->restarts);
    if (s->has_recovery) {
        row(out, "training again after");
        buf_addf(out, "%.2f s", s->recovery_s);
        if (s->has_started)
            buf_addf(out, " (processes started again after %.2f s)", s->started_s);
        buf_add(out, "\n");
    } else if (s->has_started) {
        row(out, "started again after");
        buf_addf(out, "%.2f s\n", s->started_s);
    }
    if (s->has_steps_lost) {
        row(out, "steps lost");
        buf_addf(out, "%lld", (long long)s->steps_lost);
        if (s->checkpoint_every_steps > 0)
            buf_addf(out, " (a checkpoint every %lld)", (long long)s->checkpoint_every_steps);
        buf_add(out, "\n");
    }
}

void summary_format(const struct summary *s, const char *const *paths, bool color, struct buf *out)
{
    char elapsed[VIEW_DURATION_MAX], size[TEXT_SIZE_MAX];
    bool good = s->phase == PHASE_SUCCEEDED;
    buf_addf(out, "\n%s%s %s%s", color ? (good ? "\033[1;32m" : "\033[1;31m") : "", s->job, phase_name(s->phase),
             color ? "\033[0m" : "");
    if (s->elapsed_ms)
        buf_addf(out, " in %s", view_duration(s->elapsed_ms, elapsed));
    if (!good && s->reason[0])
        buf_addf(out, ": %s", s->reason);
    buf_add(out, "\n");
    if (!good && s->message[0])
        buf_addf(out, "  %s\n", s->message);

    if (s->has_accuracy) {
        row(out, "accuracy");
        buf_addf(out, "%.4f\n", s->accuracy);
    }
    if (s->has_loss) {
        row(out, "loss");
        buf_addf(out, "%.4f\n", s->loss);
    }
    weights_format(s, color, out);
    if (s->ring_size > 0) {
        row(out, "ring");
        buf_addf(out, "%d ranks, self-test %s", s->ring_size, s->self_test_ok ? "passed" : "FAILED");
        if (s->busbw_gbps > 0)
            buf_addf(out, ", bus bandwidth %.2f GB/s", s->busbw_gbps);
        buf_add(out, "\n");
    }
    if (s->bytes_reduced > 0) {
        row(out, "all-reduced");
        buf_addf(out, "%s a rank in %lld operations\n", text_bytes((uint64_t)s->bytes_reduced, size), (long long)s->operations);
    }
    failures_format(s, out);
    if (s->last_committed_step >= 0) {
        row(out, "last checkpoint");
        buf_addf(out, "step %lld\n", (long long)s->last_committed_step);
    }
    for (size_t i = 0; paths && paths[i]; i += 2) {
        row(out, paths[i]);
        buf_addf(out, "%s\n", paths[i + 1]);
    }
}
