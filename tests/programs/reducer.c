/*
 * reducer.c — a training process for fault runs: all-reduces of many sizes without a pause, each checked against the closed form.
 *
 * Lines on stdout, each with CLOCK_MONOTONIC in ns: "works NS ROUND" once some operations went well, "lost NS TEXT" when one failed
 * (it then waits to be ended: SIGTERM is taken only afterwards, so that every loss is told), and "wrong ..." with exit code 3 when a result is not what it has to be.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "ringmaster.h"

#define WARM 20 /* operations until it "works" */
#define MOST (1u << 18)

static const uint64_t COUNTS[] = { 1, 1000, 65536, 17, MOST, 4096 };

static int64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Small integers: exact in float in any order. */
static float value(int64_t step, uint64_t i, int rank)
{
    return (float)(rank + step % 100 + (int64_t)(i % 7));
}

static int is_right(const float *data, uint64_t count, int64_t step, int size)
{
    for (uint64_t i = 0; i < count; i++) {
        float expected = value(step, i, 0) * (float)size + (float)(size * (size - 1) / 2);
        if (data[i] != expected) {
            printf("wrong %" PRId64 " step %" PRId64 " element %" PRIu64 ": %g, not %g\n", now_ns(), step, i, (double)data[i],
                   (double)expected);
            return 0;
        }
    }
    return 1;
}

static int lost(void)
{
    sigset_t term;
    int number;

    printf("lost %" PRId64 " %s\n", now_ns(), rm_error_text());
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    sigwait(&term, &number);
    return 128 + SIGTERM;
}

static int reduce(float *data, int64_t step, int rank, int size)
{
    uint64_t count = COUNTS[(size_t)step % (sizeof COUNTS / sizeof *COUNTS)];
    char name[32];
    rm_handle handle;

    snprintf(name, sizeof name, "gradient-%" PRId64, step % 6);
    for (uint64_t i = 0; i < count; i++)
        data[i] = value(step, i, rank);
    int rc = rm_allreduce(name, data, data, count, RM_F32, RM_SUM, 1.0, 1.0, NULL, NULL, &handle);
    if (rc == 0)
        rc = rm_wait(handle, -1);
    if (rc < 0)
        return lost();
    return is_right(data, count, step, size) ? 0 : 3;
}

int main(void)
{
    const char *round = getenv("RINGMASTER_ROUND");

    sigset_t term;

    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    sigprocmask(SIG_BLOCK, &term, NULL);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (rm_init("reducer") < 0) /* the round may have ended before */
        return lost();
    float *data = rm_alloc(MOST * sizeof *data);
    for (int64_t step = 0; data != NULL; step++) {
        int rc = reduce(data, step, rm_rank(), rm_size());
        if (rc != 0)
            return rc;
        if (step == WARM)
            printf("works %" PRId64 " %s\n", now_ns(), round != NULL ? round : "-");
    }
    return 2;
}
