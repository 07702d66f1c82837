#include "cli/observe.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

static bool runs(const struct member_report *m)
{
    return m->state == PROCESS_RUNNING || m->state == PROCESS_DONE;
}

static void observe_progress(const struct training_job *job, const struct coordinator_report *r, int64_t now_wall_ms,
                             struct job_status *latest)
{
    auto_free struct job_status *none = xcalloc(1, sizeof *none);
    struct view v;
    view_build(job, none, r, NULL, 0, now_wall_ms, &v);
    if (v.step >= 0) {
        latest->progress.set = true;
        latest->progress.step = v.step;
        latest->progress.total_steps = v.total_steps > 0 ? v.total_steps : 0;
        latest->progress.eta_s = v.eta_s >= 0 ? v.eta_s : 0;
        latest->progress.update_ms = now_wall_ms;
        latest->progress.percent = v.total_steps > 0 ? 100.0 * (double)v.step / (double)v.total_steps : 0;
        latest->progress.steps_per_second = v.steps_per_second;
        latest->progress.has_loss = v.has_loss;
        latest->progress.loss = v.loss;
    }
    view_release(&v);
}

static void observe_ring(const struct training_job *job, const struct coordinator_report *r, struct job_status *latest)
{
    struct buf members = BUF_INIT(sizeof latest->ring.members - 8);
    int64_t most = -1;
    bool cut = false;
    latest->ring.set = r->formed;
    latest->ring.size = job_world_size(job);
    latest->ring.self_test_ok = r->self_test_ok;
    latest->ring.formed_ms = r->formed_ms;
    latest->ring.straggler_rank = -1;
    for (size_t i = 0; i < r->member_count; i++) {
        const struct member_report *m = &r->members[i];
        if (m->rank < 0)
            continue;
        if (m->bytes_reduced > most) {
            most = latest->ring.bytes_reduced = m->bytes_reduced;
            latest->ring.operations = m->operations;
        }
        if (m->busbw_gbps > latest->ring.busbw_gbps)
            latest->ring.busbw_gbps = m->busbw_gbps;
        if (!cut && members.len + strlen(m->member) + 8 < members.max) {
            buf_addf(&members, "%s%s", members.len ? "," : "", m->member);
        } else if (!cut) {
            buf_add(&members, ",...");
            cut = true;
        }
    }
    snprintf(latest->ring.members, sizeof latest->ring.members, "%s", buf_text(&members));
    buf_release(&members);
}

void observe_coordinator(const struct training_job *job, const struct coordinator_report *report, int64_t now_wall_ms,
                         struct coordinator_view *ret_view)
{
    memset(ret_view, 0, sizeof *ret_view);
    if (!report)
        return;
    ret_view->known = true;
    ret_view->attempt = report->attempt;
    ret_view->round = report->round;
    ret_view->rounds = report->rounds;
    ret_view->round_count = report->round_count;
    ret_view->group_formed = report->formed;
    for (size_t i = 0; i < report->member_count; i++)
        ret_view->members_ready += runs(&report->members[i]);
    observe_progress(job, report, now_wall_ms, &ret_view->latest);
    observe_ring(job, report, &ret_view->latest);
    if (report->checkpoint_step >= 0) {
        ret_view->latest.checkpoint.set = true;
        ret_view->latest.checkpoint.step = report->checkpoint_step;
        ret_view->latest.checkpoint.time_ms = report->checkpoint_ms;
        ret_view->latest.checkpoint.attempt = report->attempt;
        ret_view->latest.checkpoint.verified = true;
        snprintf(ret_view->latest.checkpoint.uri, sizeof ret_view->latest.checkpoint.uri, "%s", report->checkpoint_uri);
    }
}

void observe_give_up(const struct coordinator_report *report, struct pod_view *pods, size_t count)
{
    static const char *const TOLD[] = { "OOMKilled" }; /* what the kernel did: a kubelet would say so, too */
    if (!report || !report->gave_up)
        return;
    for (size_t k = 0; k < COUNT(TOLD); k++)
        for (size_t i = 0; i < count; i++)
            if (strcmp(report->give_up_reason, TOLD[k]) == 0 && pods[i].phase == POD_FAILED && pods[i].exit_code == 137)
                snprintf(pods[i].reason, sizeof pods[i].reason, "%s", TOLD[k]);
}

struct view_pod *observe_view_pods(const struct pod_view *pods, size_t count)
{
    struct view_pod *list = xcalloc(count + 1, sizeof *list);
    for (size_t i = 0; i < count; i++)
        list[i] = (struct view_pod){ .role = pods[i].role, .index = pods[i].index, .phase = pods[i].phase, .deleting = pods[i].deleting };
    return list;
}

bool observe_weighty(const struct job_status *stored, const struct job_status *now)
{
    if (stored->phase != now->phase || stored->attempt != now->attempt || stored->round != now->round ||
        stored->restarts != now->restarts || stored->disruptions != now->disruptions || stored->failure_count != now->failure_count ||
        stored->next_restart_ms != now->next_restart_ms || stored->completion_ms != now->completion_ms ||
        stored->checkpoint.step != now->checkpoint.step || stored->ring.formed_ms != now->ring.formed_ms)
        return true;
    for (int i = 0; i < CONDITION_COUNT; i++)
        if (stored->conditions[i].present != now->conditions[i].present || stored->conditions[i].is_true != now->conditions[i].is_true)
            return true;
    for (int i = 0; i < ROLE_COUNT; i++)
        if (memcmp(&stored->roles[i], &now->roles[i], sizeof now->roles[i]) != 0)
            return true;
    return false;
}
