#include <criterion/criterion.h>

#include "base/json.h"
#include "checkpoint/export.h"
#include "headers.h"

static const char *const IMAGES[] = {
    "{\"m/a\":{\"dtype\":\"F32\",\"shape\":[10],\"data_offsets\":[0,40]},\"m/b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[40,43]}}",
    "{\"m/c\":{\"dtype\":\"F64\",\"shape\":[2],\"data_offsets\":[0,16]},\"o/a\":{\"dtype\":\"I16\",\"shape\":[4,5],\"data_offsets\":[16,56]}}",
};

static struct tensors tensors_of(void)
{
    struct error e = ERROR_INIT;
    struct tensors t;
    cr_assert(join(IMAGES, (uint64_t[]){ 43, 56 }, 2, &t, &e) == 0, "%s", e.text);
    return t;
}

/* Every header is one that the strict reader takes, and every tensor is where the plan says. */
static void check_headers(const struct tensors *t, const struct export_plan *p)
{
    for (size_t f = 0; f < p->file_count; f++) {
        struct error e = ERROR_INIT;
        struct safetensors s;
        cr_assert(safetensors_parse(p->files[f].header, p->files[f].header_bytes, p->files[f].bytes, &s, &e) == 0, "%s: %s", p->files[f].name, e.text);
        cr_expect(s.header_bytes == p->files[f].header_bytes && s.header_bytes % 8 == 0);
        cr_expect(strcmp(safetensors_metadata(&s, "step"), "7") == 0);
        for (size_t k = 0; k < s.tensor_count; k++) {
            bool found = false;
            for (size_t i = 0; i < t->count; i++)
                found = found || (p->places[i].taken && p->places[i].file == f && p->places[i].offset == s.header_bytes + s.tensors[k].begin &&
                                  strcmp(t->items[i].dtype, s.tensors[k].dtype) == 0 && t->items[i].bytes == s.tensors[k].end - s.tensors[k].begin);
            cr_expect(found, "%s", s.tensors[k].name);
            cr_expect((s.header_bytes + s.tensors[k].begin) % (safetensors_dtype_bits(s.tensors[k].dtype) / 8) == 0, "aligned to its elements");
        }
        safetensors_release(&s);
    }
}

static const struct { const char *name; struct export_options o; size_t files, tensors; uint64_t bytes; bool index; } PLANS[] = {
    { "one file", { .file = "x.safetensors", .max_file_bytes = 1, .step = 7 }, 1, 4, 99, false },
    { "what fits in one", { .max_file_bytes = 99, .step = 7 }, 1, 4, 99, false },
    { "a byte less", { .max_file_bytes = 98, .step = 7 }, 2, 4, 99, true },
    { "a tensor is never cut", { .max_file_bytes = 1, .step = 7 }, 4, 4, 99, true },
    { "some", { .max_file_bytes = 1000, .match = "m/*", .strip = "m/", .step = 7 }, 1, 3, 59, false },
};

Test(export, files_are_filled_in_the_order_of_names_and_headers_are_right)
{
    auto_tensors struct tensors t = tensors_of();
    for (size_t i = 0; i < COUNT(PLANS); i++) {
        struct error e = ERROR_INIT;
        auto_export_plan struct export_plan p = { .files = NULL };
        cr_assert(export_plan_make(&t, &PLANS[i].o, &p, &e) == 0, "case %s: %s", PLANS[i].name, e.text);
        cr_expect(p.file_count == PLANS[i].files && p.tensor_count == PLANS[i].tensors && p.bytes == PLANS[i].bytes, "case %s: %zu files, %zu tensors",
                  PLANS[i].name, p.file_count, p.tensor_count);
        cr_expect((p.index != NULL) == PLANS[i].index, "case %s", PLANS[i].name);
        check_headers(&t, &p);
    }
}

Test(export, the_index_names_the_file_of_every_tensor)
{
    struct error e = ERROR_INIT;
    auto_tensors struct tensors t = tensors_of();
    auto_export_plan struct export_plan p = { .files = NULL };
    auto_json cJSON *index = NULL;
    cr_assert(export_plan_make(&t, &(struct export_options){ .max_file_bytes = 43, .step = 7 }, &p, &e) == 0);
    cr_assert(json_parse(p.index, strlen(p.index), &index, &e) == 0, "%s", e.text);
    const cJSON *map = json_at(index, "weight_map");
    cr_expect(cJSON_GetArraySize(map) == 4 && json_int(index, "metadata.total_size", 0) == 99);
    cr_expect(strcmp(cJSON_GetStringValue(cJSON_GetObjectItem(map, "m/b")), "model-00001-of-00003.safetensors") == 0);
    cr_expect(strcmp(cJSON_GetStringValue(cJSON_GetObjectItem(map, "o/a")), "model-00003-of-00003.safetensors") == 0);
}

static const struct { const char *name; struct export_options o; const char *says; } REFUSED[] = {
    { "no such tensor", { .file = "x", .match = "z*" }, "none of the 4 tensors" },
    { "no name left", { .file = "x", .match = "m/a", .strip = "m/a" }, "has no name left" },
};

Test(export, what_cannot_be_named_is_refused)
{
    static const char *const TWINS[] = { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"x/a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}" };
    auto_tensors struct tensors t = tensors_of(), twins = { .items = NULL };
    struct export_plan p;
    struct error e = ERROR_INIT;
    for (size_t i = 0; i < COUNT(REFUSED); i++)
        cr_expect(export_plan_make(&t, &REFUSED[i].o, &p, &e) != 0 && e.kind == ERROR_INVALID && strstr(e.text, REFUSED[i].says) != NULL, "case %s: %s",
                  REFUSED[i].name, e.text);
    cr_assert(join(TWINS, (uint64_t[]){ 2 }, 1, &twins, &e) == 0);
    cr_expect(export_plan_make(&twins, &(struct export_options){ .file = "x", .strip = "x/" }, &p, &e) != 0 && strstr(e.text, "two tensors are called a") != NULL,
              "%s", e.text);
}
