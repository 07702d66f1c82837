/*
 * outputs.c — results whose size the caller cannot know: what a reply names becomes the outputs of its request. Nothing that the
 * engine says is taken for granted.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"

static void no_memory(struct request *r, uint64_t bytes)
{
    r->status = RM_NO_MEMORY;
    snprintf(r->text, sizeof(r->text), "\"%s\": out of memory for a result of %llu bytes", r->name, (unsigned long long)bytes);
}

static uint64_t padded(uint64_t bytes)
{
    return (bytes + 7) / 8 * 8;
}

/* ---- groups: one part a rank, each with the rows of all tensors in front ---- */

/* The next rank's part at `at`: its rows, and where it ends. False: it does not fit. */
static bool read_part(const struct request *r, const uint8_t *blob, uint64_t bytes, uint64_t *at, int64_t *ret_rows)
{
    uint64_t header = 8 * r->output_count;
    if (bytes - *at < header)
        return false;
    memcpy(ret_rows, blob + *at, header);
    *at += header;
    for (size_t i = 0; i < r->output_count; i++) {
        uint64_t size;
        if (ret_rows[i] < 0 || __builtin_mul_overflow((uint64_t)ret_rows[i], r->outputs[i].row_bytes, &size) || size > bytes
            || bytes - *at < padded(size))
            return false;
        *at += padded(size);
    }
    return true;
}

static bool measure_group(struct request *r, const uint8_t *blob, uint64_t bytes, int64_t *rows)
{
    for (size_t i = 0; i < r->output_count; i++)
        r->outputs[i].rows = 0; /* so far those of this rank */
    for (uint64_t at = 0; at < bytes;) {
        if (!read_part(r, blob, bytes, &at, rows))
            return false;
        for (size_t i = 0; i < r->output_count; i++)
            if (__builtin_add_overflow(r->outputs[i].rows, rows[i], &r->outputs[i].rows))
                return false;
    }
    return true;
}

static void copy_group(struct request *r, const uint8_t *blob, uint64_t bytes, int64_t *rows, uint8_t **to)
{
    for (uint64_t at = 0; at < bytes;) {
        memcpy(rows, blob + at, 8 * r->output_count);
        at += 8 * r->output_count;
        for (size_t i = 0; i < r->output_count; i++) {
            uint64_t size = (uint64_t)rows[i] * r->outputs[i].row_bytes;
            if (size > 0)
                memcpy(to[i], blob + at, size);
            to[i] += size;
            at += padded(size);
        }
    }
}

/* The blob is copied first: the other side could change it between the look at it and its use. */
static bool take_group(struct request *r, const uint8_t *shared, uint64_t bytes)
{
    uint8_t *blob = malloc(bytes + 1), **to = calloc(r->output_count, sizeof(*to));
    int64_t *rows = calloc(r->output_count, sizeof(*rows));
    bool right = true;
    if (blob == NULL || to == NULL || rows == NULL) {
        no_memory(r, bytes);
    } else {
        memcpy(blob, shared, bytes);
        right = measure_group(r, blob, bytes, rows);
        for (size_t i = 0; right && i < r->output_count; i++) {
            struct output *o = &r->outputs[i];
            uint64_t size = (uint64_t)o->rows * o->row_bytes;
            o->data = to[i] = o->heap = malloc(size + 1);
            if (o->heap == NULL)
                no_memory(r, size);
        }
        if (right && r->status == RM_OK)
            copy_group(r, blob, bytes, rows, to);
    }
    free(blob);
    free(to);
    free(rows);
    return right;
}

/* ---- the others ---- */

static bool take_received(struct request *r, const uint8_t *header, uint64_t elements)
{
    uint64_t sum = 0;
    r->received = calloc(r->split_count, sizeof(*r->received));
    r->received_count = r->split_count;
    if (r->received == NULL) {
        no_memory(r, 8ull * r->split_count);
        return true;
    }
    for (uint32_t i = 0; i < r->split_count; i++) {
        uint64_t count;
        memcpy(&count, header + 8ull * i, 8);
        if (__builtin_add_overflow(sum, count, &sum) || count % r->row_elements != 0)
            return false;
        r->received[i] = (int64_t)(count / r->row_elements);
    }
    return sum == elements;
}

/* A reduce-scatter: the rows of each tensor are known from the start. */
static bool take_slices(struct request *r, const uint8_t *data, uint64_t bytes)
{
    uint64_t at = 0;
    for (size_t i = 0; i < r->output_count; i++) {
        r->outputs[i].data = data + at;
        at += (uint64_t)r->outputs[i].rows * r->outputs[i].row_bytes;
    }
    return at == bytes;
}

bool outputs_take(const struct client *c, struct request *r, const struct shm_reply *reply)
{
    uint64_t element = shm_dtype_size(r->dtype), header = r->op == SHM_OP_ALLTOALL ? shm_splits_bytes(r->split_count) : 0;
    if (reply->out_count > c->shared.results_bytes / element
        || !shared_in_results(&c->shared, reply->out_offset, header + reply->out_count * element))
        return false;
    const uint8_t *at = c->shared.base + reply->out_offset;
    r->result_offset = reply->out_offset;
    r->has_result = true;
    if (r->form == FORM_GROUP)
        return take_group(r, at, reply->out_count);
    if (r->op == SHM_OP_REDUCESCATTER)
        return take_slices(r, at, reply->out_count * element);
    if (r->op == SHM_OP_ALLTOALL && !take_received(r, at, reply->out_count))
        return false;
    r->outputs[0].data = at + header;
    r->outputs[0].rows = (int64_t)(reply->out_count / r->row_elements);
    return reply->out_count % r->row_elements == 0;
}

/* ---- a world of one ---- */

/* Segments of a gather alone are as they are with others: a group's begin with the rows and have padding in between. */
static const void *input_of(const struct request *r, size_t tensor)
{
    return r->segments[r->form == FORM_GROUP ? 1 + 2 * tensor : tensor].in;
}

void outputs_alone(struct request *r)
{
    for (size_t i = 0; i < r->output_count; i++) {
        struct output *o = &r->outputs[i];
        uint64_t size = (uint64_t)o->rows * o->row_bytes;
        o->data = o->heap = malloc(size + 1);
        if (o->heap == NULL)
            no_memory(r, size);
        else if (size > 0)
            memcpy(o->heap, input_of(r, i), size);
    }
    if (r->op != SHM_OP_ALLTOALL)
        return;
    r->received = calloc(1, sizeof(*r->received));
    r->received_count = 1;
    if (r->received == NULL)
        no_memory(r, 8);
    else
        r->received[0] = r->outputs[0].rows;
}

void outputs_release(struct request *r)
{
    for (size_t i = 0; i < r->output_count; i++)
        free(r->outputs[i].heap);
    free(r->outputs);
    free(r->received);
    r->outputs = NULL;
    r->received = NULL;
    r->output_count = 0;
}

/* ---- for the caller ---- */

/* The request of a handle that is done and has a result. With lock held. */
static const struct request *finished(struct client *c, rm_handle handle, int *ret_status)
{
    const struct request *r = request_find(&c->requests, handle);
    *ret_status = RM_OK;
    if (r == NULL)
        *ret_status = text_fail(RM_INVALID, "no such handle: it was released, or never given");
    else if (r->state == REQUEST_LIVE)
        *ret_status = text_fail(RM_INVALID, "\"%s\" is not done yet", r->name);
    else if (r->status != RM_OK)
        *ret_status = text_fail(r->status, "%s", r->text);
    return *ret_status == RM_OK ? r : NULL;
}

static int find_output(struct client *c, rm_handle handle, size_t index, const struct output **ret)
{
    int status;
    const struct request *r = finished(c, handle, &status);
    if (r == NULL)
        return status;
    if (!shm_op_has_result(r->op))
        return text_fail(RM_INVALID, "\"%s\" has no result of its own: it is where the caller wanted it", r->name);
    if (index >= r->output_count)
        return text_fail(RM_INVALID, "\"%s\" has %zu tensors; there is none at %zu", r->name, r->output_count, index);
    if (r->outputs[index].data == NULL)
        return text_fail(RM_PEER_LOST, "\"%s\": its result went with rm_shutdown", r->name);
    *ret = &r->outputs[index];
    return RM_OK;
}

RM_API int rm_output(rm_handle handle, size_t index, const void **ret_data, int64_t *ret_rows)
{
    struct client *c = &the_client;
    const struct output *o;
    if (atomic_load(&c->forked))
        return client_ready();
    pthread_mutex_lock(&c->lock);
    int status = find_output(c, handle, index, &o);
    if (status == RM_OK) {
        *ret_data = o->data;
        *ret_rows = o->rows;
    }
    pthread_mutex_unlock(&c->lock);
    return status;
}

RM_API int rm_result(rm_handle handle, const void **ret_data, uint64_t *ret_elements)
{
    struct client *c = &the_client;
    const struct output *o;
    if (atomic_load(&c->forked))
        return client_ready();
    pthread_mutex_lock(&c->lock);
    int status = find_output(c, handle, 0, &o);
    if (status == RM_OK) {
        uint64_t element = shm_dtype_size(request_find(&c->requests, handle)->output_dtype);
        *ret_data = o->data;
        *ret_elements = (uint64_t)o->rows * (o->row_bytes / element);
    }
    pthread_mutex_unlock(&c->lock);
    return status;
}

RM_API int rm_received_splits(rm_handle handle, int64_t *ret_rows, size_t count)
{
    struct client *c = &the_client;
    int status;
    if (atomic_load(&c->forked))
        return client_ready();
    pthread_mutex_lock(&c->lock);
    const struct request *r = finished(c, handle, &status);
    if (r != NULL && r->received == NULL)
        status = text_fail(RM_INVALID, "\"%s\" is no all-to-all", r->name);
    else if (r != NULL && count != r->received_count)
        status = text_fail(RM_INVALID, "\"%s\" has splits of %zu ranks, not of %zu", r->name, r->received_count, count);
    else if (r != NULL)
        memcpy(ret_rows, r->received, count * sizeof(*ret_rows));
    pthread_mutex_unlock(&c->lock);
    return status;
}

RM_API int rm_joined(rm_handle handle)
{
    struct client *c = &the_client;
    int status;
    if (atomic_load(&c->forked))
        return client_ready();
    pthread_mutex_lock(&c->lock);
    const struct request *r = finished(c, handle, &status);
    if (r != NULL && r->op != SHM_OP_JOIN)
        status = text_fail(RM_INVALID, "\"%s\" is no join", r->name);
    else if (r != NULL)
        status = (int)r->answer;
    pthread_mutex_unlock(&c->lock);
    return status;
}
