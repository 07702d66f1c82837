/*
 * safetensors.h — the header of a safetensors file, read and checked as strictly as the stock reader does. Pure.
 *
 * Format (github.com/huggingface/safetensors): u64 little endian N, N bytes of JSON that begin with '{' and may end in
 * spaces, then the tensors' bytes. Sorted by offset the tensors lie without holes and overlaps and end with the file; each
 * is as long as its shape and dtype say.
 */
#ifndef CHECKPOINT_SAFETENSORS_H
#define CHECKPOINT_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define SAFETENSORS_MAX_HEADER (16u << 20) /* the format's own ceiling is 100,000,000 */
#define SAFETENSORS_MAX_DIMS 32

struct safetensors_tensor {
    const char *name;            /* decoded, NUL-terminated */
    const char *dtype;           /* static: "F32" */
    uint32_t dims;
    uint64_t shape[SAFETENSORS_MAX_DIMS];
    uint64_t begin, end;         /* of the buffer behind the header */
};

struct safetensors_pair { const char *key, *value; };

struct safetensors {
    uint64_t header_bytes;       /* 8 + N: where the buffer begins */
    struct safetensors_tensor *tensors; /* sorted by offset */
    size_t tensor_count;
    struct safetensors_pair *metadata;  /* __metadata__, sorted by key */
    size_t metadata_count;
    char *text;                  /* holds the strings */
};

/* `bytes` are the first `len` bytes of an image of `image_bytes`; the whole header must be among them. safetensors_header_bytes
 * says how many are needed (8 <= len). Tensor data is not looked at. */
MUST_CHECK int safetensors_header_bytes(const void *bytes, size_t len, uint64_t image_bytes, uint64_t *ret_header_bytes, struct error *e);
MUST_CHECK int safetensors_parse(const void *bytes, size_t len, uint64_t image_bytes, struct safetensors *ret_header, struct error *e);
void safetensors_release(struct safetensors *s);
unsigned safetensors_dtype_bits(const char *dtype); /* of an element; 0: there is no such dtype */
const char *safetensors_metadata(const struct safetensors *s, const char *key); /* borrowed; NULL when absent */

#endif
