/* The coordinator's core on virtual time. Scenarios are scripts: an event a line, and what must come out of it. */

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "sidecar/supervise/coordinator.h"
#include "sidecar/supervise/trainer.h"
#include "tests/unit/quietly.h"

#define POLICY(roles, more) "{" POLICY_BODY(roles, more)
#define POLICY_BODY(roles, more) \
    "\"uid\":\"u\",\"backoffLimit\":3,\"restartWindowSeconds\":0,\"backoffBaseSeconds\":1,\"backoffMaxSeconds\":60," \
    "\"restartStrategy\":\"InPlace\",\"oomPolicy\":\"Fail\",\"successPolicy\":\"\",\"enableDynamicWorker\":false," \
    "\"containerName\":\"t\",\"roles\":{" roles "},\"rules\":[" more "]}"
#define ROLE_OF(name, n, policy) "\"" name "\":{\"replicas\":" n ",\"restartPolicy\":\"" policy "\",\"containers\":[\"t\"]}"

static const char *const GROUP = POLICY(ROLE_OF("Chief", "1", "OnFailure") "," ROLE_OF("Worker", "2", "OnFailure"), "");
static const char *const EXIT_CODE = POLICY(ROLE_OF("Chief", "1", "ExitCode") "," ROLE_OF("Worker", "2", "ExitCode"), "");
#define HANG_POLICY(roles) \
    "{\"uid\":\"u\",\"backoffLimit\":3,\"backoffBaseSeconds\":1,\"backoffMaxSeconds\":60,\"containerName\":\"t\",\"progressTimeoutSeconds\":2," \
    "\"firstStepTimeoutSeconds\":2,\"roles\":{" roles "}}"
static const char *const HANGS = HANG_POLICY(ROLE_OF("Chief", "1", "OnFailure") "," ROLE_OF("Worker", "2", "OnFailure"));
static const char *const HANGS_WITH_PS =
    HANG_POLICY(ROLE_OF("Chief", "1", "OnFailure") "," ROLE_OF("Worker", "1", "OnFailure") "," ROLE_OF("PS", "1", "OnFailure"));
static const char *const WITH_PS = POLICY(ROLE_OF("Chief", "1", "OnFailure") "," ROLE_OF("Worker", "1", "OnFailure") "," ROLE_OF("PS", "1", "OnFailure"), "");
static const char *const WITH_EVALUATOR =
    POLICY(ROLE_OF("Chief", "1", "OnFailure") "," ROLE_OF("Worker", "1", "OnFailure") "," ROLE_OF("Evaluator", "1", "OnFailure"), "");
static const char *const ELASTIC =
    "{\"elastic\":true," POLICY_BODY(ROLE_OF("Chief", "1", "OnFailure") "," ROLE_OF("Worker", "2", "OnFailure"), "");
static const char *const MEMBERS[] = { "chief-0", "worker-0", "worker-1" };
static const char *const MEMBERS_PS[] = { "chief-0", "worker-0", "ps-0" };
static const char *const MEMBERS_EVALUATOR[] = { "chief-0", "worker-0", "evaluator-0" };

struct bench {
    struct training_job *policy;
    struct coordinator c;
    struct coordinator_now now;
    uint64_t told[3]; /* fence that each member's trainer was last started with */
};

static struct bench bench_new(const char *policy, const char *const *members)
{
    struct bench b = { .now = { .mono_ms = 1000, .wall_ms = 1700000000000 } };
    struct error e = ERROR_INIT;
    struct restart_counters none = { .restarts = 0 };

    cr_assert_eq(restart_policy_decode(policy, &b.policy, &e), 0, "%s", e.text);
    cr_assert_eq(coordinator_init(&b.c, b.policy, "digits", "uid", 1, members, 3, &none, &e), 0, "%s", e.text);
    return b;
}

static void bench_free(struct bench *b)
{
    coordinator_release(&b->c);
    training_job_free(b->policy);
}

static enum process_state state_named(const char *name)
{
    for (enum process_state s = PROCESS_WAITING; s <= PROCESS_LOST; s++) {
        if (strcasecmp(process_state_name(s), name) == 0)
            return s;
    }
    cr_assert_fail("no state %s", name);
    return PROCESS_LOST;
}

static void format_outputs(const struct coordinator *c, const struct coordinator_outputs *o, char *ret, size_t size)
{
    static const char *const names[] = { [OUTPUT_CLAIM] = "claim", [OUTPUT_FORM] = "form", [OUTPUT_START] = "start", [OUTPUT_ABORT] = "abort",
                                         [OUTPUT_RELEASE] = "release", [OUTPUT_LEAVE] = "leave", [OUTPUT_COMMAND] = "command",
                                         [OUTPUT_HISTORY] = "history", [OUTPUT_DUMP] = "dump", [OUTPUT_HOSTS] = "hosts" };
    auto_buf struct buf b = BUF_INIT(4096);

    for (size_t i = 0; i < o->count; i++) {
        const struct coordinator_output *x = &o->items[i];
        if (x->kind == OUTPUT_REPORT)
            continue;
        buf_addf(&b, "%s%s", b.len > 0 ? " " : "", names[x->kind]);
        if (x->member >= 0)
            buf_addf(&b, " %d", x->member);
        if (x->kind == OUTPUT_CLAIM && c->skips_newest)
            buf_add(&b, "-older");
        if (x->kind == OUTPUT_LEAVE)
            buf_addf(&b, "=%d", x->exit_code);
        if (x->kind == OUTPUT_HOSTS)
            buf_addf(&b, "=%u", x->hosts);
    }
    (void)snprintf(ret, size, "%s", buf_text(&b));
}

/* One line of a script:
 *   stalled RANK   dumped M
 *   join M STATE [FENCE_ROUND]   lost M   trainer M STATE [term]   exit M CODE [SIGNAL] [AGE] [loss] [oom] [term]   formed M   ringlost M RANK [left]
 *   parked M   resize WORKERS
 *   claimed | claimed STEP | claim-conflict | claim-invalid | claim-io   committed STEP   progress M STEP SAVED   wait MS   stop */
static void run_line(struct bench *b, const char *line, char *ret, size_t size)
{
    struct coordinator_outputs out = { .items = NULL };
    struct coordinator_event ev = { .kind = EVENT_TICK };
    struct trainer_view view = { .fence = b->c.fence };
    struct ring_view ring = { .fence = b->c.fence, .lost_rank = -1 };
    struct progress_view progress = { .step = -1 };
    struct checkpoint_restore restore = { .step = -1 };
    struct error why = ERROR_INIT;
    struct join join = { .port = 7077 };
    char verb[32] = "", a[32] = "", rest[64] = "";
    int n[4] = { 0 };

    (void)sscanf(line, "%31s", verb);
    if (sscanf(line, "join %d %31s %d of=%d", &n[0], a, &n[1], &n[2]) >= 2) {
        join.history.workers = n[2];
        join.trainer = (struct trainer_view){ .state = state_named(a), .fence = n[1] > 0 ? FENCE(1, n[1]) : 0 };
        join.fence = join.trainer.fence;
        join.trainer.has_exit = join.trainer.state == PROCESS_FAILED;
        join.trainer.code = join.trainer.state == PROCESS_FAILED ? 1 : 0;
        join.history.round = n[1];
        (void)snprintf(join.member, sizeof join.member, "%s", b->c.members[n[0]].name);
        (void)snprintf(join.host, sizeof join.host, "127.0.0.%d", n[0] + 2);
        ev = (struct coordinator_event){ .kind = EVENT_JOIN, .member = n[0], .join = &join };
    } else if (sscanf(line, "lost %d", &n[0]) == 1) {
        ev = (struct coordinator_event){ .kind = EVENT_LOST, .member = n[0], .text = "reset" };
    } else if (sscanf(line, "trainer %d %31s %63[^\n]", &n[0], a, rest) >= 2) {
        view.state = state_named(a);
        view.terminating = strstr(rest, "term") != NULL;
        view.stopped = view.state == PROCESS_WAITING;
        ev = (struct coordinator_event){ .kind = EVENT_TRAINER, .member = n[0], .trainer = &view };
    } else if (sscanf(line, "parked %d", &n[0]) == 1) {
        view.state = PROCESS_RUNNING;
        view.parked = true;
        ev = (struct coordinator_event){ .kind = EVENT_TRAINER, .member = n[0], .trainer = &view };
    } else if (sscanf(line, "resize %d", &n[0]) == 1) {
        ev = (struct coordinator_event){ .kind = EVENT_COMMAND, .command = COMMAND_RESIZE, .number = n[0] };
    } else if (sscanf(line, "exit %d %d %63[^\n]", &n[0], &n[1], rest) >= 2) {
        view.state = n[1] == 0 ? PROCESS_DONE : PROCESS_FAILED;
        view.has_exit = true;
        view.code = n[1];
        view.signal = n[1] > 128 ? n[1] - 128 : 0;
        view.after_loss = strstr(rest, "loss") != NULL;
        view.oom = strstr(rest, "oom") != NULL;
        view.terminating = strstr(rest, "term") != NULL;
        view.age_ms = strstr(rest, "age=") != NULL ? atol(strstr(rest, "age=") + 4) : 0;
        ev = (struct coordinator_event){ .kind = EVENT_TRAINER, .member = n[0], .trainer = &view };
    } else if (sscanf(line, "formed %d", &n[0]) == 1) {
        ring.formed = ring.ok = true;
        ring.seconds = 0.25;
        ev = (struct coordinator_event){ .kind = EVENT_RING, .member = n[0], .ring = &ring };
    } else if (sscanf(line, "misformed %d", &n[0]) == 1) {
        ring.formed = true;
        ev = (struct coordinator_event){ .kind = EVENT_RING, .member = n[0], .ring = &ring };
    } else if (sscanf(line, "ringlost %d %d %63[^\n]", &n[0], &n[1], rest) >= 2) {
        ring.lost_rank = n[1];
        (void)snprintf(ring.text, sizeof ring.text, "peer lost%s", rest[0] != '\0' ? ": " ENGINE_PROCESS_LEFT : "");
        ev = (struct coordinator_event){ .kind = EVENT_RING, .member = n[0], .ring = &ring };
    } else if (strncmp(line, "claim", 5) == 0) {
        ev = (struct coordinator_event){ .kind = EVENT_CLAIMED, .restore = &restore, .newest_epoch = FENCE(1, 40) };
        if (sscanf(line, "claimed %d", &n[0]) == 1)
            restore = (struct checkpoint_restore){ .found = true, .step = n[0], .epoch = 1, .world = 3 };
        if (strcmp(verb, "claimed") != 0) {
            why.kind = strstr(line, "conflict") ? ERROR_CONFLICT : strstr(line, "invalid") ? ERROR_INVALID : strstr(line, "gone") ? ERROR_GONE : ERROR_IO;
            ev.why = &why;
        }
    } else if (sscanf(line, "committed %d", &n[0]) == 1) {
        ev = (struct coordinator_event){ .kind = EVENT_COMMITTED, .step = n[0], .text = "file:///c" };
    } else if (sscanf(line, "progress %d %d %d", &n[0], &n[1], &n[2]) == 3) {
        progress.step = n[1];
        progress.saved = n[2] != 0;
        ev = (struct coordinator_event){ .kind = EVENT_PROGRESS, .member = n[0], .progress = &progress };
    } else if (sscanf(line, "stalled %d", &n[0]) == 1) {
        ev = (struct coordinator_event){ .kind = EVENT_STALLED, .member = n[0], .text = n[0] >= 0 ? "\"g\" has waited" : "" };
    } else if (sscanf(line, "dumped %d", &n[0]) == 1) {
        ev = (struct coordinator_event){ .kind = EVENT_DUMPED, .member = n[0] };
    } else if (sscanf(line, "wait %d", &n[0]) == 1) {
        b->now.mono_ms += n[0];
        b->now.wall_ms += n[0];
    } else if (strcmp(line, "stop") == 0) {
        ev = (struct coordinator_event){ .kind = EVENT_COMMAND, .command = COMMAND_STOP, .number = 1000 };
    } else {
        cr_assert_fail("no such line: %s", line);
    }
    coordinator_step(&b->c, &ev, &b->now, &out);
    format_outputs(&b->c, &out, ret, size);
    outputs_release(&out);
}

/* "event > outputs" lines, separated by newlines; nothing after ">" means that nothing comes out. "= phase" checks the phase,
 * "# ..." is a comment. */
static void run_script(struct bench *b, const char *name, const char *script)
{
    auto_free char *copy = xstrdup(script);
    char *rest = NULL, got[1024];

    for (char *line = strtok_r(copy, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        if (line[0] == '#')
            continue;
        if (line[0] == '=') {
            cr_expect_str_eq(coordinator_phase_name(b->c.phase), line + 2, "%s: phase is %s, expected %s", name,
                             coordinator_phase_name(b->c.phase), line + 2);
            continue;
        }
        char *expected = strstr(line, " >");
        cr_assert_not_null(expected, "%s: %s", name, line);
        *expected = '\0';
        expected += 2;
        expected += *expected == ' ';
        run_line(b, line, got, sizeof got);
        cr_expect_str_eq(got, expected, "%s: after \"%s\": got \"%s\", expected \"%s\"", name, line, got, expected);
    }
}

#define GATHER_ALL "join 0 Waiting >\njoin 1 Waiting >\njoin 2 Waiting > claim\n"
#define FORM_ALL "claimed > form\nformed 0 >\nformed 1 >\n"
#define RUN_ALL "trainer 0 Running >\ntrainer 1 Running >\ntrainer 2 Running >\n"
#define UP GATHER_ALL FORM_ALL "formed 2 > start\n" RUN_ALL "= run\n"
#define UP_2_RANKS GATHER_ALL "claimed > form\nformed 0 >\nformed 1 > start\n" RUN_ALL "= run\n"
#define STOPPED(a, b) "trainer " a " Stopping >\ntrainer " b " Stopping >\ntrainer " a " Waiting >\ntrainer " b " Waiting > "

/* After the abort of a round: all wait again; then the next one from the same step. */
#define AGAIN "trainer 0 Waiting >\ntrainer 1 Waiting >\ntrainer 2 Waiting >"
#define FORM_AGAIN "claimed 50 > form\nformed 0 >\nformed 1 >\nformed 2 > start\n" RUN_ALL

static const struct scenario { const char *name, *const *policy, *const *members, *script; int32_t round, restarts, counted, disruptions; } SCENARIOS[] = {
    { "gang start", &GROUP, MEMBERS, UP, 1, 0, 0, 0 },
    { "nobody starts before the last is there", &GROUP, MEMBERS,
      "join 2 Waiting >\njoin 0 Waiting >\nwait 100000 >\n= gather\njoin 1 Lost >\ntrainer 1 Waiting > claim\n", 1, 0, 0, 0 },
    { "an exit with an error", &GROUP, MEMBERS,
      UP "exit 1 1 >\n= settle\nwait 29 >\nwait 1 > abort\n= gather\n" STOPPED("0", "2") "claim\n" FORM_ALL "formed 2 > start\n= run\n", 2, 1, 1, 0 },
    { "the second failure of a streak waits", &GROUP, MEMBERS,
      UP "exit 1 1 >\nwait 30 > abort\n" STOPPED("0", "2") "claim\n" FORM_ALL "formed 2 > start\n" RUN_ALL
      "exit 1 1 >\nwait 30 > abort\n" STOPPED("0", "2") "\nwait 800 >\n= gather\nwait 400 > claim\n", 3, 2, 2, 0 },
    { "progress ends a streak", &GROUP, MEMBERS,
      UP "exit 1 1 >\nwait 30 > abort\n" STOPPED("0", "2") "claim\n" FORM_ALL "formed 2 > start\n" RUN_ALL
      "committed 10 >\nexit 1 1 >\nwait 30 > abort\n" STOPPED("0", "2") "claim\n", 3, 2, 2, 0 },
    { "a lost sidecar", &GROUP, MEMBERS,
      UP "lost 2 >\nwait 30 > abort\n" "trainer 0 Waiting >\ntrainer 1 Waiting >\nwait 5000 >\n= gather\n"
      "join 2 Running 1 > abort 2\ntrainer 2 Waiting > claim\n", 2, 1, 0, 1 },
    { "a ring that is lost waits for its cause", &GROUP, MEMBERS,
      UP "ringlost 0 2 >\nwait 100 >\n= settle\nexit 0 1 loss >\nwait 100 >\nlost 2 >\nwait 29 >\nwait 1 > abort\n", 1, 1, 0, 1 },
    { "a process that left is waited for, however long it takes to reap it", &GROUP, MEMBERS,
      UP "ringlost 0 2 left >\nringlost 2 2 left >\nexit 0 1 loss >\nwait 2500 >\n= settle\nexit 2 137 >\nwait 29 >\nwait 1 > abort\n= gather\n", 1, 1, 1, 0 },
    { "who left is named later than the loss", &GROUP, MEMBERS,
      UP "ringlost 0 1 >\nwait 200 >\nringlost 2 2 left >\nringlost 1 2 left >\nwait 2000 >\n= settle\nexit 2 137 >\nwait 30 > abort\n", 1, 1, 1, 0 },
    { "a process that left and lives on", &GROUP, MEMBERS, UP "ringlost 0 2 left >\nwait 1000 >\nringlost 2 2 left >\nwait 1999 >\nwait 1 > abort\n", 1, 1, 0, 1 },
    { "who left has a sidecar that is lost then", &GROUP, MEMBERS, UP "ringlost 0 2 left >\nwait 1000 >\nlost 2 >\nwait 30 > abort\n", 1, 1, 0, 1 },
    { "a ring that is lost without any other sign", &GROUP, MEMBERS, UP "ringlost 0 2 >\nwait 299 >\nwait 1 > abort\n= gather\n", 1, 1, 0, 1 },
    { "a permanent code", &EXIT_CODE, MEMBERS, UP "exit 2 7 >\nwait 30 > abort 0 abort 1 history leave 2=-1\n= gave-up\nwait 100000 >\n", 1, 0, 0, 0 },
    { "the budget is over", &GROUP, MEMBERS,
      UP "exit 1 1 >\nwait 30 > abort\n" STOPPED("0", "2") "claim\n" FORM_ALL "formed 2 > start\n" RUN_ALL
      "exit 1 1 >\nwait 30 > abort\n" STOPPED("0", "2") "\nwait 10000 > claim\n" FORM_ALL "formed 2 > start\n" RUN_ALL
      "exit 1 1 >\nwait 30 > abort\n" STOPPED("0", "2") "\nwait 10000 > claim\n" FORM_ALL "formed 2 > start\n" RUN_ALL
      "exit 1 1 >\nwait 30 > abort 0 abort 2 history leave 1=-1\n= gave-up\n", 4, 3, 3, 0 },
    { "all done", &GROUP, MEMBERS, UP "exit 0 0 >\nexit 2 0 >\nexit 1 0 > release 0 release 1 release 2\n= over\n", 1, 0, 0, 0 },
    { "the last checkpoint is waited for", &GROUP, MEMBERS,
      UP "progress 1 9 0 >\nexit 0 0 >\nexit 2 0 >\nexit 1 0 >\n= save\nwait 1000 >\nprogress 1 9 1 > release 0 release 1 release 2\n", 1, 0, 0, 0 },
    { "but not for ever", &GROUP, MEMBERS,
      UP "progress 1 9 0 >\nexit 0 0 >\nexit 2 0 >\nexit 1 0 >\nwait 59999 >\nwait 1 > release 0 release 1 release 2\n", 1, 0, 0, 0 },
    { "who is done is held", &GROUP, MEMBERS,
      UP "exit 0 0 >\nexit 1 3 >\nwait 30 > abort\n" "trainer 2 Waiting > claim\n" FORM_ALL "formed 2 > start\n"
      "trainer 0 Running >\ntrainer 1 Running >\ntrainer 2 Running >\nexit 1 0 >\nexit 2 0 >\n= run\nexit 0 0 > release 0 release 1 release 2\n", 2, 1, 1, 0 },
    { "a member lost while the checkpoint is claimed", &GROUP, MEMBERS,
      GATHER_ALL "lost 1 >\n= gather\njoin 1 Waiting >\n# one claim at a time\nclaimed > claim\nclaimed > form\n", 2, 0, 0, 0 },
    { "a member lost while the ring forms", &GROUP, MEMBERS,
      GATHER_ALL "claimed > form\nformed 0 >\nlost 1 > abort\n= gather\njoin 1 Waiting >\nwait 200 > claim\n", 2, 0, 0, 0 },
    { "a launcher that ends while the checkpoint is claimed", &GROUP, MEMBERS,
      GATHER_ALL "trainer 2 Lost >\nclaimed >\n= gather\ntrainer 2 Waiting > claim\nclaimed > form\n", 2, 0, 0, 0 },
    { "a launcher that is told to end while the checkpoint is claimed", &GROUP, MEMBERS,
      GATHER_ALL "trainer 2 Waiting term >\nclaimed >\n= gather\ntrainer 2 Lost >\ntrainer 2 Waiting > claim\nclaimed > form\n", 2, 0, 0, 0 },
    { "a launcher that is told to end while the ring forms", &GROUP, MEMBERS,
      GATHER_ALL "claimed > form\nformed 0 >\ntrainer 2 Waiting term >\nformed 1 >\nformed 2 > abort\n= gather\nwait 200 >\n"
      "trainer 2 Lost >\ntrainer 2 Waiting > claim\n", 2, 0, 0, 0 },
    { "a self-test that fails", &GROUP, MEMBERS, GATHER_ALL "claimed > form\nmisformed 0 > abort\nwait 200 > claim\nclaimed > form\nmisformed 0 > abort\nwait 200 >\nwait 200 > claim\n", 3, 0, 0, 0 },
    { "a ring that does not form in time", &GROUP, MEMBERS, GATHER_ALL "claimed > form\nformed 0 >\nwait 59999 >\nwait 1 > abort\nwait 200 > claim\n", 2, 0, 0, 0 },
    { "an epoch that is taken", &GROUP, MEMBERS, GATHER_ALL "claim-conflict > claim\nclaimed > form\n", 41, 0, 0, 0 },
    { "a volume that cannot be read is tried again", &GROUP, MEMBERS, GATHER_ALL "claim-io > abort\nwait 200 > claim\n", 2, 0, 0, 0 },
    { "a checkpoint of another world", &GROUP, MEMBERS, GATHER_ALL "claim-invalid > history leave 0=1\n= gave-up\n", 1, 0, 0, 0 },
    { "a newer attempt", &GROUP, MEMBERS, GATHER_ALL "claim-gone >\n= stale\nwait 100000 >\nlost 1 >\njoin 1 Waiting >\n", 1, 0, 0, 0 },
    { "a launcher that is gone is the reconciler's", &GROUP, MEMBERS, UP "trainer 2 Lost >\nwait 30 > abort 0 abort 1\n= handed\n", 1, 0, 0, 0 },
    { "so is a pod that was told to end", &GROUP, MEMBERS, UP "exit 2 143 term >\nwait 30 > abort 0 abort 1\n= handed\n", 1, 0, 0, 0 },
    { "stop", &GROUP, MEMBERS, UP "stop > command\n= stopped\n" STOPPED("0", "1") "\nwait 100000 >\nlost 2 >\njoin 2 Running 1 > command 2\n", 1, 0, 0, 0 },
    { "a coordinator that comes back to a group at work", &GROUP, MEMBERS,
      "join 1 Running 4 > abort 1\njoin 2 Failed 4 >\njoin 0 Running 4 > abort 0 abort\ntrainer 1 Waiting >\ntrainer 0 Waiting > claim\n", 5, 1, 0, 1 },
    { "a coordinator that comes back to a group that is done", &GROUP, MEMBERS,
      "join 1 Done 4 >\njoin 2 Done 4 >\njoin 0 Done 4 > claim\nclaimed 9 > form\nformed 0 >\nprogress 1 9 0 >\nformed 1 >\nformed 2 >\n= save\n"
      "progress 1 9 1 > release 0 release 1 release 2\n= over\n", 5, 0, 0, 0 },
    { "who joins after the end is released", &GROUP, MEMBERS,
      UP "exit 0 0 >\nexit 2 0 >\nlost 1 >\nwait 30 > abort\n# its sidecar came back: it was done, too\njoin 1 Done 1 > release 0 release 1 release 2\n", 1, 1, 0, 1 },
    { "a worker is added when it is there and the others have come", &ELASTIC, MEMBERS,
      UP "resize 3 >\njoin 3 Lost >\ntrainer 3 Waiting > hosts=2\nparked 0 >\nparked 2 >\n= run\nparked 1 > abort claim\nclaimed 7 > form\nformed 0 >\n"
      "formed 1 >\nformed 2 >\n= form\nformed 3 > start\n" RUN_ALL "trainer 3 Running >\n= run\n", 2, 0, 0, 0 },
    { "of several newcomers the last one is not waited for for ever", &ELASTIC, MEMBERS,
      UP "resize 4 >\njoin 3 Waiting >\nwait 9999 >\nwait 1 > hosts=2\njoin 4 Waiting >\nparked 0 >\nparked 1 >\nparked 2 > abort claim\n"
      "claimed > form\nformed 0 >\nformed 1 >\nformed 2 >\nformed 3 >\nformed 4 > start\n", 2, 0, 0, 0 },
    { "a worker that comes out of order waits for the one before it", &ELASTIC, MEMBERS,
      UP "resize 4 >\njoin 4 Waiting >\nwait 20000 >\njoin 3 Waiting > hosts=2\n", 1, 0, 0, 0 },
    { "a worker that is not wanted any more before it has come", &ELASTIC, MEMBERS,
      UP "resize 3 >\njoin 3 Waiting > hosts=2\nresize 2 >\nlost 3 >\nparked 0 >\nparked 1 >\nparked 2 > abort claim\nclaimed > form\nformed 0 >\n"
      "formed 1 >\nformed 2 > start\n", 2, 0, 0, 0 },
    { "a worker is removed when all have come, and its process ends", &ELASTIC, MEMBERS,
      UP "resize 1 > hosts=1\nparked 2 >\nparked 1 >\nparked 0 > abort abort 2 claim\nclaimed > form\nformed 0 >\nformed 1 > start\n"
      "trainer 0 Running >\ntrainer 1 Running >\ntrainer 2 Waiting >\nlost 2 >\n= run\nexit 0 0 >\nexit 1 0 > release 0 release 1\n", 2, 0, 0, 0 },
    { "its pod may go before that", &ELASTIC, MEMBERS,
      UP "resize 1 > hosts=1\ntrainer 2 Lost >\nwait 30 > abort\nparked 0 >\nparked 1 > claim\nclaimed > form\n", 2, 0, 0, 0 },
    { "a failure takes the change along", &ELASTIC, MEMBERS,
      UP "resize 3 >\njoin 3 Waiting > hosts=2\nexit 1 1 >\nwait 30 > abort\nparked 0 >\nparked 2 > claim\nclaimed > form\nformed 0 >\nformed 1 >\n"
      "formed 2 >\nformed 3 > start\n" RUN_ALL "trainer 3 Running >\nexit 1 0 >\n", 2, 1, 1, 0 },
    { "a newcomer that comes while the next round is waited for", &ELASTIC, MEMBERS,
      UP "exit 1 1 >\nwait 30 > abort\nparked 0 >\nresize 3 >\njoin 3 Waiting >\nparked 2 > claim\nclaimed > form\nformed 0 >\nformed 1 >\n"
      "formed 2 >\n= form\nformed 3 > start\n", 2, 1, 1, 0 },
    { "who was ended well by then is started again", &ELASTIC, MEMBERS,
      UP "resize 3 >\njoin 3 Waiting > hosts=2\nexit 1 0 >\nparked 0 >\nparked 2 > abort claim\n", 2, 0, 0, 0 },
    { "all are done before a newcomer has a place", &ELASTIC, MEMBERS,
      UP "resize 3 >\njoin 3 Waiting > hosts=2\nexit 0 0 >\nexit 1 0 >\nexit 2 0 > release 0 release 1 release 2 leave 3=0\n= over\n", 1, 0, 0, 0 },
    { "a pod that is lost is waited for by the others' programs", &ELASTIC, MEMBERS,
      UP "trainer 2 Lost >\nwait 30 > abort\n= gather\nparked 0 >\nparked 1 >\nlost 2 >\nwait 60000 >\njoin 2 Waiting > claim\nclaimed > form\n", 2, 1, 0, 1 },
    { "but not that of rank 0", &ELASTIC, MEMBERS, UP "trainer 0 Lost >\nwait 30 > abort 1 abort 2\n= handed\n", 1, 0, 0, 0 },
    { "a coordinator that comes back knows of the others how many there are", &ELASTIC, MEMBERS,
      "join 1 Running 4 of=1 > abort 1\njoin 0 Running 4 of=1 > abort 0 abort\ntrainer 1 Waiting >\ntrainer 0 Waiting > claim\n", 5, 1, 0, 1 },
    { "without an elasticPolicy the number stays", &GROUP, MEMBERS, UP "resize 3 >\nresize 1 >\n", 1, 0, 0, 0 },
    { "with an evaluator too", &WITH_EVALUATOR, MEMBERS_EVALUATOR, UP_2_RANKS "resize 3 >\n", 1, 0, 0, 0 },
    { "with ps a worker is restarted alone", &WITH_PS, MEMBERS_PS, UP_2_RANKS "exit 1 1 > history\nwait 0 > start 1\n= run\ntrainer 1 Running >\nexit 1 1 > history\nwait 900 >\nwait 300 > start 1\n", 3, 2, 2, 0 },
    { "with ps a lost sidecar ends nothing", &WITH_PS, MEMBERS_PS, UP_2_RANKS "lost 1 >\nwait 1000 >\njoin 1 Running 1 > form 1\n= run\n", 1, 0, 0, 0 },
    { "with ps who is done leaves at once", &WITH_PS, MEMBERS_PS, UP_2_RANKS "exit 1 0 > release 1\n= run\nexit 0 0 > release 0\n= over\n", 1, 0, 0, 0 },
    { "with ps a coordinator that comes back adopts what runs", &WITH_PS, MEMBERS_PS,
      "join 0 Running 3 >\njoin 1 Running 3 >\njoin 2 Waiting > form 0 form 1 form 2 start 2\n= run\n", 3, 0, 0, 0 },
    { "with ps a restart waits for the launcher to be there", &WITH_PS, MEMBERS_PS,
      UP_2_RANKS "exit 1 1 > history\nlost 1 >\nwait 0 >\njoin 1 Failed 1 > form 1 start 1\n", 2, 1, 1, 0 },
    { "an evaluator is restarted alone", &WITH_EVALUATOR, MEMBERS_EVALUATOR, UP_2_RANKS "exit 2 1 > history\nwait 0 > start 2\n= run\n", 2, 1, 1, 0 },
    { "an evaluator's lost sidecar ends nothing", &WITH_EVALUATOR, MEMBERS_EVALUATOR, UP_2_RANKS "lost 2 >\njoin 2 Running 1 > form 2\n= run\n", 1, 0, 0, 0 },
    { "a hang: everybody writes down what it does, then all start again", &HANGS, MEMBERS,
      UP "progress 0 7 1 >\nprogress 1 7 1 >\nprogress 2 7 1 >\nprogress 0 8 1 >\nprogress 2 8 1 >\nstalled 1 >\nwait 1500 >\n"
      "wait 1000 > dump 0 dump 1 dump 2\n= run\ndumped 0 >\ndumped 2 >\nwait 1000 >\ndumped 1 > abort 1 abort\n= gather\n", 1, 1, 1, 0 },
    { "a hang: who cannot write in time is not waited for", &HANGS, MEMBERS,
      UP "wait 2500 > dump 0 dump 1 dump 2\ndumped 0 >\nwait 9000 >\nwait 1000 > abort 0 abort\n= gather\n", 1, 1, 1, 0 },
    { "a hang: a sidecar that is lost meanwhile is the cause", &HANGS, MEMBERS,
      UP "wait 2500 > dump 0 dump 1 dump 2\nlost 2 >\n= settle\nwait 30 > abort\n= gather\n", 1, 1, 0, 1 },
    { "the newest checkpoint is passed over after three crashes right after a start", &GROUP, MEMBERS,
      GATHER_ALL "claimed 50 > form\nformed 0 >\nformed 1 >\nformed 2 > start\n" RUN_ALL
      "exit 1 1 >\nwait 30 > abort\n" AGAIN " claim\n" FORM_AGAIN "exit 1 1 >\nwait 30 > abort\n" AGAIN "\nwait 3000 > claim\n" FORM_AGAIN
      "exit 1 1 >\nwait 30 > abort\n" AGAIN "\nwait 6000 > claim-older\n", 4, 3, 3, 0 },
    { "steps that were trained clear the checkpoint", &GROUP, MEMBERS,
      GATHER_ALL "claimed 50 > form\nformed 0 >\nformed 1 >\nformed 2 > start\n" RUN_ALL
      "exit 1 1 >\nwait 30 > abort\n" AGAIN " claim\n" FORM_AGAIN "exit 1 1 >\nwait 30 > abort\n" AGAIN "\nwait 3000 > claim\n" FORM_AGAIN
      "progress 1 60 1 >\nexit 1 1 >\nwait 30 > abort\n" AGAIN "\nwait 6000 > claim\n", 4, 3, 3, 0 },
    { "no hang: steps go on", &HANGS, MEMBERS,
      UP "progress 0 1 1 >\nwait 1500 >\nprogress 0 2 1 >\nwait 1500 >\nprogress 0 3 1 >\nwait 1500 >\nprogress 0 4 1 >\nwait 1500 >\n= run\n", 1, 0, 0, 0 },
    { "no hang: steps are committed", &HANGS, MEMBERS, UP "wait 1500 >\ncommitted 5 >\nwait 1500 >\ncommitted 6 >\nwait 1500 >\n= run\n", 1, 0, 0, 0 },
    { "no hang: all have slept", &HANGS, MEMBERS, UP "wait 600000 >\n= run\nwait 1000 >\n", 1, 0, 0, 0 },
    { "no hang: it is over", &HANGS, MEMBERS, UP "exit 0 0 >\nexit 1 0 >\nexit 2 0 > release 0 release 1 release 2\n= over\nwait 4000 >\n", 1, 0, 0, 0 },
    { "a hang that comes again gets a new pod", &HANGS, MEMBERS,
      UP "wait 2500 > dump 0 dump 1 dump 2\nwait 10000 > abort 0 abort\n"
      "trainer 0 Waiting >\ntrainer 1 Waiting >\ntrainer 2 Waiting > claim\n" FORM_ALL "formed 2 > start\n" RUN_ALL
      "wait 2500 > dump 0 dump 1 dump 2\nwait 10000 > abort 1 abort 2 leave 0=1\n= handed\n", 2, 1, 1, 0 },
    { "with ps a worker that hangs is started again alone", &HANGS_WITH_PS, MEMBERS_PS,
      UP_2_RANKS "progress 0 1 1 >\nwait 1500 >\nprogress 0 2 1 >\nwait 1000 > dump 1\ndumped 1 > abort 1 history\ntrainer 1 Stopping >\n"
      "wait 0 >\ntrainer 1 Waiting > start 1\n= run\n", 2, 1, 1, 0 },
    { "an evaluator that is done does not end the job", &WITH_EVALUATOR, MEMBERS_EVALUATOR, UP_2_RANKS "exit 2 0 > release 2\n= run\nexit 0 0 >\nexit 1 0 > release 0 release 1\n", 1, 0, 0, 0 },
};

Test(coordinator, scenarios)
{
    for (size_t i = 0; i < COUNT(SCENARIOS); i++) {
        const struct scenario *s = &SCENARIOS[i];
        struct bench b = bench_new(*s->policy, s->members);
        run_script(&b, s->name, s->script);
        const struct restart_counters *k = &b.c.history.counters;
        cr_expect_eq(b.c.history.round, s->round, "%s: round %d, expected %d", s->name, b.c.history.round, s->round);
        cr_expect_eq(k->restarts, s->restarts, "%s: restarts %d, expected %d", s->name, k->restarts, s->restarts);
        cr_expect_eq(k->restarts_counted, s->counted, "%s: counted %d, expected %d", s->name, k->restarts_counted, s->counted);
        cr_expect_eq(k->disruptions, s->disruptions, "%s: disruptions %d, expected %d", s->name, k->disruptions, s->disruptions);
        bench_free(&b);
    }
}

Test(coordinator, the_first_cause_is_found)
{
    static const struct { const char *name, *events; int32_t role, index, code; const char *reason; } rows[] = {
        { "the earlier one", "exit 1 3\nexit 2 4", ROLE_WORKER, 0, 3, "Error" },
        { "the earlier one by its own clock", "exit 1 3\nexit 2 4 age=50", ROLE_WORKER, 1, 4, "Error" },
        { "not the victim", "exit 1 1 loss\nexit 2 139", ROLE_WORKER, 1, 139, "Error" },
        { "not the victim, the other way round", "exit 2 139\nexit 1 1 loss age=100", ROLE_WORKER, 1, 139, "Error" },
        { "a crash before an exit of the same moment", "exit 1 1\nexit 2 139", ROLE_WORKER, 1, 139, "Error" },
        { "but not before an exit of long ago", "exit 1 1 age=200\nexit 2 139", ROLE_WORKER, 0, 1, "Error" },
        { "memory outranks time", "exit 1 1 age=200\nexit 2 137 oom loss", ROLE_WORKER, 1, 137, "OOMKilled" },
        { "a lost sidecar rather than the victims", "ringlost 0 1\nexit 2 1 loss\nlost 1", ROLE_WORKER, 0, 0, "SidecarLost" },
        { "the network rather than the victims", "exit 2 1 loss\nringlost 0 1", ROLE_WORKER, 0, 0, "RingLost" },
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct bench b = bench_new(GROUP, MEMBERS);
        auto_free char *copy = xstrdup(rows[i].events);
        char *rest = NULL, got[1024];
        run_script(&b, rows[i].name, UP);
        for (char *line = strtok_r(copy, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest))
            run_line(&b, line, got, sizeof got);
        /* oomPolicy Fail gives up, and the failure is then told by the reconciler: look at the cause itself. */
        struct failure_event event;
        char text[1024];
        cr_assert_neq(b.c.cause.kind, CAUSE_NONE, "case %s", rows[i].name);
        cause_event(&b.c, &b.c.cause, &event, text);
        cr_expect_eq((int32_t)event.role, rows[i].role, "case %s: role %d", rows[i].name, event.role);
        cr_expect_eq(event.index, rows[i].index, "case %s: index %d", rows[i].name, event.index);
        cr_expect_eq(event.exit_code, rows[i].code, "case %s: code %d", rows[i].name, event.exit_code);
        cr_expect_str_eq(event.reason, rows[i].reason, "case %s: %s", rows[i].name, event.reason);
        bench_free(&b);
    }
}

Test(coordinator, who_is_left_when_the_training_is_over_is_told_of_and_ended_only_where_the_manifest_says_so)
{
    static const struct { const char *name, *const *policy; bool ended; } rows[] = { { "by default", &GROUP, false }, { "with a limit", &HANGS, true } };

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct bench b = bench_new(*rows[i].policy, MEMBERS);
        run_script(&b, rows[i].name, UP "exit 1 0 >\nexit 2 0 >\n");
        b.c.hang_rule.quiet_ms = b.c.hang_rule.first_ms = 2000;
        b.c.look_at_ms = b.now.mono_ms;
        b.c.members[0].signs.attached = true;
        run_script(&b, rows[i].name, rows[i].ended ? "wait 2500 > dump 0 dump 1 dump 2\n" : "wait 2500 >\n");
        cr_expect(rows[i].ended == (b.c.suspected[0] == '\0'), "case %s: %s", rows[i].name, b.c.suspected);
        bench_free(&b);
    }
}

Test(coordinator, a_hang_is_told_with_what_waits_and_where_the_evidence_is)
{
    struct bench b = bench_new(HANGS, MEMBERS);
    auto_buf struct buf ring = BUF_INIT(65536);

    (void)snprintf(b.c.evidence_dir, sizeof b.c.evidence_dir, "/volume/evidence");
    run_script(&b, "hang", UP "progress 0 7 1 >\nprogress 1 7 1 >\nprogress 2 7 1 >\nprogress 0 8 1 >\nprogress 2 8 1 >\nstalled 1 >\nwait 1500 >\n"
                           "wait 1000 > dump 0 dump 1 dump 2\n");
    coordinator_describe_ring(&b.c, &b.now, &ring);
    cr_expect(strstr(buf_text(&ring), "worker-0         1  Running   7 ") != NULL, "%s", buf_text(&ring));
    cr_expect(strstr(buf_text(&ring), "<- taken for the cause") > strstr(buf_text(&ring), "worker-0 ") &&
              strstr(buf_text(&ring), "<- taken for the cause") < strstr(buf_text(&ring), "worker-1 "), "%s", buf_text(&ring));
    run_script(&b, "hang", "dumped 0 >\ndumped 1 >\ndumped 2 > abort 1 abort\n");
    const struct failure *f = &b.c.history.rounds[0].cause;
    cr_expect(f->class == FAILURE_HANG && f->index == 0 && f->role == ROLE_WORKER && f->rank.set && f->rank.value == 1 && !f->has_exit);
    cr_expect_str_eq(f->reason, "Hang");
    cr_expect_str_eq(f->message, "worker-0 made no first step for 2 s since step 7 and uses no CPU; \"g\" has waited");
    cr_expect_str_eq(f->evidence, "/volume/evidence/hang-1-1-worker-0");
    bench_free(&b);
}

Test(coordinator, lost_steps_are_counted_from_where_the_job_goes_on)
{
    struct bench b = bench_new(GROUP, MEMBERS);

    run_script(&b, "lost steps", UP "progress 0 57 1 >\nprogress 1 56 1 >\ncommitted 40 >\nexit 1 137 >\nwait 30 > abort\n");
    cr_assert_eq(b.c.history.round_count, 1u);
    cr_expect_eq(b.c.history.rounds[0].cause.lost_steps.value, 17);
    cr_expect_str_eq(b.c.history.rounds[0].cause.pod, "digits-worker-0");
    cr_expect_str_eq(b.c.history.rounds[0].cause.container, "t");
    run_script(&b, "lost steps", STOPPED("0", "2") "claim\nclaimed 50 > form\n"); /* a staged step was committed after the failure */
    cr_expect_eq(b.c.history.rounds[0].cause.lost_steps.value, 7);
    bench_free(&b);
}

Test(coordinator, a_report_says_it_all)
{
    struct bench b = bench_new(GROUP, MEMBERS);
    struct coordinator_report r;

    run_script(&b, "report", UP "progress 1 7 1 >\ncommitted 5 >\n");
    coordinator_report(&b.c, &b.now, &r);
    cr_expect(r.formed && r.self_test_ok);
    cr_expect_eq(r.member_count, 3u);
    cr_expect_str_eq(r.members[1].member, "worker-0");
    cr_expect_eq(r.members[1].step, 7);
    cr_expect_eq(r.members[1].state, PROCESS_RUNNING);
    cr_expect_eq(r.checkpoint_step, 5);
    cr_expect_str_eq(r.checkpoint_uri, "file:///c");
    cr_expect_eq(r.resume_step, -1);
    cr_expect_float_eq(r.form_seconds, 0.25, 1e-9);
    report_release(&r);
    run_script(&b, "report", "lost 1 >\n");
    coordinator_report(&b.c, &b.now, &r);
    cr_expect_eq(r.members[1].state, PROCESS_LOST);
    cr_expect(!r.over);
    report_release(&r);
    bench_free(&b);
}

Test(coordinator, a_report_says_when_no_round_will_end_any_more)
{
    struct bench b = bench_new(GROUP, MEMBERS);
    struct coordinator_report r;

    run_script(&b, "over", UP "exit 0 0 >\nexit 2 0 >\n");
    coordinator_report(&b.c, &b.now, &r);
    cr_expect(!r.over, "rank 1 may still fail, and then all run again");
    report_release(&r);
    run_script(&b, "over", "exit 1 0 > release 0 release 1 release 2\n");
    coordinator_report(&b.c, &b.now, &r);
    cr_expect(r.over);
    report_release(&r);
    bench_free(&b);
}

Test(coordinator, a_list_of_members_is_checked)
{
    static const char *const no_rank[] = { "ps-0", "evaluator-0", "ps-1" };
    static const char *const bad_name[] = { "chief-0", "boss-1", "worker-0" };
    static const char *const bad_index[] = { "chief-0", "worker--1", "worker-0" };
    static const char *const bad_order[] = { "chief-0", "ps-0", "worker-0" };
    static const struct { const char *name, *const *members, *words; } rows[] = {
        { "no rank", no_rank, "no chief, master or worker" },
        { "bad name", bad_name, "boss-1" },
        { "bad index", bad_index, "worker--1" },
        { "bad order", bad_order, "worker-0 has a rank" },
    };
    struct restart_counters none = { .restarts = 0 };

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct training_job *policy = NULL;
        struct coordinator c;
        struct error e = ERROR_INIT;
        cr_assert_eq(restart_policy_decode(GROUP, &policy, &e), 0);
        cr_expect_eq(coordinator_init(&c, policy, "digits", "uid", 1, rows[i].members, 3, &none, &e), -1, "case %s", rows[i].name);
        cr_expect(strstr(e.text, rows[i].words) != NULL, "case %s: %s", rows[i].name, e.text);
        training_job_free(policy);
    }
}

/* ---- whatever happens, in whatever order -------------------------------------------------------------------------------- */

static uint32_t next(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

static void random_line(const struct bench *b, uint32_t *seed, char *ret, size_t size)
{
    static const char *const states[] = { "Waiting", "Starting", "Running", "Stopping", "Done", "Failed", "Lost" };
    int m = (int)(next(seed) % (uint32_t)b->c.count);

    switch (next(seed) % (b->policy->spec.elastic ? 15 : 12)) {
    case 0: case 1: (void)snprintf(ret, size, "join %d %s %d", m, states[next(seed) % 6], (int)(next(seed) % 4)); break;
    case 2: (void)snprintf(ret, size, "lost %d", m); break;
    case 3: (void)snprintf(ret, size, "trainer %d %s", m, states[next(seed) % 7]); break;
    case 4: (void)snprintf(ret, size, "exit %d %d%s", m, (int)(next(seed) % 3), next(seed) % 2 ? " loss" : ""); break;
    case 5: case 6: (void)snprintf(ret, size, "formed %d", m); break;
    case 7: (void)snprintf(ret, size, "ringlost %d %d", m, (int)(next(seed) % 3)); break;
    case 8: (void)snprintf(ret, size, b->c.claiming ? (next(seed) % 4 ? "claimed" : "claim-io") : "wait 10"); break;
    case 9: (void)snprintf(ret, size, "committed %d", (int)(next(seed) % 100)); break;
    case 10: (void)snprintf(ret, size, "progress %d %d %d", m, (int)(next(seed) % 100), (int)(next(seed) % 2)); break;
    case 12: (void)snprintf(ret, size, "resize %d", (int)(next(seed) % 5)); break;
    case 13: case 14: (void)snprintf(ret, size, "parked %d", m); break;
    default: (void)snprintf(ret, size, "wait %d", (int)(next(seed) % 1500)); break;
    }
}

static void check_invariants(const struct bench *b, const char *line, const char *outputs, uint64_t fence_before, enum coordinator_phase before,
                             bool claiming_before, uint32_t seed)
{
    const struct coordinator *c = &b->c;
    bool final = before == COORDINATOR_OVER || before == COORDINATOR_GAVE_UP || before == COORDINATOR_HANDED || before == COORDINATOR_STALE;

    QUIETLY(c->fence >= fence_before, "seed %u, %s: the fence went back", seed, line);
    QUIETLY(!final || c->phase == before, "seed %u, %s: %s became %s", seed, line, coordinator_phase_name(before), coordinator_phase_name(c->phase));
    QUIETLY(!final || (strstr(outputs, "start") == NULL && strstr(outputs, "claim") == NULL), "seed %u, %s: %s after the end", seed, line, outputs);
    if (strstr(outputs, "claim") != NULL) {
        QUIETLY(c->fence > fence_before, "seed %u, %s: a claim without a new fence", seed, line);
        QUIETLY(!claiming_before || strncmp(line, "claim", 5) == 0, "seed %u, %s: two claims at once", seed, line);
    }
    if (c->phase == COORDINATOR_CLAIM || c->phase == COORDINATOR_FORM) {
        for (int32_t i = 0; i < c->count; i++)
            QUIETLY(c->members[i].joined || c->members[i].released || c->members[i].ignored || c->members[i].outside, "seed %u, %s: forming without %d",
                    seed, line, i);
    }
    for (int32_t i = 0; i < c->count; i++) {
        QUIETLY(c->members[i].rank == (i < c->world ? i : -1), "seed %u, %s: member %d has rank %d of %d", seed, line, i, c->members[i].rank, c->world);
        QUIETLY(!c->members[i].outside || i >= c->world, "seed %u, %s: member %d has a rank and no place", seed, line, i);
    }
    QUIETLY(c->history.round_count <= ROUNDS_KEPT);
    QUIETLY(c->phase != COORDINATOR_SETTLE || c->cause.kind != CAUSE_NONE, "seed %u, %s: settling on nothing", seed, line);
    QUIETLY(c->phase != COORDINATOR_SETTLE || coordinator_deadline(c) < INT64_MAX, "seed %u, %s: settling for ever", seed, line);
}

Test(coordinator, invariants_hold_in_any_order_of_events)
{
    static const struct { const char *const *policy, *const *members; } jobs[] = {
        { &GROUP, MEMBERS }, { &EXIT_CODE, MEMBERS }, { &WITH_PS, MEMBERS_PS }, { &WITH_EVALUATOR, MEMBERS_EVALUATOR },
        { &ELASTIC, MEMBERS },
    };

    for (uint32_t seed = 1; seed <= 1000; seed++) {
        struct bench b = bench_new(*jobs[seed % COUNT(jobs)].policy, jobs[seed % COUNT(jobs)].members);
        uint32_t random = seed;
        char line[64], got[4096];
        for (int i = 0; i < 120; i++) {
            uint64_t fence = b.c.fence;
            enum coordinator_phase phase = b.c.phase;
            bool claiming = b.c.claiming;
            random_line(&b, &random, line, sizeof line);
            run_line(&b, line, got, sizeof got);
            check_invariants(&b, line, got, fence, phase, claiming, seed);
        }
        bench_free(&b);
    }
}

/* After any past, a group whose members behave gets back to work (or has ended). */
static void comes_back(const char *policy)
{
    for (uint32_t seed = 1; seed <= 500; seed++) {
        struct bench b = bench_new(policy, MEMBERS);
        uint32_t random = seed;
        char line[64], got[4096];
        for (int i = 0; i < 60; i++) {
            random_line(&b, &random, line, sizeof line);
            run_line(&b, line, got, sizeof got);
        }
        for (int i = 0; i < 60 && b.c.phase != COORDINATOR_RUN; i++) {
            for (int m = 0; m < b.c.count; m++) {
                (void)snprintf(line, sizeof line, b.c.members[m].joined ? "trainer %d Waiting" : "join %d Waiting", m);
                if (b.c.phase == COORDINATOR_GATHER)
                    run_line(&b, line, got, sizeof got);
            }
            for (int m = 0; m < b.c.world && b.c.phase == COORDINATOR_FORM; m++) {
                (void)snprintf(line, sizeof line, "formed %d", m);
                run_line(&b, line, got, sizeof got);
            }
            if (b.c.claiming)
                run_line(&b, "claimed", got, sizeof got);
            run_line(&b, "wait 20000", got, sizeof got);
        }
        bool ended = b.c.phase == COORDINATOR_OVER || b.c.phase == COORDINATOR_GAVE_UP || b.c.phase == COORDINATOR_HANDED;
        cr_expect(ended || b.c.phase == COORDINATOR_RUN, "seed %u: stuck in %s", seed, coordinator_phase_name(b.c.phase));
        bench_free(&b);
    }
}

Test(coordinator, a_group_that_behaves_comes_back)
{
    comes_back(GROUP);
}

Test(coordinator, and_so_does_one_that_changes_its_size)
{
    comes_back(ELASTIC);
}
