/* Checkpoints that are asked for: by the annotation, and before pods are taken away. */
#include "tests/unit/job/world.h"

#define GRACE_MS 30000

static void annotate(struct world *w, const char *value)
{
    cJSON_DeleteItemFromObjectCaseSensitive(w->job->annotations, JOB_CHECKPOINT_NOW);
    json_put_text(w->job->annotations, JOB_CHECKPOINT_NOW, value);
}

static void train_to(struct world *w, int64_t step)
{
    w->coordinator.latest.progress.set = true;
    w->coordinator.latest.progress.step = step;
    w->coordinator.latest.progress.update_ms = w->now_ms;
}

static void commit(struct world *w, int64_t step)
{
    w->coordinator.latest.checkpoint.set = true;
    w->coordinator.latest.checkpoint.step = step;
    w->coordinator.latest.checkpoint.time_ms = w->now_ms;
}

/* Two ranks that train and can be asked. */
static struct world *training(void)
{
    struct world *w = world_running(fixture_job(0, 0, 2, 0, 0));

    w->job->spec.checkpoint.on_termination = true;
    w->coordinator.clients = 2;
    train_to(w, 100);
    (void)world_settle(w);
    return w;
}

static bool wanted(const struct world *w)
{
    return checkpoint_is_wanted(w->job, w->status);
}

Test(reconcile_checkpoint, a_new_value_of_the_annotation_is_answered_once)
{
    struct world *w = training();

    cr_expect(!wanted(w) && !w->status->checkpoint_request.set);
    annotate(w, "one");
    (void)world_settle(w);
    cr_expect(wanted(w) && w->status->checkpoint_request.from_step == 100 && w->status->checkpoint_request.reason == WISH_ANNOTATION);
    cr_expect_str_eq(w->status->checkpoint_request.value, "one");
    commit(w, 99);
    (void)world_settle(w);
    cr_expect(wanted(w), "one that was on its way already is older than what was asked for");
    commit(w, 105);
    (void)world_settle(w);
    cr_expect(!wanted(w) && w->status->checkpoint_request.state == ANSWER_COMMITTED && w->status->checkpoint_request.step == 105);
    cr_expect_str_eq(w->last_event, "CheckpointCommitted");
    cr_expect(!world_step(w), "the same value asks for nothing more");
    train_to(w, 110);
    annotate(w, "two");
    (void)world_settle(w);
    cr_expect(wanted(w));
    cr_expect(w->deleted == 0 && w->status->attempt == 1);
    world_free(w);
}

Test(reconcile_checkpoint, the_newest_step_that_is_saved_already_is_an_answer)
{
    struct world *w = training();

    commit(w, 100);
    annotate(w, "x");
    (void)world_settle(w);
    cr_expect(!wanted(w) && w->status->checkpoint_request.state == ANSWER_COMMITTED && w->status->checkpoint_request.step == 100);
    world_free(w);
}

Test(reconcile_checkpoint, a_wish_waits_until_there_is_somebody_to_ask)
{
    static const struct { const char *name; bool enabled, known, formed; int32_t clients, attempt; bool asked; } ROWS[] = {
        { "all is there", true, true, true, 2, 1, true },
        { "no client library", true, true, true, 0, 1, false },
        { "no coordinator", true, false, true, 2, 1, false },
        { "the ring is being formed", true, true, false, 2, 1, false },
        { "of an attempt that is over", true, true, true, 2, 0, false },
        { "checkpoints are off", false, true, true, 2, 1, false },
    };

    for (size_t i = 0; i < COUNT(ROWS); i++) {
        struct world *w = training();
        w->job->spec.checkpoint.enabled = ROWS[i].enabled;
        w->coordinator.known = ROWS[i].known;
        w->coordinator.group_formed = ROWS[i].formed;
        w->coordinator.clients = ROWS[i].clients;
        w->coordinator.attempt = ROWS[i].attempt;
        annotate(w, "x");
        (void)world_settle(w);
        cr_expect_eq(wanted(w), ROWS[i].asked, "case %s", ROWS[i].name);
        cr_expect_eq(w->status->checkpoint_request.value[0] != '\0', ROWS[i].asked, "case %s: it is not taken for answered", ROWS[i].name);
        world_free(w);
    }
}

Test(reconcile_checkpoint, pods_stay_until_the_checkpoint_before_a_suspend_is_committed)
{
    struct world *w = training();

    w->job->spec.suspend = true;
    (void)world_settle(w);
    cr_expect(wanted(w) && w->pod_count == 2 && w->deleted == 0 && w->status->phase == PHASE_RUNNING);
    cr_expect(w->status->checkpoint_request.reason == WISH_SUSPEND);
    train_to(w, 120);
    commit(w, 110);
    (void)world_settle(w);
    cr_expect(w->status->phase == PHASE_SUSPENDED && w->pod_count == 0 && w->status->checkpoint_request.state == ANSWER_COMMITTED);
    cr_expect(!wanted(w));

    /* The next one is another wish. */
    w->job->spec.suspend = false;
    (void)world_settle(w);
    world_run(w);
    w->coordinator.attempt = w->status->attempt;
    train_to(w, 200);
    (void)world_settle(w);
    w->job->spec.suspend = true;
    (void)world_settle(w);
    cr_expect(wanted(w) && w->pod_count == 2 && w->status->checkpoint_request.from_step == 200);
    world_free(w);
}

Test(reconcile_checkpoint, a_suspend_waits_no_longer_than_the_grace_period)
{
    struct world *w = training();

    w->job->spec.suspend = true;
    (void)world_settle(w);
    w->now_ms += GRACE_MS - 1;
    (void)world_settle(w);
    cr_expect(w->pod_count == 2);
    w->now_ms += 1;
    (void)world_settle(w);
    cr_expect(w->pod_count == 0 && w->status->phase == PHASE_SUSPENDED && w->status->checkpoint_request.state == ANSWER_MISSED);
    world_free(w);
}

Test(reconcile_checkpoint, a_suspend_waits_for_nobody_who_cannot_save)
{
    static const struct { const char *name; bool on_termination; int32_t clients; } ROWS[] = {
        { "checkpoint.onTermination is false", false, 2 }, { "no client library", true, 0 },
    };

    for (size_t i = 0; i < COUNT(ROWS); i++) {
        struct world *w = training();
        w->job->spec.checkpoint.on_termination = ROWS[i].on_termination;
        w->coordinator.clients = ROWS[i].clients;
        w->job->spec.suspend = true;
        (void)world_settle(w);
        cr_expect(w->status->phase == PHASE_SUSPENDED && w->pod_count == 0, "case %s", ROWS[i].name);
        world_free(w);
    }
    struct world *w = training();
    w->job->spec.suspend = true;
    (void)world_settle(w);
    w->coordinator.group_formed = false; /* a rank has died meanwhile */
    (void)world_settle(w);
    cr_expect(w->status->phase == PHASE_SUSPENDED && w->status->checkpoint_request.state == ANSWER_MISSED);
    world_free(w);
}

Test(reconcile_checkpoint, a_suspend_that_is_taken_back_leaves_the_job_at_work)
{
    struct world *w = training();

    w->job->spec.suspend = true;
    (void)world_settle(w);
    w->job->spec.suspend = false;
    (void)world_settle(w);
    commit(w, 130);
    (void)world_settle(w);
    cr_expect(w->status->phase == PHASE_RUNNING && w->pod_count == 2 && w->deleted == 0 && w->status->attempt == 1);
    cr_expect(w->status->checkpoint_request.state == ANSWER_COMMITTED);
    world_free(w);
}

Test(reconcile_checkpoint, a_scale_saves_first_and_is_then_another_attempt)
{
    struct world *w = training();

    w->job->spec.roles[ROLE_WORKER].replicas = 3;
    (void)world_settle(w);
    cr_expect(wanted(w) && w->status->attempt == 1 && w->deleted == 0 && w->status->checkpoint_request.reason == WISH_SCALE);
    commit(w, 140);
    (void)world_settle(w);
    cr_expect(w->status->attempt == 2 && w->pod_count == 3);
    world_free(w);
}

Test(reconcile_checkpoint, a_job_that_ends_leaves_no_wish_open)
{
    struct world *w = training();

    annotate(w, "late");
    (void)world_settle(w);
    world_exit(w, ROLE_WORKER, 0, 0);
    world_exit(w, ROLE_WORKER, 1, 0);
    (void)world_settle(w);
    cr_expect(w->status->phase == PHASE_SUCCEEDED && !wanted(w) && w->status->checkpoint_request.state == ANSWER_MISSED);
    world_free(w);
}
