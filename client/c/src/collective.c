/*
 * collective.c — the collectives of the public API: from a checked call to a request that is under way, and its handle.
 */
#include <stdio.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "alone.h"
#include "client.h"
#include "submit.h"

/* Integers lose their fraction at each of the two, as they do with others. */
static void scale_alone(const struct request *r, const void *in, void *out, uint64_t bytes)
{
    uint64_t count = bytes / shm_dtype_size(r->dtype);
    if (shm_dtype_is_float(r->dtype)) {
        alone_scale(in, out, count, r->dtype, r->prescale * r->postscale);
    } else {
        alone_scale(in, out, count, r->dtype, r->prescale);
        alone_scale(out, out, count, r->dtype, r->postscale);
    }
}

/* In the program's stream itself: nobody else takes part. */
static int scale_on_gpu(struct client *c, const struct request *r, const struct segment *s)
{
    uint64_t count = s->bytes / shm_dtype_size(r->dtype);
    if (shm_dtype_is_float(r->dtype))
        return gpu_scale(&c->gpu, r->device, r->stream, s->in, s->out, count, r->dtype, r->prescale * r->postscale);
    int status = gpu_scale(&c->gpu, r->device, r->stream, s->in, s->out, count, r->dtype, r->prescale);
    return status != RM_OK ? status : gpu_scale(&c->gpu, r->device, r->stream, s->out, s->out, count, r->dtype, r->postscale);
}

static void finish_alone_on_gpu(struct client *c, struct request *r)
{
    for (size_t i = 0; r->status == RM_OK && i < r->segment_count; i++) {
        r->status = r->segments[i].bytes == 0 ? RM_OK : scale_on_gpu(c, r, &r->segments[i]);
        if (r->status != RM_OK)
            snprintf(r->text, sizeof(r->text), "\"%s\": %s", r->name, text_last());
    }
    request_finish(c, r);
}

static void finish_alone(struct client *c, struct request *r)
{
    if (r->device != NULL) {
        finish_alone_on_gpu(c, r);
        return;
    }
    if (shm_op_has_result(r->op)) {
        outputs_alone(r);
        for (size_t i = 0; r->op == SHM_OP_REDUCESCATTER && r->status == RM_OK && i < r->output_count; i++)
            scale_alone(r, r->outputs[i].heap, r->outputs[i].heap, (uint64_t)r->outputs[i].rows * r->outputs[i].row_bytes);
    } else if (shm_op_moves_data(r->op)) {
        for (size_t i = 0; i < r->segment_count; i++)
            scale_alone(r, r->segments[i].in, r->segments[i].out, r->segments[i].bytes);
    }
    request_finish(c, r);
}

static uint64_t total_bytes(const struct submission *s)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < s->segment_count; i++)
        bytes += s->segments[i].bytes;
    return bytes;
}

/* Adasum is of a whole tensor, and what has a result comes as one. */
static bool is_cut(const struct submission *s)
{
    return s->op == SHM_OP_BROADCAST || (s->op == SHM_OP_ALLREDUCE && s->redop != SHM_ADASUM);
}

/* Moves what the submission holds into the request. areas NULL: alone. */
static void fill(struct request *r, struct submission *s, const struct areas *areas)
{
    r->op = s->op;
    r->dtype = s->dtype;
    r->redop = s->redop;
    r->wire = s->wire;
    r->root = s->root;
    r->prescale = s->prescale;
    r->postscale = s->postscale;
    r->row_elements = s->row_elements;
    r->answer = s->count;
    r->shape_hash = s->shape_hash;
    memcpy(r->shape, s->shape, sizeof(r->shape));
    r->device = s->device;
    r->stream = s->stream;
    r->mark = s->mark;
    r->splits = s->splits;
    r->split_count = s->split_count;
    r->scratch = s->scratch;
    r->form = s->form;
    r->outputs = s->outputs;
    r->output_count = s->output_count;
    r->output_dtype = s->output_dtype;
    r->done = s->done;
    the_client.requests.callbacks += r->done != NULL;
    r->ctx = s->ctx;
    r->kept = s->ret_handle != NULL;
    r->one = s->one;
    r->segments = s->segments == &s->one ? &r->one : s->segments;
    r->segment_count = s->segment_count;
    r->bytes = total_bytes(s);
    if (areas == NULL || !is_cut(s))
        r->split = (struct split){ .first = r->bytes, .other = r->bytes, .pieces = 1 };
    else
        r->split = request_split(r->bytes, areas);
    s->segments = &s->one;
    s->splits = s->scratch = NULL;
    s->outputs = NULL;
    s->mark = NULL;
}

/* Makes the request and sets it going. With lock held. */
static int start(struct client *c, struct submission *s)
{
    bool alone = c->size == 1;
    uint64_t bytes = total_bytes(s);
    if (c->stopping)
        return text_fail(RM_NOT_INITIALIZED, "rm_shutdown was called");
    if (!alone && c->lost)
        return text_fail(RM_PEER_LOST, "%s", c->lost_text);
    if (!alone && !is_cut(s) && bytes > c->small.bytes / 2)
        return text_fail(RM_NO_MEMORY, "\"%s\": %llu bytes from one rank are over half of the %llu bytes of shared memory; %s", s->name,
                         (unsigned long long)bytes, (unsigned long long)c->small.bytes,
                         s->op == SHM_OP_ALLREDUCE ? "adasum cannot be cut" : "send it in parts");
    int error;
    struct request *r = request_new(&c->requests, s->set, s->name, &error);
    if (r == NULL)
        return error;
    rm_handle *ret_handle = s->ret_handle;
    fill(r, s, alone ? NULL : &c->requests.areas);
    if (ret_handle != NULL)
        *ret_handle = request_handle(r); /* before done can run */
    if (alone) {
        finish_alone(c, r);
    } else {
        request_enqueue(&c->requests.fresh, r);
        requests_pump(c);
    }
    return RM_OK;
}

int submission_start(struct submission *s)
{
    struct client *c = &the_client;
    pthread_mutex_lock(&c->lock);
    int status = start(c, s);
    pthread_mutex_unlock(&c->lock);
    if (s->mark != NULL)
        gpu_unmark(&c->gpu, s->device, s->mark);
    submission_release(s);
    return status;
}

/* ---- the public calls ---- */

static const char *name_of(const struct rm_collective *c)
{
    return c->name == NULL ? "" : c->name;
}

static int check_place(const struct rm_collective *c, const struct set_view *set)
{
    if (set->count == 0)
        return text_fail(RM_NOT_FOUND, "\"%s\": there is no process set %d: it was removed, or never added", name_of(c),
                         c->process_set);
    if (set->place < 0)
        return text_fail(RM_INVALID, "\"%s\": rank %d is not included in process set %d", name_of(c), the_client.rank, c->process_set);
    if (c->kind == RM_BROADCAST && (c->root < 0 || c->root >= the_client.size))
        return text_fail(RM_INVALID, "broadcast \"%s\": root %d is not a rank of this world of %d", name_of(c), c->root,
                         the_client.size);
    if (c->kind == RM_BROADCAST && !set_holds(&the_client, c->process_set, c->root))
        return text_fail(RM_INVALID, "broadcast \"%s\": root %d is not in process set %d", name_of(c), c->root, c->process_set);
    return RM_OK;
}

/* Tensors in GPU memory: whose, and a mark in the program's stream. */
static int find_on_gpu(const struct rm_collective *c, struct submission *s)
{
    struct client *client = &the_client;
    bool alone = client->size == 1; /* no arena then */
    if (c->memory != RM_HOST && c->memory != RM_CUDA)
        return text_fail(RM_INVALID, "\"%s\": %d is no kind of memory", c->name, c->memory);
    if (c->memory == RM_HOST || s->segment_count == 0)
        return RM_OK;
    if (c->kind != RM_ALLREDUCE && c->kind != RM_BROADCAST)
        return text_fail(RM_INVALID, "\"%s\": all-reduce and broadcast take tensors in GPU memory; copy this one to the host before", c->name);
    int status = gpu_of(&client->gpu, c->name, s->segments, s->segment_count, alone ? NULL : client->shared.base + client->shared.arena_offset,
                        client->shared.arena_bytes, &s->device);
    if (status != RM_OK || s->device == NULL)
        return status;
    s->stream = c->stream;
    return alone ? RM_OK : gpu_mark(&client->gpu, s->device, s->stream, &s->mark);
}

/* A program that was compiled with an older header has a shorter struct; what it lacks is zero. */
#define COLLECTIVE_BYTES_MIN offsetof(struct rm_collective, memory)

static int take_call(const struct rm_collective *c, struct rm_collective *ret)
{
    if (c->struct_bytes < COLLECTIVE_BYTES_MIN)
        return text_fail(RM_INVALID, "rm_submit: struct_bytes is %u, expected %zu: fill it in with sizeof", c->struct_bytes, sizeof(*c));
    *ret = (struct rm_collective){ 0 };
    memcpy(ret, c, c->struct_bytes < sizeof(*ret) ? c->struct_bytes : sizeof(*ret));
    return RM_OK;
}

RM_API int rm_submit(const struct rm_collective *call, rm_handle *ret_handle)
{
    struct submission s = { .segments = &s.one };
    struct rm_collective copy;
    const struct rm_collective *c = &copy;
    struct set_view set;
    int status = client_ready();
    if (status == RM_OK)
        status = take_call(call, &copy);
    if (status != RM_OK)
        return status;
    bool result = c->kind == RM_ALLGATHER || c->kind == RM_REDUCESCATTER || c->kind == RM_ALLTOALL;
    if (ret_handle == NULL && (c->done == NULL || result))
        return text_fail(RM_INVALID, "\"%s\": %s", name_of(c), result ? "ret_handle is needed to get at the result"
                                                                     : "neither done nor ret_handle: nobody would hear of its end");
    set_look(&the_client, c->process_set, &set);
    status = check_place(c, &set);
    if (status == RM_OK)
        status = submission_make(c, set.count, set.place, &s);
    if (status == RM_OK && c->kind == RM_BROADCAST && c->root == the_client.rank && s.segments[0].in == NULL && s.segments[0].bytes > 0)
        status = text_fail(RM_INVALID, "broadcast \"%s\": the root has no buffer", name_of(c));
    if (status == RM_OK)
        status = find_on_gpu(c, &s);
    s.ret_handle = ret_handle;
    if (status == RM_OK)
        return submission_start(&s);
    submission_release(&s);
    return status;
}

static int64_t as_dimension(uint64_t count)
{
    return count > INT64_MAX ? INT64_MAX : (int64_t)count; /* more than memory can be, in either case */
}

RM_API int rm_allreduce(const char *name, const void *in, void *out, uint64_t count, enum rm_dtype dtype, enum rm_op op,
                        double prescale, double postscale, rm_done_fn *done, void *ctx, rm_handle *ret_handle)
{
    int64_t shape = as_dimension(count);
    struct rm_tensor t = { .in = in, .out = out, .shape = &shape, .ndim = 1, .dtype = (int)dtype };
    struct rm_collective c = { .struct_bytes = sizeof(c), .kind = RM_ALLREDUCE, .name = name, .op = (int)op, .prescale = prescale,
                               .postscale = postscale, .tensor_count = 1, .tensors = &t, .done = done, .ctx = ctx };
    return rm_submit(&c, ret_handle);
}

RM_API int rm_allreduce_group(const char *name, size_t tensors, const void *const *in, void *const *out, const uint64_t *counts,
                              enum rm_dtype dtype, enum rm_op op, double prescale, double postscale, rm_done_fn *done, void *ctx,
                              rm_handle *ret_handle)
{
    struct rm_tensor *t = tensors == 0 ? NULL : calloc(tensors, sizeof(*t));
    int64_t *shapes = tensors == 0 ? NULL : calloc(tensors, sizeof(*shapes));
    int status = RM_OK;
    if (tensors == 0)
        status = text_fail(RM_INVALID, "grouped all-reduce \"%s\": no tensors", name == NULL ? "" : name);
    else if (t == NULL || shapes == NULL)
        status = text_fail(RM_NO_MEMORY, "grouped all-reduce: out of memory for %zu tensors", tensors);
    for (size_t i = 0; status == RM_OK && i < tensors; i++) {
        shapes[i] = as_dimension(counts[i]);
        t[i] = (struct rm_tensor){ .in = in[i], .out = out[i], .shape = &shapes[i], .ndim = 1, .dtype = (int)dtype };
    }
    struct rm_collective c = { .struct_bytes = sizeof(c), .kind = RM_ALLREDUCE, .name = name, .op = (int)op, .prescale = prescale,
                               .postscale = postscale, .tensor_count = tensors, .tensors = t, .done = done, .ctx = ctx };
    if (status == RM_OK)
        status = rm_submit(&c, ret_handle);
    free(t);
    free(shapes);
    return status;
}

RM_API int rm_broadcast(const char *name, const void *in, void *out, uint64_t count, enum rm_dtype dtype, int root,
                        rm_done_fn *done, void *ctx, rm_handle *ret_handle)
{
    int64_t shape = as_dimension(count);
    struct rm_tensor t = { .in = in, .out = out, .shape = &shape, .ndim = 1, .dtype = (int)dtype };
    struct rm_collective c = { .struct_bytes = sizeof(c), .kind = RM_BROADCAST, .name = name, .root = root, .tensor_count = 1,
                               .tensors = &t, .done = done, .ctx = ctx };
    return rm_submit(&c, ret_handle);
}

RM_API int rm_allgather(const char *name, const void *in, uint64_t rows, uint64_t row_elements, enum rm_dtype dtype,
                        rm_done_fn *done, void *ctx, rm_handle *ret_handle)
{
    int64_t shape[2] = { as_dimension(rows), as_dimension(row_elements) };
    struct rm_tensor t = { .in = in, .shape = shape, .ndim = 2, .dtype = (int)dtype };
    struct rm_collective c = { .struct_bytes = sizeof(c), .kind = RM_ALLGATHER, .name = name, .tensor_count = 1, .tensors = &t,
                               .done = done, .ctx = ctx };
    return rm_submit(&c, ret_handle);
}

RM_API int rm_barrier(const char *name)
{
    struct rm_collective c = { .struct_bytes = sizeof(c), .kind = RM_BARRIER, .name = name == NULL ? "barrier" : name };
    rm_handle handle;
    int status = rm_submit(&c, &handle);
    return status == RM_OK ? rm_wait(handle, -1) : status;
}

RM_API int rm_join(int *ret_last_rank)
{
    struct rm_collective c = { .struct_bytes = sizeof(c), .kind = RM_JOIN, .name = "ringmaster.join" };
    rm_handle handle;
    int status = rm_submit(&c, &handle);
    if (status != RM_OK)
        return status;
    status = rm_wait(handle, -1);
    if (status == RM_OK && ret_last_rank != NULL)
        *ret_last_rank = rm_joined(handle);
    rm_release(handle);
    return status;
}

/* ---- handles: a forked child has none. It must not even look: another thread may have held the lock when it was forked. ---- */

static int no_such_handle(void)
{
    return text_fail(RM_INVALID, "no such handle: it was released, or never given");
}

RM_API int rm_poll(rm_handle handle)
{
    struct client *c = &the_client;
    if (atomic_load(&c->forked))
        return client_ready();
    pthread_mutex_lock(&c->lock);
    const struct request *r = request_find(&c->requests, handle);
    int status = r == NULL ? no_such_handle() : r->state == REQUEST_DONE;
    pthread_mutex_unlock(&c->lock);
    return status;
}

RM_API int rm_wait(rm_handle handle, int64_t timeout_ms)
{
    struct client *c = &the_client;
    int64_t deadline = timeout_ms < 0 ? -1 : client_now_ms() + timeout_ms;
    int status = RM_OK;
    struct timespec began;
    bool waits = false;
    if (atomic_load(&c->forked))
        return client_ready();
    pthread_mutex_lock(&c->lock);
    struct request *r = request_find(&c->requests, handle);
    if (r == NULL)
        status = no_such_handle();
    if (status == RM_OK && r->state != REQUEST_DONE && timeout_ms != 0) {
        clock_gettime(CLOCK_MONOTONIC, &began);
        waits = true;
        replies_look(c, handle);
        r = request_find(&c->requests, handle);
        status = r == NULL ? no_such_handle() : RM_OK;
    }
    while (status == RM_OK && r->state != REQUEST_DONE) {
        if (!client_wait_changed(c, deadline) && r->state != REQUEST_DONE)
            status = text_fail(RM_TIMEOUT, "\"%s\" is not done after %lld ms", r->name, (long long)timeout_ms);
        else if ((r = request_find(&c->requests, handle)) == NULL)
            status = no_such_handle(); /* another thread released it */
    }
    if (status == RM_OK) {
        if (r->status != RM_OK)
            status = text_fail(r->status, "%s", r->text);
        if (!shm_op_has_result(r->op) && r->op != SHM_OP_JOIN)
            request_release(c, r);
    }
    if (waits)
        replies_waited(c, (int64_t)began.tv_sec * 1000000000 + began.tv_nsec);
    pthread_mutex_unlock(&c->lock);
    return status;
}

RM_API void rm_release(rm_handle handle)
{
    struct client *c = &the_client;
    if (atomic_load(&c->forked))
        return;
    pthread_mutex_lock(&c->lock);
    struct request *r = request_find(&c->requests, handle);
    if (r != NULL)
        request_release(c, r);
    requests_pump(c); /* hands results back */
    pthread_mutex_unlock(&c->lock);
}

/* ---- memory in the arena, progress ---- */

RM_API void *rm_alloc(size_t bytes)
{
    struct client *c = &the_client;
    if (client_ready() != RM_OK)
        return NULL;
    void *p = NULL;
    pthread_mutex_lock(&c->lock);
    uint64_t offset;
    if (c->shared.base == NULL) { /* alone: any memory is as good */
        if (posix_memalign(&p, ARENA_ALIGN, bytes == 0 ? 1 : bytes) != 0)
            p = NULL;
        if (p == NULL)
            text_fail(RM_NO_MEMORY, "out of memory for %zu bytes", bytes);
    } else if (arena_alloc(&c->small, bytes, &offset)) {
        p = c->shared.base + offset;
    } else {
        text_fail(RM_NO_MEMORY, "no %zu bytes in a row are free in the arena (%llu of %llu bytes are taken)", bytes,
                  (unsigned long long)c->small.used, (unsigned long long)c->small.bytes);
    }
    pthread_mutex_unlock(&c->lock);
    return p;
}

RM_API void rm_free(void *p)
{
    struct client *c = &the_client;
    if (p == NULL || atomic_load(&c->forked))
        return;
    pthread_mutex_lock(&c->lock);
    uintptr_t at = (uintptr_t)p, base = (uintptr_t)c->shared.base;
    if (atomic_load(&c->state) == CLIENT_ALONE) {
        free(p);
    } else if (c->shared.base != NULL && at >= base && at - base < c->shared.bytes) {
        (void)arena_free(&c->small, at - base);
        requests_pump(c);
    }
    pthread_mutex_unlock(&c->lock);
}

RM_API int rm_report(const char *json)
{
    struct client *c = &the_client;
    int status = client_ready();
    if (status != RM_OK)
        return status;
    pthread_mutex_lock(&c->lock);
    bool was_pending = c->report.pending;
    status = report_merge(&c->report, json);
    if (c->shared.base == NULL)
        c->report.pending = false; /* alone: checked, and nobody to tell */
    else if (status == RM_OK && !was_pending)
        shared_wake_us(&c->shared);
    pthread_mutex_unlock(&c->lock);
    return status;
}

RM_API void rm_progress(void)
{
    if (client_ready() == RM_OK && the_client.shared.base != NULL)
        atomic_fetch_add_explicit(&shared_header(&the_client.shared)->progress, 1, memory_order_relaxed);
}
