/*
 * kernels.c — what the operations do: hand tensors to libringmaster, and end when it says so.
 */
#include "tf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
#include <tensorflow/c/kernels.h>
#pragma GCC diagnostic pop

#include "ringmaster.h"

/* What a kernel is told once, by the attributes of its node. */
struct kernel {
    char *name;
    int64_t reduce_op, root;
    float prescale, postscale;
    bool has_root, has_op;
};

/* One execution. */
struct call {
    const struct kernel *kernel;
    TF_OpKernelContext *ctx;
    void *done;
    int count;                /* of inputs */
    TF_Tensor **inputs, **outputs;
    const void **in;          /* their data */
    void **out;
    uint64_t *elements;
    rm_handle handle;
    enum rm_dtype dtype;
};

static const struct { TF_DataType tf; enum rm_dtype ours; } DTYPES[] = {
    { TF_UINT8, RM_U8 }, { TF_INT8, RM_I8 }, { TF_INT32, RM_I32 }, { TF_INT64, RM_I64 }, { TF_HALF, RM_F16 },
    { TF_BFLOAT16, RM_BF16 }, { TF_FLOAT, RM_F32 }, { TF_DOUBLE, RM_F64 }, { TF_BOOL, RM_BOOL },
};

static bool dtype_of(TF_DataType type, enum rm_dtype *ret_dtype)
{
    for (size_t i = 0; i < sizeof(DTYPES) / sizeof(DTYPES[0]); i++)
        if (DTYPES[i].tf == type) {
            *ret_dtype = DTYPES[i].ours;
            return true;
        }
    return false;
}

static TF_Code code_of(int status)
{
    switch (status) {
    case RM_OK: return TF_OK;
    case RM_NOT_INITIALIZED: return TF_FAILED_PRECONDITION;
    case RM_INVALID: case RM_MISMATCH: return TF_INVALID_ARGUMENT;
    case RM_NO_MEMORY: return TF_RESOURCE_EXHAUSTED;
    default: return TF_UNKNOWN; /* as Horovod has it: a lost peer is an UnknownError */
    }
}

/* ---- create, delete ---- */

static char *string_attribute(TF_OpKernelConstruction *ctx, const char *attribute, TF_Status *status)
{
    int32_t list = 0, bytes = 0;
    TF_OpKernelConstruction_GetAttrSize(ctx, attribute, &list, &bytes, status);
    if (TF_GetCode(status) != TF_OK)
        return NULL;
    char *text = calloc(1, (size_t)bytes + 1);
    if (text == NULL)
        TF_SetStatus(status, TF_RESOURCE_EXHAUSTED, "ringmaster: out of memory");
    else
        TF_OpKernelConstruction_GetAttrString(ctx, attribute, text, (size_t)bytes, status);
    return text;
}

static void kernel_free(void *kernel)
{
    struct kernel *k = kernel;
    if (k != NULL)
        free(k->name);
    free(k);
}

static void *kernel_new(TF_OpKernelConstruction *ctx)
{
    TF_Status *status = TF_NewStatus();
    struct kernel *k = calloc(1, sizeof(*k));
    if (k == NULL) {
        TF_SetStatus(status, TF_RESOURCE_EXHAUSTED, "ringmaster: out of memory");
    } else {
        k->prescale = k->postscale = 1;
        k->has_op = TF_OpKernelConstruction_HasAttr(ctx, "reduce_op", status);
        k->has_root = TF_OpKernelConstruction_HasAttr(ctx, "root_rank", status);
        k->name = string_attribute(ctx, "tensor_name", status);
        if (TF_GetCode(status) == TF_OK && k->has_op) {
            TF_OpKernelConstruction_GetAttrInt64(ctx, "reduce_op", &k->reduce_op, status);
            if (TF_GetCode(status) == TF_OK)
                TF_OpKernelConstruction_GetAttrFloat(ctx, "prescale_factor", &k->prescale, status);
            if (TF_GetCode(status) == TF_OK)
                TF_OpKernelConstruction_GetAttrFloat(ctx, "postscale_factor", &k->postscale, status);
        }
        if (TF_GetCode(status) == TF_OK && k->has_root)
            TF_OpKernelConstruction_GetAttrInt64(ctx, "root_rank", &k->root, status);
    }
    if (TF_GetCode(status) != TF_OK) {
        TF_OpKernelConstruction_Failure(ctx, status);
        kernel_free(k);
        k = NULL;
    }
    TF_DeleteStatus(status);
    return k;
}

/* ---- one execution ---- */

static void call_free(struct call *c)
{
    for (int i = 0; i < c->count; i++) {
        if (c->inputs != NULL && c->inputs[i] != NULL)
            TF_DeleteTensor(c->inputs[i]);
        if (c->outputs != NULL && c->outputs[i] != NULL)
            TF_DeleteTensor(c->outputs[i]);
    }
    free(c->inputs);
    free(c->outputs);
    free(c->in);
    free(c->out);
    free(c->elements);
    free(c);
}

/* Ends the execution. The tensors are let go first: the last reference to an input may be needed by who comes next. */
static void call_end(struct call *c, TF_Status *status)
{
    void *done = c->done;
    if (TF_GetCode(status) != TF_OK)
        TF_OpKernelContext_Failure(c->ctx, status);
    TF_DeleteStatus(status);
    call_free(c);
    done_run(done);
}

static void call_fail(struct call *c, TF_Code code, const char *text)
{
    char message[1024];
    snprintf(message, sizeof(message), "Ringmaster: %s", text);
    TF_Status *status = TF_NewStatus();
    TF_SetStatus(status, code, message);
    call_end(c, status);
}

static struct call *call_new(const struct kernel *k, TF_OpKernelContext *ctx, void *done)
{
    struct call *c = calloc(1, sizeof(*c));
    int count = TF_NumInputs(ctx);
    if (c == NULL)
        abort(); /* there is no way left to say it: TensorFlow itself aborts when it is out of memory */
    *c = (struct call){ .kernel = k, .ctx = ctx, .done = done_take(done), .count = count };
    size_t n = count > 0 ? (size_t)count : 1;
    c->inputs = calloc(n, sizeof(*c->inputs));
    c->outputs = calloc(n, sizeof(*c->outputs));
    c->in = calloc(n, sizeof(*c->in));
    c->out = calloc(n, sizeof(*c->out));
    c->elements = calloc(n, sizeof(*c->elements));
    if (c->inputs == NULL || c->outputs == NULL || c->in == NULL || c->out == NULL || c->elements == NULL)
        abort();
    return c;
}

/* An output of the input's shape, its first dimension replaced when rows >= 0. */
static TF_Tensor *allocate(TF_OpKernelContext *ctx, int index, const TF_Tensor *input, int64_t rows, TF_Status *status)
{
    int64_t dims[256];
    int count = TF_NumDims(input);
    if (count > (int)(sizeof(dims) / sizeof(dims[0]))) {
        TF_SetStatus(status, TF_INVALID_ARGUMENT, "ringmaster: too many dimensions");
        return NULL;
    }
    size_t bytes = TF_DataTypeSize(TF_TensorType(input));
    for (int d = 0; d < count; d++) {
        dims[d] = d == 0 && rows >= 0 ? rows : TF_Dim(input, d);
        bytes *= (size_t)dims[d];
    }
    return TF_AllocateOutput(ctx, index, TF_TensorType(input), dims, count, bytes, status);
}

/* Takes the inputs and, where the outputs are as large, allocates those. False: it has failed and ended. */
static bool call_prepare(struct call *c, bool with_outputs)
{
    TF_Status *status = TF_NewStatus();
    for (int i = 0; i < c->count && TF_GetCode(status) == TF_OK; i++) {
        TF_GetInput(c->ctx, i, &c->inputs[i], status);
        if (TF_GetCode(status) != TF_OK)
            break;
        if (!dtype_of(TF_TensorType(c->inputs[i]), &c->dtype))
            TF_SetStatus(status, TF_INVALID_ARGUMENT, "ringmaster: dtype is not supported");
        c->in[i] = TF_TensorData(c->inputs[i]);
        c->elements[i] = (uint64_t)TF_TensorElementCount(c->inputs[i]);
        if (with_outputs && TF_GetCode(status) == TF_OK)
            c->outputs[i] = allocate(c->ctx, i, c->inputs[i], -1, status);
        if (c->outputs[i] != NULL)
            c->out[i] = TF_TensorData(c->outputs[i]);
    }
    if (TF_GetCode(status) != TF_OK) {
        call_end(c, status);
        return false;
    }
    TF_DeleteStatus(status);
    return true;
}

static void on_done(void *ctx, int status, const char *text)
{
    struct call *c = ctx;
    if (status != RM_OK)
        call_fail(c, code_of(status), text);
    else
        call_end(c, TF_NewStatus());
}

static void allreduce(void *kernel, TF_OpKernelContext *ctx, TF_AsyncOpKernelDoneCallback *done)
{
    const struct kernel *k = kernel;
    struct call *c = call_new(k, ctx, done);
    if (!call_prepare(c, true))
        return;
    int status = rm_allreduce_group(k->name, (size_t)c->count, c->in, c->out, c->elements, c->dtype, (enum rm_op)k->reduce_op,
                                    k->prescale, k->postscale, on_done, c, NULL);
    if (status != RM_OK)
        call_fail(c, code_of(status), rm_error_text());
}

static void broadcast(void *kernel, TF_OpKernelContext *ctx, TF_AsyncOpKernelDoneCallback *done)
{
    const struct kernel *k = kernel;
    struct call *c = call_new(k, ctx, done);
    if (!call_prepare(c, true))
        return;
    int status = rm_broadcast(k->name, c->in[0], c->out[0], c->elements[0], c->dtype, (int)k->root, on_done, c, NULL);
    if (status != RM_OK)
        call_fail(c, code_of(status), rm_error_text());
}

static void on_gathered(void *ctx, int status, const char *text)
{
    struct call *c = ctx;
    const void *data = NULL;
    uint64_t elements = 0;
    rm_handle handle = c->handle;
    if (status == RM_OK && rm_result(handle, &data, &elements) != RM_OK) {
        status = RM_IO;
        text = rm_error_text();
    }
    if (status != RM_OK) {
        call_fail(c, code_of(status), text);
    } else {
        TF_Status *s = TF_NewStatus();
        uint64_t row = 1;
        for (int d = 1; d < TF_NumDims(c->inputs[0]); d++)
            row *= (uint64_t)TF_Dim(c->inputs[0], d);
        c->outputs[0] = allocate(c->ctx, 0, c->inputs[0], row == 0 ? 0 : (int64_t)(elements / row), s);
        if (c->outputs[0] != NULL && elements > 0)
            memcpy(TF_TensorData(c->outputs[0]), data, TF_TensorByteSize(c->outputs[0]));
        call_end(c, s);
    }
    rm_release(handle);
}

static void allgather(void *kernel, TF_OpKernelContext *ctx, TF_AsyncOpKernelDoneCallback *done)
{
    const struct kernel *k = kernel;
    struct call *c = call_new(k, ctx, done);
    if (!call_prepare(c, false))
        return;
    if (TF_NumDims(c->inputs[0]) == 0) {
        call_fail(c, TF_INVALID_ARGUMENT, "all-gather needs a tensor of at least one dimension");
        return;
    }
    uint64_t rows = (uint64_t)TF_Dim(c->inputs[0], 0), row = 1;
    for (int d = 1; d < TF_NumDims(c->inputs[0]); d++)
        row *= (uint64_t)TF_Dim(c->inputs[0], d);
    int status = rm_allgather(k->name, c->in[0], rows, row, c->dtype, on_gathered, c, &c->handle);
    if (status != RM_OK)
        call_fail(c, code_of(status), rm_error_text());
}

static const struct kernel_def {
    const char *op;
    void (*compute)(void *, TF_OpKernelContext *, TF_AsyncOpKernelDoneCallback *);
} KERNELS[] = {
    { "RingmasterAllreduce", allreduce },
    { "RingmasterGroupedAllreduce", allreduce },
    { "RingmasterBroadcast", broadcast },
    { "RingmasterAllgather", allgather },
};

void kernels_register(TF_Status *status)
{
    for (size_t i = 0; i < sizeof(KERNELS) / sizeof(KERNELS[0]); i++) {
        TF_KernelBuilder *b = TF_NewAsyncKernelBuilder(KERNELS[i].op, "CPU", kernel_new, KERNELS[i].compute, kernel_free);
        TF_RegisterKernelBuilder(KERNELS[i].op, b, status); /* frees b */
        if (TF_GetCode(status) != TF_OK)
            return;
    }
}
