#include <criterion/criterion.h>
#include <signal.h>
#include <string.h>

#include "base/mem.h"
#include "sidecar/supervise/trainer.h"

#define FENCE_1 FENCE(1, 1)
#define FENCE_2 FENCE(1, 2)
#define EXIT(code) ((code) << 8)

static struct trainer_output hello(struct trainer *t, uint64_t fence, bool running, bool has_exited, int32_t status)
{
    struct local_launcher_hello h = { .magic = LOCAL_MAGIC, .version = LOCAL_VERSION, .running = running, .fence = fence,
                                      .child_pid = running ? 77 : 0, .has_exited = has_exited, .wait_status = status };
    struct trainer_event event = { .kind = TRAINER_HELLO, .hello = &h };
    return trainer_step(t, &event, 1000);
}

static struct trainer_output started(struct trainer *t, uint64_t fence)
{
    struct local_started s = { .fence = fence, .child_pid = 42, .wall_ms = 5 };
    struct trainer_event event = { .kind = TRAINER_STARTED, .started = &s };
    return trainer_step(t, &event, 1000);
}

static struct trainer_output exited(struct trainer *t, uint64_t fence, int32_t status, bool stopped, bool oom)
{
    struct local_exited x = { .fence = fence, .wait_status = status, .stopped = stopped, .oom_killed = oom };
    struct trainer_event event = { .kind = TRAINER_EXITED, .exited = &x };
    return trainer_step(t, &event, 2000);
}

static struct trainer_output want(struct trainer *t, enum trainer_event_kind kind, uint64_t fence)
{
    struct trainer_event event = { .kind = kind, .fence = fence, .grace_ms = 2000, .code = -1 };
    return trainer_step(t, &event, 1000);
}

/* A trainer in the state that its name says, in round 1. */
static struct trainer in_state(enum process_state state)
{
    struct trainer t = TRAINER_INIT;

    if (state == PROCESS_LOST)
        return t;
    (void)hello(&t, 0, false, false, 0);
    if (state == PROCESS_WAITING)
        return t;
    (void)want(&t, TRAINER_START, FENCE_1);
    if (state == PROCESS_STARTING)
        return t;
    (void)started(&t, FENCE_1);
    if (state == PROCESS_DONE || state == PROCESS_FAILED)
        (void)exited(&t, FENCE_1, state == PROCESS_DONE ? 0 : EXIT(3), false, false);
    if (state == PROCESS_STOPPING)
        (void)want(&t, TRAINER_STOP, FENCE_1);
    cr_assert_eq(t.view.state, state);
    return t;
}

static struct trainer_output apply(struct trainer *t, enum trainer_event_kind kind)
{
    switch (kind) {
    case TRAINER_HELLO: return hello(t, FENCE_1, true, false, 0);
    case TRAINER_STARTED: return started(t, FENCE_1);
    case TRAINER_EXITED: return exited(t, FENCE_1, EXIT(3), false, false);
    default: return want(t, kind, FENCE_2);
    }
}

/* The whole table: what every event does in every state. Rows are states, columns are events in the order of the enum. */
Test(trainer, every_event_in_every_state)
{
    enum { LST = PROCESS_LOST, WAI = PROCESS_WAITING, STA = PROCESS_STARTING, RUN = PROCESS_RUNNING, STO = PROCESS_STOPPING,
           DON = PROCESS_DONE, FAI = PROCESS_FAILED };
    static const struct { int from, to[8]; enum trainer_word word[8]; } rows[] = {
        /*        HELLO GONE STARTED EXITED SIGNALLED START STOP LEAVE */
        { LST, { RUN, LST, LST, LST, LST, LST, LST, LST }, { [5] = WORD_NONE } },
        { WAI, { RUN, LST, WAI, WAI, WAI, STA, WAI, WAI }, { [5] = WORD_START, [7] = WORD_LEAVE } },
        { STA, { RUN, LST, RUN, FAI, STA, STA, STO, STA }, { [6] = WORD_STOP, [7] = WORD_LEAVE } },
        { RUN, { RUN, LST, RUN, FAI, RUN, RUN, STO, RUN }, { [6] = WORD_STOP, [7] = WORD_LEAVE } },
        { STO, { RUN, LST, STO, FAI, STO, STO, STO, STO }, { [6] = WORD_STOP, [7] = WORD_LEAVE } },
        { DON, { RUN, LST, DON, FAI, DON, STA, DON, DON }, { [5] = WORD_START, [7] = WORD_LEAVE } },
        { FAI, { RUN, LST, FAI, FAI, FAI, STA, FAI, FAI }, { [5] = WORD_START, [7] = WORD_LEAVE } },
    };

    for (size_t r = 0; r < COUNT(rows); r++) {
        for (int kind = TRAINER_HELLO; kind <= TRAINER_LEAVE; kind++) {
            struct trainer t = in_state((enum process_state)rows[r].from);
            struct trainer_output out = apply(&t, (enum trainer_event_kind)kind);
            cr_expect_eq((int)t.view.state, rows[r].to[kind], "from %s, event %d: got %s, expected %s", process_state_name((enum process_state)rows[r].from), kind,
                         process_state_name(t.view.state), process_state_name((enum process_state)rows[r].to[kind]));
            cr_expect_eq(out.word, rows[r].word[kind], "from %s, event %d: word %d", process_state_name((enum process_state)rows[r].from), kind, out.word);
        }
    }
}

Test(trainer, a_process_that_waits_for_the_round_is_let_in_and_keeps_its_launchers_fence)
{
    struct trainer t = in_state(PROCESS_RUNNING);
    struct trainer_output out = want(&t, TRAINER_PARKED, 0);

    cr_expect(out.changed && t.view.parked && trainer_is_active(&t.view) && !trainer_is_busy(&t.view));
    out = want(&t, TRAINER_START, FENCE_2);
    cr_expect(out.word == WORD_ADMIT && out.changed && !t.view.parked && t.view.state == PROCESS_RUNNING && t.view.fence == FENCE_2);
    cr_expect(trainer_is_busy(&t.view));
    out = want(&t, TRAINER_STOP, 0);
    cr_expect(out.word == WORD_STOP && out.fence == FENCE_1, "the launcher knows it by the round that it was started in");
    out = exited(&t, FENCE_1, EXIT(0), false, false);
    cr_expect(out.ended && t.view.state == PROCESS_DONE && t.view.fence == FENCE_2);
}

Test(trainer, a_process_that_waits_no_longer_is_busy_again)
{
    struct trainer t = in_state(PROCESS_RUNNING);

    (void)want(&t, TRAINER_PARKED, 0);
    (void)want(&t, TRAINER_UNPARKED, 0);
    cr_expect(trainer_is_busy(&t.view));
    cr_expect(want(&t, TRAINER_START, FENCE_2).word == WORD_NONE, "it runs: nothing is started over it");
}

Test(trainer, an_exit_is_told_exactly)
{
    static const struct { const char *name; int32_t status; bool stopped, oom; enum process_state state; int32_t code, signal; } rows[] = {
        { "code 0", EXIT(0), false, false, PROCESS_DONE, 0, 0 },
        { "code 1", EXIT(1), false, false, PROCESS_FAILED, 1, 0 },
        { "code 255", EXIT(255), false, false, PROCESS_FAILED, 255, 0 },
        { "killed", SIGKILL, false, false, PROCESS_FAILED, 137, SIGKILL },
        { "out of memory", SIGKILL, false, true, PROCESS_FAILED, 137, SIGKILL },
        { "out of memory below a shell", EXIT(137), false, true, PROCESS_FAILED, 137, 0 },
        { "core dumped", SIGSEGV | 0x80, false, false, PROCESS_FAILED, 139, SIGSEGV },
        { "stopped", SIGTERM, true, false, PROCESS_WAITING, 143, SIGTERM },
        { "stopped as it ended well", EXIT(0), true, false, PROCESS_WAITING, 0, 0 },
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct trainer t = in_state(PROCESS_RUNNING);
        struct trainer_output out = exited(&t, FENCE_1, rows[i].status, rows[i].stopped, rows[i].oom);
        cr_expect(out.changed && out.ended, "case %s", rows[i].name);
        cr_expect_eq(t.view.state, rows[i].state, "case %s", rows[i].name);
        cr_expect_eq(t.view.code, rows[i].code, "case %s: %d", rows[i].name, t.view.code);
        cr_expect_eq(t.view.signal, rows[i].signal, "case %s: %d", rows[i].name, t.view.signal);
        cr_expect_eq(t.view.oom, rows[i].oom, "case %s", rows[i].name);
        struct trainer_view v = trainer_view_at(&t, 2300);
        cr_expect_eq(v.age_ms, 300, "case %s: %lld", rows[i].name, (long long)v.age_ms);
        out = exited(&t, FENCE_1, rows[i].status, rows[i].stopped, rows[i].oom);
        cr_expect(!out.changed && !out.ended, "case %s: told twice, heard once", rows[i].name);
    }
}

Test(trainer, another_process_that_was_out_of_memory_is_told_as_a_hint)
{
    struct trainer t = in_state(PROCESS_RUNNING);

    (void)exited(&t, FENCE_1, EXIT(1), false, true);
    cr_expect_not(t.view.oom);
    cr_expect(strstr(t.view.reason, "out-of-memory killer") != NULL, "%s", t.view.reason);
}

Test(trainer, who_ends_after_its_ring_was_lost_is_marked)
{
    struct trainer t = in_state(PROCESS_RUNNING);

    trainer_ring_lost(&t, FENCE_1);
    (void)exited(&t, FENCE_1, EXIT(1), false, false);
    cr_expect(trainer_view_at(&t, 3000).after_loss);

    t = in_state(PROCESS_FAILED);
    trainer_ring_lost(&t, FENCE_1); /* too late to be the reason */
    cr_expect_not(trainer_view_at(&t, 3000).after_loss);

    (void)want(&t, TRAINER_START, FENCE_2);
    (void)started(&t, FENCE_2);
    (void)exited(&t, FENCE_2, EXIT(1), false, false);
    cr_expect_not(trainer_view_at(&t, 3000).after_loss, "the loss was of the round before");
}

Test(trainer, messages_of_an_older_process_change_nothing)
{
    struct trainer t = in_state(PROCESS_DONE);

    (void)want(&t, TRAINER_START, FENCE_2);
    (void)started(&t, FENCE_1);
    cr_expect_eq(t.view.state, PROCESS_STARTING);
    struct trainer_output out = exited(&t, FENCE_1, EXIT(9), false, false);
    cr_expect_eq(t.view.state, PROCESS_STARTING);
    cr_expect_not(out.changed);
}

Test(trainer, a_sidecar_that_comes_back_learns_the_state_from_hello)
{
    struct trainer t = TRAINER_INIT;

    (void)hello(&t, FENCE_2, true, false, 0);
    cr_expect_eq(t.view.state, PROCESS_RUNNING);
    cr_expect_eq(t.view.pid, 77);
    cr_expect_eq(t.view.fence, FENCE_2);

    t = (struct trainer)TRAINER_INIT;
    (void)hello(&t, FENCE_2, false, true, 0);
    cr_expect_eq(t.view.state, PROCESS_DONE);
    t = (struct trainer)TRAINER_INIT;
    (void)hello(&t, FENCE_2, false, true, SIGKILL);
    cr_expect_eq(t.view.state, PROCESS_FAILED);
    cr_expect_eq(t.view.code, 137);
    struct trainer_output out = exited(&t, FENCE_2, SIGKILL, true, false); /* what HELLO could not say */
    cr_expect_eq(t.view.state, PROCESS_WAITING);
    cr_expect(out.changed);
}

Test(trainer, nothing_starts_in_a_pod_that_is_going_away)
{
    struct trainer t = in_state(PROCESS_WAITING);
    struct trainer_output out = want(&t, TRAINER_SIGNALLED, 0);

    cr_expect(out.changed);
    cr_expect(t.view.terminating);
    out = want(&t, TRAINER_START, FENCE_2);
    cr_expect_eq(out.word, WORD_NONE);
    cr_expect_eq(t.view.state, PROCESS_WAITING);
}

Test(trainer, a_launcher_that_was_told_to_leave_is_not_lost)
{
    struct trainer t = in_state(PROCESS_DONE);

    (void)want(&t, TRAINER_LEAVE, 0);
    struct trainer_output out = want(&t, TRAINER_GONE, 0);
    cr_expect_eq(t.view.state, PROCESS_DONE);
    cr_expect_not(out.changed);
}
