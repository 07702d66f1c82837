#include <criterion/criterion.h>
#include <string.h>

#include "base/mem.h"
#include "checkpoint/volume_s3_parts.h"

static const struct { uint64_t image, part; } PARTS[] = {
    { 1, 8u << 20 }, { 8u << 20, 8u << 20 }, { 1ull << 30, 8u << 20 }, { 80000ull << 20, 8u << 20 }, { (80000ull << 20) + 1, 9u << 20 },
    { 1ull << 40, 105ull << 20 }, { 5ull << 40, 525ull << 20 },
};

Test(volume_s3, no_image_has_more_parts_than_s3_takes)
{
    for (size_t i = 0; i < COUNT(PARTS); i++) {
        uint64_t part = volume_s3_part_bytes(PARTS[i].image);
        cr_expect(part == PARTS[i].part, "case %zu: %llu", i, (unsigned long long)part);
        cr_expect((PARTS[i].image + part - 1) / part <= 10000 && part % (1u << 20) == 0);
    }
}

Test(volume_s3, a_checksum_is_written_as_s3_has_it)
{
    char text[VOLUME_S3_CRC_MAX];
    volume_s3_crc(crc64nvme(0, "123456789", 9), text); /* ae8b14860a799888 */
    cr_expect(strcmp(text, "rosUhgp5mIg=") == 0, "%s", text);
}

static const struct { const char *place, *uid, *name, *says; } PLACES[] = {
    { "s3://b", "u", "s3://b/u", NULL }, { "s3://b/", "u", "s3://b/u", NULL }, { "s3://b/p/q//", "u", "s3://b/p/q/u", NULL },
    { "s3://", "u", NULL, "no name of a bucket" }, { "s3://b//p", "u", NULL, "no empty parts" }, { "s3://b", "../x", NULL, "job UID" },
    { "/ckpt", "u", "/ckpt/u", NULL },
};

Test(volume_s3, a_place_is_a_bucket_and_a_prefix)
{
    for (size_t i = 0; i < COUNT(PLACES); i++) {
        struct volume *v = NULL;
        struct error e = ERROR_INIT;
        cr_expect((volume_open(PLACES[i].place, PLACES[i].uid, NULL, &v, &e) == 0) == (PLACES[i].says == NULL), "case %s: %s", PLACES[i].place, e.text);
        cr_expect(v == NULL || strcmp(v->name, PLACES[i].name) == 0, "case %s: %s", PLACES[i].place, v != NULL ? v->name : "");
        cr_expect(v != NULL || strstr(e.text, PLACES[i].says) != NULL, "case %s: %s", PLACES[i].place, e.text);
        if (v != NULL) {
            auto_free char *uri = volume_uri(v, "d");
            cr_expect(strncmp(uri, PLACES[i].place[0] == '/' ? "file:///" : "s3://b/", 7) == 0, "%s", uri);
        }
        volume_close(v);
    }
}
