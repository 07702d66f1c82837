#include "shared.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ringmaster.h"
#include "text.h"

static bool power_of_two(uint32_t n)
{
    return n != 0 && (n & (n - 1)) == 0;
}

static bool area_fits(uint64_t offset, uint64_t bytes, uint64_t total)
{
    return offset % SHM_ALIGN == 0 && offset >= sizeof(struct shm_header) && offset <= total && bytes <= total - offset;
}

static int check_header(const struct shared *s, const struct shm_header *h, uint64_t fence)
{
    if (h->magic != SHM_MAGIC || h->version != SHM_VERSION)
        return text_fail(RM_PEER_LOST, "the sidecar's shared memory has version %u, this library speaks %u: both must come from "
                                       "the same release", h->version, SHM_VERSION);
    if (h->fence != fence)
        return text_fail(RM_PEER_LOST, "the sidecar's shared memory belongs to another round");
    if (!power_of_two(h->sq_entries) || !power_of_two(h->cq_entries) || h->sq_entries > 1u << 20 || h->cq_entries > 1u << 20
        || !area_fits(h->sq_offset, (uint64_t)h->sq_entries * sizeof(struct shm_request), s->bytes)
        || !area_fits(h->cq_offset, (uint64_t)h->cq_entries * sizeof(struct shm_reply), s->bytes)
        || !area_fits(h->arena_offset, h->arena_bytes, s->bytes) || !area_fits(h->results_offset, h->results_bytes, s->bytes))
        return text_fail(RM_PEER_LOST, "the sidecar's shared memory describes areas outside itself");
    return RM_OK;
}

int shared_map(struct shared *s, int memory, int ring_engine, int ring_us, uint64_t bytes, uint64_t fence)
{
    struct stat st;
    if (fstat(memory, &st) != 0 || st.st_size < 0 || (uint64_t)st.st_size < bytes || bytes < sizeof(struct shm_header))
        return text_fail(RM_PEER_LOST, "the sidecar's shared memory is smaller than it says (%llu bytes)",
                         (unsigned long long)bytes);
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    if (base == MAP_FAILED)
        return text_fail(RM_NO_MEMORY, "mapping %llu bytes of shared memory: %s", (unsigned long long)bytes, strerror(errno));
    *s = (struct shared){ .base = base, .bytes = bytes };
    const struct shm_header *h = shared_header(s);
    int bad = check_header(s, h, fence);
    if (bad != RM_OK) {
        munmap(base, bytes);
        *s = (struct shared){ 0 };
        return bad;
    }
    s->ring_engine = ring_engine;
    s->ring_us = ring_us;
    s->sq_entries = h->sq_entries;
    s->cq_entries = h->cq_entries;
    s->sq = (struct shm_request *)(void *)(s->base + h->sq_offset);
    s->cq = (struct shm_reply *)(void *)(s->base + h->cq_offset);
    s->arena_offset = h->arena_offset;
    s->arena_bytes = h->arena_bytes;
    s->results_offset = h->results_offset;
    s->results_bytes = h->results_bytes;
    return RM_OK;
}

void shared_abandon(struct shared *s)
{
    if (s->base == NULL)
        return;
    close(s->ring_engine);
    close(s->ring_us);
    *s = (struct shared){ 0 };
}

void shared_unmap(struct shared *s)
{
    if (s->base != NULL)
        munmap(s->base, s->bytes);
    shared_abandon(s);
}

static void ring(int fd)
{
    uint64_t one = 1;
    ssize_t n;
    do {
        n = write(fd, &one, sizeof(one));
    } while (n < 0 && errno == EINTR);
}

bool shared_submit(struct shared *s, const struct shm_request *r)
{
    struct shm_header *h = shared_header(s);
    uint32_t tail = atomic_load_explicit(&h->sq_tail, memory_order_relaxed);
    uint32_t head = atomic_load_explicit(&h->sq_head, memory_order_acquire);
    if (tail - head >= s->sq_entries)
        return false;
    memcpy(&s->sq[tail & (s->sq_entries - 1)], r, sizeof(*r));
    /* Sequentially consistent, as is the engine's store to its waiting word: one of the two sees the other. */
    atomic_store(&h->sq_tail, tail + 1);
    if (atomic_load(&h->sq_waiting) != 0)
        ring(s->ring_engine);
    return true;
}

bool shared_take(struct shared *s, struct shm_reply *ret_reply)
{
    struct shm_header *h = shared_header(s);
    uint32_t head = atomic_load_explicit(&h->cq_head, memory_order_relaxed);
    if (atomic_load_explicit(&h->cq_tail, memory_order_acquire) == head)
        return false;
    memcpy(ret_reply, &s->cq[head & (s->cq_entries - 1)], sizeof(*ret_reply));
    ret_reply->text[SHM_TEXT_MAX - 1] = '\0';
    atomic_store_explicit(&h->cq_head, head + 1, memory_order_release);
    return true;
}

bool shared_has_reply(const struct shared *s)
{
    const struct shm_header *h = shared_header(s);
    return atomic_load_explicit(&h->cq_tail, memory_order_acquire) != atomic_load_explicit(&h->cq_head, memory_order_relaxed);
}

void shared_stay_awake(struct shared *s)
{
    atomic_store_explicit(&shared_header(s)->cq_waiting, 0, memory_order_relaxed);
}

bool shared_before_sleep(struct shared *s)
{
    struct shm_header *h = shared_header(s);
    atomic_store(&h->cq_waiting, 1);
    if (atomic_load(&h->cq_tail) == atomic_load_explicit(&h->cq_head, memory_order_relaxed))
        return true;
    atomic_store_explicit(&h->cq_waiting, 0, memory_order_relaxed);
    return false;
}

void shared_after_sleep(struct shared *s)
{
    atomic_store_explicit(&shared_header(s)->cq_waiting, 0, memory_order_relaxed);
    uint64_t count;
    (void)!read(s->ring_us, &count, sizeof(count)); /* the descriptor does not block; nothing there is fine */
}

void shared_wake_us(struct shared *s)
{
    ring(s->ring_us);
}

bool shared_in_results(const struct shared *s, uint64_t offset, uint64_t bytes)
{
    return offset >= s->results_offset && offset - s->results_offset <= s->results_bytes
        && bytes <= s->results_bytes - (offset - s->results_offset);
}
