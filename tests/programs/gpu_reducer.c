/*
 * gpu_reducer.c — a training process with tensors in GPU memory, on the driver that tests/gpu fakes: single ones of many sizes, groups
 * of small ones and broadcasts, each checked against the closed form.
 *
 *   gpu_reducer             STEPS steps; "right RANK" on stdout, exit code 3 when a result is not what it has to be
 *   gpu_reducer --die RANK  the same, but this rank kills itself in the middle of the first round
 *   gpu_reducer --ask       asks for one all-reduce and says what it hears: for machines without a driver
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ringmaster.h"
#include "tests/gpu/fake_cuda.h"

#define STEPS 12
#define TENSORS 40
#define ROOT 1

static const int64_t COUNTS[] = { 1, 1000, 65536, 17, 3000000 };

static const struct fake_cuda *cuda;
static void *stream;

static int failed(const char *what)
{
    printf("%s: %s\n", what, rm_error_text());
    return 1;
}

static float value(int step, int64_t i, int rank)
{
    return (float)(rank + step % 100 + (int)(i % 7));
}

static int submit(int kind, const char *name, const struct rm_tensor *tensors, size_t count, rm_handle *ret)
{
    const struct rm_collective c = { .struct_bytes = sizeof(c), .kind = kind, .name = name, .op = RM_SUM, .prescale = 1, .postscale = 1,
                                     .root = ROOT, .tensor_count = count, .tensors = tensors, .memory = RM_CUDA, .stream = stream };
    return rm_submit(&c, ret);
}

static int check(const float *data, int64_t count, int step, float factor, float offset)
{
    for (int64_t i = 0; i < count; i++) {
        float expected = value(step, i, 0) * factor + offset;
        if (data[i] != expected) {
            printf("wrong: step %d, element %lld of %lld is %g, not %g\n", step, (long long)i, (long long)count, (double)data[i],
                   (double)expected);
            return 3;
        }
    }
    return 0;
}

static void fill(float *data, int64_t count, int step, int rank)
{
    for (int64_t i = 0; i < count; i++)
        data[i] = value(step, i, rank);
}

/* All requests of a step are in flight at once. */
static int run_step(int step, float **single, float **small, float *from_root)
{
    struct rm_tensor t[TENSORS];
    int64_t sizes[TENSORS], thousand = 1000;
    rm_handle handles[7];
    int rank = rm_rank(), size = rm_size(), n = 0;
    char name[40];

    for (size_t i = 0; i < sizeof(COUNTS) / sizeof(COUNTS[0]); i++) {
        fill(single[i], COUNTS[i], step, rank);
        t[0] = (struct rm_tensor){ .in = single[i], .out = single[i], .shape = &COUNTS[i], .ndim = 1, .dtype = RM_F32 };
        snprintf(name, sizeof(name), "single.%zu", i);
        if (submit(RM_ALLREDUCE, name, t, 1, &handles[n++]) != RM_OK)
            return failed(name);
    }
    for (int i = 0; i < TENSORS; i++) {
        sizes[i] = 1 + i * 5;
        fill(small[i], sizes[i], step, rank);
        t[i] = (struct rm_tensor){ .in = small[i], .out = small[i], .shape = &sizes[i], .ndim = 1, .dtype = RM_F32 };
    }
    if (submit(RM_ALLREDUCE, "small", t, TENSORS, &handles[n++]) != RM_OK)
        return failed("small");
    fill(from_root, thousand, step, rank);
    t[0] = (struct rm_tensor){ .in = from_root, .out = from_root, .shape = &thousand, .ndim = 1, .dtype = RM_F32 };
    if (submit(RM_BROADCAST, "from root", t, 1, &handles[n++]) != RM_OK)
        return failed("from root");
    for (int i = 0; i < n; i++)
        if (rm_wait(handles[i], -1) != RM_OK)
            return failed("waiting");
    int wrong = check(from_root, thousand, step, 1, ROOT);
    for (size_t i = 0; wrong == 0 && i < sizeof(COUNTS) / sizeof(COUNTS[0]); i++)
        wrong = check(single[i], COUNTS[i], step, (float)size, (float)(size * (size - 1) / 2));
    for (int i = 0; wrong == 0 && i < TENSORS; i++)
        wrong = check(small[i], sizes[i], step, (float)size, (float)(size * (size - 1) / 2));
    return wrong;
}

static int ask(void)
{
    float x = 1;
    int64_t one = 1;
    rm_handle handle;
    const struct rm_tensor t = { .in = &x, .out = &x, .shape = &one, .ndim = 1, .dtype = RM_F32 };
    int status = submit(RM_ALLREDUCE, "x", &t, 1, &handle);

    printf("%d %s\n", status, rm_error_text());
    return 0;
}

int main(int argc, char **argv)
{
    const char *round = getenv("RINGMASTER_ROUND");
    int dies = argc > 2 && strcmp(argv[1], "--die") == 0 && round != NULL && strcmp(round, "1") == 0 ? atoi(argv[2]) : -1;
    float *single[sizeof(COUNTS) / sizeof(COUNTS[0])], *small[TENSORS];

    if (rm_init("gpu_reducer") != RM_OK)
        return failed("rm_init");
    if (argc > 1 && strcmp(argv[1], "--ask") == 0)
        return ask();
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    cuda = library == NULL ? NULL : dlsym(library, "fake_cuda");
    if (cuda == NULL) {
        printf("the fake libcuda.so.1 is not found\n");
        return 1;
    }
    stream = cuda->stream_new();
    for (size_t i = 0; i < sizeof(COUNTS) / sizeof(COUNTS[0]); i++)
        single[i] = cuda->alloc(0, (size_t)COUNTS[i] * 4);
    for (int i = 0; i < TENSORS; i++)
        small[i] = cuda->alloc(0, (size_t)TENSORS * 5 * 4);
    float *from_root = cuda->alloc(0, 4000);
    for (int step = 0; step < STEPS; step++) {
        int status = run_step(step, single, small, from_root);
        if (status != 0)
            return status;
        if (step == STEPS / 2 && rm_rank() == dies)
            (void)raise(SIGKILL);
    }
    int rank = rm_rank();
    rm_shutdown();
    for (size_t i = 0; i < sizeof(COUNTS) / sizeof(COUNTS[0]); i++)
        cuda->free(single[i]);
    for (int i = 0; i < TENSORS; i++)
        cuda->free(small[i]);
    cuda->free(from_root);
    cuda->stream_free(stream);
    printf("right %d, %d left\n", rank, cuda->live());
    return 0;
}
