/*
 * resume.c — the images that this rank resumes from: its own slot, or the volume after every byte was checked.
 *
 * Of a checkpoint of more ranks than there are today a rank asks for several, one after the other: one is looked at at a time.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "sidecar/checkpoint/internal.h"

struct image_job {
    struct worker_job job;
    struct checkpoint *c; /* on the thread: its store alone */
    struct checkpoint_restore restore;
    uint64_t epoch;       /* of the round that asked */
    int32_t image;
    int fd;
    uint64_t bytes;
    int result;
    struct error error;
};

/* The base's generation, its image read to the end. A damaged one is marked for the next claim. */
static int open_base(const struct store *s, const struct image_job *j, int *ret_fd, uint64_t *ret_bytes, struct error *e)
{
    auto_scan struct store_scan scan = { .generations = NULL };
    struct checkpoint_id id = { j->restore.epoch, j->restore.step };
    if (store_scan(s, &scan, e) != 0)
        return -1;
    for (size_t i = 0; i < scan.count; i++) {
        const struct store_generation *g = &scan.generations[i];
        if (!checkpoint_id_equal(g->generation.id, id) || g->state != GENERATION_COMMITTED || g->bad)
            continue;
        if (store_open_image(s, &g->generation, j->image, j->restore.world, ret_fd, ret_bytes, e) == 0)
            return 0;
        struct error why = ERROR_INIT;
        if (e->kind == ERROR_INVALID && store_mark(s, &g->generation, LAYOUT_BAD, e->text, &why) != 0)
            log_warn_from("damaged checkpoint not marked", &why, KVI("step", id.step));
        return -1;
    }
    return error_set(e, ERROR_NOT_FOUND, "checkpoint of step %" PRId64 " is in no slot of this rank and not committed in %s", id.step, s->volume->name);
}

static void image_work(struct worker_job *job)
{
    struct image_job *j = (struct image_job *)job;
    j->result = open_base(&j->c->store, j, &j->fd, &j->bytes, &j->error);
}

static void image_done(struct worker_job *job)
{
    struct image_job *j = (struct image_job *)job;
    struct checkpoint *c = j->c;
    struct saver *m = &c->saver;
    if (j->epoch != m->epoch || j->image != m->image_index || m->image_state != IMAGE_CHECKING)
        return; /* a round ago, or another is wanted by now */
    if (j->result == 0) {
        m->image_fd = TAKE_FD(j->fd);
        m->image_bytes = j->bytes;
        m->image_state = IMAGE_READY;
    } else {
        m->image_error = j->error;
        m->image_state = IMAGE_FAILED;
        log_error_from("checkpoint cannot be restored", &j->error, KVI("step", j->restore.step), KVI("image", j->image));
    }
    if (c->events.ready != NULL)
        c->events.ready(c->events.ctx);
}

static void image_release(struct worker_job *job)
{
    struct image_job *j = (struct image_job *)job;
    if (j->fd >= 0)
        (void)close(j->fd);
    free(j);
}

void saver_drop_image(struct saver *m)
{
    if (m->image_fd >= 0)
        (void)close(m->image_fd);
    m->image_fd = -1;
    m->image_state = IMAGE_NONE;
}

void saver_check_image(struct checkpoint *c, int32_t image)
{
    struct saver *m = &c->saver;
    struct image_job *j = xcalloc(1, sizeof(*j));
    j->job = (struct worker_job){ .work = image_work, .done = image_done, .release = image_release };
    j->c = c;
    j->restore = m->restore;
    j->epoch = m->epoch;
    j->image = image;
    j->fd = -1;
    m->image_index = image;
    m->image_state = IMAGE_CHECKING;
    worker_run(m->worker, &j->job);
}

static int give_slot(struct saver *m, uint32_t slot, uint64_t bytes, int *ret_fd, uint64_t *ret_offset, uint64_t *ret_bytes, struct error *e)
{
    int fd = fcntl(m->slots.slot[slot].fd, F_DUPFD_CLOEXEC, 3);
    if (fd < 0)
        return error_errno(e, "duplicate the descriptor of a slot");
    *ret_fd = fd;
    *ret_offset = SLOT_CONTROL_BYTES;
    *ret_bytes = bytes;
    return 0;
}

int checkpoint_open_restore(struct checkpoint *c, int32_t image, struct checkpoint_restore *ret_restore, int *ret_fd,
                            uint64_t *ret_offset, uint64_t *ret_bytes, bool *ret_from_memory, struct error *e)
{
    struct saver *m = &c->saver;
    struct holding held;
    uint64_t bytes;
    uint32_t slot;
    if (c->rank < 0)
        return error_set(e, ERROR_INVALID, "%s is outside the ring: only ring members restore a share of the checkpoint", c->name);
    if (m->epoch == 0)
        return error_set(e, ERROR_BUSY, "the group has not formed yet");
    if (!m->restore.found || image < 0 || image >= m->restore.world) {
        *ret_restore = m->restore;
        *ret_fd = -1;
        *ret_offset = *ret_bytes = 0;
        *ret_from_memory = false;
        return 0;
    }
    if (image == c->rank && saver_slot_of(m, (struct checkpoint_id){ m->restore.epoch, m->restore.step }, &slot, &held, &bytes)) {
        if (give_slot(m, slot, bytes, ret_fd, ret_offset, ret_bytes, e) != 0)
            return -1;
        *ret_restore = m->restore;
        *ret_from_memory = true;
        return 0;
    }
    if (!c->has_volume)
        return error_set(e, ERROR_NOT_FOUND, "checkpoint of step %" PRId64 ", image %" PRId32 ", is in no slot of this rank, and the job has no "
                         "checkpoint volume", m->restore.step, image);
    if (m->image_state != IMAGE_NONE && m->image_index != image)
        saver_drop_image(m);
    if (m->image_state == IMAGE_NONE)
        saver_check_image(c, image);
    if (m->image_state == IMAGE_CHECKING)
        return error_set(e, ERROR_BUSY, "image %" PRId32 " of step %" PRId64 " is being checked", image, m->restore.step);
    if (m->image_state == IMAGE_FAILED) {
        *e = m->image_error;
        return -1;
    }
    int fd = fcntl(m->image_fd, F_DUPFD_CLOEXEC, 3);
    if (fd < 0)
        return error_errno(e, "duplicate the descriptor of an image");
    *ret_restore = m->restore;
    *ret_fd = fd;
    *ret_offset = 0;
    *ret_bytes = m->image_bytes;
    *ret_from_memory = false;
    return 0;
}
