/* Events to lines of a Chrome trace, and where the files of the ranks are. */
#include <criterion/criterion.h>
#include <stdio.h>

#include "base/json.h"
#include "base/mem.h"
#include "sidecar/ring/timeline.h"

static const struct trace_about ABOUT = { .start_mono_ns = 1000000, .start_wall_us = 1700000000000000, .rank = 1, .size = 3,
                                          .member = "worker-0", .job_uid = "uid" };

static struct trace_event event(enum trace_kind kind, int64_t at_ns, const char *phase, const char *tensor)
{
    struct trace_event e = { .kind = kind, .at_ns = at_ns, .rank = 2 };

    (void)snprintf(e.phase, sizeof e.phase, "%s", phase);
    (void)snprintf(e.tensor, sizeof e.tensor, "%s", tensor);
    return e;
}

/* As the writer does: the end bracket is written over. */
static cJSON *trace_of(const struct trace_event *events, size_t count)
{
    struct trace t;
    struct error e = ERROR_INIT;
    cJSON *tree = NULL;
    auto_buf struct buf out = BUF_INIT(1 << 20);

    trace_begin(&t, &ABOUT, &out);
    for (size_t i = 0; i < count; i++) {
        auto_buf struct buf all = BUF_INIT(1 << 20);
        buf_add_bytes(&all, out.text, out.len - TRACE_END_BYTES);
        trace_add(&t, &events[i], &all);
        buf_add(&all, "\n]");
        cr_assert(json_parse(all.text, all.len, &tree, &e) == 0, "after event %zu: %s", i, e.text);
        buf_clear(&out);
        buf_add_bytes(&out, all.text, all.len);
        if (i + 1 < count)
            cleanup_json(&tree);
    }
    trace_release(&t);
    return tree;
}

static size_t count_of(const cJSON *tree, const char *key, const char *value)
{
    const cJSON *item;
    size_t count = 0;

    cJSON_ArrayForEach(item, tree)
        count += strcmp(json_text(item, key, ""), value) == 0;
    return count;
}

Test(trace, spans)
{
    const struct trace_event events[] = {
        event(TRACE_END, 1500000, "", "w"),               /* began before the recording */
        event(TRACE_BEGIN, 900000, "ALLREDUCE", "old"),   /* left over from the recording before */
        event(TRACE_BEGIN, 2000000, "NEGOTIATE_ALLREDUCE", "w\"\\\n"),
        event(TRACE_READY, 2100000, "", "w\"\\\n"),
        event(TRACE_END, 2200000, "", "w\"\\\n"),
        event(TRACE_BEGIN, 2300000, "ALLREDUCE", "w"),
        event(TRACE_BEGIN, 2400000, "QUEUE", "w"),
        event(TRACE_MARK, 2500000, "CYCLE_START", ""),
        event(TRACE_RESET, 2600000, "PEER_LOST", ""),     /* ends both */
        event(TRACE_END, 2700000, "", "w"),
    };
    auto_json cJSON *tree = trace_of(events, COUNT(events));

    cr_expect(count_of(tree, "ph", "B") == 3 && count_of(tree, "ph", "E") == 3 && count_of(tree, "ph", "i") == 3);
    cr_expect(count_of(tree, "args.name", "w\"\\\n") == 1 && count_of(tree, "args.name", "w") == 1 && count_of(tree, "args.name", "old") == 0);
    cr_expect(count_of(tree, "name", "2") == 1, "the rank that was ready");
    const cJSON *first = cJSON_GetArrayItem(tree, 0), *mine = cJSON_GetArrayItem(tree, 1);
    cr_expect(json_int(first, "args.start_time_since_epoch_in_micros", 0) == ABOUT.start_wall_us);
    cr_expect(json_int(mine, "args.rank", -1) == 1 && json_int(mine, "args.size", -1) == 3);
    const cJSON *item;
    cJSON_ArrayForEach(item, tree)
        if (strcmp(json_text(item, "name", ""), "QUEUE") == 0)
            cr_expect_float_eq(json_double(item, "ts", 0), 1400.0, 0.001);
}

Test(trace, phases)
{
    static const struct { unsigned op; const char *wait, *whole, *ring; } rows[] = {
        { SHM_OP_ALLREDUCE, "NEGOTIATE_ALLREDUCE", "ALLREDUCE", "RING_ALLREDUCE" },
        { SHM_OP_ALLTOALL, "NEGOTIATE_ALLTOALL", "ALLTOALL", "RING_ALLTOALL" },
        { SHM_OP_JOIN, "NEGOTIATE_JOIN", "JOIN", "RING_JOIN" },
        { SHM_OP_FREE, "NEGOTIATE_OPERATION", "OPERATION", "RING_OPERATION" },
        { 4711, "NEGOTIATE_OPERATION", "OPERATION", "RING_OPERATION" },
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        cr_expect_str_eq(trace_phase_wait(rows[i].op), rows[i].wait);
        cr_expect_str_eq(trace_phase(rows[i].op), rows[i].whole);
        cr_expect_str_eq(trace_phase_ring(rows[i].op), rows[i].ring);
    }
}

Test(timeline, paths)
{
    static const struct { const char *path; int32_t rank; const char *expected; } rows[] = {
        { "/d/run.json", 0, "/d/run.json" }, { "/d/run.json", 2, "/d/run.rank-2.json" }, { "/d.x/run", 1, "/d.x/run.rank-1" },
        { "/d/.json", 3, "/d/.json.rank-3" }, { "/a.b.c", 12, "/a.b.rank-12.c" },
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        auto_free char *path = timeline_path(rows[i].path, rows[i].rank);
        cr_expect_str_eq(path, rows[i].expected);
    }
}
