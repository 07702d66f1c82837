#include "sidecar/ring/collective.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/mem.h"

#define PIECES_PER_PUMP 32 /* then the event loop gets its turn */

struct collective {
    struct collective_plan plan;
    struct collective_lane lane;
    struct schedule schedule;
    const struct reduce_kernels *kernels;
    size_t element;

    /* receiving: a header, then the payload of the piece at the cursor */
    struct schedule_cursor receive;
    uint8_t receive_header[PEER_HEADER_BYTES];
    size_t receive_have;     /* bytes of header and payload that are here */
    uint8_t *scratch;        /* where pieces to be combined arrive */
    size_t scratch_bytes;

    /* sending */
    struct schedule_cursor send;
    uint8_t send_header[PEER_HEADER_BYTES];
    size_t send_done;        /* bytes of header and payload that went out */
};

struct collective *collective_new(void)
{
    struct collective *c = xcalloc(1, sizeof *c);

    c->kernels = reduce_kernels();
    return c;
}

void collective_free(struct collective *c)
{
    if (c == NULL)
        return;
    free(c->scratch);
    free(c);
}

void collective_start(struct collective *c, const struct collective_plan *plan, int32_t rank, int32_t size,
                      const struct collective_lane *lane)
{
    c->plan = *plan;
    c->lane = *lane;
    c->element = shm_dtype_size(plan->dtype);
    uint64_t chunk = plan->chunk_bytes / c->element;

    if (plan->op == SHM_OP_ALLREDUCE)
        schedule_allreduce(&c->schedule, rank, size, plan->block_offset, chunk);
    else if (plan->op == SHM_OP_ALLGATHER)
        schedule_allgather(&c->schedule, rank, size, plan->block_offset, chunk);
    else
        schedule_broadcast(&c->schedule, rank, size, plan->root, plan->block_offset, chunk);
    schedule_begin(&c->schedule, &c->send, &c->receive);
    c->receive_have = c->send_done = 0;

    if (plan->op == SHM_OP_ALLREDUCE && c->scratch_bytes < c->schedule.chunk_elements * c->element) {
        c->scratch_bytes = c->schedule.chunk_elements * c->element;
        c->scratch = xrealloc(c->scratch, c->scratch_bytes, 1);
    }
}

/* ---- receiving ---- */

static int bad_frame(struct error *e, const struct peer_frame *f, const struct schedule_piece *piece, size_t bytes)
{
    return error_set(e, ERROR_INVALID, "unexpected frame: type %u, operation %llu, chunk %08x, %u bytes; expected operation's chunk "
                     "%08x of %zu bytes", f->type, (unsigned long long)f->op, f->chunk, f->length,
                     piece->step << 16 | piece->piece, bytes);
}

static int check_header(const struct collective *c, const struct schedule_piece *piece, struct error *e)
{
    struct peer_frame f;
    char mine[PEER_FENCE_TEXT_MAX];
    size_t bytes = piece->count * c->element;

    if (peer_frame_decode(c->receive_header, PEER_MAX_DATA, &f, e) < 0)
        return -1;
    if (f.type == PEER_FENCED || f.fence > c->plan.fence)
        return error_set(e, ERROR_GONE, "this rank is behind (%s): the group has gone on", peer_fence_text(c->plan.fence, mine));
    if (f.type != PEER_CHUNK || f.fence != c->plan.fence || f.op != c->plan.sequence ||
        f.chunk != (piece->step << 16 | piece->piece) || f.length != bytes)
        return bad_frame(e, &f, piece, bytes);
    return 0;
}

static void use_piece(struct collective *c, const struct schedule_piece *piece)
{
    size_t at = piece->offset * c->element;
    const struct collective_plan *p = &c->plan;

    if (!piece->reduce)
        return;
    if (piece->last_reduce && (p->factor != 1.0 || p->divisor != 1.0)) {
        if (p->redop == SHM_SUM || p->redop == SHM_AVERAGE) {
            c->kernels->finish[p->dtype](p->out + at, c->scratch, p->in + at, piece->count, p->factor, p->divisor);
            return;
        }
        c->kernels->combine[p->dtype][p->redop](p->out + at, c->scratch, p->in + at, piece->count);
        c->kernels->scale[p->dtype](p->out + at, p->out + at, piece->count, p->factor, p->divisor);
        return;
    }
    c->kernels->combine[p->dtype][p->redop](p->out + at, c->scratch, p->in + at, piece->count);
}

static int lost(struct error *e, ssize_t n)
{
    if (n == 0)
        return error_set(e, ERROR_PEER_LOST, "connection closed");
    int code = errno;
    (void)error_set(e, ERROR_PEER_LOST, "%s", strerror(code));
    e->os_errno = code;
    return -1;
}

/* One read: the rest of the header of the piece at the cursor, or of its payload. 1: something came, 0: nothing there, -1: failed. */
static int receive_some(struct collective *c, const struct schedule_piece *piece, struct error *e)
{
    size_t bytes = piece->count * c->element;
    uint8_t *to = piece->reduce ? c->scratch : c->plan.out + piece->offset * c->element;
    ssize_t n;

    /* Nothing of a payload is stored before its header was checked. */
    if (c->receive_have < PEER_HEADER_BYTES)
        n = recv(c->lane.left_fd, c->receive_header + c->receive_have, PEER_HEADER_BYTES - c->receive_have, MSG_DONTWAIT);
    else
        n = recv(c->lane.left_fd, to + (c->receive_have - PEER_HEADER_BYTES), PEER_HEADER_BYTES + bytes - c->receive_have,
                 MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (n <= 0)
        return lost(e, n);

    bool had_header = c->receive_have >= PEER_HEADER_BYTES;
    c->receive_have += (size_t)n;
    if (!had_header && c->receive_have == PEER_HEADER_BYTES && check_header(c, piece, e) < 0)
        return -1;
    if (c->receive_have == PEER_HEADER_BYTES + bytes) {
        use_piece(c, piece);
        c->receive.piece++;
        c->receive_have = 0;
    }
    return 1;
}

/* ---- sending ---- */

static void make_header(struct collective *c, const struct schedule_piece *piece)
{
    peer_frame_encode(&(struct peer_frame){ .type = PEER_CHUNK, .length = (uint32_t)(piece->count * c->element),
                                            .fence = c->plan.fence, .op = c->plan.sequence,
                                            .chunk = piece->step << 16 | piece->piece }, c->send_header);
}

/* A rank's first all-reduce block is its own contribution; everything else was put into out before. */
static const uint8_t *source_of(const struct collective *c, const struct schedule_piece *piece)
{
    const uint8_t *from = c->plan.op == SHM_OP_ALLREDUCE && piece->step == 0 ? c->plan.in : c->plan.out;

    return from + piece->offset * c->element;
}

static int send_some(struct collective *c, const struct schedule_piece *piece, struct error *e)
{
    size_t bytes = piece->count * c->element;
    const uint8_t *from = source_of(c, piece);
    struct iovec parts[2];
    size_t count = 0, in_payload = 0;

    if (c->send_done == 0)
        make_header(c, piece);
    if (c->send_done < PEER_HEADER_BYTES)
        parts[count++] = (struct iovec){ c->send_header + c->send_done, PEER_HEADER_BYTES - c->send_done };
    else
        in_payload = c->send_done - PEER_HEADER_BYTES;
    /* iovec is not const-correct; nothing is written through it. */
    parts[count++] = (struct iovec){ (void *)(uintptr_t)(from + in_payload), bytes - in_payload };

    struct msghdr message = { .msg_iov = parts, .msg_iovlen = count };
    ssize_t n = sendmsg(c->lane.right_fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (n < 0)
        return lost(e, n);
    c->send_done += (size_t)n;
    if (c->send_done == PEER_HEADER_BYTES + bytes) {
        c->send.piece++;
        c->send_done = 0;
    }
    return 1;
}

/* ---- both ---- */

enum collective_state collective_pump(struct collective *c, bool *ret_read, bool *ret_write, enum collective_side *ret_side,
                                      struct error *e)
{
    struct schedule_piece piece;
    bool receiving = true, sending = true;

    for (int budget = 0; budget < 2 * PIECES_PER_PUMP; budget++) {
        bool ready = false;
        int received = 0, sent = 0;

        receiving = schedule_next_receive(&c->schedule, &c->receive, &piece);
        if (receiving) {
            received = receive_some(c, &piece, e);
            *ret_side = COLLECTIVE_LEFT;
            if (received < 0)
                return COLLECTIVE_FAILED;
        }
        sending = schedule_next_send(&c->schedule, &c->send, &c->receive, &piece, &ready);
        if (sending && ready) {
            sent = send_some(c, &piece, e);
            *ret_side = COLLECTIVE_RIGHT;
            if (sent < 0)
                return COLLECTIVE_FAILED;
        }
        *ret_read = receiving;
        *ret_write = sending && ready;
        if (!receiving && !sending)
            return COLLECTIVE_DONE;
        if (received == 0 && sent == 0)
            return COLLECTIVE_RUNNING;
    }
    *ret_read = *ret_write = true; /* stopped by the budget, possibly with nothing left to wait for */
    return COLLECTIVE_RUNNING;
}
