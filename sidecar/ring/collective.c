#include "sidecar/ring/collective.h"

#include <stdlib.h>
#include <string.h>

#include "base/crc.h"
#include "base/mem.h"

#define BYTES_PER_PUMP (8u << 20) /* then the event loop gets its turn */
#define ALIGN 64u
#define SLOT_PIECES 8u            /* of each flow that wait to be summed up; what is more waits in the kernel */

/* One lane of a flow: where it stands in both directions. */
struct lane {
    struct mesh_lane *wire;
    struct schedule_cursor send, receive;
    uint8_t send_header[PEER_HEADER_BYTES], receive_header[PEER_HEADER_BYTES];
    size_t send_done, receive_have; /* bytes of header and payload of the piece at the cursor */
    uint32_t receive_crc;           /* of the payload at the cursor, as its header says; with has_crc */
    bool has_crc;
    uint8_t *scratch;               /* where a piece that is to be combined arrives */
};

struct flow {
    const struct schedule_flow *plan;
    struct lane *lanes;
    uint8_t *slots;                 /* SLOT_PIECES pieces that wait to be summed up */
    bool used, connected;
};

struct collective {
    struct collective_plan plan;
    struct mesh *mesh;
    struct schedule schedule;
    const struct reduce_kernels *kernels;
    size_t element;

    struct flow *flows;
    struct lane *lanes;
    size_t flow_capacity, lane_capacity;
    uint32_t lane_count;            /* of each flow */
    uint32_t summed, to_sum;        /* pieces of the slots */
    uint64_t out_shift;             /* element of the tensor that stands first in out */
    uint8_t *memory, *allocated;    /* slots and scratch; the same not aligned */
    size_t memory_bytes;
    uint8_t *sum;                   /* where sums of more than two are made, one piece */
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
    schedule_release(&c->schedule);
    free(c->flows);
    free(c->lanes);
    free(c->allocated);
    free(c);
}

/* ---- beginning ---- */

/* One round costs a wake-up on each side, some 10 us when both are awake; a byte costs some 0.3 ns. So N - 1 times the bytes in one
 * round pay up to some KiB, two rounds in place of 2(N - 1) until the ring's steps are long against its rounds. Of two members the
 * ring is the direct exchange. Beyond MESH_FULL members not all are joined, and too many would send to one at a time. */
#define FLAT_BYTES (64u << 10)   /* all that one member receives */
#define DIRECT_BYTES (2u << 20)
#define STAR_BYTES (64u << 10)   /* all that the root sends */

enum collective_algorithm collective_choose(enum shm_op op, uint64_t bytes, int32_t size)
{
    uint64_t others = (uint64_t)size - 1;

    if (size > MESH_FULL)
        return ALGORITHM_RING;
    if (op == SHM_OP_BROADCAST)
        return bytes <= STAR_BYTES / others ? ALGORITHM_DIRECT : ALGORITHM_RING;
    if (op == SHM_OP_ALLREDUCE && bytes <= FLAT_BYTES / others)
        return ALGORITHM_FLAT;
    return size > 2 && bytes <= DIRECT_BYTES ? ALGORITHM_DIRECT : ALGORITHM_RING;
}

static enum schedule_kind kind_of(const struct collective_plan *p)
{
    bool ring = p->algorithm == ALGORITHM_RING;

    switch (p->op) {
    case SHM_OP_ALLGATHER:
        return ring ? SCHEDULE_RING_ALLGATHER : SCHEDULE_DIRECT_ALLGATHER;
    case SHM_OP_BROADCAST:
        return ring ? SCHEDULE_CHAIN_BROADCAST : SCHEDULE_STAR_BROADCAST;
    case SHM_OP_REDUCESCATTER:
        return SCHEDULE_REDUCESCATTER;
    case SHM_OP_ALLTOALL:
        return SCHEDULE_ALLTOALL;
    default:
        return ring ? SCHEDULE_RING_ALLREDUCE
                    : p->algorithm == ALGORITHM_FLAT ? SCHEDULE_FLAT_ALLREDUCE : SCHEDULE_DIRECT_ALLREDUCE;
    }
}

static bool has_elements(const struct schedule_run *runs, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (runs[i].end > runs[i].begin)
            return true;
    }
    return false;
}

static bool has_place(const struct schedule_flow *f, enum schedule_place place)
{
    for (uint32_t i = 0; i < f->receive_count; i++) {
        if (f->receives[i].place == place)
            return true;
    }
    return false;
}

/* Slots and scratch begin at whole cache lines. */
static size_t padded(const struct collective *c)
{
    return (c->schedule.piece_elements * c->element + ALIGN - 1) / ALIGN * ALIGN;
}

static void take_memory(struct collective *c)
{
    const struct schedule *s = &c->schedule;
    size_t piece = padded(c), need = 0, at;

    for (int pass = 0; pass < 2; pass++) {
        at = 0;
        for (int32_t i = 0; i < s->flow_count; i++) {
            struct flow *f = &c->flows[i];
            f->slots = c->memory + at;
            at += has_place(f->plan, PLACE_SLOT) ? SLOT_PIECES * piece : 0;
            for (uint32_t l = 0; l < c->lane_count; l++) {
                f->lanes[l].scratch = c->memory + at;
                at += has_place(f->plan, PLACE_ADD) ? piece : 0;
            }
        }
        c->sum = c->memory + at;
        need = at + (c->to_sum > 0 && c->plan.size > 2 ? piece : 0);
        if (need <= c->memory_bytes)
            return;
        c->allocated = xrealloc(c->allocated, need + ALIGN, 1);
        c->memory = c->allocated + (ALIGN - (uintptr_t)c->allocated % ALIGN);
        c->memory_bytes = need;
    }
}

static void place_flows(struct collective *c)
{
    const struct schedule *s = &c->schedule;
    size_t flows = (size_t)s->flow_count, lanes = flows * c->lane_count;

    if (c->flow_capacity < flows) {
        c->flow_capacity = flows;
        c->flows = xrealloc(c->flows, flows, sizeof *c->flows);
    }
    if (c->lane_capacity < lanes) {
        c->lane_capacity = lanes;
        c->lanes = xrealloc(c->lanes, lanes, sizeof *c->lanes);
    }
    for (size_t i = 0; i < flows; i++) {
        const struct schedule_flow *f = &s->flows[i];
        c->flows[i] = (struct flow){ .plan = f, .lanes = c->lanes + i * c->lane_count };
        c->flows[i].used = has_elements(f->sends, f->send_count) || has_elements(f->receives, f->receive_count);
        for (uint32_t l = 0; l < c->lane_count; l++) {
            struct lane *lane = &c->flows[i].lanes[l];
            lane->wire = mesh_lane(c->mesh, c->plan.members[f->peer], (int32_t)l);
            lane->send = lane->receive = (struct schedule_cursor){ .run = 0, .piece = l };
            lane->send_done = lane->receive_have = 0;
        }
    }
}

void collective_start(struct collective *c, const struct collective_plan *plan, struct mesh *mesh)
{
    c->plan = *plan;
    c->mesh = mesh;
    c->element = shm_dtype_size(plan->dtype);
    c->lane_count = (uint32_t)mesh_lanes(mesh);
    schedule_make(&c->schedule, &(struct schedule_shape){ .kind = kind_of(plan), .rank = plan->rank, .size = plan->size,
                                                          .root = plan->root, .chunk_elements = plan->chunk_bytes / c->element,
                                                          .block_offset = plan->block_offset, .send_offset = plan->send_offset,
                                                          .receive_offset = plan->receive_offset });
    const struct schedule *s = &c->schedule;
    uint64_t sums = s->sum_end - s->sum_begin;
    c->summed = 0;
    c->to_sum = sums > 0 ? (uint32_t)((sums + s->sum_chunk - 1) / s->sum_chunk) : 0;
    c->out_shift = plan->op == SHM_OP_REDUCESCATTER ? s->sum_begin : 0;
    place_flows(c);
    take_memory(c);
}

/* ---- arithmetic ---- */

/* dst = the finished sum of a and b, which are the last two. */
static void finish_sum(const struct reduce_kernels *k, const struct collective_plan *p, void *dst, const void *a, const void *b,
                       uint64_t count)
{
    if (p->factor == 1.0 && p->divisor == 1.0) {
        k->combine[p->dtype][p->redop](dst, a, b, count);
    } else if (p->redop == SHM_SUM || p->redop == SHM_AVERAGE) {
        k->finish[p->dtype](dst, a, b, count, p->factor, p->divisor);
    } else {
        k->combine[p->dtype][p->redop](dst, a, b, count);
        k->scale[p->dtype](dst, dst, count, p->factor, p->divisor);
    }
}

void collective_sum(const struct collective_plan *arithmetic, const uint8_t *const *parts, int32_t size, uint64_t count, uint8_t *out)
{
    const struct reduce_kernels *k = reduce_kernels();
    uint64_t element = shm_dtype_size(arithmetic->dtype), begin, end;

    for (int32_t b = 0; b < size; b++) {
        schedule_block_range(count, size, b, &begin, &end);
        if (begin == end)
            continue;
        uint8_t *to = out + begin * element;
        const uint8_t *sum = parts[(b + 1) % size] + begin * element;
        for (int32_t i = 2; i < size; i++, sum = to)
            k->combine[arithmetic->dtype][arithmetic->redop](to, sum, parts[(b + i) % size] + begin * element, end - begin);
        finish_sum(k, arithmetic, to, sum, parts[b] + begin * element, end - begin);
    }
}

static uint8_t *slot(const struct collective *c, const struct flow *f, uint32_t piece)
{
    return f->slots + piece % SLOT_PIECES * padded(c);
}

/* What member `position` gave for the piece that begins at element `begin`, from element `at` on. */
static const uint8_t *share(const struct collective *c, int32_t position, uint64_t begin, uint64_t at)
{
    int32_t size = c->plan.size;

    if (position == c->plan.rank)
        return c->plan.in + at * c->element;
    return slot(c, &c->flows[(position - c->plan.rank - 1 + size) % size], c->summed) + (at - begin) * c->element;
}

/* Elements [at, end) of the piece, which all lie in `block`. */
static void sum_block(const struct collective *c, int32_t block, uint64_t begin, uint64_t at, uint64_t end)
{
    const struct collective_plan *p = &c->plan;
    const uint8_t *sum = share(c, (block + 1) % p->size, begin, at);
    uint64_t count = end - at;

    for (int32_t i = 2; i < p->size; i++) {
        c->kernels->combine[p->dtype][p->redop](c->sum, sum, share(c, (block + i) % p->size, begin, at), count);
        sum = c->sum;
    }
    finish_sum(c->kernels, p, p->out + (at - c->out_shift) * c->element, sum, share(c, block, begin, at), count);
}

static bool slots_are_full(const struct collective *c)
{
    uint32_t lane = c->summed % c->lane_count;

    for (int32_t i = 0; i < c->schedule.flow_count; i++) {
        const struct lane *l = &c->flows[i].lanes[lane];
        if (!schedule_is_past(&l->receive, 0, c->summed))
            return false;
        /* In place, the sum would overwrite what is still to be sent. */
        if (c->schedule.kind == SCHEDULE_FLAT_ALLREDUCE && !schedule_is_past(&l->send, 0, c->summed))
            return false;
    }
    return true;
}

/* Sums up what has come from all. False: nothing was to be done. */
static bool sum_some(struct collective *c)
{
    const struct schedule *s = &c->schedule;
    bool some = false;

    for (; c->summed < c->to_sum && slots_are_full(c); c->summed++, some = true) {
        uint64_t begin = s->sum_begin + c->summed * s->sum_chunk;
        uint64_t end = s->sum_end - begin < s->sum_chunk ? s->sum_end : begin + s->sum_chunk;
        if (s->kind != SCHEDULE_FLAT_ALLREDUCE) {
            sum_block(c, s->rank, begin, begin, end);
            continue;
        }
        for (int32_t b = 0; b < s->size; b++) {
            uint64_t from = c->plan.block_offset[b], to = c->plan.block_offset[b + 1];
            from = from > begin ? from : begin;
            to = to < end ? to : end;
            if (from < to)
                sum_block(c, b, begin, from, to);
        }
    }
    return some;
}

/* ---- receiving ---- */

static int bad_frame(struct error *e, const struct peer_frame *f, const struct schedule_piece *piece, size_t bytes)
{
    return error_set(e, ERROR_INVALID, "unexpected frame: type %u, operation %llu, chunk %08x, %u bytes; expected operation's chunk "
                     "%08x of %zu bytes", f->type, (unsigned long long)f->op, f->chunk, f->length,
                     piece->run << 16 | piece->piece, bytes);
}

static int check_header(const struct collective *c, struct lane *l, const struct schedule_piece *piece, struct error *e)
{
    struct peer_frame f;
    char mine[PEER_FENCE_TEXT_MAX];
    size_t bytes = piece->count * c->element;

    if (peer_frame_decode(l->receive_header, PEER_MAX_DATA, &f, e) < 0)
        return -1;
    if (f.type == PEER_FENCED || f.fence > c->plan.fence)
        return error_set(e, ERROR_GONE, "this rank is behind (%s): the group has gone on", peer_fence_text(c->plan.fence, mine));
    if (f.type != PEER_CHUNK || f.fence != c->plan.fence || f.op != c->plan.sequence ||
        f.chunk != (piece->run << 16 | piece->piece) || f.length != bytes)
        return bad_frame(e, &f, piece, bytes);
    l->has_crc = f.flags == PEER_CHECKED;
    l->receive_crc = f.payload_crc;
    return 0;
}

/* A piece has come whole. */
static int check_payload(const struct collective *c, const struct lane *l, const struct schedule_piece *piece, const uint8_t *bytes,
                         struct error *e)
{
    size_t length = piece->count * c->element;
    uint32_t crc = l->has_crc ? crc32c(0, bytes, length) : 0;

    if (!l->has_crc || crc == l->receive_crc)
        return 0;
    return error_set(e, ERROR_IO, "%zu bytes of its data arrived damaged (operation %llu, piece %08x): their checksum is %08x, it sent %08x", length,
                     (unsigned long long)c->plan.sequence, piece->run << 16 | piece->piece, crc, l->receive_crc);
}

static uint8_t *target_of(const struct collective *c, const struct flow *f, const struct lane *l, const struct schedule_piece *piece)
{
    switch (f->plan->receives[piece->run].place) {
    case PLACE_ADD:
        return l->scratch;
    case PLACE_SLOT:
        return slot(c, f, piece->piece);
    default:
        return c->plan.out + (piece->offset - c->out_shift) * c->element;
    }
}

static void use_piece(struct collective *c, const struct flow *f, const struct lane *l, const struct schedule_piece *piece)
{
    const struct schedule_run *run = &f->plan->receives[piece->run];
    const struct collective_plan *p = &c->plan;
    size_t at = piece->offset * c->element;

    if (run->place != PLACE_ADD)
        return;
    if (run->last)
        finish_sum(c->kernels, p, p->out + at, l->scratch, p->in + at, piece->count);
    else
        c->kernels->combine[p->dtype][p->redop](p->out + at, l->scratch, p->in + at, piece->count);
}

static bool receive_piece(const struct flow *f, struct schedule_cursor *at, uint32_t lane, struct schedule_piece *ret)
{
    return schedule_piece_at(f->plan->receives, f->plan->receive_count, at, lane, ret);
}

/* What the next read may fill: nothing of a payload goes to its last place before its header was checked; the header of the piece
 * behind comes along with a payload. */
static size_t read_parts(struct collective *c, struct flow *f, struct lane *l, uint32_t lane, const struct schedule_piece *piece,
                         struct iovec ret_parts[2])
{
    size_t bytes = piece->count * c->element, done = l->receive_have;
    uint8_t *to = target_of(c, f, l, piece);
    struct schedule_piece behind;

    if (done < PEER_HEADER_BYTES) {
        ret_parts[0] = (struct iovec){ l->receive_header + done, PEER_HEADER_BYTES - done };
        if (f->plan->receives[piece->run].place == PLACE_OUT)
            return 1;
        ret_parts[1] = (struct iovec){ to, bytes };
        return 2;
    }
    done -= PEER_HEADER_BYTES;
    ret_parts[0] = (struct iovec){ to + done, bytes - done };
    struct schedule_cursor after = l->receive;
    schedule_step(&after, c->lane_count);
    if (!receive_piece(f, &after, lane, &behind))
        return 1;
    ret_parts[1] = (struct iovec){ l->receive_header, PEER_HEADER_BYTES };
    return 2;
}

/* One read. Bytes moved, 0: none, -1: failed. */
static ssize_t receive_some(struct collective *c, struct flow *f, uint32_t lane, struct error *e)
{
    struct lane *l = &f->lanes[lane];
    struct schedule_piece piece;
    struct iovec parts[2];

    if (!l->wire->readable || !receive_piece(f, &l->receive, lane, &piece))
        return 0;
    if (f->plan->receives[piece.run].place == PLACE_SLOT && piece.piece >= c->summed + SLOT_PIECES)
        return 0;

    size_t total = PEER_HEADER_BYTES + piece.count * c->element;
    bool had_header = l->receive_have >= PEER_HEADER_BYTES;
    ssize_t n = mesh_receive(l->wire, parts, read_parts(c, f, l, lane, &piece, parts), e);
    if (n <= 0)
        return n;
    l->receive_have += (size_t)n;
    if (!had_header && l->receive_have >= PEER_HEADER_BYTES && check_header(c, l, &piece, e) < 0)
        return -1;
    if (l->receive_have < total)
        return n;

    if (check_payload(c, l, &piece, target_of(c, f, l, &piece), e) < 0)
        return -1;
    use_piece(c, f, l, &piece);
    l->receive_have -= total; /* of the header behind */
    schedule_step(&l->receive, c->lane_count);
    if (l->receive_have == PEER_HEADER_BYTES && receive_piece(f, &l->receive, lane, &piece) && check_header(c, l, &piece, e) < 0)
        return -1;
    return n;
}

/* ---- sending ---- */

static bool is_there(const struct collective *c, const struct schedule_run *run, const struct schedule_piece *piece)
{
    switch (run->wait) {
    case WAIT_RECEIVED:
        return schedule_is_past(&c->flows[c->schedule.wait_flow].lanes[piece->piece % c->lane_count].receive, run->wait_run,
                                piece->piece);
    case WAIT_SUMMED:
        return piece->piece < c->summed;
    default:
        return true;
    }
}

static ssize_t send_some(struct collective *c, struct flow *f, uint32_t lane, struct error *e)
{
    struct lane *l = &f->lanes[lane];
    struct schedule_piece piece;
    struct iovec parts[2];
    size_t count = 0, in_payload = 0;

    if (!l->wire->writable || !schedule_piece_at(f->plan->sends, f->plan->send_count, &l->send, lane, &piece))
        return 0;
    const struct schedule_run *run = &f->plan->sends[piece.run];
    if (l->send_done == 0 && !is_there(c, run, &piece))
        return 0;

    size_t bytes = piece.count * c->element;
    const uint8_t *from = run->place == PLACE_IN ? c->plan.in + piece.offset * c->element
                                                 : c->plan.out + (piece.offset - c->out_shift) * c->element;
    if (l->send_done == 0)
        peer_frame_encode(&(struct peer_frame){ .type = PEER_CHUNK, .length = (uint32_t)bytes, .fence = c->plan.fence,
                                                .op = c->plan.sequence, .chunk = piece.run << 16 | piece.piece,
                                                .flags = c->plan.checksums ? PEER_CHECKED : 0,
                                                .payload_crc = c->plan.checksums ? crc32c(0, from, bytes) : 0 }, l->send_header);
    if (l->send_done < PEER_HEADER_BYTES)
        parts[count++] = (struct iovec){ l->send_header + l->send_done, PEER_HEADER_BYTES - l->send_done };
    else
        in_payload = l->send_done - PEER_HEADER_BYTES;
    /* iovec is not const-correct; nothing is written through it. */
    parts[count++] = (struct iovec){ (void *)(uintptr_t)(from + in_payload), bytes - in_payload };
    ssize_t n = mesh_send(l->wire, parts, count, e);
    if (n <= 0)
        return n;
    l->send_done += (size_t)n;
    if (l->send_done == PEER_HEADER_BYTES + bytes) {
        l->send_done = 0;
        schedule_step(&l->send, c->lane_count);
    }
    return n;
}

/* ---- both ---- */

/* A flow's connections may still be on their way. */
static bool is_connected(struct collective *c, struct flow *f)
{
    if (!f->connected)
        f->connected = f->used && mesh_need(c->mesh, c->plan.members[f->plan->peer]);
    return f->connected;
}

/* Bytes moved on one flow, each lane once each way; -1: failed. */
static ssize_t pump_flow(struct collective *c, struct flow *f, struct error *e)
{
    ssize_t moved = 0;

    for (uint32_t lane = 0; lane < c->lane_count; lane++) {
        ssize_t n = receive_some(c, f, lane, e);
        if (n < 0)
            return -1;
        moved += n;
        n = send_some(c, f, lane, e);
        if (n < 0)
            return -1;
        moved += n;
    }
    return moved;
}

static bool is_done(struct collective *c)
{
    struct schedule_piece piece;

    if (c->summed < c->to_sum)
        return false;
    for (int32_t i = 0; i < c->schedule.flow_count; i++) {
        struct flow *f = &c->flows[i];
        for (uint32_t lane = 0; lane < c->lane_count; lane++) {
            if (receive_piece(f, &f->lanes[lane].receive, lane, &piece) ||
                schedule_piece_at(f->plan->sends, f->plan->send_count, &f->lanes[lane].send, lane, &piece))
                return false;
        }
    }
    return true;
}

enum collective_state collective_pump(struct collective *c, bool *ret_again, int32_t *ret_rank, struct error *e)
{
    size_t moved = 0;

    *ret_again = false;
    for (bool some = true; some;) {
        some = false;
        for (int32_t i = 0; i < c->schedule.flow_count; i++) {
            struct flow *f = &c->flows[i];
            if (!is_connected(c, f))
                continue;
            ssize_t n = pump_flow(c, f, e);
            if (n < 0) {
                *ret_rank = c->plan.members[f->plan->peer];
                return COLLECTIVE_FAILED;
            }
            moved += (size_t)n;
            some = some || n > 0;
        }
        some = sum_some(c) || some;
        if (some && moved > BYTES_PER_PUMP) {
            *ret_again = true;
            return COLLECTIVE_RUNNING;
        }
    }
    return is_done(c) ? COLLECTIVE_DONE : COLLECTIVE_RUNNING;
}
