/*
 * trainer.c — a training process in C, for whole jobs under valgrind and the thread sanitizer, where a framework would be in
 * the way. It does what a real one does: joins, resumes from a checkpoint, reduces every step, reports, saves, ends.
 *
 *     trainer STEPS SAVE_EVERY [KILL_RANK KILL_STEP]
 *
 * The state is one vector; each step adds the ranks' average of (rank + step), so that its right value at every step is known
 * and a wrong reduction, a wrong restore or a step done twice is an exit with code 3. KILL_RANK ends itself with SIGKILL at
 * KILL_STEP, in the first round only.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ringmaster.h"

#define ELEMENTS 4096
#define DATA_AT 4096 /* of the image: safetensors' length and header, padded with blanks, come before */
#define IMAGE_BYTES (DATA_AT + ELEMENTS * sizeof(float))

struct trainer { float state[ELEMENTS], gradient[ELEMENTS]; };

static int fail(const char *what)
{
    fprintf(stderr, "trainer: %s: %s\n", what, rm_error_text());
    return 3;
}

/* Sum over steps 1..step of the average over ranks of (rank + step). Small integers and halves: exact in float. */
static float expected(int64_t step, int size)
{
    return (float)step * (float)(size - 1) / 2.0f + (float)(step * (step + 1) / 2);
}

static int is_right(const struct trainer *t, int64_t step, int size)
{
    for (size_t i = 0; i < ELEMENTS; i++) {
        if (t->state[i] != expected(step, size)) {
            fprintf(stderr, "trainer: element %zu after step %" PRId64 " is %g, not %g\n", i, step, (double)t->state[i],
                    (double)expected(step, size));
            return 0;
        }
    }
    return 1;
}

static void write_image(uint8_t *image, const struct trainer *t)
{
    uint64_t header_bytes = DATA_AT - 8;
    memset(image, ' ', DATA_AT);
    for (int i = 0; i < 8; i++)
        image[i] = (uint8_t)(header_bytes >> (8 * i));
    char header[160];
    int len = snprintf(header, sizeof header, "{\"state\":{\"dtype\":\"F32\",\"shape\":[%d],\"data_offsets\":[0,%zu]}}", ELEMENTS,
                       sizeof t->state);
    memcpy(image + 8, header, (size_t)len);
    memcpy(image + DATA_AT, t->state, sizeof t->state);
}

static int save(const struct trainer *t, int64_t step)
{
    void *image = NULL;
    int rc = rm_checkpoint_begin(step, IMAGE_BYTES, &image);
    if (rc == RM_TIMEOUT)
        return 0; /* both slots are on their way to the volume: this save is passed over */
    if (rc < 0)
        return fail("rm_checkpoint_begin");
    write_image(image, t);
    return rm_checkpoint_stage(step, IMAGE_BYTES) < 0 ? fail("rm_checkpoint_stage") : 0;
}

static int restore(struct trainer *t, int64_t *ret_step)
{
    const void *image = NULL;
    uint64_t bytes = 0;
    int64_t step = 0;
    int world = 0;
    int rc = rm_checkpoint_restore(&image, &bytes, &step, &world);
    if (rc == RM_NOT_FOUND)
        return 0;
    if (rc < 0)
        return fail("rm_checkpoint_restore");
    if (bytes != IMAGE_BYTES || world != rm_size())
        return fail("the checkpoint is of another size");
    memcpy(t->state, (const uint8_t *)image + DATA_AT, sizeof t->state);
    rm_checkpoint_restore_done();
    *ret_step = step;
    return is_right(t, step, rm_size()) ? 0 : 3;
}

static int train_step(struct trainer *t, int64_t step, int64_t steps)
{
    for (size_t i = 0; i < ELEMENTS; i++)
        t->gradient[i] = (float)(rm_rank() + step);
    rm_handle handle;
    if (rm_allreduce("gradient", t->gradient, t->gradient, ELEMENTS, RM_F32, RM_AVERAGE, 1.0, 1.0, NULL, NULL, &handle) < 0 ||
        rm_wait(handle, -1) < 0)
        return fail("rm_allreduce");
    for (size_t i = 0; i < ELEMENTS; i++)
        t->state[i] += t->gradient[i];
    char report[128];
    snprintf(report, sizeof report, "{\"step\":%" PRId64 ",\"total_steps\":%" PRId64 ",\"loss\":%g}", step, steps, 1.0 / (double)step);
    rm_progress();
    return rm_report(report) < 0 ? fail("rm_report") : 0;
}

static int train(struct trainer *t, int64_t steps, int64_t save_every, int kill_rank, int64_t kill_step)
{
    const char *round = getenv("RINGMASTER_ROUND");
    int first_round = !round || strcmp(round, "1") == 0;
    int64_t done = 0, committed = 0;
    int rc = restore(t, &done);
    if (rc)
        return rc;
    for (int64_t step = done + 1; step <= steps; step++) {
        if ((rc = train_step(t, step, steps)) || (step % save_every == 0 && (rc = save(t, step))))
            return rc;
        if (first_round && rm_rank() == kill_rank && step == kill_step) {
            if (rm_checkpoint_wait(60000, &committed) < 0)
                return fail("rm_checkpoint_wait");
            raise(SIGKILL);
        }
    }
    if (!is_right(t, steps, rm_size()))
        return 3;
    if (rm_barrier(NULL) < 0)
        return fail("rm_barrier");
    return rm_checkpoint_wait(60000, &committed) < 0 ? fail("rm_checkpoint_wait") : 0;
}

int main(int argc, char **argv)
{
    if (argc != 3 && argc != 5) {
        fprintf(stderr, "usage: trainer STEPS SAVE_EVERY [KILL_RANK KILL_STEP]\n");
        return 2;
    }
    if (rm_init("trainer") < 0)
        return fail("rm_init");
    static struct trainer t;
    int rc = train(&t, strtoll(argv[1], NULL, 10), strtoll(argv[2], NULL, 10), argc == 5 ? (int)strtol(argv[3], NULL, 10) : -1,
                   argc == 5 ? strtoll(argv[4], NULL, 10) : -1);
    rm_shutdown();
    return rc;
}
