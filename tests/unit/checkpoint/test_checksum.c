#include <criterion/criterion.h>
#include <stdlib.h>

#include "base/crc.h"
#include "base/mem.h"
#include "checkpoint/checksum.h"

#define BYTES (2u * CHECKSUM_CHUNK_BYTES + 12345u)

Test(checksum, is_the_same_however_the_bytes_come)
{
    static const size_t PIECES[] = { 1u << 20, 4095, 65537, CHECKSUM_CHUNK_BYTES, CHECKSUM_CHUNK_BYTES + 1, BYTES };
    auto_free uint8_t *bytes = xcalloc(1, BYTES);
    for (size_t i = 0; i < BYTES; i++)
        bytes[i] = (uint8_t)(i * 2654435761u >> 13);
    for (size_t p = 0; p < COUNT(PIECES); p++) {
        auto_checksum struct checksum sum = CHECKSUM_INIT;
        for (size_t at = 0; at < BYTES; at += PIECES[p])
            checksum_add(&sum, bytes + at, BYTES - at < PIECES[p] ? BYTES - at : PIECES[p]);
        cr_assert(sum.chunk_count == 3 && sum.bytes == BYTES, "pieces of %zu", PIECES[p]);
        cr_expect(sum.crc64nvme == crc64nvme_portable(0, bytes, BYTES), "pieces of %zu", PIECES[p]);
        for (size_t i = 0; i < 3; i++)
            cr_expect(sum.chunks[i] == crc32c_portable(0, bytes + i * CHECKSUM_CHUNK_BYTES, i < 2 ? CHECKSUM_CHUNK_BYTES : 12345u),
                      "pieces of %zu, chunk %zu", PIECES[p], i);
    }
}

Test(checksum, has_no_chunk_for_nothing_and_one_for_a_full_one)
{
    auto_checksum struct checksum sum = CHECKSUM_INIT;
    checksum_add(&sum, "", 0);
    cr_expect(sum.chunk_count == 0 && sum.crc64nvme == 0);
    auto_free uint8_t *bytes = xcalloc(1, CHECKSUM_CHUNK_BYTES);
    checksum_add(&sum, bytes, CHECKSUM_CHUNK_BYTES);
    cr_expect(sum.chunk_count == 1);
}
