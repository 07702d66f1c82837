/*
 * Tensors in GPU memory through the whole client library, against a sidecar of one thread and a driver in which every call can fail
 * (tests/gpu). A plain main: it runs under the sanitizers, ThreadSanitizer too.
 */
#include "tests/tsan/mini_sidecar.h"

#include <dlfcn.h>
#include <math.h>

#include "client/c/src/client.h"
#include "tests/gpu/fake_cuda.h"

static const struct fake_cuda *cuda;

static void attach(void)
{
    start_sidecar();
    CHECK(rm_init("test") == RM_OK, "%s", rm_error_text());
}

static void detach(const char *what)
{
    rm_shutdown();
    end_sidecar();
    CHECK(cuda->live() == 0 && cuda->depth() == 0, "%s: %d things of the driver are left, %d contexts", what, cuda->live(), cuda->depth());
    cuda->reset();
}

static int submit(int kind, const char *name, const struct rm_tensor *tensors, size_t count, void *stream, rm_handle *ret)
{
    struct rm_collective c = { .struct_bytes = sizeof(c), .kind = kind, .name = name, .op = RM_SUM, .prescale = 1, .postscale = 1,
                               .root = 1, .tensor_count = count, .tensors = tensors, .memory = RM_CUDA, .stream = stream };
    return rm_submit(&c, ret);
}

static int submit_floats(int kind, const char *name, const float *in, float *out, int64_t count, void *stream, rm_handle *ret)
{
    const struct rm_tensor t = { .in = in, .out = out, .shape = &count, .ndim = 1, .dtype = RM_F32 };
    return submit(kind, name, &t, 1, stream, ret);
}

static float value_of(int64_t i)
{
    return (float)(i % 1013) * 0.5f - 100;
}

/* ---- the program's stream ---- */

struct work { float *at; int64_t count; float seen; atomic_int may; };

static void wait_until_it_may(void *work)
{
    while (atomic_load(&((struct work *)work)->may) == 0)
        usleep(1000);
}

/* Backward: the gradients are there some time after the request was sent. */
static void fill_late(void *work)
{
    const struct work *w = work;
    usleep(5000);
    for (int64_t i = 0; i < w->count; i++)
        w->at[i] = value_of(i);
}

static void look_late(void *work)
{
    struct work *w = work;
    usleep(5000);
    w->seen = w->at[0];
}

/* ---- what has to be right ---- */

static void reduce_one(int64_t count, bool in_place, int device)
{
    float *in = cuda->alloc(device, (size_t)count * 4), *out = in_place ? in : cuda->alloc(device, (size_t)count * 4);
    void *stream = cuda->stream_new();
    struct work w = { .at = in, .count = count };
    rm_handle handle = 0;
    int64_t wrong = 0;

    cuda->put(stream, fill_late, &w);
    CHECK(submit_floats(RM_ALLREDUCE, "w", in, out, count, stream, &handle) == RM_OK, "%s", rm_error_text());
    CHECK(rm_wait(handle, -1) == RM_OK, "%s", rm_error_text());
    for (int64_t i = 0; i < count; i++)
        wrong += out[i] != 2 * value_of(i);
    CHECK(wrong == 0, "%lld of %lld elements are wrong", (long long)wrong, (long long)count);
    cuda->stream_free(stream);
    cuda->free(in);
    if (!in_place)
        cuda->free(out);
}

static void sums_are_right(void)
{
    static const int64_t counts[] = { 0, 1, 3, 16, 1000, 65537, 700001 };
    attach();
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        reduce_one(counts[i], false, 0);
        reduce_one(counts[i], true, 1);
    }
    detach("sums");
}

#define GROUP 200

static void reduce_group(bool expect_kernels)
{
    struct rm_tensor tensors[GROUP];
    int64_t shapes[GROUP], wrong = 0;
    float *in[GROUP];
    rm_handle handle = 0;

    for (int i = 0; i < GROUP; i++) {
        shapes[i] = i * 7 % 61;
        in[i] = cuda->alloc(0, (size_t)shapes[i] * 4 + 4);
        for (int64_t k = 0; k < shapes[i]; k++)
            in[i][k] = value_of(k + i);
        in[i][shapes[i]] = -1;
        tensors[i] = (struct rm_tensor){ .in = in[i], .out = in[i], .shape = &shapes[i], .ndim = 1, .dtype = RM_F32 };
    }
    int before = cuda->kernels();
    CHECK(submit(RM_ALLREDUCE, "group", tensors, GROUP, NULL, &handle) == RM_OK, "%s", rm_error_text());
    CHECK(rm_wait(handle, -1) == RM_OK, "%s", rm_error_text());
    CHECK((cuda->kernels() - before == 4) == expect_kernels, "%d kernels", cuda->kernels() - before);
    for (int i = 0; i < GROUP; i++) {
        for (int64_t k = 0; k < shapes[i]; k++)
            wrong += in[i][k] != 2 * value_of(k + i);
        wrong += in[i][shapes[i]] != -1;
        cuda->free(in[i]);
    }
    CHECK(wrong == 0, "%lld elements are wrong", (long long)wrong);
}

static void small_tensors_travel_together(void)
{
    attach();
    reduce_group(true);
    detach("group");
    setenv("FAKE_CUDA_REFUSES_KERNELS", "1", 1);
    attach();
    reduce_group(false);
    detach("group without kernels");
    unsetenv("FAKE_CUDA_REFUSES_KERNELS");
}

static void what_is_read_is_not_overwritten(void)
{
    int64_t count = 5000;
    float *out = cuda->alloc(0, (size_t)count * 4);
    void *stream = cuda->stream_new();
    struct work w = { .at = out, .count = count };
    rm_handle handle = 0;

    attach();
    out[0] = 3.5f;
    cuda->put(stream, look_late, &w);
    CHECK(submit_floats(RM_BROADCAST, "b", NULL, out, count, stream, &handle) == RM_OK, "%s", rm_error_text());
    CHECK(rm_wait(handle, -1) == RM_OK, "%s", rm_error_text());
    CHECK(w.seen == 3.5f, "the program's kernel saw %g", (double)w.seen);
    CHECK(((const unsigned char *)out)[0] == 7 && ((const unsigned char *)out)[4 * count - 1] == 7, "the root's data did not come");
    detach("broadcast");
    cuda->stream_free(stream);
    cuda->free(out);
}

/* Neither the call nor the stream waits for what is not there yet. */
static void nothing_waits_for_the_stream(void)
{
    int64_t count = 300000;
    float *in = cuda->alloc(0, (size_t)count * 4), *other = cuda->alloc(0, 64);
    void *stream = cuda->stream_new();
    struct work w = { .at = other };
    rm_handle handle = 0;

    attach();
    other[0] = 1;
    cuda->put(stream, wait_until_it_may, &w);
    CHECK(submit_floats(RM_ALLREDUCE, "late", in, in, count, stream, &handle) == RM_OK, "%s", rm_error_text());
    CHECK(rm_poll(handle) == 0, "it is done before its data are there");
    CHECK(rm_wait(handle, 20) == RM_TIMEOUT, "%s", rm_error_text());
    atomic_store(&w.may, 1);
    CHECK(rm_wait(handle, -1) == RM_OK, "%s", rm_error_text());
    detach("late");
    cuda->stream_free(stream);
    cuda->free(in);
    cuda->free(other);
}

static void *let_it(void *work)
{
    usleep(100000);
    atomic_store(&((struct work *)work)->may, 1);
    return NULL;
}

/* The copies are waited for before the arena goes; what they were for has ended in words. */
static void shutdown_waits_for_copies(void)
{
    int64_t count = 200000;
    float *in = cuda->alloc(0, (size_t)count * 4);
    void *stream = cuda->stream_new();
    struct work w = { .at = in };
    rm_handle handle = 0;
    pthread_t thread;

    attach();
    cuda->put(stream, wait_until_it_may, &w);
    CHECK(submit_floats(RM_ALLREDUCE, "stuck", in, in, count, stream, &handle) == RM_OK, "%s", rm_error_text());
    pthread_create(&thread, NULL, let_it, &w);
    detach("shutdown");
    pthread_join(thread, NULL);
    cuda->stream_free(stream);
    cuda->free(in);
}

/* A stream that does not come to an end keeps nobody. Its copies write to the arena later, so that stays. */
static void shutdown_does_not_wait_for_ever(void)
{
    int64_t count = 200000;
    float *in = cuda->alloc(0, (size_t)count * 4);
    void *stream = cuda->stream_new();
    struct work w = { .at = in };
    rm_handle handle = 0;
    int usual_ms = the_client.gpu_settle_ms;

    attach();
    the_client.gpu_settle_ms = 50;
    cuda->put(stream, wait_until_it_may, &w);
    CHECK(submit_floats(RM_ALLREDUCE, "for ever", in, in, count, stream, &handle) == RM_OK, "%s", rm_error_text());
    rm_shutdown();
    end_sidecar();
    CHECK(cuda->live() == 1 && cuda->depth() == 0, "%d things of the driver are left; the pinned arena alone is to be", cuda->live());
    the_client.gpu_settle_ms = usual_ms;
    atomic_store(&w.may, 1);
    cuda->stream_free(stream);
    cuda->free(in);
}

static void refusals_are_in_words(void)
{
    int64_t four = 4;
    float host[4], *a = cuda->alloc(0, 16), *b = cuda->alloc(1, 16);
    void *stream = cuda->stream_new();
    rm_handle handle = 0;
    const struct rm_tensor plain = { .in = a, .out = a, .shape = &four, .ndim = 1, .dtype = RM_F32 };
    const struct rm_tensor two[] = { plain, { .in = b, .out = b, .shape = &four, .ndim = 1, .dtype = RM_F32 } };
    struct rm_collective odd = { .struct_bytes = sizeof(odd), .kind = RM_ALLREDUCE, .name = "odd", .op = RM_SUM, .prescale = 1, .postscale = 1,
                                 .tensor_count = 1, .tensors = &plain, .memory = 7 };

    attach();
    CHECK(submit_floats(RM_ALLREDUCE, "h", host, host, 4, NULL, &handle) == RM_INVALID && strstr(rm_error_text(), "no address of any"),
          "%s", rm_error_text());
    CHECK(submit(RM_ALLREDUCE, "two", two, 2, NULL, &handle) == RM_INVALID && strstr(rm_error_text(), "GPU 0 and GPU 1"), "%s", rm_error_text());
    CHECK(submit(RM_ALLGATHER, "g", &plain, 1, NULL, &handle) == RM_INVALID && strstr(rm_error_text(), "all-reduce and broadcast"), "%s",
          rm_error_text());
    CHECK(rm_submit(&odd, &handle) == RM_INVALID && strstr(rm_error_text(), "7 is no kind of memory"), "%s", rm_error_text());
    odd.struct_bytes = offsetof(struct rm_collective, memory); /* as a program of the ABI before has it: the field is not read */
    odd.tensors = &(const struct rm_tensor){ .in = host, .out = host, .shape = &four, .ndim = 1, .dtype = RM_F32 };
    CHECK(rm_submit(&odd, &handle) == RM_OK && rm_wait(handle, -1) == RM_OK, "%s", rm_error_text());
    cuda->capture(stream, true);
    CHECK(submit_floats(RM_ALLREDUCE, "c", a, a, 4, stream, &handle) == RM_INVALID && strstr(rm_error_text(), "CUDA graph"), "%s",
          rm_error_text());
    detach("refusals");
    cuda->stream_free(stream);
    cuda->free(a);
    cuda->free(b);
}

/* ---- failures ---- */

/* A large tensor, a group and a broadcast, all at once. The number of requests that ended well. */
static int run_script(int *ret_failed)
{
    int64_t counts[] = { 400000, 4, 5, 6, 7, 3000 };
    rm_handle handles[3] = { 0 };
    struct rm_tensor t[6];
    int well = 0, begun[3];

    for (int i = 0; i < 6; i++) {
        float *data = cuda->alloc(0, (size_t)counts[i] * 4);
        for (int64_t k = 0; k < counts[i]; k++)
            data[k] = value_of(k);
        t[i] = (struct rm_tensor){ .in = data, .out = data, .shape = &counts[i], .ndim = 1, .dtype = RM_F32 };
    }
    begun[0] = submit(RM_ALLREDUCE, "large", &t[0], 1, NULL, &handles[0]);
    begun[1] = submit(RM_ALLREDUCE, "group", &t[1], 4, NULL, &handles[1]);
    begun[2] = submit(RM_BROADCAST, "b", &t[5], 1, NULL, &handles[2]);
    *ret_failed = 0;
    for (int i = 0; i < 3; i++) {
        int status = begun[i] == RM_OK ? rm_wait(handles[i], -1) : begun[i];
        const float *out = t[i == 0 ? 0 : i == 1 ? 4 : 5].out;
        *ret_failed += status != RM_OK;
        if (status != RM_OK)
            CHECK(strlen(rm_error_text()) > 20, "request %d: %d without words: %s", i, status, rm_error_text());
        else if (i < 2)
            CHECK(out[1] == 2 * value_of(1), "request %d ended well with a wrong sum, %g", i, (double)out[1]);
        else
            CHECK(((const unsigned char *)out)[0] == 7, "the broadcast ended well without data");
        well += status == RM_OK;
    }
    for (int i = 0; i < 6; i++)
        cuda->free(t[i].out);
    return well;
}

static void every_call_fails_in_turn(void)
{
    int failed, calls = 0, runs_that_failed = 0;
    for (int n = 1; n == 1 || n <= calls; n++) {
        char what[60];
        attach();
        cuda->fail_at(n);
        (void)run_script(&failed);
        calls = cuda->calls() > calls ? cuda->calls() : calls;
        runs_that_failed += failed > 0;
        snprintf(what, sizeof(what), "call %d fails", n);
        detach(what);
    }
    CHECK(runs_that_failed > 40, "only %d of %d calls that failed made a request fail", runs_that_failed, calls);
    printf("  %d calls failed in turn, %d of them made a request fail\n", calls, runs_that_failed);
}

/* An error that the device has while it works: what was put behind it never tells of its end. */
static void the_device_fails_while_it_works(void)
{
    for (int n = 1; n <= 6; n++) {
        int failed;
        attach();
        cuda->break_at(n);
        (void)run_script(&failed);
        CHECK(failed > 0, "copy %d failed and nobody heard of it", n);
        detach("broken device");
    }
}

/* ---- a world of one ---- */

static void fill_bytes(uint8_t *to, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        to[i] = (uint8_t)(i * 37 + i / 256);
}

static void compare_alone(int dtype, double prescale, double postscale)
{
    int64_t count = 40000;
    size_t bytes = (size_t)count * shm_dtype_size((unsigned)dtype);
    uint8_t *in = cuda->alloc(0, bytes), *out = cuda->alloc(0, bytes), *expected = malloc(bytes);
    void *stream = cuda->stream_new();
    struct rm_tensor t = { .in = in, .out = out, .shape = &count, .ndim = 1, .dtype = dtype };
    struct rm_collective c = { .struct_bytes = sizeof(c), .kind = RM_ALLREDUCE, .name = "x", .op = RM_SUM, .prescale = prescale,
                               .postscale = postscale, .tensor_count = 1, .tensors = &t, .memory = RM_CUDA, .stream = stream };
    rm_handle handle = 0;

    fill_bytes(in, bytes);
    CHECK(rm_submit(&c, &handle) == RM_OK && rm_wait(handle, -1) == RM_OK, "%s", rm_error_text());
    t.out = expected;
    c.memory = RM_HOST;
    CHECK(rm_submit(&c, &handle) == RM_OK && rm_wait(handle, -1) == RM_OK, "%s", rm_error_text());
    cuda->stream_free(stream); /* has done all */
    size_t element = shm_dtype_size((unsigned)dtype), wrong = 0;
    for (size_t i = 0; i < bytes; i += element) {
        bool nan = dtype == RM_F16 && (expected[i + 1] & 0x7c) == 0x7c && ((expected[i + 1] & 3) | expected[i]) != 0;
        wrong += !nan && memcmp(out + i, expected + i, element) != 0; /* the processor keeps more of a half NaN's bits than alone.c */
    }
    CHECK(wrong == 0, "dtype %d times %g times %g: %zu elements differ from the host's", dtype, prescale, postscale, wrong);
    cuda->free(in);
    cuda->free(out);
    free(expected);
}

static void alone_it_is_scaled_in_place(void)
{
    static const double factors[][2] = { { 1, 1 }, { 0.5, 1 }, { 1, 0.3 }, { 3, 0.25 }, { 1e30, 1 } };
    unsetenv("RINGMASTER_SOCKET");
    CHECK(rm_init("test") == RM_OK && rm_size() == 1, "%s", rm_error_text());
    for (int dtype = RM_U8; dtype <= RM_F64; dtype++)
        for (size_t i = 0; i < sizeof(factors) / sizeof(factors[0]); i++)
            compare_alone(dtype, factors[i][0], factors[i][1]);
    rm_shutdown();
    CHECK(cuda->live() == 0 && cuda->depth() == 0, "%d things of the driver are left", cuda->live());
    setenv("RINGMASTER_SOCKET", sidecar.path, 1);
}

/* ---- threads ---- */

static void *many(void *number)
{
    int64_t count = 20000;
    float *data = cuda->alloc((int)(intptr_t)number % 2, (size_t)count * 4);
    char name[40];
    for (int i = 0; i < 20; i++) {
        rm_handle handle = 0;
        for (int64_t k = 0; k < count; k++)
            data[k] = value_of(k + i);
        snprintf(name, sizeof(name), "t%d.%d", (int)(intptr_t)number, i);
        CHECK(submit_floats(RM_ALLREDUCE, name, data, data, count, NULL, &handle) == RM_OK && rm_wait(handle, -1) == RM_OK, "%s",
              rm_error_text());
        CHECK(data[count - 1] == 2 * value_of(count - 1 + i), "a wrong sum");
    }
    cuda->free(data);
    return NULL;
}

static void threads_submit_at_once(void)
{
    pthread_t threads[4];
    attach();
    for (intptr_t i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, many, (void *)i);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    detach("threads");
}

/* The loader takes its path from the environment that a program begins with. */
static void begin_with_the_fake(char **argv)
{
    const char *path = getenv("LD_LIBRARY_PATH");
    if (path != NULL && strcmp(path, FAKE_CUDA_DIR) == 0)
        return;
    setenv("LD_LIBRARY_PATH", FAKE_CUDA_DIR, 1);
    (void)execv("/proc/self/exe", argv);
    printf("starting anew: %s\n", strerror(errno));
}

int main(int argc, char **argv)
{
    (void)argc;
    begin_with_the_fake(argv);
    static const struct { const char *name; void (*run)(void); } tests[] = {
        { "sums are right, in any size, in and out of place", sums_are_right },
        { "small tensors travel together", small_tensors_travel_together },
        { "what the program still reads is not overwritten", what_is_read_is_not_overwritten },
        { "nothing waits for the program's stream", nothing_waits_for_the_stream },
        { "shutdown waits for copies", shutdown_waits_for_copies },
        { "refusals are in words", refusals_are_in_words },
        { "threads submit at once", threads_submit_at_once },
        { "alone it is scaled in place", alone_it_is_scaled_in_place },
        { "the device fails while it works", the_device_fails_while_it_works },
        { "every call fails in turn", every_call_fails_in_turn },
        { "shutdown does not wait for ever", shutdown_does_not_wait_for_ever }, /* the last: it leaves the arena pinned */
    };
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    cuda = library == NULL ? NULL : dlsym(library, "fake_cuda");
    if (cuda == NULL) {
        printf("the fake libcuda.so.1 is not found: %s\n", dlerror());
        return 1;
    }
    snprintf(sidecar.path, sizeof(sidecar.path), "/tmp/rm-gpu-%d.sock", (int)getpid());
    setenv("RINGMASTER_SOCKET", sidecar.path, 1);
    setenv("RINGMASTER_FENCE", "4294967297", 1);
    alarm(300); /* a hang is a failure */
    for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++) {
        int before = failures;
        tests[i].run();
        printf("%s: %s\n", tests[i].name, failures == before ? "ok" : "FAILED");
        (void)fflush(stdout);
    }
    return failures != 0;
}
