#include "checkpoint/export.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/mem.h"

/* ---- which tensor goes where ------------------------------------------------------------------------------------------ */

struct order { size_t tensor; size_t file; uint64_t element_bytes; const char *name; };

static const char *new_name(const struct tensor *t, const struct export_options *o)
{
    size_t n = o->strip != NULL ? strlen(o->strip) : 0;
    return n > 0 && strncmp(t->name, o->strip, n) == 0 ? t->name + n : t->name;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct order *)a)->name, ((const struct order *)b)->name);
}

/* In a file: wide dtypes first, so that every tensor is aligned to its own elements. */
static int by_place(const void *a, const void *b)
{
    const struct order *x = a, *y = b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    if (x->element_bytes != y->element_bytes)
        return x->element_bytes > y->element_bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int choose(const struct tensors *t, const struct export_options *o, struct order *ret_order, size_t *ret_count, struct error *e)
{
    size_t n = 0;
    for (size_t i = 0; i < t->count; i++)
        if (o->match == NULL || fnmatch(o->match, t->items[i].name, 0) == 0)
            ret_order[n++] = (struct order){ .tensor = i, .name = new_name(&t->items[i], o),
                                             .element_bytes = safetensors_dtype_bits(t->items[i].dtype) / 8 };
    if (n == 0 && o->match != NULL)
        return error_set(e, ERROR_INVALID, "none of the %zu tensors has a name like \"%.100s\"; 'checkpoint show' lists them", t->count, o->match);
    if (n > 1)
        qsort(ret_order, n, sizeof(*ret_order), by_name);
    for (size_t i = 0; i < n; i++) {
        if (ret_order[i].name[0] == '\0' || strcmp(ret_order[i].name, "__metadata__") == 0)
            return error_set(e, ERROR_INVALID, "tensor %.80s has no name left without \"%.80s\"", t->items[ret_order[i].tensor].name, o->strip);
        if (i > 0 && strcmp(ret_order[i - 1].name, ret_order[i].name) == 0)
            return error_set(e, ERROR_INVALID, "two tensors are called %.80s without \"%.80s\"", ret_order[i].name, o->strip);
    }
    *ret_count = n;
    return 0;
}

/* Files are filled in the order of the names, as the hub's own tools do. Returns their number. */
static size_t fill(const struct tensors *t, const struct export_options *o, struct order *order, size_t count)
{
    size_t file = 0;
    uint64_t in_file = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t bytes = t->items[order[i].tensor].bytes;
        if (o->file == NULL && in_file > 0 && in_file + bytes > o->max_file_bytes) {
            file++;
            in_file = 0;
        }
        in_file += bytes;
        order[i].file = file;
    }
    return file + 1;
}

/* ---- headers and index ------------------------------------------------------------------------------------------------ */

static cJSON *tensor_json(const struct tensor *t, uint64_t offset)
{
    cJSON *object = json_object(), *shape = json_array(), *offsets = json_array();
    json_put_text(object, "dtype", t->dtype);
    for (uint32_t d = 0; d < t->dims; d++)
        json_append(shape, cJSON_CreateNumber((double)t->shape[d]));
    json_append(offsets, cJSON_CreateNumber((double)offset));
    json_append(offsets, cJSON_CreateNumber((double)(offset + t->bytes)));
    json_put(object, "shape", shape);
    json_put(object, "data_offsets", offsets);
    return object;
}

/* Length, JSON, and spaces up to a multiple of 8, as the stock writer pads. */
static int encode_header(const cJSON *tree, struct export_file *f, struct error *e)
{
    auto_free char *text = json_print(tree, false);
    size_t n = strlen(text), padded = (n + 7) / 8 * 8;
    if (padded > SAFETENSORS_MAX_HEADER)
        return error_set(e, ERROR_LIMIT, "the header of %s would have %zu bytes, the limit is %u: export fewer tensors (--match)", f->name, padded,
                         SAFETENSORS_MAX_HEADER);
    f->header = xcalloc(1, 8 + padded);
    memset(f->header + 8, ' ', padded);
    memcpy(f->header + 8, text, n);
    for (int i = 0; i < 8; i++)
        f->header[i] = (char)(uint8_t)((uint64_t)padded >> (8 * i));
    f->header_bytes = 8 + padded;
    return 0;
}

static cJSON *metadata(const struct export_options *o)
{
    char step[24];
    cJSON *tree = json_object();
    (void)snprintf(step, sizeof(step), "%" PRId64, o->step);
    json_put_text(tree, "format", "pt"); /* row-major and little-endian; readers insist on one of the format's words */
    json_put_text(tree, "step", step);
    return tree;
}

static int place(const struct tensors *t, const struct export_options *o, const struct order *order, size_t count, struct export_plan *p,
                 struct error *e)
{
    for (size_t i = 0, file = 0; file < p->file_count; file++) {
        auto_json cJSON *tree = json_object();
        uint64_t offset = 0;
        json_put(tree, "__metadata__", metadata(o));
        for (; i < count && order[i].file == file; i++) {
            const struct tensor *tensor = &t->items[order[i].tensor];
            json_put(tree, order[i].name, tensor_json(tensor, offset));
            p->places[order[i].tensor] = (struct export_place){ .file = file, .offset = offset, .taken = true };
            offset += tensor->bytes;
        }
        if (encode_header(tree, &p->files[file], e) != 0)
            return -1;
        p->files[file].bytes = p->files[file].header_bytes + offset;
        p->bytes += offset;
    }
    for (size_t i = 0; i < count; i++)
        p->places[order[i].tensor].offset += p->files[order[i].file].header_bytes;
    return 0;
}

static char *index_text(const struct export_plan *p, const struct order *order, size_t count)
{
    auto_json cJSON *tree = json_object();
    cJSON *about = json_object(), *map = json_object();
    json_put_double(about, "total_size", (double)p->bytes);
    for (size_t i = 0; i < count; i++)
        json_put_text(map, order[i].name, p->files[order[i].file].name);
    json_put(tree, "metadata", about);
    json_put(tree, "weight_map", map);
    return json_print(tree, true);
}

int export_plan_make(const struct tensors *t, const struct export_options *o, struct export_plan *ret_plan, struct error *e)
{
    auto_export_plan struct export_plan p = { .places = xcalloc(t->count + 1, sizeof(*p.places)) };
    auto_free struct order *order = xcalloc(t->count + 1, sizeof(*order));
    if (choose(t, o, order, &p.tensor_count, e) != 0)
        return -1;
    p.file_count = fill(t, o, order, p.tensor_count);
    if (p.tensor_count > 1)
        qsort(order, p.tensor_count, sizeof(*order), by_place);
    p.files = xcalloc(p.file_count, sizeof(*p.files));
    for (size_t i = 0; i < p.file_count; i++)
        p.files[i].name = o->file != NULL ? xstrdup(o->file) : p.file_count == 1 ? xstrdup("model.safetensors")
                        : xasprintf("model-%05zu-of-%05zu.safetensors", i + 1, p.file_count);
    if (place(t, o, order, p.tensor_count, &p, e) != 0)
        return -1;
    if (o->file == NULL && p.file_count > 1)
        p.index = index_text(&p, order, p.tensor_count);
    *ret_plan = p;
    p = (struct export_plan){ .files = NULL };
    return 0;
}

void export_plan_release(struct export_plan *p)
{
    for (size_t i = 0; p->files != NULL && i < p->file_count; i++) {
        free(p->files[i].name);
        free(p->files[i].header);
    }
    free(p->files);
    free(p->places);
    free(p->index);
    *p = (struct export_plan){ .files = NULL };
}
