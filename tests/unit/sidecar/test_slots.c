#include <criterion/criterion.h>
#include <fcntl.h>

#include "checkpoint_group.h"
#include "sidecar/checkpoint/slots.h"

#define DATA 10000u
#define IMAGE (IMAGE_HEADER + DATA)

static const struct { const char *name; struct slot_facts facts; enum slot_state state; } RULE[] = {
    { "nothing in it", { .held = false }, SLOT_EMPTY },
    { "nothing, whatever else is said", { .held = false, .busy = true, .is_newest = true }, SLOT_EMPTY },
    { "being written to the volume", { .held = true, .busy = true }, SLOT_PERSISTING },
    { "being written, and all hold something newer", { .held = true, .busy = true, .committed = true }, SLOT_PERSISTING },
    { "the newest that all hold", { .held = true, .is_newest = true }, SLOT_STAGED },
    { "the newest, committed", { .held = true, .is_newest = true, .committed = true }, SLOT_STAGED },
    { "staged, nothing known yet", { .held = true, .undecided = true }, SLOT_STAGED },
    { "superseded and committed", { .held = true, .committed = true }, SLOT_COMMITTED },
    { "superseded and given up", { .held = true }, SLOT_EMPTY },
};

Test(slots, may_be_taken_only_when_the_group_can_do_without)
{
    for (size_t i = 0; i < COUNT(RULE); i++)
        cr_expect(slot_rest_state(&RULE[i].facts) == RULE[i].state, "case %s", RULE[i].name);
}

struct bench { char dir[64]; struct slots slots; };

static void bench_init(struct bench *b)
{
    struct error e = ERROR_INIT;
    uint64_t bytes;
    log_setup("test", NULL, LOG_ERROR + 1, false);
    (void)snprintf(b->dir, sizeof(b->dir), "/dev/shm/rm-slots-XXXXXX");
    cr_assert(mkdtemp(b->dir) != NULL);
    cr_assert(slots_open(&b->slots, b->dir, 1, &e) == 0, "%s", e.text);
    cr_assert(slots_ensure(&b->slots, IMAGE, &bytes, &e) == 0, "%s", e.text);
    cr_assert(bytes >= IMAGE && bytes % 4096 == 0);
}

static void bench_release(struct bench *b)
{
    struct error e = ERROR_INIT;
    slots_close(&b->slots);
    cr_assert(fs_remove_tree(b->dir, &e) == 0);
}

static struct slot_control *control(struct bench *b, uint32_t slot)
{
    return b->slots.slot[slot].control;
}

static void fill(struct bench *b, uint32_t slot, int64_t step)
{
    uint8_t image[IMAGE];
    image_fill(image, 1, step, DATA);
    cr_assert(pwrite(b->slots.slot[slot].fd, image, IMAGE, SLOT_CONTROL_BYTES) == (ssize_t)IMAGE);
    struct slot_control *c = control(b, slot);
    c->step = (uint64_t)step;
    c->fence = 5;
    c->image_bytes = IMAGE;
    c->state = SLOT_STAGED;
}

static bool accept(struct bench *b, uint32_t slot, int64_t step, struct error *e)
{
    return slots_accept(&b->slots, slot, (struct checkpoint_id){ 5, step }, IMAGE, 3, 1, e) == 0;
}

enum harm { NONE, STATE_EMPTY, STATE_WRITING, PERSISTING, COMMITTED, NO_SEAL, OTHER_SEAL, OTHER_STEP, TOO_LARGE, BAD_HEADER, MAGIC, VERSION, INDEX, CUT, SIZE };
static const struct { const char *name; enum harm harm; bool held; } RESTARTS[] = {
    { "staged", NONE, true }, { "persisting", PERSISTING, true }, { "committed", COMMITTED, true }, { "empty", STATE_EMPTY, false },
    { "being written", STATE_WRITING, false }, { "never taken over", NO_SEAL, false }, { "seal of another fence", OTHER_SEAL, false },
    { "step changed behind the seal", OTHER_STEP, false }, { "image larger than the slot", TOO_LARGE, false },
    { "a header that is none", BAD_HEADER, false }, { "no magic", MAGIC, false }, { "another version", VERSION, false },
    { "the other slot's control", INDEX, false }, { "file cut short", CUT, false }, { "size beyond the file", SIZE, false },
};

static void do_harm(struct bench *b, enum harm harm)
{
    struct slot_control *c = control(b, 0);
    switch (harm) {
    case NONE: break;
    case STATE_EMPTY: c->state = SLOT_EMPTY; break;
    case STATE_WRITING: c->state = SLOT_WRITING; break;
    case PERSISTING: c->state = SLOT_PERSISTING; break;
    case COMMITTED: c->state = SLOT_COMMITTED; break;
    case NO_SEAL: c->seal_world = 0; break;
    case OTHER_SEAL: c->seal_fence = 4; break;
    case OTHER_STEP: c->step = 71; break;
    case TOO_LARGE: c->image_bytes = 1ull << 40; break;
    case BAD_HEADER: cr_assert(pwrite(b->slots.slot[0].fd, "]", 1, SLOT_CONTROL_BYTES + 8) == 1); break;
    case MAGIC: c->magic = 0; break;
    case VERSION: c->version = 99; break;
    case INDEX: c->slot = 1; break;
    case CUT: cr_assert(ftruncate(b->slots.slot[0].fd, SLOT_CONTROL_BYTES + 100) == 0); break;
    case SIZE: c->slot_bytes = 1ull << 50; break;
    }
}

Test(slots, after_a_restart_only_what_is_provably_complete_is_taken_over)
{
    for (size_t i = 0; i < COUNT(RESTARTS); i++) {
        struct bench b;
        struct error e = ERROR_INIT;
        struct holding held;
        uint64_t bytes;
        bench_init(&b);
        fill(&b, 0, 70);
        cr_assert(accept(&b, 0, 70, &e), "%s", e.text);
        do_harm(&b, RESTARTS[i].harm);
        slots_close(&b.slots);
        cr_assert(slots_open(&b.slots, b.dir, 1, &e) == 0, "case %s: %s", RESTARTS[i].name, e.text);
        bool is_held = slots_held(&b.slots, 0, &held, &bytes);
        cr_expect(is_held == RESTARTS[i].held, "case %s", RESTARTS[i].name);
        if (is_held)
            cr_expect(held.id.step == 70 && held.id.epoch == 5 && held.world == 3 && bytes == IMAGE, "case %s", RESTARTS[i].name);
        cr_expect(!slots_held(&b.slots, 1, &held, &bytes), "case %s: the other slot is empty", RESTARTS[i].name);
        cr_expect(slots_ensure(&b.slots, IMAGE, &bytes, &e) == 0, "case %s: %s", RESTARTS[i].name, e.text);
        bench_release(&b);
    }
}

Test(slots, of_another_rank_are_not_taken_over)
{
    struct bench b;
    struct error e = ERROR_INIT;
    struct holding held;
    uint64_t bytes;
    bench_init(&b);
    fill(&b, 0, 70);
    cr_assert(accept(&b, 0, 70, &e));
    slots_close(&b.slots);
    cr_assert(slots_open(&b.slots, b.dir, 2, &e) == 0);
    cr_expect(!slots_held(&b.slots, 0, &held, &bytes));
    bench_release(&b);
}

static const struct { const char *name, *says; enum harm harm; } REFUSALS[] = {
    { "not staged", "expected STAGED", STATE_WRITING }, { "another step than the message", "control page says step 71", OTHER_STEP },
    { "another size than the message", "control page", TOO_LARGE }, { "a header that is none", "does not begin with {", BAD_HEADER },
};

Test(slots, a_message_that_does_not_fit_the_slot_is_refused)
{
    struct error e = ERROR_INIT;
    struct bench b;
    for (size_t i = 0; i < COUNT(REFUSALS); i++) {
        bench_init(&b);
        fill(&b, 0, 70);
        do_harm(&b, REFUSALS[i].harm);
        cr_expect(!accept(&b, 0, 70, &e) && strstr(e.text, REFUSALS[i].says) != NULL, "case %s: %s", REFUSALS[i].name, e.text);
        slots_reject(&b.slots, 0);
        cr_expect(control(&b, 0)->state == SLOT_EMPTY || control(&b, 0)->state == SLOT_WRITING, "case %s", REFUSALS[i].name);
        bench_release(&b);
    }
    bench_init(&b);
    cr_expect(!accept(&b, 7, 70, &e) && strstr(e.text, "no such slot") != NULL, "%s", e.text);
    slots_reject(&b.slots, 7);
    bench_release(&b);
}

Test(slots, grow_in_place_and_keep_what_they_hold)
{
    struct bench b;
    struct error e = ERROR_INIT;
    struct holding held;
    uint64_t bytes;
    uint8_t before[IMAGE], after[IMAGE];
    bench_init(&b);
    fill(&b, 0, 70);
    cr_assert(accept(&b, 0, 70, &e));
    image_fill(before, 1, 70, DATA);
    int fd = b.slots.slot[0].fd;
    cr_assert(slots_ensure(&b.slots, 10 * IMAGE, &bytes, &e) == 0 && bytes >= 10 * IMAGE, "%s", e.text);
    cr_expect(b.slots.slot[0].fd == fd, "the trainer's descriptor stays good");
    cr_expect(slots_held(&b.slots, 0, &held, &bytes) && held.id.step == 70);
    cr_expect(pread(fd, after, IMAGE, SLOT_CONTROL_BYTES) == (ssize_t)IMAGE && memcmp(before, after, IMAGE) == 0);
    cr_expect(slots_ensure(&b.slots, 1ull << 45, &bytes, &e) != 0 && e.os_errno != 0, "%s", e.text);
    cr_expect(slots_held(&b.slots, 0, &held, &bytes) && held.id.step == 70, "memory that is not there costs nothing that is");
    cr_expect(slots_ensure(&b.slots, IMAGE, &bytes, &e) == 0 && bytes >= 10 * IMAGE);
    cr_expect(slots_ensure(&b.slots, 0, &bytes, &e) != 0 && slots_ensure(&b.slots, UINT64_MAX, &bytes, &e) != 0);
    bench_release(&b);
}

Test(slots, a_dead_trainer_leaves_no_half_image)
{
    struct bench b;
    struct error e = ERROR_INIT;
    bench_init(&b);
    fill(&b, 0, 70);
    cr_assert(accept(&b, 0, 70, &e));
    control(&b, 1)->state = SLOT_WRITING;
    slots_drop_unfinished(&b.slots);
    cr_expect(control(&b, 0)->state == SLOT_STAGED && control(&b, 1)->state == SLOT_EMPTY);
    fill(&b, 1, 80); /* staged, but the message was never sent */
    slots_drop_unfinished(&b.slots);
    cr_expect(control(&b, 1)->state == SLOT_EMPTY);
    bench_release(&b);
}
