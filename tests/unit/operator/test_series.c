#include <criterion/criterion.h>
#include <string.h>

#include "operator/series.h"

static struct member_report members[] = {
    { .member = "chief-0", .rank = 0, .step = 40, .step_ms = 250, .wait_ms = 1500, .bytes_reduced = 4096, .operations = 7, .busbw_gbps = 1.5 },
    { .member = "worker-0", .rank = 1, .step = 41, .restarts = 2 },
    { .member = "ps-0", .rank = -1, .step = 90, .step_ms = 1 },
};

Test(series, each_job_and_each_rank_has_its_figures)
{
    struct coordinator_report ready = { .formed = true, .self_test_ok = true, .round = 3, .checkpoint_step = 20, .checkpoint_ms = 5500,
                                        .members = members, .member_count = 3 };
    struct coordinator_report fresh = { .formed = true, .checkpoint_step = -1, .stalled = "gradient: waits for rank 1" };
    struct series all = SERIES_INIT;
    auto_buf struct buf text = BUF_INIT(1u << 20);
    static const char *const LINES[] = {
        "ringmaster_job_step{namespace=\"a\",job=\"ready\"} 41\n",
        "ringmaster_job_ring_size{namespace=\"a\",job=\"ready\"} 2\nringmaster_job_ring_size{namespace=\"b\",job=\"fresh\"} 0\n",
        "ringmaster_job_checkpoint_step{namespace=\"a\",job=\"ready\"} 20\n# HELP",
        "ringmaster_job_checkpoint_timestamp_seconds{namespace=\"a\",job=\"ready\"} 5.5\n",
        "ringmaster_job_stalled{namespace=\"a\",job=\"ready\"} 0\nringmaster_job_stalled{namespace=\"b\",job=\"fresh\"} 1\n",
        "gauge\nringmaster_rank_step_seconds{namespace=\"a\",job=\"ready\",rank=\"0\"} 0.25\n# HELP",
        "ringmaster_rank_wait_seconds_total{namespace=\"a\",job=\"ready\",rank=\"0\"} 1.5\n",
        "ringmaster_rank_bus_bandwidth_bytes_per_second{namespace=\"a\",job=\"ready\",rank=\"0\"} 1500000000\n# HELP",
        "ringmaster_rank_restarts_total{namespace=\"a\",job=\"ready\",rank=\"1\"} 2\n",
    };

    series_add(&all, "a", "ready", &ready);
    series_add(&all, "b", "fresh", &fresh);
    series_format(&all, &text);
    for (size_t i = 0; i < sizeof LINES / sizeof *LINES; i++)
        cr_expect(strstr(buf_text(&text), LINES[i]) != NULL, "%s is not in\n%s", LINES[i], buf_text(&text));
    cr_expect(strstr(text.text, "job_step{namespace=\"b\"") == NULL, "a job whose steps nobody knows");
    series_release(&all);
}
