/*
 * gpu_pieces.c — pieces whose data lie in GPU memory: in by a copy engine, through the ring, out by a copy engine. While one is
 * reduced the next is on its way in and the last on its way out.
 *
 * A failed call of the driver loses the sidecar, as a broken socket does: of what was started before it, some may still write to the
 * arena, so nothing there can be given to anybody else, and to the program's tensors, so its piece ends when the device has settled.
 */
#include <stdio.h>
#include <stdlib.h>

#include "client.h"


static void *token_of(const struct client *c, const struct piece *p)
{
    return (void *)(uintptr_t)((uint64_t)p->serial << 32 | (uint64_t)(p - c->requests.pieces)); /* NOLINT: it comes back as it went */
}

/* The piece that a copy was begun for; NULL: it has ended meanwhile, with everything else. */
static struct piece *piece_of(const struct client *c, uint64_t token)
{
    uint32_t index = (uint32_t)token;
    struct piece *p = index < c->requests.piece_count ? &c->requests.pieces[index] : NULL;
    bool same = p != NULL && p->request != NULL && p->serial == (uint32_t)(token >> 32);
    return same && (p->way == WAY_ENTERING || p->way == WAY_LEAVING) ? p : NULL;
}

static void land(struct client *c, struct piece *p)
{
    p->way = WAY_LANDED;
    p->next_landed = c->requests.landed;
    c->requests.landed = p;
    shared_wake_us(&c->shared);
    pthread_cond_broadcast(&c->changed); /* rm_shutdown, when the completion thread is gone */
}

/* On a thread of the driver's: no call of CUDA, and no callback of the program's. */
static void on_landed(void *token)
{
    struct client *c = &the_client;
    pthread_mutex_lock(&c->lock);
    struct piece *p = piece_of(c, (uintptr_t)token);
    if (p != NULL) {
        bool submits = p->way == WAY_ENTERING && !c->lost && !c->stopping;
        c->requests.on_gpu--;
        c->requests.copying -= p->way == WAY_ENTERING;
        p->way = WAY_NONE;
        if (!submits || !piece_submit(c, p))
            land(c, p);
    }
    pthread_mutex_unlock(&c->lock);
}

/* The parts of the tensors that a piece is made of. Their number; -1: no memory. */
static int list_copies(const struct request *r, const struct piece *p, uint8_t *host, bool in, struct gpu_copy **ret_copies)
{
    struct gpu_copy *copies = malloc(r->segment_count * sizeof(*copies));
    uint64_t begin = p->begin, bytes = p->bytes;
    int n = 0;
    if (copies == NULL)
        return -1;
    for (size_t i = 0; i < r->segment_count && bytes > 0; i++) {
        const struct segment *s = &r->segments[i];
        if (begin >= s->bytes) {
            begin -= s->bytes;
            continue;
        }
        uint64_t part = s->bytes - begin < bytes ? s->bytes - begin : bytes;
        uintptr_t device = (uintptr_t)(in ? s->in : s->out) + begin;
        copies[n++] = (struct gpu_copy){ .to = in ? (uintptr_t)host : device, .from = in ? device : (uintptr_t)host, .bytes = part };
        host += part;
        bytes -= part;
        begin = 0;
    }
    *ret_copies = copies;
    return n;
}

static int start_copy(struct client *c, struct gpu_device *d, CUevent mark, const struct piece *p, bool in, void *token)
{
    const struct request *r = p->request;
    struct gpu_copy *copies = NULL;
    int n = list_copies(r, p, c->shared.base + (in ? p->in_offset : p->out_offset), in, &copies);
    int status = RM_NO_MEMORY;
    if (n < 0)
        (void)text_fail(status, "out of memory for a list of %zu tensors", r->segment_count);
    else if (in)
        status = gpu_copy_in(&c->gpu, d, mark, copies, (size_t)n, on_landed, token);
    else
        status = gpu_copy_out(&c->gpu, d, mark, copies, (size_t)n, on_landed, token);
    free(copies);
    if (mark != NULL)
        gpu_unmark(&c->gpu, d, mark);
    return status;
}

/* Begins; afterwards p may have ended already, and be another's. The first copy of a request waits for what the program had put into
 * its stream, in whichever direction it is: what stood in `out` may still be read there. Those after it are behind it. */
static void go(struct client *c, struct piece *p, enum piece_way way)
{
    void *token = token_of(c, p);
    CUevent mark = p->request->mark;
    struct gpu_device *device = p->request->device;
    p->request->mark = NULL;
    p->way = way;
    c->requests.on_gpu++;
    c->requests.starting++;
    if (!c->gpu.watched)
        shared_wake_us(&c->shared);
    c->gpu.watched = true;
    pthread_mutex_unlock(&c->lock);
    int status = start_copy(c, device, mark, p, way == WAY_ENTERING, token);
    char text[TEXT_MAX] = "";
    if (status != RM_OK)
        snprintf(text, sizeof(text), "%s", text_last());
    pthread_mutex_lock(&c->lock);
    c->requests.starting--;
    if (status != RM_OK) {
        c->gpu.failed = true;
        client_lose(c, text);
    }
    if (c->lost) {
        shared_wake_us(&c->shared); /* it ends what was begun */
        pthread_cond_broadcast(&c->changed);
    }
}

void piece_enter(struct client *c, struct piece *p)
{
    go(c, p, WAY_ENTERING);
}

/* The others of its request go now, and not when it has landed: replies come in the same order on all ranks, landings may not. */
void piece_leave(struct client *c, struct piece *p)
{
    struct request *r = p->request;
    p->ordered = p->number == 0 && r->split.pieces > 1 && r->status == RM_OK;
    if (p->ordered)
        request_enqueue(&c->requests.ordered, r);
    go(c, p, WAY_LEAVING);
}

void pieces_land(struct client *c)
{
    struct piece *p, *first = NULL;
    while ((p = c->requests.landed) != NULL) { /* into the order in which they came */
        c->requests.landed = p->next_landed;
        p->next_landed = first;
        first = p;
    }
    while ((p = first) != NULL) {
        first = p->next_landed;
        p->way = WAY_NONE;
        if (p->submitted)
            piece_end(c, p, RM_OK, "");
        else
            piece_end(c, p, RM_PEER_LOST, c->lost ? c->lost_text : "rm_shutdown was called");
    }
}

/* What a failed device was given never tells of its end. */
void pieces_watch(struct client *c)
{
    int64_t now = client_now_ms();
    if (now - c->gpu.looked_ms < PIECES_WATCH_MS)
        return;
    c->gpu.looked_ms = now;
    if (gpu_check(&c->gpu) == RM_OK)
        return;
    pthread_mutex_lock(&c->lock);
    c->gpu.failed = true;
    client_lose(c, text_last());
    pthread_mutex_unlock(&c->lock);
}

static void drop(struct client *c)
{
    struct requests *q = &c->requests;
    for (uint32_t i = 0; q->on_gpu > 0 && i < q->piece_count; i++) {
        struct piece *p = &q->pieces[i];
        if (p->request == NULL || (p->way != WAY_ENTERING && p->way != WAY_LEAVING))
            continue;
        q->on_gpu--;
        q->copying -= p->way == WAY_ENTERING;
        p->way = WAY_NONE;
        piece_end(c, p, RM_IO, c->lost_text);
    }
}

void pieces_drop_failed(struct client *c)
{
    if (!c->gpu.failed || c->requests.on_gpu == 0 || c->requests.starting > 0)
        return;
    pthread_mutex_unlock(&c->lock);
    bool settled = gpu_settle(&c->gpu, PIECES_WATCH_MS);
    pthread_mutex_lock(&c->lock);
    pieces_land(c);
    if (settled && c->requests.starting == 0)
        drop(c);
}

bool pieces_settle(struct client *c)
{
    while (c->requests.starting > 0)
        pthread_cond_wait(&c->changed, &c->lock);
    pthread_mutex_unlock(&c->lock);
    bool settled = gpu_settle(&c->gpu, c->gpu_settle_ms);
    pthread_mutex_lock(&c->lock);
    while (c->requests.on_gpu > 0 || c->requests.landed != NULL) { /* the lock is dropped meanwhile, and more may land */
        pieces_land(c);
        drop(c); /* the device has failed, or does not come to an end */
    }
    return settled;
}
