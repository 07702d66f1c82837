#include "job/coordinate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"

#define STRAGGLER_LEAST_MS 1.0 /* less is how clocks and schedulers differ */

void coordinate_progress(const struct coordinator_report *report, struct job_progress *p)
{
    int32_t loss_rank = -1;
    double slowest_ms = 0;

    *p = (struct job_progress){ .step = -1, .total_steps = -1, .eta_s = -1 };
    for (size_t i = 0; i < report->member_count; i++) {
        const struct member_report *m = &report->members[i];
        if (m->rank < 0 || m->step < 0)
            continue;
        if (p->step < 0 || m->step < p->step)
            p->step = m->step;
        if (m->total_steps > p->total_steps)
            p->total_steps = m->total_steps;
        if (m->step_ms > slowest_ms)
            slowest_ms = m->step_ms;
        if (m->has_loss && (loss_rank < 0 || m->rank < loss_rank)) {
            loss_rank = m->rank;
            p->has_loss = true;
            p->loss = m->loss;
        }
    }
    if (slowest_ms <= 0)
        return;
    p->steps_per_second = 1000.0 / slowest_ms;
    if (p->step >= 0 && p->total_steps >= p->step)
        p->eta_s = (int64_t)((double)(p->total_steps - p->step) * slowest_ms / 1000.0 + 0.5);
}

static void take_progress(const struct coordinator_report *r, int64_t now_wall_ms, struct job_status *latest)
{
    struct job_progress p;

    coordinate_progress(r, &p);
    if (p.step < 0)
        return;
    latest->progress.set = true;
    latest->progress.step = p.step;
    latest->progress.total_steps = p.total_steps > 0 ? p.total_steps : 0;
    latest->progress.eta_s = p.eta_s >= 0 ? p.eta_s : 0;
    latest->progress.update_ms = now_wall_ms;
    latest->progress.percent = p.total_steps > 0 ? 100.0 * (double)p.step / (double)p.total_steps : 0;
    latest->progress.steps_per_second = p.steps_per_second;
    latest->progress.has_loss = p.has_loss;
    latest->progress.loss = p.loss;
}

/* ---- stragglers ---- */

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Ranks that reduce together all take as long for a step as the slowest of them. What a rank did not wait for others is its own. */
static double own_step_ms(const struct member_report *m, int64_t resume_step)
{
    int64_t steps = m->step - (resume_step > 0 ? resume_step : 0);
    double waited_ms = steps > 0 ? m->wait_ms / (double)steps : 0;

    return m->step_ms > waited_ms ? m->step_ms - waited_ms : 0;
}

void coordinate_stragglers(const struct coordinator_report *r, int32_t threshold_percent, struct job_stragglers *ret)
{
    double *times = xcalloc(r->member_count + 1, sizeof *times);
    size_t count = 0;

    *ret = (struct job_stragglers){ .rank = -1 };
    for (size_t i = 0; i < r->member_count; i++) {
        const struct member_report *m = &r->members[i];
        if (m->rank < 0 || m->step_ms <= 0)
            continue;
        double own_ms = own_step_ms(m, r->resume_step);
        if (count == 0 || own_ms > ret->slowest_ms) {
            ret->slowest_ms = own_ms;
            ret->rank = m->rank;
        }
        times[count++] = own_ms;
    }
    qsort(times, count, sizeof *times, ascending);
    /* The lower one of two in the middle: of two ranks the other one is the measure. */
    ret->median_ms = count > 0 ? times[(count - 1) / 2] : 0;
    bool stands_out = count > 1 && threshold_percent > 0 && ret->slowest_ms > ret->median_ms * (1 + threshold_percent / 100.0);
    if (!stands_out || ret->slowest_ms - ret->median_ms < STRAGGLER_LEAST_MS)
        ret->rank = -1;
    free(times);
}

static void take_ring(const struct training_job *job, const struct coordinator_report *r, struct job_status *latest)
{
    auto_buf struct buf members = BUF_INIT(sizeof latest->ring.members - 8);
    struct job_stragglers slow;
    int64_t most = -1;
    bool cut = false;

    latest->ring.set = r->formed;
    latest->ring.self_test_ok = r->self_test_ok;
    latest->ring.formed_ms = r->formed_ms;
    coordinate_stragglers(r, job->spec.health.straggler_percent, &slow);
    latest->ring.straggler_rank = slow.rank;
    latest->ring.step_ms = slow.median_ms;
    latest->ring.slowest_step_ms = slow.slowest_ms;
    for (size_t i = 0; i < r->member_count; i++) {
        const struct member_report *m = &r->members[i];
        if (m->rank < 0)
            continue;
        latest->ring.size++;
        if (m->bytes_reduced > most) {
            most = latest->ring.bytes_reduced = m->bytes_reduced;
            latest->ring.operations = m->operations;
        }
        if (m->busbw_gbps > latest->ring.busbw_gbps)
            latest->ring.busbw_gbps = m->busbw_gbps;
        if (!cut && members.len + strlen(m->member) + 8 < members.max) {
            buf_addf(&members, "%s%s", members.len > 0 ? "," : "", m->member);
        } else if (!cut) {
            buf_add(&members, ",...");
            cut = true;
        }
    }
    (void)snprintf(latest->ring.members, sizeof latest->ring.members, "%s", buf_text(&members));
}

/* How many workers the ring has, and whether all of its programs can go on with another number. */
static void take_size(const struct coordinator_report *report, struct coordinator_view *v)
{
    v->workers_wanted = report->workers;
    v->listens = true;
    for (size_t i = 0; i < report->member_count; i++) {
        const struct member_report *m = &report->members[i];
        if (m->rank < 0)
            continue;
        v->workers += strncmp(m->member, "worker-", 7) == 0;
        v->listens &= m->listens;
    }
}

void coordinate_view(const struct training_job *job, const struct coordinator_report *report, int64_t now_wall_ms,
                     struct coordinator_view *v)
{
    memset(v, 0, sizeof *v);
    if (report == NULL)
        return;
    v->known = true;
    v->attempt = report->attempt;
    v->round = report->round;
    v->rounds = report->rounds;
    v->round_count = report->round_count;
    v->group_formed = report->formed;
    v->over = report->over;
    v->skipped = report->skipped;
    v->skipped_step = report->skipped_step;
    v->resume_step = report->resume_step;
    v->suspected = report->suspected;
    v->handed = report->has_handed ? &report->handed : NULL;
    (void)snprintf(v->stalled, sizeof v->stalled, "%s", report->stalled);
    for (size_t i = 0; i < report->member_count; i++) {
        const struct member_report *m = &report->members[i];
        v->members_ready += m->state == PROCESS_RUNNING || m->state == PROCESS_DONE;
        v->clients += m->rank >= 0 && m->state == PROCESS_RUNNING && m->attached;
        v->over |= m->rank == 0 && m->state == PROCESS_DONE && !job_restarts_as_group(job);
    }
    take_size(report, v);
    take_progress(report, now_wall_ms, &v->latest);
    take_ring(job, report, &v->latest);
    if (report->checkpoint_step < 0)
        return;
    v->latest.checkpoint.set = true;
    v->latest.checkpoint.step = report->checkpoint_step;
    v->latest.checkpoint.time_ms = report->checkpoint_ms;
    v->latest.checkpoint.attempt = report->attempt;
    v->latest.checkpoint.verified = true;
    (void)snprintf(v->latest.checkpoint.uri, sizeof v->latest.checkpoint.uri, "%s", report->checkpoint_uri);
}

void coordinate_give_up(const struct coordinator_report *report, struct pod_view *pods, size_t count)
{
    static const char *const TOLD[] = { "OOMKilled" }; /* what the kernel did: a kubelet would say so, too */

    if (report == NULL || !report->gave_up)
        return;
    for (size_t k = 0; k < COUNT(TOLD); k++) {
        for (size_t i = 0; i < count; i++) {
            if (strcmp(report->give_up_reason, TOLD[k]) == 0 && pods[i].phase == POD_FAILED && pods[i].exit_code == 137)
                (void)snprintf(pods[i].reason, sizeof pods[i].reason, "%s", TOLD[k]);
        }
    }
}
