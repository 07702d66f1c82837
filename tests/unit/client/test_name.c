#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "client/c/src/name.h"

Test(name, short_names_stay)
{
    char name[SHM_NAME_MAX];

    name_short(name, "layer1/kernel");
    cr_expect_str_eq(name, "layer1/kernel");
    for (size_t i = strlen(name); i < sizeof(name); i++)
        cr_expect_eq(name[i], 0, "nothing of other memory travels with it");
}

Test(name, long_names_are_cut_alike_and_kept_apart)
{
    char a[200], b[200], short_a[SHM_NAME_MAX], short_b[SHM_NAME_MAX], again[SHM_NAME_MAX];
    size_t most = SHM_NAME_MAX - 1 - NAME_PIECE_ROOM;

    memset(a, 'x', sizeof(a));
    a[most] = '\0';
    name_short(short_a, a);
    cr_expect_str_eq(short_a, a, "what just fits stays");

    a[most] = 'y';
    a[sizeof(a) - 1] = '\0';
    memcpy(b, a, sizeof(b));
    b[sizeof(b) - 2] = 'z';
    name_short(short_a, a);
    name_short(short_b, b);
    name_short(again, a);
    cr_expect_eq(strlen(short_a), most);
    cr_expect_str_eq(short_a, again);
    cr_expect_str_neq(short_a, short_b);
}

Test(name, pieces_have_names_of_their_own_that_fit)
{
    char a[200], name[SHM_NAME_MAX], piece[SHM_NAME_MAX];

    name_piece(piece, "t", 12);
    cr_expect_str_eq(piece, "t#12");
    memset(a, 'x', sizeof(a));
    a[sizeof(a) - 1] = '\0';
    name_short(name, a);
    name_piece(piece, name, 9999999);
    cr_expect(strlen(piece) < SHM_NAME_MAX && strcmp(piece + strlen(piece) - 8, "#9999999") == 0, "%s", piece);
}
