#include <criterion/criterion.h>
#include <string.h>

#include "base/mem.h"
#include "checkpoint/box.h"

#define S(...) { __VA_ARGS__ }

static const struct { const char *name; uint32_t dims; uint64_t shape[3]; struct box boxes[3]; size_t count; const char *wrong; } COVERS[] = {
    { "one whole", 2, S(3, 4), { { S(0, 0), S(3, 4) } }, 1, NULL },
    { "two halves by rows", 2, S(4, 4), { { S(0, 0), S(1, 4) }, { S(1, 0), S(3, 4) } }, 2, NULL },
    { "quarters in any order", 2, S(2, 2), { { S(1, 0), S(1, 2) }, { S(0, 1), S(1, 1) }, { S(0, 0), S(1, 1) } }, 3, NULL },
    { "a scalar", 0, S(0), { { S(0), S(0) } }, 1, NULL },
    { "a scalar twice", 0, S(0), { { S(0), S(0) }, { S(0), S(0) } }, 2, "overlap" },
    { "no elements", 2, S(0, 7), { { S(0, 0), S(0, 7) } }, 1, NULL },
    { "an empty part beside", 2, S(2, 2), { { S(0, 0), S(2, 2) }, { S(2, 0), S(0, 2) } }, 2, NULL },
    { "a gap", 2, S(4, 4), { { S(0, 0), S(1, 4) }, { S(2, 0), S(2, 4) } }, 2, "hold 12 of 16" },
    { "overlap", 2, S(4, 4), { { S(0, 0), S(3, 4) }, { S(2, 0), S(1, 4) } }, 2, "overlap" },
    { "overlap and gap that make up the number", 1, S(4), { { S(0), S(2) }, { S(1), S(2) } }, 2, "overlap" },
    { "beyond the end", 1, S(4), { { S(2), S(3) } }, 1, "does not lie within" },
    { "far beyond the end", 1, S(4), { { S(UINT64_MAX), S(2) } }, 1, "does not lie within" },
};

Test(box, every_element_has_to_be_in_exactly_one_part)
{
    for (size_t i = 0; i < COUNT(COVERS); i++) {
        struct error e = ERROR_INIT;
        int result = box_check_cover(COVERS[i].shape, COVERS[i].dims, COVERS[i].boxes, COVERS[i].count, &e);
        cr_expect((result == 0) == (COVERS[i].wrong == NULL), "case %s: %s", COVERS[i].name, e.text);
        cr_expect(COVERS[i].wrong == NULL || (e.kind == ERROR_INVALID && strstr(e.text, COVERS[i].wrong) != NULL), "case %s: %s", COVERS[i].name,
                  e.text);
    }
}

/* Byte `at` of a box, the slow way: through the coordinates of its element. */
static uint64_t slowly(const struct box *b, const uint64_t *shape, uint32_t dims, uint64_t element, uint64_t at)
{
    uint64_t index = at / element, to = 0, stride = 1;
    for (uint32_t d = dims; d-- > 0;) {
        to += (b->offset[d] + index % b->shape[d]) * stride;
        index /= b->shape[d];
        stride *= shape[d];
    }
    return to * element + at % element;
}

static const struct { uint32_t dims; uint64_t shape[4]; struct box box; uint64_t element; } RUNS[] = {
    { 0, S(0), { S(0), S(0) }, 8 },
    { 1, S(9), { S(3), S(4) }, 2 },
    { 2, S(5, 6), { S(2, 0), S(3, 6) }, 4 },
    { 2, S(5, 6), { S(0, 2), S(5, 3) }, 4 },
    { 2, S(5, 6), { S(1, 5), S(3, 1) }, 1 },
    { 3, S(3, 5, 4), { S(0, 2, 0), S(3, 3, 4) }, 8 },
    { 3, S(3, 5, 4), { S(1, 1, 1), S(2, 3, 2) }, 2 },
    { 4, S(2, 3, 4, 5), { S(1, 0, 1, 0), S(1, 3, 2, 5) }, 4 },
    { 4, S(2, 3, 4, 5), { S(0, 0, 0, 0), S(2, 3, 4, 5) }, 4 },
    { 3, S(1, 7, 1), { S(0, 2, 0), S(1, 4, 1) }, 4 },
};

Test(box, every_byte_of_a_part_goes_where_its_element_belongs)
{
    for (size_t i = 0; i < COUNT(RUNS); i++) {
        uint64_t bytes = RUNS[i].element;
        bool good = true;
        for (uint32_t d = 0; d < RUNS[i].dims; d++)
            bytes *= RUNS[i].box.shape[d];
        for (uint64_t at = 0; at < bytes; at++) {
            uint64_t to, len;
            box_run(&RUNS[i].box, RUNS[i].shape, RUNS[i].dims, RUNS[i].element, at, &to, &len);
            good = good && len > 0 && len <= bytes - at;
            for (uint64_t k = 0; good && k < len; k++)
                good = slowly(&RUNS[i].box, RUNS[i].shape, RUNS[i].dims, RUNS[i].element, at + k) == to + k;
        }
        cr_expect(good, "case %zu", i);
    }
}
