#include <criterion/criterion.h>

#include "job/restart.h"
#include "job/restart_class.h"
#include "tests/unit/job/job_fixture.h"

static const int64_t NOW = 1700000000000;

static struct restart_decision decide(const struct training_job *job, const struct restart_counters *before, const struct failure_event *e)
{
    struct restart_decision d;

    restart_decide(job, before, e, NOW, &d);
    return d;
}

#define EXIT(code) { .role = ROLE_WORKER, .index = 1, .has_exit = true, .exit_code = (code), .reason = "Error" }
#define LOST(why) { .role = ROLE_WORKER, .index = 1, .reason = (why) }
enum { FAIL = VERDICT_FAIL_JOB, GROUP = VERDICT_RESTART_GROUP, ALONE = VERDICT_RESTART_ALONE, IGNORE = VERDICT_IGNORE };

/* ---- classes ----------------------------------------------------------------------------------------------------- */

static const char *const TYPE[] = { "DisruptionTarget" }, *const TRUE_[] = { "True" }, *const FALSE_[] = { "False" };

static const struct { const char *name; struct failure_event event; enum failure_class class; } CLASSES[] = {
    { "a traceback is the user's", EXIT(1), FAILURE_USER },
    { "a segmentation fault is the user's", EXIT(139), FAILURE_USER },
    { "SIGKILL without a word of memory is the user's", EXIT(137), FAILURE_USER },
    { "the kernel's word for memory decides", { .has_exit = true, .exit_code = 137, .reason = "OOMKilled" }, FAILURE_OOM },
    { "247 is -9, memory", EXIT(247), FAILURE_OOM },
    { "a GPU driver error is hardware", EXIT(201), FAILURE_HARDWARE },
    { "infoROM corruption is hardware", EXIT(14), FAILURE_HARDWARE },
    { "eviction outranks the code that it caused", { .has_exit = true, .exit_code = 143, .reason = "Evicted" }, FAILURE_INFRASTRUCTURE },
    { "a lost node", LOST("NodeLost"), FAILURE_INFRASTRUCTURE },
    { "a lost sidecar", LOST("SidecarLost"), FAILURE_INFRASTRUCTURE },
    { "node shutdown", LOST("Shutdown"), FAILURE_INFRASTRUCTURE },
    { "preemption by condition", { .has_exit = true, .exit_code = 1, .reason = "Error", .condition_types = TYPE, .condition_statuses = TRUE_,
                                   .condition_count = 1 }, FAILURE_INFRASTRUCTURE },
    { "a condition that is false says nothing", { .has_exit = true, .exit_code = 1, .reason = "Error", .condition_types = TYPE,
                                                  .condition_statuses = FALSE_, .condition_count = 1 }, FAILURE_USER },
    { "nobody saw it end", LOST(""), FAILURE_INFRASTRUCTURE },
    { "an unknown end without a reason", { .reason = NULL }, FAILURE_INFRASTRUCTURE },
    { "no progress", { .has_exit = true, .exit_code = 137, .reason = "Hang" }, FAILURE_HANG },
    { "an image that is not there is the user's", LOST("ImagePullBackOff"), FAILURE_USER },
};

Test(restart, classes_follow_from_reason_condition_and_code)
{
    for (size_t i = 0; i < COUNT(CLASSES); i++)
        cr_expect(restart_classify(&CLASSES[i].event) == CLASSES[i].class, "case %s: %s", CLASSES[i].name,
                  failure_class_name(restart_classify(&CLASSES[i].event)));
}

/* ---- ExitCode ---------------------------------------------------------------------------------------------------- */

Test(restart, exit_code_semantics_are_exact_at_every_code)
{
    auto_job struct training_job *job = fixture_job(1, 0, 3, 0, 0);
    struct restart_counters none = { .restarts = 0 };

    for (int code = 0; code <= 255; code++) {
        struct failure_event e = EXIT(code);
        struct restart_decision d = decide(job, &none, &e);
        bool limit_of_its_own = code == 152 || code == 153; /* SIGXCPU, SIGXFSZ: there is no other end to come */
        int expected = code == 0 ? IGNORE : code <= 127 || limit_of_its_own ? FAIL : GROUP;
        cr_expect(restart_is_user_code(code) == (code >= 1 && code <= 127));
        cr_expect((int)d.verdict == expected, "code %d: verdict %d", code, d.verdict);
        if (expected == FAIL)
            cr_expect_str_eq(d.reason, "PermanentExitCode", "code %d: %s", code, d.reason);
        if (expected == GROUP)
            cr_expect(d.counted && d.delay_ms == 0 && d.counters.restarts == 1 && d.counters.restarts_counted == 1, "code %d", code);
    }
}

/* ---- ends that come again ---------------------------------------------------------------------------------------- */

#define AGAIN(code) { .role = ROLE_WORKER, .index = 1, .has_exit = true, .exit_code = (code), .reason = "Error" }
#define OOM { .role = ROLE_WORKER, .index = 1, .has_exit = true, .exit_code = 137, .reason = "OOMKilled" }

/* What follows from the same end, time after time: p in place, n with a new pod on another node, F the job fails. */
static const struct { const char *name; struct failure_event event; enum oom_action oom; const char *follows, *reason; } LADDERS[] = {
    { "an exception", AGAIN(1), OOM_RESTART, "ppppppF", "BackoffLimitExceeded" },
    { "wrong usage", AGAIN(2), OOM_RESTART, "ppppppF", "BackoffLimitExceeded" },
    { "a kill from outside", AGAIN(137), OOM_RESTART, "ppppppF", "BackoffLimitExceeded" },
    { "SIGTERM from outside", AGAIN(143), OOM_RESTART, "ppppppF", "BackoffLimitExceeded" },
    { "a hangup", AGAIN(129), OOM_RESTART, "ppppppF", "BackoffLimitExceeded" },
    { "a broken pipe", AGAIN(141), OOM_RESTART, "ppppppF", "BackoffLimitExceeded" },
    { "an illegal instruction", AGAIN(132), OOM_RESTART, "pF", "RepeatedCrash" },
    { "a bus error", AGAIN(135), OOM_RESTART, "pF", "RepeatedCrash" },
    { "a segmentation fault", AGAIN(139), OOM_RESTART, "pnF", "RepeatedCrash" },
    { "an abort", AGAIN(134), OOM_RESTART, "pnnnnnF", "BackoffLimitExceeded" },
    { "CPU time", AGAIN(152), OOM_RESTART, "F", "PermanentExitCode" },
    { "file size", AGAIN(153), OOM_RESTART, "F", "PermanentExitCode" },
    { "asked not to be restarted", AGAIN(93), OOM_RESTART, "F", "PermanentExitCode" },
    { "a command that is not there",
      { .role = ROLE_WORKER, .index = 1, .has_exit = true, .exit_code = 127, .reason = "CommandNotFound" }, OOM_RESTART, "F", "PermanentExitCode" },
    { "a script whose own last command is not there", AGAIN(127), OOM_RESTART, "ppppppF", "BackoffLimitExceeded" },
    { "out of memory", OOM, OOM_RESTART, "pF", "OOMKilled" },
    { "out of memory with more each time", OOM, OOM_RESTART_WITH_MORE_MEMORY, "mmmmmmF", "BackoffLimitExceeded" },
    { "out of memory is the end", OOM, OOM_FAIL, "F", "OOMKilled" },
    { "a hang", { .role = ROLE_WORKER, .index = 1, .reason = "Hang" }, OOM_RESTART, "pnnnnnF", "BackoffLimitExceeded" },
    { "broken hardware by its code", AGAIN(201), OOM_RESTART, "nnnnnnF", "BackoffLimitExceeded" },
    { "broken hardware by the driver's words",
      { .role = ROLE_WORKER, .index = 1, .has_exit = true, .exit_code = 1, .message = "RuntimeError: CUDA error: uncorrectable ECC error encountered" },
      OOM_RESTART, "nnnnnnF", "BackoffLimitExceeded" },
    { "a lost node is no fault of the program", LOST("NodeLost"), OOM_RESTART, "pppppppp", "NodeLost" },
};

Test(restart, an_end_that_comes_again_climbs_the_ladder)
{
    for (size_t i = 0; i < COUNT(LADDERS); i++) {
        auto_job struct training_job *job = fixture_job(1, 0, 3, 0, 0);
        struct restart_counters c = { .restarts = 0 };
        struct restart_decision d = { .verdict = VERDICT_IGNORE };
        char follows[16] = "";
        job->spec.roles[ROLE_WORKER].restart_policy = RESTART_ON_FAILURE;
        job->spec.failure.oom_action = LADDERS[i].oom;
        for (size_t n = 0; n < strlen(LADDERS[i].follows) && d.verdict != VERDICT_FAIL_JOB; n++) {
            d = decide(job, &c, &LADDERS[i].event);
            follows[n] = d.verdict == VERDICT_FAIL_JOB ? 'F' : d.node_suspect ? 'n' : d.needs_new_pod ? 'm' : 'p';
            cr_expect(!d.node_suspect || d.needs_new_pod, "case %s", LADDERS[i].name);
            c = d.counters;
        }
        cr_expect_str_eq(follows, LADDERS[i].follows, "case %s: %s", LADDERS[i].name, follows);
        cr_expect_str_eq(d.reason, LADDERS[i].reason, "case %s: %s", LADDERS[i].name, d.reason);
    }
}

Test(restart, progress_another_replica_another_end_and_a_long_run_begin_anew)
{
    static const struct { const char *name; struct failure_event event; int32_t repeats; } rows[] = {
        { "the same", AGAIN(139), 2 },
        { "another code", AGAIN(138), 1 },
        { "another replica", { .role = ROLE_WORKER, .index = 0, .has_exit = true, .exit_code = 139 }, 1 },
        { "the chief", { .role = ROLE_CHIEF, .index = 1, .has_exit = true, .exit_code = 139 }, 1 },
        { "after a commit", { .role = ROLE_WORKER, .index = 1, .has_exit = true, .exit_code = 139, .made_progress = true }, 1 },
        { "after ten minutes", { .role = ROLE_WORKER, .index = 1, .has_exit = true, .exit_code = 139, .ran_ms = 600000 }, 1 },
        { "after nine minutes", { .role = ROLE_WORKER, .index = 1, .has_exit = true, .exit_code = 139, .ran_ms = 540000 }, 2 },
        { "a lost node leaves the count", LOST("NodeLost"), 1 },
    };
    auto_job struct training_job *job = fixture_job(1, 0, 3, 0, 0);
    struct failure_event first = AGAIN(139);
    struct restart_counters none = { .restarts = 0 };
    struct restart_decision before = decide(job, &none, &first);

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct restart_decision d = decide(job, &before.counters, &rows[i].event);
        cr_expect(d.counters.repeats == rows[i].repeats, "case %s: %d", rows[i].name, d.counters.repeats);
    }
}

Test(restart, a_crash_right_after_a_start_is_told_from_one_after_some_work)
{
    static const struct { const char *name; struct failure_event event; int32_t crashes; } rows[] = {
        { "right away", AGAIN(1), 3 },
        { "a hang right away", { .role = ROLE_WORKER, .index = 1, .reason = "Hang" }, 3 },
        { "after a few steps", { .role = ROLE_WORKER, .has_exit = true, .exit_code = 1, .steps_done = { .set = true, .value = 9 } }, 3 },
        { "after ten steps", { .role = ROLE_WORKER, .has_exit = true, .exit_code = 1, .steps_done = { .set = true, .value = 10 } }, 0 },
        { "after a commit", { .role = ROLE_WORKER, .has_exit = true, .exit_code = 1, .made_progress = true }, 0 },
        { "after ten minutes", { .role = ROLE_WORKER, .has_exit = true, .exit_code = 1, .ran_ms = 600000 }, 0 },
        { "out of memory says nothing about the checkpoint", OOM, 2 },
        { "nor does a lost node", LOST("NodeLost"), 2 },
    };
    auto_job struct training_job *job = fixture_job(1, 0, 3, 0, 0);
    struct restart_counters before = { .restarts = 2, .crashes = 2 };

    job->spec.roles[ROLE_WORKER].restart_policy = RESTART_ON_FAILURE;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct restart_decision d = decide(job, &before, &rows[i].event);
        cr_expect(d.counters.crashes == rows[i].crashes, "case %s: %d", rows[i].name, d.counters.crashes);
    }
}

Test(restart, a_rule_outranks_the_ladder)
{
    auto_job struct training_job *job = fixture_job(1, 0, 3, 0, 0);
    struct restart_counters c = { .restarts = 0 };
    struct failure_event e = AGAIN(139);
    int32_t codes[] = { 139 };
    struct failure_rule rule = { .name = (char *)"try-on", .action = RULE_RESTART_JOB, .has_exit_codes = true, .exit_codes_in = true,
                                 .exit_codes = codes, .exit_code_count = 1, .any_role = true };

    job->spec.failure.rules = &rule;
    job->spec.failure.rule_count = 1;
    for (int i = 0; i < 6; i++) {
        struct restart_decision d = decide(job, &c, &e);
        cr_expect(d.verdict == VERDICT_RESTART_GROUP && !d.needs_new_pod, "time %d", i);
        c = d.counters;
    }
    job->spec.failure.rules = NULL;
    job->spec.failure.rule_count = 0;
}

Test(restart, the_drivers_words_for_broken_hardware_are_known)
{
    static const struct { const char *message; bool blames; } rows[] = {
        { NULL, false },
        { "", false },
        { "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.", true },
        { "NVRM: Xid (PCI:0000:3b:00): 94, Contained: SM (0x1).", true },
        { "NVRM: Xid (PCI:0000:3b:00): 31, pid=1, MMU Fault", false }, /* the program's own */
        { "NVRM: Xid (PCI:0000:3b:00): 13, Graphics Exception\nNVRM: Xid (PCI:0000:3b:00): 48, DBE", true },
        { "Xid (", false },
        { "Xid (): 790", false },
        { "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered", true },
        { "CUDA out of memory", false },
    };

    for (size_t i = 0; i < COUNT(rows); i++)
        cr_expect(restart_blames_hardware(rows[i].message) == rows[i].blames, "case %zu", i);
}

Test(restart, a_failure_without_hope_says_why_and_what_to_do)
{
    static const struct { struct failure_event event; int32_t repeats; const char *message; } rows[] = {
        { AGAIN(139), 2, "worker-1 exited with code 139 (SIGSEGV): see the log of worker-1; 3 times in a row without progress: "
                         "it crashed on another node, too; a rule of spec.failurePolicy can say otherwise" },
        { AGAIN(93), 0, "worker-1 exited with code 93: see the log of worker-1; code 93 asks not to be started again" },
    };
    auto_job struct training_job *job = fixture_job(1, 0, 3, 0, 0);

    job->spec.roles[ROLE_WORKER].restart_policy = RESTART_ON_FAILURE;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct restart_counters c = { .repeats = rows[i].repeats, .last_end = restart_end_of(&rows[i].event, FAILURE_USER) };
        struct restart_decision d = decide(job, &c, &rows[i].event);
        cr_expect(d.hopeless && d.verdict == VERDICT_FAIL_JOB, "case %zu", i);
        cr_expect_str_eq(d.message, rows[i].message, "case %zu: %s", i, d.message);
    }
}

/* ---- policies ---------------------------------------------------------------------------------------------------- */

static const struct { const char *name; enum restart_policy policy; struct failure_event event; int verdict; bool counted; const char *reason; } POLICIES[] = {
    { "Always restarts after an error", RESTART_ALWAYS, EXIT(1), GROUP, true, "WorkerRestarting" },
    { "OnFailure restarts after any code", RESTART_ON_FAILURE, EXIT(127), GROUP, true, "WorkerRestarting" },
    { "Never fails the job", RESTART_NEVER, EXIT(139), FAIL, false, "WorkerFailed" },
    { "Never does not restart what ran out of memory", RESTART_NEVER, { .role = ROLE_WORKER, .has_exit = true, .exit_code = 137, .reason = "OOMKilled" },
      FAIL, false, "WorkerFailed" },
    { "Never is about the program, not about the node", RESTART_NEVER, LOST("NodeLost"), GROUP, false, "NodeLost" },
    { "eviction is free", RESTART_EXIT_CODE, { .role = ROLE_WORKER, .has_exit = true, .exit_code = 1, .reason = "Evicted" }, GROUP, false, "Evicted" },
    { "a lost sidecar is free", RESTART_EXIT_CODE, LOST("SidecarLost"), GROUP, false, "SidecarLost" },
    { "a pod that nobody saw end is free", RESTART_EXIT_CODE, LOST(""), GROUP, false, "PodLost" },
    { "out of memory is charged", RESTART_EXIT_CODE, { .role = ROLE_WORKER, .has_exit = true, .exit_code = 137, .reason = "OOMKilled" },
      GROUP, true, "OOMKilled" },
    { "a hang is charged", RESTART_EXIT_CODE, { .role = ROLE_WORKER, .has_exit = true, .exit_code = 137, .reason = "Hang" }, GROUP, true, "Hang" },
    { "a hang without a code is charged", RESTART_EXIT_CODE, LOST("Hang"), GROUP, true, "Hang" },
    { "an image that cannot be pulled ends the job", RESTART_ON_FAILURE, LOST("ImagePullBackOff"), FAIL, false, "StartTimeout" },
};

Test(restart, policies_decide_what_the_rules_leave)
{
    for (size_t i = 0; i < COUNT(POLICIES); i++) {
        auto_job struct training_job *job = fixture_job(1, 0, 3, 0, 0);
        struct restart_counters none = { .restarts = 0 };
        job->spec.roles[ROLE_WORKER].restart_policy = POLICIES[i].policy;
        struct restart_decision d = decide(job, &none, &POLICIES[i].event);
        cr_expect((int)d.verdict == POLICIES[i].verdict, "case %s: verdict %d", POLICIES[i].name, d.verdict);
        cr_expect(d.counted == POLICIES[i].counted, "case %s: counted %d", POLICIES[i].name, d.counted);
        cr_expect_str_eq(d.reason, POLICIES[i].reason, "case %s: %s", POLICIES[i].name, d.reason);
        cr_expect(d.message[0] != '\0', "case %s", POLICIES[i].name);
        cr_expect(d.counters.restarts == (d.verdict == VERDICT_RESTART_GROUP), "case %s", POLICIES[i].name);
        cr_expect(d.counters.disruptions == (d.verdict == VERDICT_RESTART_GROUP && !d.counted), "case %s", POLICIES[i].name);
    }
}

Test(restart, oom_policy_fail_ends_the_job)
{
    auto_job struct training_job *job = fixture_job(0, 0, 2, 0, 0);
    struct restart_counters none = { .restarts = 0 };
    struct failure_event e = { .role = ROLE_WORKER, .has_exit = true, .exit_code = 137, .reason = "OOMKilled" };

    job->spec.failure.oom_action = OOM_FAIL;
    struct restart_decision d = decide(job, &none, &e);
    cr_expect(d.verdict == VERDICT_FAIL_JOB);
    cr_expect_str_eq(d.reason, "OOMKilled");
    cr_expect_str_eq(d.message, "worker-0 was killed because it ran out of memory (code 137): raise "
                                "spec.replicaSpecs.Worker.template.spec.containers[0].resources.limits.memory");
    job->spec.failure.oom_action = OOM_RESTART_WITH_MORE_MEMORY;
    d = decide(job, &none, &e);
    cr_expect(d.verdict == VERDICT_RESTART_GROUP && d.counted && d.needs_new_pod);
}

static const struct { const char *name; int32_t ps; enum job_role role; int verdict; } GROUPS[] = {
    { "a worker of a ring takes the group along", 0, ROLE_WORKER, GROUP },
    { "the chief of a ring takes the group along", 0, ROLE_CHIEF, GROUP },
    { "an evaluator is outside the ring", 0, ROLE_EVALUATOR, ALONE },
    { "a worker beside a ps is restarted alone", 2, ROLE_WORKER, ALONE },
    { "a ps is restarted alone", 2, ROLE_PS, ALONE },
};

Test(restart, only_the_ring_restarts_as_one)
{
    for (size_t i = 0; i < COUNT(GROUPS); i++) {
        auto_job struct training_job *job = fixture_job(1, 0, 3, GROUPS[i].ps, 1);
        struct restart_counters none = { .restarts = 0 };
        struct failure_event e = { .role = GROUPS[i].role, .has_exit = true, .exit_code = 139, .reason = "Error" };
        cr_expect((int)decide(job, &none, &e).verdict == GROUPS[i].verdict, "case %s", GROUPS[i].name);
    }
}

/* ---- rules ------------------------------------------------------------------------------------------------------- */

Test(restart, the_first_rule_that_matches_wins)
{
    auto_job struct training_job *job = fixture_job(1, 0, 3, 0, 0);
    struct restart_counters none = { .restarts = 0 };
    struct failure_event two = EXIT(2), three = EXIT(3);

    fixture_rule_codes(fixture_rule(job, RULE_RESTART_JOB), true, 2, (int32_t[]){ 2, 64 });
    fixture_rule_codes(fixture_rule(job, RULE_FAIL_JOB), true, 1, (int32_t[]){ 2 });
    struct restart_decision d = decide(job, &none, &two);
    cr_expect(d.verdict == VERDICT_RESTART_GROUP && d.counted);
    cr_expect(decide(job, &none, &three).verdict == VERDICT_FAIL_JOB);
    cr_expect(restart_rule_matches(job, &two) && !restart_rule_matches(job, &three));
}

Test(restart, rules_match_by_code_reason_condition_message_role_and_container)
{
    static const char *const reasons[] = { "Evicted", "ImagePullBackOff" };
    auto_job struct training_job *job = fixture_job(1, 0, 3, 0, 0);
    struct failure_rule *rule = fixture_rule(job, RULE_FAIL_JOB);
    struct failure_event e = { .role = ROLE_WORKER, .has_exit = true, .exit_code = 5, .reason = "Evicted", .message = "CUDA error: 700",
                               .condition_types = TYPE, .condition_statuses = TRUE_, .condition_count = 1 };

    cr_expect(restart_rule_matches(job, &e), "a rule without criteria holds for all");
    rule->any_role = false;
    rule->roles[ROLE_CHIEF] = true;
    cr_expect(!restart_rule_matches(job, &e), "another role");
    rule->roles[ROLE_WORKER] = true;
    cr_expect(restart_rule_matches(job, &e), "this role");

    fixture_rule_codes(rule, true, 1, (int32_t[]){ 5 });
    cr_expect(restart_rule_matches(job, &e), "In");
    rule->exit_codes_in = false;
    cr_expect(!restart_rule_matches(job, &e), "NotIn");
    rule->exit_codes_in = true;
    e.container = "logger";
    cr_expect(!restart_rule_matches(job, &e), "another container's code");
    rule->container = xstrdup("logger");
    cr_expect(restart_rule_matches(job, &e), "that container's code");
    e.has_exit = false;
    cr_expect(!restart_rule_matches(job, &e), "no code at all");
    e.has_exit = true;

    rule->reason_count = 2;
    rule->reasons = fixture_texts(2, reasons);
    cr_expect(restart_rule_matches(job, &e), "one of the reasons");
    e.reason = "Error";
    cr_expect(!restart_rule_matches(job, &e), "none of the reasons");
    e.reason = "ImagePullBackOff";

    rule->condition_count = 1;
    rule->condition_types = fixture_texts(1, TYPE);
    rule->condition_statuses = fixture_texts(1, FALSE_);
    cr_expect(!restart_rule_matches(job, &e), "another status of the condition");
    free(rule->condition_statuses[0]);
    rule->condition_statuses[0] = xstrdup("True");
    cr_expect(restart_rule_matches(job, &e), "the condition");

    rule->message_pattern = xstrdup("CUDA error: (700|719)$");
    cr_expect(restart_rule_matches(job, &e), "the message");
    e.message = "CUDA error: 7001";
    cr_expect(!restart_rule_matches(job, &e), "another message");
    e.message = NULL;
    cr_expect(!restart_rule_matches(job, &e), "no message");
    free(rule->message_pattern);
    rule->message_pattern = xstrdup("(unclosed");
    e.message = "(unclosed";
    cr_expect(!restart_rule_matches(job, &e), "a pattern that is none matches nothing");
    free(rule->message_pattern);
    rule->message_pattern = xstrdup("((a{999}){999}){999}");
    cr_expect(!restart_rule_matches(job, &e), "a pattern that would take all memory is not compiled");
    free(rule->message_pattern);
    rule->message_pattern = xstrdup("u[a-z]{2,8}d");
    cr_expect(restart_rule_matches(job, &e), "an ordinary repetition is");
}

static const struct { const char *name; enum rule_action action; int32_t ps; int verdict; bool counted; } ACTIONS[] = {
    { "FailJob", RULE_FAIL_JOB, 0, FAIL, false },
    { "RestartJob", RULE_RESTART_JOB, 0, GROUP, true },
    { "RestartJobAndIgnoreMaxRestarts", RULE_RESTART_JOB_FREE, 0, GROUP, false },
    { "RestartPod of a rank takes its group along", RULE_RESTART_POD, 0, GROUP, true },
    { "RestartPod beside a ps", RULE_RESTART_POD, 1, ALONE, true },
    { "RestartJob beside a ps restarts all", RULE_RESTART_JOB, 1, GROUP, true },
    { "RestartPodAndIgnoreMaxRestarts", RULE_RESTART_POD_FREE, 1, ALONE, false },
    { "Ignore", RULE_IGNORE, 0, IGNORE, false },
};

Test(restart, rule_actions_do_what_their_names_say)
{
    for (size_t i = 0; i < COUNT(ACTIONS); i++) {
        auto_job struct training_job *job = fixture_job(1, 0, 3, ACTIONS[i].ps, 0);
        struct restart_counters spent = { .restarts = 3, .restarts_counted = 3 };
        struct failure_event e = EXIT(3);
        (void)fixture_rule(job, ACTIONS[i].action);
        struct restart_decision d = decide(job, &spent, &e);
        cr_expect((int)d.verdict == ACTIONS[i].verdict, "case %s: verdict %d", ACTIONS[i].name, d.verdict);
        cr_expect(d.counted == ACTIONS[i].counted, "case %s", ACTIONS[i].name);
    }
}

Test(restart, free_rules_ignore_max_restarts_but_infrastructure_does_not)
{
    auto_job struct training_job *job = fixture_job(1, 0, 3, 0, 0);
    struct restart_counters spent = { .restarts = 4 };
    struct failure_event lost = LOST("NodeLost");

    job->spec.failure.max_restarts = (struct optional_int){ .set = true, .value = 4 };
    struct restart_decision d = decide(job, &spent, &lost);
    cr_expect(d.verdict == VERDICT_FAIL_JOB);
    cr_expect_str_eq(d.reason, "MaxRestartsExceeded");
    (void)fixture_rule(job, RULE_RESTART_JOB_FREE);
    cr_expect(decide(job, &spent, &lost).verdict == VERDICT_RESTART_GROUP);
    job->spec.failure.max_disruptions = (struct optional_int){ .set = true, .value = 0 };
    d = decide(job, &spent, &lost);
    cr_expect(d.verdict == VERDICT_FAIL_JOB);
    cr_expect_str_eq(d.reason, "MaxDisruptionsExceeded");
}

/* ---- budgets ----------------------------------------------------------------------------------------------------- */

static const struct { const char *name; int32_t limit, used; bool goes_on; } LIMITS[] = {
    { "0 allows no restart", 0, 0, false },   { "the last of 6", 6, 5, true },
    { "one more than 6", 6, 6, false },        { "-1 is without end", -1, 1000000, true },
};

Test(restart, backoff_limit_bounds_what_is_charged)
{
    for (size_t i = 0; i < COUNT(LIMITS); i++) {
        auto_job struct training_job *job = fixture_job(0, 0, 2, 0, 0);
        struct restart_counters used = { .restarts = LIMITS[i].used, .restarts_counted = LIMITS[i].used };
        struct failure_event e = EXIT(139);
        job->spec.backoff_limit = LIMITS[i].limit;
        struct restart_decision d = decide(job, &used, &e);
        cr_expect((d.verdict != VERDICT_FAIL_JOB) == LIMITS[i].goes_on, "case %s", LIMITS[i].name);
        if (!LIMITS[i].goes_on) {
            cr_expect_str_eq(d.reason, "BackoffLimitExceeded", "case %s: %s", LIMITS[i].name, d.reason);
            cr_expect(d.counters.restarts == LIMITS[i].used, "a restart that does not happen is not counted");
        }
    }
}

/* Five restarts on each side of an hour that a window with fixed borders would end at. */
Test(restart, a_crash_loop_does_not_hide_behind_the_end_of_a_window)
{
    auto_job struct training_job *job = fixture_job(0, 0, 2, 0, 0);
    struct restart_counters c = { .restarts = 0 };
    struct failure_event e = EXIT(137);
    struct restart_decision d = { .verdict = VERDICT_IGNORE };
    int allowed = 0;

    job->spec.failure.restart_window_s = 3600;
    job->spec.backoff_limit = 6;
    restart_decide(job, &c, &e, NOW, &d); /* begins what would be the window */
    c = d.counters;
    for (int i = 0; i < 10 && d.verdict != VERDICT_FAIL_JOB; i++) {
        restart_decide(job, &c, &e, NOW + 3300000 + i * 120000, &d);
        c = d.counters;
        allowed += d.verdict != VERDICT_FAIL_JOB;
    }
    cr_expect(d.verdict == VERDICT_FAIL_JOB && allowed == 6, "%d", allowed);
    cr_expect_str_eq(d.reason, "BackoffLimitExceeded");
}

Test(restart, a_fault_a_day_does_not_end_a_long_job_but_a_crash_loop_does)
{
    auto_job struct training_job *job = fixture_job(0, 0, 2, 0, 0);
    struct restart_counters c = { .restarts = 0 };
    struct failure_event e = EXIT(137);
    struct restart_decision d;
    int64_t now = NOW;

    job->spec.failure.restart_window_s = 3600;
    for (int day = 0; day < 21; day++, now += 86400000) {
        restart_decide(job, &c, &e, now, &d);
        cr_expect(d.verdict == VERDICT_RESTART_GROUP, "day %d", day);
        c = d.counters;
    }
    cr_expect(c.restarts_counted == 21 && c.window.part_count == 1);
    int loops = 0;
    do {
        restart_decide(job, &c, &e, now, &d);
        c = d.counters;
        now += 60000;
    } while (d.verdict == VERDICT_RESTART_GROUP && ++loops < 100);
    cr_expect(loops == 6, "%d restarts within the window", loops);
    cr_expect_str_eq(d.reason, "BackoffLimitExceeded");
}

/* ---- back-off ---------------------------------------------------------------------------------------------------- */

Test(restart, delays_double_from_the_second_restart_of_a_streak_up_to_the_most)
{
    static const int64_t expected_s[] = { 0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300 };
    auto_job struct training_job *job = fixture_job(0, 0, 2, 0, 0);
    struct restart_counters c = { .restarts = 0 };
    struct failure_event e = EXIT(137);

    job->spec.backoff_limit = -1;
    for (size_t i = 0; i < COUNT(expected_s); i++) {
        struct restart_decision d = decide(job, &c, &e), again = decide(job, &c, &e);
        int64_t base = expected_s[i] * 1000;
        cr_expect(d.delay_ms >= base - base / 10 && d.delay_ms <= base + base / 10 && d.delay_ms <= 300000, "restart %zu: %lld ms", i + 1,
                  (long long)d.delay_ms);
        cr_expect(d.delay_ms == again.delay_ms, "the jitter is always the same for one restart");
        c = d.counters;
    }
    e.made_progress = true;
    struct restart_decision d = decide(job, &c, &e);
    cr_expect(d.delay_ms == 0 && d.counters.streak == 1, "progress ends the streak");
    cr_expect(d.counters.restarts_counted == c.restarts_counted + 1, "but is no pardon");
}

Test(restart, jitter_differs_between_jobs)
{
    int different = 0;

    for (int i = 0; i < 20; i++) {
        auto_job struct training_job *a = fixture_job(0, 0, 2, 0, 0), *b = fixture_job(0, 0, 2, 0, 0);
        struct restart_counters c = { .restarts = i, .streak = 8 };
        struct failure_event e = LOST("NodeLost");
        free(b->uid);
        b->uid = xstrdup("another");
        different += decide(a, &c, &e).delay_ms != decide(b, &c, &e).delay_ms;
    }
    cr_expect(different >= 18, "%d of 20", different);
}

/* ---- dynamic workers --------------------------------------------------------------------------------------------- */

Test(restart, a_dynamic_worker_may_fail_for_good_unless_the_end_hangs_on_it)
{
    struct restart_counters none = { .restarts = 0 };
    struct failure_event one = EXIT(1), zero = EXIT(1);
    zero.index = 0;
    auto_job struct training_job *job = fixture_job(0, 0, 3, 1, 0);

    job->spec.enable_dynamic_worker = true;
    cr_expect(decide(job, &none, &one).verdict == VERDICT_IGNORE);
    cr_expect(decide(job, &none, &zero).verdict == VERDICT_FAIL_JOB, "worker 0 is the chief here");
    job->spec.success_policy = SUCCESS_ALL_WORKERS;
    cr_expect(decide(job, &none, &one).verdict == VERDICT_FAIL_JOB);
}

/* ---- words ------------------------------------------------------------------------------------------------------- */

static const struct { const char *name; enum restart_policy policy; struct failure_event event; const char *message; } MESSAGES[] = {
    { "command not found", RESTART_EXIT_CODE, EXIT(127),
      "worker-1 exited with code 127 (command not found): check spec.replicaSpecs.Worker.template.spec.containers[0].command; restartPolicy "
      "ExitCode does not retry codes 1 to 127" },
    { "a file that is no program", RESTART_EXIT_CODE,
      { .role = ROLE_WORKER, .index = 1, .has_exit = true, .exit_code = 126, .reason = "Error",
        .message = "exec /app/train: no program for this machine, and no #! line that names an interpreter" },
      "worker-1 could not start (code 126): exec /app/train: no program for this machine, and no #! line that names an interpreter: check "
      "spec.replicaSpecs.Worker.template.spec.containers[0].command; restartPolicy ExitCode does not retry codes 1 to 127" },
    { "the launcher's log is all there is", RESTART_EXIT_CODE,
      { .role = ROLE_WORKER, .index = 1, .has_exit = true, .exit_code = 127, .reason = "Error",
        .message = "time=x level=error component=launch msg=\"command cannot be run\" error=\"exec train: not found in PATH (/bin)\" code=127" },
      "worker-1 could not start (code 127): exec train: not found in PATH (/bin): check "
      "spec.replicaSpecs.Worker.template.spec.containers[0].command; restartPolicy ExitCode does not retry codes 1 to 127" },
    { "the container runtime says it", RESTART_NEVER,
      { .role = ROLE_WORKER, .index = 1, .has_exit = true, .exit_code = 128, .reason = "StartError",
        .message = "failed to create containerd task: runc create failed: exec: \"train\": executable file not found in $PATH: unknown" },
      "worker-1 could not start (code 128): exec: \"train\": executable file not found in $PATH: unknown: see the log of worker-1; "
      "restartPolicy is Never" },
    { "a traceback", RESTART_EXIT_CODE, EXIT(1),
      "worker-1 exited with code 1: see the log of worker-1; restartPolicy ExitCode does not retry codes 1 to 127" },
    { "a crash that is retried", RESTART_EXIT_CODE, { .role = ROLE_WORKER, .index = 1, .has_exit = true, .exit_code = 139, .signal = 11 },
      "worker-1 was ended by signal 11 (SIGSEGV); restarting the group, 1 of 6 restarts charged" },
    { "a lost node", RESTART_EXIT_CODE, LOST("NodeLost"), "worker-1 was lost: NodeLost; restarting the group, not charged to backoffLimit" },
    { "never", RESTART_NEVER, EXIT(3), "worker-1 exited with code 3: see the log of worker-1; restartPolicy is Never" },
};

Test(restart, messages_say_who_what_and_what_to_do)
{
    for (size_t i = 0; i < COUNT(MESSAGES); i++) {
        auto_job struct training_job *job = fixture_job(0, 0, 2, 0, 0);
        struct restart_counters none = { .restarts = 0 };
        job->spec.roles[ROLE_WORKER].restart_policy = MESSAGES[i].policy;
        struct restart_decision d = decide(job, &none, &MESSAGES[i].event);
        cr_expect_str_eq(d.message, MESSAGES[i].message, "case %s: %s", MESSAGES[i].name, d.message);
    }
}

Test(restart, a_spent_budget_is_named_with_its_field)
{
    auto_job struct training_job *job = fixture_job(0, 0, 2, 0, 0);
    struct restart_counters used = { .restarts = 8, .restarts_counted = 6, .disruptions = 2 };
    struct failure_event e = EXIT(139);

    cr_expect_str_eq(decide(job, &used, &e).message, "worker-1 exited with code 139 (SIGSEGV): see the log of worker-1; 6 restarts were charged, "
                                                     "spec.runPolicy.backoffLimit is 6");
}

/* ---- policy over the environment --------------------------------------------------------------------------------- */

static struct training_job *rich_job(void)
{
    static const char *const reasons[] = { "Evicted", "Shutdown" };
    struct training_job *job = fixture_job(1, 0, 3, 0, 1);
    struct failure_rule *rule;

    job->spec.backoff_limit = 3;
    job->spec.failure.max_restarts = (struct optional_int){ .set = true, .value = 5 };
    job->spec.failure.restart_window_s = 600;
    job->spec.failure.strategy = STRATEGY_RECREATE_FAILED;
    job->spec.failure.oom_action = OOM_FAIL;
    job->spec.roles[ROLE_CHIEF].restart_policy = RESTART_NEVER;
    rule = fixture_rule(job, RULE_FAIL_JOB);
    fixture_rule_codes(rule, false, 2, (int32_t[]){ 130, 143 });
    rule->any_role = false;
    rule->roles[ROLE_EVALUATOR] = true;
    rule = fixture_rule(job, RULE_RESTART_JOB_FREE);
    rule->reason_count = 2;
    rule->reasons = fixture_texts(2, reasons);
    rule->message_pattern = xstrdup("a \"quoted\" .*$|$(HOME)");
    rule = fixture_rule(job, RULE_IGNORE);
    rule->condition_count = 1;
    rule->condition_types = fixture_texts(1, TYPE);
    rule->condition_statuses = fixture_texts(1, TRUE_);
    rule->container = xstrdup("tensorflow");
    return job;
}

Test(restart, the_coordinator_with_the_encoded_policy_comes_to_the_same_verdict)
{
    auto_job struct training_job *job = rich_job(), *copy = NULL;
    auto_free char *text = restart_policy_encode(job), *again = NULL;
    struct error e = ERROR_INIT;

    cr_assert(restart_policy_decode(text, &copy, &e) == 0, "%s", e.text);
    again = restart_policy_encode(copy);
    cr_expect_str_eq(text, again);
    cr_expect(strchr(text, '$') == NULL, "the kubelet must not expand anything in it");
    cr_expect_str_eq(copy->spec.failure.rules[1].message_pattern, job->spec.failure.rules[1].message_pattern);
    static const char *const why[] = { "Error", "Evicted", "OOMKilled", "", "SidecarLost" };
    for (int code = 0; code < 256; code++) {
        for (size_t k = 0; k < COUNT(why); k++) {
            struct restart_counters c = { .restarts = code % 7, .restarts_counted = code % 4, .streak = code % 5, 
                                          .window = { .parts = { { NOW - code * 5000, code % 4 + 1 } }, .part_count = code % 2 } };
            struct failure_event v = { .role = code % 3 == 0 ? ROLE_EVALUATOR : code % 3 == 1 ? ROLE_CHIEF : ROLE_WORKER, .has_exit = code % 2 == 0,
                                       .exit_code = code, .reason = why[k], .message = "a \"quoted\" message" };
            struct restart_decision one = decide(job, &c, &v), two = decide(copy, &c, &v);
            cr_assert(one.verdict == two.verdict && one.delay_ms == two.delay_ms && one.class == two.class && one.needs_new_pod == two.needs_new_pod);
            cr_assert(memcmp(&one.counters, &two.counters, sizeof one.counters) == 0);
            cr_assert_str_eq(one.message, two.message);
        }
    }
}

static const struct { const char *name, *text, *error; } BAD[] = {
    { "no JSON", "{", "restart policy: line 1" },
    { "a list", "[]", "not a JSON object" },
    { "an unknown action", "{\"rules\":[{\"action\":\"Explode\"}]}", "action is \"Explode\"" },
    { "a role that is none", "{\"roles\":{\"King\":{\"replicas\":1,\"restartPolicy\":\"Never\"}}}", "\"King\" is no role" },
    { "too many replicas", "{\"roles\":{\"Worker\":{\"replicas\":10001,\"restartPolicy\":\"Never\"}}}", "replicas is 10001" },
    { "a code over 255", "{\"rules\":[{\"action\":\"Ignore\",\"exitCodesIn\":[256]}]}", "from 0 to 255" },
    { "conditions without statuses", "{\"rules\":[{\"action\":\"Ignore\",\"conditionTypes\":[\"a\",\"b\"],\"conditionStatuses\":[\"True\"]}]}", "differ in length" },
    { "statuses without conditions", "{\"rules\":[{\"action\":\"Ignore\",\"conditionStatuses\":[\"True\"]}]}", "differ in length" },
    { "a budget below -1", "{\"backoffLimit\":-2}", "backoffLimit is -2" },
    { "the same role twice", "{\"roles\":{\"Worker\":{\"restartPolicy\":\"Never\"},\"worker\":{\"restartPolicy\":\"Never\"}}}", "is no role" },
};

Test(restart, a_policy_that_is_none_is_refused)
{
    for (size_t i = 0; i < COUNT(BAD); i++) {
        struct training_job *job = NULL;
        struct error e = ERROR_INIT;
        cr_expect(restart_policy_decode(BAD[i].text, &job, &e) < 0 && job == NULL, "case %s", BAD[i].name);
        cr_expect(strstr(e.text, BAD[i].error) != NULL, "case %s: %s", BAD[i].name, e.text);
    }
}
