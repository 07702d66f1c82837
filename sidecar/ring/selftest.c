/* The known all-reduce and all-gather that every rank checks at each forming: they go the way of any other request. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "sidecar/ring/engine_private.h"

#define SUM_ELEMENTS 1021u /* prime: blocks of unequal size on any ring */
#define ROWS_MAX 3u        /* of a rank in the all-gather: rank % 3 + 1 */

/* The control character keeps these apart from any name that a client may use. */
static const char sum_name[] = "\1self-test all-reduce", gather_name[] = "\1self-test all-gather";

struct selftest {
    float in[SUM_ELEMENTS], sum[SUM_ELEMENTS];
    int32_t rows[ROWS_MAX];
    int32_t *gathered;
    int left;               /* requests that are not answered */
    bool failed;
};

static float weight(size_t i)
{
    return (float)(i % 13 + 1);
}

static uint64_t rows_of(int32_t rank)
{
    return (uint64_t)rank % ROWS_MAX + 1;
}

static int32_t row(int32_t rank, uint64_t i)
{
    return rank * 1000 + (int32_t)i;
}

void selftest_free(struct selftest *t)
{
    if (t == NULL)
        return;
    free(t->gathered);
    free(t);
}

/* The sums are small integers, exact in float32 for a thousand ranks and more. */
static bool sum_is_right(const struct selftest *t, int32_t size)
{
    for (size_t i = 0; i < SUM_ELEMENTS; i++) {
        if (t->sum[i] != weight(i) * (float)size * (float)(size + 1) / 2)
            return false;
    }
    return true;
}

static bool gather_is_right(const struct selftest *t, int32_t size, uint64_t count)
{
    uint64_t at = 0;

    for (int32_t r = 0; r < size; r++) {
        for (uint64_t i = 0; i < rows_of(r); i++, at++) {
            if (at >= count || t->gathered[at] != row(r, i))
                return false;
        }
    }
    return at == count;
}

static void ended(struct engine *g, struct request *q, enum shm_status status, const char *text, uint64_t out_count)
{
    (void)text;
    struct selftest *t = g->group != NULL ? g->group->selftest : NULL;

    if (t == NULL || g->group->state != GROUP_TESTING)
        return; /* the group was lost meanwhile */
    bool right = status == SHM_OK && (q->r.op == SHM_OP_ALLREDUCE ? sum_is_right(t, g->group->size)
                                                                 : gather_is_right(t, g->group->size, out_count));
    if (!right) {
        t->failed = true;
        log_error("the ring computed a wrong result in its self-test", KV("operation", shm_op_name(q->r.op)));
    }
    if (--t->left == 0)
        group_tested(g, !t->failed);
}

static void submit(struct engine *g, const struct shm_request *r, const char *name, const void *in, void *out,
                   uint64_t out_capacity)
{
    struct request *q = xcalloc(1, sizeof *q);

    q->r = *r;
    (void)snprintf(q->r.name, sizeof q->r.name, "%s", name);
    q->in = in;
    q->out = out;
    q->out_capacity = out_capacity;
    q->done = ended;
    request_add(g, q);
    order_announce(g, q);
}

struct selftest *selftest_new(struct engine *g)
{
    struct selftest *t = xcalloc(1, sizeof *t);
    struct shm_request sum = { .op = SHM_OP_ALLREDUCE, .dtype = SHM_F32, .redop = SHM_SUM, .count = SUM_ELEMENTS,
                               .prescale = 1.0, .postscale = 1.0 };
    struct shm_request gather = { .op = SHM_OP_ALLGATHER, .dtype = SHM_I32, .count = rows_of(g->group->rank), .row_elements = 1 };

    for (size_t i = 0; i < SUM_ELEMENTS; i++)
        t->in[i] = weight(i) * (float)(g->group->rank + 1);
    for (uint64_t i = 0; i < rows_of(g->group->rank); i++)
        t->rows[i] = row(g->group->rank, i);
    t->gathered = xcalloc((size_t)g->group->size * ROWS_MAX, sizeof *t->gathered);
    t->left = 2;
    submit(g, &sum, sum_name, t->in, t->sum, SUM_ELEMENTS);
    submit(g, &gather, gather_name, t->rows, t->gathered, (uint64_t)g->group->size * ROWS_MAX);
    return t;
}
