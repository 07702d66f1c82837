/*
 * Writing into a status: texts, conditions, the list of failures, the nodes to avoid.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "job/plan.h"

void text_set(char *ret_text, size_t size, const char *text)
{
    size_t len = strlen(text);

    if (len >= size) {
        len = size - 1;
        while (len > 0 && ((unsigned char)text[len] & 0xc0) == 0x80)
            len--;
    }
    if (strlen(ret_text) == len && memcmp(ret_text, text, len) == 0)
        return;
    memmove(ret_text, text, len);
    memset(ret_text + len, 0, size - len);
}

bool condition_is(const struct job_status *status, enum condition_type type)
{
    return status->conditions[type].present && status->conditions[type].is_true;
}

static void FORMAT(7, 0) set(const struct training_job *job, struct job_status *status, enum condition_type type,
                             bool is_true, int64_t now_ms, const char *reason, const char *fmt, va_list args)
{
    struct condition *c = &status->conditions[type];
    char message[1024];

    if (!c->present || c->is_true != is_true)
        c->transition_ms = now_ms;
    c->present = true;
    c->is_true = is_true;
    c->observed_generation = job->generation;
    text_set(c->reason, sizeof c->reason, reason);
    (void)vsnprintf(message, sizeof message, fmt, args);
    text_set(c->message, sizeof c->message, message);
}

void condition_set(const struct training_job *job, struct job_status *status, enum condition_type type, bool is_true,
                   int64_t now_ms, const char *reason, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    set(job, status, type, is_true, now_ms, reason, fmt, args);
    va_end(args);
}

void condition_clear(const struct training_job *job, struct job_status *status, enum condition_type type,
                     int64_t now_ms, const char *reason, const char *fmt, ...)
{
    va_list args;

    if (!condition_is(status, type))
        return;
    va_start(args, fmt);
    set(job, status, type, false, now_ms, reason, fmt, args);
    va_end(args);
}

void failure_set_rank(const struct training_job *job, struct failure *f)
{
    int32_t rank = job_rank(job, f->role, f->index);

    f->rank.set = rank >= 0;
    f->rank.value = rank >= 0 ? rank : 0;
}

void failure_add(struct job_status *status, const struct failure *f)
{
    if (status->failure_count == JOB_FAILURES_KEPT) {
        memmove(&status->failures[0], &status->failures[1], (JOB_FAILURES_KEPT - 1) * sizeof status->failures[0]);
        status->failure_count--;
    }
    struct failure *to = &status->failures[status->failure_count++];
    memset(to, 0, sizeof *to);
    to->attempt = f->attempt;
    to->round = f->round;
    to->role = f->role;
    to->index = f->index;
    to->has_exit = f->has_exit;
    to->exit_code = f->exit_code;
    to->signal = f->signal;
    to->class = f->class;
    to->time_ms = f->time_ms;
    to->lost_steps.set = f->lost_steps.set;
    to->lost_steps.value = f->lost_steps.value;
    to->rank.set = f->rank.set;
    to->rank.value = f->rank.value;
    text_set(to->evidence, sizeof to->evidence, f->evidence);
    text_set(to->pod, sizeof to->pod, f->pod);
    text_set(to->pod_uid, sizeof to->pod_uid, f->pod_uid);
    text_set(to->node, sizeof to->node, f->node);
    text_set(to->container, sizeof to->container, f->container);
    text_set(to->reason, sizeof to->reason, f->reason);
    text_set(to->message, sizeof to->message, f->message);
}

/* ---- nodes to avoid ---------------------------------------------------------------------------------------------- */

static void drop_node(struct job_status *status, size_t at)
{
    size_t last = status->avoid_count - 1;

    memmove(&status->avoid_nodes[at], &status->avoid_nodes[at + 1], (last - at) * sizeof status->avoid_nodes[0]);
    memset(&status->avoid_nodes[last], 0, sizeof status->avoid_nodes[0]);
    status->avoid_count = last;
}

void avoid_node(const struct training_job *job, struct job_status *status, const char *node, const char *reason,
                int32_t node_count, int64_t now_ms)
{
    const struct failure_policy *policy = &job->spec.failure;
    size_t most = JOB_AVOID_NODES_MAX, oldest = 0;

    if (!policy->avoid_nodes || node[0] == '\0')
        return;
    if (node_count > 0 && (size_t)((int64_t)node_count * policy->avoid_nodes_max_percent / 100) < most)
        most = (size_t)((int64_t)node_count * policy->avoid_nodes_max_percent / 100);
    for (size_t i = status->avoid_count; i-- > 0;) {
        if (status->avoid_nodes[i].until_ms <= now_ms || strcmp(status->avoid_nodes[i].name, node) == 0)
            drop_node(status, i);
    }
    if (most == 0)
        return;
    while (status->avoid_count >= most)
        drop_node(status, oldest);
    size_t at = status->avoid_count++;
    text_set(status->avoid_nodes[at].name, sizeof status->avoid_nodes[at].name, node);
    text_set(status->avoid_nodes[at].reason, sizeof status->avoid_nodes[at].reason, reason);
    status->avoid_nodes[at].until_ms = now_ms + policy->avoid_nodes_ttl_s * 1000;
}
