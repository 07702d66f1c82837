#include "sidecar/ring/results.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "wire/shm.h"

void results_init(struct results *a, uint64_t offset, uint64_t bytes)
{
    a->capacity = 16;
    a->ranges = xcalloc(a->capacity, sizeof *a->ranges);
    a->count = 1;
    a->ranges[0] = (struct results_range){ .offset = offset, .bytes = bytes };
}

static void open_gap(struct results *a, size_t at)
{
    if (a->count == a->capacity) {
        a->capacity *= 2;
        a->ranges = xrealloc(a->ranges, a->capacity, sizeof *a->ranges);
    }
    memmove(&a->ranges[at + 1], &a->ranges[at], (a->count - at) * sizeof *a->ranges);
    a->count++;
}

bool results_allocate(struct results *a, uint64_t bytes, uint64_t *ret_offset)
{
    if (bytes > UINT64_MAX - SHM_ALIGN)
        return false;
    uint64_t need = bytes > 0 ? (bytes + SHM_ALIGN - 1) / SHM_ALIGN * SHM_ALIGN : SHM_ALIGN;

    for (size_t i = 0; i < a->count; i++) {
        if (a->ranges[i].in_use || a->ranges[i].bytes < need)
            continue;
        if (a->ranges[i].bytes > need) {
            open_gap(a, i + 1);
            a->ranges[i + 1] = (struct results_range){ .offset = a->ranges[i].offset + need,
                                                       .bytes = a->ranges[i].bytes - need };
            a->ranges[i].bytes = need;
        }
        a->ranges[i].in_use = true;
        *ret_offset = a->ranges[i].offset;
        return true;
    }
    return false;
}

static void merge_with_next(struct results *a, size_t at)
{
    if (at + 1 >= a->count || a->ranges[at].in_use || a->ranges[at + 1].in_use)
        return;
    a->ranges[at].bytes += a->ranges[at + 1].bytes;
    memmove(&a->ranges[at + 1], &a->ranges[at + 2], (a->count - at - 2) * sizeof *a->ranges);
    a->count--;
}

bool results_free(struct results *a, uint64_t offset)
{
    for (size_t i = 0; i < a->count; i++) {
        if (a->ranges[i].offset != offset || !a->ranges[i].in_use)
            continue;
        a->ranges[i].in_use = false;
        merge_with_next(a, i);
        if (i > 0)
            merge_with_next(a, i - 1);
        return true;
    }
    return false;
}

void results_release(struct results *a)
{
    free(a->ranges);
    *a = (struct results){ 0 };
}
