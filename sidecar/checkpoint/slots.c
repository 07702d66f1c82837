#include "sidecar/checkpoint/slots.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "checkpoint/safetensors.h"

_Static_assert(sizeof(struct slot_control) <= SLOT_CONTROL_BYTES, "the control block fits its page");

#define ROUND 4096u

enum slot_state slot_rest_state(const struct slot_facts *f)
{
    if (!f->held)
        return SLOT_EMPTY;
    if (f->busy)
        return SLOT_PERSISTING;
    if (f->is_newest || f->undecided)
        return SLOT_STAGED;
    return f->committed ? SLOT_COMMITTED : SLOT_EMPTY;
}

/* ---- files ------------------------------------------------------------------------------------------------------------ */

static void slot_release(struct slot *k)
{
    if (k->control != NULL)
        (void)munmap(k->control, SLOT_CONTROL_BYTES);
    if (k->fd >= 0)
        (void)close(k->fd);
    k->control = NULL;
    k->fd = -1;
}

static int slot_map(struct slot *k, struct error *e)
{
    void *page = mmap(NULL, SLOT_CONTROL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, k->fd, 0);
    if (page == MAP_FAILED)
        return error_errno(e, "map %s", k->path);
    k->control = page;
    return 0;
}

static bool sealed(const struct slot_control *c)
{
    return c->seal_world > 0 && c->seal_fence == c->fence && c->seal_step == c->step;
}

/* The stock reader would take the image. */
static int check_image(int fd, const char *path, uint64_t image_bytes, struct error *e)
{
    uint8_t length[8];
    uint64_t header_bytes;
    struct safetensors parsed;
    if (pread(fd, length, sizeof(length), SLOT_CONTROL_BYTES) != (ssize_t)sizeof(length))
        return error_set(e, ERROR_INVALID, "%s is too short for an image", path);
    if (safetensors_header_bytes(length, sizeof(length), image_bytes, &header_bytes, e) != 0)
        return error_wrap(e, "%s", path);
    auto_free uint8_t *header = xcalloc(1, header_bytes);
    if (pread(fd, header, header_bytes, SLOT_CONTROL_BYTES) != (ssize_t)header_bytes)
        return error_set(e, ERROR_INVALID, "%s is too short for its header of %" PRIu64 " bytes", path, header_bytes);
    if (safetensors_parse(header, header_bytes, image_bytes, &parsed, e) != 0)
        return error_wrap(e, "%s", path);
    safetensors_release(&parsed);
    return 0;
}

/* Why the image in this slot is not taken over after a restart; NULL: it is. */
static const char *doubt(const struct slot *k, int32_t rank)
{
    const struct slot_control *c = k->control;
    struct error e = ERROR_INIT;
    if (c->state != SLOT_STAGED && c->state != SLOT_PERSISTING && c->state != SLOT_COMMITTED)
        return "it was not complete";
    if (!sealed(c))
        return "the sidecar had not taken it over";
    if (c->seal_rank != (uint32_t)rank)
        return "it is of another rank";
    if (c->image_bytes > c->slot_bytes || c->step > INT64_MAX)
        return "its control page cannot be right";
    if (check_image(k->fd, k->path, c->image_bytes, &e) != 0)
        return "its header cannot be right";
    return NULL;
}

static int slot_take_over(struct slot *k, uint32_t index, int32_t rank, struct error *e)
{
    struct stat st;
    k->fd = open(k->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (k->fd < 0)
        return errno == ENOENT ? 0 : error_errno(e, "open %s", k->path);
    if (fstat(k->fd, &st) != 0)
        return error_errno(e, "look at %s", k->path);
    bool whole = S_ISREG(st.st_mode) && st.st_size >= (off_t)SLOT_CONTROL_BYTES;
    if (whole && slot_map(k, e) != 0)
        return -1;
    if (!whole || k->control->magic != SLOT_MAGIC || k->control->version != SHM_VERSION || k->control->slot != index ||
        k->control->slot_bytes > (uint64_t)st.st_size - SLOT_CONTROL_BYTES) {
        log_warn("checkpoint slot is not one of ours and is made anew", KV("path", k->path));
        slot_release(k);
        return unlink(k->path) == 0 ? 0 : error_errno(e, "remove %s", k->path);
    }
    const char *why = doubt(k, rank);
    if (why == NULL)
        k->control->state = SLOT_STAGED;
    else {
        if (k->control->state != SLOT_EMPTY)
            log_info("checkpoint slot is not used after the restart", KV("path", k->path), KV("reason", why));
        k->control->state = SLOT_EMPTY;
    }
    return 0;
}

int slots_open(struct slots *s, const char *dir, int32_t rank, struct error *e)
{
    *s = (struct slots){ .slot = { { .fd = -1 }, { .fd = -1 } } };
    for (uint32_t i = 0; i < SLOT_COUNT; i++)
        s->slot[i].path = xasprintf("%s/slot-%u", dir, i);
    for (uint32_t i = 0; i < SLOT_COUNT; i++)
        if (slot_take_over(&s->slot[i], i, rank, e) != 0) {
            slots_close(s);
            return -1;
        }
    return 0;
}

void slots_close(struct slots *s)
{
    for (uint32_t i = 0; i < SLOT_COUNT; i++) {
        slot_release(&s->slot[i]);
        free(s->slot[i].path);
        s->slot[i].path = NULL;
    }
}

static int no_room(const char *path, uint64_t bytes, int error, struct error *e)
{
    char need[TEXT_SIZE_MAX], has[TEXT_SIZE_MAX] = "?";
    struct statvfs vfs;
    auto_free char *dir = xstrndup(path, (size_t)(strrchr(path, '/') - path));
    if (statvfs(dir, &vfs) == 0)
        (void)text_bytes((uint64_t)vfs.f_bavail * vfs.f_frsize, has);
    errno = error;
    return error_errno(e, "checkpoint slots need 2 x %s of memory in %s, which has %s free: give it more (sizeLimit of the volume, "
                       "--shm-size) or save smaller images", text_bytes(bytes, need), dir, has);
}

static int slot_make(struct slot *k, uint32_t index, struct error *e)
{
    k->fd = open(k->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (k->fd < 0)
        return error_errno(e, "create %s", k->path);
    int error = posix_fallocate(k->fd, 0, SLOT_CONTROL_BYTES);
    if (error != 0)
        (void)no_room(k->path, SLOT_CONTROL_BYTES, error, e);
    if (error != 0 || slot_map(k, e) != 0) {
        slot_release(k);
        (void)unlink(k->path);
        return -1;
    }
    k->control->version = SHM_VERSION;
    k->control->slot = index;
    k->control->slot_bytes = 0;
    k->control->state = SLOT_EMPTY;
    k->control->magic = SLOT_MAGIC;
    return 0;
}

static uint64_t rounded(uint64_t image_bytes)
{
    return (image_bytes + ROUND - 1) / ROUND * ROUND;
}

int slots_prepare(struct slots *s, uint64_t image_bytes, uint64_t *ret_missing, struct error *e)
{
    if (image_bytes == 0 || image_bytes > SLOTS_MAX_IMAGE)
        return error_set(e, ERROR_INVALID, "checkpoint image of %" PRIu64 " bytes: expected 1 to %llu", image_bytes, SLOTS_MAX_IMAGE);
    uint64_t missing = 0;
    for (uint32_t i = 0; i < SLOT_COUNT; i++) {
        struct slot *k = &s->slot[i];
        struct stat st;
        if (k->fd < 0 && slot_make(k, i, e) != 0)
            return -1;
        if (fstat(k->fd, &st) != 0)
            return error_errno(e, "look at %s", k->path);
        uint64_t want = SLOT_CONTROL_BYTES + rounded(image_bytes);
        missing += (uint64_t)st.st_size < want ? want - (uint64_t)st.st_size : 0;
    }
    *ret_missing = missing;
    return 0;
}

int slot_allocate(int fd, const char *path, uint64_t image_bytes, struct error *e)
{
    int error;
    do
        error = posix_fallocate(fd, 0, (off_t)(SLOT_CONTROL_BYTES + rounded(image_bytes)));
    while (error == EINTR);
    return error == 0 ? 0 : no_room(path, rounded(image_bytes), error, e);
}

int slots_ensure(struct slots *s, uint64_t image_bytes, uint64_t *ret_slot_bytes, struct error *e)
{
    uint64_t missing, least = UINT64_MAX;
    if (slots_prepare(s, image_bytes, &missing, e) != 0)
        return -1;
    for (uint32_t i = 0; i < SLOT_COUNT; i++) {
        struct slot *k = &s->slot[i];
        if (k->control->slot_bytes < rounded(image_bytes)) {
            if (slot_allocate(k->fd, k->path, image_bytes, e) != 0) {
                /* What was there before stays usable, at its old size. */
                if (ftruncate(k->fd, (off_t)(SLOT_CONTROL_BYTES + k->control->slot_bytes)) != 0)
                    return error_wrap(e, "and %s cannot be cut back", k->path);
                return -1;
            }
            k->control->slot_bytes = rounded(image_bytes);
        }
        least = k->control->slot_bytes < least ? k->control->slot_bytes : least;
    }
    *ret_slot_bytes = least;
    return 0;
}

/* ---- contents --------------------------------------------------------------------------------------------------------- */

int slots_accept(struct slots *s, uint32_t slot, struct checkpoint_id id, uint64_t image_bytes, int32_t world, int32_t rank,
                 struct error *e)
{
    if (slot >= SLOT_COUNT || s->slot[slot].fd < 0)
        return error_set(e, ERROR_INVALID, "slot %u: there is no such slot", slot);
    struct slot *k = &s->slot[slot];
    struct slot_control *c = k->control;
    if (c->state != SLOT_STAGED)
        return error_set(e, ERROR_INVALID, "slot %u: its state is %u, expected STAGED (%u)", slot, (unsigned)c->state, SLOT_STAGED);
    if (id.step < 0 || c->step != (uint64_t)id.step || c->fence != id.epoch || c->image_bytes != image_bytes)
        return error_set(e, ERROR_INVALID, "slot %u: its control page says step %" PRIu64 ", fence %" PRIu64 ", %" PRIu64
                         " bytes; the message said step %" PRId64 ", fence %" PRIu64 ", %" PRIu64 " bytes", slot, (uint64_t)c->step,
                         (uint64_t)c->fence, (uint64_t)c->image_bytes, id.step, id.epoch, image_bytes);
    if (image_bytes > c->slot_bytes)
        return error_set(e, ERROR_INVALID, "slot %u: image of %" PRIu64 " bytes in a slot of %" PRIu64, slot, image_bytes, c->slot_bytes);
    if (check_image(k->fd, k->path, image_bytes, e) != 0)
        return -1;
    c->seal_world = 0; /* no seal while it is being changed */
    c->seal_fence = id.epoch;
    c->seal_step = (uint64_t)id.step;
    c->seal_rank = (uint32_t)rank;
    c->seal_world = (uint32_t)world;
    return 0;
}

void slots_reject(struct slots *s, uint32_t slot)
{
    struct slot_control *c = slot < SLOT_COUNT ? s->slot[slot].control : NULL;
    if (c != NULL && c->state == SLOT_STAGED && !sealed(c))
        c->state = SLOT_EMPTY;
}

void slots_drop_unfinished(struct slots *s)
{
    for (uint32_t i = 0; i < SLOT_COUNT; i++) {
        struct slot_control *c = s->slot[i].control;
        if (c == NULL)
            continue;
        uint32_t writing = SLOT_WRITING;
        (void)atomic_compare_exchange_strong(&c->state, &writing, SLOT_EMPTY);
        if (c->state == SLOT_STAGED && !sealed(c)) /* its message never came */
            c->state = SLOT_EMPTY;
    }
}

bool slots_held(const struct slots *s, uint32_t slot, struct holding *ret_holding, uint64_t *ret_image_bytes)
{
    const struct slot_control *c = s->slot[slot].control;
    if (c == NULL || !sealed(c) || (c->state != SLOT_STAGED && c->state != SLOT_PERSISTING && c->state != SLOT_COMMITTED))
        return false;
    *ret_holding = (struct holding){ .id = { c->seal_fence, (int64_t)c->seal_step }, .world = (int32_t)c->seal_world };
    *ret_image_bytes = c->image_bytes;
    return true;
}

void slots_set(struct slots *s, uint32_t slot, enum slot_state state)
{
    struct slot_control *c = s->slot[slot].control;
    if (c == NULL)
        return;
    /* A slot that the trainer has taken is its own until it stages. */
    uint32_t now = c->state;
    while (now != SLOT_WRITING && now != SLOT_EMPTY && !atomic_compare_exchange_weak(&c->state, &now, state))
        ;
}
