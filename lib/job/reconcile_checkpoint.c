/*
 * Checkpoints that are asked for: by the annotation ringmaster.dev/checkpoint-now, and before pods are taken away on purpose. The
 * wish and its answer stand in the status; as long as it is pending the shell passes it on to the coordinator (checkpoint_is_wanted),
 * again and again, because who was asked may be gone: a checkpoint too many is no harm.
 */
#include <string.h>

#include "job/reconcile_parts.h"

static bool is_pending(const struct job_status *s)
{
    return s->checkpoint_request.set && s->checkpoint_request.state == ANSWER_PENDING;
}

bool checkpoint_is_wanted(const struct training_job *job, const struct job_status *status)
{
    return is_pending(status) && !phase_is_final(status->phase) && status->phase != PHASE_SUSPENDED && job->spec.checkpoint.enabled;
}

/* Whether there is anybody who can save: processes that train, and have the library that does it. */
static bool can_save(const struct pass *p)
{
    const struct coordinator_view *c = &p->seen->coordinator;

    return p->job->spec.checkpoint.enabled && c->known && c->attempt == p->status->attempt && c->group_formed && c->clients > 0;
}

/* A checkpoint of the newest step is new enough, and so is every later one. */
static int64_t newest_step(const struct coordinator_view *c)
{
    const struct job_status *l = &c->latest;

    return l->progress.set ? l->progress.step : l->checkpoint.set ? l->checkpoint.step + 1 : 0;
}

static const char *wish_text(enum checkpoint_wish reason)
{
    static const char *const TEXTS[] = {
        [WISH_ANNOTATION] = "by the annotation " JOB_CHECKPOINT_NOW,
        [WISH_SUSPEND] = "before the job is suspended",
        [WISH_SCALE] = "before the job is scaled",
    };

    return TEXTS[reason];
}

static void wish(struct pass *p, enum checkpoint_wish reason)
{
    struct job_status *s = p->status;

    s->checkpoint_request.set = true;
    s->checkpoint_request.reason = reason;
    s->checkpoint_request.state = ANSWER_PENDING;
    s->checkpoint_request.time_ms = p->now_ms;
    s->checkpoint_request.from_step = newest_step(&p->seen->coordinator);
    s->checkpoint_request.step = -1;
    plan_event(p->plan, false, "CheckpointRequested", "a checkpoint of step %lld or later is asked for, %s",
               (long long)s->checkpoint_request.from_step, wish_text(reason));
}

static void answer_pending(struct pass *p)
{
    const struct coordinator_view *c = &p->seen->coordinator;
    const struct job_status *latest = &c->latest;
    struct job_status *s = p->status;

    if (!is_pending(s) || !c->known || c->attempt != s->attempt || !latest->checkpoint.set || latest->checkpoint.step < s->checkpoint_request.from_step)
        return;
    s->checkpoint_request.state = ANSWER_COMMITTED;
    s->checkpoint_request.step = latest->checkpoint.step;
    plan_event(p->plan, false, "CheckpointCommitted", "the checkpoint that was asked for is committed: step %lld",
               (long long)latest->checkpoint.step);
}

void answer_checkpoint_wishes(struct pass *p)
{
    struct job_status *s = p->status;
    const cJSON *annotation = cJSON_GetObjectItemCaseSensitive(p->job->annotations, JOB_CHECKPOINT_NOW);
    const char *value = cJSON_IsString(annotation) ? annotation->valuestring : "";
    char cut[sizeof s->checkpoint_request.value] = ""; /* text_set compares with what is there */

    answer_pending(p);
    if (phase_is_final(p->before->phase) && is_pending(s))
        s->checkpoint_request.state = ANSWER_MISSED;
    text_set(cut, sizeof cut, value);
    if (cut[0] == '\0' || strcmp(cut, s->checkpoint_request.value) == 0 || is_pending(s) || phase_is_final(p->before->phase) ||
        !can_save(p))
        return; /* as soon as there is somebody to ask */
    text_set(s->checkpoint_request.value, sizeof s->checkpoint_request.value, cut);
    wish(p, WISH_ANNOTATION);
    answer_pending(p); /* the newest step may be saved already */
}

static int64_t longest_grace_ms(const struct training_job *job)
{
    int64_t longest_s = 0;

    for (enum job_role r = 0; r < ROLE_COUNT; r++) {
        int64_t grace_s = job->spec.roles[r].present ? job_grace_s(job, r) : 0;
        longest_s = grace_s > longest_s ? grace_s : longest_s;
    }
    return longest_s * 1000;
}

bool wait_for_checkpoint(struct pass *p, enum checkpoint_wish reason)
{
    struct job_status *s = p->status;
    bool was_asked = is_pending(p->before) && p->before->checkpoint_request.reason == reason;
    int64_t until_ms;

    if (!p->job->spec.checkpoint.on_termination || (!was_asked && !can_save(p)))
        return false;
    if (!was_asked) {
        wish(p, reason);
        answer_pending(p);
    }
    if (!is_pending(s))
        return false;
    until_ms = s->checkpoint_request.time_ms + longest_grace_ms(p->job);
    if (p->now_ms < until_ms && can_save(p)) {
        plan_requeue(p->plan, until_ms);
        return true;
    }
    s->checkpoint_request.state = ANSWER_MISSED;
    plan_event(p->plan, true, "CheckpointMissed", "no checkpoint was committed %s: %s", wish_text(reason),
               can_save(p) ? "the longest terminationGracePeriodSeconds of the job is over" : "the processes do not run any more");
    return false;
}
