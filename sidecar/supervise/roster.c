/* Who belongs to the job, and the whole state as a report. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "sidecar/supervise/step.h"

#define FORM_TIMEOUT_MS 60000

bool member_parse(const char *name, enum job_role *ret_role, int32_t *ret_index)
{
    const char *dash = strrchr(name, '-');
    int64_t index = 0;

    if (dash == NULL || !text_int(dash + 1, &index) || index < 0 || index >= JOB_MAX_REPLICAS)
        return false;
    auto_free char *role = xstrndup(name, (size_t)(dash - name));
    if (!role_parse(role, ret_role))
        return false;
    *ret_index = (int32_t)index;
    return true;
}

static bool has_rank(enum job_role role)
{
    return role == ROLE_CHIEF || role == ROLE_MASTER || role == ROLE_WORKER;
}

int coordinator_init(struct coordinator *c, const struct training_job *policy, const char *job, const char *job_uid,
                     int32_t attempt, const char *const *members, size_t count, const struct restart_counters *counters,
                     struct error *e)
{
    *c = (struct coordinator){ .policy = policy, .attempt = attempt, .group = job_restarts_as_group(policy), .culprit = -1,
                               .form_timeout_ms = FORM_TIMEOUT_MS, .committed_step = -1, .skipped_step = -1, .failed_at_step = -1,
                               .history = { .counters = *counters }, .restore = { .step = -1 } };
    (void)snprintf(c->job, sizeof c->job, "%s", job);
    (void)snprintf(c->job_uid, sizeof c->job_uid, "%s", job_uid);
    if (count == 0 || count > REPORT_MAX_MEMBERS)
        return error_set(e, ERROR_INVALID, "RINGMASTER_MEMBERS: found %zu members, expected 1 to %d", count, REPORT_MAX_MEMBERS);
    c->members = xcalloc(count, sizeof *c->members);
    for (size_t i = 0; i < count; i++) {
        struct coordinator_member *m = &c->members[i];
        if (strlen(members[i]) >= sizeof m->name || !member_parse(members[i], &m->role, &m->index)) {
            (void)error_set(e, ERROR_INVALID, "RINGMASTER_MEMBERS: \"%.80s\" is no member name such as worker-3", members[i]);
            coordinator_release(c);
            return -1;
        }
        if (has_rank(m->role) && c->world != (int32_t)i) {
            (void)error_set(e, ERROR_INVALID, "RINGMASTER_MEMBERS: %s has a rank and stands behind members without one", members[i]);
            coordinator_release(c);
            return -1;
        }
        (void)snprintf(m->name, sizeof m->name, "%s", members[i]);
        m->rank = has_rank(m->role) ? c->world++ : -1;
        m->trainer.state = PROCESS_LOST;
        m->progress = (struct progress_view){ .saved = true, .step = -1, .total_steps = -1 };
        c->count++;
    }
    if (c->world == 0) {
        coordinator_release(c);
        return error_set(e, ERROR_INVALID, "RINGMASTER_MEMBERS: no chief, master or worker among them");
    }
    for (int32_t i = 0; i < c->count; i++)
        c->workers += c->members[i].role == ROLE_WORKER;
    c->roster = 1;
    vigil_init(c);
    return 0;
}

void coordinator_release(struct coordinator *c)
{
    for (int32_t i = 0; i < c->count; i++)
        cJSON_Delete(c->members[i].holdings);
    free(c->members);
    c->members = NULL;
    c->count = 0;
}

int32_t coordinator_find(const struct coordinator *c, const char *member)
{
    for (int32_t i = 0; i < c->count; i++) {
        if (strcmp(c->members[i].name, member) == 0)
            return i;
    }
    return -1;
}

int64_t coordinator_deadline(const struct coordinator *c)
{
    int64_t at = c->deadline_ms > 0 ? c->deadline_ms : INT64_MAX;

    if (c->phase == COORDINATOR_GATHER && c->gather_from_ms > 0 && c->gather_from_ms < at)
        at = c->gather_from_ms;
    if (c->phase == COORDINATOR_RUN && c->grow_at_ms > 0 && c->grow_at_ms < at)
        at = c->grow_at_ms;
    for (int32_t i = 0; i < c->count; i++) {
        if (c->members[i].restart_at_ms > 0 && c->members[i].restart_at_ms < at)
            at = c->members[i].restart_at_ms;
    }
    int64_t look = vigil_deadline(c);
    return look < at ? look : at;
}

static void report_member(const struct coordinator_member *m, struct member_report *r)
{
    const struct trainer_view *t = &m->trainer;
    const struct progress_view *p = &m->progress;

    *r = (struct member_report){
        .rank = m->rank, .state = m->joined || m->released ? t->state : PROCESS_LOST, .pid = t->pid, .restarts = t->restarts,
        .attached = p->attached, .listens = p->listens, .step = p->step, .total_steps = p->total_steps, .has_loss = p->has_loss, .loss = p->loss,
        .step_ms = p->step_ms, .bytes_reduced = p->bytes_reduced, .operations = p->operations, .busbw_gbps = p->busbw_gbps,
        .wait_ms = p->wait_ms, .started_ms = t->started_ms, .first_step_ms = p->first_step_ms,
    };
    (void)snprintf(r->member, sizeof r->member, "%s", m->name);
    (void)snprintf(r->metrics, sizeof r->metrics, "%s", p->metrics);
}

void coordinator_report(const struct coordinator *c, const struct coordinator_now *now, struct coordinator_report *ret)
{
    const struct history *h = &c->history;
    struct coordinator_report r = {
        .attempt = c->attempt, .round = h->round,
        .formed = c->phase == COORDINATOR_RUN || c->phase == COORDINATOR_SETTLE || c->phase == COORDINATOR_SAVE ||
                  c->phase == COORDINATOR_OVER,
        .self_test_ok = c->self_test_ok, .formed_ms = c->formed_wall_ms, .form_seconds = c->form_seconds,
        .counters = h->counters, .round_count = h->round_count,
        .checkpoint_step = c->committed_step, .checkpoint_ms = c->committed_wall_ms,
        .resume_step = c->restore.found ? c->restore.step : -1, .over = c->phase == COORDINATOR_OVER, .gave_up = h->gave_up, .sent_ms = now->wall_ms,
    };

    r.workers = resize_is_possible(c) ? c->workers : 0;
    (void)snprintf(r.job_uid, sizeof r.job_uid, "%s", c->job_uid);
    (void)snprintf(r.coordinator, sizeof r.coordinator, "%s", c->members[0].name);
    (void)snprintf(r.checkpoint_uri, sizeof r.checkpoint_uri, "%s", c->committed_uri);
    (void)snprintf(r.give_up_reason, sizeof r.give_up_reason, "%s", h->give_up_reason);
    (void)snprintf(r.give_up_message, sizeof r.give_up_message, "%s", h->give_up_message);
    if (c->phase == COORDINATOR_RUN)
        (void)snprintf(r.stalled, sizeof r.stalled, "%s", c->stalled);
    r.skipped = c->skipped_step >= 0;
    r.skipped_step = c->skipped_step;
    if (c->phase == COORDINATOR_RUN)
        (void)snprintf(r.suspected, sizeof r.suspected, "%s", c->suspected);
    r.has_handed = c->has_handed;
    r.handed = c->handed;
    r.rounds = xcalloc(h->round_count + 1, sizeof *r.rounds);
    memcpy(r.rounds, h->rounds, h->round_count * sizeof *r.rounds);
    r.members = xcalloc((size_t)c->count, sizeof *r.members);
    for (int32_t i = 0; i < c->count; i++) {
        if (!c->members[i].outside || c->members[i].joined || !resize_drops(c, i)) /* else it is gone */
            report_member(&c->members[i], &r.members[r.member_count++]);
    }
    *ret = r;
}
