#include "sidecar/ring/pipe.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

#define CONTROL_BYTES 4096u

/* Free-running counts of bytes; each word has one writer. */
struct direction {
    _Alignas(64) _Atomic uint64_t written;
    _Alignas(64) _Atomic uint64_t read;
    _Alignas(64) _Atomic uint32_t reader_sleeps;
    _Alignas(64) _Atomic uint32_t writer_sleeps;
};

struct pipe {
    uint8_t *base;
    struct direction *out, *in;
    uint8_t *out_bytes, *in_bytes;
    uint64_t written, read; /* our own: what the other side could change is not where we stand */
    char *path;             /* of the one who made it */
};

static size_t total_bytes(void)
{
    return CONTROL_BYTES + 2 * (size_t)PIPE_BYTES;
}

static int map(int fd, int side, struct pipe **ret, struct error *e)
{
    void *base = mmap(NULL, total_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (base == MAP_FAILED)
        return error_errno(e, "map memory that is shared with another rank");
    struct pipe *p = xcalloc(1, sizeof *p);
    struct direction *directions = base;
    p->base = base;
    p->out = &directions[side];
    p->in = &directions[1 - side];
    p->out_bytes = p->base + CONTROL_BYTES + (size_t)side * PIPE_BYTES;
    p->in_bytes = p->base + CONTROL_BYTES + (size_t)(1 - side) * PIPE_BYTES;
    *ret = p;
    return 0;
}

int pipe_create(const char *path, struct pipe **ret, struct error *e)
{
    (void)unlink(path); /* of an attempt to form that was given up */
    auto_close int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)total_bytes()) != 0)
        return error_errno(e, "make %s", path);
    if (map(fd, 0, ret, e) < 0)
        return -1;
    (*ret)->path = xstrdup(path);
    return 0;
}

int pipe_open(const char *path, struct pipe **ret, struct error *e)
{
    struct stat st;
    auto_close int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);

    if (fd < 0 || fstat(fd, &st) != 0)
        return error_errno(e, "open %s, which the other rank should have made: is one of them told to use TCP?", path);
    if ((size_t)st.st_size != total_bytes())
        return error_set(e, ERROR_INVALID, "%s has %lld bytes, expected %zu", path, (long long)st.st_size, total_bytes());
    (void)unlink(path);
    return map(fd, 1, ret, e);
}

void pipe_free(struct pipe *p)
{
    if (p == NULL)
        return;
    if (p->path != NULL)
        (void)unlink(p->path); /* when nobody came for it */
    (void)munmap(p->base, total_bytes());
    free(p->path);
    free(p);
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Between the ring at `position` and memory; the ring wraps around. */
static void copy(uint8_t *ring, uint64_t position, void *memory, size_t bytes, bool into_ring)
{
    size_t at = position & (PIPE_BYTES - 1), first = smaller(bytes, PIPE_BYTES - at);

    if (into_ring) {
        memcpy(ring + at, memory, first);
        memcpy(ring, (uint8_t *)memory + first, bytes - first);
    } else {
        memcpy(memory, ring + at, first);
        memcpy((uint8_t *)memory + first, ring, bytes - first);
    }
}

/* Moves at most `room` bytes and returns how many. */
static size_t move(uint8_t *ring, uint64_t position, const struct iovec *parts, size_t count, size_t room, bool into_ring)
{
    size_t moved = 0;

    for (size_t i = 0; i < count && moved < room; i++) {
        size_t n = smaller(parts[i].iov_len, room - moved);
        copy(ring, position + moved, parts[i].iov_base, n, into_ring);
        moved += n;
    }
    return moved;
}

ssize_t pipe_write(struct pipe *p, const struct iovec *parts, size_t count, bool *ret_wake)
{
    uint64_t used = p->written - atomic_load_explicit(&p->out->read, memory_order_acquire);

    *ret_wake = false;
    if (used > PIPE_BYTES)
        return -1;
    size_t moved = move(p->out_bytes, p->written, parts, count, PIPE_BYTES - used, true);
    if (moved == 0)
        return 0;
    p->written += moved;
    /* Sequentially consistent, as are the other side's store to its sleeping word and its look at the count after it. */
    atomic_store(&p->out->written, p->written);
    *ret_wake = atomic_load(&p->out->reader_sleeps) != 0;
    return (ssize_t)moved;
}

ssize_t pipe_read(struct pipe *p, const struct iovec *parts, size_t count, bool *ret_wake)
{
    uint64_t there = atomic_load_explicit(&p->in->written, memory_order_acquire) - p->read;

    *ret_wake = false;
    if (there > PIPE_BYTES)
        return -1;
    size_t moved = move(p->in_bytes, p->read, parts, count, there, false);
    if (moved == 0)
        return 0;
    p->read += moved;
    atomic_store(&p->in->read, p->read);
    *ret_wake = atomic_load(&p->in->writer_sleeps) != 0;
    return (ssize_t)moved;
}

bool pipe_can_read(const struct pipe *p)
{
    return atomic_load(&p->in->written) != p->read;
}

bool pipe_can_write(const struct pipe *p)
{
    return p->written - atomic_load(&p->out->read) != PIPE_BYTES;
}

void pipe_sleeps(struct pipe *p, bool sleeps)
{
    atomic_store(&p->in->reader_sleeps, sleeps);
    atomic_store(&p->out->writer_sleeps, sleeps && !pipe_can_write(p));
}
