#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "sidecar/supervise/message.h"

Test(message, what_is_encoded_comes_back)
{
    struct error e = ERROR_INIT;
    struct join j = { .member = "worker-3", .host = "10.0.0.7", .port = 7077, .fence = FENCE(3, 0xfffffffe),
                      .trainer = { .state = PROCESS_FAILED, .fence = FENCE(3, 9), .pid = 41, .restarts = 2, .has_exit = true, .code = 137,
                                   .signal = 9, .oom = true, .after_loss = true, .terminating = true, .age_ms = 12, .started_ms = 1700000000000,
                                   .reason = "exec \"x\": \xc3\xa4" },
                      .history = { .round = 9, .counters = { .restarts = 4, .streak = 1 }, .gave_up = true, .give_up_reason = "BackoffLimitExceeded" } },
                got;
    struct round_view round = { .attempt = 3, .round = 8, .cause = { .role = ROLE_WORKER, .index = 1, .has_exit = true, .exit_code = 3, .reason = "Error" } };
    history_add(&j.history, &round);
    j.holdings = json_object();
    json_put_int(j.holdings, "x", 1);

    auto_json cJSON *o = join_encode(&j);
    cr_assert_eq(join_decode(o, &got, &e), 0, "%s", e.text);
    cr_expect_str_eq(got.member, j.member);
    cr_expect_str_eq(got.host, j.host);
    cr_expect_eq(got.fence, j.fence, "all 64 bits");
    cr_expect_eq(memcmp(&got.trainer, &j.trainer, sizeof j.trainer), 0);
    cr_expect_eq(json_int(got.holdings, "x", 0), 1);
    cr_expect_eq(got.history.round, 9);
    cr_expect_eq(got.history.counters.restarts, 4);
    cr_expect_eq(got.history.round_count, 1u);
    cr_expect_eq(got.history.rounds[0].cause.exit_code, 3);
    cr_expect(got.history.gave_up);
    cr_expect_str_eq(got.history.give_up_reason, "BackoffLimitExceeded");
    join_release(&got);
    join_release(&j);
}

Test(message, a_form_names_every_rank)
{
    struct error e = ERROR_INIT;
    struct ring_member members[2] = { { .member = "chief-0", .host = "a", .port = 1 }, { .member = "worker-0", .host = "::1", .port = 65535 } };
    struct form f = { .fence = FENCE(1, 2), .alone = true, .members = members, .size = 2,
                      .restore = { .found = true, .step = 1000000, .epoch = FENCE(1, 1), .world = 2 } }, got;

    auto_json cJSON *o = form_encode(&f);
    cr_assert_eq(form_decode(o, &got, &e), 0, "%s", e.text);
    cr_expect_eq(got.size, 2);
    cr_expect_str_eq(got.members[1].host, "::1");
    cr_expect_eq(got.members[1].port, 65535);
    cr_expect(got.alone && got.restore.found);
    cr_expect_eq(got.restore.step, 1000000);
    cr_expect_eq(got.restore.epoch, FENCE(1, 1));
    form_release(&got);
}

Test(message, what_is_wrong_is_named)
{
#define TRAINER "{\"state\":\"Running\",\"fence\":\"1\",\"age_ms\":0,\"code\":0,\"signal\":0}"
    static const struct { const char *name; char what; const char *text, *words; } rows[] = {
        { "no fence", 't', "{\"state\":\"Running\"}", "fence" },
        { "a fence that is a number", 't', "{\"state\":\"Running\",\"fence\":7}", "fence" },
        { "a fence with a tail", 't', "{\"state\":\"Running\",\"fence\":\"7x\"}", "7x" },
        { "a negative fence", 't', "{\"state\":\"Running\",\"fence\":\"-7\"}", "-7" },
        { "a fence over 64 bits", 't', "{\"state\":\"Running\",\"fence\":\"99999999999999999999\"}", "fence" },
        { "an unknown state", 't', "{\"state\":\"Dancing\",\"fence\":\"1\"}", "Dancing" },
        { "a code out of range", 't', "{\"state\":\"Failed\",\"fence\":\"1\",\"age_ms\":0,\"code\":256,\"signal\":0}", "code" },
        { "an age below zero", 't', "{\"state\":\"Failed\",\"fence\":\"1\",\"age_ms\":-1,\"code\":1,\"signal\":0}", "age_ms" },
        { "a port of 0", 'j', "{\"fence\":\"1\",\"port\":0,\"host\":\"h\",\"trainer\":" TRAINER "}", "port" },
        { "no host", 'j', "{\"fence\":\"1\",\"port\":1,\"trainer\":" TRAINER "}", "host" },
        { "no trainer", 'j', "{\"fence\":\"1\",\"port\":1,\"host\":\"h\"}", "trainer" },
        { "members that are no list", 'f', "{\"fence\":\"1\",\"restore\":{\"epoch\":\"0\",\"step\":-1,\"world\":0},\"members\":{}}", "members" },
        { "a member without a port", 'f', "{\"fence\":\"1\",\"restore\":{\"epoch\":\"0\",\"step\":-1,\"world\":0},\"members\":[{\"member\":\"a\",\"host\":\"h\"}]}", "members[0]" },
        { "a rank below -1", 'r', "{\"fence\":\"1\",\"lost_rank\":-2}", "lost_rank" },
        { "a grace time below zero", 'a', "{\"fence\":\"1\",\"grace_ms\":-1}", "grace_ms" },
        { "no object", 's', "[]", "object" },
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct error e = ERROR_INIT;
        auto_json cJSON *o = NULL;
        cr_assert_eq(json_parse(rows[i].text, strlen(rows[i].text), &o, &e), 0, "case %s: %s", rows[i].name, e.text);
        int result = 0;
        struct trainer_view t;
        struct join j;
        struct form f;
        struct ring_view r;
        struct abort_word a;
        struct start_word s;
        switch (rows[i].what) {
        case 't': result = trainer_decode(o, &t, &e); break;
        case 'j': result = join_decode(o, &j, &e); break;
        case 'f': result = form_decode(o, &f, &e); break;
        case 'r': result = ring_decode(o, &r, &e); break;
        case 'a': result = abort_decode(o, &a, &e); break;
        default: result = start_decode(o, &s, &e); break;
        }
        cr_expect_eq(result, -1, "case %s", rows[i].name);
        cr_expect(strstr(e.text, rows[i].words) != NULL, "case %s: %s", rows[i].name, e.text);
    }
}

Test(message, history_keeps_the_newest_rounds)
{
    struct history h = { .round = 0 }, older;
    struct round_view round = { .attempt = 1 };

    for (int i = 1; i <= ROUNDS_KEPT + 5; i++) {
        round.round = i;
        history_add(&h, &round);
    }
    cr_expect_eq(h.round_count, (size_t)ROUNDS_KEPT);
    cr_expect_eq(h.rounds[0].round, 6);
    cr_expect_eq(h.rounds[ROUNDS_KEPT - 1].round, ROUNDS_KEPT + 5);
    h.round = 7;
    older = h;
    cr_expect_not(history_is_newer(&h, &older));
    h.counters.restarts++;
    cr_expect(history_is_newer(&h, &older));
    older.round = 8;
    cr_expect(history_is_newer(&older, &h));
}

Test(message, a_dump_has_a_name_that_a_directory_can_have)
{
    static const struct { const char *text; bool well; } rows[] = {
        { "{\"fence\":\"4294967297\",\"name\":\"hang-1-1-worker-0\"}", true },
        { "{\"fence\":\"4294967297\",\"name\":\"../../etc\"}", false },
        { "{\"fence\":\"4294967297\",\"name\":\"a/b\"}", false },
        { "{\"fence\":\"4294967297\",\"name\":\"\"}", false },
        { "{\"fence\":\"4294967297\"}", false },
        { "{\"name\":\"x\"}", false },
        { "{\"fence\":\"1\",\"name\":\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}", false },
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct error e = ERROR_INIT;
        struct dump_word w;
        auto_json cJSON *o = cJSON_Parse(rows[i].text);
        cr_expect_eq(dump_decode(o, &w, &e) == 0, rows[i].well, "case %zu: %s", i, e.text);
        if (!rows[i].well)
            continue;
        auto_json cJSON *again = dump_encode(&w);
        auto_free char *text = cJSON_PrintUnformatted(again);
        cr_expect_str_eq(text, rows[i].text, "case %zu", i);
    }
}
