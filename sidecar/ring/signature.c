#include "sidecar/ring/signature.h"

#include <stdio.h>
#include <string.h>

static uint64_t hash_numbers(const uint64_t *numbers, size_t count)
{
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a, number by number */

    for (size_t i = 0; i < count; i++)
        hash = (hash ^ numbers[i]) * 0x100000001b3u;
    return hash;
}

static void set_to_add(struct signature *s, const struct shm_request *r, const uint64_t *splits)
{
    size_t len = 0;

    s->count = r->splits;
    s->shape_hash = hash_numbers(splits, r->splits);
    for (uint32_t i = 0; i < r->splits && len + 20 < sizeof s->shape; i++)
        len += (size_t)snprintf(s->shape + len, sizeof s->shape - len, "%s%llu", i == 0 ? "{" : ", ", (unsigned long long)splits[i]);
    (void)snprintf(s->shape + len, sizeof s->shape - len, len + 20 < sizeof s->shape ? "}" : ", ...}");
}

struct signature signature_of(const struct shm_request *r, const uint64_t *splits)
{
    struct signature s = { .op = (uint8_t)r->op };

    switch (r->op) {
    case SHM_OP_BARRIER: case SHM_OP_JOIN:
        return s;
    case SHM_OP_SET_ADD:
        set_to_add(&s, r, splits);
        return s;
    case SHM_OP_SET_REMOVE:
        s.count = r->count;
        return s;
    case SHM_OP_ALLREDUCE: case SHM_OP_REDUCESCATTER:
        s.redop = (uint8_t)r->redop;
        s.wire = r->wire > SHM_WIRE_PLAIN ? (uint8_t)r->wire : 0;
        s.prescale = r->prescale;
        s.postscale = r->postscale;
        break;
    case SHM_OP_BROADCAST:
        s.root = r->root;
        break;
    default:
        s.row_elements = r->row_elements;
    }
    s.dtype = (uint8_t)r->dtype;
    s.count = r->count;
    s.shape_hash = r->shape_hash;
    memcpy(s.shape, r->shape, sizeof s.shape);
    if (r->op == SHM_OP_REDUCESCATTER)
        s.shape_hash ^= hash_numbers(splits, r->splits); /* who gets what is a part of what they agree on */
    return s;
}

/* By bits: a NaN that all ranks sent is agreement. */
static bool same_double(double a, double b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

static bool same_arithmetic(const struct signature *a, const struct signature *b)
{
    return a->op == b->op && a->dtype == b->dtype && a->redop == b->redop && a->wire == b->wire && same_double(a->prescale, b->prescale) &&
           same_double(a->postscale, b->postscale);
}

/* int8 has a scale for so many elements that lie side by side: what a tensor is packed with would show in its result. */
bool signature_can_fuse(const struct signature *a, const struct signature *b)
{
    return same_arithmetic(a, b) && a->wire != SHM_WIRE_I8;
}

bool signature_count_is_free(const struct signature *s)
{
    return s->op == SHM_OP_ALLGATHER || s->op == SHM_OP_ALLTOALL;
}

bool signature_equal(const struct signature *a, const struct signature *b)
{
    return same_arithmetic(a, b) && a->root == b->root && a->row_elements == b->row_elements &&
           a->shape_hash == b->shape_hash && (a->count == b->count || signature_count_is_free(a));
}

/* "float32 [2, 5]"; of what came without a shape: "10 x float32" */
static void elements_text(const struct signature *s, char ret_text[SIGNATURE_TEXT_MAX])
{
    unsigned long long count = signature_count_is_free(s) ? s->row_elements : s->count;

    if (s->shape[0] != '\0')
        (void)snprintf(ret_text, SIGNATURE_TEXT_MAX, "%s %s", shm_dtype_name(s->dtype), s->shape);
    else if (signature_count_is_free(s))
        (void)snprintf(ret_text, SIGNATURE_TEXT_MAX, "rows of %llu x %s", count, shm_dtype_name(s->dtype));
    else
        (void)snprintf(ret_text, SIGNATURE_TEXT_MAX, "%llu x %s", count, shm_dtype_name(s->dtype));
}

const char *signature_text(const struct signature *s, char ret_text[SIGNATURE_TEXT_MAX])
{
    char elements[SIGNATURE_TEXT_MAX], scaled[96] = "";
    size_t len = 0;

    elements_text(s, elements);
    switch (s->op) {
    case SHM_OP_ALLREDUCE: case SHM_OP_REDUCESCATTER:
        if (s->prescale != 1.0 || s->postscale != 1.0)
            len = (size_t)snprintf(scaled, sizeof scaled, ", scaled by %g and %g", s->prescale, s->postscale);
        if (s->wire > SHM_WIRE_PLAIN)
            (void)snprintf(scaled + len, sizeof scaled - len, ", %s on the wire", shm_wire_name(s->wire));
        (void)snprintf(ret_text, SIGNATURE_TEXT_MAX, "%s %s of %.100s%s", shm_op_name(s->op), shm_redop_name(s->redop), elements,
                       scaled);
        break;
    case SHM_OP_ALLGATHER: case SHM_OP_ALLTOALL:
        (void)snprintf(ret_text, SIGNATURE_TEXT_MAX, "%s of %.120s", shm_op_name(s->op), elements);
        break;
    case SHM_OP_BROADCAST:
        (void)snprintf(ret_text, SIGNATURE_TEXT_MAX, "broadcast of %.120s from rank %d", elements, s->root);
        break;
    case SHM_OP_SET_ADD:
        (void)snprintf(ret_text, SIGNATURE_TEXT_MAX, "process set %s", s->shape);
        break;
    case SHM_OP_SET_REMOVE:
        (void)snprintf(ret_text, SIGNATURE_TEXT_MAX, "process set %llu", (unsigned long long)s->count);
        break;
    default:
        (void)snprintf(ret_text, SIGNATURE_TEXT_MAX, "%s", shm_op_name(s->op));
    }
    return ret_text;
}

bool signature_travels_along(const struct signature *s, int32_t set_size)
{
    return s->op == SHM_OP_ALLREDUCE && s->redop != SHM_ADASUM && s->count > 0 && set_size > 1 &&
           s->count <= SIGNATURE_ALONG_BYTES / shm_dtype_size(s->dtype) / ((uint64_t)set_size - 1);
}

static bool reduction_is_sound(const struct signature *s)
{
    bool is_float = shm_dtype_is_float(s->dtype);

    if (s->redop < SHM_SUM || s->redop > SHM_ADASUM || s->dtype == SHM_U16 || s->dtype == SHM_I16)
        return false;
    if (s->redop == SHM_ADASUM)
        return is_float && s->op == SHM_OP_ALLREDUCE;
    return s->dtype != SHM_BOOL || ((s->redop == SHM_MIN || s->redop == SHM_MAX) && s->prescale == 1.0 && s->postscale == 1.0);
}

bool signature_is_sound(const struct signature *s)
{
    uint64_t bytes;

    if (s->wire == SHM_WIRE_PLAIN || !shm_wire_fits(s->wire, s->op, s->dtype, s->redop))
        return false;
    switch (s->op) {
    case SHM_OP_BARRIER: case SHM_OP_JOIN:
        return s->dtype == 0 && s->count == 0;
    case SHM_OP_SET_ADD:
        return s->dtype == 0 && s->count > 0 && s->count <= SHM_RANKS_MAX;
    case SHM_OP_SET_REMOVE:
        return s->dtype == 0 && s->count <= UINT32_MAX;
    case SHM_OP_ALLREDUCE: case SHM_OP_ALLGATHER: case SHM_OP_BROADCAST: case SHM_OP_REDUCESCATTER: case SHM_OP_ALLTOALL:
        break;
    default:
        return false;
    }
    if (shm_dtype_size(s->dtype) == 0 || __builtin_mul_overflow(s->count, shm_dtype_size(s->dtype), &bytes) || bytes > INT64_MAX)
        return false;
    if (s->op == SHM_OP_BROADCAST)
        return s->root >= 0;
    if (signature_count_is_free(s))
        return s->row_elements == 0 ? s->count == 0 : s->count % s->row_elements == 0;
    return reduction_is_sound(s);
}
