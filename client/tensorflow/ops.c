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

/* [unknown] and all dimensions of the input but the first. */
static void gathered_shape(TF_ShapeInferenceContext *ctx, TF_Status *status)
{
    TF_ShapeHandle *input = TF_NewShapeHandle(), *rest = TF_NewShapeHandle(), *output = TF_NewShapeHandle();
    TF_ShapeHandle *rows = TF_ShapeInferenceContextVectorFromSize(ctx, (size_t)-1); /* -1 is an unknown dimension */
    TF_ShapeInferenceContextGetInput(ctx, 0, input, status);
    if (TF_GetCode(status) == TF_OK && !TF_ShapeInferenceContextRankKnown(ctx, input)) {
        TF_ShapeInferenceContextSetUnknownShape(ctx, status);
    } else {
        if (TF_GetCode(status) == TF_OK)
            TF_ShapeInferenceContextWithRankAtLeast(ctx, input, 1, input, status);
        if (TF_GetCode(status) == TF_OK)
            TF_ShapeInferenceContextSubshape(ctx, input, 1, TF_ShapeInferenceContextRank(ctx, input), rest, status);
        if (TF_GetCode(status) == TF_OK)
            TF_ShapeInferenceContextConcatenateShapes(ctx, rows, rest, output, status);
        if (TF_GetCode(status) == TF_OK)
            TF_ShapeInferenceContextSetOutput(ctx, 0, output, status);
    }
    TF_DeleteShapeHandle(rows);
    TF_DeleteShapeHandle(output);
    TF_DeleteShapeHandle(rest);
    TF_DeleteShapeHandle(input);
}

#define REDUCIBLE "{uint8, int8, int32, int64, half, bfloat16, float, double}"
#define MOVABLE "{uint8, int8, int32, int64, half, bfloat16, float, double, bool}"
#define SCALES "prescale_factor: float = 1.0", "postscale_factor: float = 1.0"

static const struct op_def {
    const char *name, *input, *output;
    const char *attributes[7];
    void (*shapes)(TF_ShapeInferenceContext *, TF_Status *);
} OPS[] = {
    { "RingmasterAllreduce", "tensor: T", "reduced: T",
      { "T: " REDUCIBLE, "tensor_name: string", "reduce_op: int", SCALES }, same_shapes },
    { "RingmasterGroupedAllreduce", "tensors: num_tensors * T", "reduced: num_tensors * T",
      { "T: " REDUCIBLE, "num_tensors: int >= 1", "tensor_name: string", "reduce_op: int", SCALES }, same_shapes },
    { "RingmasterBroadcast", "tensor: T", "output: T", { "T: " MOVABLE, "tensor_name: string", "root_rank: int" }, same_shapes },
    { "RingmasterAllgather", "tensor: T", "output: T", { "T: " MOVABLE, "tensor_name: string" }, gathered_shape },
};

void ops_register(TF_Status *status)
{
    for (size_t i = 0; i < sizeof(OPS) / sizeof(OPS[0]); i++) {
        TF_OpDefinitionBuilder *b = TF_NewOpDefinitionBuilder(OPS[i].name);
        TF_OpDefinitionBuilderAddInput(b, OPS[i].input);
        TF_OpDefinitionBuilderAddOutput(b, OPS[i].output);
        for (size_t k = 0; OPS[i].attributes[k] != NULL; k++)
            TF_OpDefinitionBuilderAddAttr(b, OPS[i].attributes[k]);
        TF_OpDefinitionBuilderSetIsStateful(b, true);
        TF_OpDefinitionBuilderSetShapeInferenceFunction(b, OPS[i].shapes);
        TF_RegisterOpDefinition(b, status); /* frees b */
        if (TF_GetCode(status) != TF_OK)
            return;
    }
}
