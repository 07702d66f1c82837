#include "tests/gpu/fake_cuda.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "client/c/src/cuda.h"

#define EXPORT __attribute__((visibility("default")))
#define INVALID_VALUE 1
#define INVALID_CONTEXT 201
#define INVALID_IMAGE 200
#define UNSUPPORTED_KERNEL 222
#define NOT_FOUND 500
#define INJECTED 999
#define FATBIN_MAGIC 0xBA55ED50u
#define DEVICES_MAX 8
#define AREAS_MAX 4096

enum op_kind { OP_COPY, OP_KERNEL, OP_RECORD, OP_WAIT, OP_CALL };

struct op {
    enum op_kind kind;
    void *to;
    const void *from;
    size_t bytes;
    void *launch;
    struct CUevent_st *event;
    uint64_t ticket;
    void (*fn)(void *);
    void *ctx;
    struct op *next;
};

struct CUevent_st { int references; uint64_t recorded, passed; };

struct CUstream_st {
    pthread_t thread;
    struct op *first, **end;
    bool busy, ends, capturing;
};

struct CUmod_st { int unused; };
struct CUfunc_st { const char *name; };
struct CUctx_st { int ordinal, retained; };

static struct area { char *base; size_t bytes; int ordinal; bool pinned; } areas[AREAS_MAX];
static struct CUctx_st contexts[DEVICES_MAX] = { { 0, 0 }, { 1, 0 }, { 2, 0 }, { 3, 0 }, { 4, 0 }, { 5, 0 }, { 6, 0 }, { 7, 0 } };
static struct CUfunc_st functions[] = { { "ringmaster_copy_many" }, { "ringmaster_scale" } };
static struct CUstream_st *default_stream;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards everything, and is dropped while a stream works */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int copying; /* copies and kernels that are being carried out */
static int call_count, fail_at_call, carried_out, break_at_copy, live_count, kernel_count;
static CUresult broken;
static _Thread_local CUcontext pushed[8];
static _Thread_local int pushed_count;

static int number_from(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text == NULL ? otherwise : atoi(text);
}

/* ---- what every call begins with; returns with the lock held when it may go on ---- */

static CUresult enter_call(bool needs_context)
{
    pthread_mutex_lock(&lock);
    CUresult code = ++call_count == fail_at_call ? INJECTED : broken;
    while (code != 0 && code == broken && copying > 0) /* who hears of it may take it that nothing is written any more */
        pthread_cond_wait(&changed, &lock);
    if (code == 0 && needs_context && pushed_count == 0)
        code = INVALID_CONTEXT;
    if (code != 0)
        pthread_mutex_unlock(&lock);
    return code;
}

#define ENTER(needs_context)                       \
    do {                                           \
        CUresult entered = enter_call(needs_context); \
        if (entered != 0)                          \
            return entered;                        \
    } while (0)

static CUresult leave(CUresult code)
{
    pthread_mutex_unlock(&lock);
    return code;
}

/* ---- memory ---- */

static struct area *area_of(uint64_t address, size_t bytes, bool pinned)
{
    for (struct area *a = areas; a < areas + AREAS_MAX; a++) {
        uint64_t base = (uintptr_t)a->base;
        if (a->base != NULL && a->pinned == pinned && address >= base && address - base <= a->bytes && bytes <= a->bytes - (address - base))
            return a;
    }
    return NULL;
}

static bool area_add(void *base, size_t bytes, int ordinal, bool pinned)
{
    for (struct area *a = areas; a < areas + AREAS_MAX; a++) {
        if (a->base == NULL) {
            *a = (struct area){ base, bytes, ordinal, pinned };
            return true;
        }
    }
    return false;
}

/* ---- streams ---- */

static void event_drop(struct CUevent_st *e)
{
    if (--e->references == 0)
        free(e);
}

static void carry_out(struct op *op)
{
    bool fails = (op->kind == OP_COPY || op->kind == OP_KERNEL) && ++carried_out == break_at_copy;
    if (fails)
        broken = CUDA_ILLEGAL_ADDRESS;
    if (op->kind == OP_RECORD)
        op->event->passed = op->ticket;
    copying += op->kind == OP_COPY || op->kind == OP_KERNEL;
    pthread_mutex_unlock(&lock);
    if (op->kind == OP_COPY && !fails)
        memmove(op->to, op->from, op->bytes);
    else if (op->kind == OP_KERNEL && !fails)
        host_kernel_run(op->launch);
    else if (op->kind == OP_CALL)
        op->fn(op->ctx);
    pthread_mutex_lock(&lock);
    copying -= op->kind == OP_COPY || op->kind == OP_KERNEL;
}

/* What comes after a failure is dropped, host functions too, as the driver does. */
static void *stream_main(void *stream)
{
    struct CUstream_st *s = stream;
    pthread_mutex_lock(&lock);
    for (;;) {
        struct op *op = s->first;
        if (op == NULL && s->ends)
            break;
        if (op == NULL || (op->kind == OP_WAIT && op->event->passed < op->ticket && broken == 0 && !s->ends)) {
            pthread_cond_wait(&changed, &lock);
            continue;
        }
        s->first = op->next;
        if (s->first == NULL)
            s->end = &s->first;
        s->busy = true;
        bool drops = broken != 0 || (op->kind == OP_WAIT && op->event->passed < op->ticket);
        if (!drops)
            carry_out(op);
        if (op->kind == OP_KERNEL)
            host_kernel_drop(op->launch);
        if (op->event != NULL)
            event_drop(op->event);
        free(op);
        s->busy = false;
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

static struct CUstream_st *stream_make(void)
{
    struct CUstream_st *s = calloc(1, sizeof *s);
    s->end = &s->first;
    pthread_create(&s->thread, NULL, stream_main, s);
    return s;
}

static struct CUstream_st *stream_or_default(CUstream s)
{
    if (s != NULL)
        return s;
    if (default_stream == NULL)
        default_stream = stream_make();
    return default_stream;
}

/* With the lock held. */
static void stream_add(CUstream stream, struct op what)
{
    struct CUstream_st *s = stream_or_default(stream);
    struct op *op = malloc(sizeof *op);
    *op = what;
    op->next = NULL;
    if (op->event != NULL)
        op->event->references++;
    *s->end = op;
    s->end = &op->next;
    pthread_cond_broadcast(&changed);
}

/* With the lock held, which is dropped. */
static void stream_end(struct CUstream_st *s)
{
    s->ends = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    pthread_join(s->thread, NULL);
    free(s);
}

/* ---- the calls ---- */

static CUresult fake_cuInit(unsigned flags)
{
    ENTER(false);
    return leave(flags != 0 ? INVALID_VALUE : number_from("FAKE_CUDA_DEVICES", 2) == 0 ? CUDA_NO_DEVICE : 0);
}

EXPORT CUresult cuDriverGetVersion(int *ret_version);
EXPORT CUresult cuDriverGetVersion(int *ret_version)
{
    *ret_version = number_from("FAKE_CUDA_VERSION", 13000);
    return 0;
}
#define fake_cuDriverGetVersion cuDriverGetVersion

static CUresult fake_cuGetErrorName(CUresult code, const char **ret_name)
{
    *ret_name = code == INJECTED ? "CUDA_ERROR_UNKNOWN" : code == CUDA_NO_DEVICE ? "CUDA_ERROR_NO_DEVICE"
              : code == CUDA_ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : NULL;
    return *ret_name == NULL ? INVALID_VALUE : 0;
}

static CUresult fake_cuGetErrorString(CUresult code, const char **ret_text)
{
    *ret_text = code == CUDA_ILLEGAL_ADDRESS ? "an illegal memory access was encountered" : "a failure of the test's";
    return 0;
}

static CUresult fake_cuDeviceGet(CUdevice *ret_device, int ordinal)
{
    ENTER(false);
    *ret_device = ordinal;
    return leave(ordinal < 0 || ordinal >= number_from("FAKE_CUDA_DEVICES", 2) ? 101 : 0);
}

static CUresult fake_cuDevicePrimaryCtxRetain(CUcontext *ret_context, CUdevice device)
{
    ENTER(false);
    contexts[device].retained++;
    live_count++;
    *ret_context = &contexts[device];
    return leave(0);
}

static CUresult fake_cuDevicePrimaryCtxRelease(CUdevice device)
{
    pthread_mutex_lock(&lock); /* giving back is not made to fail: nobody could do anything about it */
    contexts[device].retained--;
    live_count--;
    return leave(0);
}

static CUresult fake_cuCtxPushCurrent(CUcontext context)
{
    pthread_mutex_lock(&lock);
    if (++call_count == fail_at_call) /* a device that is broken has a context all the same */
        return leave(INJECTED);
    pushed[pushed_count++] = context;
    return leave(0);
}

static CUresult fake_cuCtxPopCurrent(CUcontext *ret_context)
{
    if (pushed_count == 0)
        return INVALID_CONTEXT;
    *ret_context = pushed[--pushed_count];
    return 0;
}

static CUresult fake_cuPointerGetAttribute(void *ret_value, CUpointer_attribute attribute, CUdeviceptr pointer)
{
    ENTER(false);
    const struct area *a = area_of(pointer, 0, false);
    if (a == NULL)
        return leave(INVALID_VALUE);
    *(int *)ret_value = attribute == CUDA_POINTER_MEMORY_TYPE ? (int)CUDA_MEMORY_DEVICE : a->ordinal;
    return leave(0);
}

static CUresult fake_cuStreamCreate(CUstream *ret_stream, unsigned flags)
{
    ENTER(true);
    if (flags != CUDA_STREAM_NON_BLOCKING)
        return leave(INVALID_VALUE);
    *ret_stream = stream_make();
    live_count++;
    return leave(0);
}

static CUresult fake_cuStreamDestroy(CUstream stream)
{
    pthread_mutex_lock(&lock);
    live_count--;
    stream_end(stream);
    return 0;
}

/* What it tells is what has become of the device: a failure stays, and nothing is written any more. */
static CUresult fake_cuStreamQuery(CUstream stream)
{
    CUresult code = enter_call(true);
    if (code != 0) {
        pthread_mutex_lock(&lock);
        broken = code;
        pthread_cond_broadcast(&changed);
        while (copying > 0)
            pthread_cond_wait(&changed, &lock);
        return leave(code);
    }
    const struct CUstream_st *s = stream_or_default(stream);
    return leave(s->busy || s->first != NULL ? CUDA_NOT_READY : 0);
}

static CUresult fake_cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *ret_status)
{
    ENTER(true);
    *ret_status = stream_or_default(stream)->capturing;
    return leave(0);
}

static CUresult fake_cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    ENTER(true);
    stream_add(stream, (struct op){ .kind = OP_WAIT, .event = event, .ticket = event->recorded });
    return leave(flags != 0 ? INVALID_VALUE : 0);
}

static CUresult fake_cuEventCreate(CUevent *ret_event, unsigned flags)
{
    ENTER(true);
    if (flags != CUDA_EVENT_DISABLE_TIMING)
        return leave(INVALID_VALUE);
    *ret_event = calloc(1, sizeof **ret_event);
    (*ret_event)->references = 1;
    live_count++;
    return leave(0);
}

static CUresult fake_cuEventDestroy(CUevent event)
{
    pthread_mutex_lock(&lock);
    live_count--;
    event_drop(event);
    return leave(0);
}

static CUresult fake_cuEventRecord(CUevent event, CUstream stream)
{
    ENTER(true);
    stream_add(stream, (struct op){ .kind = OP_RECORD, .event = event, .ticket = ++event->recorded });
    return leave(0);
}

static CUresult fake_cuMemHostRegister(void *memory, size_t bytes, unsigned flags)
{
    ENTER(true);
    if (flags != (CUDA_HOST_PORTABLE | CUDA_HOST_DEVICE_MAP) || !area_add(memory, bytes, -1, true))
        return leave(INVALID_VALUE);
    live_count++;
    return leave(0);
}

static CUresult fake_cuMemHostUnregister(void *memory)
{
    pthread_mutex_lock(&lock);
    struct area *a = area_of((uintptr_t)memory, 0, true);
    if (a == NULL)
        return leave(INVALID_VALUE);
    *a = (struct area){ 0 };
    live_count--;
    return leave(0);
}

static CUresult fake_cuMemHostGetDevicePointer(CUdeviceptr *ret_pointer, void *memory, unsigned flags)
{
    ENTER(true);
    *ret_pointer = (uintptr_t)memory;
    return leave(flags != 0 || area_of((uintptr_t)memory, 0, true) == NULL ? INVALID_VALUE : 0);
}

static CUresult copy(uint64_t to, bool to_host, uint64_t from, bool from_host, size_t bytes, CUstream stream)
{
    ENTER(true);
    if (area_of(to, bytes, to_host) == NULL || area_of(from, bytes, from_host) == NULL)
        return leave(INVALID_VALUE);
    stream_add(stream, (struct op){ .kind = OP_COPY, .to = (void *)(uintptr_t)to, .from = (const void *)(uintptr_t)from, .bytes = bytes });
    return leave(0);
}

static CUresult fake_cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    return copy((uintptr_t)to, true, from, false, bytes, stream);
}

static CUresult fake_cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    return copy(to, false, (uintptr_t)from, true, bytes, stream);
}

static CUresult fake_cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    return copy(to, false, from, false, bytes, stream);
}

static CUresult fake_cuLaunchHostFunc(CUstream stream, CUhostFn fn, void *ctx)
{
    ENTER(true);
    stream_add(stream, (struct op){ .kind = OP_CALL, .fn = fn, .ctx = ctx });
    return leave(0);
}

static CUresult fake_cuModuleLoadData(CUmodule *ret_module, const void *image)
{
    uint32_t magic;
    memcpy(&magic, image, sizeof magic);
    ENTER(true);
    if (magic != FATBIN_MAGIC || number_from("FAKE_CUDA_REFUSES_KERNELS", 0) != 0)
        return leave(magic != FATBIN_MAGIC ? INVALID_IMAGE : UNSUPPORTED_KERNEL);
    *ret_module = calloc(1, sizeof **ret_module);
    live_count++;
    return leave(0);
}

static CUresult fake_cuModuleUnload(CUmodule module)
{
    pthread_mutex_lock(&lock);
    live_count--;
    free(module);
    return leave(0);
}

static CUresult fake_cuModuleGetFunction(CUfunction *ret_function, CUmodule module, const char *name)
{
    ENTER(true);
    (void)module;
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        if (strcmp(functions[i].name, name) == 0) {
            *ret_function = &functions[i];
            return leave(0);
        }
    }
    return leave(NOT_FOUND);
}

static CUresult fake_cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                                    unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream, void **arguments, void **extra)
{
    const unsigned grid[] = { grid_x, grid_y, grid_z }, block[] = { block_x, block_y, block_z };
    ENTER(true);
    bool right = grid_x > 0 && grid_y > 0 && grid_z == 1 && block_x > 0 && block_x <= 1024 && block_y == 1 && block_z == 1
              && grid_y <= 65535 && shared_bytes == 0 && extra == NULL;
    if (!right)
        return leave(INVALID_VALUE);
    kernel_count++;
    stream_add(stream, (struct op){ .kind = OP_KERNEL, .launch = host_kernel_take(function->name, grid, block, arguments) });
    return leave(0);
}

/* ---- how it is found ---- */

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **ret_function, int version, uint64_t flags, int *ret_found);
EXPORT CUresult cuGetProcAddress_v2(const char *name, void **ret_function, int version, uint64_t flags, int *ret_found)
{
#define ENTRY(entry, since, parameters) { #entry, since, (void (*)(void))fake_##entry },
    static const struct { const char *name; int since; void (*function)(void); } entries[] = { CUDA_ENTRIES(ENTRY) };
#undef ENTRY
    int known = number_from("FAKE_CUDA_VERSION", 13000);
    *ret_function = NULL;
    *ret_found = 1;
    for (size_t i = 0; flags == 0 && i < sizeof entries / sizeof entries[0]; i++) {
        if (strcmp(entries[i].name, name) == 0 && entries[i].since == version && version <= known) {
            memcpy(ret_function, &entries[i].function, sizeof *ret_function);
            *ret_found = 0;
        }
    }
    return *ret_function == NULL ? NOT_FOUND : 0;
}

/* ---- the test's side ---- */

static void *control_alloc(int ordinal, size_t bytes)
{
    void *base = NULL;
    if (posix_memalign(&base, 512, bytes == 0 ? 1 : bytes) != 0)
        abort();
    pthread_mutex_lock(&lock);
    if (!area_add(base, bytes, ordinal, false))
        abort();
    pthread_mutex_unlock(&lock);
    return base;
}

static void control_free(void *pointer)
{
    pthread_mutex_lock(&lock);
    struct area *a = area_of((uintptr_t)pointer, 0, false);
    if (a == NULL)
        abort();
    *a = (struct area){ 0 };
    pthread_mutex_unlock(&lock);
    free(pointer);
}

static void *control_stream_new(void)
{
    return stream_make();
}

static void control_stream_free(void *stream)
{
    struct CUstream_st *s = stream;
    pthread_mutex_lock(&lock);
    while (s->busy || s->first != NULL)
        pthread_cond_wait(&changed, &lock);
    stream_end(s);
}

static void control_put(void *stream, void (*fn)(void *), void *ctx)
{
    pthread_mutex_lock(&lock);
    stream_add(stream, (struct op){ .kind = OP_CALL, .fn = fn, .ctx = ctx });
    pthread_mutex_unlock(&lock);
}

static void control_capture(void *stream, bool on)
{
    pthread_mutex_lock(&lock);
    ((struct CUstream_st *)stream)->capturing = on;
    pthread_mutex_unlock(&lock);
}

static void set(int *number, int value)
{
    pthread_mutex_lock(&lock);
    *number = value;
    pthread_mutex_unlock(&lock);
}

static int get(const int *number)
{
    pthread_mutex_lock(&lock);
    int value = *number;
    pthread_mutex_unlock(&lock);
    return value;
}

static void control_fail_at(int call) { set(&fail_at_call, call == 0 ? 0 : get(&call_count) + call); }
static void control_break_at(int copy) { set(&break_at_copy, copy == 0 ? 0 : get(&carried_out) + copy); }
static int control_calls(void) { return get(&call_count); }
static int control_kernels(void) { return get(&kernel_count); }
static int control_live(void) { return get(&live_count); }
static int control_depth(void) { return pushed_count; }

static void control_reset(void)
{
    pthread_mutex_lock(&lock);
    call_count = fail_at_call = carried_out = break_at_copy = kernel_count = 0;
    broken = 0;
    pthread_mutex_unlock(&lock);
}

EXPORT const struct fake_cuda fake_cuda = {
    control_alloc, control_free, control_stream_new, control_stream_free, control_put, control_capture, control_fail_at, control_break_at,
    control_reset, control_calls, control_kernels, control_live, control_depth,
};
