#include "sidecar/ring/squeeze.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define SEGMENT (256u << 10) /* elements of each block that travel together: whole groups of the codec, and short turns for the loop */

enum phase { PHASE_SCATTER, PHASE_GATHER };

struct squeeze {
    struct collective_plan plan;
    struct codec codec;
    enum phase phase;
    uint64_t segment, segments;
    uint64_t *send, *receive;       /* offsets, size + 1 each, in bytes */
    uint8_t *out, *in;              /* what is sent to the others; what comes from them, and then the sums of all */
    void *sums;
    size_t out_bytes, in_bytes, sums_bytes;
    int32_t offsets;                /* room in send and receive */
};

struct squeeze *squeeze_new(void)
{
    return xcalloc(1, sizeof(struct squeeze));
}

void squeeze_free(struct squeeze *s)
{
    if (s == NULL)
        return;
    free(s->send);
    free(s->receive);
    free(s->out);
    free(s->in);
    free(s->sums);
    free(s);
}

/* Elements of block b that belong to the segment: where they begin in the tensor, and how many there are. */
static uint64_t part(const struct squeeze *s, int32_t b, uint64_t *ret_count)
{
    uint64_t begin = s->plan.block_offset[b] + s->segment * SEGMENT, end = s->plan.block_offset[b + 1];

    *ret_count = begin >= end ? 0 : end - begin < SEGMENT ? end - begin : SEGMENT;
    return begin < end ? begin : end;
}

static uint64_t part_bytes(const struct squeeze *s, int32_t b)
{
    uint64_t count;

    (void)part(s, b, &count);
    return codec_bytes(&s->codec, count);
}

/* Where an element lies in the output: a reduce-scatter's has this member's block alone. */
static uint8_t *output(const struct squeeze *s, uint64_t at)
{
    uint64_t shift = s->plan.op == SHM_OP_REDUCESCATTER ? s->plan.block_offset[s->plan.rank] : 0;

    return s->plan.out + (at - shift) * shm_dtype_size(s->codec.dtype);
}

static const uint8_t *input(const struct squeeze *s, uint64_t at)
{
    return s->plan.in + at * shm_dtype_size(s->codec.dtype);
}

static void begin(struct squeeze *s, enum phase phase, const struct collective_plan *moves, struct collective *c, struct mesh *mesh)
{
    struct collective_plan plan = *moves;

    s->phase = phase;
    plan.dtype = SHM_U8;
    plan.fence = s->plan.fence;
    plan.sequence = s->plan.sequence;
    plan.chunk_bytes = s->plan.chunk_bytes;
    plan.checksums = s->plan.checksums;
    plan.rank = s->plan.rank;
    plan.size = s->plan.size;
    plan.members = s->plan.members;
    plan.factor = plan.divisor = 1.0;
    collective_start(c, &plan, mesh);
}

static void scatter(struct squeeze *s, struct collective *c, struct mesh *mesh)
{
    uint64_t mine = part_bytes(s, s->plan.rank), count;

    for (int32_t m = 0; m < s->plan.size; m++) {
        bool own = m == s->plan.rank;
        uint64_t at = part(s, m, &count);
        s->send[m + 1] = s->send[m] + (own ? 0 : codec_bytes(&s->codec, count));
        s->receive[m + 1] = s->receive[m] + (own ? 0 : mine);
        if (!own)
            codec_encode(&s->codec, s->out + s->send[m], input(s, at), count);
    }
    begin(s, PHASE_SCATTER, &(struct collective_plan){ .op = SHM_OP_ALLTOALL, .in = s->out, .out = s->in, .send_offset = s->send,
                                                       .receive_offset = s->receive }, c, mesh);
}

/* What came from the others and this member's own, in the order that this block has everywhere. */
static void sum_up(struct squeeze *s)
{
    int32_t size = s->plan.size, rank = s->plan.rank;
    uint64_t count, at = part(s, rank, &count);

    for (int32_t i = 1; i < size; i++) {
        int32_t m = (rank + i) % size;
        if (i == 1)
            codec_begin(&s->codec, s->sums, s->in + s->receive[m], count);
        else
            codec_add(&s->codec, s->sums, s->in + s->receive[m], count);
    }
    codec_add_own(&s->codec, s->sums, input(s, at), count);
    codec_scale(&s->codec, s->sums, count, s->plan.factor, s->plan.divisor);
}

static void gather(struct squeeze *s, struct collective *c, struct mesh *mesh)
{
    uint64_t count;

    (void)part(s, s->plan.rank, &count);
    for (int32_t m = 0; m < s->plan.size; m++)
        s->send[m + 1] = s->send[m] + part_bytes(s, m);
    codec_encode_sums(&s->codec, s->in + s->send[s->plan.rank], s->sums, count);
    begin(s, PHASE_GATHER, &(struct collective_plan){ .op = SHM_OP_ALLGATHER, .out = s->in, .block_offset = s->send,
                                                      .algorithm = collective_choose(SHM_OP_ALLGATHER, s->send[s->plan.size], s->plan.size) },
          c, mesh);
}

static void decode(struct squeeze *s)
{
    for (int32_t m = 0; m < s->plan.size; m++) {
        uint64_t count, at = part(s, m, &count);
        codec_decode(&s->codec, output(s, at), s->in + s->send[m], count);
    }
}

static bool grow(void *at, size_t *have, size_t need)
{
    void **memory = at;

    if (*have >= need)
        return true;
    free(*memory);
    *memory = malloc(need);
    *have = *memory != NULL ? need : 0;
    return *memory != NULL;
}

int squeeze_start(struct squeeze *s, const struct collective_plan *plan, const struct codec *codec, struct collective *c, struct mesh *mesh)
{
    uint64_t longest = 0, most;

    for (int32_t b = 0; b < plan->size; b++) {
        uint64_t count = plan->block_offset[b + 1] - plan->block_offset[b];
        longest = count > longest ? count : longest;
    }
    s->plan = *plan;
    s->codec = *codec;
    s->segment = 0;
    s->segments = (longest + SEGMENT - 1) / SEGMENT;
    most = longest < SEGMENT ? longest : SEGMENT;
    if (s->offsets < plan->size) {
        s->offsets = plan->size;
        s->send = xrealloc(s->send, (size_t)plan->size + 1, sizeof *s->send);
        s->receive = xrealloc(s->receive, (size_t)plan->size + 1, sizeof *s->receive);
    }
    s->send[0] = s->receive[0] = 0;
    size_t all = (size_t)codec_bytes(codec, most) * (size_t)plan->size + 1;
    if (!grow(&s->out, &s->out_bytes, all) || !grow(&s->in, &s->in_bytes, all) ||
        !grow(&s->sums, &s->sums_bytes, (size_t)most * codec_accumulator_size(codec) + 1))
        return -1;
    scatter(s, c, mesh);
    return 0;
}

bool squeeze_next(struct squeeze *s, struct collective *c, struct mesh *mesh)
{
    uint64_t count, at = part(s, s->plan.rank, &count);

    if (s->phase == PHASE_SCATTER) {
        sum_up(s);
        if (s->plan.op == SHM_OP_ALLREDUCE) {
            gather(s, c, mesh);
            return true;
        }
        codec_take_sums(&s->codec, output(s, at), s->sums, count);
    } else {
        decode(s);
    }
    if (++s->segment >= s->segments)
        return false;
    scatter(s, c, mesh);
    return true;
}

void squeeze_sum_exact(const struct collective_plan *arithmetic, const uint8_t *const *parts, int32_t size, uint64_t count, uint8_t *out)
{
    struct codec codec = { .wire = SHM_WIRE_EXACT, .dtype = arithmetic->dtype };
    auto_free double *sums = xcalloc(count, sizeof *sums);
    uint64_t from, to;

    for (int32_t b = 0; b < size; b++) {
        schedule_block_range(count, size, b, &from, &to);
        for (int32_t i = 1; i <= size; i++) {
            const uint8_t *elements = parts[(b + i) % size] + 2 * from;
            if (i == 1)
                codec_begin_own(&codec, sums + from, elements, to - from);
            else
                codec_add_own(&codec, sums + from, elements, to - from);
        }
    }
    codec_scale(&codec, sums, count, arithmetic->factor, arithmetic->divisor);
    codec_take_sums(&codec, out, sums, count);
}
