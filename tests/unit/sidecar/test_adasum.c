#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "sidecar/ring/adasum.h"
#include "wire/half.h"

static const struct { const char *name; int32_t parts; double in[8], want[2]; } ROWS[] = {
    { "one", 1, { 3, 4 }, { 3, 4 } },
    { "orthogonal: added", 2, { 1, 0, 0, 2 }, { 1, 2 } },
    { "the same: averaged", 2, { 1, 2, 1, 2 }, { 1, 2 } },
    { "parallel", 2, { 1, 0, 3, 0 }, { 2, 0 } },
    { "nothing and something", 2, { 0, 0, 5, 6 }, { 5, 6 } },
    { "nothing at all", 2, { 0, 0, 0, 0 }, { 0, 0 } },
    { "three: the last waits", 3, { 1, 0, 1, 0, 0, 2 }, { 1, 2 } },
    { "four", 4, { 1, 0, 0, 1, 1, 0, 0, 1 }, { 1, 1 } },
};

Test(adasum, pairs_are_combined_like_a_tree)
{
    for (size_t i = 0; i < COUNT(ROWS); i++) {
        double d[8];
        float f[8];
        uint16_t half[8], brain[8];
        for (int k = 0; k < 8; k++) {
            d[k] = ROWS[i].in[k];
            f[k] = (float)d[k];
            half[k] = half_of_float(f[k]);
            brain[k] = brain_of_float(f[k]);
        }
        adasum((uint8_t *)d, ROWS[i].parts, 2, SHM_F64);
        adasum((uint8_t *)f, ROWS[i].parts, 2, SHM_F32);
        adasum((uint8_t *)half, ROWS[i].parts, 2, SHM_F16);
        adasum((uint8_t *)brain, ROWS[i].parts, 2, SHM_BF16);
        for (int k = 0; k < 2; k++) /* small whole numbers: exact in every type */
            cr_expect(half_to_float(half[k]) == (float)ROWS[i].want[k] && brain_to_float(brain[k]) == (float)ROWS[i].want[k], "case %s",
                      ROWS[i].name);
        for (int k = 0; k < 2; k++)
            cr_expect(fabs(d[k] - ROWS[i].want[k]) < 1e-12 && fabs((double)f[k] - ROWS[i].want[k]) < 1e-6, "case %s: %g, expected %g",
                      ROWS[i].name, d[k], ROWS[i].want[k]);
    }
}
