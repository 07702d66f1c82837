/*
 * mini_sidecar.h — a sidecar of one thread in this process, for tests of the client library. It answers as if another rank had submitted
 * the same: sums are twice what went in. A broadcast from rank 1 is full of sevens.
 */
#ifndef TESTS_MINI_SIDECAR_H
#define TESTS_MINI_SIDECAR_H

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
#include "tests/descriptors.h"
#include "wire/local.h"
#include "wire/shm.h"

#define FENCE 4294967297ull
#define ENTRIES 64u /* few, so that full queues happen */

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
    memcpy(bytes, &length, 4);
    memcpy(bytes + 4, &type, 2);
    memcpy(bytes + 6, &count, 2);
    memcpy(bytes + 8, payload, length);
    CHECK(send_with_descriptors(fd, bytes, 8 + length, fds, count) == (ssize_t)(8 + length), "sending: %s", strerror(errno));
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
        if (r.op == SHM_OP_BROADCAST && r.root == 1)
            memset(base + r.out_offset, 7, r.count * shm_dtype_size(r.dtype));
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

#endif
