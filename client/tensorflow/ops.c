/*
 * ops.c — what the operations look like to TensorFlow: inputs, outputs, attributes, shapes.
 *
 * All are stateful: folding, merging or pruning one of them on one rank would leave the other ranks waiting.
 */
#include "tf.h"

#include <stddef.h>

/* Output i has the shape of input i. */
static void same_shapes(TF_ShapeInferenceContext *ctx, TF_Status *status)
{
    TF_ShapeHandle *shape = TF_NewShapeHandle();
    int64_t count = TF_ShapeInferenceContextNumInputs(ctx);
    for (int i = 0; i < count && TF_GetCode(status) == TF_OK; i++) {
        TF_ShapeInferenceContextGetInput(ctx, i, shape, status);
        if (TF_GetCode(status) == TF_OK)
            TF_ShapeInferenceContextSetOutput(ctx, i, shape, status);
    }
    TF_DeleteShapeHandle(shape);
}

/* Output `index` has an unknown number of rows of input `index`. */
static void rows_unknown(TF_ShapeInferenceContext *ctx, int index, TF_Status *status)
{
    TF_ShapeHandle *input = TF_NewShapeHandle(), *rest = TF_NewShapeHandle(), *output = TF_NewShapeHandle();
    TF_ShapeHandle *rows = TF_ShapeInferenceContextVectorFromSize(ctx, (size_t)-1); /* -1 is an unknown dimension */
    TF_ShapeInferenceContextGetInput(ctx, index, input, status);
    /* An output that is not set is unknown. */
    if (TF_GetCode(status) == TF_OK && TF_ShapeInferenceContextRankKnown(ctx, input)) {
        TF_ShapeInferenceContextWithRankAtLeast(ctx, input, 1, input, status);
        if (TF_GetCode(status) == TF_OK)
            TF_ShapeInferenceContextSubshape(ctx, input, 1, TF_ShapeInferenceContextRank(ctx, input), rest, status);
        if (TF_GetCode(status) == TF_OK)
            TF_ShapeInferenceContextConcatenateShapes(ctx, rows, rest, output, status);
        if (TF_GetCode(status) == TF_OK)
            TF_ShapeInferenceContextSetOutput(ctx, index, output, status);
    }
    TF_DeleteShapeHandle(rows);
    TF_DeleteShapeHandle(output);
    TF_DeleteShapeHandle(rest);
    TF_DeleteShapeHandle(input);
}

static void rows_unknown_each(TF_ShapeInferenceContext *ctx, TF_Status *status)
{
    TF_ShapeInferenceContextSetUnknownShape(ctx, status);
    int64_t count = TF_ShapeInferenceContextNumInputs(ctx);
    for (int i = 0; i < count && TF_GetCode(status) == TF_OK; i++)
        rows_unknown(ctx, i, status);
}

static void alltoall_shapes(TF_ShapeInferenceContext *ctx, TF_Status *status)
{
    TF_ShapeInferenceContextSetUnknownShape(ctx, status);
    TF_ShapeHandle *splits = TF_ShapeInferenceContextVectorFromSize(ctx, (size_t)-1);
    if (TF_GetCode(status) == TF_OK)
        rows_unknown(ctx, 0, status);
    if (TF_GetCode(status) == TF_OK)
        TF_ShapeInferenceContextSetOutput(ctx, 1, splits, status);
    TF_DeleteShapeHandle(splits);
}

static void scalar_shape(TF_ShapeInferenceContext *ctx, TF_Status *status)
{
    TF_ShapeHandle *scalar = TF_ShapeInferenceContextScalar(ctx);
    TF_ShapeInferenceContextSetOutput(ctx, 0, scalar, status);
    TF_DeleteShapeHandle(scalar);
}

#define REDUCIBLE "{uint8, int8, int32, int64, half, bfloat16, float, double, bool}"
#define MOVABLE "{uint8, int8, uint16, int16, int32, int64, half, bfloat16, float, double, bool}"
#define NAMED "tensor_name: string", "process_set: int = 0"
#define REDUCES "reduce_op: int", "prescale_factor: float = 1.0", "postscale_factor: float = 1.0"
#define GROUP "num_tensors: int >= 1"

static const struct op_def {
    const char *name, *inputs[2], *outputs[2];
    const char *attributes[8];
    void (*shapes)(TF_ShapeInferenceContext *, TF_Status *);
} OPS[] = {
    { "RingmasterAllreduce", { "tensor: T" }, { "reduced: T" }, { "T: " REDUCIBLE, NAMED, REDUCES }, same_shapes },
    { "RingmasterGroupedAllreduce", { "tensors: num_tensors * T" }, { "reduced: num_tensors * T" },
      { "T: " REDUCIBLE, GROUP, NAMED, REDUCES }, same_shapes },
    { "RingmasterReducescatter", { "tensor: T" }, { "output: T" }, { "T: " REDUCIBLE, NAMED, REDUCES }, rows_unknown_each },
    { "RingmasterGroupedReducescatter", { "tensors: num_tensors * T" }, { "outputs: num_tensors * T" },
      { "T: " REDUCIBLE, GROUP, NAMED, REDUCES }, rows_unknown_each },
    { "RingmasterBroadcast", { "tensor: T" }, { "output: T" }, { "T: " MOVABLE, NAMED, "root_rank: int" }, same_shapes },
    { "RingmasterAllgather", { "tensor: T" }, { "output: T" }, { "T: " MOVABLE, NAMED }, rows_unknown_each },
    { "RingmasterGroupedAllgather", { "tensors: T" }, { "outputs: T" }, { "T: list(" MOVABLE ") >= 1", NAMED }, rows_unknown_each },
    { "RingmasterAlltoall", { "tensor: T", "splits: int64" }, { "output: T", "received_splits: int32" },
      { "T: " MOVABLE, NAMED }, alltoall_shapes },
    { "RingmasterJoin", { NULL }, { "last_rank: int32" }, { NULL }, scalar_shape },
    { "RingmasterSize", { NULL }, { "size: int32" }, { "process_set: int = 0" }, scalar_shape },
    { "RingmasterRank", { NULL }, { "rank: int32" }, { "process_set: int = 0" }, scalar_shape },
    { "RingmasterProcessSetIncluded", { NULL }, { "included: int32" }, { "process_set: int = 0" }, scalar_shape },
    { "RingmasterLocalSize", { NULL }, { "local_size: int32" }, { NULL }, scalar_shape },
    { "RingmasterLocalRank", { NULL }, { "local_rank: int32" }, { NULL }, scalar_shape },
};

void ops_register(TF_Status *status)
{
    for (size_t i = 0; i < sizeof(OPS) / sizeof(OPS[0]); i++) {
        TF_OpDefinitionBuilder *b = TF_NewOpDefinitionBuilder(OPS[i].name);
        for (size_t k = 0; k < 2 && OPS[i].inputs[k] != NULL; k++)
            TF_OpDefinitionBuilderAddInput(b, OPS[i].inputs[k]);
        for (size_t k = 0; k < 2 && OPS[i].outputs[k] != NULL; k++)
            TF_OpDefinitionBuilderAddOutput(b, OPS[i].outputs[k]);
        for (size_t k = 0; OPS[i].attributes[k] != NULL; k++)
            TF_OpDefinitionBuilderAddAttr(b, OPS[i].attributes[k]);
        TF_OpDefinitionBuilderSetIsStateful(b, true);
        TF_OpDefinitionBuilderSetShapeInferenceFunction(b, OPS[i].shapes);
        TF_RegisterOpDefinition(b, status); /* frees b */
        if (TF_GetCode(status) != TF_OK)
            return;
    }
}
