/* The client library with many threads at once, against a sidecar of one thread in this process. A plain main, so that it also runs
 * under ThreadSanitizer and valgrind. */
#include "tests/tsan/mini_sidecar.h"

#define THREADS 8

/* ---- the program ---- */

static atomic_int done_count;

static void on_done(void *ctx, int status, const char *text)
{
    CHECK(status == RM_OK || status == RM_PEER_LOST, "%d: %s", status, text);
    free(ctx);
    atomic_fetch_add(&done_count, 1);
}

static void one_allreduce(long thread, int i, float *x, uint64_t count)
{
    char name[64];
    rm_handle handle = 0;
    snprintf(name, sizeof(name), "t%ld.%d", thread, i);
    for (uint64_t k = 0; k < count; k++)
        x[k] = (float)((thread + i + (long)k) % 1000);
    const void *in[2] = { x, x + count / 3 };
    void *out[2] = { x, x + count / 3 };
    uint64_t counts[2] = { count / 3, count - count / 3 };
    int status = i % 2 == 0 ? rm_allreduce(name, x, x, count, RM_F32, RM_SUM, 1, 1, NULL, NULL, &handle)
                            : rm_allreduce_group(name, 2, in, out, counts, RM_F32, RM_SUM, 1, 1, NULL, NULL, &handle);
    if (status == RM_OK)
        status = rm_wait(handle, -1);
    CHECK(status == RM_OK, "%s: %s", name, rm_error_text());
    for (uint64_t k = 0; status == RM_OK && k < count; k++)
        if (x[k] != 2 * (float)((thread + i + (long)k) % 1000)) {
            CHECK(false, "%s: element %llu of %llu is %g", name, (unsigned long long)k, (unsigned long long)count, (double)x[k]);
            break;
        }
}

static void *work(void *argument)
{
    long thread = (long)argument;
    float *own = calloc(200000, sizeof(*own)), *arena = rm_alloc(4096 * sizeof(float));
    CHECK(own != NULL && arena != NULL, "memory: %s", rm_error_text());
    for (int i = 0; i < 40; i++) {
        one_allreduce(thread, i, i % 4 == 3 ? arena : own, i % 4 == 3 ? 4096 : (uint64_t)(1 + (i * 7919 + thread * 613) % 200000));
        char text[64], name[64];
        snprintf(text, sizeof(text), "{\"step\":%d,\"metrics\":{\"t%ld\":%d}}", i, thread, i);
        CHECK(rm_report(text) == RM_OK, "%s", rm_error_text());
        rm_progress();
        snprintf(name, sizeof(name), "async%ld.%d", thread, i);
        float *left_alone = calloc(64, sizeof(*left_alone)); /* on_done frees it */
        CHECK(rm_allreduce(name, left_alone, left_alone, 64, RM_F32, RM_SUM, 1, 1, on_done, left_alone, NULL) == RM_OK, "%s",
              rm_error_text());
        const void *data;
        uint64_t elements = 0;
        rm_handle handle;
        snprintf(name, sizeof(name), "gather%ld.%d", thread, i);
        CHECK(rm_allgather(name, own, 3, 5, RM_F32, NULL, NULL, &handle) == RM_OK && rm_wait(handle, -1) == RM_OK
              && rm_result(handle, &data, &elements) == RM_OK && elements == 30, "%s", rm_error_text());
        rm_release(handle);
    }
    int64_t step = 0;
    CHECK(rm_checkpoint_wait(1000, &step) == RM_OK && step == 9, "%s", rm_error_text());
    rm_free(arena);
    free(own);
    return NULL;
}

/* The same name in several sets at once, while another thread makes and removes sets. */
static void *in_sets(void *argument)
{
    long thread = (long)argument;
    for (int i = 0; i < 60; i++) {
        float x[SETS + 1][64];
        rm_handle handles[SETS + 1];
        int64_t shape[2] = { 8, 8 };
        char name[32];
        snprintf(name, sizeof(name), "s%ld", thread);
        for (int set = 0; set <= SETS; set++) {
            for (int k = 0; k < 64; k++)
                x[set][k] = (float)(set + k);
            struct rm_tensor t = { .in = x[set], .out = x[set], .shape = shape, .ndim = 2, .dtype = RM_F32 };
            struct rm_collective c = { .struct_bytes = sizeof(c), .kind = RM_ALLREDUCE, .name = name, .process_set = set, .op = RM_SUM,
                                       .prescale = 1, .postscale = 1, .tensor_count = 1, .tensors = &t };
            CHECK(rm_submit(&c, &handles[set]) == RM_OK, "set %d: %s", set, rm_error_text());
        }
        int extra = 0;
        if (thread == 0) {
            extra = rm_process_set_add((int[]){ 1, 0 }, 2);
            CHECK(extra > SETS && rm_process_set_size(extra) == 2 && rm_process_set_rank(extra) == 0, "%d: %s", extra, rm_error_text());
        }
        CHECK(rm_process_set_included(1 + i % SETS) == 1 && rm_process_sets(NULL, 0) >= 1 + SETS, "%s", rm_error_text());
        for (int set = 0; set <= SETS; set++)
            CHECK(rm_wait(handles[set], -1) == RM_OK && x[set][5] == 2 * (float)(set + 5), "set %d: %s", set, rm_error_text());
        if (extra > 0)
            CHECK(rm_process_set_remove(extra) == RM_OK && rm_process_set_size(extra) == RM_NOT_FOUND, "%s", rm_error_text());
    }
    return NULL;
}

static void shut_down(void *ctx, int status, const char *text)
{
    CHECK(status == RM_OK && rm_shutdown() == RM_OK, "%d: %s", status, text);
    CHECK(rm_init("from the callback") == RM_INVALID, "%s", rm_error_text());
    atomic_store((atomic_int *)ctx, 1);
}

static void *lose(void *argument)
{
    static float x[THREADS][100000];
    char name[32];
    rm_handle handle;
    long thread = (long)argument;
    snprintf(name, sizeof(name), "lost%ld", thread);
    int status = rm_allreduce(name, x[thread], x[thread], 100000, RM_F32, RM_SUM, 1, 1, NULL, NULL, &handle);
    if (status == RM_OK)
        status = rm_wait(handle, -1);
    CHECK(status == RM_PEER_LOST, "%d: %s", status, rm_error_text());
    return NULL;
}

static void on_all_threads(void *(*function)(void *), bool end_in_the_middle)
{
    pthread_t threads[THREADS];
    for (long i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, function, (void *)i);
    if (end_in_the_middle) {
        usleep(100000);
        end_sidecar();
    }
    for (long i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

static void sets_and_a_shutdown_by_a_callback(void)
{
    float x[16] = { 1 };
    atomic_int ended = 0;
    start_sidecar();
    CHECK(rm_init("test") == RM_OK, "%s", rm_error_text());
    for (int set = 1; set <= SETS; set++)
        CHECK(rm_process_set_add((int[]){ 0 }, 1) == set, "%s", rm_error_text());
    on_all_threads(in_sets, false);
    CHECK(rm_allreduce("last", x, x, 16, RM_F32, RM_SUM, 1, 1, shut_down, &ended, NULL) == RM_OK, "%s", rm_error_text());
    while (atomic_load(&ended) == 0)
        usleep(1000);
    CHECK(rm_is_initialized() == 0 && rm_rank() == RM_NOT_INITIALIZED, "it goes on after rm_shutdown");
    CHECK(rm_shutdown() == RM_OK, "%s", rm_error_text());
    end_sidecar();
}

int main(void)
{
    snprintf(sidecar.path, sizeof(sidecar.path), "/tmp/rm-client-%d.sock", (int)getpid());
    setenv("RINGMASTER_SOCKET", sidecar.path, 1);
    setenv("RINGMASTER_FENCE", "4294967297", 1);

    start_sidecar();
    CHECK(rm_init("test") == RM_OK && rm_init("again") == RM_OK && rm_size() == 2, "%s", rm_error_text());
    on_all_threads(work, false);
    rm_shutdown();
    CHECK(atomic_load(&done_count) == THREADS * 40, "%d callbacks", atomic_load(&done_count));
    for (int i = 0; i < 60000 && atomic_load(&sidecar.reports) == 0; i++)
        usleep(1000);
    CHECK(atomic_load(&sidecar.reports) > 0, "no report came");
    end_sidecar();
    printf("threads submit at once: %s\n", failures == 0 ? "ok" : "FAILED");

    int before = failures;
    sets_and_a_shutdown_by_a_callback();
    printf("threads submit in several sets: %s\n", failures == before ? "ok" : "FAILED");

    before = failures;
    start_sidecar();
    CHECK(rm_init("test") == RM_OK, "%s", rm_error_text());
    atomic_store(&sidecar.hold, 1);
    on_all_threads(lose, true);
    rm_shutdown();
    printf("the sidecar dies in the middle: %s\n", failures == before ? "ok" : "FAILED");
    return failures == 0 ? 0 : 1;
}
