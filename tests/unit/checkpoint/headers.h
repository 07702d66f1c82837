/*
 * headers.h — headers of images from JSON, for tests of what is put together from them.
 */
#ifndef TEST_CHECKPOINT_HEADERS_H
#define TEST_CHECKPOINT_HEADERS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "checkpoint/tensors.h"

/* A header whose tensors need `data_bytes`; aborts when it is none. */
static inline struct safetensors header_of(const char *json, uint64_t data_bytes)
{
    struct error e = ERROR_INIT;
    struct safetensors s;
    size_t n = strlen(json);
    auto_free uint8_t *bytes = xcalloc(1, n + 8);
    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)((uint64_t)n >> (8 * i));
    memcpy(bytes + 8, json, n);
    if (safetensors_parse(bytes, n + 8, n + 8 + data_bytes, &s, &e) != 0) {
        fprintf(stderr, "%s\n", e.text);
        abort();
    }
    return s;
}

static inline int join(const char *const *jsons, const uint64_t *data_bytes, int32_t world, struct tensors *ret_tensors, struct error *e)
{
    struct safetensors *headers = xcalloc((size_t)world, sizeof(*headers));
    for (int32_t i = 0; i < world; i++)
        headers[i] = header_of(jsons[i], data_bytes[i]);
    return tensors_join(headers, world, ret_tensors, e);
}

#endif
