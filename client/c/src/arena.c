#include "arena.h"

#include <stdlib.h>
#include <string.h>

bool arena_init(struct arena *a, uint64_t base, uint64_t bytes)
{
    *a = (struct arena){ .base = base, .bytes = bytes / ARENA_ALIGN * ARENA_ALIGN, .capacity = 64 };
    a->blocks = calloc(a->capacity, sizeof(*a->blocks));
    if (a->blocks == NULL)
        return false;
    if (a->bytes > 0)
        a->blocks[a->count++] = (struct arena_block){ .offset = base, .bytes = a->bytes };
    return true;
}

void arena_release(struct arena *a)
{
    free(a->blocks);
    *a = (struct arena){ 0 };
}

static bool room_for_one_more(struct arena *a)
{
    if (a->count < a->capacity)
        return true;
    struct arena_block *grown = realloc(a->blocks, 2 * a->capacity * sizeof(*grown));
    if (grown == NULL)
        return false;
    a->blocks = grown;
    a->capacity *= 2;
    return true;
}

bool arena_alloc(struct arena *a, uint64_t bytes, uint64_t *ret_offset)
{
    if (bytes > a->bytes)
        return false;
    uint64_t need = bytes == 0 ? ARENA_ALIGN : (bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    for (size_t i = 0; i < a->count; i++) {
        if (a->blocks[i].used || a->blocks[i].bytes < need)
            continue;
        if (a->blocks[i].bytes > need) {
            if (!room_for_one_more(a))
                return false;
            memmove(&a->blocks[i + 1], &a->blocks[i], (a->count - i) * sizeof(a->blocks[0]));
            a->count++;
            a->blocks[i + 1].offset += need;
            a->blocks[i + 1].bytes -= need;
            a->blocks[i].bytes = need;
        }
        a->blocks[i].used = true;
        a->used += need;
        *ret_offset = a->blocks[i].offset;
        return true;
    }
    return false;
}

/* The block that contains offset, or NULL. */
static struct arena_block *find(const struct arena *a, uint64_t offset)
{
    size_t low = 0, high = a->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        struct arena_block *b = &a->blocks[middle];
        if (offset < b->offset)
            high = middle;
        else if (offset - b->offset >= b->bytes)
            low = middle + 1;
        else
            return b;
    }
    return NULL;
}

static void join_with_next(struct arena *a, size_t i)
{
    a->blocks[i].bytes += a->blocks[i + 1].bytes;
    memmove(&a->blocks[i + 1], &a->blocks[i + 2], (a->count - i - 2) * sizeof(a->blocks[0]));
    a->count--;
}

bool arena_free(struct arena *a, uint64_t offset)
{
    struct arena_block *b = find(a, offset);
    if (b == NULL || !b->used || b->offset != offset)
        return false;
    b->used = false;
    a->used -= b->bytes;
    size_t i = (size_t)(b - a->blocks);
    if (i + 1 < a->count && !a->blocks[i + 1].used)
        join_with_next(a, i);
    if (i > 0 && !a->blocks[i - 1].used)
        join_with_next(a, i - 1);
    return true;
}

bool arena_holds(const struct arena *a, uint64_t offset, uint64_t bytes)
{
    const struct arena_block *b = find(a, offset);
    return b != NULL && b->used && bytes <= b->bytes - (offset - b->offset);
}
