/*
 * shape.c — what a collective of the public API means for the engine: elements, rows, splits, the hash of the shapes that ranks have
 * to agree on. Pure.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "submit.h"

#define NDIM_MAX 64
#define BYTES_MAX (UINT64_MAX / 4)

static const char *what(int kind)
{
    static const char *const names[] = {
        [RM_ALLREDUCE] = "all-reduce", [RM_ALLGATHER] = "all-gather",         [RM_BROADCAST] = "broadcast",
        [RM_BARRIER] = "barrier",      [RM_REDUCESCATTER] = "reduce-scatter", [RM_ALLTOALL] = "all-to-all",
        [RM_JOIN] = "join",            [5] = NULL,
    };
    return kind >= RM_ALLREDUCE && kind <= RM_JOIN ? names[kind] : NULL;
}

/* A tensor as the engine sees it. */
struct measure { uint64_t elements, bytes, rows, row_elements; };

/* in, out: the buffers that it must have, if it has elements. */
static int measure(const struct rm_collective *c, const struct rm_tensor *t, bool in, bool out, struct measure *ret)
{
    const char *op = what(c->kind);
    *ret = (struct measure){ .rows = 1, .row_elements = 1 };
    if (t->dtype < RM_U8 || t->dtype > RM_I16)
        return text_fail(RM_INVALID, "%s \"%s\": %d is no dtype", op, c->name, t->dtype);
    if (t->ndim < 0 || t->ndim > NDIM_MAX || (t->ndim > 0 && t->shape == NULL))
        return text_fail(RM_INVALID, "%s \"%s\": a shape of %d dimensions; 0 to %d are possible", op, c->name, t->ndim, NDIM_MAX);
    bool too_large = false, empty = false;
    for (int i = 0; i < t->ndim; i++) {
        if (t->shape[i] < 0)
            return text_fail(RM_INVALID, "%s \"%s\": dimension %d is %lld", op, c->name, i, (long long)t->shape[i]);
        empty |= t->shape[i] == 0;
        uint64_t *product = i == 0 ? &ret->rows : &ret->row_elements;
        too_large |= __builtin_mul_overflow(*product, (uint64_t)t->shape[i], product);
    }
    ret->elements = empty ? 0 : ret->rows * ret->row_elements;
    too_large = !empty && (too_large || __builtin_mul_overflow(ret->rows, ret->row_elements, &ret->elements));
    if (too_large || __builtin_mul_overflow(ret->elements, shm_dtype_size((unsigned)t->dtype), &ret->bytes) || ret->bytes > BYTES_MAX)
        return text_fail(RM_INVALID, "%s \"%s\": %llu rows of %llu elements are more than memory can be", op, c->name,
                         (unsigned long long)ret->rows, (unsigned long long)ret->row_elements);
    if (ret->bytes > 0 && ((in && t->in == NULL) || (out && t->out == NULL)))
        return text_fail(RM_INVALID, "%s \"%s\": no buffer", op, c->name);
    return RM_OK;
}

/* ---- shapes ---- */

static uint64_t mix(uint64_t hash, uint64_t number)
{
    hash = (hash ^ number) * 0x100000001b3u;
    return hash ^ hash >> 29;
}

static void add_text(struct submission *s, const char *text)
{
    size_t len = strlen(s->shape), room = sizeof(s->shape) - 1 - len;
    if (strlen(text) <= room)
        memcpy(s->shape + len, text, strlen(text) + 1);
    else if (len > sizeof(s->shape) - 4)
        memcpy(s->shape + sizeof(s->shape) - 4, "...", 4);
    else
        memcpy(s->shape + len, "...", 4);
}

/* Mixes a shape into the submission's; free_rows: the first dimension may differ among ranks. */
static void add_shape(struct submission *s, const struct rm_tensor *t, bool free_rows, bool first)
{
    char number[32];
    s->shape_hash = mix(mix(s->shape_hash, (uint64_t)t->ndim + 1), (uint64_t)t->dtype);
    add_text(s, first ? "[" : " [");
    for (int i = 0; i < t->ndim; i++) {
        if (i == 0 && free_rows)
            snprintf(number, sizeof(number), "*");
        else
            snprintf(number, sizeof(number), "%s%lld", i == 0 ? "" : ", ", (long long)t->shape[i]);
        add_text(s, number);
        s->shape_hash = mix(s->shape_hash, i == 0 && free_rows ? UINT64_MAX : (uint64_t)t->shape[i]);
    }
    add_text(s, "]");
}

static void add_shapes(struct submission *s, const struct rm_collective *c, bool free_rows)
{
    s->shape_hash = mix(0xcbf29ce484222325u, c->tensor_count);
    for (size_t i = 0; i < c->tensor_count; i++)
        add_shape(s, &c->tensors[i], free_rows, i == 0);
    if (s->shape_hash == 0)
        s->shape_hash = 1;
}

/* ---- checks ---- */

/* As shm_wire_fits, which is the engine's. */
static bool wire_fits(const struct rm_collective *c, int dtype)
{
    bool sums = c->op == RM_SUM || c->op == RM_AVERAGE;
    if (c->wire == RM_WIRE_JOB || c->wire == RM_WIRE_PLAIN)
        return true;
    return sums && (c->wire == RM_WIRE_EXACT ? dtype == RM_F16 || dtype == RM_BF16 : dtype == RM_F32);
}

static int check_reduction(const struct rm_collective *c, int dtype)
{
    const char *op = what(c->kind);
    bool floating = shm_dtype_is_float((unsigned)dtype), scales = c->prescale != 1.0 || c->postscale != 1.0;
    if (c->op < RM_SUM || c->op > RM_ADASUM)
        return text_fail(RM_INVALID, "%s \"%s\": %d is no reduction", op, c->name, c->op);
    if (c->op == RM_ADASUM && c->kind == RM_REDUCESCATTER)
        return text_fail(RM_INVALID, "%s \"%s\": adasum is for all-reduce only", op, c->name);
    if (dtype == RM_U16 || dtype == RM_I16)
        return text_fail(RM_INVALID, "%s \"%s\": %s can be gathered, broadcast and exchanged, but not reduced", op, c->name,
                         dtype == RM_U16 ? "uint16" : "int16");
    if (dtype == RM_BOOL && ((c->op != RM_MIN && c->op != RM_MAX) || scales))
        return text_fail(RM_INVALID, "%s \"%s\": bool can be reduced by min (and) and max (or) only, without scaling", op, c->name);
    if (c->op == RM_ADASUM && !floating)
        return text_fail(RM_INVALID, "%s \"%s\": adasum is for floating types", op, c->name);
    for (size_t i = 1; i < c->tensor_count; i++)
        if (c->tensors[i].dtype != dtype)
            return text_fail(RM_INVALID, "grouped %s \"%s\": tensor %zu has another dtype than the first: make a group for each", op,
                             c->name, i);
    if (c->wire < RM_WIRE_JOB || c->wire > RM_WIRE_EXACT)
        return text_fail(RM_INVALID, "%s \"%s\": %d is no form for the wire", op, c->name, c->wire);
    if (!wire_fits(c, dtype))
        return text_fail(RM_INVALID, "%s \"%s\": a form for the wire is for sums and averages, %s", op, c->name,
                         c->wire == RM_WIRE_EXACT ? "exact of float16 and bfloat16" : "of float32");
    if (c->op == RM_ADASUM && c->tensor_count > 1)
        return text_fail(RM_INVALID, "grouped %s \"%s\": adasum is of one tensor", op, c->name);
    return RM_OK;
}

static int check_call(const struct rm_collective *c)
{
    const char *op = what(c->kind);
    if (op == NULL)
        return text_fail(RM_INVALID, "%d is no kind of collective", c->kind);
    if (c->name == NULL || c->name[0] == '\0')
        return text_fail(RM_INVALID, "%s: a name is needed; it tells the ranks which tensors belong together", op);
    bool none = c->kind == RM_BARRIER || c->kind == RM_JOIN, groups = c->kind != RM_BROADCAST && c->kind != RM_ALLTOALL && !none;
    if (none ? c->tensor_count != 0 : c->tensor_count == 0 || c->tensors == NULL)
        return text_fail(RM_INVALID, "%s \"%s\": %s", op, c->name, none ? "it has no tensors" : "no tensors");
    if (!groups && c->tensor_count > 1)
        return text_fail(RM_INVALID, "%s \"%s\": there are no groups of it", op, c->name);
    if (c->tensor_count > 1u << 20)
        return text_fail(RM_INVALID, "%s \"%s\": a group of %zu tensors; 1048576 are possible", op, c->name, c->tensor_count);
    if (c->kind == RM_JOIN && c->process_set != 0)
        return text_fail(RM_INVALID, "%s \"%s\": all ranks take part in it, not those of process set %d", op, c->name, c->process_set);
    bool rows = c->kind == RM_ALLGATHER || c->kind == RM_REDUCESCATTER || c->kind == RM_ALLTOALL;
    for (size_t i = 0; rows && i < c->tensor_count; i++)
        if (c->tensors[i].ndim == 0)
            return text_fail(RM_INVALID, "%s \"%s\": a scalar has no rows; give it one dimension", op, c->name);
    return RM_OK;
}

/* ---- segments ---- */

static int no_memory(const struct rm_collective *c)
{
    return text_fail(RM_NO_MEMORY, "%s \"%s\": out of memory for its tables", what(c->kind), c->name);
}

static bool make_segments(struct submission *s, size_t count)
{
    s->segments = count == 1 ? &s->one : calloc(count, sizeof(*s->segments));
    s->segment_count = s->segments == NULL ? 0 : count;
    return s->segments != NULL;
}

static bool make_outputs(struct submission *s, size_t count)
{
    s->outputs = calloc(count, sizeof(*s->outputs));
    s->output_count = s->outputs == NULL ? 0 : count;
    return s->outputs != NULL;
}

/* One after the other: all-reduce and broadcast. */
static int make_plain(const struct rm_collective *c, bool gives, struct submission *s)
{
    if (!make_segments(s, c->tensor_count))
        return no_memory(c);
    for (size_t i = 0; i < c->tensor_count; i++) {
        struct measure m;
        int status = measure(c, &c->tensors[i], gives, true, &m);
        if (status != RM_OK)
            return status;
        s->segments[i] = (struct segment){ .in = c->tensors[i].in, .out = c->tensors[i].out, .bytes = m.bytes };
    }
    s->row_elements = 1;
    return RM_OK;
}

/* A group of gathers, or rows without elements: see FORM_GROUP. */
static int make_gather_group(const struct rm_collective *c, struct submission *s)
{
    static const uint8_t zeros[8];
    size_t n = c->tensor_count;
    int64_t *rows = s->scratch = calloc(n, sizeof(*rows));
    if (rows == NULL || !make_segments(s, 1 + 2 * n) || !make_outputs(s, n))
        return no_memory(c);
    s->form = FORM_GROUP;
    s->segments[0] = (struct segment){ .in = rows, .bytes = 8 * n };
    for (size_t i = 0; i < n; i++) {
        struct measure m;
        int status = measure(c, &c->tensors[i], true, false, &m);
        if (status != RM_OK)
            return status;
        rows[i] = (int64_t)m.rows;
        s->segments[1 + 2 * i] = (struct segment){ .in = c->tensors[i].in, .bytes = m.bytes };
        s->segments[2 + 2 * i] = (struct segment){ .in = zeros, .bytes = (8 - m.bytes % 8) % 8 };
        s->outputs[i] = (struct output){ .rows = rows[i], .row_bytes = m.row_elements * shm_dtype_size((unsigned)c->tensors[i].dtype) };
    }
    s->dtype = SHM_U8;
    s->row_elements = 1;
    return RM_OK;
}

static int make_gather(const struct rm_collective *c, struct submission *s)
{
    struct measure m;
    int status = measure(c, &c->tensors[0], true, false, &m);
    if (status != RM_OK)
        return status;
    if (c->tensor_count > 1 || m.row_elements == 0)
        return make_gather_group(c, s);
    if (!make_segments(s, 1) || !make_outputs(s, 1))
        return no_memory(c);
    s->segments[0] = (struct segment){ .in = c->tensors[0].in, .bytes = m.bytes };
    s->outputs[0] = (struct output){ .rows = (int64_t)m.rows, .row_bytes = m.row_elements * shm_dtype_size(s->dtype) };
    s->row_elements = m.row_elements;
    return RM_OK;
}

/* Rows of a reduce-scatter that are of the rank at `place`: the first rows % n have one more. */
static void rows_of(uint64_t rows, int n, int place, uint64_t *ret_begin, uint64_t *ret_count)
{
    uint64_t each = rows / (uint64_t)n, more = rows % (uint64_t)n, at = (uint64_t)place;
    *ret_begin = each * at + (at < more ? at : more);
    *ret_count = each + (at < more ? 1 : 0);
}

/* By rank, and for each rank by tensor: so that what one rank gets lies in a row. */
static int make_scatter(const struct rm_collective *c, int n, int place, struct submission *s)
{
    size_t tensors = c->tensor_count;
    s->splits = calloc((size_t)n, sizeof(*s->splits));
    if (s->splits == NULL || !make_segments(s, tensors * (size_t)n) || !make_outputs(s, tensors))
        return no_memory(c);
    s->split_count = (uint32_t)n;
    s->row_elements = 1;
    for (size_t i = 0; i < tensors; i++) {
        struct measure m;
        int status = measure(c, &c->tensors[i], true, false, &m);
        if (status != RM_OK)
            return status;
        uint64_t row_bytes = m.row_elements * shm_dtype_size(s->dtype);
        for (int r = 0; r < n; r++) {
            uint64_t begin, count;
            rows_of(m.rows, n, r, &begin, &count);
            s->segments[(size_t)r * tensors + i] =
                (struct segment){ .in = m.bytes == 0 ? NULL : (const uint8_t *)c->tensors[i].in + begin * row_bytes,
                                  .bytes = count * row_bytes };
            s->splits[r] += count * m.row_elements;
            if (r == place)
                s->outputs[i] = (struct output){ .rows = (int64_t)count, .row_bytes = row_bytes };
        }
    }
    return RM_OK;
}

static int check_splits(const struct rm_collective *c, const struct measure *m, int n)
{
    int64_t sum = 0;
    if (c->splits == NULL) {
        if (m->rows % (uint64_t)n != 0)
            return text_fail(RM_INVALID, "all-to-all \"%s\": %llu rows cannot be split evenly among %d ranks; give splits", c->name,
                             (unsigned long long)m->rows, n);
        return RM_OK;
    }
    for (int r = 0; r < n; r++) {
        if (c->splits[r] < 0)
            return text_fail(RM_INVALID, "all-to-all \"%s\": split %d is %lld", c->name, r, (long long)c->splits[r]);
        if (__builtin_add_overflow(sum, c->splits[r], &sum))
            sum = INT64_MAX;
    }
    if ((uint64_t)sum != m->rows)
        return text_fail(RM_INVALID, "all-to-all \"%s\": the splits sum up to %lld, but there are %llu rows", c->name, (long long)sum,
                         (unsigned long long)m->rows);
    return RM_OK;
}

static int make_exchange(const struct rm_collective *c, int n, struct submission *s)
{
    struct measure m;
    int status = measure(c, &c->tensors[0], true, false, &m);
    if (status == RM_OK)
        status = check_splits(c, &m, n);
    if (status != RM_OK)
        return status;
    s->splits = calloc((size_t)n, sizeof(*s->splits));
    if (s->splits == NULL || !make_segments(s, 1) || !make_outputs(s, 1))
        return no_memory(c);
    s->split_count = (uint32_t)n;
    s->row_elements = m.row_elements;
    s->segments[0] = (struct segment){ .in = c->tensors[0].in, .bytes = m.bytes };
    s->outputs[0] = (struct output){ .rows = (int64_t)m.rows, .row_bytes = m.row_elements * shm_dtype_size(s->dtype) };
    if (m.row_elements == 0) { /* a byte for each row, so that the numbers of rows travel */
        s->form = FORM_HOLLOW;
        s->dtype = SHM_U8;
        s->row_elements = 1;
        s->scratch = m.rows > BYTES_MAX ? NULL : calloc(m.rows + 1, 1);
        if (s->scratch == NULL)
            return no_memory(c);
        s->segments[0] = (struct segment){ .in = s->scratch, .bytes = m.rows };
    }
    for (int r = 0; r < n; r++)
        s->splits[r] = (c->splits != NULL ? (uint64_t)c->splits[r] : m.rows / (uint64_t)n) * s->row_elements;
    return RM_OK;
}

static int make_data(const struct rm_collective *c, int n, int place, struct submission *s)
{
    bool reduces = c->kind == RM_ALLREDUCE || c->kind == RM_REDUCESCATTER;
    s->dtype = s->output_dtype = (uint16_t)c->tensors[0].dtype;
    int status = reduces ? check_reduction(c, c->tensors[0].dtype) : RM_OK;
    if (status != RM_OK)
        return status;
    switch (c->kind) {
    case RM_ALLREDUCE:
        status = make_plain(c, true, s);
        break;
    case RM_BROADCAST:
        status = make_plain(c, false, s);
        break;
    case RM_ALLGATHER:
        status = make_gather(c, s);
        break;
    case RM_REDUCESCATTER:
        status = make_scatter(c, n, place, s);
        break;
    default:
        status = make_exchange(c, n, s);
    }
    if (status == RM_OK)
        add_shapes(s, c, c->kind == RM_ALLGATHER || c->kind == RM_ALLTOALL);
    s->redop = reduces ? (uint16_t)c->op : 0;
    s->wire = reduces ? (uint16_t)c->wire : SHM_WIRE_JOB;
    s->prescale = reduces ? c->prescale : 1.0;
    s->postscale = reduces ? c->postscale : 1.0;
    return status;
}

int submission_make(const struct rm_collective *c, int set_size, int place, struct submission *ret)
{
    *ret = (struct submission){ .name = c->name, .op = (uint16_t)c->kind, .root = c->root, .set = (uint32_t)c->process_set,
                                .prescale = 1, .postscale = 1, .row_elements = 1, .done = c->done, .ctx = c->ctx };
    ret->segments = &ret->one;
    ret->segment_count = 1;
    int status = check_call(c);
    if (status == RM_OK && c->tensor_count > 0)
        status = make_data(c, set_size, place, ret);
    return status;
}

void submission_release(struct submission *s)
{
    if (s->segments != &s->one)
        free(s->segments);
    free(s->scratch);
    free(s->splits);
    free(s->outputs);
    *s = (struct submission){ .segments = &s->one };
}
