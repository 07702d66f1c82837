#include <criterion/criterion.h>
#include <string.h>

#include "base/mem.h"
#include "sidecar/ring/scale.h"

static const struct { const char *name; enum shm_dtype dtype; int64_t value; double factor, divisor; int64_t want; } INTEGERS[] = {
    { "exact division of what a double cannot hold", SHM_I64, INT64_MAX, 1, 1, INT64_MAX },
    { "average", SHM_I64, INT64_MAX - 1, 1, 2, INT64_MAX / 2 },
    { "the fraction is dropped", SHM_I32, 7, 1, 2, 3 },
    { "towards zero", SHM_I32, -7, 1, 2, -3 },
    { "factor", SHM_I32, -7, 1.5, 1, -10 },
    { "too large", SHM_I8, 100, 2, 1, 127 },
    { "too small", SHM_I8, -100, 2, 1, -128 },
    { "below zero", SHM_U8, 3, -1, 1, 0 },
    { "far too large", SHM_I64, 1, 1e30, 1, INT64_MAX },
};

Test(scale, integers_lose_their_fraction_and_stay_in_range)
{
    for (size_t i = 0; i < COUNT(INTEGERS); i++) {
        int64_t value = INTEGERS[i].value, got = 0;
        scale_elements(&value, &value, 1, INTEGERS[i].dtype, INTEGERS[i].factor, INTEGERS[i].divisor);
        switch (INTEGERS[i].dtype) {
        case SHM_U8: got = (uint8_t)value; break;
        case SHM_I8: got = (int8_t)value; break;
        case SHM_I32: got = (int32_t)value; break;
        default: got = value;
        }
        cr_expect_eq(got, INTEGERS[i].want, "case %s: %lld", INTEGERS[i].name, (long long)got);
    }
}

Test(scale, floats_are_scaled_and_nothing_is_moved_where_nothing_changes)
{
    float f[3] = { 1, -2, 0.5f }, out[3] = { 0 };
    uint16_t u[2] = { 1, 65535 }, copy[2] = { 0 };

    scale_elements(out, f, 3, SHM_F32, 3, 2);
    cr_expect(out[0] == 1.5f && out[1] == -3 && out[2] == 0.75f);
    scale_elements(copy, u, 2, SHM_U16, 1, 1);
    cr_expect(copy[0] == 1 && copy[1] == 65535);
    scale_elements(NULL, NULL, 0, SHM_F32, 2, 1);
}
