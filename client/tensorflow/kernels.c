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
    enum rm_kind kind;
    char *name;
    int64_t process_set, reduce_op, root;
    float prescale, postscale;
};

/* One execution. */
struct call {
    const struct kernel *kernel;
    TF_OpKernelContext *ctx;
    void *done;
    int count;               /* of tensors that take part */
    TF_Tensor **inputs, **outputs;
    struct rm_tensor *tensors;
    int64_t **shapes;
    TF_Tensor *splits;       /* all-to-all */
    rm_handle handle;
};

static const struct { TF_DataType tf; enum rm_dtype ours; } DTYPES[] = {
    { TF_UINT8, RM_U8 }, { TF_INT8, RM_I8 }, { TF_INT32, RM_I32 }, { TF_INT64, RM_I64 }, { TF_HALF, RM_F16 },
    { TF_BFLOAT16, RM_BF16 }, { TF_FLOAT, RM_F32 }, { TF_DOUBLE, RM_F64 }, { TF_BOOL, RM_BOOL }, { TF_UINT16, RM_U16 },
    { TF_INT16, RM_I16 },
};

static bool dtype_of(TF_DataType type, int *ret_dtype)
{
    for (size_t i = 0; i < sizeof(DTYPES) / sizeof(DTYPES[0]); i++)
        if (DTYPES[i].tf == type) {
            *ret_dtype = DTYPES[i].ours;
            return true;
        }
    return false;
}

/* Those of Horovod, which programs catch: ranks that disagree are a failed precondition, a lost peer is an unknown error. */
static TF_Code code_of(int status)
{
    switch (status) {
    case RM_OK: return TF_OK;
    case RM_NOT_INITIALIZED: case RM_MISMATCH: return TF_FAILED_PRECONDITION;
    case RM_INVALID: case RM_NOT_FOUND: return TF_INVALID_ARGUMENT;
    case RM_NO_MEMORY: return TF_RESOURCE_EXHAUSTED;
    default: return TF_UNKNOWN;
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

/* Attributes that this operation does not have keep their value. */
static void int_attribute(TF_OpKernelConstruction *ctx, const char *attribute, int64_t *ret, TF_Status *status)
{
    if (TF_GetCode(status) == TF_OK && TF_OpKernelConstruction_HasAttr(ctx, attribute, status))
        TF_OpKernelConstruction_GetAttrInt64(ctx, attribute, ret, status);
}

static void float_attribute(TF_OpKernelConstruction *ctx, const char *attribute, float *ret, TF_Status *status)
{
    if (TF_GetCode(status) == TF_OK && TF_OpKernelConstruction_HasAttr(ctx, attribute, status))
        TF_OpKernelConstruction_GetAttrFloat(ctx, attribute, ret, status);
}

static void *kernel_new(TF_OpKernelConstruction *ctx, enum rm_kind kind)
{
    TF_Status *status = TF_NewStatus();
    struct kernel *k = calloc(1, sizeof(*k));
    if (k == NULL) {
        TF_SetStatus(status, TF_RESOURCE_EXHAUSTED, "ringmaster: out of memory");
    } else {
        k->kind = kind;
        k->prescale = k->postscale = 1;
        if (TF_OpKernelConstruction_HasAttr(ctx, "tensor_name", status))
            k->name = string_attribute(ctx, "tensor_name", status);
        int_attribute(ctx, "process_set", &k->process_set, status);
        int_attribute(ctx, "reduce_op", &k->reduce_op, status);
        int_attribute(ctx, "root_rank", &k->root, status);
        float_attribute(ctx, "prescale_factor", &k->prescale, status);
        float_attribute(ctx, "postscale_factor", &k->postscale, status);
        if (TF_GetCode(status) == TF_OK && (k->process_set != (int)k->process_set || k->root != (int)k->root))
            TF_SetStatus(status, TF_INVALID_ARGUMENT, "Ringmaster: process_set or root_rank is out of range");
    }
    if (TF_GetCode(status) != TF_OK) {
        TF_OpKernelConstruction_Failure(ctx, status);
        kernel_free(k);
        k = NULL;
    }
    TF_DeleteStatus(status);
    return k;
}

static void *allreduce_new(TF_OpKernelConstruction *ctx) { return kernel_new(ctx, RM_ALLREDUCE); }
static void *reducescatter_new(TF_OpKernelConstruction *ctx) { return kernel_new(ctx, RM_REDUCESCATTER); }
static void *broadcast_new(TF_OpKernelConstruction *ctx) { return kernel_new(ctx, RM_BROADCAST); }
static void *allgather_new(TF_OpKernelConstruction *ctx) { return kernel_new(ctx, RM_ALLGATHER); }
static void *alltoall_new(TF_OpKernelConstruction *ctx) { return kernel_new(ctx, RM_ALLTOALL); }
static void *join_new(TF_OpKernelConstruction *ctx) { return kernel_new(ctx, RM_JOIN); }

/* ---- one execution ---- */

static void call_free(struct call *c)
{
    for (int i = 0; i < c->count; i++) {
        if (c->inputs != NULL && c->inputs[i] != NULL)
            TF_DeleteTensor(c->inputs[i]);
        if (c->outputs != NULL && c->outputs[i] != NULL)
            TF_DeleteTensor(c->outputs[i]);
        if (c->shapes != NULL)
            free(c->shapes[i]);
    }
    if (c->splits != NULL)
        TF_DeleteTensor(c->splits);
    free(c->inputs);
    free(c->outputs);
    free(c->tensors);
    free(c->shapes);
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
    int count = k->kind == RM_ALLTOALL ? 1 : TF_NumInputs(ctx);
    if (c == NULL)
        abort(); /* there is no way left to say it: TensorFlow itself aborts when it is out of memory */
    *c = (struct call){ .kernel = k, .ctx = ctx, .done = done_take(done), .count = count };
    size_t n = count > 0 ? (size_t)count : 1;
    c->inputs = calloc(n, sizeof(*c->inputs));
    c->outputs = calloc(n, sizeof(*c->outputs));
    c->tensors = calloc(n, sizeof(*c->tensors));
    c->shapes = calloc(n, sizeof(*c->shapes));
    if (c->inputs == NULL || c->outputs == NULL || c->tensors == NULL || c->shapes == NULL)
        abort();
    return c;
}

/* An output of tensor `index`'s shape, the first dimension replaced when rows >= 0. The caller owns the reference. */
static TF_Tensor *allocate(const struct call *c, int index, int64_t rows, TF_Status *status)
{
    const TF_Tensor *input = c->inputs[index];
    const struct rm_tensor *t = &c->tensors[index];
    size_t bytes = TF_DataTypeSize(TF_TensorType(input));
    int64_t first = t->ndim > 0 ? c->shapes[index][0] : 0;
    if (t->ndim > 0 && rows >= 0)
        c->shapes[index][0] = rows;
    for (int d = 0; d < t->ndim; d++)
        bytes *= (size_t)c->shapes[index][d];
    TF_Tensor *output = TF_AllocateOutput(c->ctx, index, TF_TensorType(input), c->shapes[index], t->ndim, bytes, status);
    if (t->ndim > 0)
        c->shapes[index][0] = first;
    return output;
}

/* Takes input `index`, and allocates the output where that is as large. */
static void call_take(struct call *c, int index, bool with_output, TF_Status *status)
{
    struct rm_tensor *t = &c->tensors[index];
    TF_GetInput(c->ctx, index, &c->inputs[index], status);
    if (TF_GetCode(status) != TF_OK)
        return;
    TF_Tensor *input = c->inputs[index];
    if (!dtype_of(TF_TensorType(input), &t->dtype)) {
        TF_SetStatus(status, TF_INVALID_ARGUMENT, "Ringmaster: dtype is not supported");
        return;
    }
    t->ndim = TF_NumDims(input);
    c->shapes[index] = calloc(t->ndim > 0 ? (size_t)t->ndim : 1, sizeof(*c->shapes[index]));
    if (c->shapes[index] == NULL)
        abort(); /* as in call_new */
    for (int d = 0; d < t->ndim; d++)
        c->shapes[index][d] = TF_Dim(input, d);
    t->shape = c->shapes[index];
    t->in = TF_TensorData(input);
    if (with_output)
        c->outputs[index] = allocate(c, index, -1, status);
    else if (t->ndim == 0)
        TF_SetStatus(status, TF_INVALID_ARGUMENT, "Ringmaster: this operation needs a tensor of at least one dimension; a scalar has no rows");
    if (c->outputs[index] != NULL)
        t->out = TF_TensorData(c->outputs[index]);
}

/* Which rows go where: none, so that all get as many; or one number for each rank of the set. */
static const int64_t *call_take_splits(struct call *c, TF_Status *status)
{
    TF_GetInput(c->ctx, 1, &c->splits, status);
    if (TF_GetCode(status) != TF_OK || TF_TensorElementCount(c->splits) == 0)
        return NULL;
    int ranks = rm_process_set_size((int)c->kernel->process_set);
    if (ranks >= 0 && TF_TensorElementCount(c->splits) != ranks) {
        char text[128];
        snprintf(text, sizeof(text), "Ringmaster: %lld splits for the %d ranks of the process set",
                 (long long)TF_TensorElementCount(c->splits), ranks);
        TF_SetStatus(status, TF_INVALID_ARGUMENT, text);
    }
    return ranks < 0 ? NULL : TF_TensorData(c->splits); /* a set that is not there fails when it is submitted */
}

static void give_result(struct call *c, int index, TF_Status *status)
{
    const void *data = NULL;
    int64_t rows = 0;
    if (rm_output(c->handle, (size_t)index, &data, &rows) != RM_OK) {
        TF_SetStatus(status, TF_UNKNOWN, rm_error_text());
        return;
    }
    c->outputs[index] = allocate(c, index, rows, status);
    if (c->outputs[index] != NULL && TF_TensorByteSize(c->outputs[index]) > 0)
        memcpy(TF_TensorData(c->outputs[index]), data, TF_TensorByteSize(c->outputs[index]));
}

static void give_received_splits(struct call *c, TF_Status *status)
{
    int ranks = rm_process_set_size((int)c->kernel->process_set);
    int64_t *rows = calloc(ranks > 0 ? (size_t)ranks : 1, sizeof(*rows));
    if (rows == NULL || ranks < 0 || rm_received_splits(c->handle, rows, (size_t)ranks) != RM_OK) {
        TF_SetStatus(status, TF_UNKNOWN, rows == NULL ? "Ringmaster: out of memory" : rm_error_text());
        free(rows);
        return;
    }
    int64_t dims[1] = { ranks };
    TF_Tensor *output = TF_AllocateOutput(c->ctx, 1, TF_INT32, dims, 1, (size_t)ranks * sizeof(int32_t), status);
    if (output != NULL) {
        int32_t *received = TF_TensorData(output);
        for (int i = 0; i < ranks; i++)
            received[i] = (int32_t)rows[i];
        TF_DeleteTensor(output);
    }
    free(rows);
}

static void give_scalar(TF_OpKernelContext *ctx, int value, TF_Status *status)
{
    TF_Tensor *output = TF_AllocateOutput(ctx, 0, TF_INT32, NULL, 0, sizeof(int32_t), status);
    if (output == NULL)
        return;
    *(int32_t *)TF_TensorData(output) = value;
    TF_DeleteTensor(output);
}

static void on_done(void *ctx, int result, const char *text)
{
    struct call *c = ctx;
    rm_handle handle = c->handle;
    TF_Status *status = TF_NewStatus();
    enum rm_kind kind = c->kernel->kind;
    if (result != RM_OK) {
        TF_DeleteStatus(status);
        call_fail(c, code_of(result), text);
        rm_release(handle);
        return;
    }
    if (kind == RM_ALLGATHER || kind == RM_REDUCESCATTER || kind == RM_ALLTOALL)
        for (int i = 0; i < c->count && TF_GetCode(status) == TF_OK; i++)
            give_result(c, i, status);
    if (kind == RM_ALLTOALL && TF_GetCode(status) == TF_OK)
        give_received_splits(c, status);
    if (kind == RM_JOIN)
        give_scalar(c->ctx, rm_joined(handle), status);
    rm_release(handle); /* before whoever waits for this can shut the library down */
    call_end(c, status);
}

static void collective(void *kernel, TF_OpKernelContext *ctx, TF_AsyncOpKernelDoneCallback *done)
{
    const struct kernel *k = kernel;
    struct call *c = call_new(k, ctx, done);
    TF_Status *status = TF_NewStatus();
    bool with_outputs = k->kind == RM_ALLREDUCE || k->kind == RM_BROADCAST;
    for (int i = 0; i < c->count && TF_GetCode(status) == TF_OK; i++)
        call_take(c, i, with_outputs, status);
    const int64_t *splits = NULL;
    if (k->kind == RM_ALLTOALL && TF_GetCode(status) == TF_OK)
        splits = call_take_splits(c, status);
    if (TF_GetCode(status) != TF_OK) {
        call_end(c, status);
        return;
    }
    TF_DeleteStatus(status);
    struct rm_collective request = {
        .struct_bytes = sizeof(request), .kind = (int)k->kind, .name = k->name != NULL ? k->name : "ringmaster.join",
        .process_set = (int)k->process_set, .op = (int)k->reduce_op, .prescale = k->prescale, .postscale = k->postscale,
        .root = (int)k->root, .tensor_count = (size_t)c->count, .tensors = c->tensors, .splits = splits, .done = on_done, .ctx = c,
    };
    int result = rm_submit(&request, &c->handle);
    if (result != RM_OK)
        call_fail(c, code_of(result), rm_error_text());
}

/* ---- numbers that are asked for when the graph runs: in an elastic job they may change ---- */

static void give_number(TF_OpKernelContext *ctx, int number)
{
    TF_Status *status = TF_NewStatus();
    if (number >= 0) {
        give_scalar(ctx, number, status);
    } else {
        char message[1024];
        snprintf(message, sizeof(message), "Ringmaster: %s", rm_error_text());
        TF_SetStatus(status, code_of(number), message);
    }
    if (TF_GetCode(status) != TF_OK)
        TF_OpKernelContext_Failure(ctx, status);
    TF_DeleteStatus(status);
}

static void *number_new(TF_OpKernelConstruction *ctx) { return kernel_new(ctx, 0); }

static void size_of_set(void *kernel, TF_OpKernelContext *ctx)
{
    give_number(ctx, rm_process_set_size((int)((const struct kernel *)kernel)->process_set));
}

static void rank_in_set(void *kernel, TF_OpKernelContext *ctx)
{
    give_number(ctx, rm_process_set_rank((int)((const struct kernel *)kernel)->process_set));
}

static void included_in_set(void *kernel, TF_OpKernelContext *ctx)
{
    give_number(ctx, rm_process_set_included((int)((const struct kernel *)kernel)->process_set));
}

static void local_size(void *kernel, TF_OpKernelContext *ctx)
{
    (void)kernel;
    give_number(ctx, rm_local_size());
}

static void local_rank(void *kernel, TF_OpKernelContext *ctx)
{
    (void)kernel;
    give_number(ctx, rm_local_rank());
}

static const struct { const char *op; void *(*create)(TF_OpKernelConstruction *); } COLLECTIVES[] = {
    { "RingmasterAllreduce", allreduce_new },         { "RingmasterGroupedAllreduce", allreduce_new },
    { "RingmasterReducescatter", reducescatter_new }, { "RingmasterGroupedReducescatter", reducescatter_new },
    { "RingmasterAllgather", allgather_new },         { "RingmasterGroupedAllgather", allgather_new },
    { "RingmasterBroadcast", broadcast_new },         { "RingmasterAlltoall", alltoall_new },
    { "RingmasterJoin", join_new },
};

static const struct { const char *op; void (*compute)(void *, TF_OpKernelContext *); } NUMBERS[] = {
    { "RingmasterSize", size_of_set },   { "RingmasterRank", rank_in_set },     { "RingmasterProcessSetIncluded", included_in_set },
    { "RingmasterLocalSize", local_size }, { "RingmasterLocalRank", local_rank },
};

void kernels_register(TF_Status *status)
{
    for (size_t i = 0; i < sizeof(COLLECTIVES) / sizeof(COLLECTIVES[0]) && TF_GetCode(status) == TF_OK; i++) {
        const char *op = COLLECTIVES[i].op;
        TF_RegisterKernelBuilder(op, TF_NewAsyncKernelBuilder(op, "CPU", COLLECTIVES[i].create, collective, kernel_free), status);
    }
    for (size_t i = 0; i < sizeof(NUMBERS) / sizeof(NUMBERS[0]) && TF_GetCode(status) == TF_OK; i++) {
        const char *op = NUMBERS[i].op;
        TF_RegisterKernelBuilder(op, TF_NewKernelBuilder(op, "CPU", number_new, NUMBERS[i].compute, kernel_free), status);
    }
}
