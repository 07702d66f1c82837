/* Threads beside the engine's: time lines that are begun and ended while all ranks reduce, TLS that another thread speaks. A plain
 * main, as its neighbours. */
#include "sidecar/ring/timeline.h"
#include "tests/tsan/ring_checks.h"

static void reduce_some(struct setup *s)
{
    one_allreduce(s, SHM_F32, SHM_SUM, 1, false);
    one_allreduce(s, SHM_F32, SHM_AVERAGE, 100003, true);
    rewind_arenas(s);
}

static void check_file(const char *path)
{
    char last = '\0';
    FILE *in = fopen(path, "re");

    CHECK(in != NULL && fseek(in, -1, SEEK_END) == 0 && fread(&last, 1, 1, in) == 1 && last == ']', "%s is no whole time line", path);
    if (in != NULL)
        (void)fclose(in);
    (void)unlink(path);
}

static void test_timeline(int size)
{
    struct setup s;
    struct error e = ERROR_INIT;
    char path[64];

    begin("a time line of what all do", size);
    set_up(&s, size, 4096);
    (void)snprintf(path, sizeof path, "/tmp/rm-timeline-%d.json", (int)getpid());
    for (int turn = 0; turn < 3; turn++) {
        for (int r = 0; r < size; r++)
            CHECK(engine_timeline(s.world.nodes[r].engine, path, true, r, size, &e) == 0, "%s", e.text);
        reduce_some(&s);
        for (int r = 0; turn < 2 && r < size; r++) /* the last one ends with its engine */
            CHECK(engine_timeline(s.world.nodes[r].engine, NULL, false, r, size, &e) == 0, "%s", e.text);
    }
    tear_down(&s);
    for (int r = 0; r < size; r++) {
        auto_free char *file = timeline_path(path, r);
        check_file(file);
    }
    end();
}

static void test_tls(int size)
{
    struct setup s;

    begin("all-reduces over TLS", size);
    world_tls = true;
    set_up(&s, size, 65536);
    for (int turn = 0; turn < 3; turn++)
        reduce_some(&s);
    tear_down(&s);
    world_tls = false;
    end();
}

int main(void)
{
    log_setup("test", NULL, LOG_ERROR, false);
    test_timeline(3);
    test_tls(2);
    test_tls(3);
    return report();
}
