#include <criterion/criterion.h>

#include "headers.h"

#define WHOLE "{\"__metadata__\":{\"tensors\":\"t\",\"layout\":\"replicated\"},"

static const char *const SPREAD[] = {
    "{\"__metadata__\":{\"tensors\":\"t\",\"layout\":\"boxes\",\"boxes\":\"{\\\"table\\\":[[0,0],[5,2]]}\"},"
    "\"table\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]},\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[16,19]}}",
    "{\"__metadata__\":{\"tensors\":\"t\",\"layout\":\"boxes\",\"boxes\":\"{\\\"table\\\":[[2,0],[5,2]]}\"},"
    "\"b\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},\"table\":{\"dtype\":\"F32\",\"shape\":[3,2],\"data_offsets\":[8,32]}}",
};

Test(tensors, parts_of_all_images_are_put_together_by_name)
{
    struct error e = ERROR_INIT;
    auto_tensors struct tensors t = { .items = NULL };
    cr_assert(join(SPREAD, (uint64_t[]){ 19, 32 }, 2, &t, &e) == 0, "%s", e.text);
    cr_assert(t.count == 3 && t.world == 2);
    cr_expect(strcmp(t.items[0].name, "a") == 0 && t.items[0].part_count == 1 && t.items[0].bytes == 3 && t.items[0].parts[0].image == 0);
    cr_expect(strcmp(t.items[1].name, "b") == 0 && t.items[1].dims == 0 && t.items[1].bytes == 8 && t.items[1].parts[0].image == 1);
    const struct tensor *table = &t.items[2];
    cr_expect(table->part_count == 2 && table->bytes == 40 && table->shape[0] == 5 && table->shape[1] == 2);
    cr_expect(table->parts[1].box.offset[0] == 2 && table->parts[1].box.shape[0] == 3 && table->parts[1].end - table->parts[1].begin == 24);
    cr_expect(table->parts[1].begin == t.headers[1].header_bytes + 8, "counted from the beginning of the file");
}

static const struct { const char *name, *images[2]; uint64_t bytes[2]; const char *says; } WRONG[] = {
    { "one tensor whole in two images", { WHOLE "\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}",
      WHOLE "\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}" }, { 2, 2 }, "tensor a: parts 0 and 1 overlap" },
    { "another dtype", { WHOLE "\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}",
      WHOLE "\"a\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[0,2]}}" }, { 2, 2 }, "is another one in image 1 than in image 0" },
    { "another state", { WHOLE "\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", "{\"__metadata__\":{\"tensors\":\"u\"}}" }, { 2, 0 },
      "image 1 is of another set of tensors" },
    { "a layout of tomorrow", { "{\"__metadata__\":{\"layout\":\"woven\"}}", "{}" }, { 0, 0 }, "layout \"woven\"" },
    { "boxes that are no JSON", { "{\"__metadata__\":{\"layout\":\"boxes\",\"boxes\":\"[\"}}", "{}" }, { 0, 0 }, "image 0: boxes" },
    { "a box of another rank", { "{\"__metadata__\":{\"layout\":\"boxes\",\"boxes\":\"{\\\"a\\\":[[0],[2]]}\"},\"a\":{\"dtype\":\"U8\",\"shape\":[2,1],"
      "\"data_offsets\":[0,2]}}", "{}" }, { 2, 0 }, "expected [offset, shape of the whole] of 2 numbers" },
    { "a box of negative numbers", { "{\"__metadata__\":{\"layout\":\"boxes\",\"boxes\":\"{\\\"a\\\":[[-1],[2]]}\"},\"a\":{\"dtype\":\"U8\",\"shape\":[2],"
      "\"data_offsets\":[0,2]}}", "{}" }, { 2, 0 }, "numbers" },
    { "a gap", { "{\"__metadata__\":{\"layout\":\"boxes\",\"boxes\":\"{\\\"a\\\":[[0],[9]]}\"},\"a\":{\"dtype\":\"U8\",\"shape\":[2],"
      "\"data_offsets\":[0,2]}}", "{}" }, { 2, 0 }, "tensor a: its parts hold 2 of 9 elements" },
    { "half bytes that are spread", { "{\"__metadata__\":{\"layout\":\"boxes\",\"boxes\":\"{\\\"a\\\":[[0],[4]]}\"},\"a\":{\"dtype\":\"F4\",\"shape\":[4],"
      "\"data_offsets\":[0,2]}}", "{}" }, { 2, 0 }, "of dtype F4 is spread" },
};

Test(tensors, images_that_make_up_no_state_are_refused_in_words)
{
    for (size_t i = 0; i < COUNT(WRONG); i++) {
        struct error e = ERROR_INIT;
        struct tensors t;
        cr_expect(join(WRONG[i].images, WRONG[i].bytes, 2, &t, &e) != 0, "case %s", WRONG[i].name);
        cr_expect(e.kind == ERROR_INVALID && strstr(e.text, WRONG[i].says) != NULL, "case %s: %s", WRONG[i].name, e.text);
    }
}
