/* The client library with many threads at once, against a sidecar of one thread in this process that answers as if another rank
 * had submitted the same: sums are twice what went in. A plain main, so that it also runs under ThreadSanitizer and valgrind. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "ringmaster.h"
#include "wire/local.h"
#include "wire/shm.h"

#define FENCE 4294967297ull
#define ENTRIES 64u /* few, so that full queues happen */
#define THREADS 8

static int failures;

#define CHECK(condition, ...)                                \
    do {                                                     \
        if (!(condition)) {                                  \
            __atomic_add_fetch(&failures, 1, __ATOMIC_RELAXED); \
            printf("  %s:%d: ", __FILE__, __LINE__);         \
            printf(__VA_ARGS__);                             \
            printf("\n");                                    \
        }                                                    \
    } while (0)

/* ---- the sidecar ---- */

#define SETS 3

static struct {
    char path[64];
    int listener;
    pthread_t thread;
    atomic_int reports, hold, stop;
    uint64_t sets; /* numbers given */
} sidecar;

static void say(int fd, uint16_t type, const void *payload, uint32_t length, const int *fds, uint16_t count)
{
    uint8_t bytes[8 + 512];
    union { struct cmsghdr align; char bytes[CMSG_SPACE(3 * sizeof(int))]; } control = { .bytes = { 0 } };
    memcpy(bytes, &length, 4);
    memcpy(bytes + 4, &type, 2);
    memcpy(bytes + 6, &count, 2);
    memcpy(bytes + 8, payload, length);
    struct iovec part = { bytes, 8 + length };
    struct msghdr m = { .msg_iov = &part, .msg_iovlen = 1 };
    if (count > 0) {
        m.msg_control = control.bytes;
        m.msg_controllen = CMSG_SPACE(count * sizeof(int));
        struct cmsghdr *h = CMSG_FIRSTHDR(&m);
        h->cmsg_level = SOL_SOCKET;
        h->cmsg_type = SCM_RIGHTS;
        h->cmsg_len = CMSG_LEN(count * sizeof(int));
        memcpy(CMSG_DATA(h), fds, count * sizeof(int));
    }
    CHECK(sendmsg(fd, &m, MSG_NOSIGNAL) == (ssize_t)(8 + length), "sending: %s", strerror(errno));
}

static void answer(uint8_t *base, const struct shm_header *layout, int ring, uint32_t *cq_tail)
{
    struct shm_header *h = (struct shm_header *)(void *)base;
    struct shm_request *sq = (struct shm_request *)(void *)(base + layout->sq_offset);
    struct shm_reply *cq = (struct shm_reply *)(void *)(base + layout->cq_offset);
    uint32_t head = atomic_load(&h->sq_head);
    while (!atomic_load(&sidecar.hold) && head != atomic_load(&h->sq_tail) && *cq_tail - atomic_load(&h->cq_head) < ENTRIES) {
        struct shm_request r = sq[head % ENTRIES];
        atomic_store(&h->sq_head, ++head);
        struct shm_reply reply = { .id = r.id, .size = 2 };
        if (r.op == SHM_OP_FREE)
            continue;
        if (r.op == SHM_OP_SET_ADD)
            reply.out_count = ++sidecar.sets;
        if (r.op == SHM_OP_SET_REMOVE)
            reply.out_count = 1;
        if (r.op == SHM_OP_ALLREDUCE)
            for (uint64_t i = 0; i < r.count; i++)
                ((float *)(void *)(base + r.out_offset))[i] = 2 * ((float *)(void *)(base + r.in_offset))[i];
        if (r.op == SHM_OP_ALLGATHER) {
            reply.out_offset = layout->results_offset;
            reply.out_count = 2 * r.count;
        }
        cq[*cq_tail % ENTRIES] = reply;
        atomic_store(&h->cq_tail, ++*cq_tail);
        uint64_t one = 1;
        (void)!write(ring, &one, sizeof(one));
    }
}

static void *run_sidecar(void *unused)
{
    (void)unused;
    int fd = accept(sidecar.listener, NULL, NULL);
    uint8_t bytes[65536 + 8];
    CHECK(recv(fd, bytes, 8 + sizeof(struct local_client_hello), MSG_WAITALL) > 8, "hello");

    struct shm_header layout;
    uint64_t total = shm_layout(&layout, FENCE, ENTRIES, ENTRIES, 1 << 20, 1 << 16);
    int memory = memfd_create("client", MFD_CLOEXEC), to_engine = eventfd(0, EFD_NONBLOCK), to_client = eventfd(0, EFD_NONBLOCK);
    CHECK(total > 0 && ftruncate(memory, (off_t)total) == 0, "shared memory");
    uint8_t *base = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    memcpy(base, &layout, sizeof(layout));
    struct local_client_ready ready = { .fence = FENCE, .size = 2, .local_size = 1, .shm_bytes = total, .resume_step = -1 };
    say(fd, LOCAL_CLIENT_READY, &ready, sizeof(ready), (int[]){ memory, to_engine, to_client }, 3);

    uint32_t cq_tail = 0;
    while (!atomic_load(&sidecar.stop)) {
        struct pollfd fds[2] = { { .fd = fd, .events = POLLIN }, { .fd = to_engine, .events = POLLIN } };
        atomic_store(&((struct shm_header *)(void *)base)->sq_waiting, 1);
        answer(base, &layout, to_client, &cq_tail);
        (void)poll(fds, 2, 1);
        uint64_t count;
        (void)!read(to_engine, &count, sizeof(count));
        if (fds[0].revents == 0)
            continue;
        if (recv(fd, bytes, 8, MSG_WAITALL) != 8)
            break;
        uint32_t length;
        uint16_t type;
        memcpy(&length, bytes, 4);
        memcpy(&type, bytes + 4, 2);
        if (length > 0 && recv(fd, bytes, length, MSG_WAITALL) != (ssize_t)length)
            break;
        if (type == LOCAL_REPORT)
            atomic_fetch_add(&sidecar.reports, 1);
        if (type == LOCAL_RESTORE)
            say(fd, LOCAL_RESTORE_READY, &(struct local_restore_ready){ 0 }, sizeof(struct local_restore_ready), NULL, 0);
        if (type == LOCAL_FLUSH)
            say(fd, LOCAL_FLUSHED, &(struct local_flushed){ .committed_step = 9, .ok = 1 }, sizeof(struct local_flushed), NULL, 0);
    }
    close(fd);
    munmap(base, total);
    close(memory);
    close(to_engine);
    close(to_client);
    return NULL;
}

static void start_sidecar(void)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", sidecar.path);
    unlink(sidecar.path);
    atomic_store(&sidecar.stop, 0);
    atomic_store(&sidecar.hold, 0);
    sidecar.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(bind(sidecar.listener, (struct sockaddr *)&address, sizeof(address)) == 0 && listen(sidecar.listener, 1) == 0, "listening");
    pthread_create(&sidecar.thread, NULL, run_sidecar, NULL);
}

static void end_sidecar(void)
{
    atomic_store(&sidecar.stop, 1);
    pthread_join(sidecar.thread, NULL);
    close(sidecar.listener);
    unlink(sidecar.path);
}

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
