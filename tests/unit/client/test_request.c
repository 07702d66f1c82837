#include <criterion/criterion.h>
#include <stdint.h>
#include <string.h>

#include "base/mem.h"
#include "client/c/src/request.h"

#define KIB (1ull << 10)
#define MIB (1ull << 20)
#define GIB (1ull << 30)

Test(request, areas_share_the_arena_by_its_size_and_the_jobs)
{
    static const struct { uint64_t arena; uint32_t size; uint64_t small_max, piece_max; } rows[] = {
        { 64 * KIB, 2, 4096, 4096 }, { 1 * MIB, 2, 4096, 32 * KIB }, { 64 * MIB, 2, 32 * KIB, 1 * MIB },
        { 64 * MIB, 8, 32 * KIB, 2 * MIB }, { 512 * MIB, 2, 256 * KIB, 1 * MIB }, { 512 * MIB, 4, 256 * KIB, 2 * MIB },
        { 512 * MIB, 8, 256 * KIB, 4 * MIB }, { 512 * MIB, 1000, 256 * KIB, 4 * MIB }, { 64 * GIB, 3, 256 * KIB, 1536 * KIB },
        { 200 * MIB + 17, 8, 64 * KIB, 4 * MIB }, { 512 * MIB, UINT32_MAX, 256 * KIB, 4 * MIB },
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct areas a = request_areas(rows[i].arena, rows[i].size);
        cr_expect_eq(a.small_max, rows[i].small_max, "case %zu: %llu", i, (unsigned long long)a.small_max);
        cr_expect_eq(a.piece_max, rows[i].piece_max, "case %zu: %llu", i, (unsigned long long)a.piece_max);
        cr_expect(a.small_bytes + a.large_bytes <= rows[i].arena && a.small_bytes % 64 == 0 && a.large_bytes % 64 == 0, "case %zu", i);
        cr_expect(a.piece_max <= a.large_bytes && a.small_max * 8 <= a.small_bytes, "case %zu", i);
    }
}

/* Every cut: it covers the data, pieces are aligned, none is empty or larger than the arena takes. */
static void expect_cut(uint64_t bytes, const struct areas *a)
{
    struct split s = request_split(bytes, a);
    uint64_t covered = s.first;

    cr_assert(s.pieces >= 1);
    if (s.pieces == 1) {
        cr_assert(s.first == bytes && bytes <= a->small_max, "%llu", (unsigned long long)bytes);
        return;
    }
    cr_assert(s.first > 0 && s.first <= a->small_max && s.first % 64 == 0 && s.other % 64 == 0 && s.other <= a->piece_max,
              "%llu: first %llu, other %llu", (unsigned long long)bytes, (unsigned long long)s.first, (unsigned long long)s.other);
    covered += (s.pieces - 2) * s.other;
    cr_assert(covered < bytes && bytes - covered <= s.other, "%llu in %u", (unsigned long long)bytes, s.pieces);
}

Test(request, cuts_cover_the_data)
{
    static const uint64_t arenas[] = { 256 * KIB, 1 * MIB, 64 * MIB, 1 * GIB };

    for (size_t i = 0; i < COUNT(arenas); i++) {
        struct areas a = request_areas(arenas[i], 8);
        for (uint64_t n = 1; n < 70; n++)
            for (uint64_t around = 0; around <= 130; around++) {
                expect_cut(n * a.piece_max + around * 4 - 256, &a);
                expect_cut(a.small_max + n * 64 + around, &a);
                expect_cut(a.small_max - around, &a);
            }
    }
}

/* Ranks with tensors of other sizes: the same first piece means the same number of pieces. */
Test(request, the_first_piece_tells_how_many_there_are)
{
    struct areas a = request_areas(64 * MIB, 8);
    uint64_t marks = a.small_max / 64 - 1;
    uint32_t pieces_of[512] = { 0 };

    for (uint64_t bytes = a.small_max + 1; bytes < marks * a.piece_max; bytes += 9973 * 64 + 4) {
        struct split s = request_split(bytes, &a);
        cr_assert(s.first / 64 < COUNT(pieces_of));
        uint32_t *seen = &pieces_of[s.first / 64];
        cr_assert(*seen == 0 || *seen == s.pieces, "%llu bytes: %u and %u pieces", (unsigned long long)bytes, *seen, s.pieces);
        *seen = s.pieces;
    }
}
