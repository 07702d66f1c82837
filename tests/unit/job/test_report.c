#include <criterion/criterion.h>

#include "job/report.h"
#include "tests/unit/job/job_fixture.h"

static struct coordinator_report full_report(void)
{
    struct coordinator_report r = {
        .job_uid = "0b1e8a3c", .coordinator = "chief-0", .attempt = 3, .round = 4, .formed = true, .self_test_ok = true,
        .formed_ms = 1700000000123, .form_seconds = 0.25,
        .counters = { .restarts = 3, .restarts_counted = 2, .disruptions = 1, .streak = 1, .window = { .parts = { { 99, 1 }, { 100, 1 } }, .part_count = 2 } },
        .checkpoint_step = 500, .checkpoint_ms = 1700000001000, .checkpoint_uri = "/ckpt/step-500", .resume_step = 450, .over = true,
        .stalled = "\"w\" has waited 60 s for rank 1 (worker-0)",
        .gave_up = true, .give_up_reason = "PermanentExitCode", .give_up_message = "worker-1 \"exited\"\n", .sent_ms = 1700000002000,
    };

    r.rounds = xcalloc(1, sizeof *r.rounds);
    r.round_count = 1;
    r.rounds[0] = (struct round_view){
        .attempt = 3, .round = 3,
        .cause = { .attempt = 3, .round = 3, .role = ROLE_WORKER, .index = 1, .pod = "mnist-worker-1", .node = "n1", .container = "tensorflow",
                   .has_exit = true, .exit_code = 137, .signal = 9, .reason = "Error", .class = FAILURE_USER, .message = "killed",
                   .time_ms = 1700000000000, .lost_steps = { .set = true, .value = 12 } },
        .counters = { .restarts = 3, .restarts_counted = 2 },
    };
    r.members = xcalloc(2, sizeof *r.members);
    r.member_count = 2;
    r.members[0] = (struct member_report){ .member = "chief-0", .rank = 0, .state = PROCESS_RUNNING, .pid = 17, .attached = true, .step = 510,
                                           .total_steps = 1000, .has_loss = true, .loss = 0.125, .step_ms = 3.5, .bytes_reduced = 1 << 30,
                                           .operations = 42, .busbw_gbps = 1.25, .wait_ms = 0.5, .metrics = "{\"accuracy\":0.97}",
                                           .started_ms = 5, .first_step_ms = 6 };
    r.members[1] = (struct member_report){ .member = "ps-0", .rank = -1, .state = PROCESS_WAITING, .step = -1, .total_steps = -1 };
    return r;
}

Test(report, what_is_written_is_read_back_whole)
{
    struct coordinator_report r = full_report(), back;
    auto_free char *text = report_encode(&r), *again = NULL;
    struct error e = ERROR_INIT;

    cr_expect(strchr(text, '\n') == NULL, "one report is one line");
    cr_assert(report_decode(text, strlen(text), &back, &e) == 0, "%s", e.text);
    again = report_encode(&back);
    cr_expect_str_eq(text, again);
    cr_expect(back.round_count == 1 && back.rounds[0].cause.exit_code == 137 && back.rounds[0].cause.lost_steps.value == 12);
    cr_expect(back.member_count == 2 && back.members[0].loss == 0.125 && !back.members[1].has_loss && back.members[1].step == -1);
    cr_expect_str_eq(back.members[0].metrics, "{\"accuracy\":0.97}");
    cr_expect_str_eq(back.stalled, r.stalled);
    cr_expect(back.over && back.gave_up && back.resume_step == 450 && back.counters.window.part_count == 2 && back.counters.window.parts[1].at_ms == 100);
    report_release(&r);
    report_release(&back);
}

Test(report, a_loss_that_is_no_number_is_left_out)
{
    struct coordinator_report r = full_report(), back;
    struct error e = ERROR_INIT;

    r.members[0].loss = 0.0 / 0.0;
    r.members[0].busbw_gbps = 1.0 / 0.0;
    auto_free char *text = report_encode(&r);
    cr_assert(report_decode(text, strlen(text), &back, &e) == 0, "%s", e.text);
    cr_expect(!back.members[0].has_loss && back.members[0].busbw_gbps == 0);
    report_release(&r);
    report_release(&back);
}

Test(report, a_large_job_is_reported_within_bounds)
{
    struct coordinator_report r = full_report(), back;
    struct error e = ERROR_INIT;

    r.rounds = xrealloc(r.rounds, 500, sizeof *r.rounds);
    for (r.round_count = 1; r.round_count < 500; r.round_count++) {
        r.rounds[r.round_count] = r.rounds[0];
        r.rounds[r.round_count].round = (int32_t)r.round_count;
        memset(r.rounds[r.round_count].cause.message, 'x', sizeof r.rounds[0].cause.message - 1);
    }
    r.members = xrealloc(r.members, 2000, sizeof *r.members);
    for (; r.member_count < 2000; r.member_count++)
        r.members[r.member_count] = r.members[0];
    auto_free char *text = report_encode(&r);
    cr_assert(report_decode(text, strlen(text), &back, &e) == 0, "%s", e.text);
    cr_expect(back.member_count == REPORT_MAX_MEMBERS);
    cr_expect(back.rounds[back.round_count - 1].round == 499, "the newest rounds are there");
    report_release(&r);
    report_release(&back);
}

Test(report, a_last_word_is_short_and_says_how_many_there_were)
{
    static const struct { const char *name; size_t rounds, parts; } ROWS[] = {
        { "one round", 1, 0 }, { "a few", 3, 0 }, { "more than there is room for", 16, 0 }, { "with a window of restarts", 16, 16 },
    };

    for (size_t i = 0; i < COUNT(ROWS); i++) {
        struct coordinator_report r = full_report(), back;
        struct error e = ERROR_INIT;
        r.rounds = xrealloc(r.rounds, ROWS[i].rounds, sizeof *r.rounds);
        r.round_count = ROWS[i].rounds;
        for (size_t k = 0; k < r.round_count; k++) {
            r.rounds[k] = r.rounds[0];
            r.rounds[k].round = (int32_t)k + 1;
            r.rounds[k].counters = (struct restart_counters){ .restarts = (int32_t)k + 1, .window.part_count = (int64_t)ROWS[i].parts };
            for (size_t part = 0; part < ROWS[i].parts; part++)
                r.rounds[k].counters.window.parts[part].at_ms = 1700000000000, r.rounds[k].counters.window.parts[part].restarts = 1;
            for (size_t at = 0; at + 2 < sizeof r.rounds[k].cause.message; at += 2)
                memcpy(r.rounds[k].cause.message + at, "\xc3\xa4", 3);
        }
        auto_free char *text = report_last_word(&r);
        cr_assert(text != NULL && (strlen(text) <= REPORT_LAST_WORD_BYTES || ROWS[i].parts > 0), "case %s: %zu bytes", ROWS[i].name, strlen(text));
        cr_expect(strlen(text) < 12288 / 5, "case %s: %zu bytes do not fit into the share of one of five containers", ROWS[i].name, strlen(text));
        cr_assert(report_decode(text, strlen(text), &back, &e) == 0, "case %s: %s", ROWS[i].name, e.text);
        cr_expect(back.round_count > 0 && back.round_count <= r.round_count && back.member_count == 0 && !back.formed, "case %s", ROWS[i].name);
        cr_expect(back.rounds[back.round_count - 1].counters.restarts == (int32_t)r.round_count, "case %s: the newest counts all", ROWS[i].name);
        cr_expect(strlen(back.rounds[0].cause.message) % 2 == 0 && strlen(back.rounds[0].cause.message) > 100, "case %s: whole characters", ROWS[i].name);
        cr_expect(ROWS[i].rounds > 3 || back.round_count == ROWS[i].rounds, "case %s: %zu rounds", ROWS[i].name, back.round_count);
        report_release(&r);
        report_release(&back);
    }
    cr_expect(report_last_word(&(struct coordinator_report){ .attempt = 1, .formed = true }) == NULL, "nothing has happened");
}

Test(report, why_a_pod_was_ended_travels_along_and_is_not_lost)
{
    struct coordinator_report r = { .attempt = 1, .round = 2, .has_handed = true, .checkpoint_step = -1, .resume_step = -1,
                                    .suspected = "worker-1 made no progress for 1800 s",
                                    .handed = { .attempt = 1, .round = 2, .role = ROLE_WORKER, .index = 1, .class = FAILURE_HANG, .reason = "Hang",
                                                .message = "worker-1 made no progress", .evidence = "/volume/evidence/hang-1-2-worker-1" } };
    struct error e = ERROR_INIT;

    auto_free char *all = report_encode(&r), *last = report_last_word(&r);
    cr_assert_not_null(last);
    for (int i = 0; i < 2; i++) {
        struct coordinator_report back;
        const char *text = i == 0 ? all : last;
        cr_assert(report_decode(text, strlen(text), &back, &e) == 0, "%s", e.text);
        cr_expect(back.has_handed && back.handed.class == FAILURE_HANG && back.handed.index == 1 && back.handed.round == 2 && !back.handed.has_exit);
        cr_expect_str_eq(back.handed.message, r.handed.message);
        cr_expect_str_eq(back.handed.evidence, r.handed.evidence);
        cr_expect_str_eq(back.suspected, r.suspected);
        report_release(&back);
    }
}

Test(report, what_is_ahead_of_what)
{
    static const struct coordinator_report OLD = { .attempt = 2, .round = 3, .counters = { .restarts = 2 } };
    static const struct { const char *name; struct coordinator_report r; bool ahead; } ROWS[] = {
        { "the same", { .attempt = 2, .round = 3, .counters = { .restarts = 2 } }, false },
        { "one restart more", { .attempt = 2, .round = 4, .counters = { .restarts = 3 } }, true },
        { "one less", { .attempt = 2, .round = 4, .counters = { .restarts = 1 } }, false },
        { "a later round", { .attempt = 2, .round = 4, .counters = { .restarts = 2 } }, true },
        { "given up", { .attempt = 2, .round = 3, .counters = { .restarts = 2 }, .gave_up = true }, true },
        { "a pod was told to end", { .attempt = 2, .round = 3, .counters = { .restarts = 2 }, .has_handed = true }, true },
        { "of the attempt before", { .attempt = 1, .round = 9, .counters = { .restarts = 9 } }, false },
        { "of the next attempt", { .attempt = 3, .round = 1, .counters = { .restarts = 2 } }, true },
    };

    for (size_t i = 0; i < COUNT(ROWS); i++)
        cr_expect(report_is_ahead(&ROWS[i].r, &OLD) == ROWS[i].ahead, "case %s", ROWS[i].name);
    cr_expect(report_is_ahead(&OLD, NULL), "of nothing");
}

static const struct { const char *name, *text, *error; } BAD[] = {
    { "nothing", "", "not valid JSON" },
    { "a list", "[]", "\"type\"" },
    { "a command", "{\"type\":\"command\",\"command\":\"stop\"}", "expected \"state\"" },
    { "a negative attempt", "{\"type\":\"state\",\"attempt\":-1}", "\"attempt\"" },
    { "an attempt over all bounds", "{\"type\":\"state\",\"attempt\":1e300}", "\"attempt\"" },
    { "a text for a number", "{\"type\":\"state\",\"round\":\"4\"}", "\"round\"" },
    { "a number for a truth", "{\"type\":\"state\",\"formed\":1}", "\"formed\"" },
    { "a name that is too long", "{\"type\":\"state\",\"job_uid\":\"0123456789012345678901234567890123456789012345678901234567890123456789\"}", "\"job_uid\"" },
    { "members that are no list", "{\"type\":\"state\",\"members\":{}}", "\"members\"" },
    { "a state that is none", "{\"type\":\"state\",\"members\":[{\"state\":\"Dancing\"}]}", "\"state\"" },
    { "a round of no role", "{\"type\":\"state\",\"rounds\":[{\"role\":\"king\",\"class\":\"User\"}]}", "\"role\"" },
    { "an exit code over 255", "{\"type\":\"state\",\"rounds\":[{\"role\":\"ps\",\"class\":\"User\",\"exit_code\":256}]}", "\"exit_code\"" },
    { "an index over all replicas", "{\"type\":\"state\",\"rounds\":[{\"role\":\"ps\",\"class\":\"User\",\"index\":100000}]}", "\"index\"" },
};

Test(report, what_is_none_is_refused_in_words)
{
    for (size_t i = 0; i < COUNT(BAD); i++) {
        struct coordinator_report r = { .attempt = 55 };
        struct error e = ERROR_INIT;
        cr_expect(report_decode(BAD[i].text, strlen(BAD[i].text), &r, &e) < 0 && r.attempt == 55, "case %s", BAD[i].name);
        cr_expect(strstr(e.text, BAD[i].error) != NULL, "case %s: %s", BAD[i].name, e.text);
    }
}

Test(report, commands_go_down_and_come_back)
{
    for (enum report_command c = COMMAND_STOP; c <= COMMAND_RESIZE; c++) {
        auto_free char *text = report_command_encode(c, 500);
        enum report_command back;
        int64_t number = 0;
        struct error e = ERROR_INIT;
        cr_assert(report_command_decode(text, strlen(text), &back, &number, &e) == 0, "%s", e.text);
        cr_expect(back == c && number == 500);
    }
    static const char *const bad[] = { "{\"type\":\"command\",\"command\":\"dance\"}", "{\"type\":\"command\",\"command\":\"stop\",\"grace_ms\":-1}",
                                       "{\"type\":\"command\",\"command\":\"resize\",\"workers\":1025}",
                                       "{\"type\":\"state\"}", "no" };
    for (size_t i = 0; i < COUNT(bad); i++) {
        enum report_command back = COMMAND_STOP;
        int64_t number = 0;
        struct error e = ERROR_INIT;
        cr_expect(report_command_decode(bad[i], strlen(bad[i]), &back, &number, &e) < 0, "%s", bad[i]);
    }
}
