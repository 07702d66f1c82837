/*
 * collective.c — the collectives of the public API: arguments are checked here, once, before anything is queued.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alone.h"
#include "client.h"

/* One call of the API, as its caller gave it. */
struct submission {
    const char *what, *name;    /* "all-reduce" */
    struct segment *segments;   /* taken when heap_segments */
    size_t segment_count;
    bool heap_segments;
    uint16_t op, dtype, redop;
    int32_t root;
    double prescale, postscale;
    uint64_t row_elements;
    rm_done_fn *done;
    void *ctx;
    rm_handle *ret_handle;
};

static uint64_t total_bytes(const struct submission *s)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < s->segment_count; i++)
        bytes += s->segments[i].bytes;
    return bytes;
}

static int check(const struct submission *s)
{
    if (s->name == NULL || s->name[0] == '\0')
        return text_fail(RM_INVALID, "%s: a name is needed; it tells the ranks which tensors belong together", s->what);
    if (s->dtype < RM_U8 || s->dtype > RM_BOOL)
        return text_fail(RM_INVALID, "%s \"%s\": %u is no dtype", s->what, s->name, s->dtype);
    if (s->done == NULL && s->ret_handle == NULL)
        return text_fail(RM_INVALID, "%s \"%s\": neither done nor ret_handle: nobody would hear of its end", s->what, s->name);
    if (s->op == SHM_OP_BROADCAST && (s->root < 0 || s->root >= the_client.size))
        return text_fail(RM_INVALID, "%s \"%s\": root %d is not a rank of this world of %d", s->what, s->name, s->root,
                         the_client.size);
    if (s->op != SHM_OP_ALLREDUCE)
        return RM_OK;
    if (s->redop < RM_SUM || s->redop > RM_PRODUCT)
        return text_fail(RM_INVALID, "%s \"%s\": %u is no reduction", s->what, s->name, s->redop);
    bool floating = s->dtype >= RM_F16 && s->dtype <= RM_F64;
    if (s->dtype == RM_BOOL && s->redop != RM_MIN && s->redop != RM_MAX)
        return text_fail(RM_INVALID, "%s \"%s\": bool can be reduced by min (and) and max (or) only", s->what, s->name);
    if (!floating && (s->prescale != 1.0 || s->postscale != 1.0))
        return text_fail(RM_INVALID, "%s \"%s\": prescale and postscale are for floating types", s->what, s->name);
    if (s->redop == RM_AVERAGE && !floating)
        return text_fail(RM_INVALID, "%s \"%s\": average is for floating types; use sum and divide", s->what, s->name);
    return RM_OK;
}

static void finish_alone(struct client *c, struct request *r)
{
    for (size_t i = 0; i < r->segment_count && r->op != SHM_OP_ALLGATHER; i++) {
        const struct segment *g = &r->segments[i];
        double scale = r->op == SHM_OP_ALLREDUCE ? r->prescale * r->postscale : 1.0;
        alone_scale(g->in, g->out, g->bytes / shm_dtype_size(r->dtype), r->dtype, scale);
    }
    if (r->op == SHM_OP_ALLGATHER) {
        r->result_heap = malloc(r->bytes == 0 ? 1 : r->bytes);
        r->result_elements = r->bytes / shm_dtype_size(r->dtype);
        if (r->result_heap == NULL) {
            r->status = RM_NO_MEMORY;
            snprintf(r->text, sizeof(r->text), "\"%s\": out of memory for %llu bytes", r->name, (unsigned long long)r->bytes);
        } else if (r->bytes > 0) {
            memcpy(r->result_heap, r->segments[0].in, r->bytes);
        }
    }
    request_finish(c, r);
}

/* areas NULL: alone. */
static void fill(struct request *r, const struct submission *s, const struct areas *areas)
{
    r->op = s->op;
    r->dtype = s->dtype;
    r->redop = s->redop;
    r->root = s->root;
    r->prescale = s->prescale;
    r->postscale = s->postscale;
    r->row_elements = s->row_elements;
    r->done = s->done;
    r->ctx = s->ctx;
    r->kept = s->ret_handle != NULL;
    if (s->heap_segments) {
        r->segments = s->segments;
    } else {
        r->one = s->segments[0];
        r->segments = &r->one;
    }
    r->segment_count = s->segment_count;
    r->bytes = total_bytes(s);
    if (areas == NULL || s->op == SHM_OP_ALLGATHER)
        r->split = (struct split){ .first = r->bytes, .other = r->bytes, .pieces = 1 };
    else
        r->split = request_split(r->bytes, areas);
}

/* Makes the request and sets it going. With lock held. */
static int start(struct client *c, const struct submission *s)
{
    bool alone = c->size == 1;
    uint64_t bytes = total_bytes(s);
    if (!alone && c->lost)
        return text_fail(RM_PEER_LOST, "%s", c->lost_text);
    if (!alone && s->op == SHM_OP_ALLGATHER && bytes > c->small.bytes / 2)
        return text_fail(RM_NO_MEMORY, "all-gather \"%s\": %llu bytes from one rank are over half of the %llu bytes of shared memory; "
                         "gather in parts", s->name, (unsigned long long)bytes, (unsigned long long)c->small.bytes);
    int error;
    struct request *r = request_new(&c->requests, s->name, &error);
    if (r == NULL)
        return error;
    fill(r, s, alone ? NULL : &c->requests.areas);
    if (s->ret_handle != NULL)
        *s->ret_handle = request_handle(r); /* before done can run */
    bool nothing = r->bytes == 0 && (s->op == SHM_OP_ALLREDUCE || s->op == SHM_OP_BROADCAST);
    if (alone || nothing) {
        finish_alone(c, r);
    } else {
        request_enqueue(&c->requests.fresh, r);
        requests_pump(c);
    }
    return RM_OK;
}

static int submit(struct submission *s)
{
    struct client *c = &the_client;
    int status = client_ready();
    if (status == RM_OK)
        status = check(s);
    if (status == RM_OK) {
        pthread_mutex_lock(&c->lock);
        status = start(c, s);
        pthread_mutex_unlock(&c->lock);
    }
    if (status != RM_OK && s->heap_segments)
        free(s->segments);
    return status;
}

/* count elements of dtype in bytes; false when that is more than memory can be. */
static bool bytes_of(uint64_t count, unsigned dtype, uint64_t *ret_bytes)
{
    return !__builtin_mul_overflow(count, shm_dtype_size(dtype), ret_bytes) && *ret_bytes <= UINT64_MAX / 4;
}

static int check_buffers(const char *what, const char *name, const void *in, const void *out, uint64_t count, unsigned dtype,
                         uint64_t *ret_bytes)
{
    if (!bytes_of(count, dtype, ret_bytes))
        return text_fail(RM_INVALID, "%s \"%s\": %llu elements are more than memory can be", what, name == NULL ? "" : name,
                         (unsigned long long)count);
    if ((in == NULL || out == NULL) && *ret_bytes > 0)
        return text_fail(RM_INVALID, "%s \"%s\": no buffer", what, name == NULL ? "" : name);
    return RM_OK;
}

RM_API int rm_allreduce(const char *name, const void *in, void *out, uint64_t count, enum rm_dtype dtype, enum rm_op op,
                        double prescale, double postscale, rm_done_fn *done, void *ctx, rm_handle *ret_handle)
{
    struct segment one = { .in = in, .out = out };
    int status = check_buffers("all-reduce", name, in, out, count, dtype, &one.bytes);
    if (status != RM_OK)
        return status;
    struct submission s = { .what = "all-reduce", .name = name, .segments = &one, .segment_count = 1, .op = SHM_OP_ALLREDUCE,
                            .dtype = (uint16_t)dtype, .redop = (uint16_t)op, .prescale = prescale, .postscale = postscale,
                            .row_elements = 1, .done = done, .ctx = ctx, .ret_handle = ret_handle };
    return submit(&s);
}

RM_API int rm_allreduce_group(const char *name, size_t tensors, const void *const *in, void *const *out, const uint64_t *counts,
                              enum rm_dtype dtype, enum rm_op op, double prescale, double postscale, rm_done_fn *done, void *ctx,
                              rm_handle *ret_handle)
{
    struct segment *segments = tensors == 0 || tensors > SIZE_MAX / sizeof(*segments) ? NULL : calloc(tensors, sizeof(*segments));
    if (segments == NULL)
        return tensors == 0 ? text_fail(RM_INVALID, "grouped all-reduce \"%s\": no tensors", name == NULL ? "" : name)
                            : text_fail(RM_NO_MEMORY, "grouped all-reduce: out of memory for %zu tensors", tensors);
    for (size_t i = 0; i < tensors; i++) {
        segments[i] = (struct segment){ .in = in[i], .out = out[i] };
        int status = check_buffers("grouped all-reduce", name, in[i], out[i], counts[i], dtype, &segments[i].bytes);
        if (status != RM_OK) {
            free(segments);
            return status;
        }
    }
    struct submission s = { .what = "grouped all-reduce", .name = name, .segments = segments, .segment_count = tensors,
                            .heap_segments = true, .op = SHM_OP_ALLREDUCE, .dtype = (uint16_t)dtype, .redop = (uint16_t)op,
                            .prescale = prescale, .postscale = postscale, .row_elements = 1, .done = done, .ctx = ctx,
                            .ret_handle = ret_handle };
    return submit(&s);
}

RM_API int rm_broadcast(const char *name, const void *in, void *out, uint64_t count, enum rm_dtype dtype, int root,
                        rm_done_fn *done, void *ctx, rm_handle *ret_handle)
{
    struct segment one = { .in = in, .out = out };
    bool gives = client_ready() == RM_OK && root == the_client.rank; /* only the root's input is read */
    int status = check_buffers("broadcast", name, gives ? in : out, out, count, dtype, &one.bytes);
    if (status != RM_OK)
        return status;
    struct submission s = { .what = "broadcast", .name = name, .segments = &one, .segment_count = 1, .op = SHM_OP_BROADCAST,
                            .dtype = (uint16_t)dtype, .root = root, .prescale = 1, .postscale = 1, .row_elements = 1,
                            .done = done, .ctx = ctx, .ret_handle = ret_handle };
    return submit(&s);
}

RM_API int rm_allgather(const char *name, const void *in, uint64_t rows, uint64_t row_elements, enum rm_dtype dtype,
                        rm_done_fn *done, void *ctx, rm_handle *ret_handle)
{
    struct segment one = { .in = in };
    uint64_t count;
    if (__builtin_mul_overflow(rows, row_elements, &count))
        count = UINT64_MAX;
    int status = check_buffers("all-gather", name, in, in, count, dtype, &one.bytes);
    if (status == RM_OK && ret_handle == NULL)
        status = text_fail(RM_INVALID, "all-gather \"%s\": ret_handle is needed to get at the result", name == NULL ? "" : name);
    if (status != RM_OK)
        return status;
    struct submission s = { .what = "all-gather", .name = name, .segments = &one, .segment_count = 1, .op = SHM_OP_ALLGATHER,
                            .dtype = (uint16_t)dtype, .prescale = 1, .postscale = 1, .row_elements = row_elements,
                            .done = done, .ctx = ctx, .ret_handle = ret_handle };
    return submit(&s);
}

RM_API int rm_barrier(const char *name)
{
    struct segment none = { 0 };
    rm_handle handle;
    struct submission s = { .what = "barrier", .name = name == NULL ? "barrier" : name, .segments = &none, .segment_count = 1,
                            .op = SHM_OP_BARRIER, .dtype = SHM_U8, .prescale = 1, .postscale = 1, .row_elements = 1,
                            .ret_handle = &handle };
    int status = submit(&s);
    return status == RM_OK ? rm_wait(handle, -1) : status;
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
    if (atomic_load(&c->forked))
        return client_ready();
    pthread_mutex_lock(&c->lock);
    struct request *r = request_find(&c->requests, handle);
    if (r == NULL)
        status = no_such_handle();
    while (status == RM_OK && r->state != REQUEST_DONE) {
        if (!client_wait_changed(c, deadline) && r->state != REQUEST_DONE)
            status = text_fail(RM_TIMEOUT, "\"%s\" is not done after %lld ms", r->name, (long long)timeout_ms);
        else if ((r = request_find(&c->requests, handle)) == NULL)
            status = no_such_handle(); /* another thread released it */
    }
    if (status == RM_OK) {
        if (r->status != RM_OK)
            status = text_fail(r->status, "%s", r->text);
        if (r->op != SHM_OP_ALLGATHER)
            request_release(c, r);
    }
    pthread_mutex_unlock(&c->lock);
    return status;
}

RM_API int rm_result(rm_handle handle, const void **ret_data, uint64_t *ret_elements)
{
    struct client *c = &the_client;
    int status = RM_OK;
    if (atomic_load(&c->forked))
        return client_ready();
    pthread_mutex_lock(&c->lock);
    const struct request *r = request_find(&c->requests, handle);
    if (r == NULL)
        status = no_such_handle();
    else if (r->op != SHM_OP_ALLGATHER)
        status = text_fail(RM_INVALID, "\"%s\" is no all-gather: its result is where the caller wanted it", r->name);
    else if (r->state == REQUEST_LIVE)
        status = text_fail(RM_INVALID, "\"%s\" is not done yet", r->name);
    else if (r->status != RM_OK)
        status = text_fail(r->status, "%s", r->text);
    else if (r->result_heap == NULL && !r->has_result)
        status = text_fail(RM_PEER_LOST, "\"%s\": its result went with rm_shutdown", r->name);
    if (status == RM_OK) {
        *ret_data = r->result_heap != NULL ? r->result_heap : c->shared.base + r->result_offset;
        *ret_elements = r->result_elements;
    }
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
