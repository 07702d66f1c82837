#include "gpu.h"

#include <stdlib.h>
#include <time.h>

#include "ringmaster.h"
#include "request.h"
#include "text.h"
#include "wire/shm.h"

/* From so many copies on a launch is better than as many copies, which cost the host two microseconds or three each. Not for large
 * ones: those are the copy engines' business. */
#define PACK_MIN 4
#define PACK_MAX_BYTES (256u << 10)
#define PACK_BLOCKS 8u
#define PACK_BLOCK_BYTES (16u << 10)
#define SCALE_BLOCKS 1024u

/* The kernels: build/gpu/kernels.fatbin, see the Makefile. */
__asm__(".section .rodata\n"
        ".balign 64\n"
        ".global ringmaster_gpu_kernels\n"
        ".hidden ringmaster_gpu_kernels\n"
        "ringmaster_gpu_kernels:\n"
        ".incbin \"build/gpu/kernels.fatbin\"\n"
        ".previous\n");
extern const char ringmaster_gpu_kernels[] __attribute__((visibility("hidden")));

#define FAIL(code, call, ...) cuda_fail(&g->driver, code, call, __VA_ARGS__)

static int enter(struct gpu *g, const struct gpu_device *d)
{
    CUresult code = g->driver.cuCtxPushCurrent(d->context);
    return code == CUDA_OK ? RM_OK : FAIL(code, "cuCtxPushCurrent", "using GPU %d", d->ordinal);
}

static void exit_context(struct gpu *g)
{
    CUcontext was;
    (void)g->driver.cuCtxPopCurrent(&was);
}

/* ---- opening ---- */

/* Without kernels everything still works, by copies alone: a driver older than the toolkit refuses them. */
static void load_kernels(struct gpu *g, struct gpu_device *d)
{
    const struct cuda_driver *cu = &g->driver;
    if (cu->cuModuleLoadData(&d->module, ringmaster_gpu_kernels) != CUDA_OK) {
        d->module = NULL;
        return;
    }
    if (cu->cuModuleGetFunction(&d->copy_many, d->module, "ringmaster_copy_many") != CUDA_OK)
        d->copy_many = NULL;
    if (cu->cuModuleGetFunction(&d->scale, d->module, "ringmaster_scale") != CUDA_OK)
        d->scale = NULL;
}

/* With the context current. What was made before a failure is the device's. */
static int fill_device(struct gpu *g, struct gpu_device *d)
{
    CUresult code = g->driver.cuStreamCreate(&d->to_host, CUDA_STREAM_NON_BLOCKING);
    if (code == CUDA_OK)
        code = g->driver.cuStreamCreate(&d->to_device, CUDA_STREAM_NON_BLOCKING);
    if (code != CUDA_OK)
        return FAIL(code, "cuStreamCreate", "using GPU %d", d->ordinal);
    load_kernels(g, d);
    return RM_OK;
}

/* What can be given back is, also when the device has failed. */
static void close_device(struct gpu *g, struct gpu_device *d)
{
    const struct cuda_driver *cu = &g->driver;
    bool entered = d->context != NULL && enter(g, d) == RM_OK;
    if (d->module != NULL)
        (void)cu->cuModuleUnload(d->module);
    if (d->to_device != NULL)
        (void)cu->cuStreamDestroy(d->to_device);
    if (d->to_host != NULL)
        (void)cu->cuStreamDestroy(d->to_host);
    if (entered)
        exit_context(g);
    if (d->context != NULL)
        (void)cu->cuDevicePrimaryCtxRelease(d->device);
    free(d);
}

static int open_device(struct gpu *g, int ordinal, struct gpu_device **ret)
{
    struct gpu_device *d = calloc(1, sizeof(*d));
    if (d == NULL)
        return text_fail(RM_NO_MEMORY, "out of memory");
    d->ordinal = ordinal;
    CUresult code = g->driver.cuDeviceGet(&d->device, ordinal);
    int status = code == CUDA_OK ? RM_OK : FAIL(code, "cuDeviceGet", "using GPU %d", ordinal);
    if (status == RM_OK) {
        code = g->driver.cuDevicePrimaryCtxRetain(&d->context, d->device);
        if (code != CUDA_OK) {
            d->context = NULL;
            status = FAIL(code, "cuDevicePrimaryCtxRetain", "using GPU %d", ordinal);
        }
    }
    if (status == RM_OK)
        status = enter(g, d);
    if (status == RM_OK) {
        status = fill_device(g, d);
        exit_context(g);
    }
    if (status == RM_OK)
        *ret = d;
    else
        close_device(g, d);
    return status;
}

/* The arena for all devices, and where this one sees it. */
static int pin(struct gpu *g, struct gpu_device *d, void *arena, uint64_t bytes)
{
    if (arena == NULL || d->arena != 0)
        return RM_OK;
    int status = enter(g, d);
    if (status != RM_OK)
        return status;
    CUresult code = CUDA_OK;
    if (g->arena == NULL) {
        code = g->driver.cuMemHostRegister(arena, bytes, CUDA_HOST_PORTABLE | CUDA_HOST_DEVICE_MAP);
        if (code == CUDA_OK)
            g->arena = arena;
        else
            status = FAIL(code, "cuMemHostRegister", "pinning the %llu MiB of the arena", (unsigned long long)bytes >> 20);
    }
    if (status == RM_OK) {
        code = g->driver.cuMemHostGetDevicePointer(&d->arena, arena, 0);
        if (code != CUDA_OK) {
            d->arena = 0;
            status = FAIL(code, "cuMemHostGetDevicePointer", "mapping the arena for GPU %d", d->ordinal);
        }
    }
    exit_context(g);
    return status;
}

/* With gpu.lock held. */
static int open_for(struct gpu *g, int ordinal, void *arena, uint64_t arena_bytes, struct gpu_device **ret)
{
    struct gpu_device *d = g->devices;
    while (d != NULL && d->ordinal != ordinal)
        d = d->next;
    if (d == NULL) {
        int status = open_device(g, ordinal, &d);
        if (status != RM_OK)
            return status;
        d->next = g->devices;
        g->devices = d;
    }
    *ret = d;
    return pin(g, d, arena, arena_bytes);
}

static int open_driver(struct gpu *g)
{
    int status = g->closed ? text_fail(RM_NOT_INITIALIZED, "rm_shutdown was called") : g->open ? RM_OK : cuda_open(&g->driver);
    g->open |= status == RM_OK;
    return status;
}

/* ---- whose memory it is ---- */

static int check_pointer(struct gpu *g, const char *name, size_t index, const void *pointer, int *ordinal)
{
    unsigned type = 0;
    int where = 0;
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)pointer;
    if (g->driver.cuPointerGetAttribute(&type, CUDA_POINTER_MEMORY_TYPE, at) != CUDA_OK || type != CUDA_MEMORY_DEVICE)
        return text_fail(RM_INVALID, "\"%s\": tensor %zu is said to lie in GPU memory, but %p is no address of any", name, index, pointer);
    CUresult code = g->driver.cuPointerGetAttribute(&where, CUDA_POINTER_DEVICE_ORDINAL, at);
    if (code != CUDA_OK)
        return FAIL(code, "cuPointerGetAttribute", "\"%s\": finding the GPU of tensor %zu", name, index);
    if (*ordinal >= 0 && where != *ordinal)
        return text_fail(RM_INVALID, "\"%s\": its tensors lie on GPU %d and GPU %d; those of one request lie on one", name, *ordinal, where);
    *ordinal = where;
    return RM_OK;
}

int gpu_of(struct gpu *g, const char *name, const struct segment *segments, size_t count, void *arena, uint64_t arena_bytes,
           struct gpu_device **ret_device)
{
    int ordinal = -1;
    *ret_device = NULL;
    pthread_mutex_lock(&g->lock);
    int status = open_driver(g);
    for (size_t i = 0; status == RM_OK && i < count; i++) {
        const struct segment *s = &segments[i];
        if (s->bytes > 0 && s->in != NULL)
            status = check_pointer(g, name, i, s->in, &ordinal);
        if (status == RM_OK && s->bytes > 0 && s->out != NULL && s->out != s->in)
            status = check_pointer(g, name, i, s->out, &ordinal);
    }
    if (status == RM_OK && ordinal >= 0)
        status = open_for(g, ordinal, arena, arena_bytes, ret_device);
    pthread_mutex_unlock(&g->lock);
    return status;
}

/* ---- order ---- */

int gpu_mark(struct gpu *g, struct gpu_device *d, CUstream stream, CUevent *ret_mark)
{
    CUstreamCaptureStatus capture = CUDA_CAPTURE_NONE;
    CUevent mark = NULL;
    int status = enter(g, d);
    if (status != RM_OK)
        return status;
    CUresult code = g->driver.cuStreamIsCapturing(stream, &capture);
    if (code != CUDA_OK)
        status = FAIL(code, "cuStreamIsCapturing", "the program's stream on GPU %d", d->ordinal);
    else if ((int)capture != CUDA_CAPTURE_NONE)
        status = text_fail(RM_INVALID, "the stream is being captured into a CUDA graph; what travels to other ranks cannot be a part of one");
    if (status == RM_OK && (code = g->driver.cuEventCreate(&mark, CUDA_EVENT_DISABLE_TIMING)) != CUDA_OK)
        status = FAIL(code, "cuEventCreate", "GPU %d", d->ordinal);
    if (status == RM_OK && (code = g->driver.cuEventRecord(mark, stream)) != CUDA_OK) {
        status = FAIL(code, "cuEventRecord", "the program's stream on GPU %d; is it of that GPU?", d->ordinal);
        (void)g->driver.cuEventDestroy(mark);
    }
    exit_context(g);
    if (status == RM_OK)
        *ret_mark = mark;
    return status;
}

void gpu_unmark(struct gpu *g, struct gpu_device *d, CUevent mark)
{
    bool entered = enter(g, d) == RM_OK;
    (void)g->driver.cuEventDestroy(mark);
    if (entered)
        exit_context(g);
}

/* ---- copies ---- */

static bool is_for_kernel(const struct gpu_device *d, const struct gpu_copy *copies, size_t count)
{
    if (d->copy_many == NULL || count < PACK_MIN)
        return false;
    for (size_t i = 0; i < count; i++)
        if (copies[i].bytes > PACK_MAX_BYTES)
            return false;
    return true;
}

/* Addresses in the arena are as the device sees them already. */
static int launch_copies(struct gpu *g, struct gpu_device *d, CUstream stream, const struct gpu_copy *copies, size_t count)
{
    while (count > 0) {
        struct gpu_copy_table table = { 0 };
        size_t n = count < GPU_COPIES_MAX ? count : GPU_COPIES_MAX;
        unsigned long long most = 1;
        for (size_t i = 0; i < n; i++) {
            table.copies[i] = copies[i];
            most = copies[i].bytes > most ? copies[i].bytes : most;
        }
        unsigned blocks = (unsigned)((most + PACK_BLOCK_BYTES - 1) / PACK_BLOCK_BYTES);
        void *arguments[] = { &table };
        CUresult code = g->driver.cuLaunchKernel(d->copy_many, blocks < PACK_BLOCKS ? blocks : PACK_BLOCKS, (unsigned)n, 1,
                                                 GPU_BLOCK_THREADS, 1, 1, 0, stream, arguments, NULL);
        if (code != CUDA_OK)
            return FAIL(code, "cuLaunchKernel", "packing %zu tensors on GPU %d", n, d->ordinal);
        copies += n;
        count -= n;
    }
    return RM_OK;
}

static CUdeviceptr seen(const struct gpu *g, const struct gpu_device *d, unsigned long long host)
{
    return d->arena + (host - (uintptr_t)g->arena);
}

static int copy_each(struct gpu *g, struct gpu_device *d, bool in, const struct gpu_copy *copies, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const struct gpu_copy *c = &copies[i];
        CUresult code = in ? g->driver.cuMemcpyDtoHAsync((void *)(uintptr_t)c->to, c->from, c->bytes, d->to_host)
                           : g->driver.cuMemcpyHtoDAsync(c->to, (const void *)(uintptr_t)c->from, c->bytes, d->to_device);
        if (code != CUDA_OK)
            return FAIL(code, in ? "cuMemcpyDtoHAsync" : "cuMemcpyHtoDAsync", "copying %llu bytes %s GPU %d", c->bytes, in ? "from" : "to",
                        d->ordinal);
    }
    return RM_OK;
}

/* With the context current. */
static int start_copies(struct gpu *g, struct gpu_device *d, bool in, struct gpu_copy *copies, size_t count, CUhostFn landed, void *token)
{
    CUstream stream = in ? d->to_host : d->to_device;
    int status;
    if (is_for_kernel(d, copies, count)) {
        for (size_t i = 0; i < count; i++) {
            unsigned long long *host = in ? &copies[i].to : &copies[i].from;
            *host = seen(g, d, *host);
        }
        status = launch_copies(g, d, stream, copies, count);
    } else {
        status = copy_each(g, d, in, copies, count);
    }
    if (status != RM_OK)
        return status;
    CUresult code = g->driver.cuLaunchHostFunc(stream, landed, token);
    return code == CUDA_OK ? RM_OK : FAIL(code, "cuLaunchHostFunc", "GPU %d", d->ordinal);
}

static int copy(struct gpu *g, struct gpu_device *d, bool in, CUevent mark, struct gpu_copy *copies, size_t count, CUhostFn landed,
                void *token)
{
    int status = enter(g, d);
    if (status != RM_OK)
        return status;
    CUresult code = mark == NULL ? CUDA_OK : g->driver.cuStreamWaitEvent(in ? d->to_host : d->to_device, mark, 0);
    if (code != CUDA_OK)
        status = FAIL(code, "cuStreamWaitEvent", "GPU %d", d->ordinal);
    else
        status = start_copies(g, d, in, copies, count, landed, token);
    exit_context(g);
    return status;
}

int gpu_copy_in(struct gpu *g, struct gpu_device *d, CUevent mark, struct gpu_copy *copies, size_t count, CUhostFn landed, void *token)
{
    return copy(g, d, true, mark, copies, count, landed, token);
}

int gpu_copy_out(struct gpu *g, struct gpu_device *d, CUevent mark, struct gpu_copy *copies, size_t count, CUhostFn landed, void *token)
{
    return copy(g, d, false, mark, copies, count, landed, token);
}

/* ---- a world of one ---- */

static int launch_scale(struct gpu *g, struct gpu_device *d, CUstream stream, const void *in, void *out, unsigned long long count,
                        unsigned dtype, double factor)
{
    unsigned long long blocks = (count + GPU_BLOCK_THREADS - 1) / GPU_BLOCK_THREADS;
    void *arguments[] = { &in, &out, &count, &dtype, &factor };
    if (d->scale == NULL)
        return text_fail(RM_IO, "scaling in a world of one is a kernel's work, and the driver of GPU %d does not take ours: it knows CUDA "
                                "%d.%d, needed is 13.0 (driver 580 or newer)", d->ordinal, g->driver.version / 1000,
                         g->driver.version % 1000 / 10);
    CUresult code = g->driver.cuLaunchKernel(d->scale, blocks < SCALE_BLOCKS ? (unsigned)blocks : SCALE_BLOCKS, 1, 1, GPU_BLOCK_THREADS, 1, 1,
                                             0, stream, arguments, NULL);
    return code == CUDA_OK ? RM_OK : FAIL(code, "cuLaunchKernel", "scaling %llu elements on GPU %d", count, d->ordinal);
}

int gpu_scale(struct gpu *g, struct gpu_device *d, CUstream stream, const void *in, void *out, uint64_t count, unsigned dtype, double factor)
{
    bool copies = factor == 1.0 || dtype == SHM_BOOL || dtype == SHM_U16 || dtype == SHM_I16;
    if (count == 0 || (copies && in == out))
        return RM_OK;
    int status = enter(g, d);
    if (status != RM_OK)
        return status;
    if (copies) {
        uint64_t bytes = count * shm_dtype_size(dtype);
        CUresult code = g->driver.cuMemcpyDtoDAsync((CUdeviceptr)(uintptr_t)out, (CUdeviceptr)(uintptr_t)in, bytes, stream);
        if (code != CUDA_OK)
            status = FAIL(code, "cuMemcpyDtoDAsync", "copying %llu bytes on GPU %d", (unsigned long long)bytes, d->ordinal);
    } else {
        status = launch_scale(g, d, stream, in, out, count, dtype, factor);
    }
    exit_context(g);
    return status;
}

/* ---- the end ---- */

/* RM_OK: all was done; RM_TIMEOUT: something is under way; RM_IO: something has failed. */
static int look_at(struct gpu *g, const struct gpu_device *d)
{
    CUstream streams[] = { d->to_host, d->to_device };
    int status = enter(g, d), result = RM_OK;
    if (status != RM_OK)
        return RM_TIMEOUT; /* it tells nothing of the streams */
    for (int i = 0; status == RM_OK && i < 2; i++) {
        CUresult code = g->driver.cuStreamQuery(streams[i]);
        if (code == CUDA_NOT_READY)
            result = RM_TIMEOUT;
        else if (code != CUDA_OK)
            result = status = FAIL(code, "cuStreamQuery", "copying %s GPU %d", i == 0 ? "from" : "to", d->ordinal);
    }
    exit_context(g);
    return result;
}

static int look_at_all(struct gpu *g)
{
    int result = RM_OK;
    pthread_mutex_lock(&g->lock);
    for (struct gpu_device *d = g->devices; d != NULL && result != RM_IO; d = d->next) {
        int one = look_at(g, d);
        if (one != RM_OK)
            result = one;
    }
    pthread_mutex_unlock(&g->lock);
    return result;
}

int gpu_check(struct gpu *g)
{
    int status = look_at_all(g);
    return status == RM_TIMEOUT ? RM_OK : status;
}

bool gpu_settle(struct gpu *g, int timeout_ms)
{
    struct timespec pause = { .tv_nsec = 1000000 };
    int status;
    for (int waited = 0; (status = look_at_all(g)) == RM_TIMEOUT && waited < timeout_ms; waited++)
        (void)nanosleep(&pause, NULL);
    return status != RM_TIMEOUT; /* a device that has failed writes nothing any more */
}

void gpu_allow(struct gpu *g)
{
    pthread_mutex_lock(&g->lock);
    g->closed = false;
    pthread_mutex_unlock(&g->lock);
}

void gpu_close(struct gpu *g, bool settled)
{
    pthread_mutex_lock(&g->lock);
    g->closed = true;
    if (settled && g->arena != NULL) {
        bool entered = enter(g, g->devices) == RM_OK;
        (void)g->driver.cuMemHostUnregister(g->arena);
        if (entered)
            exit_context(g);
    }
    g->arena = NULL;
    for (struct gpu_device *d = g->devices, *next; d != NULL; d = next) {
        next = d->next;
        close_device(g, d);
    }
    g->devices = NULL;
    g->failed = g->watched = false;
    pthread_mutex_unlock(&g->lock);
}
