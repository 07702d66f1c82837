/*
 * checkpoint.c — slots that are filled in place, and the image to resume from.
 *
 * The two slots are files that the sidecar made and this process maps; the states are those of wire/shm.h. A save never
 * waits: when both slots are busy it is skipped, and the next one comes soon. In a world of one there is nobody to persist
 * anything: begin gives scratch memory, stage drops it.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client.h"
#include "wire/local.h"

#define SLOTS_MAX 4u
#define CALL_TIMEOUT_MS 60000
#define RESTORE_TIMEOUT_MS 3600000 /* the sidecar reads every byte of an image on the volume first; when it ends, so does the wait */
#define FLUSH_MS 10000u /* asked for at a time */

struct slot { struct slot_control *control; uint64_t bytes; /* of the image area */ };

/* Guarded by `lock`; the calls that talk to the sidecar hold it, so saves and restores come one after the other. */
static struct {
    pthread_mutex_t lock;
    struct slot slots[SLOTS_MAX];
    uint32_t count;
    int writing;              /* index of the slot between begin and stage, -1: none */
    int64_t step;
    void *scratch;            /* alone: the image */
    uint64_t scratch_bytes;
    uint8_t *restore_map;     /* whole mapping, page-aligned */
    uint64_t restore_map_bytes;
} the_checkpoint = { .lock = PTHREAD_MUTEX_INITIALIZER, .writing = -1 };

static bool alone(void)
{
    return atomic_load(&the_client.state) != CLIENT_ATTACHED;
}

static void unmap_slots(void)
{
    for (uint32_t i = 0; i < the_checkpoint.count; i++)
        munmap(the_checkpoint.slots[i].control, SLOT_CONTROL_BYTES + the_checkpoint.slots[i].bytes);
    the_checkpoint.count = 0;
    the_checkpoint.writing = -1;
}

static void unmap_restore(void)
{
    if (the_checkpoint.restore_map != NULL)
        munmap(the_checkpoint.restore_map, the_checkpoint.restore_map_bytes);
    the_checkpoint.restore_map = NULL;
}

void checkpoint_forget(void)
{
    pthread_mutex_lock(&the_checkpoint.lock);
    unmap_slots();
    unmap_restore();
    free(the_checkpoint.scratch);
    the_checkpoint.scratch = NULL;
    the_checkpoint.writing = -1;
    pthread_mutex_unlock(&the_checkpoint.lock);
}

static void close_all(struct call *answer)
{
    for (size_t i = 0; i < answer->fd_count; i++)
        close(answer->fds[i]);
}

static int map_slot(int fd, uint64_t slot_bytes, struct slot *ret_slot)
{
    struct stat st;
    uint64_t total = SLOT_CONTROL_BYTES + slot_bytes;
    if (fstat(fd, &st) != 0 || st.st_size < 0 || (uint64_t)st.st_size < total)
        return text_fail(RM_IO, "a checkpoint slot is smaller than the sidecar says (%llu bytes)", (unsigned long long)total);
    void *base = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        return text_fail(RM_NO_MEMORY, "mapping a checkpoint slot of %llu bytes: %s", (unsigned long long)total, strerror(errno));
    struct slot_control *control = base;
    if (control->magic != SLOT_MAGIC || control->slot_bytes < slot_bytes) {
        munmap(base, total);
        return text_fail(RM_IO, "a checkpoint slot's control block is not one of ours");
    }
    *ret_slot = (struct slot){ .control = control, .bytes = slot_bytes };
    return RM_OK;
}

/* Asks for slots that hold image_bytes, unless ours do. */
static int have_slots(uint64_t image_bytes)
{
    if (the_checkpoint.count > 0 && the_checkpoint.slots[0].bytes >= image_bytes)
        return RM_OK;
    unmap_slots();
    struct local_slots ask = { .image_bytes = image_bytes };
    struct call answer;
    int status = client_call(&the_client, CALL_SLOTS, LOCAL_SLOTS, &ask, sizeof(ask), CALL_TIMEOUT_MS, &answer);
    if (status != RM_OK)
        return status;
    struct local_slots_ready ready;
    memcpy(&ready, answer.answer, sizeof(ready));
    if (ready.count == 0 || ready.count > SLOTS_MAX || ready.count != answer.fd_count || ready.slot_bytes < image_bytes
        || ready.slot_bytes > INT64_MAX - SLOT_CONTROL_BYTES) {
        close_all(&answer);
        return text_fail(RM_IO, "the sidecar offers %u slots of %llu bytes with %zu descriptors for images of %llu bytes", ready.count,
                         (unsigned long long)ready.slot_bytes, answer.fd_count, (unsigned long long)image_bytes);
    }
    for (uint32_t i = 0; i < ready.count && status == RM_OK; i++) {
        status = map_slot(answer.fds[i], ready.slot_bytes, &the_checkpoint.slots[i]);
        the_checkpoint.count += status == RM_OK;
    }
    close_all(&answer);
    if (status != RM_OK)
        unmap_slots();
    return status;
}

/* Takes an empty slot, or the committed one of the older step. -1: all are busy. */
static int take_slot(void)
{
    for (;;) {
        int best = -1;
        uint32_t best_state = 0;
        uint64_t best_step = 0;
        for (uint32_t i = 0; i < the_checkpoint.count; i++) {
            struct slot_control *s = the_checkpoint.slots[i].control;
            uint32_t state = atomic_load(&s->state);
            uint64_t step = atomic_load(&s->step);
            if (state == SLOT_WRITING && atomic_load(&s->writer) == (uint64_t)getpid())
                state = SLOT_EMPTY; /* ours, begun and never staged */
            if (state != SLOT_EMPTY && state != SLOT_COMMITTED)
                continue;
            if (best < 0 || (state == SLOT_EMPTY && best_state != SLOT_EMPTY) || (state == best_state && step < best_step)) {
                best = (int)i;
                best_state = state;
                best_step = step;
            }
        }
        if (best < 0)
            return -1;
        struct slot_control *s = the_checkpoint.slots[best].control;
        uint32_t seen = atomic_load(&s->state);
        if (seen != SLOT_EMPTY && seen != SLOT_COMMITTED && seen != SLOT_WRITING)
            continue; /* the sidecar was faster: look again */
        if (atomic_compare_exchange_strong(&s->state, &seen, SLOT_WRITING))
            return best;
    }
}

static int begin_alone(int64_t step, uint64_t image_bytes, void **ret_image)
{
    void *scratch = realloc(the_checkpoint.scratch, image_bytes);
    if (scratch == NULL)
        return text_fail(RM_NO_MEMORY, "out of memory for a checkpoint of %llu bytes", (unsigned long long)image_bytes);
    the_checkpoint.scratch = scratch;
    the_checkpoint.scratch_bytes = image_bytes;
    the_checkpoint.writing = 0;
    the_checkpoint.step = step;
    *ret_image = scratch;
    return RM_OK;
}

/* Says once, at the next occasion, that the sidecar did not take what was staged last. */
static int earlier_refusal(void)
{
    struct client *c = &the_client;
    pthread_mutex_lock(&c->lock);
    int status = c->stage_refused[0] == '\0' ? RM_OK : text_fail(RM_IO, "the last checkpoint was not taken: %s", c->stage_refused);
    c->stage_refused[0] = '\0';
    pthread_mutex_unlock(&c->lock);
    return status;
}

static int begin_locked(int64_t step, uint64_t image_bytes, void **ret_image)
{
    if (step < 0 || image_bytes == 0 || image_bytes > INT64_MAX / 2)
        return text_fail(RM_INVALID, "checkpoint of step %lld with %llu bytes", (long long)step, (unsigned long long)image_bytes);
    if (alone())
        return begin_alone(step, image_bytes, ret_image);
    int status = earlier_refusal();
    if (status == RM_OK)
        status = have_slots(image_bytes);
    if (status != RM_OK)
        return status;
    int index = take_slot();
    if (index < 0)
        return text_fail(RM_TIMEOUT, "step %lld is not saved: both slots still wait to be committed", (long long)step);
    struct slot_control *s = the_checkpoint.slots[index].control;
    atomic_store(&s->writer, (uint64_t)getpid());
    atomic_store(&s->step, (uint64_t)step);
    atomic_store(&s->fence, the_client.fence);
    atomic_store(&s->image_bytes, 0);
    the_checkpoint.writing = index;
    the_checkpoint.step = step;
    *ret_image = (uint8_t *)s + SLOT_CONTROL_BYTES;
    return RM_OK;
}

RM_API int rm_checkpoint_begin(int64_t step, uint64_t image_bytes, void **ret_image)
{
    int status = client_ready();
    if (status != RM_OK)
        return status;
    pthread_mutex_lock(&the_checkpoint.lock);
    status = begin_locked(step, image_bytes, ret_image);
    pthread_mutex_unlock(&the_checkpoint.lock);
    return status;
}

static int stage_locked(int64_t step, uint64_t image_bytes)
{
    if (the_checkpoint.writing < 0 || the_checkpoint.step != step)
        return text_fail(RM_INVALID, "step %lld was not begun: rm_checkpoint_begin comes first", (long long)step);
    uint64_t room = alone() ? the_checkpoint.scratch_bytes : the_checkpoint.slots[the_checkpoint.writing].bytes;
    if (image_bytes == 0 || image_bytes > room)
        return text_fail(RM_INVALID, "an image of %llu bytes in a slot of %llu", (unsigned long long)image_bytes,
                         (unsigned long long)room);
    int index = the_checkpoint.writing;
    the_checkpoint.writing = -1;
    if (alone())
        return RM_OK;
    struct slot_control *s = the_checkpoint.slots[index].control;
    atomic_store(&s->image_bytes, image_bytes);
    atomic_store_explicit(&s->state, SLOT_STAGED, memory_order_release);
    struct local_staged staged = { .slot = (uint32_t)index, .step = (uint64_t)step, .image_bytes = image_bytes };
    return client_send(&the_client, LOCAL_STAGED, &staged, sizeof(staged));
}

RM_API int rm_checkpoint_stage(int64_t step, uint64_t image_bytes)
{
    int status = client_ready();
    if (status != RM_OK)
        return status;
    pthread_mutex_lock(&the_checkpoint.lock);
    status = stage_locked(step, image_bytes);
    pthread_mutex_unlock(&the_checkpoint.lock);
    return status;
}

RM_API int rm_checkpoint_wait(int64_t timeout_ms, int64_t *ret_committed_step)
{
    int status = client_ready();
    if (status != RM_OK)
        return status;
    if (alone()) {
        *ret_committed_step = -1;
        return RM_OK;
    }
    int64_t deadline = timeout_ms < 0 ? INT64_MAX : client_now_ms() + timeout_ms;
    struct local_flushed flushed = { .ok = 0 };
    do { /* the sidecar keeps the time; ours is longer and only for a sidecar that hangs */
        int64_t left = deadline - client_now_ms();
        struct local_flush ask = { .timeout_ms = left <= 0 ? 0 : left < FLUSH_MS ? (uint32_t)left : FLUSH_MS };
        struct call answer;
        status = client_call(&the_client, CALL_FLUSH, LOCAL_FLUSH, &ask, sizeof(ask), CALL_TIMEOUT_MS, &answer);
        if (status != RM_OK)
            return status;
        close_all(&answer);
        memcpy(&flushed, answer.answer, sizeof(flushed));
    } while (!flushed.ok && client_now_ms() < deadline);
    *ret_committed_step = (int64_t)flushed.committed_step;
    status = earlier_refusal();
    if (status != RM_OK)
        return status;
    return flushed.ok ? RM_OK : text_fail(RM_TIMEOUT, "a staged checkpoint is not committed after %lld ms", (long long)timeout_ms);
}

RM_API int rm_checkpoint_wanted(void)
{
    struct client *c = &the_client;
    if (client_ready() != RM_OK)
        return 0;
    pthread_mutex_lock(&c->lock);
    bool wanted = c->save_wanted;
    c->save_wanted = false;
    pthread_mutex_unlock(&c->lock);
    return wanted;
}

static int map_restore(int fd, const struct local_restore_ready *ready, const void **ret_image)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), from = ready->image_offset / page * page;
    struct stat st;
    if (fstat(fd, &st) != 0 || st.st_size < 0 || ready->image_bytes == 0 || ready->image_offset > (uint64_t)st.st_size
        || ready->image_bytes > (uint64_t)st.st_size - ready->image_offset)
        return text_fail(RM_IO, "the checkpoint image of step %llu lies outside its file", (unsigned long long)ready->step);
    uint64_t bytes = ready->image_offset - from + ready->image_bytes;
    void *base = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, (off_t)from);
    if (base == MAP_FAILED)
        return text_fail(RM_NO_MEMORY, "mapping a checkpoint of %llu bytes: %s", (unsigned long long)bytes, strerror(errno));
    the_checkpoint.restore_map = base;
    the_checkpoint.restore_map_bytes = bytes;
    *ret_image = the_checkpoint.restore_map + (ready->image_offset - from);
    return RM_OK;
}

static int restore_locked(uint32_t image, const void **ret_image, uint64_t *ret_bytes, int64_t *ret_step, int *ret_world)
{
    unmap_restore();
    if (alone())
        return text_fail(RM_NOT_FOUND, "no checkpoint: this process runs alone");
    struct local_restore ask = { .image = image };
    struct call answer;
    int status = client_call(&the_client, CALL_RESTORE, LOCAL_RESTORE, &ask, sizeof(ask), RESTORE_TIMEOUT_MS, &answer);
    if (status != RM_OK)
        return status;
    struct local_restore_ready ready;
    memcpy(&ready, answer.answer, sizeof(ready));
    if (!ready.found)
        status = text_fail(RM_NOT_FOUND, "no checkpoint to restore: start from scratch");
    else if (answer.fd_count != (ready.image_bytes > 0 ? 1 : 0) || (ready.image_bytes == 0 && image < ready.world) ||
             ready.world == 0 || ready.world > INT32_MAX)
        status = text_fail(RM_IO, "the sidecar's answer to a restore of image %u has %llu bytes, %zu descriptors and a world of %u", image,
                           (unsigned long long)ready.image_bytes, answer.fd_count, ready.world);
    else if (ready.image_bytes == 0)
        *ret_image = NULL;
    else
        status = map_restore(answer.fds[0], &ready, ret_image);
    close_all(&answer);
    if (status == RM_OK) {
        *ret_bytes = ready.image_bytes;
        *ret_step = (int64_t)ready.step;
        *ret_world = (int)ready.world;
    }
    return status;
}

RM_API int rm_checkpoint_restore(const void **ret_image, uint64_t *ret_bytes, int64_t *ret_step, int *ret_world)
{
    int rank = rm_rank();
    return rank < 0 ? rank : rm_checkpoint_restore_image(rank, ret_image, ret_bytes, ret_step, ret_world);
}

RM_API int rm_checkpoint_restore_image(int image, const void **ret_image, uint64_t *ret_bytes, int64_t *ret_step, int *ret_world)
{
    int status = client_ready();
    if (status != RM_OK)
        return status;
    if (image < 0)
        return text_fail(RM_INVALID, "image %d of a checkpoint: they are counted from 0", image);
    pthread_mutex_lock(&the_checkpoint.lock);
    status = restore_locked((uint32_t)image, ret_image, ret_bytes, ret_step, ret_world);
    pthread_mutex_unlock(&the_checkpoint.lock);
    return status;
}

RM_API void rm_checkpoint_restore_done(void)
{
    pthread_mutex_lock(&the_checkpoint.lock);
    unmap_restore();
    pthread_mutex_unlock(&the_checkpoint.lock);
}
