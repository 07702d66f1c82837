#include "checkpoint/box.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/mem.h"

static uint64_t elements(const uint64_t *shape, uint32_t dims)
{
    uint64_t n = 1;
    for (uint32_t d = 0; d < dims; d++)
        n *= shape[d];
    return n;
}

static bool overlap(const struct box *a, const struct box *b, uint32_t dims)
{
    for (uint32_t d = 0; d < dims; d++)
        if (a->offset[d] >= b->offset[d] + b->shape[d] || b->offset[d] >= a->offset[d] + a->shape[d])
            return false;
    return true;
}

static int by_first_row(const void *a, const void *b)
{
    const struct box *x = *(const struct box *const *)a, *y = *(const struct box *const *)b;
    return x->offset[0] < y->offset[0] ? -1 : x->offset[0] > y->offset[0];
}

int box_check_cover(const uint64_t *shape, uint32_t dims, const struct box *boxes, size_t count, struct error *e)
{
    auto_free const struct box **filled = xcalloc(count + 1, sizeof(*filled));
    uint64_t held = 0, needed = elements(shape, dims);
    size_t n = 0;
    for (size_t i = 0; i < count; i++) {
        for (uint32_t d = 0; d < dims; d++)
            if (boxes[i].shape[d] > shape[d] || boxes[i].offset[d] > shape[d] - boxes[i].shape[d])
                return error_set(e, ERROR_INVALID, "part %zu does not lie within the whole: axis %" PRIu32 " from %" PRIu64 " for %" PRIu64 " of %" PRIu64,
                                 i, d, boxes[i].offset[d], boxes[i].shape[d], shape[d]);
        if (elements(boxes[i].shape, dims) == 0)
            continue;
        held += elements(boxes[i].shape, dims);
        filled[n++] = &boxes[i];
    }
    if (dims > 0 && n > 1)
        qsort(filled, n, sizeof(*filled), by_first_row);
    for (size_t i = 0; i < n; i++)
        for (size_t k = i + 1; k < n && (dims == 0 || filled[k]->offset[0] < filled[i]->offset[0] + filled[i]->shape[0]); k++)
            if (overlap(filled[i], filled[k], dims))
                return error_set(e, ERROR_INVALID, "parts %td and %td overlap", filled[i] - boxes, filled[k] - boxes);
    if (held != needed)
        return error_set(e, ERROR_INVALID, "its parts hold %" PRIu64 " of %" PRIu64 " elements", held, needed);
    return 0;
}

void box_run(const struct box *b, const uint64_t *shape, uint32_t dims, uint64_t element_bytes, uint64_t at, uint64_t *ret_at, uint64_t *ret_len)
{
    /* Axes behind `inner` are whole in the box: one step on `inner` is one stretch of bytes in both. */
    uint32_t inner = dims;
    uint64_t row = element_bytes;
    while (inner > 0 && b->shape[inner - 1] == shape[inner - 1])
        row *= shape[--inner];
    uint64_t run = inner > 0 ? row * b->shape[inner - 1] : row; /* bytes of the box that lie together in the whole */
    uint64_t index = at / run, within = at % run, to = inner > 0 ? b->offset[inner - 1] * row : 0, stride = row;
    for (uint32_t d = inner; d-- > 1;) {
        stride *= shape[d];
        to += (b->offset[d - 1] + index % b->shape[d - 1]) * stride;
        index /= b->shape[d - 1];
    }
    *ret_at = to + within;
    *ret_len = run - within;
}
