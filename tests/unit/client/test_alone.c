#include <criterion/criterion.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/mem.h"
#include "client/c/src/alone.h"
#include "wire/shm.h"

Test(alone, floats_are_scaled_and_everything_else_is_copied)
{
    float f[3] = { 1, -2, 0.5f }, f_out[3];
    double d[2] = { 3, 1e300 };
    int64_t i[2] = { INT64_MAX, -7 }, i_out[2];
    uint8_t flags[2] = { 0, 1 }, flags_out[2];

    alone_scale(f, f_out, 3, SHM_F32, 0.25);
    cr_expect(f_out[0] == 0.25f && f_out[1] == -0.5f && f_out[2] == 0.125f);
    alone_scale(d, d, 2, SHM_F64, -2);
    cr_expect(d[0] == -6 && d[1] == -2e300);
    alone_scale(i, i_out, 2, SHM_I64, 1);
    cr_expect(i_out[0] == INT64_MAX && i_out[1] == -7);
    alone_scale(flags, flags_out, 2, SHM_BOOL, 1);
    cr_expect(flags_out[0] == 0 && flags_out[1] == 1);
    alone_scale(f, f_out, 0, SHM_F32, 1);
}

static uint16_t scaled(uint16_t x, unsigned dtype, double scale)
{
    alone_scale(&x, &x, 1, dtype, scale);
    return x;
}

/* Against the compiler's own conversions, where it has them; every half there is. */
#ifdef __FLT16_MAX__
Test(alone, halves_are_rounded_to_nearest_even)
{
    static const float scales[] = { 0.1f, 3.0f, 0x1p-10f, 0.333f, -1000.0f };

    for (size_t k = 0; k < COUNT(scales); k++)
        for (uint32_t bits = 0; bits < 0x10000; bits++) {
            uint16_t half = (uint16_t)bits, expected, got = scaled(half, SHM_F16, scales[k]);
            _Float16 h;
            memcpy(&h, &half, 2);
            _Float16 wanted = (_Float16)((float)h * scales[k]);
            memcpy(&expected, &wanted, 2);
            if (isnan((float)wanted))
                cr_assert((got & 0x7c00) == 0x7c00 && (got & 0x3ff) != 0, "half %04x times %g", bits, scales[k]);
            else
                cr_assert_eq(got, expected, "half %04x times %g: %04x, wanted %04x", bits, scales[k], got, expected);
        }
}
#endif

Test(alone, brain_floats_are_rounded_to_nearest_even)
{
    static const struct { const char *name; uint16_t in; double scale; uint16_t out; } rows[] = {
        { "1 x 2", 0x3f80, 2, 0x4000 },
        { "a tie goes to even, down", 0x3f80, 1.00390625, 0x3f80 },       /* 1 + 2^-8: halfway to 0x3f81 */
        { "a tie goes to even, up", 0x3f81, 1.0 + 1.0 / 258, 0x3f82 },    /* 1.0078125 * that: just over halfway */
        { "infinity stays", 0x7f80, 0.5, 0x7f80 },
        { "overflow", 0x7f7f, 2, 0x7f80 },
        { "minus zero", 0x8000, 3, 0x8000 },
    };

    for (size_t i = 0; i < COUNT(rows); i++)
        cr_expect_eq(scaled(rows[i].in, SHM_BF16, rows[i].scale), rows[i].out, "case %s: %04x", rows[i].name,
                     scaled(rows[i].in, SHM_BF16, rows[i].scale));
    uint16_t nan = scaled(0x7fc1, SHM_BF16, 2);
    cr_expect((nan & 0x7f80) == 0x7f80 && (nan & 0x7f) != 0);
}
