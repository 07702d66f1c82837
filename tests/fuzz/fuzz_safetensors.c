/* fuzz_safetensors.c — an image's header. What is accepted must hold what the format promises. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "checkpoint/tensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct safetensors *s, size_t size)
{
    uint64_t end = 0;
    for (size_t i = 0; i < s->tensor_count; i++) {
        const struct safetensors_tensor *t = &s->tensors[i];
        if (t->begin != end || t->end < t->begin || t->dims > SAFETENSORS_MAX_DIMS || strlen(t->name) >= size || t->dtype == NULL)
            abort();
        end = t->end;
    }
    if (s->header_bytes + end != size)
        abort();
    for (size_t i = 0; i < s->metadata_count; i++)
        if (safetensors_metadata(s, s->metadata[i].key) != s->metadata[i].value)
            abort();
}

/* As the only image of a step: which part of which tensor it holds. */
static void join(const uint8_t *data, size_t size)
{
    struct error e = ERROR_INIT;
    struct safetensors *headers = xcalloc(1, sizeof(*headers));
    struct tensors t;
    if (safetensors_parse(data, size, size, headers, &e) != 0)
        abort();
    if (tensors_join(headers, 1, &t, &e) != 0)
        return;
    for (size_t i = 0; i < t.count; i++)
        if (t.items[i].part_count != 1 || t.items[i].parts[0].end > size || t.items[i].parts[0].begin > t.items[i].parts[0].end)
            abort();
    tensors_release(&t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct safetensors s;
    struct error e = ERROR_INIT;
    if (safetensors_parse(data, size, size, &s, &e) == 0) {
        check(&s, size);
        safetensors_release(&s);
        join(data, size);
    } else if (e.kind == ERROR_NONE || e.text[0] == '\0') {
        abort();
    }
    return 0;
}
