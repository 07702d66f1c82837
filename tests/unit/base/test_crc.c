#include <criterion/criterion.h>
#include <string.h>

#include "base/crc.h"

static const struct {
    const char *name, *text;
    uint32_t crc32c;
    uint64_t crc64;
} KNOWN[] = {
    { "nothing", "", 0, 0 },
    { "the catalogue's check string", "123456789", 0xe3069283u, 0xae8b14860a799888u },
};

/* RFC 3720, appendix B.4; NVM Command Set 1.0, figure "64b CRC test cases" (4096 bytes). */
Test(crc, gives_the_values_of_the_standards)
{
    for (size_t i = 0; i < sizeof(KNOWN) / sizeof(KNOWN[0]); i++) {
        size_t len = strlen(KNOWN[i].text);
        cr_expect(crc32c(0, KNOWN[i].text, len) == KNOWN[i].crc32c, "crc32c of %s: %x", KNOWN[i].name, crc32c(0, KNOWN[i].text, len));
        cr_expect(crc64nvme(0, KNOWN[i].text, len) == KNOWN[i].crc64, "crc64nvme of %s: %lx", KNOWN[i].name,
                  crc64nvme(0, KNOWN[i].text, len));
    }
    uint8_t block[4096];
    memset(block, 0, sizeof(block));
    cr_expect(crc32c(0, block, 32) == 0x8a9136aau);
    cr_expect(crc64nvme(0, block, 4096) == 0x6482d367eb22b64eu, "%lx", crc64nvme(0, block, 4096));
    memset(block, 0xff, sizeof(block));
    cr_expect(crc32c(0, block, 32) == 0x62a8ab43u);
    cr_expect(crc64nvme(0, block, 4096) == 0xc0ddba7302eca3acu, "%lx", crc64nvme(0, block, 4096));
    for (int i = 0; i < 32; i++)
        block[i] = (uint8_t)i;
    cr_expect(crc32c(0, block, 32) == 0x46dd794eu);
    for (int i = 0; i < 32; i++)
        block[i] = (uint8_t)(31 - i);
    cr_expect(crc32c(0, block, 32) == 0x113fdb5cu);
    for (int i = 0; i < 4096; i++)
        block[i] = (uint8_t)i;
    cr_expect(crc64nvme(0, block, 4096) == 0x3e729f5f6750449cu, "%lx", crc64nvme(0, block, 4096));
}

Test(crc, hardware_and_portable_paths_agree_at_every_length_and_alignment)
{
    uint8_t bytes[700];
    uint32_t seed = 12345;
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)((seed = seed * 1664525u + 1013904223u) >> 24);
    for (size_t start = 0; start < 9; start++)
        for (size_t len = 0; start + len <= sizeof(bytes); len++) {
            uint32_t from = (uint32_t)(len * 2654435761u);
            cr_assert(crc32c(from, bytes + start, len) == crc32c_portable(from, bytes + start, len), "crc32c %zu+%zu", start, len);
            uint64_t from64 = from * 0x9e3779b97f4a7c15u;
            cr_assert(crc64nvme(from64, bytes + start, len) == crc64nvme_portable(from64, bytes + start, len), "crc64 %zu+%zu",
                      start, len);
        }
}

Test(crc, pieces_chain)
{
    uint8_t bytes[1000];
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)(i * 31 + 7);
    uint32_t whole32 = crc32c(0, bytes, sizeof(bytes));
    uint64_t whole64 = crc64nvme(0, bytes, sizeof(bytes));
    for (size_t cut = 0; cut <= sizeof(bytes); cut++) {
        cr_expect(crc32c(crc32c(0, bytes, cut), bytes + cut, sizeof(bytes) - cut) == whole32, "cut at %zu", cut);
        cr_expect(crc64nvme(crc64nvme(0, bytes, cut), bytes + cut, sizeof(bytes) - cut) == whole64, "cut at %zu", cut);
    }
}
