/* The checkpoint engine, whole, with three ranks on one loop and their threads: a plain main, so that it runs under
 * ThreadSanitizer and valgrind. What is right is tested in tests/unit/checkpoint; here things happen at the same time. */
#include "tests/unit/sidecar/checkpoint_group.h"

#define DATA (3u << 20)

static int passed;

static void save_restart_and_save(void)
{
    struct group g;
    group_init(&g, 3, true);
    MUST(group_form(&g, 0x100000001));
    MUST(group_save(&g, 10, DATA));
    MUST(group_save(&g, 20, DATA));
    group_stage(&g, 30, DATA);
    MUST(group_form(&g, 0x100000002)); /* while 30 is being written */
    MUST(g.restore.step == 30 && group_restores(&g, 30, true));
    MUST(group_save(&g, 40, DATA));
    group_release(&g);
    passed++;
}

static void read_an_image_while_the_next_is_saved(void)
{
    struct group g;
    struct error e = ERROR_INIT;
    group_init(&g, 3, true);
    MUST(group_form(&g, 0x100000001));
    MUST(group_save(&g, 10, DATA));
    for (int32_t rank = 0; rank < 3; rank++)
        group_lose_node(&g, rank);
    MUST(group_form(&g, 0x100000002));
    group_stage(&g, 20, DATA); /* the thread reads step 10 now */
    MUST(trainer_restores(&g, 1, 10, false, &e));
    MUST(group_wait(&g, group_until_committed, 20, 20000));
    MUST(group_restores(&g, 10, false));
    group_release(&g);
    passed++;
}

static void free_with_work_in_flight(void)
{
    for (int i = 0; i < 6; i++) {
        struct group g;
        group_init(&g, 3, true);
        MUST(group_form(&g, 0x100000001));
        group_stage(&g, 10, DATA);
        (void)group_wait(&g, group_never, 0, i); /* somewhere between staged and committed */
        for (int32_t rank = 0; rank < 3; rank++) {
            group_kill(&g, rank);
            group_start(&g, rank);
        }
        MUST(group_form(&g, 0x100000002));
        MUST(g.restore.step == 10 && group_restores(&g, 10, true));
        MUST(group_wait(&g, group_until_idle, 0, 20000));
        MUST(group_save(&g, 20, DATA));
        group_release(&g);
    }
    passed++;
}

static void grow_slots_while_the_step_before_is_written(void)
{
    struct group g;
    struct error e = ERROR_INIT;
    int fds[2];
    uint64_t bytes;
    group_init(&g, 2, true);
    MUST(group_form(&g, 0x100000001));
    group_stage(&g, 10, DATA);
    for (int32_t rank = 0; rank < 2; rank++)
        MUST(trainer_slots(&g, rank, 70u << 20, fds, &bytes, &e) == 0 && bytes >= 70u << 20);
    MUST(group_wait(&g, group_until_committed, 10, 20000));
    MUST(group_save(&g, 20, DATA));
    MUST(group_form(&g, 0x100000002) && group_restores(&g, 20, true));
    group_release(&g);
    passed++;
}

int main(void)
{
    save_restart_and_save();
    read_an_image_while_the_next_is_saved();
    free_with_work_in_flight();
    grow_slots_while_the_step_before_is_written();
    printf("%d of 4 passed\n", passed);
    return passed == 4 ? 0 : 1;
}
