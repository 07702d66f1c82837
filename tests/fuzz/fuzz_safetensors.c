/* fuzz_safetensors.c — an image's header. What is accepted must hold what the format promises. */
#include <stdlib.h>
#include <string.h>

#include "checkpoint/safetensors.h"

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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct safetensors s;
    struct error e = ERROR_INIT;
    if (safetensors_parse(data, size, size, &s, &e) == 0) {
        check(&s, size);
        safetensors_release(&s);
    } else if (e.kind == ERROR_NONE || e.text[0] == '\0') {
        abort();
    }
    return 0;
}
