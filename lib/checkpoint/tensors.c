#include "checkpoint/tensors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc.h"
#include "base/json.h"
#include "base/mem.h"

void tensors_release(struct tensors *t)
{
    for (size_t i = 0; i < t->count; i++)
        free(t->items[i].parts);
    for (int32_t i = 0; t->headers != NULL && i < t->world; i++)
        safetensors_release(&t->headers[i]);
    free(t->items);
    free(t->headers);
    *t = (struct tensors){ .items = NULL };
}

static int numbers(const cJSON *array, uint32_t dims, uint64_t *ret_numbers)
{
    if (!cJSON_IsArray(array) || cJSON_GetArraySize(array) != (int)dims)
        return -1;
    uint32_t d = 0;
    for (const cJSON *item = array->child; item != NULL; item = item->next, d++) {
        if (!cJSON_IsNumber(item) || item->valuedouble < 0 || item->valuedouble > 9007199254740992.0)
            return -1;
        ret_numbers[d] = (uint64_t)item->valuedouble;
    }
    return 0;
}

/* What one image has of a tensor. shape: of the whole. */
static int entry_of(const struct safetensors *header, int32_t image, const cJSON *boxes, const struct safetensors_tensor *t,
                    struct tensor *ret_tensor, struct tensor_part *ret_part, struct error *e)
{
    *ret_part = (struct tensor_part){ .image = image, .begin = header->header_bytes + t->begin, .end = header->header_bytes + t->end };
    *ret_tensor = (struct tensor){ .name = t->name, .dtype = t->dtype, .dims = t->dims };
    memcpy(ret_part->box.shape, t->shape, sizeof(t->shape));
    memcpy(ret_tensor->shape, t->shape, sizeof(t->shape));
    const cJSON *box = cJSON_GetObjectItemCaseSensitive(boxes, t->name);
    if (box != NULL && (!cJSON_IsArray(box) || cJSON_GetArraySize(box) != 2 || numbers(box->child, t->dims, ret_part->box.offset) != 0 ||
                        numbers(box->child->next, t->dims, ret_tensor->shape) != 0))
        return error_set(e, ERROR_INVALID, "image %" PRId32 ": boxes: expected [offset, shape of the whole] of %" PRIu32 " numbers each for tensor "
                         "%.80s", image, t->dims, t->name);
    uint64_t bits = safetensors_dtype_bits(t->dtype);
    for (uint32_t d = 0; d < t->dims; d++)
        if (__builtin_mul_overflow(bits, ret_tensor->shape[d], &bits))
            return error_set(e, ERROR_INVALID, "image %" PRId32 ": tensor %.80s has a shape that does not fit 64 bits", image, t->name);
    if (box != NULL && safetensors_dtype_bits(t->dtype) % 8 != 0)
        return error_set(e, ERROR_INVALID, "image %" PRId32 ": tensor %.80s of dtype %s is spread over images", image, t->name, t->dtype);
    ret_tensor->bytes = bits / 8;
    return 0;
}

struct entry { struct tensor tensor; struct tensor_part part; };
struct entries { struct entry *items; size_t count, cap; };

static int by_name(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    int order = strcmp(x->tensor.name, y->tensor.name);
    return order != 0 ? order : (x->part.image > y->part.image) - (x->part.image < y->part.image);
}

static int take_image(const struct safetensors *header, int32_t image, struct entries *all, struct error *e)
{
    auto_json cJSON *boxes = NULL;
    const char *layout = safetensors_metadata(header, "layout"), *text = safetensors_metadata(header, "boxes");
    if (layout != NULL && strcmp(layout, "replicated") != 0 && strcmp(layout, "boxes") != 0)
        return error_set(e, ERROR_INVALID, "image %" PRId32 ": layout \"%.40s\" is not one that this release knows", image, layout);
    if (text != NULL && json_parse(text, strlen(text), &boxes, e) != 0)
        return error_wrap(e, "image %" PRId32 ": boxes", image);
    for (size_t i = 0; i < header->tensor_count; i++) {
        if (all->count == all->cap) {
            all->cap = all->cap > 0 ? all->cap * 2 : 64;
            all->items = xrealloc(all->items, all->cap, sizeof(*all->items));
        }
        struct entry *entry = &all->items[all->count++];
        if (entry_of(header, image, boxes, &header->tensors[i], &entry->tensor, &entry->part, e) != 0)
            return -1;
    }
    return 0;
}

static int check_tensor(const struct tensor *t, struct error *e)
{
    auto_free struct box *boxes = xcalloc(t->part_count, sizeof(*boxes));
    for (size_t i = 0; i < t->part_count; i++)
        boxes[i] = t->parts[i].box;
    if (box_check_cover(t->shape, t->dims, boxes, t->part_count, e) != 0)
        return error_wrap(e, "tensor %.80s", t->name);
    return 0;
}

/* Entries of one name become one tensor. */
static int group(const struct entries *all, struct tensors *t, struct error *e)
{
    t->items = xcalloc(all->count + 1, sizeof(*t->items));
    for (size_t i = 0, n; i < all->count; i += n) {
        const struct tensor *first = &all->items[i].tensor;
        for (n = 1; i + n < all->count && strcmp(all->items[i + n].tensor.name, first->name) == 0; n++) {
            const struct tensor *other = &all->items[i + n].tensor;
            if (strcmp(other->dtype, first->dtype) != 0 || other->dims != first->dims ||
                memcmp(other->shape, first->shape, sizeof(first->shape)) != 0)
                return error_set(e, ERROR_INVALID, "tensor %.80s is another one in image %" PRId32 " than in image %" PRId32 ": dtype or shape differ",
                                 first->name, all->items[i + n].part.image, all->items[i].part.image);
        }
        struct tensor *tensor = &t->items[t->count++];
        *tensor = *first;
        tensor->parts = xcalloc(n, sizeof(*tensor->parts));
        tensor->part_count = n;
        for (size_t k = 0; k < n; k++)
            tensor->parts[k] = all->items[i + k].part;
        if (check_tensor(tensor, e) != 0)
            return -1;
    }
    return 0;
}

static int check_digests(const struct safetensors *headers, int32_t world, struct error *e)
{
    const char *first = safetensors_metadata(&headers[0], "tensors");
    for (int32_t i = 1; first != NULL && i < world; i++) {
        const char *other = safetensors_metadata(&headers[i], "tensors");
        if (other == NULL || strcmp(first, other) != 0)
            return error_set(e, ERROR_INVALID, "image %" PRId32 " is of another set of tensors than image 0", i);
    }
    return 0;
}

int tensors_join(struct safetensors *headers, int32_t world, struct tensors *ret_tensors, struct error *e)
{
    auto_tensors struct tensors t = { .headers = headers, .world = world };
    struct entries all = { .items = NULL };
    int result = check_digests(headers, world, e);
    for (int32_t i = 0; result == 0 && i < world; i++)
        result = take_image(&headers[i], i, &all, e);
    if (result == 0 && all.count > 1)
        qsort(all.items, all.count, sizeof(*all.items), by_name);
    if (result == 0)
        result = group(&all, &t, e);
    free(all.items);
    if (result != 0)
        return -1;
    *ret_tensors = t;
    t = (struct tensors){ .items = NULL };
    return 0;
}

static int read_header(const struct store *s, const struct step_key *key, int32_t image, const struct manifest_entry *entry,
                       struct safetensors *ret_header, struct error *e)
{
    char name[LAYOUT_NAME_MAX];
    layout_shard(image, name);
    auto_free char *path = store_path(&key->generation, name);
    auto_free uint8_t *bytes = xcalloc(1, entry->header_bytes);
    if (s->volume->ops->read_range(s->volume, path, 0, bytes, entry->header_bytes, e) != 0)
        return -1;
    uint32_t crc = crc32c(0, bytes, entry->header_bytes);
    if (crc != entry->header_crc32c)
        return error_set(e, ERROR_INVALID, "%s/%s is damaged in its header: crc32c %08" PRIx32 ", written was %08" PRIx32, s->volume->name, path,
                         crc, entry->header_crc32c);
    if (safetensors_parse(bytes, entry->header_bytes, entry->bytes, ret_header, e) != 0)
        return error_wrap(e, "%s/%s", s->volume->name, path);
    return 0;
}

int tensors_read(const struct store *s, const struct step_key *key, const struct manifest_entry *entries, struct tensors *ret_tensors,
                 struct error *e)
{
    struct safetensors *headers = xcalloc((size_t)key->world, sizeof(*headers));
    for (int32_t i = 0; i < key->world; i++)
        if (read_header(s, key, i, &entries[i], &headers[i], e) != 0) {
            struct tensors partial = { .headers = headers, .world = key->world };
            tensors_release(&partial);
            return -1;
        }
    if (tensors_join(headers, key->world, ret_tensors, e) != 0) {
        char name[LAYOUT_NAME_MAX];
        layout_generation(&key->generation, name);
        return error_wrap(e, "%s", name);
    }
    return 0;
}
