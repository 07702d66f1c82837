/*
 * tf.h — TensorFlow's C API as C, and the little that the files of the op share.
 *
 * One shared object serves TensorFlow 2.15 and later. Each operation is an asynchronous kernel: it submits to libringmaster and
 * returns; the library's completion thread ends it. A synchronous kernel would hold one of TensorFlow's few threads while it
 * waits, and ranks that execute operations in different orders would wait for each other for ever.
 */
#ifndef RINGMASTER_TF_H
#define RINGMASTER_TF_H

/* ops.h is C++ without these. */
typedef struct TF_OpDefinitionBuilder TF_OpDefinitionBuilder;
typedef struct TF_ShapeInferenceContext TF_ShapeInferenceContext;
typedef struct TF_ShapeHandle TF_ShapeHandle;
typedef struct TF_DimensionHandle TF_DimensionHandle;

/* kernels.h is for kernels.c alone: in C it defines an object. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wstrict-prototypes" /* TensorFlow declares f() for f(void) */
#include <tensorflow/c/ops.h>
#include <tensorflow/c/tf_datatype.h>
#include <tensorflow/c/tf_status.h>
#include <tensorflow/c/tf_tensor.h>
#pragma GCC diagnostic pop

#include "done.h"

/* Each registers with TensorFlow; TF_OK in status when it went well. */
void ops_register(TF_Status *status);
void kernels_register(TF_Status *status);

#endif
