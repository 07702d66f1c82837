#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cli/view.h"

static struct view_member MEMBERS[] = {
    { .member = "chief-0", .rank = 0, .phase = "running", .step = 120, .total_steps = 600, .has_loss = true, .loss = 0.43211,
      .step_ms = 48.26, .bytes_reduced = 5 << 20, .restarts = 0 },
    { .member = "worker-0", .rank = 1, .phase = "restarting", .step = -1, .total_steps = -1, .restarts = 2 },
};

static const struct view RUNNING = {
    .job = "digits", .phase = PHASE_RUNNING, .attempt = 1, .round = 2, .restarts = 1, .ring_size = 2, .busbw_gbps = 0.534, .step = 120,
    .total_steps = 600, .steps_per_second = 20.7, .has_loss = true, .loss = 0.43211, .eta_s = 23, .elapsed_ms = 12300,
    .checkpoint_step = 100, .members = MEMBERS, .member_count = COUNT(MEMBERS),
};

Test(view, the_picture_has_header_members_and_bar)
{
    struct view_style style = { .width = 120 };
    auto_buf struct buf out = BUF_INIT(1 << 16);
    int lines = view_format(&RUNNING, &style, &out);
    cr_expect_eq(lines, 5);
    cr_expect_str_eq(buf_text(&out),
        "digits  Running  attempt 1 round 2  ring of 2  busbw 0.53 GB/s  checkpoint at 100  restarts 1  12 s\n"
        "MEMBER    PHASE                 STEP        LOSS  STEP TIME     REDUCED  RESTARTS\n"
        "chief-0   running            120/600      0.4321    48.3 ms     5.0 MiB         0\n"
        "worker-0  restarting               -           -          -           -         2\n"
        "########-------------------------------- step 120/600 (20 %)  loss 0.4321  20.7 steps/s  eta 23 s\n");
}

Test(view, no_line_is_wider_than_the_terminal_and_every_width_has_the_same_lines)
{
    struct view v = RUNNING;
    v.note = "stopping; Ctrl-C once more kills at once";
    for (int color = 0; color < 2; color++) {
        for (int width = 1; width < 200; width++) {
            struct view_style style = { .width = width, .color = color, .unicode = true };
            auto_buf struct buf out = BUF_INIT(1 << 16);
            int lines = view_format(&v, &style, &out), column = 0, seen = 0;
            for (const char *p = buf_text(&out); *p; p++) {
                if (*p == '\033')
                    while (p[1] && *p != 'm')
                        p++;
                else if (*p == '\n')
                    column = 0, seen++;
                else if (((unsigned char)*p & 0xc0) != 0x80)
                    cr_assert_leq(++column, width, "width %d", width);
            }
            cr_expect_eq(seen, lines, "width %d", width);
            cr_expect_eq(view_rows(buf_text(&out), width), lines, "width %d", width);
        }
    }
}

Test(view, without_colour_there_is_no_escape_sequence)
{
    struct view_style style = { .width = 100, .unicode = true };
    auto_buf struct buf out = BUF_INIT(1 << 16);
    (void)view_format(&RUNNING, &style, &out);
    cr_expect_null(strchr(buf_text(&out), '\033'));
}

Test(view, more_members_than_rows_are_counted)
{
    struct view v = RUNNING;
    struct view_style style = { .width = 100, .max_rows = 1 };
    auto_buf struct buf out = BUF_INIT(1 << 16);
    cr_expect_eq(view_table(&v, &style, &out), 3);
    cr_expect(strstr(buf_text(&out), "and 1 more\n") != NULL);
}

Test(view, rows_count_what_a_narrower_terminal_wraps)
{
    static const struct { const char *name, *text; int width, rows; } ROWS[] = {
        { "nothing", "", 10, 0 }, { "one", "abc\n", 10, 1 }, { "empty line", "\n\n", 10, 2 }, { "fits exactly", "0123456789\n", 10, 1 },
        { "wraps", "0123456789a\n", 10, 2 }, { "colour takes no room", "\033[32m0123456789\033[0m\n", 10, 1 },
        { "utf-8 counts characters", "━━━━━━━━━━\n", 10, 1 },
    };
    for (size_t i = 0; i < COUNT(ROWS); i++)
        cr_expect_eq(view_rows(ROWS[i].text, ROWS[i].width), ROWS[i].rows, "case %s", ROWS[i].name);
}

Test(view, durations)
{
    static const struct { int64_t ms; const char *text; } ROWS[] = {
        { -1, "-" }, { 0, "0.0 s" }, { 840, "0.8 s" }, { 9999, "10.0 s" }, { 12000, "12 s" }, { 200000, "3 min 20 s" },
        { 3720000, "1 h 02 min" },
    };
    char text[VIEW_DURATION_MAX];
    for (size_t i = 0; i < COUNT(ROWS); i++)
        cr_expect_str_eq(view_duration(ROWS[i].ms, text), ROWS[i].text);
}

Test(view, plain_lines_say_only_what_changed)
{
    struct view_member members[2];
    memcpy(members, MEMBERS, sizeof members);
    struct view now = RUNNING;
    auto_buf struct buf same = BUF_INIT(4096), out = BUF_INIT(4096);
    view_changes(&RUNNING, &now, &same);
    cr_expect_str_eq(buf_text(&same), "");

    now.members = members;
    members[1].phase = "running";
    members[1].restarts = 3;
    now.round = 3;
    now.checkpoint_step = 110;
    view_changes(&RUNNING, &now, &out);
    cr_expect_str_eq(buf_text(&out), "digits: Running, attempt 1 round 3, ring of 2\n"
                                     "digits: worker-0 running\n"
                                     "digits: worker-0 was started again (3)\n"
                                     "digits: checkpoint of step 110 committed\n");
}

Test(view, a_prefix_is_padded_and_coloured_only_where_asked)
{
    auto_buf struct buf plain = BUF_INIT(256), color = BUF_INIT(256);
    view_log_prefix("ps-0", 8, false, &plain);
    cr_expect_str_eq(buf_text(&plain), "[ps-0]     ");
    view_log_prefix("ps-0", 8, true, &color);
    cr_expect_eq(buf_text(&color)[0], '\033');
    cr_expect(strstr(buf_text(&color), "[ps-0]") != NULL);
}

static struct training_job *job_of(int32_t chiefs, int32_t workers)
{
    struct training_job *job = xcalloc(1, sizeof *job);
    job->name = xstrdup("digits");
    job->labels = json_object();
    job->annotations = json_object();
    job->spec.roles[ROLE_CHIEF] = (struct replica_spec){ .present = chiefs > 0, .replicas = chiefs };
    job->spec.roles[ROLE_WORKER] = (struct replica_spec){ .present = true, .replicas = workers };
    return job;
}

Test(view, a_snapshot_is_as_fast_as_its_slowest_rank_and_pods_have_the_last_word)
{
    auto_job struct training_job *job = job_of(1, 2);
    auto_free struct job_status *status = xcalloc(1, sizeof *status);
    struct member_report reports[] = {
        { .member = "worker-1", .rank = 2, .state = PROCESS_RUNNING, .step = 90, .total_steps = 200, .step_ms = 50, .restarts = 1 },
        { .member = "chief-0", .rank = 0, .state = PROCESS_RUNNING, .step = 100, .total_steps = 200, .step_ms = 40, .has_loss = true,
          .loss = 1.5, .busbw_gbps = 0.25 },
        { .member = "worker-0", .rank = 1, .state = PROCESS_WAITING, .step = -1, .total_steps = -1, .restarts = 1 },
    };
    struct coordinator_report report = { .attempt = 1, .round = 4, .formed = true, .members = reports, .member_count = 3,
                                         .checkpoint_step = 80 };
    struct view_pod pods[] = { { ROLE_CHIEF, 0, POD_RUNNING, false }, { ROLE_WORKER, 0, POD_RUNNING, false },
                               { ROLE_WORKER, 1, POD_FAILED, false } };
    struct view v;
    status->phase = PHASE_RUNNING;
    status->attempt = 1;
    status->start_ms = 1000;
    view_build(job, status, &report, pods, 3, 5000, &v);
    cr_expect_eq(v.member_count, 3);
    cr_expect_str_eq(v.members[0].member, "chief-0");
    cr_expect_str_eq(v.members[0].phase, "running");
    cr_expect_str_eq(v.members[1].phase, "restarting", "a process that waits and ran before");
    cr_expect_str_eq(v.members[2].phase, "failed", "its pod is over, whatever was reported last");
    cr_expect_eq(v.step, 90);
    cr_expect_float_eq(v.steps_per_second, 20.0, 1e-9);
    cr_expect_eq(v.eta_s, 6, "110 steps of 50 ms");
    cr_expect_float_eq(v.loss, 1.5, 1e-9);
    cr_expect_eq(v.ring_size, 3);
    cr_expect_eq(v.round, 4);
    cr_expect_eq(v.elapsed_ms, 4000);
    view_release(&v);

    view_build(job, status, NULL, NULL, 0, 5000, &v);
    cr_expect_str_eq(v.members[0].phase, "pending");
    cr_expect_eq(v.step, -1);
    cr_expect_eq(v.eta_s, -1);
    view_release(&v);
}
